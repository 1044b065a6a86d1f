"""The engine's update is that of SB3's A2C, to rounding."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch as th
from engine_models import ACTIONS, assert_same, engine_of, with_rollout
from stable_baselines3 import A2C
from stable_baselines3.common.utils import set_random_seed

from sb3_avgcorr import BAC


def assert_update_is_sb3s(**kwargs: Any) -> None:
    kwargs = {"algorithm": A2C, **kwargs}
    expected, model = with_rollout(**kwargs), with_rollout(**kwargs)
    before = [p.detach().clone() for p in expected.policy.parameters()]
    engine = engine_of(model)
    for index in range(3):
        set_random_seed(index)
        expected.train()
        drawn = th.rand(1)
        set_random_seed(index)
        assert engine.trains()
        engine.train()
        assert th.equal(th.rand(1), drawn)
    assert any(not th.equal(p, q) for p, q in zip(before, expected.policy.parameters(), strict=True))
    assert_same(expected, model)


@pytest.mark.parametrize("kind", ["box", "discrete", "dict"])
def test_observations(kind: str) -> None:
    assert_update_is_sb3s(kind=kind)


@pytest.mark.parametrize("action", ACTIONS)
def test_actions(action: str) -> None:
    assert_update_is_sb3s(action=action, ent_coef=0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"n_steps": 5},
        {"n_steps": 1, "n_envs": 1},
        {"normalize_advantage": True},
        {"use_rms_prop": False},
        {"use_rms_prop": False, "policy_kwargs": {"optimizer_kwargs": {"eps": 1e-5, "weight_decay": 0.1}}},
        {"rms_prop_eps": 1e-2, "max_grad_norm": 0.01},
        {"vf_coef": 0.0, "learning_rate": lambda progress: 1e-3 * progress},
        {"algorithm": BAC},  # two groups, a standard deviation that is not learned
        {"algorithm": BAC, "action": "discrete", "fixed_std": False},
    ],
    ids=lambda options: re.sub(r" at 0x\w+", "", str(options)),  # the same in every process
)
def test_options(options: dict[str, Any]) -> None:
    assert_update_is_sb3s(**options)
