"""Runs many jobs: on this machine's cores, one process each, or as tasks of a Ray cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from sb3_avgcorr.errors import UserError
from sb3_avgcorr.runs.jobs import (
    LOG,
    PROGRESS,
    RESULT,
    Job,
    Result,
    read_document,
    read_result,
    set_aside_corrupt,
    write_document,
)
from sb3_avgcorr.runs.training import Locked, changed_settings, run_job
from sb3_avgcorr.zoo.config import make_folder

#: exit code of a process that found its job taken (EX_TEMPFAIL)
LOCKED = 75
#: how often a Ray task is started again when its worker or node dies
RETRIES = 5


@dataclass
class Outcome:
    """
    :param results: results of the jobs that are done
    :param failed: what became of the others, in words
    """

    results: dict[Job, Result] = field(default_factory=dict)
    failed: dict[Job, str] = field(default_factory=dict)


class Pool(Protocol):
    """Something that runs jobs."""

    #: jobs at the same time; None: it knows itself, give it all
    slots: int | None

    def start(self, job: Job, wait: bool) -> Any:
        """
        :param job: the job
        :param wait: whether it waits for another runner that is at it
        :return: a handle
        """

    def poll(self, handles: Sequence[Any], timeout: float) -> list[Any]:
        """
        :param handles: jobs that were started
        :param timeout: seconds to wait for one to end
        :return: those that ended
        """

    def end(self, job: Job, handle: Any) -> str | None:
        """
        :param job: the job
        :param handle: its handle
        :return: None if it is done, what went wrong otherwise; raises Locked if another runner is at it
        """

    def close(self) -> None:
        """End everything that still runs."""


def run_jobs(
    jobs: Sequence[Job],
    folder: Path | str,
    *,
    workers: int | None = None,
    ray: str | None = None,
    progress: bool = True,
) -> Outcome:
    """
    Run what is not done yet. Jobs that fail do not keep others from running. Any number of runners may work on a folder.

    In a script of your own, call it under ``if __name__ == "__main__":``, as always with processes in Python.

    :param jobs: the jobs
    :param folder: where runs are
    :param workers: jobs at the same time; default: one a core
    :param ray: address of a Ray cluster, ``""`` for one on this machine; None: processes
    :param progress: show a progress bar, or a line for each job where there is no terminal
    :return: results and failures
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; it must be at least 1")
    folder = Path(folder).resolve()
    make_folder(folder, "where runs are kept")
    # Jobs that differ in their label only are one run.
    distinct = {job.name: job for job in jobs}
    for name in distinct:
        for note in set_aside_corrupt(folder / name):
            print(note, file=sys.stderr)
    todo = [job for name, job in distinct.items() if not (folder / name / RESULT).exists()]
    _tell_changed(jobs, folder)
    failed: dict[str, str] = {}
    if todo:
        pool: Pool = LocalPool(folder, workers or _cores(), len(todo)) if ray is None else RayPool(folder, ray, workers)
        display = Display(list(distinct.values()), folder, progress)
        try:
            _work(pool, todo, failed, display)
        finally:
            pool.close()
            display.close()
    outcome = Outcome()
    for job in jobs:
        result = None if job.name in failed else read_result(job, folder)
        if result is not None:
            outcome.results[job] = result
        else:
            outcome.failed[job] = failed.get(job.name, "it left no result")
    return outcome


def _tell_changed(jobs: Sequence[Job], folder: Path) -> None:
    """Say which finished runs were made with other settings than the hyperparameter files have now."""
    changed: dict[str, list[str]] = {}
    asked: dict[str, list[str]] = {}
    for job in jobs:
        result = read_result(job, folder)
        if result is not None:
            # Seeds share their settings, and reading them takes time.
            key = repr((job.algo, job.env, job.paper, job.hyperparams, result.settings))
            if key not in asked:
                try:
                    asked[key] = changed_settings(result)
                except UserError:  # a task that is not installed here; its result can be read all the same
                    asked[key] = []
            if asked[key]:
                changed[job.name] = asked[key]
    for name, settings in changed.items():
        print(
            f"{folder / name} was made with another {', '.join(settings)} than the hyperparameter file has now; "
            "delete it to make it again",
            file=sys.stderr,
        )


def _work(pool: Pool, todo: Sequence[Job], failed: dict[str, str], display: Display) -> None:
    """Start and collect jobs until all have ended. Those of another runner come last, and are waited for."""
    queue = deque((job, False) for job in todo)
    running: dict[Any, tuple[Job, bool]] = {}
    while queue or running:
        while queue and (pool.slots is None or len(running) < pool.slots):
            job, wait = queue.popleft()
            running[pool.start(job, wait)] = (job, wait)
        for handle in pool.poll(list(running), 0.5):
            job, _ = running.pop(handle)
            try:
                problem = pool.end(job, handle)
            except Locked:
                queue.append((job, True))
                continue
            if problem is not None:
                failed[job.name] = problem
            display.ended(job, problem)
        display.show([job for job, _ in running.values()])


class LocalPool:
    """
    One process a job: what a run does to its process ends with it, and a crash takes nothing else along.

    :param folder: where runs are
    :param workers: processes at the same time
    :param n_jobs: number of jobs
    """

    def __init__(self, folder: Path, workers: int, n_jobs: int) -> None:
        self.folder = folder
        self.slots: int | None = min(workers, n_jobs)
        # A server that has imported everything, which takes seconds, forks the processes.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._processes: set[BaseProcess] = set()

    def start(self, job: Job, wait: bool) -> BaseProcess:
        # A server has the environment of the time it was started.
        arguments = (job, self.folder, wait, dict(os.environ))
        process = self._context.Process(target=_child, args=arguments, daemon=False)
        self._processes.add(process)  # first: Ctrl-C may come while it starts, and Python would wait for one that nobody ends
        process.start()
        return process

    def poll(self, handles: Sequence[BaseProcess], timeout: float) -> list[BaseProcess]:
        ended = wait_for([process.sentinel for process in handles], timeout)
        return [process for process in handles if process.sentinel in ended]

    def end(self, job: Job, handle: BaseProcess) -> str | None:
        handle.join()
        self._processes.discard(handle)
        code = handle.exitcode
        if code == LOCKED:
            raise Locked(job.name)
        if code == 0:
            return None
        log = self.folder / job.name / LOG
        if code is not None and code < 0:
            return f"its process was ended by {signal.Signals(-code).name}; what it said is in {log}"
        return f"{_last_line(log)}; more is in {log}"

    def close(self) -> None:
        started = [process for process in self._processes if process.pid is not None]
        for process in started:
            process.terminate()
        for process in started:
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()


def _child(job: Job, folder: Path, wait: bool, environment: dict[str, str]) -> None:
    """What a process of the local pool does."""
    os.environ.update(environment)
    # Ctrl-C in a terminal goes to all; the runner ends us in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    home = folder / job.name
    home.mkdir(parents=True, exist_ok=True)
    log = os.open(home / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):  # also for what libraries in C have to say
        os.dup2(log, stream)
    try:
        run_job(job, folder, wait=wait)
    except Locked:
        os._exit(LOCKED)
    except BaseException:  # is in the log
        os._exit(1)
    os._exit(0)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    os._exit(1)


class RayPool:
    """
    Ray tasks, one CPU each. A task whose worker or node dies is started again by Ray and goes on from its checkpoint, if the
    folder is shared.

    :param folder: where runs are; where it is not shared, results are brought here
    :param address: address of a cluster; ``""``: a cluster of this machine alone, reachable from nowhere else
    :param workers: tasks at the same time on a local cluster
    """

    def __init__(self, folder: Path, address: str, workers: int | None) -> None:
        self.folder = folder
        self.slots: int | None = None
        self._ray = _import_ray()
        self._own = not self._ray.is_initialized()
        self._loopback: AbstractContextManager[None] = nullcontext()
        if self._own:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
            if address:
                options["address"] = address
            else:
                self._loopback = _loopback_only(self._ray)
                options |= {
                    "address": "local",
                    "num_cpus": workers or _cores(),
                    "include_dashboard": False,
                    "object_store_memory": 100 * 2**20,  # results are small
                }
            self._loopback.__enter__()
            try:
                self._ray.init(**options)
            except (ConnectionError, RuntimeError, ValueError) as error:
                self.close()
                raise UserError(f"Ray cannot be reached at {address!r} (--ray): {error}") from error
        if address and workers is not None:
            self.slots = workers
        self._task = self._ray.remote(num_cpus=1, max_retries=RETRIES)(_ray_task)

    def start(self, job: Job, wait: bool) -> Any:
        return self._task.remote(job, str(self.folder), wait)

    def poll(self, handles: Sequence[Any], timeout: float) -> list[Any]:
        return list(self._ray.wait(list(handles), timeout=timeout)[0])

    def end(self, job: Job, handle: Any) -> str | None:
        try:
            locked, problem, document = self._ray.get(handle)
        except self._ray.exceptions.RayError as error:
            return f"Ray gave it up: {str(error).strip().splitlines()[0]}"
        if locked:
            raise Locked(job.name)
        if document is not None:
            path = self.folder / job.name / RESULT
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_document(path, document)
        return problem if problem is None else str(problem)

    def close(self) -> None:
        if self._own:
            self._ray.shutdown()
            self._loopback.__exit__(None, None, None)


def _ray_task(job: Job, folder: str, wait: bool) -> tuple[bool, str | None, dict[str, Any] | None]:
    """
    What a Ray worker does.

    :return: whether another runner is at the job, what went wrong if anything did, the result if there is one
    """
    try:
        run_job(job, folder, wait=wait)
    except Locked:
        return True, None, None
    except Exception as error:
        return False, traceback.format_exception_only(error)[-1].strip(), None
    return False, None, read_document(Path(folder) / job.name / RESULT)


@contextmanager
def _loopback_only(ray: Any) -> Iterator[None]:
    """
    While this lasts, servers of Ray, those of its worker processes too, listen on 127.0.0.1 and nowhere else. Told to use that
    address, Ray would look for one that others can reach; but it has a switch for systems where it knows no clusters.
    """
    constants, variable = ray._private.ray_constants, ray._private.ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    environment = os.environ.get(variable)
    os.environ[variable] = "0"
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        if environment is None:
            del os.environ[variable]
        else:
            os.environ[variable] = environment


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UserError(f"--ray needs Ray, which is not installed ({error}): pip install 'sb3-avgcorr[ray]'") from error
    return ray


class Display:
    """
    How far the jobs are, with the time left; where there is no terminal, a line for each job that ends.

    :param jobs: all jobs, the finished ones too
    :param folder: where runs are
    :param on: whether to show anything
    """

    def __init__(self, jobs: Sequence[Job], folder: Path, on: bool) -> None:
        self._folder = folder
        self._done = {job.name: job.steps for job in jobs if (folder / job.name / RESULT).exists()}
        self._jobs, self._count = {job.name: job for job in jobs}, len(jobs)
        self._lines = on and not sys.stderr.isatty()
        self._began = time.monotonic()
        # of runs that are not done, as far as they have come
        self._steps = {job.name: self._read(job) for job in jobs if job.name not in self._done}
        self._bar = tqdm(
            total=sum(job.steps for job in jobs),
            # What was there before must not count for the speed, and so for the time left.
            initial=self._now(),
            unit=" steps",
            unit_scale=True,
            desc=f"{len(self._done)}/{self._count} runs",
            disable=not on or self._lines,
        )

    def _read(self, job: Job) -> int:
        try:
            return min(int((self._folder / job.name / PROGRESS).read_text()), job.steps)
        except (OSError, ValueError):  # not there, or just being written
            return 0

    def _now(self) -> int:
        return sum(self._done.values()) + sum(self._steps.values())

    def show(self, running: Sequence[Job]) -> None:
        """
        :param running: jobs that run
        """
        if not self._bar.disable:
            self._steps.update({job.name: max(self._read(job), self._steps[job.name]) for job in running})
            self._bar.update(max(self._now() - self._bar.n, 0))

    def ended(self, job: Job, problem: str | None) -> None:
        """
        :param job: a job that ended
        :param problem: what went wrong, if anything did
        """
        self._done[job.name] = job.steps
        self._steps.pop(job.name, None)
        self._bar.set_description(f"{len(self._done)}/{self._count} runs")
        text = f"{job.label} on {job.env}, seed {job.seed}"
        if problem is not None:
            tqdm.write(f"{text} failed: {problem}", file=sys.stderr)
        elif self._lines:
            seconds = time.monotonic() - self._began
            print(f"{len(self._done)}/{self._count} runs after {seconds:.0f} s: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._bar.close()


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _last_line(path: Path) -> str:
    try:
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1].strip() if lines else "it said nothing"
