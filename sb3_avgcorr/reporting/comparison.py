"""A comparison of variants on one task: tables, figures and an HTML page of results that are there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow  # noqa: F401  # writes the tables; better missed before the runs than after them
from matplotlib.figure import Figure

from sb3_avgcorr.reporting import page, statistics
from sb3_avgcorr.reporting.figures import COLOURS, curves, literal
from sb3_avgcorr.runs.jobs import AnyJob
from sb3_avgcorr.runs.results import Result

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
    failed: dict[AnyJob, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [self.title, *self.notes]
        for kind, measure, rows in self.tables():
            parts += ["", f"{KINDS[kind]}, {MEASURES[measure]}", _plain_table(HEADING, rows)]
        return "\n".join([*parts, "", *self.verdicts.values()])

    def tables(self) -> list[tuple[str, str, list[tuple[str, ...]]]]:
        """
        The tables as text: kind of return, measure, and the rows of :data:`HEADING`.
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


def analyse(results: Mapping[str, Sequence[Result]], steps: int, *, title: str = "", notes: Sequence[str] = ()) -> Comparison:
    """
    Compare results that are there.

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
        "Intervals are 95 %: of means Student's, of differences to the first variant Welch's, of interquartile means and "
        "probabilities those of rliable's bootstrap over runs. Nothing is called better or worse where the interval of the "
        "difference holds zero."
    )
    fewest = min(len(own) for own in results.values())
    if fewest < FEW:
        said.append(f"With {fewest} run(s) a variant the bootstrap's intervals are too narrow; the others are not concerned.")
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


def nothing(title: str, notes: Sequence[str]) -> Comparison:
    """
    A comparison of no results.

    :param title: what was to be compared
    :param notes: what a reader should know
    """
    return Comparison(title, pd.DataFrame(), pd.DataFrame(columns=["kind", "measure", "variant"]), {}, list(notes))


def write(comparison: Comparison, out: Path, command: str) -> None:
    """
    Leave ``curves.csv``, ``summary.csv`` (both as ``.parquet``, too), PNGs and ``report.html``.

    :param comparison: what was found; the files are noted in it
    :param out: the folder
    :param command: the command that repeats it
    """
    out.mkdir(parents=True, exist_ok=True)
    files = comparison.files
    for name in ("curves", "summary"):
        frame: pd.DataFrame = getattr(comparison, name)
        files[f"{name}.csv"], files[f"{name}.parquet"] = out / f"{name}.csv", out / f"{name}.parquet"
        frame.to_csv(files[f"{name}.csv"], index=False)
        frame.to_parquet(files[f"{name}.parquet"], index=False)
    figures = {}
    for kind, words in KINDS.items():
        figure = curves(comparison.curves, x="step", y=kind, line="variant", ylabel=words)
        figure.set_size_inches(8, 4)
        figures[f"{kind}.png"] = (f"Learning curves: {words}, mean over runs with Student's 95 % interval", figure)
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
            (drawn,) = axis.plot(row["iqm"], height, "o", color=COLOURS.get(row["variant"]))
            axis.plot([row["iqm_low"], row["iqm_high"]], [height, height], color=drawn.get_color(), linewidth=3, alpha=0.5)
        axis.set_yticks(range(len(names)), [literal(name) for name in names])
        axis.set_title(f"{KINDS[str(kind)]}, {measure}", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


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
