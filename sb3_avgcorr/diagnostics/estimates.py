"""Out-of-sample estimates with intervals: the correction ĉ(s), a baseline, and what follows from them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.torch_layers import create_mlp
from torch import nn
from torch.nn import functional as F

from sb3_avgcorr.common.correction import correction_targets, lambda_returns, ratio

FOLDS = 3
MAX_BLOCKS = 64
REPLICATES = 500
#: rows a fit sees at most; more do not make these estimates better, only slower
FIT_ROWS = 50_000
FIT_UPDATES = 500
MIN_PASSES = 5
FIT_BATCH = 512
#: λ of the targets of both regressions, refreshed before every pass
LAMBDA = 0.9


class Estimate(float):
    """
    A number with its 95 % interval.

    :param value: the number
    :param low: lower end of the interval
    :param high: upper end
    """

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> "Estimate":
        self = super().__new__(cls, value)
        self.low, self.high = float(low), float(high)
        return self

    def __getnewargs__(self) -> tuple[float, float, float]:  # type: ignore[override]
        return float(self), self.low, self.high

    @property
    def value(self) -> float:
        """The number alone."""
        return float(self)

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval."""
        return self.low, self.high


class Blocks(NamedTuple):
    """
    Whole episodes, which are what is held out and what the bootstrap draws.

    Samples of one episode are far from independent. Where there are more episodes than need be, a block holds many.
    """

    of_row: np.ndarray  # block of each sample
    fold: np.ndarray  # fold of each sample
    number: int
    draws: np.ndarray  # how often each block is drawn, shape (REPLICATES, number)
    n_episodes: int

    def sums(self, values: np.ndarray) -> np.ndarray:
        """
        Sum over each block.

        :param values: one number a sample
        :return: their sums in each block
        """
        return np.bincount(self.of_row, weights=np.ravel(values), minlength=self.number)

    def estimate(self, statistic: Callable[..., Any], *sums: np.ndarray, low: float, high: float) -> Estimate:
        """
        Estimate a statistic, with an interval.

        :param statistic: a function of sums over samples, elementwise
        :param sums: those sums in each block
        :param low: smallest value there is
        :param high: largest value there is
        :return: the statistic, with a normal interval of its bootstrap's standard deviation
        """
        value = float(statistic(*(s.sum() for s in sums)))
        spread = 1.96 * float(np.std(statistic(*(self.draws @ s for s in sums))))
        return Estimate(*(float(np.clip(x, low, high)) for x in (value, value - spread, value + spread)))


def blocks_of(steps: np.ndarray, rng: np.random.Generator) -> Blocks:
    """
    Group the episodes of a rollout into blocks and folds.

    :param steps: step inside the episode of each sample, shape (n_steps, n_envs)
    :param rng: random generator
    :return: the blocks; row (step, environment) by row
    """
    first = steps == 0
    first[0] = True
    n_episodes = int(first.sum())
    if n_episodes < 2:
        raise ValueError(
            "The rollout holds one episode only, and nothing can be said about chance from one: use more steps, or more "
            "environments side by side (n_envs)."
        )
    episode = (np.cumsum(first.T) - 1).reshape(steps.T.shape).T.ravel()
    count = min(n_episodes, MAX_BLOCKS)
    shuffled = rng.permutation(n_episodes)
    draws = rng.multinomial(count, np.full(count, 1.0 / count), size=REPLICATES)
    return Blocks((shuffled % count)[episode], (shuffled % min(FOLDS, n_episodes))[episode], count, draws, n_episodes)


class Regression:
    """
    A small network fitted outside any training: cross-entropy with a sigmoid, or squared error.

    :param inputs: rows to predict for
    :param rows: which of them to fit to
    :param binary: cross-entropy; else squared error
    :param rng: random generator
    """

    def __init__(self, inputs: np.ndarray, rows: np.ndarray, binary: bool, rng: np.random.Generator) -> None:
        self.inputs = th.as_tensor(inputs, dtype=th.float32)
        self.rows = rng.choice(rows, FIT_ROWS, replace=False) if len(rows) > FIT_ROWS else rows
        self.binary, self.rng = binary, rng
        with th.random.fork_rng():
            th.manual_seed(int(rng.integers(2**31)))
            self.net = nn.Sequential(*create_mlp(inputs.shape[1], 1, [64, 64], nn.Tanh))

    @th.no_grad()
    def predict(self) -> np.ndarray:
        """
        Predict.

        :return: the prediction for every row
        """
        z = th.cat([self.net(piece) for piece in self.inputs.split(8192)]).squeeze(-1).double()
        return (th.sigmoid(z) if self.binary else z).numpy()

    def fit(self, targets: Callable[[], np.ndarray]) -> np.ndarray:
        """
        Fit the network.

        :param targets: computes the targets of all rows; called before every pass, for they may depend on the predictions
        :return: the prediction for every row
        """
        last: Any = self.net[-1]
        nn.init.zeros_(last.weight)
        mean = float(targets()[self.rows].mean())
        if self.binary:
            mean = float(np.clip(mean, 1e-6, 1 - 1e-6))
            mean = float(np.log(mean / (1 - mean)))
        nn.init.constant_(last.bias, mean)
        optimizer = th.optim.Adam(self.net.parameters(), lr=3e-3, fused=True)
        size = min(FIT_BATCH, len(self.rows))
        per_pass = -(-len(self.rows) // size)
        passes = max(MIN_PASSES, FIT_UPDATES // per_pass)
        loss_of = F.binary_cross_entropy_with_logits if self.binary else F.mse_loss
        for i in range(passes):
            optimizer.param_groups[0]["lr"] = 1e-4 + 1.5e-3 * (1.0 + np.cos(np.pi * i / passes))
            target = th.as_tensor(targets(), dtype=th.float32)
            for batch in th.as_tensor(self.rng.permutation(self.rows)).split(size):
                loss = loss_of(self.net(self.inputs[batch]).squeeze(-1), target[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return self.predict()


def out_of_sample_estimates(inputs: np.ndarray, steps: np.ndarray, gamma: float, blocks: Blocks, rng: Any) -> np.ndarray:
    """
    Estimate f(s) = E[γ^t | s] for each sample by a network that has not seen the sample's episode.

    Noise that was fitted would otherwise count as knowledge.

    :param inputs: what the correction sees, one row a sample
    :param steps: step inside the episode, shape (n_steps, n_envs)
    :param gamma: discount factor
    :param blocks: folds
    :param rng: random generator
    :return: f(s) divided by its mean in the fold, shape (n,)
    """
    out = np.ones(steps.size)
    for fold in range(blocks.fold.max() + 1):
        held_out = blocks.fold == fold
        net = Regression(inputs, np.flatnonzero(~held_out), True, rng)

        def targets(net: Regression = net) -> np.ndarray:
            return correction_targets(steps, net.predict().reshape(steps.shape), gamma, LAMBDA).ravel()

        out[held_out] = ratio(net.fit(targets)[held_out])
    return out


def fitted_advantages(
    inputs: np.ndarray,
    rewards: np.ndarray,
    episode_starts: np.ndarray,
    ends: np.ndarray,
    gamma: float,
    lambda_: float,
    blocks: Blocks,
    rng: Any,
) -> np.ndarray:
    """
    Compute advantages for a policy whose critic knows nothing: GAE on a value function fitted to the other episodes.

    :param inputs: what the critic sees, one row a sample, then one row for each end of an episode that is no termination
    :param rewards: rewards, shape (n_steps, n_envs)
    :param episode_starts: whether a row starts an episode, same shape
    :param ends: (step, environment) of those ends, shape (n_ends, 2)
    :param gamma: discount factor
    :param lambda_: λ of GAE
    :param blocks: folds
    :param rng: random generator
    :return: advantages, shape (n_steps, n_envs)
    """
    n, shape = rewards.size, rewards.shape
    scale = float(rewards.std() + abs(rewards.mean())) / (1.0 - gamma * 0.99) or 1.0  # targets of the size of 1 suit Adam
    out = np.zeros(shape)
    over, nothing = np.ones(shape[1], dtype=bool), np.zeros(shape[1])
    for fold in range(blocks.fold.max() + 1):
        held_out = blocks.fold == fold
        net = Regression(inputs, np.flatnonzero(~held_out), False, rng)

        def returns(lambda_: float, net: Regression = net) -> tuple[np.ndarray, np.ndarray]:
            values = net.predict() * scale
            bootstrapped = rewards.astype(np.float64)
            bootstrapped[ends[:, 0], ends[:, 1]] += gamma * values[n:]
            now = values[:n].reshape(shape)
            return lambda_returns(bootstrapped, now, episode_starts, nothing, over, gamma, lambda_), now

        net.fit(lambda r=returns: r(LAMBDA)[0].ravel() / scale)  # type: ignore[misc]
        target, values = returns(lambda_)
        out = np.where(held_out.reshape(shape), target - values, out)
    return out
