"""From training runs to verdicts: what a study's runs say of the paper's claims, by intervals, and the page that tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from sb3_avgcorr.cli.compare import Settings
from sb3_avgcorr.errors import UserError, nearest
from sb3_avgcorr.paper.training import COMPARISONS, Cell, Expectation, Study, Task, plan
from sb3_avgcorr.reporting.figures import curves, interval, shown
from sb3_avgcorr.reporting.statistics import areas, curve, difference, finals
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.runner import Outcome, run_jobs

Array = npt.NDArray[np.float64]
T = TypeVar("T")
Verdict = Literal["supported", "contradicted", "cannot tell"]

#: "as good as": not worse by more than this part of the other's return
MARGIN = 0.1
#: what holds for every study
PROTOCOL = (
    "Settings: `hyperparams/paper/`. Time limits count as termination, as in the authors' programs (old Gym). The "
    "correction's output is softplus where theirs is ReLU, which can die. Curves are means over the episodes that ended in "
    "each of {points} parts of a run; where none ended, the value before goes on."
)


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
    :return: that of those; a UserError names one that is not there
    """
    for env in envs or ():
        if env not in tasks:
            raise UserError(f"{env!r} (--envs) is not a task of this experiment; {nearest(env, tasks)}")
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
    is_full = all(
        len(jobs) >= len(asked) and jobs[0].steps >= asked[0].steps
        for jobs, asked in zip(planned.values(), plan(study, full=True).values(), strict=True)
    )
    return _write(name, study, out, planned, frame, scores, outcome, command, is_full)


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
        values = []
        for job in jobs:
            if job.name not in by_name:
                continue
            result = by_name[job.name].with_open_episodes() if cell.task.open_ended else by_name[job.name]
            if len(result.episodes) == 0:
                outcome.failed[job] = f"no episode ended within {job.steps} steps"
                continue
            width = max(job.steps // study.points, 1)
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
        if values:
            scores[cell] = {"area": areas(values), "final": finals(values)}
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
        + ".",
        "",
        f"{study.note} {PROTOCOL.format(points=study.points)}".strip(),
        "",
        f"Made by `{command}`; every curve is in `{name}.csv`.",
        "",
    ]
    if not frame.empty:
        frame.to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    explained = {"own": "each variant with the settings tuned for it", "equal": "all with the same settings"}
    claims: list[dict[str, Any]] = []
    for settings in COMPARISONS:
        part = frame[frame["settings"] == settings] if not frame.empty else frame
        if part.empty:
            continue
        lines += [f"## {settings.capitalize()} settings: {explained[settings]}", ""]
        image = f"{name}-{settings}.png"
        if study.gammas:  # the figures of the others look the same
            part = part[part["gamma"] == study.gammas[0]]
        colour = part["variant"].replace("none", "biased")
        chosen = {(_named(study, cell.task), cell.variant, cell.settings_of) for cell in scores if cell.settings == settings}
        drawn = [key in chosen for key in zip(part["task"], part["variant"], part["settings_of"], strict=True)]
        ylabel = f"return, γ = {study.gammas[0]:g}" if study.gammas else "return"
        picture = part.assign(agent=colour)[drawn]
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
                figures = " | ".join(shown(*interval(values[measure]), 4) for measure in ("area", "final"))
                lines.append(f"| {_place(study, cell)} | {named} | {figures} |")
        rows = _judged(study, settings, scores)
        claims += rows
        lines += ["", "| the paper | task | difference (95 % Welch interval) | this run |", "|---|---|---|---|"]
        for row in rows:
            lines.append(f"| {row['claim']} | {row['task']} | {shown(*row['difference'])} | {_bold(row['verdict'])} |")
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
            if (expectation.envs and task.env not in expectation.envs) or expectation.family not in ("", task.family):
                continue
            for gamma in study.gammas or (None,):
                if expectation.gammas and gamma not in expectation.gammas:
                    continue
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


def _bold(verdict: Verdict) -> str:
    return f"**{verdict}**" if verdict == "contradicted" else verdict
