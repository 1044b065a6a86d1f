"""Rollouts that the engine collects are those of SB3's own loop, and callbacks see what they see there."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from conftest import ClockEnv, FaultyEnv, policy_for, space_env
from engine_models import ACTIONS, with_rollout
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EveryNTimesteps
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.common.policies import AsymmetricActorCriticPolicy
from sb3_avgcorr.fast import engine_for

NAMES = ("actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns")


class EnginePPO(PPO):
    """PPO that collects and trains on the engine."""

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
        engine = engine_for(self, PPO)
        assert engine is not None
        assert engine.collects()
        return engine.collect(*args, **kwargs)

    def train(self) -> None:
        engine = engine_for(self, PPO)
        assert engine is not None
        assert engine.trains()
        engine.train()


class CollectingPPO(EnginePPO):
    """PPO that collects on the engine and trains as SB3 does."""

    def train(self) -> None:
        engine = engine_for(self, PPO)
        assert engine is not None
        assert not engine.serves()
        assert not engine.trains()
        PPO.train(self)


class Record(BaseCallback):
    """Keeps what it sees at each step, and copies of the rollouts."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = []
        self.rollouts: list[dict[str, Any]] = []

    def _on_step(self) -> bool:
        names = ("n_steps", "actions", "clipped_actions", "rewards", "dones", "new_obs", "values", "log_probs", "obs_tensor")
        # copies, because SB3 adds a bootstrap to the rewards afterwards
        self.steps.append({name: copy.deepcopy(self.locals[name]) for name in names})
        assert "values" in self.locals
        assert self.locals.get("log_probs") is not None
        assert self.locals.get("nothing", 3) == 3
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.locals["rollout_buffer"]
        self.rollouts.append({name: getattr(buffer, name).copy() for name in NAMES})
        self.rollouts[-1]["last_values"] = self.locals["values"]
        self.rollouts[-1]["last_log_probs"] = self.locals["log_probs"]
        self.rollouts[-1]["observations"] = copy.deepcopy(buffer.observations)


def close(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            close(a[key], b[key])
        return
    if isinstance(a, (th.Tensor, np.ndarray)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
    np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=1e-4, atol=1e-5)


def learned(cls: type[PPO], make_env: Callable[[], Any], n_envs: int = 2, normalize: bool = False, **kwargs: Any) -> Any:
    env: Any = DummyVecEnv([make_env for _ in range(n_envs)])
    if normalize:
        env = VecNormalize(env)
    record = Record()
    arguments = {"n_steps": 24, "batch_size": 16, "n_epochs": 2, "seed": 1, "device": "cpu", **kwargs}
    model = cls(arguments.pop("policy", "MlpPolicy"), env, **arguments)
    model.learn(3 * 24 * n_envs, callback=record)
    return model, record


def assert_runs_are_the_same(make_env: Callable[[], Any], cls: type[PPO] = EnginePPO, **kwargs: Any) -> None:
    (expected, theirs), (model, ours) = (learned(each, make_env, **kwargs) for each in (PPO, cls))
    assert len(ours.steps) == len(theirs.steps) == 72
    for a, b in zip(theirs.steps + theirs.rollouts, ours.steps + ours.rollouts, strict=True):
        close(a, b)
    for p, q in zip(expected.policy.parameters(), model.policy.parameters(), strict=True):
        th.testing.assert_close(q, p, rtol=1e-4, atol=1e-5)
    assert expected.num_timesteps == model.num_timesteps
    assert [info["l"] for info in expected.ep_info_buffer] == [info["l"] for info in model.ep_info_buffer]


@pytest.mark.parametrize("kind", ["box", "matrix", "discrete", "multi_discrete", "multi_binary", "dict"])
@pytest.mark.parametrize("action", ["box", "discrete"])
def test_spaces(kind: str, action: str) -> None:
    """Three rollouts and updates, with time limits and terminations among them."""
    assert_runs_are_the_same(lambda: space_env(kind, ACTIONS[action]), policy=policy_for(kind))


@pytest.mark.parametrize("kind", ["image", "dict_image"])
def test_images(kind: str) -> None:
    """
    Layers below the MLPs stay torch's, and so does the update; they are evaluated once a step.

    By gradient descent: Adam turns the first gradient of a convolution that was dead, which may come or not come from a
    value that is 0 to rounding, into a step of the whole learning rate (seed 1 with one thread, on one machine).
    """
    descent = {"learning_rate": 0.01, "policy_kwargs": {"optimizer_class": th.optim.SGD}}
    assert_runs_are_the_same(lambda: space_env(kind, ACTIONS["box"]), policy=policy_for(kind), cls=CollectingPPO, **descent)


@pytest.mark.parametrize("action", ["matrix", "multi_discrete", "multi_binary"])
def test_actions(action: str) -> None:
    assert_runs_are_the_same(lambda: space_env("box", ACTIONS[action]))


@pytest.mark.parametrize(
    "options",
    [
        {"n_envs": 1},
        {"n_envs": 20},
        {"normalize": True},
        {"gae_lambda": 1.0, "gamma": 1.0},
        {"gae_lambda": 0.0},
        {"policy_kwargs": {"share_features_extractor": False}},
    ],
    ids=lambda options: re.sub(r" at 0x\w+", "", str(options)),  # the same in every process
)
def test_options(options: dict[str, Any]) -> None:
    assert_runs_are_the_same(lambda: space_env("box", ACTIONS["box"]), **options)


def test_asymmetric_policy() -> None:
    options = {"policy": AsymmetricActorCriticPolicy, "policy_kwargs": {"actor_keys": ["vector"]}}
    assert_runs_are_the_same(lambda: space_env("dict", ACTIONS["box"]), **options)


class Meddle(BaseCallback):
    """Changes parameters and rewards in the middle of rollouts."""

    def _on_step(self) -> bool:
        self.locals["rewards"] += 0.5
        if self.n_calls % 7 == 0:
            with th.no_grad():
                for p in self.model.policy.parameters():
                    p.mul_(1.05)
        if self.n_calls % 11 == 0:
            for p in self.model.policy.parameters():
                p.data = p.data * 0.9
        return True


def test_a_callback_that_changes_parameters_in_the_middle_of_a_rollout() -> None:
    """Values and log-probabilities are those of the parameters that acted; bootstraps those of the changed ones."""
    records = []
    for cls in (PPO, EnginePPO):
        env = DummyVecEnv([lambda: space_env("box", length=5) for _ in range(2)])
        record = Record()
        model = cls("MlpPolicy", env, n_steps=24, batch_size=16, n_epochs=2, seed=1, device="cpu")
        model.learn(96, callback=CallbackList([Meddle(), record]))
        records.append(record)
    for a, b in zip(records[0].rollouts, records[1].rollouts, strict=True):
        close(a, b)


def test_callbacks_of_callbacks_see_the_same() -> None:
    inner = Record()
    env = DummyVecEnv([lambda: space_env("box")])
    EnginePPO("MlpPolicy", env, n_steps=16, batch_size=8, n_epochs=1, seed=1, device="cpu").learn(
        32, callback=[EveryNTimesteps(8, inner)]
    )
    assert [step["values"].shape for step in inner.steps] == [(1, 1)] * 4


class Stop(BaseCallback):
    """Ends training at a step."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def _on_step(self) -> bool:
        return self.n_calls < self.at


@pytest.mark.parametrize("at", [1, 10])
def test_a_rollout_that_a_callback_ends(at: int) -> None:
    buffers: list[RolloutBuffer] = []
    for cls in (PPO, EnginePPO):
        env = DummyVecEnv([lambda: space_env("box") for _ in range(2)])
        model = cls("MlpPolicy", env, n_steps=16, batch_size=8, seed=1, device="cpu").learn(64, callback=Stop(at))
        assert model.num_timesteps == 2 * at
        buffers.append(model.rollout_buffer)
    assert buffers[0].pos == buffers[1].pos == at - 1
    assert not buffers[1].full
    for name in ("values", "log_probs", "rewards", "actions"):
        close(getattr(buffers[0], name), getattr(buffers[1], name))


def test_what_is_not_finite_is_named() -> None:
    env = DummyVecEnv([lambda: FaultyEnv(5, "observation", continuous=True)])
    model = EnginePPO("MlpPolicy", env, n_steps=16, batch_size=8, seed=1, device="cpu")
    with pytest.raises(ValueError, match="at step 5 of the rollout"):
        model.learn(16)

    model = EnginePPO("MlpPolicy", DummyVecEnv([ClockEnv]), n_steps=16, batch_size=8, learning_rate=1e30, device="cpu")
    with pytest.raises(ValueError, match="parameters are not finite"):
        model.learn(64)
    engine = engine_for(model)
    assert engine is not None
    assert engine.not_finite() == "parameters"
    model = with_rollout()
    engine = engine_for(model)
    assert engine is not None
    assert engine.not_finite() is None
    model.rollout_buffer.log_probs[3] = np.inf
    assert engine.not_finite() == "log-probabilities"


def test_numbers_that_are_no_class_of_a_discrete_observation() -> None:
    class Wrong(ClockEnv):
        """Its observation is not in its space."""

        observation_space = spaces.Discrete(3)

        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Discrete(3)

        def _observation(self) -> Any:
            return np.int64(self.t - 1)

    model = EnginePPO("MlpPolicy", DummyVecEnv([Wrong]), n_steps=16, batch_size=8, device="cpu")
    with pytest.raises(ValueError, match=r"not in 0 .. n-1, n = \[3\]"):
        model.learn(16)


class OwnForward(ActorCriticPolicy):
    """Somebody's own policy."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class OwnBuffer(RolloutBuffer):
    """Somebody's own buffer."""


@pytest.mark.parametrize(
    ("policy", "kwargs"),
    [
        (OwnForward, {}),
        ("MlpPolicy", {"use_sde": True}),
        ("MlpPolicy", {"rollout_buffer_class": OwnBuffer}),
        ("MlpPolicy", {"policy_kwargs": {"activation_fn": th.nn.Hardtanh}}),
    ],
)
def test_what_is_not_served(policy: Any, kwargs: dict[str, Any]) -> None:
    model = PPO(policy, DummyVecEnv([lambda: ClockEnv(continuous=True)]), n_steps=16, batch_size=8, device="cpu", **kwargs)
    assert engine_for(model) is None


def test_another_device_is_not_served() -> None:
    model = with_rollout()
    model.policy.to("meta")
    assert engine_for(model) is None


def _hook(model: PPO) -> Any:
    return model.policy.mlp_extractor.policy_net[0].register_forward_hook(lambda *args: None)


def _policy_hook(model: PPO) -> Any:
    return model.policy.register_forward_pre_hook(lambda *args: None)


def _own_method(model: PPO) -> None:
    model.policy.evaluate_actions = model.policy.evaluate_actions  # type: ignore[method-assign]


def _own_extractor_method(model: PPO) -> None:
    model.policy.mlp_extractor.forward_actor = model.policy.mlp_extractor.forward_actor  # type: ignore[method-assign]


def _double(model: PPO) -> None:
    model.policy.double()


def _dropout(model: PPO) -> None:
    model.policy.mlp_extractor.policy_net.append(th.nn.Dropout(0.5))


def _shared_memory(model: PPO) -> None:
    model.policy.share_memory()


@pytest.mark.parametrize(
    "change", [_hook, _policy_hook, _own_method, _own_extractor_method, _double, _dropout, _shared_memory]
)
def test_what_comes_between_is_noticed(change: Callable[[PPO], Any]) -> None:
    model = with_rollout()
    engine = engine_for(model)
    assert engine is not None
    assert engine.collects()
    handle = change(model)
    assert not engine.collects()
    assert not engine.trains()
    if handle is not None:
        handle.remove()
        assert engine.collects()


def test_an_optimiser_that_is_not_served_leaves_the_collection() -> None:
    model = with_rollout(policy_kwargs={"optimizer_class": th.optim.SGD, "optimizer_kwargs": {}})
    engine = engine_for(model)
    assert engine is not None
    assert engine.collects()
    assert not engine.trains()
    model = with_rollout(policy_kwargs={"optimizer_kwargs": {"amsgrad": True}})
    engine = engine_for(model)
    assert engine is not None
    assert not engine.trains()
    model = with_rollout()
    handle = model.policy.optimizer.register_step_post_hook(lambda *args: None)
    engine = engine_for(model)
    assert engine is not None
    assert not engine.trains()
    handle.remove()
    assert engine.trains()


def test_another_algorithm_is_collected_for_but_not_trained() -> None:
    class Own(A2C):
        """Somebody's own update."""

        def train(self) -> None:
            super().train()

    model = Own("MlpPolicy", DummyVecEnv([ClockEnv]), device="cpu")
    engine = engine_for(model)
    assert engine is not None
    assert engine.collects()
    assert not engine.trains()


@pytest.mark.parametrize(("width", "batch_size", "n_threads"), [(64, 32, 2), (8192, 4, 2), (8192, 32, 1)])
def test_large_layers_are_torchs_if_it_has_threads(width: int, batch_size: int, n_threads: int) -> None:
    model = with_rollout(batch_size=batch_size, policy_kwargs={"net_arch": {"pi": [2], "vf": [width]}})
    engine = engine_for(model)
    assert engine is not None
    th.set_num_threads(n_threads)
    assert engine.trains()
    model.batch_size = 48
    assert engine.trains() == (width == 64 or n_threads == 1)
    assert engine.collects()


def _rewards_and_log_probs(cls: type[PPO], env: Any, **later: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of one rollout, with attributes that were set after the model was made."""
    model = cls("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, seed=0, device="cpu")
    for name, value in later.items():
        setattr(model, name, value)
    model.learn(64)
    return model.rollout_buffer.rewards, model.rollout_buffer.log_probs.reshape(-1)


def test_a_time_limit_is_bootstrapped_with_the_models_discount_factor() -> None:
    """Not the buffer's: they differ once the model's is set."""
    theirs, ours = (
        _rewards_and_log_probs(cls, gym.make("Pendulum-v1", max_episode_steps=20), gamma=0.5) for cls in (PPO, EnginePPO)
    )
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)


def test_actions_of_integers_are_left_to_sb3() -> None:
    """Their log-probabilities are those of the numbers that were drawn, of which the buffer keeps the integers."""
    box = spaces.Box(-3, 3, (2,), np.int32)
    model = PPO("MlpPolicy", space_env("box", box), n_steps=16, seed=0, device="cpu")
    assert engine_for(model, PPO) is None
    theirs, ours = (
        cls("MlpPolicy", space_env("box", box), n_steps=64, batch_size=64, n_epochs=1, seed=0, device="cpu").learn(64)
        for cls in (PPO, AveragingPPO)
    )
    np.testing.assert_array_equal(ours.rollout_buffer.log_probs, theirs.rollout_buffer.log_probs)


class RunningStatistics(BaseFeaturesExtractor):
    """An extractor that keeps a statistic of what it sees while acting, and divides by it."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space, 16)
        self.linear = th.nn.Linear(space.shape[0], 16)
        self.size: th.Tensor
        self.register_buffer("size", th.ones(16))

    def forward(self, observations: th.Tensor) -> th.Tensor:
        y = self.linear(observations)
        if not self.training:
            self.size = 0.99 * self.size + 0.01 * (y.detach().abs().mean(0) + 0.1)
        return th.tanh(y / self.size)


def test_what_an_extractor_keeps_while_acting_can_be_trained_with() -> None:
    options: dict[str, Any] = {"n_steps": 64, "seed": 0, "device": "cpu", "correction": "power", "correction_strength": 1.0}
    kwargs = {"features_extractor_class": RunningStatistics}
    model = AveragingPPO("MlpPolicy", "CartPole-v1", policy_kwargs=kwargs, **options)
    assert model._engine is not None
    assert model._engine.collects()
    model.learn(128)
