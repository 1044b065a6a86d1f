"""Ctrl-C and SIGTERM: what was learned is saved, and before that nothing is left; one line and the shell's exit code."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from zoo_fixtures import SMALL

from sb3_avgcorr.zoo.algorithms import ALGORITHMS


def start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start the command in a folder, where packages are looked for first."""
    return subprocess.Popen(
        [sys.executable, "-m", "sb3_avgcorr.zoo", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests that run in the background ignore it
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 240.0) -> None:
    """Wait until something has happened, while the process lives."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


@pytest.mark.parametrize(
    "number, to_group, vec_env", [(signal.SIGTERM, False, "dummy"), (signal.SIGINT, True, "subproc")], ids=["term", "ctrl-c"]
)
def test_a_signal_saves_the_model(number: signal.Signals, to_group: bool, vec_env: str, tmp_path: Path):
    command = ["train", "-n", "100000000", "--eval-freq", "-1", "--verbose", "0", "-f", "logs", "--vec-env", vec_env, *SMALL]
    process = start(command, tmp_path)
    run = tmp_path / "logs" / "averaging_ppo" / "CartPole-v1_1"
    try:
        # until an episode has ended (a monitor file has two lines of header), a terminal's Ctrl-C goes to all processes
        monitor = run / "0.monitor.csv"
        wait_for(lambda: monitor.is_file() and len(monitor.read_text().splitlines()) > 4, process)
        (os.killpg if to_group else os.kill)(process.pid, number)
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 128 + number, err
    closing = out.strip().splitlines()[-1]
    assert closing.startswith("Stopped early after ")
    assert closing.endswith("Saved in logs/averaging_ppo/CartPole-v1_1/CartPole-v1.zip")
    assert "Traceback" not in err
    model = ALGORITHMS["averaging_ppo"].cls.load(run / "CartPole-v1.zip")
    assert model.num_timesteps > 0


SLOW = "import pathlib, time\npathlib.Path('here').touch()\ntime.sleep(600)\n"
SLOW_ENV = "import gymnasium as gym\ngym.register('Slow-v0', 'slow:make')\n"


@pytest.mark.parametrize(
    "modules, arguments, number",
    [
        ({"slow_env": SLOW_ENV, "slow": SLOW}, ["--env", "slow_env:Slow-v0"], signal.SIGTERM),
        ({"rl_zoo3": SLOW}, [], signal.SIGINT),
    ],
    ids=["set-up", "imports"],
)
def test_a_signal_before_training(modules: dict[str, str], arguments: list[str], number: signal.Signals, tmp_path: Path):
    for name, source in modules.items():
        (tmp_path / f"{name}.py").write_text(source)
    process = start(["train", "--verbose", "0", *arguments], tmp_path)
    try:
        wait_for((tmp_path / "here").exists, process)
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 128 + number, err
    assert err == "sb3-avgcorr: stopped before anything was learned.\n"
    assert not list(tmp_path.glob("logs/*"))
