"""Training changes nothing that other models share: two in two threads give what each gives alone (invariant 9)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import ClockEnv, space_env
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

from sb3_avgcorr import AveragingA2C, AveragingBAC, AveragingPPO

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (AveragingPPO, {"n_steps": 32, "batch_size": 16, "n_epochs": 2}),
    "ppo, SB3's loop": (AveragingPPO, {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "fast": False}),
    "ppo, power": (AveragingPPO, {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "correction": "power"}),
    "a2c": (AveragingA2C, {"n_steps": 16}),
    "bac": (AveragingBAC, {"n_steps": 16}),
}


class Baton:
    """
    Lets one of two threads run at a time, and gives each its own state of the global random streams.

    The streams are torch's and numpy's, one for the whole process: threads that draw from them as they please would differ for
    that reason alone. Handed over at every learning rate that is asked for (inside an update) and at every step of an
    environment (inside a rollout), it mixes the two trainings as finely as can be, the same way each time.
    """

    def __init__(self) -> None:
        self.turn = threading.Condition()
        self.running: list[int] = [0, 1]
        self.now = 0
        self.streams: dict[int, Any] = {}

    def take(self, me: int) -> None:
        with self.turn:
            assert self.turn.wait_for(lambda: self.now == me, timeout=120)
        if me in self.streams:
            th.set_rng_state(self.streams[me][0])
            np.random.set_state(self.streams[me][1])  # noqa: NPY002

    def give(self, me: int, last: bool = False) -> None:
        self.streams[me] = th.get_rng_state(), np.random.get_state()  # noqa: NPY002
        with self.turn:
            if last:
                self.running.remove(me)
            others = [i for i in self.running if i != me]
            self.now = others[0] if others else me
            self.turn.notify_all()

    def pass_on(self, me: int) -> None:
        self.give(me)
        self.take(me)


def train(case: str, me: int, hand_over: Callable[[], None]) -> dict[str, Any]:
    """Train a model that hands over now and then, and tell what it has learned."""
    cls, settings = CASES[case]

    def rate(_: float) -> float:
        hand_over()
        return 1e-3

    class Handing(ClockEnv):
        def step(self, action: Any) -> Any:
            hand_over()
            return super().step(action)

    env = make_vec_env(lambda: Handing(11 + me, continuous=True), n_envs=2)
    model = cls("MlpPolicy", env, learning_rate=rate, seed=me, device="cpu", **settings)
    model.learn(4 * 2 * model.n_steps)
    return {**model.policy.state_dict(), "weights": th.as_tensor(model.correction_weights)}


@pytest.mark.parametrize("first", ["ppo", "ppo, power", "a2c", "bac"])
@pytest.mark.parametrize("second", ["ppo", "ppo, SB3's loop", "a2c"])
def test_two_models_in_two_threads_give_what_each_gives_alone(first: str, second: str) -> None:
    alone = [train(case, me, lambda: None) for me, case in enumerate((first, second))]
    baton, together = Baton(), {}

    def run(case: str, me: int) -> None:
        baton.take(me)
        try:
            together[me] = train(case, me, lambda: baton.pass_on(me))
        finally:
            baton.give(me, last=True)

    threads = [threading.Thread(target=run, args=(case, me)) for me, case in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    for me in (0, 1):
        for name, value in alone[me].items():
            assert th.equal(together[me][name], value), (me, name)


# What a library is made of


def shared_state() -> dict[tuple[str, str], int]:
    """The functions, classes, methods and flags of torch's and SB3's modules, by identity."""
    parts = ("torch.nn", "torch.optim", "torch.distributions", "torch.autograd", "stable_baselines3", "sb3_contrib")
    found: dict[tuple[str, str], int] = {}
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or not name.startswith(parts):
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, (type, FunctionType, bool)):
                found[name, key] = id(value)
            if isinstance(value, type) and value.__module__.startswith(parts):
                members = {k: v for k, v in list(vars(value).items()) if isinstance(v, (FunctionType, property, bool))}
                found.update({(f"{value.__module__}.{value.__qualname__}", k): id(v) for k, v in members.items()})
    found["numpy", "errstate"] = hash(tuple(sorted(np.geterr().items())))
    return found


def changed(before: dict[tuple[str, str], int]) -> set[tuple[str, str]]:
    now = shared_state()
    return {key for key, value in before.items() if now.get(key) != value}


def test_shared_state_is_told() -> None:
    # else the test below could not fail
    before = shared_state()
    assert len(before) > 2000
    original = th.distributions.Distribution._validate_args
    th.distributions.Distribution.set_default_validate_args(not original)
    try:
        assert ("torch.distributions.distribution.Distribution", "_validate_args") in changed(before)
    finally:
        th.distributions.Distribution.set_default_validate_args(original)
    assert not changed(before)


@pytest.mark.parametrize("fast", [True, False, "always"])
def test_nothing_of_torch_and_sb3_changes_during_or_after(fast: Any) -> None:
    def make(cls: Any, kind: str, **settings: Any) -> Any:
        env = make_vec_env(lambda: space_env(kind, spaces.Box(-1.0, 1.0, (2,), np.float32)), n_envs=2)

        def rate(_: float) -> float:
            looks.append(changed(before))
            return 1e-3

        policy = "MultiInputPolicy" if kind == "dict" else "MlpPolicy"
        return cls(policy, env, learning_rate=rate, fast=fast, device="cpu", **settings)

    looks: list[set[tuple[str, str]]] = []
    before: dict[tuple[str, str], int] = {}
    models = [make(AveragingPPO, "box", n_steps=32, batch_size=16, n_epochs=2), make(AveragingA2C, "dict", n_steps=16)]
    before.update(shared_state())
    del looks[:]
    errors: list[BaseException] = []

    def look(local: dict[str, Any], _: dict[str, Any]) -> bool:
        if local["n_steps"] == 5:
            looks.append(changed(before))
        return True

    def run(model: Any) -> None:
        try:
            model.learn(400, callback=look)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert not errors
    assert len(looks) > 30
    assert not set().union(*looks)
    assert not changed(before)
