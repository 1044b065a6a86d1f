r"""
Action distributions on the actor's output y: log-probability, entropy, their derivatives, and samples.

| | log π(a) | ∂/∂y | entropy H | ∂H/∂y |
|---|---|---|---|---|
| Gaussian, mean y, σ | -½Σz² - Σ log σ - ½d·log 2π, z = (a-y)/σ | z/σ | Σ log σ + ½d·(1 + log 2π) | 0 |
| categorical, logits y, p = softmax(y) | log p_a | 1{a} - p | -Σ p log p | -p·(log p + H) |
| Bernoulli, logits y, p = sigmoid(y) | Σ a·y - log(1 + e^y) | a - p | Σ log(1 + e^y) - p·y | -y·p·(1-p) |

The Gaussian's log σ is a parameter: ∂ log π/∂ log σ = z² - 1 and ∂H/∂ log σ = 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch as th
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from sb3_avgcorr.fast.mlp import sigmoid

LOG_2PI = math.log(2.0 * math.pi)
LOWEST = np.finfo(np.float32).min


class Head(ABC):
    """An action distribution. :meth:`evaluate` comes first; :meth:`entropy` and :meth:`backward` are about its arguments."""

    #: parameters beside the actor's layers
    parameters: Sequence[nn.Parameter] = ()

    def bind(self, arrays: Mapping[nn.Parameter, np.ndarray]) -> None:  # noqa: B027  # most heads have no parameters
        """
        Tell the head where the values of its parameters lie.

        :param arrays: an array for each parameter
        """

    @abstractmethod
    def evaluate(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """
        Log-probabilities of actions.

        :param outputs: y, shape (n, outputs)
        :param actions: float32, shape (n, action_dim)
        :return: log π(a), shape (n,)
        """

    @abstractmethod
    def entropy(self) -> np.ndarray | float:
        """
        Entropy of each distribution.

        :return: H, shape (n,), or one number for all
        """

    @abstractmethod
    def backward(self, d_log_prob: np.ndarray, d_entropy: float, gradients: Mapping[nn.Parameter, np.ndarray]) -> np.ndarray:
        """
        Derivative of a loss with respect to the actor's output.

        :param d_log_prob: ∂L/∂ log π(a) of each row, shape (n,)
        :param d_entropy: ∂L/∂H, the same for each row
        :param gradients: where to write the gradients of the head's own parameters
        :return: ∂L/∂y, shape (n, outputs)
        """

    @abstractmethod
    def sample(self, outputs: np.ndarray) -> np.ndarray:
        """
        Draw actions from torch's random stream, as many numbers and the same ones as SB3's distribution draws.

        :param outputs: y, shape (n, outputs)
        :return: actions, a new array
        """


class Gaussian(Head):
    """
    Independent normal distributions; their standard deviation does not depend on the state.

    :param log_std: log σ
    """

    def __init__(self, log_std: nn.Parameter) -> None:
        self.parameters = (log_std,)
        self._log_std = np.empty(0)
        self._ones = np.ones(len(log_std), np.float32)
        self._noise = th.empty(0)
        self._inverse = self._z = self._squares = np.empty(0)

    def bind(self, arrays: Mapping[nn.Parameter, np.ndarray]) -> None:
        self._log_std = arrays[self.parameters[0]]

    def evaluate(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        self._inverse = np.exp(-self._log_std)
        self._z = (actions - outputs) * self._inverse
        self._squares = self._z * self._z
        log_prob = self._squares.dot(self._ones)
        log_prob *= -0.5
        log_prob -= self._log_std.dot(self._ones) + 0.5 * len(self._ones) * LOG_2PI
        return log_prob

    def entropy(self) -> float:
        return float(self._log_std.dot(self._ones)) + 0.5 * len(self._ones) * (1.0 + LOG_2PI)

    def backward(self, d_log_prob: np.ndarray, d_entropy: float, gradients: Mapping[nn.Parameter, np.ndarray]) -> np.ndarray:
        of_log_std = gradients.get(self.parameters[0])
        if of_log_std is not None:
            np.dot(d_log_prob, self._squares, out=of_log_std)
            of_log_std += len(d_log_prob) * d_entropy - np.add.reduce(d_log_prob)
        delta = self._z * self._inverse
        delta *= d_log_prob[:, None]
        return delta

    def sample(self, outputs: np.ndarray) -> np.ndarray:
        if self._noise.shape != outputs.shape:
            self._noise = th.empty(outputs.shape)
        actions = self._noise.normal_().numpy() * np.exp(self._log_std)
        actions += outputs
        return actions


class Categorical(Head):
    """One choice among several."""

    def __init__(self) -> None:
        self._noise = th.empty(0)
        self._probs = self._log_probs = self._entropy = np.empty(0)
        self._chosen = np.empty(0, np.intp)

    def evaluate(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        n, k = outputs.shape
        log_probs = outputs - np.maximum.reduce(outputs, axis=1, keepdims=True)
        probs = np.exp(log_probs)
        total = np.add.reduce(probs, axis=1, keepdims=True)
        probs /= total
        log_probs -= np.log(total)
        self._probs, self._log_probs = probs, log_probs
        self._chosen = actions.ravel().astype(np.intp)
        self._chosen += np.arange(0, n * k, k)  # in the flattened array
        return log_probs.ravel().take(self._chosen)

    def entropy(self) -> np.ndarray:
        # an action whose probability is 0 (a logit of minus infinity) adds nothing
        np.maximum(self._log_probs, LOWEST, out=self._log_probs)
        self._entropy = -np.add.reduce(self._probs * self._log_probs, axis=1)
        return self._entropy

    def backward(self, d_log_prob: np.ndarray, d_entropy: float, gradients: Mapping[nn.Parameter, np.ndarray]) -> np.ndarray:
        delta = self._probs * -d_log_prob[:, None]
        delta.ravel()[self._chosen] += d_log_prob
        if d_entropy != 0.0:
            self._log_probs += self._entropy[:, None]
            self._log_probs *= self._probs
            self._log_probs *= d_entropy
            delta -= self._log_probs
        return delta

    def sample(self, outputs: np.ndarray) -> np.ndarray:
        # torch.multinomial takes the largest p/q with q exponential: the largest log p - log q
        if self._noise.shape != outputs.shape:
            self._noise = th.empty(outputs.shape)
        return (outputs - np.log(self._noise.exponential_().numpy())).argmax(axis=1)


class MultiCategorical(Head):
    """
    Several independent choices.

    :param sizes: among how many each of them is
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = np.cumsum([0, *sizes])
        self._parts = [(Categorical(), slice(a, b)) for a, b in pairwise(ends)]

    def evaluate(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        chosen = actions.T
        return np.sum([head.evaluate(outputs[:, part], chosen[i]) for i, (head, part) in enumerate(self._parts)], axis=0)

    def entropy(self) -> np.ndarray:
        return np.sum([head.entropy() for head, _ in self._parts], axis=0)

    def backward(self, d_log_prob: np.ndarray, d_entropy: float, gradients: Mapping[nn.Parameter, np.ndarray]) -> np.ndarray:
        return np.concatenate([head.backward(d_log_prob, d_entropy, gradients) for head, _ in self._parts], axis=1)

    def sample(self, outputs: np.ndarray) -> np.ndarray:
        return np.stack([head.sample(outputs[:, part]) for head, part in self._parts], axis=1)


class Bernoulli(Head):
    """Several independent choices between 0 and 1."""

    def __init__(self) -> None:
        self._logits = self._probs = self._actions = np.empty(0)

    def evaluate(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        self._logits, self._probs, self._actions = outputs, sigmoid(outputs), actions
        return np.add.reduce(actions * outputs - np.logaddexp(0.0, outputs), axis=1)

    def entropy(self) -> np.ndarray:
        return np.add.reduce(np.logaddexp(0.0, self._logits) - self._probs * self._logits, axis=1)

    def backward(self, d_log_prob: np.ndarray, d_entropy: float, gradients: Mapping[nn.Parameter, np.ndarray]) -> np.ndarray:
        delta = d_log_prob[:, None] * (self._actions - self._probs)
        if d_entropy != 0.0:
            delta -= np.float32(d_entropy) * self._logits * self._probs * (1.0 - self._probs)
        return delta

    def sample(self, outputs: np.ndarray) -> np.ndarray:
        return th.bernoulli(th.from_numpy(sigmoid(outputs))).numpy()


def head_of(policy: ActorCriticPolicy) -> Head | None:
    """
    The head of a policy's actor.

    :param policy: the policy
    :return: its distribution; None if it is not one of those known here
    """
    distribution = policy.action_dist
    if type(distribution) is DiagGaussianDistribution:
        # the buffer cuts off the digits of actions in a space of integers, whose log-probabilities would be others
        return Gaussian(policy.log_std) if np.issubdtype(policy.action_space.dtype, np.floating) else None
    if type(distribution) is CategoricalDistribution:
        return Categorical()
    if type(distribution) is MultiCategoricalDistribution:
        return MultiCategorical(distribution.action_dims)
    if type(distribution) is BernoulliDistribution:
        return Bernoulli()
    return None
