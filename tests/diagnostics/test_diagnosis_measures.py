"""The measures of a diagnosis, one by one, against numbers that are known."""

import pickle

import gymnasium as gym
import numpy as np
import pytest

from sb3_avgcorr.common.strength import Strength
from sb3_avgcorr.diagnostics import Estimate, estimates
from sb3_avgcorr.diagnostics.distances import Columns, classifier_distance, histogram_distance
from sb3_avgcorr.diagnostics.estimates import blocks_of
from sb3_avgcorr.diagnostics.gradient import compare_gradients
from sb3_avgcorr.diagnostics.strength import choose_strength


def test_table_1_distance_by_hand() -> None:
    space = gym.spaces.Box(np.array([0.0, -np.inf]), np.array([8.0, np.inf]), dtype=np.float64)
    # 8 bins: [0, 1), ..., and of the unbounded one [-4, -3), ..., with all beyond ±4 in the outer ones
    starts = Columns(np.array([[0.5, 0.0]] * 4), space)
    sampled = Columns(np.array([[0.2, 0.5], [0.9, 0.1], [7.9, 99.0], [8.0, 3.5]]), space)
    assert list(sampled.bins(np.arange(2))) == [4, 4, 63, 63]
    rng = np.random.default_rng(0)
    distance = histogram_distance(starts, sampled, blocks_of(np.zeros((4, 1), dtype=int), rng), rng)
    assert float(distance) == 0.5
    wide = gym.spaces.Dict({"a": gym.spaces.Discrete(16), "b": gym.spaces.MultiBinary(3), "c": gym.spaces.Box(-1, 1, (2, 2))})
    columns = Columns({"a": np.array([0, 15]), "b": np.array([[0, 1, 0]] * 2), "c": np.zeros((2, 2, 2))}, wide)
    assert columns.dimensions == 8
    assert columns.bins(np.array([0])).tolist() == [0, 7]
    assert columns.bins(np.array([2, 7])).tolist() == [7 * 8 + 4] * 2


def test_classifier_distance_of_known_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "FIT_UPDATES", 120)  # good enough here
    rng = np.random.default_rng(0)
    blocks = blocks_of(np.tile(np.arange(20), 100)[:, None], rng)
    same, half, apart = rng.normal(size=(2000, 3)), rng.normal(size=(2000, 3)), rng.normal(size=(2000, 3))
    half[::2, 0] += 10.0
    starts = rng.normal(size=(2000, 3))
    assert classifier_distance(starts, same, blocks, rng) < 0.06
    found = classifier_distance(starts, half, blocks, rng)
    assert found.low <= 0.5 <= found.high
    assert found.high - found.low < 0.2
    assert classifier_distance(starts, apart + 20.0, blocks, rng) > 0.99


def test_noise_does_not_make_an_angle() -> None:
    """Both gradients are the same up to noise far longer than they are: the plain angle is that of the noise."""
    rng = np.random.default_rng(0)
    blocks = blocks_of(np.zeros((64, 1), dtype=int), rng)
    u, h = rng.normal(size=(2, 64, 2000))
    u[:, 0] += 15.0
    h *= 2.0
    plain = np.degrees(np.arccos(_cosine(u.sum(axis=0), (u + h).sum(axis=0))))
    found = compare_gradients(np.stack([u, h, h]), (np.ones(64), np.ones(64)), 1.0, blocks).angle
    assert plain > 25.0
    assert found < 10.0
    turned = h + 15.0 * np.eye(2000)[1]
    found = compare_gradients(np.stack([u, turned, turned]), (np.ones(64), np.ones(64)), 1.0, blocks).angle
    assert found.low < 45.0 < found.high
    assert found == pytest.approx(45.0, abs=6.0)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_an_estimate_is_a_number_with_an_interval() -> None:
    x = pickle.loads(pickle.dumps(Estimate(0.5, 0.25, 1.0)))
    assert (x, x.low, x.high, x.value, x.interval) == (0.5, 0.25, 1.0, 0.5, (0.25, 1.0))


def test_a_gradient_that_cancels_out() -> None:
    """The uncorrected gradient is noise around zero, the corrected one has a direction."""
    rng = np.random.default_rng(0)
    blocks = blocks_of(np.zeros((64, 1), dtype=int), rng)
    ones = (np.ones(64), np.ones(64))
    u = rng.normal(size=(64, 50))
    h = 0.2 * rng.normal(size=(64, 50)) + 4.0 * np.eye(50)[0]
    found = compare_gradients(np.stack([u, h, h]), ones, 1.0, blocks)
    assert found.cancels
    # neither has a direction: that is noise, and no cancelling
    found = compare_gradients(np.stack([u, 0.1 * u, 0.1 * u]), ones, 1.0, blocks)
    assert not found.cancels
    # both have the same one
    found = compare_gradients(np.stack([u + h, h, h]), ones, 1.0, blocks)
    assert not found.cancels
    assert found.corrected_seen
    assert found.uncorrected_seen


@pytest.mark.parametrize("rollout", [64, 640, 64_000])
def test_strength_has_the_least_error_for_the_size_of_the_training_rollouts(rollout: int) -> None:
    """Block gradients of a known bias and noise; the best a·u + b·c by brute force over a fine grid of k."""
    rng = np.random.default_rng(0)
    length, samples = 40, 4000
    true_u, true_c = 1.0 * np.eye(length)[0], 0.6 * np.eye(length)[0] + 0.8 * np.eye(length)[1]
    # standard deviation of one sample, in every dimension; c has noise of its own and three times as much
    own, other = rng.normal(size=(2, 64, length)) / samples**0.5
    u, c = true_u + 2.0 * own, true_c + 2.0 * own + 6.0 * other
    found = choose_strength(u * samples, c * samples, np.full(64, samples), rollout)
    n = Strength().n * rollout  # noise averages out over so many samples
    noise = length * np.array([[4.0, 4.0], [4.0, 40.0]]) / n

    def cosine(k: float) -> float:
        a = np.array([1.0 - k, k])
        mean = a @ np.stack([true_u, true_c])
        return float(mean @ true_c / np.sqrt(mean @ mean + a @ noise @ a))

    best = max(np.linspace(0.0, 1.0, 1001), key=cosine)
    assert found.bias > 3.0
    assert found.k == pytest.approx(best, abs=0.1)
    assert found.cosine == pytest.approx(0.6, abs=0.05)
    assert found.noise == pytest.approx(10.0, rel=0.2)


def test_strength_is_zero_without_a_bias_or_without_knowledge() -> None:
    rng = np.random.default_rng(0)
    u = rng.normal(size=(32, 20)) + 1.0
    assert choose_strength(u, u, np.ones(32), 2048).k == 0.0
    noisy = u + rng.normal(size=(32, 20))
    assert choose_strength(u, noisy, np.ones(32), 2048).k == 0.0
    turned = u[:2] + 50.0 * np.eye(20)[0]
    found = choose_strength(u[:2], turned, np.ones(2), 2048)  # two episodes tell nothing
    assert found.k == 0.0
    assert "no bias was found" in found.why
    found = choose_strength(u[:2], turned, np.ones(2), 2048, before=1.0)
    assert found.k == found.expected == 1.0
    assert "the actor sees less than the critic" in found.why
    assert choose_strength(u, noisy, np.ones(32), 2048, before=1.0).k == 0.0  # told to be bearable


def test_strength_is_one_where_the_uncorrected_gradient_points_the_wrong_way() -> None:
    rng = np.random.default_rng(0)
    u = rng.normal(size=(32, 20)) + 1.0
    found = choose_strength(u, rng.normal(size=(32, 20)) - 1.0, np.ones(32), 2048)
    assert found.k == found.lost == 1.0
    assert "is real" in found.why


def test_strength_is_one_where_the_uncorrected_gradient_cancels_out() -> None:
    own = np.random.default_rng(0).normal(scale=0.4, size=(64, 1))
    found = choose_strength(own, own + 1.0, np.ones(64), 2048)
    assert found.k == found.clearer == 1.0
    assert "much clearer" in found.why
