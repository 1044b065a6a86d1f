"""The estimator of the correction ĉ(s): a regression of γ^t on features of the state, with no algorithm around it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch as th
from torch import nn
from torch.optim.swa_utils import AveragedModel

from sb3_avgcorr.common.correction import (
    CorrectionNetwork,
    RunningMean,
    Shrinkage,
    correction_targets,
    parameter_average,
    ratio,
)
from sb3_avgcorr.common.critic import CriticLayers
from sb3_avgcorr.common.options import CorrectionOptions
from sb3_avgcorr.common.regression import Regression, TorchRegression

#: number of samples over which the correction forgets earlier rollouts
MEMORY = 15_000.0
#: number of samples from which the mean of γ^t is known well enough
CALIBRATION_SAMPLES = 2_048
#: samples a fit should see, and the most passes over a rollout that it makes for them
FITTED_SAMPLES, MOST_PASSES = 10_240, 5

State = dict[str, Any]


def passes(n_samples: int) -> int:
    """
    How many passes over a rollout fit the correction, where the user has not said: a long rollout needs fewer.

    :param n_samples: samples of the rollout
    :return: number of passes
    """
    return max(1, min(MOST_PASSES, round(FITTED_SAMPLES / n_samples)))


class CorrectionEstimator:
    """
    Learns c(s) = d_{π,γ}(s) / d_π(s) from rollouts.

    Each rollout is first shown to :meth:`observe`, then :meth:`fit` to; :meth:`weights` gives ĉ on it, and :meth:`ratio`
    on any other states::

        estimator = CorrectionEstimator(CorrectionOptions(), input_dim=2, gamma=0.99)
        estimator.observe(features, steps)
        estimator.fit(features, steps)
        weights = estimator.weights(features)

    :param options: the correction's options; they are read when they are used, so that they may change meanwhile
    :param input_dim: number of features
    :param gamma: discount factor γ
    :param net_arch: sizes of the network's own hidden layers, with ReLU behind them; of no use where it shares the critic's
    :param rollout_size: number of samples of a rollout, for the memory of averages
    :param critic: the layers to share; their latent is the network's input then
    :param device: device of the network
    :param rng: draws the order of the samples
    """

    def __init__(
        self,
        options: CorrectionOptions,
        input_dim: int,
        gamma: float,
        *,
        net_arch: Sequence[int] = (32, 32),
        rollout_size: int = 2048,
        critic: CriticLayers | None = None,
        device: th.device | str = "cpu",
        rng: np.random.Generator | None = None,
    ) -> None:
        self.options, self.gamma = options, gamma
        self.rng = rng or np.random.default_rng(0)
        device = th.device(device)
        # The network's initial weights must not be drawn from the streams that SB3 draws from.
        with th.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            layers = list(net_arch) if critic is None else []
            self.network = CorrectionNetwork(input_dim, layers, nn.ReLU, options.correction_loss, options.correction_scale).to(
                device
            )
        #: the network with its parameters averaged over fits; None if it is not averaged
        self.average: AveragedModel | None = None
        if critic is None and options.correction_averaging:
            self.average = AveragedModel(self.network, avg_fn=parameter_average(MEMORY, rollout_size))
            # a count as a real number: whoever goes through `get_parameters()` expects nothing else
            self.average.n_averaged = self.average.n_averaged.float()
        shared = [] if critic is None else critic.parameters
        self.optimizer = th.optim.Adam([*shared, *self.network.parameters()])
        #: how the network is evaluated and fitted
        self.regression: Regression = TorchRegression(self.network, self.optimizer, critic)
        self._averaged: Regression = self.regression
        if self.average is not None:
            self._averaged = TorchRegression(cast(CorrectionNetwork, self.average.module))
        self._mean_power, self._mean_estimate = RunningMean(MEMORY), RunningMean(MEMORY)
        self._shrinkage = Shrinkage(MEMORY)
        #: number of samples until which the output follows the mean of γ^t
        self.calibration_samples = CALIBRATION_SAMPLES
        #: what f is divided by to give ĉ; None before the first rollout
        self.mean: float | None = None
        #: the loss of the last fit, mean over its steps
        self.loss: float | None = None

    def use(self, regression: Regression, averaged: Regression | None) -> None:
        """
        Evaluate and fit the network by other means, on the same parameters.

        :param regression: for the network, with its optimiser
        :param averaged: for the averaged network, if there is one
        """
        self.regression = regression
        self._averaged = regression if averaged is None else averaged

    @property
    def shrinkage(self) -> float:
        """How far ĉ is trusted, from 0 (drawn to 1) to 1 (left as it is)."""
        return self._shrinkage.factor if self.options.correction_shrinkage else 1.0

    @property
    def tested(self) -> bool:
        """Whether ĉ has forecast a rollout that it was not fitted to, or is not to be tested so."""
        return not self.options.correction_shrinkage or self._shrinkage.first[1] > 0.0

    # Learning

    def observe(self, features: th.Tensor, steps: np.ndarray) -> None:
        """
        Take in a rollout before it is fitted: the mean of γ^t, and how well ĉ predicts it.

        :param features: one row a sample
        :param steps: t, shape (n_steps, n_envs), whose rows are those of the features
        """
        powers = np.power(self.gamma, steps)
        self._mean_power.update(powers)
        if self.options.correction_shrinkage and self._mean_estimate.count > 0.0:
            estimates = self.estimates(features).reshape(steps.shape)
            # both divided by their means over recent rollouts: one alone may hold only early or only late steps
            self._shrinkage.update(estimates / self._mean_estimate.value, powers / self._mean_power.value, steps)

    def fit(
        self,
        features: th.Tensor,
        steps: np.ndarray,
        learning_rate: float = 1.6e-2,
        *,
        returns: np.ndarray | None = None,
        coefficients: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """
        Fit the correction to a rollout that was observed.

        :param features: one row a sample
        :param steps: t, shape (n_steps, n_envs), whose rows are those of the features
        :param learning_rate: learning rate
        :param returns: the critic's targets, same shape, where the correction shares its layers
        :param coefficients: weights of the value loss and of the correction's, where both are fitted together
        """
        options, regression = self.options, self.regression
        self._calibrate(steps.size)
        if returns is not None and isinstance(regression, TorchRegression):
            regression.coefficients = coefficients
            returns = returns.reshape(-1)
        rows = regression.prepare(features)
        targets = np.power(self.gamma, steps)
        losses = []
        epochs = options.correction_epochs
        for _ in range(passes(steps.size) if epochs is None else epochs):
            if options.correction_lambda < 1.0:
                estimates = self.network.estimates(regression.outputs(rows)).reshape(steps.shape)
                targets = correction_targets(steps, estimates, self.gamma, options.correction_lambda)
            flat = targets.reshape(-1).astype(np.float32)
            for batch in self._batches(len(flat)):
                values = None if returns is None else returns[batch]
                losses.append(regression.step(rows[batch], flat[batch], learning_rate, values))
        self.loss = float(np.mean(losses)) if losses else None
        if losses and self.average is not None:
            self.average.update_parameters(self.network)

    def _batches(self, n_samples: int) -> Iterator[np.ndarray]:
        order = self.rng.permutation(n_samples)
        size = min(self.options.correction_batch_size or n_samples, n_samples)
        return (order[start : start + size] for start in range(0, n_samples, size))

    def _calibrate(self, n_samples: int) -> None:
        """
        Until the mean of γ^t is known from enough samples (the first short rollouts hold only the first steps of episodes),
        let the correction follow it, faster than its fit would.
        """
        if self._mean_power.count - n_samples < self.calibration_samples:
            shift = self.network.calibrate(self._mean_power.value)
            if self.average is not None:
                cast(CorrectionNetwork, self.average.module).shift(shift)

    # What was learned

    def estimates(self, features: th.Tensor) -> np.ndarray:
        """
        Estimate E[γ^t | s].

        :param features: one row a state
        :return: f(s), shape (n,)
        """
        averaged = self.average is not None and self.average.n_averaged > 0
        regression = self._averaged if averaged else self.regression
        return self.network.estimates(regression.outputs(regression.prepare(features)))

    def weights(self, features: th.Tensor) -> np.ndarray:
        """
        Give ĉ on the rollout, and remember its mean estimate, which makes it a ratio on other states too.

        :param features: one row a sample
        :return: ĉ(s), shape (n,), with mean 1 (over recent rollouts if they are normalised so) before it is shrunk
        """
        estimates = self.estimates(features)
        finite = np.isfinite(estimates)
        if not finite.all():
            warnings.warn("The correction's estimate is not finite; samples where it is not get a weight of 1.", stacklevel=2)
            estimates = np.where(finite, estimates, estimates[finite].mean() if finite.any() else 1.0)
        self._mean_estimate.update(estimates)
        running = self.options.normalize_correction == "running"
        self.mean = self._mean_estimate.value if running else float(estimates.mean())
        return self._ratio(estimates)

    def ratio(self, features: th.Tensor) -> np.ndarray:
        """
        Estimate d_{π,γ}(s) / d_π(s).

        :param features: one row a state
        :return: ĉ(s), shape (n,); all 1 if nothing was learned yet
        """
        return np.ones(len(features)) if self.mean is None else self._ratio(self.estimates(features))

    def _ratio(self, estimates: np.ndarray) -> np.ndarray:
        if not self.mean:  # all of f has vanished
            return np.ones_like(estimates)
        return 1.0 + self.shrinkage * (estimates / self.mean - 1.0)

    # State

    def get_state(self) -> State:
        """
        Give all that was learned as plain values and arrays, for a file that needs no class of ours to be read.

        :return: the state
        """
        return {
            "network": as_arrays(self.network.state_dict()),
            "average": None if self.average is None else as_arrays(self.average.state_dict()),
            "optimizer": as_arrays(self.optimizer.state_dict()),
            "rng": self.rng.bit_generator.state,
            "mean_power": [self._mean_power.sum, self._mean_power.count],
            "mean_estimate": [self._mean_estimate.sum, self._mean_estimate.count],
            "shrinkage": [self._shrinkage.first, self._shrinkage.second],
            "mean": self.mean,
        }

    def set_state(self, state: State) -> None:
        """
        Take what another estimator of the same shape has learned.

        :param state: of :meth:`get_state`; a ValueError says that it does not fit
        """
        try:
            if (self.average is None) != (state["average"] is None):
                raise ValueError("only one of the two is averaged")
            own, given = (
                {k: np.shape(v) for k, v in network.items()} for network in (self.network.state_dict(), state["network"])
            )
            if own != given:  # torch would load what fits of it
                raise ValueError("its layers are others")
            self.network.load_state_dict(as_tensors(state["network"]))
            if self.average is not None:
                self.average.load_state_dict(as_tensors(state["average"]))
            self.optimizer.load_state_dict(as_tensors(state["optimizer"]))
        except (KeyError, RuntimeError, ValueError) as error:
            raise ValueError(f"The state is of another correction: {error}") from error
        self.rng.bit_generator.state = state["rng"]
        self._mean_power.sum, self._mean_power.count = state["mean_power"]
        self._mean_estimate.sum, self._mean_estimate.count = state["mean_estimate"]
        self._shrinkage.first, self._shrinkage.second = (np.array(array) for array in state["shrinkage"])
        self.mean = state["mean"]


class PowerWeights:
    """
    Gives the weights of ``correction="power"``: γ^t itself, in place of its regression on the state.

    :param options: the correction's options
    :param gamma: discount factor γ
    """

    def __init__(self, options: CorrectionOptions, gamma: float) -> None:
        self.options, self.gamma = options, gamma
        self._mean_power = RunningMean(MEMORY)

    def __call__(self, steps: np.ndarray) -> tuple[np.ndarray, float]:
        """
        Weight a rollout.

        :param steps: t, shape (n_steps, n_envs)
        :return: γ^t divided by its mean, same shape, and the mean
        """
        powers = np.power(self.gamma, steps)
        self._mean_power.update(powers)
        if self.options.normalize_correction == "running":
            return powers / self._mean_power.value, self._mean_power.value
        # γ^t relative to the largest: the same after normalisation, and not all vanish however long the episode
        return ratio(np.power(self.gamma, steps - steps.min())), float(powers.mean())

    def get_state(self) -> State:
        """
        Give the state as plain values.

        :return: the state
        """
        return {"mean_power": [self._mean_power.sum, self._mean_power.count]}

    def set_state(self, state: State) -> None:
        """
        Take the state of another.

        :param state: of :meth:`get_state`
        """
        self._mean_power.sum, self._mean_power.count = state["mean_power"]


def as_arrays(value: Any) -> Any:
    """
    Turn tensors into arrays, for a file that needs no torch class to be read.

    :param value: a tensor, or containers of tensors and plain values
    :return: the same with arrays
    """
    if isinstance(value, th.Tensor):
        return value.detach().cpu().numpy().copy()
    if isinstance(value, Mapping):
        return {key: as_arrays(item) for key, item in value.items()}
    return [as_arrays(item) for item in value] if isinstance(value, (list, tuple)) else value


def as_tensors(value: Any) -> Any:
    """
    Undo :func:`as_arrays`.

    :param value: an array, or containers of arrays and plain values
    :return: the same with tensors
    """
    if isinstance(value, np.ndarray):
        return th.from_numpy(value.copy())
    if isinstance(value, Mapping):
        return {key: as_tensors(item) for key, item in value.items()}
    return [as_tensors(item) for item in value] if isinstance(value, list) else value
