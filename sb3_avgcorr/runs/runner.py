"""Makes many runs: keeps those that are there, starts the others in a pool, and tells an observer how far they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_avgcorr.errors import UserError
from sb3_avgcorr.runs.files import PROGRESS, RESULT
from sb3_avgcorr.runs.jobs import AnyJob
from sb3_avgcorr.runs.manager import changed_settings
from sb3_avgcorr.runs.pools import LocalPool, Pool, RayPool, cores
from sb3_avgcorr.runs.results import AnyResult, Result, read_result, set_aside_corrupt
from sb3_avgcorr.runs.run import Locked
from sb3_avgcorr.zoo.config import make_folder

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Outcome:
    """
    What became of jobs.

    :param results: results of the jobs that are done
    :param failed: what became of the others, in words
    :param earlier: figures of runs that were not made again: tables by name, whose column ``run`` names the run
    """

    results: dict[AnyJob, AnyResult] = field(default_factory=dict)
    failed: dict[AnyJob, str] = field(default_factory=dict)
    earlier: dict[str, pd.DataFrame] = field(default_factory=dict)


class Observer:
    """Is told how far the work is. This one keeps it to itself; the one of ``reporting.progress`` shows it."""

    def note(self, text: str) -> None:
        """
        Hear something that the user should know.

        :param text: a sentence
        """

    def begin(self, jobs: Sequence[AnyJob], finished: Collection[str], steps: Mapping[str, int]) -> None:
        """
        Hear of all jobs before the first one starts.

        :param jobs: all jobs, the finished ones too
        :param finished: names of those that were finished before
        :param steps: steps that the others have made, by name
        """

    def advance(self, steps: Mapping[str, int]) -> None:
        """
        Hear how far the running jobs are; called about twice a second.

        :param steps: steps that they have made, by name
        """

    def end(self, job: AnyJob, problem: str | None) -> None:
        """
        Hear that a job has ended.

        :param job: the job
        :param problem: what went wrong, if anything did
        """

    def close(self) -> None:
        """Hear that nothing follows."""


def run_jobs(
    jobs: Sequence[AnyJob],
    folder: Path | str,
    *,
    workers: int | None = None,
    ray: str | None = None,
    observer: Observer | None = None,
) -> Outcome:
    """
    Make the runs that are not done yet. Jobs that fail do not keep others from running. Any number of runners may work on
    a folder.

    In a script of your own, call it under ``if __name__ == "__main__":``, as always with processes in Python.

    :param jobs: the jobs
    :param folder: where runs are
    :param workers: jobs at the same time; default: one a core
    :param ray: address of a Ray cluster, ``""`` for one on this machine; None: processes
    :param observer: is told how far the work is
    :return: results and failures
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; it must be at least 1")
    observer = observer or Observer()
    folder = Path(folder).resolve()
    make_folder(folder, "where runs are kept")
    # Jobs that differ in their label only are one run.
    distinct = {job.name: job for job in jobs}
    for name in distinct:
        for note in set_aside_corrupt(folder / name):
            observer.note(note)
    todo = [job for name, job in distinct.items() if not (folder / name / RESULT).exists()]
    for note in _changes(jobs, folder):
        observer.note(note)
    failed: dict[str, str] = {}
    if todo:
        pool: Pool = LocalPool(folder, workers or cores(), todo) if ray is None else RayPool(folder, ray, workers)
        finished = distinct.keys() - {job.name for job in todo}
        observer.begin(list(distinct.values()), finished, {job.name: steps_done(job, folder) for job in todo})
        try:
            _work(pool, todo, failed, folder, observer)
        finally:
            pool.close()
            observer.close()
    outcome = Outcome()
    for job in jobs:
        result = None if job.name in failed else read_result(job, folder)
        if result is not None:
            outcome.results[job] = result
        else:
            outcome.failed[job] = failed.get(job.name, "it left no result")
    return outcome


def steps_done(job: AnyJob, folder: Path) -> int:
    """
    How many steps a run that is not finished has made.

    :param job: the run
    :param folder: where runs are
    """
    try:
        return min(int((folder / job.name / PROGRESS).read_text()), job.steps)
    except (OSError, ValueError):  # not there, or just being written
        return 0


def _changes(jobs: Sequence[AnyJob], folder: Path) -> list[str]:
    """Which finished runs were made with other settings than the hyperparameter files have now, in words."""
    changed: dict[str, list[str]] = {}
    asked: dict[str, list[str]] = {}
    for job in jobs:
        result = read_result(job, folder)
        if isinstance(result, Result):
            # Seeds share their settings, and reading them takes time.
            run = result.job
            key = repr((run.algo, run.env, run.paper, run.hyperparams, result.settings))
            if key not in asked:
                try:
                    asked[key] = changed_settings(result)
                except UserError:  # a task that is not installed here; its result can be read all the same
                    asked[key] = []
            if asked[key]:
                changed[job.name] = asked[key]
    return [
        f"{folder / name} was made with another {', '.join(settings)} than the hyperparameter file has now; "
        "delete it to make it again"
        for name, settings in changed.items()
    ]


def _work(pool: Pool, todo: Sequence[AnyJob], failed: dict[str, str], folder: Path, observer: Observer) -> None:
    """Start and collect jobs until all have ended. Those of another runner come last, and are waited for."""
    queue = deque((job, False) for job in todo)
    running: dict[Any, tuple[AnyJob, bool]] = {}
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
            observer.end(job, problem)
        observer.advance({job.name: steps_done(job, folder) for job, _ in running.values()})
