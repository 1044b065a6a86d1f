"""Where runs are made: in processes of this machine, or as tasks of a Ray cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from sb3_avgcorr.errors import UserError
from sb3_avgcorr.runs.files import LOG, RESULT, read_document, write_document
from sb3_avgcorr.runs.jobs import AnyJob, FunctionJob
from sb3_avgcorr.runs.run import Locked, run_job

#: exit code of a process that found its job taken (EX_TEMPFAIL)
LOCKED = 75
#: how often a Ray task is started again when its worker or node dies
RETRIES = 5


class Pool(Protocol):
    """Something that makes runs."""

    #: jobs at the same time; None: it knows itself, give it all
    slots: int | None

    def start(self, job: AnyJob, wait: bool) -> Any:
        """
        Start a job.

        :param job: the job
        :param wait: whether it waits for another runner that is at it
        :return: a handle
        """

    def poll(self, handles: Sequence[Any], timeout: float) -> list[Any]:
        """
        Wait until a job has ended.

        :param handles: jobs that were started
        :param timeout: seconds to wait for one to end
        :return: those that ended
        """

    def end(self, job: AnyJob, handle: Any) -> str | None:
        """
        Find out how a job ended.

        :param job: the job
        :param handle: its handle
        :return: None if it is done, what went wrong otherwise; raises Locked if another runner is at it
        """

    def close(self) -> None:
        """End everything that still runs."""


class LocalPool:
    """
    One process a job: what a run does to its process ends with it, and a crash takes nothing else along.

    :param folder: where runs are
    :param workers: processes at the same time
    :param jobs: the jobs
    """

    def __init__(self, folder: Path, workers: int, jobs: Sequence[AnyJob]) -> None:
        self.folder = folder
        self.slots: int | None = min(workers, len(jobs))
        # A server that has imported everything, which takes seconds, forks the processes.
        self._context = multiprocessing.get_context("forkserver")
        functions = {job.function if isinstance(job, FunctionJob) else job.probe for job in jobs} - {""}
        modules = {function.rpartition(".")[0] for function in functions}
        # torch._dynamo: imported by an optimiser's first step.
        self._context.set_forkserver_preload([__name__, "torch._dynamo", *sorted(modules)])
        self._processes: set[BaseProcess] = set()

    def start(self, job: AnyJob, wait: bool) -> BaseProcess:
        # A server has the environment of the time it was started.
        arguments = (job, self.folder, wait, dict(os.environ))
        process = self._context.Process(target=_child, args=arguments, daemon=False)
        self._processes.add(process)  # first: Ctrl-C may come while it starts, and Python would wait for one that nobody ends
        process.start()
        return process

    def poll(self, handles: Sequence[BaseProcess], timeout: float) -> list[BaseProcess]:
        ended = wait_for([process.sentinel for process in handles], timeout)
        return [process for process in handles if process.sentinel in ended]

    def end(self, job: AnyJob, handle: BaseProcess) -> str | None:
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


def _child(job: AnyJob, folder: Path, wait: bool, environment: dict[str, str]) -> None:
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
                    "num_cpus": workers or cores(),
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

    def start(self, job: AnyJob, wait: bool) -> Any:
        return self._task.remote(job, str(self.folder), wait)

    def poll(self, handles: Sequence[Any], timeout: float) -> list[Any]:
        return list(self._ray.wait(list(handles), timeout=timeout)[0])

    def end(self, job: AnyJob, handle: Any) -> str | None:
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


def _ray_task(job: AnyJob, folder: str, wait: bool) -> tuple[bool, str | None, dict[str, Any] | None]:
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


def cores() -> int:
    """Number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _last_line(path: Path) -> str:
    try:
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1].strip() if lines else "it could not write its log; is the disk full?"
