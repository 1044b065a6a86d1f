"""
Learning curves of runs, and what can be said about several of them.

One policy for intervals, which are 95 % everywhere: Student's for one mean, Welch's for a difference of means, since a
bootstrap of few runs is too narrow; rliable's bootstrap for the interquartile mean and the probability of improvement.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from rliable import library
from scipy import stats

from sb3_avgcorr.runs.results import Episodes, Result

Array = npt.NDArray[np.float64]
#: which return of an episode: undiscounted, discounted with the algorithm's γ, or with this γ
What = Literal["return", "discounted"] | float

#: number of bootstrap resamples
RESAMPLES = 2000
#: share of a run that counts as its end
FINAL = 0.1


class Estimate(NamedTuple):
    """A figure and its 95 % interval, which a single run does not have (NaN)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int = 4) -> str:
        """
        The figure with its interval, if there is one.

        :param digits: significant digits
        """
        # what is left of a difference of 0 when figures come from tables, which are rounded
        nothing = abs(self.value) < 1e-5 * (self.high - self.low) < np.inf
        value, low, high = (_rounded(x, digits) for x in (0.0 if nothing else self.value, self.low, self.high))
        return value if np.isnan(self.low) else f"{value} ({low} to {high})"


def _rounded(x: float, digits: int) -> str:
    """A number with so many significant digits; a large one with zeros, not with an exponent: 1690, not 1.69e+03."""
    text = f"{x:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text else text


def values_of(episodes: Episodes, what: What) -> Array:
    """
    One kind of return of each episode.

    :param episodes: episodes
    :param what: ``"return"``, ``"discounted"`` (with the algorithm's γ) or one of the other discount factors
    """
    found: Mapping[Any, Array] = {"return": episodes.returns, "discounted": episodes.discounted, **episodes.discounted_at}
    if what not in found:
        raise ValueError(f"what is {what!r}; it must be one of {', '.join(map(repr, found))}")
    return found[what]


def curve(result: Result, bin: int, steps: int, what: What = "return") -> Array:
    """
    Learning curve: mean over the episodes that ended in steps 1 to ``bin``, ``bin + 1`` to ``2 bin``, and so on. Where none
    ended, the value before goes on (before the first, the first): episodes may be longer than a bin.

    :param result: a run
    :param bin: width of a bin in environment steps
    :param steps: steps to cover
    :param what: which return
    :return: one value a bin, all NaN if no episode ended
    """
    if bin < 1 or steps < 1:
        raise ValueError(f"bin is {bin} and steps is {steps}; both must be at least 1")
    n_bins = -(-steps // bin)
    # The last rollout may run over the end.
    index = np.minimum((result.episodes.step - 1) // bin, n_bins - 1)
    counts = np.bincount(index, minlength=n_bins)
    sums = np.bincount(index, weights=values_of(result.episodes, what), minlength=n_bins)
    known = np.flatnonzero(counts)
    if len(known) == 0:
        return np.full(n_bins, np.nan)
    means: Array = sums[known] / counts[known]
    before = np.searchsorted(known, np.arange(n_bins), side="right") - 1
    filled: Array = means[np.maximum(before, 0)]
    return filled


def areas(curves: npt.ArrayLike) -> Array:
    """
    Area under each curve, divided by its width: the mean over the run.

    :param curves: learning curves, shape (runs, bins)
    """
    return np.atleast_2d(np.asarray(curves, dtype=np.float64)).mean(axis=1)


def finals(curves: npt.ArrayLike) -> Array:
    """
    Mean of each curve over its last tenth.

    :param curves: learning curves, shape (runs, bins)
    """
    table = np.atleast_2d(np.asarray(curves, dtype=np.float64))
    last = max(1, round(FINAL * table.shape[1]))
    return table[:, -last:].mean(axis=1)


def interval(values: npt.ArrayLike) -> Estimate:
    """
    Mean over runs, with Student's interval.

    :param values: one value a run
    """
    x = _scores(values).ravel()
    mean = float(x.mean())
    if len(x) < 2:
        return Estimate(mean, np.nan, np.nan)
    reach = float(stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)))
    return Estimate(mean, mean - reach, mean + reach)


def iqm(values: npt.ArrayLike) -> Estimate:
    """
    Interquartile mean over runs, with rliable's bootstrap interval.

    :param values: one value a run
    """
    return bootstrapped(_interquartile_mean, _scores(values))[0]


def difference(values: npt.ArrayLike, baseline: npt.ArrayLike) -> Estimate:
    """
    Difference of two means, with Welch's interval.

    :param values: one value a run
    :param baseline: those of the baseline; the number of runs may differ
    """
    x, y = _scores(values).ravel(), _scores(baseline).ravel()
    value = float(x.mean() - y.mean())
    if min(len(x), len(y)) < 2:
        return Estimate(value, np.nan, np.nan)
    if x.std() == 0.0 == y.std():
        return Estimate(value, value, value)
    with warnings.catch_warnings():  # scipy's, where all runs of one sample have the same value
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        ends = stats.ttest_ind(x, y, equal_var=False).confidence_interval(0.95)
    return Estimate(value, float(ends.low), float(ends.high))


def probability_of_improvement(values: npt.ArrayLike, baseline: npt.ArrayLike) -> Estimate:
    """
    Probability that a run is better than one of the baseline, with rliable's bootstrap interval.

    :param values: one value a run
    :param baseline: those of the baseline; the number of runs may differ
    """
    return bootstrapped(_improvement, _scores(values), _scores(baseline))[0]


def told(difference: Estimate) -> str:
    """
    What the interval of a difference tells.

    :param difference: difference to the baseline
    :return: ``"better"``, ``"worse"``, or ``"cannot tell"`` if the interval holds zero (or there is none)
    """
    return "better" if difference.low > 0.0 else "worse" if difference.high < 0.0 else "cannot tell"


def summarise(values: Mapping[str, npt.ArrayLike]) -> list[dict[str, Any]]:
    """
    One row a variant: mean, interquartile mean, difference to the baseline and probability of improvement over it.

    :param values: one value a run of each variant; the first is the baseline
    """
    baseline = next(iter(values.values()))
    rows = []
    for number, (name, own) in enumerate(values.items()):
        row: dict[str, Any] = {"variant": name, "seeds": int(np.size(own))}
        row |= _columns("mean", interval(own)) | _columns("iqm", iqm(own))
        if number == 0:
            nothing = Estimate(np.nan, np.nan, np.nan)
            row |= _columns("difference", nothing) | _columns("improvement", nothing) | {"verdict": "baseline"}
        else:
            apart = difference(own, baseline)
            row |= _columns("difference", apart) | _columns("improvement", probability_of_improvement(own, baseline))
            row["verdict"] = told(apart)
        rows.append(row)
    return rows


def _columns(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _scores(values: npt.ArrayLike) -> Array:
    """As rliable has them: (runs, tasks), here one task."""
    scores = np.asarray(values, dtype=np.float64).reshape(-1, 1)
    if len(scores) == 0:
        raise ValueError("values is empty; it must hold at least one run")
    return scores


# For one task these are rliable's metrics (a test compares them), whose scipy functions take seconds for all resamples.


def _interquartile_mean(x: Array) -> Any:
    cut = len(x) // 4
    return np.sort(x, axis=None)[cut : len(x) - cut].mean()


def _improvement(x: Array, y: Array) -> Any:
    return np.mean((x > y.T) + 0.5 * (x == y.T))


def bootstrapped(func: Callable[..., Any], *scores: Array) -> list[Estimate]:
    """
    Figures of scores, with rliable's intervals.

    :param func: takes scores, gives one figure or several
    :param scores: of one variant, or of two that are resampled independently
    """

    def figures(*x: Array) -> Array:
        return np.atleast_1d(np.asarray(func(*x), dtype=np.float64))

    values = figures(*scores)
    if min(len(s) for s in scores) < 2:
        return [Estimate(float(value), np.nan, np.nan) for value in values]
    data: Any = scores[0] if len(scores) == 1 else list(scores)
    with seeded(*scores):
        _, ends = library.get_interval_estimates({"": data}, figures, reps=RESAMPLES)
    return [Estimate(float(v), float(low), float(high)) for v, low, high in zip(values, *ends[""], strict=True)]


@contextmanager
def seeded(*data: Sequence[float] | Array) -> Iterator[None]:
    """
    Seed numpy's global stream, from which rliable draws whatever random_state it is given, by the data, so that the same runs
    always have the same intervals; afterwards put it back.

    :param data: what rliable is given
    """
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(zlib.crc32(b"".join(np.ascontiguousarray(x).tobytes() for x in data)))  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
