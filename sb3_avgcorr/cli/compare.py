"""
``sb3-avgcorr compare``: does a correction help on a task? Trains variants with the same seeds and says what their returns
allow to say.
"""

from __future__ import annotations

import argparse
import inspect
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rl_zoo3.utils import StoreDict

from sb3_avgcorr.errors import UserError, nearest
from sb3_avgcorr.reporting import page, statistics
from sb3_avgcorr.reporting.figures import curves as draw_curves
from sb3_avgcorr.runs.jobs import Job, Result
from sb3_avgcorr.runs.runner import run_jobs
from sb3_avgcorr.runs.training import check_job, settings_of
from sb3_avgcorr.zoo.algorithms import ALGORITHMS
from sb3_avgcorr.zoo.config import make_folder, paper_config

Settings = Literal["equal", "own"]

ALGOS = ["ppo", "power_ppo", "averaging_ppo"]
SETTINGS: dict[str, str] = {
    "equal": "equal (all variants train with the settings of the averaging one, so that only the correction differs)",
    "own": "own (each variant trains with the settings of its own file, so that a difference may be the settings')",
}
BINS = 50
KINDS: dict[str, str] = {"return": "undiscounted return", "discounted": "discounted return"}
MEASURES: dict[str, str] = {
    "final": "end of training (mean over the last tenth)",
    "area": "whole training (area under the curve, divided by the steps)",
    "evaluation": "final policy (episodes after training)",
}
IN_SHORT: dict[str, str] = {"final": "at the end", "area": "over training", "evaluation": "of the final policy"}
#: fewer runs than this make a bootstrap interval much too narrow
FEW = 5


@dataclass
class Comparison:
    """
    What a comparison found.

    :param title: what was compared
    :param curves: one row a variant, seed and bin: ``return`` and ``discounted``
    :param summary: one row a kind of return, measure and variant, with intervals; the first variant is the baseline
    :param verdicts: for each variant but the baseline, a line
    :param notes: what must be known to read the tables
    :param failed: runs that failed, and why
    :param files: what was written, by name
    """

    title: str
    curves: pd.DataFrame
    summary: pd.DataFrame
    verdicts: dict[str, str]
    notes: list[str]
    failed: dict[Job, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [self.title, *self.notes]
        for kind, measure, rows in self.tables():
            parts += ["", f"{KINDS[kind]}, {MEASURES[measure]}", _plain_table(HEADING, rows)]
        return "\n".join([*parts, "", *self.verdicts.values()])

    def tables(self) -> list[tuple[str, str, list[tuple[str, ...]]]]:
        """
        :return: kind of return, measure, and the rows of :data:`HEADING`, as text
        """
        found: list[tuple[str, str, list[tuple[str, ...]]]] = []
        for (kind, measure), part in self.summary.groupby(["kind", "measure"], sort=False):
            rows: list[tuple[str, ...]] = [
                (
                    row["variant"],
                    str(row["seeds"]),
                    _interval(row, "mean"),
                    _interval(row, "iqm"),
                    _interval(row, "difference"),
                    _interval(row, "improvement"),
                    row["verdict"],
                )
                for _, row in part.iterrows()
            ]
            found.append((str(kind), str(measure), rows))
        return found


HEADING = ("variant", "runs", "mean", "interquartile mean", "difference", "P(improvement)", "verdict")


def compare(
    variants: Mapping[str, Sequence[Job]],
    out: Path | str,
    *,
    title: str = "",
    notes: Sequence[str] = (),
    command: str = "",
    runs: Path | str | None = None,
    workers: int | None = None,
    ray: str | None = None,
    progress: bool = True,
) -> Comparison:
    """
    Train, and leave ``curves.csv``, ``summary.csv`` (both as ``.parquet``, too), PNGs and ``report.html``.

    :param variants: the runs of each variant, all of the same number of steps; the first variant is the baseline
    :param out: where files go
    :param title: what is compared
    :param notes: what a reader should know
    :param command: the command that repeats it
    :param runs: where runs are kept; default: ``runs`` in ``out``
    :param workers: runs at the same time; default: one a core
    :param ray: address of a Ray cluster, ``""`` for one on this machine; None: processes
    :param progress: show how far it is
    :return: the tables
    """
    jobs = [job for group in variants.values() for job in group]
    steps = {job.steps for job in jobs}
    if len(steps) != 1:
        raise ValueError(f"variants have runs of {sorted(steps)} steps; all must have the same number")
    out = Path(out)
    outcome = run_jobs(jobs, out / "runs" if runs is None else runs, workers=workers, ray=ray, progress=progress)
    failed = dict(outcome.failed)
    results: dict[str, list[Result]] = {}
    for name, group in variants.items():
        for job in group:
            result = outcome.results.get(job)
            if result is not None and len(result.episodes) == 0:
                failed[job] = f"no episode ended within {job.steps} steps"
            elif result is not None:
                results.setdefault(name, []).append(result)
    comparison = analyse(results, steps.pop(), title=title, notes=notes) if results else _nothing(title, notes)
    comparison.failed = failed
    for name in variants:
        if name not in results:
            comparison.notes.append(f"{name} is missing: none of its runs succeeded.")
    if failed:
        again = "; the same command makes them again" if outcome.failed else ""
        comparison.notes.append(f"{len(failed)} of {len(jobs)} runs failed{again}.")
    if results:
        _write(comparison, out, command)
    return comparison


def analyse(results: Mapping[str, Sequence[Result]], steps: int, *, title: str = "", notes: Sequence[str] = ()) -> Comparison:
    """
    :param results: the results of each variant; the first is the baseline
    :param steps: environment steps of a run
    :param title: what is compared
    :param notes: what a reader should know
    :return: tables and verdicts
    """
    width = math.ceil(steps / BINS)
    kinds: tuple[statistics.What, ...] = ("return", "discounted")
    tables = {
        kind: {name: np.stack([statistics.curve(r, width, steps, kind) for r in own]) for name, own in results.items()}
        for kind in kinds
    }
    frame = pd.concat(
        [
            pd.DataFrame(
                {
                    "variant": name,
                    "seed": result.job.seed,
                    "step": np.minimum(width * np.arange(1, tables["return"][name].shape[1] + 1), steps),
                    **{str(kind): table[name][number] for kind, table in tables.items()},
                }
            )
            for name, own in results.items()
            for number, result in enumerate(own)
        ],
        ignore_index=True,
    )
    evaluated = all(len(result.evaluation) > 0 for own in results.values() for result in own)
    rows: list[dict[str, Any]] = []
    for kind, table in tables.items():
        values = {"final": {n: statistics.finals(t) for n, t in table.items()}}
        values["area"] = {n: statistics.areas(t) for n, t in table.items()}
        if evaluated:
            values["evaluation"] = {
                n: np.array([statistics.values_of(r.evaluation, kind).mean() for r in own]) for n, own in results.items()
            }
        for measure, of_variants in values.items():
            rows += [{"kind": kind, "measure": measure, **row} for row in statistics.summarise(of_variants)]
    summary = pd.DataFrame(rows)

    said = [*notes]
    gammas = {name: sorted({result.gamma for result in own}) for name, own in results.items()}
    if len({gamma for own in gammas.values() for gamma in own}) > 1:
        summary.loc[summary["kind"] == "discounted", "verdict"] = "not comparable"
        listed = ", ".join(f"{name} {'/'.join(f'{g:g}' for g in own)}" for name, own in gammas.items())
        said.append(f"Each variant's discounted return is discounted with its own γ ({listed}): they cannot be compared.")
    else:
        said.append(f"Discounted with γ = {next(iter(gammas.values()))[0]:g}.")
    said.append(
        "Intervals are 95 %: of means and probabilities by rliable's bootstrap over runs, of differences to the first variant "
        "by Welch's t. Nothing is called better or worse where the interval of the difference holds zero."
    )
    fewest = min(len(own) for own in results.values())
    if fewest < FEW:
        said.append(f"With {fewest} run(s) a variant the bootstrap's intervals are too narrow; differences are not concerned.")
    return Comparison(title, frame, summary, _verdicts(summary), said)


def _verdicts(summary: pd.DataFrame) -> dict[str, str]:
    """One line a variant."""
    names = list(dict.fromkeys(summary["variant"]))
    lines = {}
    for name in names[1:]:
        parts = [
            f"{KINDS[str(kind)]}: " + ", ".join(f"{row['verdict']} {IN_SHORT[row['measure']]}" for _, row in rows.iterrows())
            for kind, rows in summary[summary["variant"] == name].groupby("kind", sort=False)
        ]
        lines[name] = f"{name} against {names[0]}: {'; '.join(parts)}."
    return lines


def _nothing(title: str, notes: Sequence[str]) -> Comparison:
    return Comparison(title, pd.DataFrame(), pd.DataFrame(columns=["kind", "measure", "variant"]), {}, list(notes))


def _write(comparison: Comparison, out: Path, command: str) -> None:
    """Leave the files of a comparison."""
    out.mkdir(parents=True, exist_ok=True)
    files = comparison.files
    for name in ("curves", "summary"):
        frame: pd.DataFrame = getattr(comparison, name)
        files[f"{name}.csv"], files[f"{name}.parquet"] = out / f"{name}.csv", out / f"{name}.parquet"
        frame.to_csv(files[f"{name}.csv"], index=False)
        frame.to_parquet(files[f"{name}.parquet"], index=False)
    figures = {}
    for kind, words in KINDS.items():
        drawn = comparison.curves.assign(variant=comparison.curves["variant"].map(_literal))
        figure = draw_curves(drawn, x="step", y=kind, line="variant", ylabel=words)
        figure.set_size_inches(8, 4)
        figures[f"{kind}.png"] = (f"Learning curves: {words}, mean over runs with 95 % bootstrap interval", figure)
    figures["summary.png"] = ("Interquartile means over runs with 95 % bootstrap intervals", _draw_summary(comparison.summary))
    for name, (_, figure) in figures.items():
        files[name] = out / name
        figure.savefig(files[name], dpi=110)
    files["report.html"] = out / "report.html"
    verdict = comparison.summary.set_index(["kind", "measure", "variant"])["verdict"]
    body = [
        page.text(comparison.title, "h1"),
        *(page.text(line, css=f"verdict {verdict['return', 'area', name]}") for name, line in comparison.verdicts.items()),
        *(page.text(note, css="note") for note in comparison.notes),
        *(page.figure(words, files[name].read_bytes()) for name, (words, _) in figures.items()),
    ]
    for kind, measure, rows in comparison.tables():
        body += [page.text(f"{KINDS[kind]}: {MEASURES[measure]}", "h2"), page.table(HEADING, rows)]
    if comparison.failed:
        reasons = [(job.label, str(job.seed), why) for job, why in comparison.failed.items()]
        body += [page.text("Runs that failed", "h2"), page.table(("variant", "seed", "why"), reasons)]
    if command:
        body += [page.text("Made by", "h2"), page.text(command, "pre")]
    files["report.html"].write_text(page.page(comparison.title, body), encoding="utf-8")


def _draw_summary(summary: pd.DataFrame) -> Figure:
    """Interquartile means with their intervals, a panel a kind of return and measure."""
    groups = list(summary.groupby(["kind", "measure"], sort=False))
    names = list(dict.fromkeys(summary["variant"]))
    n_kinds = len(KINDS)
    figure = Figure(figsize=(9, n_kinds * (1.0 + 0.3 * len(names))), layout="constrained")
    axes = figure.subplots(n_kinds, len(groups) // n_kinds, squeeze=False, sharey=True).ravel()
    for axis, ((kind, measure), part) in zip(axes, groups, strict=True):
        for height, (_, row) in enumerate(part.iterrows()):
            (drawn,) = axis.plot(row["iqm"], height, "o")
            axis.plot([row["iqm_low"], row["iqm_high"]], [height, height], color=drawn.get_color(), linewidth=3, alpha=0.5)
        axis.set_yticks(range(len(names)), [_literal(name) for name in names])
        axis.set_title(f"{KINDS[str(kind)]}, {measure}", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def _literal(name: str) -> str:
    """A name that matplotlib does not take for a formula."""
    return name.replace("$", r"\$")


def variant(
    algo: str,
    env: str,
    settings: Settings = "equal",
    *,
    paper: bool = False,
    hyperparams: Mapping[str, Any] | None = None,
) -> tuple[str, dict[str, Any]]:
    """
    How to train a variant. Under equal settings every variant is the averaging algorithm of its family with the settings of
    that one, and only the correction differs. Where the correction's passes train the critic, too (a shared network), the
    other variants train the critic in as many passes of its own.

    :param algo: name of the variant: ``ppo``, ``power_ppo``, ``averaging_ppo``, ...
    :param env: id of the environment
    :param settings: ``"equal"`` or ``"own"``
    :param paper: the paper's settings
    :param hyperparams: hyperparameters to change for all variants
    :return: the algorithm to train, and its hyperparameters that differ from the file's
    """
    common = dict(hyperparams or {})
    if settings == "own":
        return algo, common
    bases = [name.removeprefix("averaging_") for name in ALGORITHMS if name.startswith("averaging_")]
    known = [prefix + base for base in bases for prefix in ("", "power_", "averaging_")]
    if algo not in known:
        raise UserError(
            f"{algo!r} has no averaging correction whose settings it could share (--settings equal); {nearest(algo, known)} "
            "Else take --settings own."
        )
    base = algo.removeprefix("averaging_").removeprefix("power_")
    family = f"averaging_{base}"
    if algo == family:
        return family, common
    options: dict[str, Any] = {"correction": "power" if algo.startswith("power_") else None}
    entry = settings_of(Job(family, env, 0, 1, paper=paper, hyperparams=common))
    defaults = inspect.signature(ALGORITHMS[family].cls).parameters
    given = {name: entry.get(name, parameter.default) for name, parameter in defaults.items()}
    # BAC trains its critic in a step of its own when there is no correction to train it with.
    if given["correction_network"] == "shared" and base != "bac":
        options["critic_epochs"] = given["critic_epochs"] + given["correction_epochs"]
        if given["vf_coef"] == 0:
            options["critic_learning_rate"] = given["correction_learning_rate"]
    return family, {**common, **options}


def prepare(options: argparse.Namespace) -> dict[str, list[Job]]:
    """
    :param options: of the command
    :return: the runs of each variant; a UserError tells what makes no sense before anything is made
    """
    for name, least in (("seeds", 1), ("steps", 1), ("jobs", 1), ("eval_episodes", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}.")
    if len(set(options.algos)) < len(options.algos):
        raise UserError(f"--algos has an algorithm twice: {' '.join(options.algos)}.")
    check_job(Job("averaging_ppo", options.env, 0, 1))  # the environment
    common = {"paper": options.paper, "env_kwargs": options.env_kwargs or {}}
    variants: dict[str, list[Job]] = {}
    steps = options.steps
    for algo in options.algos:
        if options.paper:
            paper_config(algo)
        trained, hyperparams = variant(
            algo, options.env, options.settings, paper=options.paper, hyperparams=options.hyperparams
        )
        job = Job(trained, options.env, 0, 1, hyperparams=hyperparams, **common)
        entry = settings_of(job)
        if steps is None:
            steps = int(float(entry["n_timesteps"]))
        variants[algo] = [
            Job(
                trained,
                options.env,
                seed,
                steps,
                algo,
                hyperparams=hyperparams,
                eval_episodes=options.eval_episodes,
                **common,
            )
            for seed in range(options.seeds)
        ]
    families = {algo.removeprefix("averaging_").removeprefix("power_") for algo in options.algos}
    if options.settings == "equal" and len(families) > 1:
        raise UserError(
            f"--algos has algorithms of several families ({', '.join(sorted(families))}), which cannot have equal settings; "
            "take one family, or --settings own."
        )
    return variants


class KeyValue(StoreDict):
    """RL Zoo's ``key:value``, with an error that names the argument."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        try:
            super().__call__(parser, namespace, values, option_string)
        except Exception as error:  # values are Python expressions, which may fail in any way
            raise UserError(
                f"{' '.join(values)!r} ({option_string}) must be key:value, with a value as Python writes it, text in quotes "
                f"(policy:\"'MlpPolicy'\"): {error}"
            ) from error


def parser() -> argparse.ArgumentParser:
    """
    :return: the command's options
    """
    made = argparse.ArgumentParser(
        prog="sb3-avgcorr compare",
        description="Train variants of an algorithm with the same seeds, and say which is better, if it can be said. "
        "A command that was stopped goes on where it was when it is given again.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--env", required=True, help="id of the environment (package:id imports the package first)")
    add("--algos", nargs="+", default=ALGOS, help=f"variants; the first is the baseline (default: {' '.join(ALGOS)})")
    add("--seeds", type=int, default=10, help="number of runs of each (default: 10)")
    add("-n", "--steps", type=int, help="environment steps of a run (default: as the hyperparameter file says)")
    add("--settings", choices=("equal", "own"), default="equal", help="; ".join(SETTINGS.values()))
    add("--paper", action="store_true", help="take the paper's settings")
    add("-params", "--hyperparams", nargs="+", action=KeyValue, help="hyperparameters to change for all (key:value)")
    add("--env-kwargs", nargs="+", action=KeyValue, help="arguments of the environment (key:value)")
    add("--eval-episodes", type=int, default=0, help="episodes of the final policy after training (default: 0)")
    add("--out", type=Path, help="where files go (default: compare-ENV)")
    add("--jobs", type=int, help="runs at a time (default: one a core)")
    add("--ray", nargs="?", const="", metavar="ADDRESS", help="run on a Ray cluster; alone: one on this machine")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """
    :param argv: arguments after the command
    :return: exit code; 1 if a run failed
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(arguments)
    variants = prepare(options)
    job = next(iter(variants.values()))[0]
    out = options.out or Path(f"compare-{re.sub(r'[^A-Za-z0-9._-]+', '_', job.env_id)}")
    make_folder(out, "--out")
    which = f"Settings: {SETTINGS[options.settings]}."
    if options.paper:
        which += " They are the paper's (--paper)."
    try:
        comparison = compare(
            variants,
            out,
            title=f"{job.env_id}: {', '.join(variants)}",
            notes=[which, f"{options.seeds} seeds, {job.steps} steps."],
            command=shlex.join(["sb3-avgcorr", "compare", *arguments]),
            workers=options.jobs,
            ray=options.ray,
        )
    except KeyboardInterrupt:
        print("\nsb3-avgcorr: stopped. The same command goes on from here.", file=sys.stderr)
        return 130
    print(comparison)
    for failed, why in comparison.failed.items():
        print(f"Failed: {failed.label}, seed {failed.seed}: {why}", file=sys.stderr)
    if comparison.files:
        print(f"\n{comparison.files['report.html']}")
    return 1 if comparison.failed else 0


def _interval(row: Mapping[str, Any] | pd.Series, name: str) -> str:
    value, low, high = (float(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
    if math.isnan(value):
        return ""
    return f"{value:.4g}" if math.isnan(low) else f"{value:.4g} ({low:.4g} to {high:.4g})"


def _plain_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(heading, *rows, strict=True)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heading, *rows)
    )


if __name__ == "__main__":
    sys.exit(main())
