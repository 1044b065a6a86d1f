r"""
A multi-layer perceptron and its gradient, written out in numpy.

Layer l takes x to a = f(z), z = x·Wᵀ + b, for a batch of rows x. With δ = ∂L/∂z the chain rule gives

    ∂L/∂W = δᵀ·x        ∂L/∂b = Σ_rows δ        ∂L/∂x = δ·W,

and ∂L/∂x, multiplied by f'(z) of the layer before, is that layer's δ. All of it is linear in δ, row by row: the gradient of a
loss whose rows are weighted by w comes from the same pass with w·δ in place of δ in the first two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch as th
from torch import nn

#: rows evaluated at once: enough to be efficient, few enough for a processor's cache
EVALUATION_BATCH = 512
#: gradients of one network's parameters: (∂L/∂W, ∂L/∂b) of each layer; None for what is not trained
Gradients = Sequence[tuple[np.ndarray | None, np.ndarray | None]]


class Activation(NamedTuple):
    """An activation f and its derivative. With ``of_output`` f' is a function of f's value, and z need not be kept."""

    apply: Callable[[np.ndarray, np.ndarray], object]  # (z, out)
    derivative: Callable[[np.ndarray, np.ndarray, np.ndarray], object]  # (z, f(z), out); out may be f(z)
    of_output: bool = True


def sigmoid(z: np.ndarray) -> np.ndarray:
    """
    1 / (1 + e^-z) in a form that does not overflow.

    :param z: any numbers
    :return: their sigmoid
    """
    return 0.5 * np.tanh(0.5 * z) + 0.5


def _relu(z: np.ndarray, out: np.ndarray) -> None:
    if out is not z:
        np.copyto(out, z)
    th.relu_(th.from_numpy(out))  # a third of the time that np.maximum takes


def _tanh_derivative(z: np.ndarray, a: np.ndarray, out: np.ndarray) -> None:
    np.multiply(a, a, out=out)
    np.subtract(1.0, out, out=out)


def _leaky_relu(slope: float) -> Activation:
    return Activation(
        lambda z, out: np.maximum(z, slope * z, out=out), lambda z, a, out: np.copyto(out, np.where(a > 0.0, 1.0, slope))
    )


def _elu(alpha: float) -> Activation:
    return Activation(
        lambda z, out: np.copyto(out, np.where(z > 0.0, z, alpha * np.expm1(np.minimum(z, 0.0)))),
        lambda z, a, out: np.copyto(out, np.where(a > 0.0, 1.0, a + alpha)),
    )


def _normal_cdf(z: np.ndarray) -> np.ndarray:
    return th.special.ndtr(th.from_numpy(z)).numpy()


def _silu_derivative(z: np.ndarray, a: np.ndarray, out: np.ndarray) -> None:
    s = sigmoid(z)
    np.copyto(out, s + a * (1.0 - s))


def _gelu_derivative(z: np.ndarray, a: np.ndarray, out: np.ndarray) -> None:
    np.copyto(out, _normal_cdf(z) + z * np.exp(-0.5 * z * z) * (2.0 * np.pi) ** -0.5)


TANH = Activation(np.tanh, _tanh_derivative)
RELU = Activation(_relu, lambda z, a, out: np.greater(a, 0.0, out=out))
SIGMOID = Activation(lambda z, out: np.copyto(out, sigmoid(z)), lambda z, a, out: np.multiply(a, 1.0 - a, out=out))
SOFTPLUS = Activation(lambda z, out: np.logaddexp(0.0, z, out=out), lambda z, a, out: np.copyto(out, -np.expm1(-a)))
SILU = Activation(lambda z, out: np.multiply(z, sigmoid(z), out=out), _silu_derivative, of_output=False)
GELU = Activation(lambda z, out: np.multiply(z, _normal_cdf(z), out=out), _gelu_derivative, of_output=False)


#: for each class of torch's modules, how to make its activation; None, if it has a setting that is not served
ACTIVATIONS: dict[type[nn.Module], Callable[[Any], Activation | None]] = {
    nn.Tanh: lambda module: TANH,
    nn.ReLU: lambda module: RELU,
    nn.LeakyReLU: lambda module: _leaky_relu(module.negative_slope) if 0.0 <= module.negative_slope <= 1.0 else None,
    nn.ELU: lambda module: _elu(module.alpha) if module.alpha > 0.0 else None,
    nn.Sigmoid: lambda module: SIGMOID,
    nn.Softplus: lambda module: SOFTPLUS if module.beta == 1.0 and module.threshold >= 20.0 else None,
    nn.SiLU: lambda module: SILU,
    nn.GELU: lambda module: GELU if module.approximate == "none" else None,
}


def activation_of(module: nn.Module) -> Activation | None:
    """
    The activation that a torch module computes.

    :param module: a module
    :return: the same function; None if it is not one of those known here
    """
    make = ACTIVATIONS.get(type(module))  # not a subclass, which may compute anything
    return None if make is None else make(module)


#: products of more multiplications than this numpy's OpenBLAS hands to threads of its own, one a core, whatever
#: torch was told; on a busy machine they wait for each other a hundred times longer than they work
ONE_THREAD = 2**18


class Layer(NamedTuple):
    """A linear layer and the activation behind it, None at the output."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    activation: Activation | None


class _Step(NamedTuple):
    """A layer with what it reads and writes, for one number of rows."""

    weight: np.ndarray
    transposed: np.ndarray
    bias: np.ndarray | None
    activation: Activation | None
    z: np.ndarray
    a: np.ndarray  # z itself, where z need not be kept
    delta: np.ndarray  # ∂L/∂z
    large: bool  # whether its products are left to torch


class Mlp:
    """
    A network of linear layers, each with an activation behind it or none, on arrays that hold torch's parameters.

    :param layers: the layers, see :func:`layers_of`
    """

    #: numbers of rows for which workspaces are kept
    KEPT_SIZES = 8

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self._arrays: Mapping[nn.Parameter, np.ndarray] = {}
        self._plans: dict[int, list[_Step]] = {}
        self._inputs: list[np.ndarray] = []

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The torch parameters, layer by layer, the weight before the bias."""
        return [p for layer in self.layers for p in (layer.weight, layer.bias) if p is not None]

    def bind(self, arrays: Mapping[nn.Parameter, np.ndarray]) -> None:
        """
        Tell the network where the values of its parameters lie.

        :param arrays: an array for each parameter, shared with torch
        """
        self._arrays = arrays
        self._plans.clear()

    def gradients(self, arrays: Mapping[nn.Parameter, np.ndarray]) -> Gradients:
        """
        Where to write the gradients, for :meth:`backward`.

        :param arrays: an array for each parameter that is trained
        :return: these arrays, layer by layer
        """
        return [(arrays.get(weight), None if bias is None else arrays.get(bias)) for weight, bias, _ in self.layers]

    def _plan(self, n_rows: int) -> list[_Step]:
        plan = self._plans.get(n_rows)
        if plan is None:
            if len(self._plans) >= self.KEPT_SIZES:
                self._plans.clear()
            plan = self._plans[n_rows] = []
            for layer in self.layers:
                weight, bias = self._arrays[layer.weight], None if layer.bias is None else self._arrays[layer.bias]
                z, a, delta = (np.empty((n_rows, len(weight)), np.float32) for _ in range(3))
                if layer.activation is None or layer.activation.of_output:
                    a = z
                large = n_rows * weight.size > ONE_THREAD
                plan.append(_Step(weight, weight.T, bias, layer.activation, z, a, delta, large))
        return plan

    def forward(self, x: np.ndarray) -> np.ndarray:
        """
        Evaluate the network, and keep what :meth:`backward` needs.

        :param x: float32, shape (n, inputs)
        :return: float32, shape (n, outputs); valid until the next call
        """
        self._inputs = inputs = []
        for _, transposed, bias, activation, z, a, _, large in self._plan(len(x)):
            inputs.append(x)
            if large:
                _product(x, transposed, z)
            else:
                x.dot(transposed, z)
            if bias is not None:
                np.add(z, bias, z)
            if activation is not None:
                activation.apply(z, a)
            x = a
        return x

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        """
        Evaluate the network on any number of rows, piece by piece: in a processor's cache, and in little memory.

        :param x: float32, shape (n, inputs)
        :return: float32, shape (n, outputs), a new array
        """
        outputs = np.empty((len(x), len(self.layers[-1].weight)), np.float32)
        for rows in pieces(len(x)):
            outputs[rows] = self.forward(x[rows])
        return outputs

    def backward(
        self,
        delta: np.ndarray,
        gradients: Gradients,
        weights: np.ndarray | None = None,
        weighted: Gradients | None = None,
    ) -> None:
        """
        Gradients of a loss with respect to the parameters, for the rows of the last :meth:`forward`; once only.

        :param delta: ∂L/∂output, shape (n, outputs); overwritten
        :param gradients: where to write them
        :param weights: a weight for each row, shape (n,)
        :param weighted: where to write the gradients of the loss with its rows weighted
        """
        plan = self._plan(len(delta))
        ones = np.ones(len(delta), np.float32)
        for index in reversed(range(len(plan))):
            weight, _, _, activation, z, a, _, large = plan[index]
            if activation is not None:
                activation.derivative(z, a, a)  # in its place, for the layer above has read it
                np.multiply(delta, a, delta)
            x = self._inputs[index]
            _write(delta, x, ones, large, *gradients[index])
            if weights is not None and weighted is not None:
                _write(delta * weights[:, None], x, ones, large, *weighted[index])
            if index > 0:
                below = plan[index - 1].delta
                delta = _product(delta, weight, below) if large else delta.dot(weight, below)


def pieces(n_rows: int) -> Iterator[slice]:
    """
    Cut rows into pieces for evaluation.

    :param n_rows: number of rows
    :return: slices that cover them
    """
    return (slice(start, start + EVALUATION_BATCH) for start in range(0, n_rows, EVALUATION_BATCH))


def _product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    """A large matrix product by torch, on as many threads as the user has given it."""
    th.mm(th.from_numpy(a), th.from_numpy(b), out=th.from_numpy(out))
    return out


def _write(
    delta: np.ndarray,
    x: np.ndarray,
    ones: np.ndarray,
    large: bool,
    of_weight: np.ndarray | None,
    of_bias: np.ndarray | None,
) -> None:
    if of_weight is not None:
        if large:
            _product(delta.T, x, of_weight)
        else:
            delta.T.dot(x, of_weight)
    if of_bias is not None:
        if large:
            np.add.reduce(delta, axis=0, out=of_bias)
        else:
            ones.dot(delta, of_bias)  # the sum over rows, faster than by add.reduce


def layers_of(modules: Iterable[nn.Module]) -> list[Layer] | None:
    """
    Read a network's layers from its torch modules.

    :param modules: applied one after the other: linear layers, activations, or ``nn.Sequential`` of them
    :return: its layers; None if there is a module that is not served here, or no layer at all
    """
    layers: list[Layer] = []
    for module in _flat(modules):
        if type(module) is nn.Linear:
            weight: Any = module.weight
            layers.append(Layer(weight, module.bias, None))
            continue
        activation = activation_of(module)
        if activation is None or not layers or layers[-1].activation is not None:
            return None
        layers[-1] = layers[-1]._replace(activation=activation)
    return layers or None


def _flat(modules: Iterable[nn.Module]) -> Iterable[nn.Module]:
    for module in modules:
        if type(module) is nn.Sequential:
            yield from _flat(module)
        else:
            yield module


def evaluate(modules: Iterable[nn.Module], x: np.ndarray) -> np.ndarray | None:
    """
    Evaluate torch modules on arrays.

    :param modules: applied one after the other
    :param x: float32, shape (n, inputs)
    :return: float32, shape (n, outputs); None if there is a module that is not served here
    """
    layers = layers_of(modules)
    if layers is None:
        return None
    mlp = Mlp(layers)
    mlp.bind({p: p.detach().numpy() for p in mlp.parameters})
    return mlp.evaluate(x)
