"""A study of ours: variants of one algorithm on several tasks with equal settings, by both kinds of return."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from sb3_avgcorr.reporting import aggregate
from sb3_avgcorr.reporting.claims import Claim, Relation, judge
from sb3_avgcorr.reporting.comparison import KINDS
from sb3_avgcorr.reporting.figures import curves
from sb3_avgcorr.reporting.findings import Findings, Picture, Section, Table
from sb3_avgcorr.reporting.statistics import What, areas, curve, difference, finals, interval, told, values_of
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.results import Result
from sb3_avgcorr.runs.runner import Outcome
from sb3_avgcorr.studies.experiment import Experiment, Plan, Size, results_of, sizes, with_earlier

#: variant -> settings of the correction, beside the task's own
CORRECTIONS: dict[str, dict[str, Any]] = {
    "none": {"correction": None},
    "power": {"correction": "power", "correction_strength": 1.0},
    "averaging": {"correction": "averaging", "correction_strength": 1.0},
    "auto": {"correction": "averaging", "correction_strength": "auto"},
}
MEASURES = {"area": "over training", "final": "at the end", "evaluation": "final policy"}
BINS = 40


@dataclass(frozen=True)
class Task:
    """
    What is trained on.

    :param env: id of the environment
    :param steps: environment steps of the full size
    :param hyperparams: settings that differ from the file's entry, for all variants
    :param paper: take the paper's settings
    """

    env: str
    steps: int
    hyperparams: Mapping[str, Any] = field(default_factory=dict)
    paper: bool = False

    def __hash__(self) -> int:
        return hash((self.env, self.steps))


@dataclass(frozen=True)
class Expectation:
    """
    What should hold of two variants, on every task.

    :param text: in words
    :param first: a variant
    :param is_: what it is to the second
    :param second: another variant
    :param measure: by which figure: ``"area"``, ``"final"`` or ``"evaluation"``
    """

    text: str
    first: str
    is_: Relation
    second: str
    measure: str = "final"


@dataclass(frozen=True)
class VariantStudy(Experiment):
    """
    Variants of AveragingPPO on several tasks with equal settings. The first variant is the baseline.

    :param name: name on the command line
    :param purpose: what it shows, in a few words
    :param title: heading of its page
    :param note: what a reader should know
    :param tasks: what is trained on
    :param variants: variant -> settings that differ from the task's
    :param expectations: what should hold, by each kind of return
    :param quick_steps: environment steps of the small size, at most
    :param eval_episodes: episodes of the final policy
    :param overall: whether to sum up over tasks
    """

    name: str
    purpose: str
    title: str
    note: str
    tasks: tuple[Task, ...]
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: CORRECTIONS)
    expectations: tuple[Expectation, ...] = ()
    quick_steps: int = 30_000
    eval_episodes: int = 10
    overall: bool = False
    where: str = "ours"

    @property
    def envs(self) -> tuple[str, ...]:
        return tuple(task.env for task in self.tasks)

    def plan(self, size: Size) -> Plan:
        seeds = size.seeds or (10 if size.full else 3)
        planned: dict[tuple[str, str], list[Job]] = {}
        for task in size.only({task.env: task for task in self.tasks}).values():
            steps = size.steps or (task.steps if size.full else min(task.steps, self.quick_steps))
            for variant, changed in self.variants.items():
                planned[task.env, variant] = [
                    Job(
                        "averaging_ppo",
                        task.env,
                        seed,
                        steps,
                        variant,
                        paper=task.paper,
                        hyperparams={**task.hyperparams, **changed},
                        eval_episodes=self.eval_episodes,
                    )
                    for seed in range(seeds)
                ]
        return planned

    def idle_twins(self, plan: Plan) -> Mapping[Job, Job]:
        """PPO, of AveragingPPO as it is by default: with a strength of 0 in every rollout the two are the same, to the bit."""
        found: dict[Job, Job] = {}
        for (task, variant), jobs in plan.items():
            if variant == "none" and (task, "auto") in plan:
                found.update(zip(jobs, plan[task, "auto"], strict=True))  # type: ignore[arg-type]
        return found

    @property
    def tables(self) -> tuple[str, ...]:
        return self.name, f"{self.name}-curves"

    def judge(self, size: Size, plan: Plan, outcome: Outcome) -> Findings:
        data: dict[str, pd.DataFrame] = {}
        asked: dict[str, pd.DataFrame] = {}
        for name, made in zip(self.tables, tabulate(plan, outcome), strict=True):
            asked[name], data[name] = with_earlier(name, made, plan, outcome)
        scores, learning = asked.values()
        if scores.empty:
            return Findings(self.name, self.title, ["In no run did an episode end."])
        intervals = (
            f"*At the end*: the last tenth of training; *final policy*: {self.eval_episodes} episodes after training, "
            "actions drawn. Intervals are 95 %: Student's for a mean, Welch's for a difference."
        )
        baseline = next(iter(self.variants))
        copied = repeated(learning, baseline)
        copies = []
        for variant in self.variants:
            own = [counts for (_, name), counts in copied.items() if name == variant]
            if any(same for same, _ in own):
                copies.append(f"{variant} {sum(same for same, _ in own)} of {sum(runs for _, runs in own)}")
        if copies:
            intervals += (
                f" Runs with the whole learning curve of {baseline}'s run of the same seed: {', '.join(copies)}. "
                "(A run of auto in which every rollout had a strength of 0 is PPO's, and was not made a second time.)"
            )
        same_runs = {place for place, (same, runs) in copied.items() if same == runs}
        sections = [self._section(kind, words, learning, scores, same_runs) for kind, words in KINDS.items()]
        together = self._together(learning, scores) if self.overall else None
        if together is not None:
            sections.insert(0, together)
        return Findings(
            self.name,
            self.title,
            [f"{self.note} Equal settings. {sizes(plan, scores, lambda cell: str(cell[0]))}.", intervals],
            sections,
            data,
        )

    def _section(
        self, kind: str, words: str, learning: pd.DataFrame, scores: pd.DataFrame, same_runs: Collection[tuple[str, str]]
    ) -> Section:
        own = scores[scores["kind"] == kind]
        values = {key: part["value"].to_numpy() for key, part in own.groupby(["task", "variant", "measure"], sort=False)}
        baseline = next(iter(self.variants))
        claims = []
        for expectation in self.expectations:
            for task in dict.fromkeys(own["task"]):
                first, second = (
                    values.get((task, variant, expectation.measure)) for variant in (expectation.first, expectation.second)
                )
                if first is not None and second is not None:
                    verdict, apart = judge(expectation.is_, first, second)
                    claims.append(Claim(expectation.text, verdict, apart, f"{task}, {words}"))
        rows = []
        for task, variant in own[["task", "variant"]].drop_duplicates().itertuples(index=False):
            found = {measure: values[task, variant, measure] for measure in MEASURES if (task, variant, measure) in values}
            other = values.get((task, baseline, "final"))
            apart_text = ""
            if variant != baseline and other is not None:
                apart = difference(found["final"], other)
                same = (task, variant) in same_runs and len(found["final"]) == len(other)
                apart_text = "0: the same runs" if same else f"{apart.text(3)}: {told(apart)}"
            cells = [str(interval(found[measure])) if measure in found else "" for measure in MEASURES]
            rows.append([task, variant, str(len(found["final"])), *cells, apart_text])
        figure = curves(learning, x="step", y=kind, line="variant", panel="task", ylabel=words, share_y=False)
        heading = ["task", "variant", "runs", *MEASURES.values(), f"difference to {baseline} at the end"]
        return Section(
            words.capitalize(),
            [Picture(f"{self.name}-{kind}.png", f"{self.title}: {words}", figure)],
            claims,
            [Table(heading, rows)],
        )

    def _together(self, learning: pd.DataFrame, scores: pd.DataFrame) -> Section | None:
        """
        All tasks together, by the undiscounted return at the end: 0 is where training began, 1 where the baseline ended. None,
        if there are not two tasks on which all variants were run and the baseline learned.
        """
        baseline = next(iter(self.variants))
        own = scores[(scores["kind"] == "return") & (scores["measure"] == "final")]
        values: dict[str, dict[str, np.ndarray]] = {}
        for (variant, task), part in own.groupby(["variant", "task"], sort=False):
            values.setdefault(str(variant), {})[str(task)] = part["value"].to_numpy()
        first = learning[learning["step"] == learning.groupby("task")["step"].transform("min")]
        zero = {str(task): float(mean) for task, mean in first.groupby("task")["return"].mean().items()}
        one = {task: float(x.mean()) for task, x in values.get(baseline, {}).items()}
        shared = set(one).intersection(*(set(of_task) for of_task in values.values()))
        tasks = [task for task in one if task in shared and one[task] > zero[task]]
        if len(tasks) < 2:
            return None
        values = {variant: {task: of_task[task] for task in tasks} for variant, of_task in values.items()}
        left_out = [task for task in one if task not in tasks]
        normal = aggregate.normalised(values, zero, one)
        middle, better = aggregate.interquartile_means(normal), aggregate.improvements(normal, baseline)
        rows = [[variant, middle[variant].text(3), better[variant].text(3) if variant in better else ""] for variant in normal]
        pictures = []
        if min(len(x) for x in normal.values()) > 1:
            figure = aggregate.profile(normal, f"return, 0: at the beginning, 1: {baseline} at the end")
            pictures = [Picture(f"{self.name}-profile.png", f"{self.title}: performance profile", figure)]
        heading = ["variant", "interquartile mean over runs and tasks", f"probability of improvement over {baseline}"]
        return Section(
            "All tasks together",
            pictures,
            tables=[Table(heading, rows)],
            text=(
                "Undiscounted return at the end of training, normalised on each task: 0 is where training begins, 1 is the "
                f"mean of {baseline} at the end. Intervals: rliable's stratified bootstrap."
                + (
                    f" Without {', '.join(left_out)}, where {baseline} learned nothing or runs are missing."
                    if left_out
                    else ""
                )
            ),
        )


def repeated(learning: pd.DataFrame, baseline: str) -> dict[tuple[str, str], tuple[int, int]]:
    """
    How many runs of each task and variant are the baseline's run of the same seed once more.

    :param learning: the learning curves, a row for each point
    :param baseline: a variant
    :return: task and variant -> runs with the baseline's whole curve, and runs that have one to be compared with
    """
    by_run = {key: part["return"].to_numpy() for key, part in learning.groupby(["task", "seed", "variant"], sort=False)}
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for (task, seed, variant), points in by_run.items():
        own = by_run.get((task, seed, baseline))
        if variant != baseline and own is not None:
            same, runs = counts.get((str(task), str(variant)), (0, 0))
            counts[str(task), str(variant)] = same + _same(points, own), runs + 1
    return counts


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two runs have the same figures; tables keep six digits of them."""
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-5, equal_nan=True)


def tabulate(plan: Plan, outcome: Outcome) -> tuple[pd.DataFrame, pd.DataFrame]:
    """
    Figures and learning curves of all runs.

    :param plan: the runs of each task and variant
    :param outcome: what became of them; a run in which no episode ended is noted as failed
    :return: the figures, a row for each run, kind of return and measure, and the curves, a row for each point
    """
    learning, scores = [], []
    kinds: Sequence[What] = ("return", "discounted")
    for (task, variant), results in results_of(plan, outcome).items():
        for result in results:
            assert isinstance(result, Result)
            job = result.job
            if len(result.episodes) == 0:
                outcome.failed[job] = f"no episode ended within {job.steps} steps"
                continue
            width = max(job.steps // BINS, 1)
            points = {str(kind): curve(result, width, job.steps, kind) for kind in kinds}
            identity = {"task": task, "variant": variant, "seed": job.seed, "run": job.name}
            steps = np.minimum(width * np.arange(1, len(points["return"]) + 1), job.steps)
            learning.append(pd.DataFrame({**identity, "step": steps, **points}))
            for kind in kinds:
                found = {"area": float(areas(points[str(kind)])[0]), "final": float(finals(points[str(kind)])[0])}
                if len(result.evaluation):
                    found["evaluation"] = float(values_of(result.evaluation, kind).mean())
                scores += [
                    {**identity, "steps": job.steps, "gamma": result.gamma, "kind": kind, "measure": measure, "value": value}
                    for measure, value in found.items()
                ]
    return pd.DataFrame(scores), pd.concat(learning, ignore_index=True) if learning else pd.DataFrame()
