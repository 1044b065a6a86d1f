r"""
Parameters, gradients and the optimiser's moments as flat arrays that torch's tensors are views of.

An optimiser's step on one flat array is a dozen numpy calls, however many layers there are. The tensors that torch knows
(``policy.parameters()``, ``optimizer.state``) share the memory of these arrays, so that ``state_dict()``, saving,
``predict`` and callbacks see the same numbers, and nothing is copied back and forth. Whatever replaces a tensor (the
optimiser's ``load_state_dict``, ``parameter.data = ...``) is noticed at the next use, and its values are taken over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch as th
from torch import nn

#: names of the moments in the state of each optimiser that is known here
MOMENTS: dict[type[th.optim.Optimizer], tuple[str, ...]] = {
    th.optim.Adam: ("exp_avg", "exp_avg_sq"),
    th.optim.RMSprop: ("square_avg",),
}
#: Adam's first moments below this are set to 0, every so many steps. Without a gradient (behind a ReLU that never fires) they
#: fall by a tenth a step until they are subnormal, where they stay, and cost a processor a hundred times as much as other
#: numbers. What they would still move a parameter by is lost in rounding: m/ε, which is 1e-22 with torch's ε
NEGLIGIBLE, NEGLIGIBLE_EVERY = 1e-30, 64
#: options of these optimisers under which they are not served
NOT_SERVED = ("amsgrad", "maximize", "capturable", "differentiable", "decoupled_weight_decay", "momentum", "centered")


def optimizer_served(optimizer: th.optim.Optimizer) -> bool:
    """
    Tell whether an optimiser's step is one of those written out here.

    :param optimizer: an optimiser
    :return: whether it is a plain Adam or RMSprop, without hooks and without a ``step`` of its own (as schedulers put there)
    """
    return (
        type(optimizer) in MOMENTS
        and not optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
        and "step" not in vars(optimizer)
        and "zero_grad" not in vars(optimizer)
        and not any(group.get(option) for group in optimizer.param_groups for option in NOT_SERVED)
        and not any(isinstance(group["lr"], th.Tensor) for group in optimizer.param_groups)
    )


def parameter_served(parameter: nn.Parameter) -> bool:
    """
    Tell whether a parameter may become a view of a flat array.

    :param parameter: a parameter
    :return: whether it is a float32 tensor on the CPU, without hooks, that no other process sees
    """
    return (
        type(parameter) is nn.Parameter
        and parameter.device.type == "cpu"
        and parameter.dtype == th.float32
        and parameter.layout == th.strided
        and parameter.numel() > 0
        and not parameter.is_shared()
        and not parameter._backward_hooks
        and not getattr(parameter, "_post_accumulate_grad_hooks", None)
    )


class FlatGroup:
    """
    The part of the flat arrays that belongs to one group of an optimiser.

    :param values: the parameters
    :param gradient: their gradient
    :param moments: the optimiser's moments
    :param steps: how many steps each parameter's tensor has made, always the same number
    """

    def __init__(self, values: np.ndarray, gradient: np.ndarray, moments: list[np.ndarray], steps: np.ndarray) -> None:
        self.values, self.gradient, self.moments, self.steps = values, gradient, moments, steps
        self.scratch = np.empty_like(values)
        #: the same memory for torch; of the steps the first
        self.tensors = [th.from_numpy(array) for array in (values, gradient, *moments, steps[:1])]

    def decayed(self, settings: dict[str, Any]) -> np.ndarray:
        """
        The gradient, with that of the decay of weights.

        :param settings: the optimiser's, for this group
        """
        if settings["weight_decay"] == 0.0:
            return self.gradient
        return self.gradient + np.float32(settings["weight_decay"]) * self.values


class FlatParameters:
    """
    Parameters in one flat array, in the order of the optimiser's groups; those without a gradient come last.

    :param parameters: the parameters, in the order in which they should lie within a group
    :param optimizer: the optimiser of those that are trained
    """

    def __init__(self, parameters: Sequence[nn.Parameter], optimizer: th.optim.Optimizer) -> None:
        self.optimizer = optimizer
        groups = [{id(p) for p in group["params"]} for group in optimizer.param_groups]
        trained = [[p for p in parameters if id(p) in group and p.requires_grad] for group in groups]
        self.trained = [p for group in trained for p in group]
        self.frozen = [p for p in parameters if not p.requires_grad]
        everything = [*self.trained, *self.frozen]
        if len(everything) != len(parameters):
            raise ValueError("Every parameter that has a gradient must be in exactly one group of the optimiser.")
        self.values = np.empty(sum(p.numel() for p in everything), np.float32)
        n_trained = sum(p.numel() for p in self.trained)
        self.gradient = np.zeros(n_trained, np.float32)
        self._parts = np.split(self.gradient, range(8192, n_trained, 8192))
        self._moments = [np.zeros(n_trained, np.float32) for _ in self.moment_names]
        self._steps = np.zeros(len(self.trained), np.float32)
        numbers = pairwise(np.cumsum([0, *(sum(p.numel() for p in group) for group in trained)]))
        places = pairwise(np.cumsum([0, *map(len, trained)]))
        self._groups = [
            FlatGroup(
                self.values[start:stop],
                self.gradient[start:stop],
                [moment[start:stop] for moment in self._moments],
                self._steps[first:last],
            )
            for (start, stop), (first, last) in zip(numbers, places, strict=True)
        ]

        #: the values of each parameter, and the gradient of each that is trained
        self.arrays = views(self.values, everything)
        self.gradients = views(self.gradient, self.trained)
        self._tensors = [(p, th.from_numpy(view), view.ctypes.data) for p, view in self.arrays.items()]
        self._gradient_tensors = [th.from_numpy(self.gradients[p]) for p in self.trained]
        moment_views = [views(moment, self.trained) for moment in self._moments]
        self._state = []
        for index, p in enumerate(self.trained):
            tensors = {"step": th.from_numpy(self._steps[index : index + 1]).view(())}
            tensors |= {name: th.from_numpy(parts[p]) for name, parts in zip(self.moment_names, moment_views, strict=True)}
            self._state.append((p, tensors))

    @property
    def moment_names(self) -> tuple[str, ...]:
        """Names of the optimiser's moments."""
        return MOMENTS.get(type(self.optimizer), ())

    def adopt(self) -> bool:
        """
        Make the parameters views of the flat array, where they are not, with the values that they have.

        :return: whether all are now; not if one was moved to another device, say
        """
        for parameter, tensor, address in self._tensors:
            if parameter.data_ptr() != address:
                if not parameter_served(parameter) or parameter.shape != tensor.shape:
                    return False
                tensor.copy_(parameter.data)
                parameter.data = tensor
        return True

    def adopt_moments(self) -> bool:
        """
        Make the optimiser's moments views of the flat arrays, where they are not; zeros, where there are none yet.

        :return: whether all parameters of a group have made the same number of steps, so that one step serves them all
        """
        for parameter, tensors in self._state:
            state: dict[str, Any] = self.optimizer.state[parameter]
            for name, tensor in tensors.items():
                known = state.get(name)
                if known is tensor:
                    continue
                if known is None:
                    tensor.zero_()
                elif isinstance(known, th.Tensor):
                    tensor.copy_(known)
                else:
                    tensor.fill_(float(known))
                state[name] = tensor
        return all((group.steps == group.steps[:1]).all() for group in self._groups)

    def clip_gradient(self, max_norm: float) -> None:
        """
        Scale the gradient down to a norm, as ``torch.nn.utils.clip_grad_norm_`` does.

        :param max_norm: the largest norm
        """
        # not by one dot(), which OpenBLAS hands to threads beyond 10,000 numbers
        square = sum(float(part.dot(part)) for part in self._parts)
        scale = float(max_norm) / (math.sqrt(square) + 1e-6)
        if not scale >= 1.0:  # also where it is NaN
            np.multiply(self.gradient, scale, out=self.gradient)

    def step(self) -> None:
        """One step of the optimiser on the gradient, for each of its groups with its own settings."""
        adam = type(self.optimizer) is th.optim.Adam
        rule = adam_rule() if adam else _rmsprop
        for group, flat in zip(self.optimizer.param_groups, self._groups, strict=True):
            if len(flat.steps) == 0:
                continue
            flat.steps += 1.0
            if adam and flat.steps[0] % NEGLIGIBLE_EVERY == 0.0:
                first = flat.moments[0]
                first[np.abs(first) < NEGLIGIBLE] = 0.0
            rule(group, flat)

    def rest(self, parameters: Sequence[nn.Parameter]) -> bool:
        """
        Set the gradient of some parameters to 0.

        :param parameters: some of the parameters
        :return: whether they now stay as they are in every step: no moment moves them, nor a decay of the weights
        """
        resting = {p for p in parameters if p in self.gradients}
        for parameter in resting:
            self.gradients[parameter].fill(0.0)
        if any(group["weight_decay"] != 0.0 for group in self.optimizer.param_groups):
            return False
        # Adam's first moment goes on without a gradient; RMSprop has none
        moments = [tensors["exp_avg"] for p, tensors in self._state if p in resting and "exp_avg" in tensors]
        return not any(bool(moment.any()) for moment in moments)

    def show_gradients(self) -> None:
        """Let torch see the last gradient as ``parameter.grad``, as it would be after an update of SB3's."""
        for parameter, gradient in zip(self.trained, self._gradient_tensors, strict=True):
            parameter.grad = gradient


def views(array: np.ndarray, parameters: Sequence[nn.Parameter]) -> dict[nn.Parameter, np.ndarray]:
    """
    Cut a flat array into parameters.

    :param array: a flat array
    :param parameters: parameters, which are to lie there one after the other
    :return: the part of each, in its shape
    """
    parts, start = {}, 0
    for parameter in parameters:
        parts[parameter] = array[start : start + parameter.numel()].reshape(parameter.shape)
        start += parameter.numel()
    return parts


def _adam(settings: dict[str, Any], group: FlatGroup) -> None:
    r"""
    Adam (Kingma and Ba, 2015), as torch computes it:

        m ← β₁m + (1-β₁)g      v ← β₂v + (1-β₂)g²      p ← p - α · m/(1-β₁ᵗ) / (√(v/(1-β₂ᵗ)) + ε)
    """
    beta1, beta2 = settings["betas"]
    g, (m, v), scratch, step = group.decayed(settings), group.moments, group.scratch, float(group.steps[0])
    np.multiply(m, beta1, out=m)
    np.multiply(g, 1.0 - beta1, out=scratch)
    np.add(m, scratch, out=m)
    np.multiply(v, beta2, out=v)
    np.multiply(g, g, out=scratch)
    np.multiply(scratch, 1.0 - beta2, out=scratch)
    np.add(v, scratch, out=v)
    # both sides of the fraction times √(1-β₂ᵗ), which saves a pass
    root = math.sqrt(1.0 - beta2**step)
    np.sqrt(v, out=scratch)
    np.add(scratch, root * settings["eps"], out=scratch)
    np.divide(m, scratch, out=scratch)
    np.multiply(scratch, root * settings["lr"] / (1.0 - beta1**step), out=scratch)
    np.subtract(group.values, scratch, out=group.values)


def _fused_adam(settings: dict[str, Any], group: FlatGroup) -> None:
    """Adam in one pass, by what torch's own Adam calls with ``fused=True``: a quarter to a half of the time."""
    values, gradient, first, second, step = group.tensors
    beta1, beta2 = settings["betas"]
    th._fused_adam_(
        [values],
        [gradient],
        [first],
        [second],
        [],
        [step],
        lr=settings["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=settings["weight_decay"],
        eps=settings["eps"],
        amsgrad=False,
        maximize=False,
    )


@cache
def adam_rule() -> Callable[[dict[str, Any], FlatGroup], None]:
    """
    Adam's step in the least time: fused, where this release of torch has that for the CPU (it does not document it).
    """
    settings = {"betas": (0.9, 0.999), "lr": 0.1, "eps": 1e-8, "weight_decay": 0.01}
    known, tried = (FlatGroup(x[0], x[1], [x[2], x[3]], np.ones(1, np.float32)) for x in np.full((2, 4, 3), 0.5, np.float32))
    _adam(settings, known)
    try:
        _fused_adam(settings, tried)
    except (AttributeError, TypeError, RuntimeError):  # the last: not for this device
        return _adam
    same = all(np.allclose(a, b) for a, b in zip((known.values, *known.moments), (tried.values, *tried.moments), strict=True))
    return _fused_adam if same else _adam


def _rmsprop(settings: dict[str, Any], group: FlatGroup) -> None:
    r"""RMSprop, as torch computes it: v ← αv + (1-α)g², then p ← p - lr · g / (√v + ε)."""
    g, (v,), scratch = group.decayed(settings), group.moments, group.scratch
    np.multiply(v, settings["alpha"], out=v)
    np.multiply(g, g, out=scratch)
    np.multiply(scratch, 1.0 - settings["alpha"], out=scratch)
    np.add(v, scratch, out=v)
    np.sqrt(v, out=scratch)
    np.add(scratch, settings["eps"], out=scratch)
    np.divide(g, scratch, out=scratch)
    np.multiply(scratch, settings["lr"], out=scratch)
    np.subtract(group.values, scratch, out=group.values)
