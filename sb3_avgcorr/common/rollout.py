"""A rollout as the correction reads it."""

from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer


class Rollout(NamedTuple):
    """A rollout as it was collected, because SB3's ``train()`` rearranges the buffer. Rows are (step, environment)."""

    critic_inputs: tuple[Any, ...]  # what policy.predict_values takes, one row a sample
    steps: np.ndarray  # t
    returns: np.ndarray  # the critic's targets
    value_loss: float  # mean squared error of the values against them, when the rollout was collected


def flat_observations(buffer: RolloutBuffer) -> Any:
    """
    Give the observations of a buffer as tensors.

    :param buffer: a buffer as collected
    :return: tensors that share the buffer's memory, row (step, environment) by row
    """

    def rows(array: np.ndarray) -> th.Tensor:
        return buffer.to_torch(array.reshape(-1, *array.shape[2:]), copy=False)

    observations: Any = buffer.observations
    return {k: rows(v) for k, v in observations.items()} if isinstance(observations, dict) else rows(observations)


def take_rows(inputs: tuple[Any, ...], rows: slice) -> tuple[Any, ...]:
    """
    Cut some rows out of the inputs of ``predict_values``.

    :param inputs: tensors of samples, dicts of them, or LSTM states (layer, sample, unit)
    :param rows: which samples
    :return: the same for these samples
    """

    def take(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: array[rows] for key, array in value.items()}
        if isinstance(value, tuple):
            return tuple(state[:, rows].contiguous() for state in value)
        return value[rows]

    return tuple(take(value) for value in inputs)


def check_finite(what: str, arrays: Any, *, rollout: bool = True) -> None:
    """
    Raise a ValueError that says where something of the environment's is not finite.

    :param what: what the environment returned
    :param arrays: an array or a dict of arrays
    :param rollout: whether their first axes are (n_steps, n_envs); else (n_envs,)
    """
    for key, array in arrays.items() if isinstance(arrays, dict) else [(None, arrays)]:
        if array is None or not np.issubdtype(array.dtype, np.floating) or np.isfinite(array).all():
            continue
        index = np.argwhere(~np.isfinite(array))[0]
        value = array[tuple(index)]
        where = f"environment {index[1]}, step {index[0]} of the rollout" if rollout else f"environment {index[0]}"
        raise ValueError(
            f"The {what} is not finite: {value} in {where}{'' if key is None else f', key {key!r}'}. Every {what} must be "
            "a finite number; SB3's VecCheckNan wrapper helps to find where it comes from."
        )
