"""The paper's training experiments: their runs, judged by the paper's claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sb3_avgcorr.paper import training
from sb3_avgcorr.paper.training import COMPARISONS, Cell, Study, Task
from sb3_avgcorr.reporting.claims import Claim, judge
from sb3_avgcorr.reporting.figures import FEW, curves
from sb3_avgcorr.reporting.findings import Findings, Picture, Section, Table
from sb3_avgcorr.reporting.statistics import areas, curve, finals, interval
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.runner import Outcome
from sb3_avgcorr.runs.settings import Settings
from sb3_avgcorr.studies.experiment import Experiment, Plan, Size, results_of, sizes, with_earlier

Array = npt.NDArray[np.float64]
Scores = Mapping[Cell, Mapping[str, Array]]

#: what holds for every study
PROTOCOL = (
    "Settings: `hyperparams/paper/`. Time limits count as termination, as in the authors' programs (old Gym), but for "
    "PointMass and the sparse reachers, where they are bootstrapped. The correction's output is softplus where theirs is "
    "ReLU, which can die. Curves are means over the episodes that ended in each of {points} parts of a run; where none "
    "ended, the value before goes on. Shaded: Student's 95 % interval; thin lines: the runs, where they are fewer than {few}."
)
#: whose settings a run has, where it has its own task's
OWN = "the task"
EXPLAINED: dict[Settings, str] = {
    "own": "each variant with the settings tuned for it",
    "equal": "all with the same settings",
}


@dataclass(frozen=True)
class TrainingStudy(Experiment):
    """
    A training experiment of the paper.

    :param name: name on the command line
    :param where: where the paper has it
    :param purpose: what it shows, in a few words
    :param study: what is trained, and what the paper says of it
    """

    name: str
    where: str
    purpose: str
    study: Study

    @property
    def envs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(task.env for task in self.study.tasks))

    def chosen(self, size: Size) -> Study:
        """
        The study with the tasks that are wanted.

        :param size: says which
        """
        wanted = size.only({task.env: task for task in self.study.tasks})
        return replace(self.study, tasks=tuple(task for task in self.study.tasks if task.env in wanted))

    def plan(self, size: Size) -> dict[Cell, list[Job]]:
        return training.plan(self.chosen(size), full=size.full, seeds=size.seeds, steps=size.steps)

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.name,)

    def judge(self, size: Size, plan: Plan, outcome: Outcome) -> Findings:
        study = self.chosen(size)
        frame, kept = with_earlier(self.name, tabulate(study, plan, outcome), plan, outcome)
        scores = _best(scores_of(study, plan, frame))
        made = set() if frame.empty else set(frame["run"])
        is_full = made >= {job.name for jobs in plan.values() for job in jobs} and all(
            len(jobs) >= len(asked) and jobs[0].steps >= asked[0].steps
            for jobs, asked in zip(plan.values(), training.plan(study, full=True).values(), strict=True)
        )
        there = {cell.settings for cell in scores}
        how_large = "The paper’s size" if is_full else "**Smaller than the paper’s**"
        return Findings(
            self.name,
            study.title,
            [
                f"{study.figure} of the paper. {how_large}: {sizes(plan, frame, lambda cell: _named(study, cell.task))}.",
                f"{study.note} {PROTOCOL.format(points=study.points, few=FEW)}".strip(),
            ],
            [_section(self.name, study, settings, frame, scores) for settings in COMPARISONS if settings in there],
            {self.name: kept} if scores else {},
        )


def tabulate(study: Study, planned: Plan, outcome: Outcome) -> pd.DataFrame:
    """
    Learning curves of the runs that were made.

    :param study: the study
    :param planned: the runs of every cell
    :param outcome: what became of them; a run in which no episode ended is noted as failed
    :return: a row for each point of a curve
    """
    rows = []
    for cell, results in results_of(planned, outcome).items():
        for result in results:
            job = result.job
            counted = result.with_open_episodes() if cell.task.open_ended else result
            if len(counted.episodes) == 0:
                outcome.failed[job] = f"no episode ended within {job.steps} steps"
                continue
            width = max(job.steps // study.points, 1)
            points = curve(counted, width, job.steps, "return" if cell.gamma is None else cell.gamma)
            identity = {
                "settings": cell.settings,
                "task": _named(study, cell.task),
                "gamma": result.gamma if cell.gamma is None else cell.gamma,
                "settings_of": cell.settings_of or OWN,
                "variant": cell.variant,
                "seed": job.seed,
                "run": job.name,
            }
            rows.append(pd.DataFrame({**identity, "step": width * np.arange(1, len(points) + 1), study.what: points}))
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()


def scores_of(study: Study, planned: Plan, frame: pd.DataFrame) -> dict[Cell, dict[str, Array]]:
    """
    What is judged by: area and final return of every run by cell.

    :param study: the study
    :param planned: the runs of every cell
    :param frame: their learning curves; cells without any are left out
    """
    if frame.empty:
        return {}
    scores = {}
    for cell, jobs in planned.items():
        place = {
            "settings": cell.settings,
            "task": _named(study, cell.task),
            "settings_of": cell.settings_of or OWN,
            "variant": cell.variant,
            **({} if cell.gamma is None else {"gamma": cell.gamma}),
        }
        own = frame["run"].isin([job.name for job in jobs])
        for column, value in place.items():
            own &= frame[column] == value
        values = [points[study.what].to_numpy() for _, points in frame[own].groupby("run", sort=False)]
        if values:
            scores[cell] = {"area": areas(values), "final": finals(values)}
    return scores


def _best(scores: dict[Cell, dict[str, Array]]) -> dict[Cell, dict[str, Array]]:
    """Of a variant's several settings those with the largest mean return over training."""
    best: dict[tuple[Any, ...], Cell] = {}
    for cell, values in scores.items():
        place = (cell.settings, cell.task, cell.gamma, cell.variant)
        if place not in best or values["area"].mean() > scores[best[place]]["area"].mean():
            best[place] = cell
    return {cell: scores[cell] for cell in best.values()}


def _section(name: str, study: Study, settings: Settings, frame: pd.DataFrame, scores: Scores) -> Section:
    part = frame[frame["settings"] == settings]
    scores = {cell: values for cell, values in scores.items() if cell.settings == settings}
    if study.gammas:  # the figures of the others look the same
        part = part[part["gamma"] == study.gammas[0]]
    chosen = {(_named(study, cell.task), cell.variant, cell.settings_of or OWN) for cell in scores}
    drawn = [key in chosen for key in zip(part["task"], part["variant"], part["settings_of"], strict=True)]
    ylabel = f"return, γ = {study.gammas[0]:g}" if study.gammas else "return"
    figure = curves(part[drawn], x="step", y=study.what, line="variant", panel="task", ylabel=ylabel, share_y=False)
    rows = []
    for cell, values in scores.items():
        variant = f"{cell.variant} (settings of {cell.settings_of})" if cell.settings_of else cell.variant
        figures = (str(interval(values[measure])) for measure in ("area", "final"))
        rows.append([_place(study, cell), variant, str(len(values["final"])), *figures])
    return Section(
        f"{settings.capitalize()} settings: {EXPLAINED[settings]}",
        [Picture(f"{name}-{settings}.png", f"{study.title}, {settings} settings", figure)],
        _claims(study, settings, scores),
        [Table(["task", "variant", "runs", "mean over training", "at the end"], rows)],
    )


def _claims(study: Study, settings: Settings, scores: Scores) -> Sequence[Claim]:
    at = {(cell.task, cell.gamma, cell.variant): cell for cell in scores}
    claims = []
    for expectation in study.expectations:
        for task in study.tasks:
            if (expectation.envs and task.env not in expectation.envs) or expectation.family not in ("", task.family):
                continue
            for gamma in study.gammas or (None,):
                if expectation.gammas and gamma not in expectation.gammas:
                    continue
                first, second = (at.get((task, gamma, variant)) for variant in (expectation.first, expectation.second))
                if first is None or second is None:
                    continue
                measure = expectation.measure
                verdict, apart = judge(expectation.is_, scores[first][measure], scores[second][measure])
                claims.append(Claim(expectation.text, verdict, apart, f"{_place(study, first)}, {settings} settings"))
    return claims


def _named(study: Study, task: Task) -> str:
    """The task's name in tables; with the algorithm's, if the study has several."""
    several = len({other.family for other in study.tasks}) > 1
    return f"{task.env} ({task.family.upper()})" if several else task.env


def _place(study: Study, cell: Cell) -> str:
    name = _named(study, cell.task)
    return name if cell.gamma is None else f"{name}, γ = {cell.gamma:g}"
