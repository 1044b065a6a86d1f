"""The fast path must do what SB3's own loop does: same draws, same minibatches, same numbers to rounding."""

from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import SPACES, ClockEnv, policy_for, space_env
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_avgcorr import AveragingA2C, AveragingBAC, AveragingPPO

ACTIONS: dict[str, spaces.Space] = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-0.5, 0.5, (2,), np.float32),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_binary": spaces.MultiBinary(3),
}


def collected(fast: bool, kind: str, action: str, n_steps: int = 40, **kwargs: Any) -> AveragingPPO:
    """A model that has collected its second rollout, the first having been used for an update of nothing."""
    env = DummyVecEnv([lambda: space_env(kind, ACTIONS[action])] * 2)
    model = AveragingPPO(policy_for(kind), env, n_steps=n_steps, batch_size=16, seed=3, fast=fast, **kwargs)
    _, callback = model._setup_learn(10**6)
    for _ in range(2):
        assert model.collect_rollouts(model.env, callback, model.rollout_buffer, n_steps)
    return model


@pytest.mark.parametrize("kind, action", [(kind, "discrete") for kind in SPACES] + [("box", action) for action in ACTIONS])
def test_rollout_is_that_of_sb3(kind: str, action: str) -> None:
    slow, fast = collected(False, kind, action), collected(True, kind, action)
    assert fast._collects_fast
    assert not slow._collects_fast
    a, b = slow.rollout_buffer, fast.rollout_buffer
    # the same actions from the same stream, so the same trajectory, to the bit
    for name in ("actions", "episode_starts", "episode_steps"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for name in ("rewards", "values", "log_probs", "advantages", "returns"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=1e-5, rtol=1e-5, err_msg=name)
        assert getattr(a, name).dtype == getattr(b, name).dtype
    for key in a.observations if isinstance(a.observations, dict) else [...]:
        np.testing.assert_array_equal(a.observations[key], b.observations[key])
    # time-limit bootstraps are in: some rewards are not what the environment gave
    assert b.pos == b.buffer_size
    assert b.full


def test_random_streams_end_where_sb3s_do() -> None:
    states = []
    for fast in (False, True):
        collected(fast, "box", "multi_discrete")
        states.append((th.get_rng_state(), np.random.get_state()[1]))  # noqa: NPY002
    assert th.equal(states[0][0], states[1][0])
    np.testing.assert_array_equal(states[0][1], states[1][1])


@pytest.mark.parametrize("kind", ["box", "dict", "image", "discrete"])
@pytest.mark.parametrize("batch_size", [16, 27, None])
def test_minibatches_are_those_of_sb3(kind: str, batch_size: int | None) -> None:
    model = collected(True, kind, "discrete")
    buffer = model.rollout_buffer
    np.random.seed(5)  # noqa: NPY002
    lean = list(buffer.get(batch_size))
    np.random.seed(5)  # noqa: NPY002
    buffer.lean = False
    own = list(buffer.get(batch_size))
    assert len(lean) == len(own)
    for x, y in zip(lean, own, strict=True):
        assert type(x) is type(y)
        for field in x._fields:
            u, v = getattr(x, field), getattr(y, field)
            for key in u if isinstance(u, dict) else [...]:
                assert u[key].dtype == v[key].dtype
                assert th.equal(u[key], v[key]), field


class Recorder(BaseCallback):
    """Remembers what it finds in ``locals``."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.stop_at = stop_at
        self.steps: list[set[str]] = []
        self.ends: list[set[str]] = []

    def _on_step(self) -> bool:
        self.steps.append(set(self.locals))
        return self.stop_at is None or self.n_calls < self.stop_at

    def _on_rollout_end(self) -> None:
        self.ends.append(set(self.locals))


def test_callbacks_find_their_locals() -> None:
    found = []
    for fast in (False, True):
        recorder = Recorder()
        AveragingPPO("MlpPolicy", ClockEnv(), n_steps=32, batch_size=16, n_epochs=1, fast=fast).learn(32, callback=recorder)
        found.append(recorder)
    # loop variables that SB3's method happens to have are no part of what callbacks read
    incidental = {"idx", "done", "terminal_obs", "terminal_value"}
    assert found[0].steps[-1] - found[1].steps[-1] - incidental == {"values", "log_probs"}
    assert found[0].ends[0] - found[1].ends[0] - incidental == set()


def test_callback_stops_and_clock_goes_on() -> None:
    for fast in (False, True):
        model = AveragingPPO("MlpPolicy", ClockEnv(length=50), n_steps=16, batch_size=16, n_epochs=1, fast=fast)
        model.learn(100, callback=Recorder(stop_at=10))
        assert model.num_timesteps == 10
        np.testing.assert_array_equal(model._last_episode_steps, [10])


def test_falls_back_where_it_does_not_apply() -> None:
    class OwnPolicy(ActorCriticPolicy):
        def forward(self, obs: th.Tensor, deterministic: bool = False) -> Any:
            return super().forward(obs, deterministic)

    class OwnBuffer(RolloutBuffer):
        pass

    box = space_env("box", ACTIONS["box"])
    kwargs: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 1}
    models = {
        "sde": AveragingPPO("MlpPolicy", box, use_sde=True, **kwargs),
        "policy": AveragingPPO(OwnPolicy, box, **kwargs),
        "buffer": AveragingPPO("MlpPolicy", box, rollout_buffer_class=OwnBuffer, **kwargs),
        "none": AveragingPPO("MlpPolicy", box, correction=None, **kwargs),
        "gamma": AveragingPPO("MlpPolicy", box, gamma=1.0, **kwargs),
        "off": AveragingPPO("MlpPolicy", box, fast=False, **kwargs),
    }
    for name, model in models.items():
        assert not model._collects_fast, name
        model.learn(16)
    assert AveragingPPO("MlpPolicy", box, **kwargs)._collects_fast
    assert AveragingA2C("MlpPolicy", box)._collects_fast


@pytest.mark.parametrize("ours", [AveragingPPO, AveragingA2C, AveragingBAC])
def test_always_is_lean_without_a_correction_too(ours: type) -> None:
    """SB3's algorithm to rounding: the same actions and episodes, parameters that differ in the last digits."""
    settings: dict[str, Any] = {"n_steps": 32, "seed": 1, "correction": None, "device": "cpu"}
    if ours is AveragingPPO:
        settings |= {"batch_size": 16, "n_epochs": 2}
    models = []
    for fast in (True, "always"):  # one after the other: a seed is that of the global streams
        env = make_vec_env(lambda: ClockEnv(continuous=True), n_envs=2, seed=0)
        models.append(ours("MlpPolicy", env, fast=fast, **settings).learn(3 * 64))
    own, lean = models
    assert not own._collects_fast
    assert lean._collects_fast
    vectors = [th.nn.utils.parameters_to_vector(model.policy.parameters()).detach() for model in (own, lean)]
    np.testing.assert_allclose(*vectors, atol=2e-5)
    np.testing.assert_array_equal(lean.correction_weights, 1.0)


def test_fast_is_checked() -> None:
    with pytest.raises(ValueError, match=r"fast='yes' makes no sense: it must be True, False or 'always'"):
        AveragingPPO("MlpPolicy", ClockEnv(), fast="yes")  # type: ignore[arg-type]


def test_users_choice_of_adam_is_kept() -> None:
    def fused(**kwargs: Any) -> Any:
        model = AveragingPPO("MlpPolicy", ClockEnv(), n_steps=16, batch_size=16, **kwargs)
        return model.policy.optimizer.param_groups[0]["fused"]

    assert fused()
    assert not fused(fast=False)
    assert not fused(policy_kwargs={"optimizer_kwargs": {"foreach": True}})


def test_validation_of_distributions_is_restored() -> None:
    before = th.distributions.Distribution._validate_args
    AveragingPPO("MlpPolicy", ClockEnv(), n_steps=16, batch_size=16, n_epochs=1).learn(16)
    assert th.distributions.Distribution._validate_args is before


def test_update_is_that_of_sb3_to_rounding() -> None:
    """Three updates with weights folded in: parameters differ by no more than Adam's fused rounding."""
    results = []
    for fast in (False, True):
        env = VecNormalize(make_vec_env(lambda: ClockEnv(continuous=True), n_envs=2, seed=0))
        model = AveragingPPO("MlpPolicy", env, n_steps=32, batch_size=16, n_epochs=2, seed=1, correction="power", fast=fast)
        results.append(th.nn.utils.parameters_to_vector(model.learn(3 * 64).policy.parameters()))
    np.testing.assert_allclose(results[0].detach(), results[1].detach(), atol=2e-5)
