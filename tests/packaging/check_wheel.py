"""
Install the wheel as users do, into fresh environments: without extras, and with each extra alone; then use it.

    python tests/packaging/check_wheel.py dist/sb3_avgcorr-0.1.0-py3-none-any.whl [EXTRA ...]

`contrib`, `zoo`, `experiments` and `ray` each hold the one before. So they are installed one after the other into one
environment, where each step has no more than that extra brings; the commands of the next ones must say which extra they need.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path

from fresh import REPOSITORY, Check, Fresh, snippet, train_save_load

TINY_TRAIN = ("--env", "CartPole-v1", "-n", "2000", "--seed", "0", "-params", "n_envs:2", "n_steps:128")
PLOT = ("plot-train", "-a", "averaging_ppo", "-e", "CartPole-v1")
TINY_COMPARE = ("compare", "--env", "CartPole-v1", "--steps", "1024", "--seeds", "2", "-params", "n_envs:1", "n_steps:128")


def readme_snippet() -> Check:
    """The README's first example, with fewer steps and with observations, which it leaves to the reader."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert found, "the README begins with an example"
    code, replaced = re.subn(r"learn\([\d_]+", "learn(2048", found[1])
    assert replaced == 1, "the README's example learns"
    return snippet("the README's first example", "import numpy as np\nobservations = np.zeros((3, 4), np.float32)\n" + code)


def missing(what: str, code: str, extra: str) -> Check:
    """An import that fails with a message that names the extra, whatever the class of ImportError."""
    return snippet(
        f"without [{extra}] {what} says so", f"try:\n    {code}\nexcept ImportError as error:\n    print(error)", f"[{extra}]"
    )


def refused(command: tuple[str, ...], extra: str) -> Check:
    """A command that ends in one line that names the extra."""
    return Check(f"without [{extra}] `{command[0]}` says so", ("sb3-avgcorr", *command), code=2, says=f"[{extra}]")


def made(name: str) -> Check:
    """An environment that can be made, stepped and trained on."""
    code = f"""
import gymnasium as gym, sb3_avgcorr
env = gym.make("{name}", render_mode="rgb_array")
env.reset(seed=0)
env.step(env.action_space.sample())
assert env.render().ndim == 3
policy = "MultiInputPolicy" if isinstance(env.observation_space, gym.spaces.Dict) else "MlpPolicy"
sb3_avgcorr.AveragingPPO(policy, env, n_steps=64, device="cpu").learn(64)
env.close()
"""
    return snippet(f"train on {name}", code)


CHAINS: list[list[tuple[str, list[Check]]]] = [
    [
        (
            "",
            [
                snippet("import", "import sb3_avgcorr; print(sb3_avgcorr.__version__)"),
                snippet(
                    "from sb3_avgcorr import *",
                    "from sb3_avgcorr import *; AveragingPPO, AveragingA2C, BAC",
                ),
                readme_snippet(),
                train_save_load("AveragingPPO", "AveragingA2C", "BAC", "AveragingBAC"),
                missing("AveragingTRPO", "from sb3_avgcorr import AveragingTRPO", "contrib"),
                missing("sb3_avgcorr.tabular", "import sb3_avgcorr.tabular", "experiments"),
                missing("UR5Reacher", "import gymnasium as gym, sb3_avgcorr; gym.make('avgcorr/UR5Reacher-v0')", "dm-control"),
                Check("--version", ("sb3-avgcorr", "--version"), says="sb3-avgcorr"),
                refused(("train", *TINY_TRAIN), "zoo"),
                refused(("enjoy", "--env", "CartPole-v1"), "zoo"),
                refused(PLOT, "zoo"),
                refused(TINY_COMPARE, "experiments"),
                refused(("reproduce", "--list"), "experiments"),
            ],
        ),
        (
            "contrib",
            [
                train_save_load("AveragingTRPO", "AveragingMaskablePPO", "AveragingRecurrentPPO"),
                snippet("AsymmetricActorCriticPolicy", "from sb3_avgcorr import AsymmetricActorCriticPolicy"),
                refused(("train", *TINY_TRAIN), "zoo"),
            ],
        ),
        (
            "zoo",
            [
                Check("train", ("sb3-avgcorr", "train", *TINY_TRAIN, "-P", "-tb", "tb")),
                snippet("TensorBoard's file is there", "import glob; assert glob.glob('tb/**/events*', recursive=True)"),
                Check("enjoy", ("sb3-avgcorr", "enjoy", "--env", "CartPole-v1", "-n", "200", "--no-render")),
                Check(
                    "plot-train",
                    ("sb3-avgcorr", *PLOT, "-w", "10", "--save", "curve.png"),
                ),
                Check("record-video", ("sb3-avgcorr", "record-video", "--env", "CartPole-v1", "-n", "50")),
                Check("tune", ("sb3-avgcorr", "train", *TINY_TRAIN, "-optimize", "--n-trials", "2", "--no-optim-plots")),
                refused(TINY_COMPARE, "experiments"),
                refused(("train", "--env", "LunarLander-v3", "-n", "100"), "box2d"),
                refused(("train", "--env", "Hopper-v5", "-n", "100"), "dm-control"),
            ],
        ),
        (
            "experiments",
            [
                Check("compare", ("sb3-avgcorr", *TINY_COMPARE, "--out", "compared")),
                snippet(
                    "its report is there",
                    "import os; assert os.path.getsize('compared/report.html') > 1000",
                ),
                Check("diagnose", ("sb3-avgcorr", "diagnose", "--env", "CartPole-v1", "--out", "diagnosed")),
                Check("reproduce --list", ("sb3-avgcorr", "reproduce", "--list")),
                snippet("exact solutions", "from sb3_avgcorr.tabular import random_mdp; print(random_mdp)"),
                refused((*TINY_COMPARE, "--ray", "--out", "ray"), "ray"),
            ],
        ),
        ("ray", [Check("compare --ray", ("sb3-avgcorr", *TINY_COMPARE, "--ray", "--out", "ray"))]),
        ("all", [made("LunarLander-v3"), made("avgcorr/UR5Reacher-v0")]),
    ],
    [("box2d", [made("LunarLander-v3")])],
    [
        (
            "dm-control",
            [
                made("Hopper-v5"),
                made("avgcorr/UR5Reacher-v0"),
                made("avgcorr/PointMassEasy-v0"),
                made("avgcorr/SparseReacherEasy-v0"),
                made("avgcorr/LongTailReacher-v0"),
            ],
        )
    ],
]


def main(wheel: str, *only: str) -> int:
    """
    Run the checks.

    :param wheel: the wheel
    :param only: extras to check, with those that come before them in their environment; none: all
    :return: exit code
    """
    failed = []
    for chain in CHAINS:
        wanted = [index for index, (extra, _) in enumerate(chain) if not only or extra in only]
        if not wanted:
            continue
        folder = Path(tempfile.mkdtemp(prefix="sb3-avgcorr-wheel-"))
        try:
            fresh = Fresh(folder)
            fresh.install("torch")
            for extra, checks in chain[: max(wanted) + 1]:
                print(f"pip install sb3-avgcorr{f'[{extra}]' if extra else ''}", flush=True)
                fresh.install(f"{Path(wheel).resolve()}{f'[{extra}]' if extra else ''}")
                for check in checks:
                    fresh.run(check)
                failed += fresh.failed
                fresh.failed = []
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(failed)} failed: {'; '.join(failed)}" if failed else "Every check passed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
