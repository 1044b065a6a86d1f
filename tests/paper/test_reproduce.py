"""``sb3-avgcorr reproduce``: names, choices, verdicts found last, and being stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sb3_avgcorr.cli import reproduce
from sb3_avgcorr.cli.main import main as command_line
from sb3_avgcorr.cli.reproduce import EXPERIMENTS, listing, main
from sb3_avgcorr.errors import UserError
from sb3_avgcorr.reporting.findings import Findings

NAMED_BY_THE_ISSUES = {
    "counterexample",
    "bias",
    "bias-ratio",
    "dotreacher",
    "classic-control",
    "mujoco",
    "mountaincar-pointmass",
    "dm-reacher",
    "ur5",
    "distances",
    "discounted",
    "hyperparameter-transfer",
    "long-tail",
    "mujoco-sb3",
    "box2d-sb3",
}


def test_every_experiment_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert EXPERIMENTS.keys() >= NAMED_BY_THE_ISSUES
    assert command_line(["reproduce", "--list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert listed == EXPERIMENTS.keys()


def test_list_shows_the_verdicts_found_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "| a | 1 | supported |\n| b | 2 | **contradicted** |\n| c | 3 | supported |\n"
    (tmp_path / "ur5.md").write_text(f"# UR5\n\n| claim | figure | verdict |\n|---|---|---|\n{rows}")
    assert main(["--list", "--out", str(tmp_path)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["ur5"].endswith("2 supported, 1 contradicted")
    assert "supported" not in listing(tmp_path / "nothing").split("ur5")[1].splitlines()[0]


def test_unknown_name_and_bad_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["reproduce", "mujocco"]) == 2
    assert "'mujoco'" in capsys.readouterr().err
    with pytest.raises(UserError, match="--seeds is 0"):
        main(["ur5", "--seeds", "0"])


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...]]]:
    """What would have been run: name and tasks."""
    noted: list[tuple[str, tuple[str, ...]]] = []

    def conduct(experiment: Any, size: Any, out: Path, **kwargs: Any) -> Findings:
        noted.append((experiment.name, size.envs))
        return Findings(experiment.name, "title", failed=["a run"] if experiment.name == "ur5" else [])

    monkeypatch.setattr(reproduce, "conduct", conduct)
    return noted


def test_choice_of_tasks_is_checked_before_anything_runs(ran: list[tuple[str, tuple[str, ...]]], tmp_path: Path) -> None:
    out = ["--out", str(tmp_path)]
    with pytest.raises(UserError, match=r"'Ant-v4' \(--envs\) is not a task of counterexample"):
        main(["counterexample", "--envs", "Ant-v4", *out])
    with pytest.raises(UserError, match=r"'Ant-v3'.*'Ant-v"):
        main(["all", "--envs", "Ant-v3", *out])
    assert ran == []
    assert main(["all", "--envs", "Ant-v4", "MountainCarContinuous-v0", *out]) == 0
    assert dict(ran)["mujoco"] == ("Ant-v4",)
    assert dict(ran)["head-only"] == ("MountainCarContinuous-v0",)
    assert "ur5" not in dict(ran)


@pytest.mark.parametrize("name, steps", [("bias", 1999), ("bias-ratio", 99)])
def test_too_few_steps_to_look_at(name: str, steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["reproduce", name, "--steps", str(steps), "--out", str(tmp_path)]) == 2
    assert f"--steps is {steps}; {name} " in capsys.readouterr().err


def test_so_far_where_nothing_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["reproduce", "ur5", "--so-far", "--out", str(tmp_path)]) == 2
    assert "No run of sb3-avgcorr reproduce ur5 is in" in capsys.readouterr().err
    assert command_line(["reproduce", "all", "--envs", "Ant-v4", "--so-far", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert all(f"No run of sb3-avgcorr reproduce {name} " in said for name in ("mujoco", "distances", "discounted"))


def test_exit_code_tells_of_failed_runs(
    ran: list[tuple[str, tuple[str, ...]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ur5", "--out", str(tmp_path)]) == 1
    assert "1 run(s) failed; the same command makes them again" in capsys.readouterr().out
    assert main(["bias", "--out", str(tmp_path)]) == 0


def test_out_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for command in (["reproduce", "ur5"], ["compare", "--env", "CartPole-v1"]):
        assert command_line([*command, "--out", str(tmp_path / "file")]) == 2
        assert "(--out) cannot be a folder" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sends Ctrl-C to a group of processes")
def test_stopped_by_hand_and_given_again(tmp_path: Path) -> None:
    """What is said is true also of the small experiments: finished runs are kept, and the rest is made."""
    command = [sys.executable, "-m", "sb3_avgcorr", "reproduce", "counterexample", "--seeds", "2", "--steps", "4000"]
    command += ["--jobs", "1", "--out", str(tmp_path)]
    said = tmp_path / "said.txt"
    with said.open("w") as file:
        process = subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests that run in the background ignore it
        )
    try:
        end = time.monotonic() + 600
        while "1/22 runs after" not in said.read_text():  # progress is shown
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < end, said.read_text()
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "finished runs are kept" in said.read_text()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/result.json")}
    assert kept
    again = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert again.returncode == 0
    assert f"{len(kept) + 1}/22 runs after" in again.stderr
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())
