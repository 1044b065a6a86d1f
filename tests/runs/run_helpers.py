"""What the tests of runs share: quick jobs, runs that break off, and an observer that remembers."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sb3_avgcorr.runs.files import CHECKPOINT, RESULT
from sb3_avgcorr.runs.jobs import AnyJob, Job
from sb3_avgcorr.runs.results import Result, read_result
from sb3_avgcorr.runs.run import run_job
from sb3_avgcorr.runs.runner import Observer
from sb3_avgcorr.runs.training import Recorder

#: quick to train, whatever the machine
LIGHT = {"n_epochs": 1, "correction_epochs": 1}


class Heard(Observer):
    """Remembers what the runner told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.ended: list[tuple[str, str | None]] = []
        self.finished: set[str] = set()
        self.closed = 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, jobs: Any, finished: Any, steps: Any) -> None:
        self.finished = set(finished)

    def end(self, job: AnyJob, problem: str | None) -> None:
        self.ended.append((job.name, problem))

    def close(self) -> None:
        self.closed += 1


def result_of(job: Job, folder: Path) -> Result:
    """The result of a run that is done."""
    result = read_result(job, folder)
    assert isinstance(result, Result)
    return result


def cartpole(seed: int = 0, steps: int = 1536, **kwargs: Any) -> Job:
    kwargs.setdefault("hyperparams", LIGHT)
    return Job("averaging_ppo", "CartPole-v1", seed, steps, **kwargs)


class Stop(Exception):
    """Breaks a run off."""


def stop_after(monkeypatch: pytest.MonkeyPatch, *checkpoints: int) -> None:
    """Break runs off after these checkpoints, counted over all runs."""
    save, count = Recorder.save, iter(range(1, 10**6))

    def save_and_stop(self: Recorder) -> None:
        save(self)
        if next(count) in checkpoints:
            raise Stop

    monkeypatch.setattr(Recorder, "save", save_and_stop)


def run_through(job: Job, folder: Path) -> int:
    """Run again and again until it is done; returns how often it broke off."""
    for stops in range(10):
        try:
            run_job(job, folder)
            return stops
        except Stop:
            assert not (folder / job.name / RESULT).exists()
    raise AssertionError("never done")


def content(job: Job, folder: Path) -> bytes:
    return (folder / job.name / RESULT).read_bytes()


def broken_off(job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """
    :return: the checkpoint of a run that was broken off
    """
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stop):
            run_job(job, folder)
    return folder / job.name / CHECKPOINT


def when(condition: Callable[[], Any], action: Callable[[], None], seconds: float = 600.0) -> threading.Thread:
    """Do something in a thread once a condition holds."""

    def watch() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                action()
                return
            time.sleep(0.02)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread
