"""The progress display."""

import sys

import pytest

from sb3_avgcorr.reporting.progress import Display
from sb3_avgcorr.runs.jobs import Job

JOBS = [Job("averaging_ppo", "CartPole-v1", seed, 1000) for seed in range(3)]


def test_bar_counts_what_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a session that was interrupted, also the steps of broken runs whose turn has not come."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    display = Display()
    display.begin(JOBS, set(), {JOBS[0].name: 100, JOBS[1].name: 500, JOBS[2].name: 0})
    assert display.steps == 600
    display.advance({JOBS[0].name: 140})
    assert display.steps == 640
    display.advance({JOBS[0].name: 120})  # a run that was resumed from an earlier checkpoint
    assert display.steps == 640
    display.end(JOBS[0], None)
    assert display.steps == 1500
    display.close()


def test_a_line_for_each_run_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    display.begin(JOBS, {JOBS[0].name}, {job.name: 0 for job in JOBS[1:]})
    display.note("something")
    display.end(JOBS[1], None)
    display.end(JOBS[2], "out of luck")
    display.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "something"
    assert lines[1].startswith("2/3 runs after")
    assert lines[1].endswith("averaging_ppo on CartPole-v1, seed 1")
    assert lines[2] == "averaging_ppo on CartPole-v1, seed 2 failed: out of luck"
