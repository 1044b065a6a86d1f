"""The regression behind the correction, step by step: what the estimator needs of it, and its form in torch."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch as th
from stable_baselines3.common.utils import update_learning_rate

from sb3_avgcorr.common.correction import CorrectionNetwork
from sb3_avgcorr.common.critic import CriticLayers, gradient_step

#: rows the correction is evaluated on at once
ESTIMATION_BATCH = 4096


class Regression(Protocol):
    """Something that evaluates the correction's network and makes gradient steps on it."""

    def prepare(self, features: th.Tensor) -> Any:
        """
        Bring features into the form that the other methods take; its rows can be chosen by an array of indices.

        :param features: shape (n, features_dim)
        :return: the same features
        """

    def outputs(self, features: Any) -> np.ndarray:
        """
        Evaluate the network.

        :param features: of :meth:`prepare`
        :return: z, its output before sigmoid or softplus, shape (n,)
        """

    def step(self, features: Any, targets: np.ndarray, learning_rate: float, returns: np.ndarray | None) -> float:
        """
        Make one gradient step.

        :param features: rows of :meth:`prepare`
        :param targets: y, estimates of γ^t
        :param learning_rate: learning rate
        :param returns: the critic's targets, where the network shares its layers
        :return: the correction's loss before the step
        """


class TorchRegression:
    """
    The regression by torch: for every device, and for a network that shares the critic's layers.

    :param network: the network
    :param optimizer: its optimiser, which also has the shared layers; None: only to be evaluated
    :param critic: the layers that it shares, if any
    """

    def __init__(
        self,
        network: CorrectionNetwork,
        optimizer: th.optim.Optimizer | None = None,
        critic: CriticLayers | None = None,
    ) -> None:
        self.network, self.optimizer, self.critic = network, optimizer, critic
        #: weights of the value loss and of the correction's, where both are fitted together
        self.coefficients = (1.0, 1.0)
        self._own = list(network.parameters())
        self._fitted = self._own if critic is None else [*critic.parameters, *self._own]

    def prepare(self, features: th.Tensor) -> th.Tensor:
        return features

    @th.no_grad()
    def outputs(self, features: th.Tensor) -> np.ndarray:
        # piece by piece: hidden layers of a long rollout would need more memory than all of SB3
        pieces = [self.network(self._latent(piece)) for piece in features.split(ESTIMATION_BATCH)]
        return th.cat(pieces).cpu().numpy()

    def step(self, features: th.Tensor, targets: np.ndarray, learning_rate: float, returns: np.ndarray | None) -> float:
        assert self.optimizer is not None
        update_learning_rate(self.optimizer, learning_rate)
        latent = self._latent(features)
        correction_loss = self.network.loss(self.network(latent), self._tensor(targets, features))
        loss = correction_loss
        if self.critic is not None and self.critic.parameters and returns is not None:
            of_value, of_correction = self.coefficients
            loss = of_value * self.critic.loss(latent, self._tensor(returns, features)) + of_correction * correction_loss
        gradient_step(self.optimizer, loss, self._fitted)
        return correction_loss.item()

    def _latent(self, features: th.Tensor) -> th.Tensor:
        return features if self.critic is None else self.critic.latent(features)

    @staticmethod
    def _tensor(array: np.ndarray, like: th.Tensor) -> th.Tensor:
        return th.as_tensor(array, dtype=th.float32, device=like.device)
