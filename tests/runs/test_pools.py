"""Processes and Ray workers: killed, missing, locked, far away."""

import contextlib
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import filelock
import pytest
from run_helpers import LIGHT, cartpole, content, when

from sb3_avgcorr.errors import UserError
from sb3_avgcorr.runs.files import CHECKPOINT, LOG
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.pools import RayPool, _ray_task
from sb3_avgcorr.runs.run import Locked, run_job
from sb3_avgcorr.runs.runner import run_jobs
from sb3_avgcorr.runs.training import CHECKPOINT_SECONDS


@pytest.fixture(autouse=True)
def _checkpoint_at_every_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKPOINT_SECONDS, "0")


def children_at(job: Job) -> list[int]:
    """Processes of ours whose log is the job's: those that are at it."""
    found = []
    for process in multiprocessing.active_children():
        try:
            target = os.readlink(f"/proc/{process.pid}/fd/1")
        except OSError:
            continue
        if Path(target).parent.name == job.name and process.pid is not None:
            found.append(process.pid)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_killed_process_is_reported_and_resumed_by_the_next_runner(tmp_path: Path) -> None:
    job, other = cartpole(0, 12288), cartpole(1, 256)
    checkpoint = tmp_path / job.name / CHECKPOINT
    killer = when(lambda: checkpoint.exists() and children_at(job), lambda: os.kill(children_at(job)[0], signal.SIGKILL))
    outcome = run_jobs([job, other], tmp_path, workers=2)
    killer.join()
    assert set(outcome.failed) == {job}
    assert "SIGKILL" in outcome.failed[job]
    assert set(outcome.results) == {other}
    assert not run_jobs([job, other], tmp_path).failed
    assert "Going on from step" in (tmp_path / job.name / LOG).read_text()
    run_job(job, tmp_path / "unbroken")
    assert content(job, tmp_path) == content(job, tmp_path / "unbroken")


def test_one_process_a_job(tmp_path: Path) -> None:
    job = cartpole(0, 256)
    home = tmp_path / job.name
    home.mkdir()
    lock = filelock.FileLock(home / "lock")
    with lock, pytest.raises(Locked, match=job.name):
        run_job(job, tmp_path)
    run_job(job, tmp_path)  # released


def test_ray_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'sb3-avgcorr\[ray\]'"):
        run_jobs([cartpole()], tmp_path, ray="")


def ray_workers(name: str) -> list[int]:
    """Ray workers under this process that are at a task of that name."""
    psutil = pytest.importorskip("psutil")
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] == [f"ray::{name}"]:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_ray_gives_the_same_numbers_also_when_a_worker_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    jobs = [cartpole(0, 24576), cartpole(1, 512)]
    fails = cartpole(2, 512, hyperparams={**LIGHT, "gamma": 1.5})
    checkpoint = tmp_path / "ray" / jobs[0].name / CHECKPOINT
    killed = []

    def kill() -> None:
        victims = ray_workers("_ray_task")
        killed.extend(victims)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

    listening: set[str] = set()

    def listen() -> None:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                sockets = process.net_connections("inet")
                listening.update(s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN)

    psutil = pytest.importorskip("psutil")
    # However slow the machine is: when there is a checkpoint and a worker at it.
    killer = when(lambda: checkpoint.exists() and ray_workers("_ray_task"), lambda: (kill(), listen()))  # type: ignore
    outcome = run_jobs([*jobs, fails], tmp_path / "ray", workers=2, ray="")
    killer.join()
    assert killed
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}  # reachable from nowhere else
    assert set(outcome.results) == set(jobs)
    assert "gamma" in outcome.failed[fails]
    assert "Going on from step" in (tmp_path / "ray" / jobs[0].name / LOG).read_text()
    for job in jobs:
        run_job(job, tmp_path / "local")
        assert content(job, tmp_path / "ray") == content(job, tmp_path / "local")


def test_ray_results_come_to_the_driver_where_the_folder_is_not_shared(tmp_path: Path) -> None:
    """What a worker on another machine returns, written by the driver."""
    job = cartpole(0, 256)
    locked, problem, document = _ray_task(job, str(tmp_path / "there"), False)
    assert (locked, problem) == (False, None)

    class Ray:
        class exceptions:
            RayError = RuntimeError

        @staticmethod
        def get(handle: Any) -> Any:
            return handle

    pool = object.__new__(RayPool)
    pool.folder, pool._ray = tmp_path / "here", Ray
    assert pool.end(job, (locked, problem, document)) is None
    assert content(job, tmp_path / "here") == content(job, tmp_path / "there")
    with pytest.raises(Locked):
        pool.end(job, (True, None, None))
