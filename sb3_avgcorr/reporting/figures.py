"""Figures: learning curves with bands, one colour a variant everywhere."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sb3_avgcorr.reporting.statistics import interval

#: line colours: the same variant has the same colour in every figure
COLOURS = {
    "none": "#4d9a3a",
    "power": "#3a6fb0",
    "averaging": "#e07b1f",
    "auto": "#c2432f",
    "geometric": "#8b4fa8",
    "cut": "#7a6a4f",
    "head": "#1d9a9a",
    "ppo": "#4d9a3a",
    "power_ppo": "#3a6fb0",
    "averaging_ppo": "#e07b1f",
    "separate": "#8b4fa8",
}
#: variants that often lie on top of others are drawn with gaps, so that both are seen
STYLES = {"auto": (0, (4, 2)), "geometric": (0, (1, 1.2)), "cut": (0, (6, 1.5, 1, 1.5))}
#: from so many runs on a band of Student's tells more than the runs themselves
FEW = 5
#: panels of a figure side by side
MOST_COLUMNS = 4


def thousands(value: float, _: object = None) -> str:
    """
    A number of steps as a reader says it: 200k, 1.5M.

    :param value: the number
    """
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def literal(name: str) -> str:
    """
    A name that matplotlib does not take for a formula.

    :param name: the name
    """
    return name.replace("$", r"\$")


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
    log_x: bool = False,
    hline: float | None = None,
    share_y: bool = True,
) -> Figure:
    """
    Mean over seeds with Student's 95 % band, one line a value of ``line``, one panel a value of ``panel``. Fewer than
    ``FEW`` seeds have a band that says little and dwarfs the curves: there each run is drawn, thinly.

    :param frame: long table
    :param x: column of the horizontal axis
    :param y: column of the vertical axis
    :param line: column that tells lines apart
    :param panel: column that tells panels apart
    :param seed: column of the runs
    :param ylabel: label of the vertical axis
    :param ylim: its limits
    :param log: logarithmic vertical axis
    :param log_x: logarithmic horizontal axis, with a mark at each value
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
            colour, style = COLOURS.get(str(name)), STYLES.get(str(name), "-")
            (drawn,) = axis.plot(wide.index, middle, label=literal(str(name)), color=colour, linestyle=style)
            if 1 < wide.shape[1] < FEW:
                axis.plot(wide.index, wide, color=drawn.get_color(), linestyle=style, linewidth=0.7, alpha=0.5)
            elif wide.shape[1] >= FEW:
                bands = np.array([interval(row[~np.isnan(row)])[1:] for row in wide.to_numpy()])
                axis.fill_between(wide.index, bands[:, 0], bands[:, 1], color=drawn.get_color(), alpha=0.2, linewidth=0)
        if hline is not None:
            axis.axhline(hline, color="0.7", linewidth=0.8, zorder=0)
        axis.set_xlabel("environment steps" if x == "step" else x)
        if log_x:
            axis.set_xscale("log")
            axis.set_xticks(sorted(set(frame[x])), [f"{value:g}" for value in sorted(set(frame[x]))])
            axis.minorticks_off()
        else:
            axis.xaxis.set_major_locator(MaxNLocator(5))  # else large numbers of steps touch each other
            axis.xaxis.set_major_formatter(FuncFormatter(thousands))
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
