r"""
The averaging correction: its equations as pure functions, and the network that estimates it.

A policy gradient of the discounted objective weights the state s by the discounted distribution d_{π,γ}(s); a rollout
holds states from the undiscounted one, d_π(s). The missing factor is

    c(s) = d_{π,γ}(s) / d_π(s)  ∝  E[γ^t | s],

so a regression of γ^t on the state, divided by its mean over the rollout, estimates it
(Che, Vasan and Mahmood, 2023, "Correcting discount-factor mismatch in on-policy policy gradient methods").

Time runs along the first axis of every array, environments along the second.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch as th
from stable_baselines3.common.torch_layers import create_mlp
from torch import nn
from torch.nn import functional as F

CorrectionLoss = Literal["bce", "mse"]


def _same_shape(**arrays: np.ndarray) -> None:
    shapes = {name: np.shape(array) for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"These must have the same shape (n_steps, n_envs): {shapes}.")


def linear_recurrence(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """
    Solve y_t = a_t · y_{t-1} + b_t with y_{-1} = 0 in log2(n_steps) vectorised steps (a prefix scan).

    :param a: factors, shape (n_steps, n_envs)
    :param b: inputs, same shape
    :return: y, same shape
    """
    _same_shape(a=a, b=b)
    a, y = np.array(a, dtype=np.float64), np.array(b, dtype=np.float64)
    reach = 1
    while reach < len(y):
        # Row t now sums over its last `reach` rows; add what the row `reach` before it sums over.
        y[reach:] += a[reach:] * y[:-reach]
        a[reach:] *= a[:-reach].copy()
        reach *= 2
    return y


def correction_targets(steps: np.ndarray, estimates: np.ndarray, gamma: float, lambda_: float) -> np.ndarray:
    r"""
    Targets y_t for the regression on the state, the mirror image of TD(λ), backwards in time:

        y_t = 1                                        at an episode's start (t = 0),
        y_t = γ·((1-λ)·f(s_{t-1}) + λ·y_{t-1})         else.

    With λ = 1 this is the paper's Monte-Carlo target γ^t itself. The first row of a rollout, whose predecessor is gone,
    takes γ^t, so that an episode may span rollouts.

    :param steps: step t inside the episode, shape (n_steps, n_envs)
    :param estimates: f(s_t), the current estimate of E[γ^t | s_t], same shape
    :param gamma: discount factor γ
    :param lambda_: λ in [0, 1]
    :return: y_t, same shape
    """
    powers = np.power(gamma, steps)
    if lambda_ == 1.0:
        return powers
    _same_shape(steps=steps, estimates=estimates)
    first = steps == 0
    first[0] = True
    b = np.where(first, powers, 0.0)
    b[1:] += np.where(first[1:], 0.0, gamma * (1.0 - lambda_) * estimates[:-1])
    return linear_recurrence(np.where(first, 0.0, gamma * lambda_), b)


def lambda_returns(
    rewards: np.ndarray,
    values: np.ndarray,
    episode_starts: np.ndarray,
    last_values: np.ndarray,
    last_dones: np.ndarray,
    gamma: float,
    lambda_: float,
) -> np.ndarray:
    r"""
    λ-returns R_t = r_t + γ·((1-λ)·V(s_{t+1}) + λ·R_{t+1}), nothing following the end of an episode; λ = 1 is Monte-Carlo,
    bootstrapped only where the rollout cuts an episode.

    :param rewards: r_t, shape (n_steps, n_envs)
    :param values: V(s_t), same shape
    :param episode_starts: whether row t starts an episode, same shape
    :param last_values: V of the state after the last row, shape (n_envs,)
    :param last_dones: whether the episode ended with the last row, shape (n_envs,)
    :param gamma: discount factor γ
    :param lambda_: λ in [0, 1]
    :return: R_t, shape (n_steps, n_envs)
    """
    _same_shape(rewards=rewards, values=values, episode_starts=episode_starts)
    goes_on = 1.0 - np.concatenate([episode_starts[1:], last_dones[None]]).astype(np.float64)
    next_values = np.concatenate([values[1:], last_values[None]])
    b = rewards + gamma * (1.0 - lambda_) * goes_on * next_values
    b[-1] = rewards[-1] + gamma * goes_on[-1] * last_values
    # contiguous, because torch takes no array that runs backwards
    return np.ascontiguousarray(linear_recurrence((gamma * lambda_ * goes_on)[::-1], b[::-1])[::-1])


def ratio(estimates: np.ndarray) -> np.ndarray:
    """
    ĉ(s) = f(s) / mean f: a density ratio has mean 1 under the distribution it was sampled from.

    :param estimates: f(s), non-negative
    :return: ĉ(s); all 1 if the estimates are all zero
    """
    mean = np.mean(estimates, dtype=np.float64)
    return estimates / mean if mean > 0.0 else np.ones_like(estimates)


class RunningMean:
    """
    Mean over recent samples.

    :param memory: number of samples over which earlier ones are forgotten by a factor e
    """

    def __init__(self, memory: float) -> None:
        self.memory = memory
        self.sum = self.count = 0.0

    def update(self, samples: np.ndarray) -> None:
        """
        Take in new samples.

        :param samples: new samples
        """
        forget = np.exp(-samples.size / self.memory)
        self.sum = float(forget * self.sum + samples.sum())
        self.count = float(forget * self.count + samples.size)

    @property
    def value(self) -> float:
        """The mean; 1 as long as there is none to divide by."""
        return self.sum / self.count if self.sum > 0.0 else 1.0


def parameter_average(memory: float, n_samples: int) -> Callable[[th.Tensor, th.Tensor, th.Tensor | int], th.Tensor]:
    """
    How to average the correction's parameters over fits (for torch's ``AveragedModel``): at first over the later half of
    them or so, then with a memory of some samples. A fit follows the few episodes of its rollout; the average forgets which
    ones they were.

    :param memory: number of samples over which earlier fits are forgotten by a factor e
    :param n_samples: number of samples of a rollout
    :return: the function that takes one more fit into the average
    """
    return partial(_average, least=-np.expm1(-n_samples / memory))


def _average(averaged: th.Tensor, current: th.Tensor, n_fits: th.Tensor | int, *, least: float) -> th.Tensor:
    return th.lerp(averaged, current, max(2.0 / (int(n_fits) + 2), least))


def effective_sample_size(weights: np.ndarray) -> float:
    """
    Share of the samples that would say as much if all had the same weight, (Σw)² / (n·Σw²).

    :param weights: non-negative weights
    :return: a number in (0, 1]; 0 if all weights are zero
    """
    squares = np.sum(np.square(weights, dtype=np.float64))
    return float(np.square(np.sum(weights, dtype=np.float64)) / (weights.size * squares)) if squares > 0.0 else 0.0


class Shrinkage:
    r"""
    How far to trust the estimate: the slope k of γ^t/mean on ĉ(s), over rollouts the estimate was *not* fitted to.

    A calibrated ĉ has slope 1; one that is mostly noise has a slope near 0, because noise does not predict. The weight
    1 + k·(ĉ - 1) is the best linear forecast of γ^t/mean from ĉ; it leaves a good estimate alone and draws one that
    says nothing towards 1, the uncorrected weight. The slope itself is known only as well as there were episodes (samples of
    one episode are far from independent), so it counts in full where it is three standard errors away from 0, and not at
    all below one and a half.

    :param memory: number of samples over which earlier rollouts are forgotten by a factor e
    """

    #: standard errors from 0 at which the slope begins to count, and counts in full
    DOUBT, TRUST = 1.5, 3.0

    def __init__(self, memory: float) -> None:
        self.memory = memory
        # sums over episodes of their covariance C and variance V: [C, V] and [C², CV, V²]
        self.first = np.zeros(2)
        self.second = np.zeros(3)

    def update(self, weights: np.ndarray, powers: np.ndarray, steps: np.ndarray) -> None:
        """
        Take in a rollout that the estimate was not yet fitted to.

        :param weights: ĉ(s) on a rollout, before it is fitted to that rollout, shape (n_steps, n_envs)
        :param powers: γ^t on the same rollout, divided by their mean
        :param steps: t on the same rollout
        """
        u, v = weights - 1.0, powers - 1.0
        first_row = np.zeros(steps.shape, dtype=bool)
        first_row[0] = True
        episode = np.cumsum(((steps == 0) | first_row).T) - 1  # environment by environment
        c = np.bincount(episode, weights=(u * v).T.ravel())
        w = np.bincount(episode, weights=(u * u).T.ravel())
        forget = np.exp(-u.size / self.memory)
        self.first = forget * self.first + [c.sum(), w.sum()]
        self.second = forget**2 * self.second + [c @ c, c @ w, w @ w]

    @property
    def factor(self) -> float:
        """k in [0, 1]; 1 as long as nothing is known."""
        if self.first[1] <= 0.0:
            return 1.0
        slope = self.first[0] / self.first[1]
        error = np.sqrt(max(self.second @ [1.0, -2.0 * slope, slope**2], 0.0)) / self.first[1]
        trust = (slope - self.DOUBT * error) / ((self.TRUST - self.DOUBT) * error) if error > 0.0 else float(slope > 0.0)
        return float(np.clip(trust, 0.0, 1.0) * np.clip(slope, 0.0, 1.0))

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """
        :param weights: ĉ(s)
        :return: ĉ(s) drawn towards 1
        """
        return 1.0 + self.factor * (weights - 1.0)


class CorrectionNetwork(nn.Module):
    r"""
    The estimate f(s) of E[γ^t | s]: layers of its own (none, if it is a head on the critic's), and a positive output.

    - ``"bce"``: f = sigmoid(z), cross-entropy. γ^t lies in (0, 1], so its optimum is E[γ^t | s] too.
    - ``"mse"``: f = softplus(z) / scale, squared error of softplus(z) against scale·γ^t, as in the paper, whose ReLU
      can die (output 0 everywhere, no gradient); softplus cannot.

    The output starts constant, at the mean of the targets (:meth:`calibrate`): no correction until one is learned.

    :param input_dim: size of the input
    :param net_arch: sizes of the network's own hidden layers
    :param activation_fn: activation between them
    :param loss: ``"bce"`` or ``"mse"``
    :param scale: factor of the target under ``"mse"``
    """

    calibration: th.Tensor

    def __init__(
        self, input_dim: int, net_arch: list[int], activation_fn: type[nn.Module], loss: CorrectionLoss, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.loss_name = loss
        self.scale = scale
        self.body = nn.Sequential(*create_mlp(input_dim, -1, net_arch, activation_fn))
        self.head = nn.Linear(net_arch[-1] if net_arch else input_dim, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.register_buffer("calibration", th.tensor(0.0))

    def forward(self, inputs: th.Tensor) -> th.Tensor:
        """
        Evaluate the network.

        :param inputs: shape (n, input_dim)
        :return: z, the output before sigmoid or softplus, shape (n,)
        """
        return self.head(self.body(inputs)).squeeze(-1)

    def estimates(self, z: np.ndarray) -> np.ndarray:
        """
        Turn the network's output into f(s).

        :param z: what :meth:`forward` gave
        :return: f(s), in double precision: weights are relative, so small ones must not become 0
        """
        z = np.asarray(z, dtype=np.float64)
        # sigmoid and softplus in the forms that neither overflow nor lose small values
        return np.exp(-np.logaddexp(0.0, -z)) if self.loss_name == "bce" else np.logaddexp(0.0, z) / self.scale

    def loss(self, z: th.Tensor, targets: th.Tensor) -> th.Tensor:
        """
        Compute the loss of the regression.

        :param z: what :meth:`forward` gave
        :param targets: y, estimates of γ^t
        :return: the mean loss
        """
        if self.loss_name == "bce":
            return F.binary_cross_entropy_with_logits(z, targets)
        return F.mse_loss(F.softplus(z), self.scale * targets)

    @th.no_grad()
    def shift(self, amount: float) -> None:
        """
        Move the output's bias.

        :param amount: what to add to z
        """
        self.head.bias.add_(amount)

    @th.no_grad()
    def calibrate(self, mean_target: float) -> float:
        """
        Shift the output's bias so that a constant f follows the mean target; the first time it is set to it.

        :param mean_target: mean of the targets y
        :return: the shift
        """
        if self.loss_name == "bce":
            mean = float(np.clip(mean_target, 1e-6, 1.0 - 1e-6))
            bias = np.log(mean / (1.0 - mean))
        else:
            # inverse of softplus, in the form that does not overflow
            mean = max(self.scale * mean_target, 1e-6)
            bias = mean + np.log(-np.expm1(-mean))
        shift = float(bias - self.calibration)
        self.shift(shift)
        self.calibration.fill_(bias)
        return shift
