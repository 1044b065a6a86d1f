"""What a policy's layers see: observations as a matrix of float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BaseModel
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor
from stable_baselines3.common.utils import obs_as_tensor
from torch import nn

#: which rows of an array
Rows = slice | np.ndarray
#: a function from observations, one a row, to a matrix with one row each
Features = Callable[[Any], np.ndarray]


def _flattened(observations: np.ndarray) -> np.ndarray:
    return observations.reshape(len(observations), -1).astype(np.float32, copy=False)


def _one_hot(sizes: np.ndarray) -> Features:
    """One-hot vectors of several numbers, side by side. One that is out of range is an error, as it is to torch."""
    starts = np.cumsum([0, *sizes[:-1]])
    total = int(sizes.sum())

    def features(observations: np.ndarray) -> np.ndarray:
        numbers = observations.reshape(-1, len(sizes)).astype(np.int64)
        if (numbers < 0).any() or (numbers >= sizes).any():
            raise ValueError(
                f"The observation {observations.tolist()} holds a number that is not in 0 .. n-1, n = {sizes.tolist()}."
            )
        matrix = np.zeros((len(numbers), total), np.float32)
        np.put_along_axis(matrix, numbers + starts, 1.0, axis=1)
        return matrix

    return features


def _features_of_space(space: spaces.Space) -> Features | None:
    if isinstance(space, spaces.Box):
        return None if is_image_space(space) or not space.shape else _flattened
    if isinstance(space, spaces.MultiBinary):
        return _flattened
    if isinstance(space, spaces.Discrete):
        return _one_hot(np.array([space.n])) if space.start == 0 else None
    if isinstance(space, spaces.MultiDiscrete):
        plain = space.nvec.ndim == 1 and not np.any(space.start)
        return _one_hot(space.nvec.astype(np.int64)) if plain else None
    return None


def features_of(extractor: nn.Module, space: spaces.Space) -> Features | None:
    """
    What a features extractor of SB3's makes of observations, with SB3's preprocessing before it.

    :param extractor: the policy's features extractor
    :param space: the policy's observation space
    :return: the same function on arrays; None for an extractor with parameters, of another class, or for images
    """
    if type(extractor) is FlattenExtractor and not isinstance(space, spaces.Dict):
        return _features_of_space(space)
    if type(extractor) is not CombinedExtractor or not isinstance(space, spaces.Dict):
        return None
    if any(type(part) is not nn.Flatten for part in extractor.extractors.values()):
        return None
    parts = [(key, _features_of_space(space[key])) for key in extractor.extractors]
    if any(part is None for _, part in parts):
        return None

    def features(observations: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([part(observations[key]) for key, part in parts if part is not None], axis=1)

    return features


def torch_features(policy: ActorCriticPolicy) -> Features:
    """
    What a features extractor with layers of its own (a CNN) makes of observations, computed by torch.

    :param policy: a policy whose actor and critic share their extractor
    :return: the same function on arrays
    """

    def features(observations: Any) -> np.ndarray:
        with th.no_grad():
            tensor: Any = BaseModel.extract_features(
                policy, obs_as_tensor(observations, policy.device), policy.features_extractor
            )
            return tensor.numpy()

    return features


def rows_of(observations: Any) -> Any:
    """
    The observations of a rollout, one a row.

    :param observations: of a rollout buffer as collected, (n_steps, n_envs, ...), or a dict of such arrays
    :return: views, (n_steps · n_envs, ...)
    """
    if isinstance(observations, dict):
        return {key: rows_of(array) for key, array in observations.items()}
    return observations.reshape(-1, *observations.shape[2:])


def take(observations: Any, rows: Rows) -> Any:
    """
    Some rows of observations.

    :param observations: an array with one observation a row, or a dict of them
    :param rows: which rows
    :return: these rows
    """
    if isinstance(observations, dict):
        return {key: take(array, rows) for key, array in observations.items()}
    return observations[rows] if isinstance(rows, slice) else observations.take(rows, axis=0)
