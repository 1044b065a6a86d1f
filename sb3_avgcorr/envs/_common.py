"""What the simulated tasks share: the check for optional packages and the check of actions."""

from importlib import import_module
from math import isfinite
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled


class MissingExtraError(DependencyNotInstalled, ImportError):
    """An optional dependency is missing. Gymnasium's own error for it, and an ``ImportError`` for everybody else."""


def require(*modules: str) -> None:
    """
    Say in one line what to install if an optional package is not there.

    :param modules: names of top-level modules that are about to be imported
    """
    for name in modules:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            # error.name: it may also be something that the package itself needs.
            raise MissingExtraError(
                f'this environment needs {name}, and {error.name} is not installed: pip install "sb3-avgcorr[dm-control]"'
            ) from None


def two_floats(action: Any) -> list[float]:
    """
    An action of two finite numbers as Python floats. All simulated tasks have two joints, and for two numbers plain
    floats are several times faster than arrays.

    :param action: what the agent sent
    """
    array = np.asarray(action, dtype=np.float64)
    if array.shape != (2,):
        raise ValueError(f"action has shape {array.shape}; it must be (2,)")
    values: list[float] = array.tolist()
    if not (isfinite(values[0]) and isfinite(values[1])):
        raise ValueError(f"action is {values}; it must hold finite numbers only")
    return values
