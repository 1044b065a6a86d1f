"""Learning curves and their statistics, against rliable's own and numbers by hand."""

import warnings
from typing import Any

import numpy as np
import pytest
from rliable import library, metrics
from scipy import stats

from sb3_avgcorr.reporting import statistics
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.results import Episodes, Result

NONE = Episodes(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))
X = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])
Y = np.array([2.0, 7.0, 1.0, 8.0, 2.0, 8.0])


def result(steps: list[int], returns: list[float], discounted: list[float] | None = None) -> Result:
    episodes = Episodes(
        np.array(steps, dtype=np.int64),
        np.array(returns, dtype=np.float64),
        np.array(returns if discounted is None else discounted, dtype=np.float64),
        np.ones(len(steps), dtype=np.int64),
    )
    return Result(Job("ppo", "CartPole-v1", 0, 100), 0.9, episodes, NONE, {}, "")


def test_curve_by_hand() -> None:
    # bins of steps 1-10, 11-20, 21-30, 31-40, 41-45; the step of an episode's end is counted from 1
    run = result([11, 20, 21, 47], [1.0, 3.0, 7.0, 9.0], [0.5, 1.5, 3.5, 4.5])
    np.testing.assert_array_equal(statistics.curve(run, 10, 45), [2.0, 2.0, 7.0, 7.0, 9.0])
    np.testing.assert_array_equal(statistics.curve(run, 10, 45, "discounted"), [1.0, 1.0, 3.5, 3.5, 4.5])
    assert np.isnan(statistics.curve(result([], []), 10, 45)).all()
    with pytest.raises(ValueError, match="what is 'length'"):
        statistics.curve(run, 10, 45, "length")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bin is 0"):
        statistics.curve(run, 0, 45)


def test_areas_and_finals_by_hand() -> None:
    curves = [np.arange(20.0), np.full(20, 5.0)]
    np.testing.assert_allclose(statistics.areas(curves), [9.5, 5.0])
    np.testing.assert_allclose(statistics.finals(curves), [18.5, 5.0])  # the last two of twenty
    np.testing.assert_allclose(statistics.finals([[1.0, 2.0, 4.0]]), [4.0])  # one at least


def rliable_own(func: Any, data: Any) -> tuple[float, float, float]:
    """rliable with nothing of ours around it, from the stream that ours uses."""
    arrays = data if isinstance(data, list) else [data]
    with statistics.seeded(*arrays):
        points, ends = library.get_interval_estimates({"a": data}, lambda *x: np.array([func(*x)]), reps=statistics.RESAMPLES)
    return float(points["a"][0]), float(ends["a"][0, 0]), float(ends["a"][1, 0])


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 10])
def test_estimates_are_those_of_rliable(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 300)
    x, y = np.resize(X, n)[:, None], Y[:, None]
    for ours, theirs in (
        (statistics.iqm(x), rliable_own(metrics.aggregate_iqm, x)),
        (statistics.probability_of_improvement(x, y), rliable_own(metrics.probability_of_improvement, [x, y])),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
        assert ours.low < ours.high


def test_estimates_by_hand() -> None:
    assert statistics.interval(X).value == 31 / 8
    # without the two smallest and the two largest of eight: 2, 3, 4, 5
    assert statistics.iqm(X).value == 3.5
    # of 3 x 2 pairs: 2 > 1, 3 > 1, 3 > 2 and half for 1 = 1, 2 = 2
    assert statistics.probability_of_improvement([1, 2, 3], [1, 2]).value == pytest.approx(4 / 6)
    assert statistics.probability_of_improvement([1.0, 2.0], [1.0, 2.0]).value == 0.5


def test_interval_is_students() -> None:
    # mean 2, standard deviation 1, t of two degrees of freedom 4.3027
    expected = (2.0, 2.0 - 4.3027 / 3**0.5, 2.0 + 4.3027 / 3**0.5)
    assert statistics.interval([1.0, 2.0, 3.0]) == pytest.approx(expected, abs=1e-4)
    assert statistics.interval([0.5] * 10) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("runs", [2, 3, 10])
def test_interval_covers_what_it_says(runs: int) -> None:
    """Of nothing, few runs must not make something more often than they should."""
    draws = np.random.default_rng(0).normal(size=(3000, runs))
    ends = np.array([statistics.interval(x) for x in draws])
    outside = np.mean((ends[:, 1] > 0.0) | (ends[:, 2] < 0.0))
    assert outside == pytest.approx(0.05, abs=0.015)


def test_global_stream_is_left_alone_and_intervals_repeat() -> None:
    np.random.seed(7)  # noqa: NPY002
    expected = np.random.random(3)  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    first = statistics.iqm(X)
    np.testing.assert_array_equal(np.random.random(3), expected)  # noqa: NPY002
    assert statistics.iqm(X) == first


def test_difference_is_welch() -> None:
    ours = statistics.difference(X, Y)
    # by hand: standard error and degrees of freedom of Welch and Satterthwaite
    vx, vy = X.var(ddof=1) / len(X), Y.var(ddof=1) / len(Y)
    df = (vx + vy) ** 2 / (vx**2 / (len(X) - 1) + vy**2 / (len(Y) - 1))
    half = stats.t.ppf(0.975, df) * np.sqrt(vx + vy)
    middle = X.mean() - Y.mean()
    np.testing.assert_allclose(ours, [middle, middle - half, middle + half])


def test_a_sample_of_one_value_throughout_is_nothing_to_warn_of() -> None:
    """As of ten runs of CartPole that all end at 500. Welch's interval is then Student's of the other sample."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = statistics.difference([500.0] * 10, Y)
    half = stats.t.ppf(0.975, len(Y) - 1) * Y.std(ddof=1) / np.sqrt(len(Y))
    np.testing.assert_allclose(found, (500.0 - Y.mean(), 500.0 - Y.mean() - half, 500.0 - Y.mean() + half))


def test_what_a_difference_tells() -> None:
    assert statistics.told(statistics.difference(Y + 20.0, Y)) == "better"
    assert statistics.told(statistics.difference(Y - 20.0, Y)) == "worse"
    assert statistics.told(statistics.difference(X, Y)) == "cannot tell"
    assert statistics.told(statistics.difference([1.0], [0.0])) == "cannot tell"  # one run has no interval
    assert statistics.told(statistics.difference([1.0, 1.0], [1.0, 1.0])) == "cannot tell"
    assert statistics.told(statistics.difference([2.0, 2.0], [1.0, 1.0])) == "better"


def test_estimates_in_words() -> None:
    assert statistics.Estimate(-340.24, -1694.0, 1012.0).text(3) == "-340 (-1690 to 1010)"
    assert str(statistics.Estimate(12.346, -12806.0, 99999.0)) == "12.35 (-12810 to 100000)"
    assert str(statistics.Estimate(0.012346, -1.0, 1.0)) == "0.01235 (-1 to 1)"
    assert statistics.Estimate(1e-9, np.nan, np.nan).text(3) == "1e-09"
    assert statistics.Estimate(-1.84e-05, -53.7, 53.7).text(3) == "0 (-53.7 to 53.7)"
    assert statistics.Estimate(2.5, -np.inf, np.inf).text() == "2.5 (-inf to inf)"


def test_single_run_has_no_interval() -> None:
    for estimate in (statistics.interval([2.0]), statistics.iqm([2.0])):
        assert estimate.value == 2.0
        assert np.isnan([estimate.low, estimate.high]).all()
    with pytest.raises(ValueError, match="values is empty"):
        statistics.interval([])


def test_summary_rows() -> None:
    baseline, other = statistics.summarise({"a": Y, "b": Y + 20.0})
    assert baseline["verdict"] == "baseline"
    assert np.isnan(baseline["difference"])
    assert other["verdict"] == "better"
    assert other["difference"] == pytest.approx(20.0)
    assert other["improvement"] == other["improvement_low"] == 1.0
    assert (other["variant"], other["seeds"]) == ("b", 6)
    for name, estimate in (("mean", statistics.interval(Y)), ("iqm", statistics.iqm(Y))):
        assert (baseline[name], baseline[f"{name}_low"], baseline[f"{name}_high"]) == tuple(estimate)
