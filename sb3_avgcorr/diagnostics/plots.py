"""Plots of a diagnosis. Need matplotlib."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("The plots need matplotlib: pip install 'sb3-avgcorr[experiments]'") from error

from sb3_avgcorr.diagnostics.verdict import LARGE_ANGLE, MODERATE_ANGLE

if TYPE_CHECKING:
    from sb3_avgcorr.diagnostics.report import DiagnosisReport

BLUE, ORANGE, GREEN, GREY = "#1f6fb4", "#d9722b", "#4a8f3c", "#888888"
#: distinct observations up to which states are drawn as a grid
MAX_CELLS = 2500
#: stretches of an episode that are drawn apart
MAX_BINS = 40


def _figure(columns: int = 1) -> tuple[Figure, Any]:
    # no pyplot: nothing is left behind in a process that goes on, and no screen is asked for
    figure = Figure(figsize=(4.8 * columns if columns > 1 else 7.0, 4.2), layout="constrained")
    return figure, figure.subplots(1, columns)


def plot_steps(report: DiagnosisReport, path: str | Path) -> None:
    """
    Draw ĉ(s) of the samples at each step of the episode, beside γ^t itself.

    :param report: the diagnosis
    :param path: file to write
    """
    figure, axes = _figure()
    edges = np.unique(report.steps)
    if len(edges) > MAX_BINS:  # as many samples in each bin
        edges = np.unique(np.quantile(report.steps, np.linspace(0.0, 1.0, MAX_BINS + 1)[:-1]).astype(int))
    edges = np.append(edges, report.steps.max() + 1)
    centres, bands = [], []
    for low, high in pairwise(edges):
        inside = report.weights[(report.steps >= low) & (report.steps < high)]
        if len(inside):
            centres.append((low + high - 1) / 2)
            bands.append(np.quantile(inside, [0.1, 0.5, 0.9]))
    low_band, median, high_band = np.array(bands).T
    axes.plot(report.steps, report.weights, ".", color=BLUE, alpha=0.12, markersize=3, rasterized=True)
    axes.fill_between(centres, low_band, high_band, color=BLUE, alpha=0.25, label="10 to 90 % of the samples")
    axes.plot(centres, median, color=BLUE, label="weight ĉ(s), median")
    t = np.arange(report.steps.max() + 1)
    mean_power = np.mean(np.power(report.gamma, report.steps))
    axes.plot(t, np.power(report.gamma, t) / mean_power, "--", color=ORANGE, label="γ^t / mean γ^t")
    axes.axhline(1.0, color=GREY, linewidth=0.8, label="uncorrected")
    # γ^t may start far above every weight that the state can tell
    axes.set_ylim(0.0, 1.15 * max(float(np.max(report.weights)), 1.5))
    axes.set(xlabel="step of the episode", ylabel="weight", title=report.env)
    axes.legend()
    figure.savefig(path, dpi=120)


def plot_states(report: DiagnosisReport, path: str | Path) -> None:
    """
    Draw the mean weight over the cells of a grid, if the states are one, else over the first two principal components.

    :param report: the diagnosis
    :param path: file to write
    """
    figure, axes = _figure()
    x, weights = report.features, report.weights
    centre = max(float(np.max(np.abs(np.log2(np.maximum(weights, 1e-3))))), 0.1)
    colours: dict[str, Any] = {"cmap": "coolwarm", "vmin": -centre, "vmax": centre}
    cells = _cells(report)
    if cells is not None:
        rows, columns, labels = cells
        total, count = (np.zeros((rows.max() + 1, columns.max() + 1)) for _ in range(2))
        np.add.at(total, (rows, columns), weights)
        np.add.at(count, (rows, columns), 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn: Any = axes.imshow(np.log2(total / count), origin="upper" if report.grid else "lower", **colours)
        axes.set(xlabel=labels[0], ylabel=labels[1])
    else:
        centred = x - x.mean(axis=0)
        centred = centred / np.where(centred.std(axis=0) > 1e-6, centred.std(axis=0), 1.0)
        _, values, vectors = np.linalg.svd(centred, full_matrices=False)
        plane = centred @ vectors[:2].T
        share = values**2 / max(float(np.sum(values**2)), 1e-12)
        second = plane[:, 1] if plane.shape[1] > 1 else np.zeros(len(plane))
        drawn = axes.scatter(plane[:, 0], second, c=np.log2(np.maximum(weights, 1e-3)), s=5, rasterized=True, **colours)
        axes.set(xlabel=f"first principal component ({share[0]:.0%})")
        if plane.shape[1] > 1:
            axes.set(ylabel=f"second ({share[1]:.0%})")
    figure.colorbar(drawn, label="log₂ of the weight ĉ(s)")
    axes.set_title(report.env)
    figure.savefig(path, dpi=120)


def _cells(report: DiagnosisReport) -> tuple[np.ndarray, np.ndarray, tuple[str, str]] | None:
    """Row and column of each sample if the states are a grid: numbered cells (seen one-hot), or two coordinates."""
    x = report.features
    if report.grid is not None and x.shape[1] == report.grid[0] * report.grid[1]:
        rows, columns = np.divmod(x.argmax(axis=1), report.grid[1])
        return rows, columns, ("column", "row")
    if x.shape[1] == 2:
        (first, i), (second, j) = (np.unique(x[:, d], return_inverse=True) for d in range(2))
        if len(first) * len(second) <= min(MAX_CELLS, len(x) / 2):
            return j, i, ("first coordinate (cell)", "second coordinate (cell)")
    return None


def plot_history(history: list[dict[str, float]], path: str | Path) -> None:
    """
    Draw the distances, the gradient's angle and the strength along a training run.

    :param history: what :class:`CorrectionDiagnosticsCallback` recorded
    :param path: file to write
    """
    history_figure(history).savefig(path, dpi=120)


def history_figure(history: list[dict[str, float]]) -> Figure:
    """
    Make the figure of :func:`plot_history`.

    :param history: what :class:`CorrectionDiagnosticsCallback` recorded
    :return: the figure
    """
    figure, (left, middle, right) = _figure(3)
    steps = np.array([row["timesteps"] for row in history])

    def column(name: str) -> np.ndarray:
        return np.array([row.get(name, np.nan) for row in history])

    for name, colour in ("distance", BLUE), ("classifier_distance", ORANGE), ("total_variation", GREEN):
        low, value, high = column(f"{name}_low"), column(name), column(f"{name}_high")
        left.errorbar(steps, value, (value - low, high - value), fmt=".-", color=colour, label=name.replace("_", " "))
    left.set(ylabel="distance of distributions", ylim=(-0.03, 1.03))

    low, angle, high = column("gradient_angle_low"), column("gradient_angle"), column("gradient_angle_high")
    lost = high - low >= 90.0
    told = ~lost
    if told.any():
        bars = (angle[told] - low[told], high[told] - angle[told])
        middle.errorbar(steps[told], angle[told], bars, fmt=".-", color=BLUE, label="gradient angle")
    # measures that say nothing are no points of a line, but a reader must see that they were taken
    for i, step in enumerate(steps[lost]):
        middle.axvline(step, color=GREY, linestyle=":", label="lost in noise" if i == 0 else None)
    top = max(1.1 * float(np.max(high[told], initial=0.0)), 1.2 * LARGE_ANGLE)
    for threshold, name in (MODERATE_ANGLE, "moderate"), (LARGE_ANGLE, "large"):
        middle.axhline(threshold, color=GREY, linewidth=0.8)
        middle.annotate(name, (0.01, threshold), xycoords=("axes fraction", "data"), va="bottom", color=GREY)
    middle.set(ylabel="degrees", ylim=(-0.03 * top, top))

    right.plot(steps, column("strength"), ".-", color=ORANGE)
    right.set(ylabel="strength that 'auto' would choose", ylim=(-0.03, 1.03))
    for axes in left, middle, right:
        axes.set(xlabel="steps of training", xlim=(0.0, 1.05 * steps.max()))
        axes.locator_params(axis="x", nbins=5)
    left.legend()
    middle.legend()
    return figure
