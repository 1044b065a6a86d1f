"""What the paper's small experiments share: claims with intervals, curves with bands, and the files a run leaves."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy import stats

#: line colours, the same agent the same colour in every figure
COLOURS = {
    "biased": "#4d9a3a",
    "power": "#3a6fb0",
    "averaging": "#e07b1f",
    "separate": "#8b4fa8",
    "geometric": "#a03050",
    "reference shared": "#999999",
    "reference separate": "#c0a0d0",
}
#: fewer runs than this make a bootstrap interval much too narrow
FEW = 10
#: panels of a figure side by side
MOST_COLUMNS = 4


@dataclass(frozen=True)
class Claim:
    """
    Something the run was to show, and what it showed.

    :param claim: in words
    :param holds: whether it did; None: not decided by this run, as by a single seed, which has no interval
    :param mean: the figure it rests on, over seeds
    :param low: lower end of its 95 % interval
    :param high: upper end
    :param decides: False: a figure for the table, which claims nothing
    """

    claim: str
    holds: bool | None
    mean: float
    low: float
    high: float
    decides: bool = True

    def __post_init__(self) -> None:
        if np.isnan(self.low):
            object.__setattr__(self, "holds", None)

    @property
    def row(self) -> str:
        """The claim as a row of a Markdown table."""
        verdict = {True: "yes", False: "**no**", None: "not decided" if self.decides else ""}[self.holds]
        return f"| {self.claim} | {shown(self.mean, self.low, self.high)} | {verdict} |"


def parser_for(description: str, *, seeds: int, steps: int) -> argparse.ArgumentParser:
    """
    :param description: what the experiment is
    :param seeds: default number of seeds
    :param steps: default number of environment steps
    :return: the options all small experiments have
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True, help="directory for the CSV, the figure and the report")
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--steps", type=int, default=steps)
    return parser


def bootstrap(values: npt.ArrayLike, resamples: int = 5000) -> tuple[float, float, float]:
    """
    Mean over runs and its 95 % percentile-bootstrap interval, which is too narrow for few runs.

    :param values: one figure a run
    :param resamples: number of bootstrap resamples
    :return: mean, lower end, upper end
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    draws = np.random.default_rng(0).integers(len(x), size=(resamples, len(x)))
    low, high = np.percentile(x[draws].mean(axis=1), [2.5, 97.5])
    return float(x.mean()), float(low), float(high)


def interval(values: npt.ArrayLike) -> tuple[float, float, float]:
    """
    Mean over runs and its 95 % interval, to decide by: that of a bootstrap, or Student's for fewer runs than ``FEW``.

    :param values: one figure a run
    :return: mean, lower end, upper end; a single run has no interval (NaN)
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    if len(x) < 2:
        return float(x.mean()), np.nan, np.nan
    if len(x) >= FEW:
        return bootstrap(x)
    reach = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    return float(x.mean()), float(x.mean() - reach), float(x.mean() + reach)


def shown(mean: float, low: float, high: float, digits: int = 3) -> str:
    """
    :param mean: a figure
    :param low: lower end of its interval
    :param high: upper end
    :param digits: significant digits
    :return: as text, without an interval if there is none
    """
    return f"{mean:.{digits}g}" if np.isnan(low) else f"{mean:.{digits}g} ({low:.{digits}g} to {high:.{digits}g})"


def within(ends: tuple[float, float, float], low: float = -np.inf, high: float = np.inf) -> bool | None:
    """
    :param ends: a mean and its interval
    :param low: lower limit
    :param high: upper limit
    :return: whether it lies between the limits; None if its interval holds one of them
    """
    _, first, last = ends
    if low < first and last < high:
        return True
    return False if last <= low or first >= high else None


def curves(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    line: str,
    panel: str | None = None,
    seed: str = "seed",
    ylabel: str = "",
    ylim: tuple[float, float] | None = None,
    log: bool = False,
    hline: float | None = None,
    share_y: bool = True,
) -> Figure:
    """
    Mean over seeds with a 95 % bootstrap band, one line a value of ``line``, one panel a value of ``panel``.

    :param frame: long table
    :param x: column of the horizontal axis
    :param y: column of the vertical axis
    :param line: column that tells lines apart
    :param panel: column that tells panels apart
    :param seed: column of the runs
    :param ylabel: label of the vertical axis
    :param ylim: its limits
    :param log: logarithmic vertical axis
    :param hline: height of a grey line to compare with
    :param share_y: whether the panels have the same vertical axis
    """
    panels = [None] if panel is None else list(dict.fromkeys(frame[panel]))
    columns = min(len(panels), MOST_COLUMNS)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(1.2 + 3.6 * columns, 0.4 + 3.0 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=share_y).ravel()
    for unused in axes[len(panels) :]:
        unused.remove()
    axes = axes[: len(panels)]
    lines = list(dict.fromkeys(frame[line]))
    for axis, value in zip(axes, panels, strict=True):
        part = frame if panel is None else frame[frame[panel] == value]
        for name in lines:
            wide = part[part[line] == name].pivot_table(index=x, columns=seed, values=y)
            if wide.empty:
                continue
            middle = wide.mean(axis=1)
            (drawn,) = axis.plot(wide.index, middle, label=str(name), color=COLOURS.get(str(name)))
            if wide.shape[1] > 1:
                bands = np.array([bootstrap(row[~np.isnan(row)], 500)[1:] for row in wide.to_numpy()])
                axis.fill_between(wide.index, bands[:, 0], bands[:, 1], color=drawn.get_color(), alpha=0.2, linewidth=0)
        if hline is not None:
            axis.axhline(hline, color="0.7", linewidth=0.8, zorder=0)
        axis.set_xlabel(x)
        axis.xaxis.set_major_locator(MaxNLocator(5))  # else large numbers of steps touch each other
        axis.set_title("" if panel is None else f"{panel} = {value}" if not isinstance(value, str) else value, fontsize=10)
        if ylim is not None:
            axis.set_ylim(*ylim)
        if log:
            axis.set_yscale("log")
        axis.spines[["top", "right"]].set_visible(False)
    for first in axes[::columns]:
        first.set_ylabel(ylabel or y)
    axes[-1].legend(frameon=False, fontsize=9)
    return figure


def write(
    out: Path,
    name: str,
    title: str,
    note: str,
    frame: pd.DataFrame,
    figure: Figure,
    claims: Sequence[Claim],
    extra: Mapping[str, pd.DataFrame] | None = None,
    arguments: str = "",
) -> dict[str, Any]:
    """
    Leave ``name.csv``, ``name.png`` and ``name.md`` in a directory.

    :param out: the directory
    :param name: name of the experiment
    :param title: heading of the report
    :param note: settings, in a sentence
    :param frame: the figures
    :param figure: the picture
    :param claims: what was to be shown
    :param extra: further tables, by file name
    :param arguments: command-line arguments that repeat the run
    :return: name, claims (as dicts), whether all hold, the report's text, and the files
    """
    out.mkdir(parents=True, exist_ok=True)
    files = {"csv": out / f"{name}.csv", "png": out / f"{name}.png", "md": out / f"{name}.md"}
    frame.to_csv(files["csv"], index=False, float_format="%.6g")
    figure.savefig(files["png"], dpi=120)
    for key, table in (extra or {}).items():
        files[key] = out / f"{key}.csv"
        table.to_csv(files[key], index=False, float_format="%.6g")
    command = f"python -m sb3_avgcorr.paper.{name} --out DIR {arguments}".rstrip()
    report = "\n".join(
        [
            f"# {title}",
            "",
            note,
            "",
            f"![{title}]({name}.png)",
            "",
            "| claim or figure | mean over seeds (95 % interval) | holds |",
            "|---|---|---|",
            *(claim.row for claim in claims),
            "",
            f"Made by `{command}`; every figure is in `{name}.csv`.",
            "",
        ]
    )
    files["md"].write_text(report, encoding="utf-8")
    decided = [claim.holds for claim in claims if claim.holds is not None]
    return {
        "experiment": name,
        "claims": [asdict(claim) for claim in claims],
        "holds": all(decided),
        "report": report,
        "files": {key: str(path) for key, path in files.items()},
    }
