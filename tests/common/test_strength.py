"""How far to correct: the estimator of k against brute force, hand-worked numbers and made-up gradients."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_avgcorr.common.gradients import Products, blocks, gradient_products, independent_blocks, jackknife_products
from sb3_avgcorr.common.strength import Strength, gradient_cosine, least_error_strength, uncorrected_scale

GRID = np.linspace(0.0, 1.0, 2001)


class MadeUp:
    """Gaussian block gradients with a known signal and noise; c has the noise of u and some of its own, as weights give it."""

    def __init__(self, angle: float, snr: float, sample_size: float, scale: float = 1.0, parameters: int = 30) -> None:
        self.u, self.c = np.zeros(parameters), np.zeros(parameters)
        self.u[0] = 1.0
        self.c[:2] = scale * np.cos(np.radians(angle)), scale * np.sin(np.radians(angle))
        self.variance, self.extra = 1.0 / snr, 1.0 / sample_size - 1.0

    def rollout(self, rng: np.random.Generator, n_blocks: int = 16) -> tuple[np.ndarray, np.ndarray]:
        shape = n_blocks, self.u.size
        own, more = rng.normal(scale=np.sqrt(self.variance * n_blocks / self.u.size), size=(2, *shape))
        return self.u + own, self.c + own + np.sqrt(self.extra) * more

    @property
    def exact(self) -> Products:
        both = np.stack([self.u, self.c])
        return Products(both @ both.T, self.variance * np.array([[1.0, 1.0], [1.0, 1.0 + self.extra]]))

    def after(self, n_rollouts: int, seed: int = 0, **options: float) -> Strength:
        rng, strength = np.random.default_rng(seed), Strength(**options)
        for _ in range(n_rollouts):
            assert strength.update(*self.rollout(rng))
        return strength


def error_of_direction(k: float, signal: np.ndarray, noise: np.ndarray) -> float:
    """Least E|s·((1-k)ū + k·c̄) - c|² over scales s ≥ 0, by brute force."""
    x, scales = np.array([1.0 - k, k]), np.linspace(0.0, 5.0, 5001)
    return float(np.min(scales**2 * (x @ (signal + noise) @ x) - 2.0 * scales * (x @ signal[:, 1]) + signal[1, 1]))


# Cosine, scale and bias


def test_geometry_by_hand() -> None:
    # u = (2, 0), c = (3, 4): κ = 6/4, cos = 6/(2·5)
    signal = np.array([[4.0, 6.0], [6.0, 25.0]])
    assert uncorrected_scale(signal) == pytest.approx(1.5)
    assert gradient_cosine(signal) == pytest.approx(0.6)


@pytest.mark.parametrize("signal", ([[0.0, 0.0], [0.0, 9.0]], [[4.0, -6.0], [-6.0, 9.0]]))
def test_no_scale_helps_where_the_uncorrected_gradient_is_zero_or_opposed(signal: list[list[float]]) -> None:
    assert uncorrected_scale(np.array(signal)) == 0.0


# The best k of exact quantities


@settings(max_examples=40, deadline=None)
@given(st.floats(0.0, 85.0), st.floats(0.05, 20.0), st.floats(0.05, 0.95), st.floats(0.3, 2.0))
def test_least_error_equals_brute_force(angle: float, snr: float, sample_size: float, scale: float) -> None:
    signal, noise = MadeUp(angle, snr, sample_size, scale).exact
    k = least_error_strength(signal, noise, n=10.0)
    errors = [error_of_direction(x, signal, noise / 10.0) for x in GRID[::20]]
    assert error_of_direction(k, signal, noise / 10.0) <= min(errors) + 1e-5 * signal[1, 1]


def test_limits_of_k() -> None:
    rule = least_error_strength
    same, noise = np.ones((2, 2)), np.array([[1.0, 1.0], [1.0, 3.0]])
    assert rule(same, np.ones((2, 2))) == 0.0  # the same gradients
    assert rule(same, noise) == 0.0  # the same but for noise
    assert rule(np.array([[0.0, 0.0], [0.0, 1.0]]), noise) == 1.0  # no uncorrected gradient
    assert rule(np.diag([0.0, 1.0]), np.diag([0.0, 3.0])) == 1.0  # nor any noise in it
    assert rule(np.array([[1.0, -0.5], [-0.5, 1.0]]), noise) == 1.0  # one that points away
    assert rule(np.zeros((2, 2)), np.zeros((2, 2))) == 0.0  # no gradients at all
    biased = np.array([[1.0, 0.8], [0.8, 1.0]])
    assert rule(biased, noise, n=1e9) == pytest.approx(1.0)  # no noise
    assert rule(biased, noise, trust=0.0) == 0.0
    assert 0.0 < rule(biased, noise, trust=0.5) < rule(biased, noise) < rule(biased, noise, n=10.0) < 1.0


@settings(max_examples=50, deadline=None)
@given(scale=st.floats(1e-6, 1e6), angle=st.floats(0.0, 120.0), snr=st.floats(0.1, 10.0))
def test_k_does_not_change_with_the_scale(scale: float, angle: float, snr: float) -> None:
    signal, noise = MadeUp(angle, snr, 0.4).exact
    k = least_error_strength(scale * signal, scale * noise)
    assert k == pytest.approx(least_error_strength(signal, noise), abs=1e-6)


# Learning k


@pytest.mark.parametrize("angle, snr, sample_size", ((60.0, 1.0, 0.2), (55.0, 3.0, 0.1), (75.0, 0.5, 0.1)))
def test_finds_the_best_k(angle: float, snr: float, sample_size: float) -> None:
    task = MadeUp(angle, snr, sample_size)
    signal, noise = task.exact
    best = GRID[::20][np.argmin([error_of_direction(x, signal, noise / 10.0) for x in GRID[::20]])]
    found = np.mean([task.after(100, seed, n=10.0, memory=50.0).k for seed in range(5)])
    assert 0.3 < best < 0.95
    assert found == pytest.approx(best, abs=0.06)


@pytest.mark.parametrize("n_rollouts", (2, 3, 5, 20))
def test_stays_uncorrected_without_bias(n_rollouts: int) -> None:
    task = MadeUp(0.0, 0.3, 0.3)
    strengths = [task.after(n_rollouts, seed) for seed in range(150)]
    # 1.5 standard errors are passed by chance in one of 15 cases
    assert np.mean([strength.trust > 0.0 for strength in strengths]) <= 1.0 / 15.0 + 0.04
    assert np.mean([strength.k for strength in strengths]) < 0.1


def test_chance_is_not_believed_in_a_hundred_looks() -> None:
    """Without a bias, of twenty runs of 150 rollouts no more than one in three is ever corrected, and for a moment."""
    task, believed = MadeUp(0.0, 0.3, 0.3), []
    for seed in range(20):
        rng, strength = np.random.default_rng(seed), Strength()
        ks = []
        for _ in range(150):
            strength.update(*task.rollout(rng))
            ks.append(strength.k)
        believed.append(np.mean(np.array(ks) > 0.0))
    assert np.mean(np.array(believed) > 0.0) <= 1.0 / 3.0
    assert np.mean(believed) < 0.02
    assert strength.doubt == pytest.approx(np.sqrt(2.0 * np.log(150)))


def test_a_strong_bias_is_believed_within_a_few_rollouts() -> None:
    task = MadeUp(100.0, 5.0, 0.5)
    assert np.mean([task.after(6, seed).k for seed in range(30)]) > 0.95
    assert task.after(20).trust == 1.0


def test_a_bearable_bias_is_left_alone_however_well_it_is_known() -> None:
    bearable, worth_it = MadeUp(40.0, 50.0, 0.5).after(40), MadeUp(50.0, 50.0, 0.5).after(40)
    assert bearable.cosine == pytest.approx(np.cos(np.radians(40.0)), abs=0.005)
    assert bearable.k == 0.0
    assert worth_it.k > 0.8


@pytest.mark.parametrize("real, k", ((-0.2, 1.0), (0.0, 1.0), (0.25, 0.5), (0.6, 0.0)))
def test_a_gain_that_is_not_real_is_told_where_the_corrected_gradient_is_not(real: float, k: float) -> None:
    """A steady uncorrected gradient, and a corrected one that is mostly noise: c·u = real·u·u is all that is told."""
    found = []
    for seed in range(20):
        rng, strength = np.random.default_rng(seed), Strength()
        for _ in range(8):
            u = rng.normal(size=(16, 200)) * 0.1 + np.eye(200)[0] * 3.0
            strength.update(u, rng.normal(size=(16, 200)) + np.eye(200)[0] * 3.0 * real)
        found.append(strength.lost)
    assert np.mean(found) == pytest.approx(k, abs=0.06)


def test_no_gain_is_missed_where_none_is_claimed() -> None:
    """Noise alone, which both gradients share, as in the first rollouts of many tasks."""
    strengths = [MadeUp(0.0, 1e-9, 0.3).after(10, seed) for seed in range(150)]
    assert np.mean([strength.lost > 0.0 for strength in strengths]) < 0.05


@pytest.mark.parametrize("seed", range(3))
def test_no_gain_is_missed_by_chance_in_a_thousand_looks(seed: int) -> None:
    """Both gradients are the same and nearly lost in noise, as along a run with short rollouts."""
    task, rng, strength = MadeUp(0.0, 0.1, 0.1), np.random.default_rng(seed), Strength()
    for _ in range(1000):
        strength.update(*task.rollout(rng))
        assert strength.lost == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_a_gradient_that_is_plain_is_followed_where_the_other_is_nothing_but_noise(seed: int) -> None:
    """Two states that cancel out, and one parameter: whatever is left of u is parallel to c, so that no angle tells."""
    rng, strength, found = np.random.default_rng(seed), Strength(), []
    for _ in range(30):
        own = rng.normal(scale=0.4, size=(16, 1))
        strength.update(own, 1.0 + own)
        found.append(strength.k)
    assert min(found[3:]) == 1.0


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_gradient_is_not_followed_for_being_as_plain_as_the_other(share: float) -> None:
    """Both lie in the same direction and stand as far out of their noise, of which c has more the fewer samples carry it."""
    for seed in range(5):
        rng, strength = np.random.default_rng(seed), Strength()
        for _ in range(50):
            own, more = rng.normal(scale=4.0, size=(2, 16, 20))
            strength.update(1.0 + own, (1.0 + own + np.sqrt(1.0 / share - 1.0) * more))
            assert strength.clearer == 0.0


def test_how_much_clearer_by_hand() -> None:
    """With SNRs of 5 and 1 the corrected gradient stands five times as far out of its noise, with 3 and 1 only three times."""
    for ratio, clearer in ((5.0, 1.0), (3.0, 0.0)):
        rng, strength = np.random.default_rng(0), Strength(memory=1000.0)
        for _ in range(1000):
            u, c = rng.normal(scale=4.0, size=(2, 16, 1))  # of 16 blocks: noise of 1 in the mean
            strength.update(1.0 + u, np.sqrt(ratio) + c)
        assert strength.clearer == clearer


def test_pseudo_values_have_the_mean_and_the_error_of_the_products() -> None:
    task, rng = MadeUp(45.0, 3.0, 0.3), np.random.default_rng(10)
    means, errors = [], []
    for _ in range(400):
        u, c = task.rollout(rng)
        values = jackknife_products(u, c)
        np.testing.assert_allclose(values.mean(axis=0), gradient_products(u, c).signal, atol=1e-12)
        means.append(values.mean(axis=0))
        errors.append(values.std(axis=0, ddof=1) / 4.0)
    np.testing.assert_allclose(np.mean(errors, axis=0), np.std(means, axis=0), rtol=0.2)


def test_rollouts_of_one_block_are_gathered() -> None:
    """A2C's rollouts of five steps: sixteen of them are one rollout of sixteen blocks."""
    task, gathered, whole = MadeUp(60.0, 3.0, 0.3), Strength(), Strength()
    u, c = task.rollout(np.random.default_rng(11))
    told = [gathered.update(u[j : j + 1], c[j : j + 1]) for j in range(16)]
    whole.update(u, c)
    assert told == [False] * 15 + [True]
    assert gathered.k == pytest.approx(whole.k)
    assert gathered.bias == pytest.approx(whole.bias)


def test_cosine_is_free_of_noise() -> None:
    assert MadeUp(60.0, 0.5, 0.3).after(200, memory=200.0).cosine == pytest.approx(0.5, abs=0.05)
    assert np.isnan(Strength().cosine)


@pytest.mark.parametrize("noise", (0.0, 1.0))
def test_no_uncorrected_gradient_gives_one(noise: float) -> None:
    # as on TwoState with a blind actor: the two states' gradients cancel unless they are weighted
    rng, strength = np.random.default_rng(1), Strength()
    for _ in range(20):
        u = noise * rng.normal(size=(16, 2))
        strength.update(u, u + rng.normal(size=(16, 2)) + [2.0, -2.0])
    assert strength.k == 1.0
    assert np.isnan(strength.cosine)


def test_the_same_gradients_give_zero() -> None:
    rng, strength = np.random.default_rng(2), Strength()
    for _ in range(20):
        u = (rng.normal(size=(16, 50)) + 1.0).astype(np.float32)
        strength.update(u, u)
    assert strength.k == strength.bias == 0.0
    assert strength.cosine == pytest.approx(1.0)


def test_a_single_parameter() -> None:
    rng, along, against = np.random.default_rng(3), Strength(), Strength()
    for _ in range(20):
        u, more = rng.normal(size=(16, 1)) + 2.0, rng.normal(size=(16, 1))
        along.update(u, u + more)
        against.update(u, u + more - 4.0)
    assert along.k < 0.3
    assert against.k == 1.0


@pytest.mark.parametrize(
    "u, c",
    (
        (np.zeros((4, 3)), np.zeros((4, 3))),
        (np.ones((4, 3)), np.full((4, 3), np.nan)),
        (np.full((4, 3), np.inf), np.ones((4, 3))),
        (np.ones((4, 0)), np.ones((4, 0))),
    ),
    ids=("zero", "not a number", "infinite", "no parameters"),
)
def test_a_rollout_that_tells_nothing_changes_nothing(u: np.ndarray, c: np.ndarray) -> None:
    strength = MadeUp(60.0, 1.0, 0.3).after(10)
    before = strength.get_state()
    assert not strength.update(u, c)
    assert all(np.array_equal(before[name], value) for name, value in strength.get_state().items())
    alone = Strength()
    alone.update(u, c)
    assert alone.k == 0.0


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-150.0, 150.0), min_size=8, max_size=8))
def test_the_scale_may_change_between_rollouts(exponents: list[float]) -> None:
    task, rng = MadeUp(60.0, 3.0, 0.3), np.random.default_rng(4)
    strength, scaled = Strength(), Strength()
    for exponent in exponents:
        u, c = task.rollout(rng)
        strength.update(u, c)
        scaled.update(10.0**exponent * u, 10.0**exponent * c)
    assert strength.k > 0.1
    assert scaled.k == pytest.approx(strength.k, abs=1e-6)
    assert scaled.bias == pytest.approx(strength.bias, rel=1e-6)


def test_forgets_a_bias_that_is_gone() -> None:
    strength, rng = MadeUp(100.0, 3.0, 0.3).after(30, memory=5.0), np.random.default_rng(6)
    assert strength.k == 1.0
    for _ in range(60):
        strength.update(*MadeUp(0.0, 3.0, 0.3).rollout(rng))
    assert strength.k < 0.2


def test_state_round_trip() -> None:
    task, strength = MadeUp(60.0, 1.0, 0.3), MadeUp(60.0, 1.0, 0.3).after(12)
    strength.update(*task.rollout(np.random.default_rng(7)))
    state = strength.get_state()
    assert {type(value) for value in state.values()} == {float, np.ndarray}
    restored, copy = Strength(), pickle.loads(pickle.dumps(strength))
    restored.set_state(state)
    for other in restored, copy:
        assert (other.k, other.bias, other.cosine) == (strength.k, strength.bias, strength.cosine)
    # each goes on by itself
    u, c = task.rollout(np.random.default_rng(8))
    for each in strength, restored, copy:
        each.update(u, c)
    assert restored.k == copy.k == strength.k
    assert not np.array_equal(state["first"], strength.get_state()["first"])


def test_arguments_are_checked() -> None:
    for options, message in (
        ({"n": 0.5}, "`n` must be at least 1 rollout, got 0.5"),
        ({"memory": 0.0}, "`memory` must be at least 1 rollout, got 0.0"),
        ({"before": 1.5}, "`before` must be from 0 to 1, got 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            Strength(**options)  # type: ignore[arg-type]


# What is expected before anything is told


@pytest.mark.parametrize("before", (0.0, 0.5, 1.0))
def test_before_anything_is_known_what_was_expected_counts(before: float) -> None:
    strength = Strength(before=before)
    assert strength.k == before
    # noise alone, of which c has more, tells nothing in ten rollouts
    found = [MadeUp(60.0, 1e-6, 0.3).after(10, seed, before=before).k for seed in range(10)]
    assert np.median(found) == pytest.approx(before, abs=0.05)


@pytest.mark.parametrize("angle", (0.0, 20.0))
def test_a_bias_that_is_told_to_be_bearable_ends_what_was_expected(angle: float) -> None:
    task = MadeUp(angle, 3.0, 0.3)
    early, late = (task.after(n, before=1.0) for n in (1, 30))
    assert early.k > 0.5
    assert (late.bearable, late.expected, late.k) == (1.0, 0.0, 0.0)


def test_a_bias_that_is_told_counts_the_same_whatever_was_expected() -> None:
    task = MadeUp(70.0, 3.0, 0.3)
    with_it, without = (task.after(30, before=before) for before in (1.0, 0.0))
    assert (with_it.trust, with_it.bearable, with_it.expected) == (1.0, 0.0, 0.0)
    assert 0.0 < with_it.k == without.k


@pytest.mark.parametrize("n_envs", (1, 4))
def test_noise_that_neighbours_share_is_not_taken_for_bias(n_envs: int) -> None:
    independent = independent_blocks(blocks(2048 // n_envs, n_envs), n_envs)
    rng, task = np.random.default_rng(10), MadeUp(0.0, 0.5, 0.3)
    goes_on = 0.2 * (np.arange(16) % (16 // n_envs) > 0)[:, None]  # into the environment's next block
    naive, told = [], []
    for _ in range(900):
        u, c = task.rollout(rng, n_blocks=16)
        u, c = u + goes_on * np.roll(u - task.u, 1, axis=0), c + goes_on * np.roll(c - task.c, 1, axis=0)
        naive.append(gradient_products(u, c).signal)
        told.append(gradient_products(u, c, independent=independent).signal)
    direction = np.array([-1.0, 1.0])  # κ = 1: c - u is noise
    seen, left = (np.array([direction @ signal @ direction for signal in signals]) for signals in (naive, told))
    assert seen.mean() > 5.0 * seen.std() / 30.0
    assert abs(left.mean()) < 3.0 * left.std() / 30.0


@pytest.mark.parametrize("seed", range(3))
def test_a_gradient_lost_in_noise_does_not_explain_another(seed: int) -> None:
    """u is noise alone, and ⟨u, c⟩ tends to be below 0: less of c is explained by u than weights that do not turn it leave."""
    rng, strength = np.random.default_rng(seed), Strength()
    for _ in range(12):
        noise, c = rng.normal(size=(16, 300)), np.eye(300)[0]
        strength.update(noise - 0.5 * c, 1.5 * noise + c)
    any_length = strength._errors_from_zero(np.eye(6)[2])
    assert strength.bias > any_length + 0.2


def test_the_past_tells_a_gradient_that_no_rollout_tells() -> None:
    """A bias far below the noise of a rollout; the same rollouts, each by itself, as where a gradient does not last."""
    task = MadeUp(90.0, 0.1, 0.3, parameters=300)
    rng = np.random.default_rng(12)
    with_past, alone = [], []
    for _ in range(20):
        told, forgetful = Strength(), Strength()
        for _ in range(12):
            u, c = task.rollout(rng)
            told.update(u, c)
            forgetful._past = None
            forgetful.update(u, c)
        with_past.append(told.trust)
        alone.append(forgetful.trust)
    assert np.mean(with_past) > 0.9
    assert np.mean(alone) < 0.1


def test_products_with_the_past_by_hand() -> None:
    """One parameter, c = 2u, four blocks a rollout; the past is the mean of the rollout before, forgotten by exp(-1/n)."""
    strength, before, now = Strength(n=10.0, memory=np.inf), np.array([1.0, 2.0, 6.0, 3.0]), np.array([1.0, -1.0, 4.0, 2.0])
    for u in (before, now):
        strength.update(u[:, None], 2.0 * u[:, None])
    # each rollout is divided by its root mean square over both gradients
    before, now = (x / np.sqrt(np.mean([x**2, 4.0 * x**2])) for x in (before, now))
    size = 4.0 * np.exp(-0.1)  # of the past, in blocks
    first = (before.sum() ** 2 - np.sum(before**2)) / 12.0
    second = (now.sum() ** 2 - np.sum(now**2) + 2.0 * size * before.mean() * now.sum()) / (12.0 + 8.0 * size)
    pairs = 1.0 + 2.0 * np.exp(-0.1)  # a rollout counts by the pairs that it makes
    uu = (first + pairs * second) / (1.0 + pairs)
    np.testing.assert_allclose(strength._first[:3] / strength._weight, [uu, 2.0 * uu, 4.0 * uu])


def test_short_rollouts_of_another_number_of_parameters_begin_anew() -> None:
    rng, strength = np.random.default_rng(0), Strength()
    for parameters in (10, 9):
        told = [
            strength.update(*rng.normal(size=(2, 1, parameters)) + 1.0) for _ in range(Strength.ENOUGH - (parameters == 10))
        ]
    assert told == [False] * (Strength.ENOUGH - 1) + [True]
