"""A rollout as the correction reads it."""

from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_avgcorr.errors import Diverged


class Rollout(NamedTuple):
    """A rollout as it was collected, because SB3's ``train()`` rearranges the buffer. Rows are (step, environment)."""

    critic_inputs: tuple[Any, ...]  # what policy.predict_values takes, one row a sample
    steps: np.ndarray  # t
    returns: np.ndarray  # the critic's targets
    value_loss: float  # mean squared error of the values against them, when the rollout was collected


def restore_order(buffer: RolloutBuffer) -> None:
    """
    Undo what ``get()`` does to a buffer, which a callback may have called to train something of its own on the rollout.

    ``get()`` flattens arrays to rows, environment by environment; as collected, their first axes are (n_steps, n_envs).

    :param buffer: a buffer of SB3 or sb3-contrib
    """
    if not buffer.generator_ready:
        return
    shape = buffer.buffer_size, buffer.n_envs

    def restored(rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(rows.reshape(*shape[::-1], *rows.shape[1:]).swapaxes(0, 1))

    arrays: dict[str, Any] = vars(buffer)
    for name in ("observations", "actions", "action_masks"):
        found = arrays.get(name)
        if isinstance(found, dict):
            found.update({key: restored(rows) for key, rows in found.items()})
        elif found is not None:
            arrays[name] = restored(found)
    for name in ("values", "log_probs", "advantages", "returns", "episode_starts"):
        if arrays[name].shape != shape:  # the last is flattened by recurrent buffers only
            arrays[name] = restored(arrays[name]).reshape(shape)
    for name in ("hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf"):
        if name in arrays:  # (n_steps, layers, n_envs, units)
            arrays[name] = restored(arrays[name]).swapaxes(1, 2)
    buffer.generator_ready = False


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


def rollout_rows(buffer: RolloutBuffer, action_space: spaces.Space, rows: np.ndarray) -> tuple[Any, th.Tensor]:
    """
    Take some samples of a rollout as ``policy.evaluate_actions`` wants them.

    :param buffer: a buffer as collected
    :param action_space: the action space
    :param rows: which samples, numbered (step, environment) by (step, environment)
    :return: observations and actions
    """
    observations = flat_observations(buffer)
    index = th.as_tensor(rows, device=buffer.device)
    obs = {k: v[index] for k, v in observations.items()} if isinstance(observations, dict) else observations[index]
    actions = buffer.to_torch(buffer.actions.reshape(-1, buffer.action_dim)[rows].astype(np.float32))
    return obs, actions.long().flatten() if isinstance(action_space, spaces.Discrete) else actions


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


def check_policy(model: OnPolicyAlgorithm, *outputs: np.ndarray) -> None:
    """
    Raise an error if a policy has left the finite numbers, which SB3's update would carry on in silence or blame on others.

    :param model: the model
    :param outputs: what the policy has computed, if that is to be looked at too
    """
    parameters = list(model.policy.parameters())
    what = ""
    if not th.isfinite(th.nn.utils.parameters_to_vector(parameters).sum()) and not all(
        th.isfinite(p).all() for p in parameters
    ):
        what = "parameters are not finite"
    elif not all(np.isfinite(array).all() for array in outputs):
        what = "values or log-probabilities are not finite"
    if what:
        rate = float(model.lr_schedule(model._current_progress_remaining))
        raise Diverged(f"The policy's {what} after update {model._n_updates}; a learning rate of {rate:g} may be too high.")
