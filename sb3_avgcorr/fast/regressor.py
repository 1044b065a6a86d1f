r"""
A regression on the state by a network with one output z, trained by Adam: the correction's fit.

| loss | estimate f(z) | of target y | ∂/∂z, over n samples |
|---|---|---|---|
| ``"bce"`` | sigmoid(z) | log(1 + e^z) - y·z | (f - y)/n |
| ``"mse"`` | softplus(z) | (f - s·y)² | 2·(f - s·y)·sigmoid(z)/n |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, cast

import numpy as np
import torch as th
from torch import nn

from sb3_avgcorr.common.correction import CorrectionNetwork
from sb3_avgcorr.common.estimator import CorrectionEstimator
from sb3_avgcorr.fast.mlp import Mlp, evaluate, layers_of, sigmoid
from sb3_avgcorr.fast.parameters import FlatParameters, optimizer_served, parameter_served


class Regressor:
    """
    A network and its optimiser on flat arrays, which the given torch modules and optimiser are views of.

    :param mlp: the network
    :param optimizer: an Adam that has its parameters, among others perhaps
    :param loss: ``"bce"`` or ``"mse"``
    :param scale: s, the factor of the targets under ``"mse"``
    """

    def __init__(
        self, mlp: Mlp, optimizer: th.optim.Optimizer, loss: Literal["bce", "mse"] = "bce", scale: float = 1.0
    ) -> None:
        self.mlp, self.loss, self.scale = mlp, loss, scale
        self.parameters = FlatParameters(mlp.parameters, optimizer)
        mlp.bind(self.parameters.arrays)
        self._gradients = mlp.gradients(self.parameters.gradients)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy has arrays of its own, which the copied modules become views of.
        return type(self), (Mlp(self.mlp.layers), self.parameters.optimizer, self.loss, self.scale)

    @classmethod
    def of(
        cls,
        modules: Iterable[nn.Module],
        optimizer: th.optim.Optimizer,
        loss: Literal["bce", "mse"] = "bce",
        scale: float = 1.0,
    ) -> Regressor | None:
        """
        Read a network.

        :param modules: applied one after the other; the last has one output
        :param optimizer: the optimiser that has their parameters
        :param loss: ``"bce"`` or ``"mse"``
        :param scale: factor of the targets under ``"mse"``
        :return: the regression; None if the network or the optimiser is of a kind that is not served here
        """
        layers = layers_of(modules)
        if layers is None or not optimizer_served(optimizer):
            return None
        mlp = Mlp(layers)
        return cls(mlp, optimizer, loss, scale) if all(map(parameter_served, mlp.parameters)) else None

    def adopt(self) -> bool:
        """
        Take over parameters and moments that were replaced, as by ``load_state_dict``. Call it before a fit.

        :return: whether the fit can be done here
        """
        return optimizer_served(self.parameters.optimizer) and self.parameters.adopt() and self.parameters.adopt_moments()

    def outputs(self, features: np.ndarray) -> np.ndarray:
        """
        Evaluate the network.

        :param features: float32, shape (n, inputs)
        :return: z, shape (n,)
        """
        self.parameters.adopt()
        return self.mlp.evaluate(features)[:, 0]

    def step(self, features: np.ndarray, targets: np.ndarray) -> float:
        """
        One step of the optimiser, with its learning rate, on the loss of a minibatch; :meth:`adopt` comes before the first.

        :param features: float32, shape (n, inputs)
        :param targets: y, float32, shape (n,)
        :return: the loss before the step
        """
        z = self.mlp.forward(features)[:, 0]
        slope = sigmoid(z)
        n = len(z)
        softplus: np.ndarray = np.logaddexp(0.0, z)
        if self.loss == "bce":
            loss = (np.add.reduce(softplus) - z.dot(targets)) / n
            delta = (slope - targets) / n
        else:
            error = softplus - self.scale * targets
            loss = error.dot(error) / n
            delta = (2.0 / n) * error * slope
        self.mlp.backward(delta[:, None], self._gradients)
        self.parameters.step()
        return float(loss)


class NumpyRegression:
    """
    The estimator's :class:`~sb3_avgcorr.common.regression.Regression` in numpy, on the same parameters.

    :param network: the network
    :param regressor: fits it; None: it is only evaluated
    """

    def __init__(self, network: CorrectionNetwork, regressor: Regressor | None = None) -> None:
        self.network, self.regressor = network, regressor

    def prepare(self, features: th.Tensor) -> np.ndarray:
        if self.regressor is not None:
            self.regressor.adopt()
        return features.numpy()

    def outputs(self, features: np.ndarray) -> np.ndarray:
        if self.regressor is not None:
            return self.regressor.outputs(features)
        outputs = evaluate([self.network.body, self.network.head], features)
        assert outputs is not None, "the network is that of the regressor, which was served"
        return outputs[:, 0]

    def step(self, features: np.ndarray, targets: np.ndarray, learning_rate: float, returns: np.ndarray | None) -> float:
        assert self.regressor is not None, "this network is only evaluated"
        for group in self.regressor.parameters.optimizer.param_groups:
            group["lr"] = learning_rate
        return self.regressor.step(features, targets)


def use_numpy(estimator: CorrectionEstimator) -> bool:
    """
    Let an estimator evaluate and fit its own network in numpy, if that is the same computation.

    :param estimator: an estimator that shares no layers with a critic
    :return: whether it does so now
    """
    network = estimator.network
    if network.head.weight.device.type != "cpu":
        return False
    modules = [network.body, network.head]
    regressor = Regressor.of(modules, estimator.optimizer, network.loss_name, network.scale)
    if regressor is None:
        return False
    average = None if estimator.average is None else NumpyRegression(cast(CorrectionNetwork, estimator.average.module))
    estimator.use(NumpyRegression(network, regressor), average)
    return True
