"""
The table of all corrected algorithms, for the tests that hold for each of them. Import with ``from family import FAMILY``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from conftest import SpaceEnv, example, policy_for, space_env
from gymnasium import spaces
from sb3_contrib import TRPO, MaskablePPO, RecurrentPPO
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_avgcorr import (
    BAC,
    AveragingA2C,
    AveragingBAC,
    AveragingMaskablePPO,
    AveragingPPO,
    AveragingRecurrentPPO,
    AveragingTRPO,
)
from sb3_avgcorr.common.options import OPTIONS


class Member(NamedTuple):
    """A corrected algorithm, what it corrects, and settings of both: of a small model, and of one step a rollout of 320."""

    theirs: type[OnPolicyAlgorithm]
    ours: Any
    settings: dict[str, Any]
    one_step: dict[str, Any]


SMALL_LSTM: dict[str, Any] = {"lstm_hidden_size": 8, "net_arch": [8]}
_PPO: dict[str, Any] = {"n_steps": 24, "batch_size": 20, "n_epochs": 2}
_ONE_PPO: dict[str, Any] = {"n_epochs": 1, "batch_size": 320}

FAMILY: dict[str, Member] = {
    "ppo": Member(PPO, AveragingPPO, _PPO, _ONE_PPO),
    "a2c": Member(A2C, AveragingA2C, {"n_steps": 24}, {"use_rms_prop": False}),
    "bac": Member(BAC, AveragingBAC, {"n_steps": 24}, {}),
    "trpo": Member(TRPO, AveragingTRPO, {"n_steps": 24, "batch_size": 20, "n_critic_updates": 2}, {"batch_size": 320}),
    "ppo_mask": Member(MaskablePPO, AveragingMaskablePPO, _PPO, _ONE_PPO),
    "ppo_recurrent": Member(RecurrentPPO, AveragingRecurrentPPO, {**_PPO, "policy_kwargs": SMALL_LSTM}, _ONE_PPO),
    "reinforce": Member(example.Reinforce, example.AveragingReinforce, {"n_steps": 24}, {}),
}

#: every correction, in full and whatever its quality: what makes an update differ from the algorithm's own
FULL: dict[str, Any] = {"correction_strength": 1.0, "correction_shrinkage": False, "gamma": 0.9}


class MaskedEnv(SpaceEnv):
    """At each step another one of three actions is invalid; taking it is an error."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3))

    def action_masks(self) -> np.ndarray:
        return np.arange(3) != self.t % 3

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_masks()[action], "an invalid action"
        return super().step(action)


class Task(NamedTuple):
    """Environments, the kind of their observations, settings that belong to them, and which algorithms take them."""

    kind: str
    make: Callable[[], gym.Env]
    settings: dict[str, Any]
    names: tuple[str, ...]
    n_envs: int = 2
    normalized: bool = False


_BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
_ALL = tuple(FAMILY)
_SB3 = tuple(name for name in FAMILY if name != "reinforce")
_SDE: dict[str, Any] = {"use_sde": True, "sde_sample_freq": 4}
TASKS: dict[str, Task] = {
    "discrete": Task("box", lambda: space_env("box"), {}, _ALL),
    "continuous": Task("box", lambda: space_env("box", _BOX), {}, tuple(name for name in FAMILY if name != "ppo_mask")),
    "dict": Task("dict", lambda: space_env("dict"), {}, _SB3),
    "image": Task("image", lambda: space_env("image"), {"n_steps": 10}, _SB3),
    "masked": Task("box", MaskedEnv, {}, ("ppo_mask",)),
    "cartpole": Task("box", lambda: gym.make("CartPole-v1"), {}, ("ppo", "a2c"), n_envs=1),
    "gsde": Task("box", lambda: space_env("box", _BOX), _SDE, ("ppo", "a2c", "trpo")),
    "normalized": Task("box", lambda: space_env("box", _BOX), {}, ("ppo", "a2c"), normalized=True),
    "multi": Task("multi_binary", lambda: space_env("multi_binary", spaces.MultiDiscrete([2, 3])), {}, ("ppo", "a2c")),
}
#: every algorithm with every task that it takes
PAIRS = [(name, task) for task, known in TASKS.items() for name in known.names]


def policy_name(name: str, kind: str = "box") -> str:
    """The alias of the policy that an algorithm takes for a kind of observations."""
    alias = policy_for(kind)
    return alias.replace("Policy", "LstmPolicy") if name == "ppo_recurrent" else alias


def vec_env(name: str, make: Callable[[], gym.Env], n_envs: int = 2, **kwargs: Any) -> VecEnv:
    """Environments that an algorithm takes: MaskablePPO wants masks."""

    def one() -> gym.Env:
        env = make()
        if name == "ppo_mask" and not hasattr(env, "action_masks"):
            return ActionMasker(env, lambda e: np.ones(e.action_space.n, dtype=bool))  # type: ignore[attr-defined]
        return env

    return make_vec_env(one, n_envs=n_envs, **kwargs)


def make_with(cls: Any, name: str, env: VecEnv, kind: str = "box", **options: Any) -> Any:
    """A model of a class, with the settings of its algorithm; an algorithm without the correction ignores its options."""
    settings = {"seed": 3, "device": "cpu", **FAMILY[name].settings, **options}
    if cls is FAMILY[name].theirs:
        settings = {key: value for key, value in settings.items() if key not in OPTIONS}
    return cls(policy_name(name, kind), env, **settings)


def make(name: str, *, ours: bool = True, task: str = "discrete", **options: Any) -> Any:
    """A corrected model, or one of the algorithm's own, on a task."""
    member, known = FAMILY[name], TASKS[task]
    env = vec_env(name, known.make, known.n_envs)
    if known.normalized:
        env = VecNormalize(env)
    return make_with(member.ours if ours else member.theirs, name, env, known.kind, **{**known.settings, **options})


def on_update(name: str, function: Callable[[Any], None] | None, *, then_train: bool = True) -> Any:
    """
    A corrected class whose algorithm calls a function at each update.

    :param name: of the family
    :param function: called with the model, before the algorithm's own update
    :param then_train: whether the algorithm's own update follows
    :return: the class
    """
    member = FAMILY[name]

    class Update(member.theirs):  # type: ignore[name-defined,misc]
        def train(self) -> None:
            if function is not None:
                function(self)
            if then_train:
                super().train()

    return type(f"Watched{member.ours.__name__}", (member.ours, Update), {})


def learned(model: Any, updates: int = 3, **kwargs: Any) -> Any:
    """The model after some updates."""
    return model.learn(updates * model.n_steps * model.n_envs, **kwargs)


def snapshot(model: Any) -> dict[str, Any]:
    """What an algorithm knows, and where the random streams are that SB3 draws from."""
    _, keys, position, *_ = np.random.get_state()  # noqa: NPY002
    return {
        "policy": {name: value.clone() for name, value in model.policy.state_dict().items()},
        "optimizer": model.policy.optimizer.state_dict()["state"],
        "last_obs": model._last_obs,
        "n_updates": model._n_updates,
        "streams": [th.get_rng_state(), np.asarray(keys), np.asarray(position)],
    }


def assert_equal(ours: Any, theirs: Any, where: str = "") -> None:
    """Equal to the bit, through nested containers."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for key in theirs:
            assert_equal(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_equal(a, b, f"{where}[{i}]")
    elif isinstance(theirs, th.Tensor):
        assert th.equal(ours, theirs), where
    else:
        np.testing.assert_array_equal(ours, theirs, err_msg=where)


def differs(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two snapshots have different policies."""
    return any(not th.equal(value, b["policy"][name]) for name, value in a["policy"].items())
