"""Signal and noise of two gradients: products of blocks against numbers worked out by hand and made-up noise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sb3_avgcorr.common.gradients import blocks, gradient_products, independent_blocks, jackknife_products
from sb3_avgcorr.common.strength import gradient_cosine


def test_products_by_hand() -> None:
    # two blocks, one parameter: ⟨u, u⟩ = 1·3, ⟨u, c⟩ = (1·6 + 3·2)/2, ⟨c, c⟩ = 2·6; means 2 and 4
    signal, noise = gradient_products(np.array([[1.0], [3.0]]), np.array([[2.0], [6.0]]))
    np.testing.assert_allclose(signal, [[3.0, 6.0], [6.0, 12.0]])
    np.testing.assert_allclose(noise, [[1.0, 2.0], [2.0, 4.0]])


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.data())
def test_products_are_those_of_different_blocks(n_blocks: int, parameters: int, data: st.DataObject) -> None:
    u, c = data.draw(arrays(np.float64, (2, n_blocks, parameters), elements=st.floats(-3.0, 3.0)))
    signal, noise = gradient_products(u, c)
    pairs = [(i, j) for i in range(n_blocks) for j in range(n_blocks) if i != j]
    for row, x in enumerate((u, c)):
        for column, y in enumerate((u, c)):
            between = np.mean([x[i] @ y[j] for i, j in pairs])
            within = np.mean([x[j] @ y[j] for j in range(n_blocks)])
            assert signal[row, column] == pytest.approx(between, abs=1e-9)
            assert noise[row, column] == pytest.approx((within - between) / n_blocks, abs=1e-9)


def test_uneven_blocks_give_the_same_expectation() -> None:
    rng, sizes = np.random.default_rng(0), np.array([1, 2, 3, 30])
    u, c = np.array([1.0, 0.0]), np.array([1.0, 2.0])
    # the last two share noise beyond their own
    independent = ~np.eye(4, dtype=bool)
    independent[2, 3] = independent[3, 2] = False
    results = []
    for _ in range(10_000):
        noise = rng.normal(size=(4, 2)) / np.sqrt(sizes)[:, None]
        noise[2] += 0.5 * noise[3]
        results.append(gradient_products(u + noise, c + 2.0 * noise, sizes, independent))
    signal, noise = (np.mean([result[i] for result in results], axis=0) for i in range(2))
    np.testing.assert_allclose(signal, [[1.0, 1.0], [1.0, 5.0]], atol=0.05)
    # of the mean over 36 rows in two dimensions: blocks 0 to 2 have 6 rows, block 3 counts 30 + 3/2
    expected = 2.0 * (6.0 + 31.5**2 / 30.0) / 36.0**2
    np.testing.assert_allclose(noise, np.array([[1.0, 2.0], [2.0, 4.0]]) * expected, atol=0.01)


def test_one_block_says_that_it_tells_nothing() -> None:
    signal, noise = gradient_products(np.ones((1, 3)), np.ones((1, 3)))
    assert np.isnan(signal).all()
    assert np.isnan(noise).all()
    assert np.isnan(gradient_cosine(signal))


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"same shape \(blocks, parameters\), got \(2, 3\) and \(2, 4\)"):
        gradient_products(np.ones((2, 3)), np.ones((2, 4)))
    with pytest.raises(ValueError, match=r"`sizes` must have shape \(2,\).* got \(3,\)"):
        gradient_products(np.ones((2, 3)), np.ones((2, 3)), np.ones(3))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.sampled_from([1, 2, 3, 4, 7, 16, 17, 1000]), st.integers(1, 40), st.integers(1, 40))
def test_blocks_hold_each_row_once_and_no_environment_twice(n_steps: int, n_envs: int, count: int, shortest: int) -> None:
    split = blocks(n_steps, n_envs, count, shortest)
    sizes = [rows.size for rows in split]
    assert 1 <= len(split) <= count
    assert np.array_equal(np.sort(np.concatenate(split)), np.arange(n_steps * n_envs))
    # whole environments, or stretches of one, as equal as can be
    assert 0 < max(sizes) <= min(sizes) + (n_steps if n_envs >= count else 1)
    assert len(split) == 1 or min(sizes) >= min(n_steps, shortest)
    environments, independent = [set(rows % n_envs) for rows in split], independent_blocks(split, n_envs)
    for i, some in enumerate(environments):
        for j, others in enumerate(environments):
            assert independent[i, j] == (abs(i - j) > 1 if n_envs == 1 else not some & others)


@pytest.mark.parametrize("n_envs", (1, 3, 4, 1000))
def test_blocks_are_stretches_of_environments(n_envs: int) -> None:
    split = blocks(256, n_envs)
    assert len(split) == 15 if n_envs == 3 else 16
    for rows in split:
        steps, envs = np.divmod(rows, n_envs)
        if n_envs < 16:
            assert np.all(envs == envs[0])
            assert np.all(np.diff(steps) == 1)
        else:
            assert rows.size == 256 * len(set(envs))


def test_blocks_of_an_environment_are_one_sample() -> None:
    """What the blocks of an environment share adds to the error of the products; blocks taken one by one would hide it."""
    split = blocks(512, 8)
    independent = independent_blocks(split, 8)
    rng, means, errors, hidden = np.random.default_rng(12), [], [], []
    for _ in range(400):
        shared = np.repeat(rng.normal(size=(8, 3)), 2, axis=0)
        u = 1.0 + shared + 0.3 * rng.normal(size=(16, 3))
        values = jackknife_products(u, 2.0 * u, independent=independent)
        assert values.shape == (8, 2, 2)
        means.append(values.mean(axis=0))
        errors.append(values.std(axis=0, ddof=1) / np.sqrt(8))
        alone = jackknife_products(u, 2.0 * u)
        hidden.append(alone.std(axis=0, ddof=1) / 4.0)
    np.testing.assert_allclose(np.mean(errors, axis=0), np.std(means, axis=0), rtol=0.2)
    assert np.mean(hidden) < 0.8 * np.std(means, axis=0).mean()


def test_short_rollouts_are_split_by_environment() -> None:
    assert [list(rows) for rows in blocks(2, 3)] == [[0, 3], [1, 4], [2, 5]]
    assert len(blocks(5, 1)) == 1
    with pytest.raises(ValueError, match="`n_envs` must be at least 1, got 0"):
        blocks(5, 0)


def test_products_of_a_large_network_keep_their_proportions() -> None:
    rng = np.random.default_rng(0)
    length = 300_000
    true_u, true_c = rng.normal(size=(2, length))
    u, c = (x + rng.normal(size=(6, length)) for x in (true_u, true_c + 0.5 * true_u))
    signal, noise = gradient_products(u, c)
    # relative to ⟨u, u⟩, which is 1 a parameter: c = true_c + u / 2; noise of the mean of six: 1/6
    np.testing.assert_allclose(signal / signal[0, 0], [[1.0, 0.5], [0.5, 1.25]], atol=0.02)
    np.testing.assert_allclose(noise / signal[0, 0], np.eye(2) / 6, atol=0.02)
