"""Fresh virtual environments, and checks that are run in them. Shared by check_wheel.py and check_oldest.py."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CONSTRAINTS = REPOSITORY / "constraints.txt"


@dataclass(frozen=True)
class Check:
    """
    Something that a user does, and what must come of it.

    :param name: what the user does
    :param command: arguments of the environment's Python, or, if the first is ``sb3-avgcorr``, our command
    :param code: exit code
    :param says: what must be printed
    """

    name: str
    command: Sequence[str]
    code: int = 0
    says: str = ""


def snippet(name: str, code: str, says: str = "") -> Check:
    """
    A few lines of Python that must run through.

    :param name: what they do
    :param code: the lines
    :param says: what must be printed
    :return: the check
    """
    return Check(name, ("-c", code), says=says)


class Fresh:
    """
    A new virtual environment that sees no package from outside it.

    :param folder: where to make it
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"  # not the repository, or Python would import the package from there
        self.failed: list[str] = []
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        self.work.mkdir()
        self.bin = folder / "bin"

    def install(self, *what: str, constraints: Path | None = CONSTRAINTS) -> None:
        """
        Install packages.

        :param what: requirements as pip knows them
        :param constraints: file of versions to keep to
        """
        begin = time.monotonic()
        options = [] if constraints is None else ["--constraint", str(constraints)]
        command = [self.bin / "python", "-m", "pip", "install", "--quiet", *options, *what]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pip install {' '.join(what)} failed:\n{done.stderr}")
        print(f"  installed {' '.join(Path(item).name for item in what)}: {time.monotonic() - begin:.0f} s", flush=True)

    def run(self, check: Check, timeout: float = 900.0) -> None:
        """
        Run a check, and remember it if it fails.

        :param check: what to run
        :param timeout: seconds that it may take
        """
        begin = time.monotonic()
        program, *rest = check.command
        line = [self.bin / program, *rest] if program == "sb3-avgcorr" else [self.bin / "python", *check.command]
        try:
            done = subprocess.run(
                line, cwd=self.work, env=self._environment(), capture_output=True, text=True, timeout=timeout, check=False
            )
            output, code = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired:
            output, code = f"no end after {timeout:.0f} s", -1
        passed = code == check.code and check.says in output and "Traceback" not in output
        print(f"  {'ok  ' if passed else 'FAIL'} {check.name} ({time.monotonic() - begin:.0f} s)", flush=True)
        if not passed:
            self.failed.append(check.name)
            wanted = f"exit code {check.code}" + (f" and {check.says!r}" if check.says else "")
            print(f"       wanted {wanted}; got exit code {code} and\n" + output[-3000:], flush=True)

    def _environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        # Ray's workers would give way to every other process, and have no end on a busy machine
        settings = {"OMP_NUM_THREADS": "1", "MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl"), "RAY_worker_niceness": "0"}
        return {**inherited, **settings}


def train_save_load(*names: str, steps: int = 64) -> Check:
    """
    Train, save and load models; the loaded one must act and correct as the saved one.

    :param names: classes of our package
    :param steps: steps to train
    :return: the check
    """
    code = f"""
import numpy as np
import sb3_avgcorr
for name in {names!r}:
    policy = "MlpLstmPolicy" if "Recurrent" in name else "MlpPolicy"
    env = "CartPole-v1"
    if "Maskable" in name:
        from sb3_contrib.common.envs import InvalidActionEnvDiscrete
        env = InvalidActionEnvDiscrete(dim=20, n_invalid_actions=10)
    algorithm = getattr(sb3_avgcorr, name)
    model = algorithm(policy, env, n_steps=32, seed=0, device="cpu").learn({steps})
    model.save(name)
    loaded = algorithm.load(name, env=model.get_env(), device="cpu")
    observations = model.get_env().reset()
    actions, same = (m.predict(observations, deterministic=True)[0] for m in (model, loaded))
    assert np.array_equal(actions, same)
    if hasattr(model, "predict_correction"):
        assert np.array_equal(model.predict_correction(observations), loaded.predict_correction(observations))
    loaded.learn({steps}, reset_num_timesteps=False)
    print(name, "trained, saved, loaded, trained on")
"""
    return snippet(f"train, save, load {', '.join(names)}", code, says=f"{names[-1]} trained")
