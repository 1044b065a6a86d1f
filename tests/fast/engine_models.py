"""Models of SB3's with a rollout, for the engine's tests. Import with ``from engine_models import with_rollout``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from conftest import policy_for, space_env
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_avgcorr.fast import Engine, engine_for

ACTIONS: dict[str, spaces.Space] = {
    "box": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "matrix": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
    "discrete": spaces.Discrete(3),
    "multi_discrete": spaces.MultiDiscrete([3, 2]),
    "multi_binary": spaces.MultiBinary(4),
}


def with_rollout(kind: str = "box", action: str = "box", n_envs: int = 2, algorithm: type[Any] = PPO, **kwargs: Any) -> Any:
    """A model of SB3's with a rollout of SB3's, ready for ``train()``; the same one whenever it is asked for."""
    env = DummyVecEnv([lambda: space_env(kind, ACTIONS[action]) for _ in range(n_envs)])
    arguments: dict[str, Any] = {"n_steps": 48, "seed": 0, "device": "cpu", **kwargs}
    if algorithm is PPO:
        arguments = {"batch_size": 32, "n_epochs": 3, **arguments}
    model = algorithm(arguments.pop("policy", policy_for(kind)), env, **arguments)
    _, callback = model._setup_learn(1000)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    return model


def engine_of(model: OnPolicyAlgorithm) -> Engine:
    engine = engine_for(model)
    assert engine is not None
    assert engine.trains()
    return engine


def optimizer_state(model: OnPolicyAlgorithm) -> list[th.Tensor]:
    state = model.policy.optimizer.state_dict()["state"]
    return [state[index][name] for index in sorted(state) for name in sorted(state[index])]


def assert_same(expected: OnPolicyAlgorithm, model: OnPolicyAlgorithm) -> None:
    """The same parameters, optimiser's state, logged figures, counters; gradients where SB3 leaves them."""
    for a, b in zip(expected.policy.parameters(), model.policy.parameters(), strict=True):
        th.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)
        if a.grad is not None:
            th.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-5)
    for moment, ours in zip(optimizer_state(expected), optimizer_state(model), strict=True):
        th.testing.assert_close(ours, moment, rtol=1e-5, atol=1e-5)
    logged, found = expected.logger.name_to_value, model.logger.name_to_value
    assert logged.keys() == found.keys()
    for name in logged:
        np.testing.assert_allclose(found[name], logged[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert expected._n_updates == model._n_updates
    assert expected.policy.training == model.policy.training
