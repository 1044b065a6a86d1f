"""Several tasks together, as rliable does it: normalised scores, their interquartile mean, and how they are distributed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from rliable import library, metrics

from sb3_avgcorr.reporting.figures import COLOURS, literal
from sb3_avgcorr.reporting.statistics import RESAMPLES, Estimate, bootstrapped, seeded

Array = npt.NDArray[np.float64]
#: scores of a variant, shape (runs, tasks)
Scores = Mapping[str, Array]


def normalised(
    values: Mapping[str, Mapping[str, npt.ArrayLike]], zero: Mapping[str, float], one: Mapping[str, float]
) -> Scores:
    """
    Scores that can be averaged over tasks: 0 and 1 mean the same on each.

    :param values: variant -> task -> one value a run; where tasks have different numbers of runs, the first ones count
    :param zero: what is 0 on each task
    :param one: what is 1 on each task
    """
    scores = {}
    for variant, of_task in values.items():
        runs = min(np.size(own) for own in of_task.values())
        columns = [(np.asarray(own, dtype=np.float64)[:runs] - zero[t]) / (one[t] - zero[t]) for t, own in of_task.items()]
        scores[variant] = np.stack(columns, axis=1)
    return scores


def interquartile_means(scores: Scores) -> dict[str, Estimate]:
    """
    Interquartile mean over runs and tasks of each variant, with rliable's interval.

    :param scores: the scores of each variant
    """
    return {variant: bootstrapped(metrics.aggregate_iqm, own)[0] for variant, own in scores.items()}


def improvements(scores: Scores, baseline: str) -> dict[str, Estimate]:
    """
    Probability that a variant's run is better than one of the baseline, averaged over tasks, with rliable's interval.

    :param scores: the scores of each variant
    :param baseline: one of the variants
    """
    others = {variant: own for variant, own in scores.items() if variant != baseline}
    return {
        variant: bootstrapped(metrics.probability_of_improvement, own, scores[baseline])[0] for variant, own in others.items()
    }


def profile(scores: Scores, xlabel: str) -> Figure:
    """
    Performance profile: the share of runs, over all tasks, that are above a score.

    :param scores: the scores of each variant, two runs or more
    :param xlabel: what a score is
    """
    every = np.concatenate([own.ravel() for own in scores.values()])
    at = np.linspace(min(0.0, float(np.quantile(every, 0.02))), float(np.quantile(every, 0.98)), 60)
    with seeded(*scores.values()):
        shares, ends = library.create_performance_profile(dict(scores), at, reps=RESAMPLES // 10)
    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axis = figure.subplots()
    for variant, share in shares.items():
        (drawn,) = axis.plot(at, share, label=literal(variant), color=COLOURS.get(variant))
        axis.fill_between(at, *ends[variant], color=drawn.get_color(), alpha=0.15, linewidth=0)
    axis.set_xlabel(xlabel)
    axis.set_ylabel("share of runs above it")
    axis.set_ylim(0.0, 1.02)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9)
    return figure
