"""What callbacks may see and do while a rollout is collected without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback

#: packages whose callbacks never change the policy's parameters in the middle of a rollout
STEADY = ("stable_baselines3", "sb3_avgcorr", "rl_zoo3")


class StepLocals(dict[str, Any]):
    """
    The ``locals`` of a callback, some of which are computed only when they are asked for.

    :param content: what is there
    :param lazy: how to compute what is not; may change
    """

    def __init__(self, content: Mapping[str, Any], lazy: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__(content)
        self._lazy = lazy

    def __missing__(self, key: str) -> Any:
        if key in self._lazy:
            return self._lazy[key]()
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._lazy

    def get(self, key: str, default: Any = None) -> Any:
        """
        As of a dict.

        :param key: a name
        :param default: what to give if there is nothing of that name
        :return: its value
        """
        return self[key] if key in self else default  # noqa: SIM401


class Begun:
    """
    A callback that knows already that the rollout has begun.

    :param callback: the callback
    """

    def __init__(self, callback: BaseCallback) -> None:
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self._callback, name)

    def on_rollout_start(self) -> None:
        """Nothing is left to tell."""


def callback_tree(callback: BaseCallback) -> Iterator[BaseCallback]:
    """
    A callback and all that it calls.

    :param callback: the callback that the model calls
    :return: each of them once
    """
    seen: set[int] = set()
    waiting: list[Any] = [callback]
    while waiting:
        current = waiting.pop()
        if isinstance(current, BaseCallback) and id(current) not in seen:
            seen.add(id(current))
            yield current
            waiting.extend(vars(current).values())
        elif isinstance(current, (list, tuple)):
            # by type first: a callback may keep a long list of numbers, and this is asked in every rollout
            of_callbacks = [kind for kind in set(map(type, current)) if issubclass(kind, BaseCallback)]
            if of_callbacks:
                waiting.extend(part for part in current if type(part) in of_callbacks)


def give_lazy_locals(callback: BaseCallback, lazy: Mapping[str, Callable[[], Any]]) -> list[StepLocals]:
    """
    Let callbacks ask for what is computed on demand. Callbacks that share their locals go on sharing them.

    :param callback: the callback that the model calls
    :param lazy: how to compute what is not in their locals
    :return: the locals, each once
    """
    shared: dict[int, StepLocals] = {}
    before: list[Any] = []  # kept alive meanwhile, so that an id names one of them
    for each in callback_tree(callback):
        before.append(each.locals)
        each.locals = shared.setdefault(id(before[-1]), StepLocals(before[-1], lazy))
    return list(shared.values())


def may_change_parameters(callback: BaseCallback) -> bool:
    """
    Tell whether a callback is somebody's own code, which may do anything to the policy at any step.

    :param callback: the callback that the model calls
    :return: whether it, or one that it calls, is
    """
    return any(
        (type(each) is ConvertCallback and each.callback is not None) or type(each).__module__.split(".")[0] not in STEADY
        for each in callback_tree(callback)
    )
