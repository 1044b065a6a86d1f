"""Distances between the initial and the sampling distribution: the paper's (Table 1), and one without bins."""

from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_avgcorr.diagnostics.estimates import Blocks, Estimate, Regression

BINS = 8
MAX_DIMENSIONS = 5
#: where an unbounded dimension is cut
CUT = 4.0
#: draws of dimensions that are averaged over, where there are more than MAX_DIMENSIONS
DRAWS = 10


class Columns:
    """
    Observations of any space as columns of numbers, cut into bins one column at a time: no copy of images is made.

    :param observations: an array or a dict of arrays, first axis the samples
    :param space: their space
    """

    def __init__(self, observations: Any, space: spaces.Space) -> None:
        parts = [(observations[k], space[k]) for k in space] if isinstance(space, spaces.Dict) else [(observations, space)]
        self.parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for array, part in parts:
            array = np.asarray(array).reshape(len(array), -1)
            low, high = (_bound(part, end, array.shape[1]) for end in ("low", "high"))
            bounded = (np.abs(low) < 1e6) & (np.abs(high) < 1e6) & (high > low)
            self.parts.append((array, np.where(bounded, low, -CUT), np.where(bounded, high, CUT)))
        self.dimensions = sum(array.shape[1] for array, _, _ in self.parts)

    def bins(self, dimensions: np.ndarray) -> np.ndarray:
        """
        Number the cells.

        :param dimensions: which columns
        :return: number of the cell of each sample, of ``BINS ** len(dimensions)``
        """
        cell = np.zeros(len(self.parts[0][0]), dtype=np.int64)
        for dimension in dimensions:
            for array, low, high in self.parts:
                if dimension < array.shape[1]:
                    place = (array[:, dimension].astype(np.float64) - low[dimension]) / (high[dimension] - low[dimension])
                    cell = cell * BINS + np.clip(np.floor(place * BINS), 0, BINS - 1).astype(np.int64)
                    break
                dimension -= array.shape[1]
        return cell


def _bound(space: spaces.Space, end: str, size: int) -> np.ndarray:
    if isinstance(space, spaces.Box):
        return np.broadcast_to(getattr(space, end), space.shape).reshape(-1).astype(np.float64)
    if end == "low":
        return np.broadcast_to(np.ravel(getattr(space, "start", 0)), (size,)).astype(np.float64)
    n = np.ravel(space.nvec if isinstance(space, spaces.MultiDiscrete) else getattr(space, "n", 2))
    if isinstance(space, spaces.MultiBinary):
        n = np.array([2])
    return np.broadcast_to(n - 1 + np.ravel(getattr(space, "start", 0)), (size,)).astype(np.float64)


def histogram_distance(starts: Columns, sampled: Columns, blocks: Blocks, rng: np.random.Generator) -> Estimate:
    """
    Measure the distance of Table 1 of the paper: the largest difference between two histograms, 8 bins a dimension.

    Above 5 dimensions the paper draws 5 at random; here the mean over several such draws is taken.

    :param starts: initial observations
    :param sampled: the rollout's
    :param blocks: the rollout's episodes
    :param rng: random generator
    :return: the distance
    """
    d = sampled.dimensions
    draws = [rng.choice(d, MAX_DIMENSIONS, replace=False) for _ in range(DRAWS)] if d > MAX_DIMENSIONS else [np.arange(d)]
    points, replicates = [], []
    for dimensions in draws:
        used, cells = np.unique(np.concatenate([starts.bins(dimensions), sampled.bins(dimensions)]), return_inverse=True)
        n_starts = len(starts.parts[0][0])
        initial = np.bincount(cells[:n_starts], minlength=len(used)) / n_starts
        counts = np.bincount(blocks.of_row * len(used) + cells[n_starts:], minlength=blocks.number * len(used))
        by_block = counts.reshape(blocks.number, len(used)).astype(np.float64)
        points.append(np.abs(by_block.sum(axis=0) / by_block.sum() - initial).max())
        drawn = blocks.draws[:100] @ by_block
        # the initial histogram is drawn again too; independent cells are close enough to a multinomial for its maximum
        again = initial + rng.standard_normal(drawn.shape) * np.sqrt(initial * (1.0 - initial) / n_starts)
        replicates.append(np.abs(drawn / drawn.sum(axis=1, keepdims=True) - again).max(axis=1))
    value = float(np.mean(points))
    # which dimensions are drawn is a chance of this measure as much as which episodes are
    variance = float(np.var(np.mean(replicates, axis=0)) + (np.var(points, ddof=1) / len(points) if len(points) > 1 else 0.0))
    spread = 1.96 * variance**0.5
    return Estimate(value, max(value - spread, 0.0), min(value + spread, 1.0))


def classifier_distance(starts: np.ndarray, sampled: np.ndarray, blocks: Blocks, rng: np.random.Generator) -> Estimate:
    """
    Estimate the total variation of the initial and the sampling distribution by a two-sample classifier.

    Where the classifier thinks an observation more likely initial, the two probabilities are counted, on observations that it
    was not fitted to, and subtracted. So this is an estimate from below, and neither bins nor overfitting inflate it.

    :param starts: initial observations, as the critic's layers see them
    :param sampled: the rollout's, same columns
    :param blocks: the rollout's episodes
    :param rng: random generator
    :return: the distance
    """
    n = len(starts)
    fold = np.concatenate([rng.permutation(n) % (blocks.fold.max() + 1), blocks.fold])
    inputs, label = np.concatenate([starts, sampled]), (np.arange(n + len(sampled)) < n).astype(np.float64)
    initial = np.zeros(len(label), dtype=bool)
    for k in range(fold.max() + 1):
        rows = [np.flatnonzero((fold != k) & (label == which)) for which in (0.0, 1.0)]
        size = min(map(len, rows))
        balanced = np.concatenate([rng.choice(r, size, replace=False) for r in rows])
        initial[fold == k] = (Regression(inputs, balanced, True, rng).fit(lambda: label) > 0.5)[fold == k]
    share = initial[:n].mean()
    inside = blocks.estimate(
        lambda a, b: a / b, blocks.sums(initial[n:]), blocks.sums(np.ones(len(sampled))), low=-np.inf, high=np.inf
    )
    spread = 1.96 * (((inside.high - inside.low) / 3.92) ** 2 + share * (1.0 - share) / n) ** 0.5
    value = float(share - inside)
    return Estimate(*(float(np.clip(x, 0.0, 1.0)) for x in (value, value - spread, value + spread)))
