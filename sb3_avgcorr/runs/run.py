"""One run: in its folder, under its lock, with its log. What is done is not done again."""

from __future__ import annotations

import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import filelock
import torch as th

from sb3_avgcorr.runs.files import CHECKPOINT, LOCK, LOG, PROGRESS, RESULT, write_document
from sb3_avgcorr.runs.jobs import AnyJob, FunctionJob, plain
from sb3_avgcorr.runs.results import set_aside_corrupt
from sb3_avgcorr.runs.training import named, train


class Locked(Exception):
    """Another process is at this job."""


def run_job(job: AnyJob, folder: Path | str, *, wait: bool = False) -> None:
    """
    Make a run in this process, or go on with it from its last checkpoint (a function begins again). Leaves ``result.json`` in
    the run's folder, and does nothing if it is there already.

    :param job: the run
    :param folder: where runs are; the run has a folder of its own in it
    :param wait: wait for another process that is at the same job, instead of raising :class:`Locked`
    """
    home = Path(folder) / job.name
    home.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(home / LOCK)  # the kernel releases it when the process dies
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except filelock.Timeout:
        raise Locked(f"Another process is at {home}") from None
    threads = th.get_num_threads()
    try:
        with (home / LOG).open("a") as log:

            def say(line: str) -> None:
                log.write(f"{line}\n")
                log.flush()

            for note in set_aside_corrupt(home):
                say(note)
            if (home / RESULT).exists():
                return
            # Networks of this size gain nothing from threads, and sums must not depend on their number.
            th.set_num_threads(1)
            with redirect_stdout(log), redirect_stderr(log):
                try:
                    document = _call(job, home) if isinstance(job, FunctionJob) else train(job, home, say)
                except BaseException:
                    say(traceback.format_exc())
                    raise
        write_document(home / RESULT, document)
        (home / CHECKPOINT).unlink(missing_ok=True)
    finally:
        th.set_num_threads(threads)
        lock.release()


def _call(job: FunctionJob, home: Path) -> dict[str, Any]:
    """What the result file of a function is to hold."""
    told = time.monotonic()

    def tell(steps: int) -> None:
        nonlocal told
        if time.monotonic() - told > 1.0:
            told = time.monotonic()
            (home / PROGRESS).write_text(str(steps))

    columns = named(job.function)(seed=job.seed, steps=job.steps, tell=tell, **job.kwargs)
    return {"job": job.description(), "columns": plain(columns)}
