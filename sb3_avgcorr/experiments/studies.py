"""
The paper's training experiments as lists of runs, and its claims about them, judged by intervals.

Every study is made twice: each variant with the settings the paper tuned for it ("own"), as the paper has it, and all
variants with the settings of the averaging one ("equal"), which is the fair test of the correction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from sb3_avgcorr.experiments.compare import Settings, variant
from sb3_avgcorr.experiments.jobs import GAMMAS, Job, Result
from sb3_avgcorr.experiments.report import curves, interval
from sb3_avgcorr.experiments.runner import Outcome, run_jobs
from sb3_avgcorr.experiments.statistics import areas, curve, difference, finals
from sb3_avgcorr.zoo.config import ZooError, nearest, paper_config, read_yaml

Array = npt.NDArray[np.float64]
T = TypeVar("T")
Verdict = Literal["supported", "contradicted", "cannot tell"]

#: what the names of each variant's algorithms begin with, in the order of tables and plots
VARIANTS = {"none": "", "power": "power_", "averaging": "averaging_"}
#: points of a learning curve
POINTS = 40
#: "as good as": not worse by more than this part of the other's return
MARGIN = 0.1


@dataclass(frozen=True)
class Task:
    """
    :param env: id of the environment
    :param steps: environment steps of the small run; the full one has what the paper's file says
    :param family: ``"ppo"`` or ``"bac"``
    :param seeds: seeds of the small run; the paper has 10
    """

    env: str
    steps: int
    family: str = "ppo"
    seeds: int = 3


@dataclass(frozen=True)
class Expectation:
    """
    What the paper says of two variants.

    :param text: in our words
    :param first: a variant
    :param is_: what it is to the second, by the mean return over training (``"area"``) or at its end (``"final"``)
    :param second: another variant
    :param measure: ``"area"`` or ``"final"``
    :param envs: where; none: on every task of the study
    """

    text: str
    first: str
    is_: Literal["better than", "as good as", "worse than"]
    second: str
    measure: Literal["area", "final"] = "area"
    envs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """
    :param title: heading of its page
    :param figure: where the paper has it
    :param tasks: what is trained
    :param expectations: what the paper says of it
    :param gammas: discount factors of the returns; none: returns are undiscounted
    :param note: what a reader should know
    :param borrowed: other tasks, whose settings (the averaging variant's) are used in place of the task's own; the best of
        them, by the mean return over training, counts for a variant
    """

    title: str
    figure: str
    tasks: tuple[Task, ...]
    expectations: tuple[Expectation, ...]
    gammas: tuple[float, ...] = ()
    note: str = ""
    borrowed: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """Name of the returns in tables."""
        return "discounted" if self.gammas else "return"

    @property
    def comparisons(self) -> tuple[Settings, ...]:
        """Borrowed settings are the same for every variant."""
        return ("equal",) if self.borrowed else ("own", "equal")


@dataclass(frozen=True)
class Cell:
    """One place of a study: the runs of a variant that differ by their seed alone."""

    settings: Settings
    task: Task
    gamma: float | None  # of the returns; the runs are the same for all
    variant: str
    settings_of: str = ""  # the task they were tuned for, if not this one


def job_of(cell: Cell, seed: int, steps: int) -> Job:
    """
    :param cell: the cell
    :param seed: the seed
    :param steps: environment steps
    """
    family = cell.task.family
    hyperparams: dict[str, Any] = {}
    if cell.settings_of:
        hyperparams = {k: v for k, v in _averaging_entry(family, cell.settings_of).items() if k != "n_timesteps"}
    name = VARIANTS[cell.variant] + family
    algo, hyperparams = variant(name, cell.task.env, cell.settings, paper=True, hyperparams=hyperparams)
    return Job(algo, cell.task.env, seed, steps, label=cell.variant, paper=True, hyperparams=hyperparams)


def _averaging_entry(family: str, env: str) -> dict[str, Any]:
    """The paper's settings of the averaging variant."""
    return read_yaml(paper_config(f"averaging_{family}"))[env]


def cells_of(study: Study) -> list[Cell]:
    """
    :param study: the study
    :return: its cells
    """
    return [
        Cell(settings, task, gamma, variant, settings_of)
        for settings in study.comparisons
        for task in study.tasks
        for gamma in study.gammas or (None,)
        for settings_of in study.borrowed or ("",)
        for variant in VARIANTS
    ]


def plan(study: Study, *, full: bool, seeds: int | None = None, steps: int | None = None) -> dict[Cell, list[Job]]:
    """
    :param study: the study
    :param full: the paper's size
    :param seeds: number of seeds, if not the size's own
    :param steps: environment steps, if not the size's own
    :return: the runs of every cell
    """
    planned = {}
    for cell in cells_of(study):
        length = steps or cell.task.steps
        if full and steps is None:
            length = int(_averaging_entry(cell.task.family, cell.task.env)["n_timesteps"])
        first = job_of(cell, 0, length)
        count = seeds or (10 if full else cell.task.seeds)
        planned[cell] = [replace(first, seed=seed) for seed in range(count)]
    return planned


def judge(expectation: Expectation, a: Array, b: Array) -> tuple[Verdict, tuple[float, float, float]]:
    """
    :param expectation: what the paper says
    :param a: figures of its first variant
    :param b: figures of its second
    :return: the verdict, and the difference it rests on
    """
    estimate = difference(a, b)
    point, low, high = estimate.value, estimate.low, estimate.high
    if expectation.is_ == "better than":
        yes, no = low > 0.0, high < 0.0
    elif expectation.is_ == "worse than":
        yes, no = high < 0.0, low > 0.0
    else:
        margin = MARGIN * abs(float(np.mean(b)))
        yes, no = low > -margin, high < -margin
    return "supported" if yes else "contradicted" if no else "cannot tell", (point, low, high)


def only(tasks: Mapping[str, T], envs: Sequence[str] | None) -> dict[str, T]:
    """
    :param tasks: something for each task
    :param envs: ids of those that are wanted; none: all
    :return: that of those; a ZooError names one that is not there
    """
    for env in envs or ():
        if env not in tasks:
            raise ZooError(f"{env!r} (--envs) is not a task of this experiment; {nearest(env, tasks)}")
    return {env: value for env, value in tasks.items() if not envs or env in envs}


def run_study(
    name: str,
    study: Study,
    out: Path,
    *,
    full: bool = False,
    seeds: int | None = None,
    steps: int | None = None,
    runs: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    envs: Sequence[str] | None = None,
) -> dict[str, Any]:
    """
    Make the runs that are missing, and leave ``name.md``, ``name.csv`` and a figure for each comparison.

    :param name: name of the study, as on the command line
    :param study: the study
    :param out: where the report goes
    :param full: the paper's size
    :param seeds: number of seeds, if not the size's own
    :param steps: environment steps, if not the size's own
    :param runs: where runs are kept; default: ``out/runs``
    :param workers: processes at a time
    :param ray: address of a Ray cluster; ``""``: one of this machine
    :param envs: only these tasks
    :return: claims with their verdicts, the report and what failed
    """
    wanted = only({task.env: task for task in study.tasks}, envs)
    study = replace(study, tasks=tuple(task for task in study.tasks if task.env in wanted))
    planned = plan(study, full=full, seeds=seeds, steps=steps)
    out.mkdir(parents=True, exist_ok=True)
    jobs = list({job.name: job for group in planned.values() for job in group}.values())
    outcome = run_jobs(jobs, runs or out / "runs", workers=workers, ray=ray)
    frame, scores = tabulate(study, planned, outcome)
    command = command_of(name, full=full, seeds=seeds, steps=steps, envs=envs)
    return _write(name, study, out, planned, frame, scores, outcome, command, full)


def command_of(name: str, *, full: bool, seeds: int | None, steps: int | None, envs: Sequence[str] | None) -> str:
    """
    :param name: name of the experiment
    :param full: the full size
    :param seeds: number of seeds, if not the size's own
    :param steps: environment steps, if not the size's own
    :param envs: only these tasks
    :return: the command that repeats it
    """
    words = ["sb3-avgcorr reproduce", name, *(["--full"] if full else [])]
    words += [f"--{key} {value}" for key, value in (("seeds", seeds), ("steps", steps)) if value is not None]
    return " ".join([*words, *(["--envs", *envs] if envs else [])])


def tabulate(
    study: Study, planned: Mapping[Cell, Sequence[Job]], outcome: Outcome
) -> tuple[pd.DataFrame, dict[Cell, dict[str, Array]]]:
    """
    :param study: the study
    :param planned: the runs of every cell
    :param outcome: what became of them
    :return: the learning curves, a row for each point, and area and final return of every run by cell
    """
    by_name = {job.name: result for job, result in outcome.results.items()}
    rows, scores = [], {}
    for cell, jobs in planned.items():
        found: list[tuple[Job, Result]] = [(job, by_name[job.name]) for job in jobs if job.name in by_name]
        if not found:
            continue
        values = []
        for job, result in found:
            width = max(job.steps // POINTS, 1)
            points = curve(result, width, job.steps, "return" if cell.gamma is None else cell.gamma)
            values.append(points)
            identity = {
                "settings": cell.settings,
                "task": _named(study, cell.task),
                "gamma": result.gamma if cell.gamma is None else cell.gamma,
                "settings_of": cell.settings_of,
                "variant": cell.variant,
                "seed": job.seed,
            }
            steps_ = width * np.arange(1, len(points) + 1)
            rows.append(pd.DataFrame({**identity, "step": steps_, study.what: points}))
        table = np.array(values)
        scores[cell] = {"area": areas(table), "final": finals(table)}
    frame = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()
    return frame, _best(scores)


def _best(scores: dict[Cell, dict[str, Array]]) -> dict[Cell, dict[str, Array]]:
    """Of a variant's several settings those with the largest mean return over training."""
    best: dict[tuple[Any, ...], Cell] = {}
    for cell, values in scores.items():
        place = (cell.settings, cell.task, cell.gamma, cell.variant)
        if place not in best or values["area"].mean() > scores[best[place]]["area"].mean():
            best[place] = cell
    return {cell: scores[cell] for cell in best.values()}


def _write(
    name: str,
    study: Study,
    out: Path,
    planned: Mapping[Cell, Sequence[Job]],
    frame: pd.DataFrame,
    scores: Mapping[Cell, Mapping[str, Array]],
    outcome: Outcome,
    command: str,
    full: bool,
) -> dict[str, Any]:
    sizes = dict.fromkeys(
        f"{_named(study, cell.task)} {len(jobs)} seeds of {jobs[0].steps:,} steps" for cell, jobs in planned.items()
    )
    lines = [
        f"# {study.title}",
        "",
        f"{study.figure} of the paper. {'The paper’s size' if full else '**Smaller than the paper’s**'}: "
        + "; ".join(sizes)
        + ". "
        + study.note,
        "",
        f"Made by `{command}`; every curve is in `{name}.csv`.",
        "",
    ]
    if not frame.empty:
        frame.to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    explained = {"own": "each variant with the settings tuned for it", "equal": "all with the same settings"}
    claims: list[dict[str, Any]] = []
    for settings in study.comparisons:
        part = frame[frame["settings"] == settings] if not frame.empty else frame
        if part.empty:
            continue
        lines += [f"## {settings.capitalize()} settings: {explained[settings]}", ""]
        image = f"{name}-{settings}.png"
        if study.gammas:  # the figures of the others look the same
            part = part[part["gamma"] == study.gammas[0]]
        colour = part["variant"].replace("none", "biased")
        chosen = {(_named(study, cell.task), cell.variant, cell.settings_of) for cell in scores if cell.settings == settings}
        shown = [key in chosen for key in zip(part["task"], part["variant"], part["settings_of"], strict=True)]
        ylabel = f"return, γ = {study.gammas[0]:g}" if study.gammas else "return"
        picture = part.assign(agent=colour)[shown]
        figure = curves(picture, x="step", y=study.what, line="agent", panel="task", ylabel=ylabel, share_y=False)
        figure.savefig(out / image, dpi=110)
        lines += [
            f"![{study.title}, {settings} settings]({image})",
            "",
            "| task | variant | mean over training | at the end |",
        ]
        lines += ["|---|---|---|---|"]
        for cell, values in scores.items():
            if cell.settings == settings:
                named = f"{cell.variant} (settings of {cell.settings_of})" if cell.settings_of else cell.variant
                lines.append(f"| {_place(study, cell)} | {named} | {_shown(values['area'])} | {_shown(values['final'])} |")
        rows = _judged(study, settings, scores)
        claims += rows
        lines += ["", "| the paper | task | difference (95 % Welch interval) | this run |", "|---|---|---|---|"]
        for row in rows:
            point, low, high = row["difference"]
            lines.append(
                f"| {row['claim']} | {row['task']} | {point:.3g} ({low:.3g} to {high:.3g}) | {_bold(row['verdict'])} |"
            )
        lines.append("")
    for job, why in outcome.failed.items():
        lines.append(f"Failed: {job.label} on {job.env}, seed {job.seed}: {why.strip().splitlines()[-1] if why else ''}")
    report = "\n".join(lines).rstrip() + "\n"
    (out / f"{name}.md").write_text(report, encoding="utf-8")
    return {"experiment": name, "claims": claims, "report": report, "failed": list(outcome.failed.values())}


def _judged(study: Study, settings: Settings, scores: Mapping[Cell, Mapping[str, Array]]) -> list[dict[str, Any]]:
    at = {(cell.task, cell.gamma, cell.variant): cell for cell in scores if cell.settings == settings}
    rows = []
    for expectation in study.expectations:
        for task in study.tasks:
            if expectation.envs and task.env not in expectation.envs:
                continue
            for gamma in study.gammas or (None,):
                pair = [at.get((task, gamma, variant)) for variant in (expectation.first, expectation.second)]
                if pair[0] is None or pair[1] is None:
                    continue
                verdict, ends = judge(expectation, scores[pair[0]][expectation.measure], scores[pair[1]][expectation.measure])
                rows.append(
                    {
                        "claim": expectation.text,
                        "settings": settings,
                        "task": _place(study, pair[0]),
                        "verdict": verdict,
                        "difference": ends,
                    }
                )
    return rows


def _named(study: Study, task: Task) -> str:
    """The task's name in tables; with the algorithm's, if the study has several."""
    several = len({other.family for other in study.tasks}) > 1
    return f"{task.env} ({task.family.upper()})" if several else task.env


def _place(study: Study, cell: Cell) -> str:
    name = _named(study, cell.task)
    return name if cell.gamma is None else f"{name}, γ = {cell.gamma:g}"


def _shown(values: Array) -> str:
    mean, low, high = interval(values)
    return f"{mean:.4g} ({low:.4g} to {high:.4g})"


def _bold(verdict: Verdict) -> str:
    return f"**{verdict}**" if verdict == "contradicted" else verdict


_CLASSIC = tuple(Task(env, 200_000, "bac", seeds=5) for env in ("CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0"))
_MUJOCO = tuple(Task(f"{name}-v4", 40_000) for name in ("HalfCheetah", "Ant", "Walker2d", "Swimmer"))
_MUJOCO_IDS = tuple(task.env for task in _MUJOCO)
_MOUNTAIN_CAR = Task("MountainCarContinuous-v0", 120_000)
_DOMINATES = ("CartPole-v1", "MountainCarContinuous-v0")

STUDIES: dict[str, Study] = {
    "classic-control": Study(
        "Batch actor-critic on classic control",
        "Figure 3",
        _CLASSIC,
        (
            Expectation("averaging learns faster than the original", "averaging", "better than", "none", "area", _DOMINATES),
            Expectation("averaging learns faster than power", "averaging", "better than", "power", "area", _DOMINATES),
            Expectation("averaging is as good as the original", "averaging", "as good as", "none", "area", ("Acrobot-v1",)),
            Expectation("averaging is as good as power", "averaging", "as good as", "power", "area", ("Acrobot-v1",)),
            Expectation(
                "averaging ends higher than the original", "averaging", "better than", "none", "final", (_DOMINATES[1],)
            ),
            Expectation("averaging ends higher than power", "averaging", "better than", "power", "final", (_DOMINATES[1],)),
        ),
        note=(
            "Time limits count as termination, as in old Gym. On MountainCarContinuous observations are normalised by a "
            "running filter. Against the authors' program the correction's output is softplus, since ReLU can die, and starts "
            "at the mean of γ^t."
        ),
    ),
    "mujoco": Study(
        "PPO on MuJoCo",
        "Figure 4",
        _MUJOCO,
        (
            Expectation("power ends lower than the original", "power", "worse than", "none", "final"),
            Expectation("averaging ends as high as the original", "averaging", "as good as", "none", "final"),
            Expectation("averaging ends higher than power", "averaging", "better than", "power", "final"),
        ),
    ),
    "mountaincar-pointmass": Study(
        "PPO on MountainCarContinuous and PointMass",
        "Figure 6",
        (_MOUNTAIN_CAR, Task("avgcorr/PointMassEasy-v0", 40_000)),
        (
            Expectation("averaging learns faster than the original", "averaging", "better than", "none"),
            Expectation("averaging ends higher than the original", "averaging", "better than", "none", "final"),
        ),
    ),
    "dm-reacher": Study(
        "PPO on dm_control's reacher with sparse rewards",
        "Appendix G.2",
        (Task("avgcorr/SparseReacherEasy-v0", 32_000), Task("avgcorr/SparseReacherHard-v0", 32_000)),
        (Expectation("averaging is as good as the original", "averaging", "as good as", "none"),),
    ),
    "ur5": Study(
        "PPO on UR5 Reacher",
        "Figure 5",
        (Task("avgcorr/UR5Reacher-v0", 40_000),),
        (
            Expectation("averaging learns faster than the original", "averaging", "better than", "none"),
            Expectation("power learns faster than the original", "power", "better than", "none"),
        ),
        note="Simulated here; the paper has a real arm.",
    ),
    "discounted": Study(
        "Discounted returns",
        "Appendix H",
        (*_CLASSIC, *_MUJOCO, _MOUNTAIN_CAR),
        (
            Expectation("averaging learns faster than the original", "averaging", "better than", "none", "area", _DOMINATES),
            Expectation("averaging is as good as the original", "averaging", "as good as", "none", "area", ("Acrobot-v1",)),
            Expectation("power ends lower than the original", "power", "worse than", "none", "final", _MUJOCO_IDS),
            Expectation("averaging ends as high as the original", "averaging", "as good as", "none", "final", _MUJOCO_IDS),
        ),
        gammas=GAMMAS,
        note=(
            "The runs are those of classic-control, mujoco and mountaincar-pointmass, each trained with the γ of its "
            "settings; the return of an episode is discounted from its start."
        ),
    ),
    "hyperparameter-transfer": Study(
        "Three settings carried over to other tasks",
        "Appendix G.1",
        tuple(Task(f"{name}-v4", 20_000) for name in ("Walker2d", "InvertedDoublePendulum", "Swimmer", "Reacher")),
        (
            Expectation("averaging learns faster than the original", "averaging", "better than", "none"),
            Expectation("averaging learns faster than power", "averaging", "better than", "power"),
        ),
        note=(
            "The paper does not print its three settings, tuned on Hopper and Ant. Here: those it tuned for Ant, HalfCheetah "
            "and PointMass, none of them on one of these tasks. Every variant gets all three, and its best counts."
        ),
        borrowed=("Ant-v4", "HalfCheetah-v4", "avgcorr/PointMassEasy-v0"),
    ),
}
