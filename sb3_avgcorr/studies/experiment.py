"""An experiment, and the one path that all of them take: plan, run, judge, write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from sb3_avgcorr.errors import UserError, nearest
from sb3_avgcorr.reporting.findings import Findings, write
from sb3_avgcorr.runs.jobs import AnyJob, Job
from sb3_avgcorr.runs.results import Columns, Result, read_result, set_aside_corrupt
from sb3_avgcorr.runs.runner import Observer, Outcome, run_jobs

T = TypeVar("T")
#: the runs of each cell of an experiment, which differ by their seed alone
Plan = Mapping[Any, Sequence[AnyJob]]


@dataclass(frozen=True)
class Size:
    """
    How large an experiment is made.

    :param full: the full size (the paper's, or ten seeds)
    :param seeds: number of seeds, if not the size's own
    :param steps: environment steps of a run, if not the size's own
    :param envs: only these tasks; none: all
    """

    full: bool = False
    seeds: int | None = None
    steps: int | None = None
    envs: tuple[str, ...] = ()

    def command(self, name: str) -> str:
        """
        The command that repeats an experiment of this size.

        :param name: name of the experiment
        """
        words = ["sb3-avgcorr reproduce", name, *(["--full"] if self.full else [])]
        words += [f"--{key} {value}" for key, value in (("seeds", self.seeds), ("steps", self.steps)) if value is not None]
        return " ".join([*words, *(["--envs", *self.envs] if self.envs else [])])

    def only(self, tasks: Mapping[str, T]) -> dict[str, T]:
        """
        What belongs to the tasks that are wanted.

        :param tasks: something for each task, by its id
        :return: that of the wanted ones; a UserError names one that is not there
        """
        for env in self.envs:
            if env not in tasks:
                raise UserError(f"{env!r} (--envs) is not a task of this experiment; {nearest(env, tasks)}")
        return {env: value for env, value in tasks.items() if not self.envs or env in self.envs}


class Experiment(ABC):
    """An experiment with a name: what is run, and what is made of it."""

    #: name on the command line, and of its files
    name: str
    #: where the paper has it; ours: "ours"
    where: str
    #: what it shows, in a few words
    purpose: str

    @property
    def envs(self) -> tuple[str, ...]:
        """Ids of the tasks that ``--envs`` may choose from; none: there is no choice."""
        return ()

    @abstractmethod
    def plan(self, size: Size) -> Plan:
        """
        List the runs of each cell.

        :param size: how large it is made
        """

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that hold all that is made of a run, and name it in a column ``run``; none: a run is needed."""
        return ()

    def idle_twins(self, plan: Plan) -> Mapping[Job, Job]:
        """
        Runs that need not be made, because they are another one, if that has never corrected anything: each with the other.

        :param plan: the runs of each cell
        """
        return {}

    @abstractmethod
    def judge(self, size: Size, plan: Plan, outcome: Outcome) -> Findings:
        """
        Make tables, pictures and verdicts of what was run.

        :param size: how large it was made
        :param plan: the runs of each cell
        :param outcome: what became of them
        """


def conduct(
    experiment: Experiment,
    size: Size,
    out: Path,
    *,
    runs: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    observer: Observer | None = None,
    so_far: bool = False,
) -> Findings:
    """
    Make the runs of an experiment that are missing, judge all of them, and leave the page, the tables and the pictures.

    Runs are missing that are neither in the folder of runs nor in tables of ``out``: tables are small enough to be handed on
    (committed), so that one machine can go on where another has stopped.

    :param experiment: the experiment
    :param size: how large it is made
    :param out: where the files go
    :param runs: where runs are kept, which are never made twice; default: ``out/runs``
    :param workers: runs at a time; default: one a core
    :param ray: address of a Ray cluster, ``""`` for one on this machine; None: processes
    :param observer: is told how far the work is
    :param so_far: make no runs, and judge those that there are
    """
    plan = experiment.plan(size)
    jobs = {job.name: job for group in plan.values() for job in group}
    earlier = _earlier(experiment, out)
    # in all of its tables: a command that was killed may have written some of them
    known = jobs.keys() & set.intersection(*(set(table["run"]) for table in earlier.values())) if earlier else set()
    observer = observer or Observer()
    if known:
        observer.note(f"{len(known)} of {len(jobs)} runs are in the tables of {out}; delete these to make them again")
    # Seed by seed: a stop leaves every cell with about as many runs.
    todo = sorted((job for name, job in jobs.items() if name not in known), key=lambda job: job.seed)
    folder, twins = runs or out / "runs", experiment.idle_twins(plan)
    for job in todo:
        for note in set_aside_corrupt(folder / job.name):
            observer.note(note)
    if so_far:
        outcome = _make(todo, twins, folder, _read)
    else:
        outcome = _make(todo, twins, folder, partial(run_jobs, workers=workers, ray=ray, observer=observer))
    outcome.earlier = _earlier(experiment, out)  # as they are now: another command may have added to them meanwhile
    if outcome.results or known:
        findings = experiment.judge(size, plan, outcome)
    elif so_far:
        raise UserError(f"No run of {size.command(experiment.name)} is in {folder} or in tables of {out} yet.")
    else:
        findings = Findings(experiment.name, experiment.name, ["No run was finished."])
    findings.command = size.command(experiment.name)
    if so_far:
        findings.command += " --so-far"
        findings.made = f"{len(known | {job.name for job in outcome.results})} of {len(jobs)} runs so far"
    for job, why in outcome.failed.items():
        findings.failed.append(f"{job.title}: {why.strip().splitlines()[-1] if why.strip() else ''}")
    if findings.data:  # a page that says nothing would replace one that does
        write(findings, out)
    return findings


def _read(jobs: Sequence[AnyJob], folder: Path) -> Outcome:
    """The runs that are done; the others neither are nor have failed."""
    found = {job: read_result(job, folder) for job in jobs}
    return Outcome({job: result for job, result in found.items() if result is not None})


def _make(
    jobs: Sequence[AnyJob],
    twins: Mapping[Job, Job],
    folder: Path,
    run: Callable[[Sequence[AnyJob], Path], Outcome],
) -> Outcome:
    """Make runs; those that may turn out to be others last, and only where they do not."""
    outcome = run([job for job in jobs if job not in twins], folder)
    waiting = {job: twins[job] for job in jobs if isinstance(job, Job) and job in twins}
    for job, other in waiting.items():
        twin = outcome.results.get(other)
        if isinstance(twin, Result) and twin.strongest == 0.0 and read_result(job, folder) is None:
            outcome.results[job] = replace(twin, job=job)
    rest = [job for job in waiting if job not in outcome.results]
    if rest:
        more = run(rest, folder)
        outcome.results |= more.results
        outcome.failed |= more.failed
    return outcome


def _earlier(experiment: Experiment, out: Path) -> dict[str, pd.DataFrame]:
    """The tables that an earlier command has left. A UserError names one that cannot be gone on with, and would be lost."""
    paths = [out / f"{name}.csv" for name in experiment.tables]
    found = {path.stem: pd.read_csv(path) for path in paths if path.is_file()}
    for path in paths:
        if found and path.stem not in found:
            raise UserError(f"{path} is missing beside {', '.join(found)}; put it back, or move the others elsewhere.")
        if found and "run" not in found[path.stem]:
            raise UserError(f"{path} does not name its runs (no column 'run'); move it elsewhere to make them again.")
    return found


def with_earlier(name: str, made: pd.DataFrame, plan: Plan, outcome: Outcome) -> tuple[pd.DataFrame, pd.DataFrame]:
    """
    Put the figures of earlier runs beside those of the new ones.

    :param name: name of a table
    :param made: the table of the new runs, with a column ``run``
    :param plan: the runs of each cell
    :param outcome: what became of the new ones
    :return: the rows that the plan asks for, cell by cell, and all rows, which the table is to keep
    """
    if name in outcome.earlier:
        before = outcome.earlier[name]
        again = {job.name for job in outcome.results}
        made = pd.concat([before[~before["run"].isin(again)], made], ignore_index=True)
    if made.empty:
        return made, made
    order = {job.name: place for place, job in enumerate(job for jobs in plan.values() for job in jobs)}
    asked = made[made["run"].isin(order)]
    return asked.sort_values("run", key=lambda runs: runs.map(order), kind="stable", ignore_index=True), made


def sizes(plan: Plan, table: pd.DataFrame, task_of: Callable[[Any], str]) -> str:
    """
    How many seeds of how many steps each task has, in words.

    :param plan: the runs of each cell
    :param table: the figures of those that were made, with a column ``run``
    :param task_of: name of a cell's task
    """
    made = set() if table.empty else set(table["run"])
    counts: dict[tuple[str, int, int], set[int]] = {}
    for cell, jobs in plan.items():
        task = task_of(cell), len(jobs), jobs[0].steps
        counts.setdefault(task, set()).add(sum(job.name in made for job in jobs))
    parts = []
    for (name, asked, steps), there in counts.items():
        seeds = " to ".join(map(str, sorted({min(there), max(there)})))
        seeds += "" if there == {asked} else f" of {asked}"
        parts.append(f"{name} {seeds} seeds of {steps:,} steps")
    return "; ".join(parts)


def results_of(plan: Plan, outcome: Outcome) -> dict[Any, list[Any]]:
    """
    The results of each cell, those that there are.

    :param plan: the runs of each cell
    :param outcome: what became of them; jobs that differ in their label only are one run
    """
    by_name = {job.name: result for job, result in outcome.results.items()}
    found = {cell: [by_name[job.name] for job in jobs if job.name in by_name] for cell, jobs in plan.items()}
    return {cell: results for cell, results in found.items() if results}


def frame_of(plan: Plan, outcome: Outcome, columns: Sequence[str]) -> pd.DataFrame:
    """
    One long table of all that the functions of an experiment have measured.

    :param plan: the runs of each cell, whose key gives the values of ``columns``
    :param outcome: what became of them
    :param columns: names for the parts of a cell's key
    """
    parts = []
    for cell, results in results_of(plan, outcome).items():
        key = cell if isinstance(cell, tuple) else (cell,)
        for result in results:
            assert isinstance(result, Columns)
            named = dict(zip(columns, key, strict=True))
            parts.append(pd.DataFrame({**named, "seed": result.job.seed, **result.columns}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
