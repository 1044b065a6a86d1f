"""The lean vectorised environments give the numbers of SB3's own, to the bit, and are saved as theirs."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, sync_envs_normalization

from sb3_avgcorr.fast.vec_env import Infos, LeanDummyVecEnv, LeanMoments, LeanVecNormalize

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float64)
SINGLE = spaces.Box(-1.0, 1.0, (2,), np.float32)
COUNTS = spaces.Box(0, 100, (2,), np.int64)


class Wanderer(gym.Env[Any, Any]):
    """
    Draws observations and rewards; episodes end or are cut now and then. What it tells of a step it changes afterwards.

    :param space: of the observations
    """

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space = space
        self.told = {"where": np.zeros(2), "step": 0, "deep": {"list": [0]}, "number": np.float64(0.0)}

    def _draw(self) -> Any:
        def of(space: spaces.Space[Any]) -> Any:
            if isinstance(space, spaces.Dict):
                return {key: of(part) for key, part in space.spaces.items()}
            return (5.0 + 20.0 * self.np_random.standard_normal(space.shape)).astype(space.dtype)

        return of(self.observation_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.told["where"] += 1.0
        self.told["step"] += 1
        self.told["number"] += 0.5
        self.told["deep"]["list"][0] += 1
        end = self.np_random.random(2) < 0.1
        return self._draw(), 100.0 * self.np_random.standard_normal(), bool(end[0]), bool(end[1]), self.told


def both(space: spaces.Space[Any], n_envs: int, normalize: dict[str, Any] | None) -> tuple[VecEnv, VecEnv]:
    """SB3's environments and ours."""
    made: list[VecEnv] = []
    for cls in (DummyVecEnv, LeanDummyVecEnv):
        env: VecEnv = cls([lambda: Monitor(Wanderer(space)) for _ in range(n_envs)])
        env.seed(3)
        if normalize is not None:
            env = VecNormalize(env, **normalize)
            if cls is LeanDummyVecEnv:
                env = LeanVecNormalize.like(env)
        made.append(env)
    return made[0], made[1]


def assert_equal(a: Any, b: Any) -> None:
    """To the bit, with the same types; but for the time, which a monitor tells."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a.keys() - {"t"}:
            assert_equal(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    else:
        assert a == b


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize(
    ("space", "normalize"),
    [
        (BOX, None),
        (spaces.Dict({"a": BOX, "b": SINGLE}), None),
        (BOX, {}),
        (SINGLE, {"gamma": 0.9, "clip_obs": 1.5, "clip_reward": 0.5}),
        (COUNTS, {}),
        (BOX, {"norm_obs": False}),
        (BOX, {"norm_reward": False}),
        (BOX, {"training": False}),
        (spaces.Dict({"a": BOX, "b": SINGLE}), {"norm_obs_keys": ["a"]}),
    ],
)
def test_steps_are_those_of_sb3(space: spaces.Space[Any], normalize: dict[str, Any] | None, n_envs: int) -> None:
    theirs, ours = both(space, n_envs, normalize)
    assert_equal(theirs.reset(), ours.reset())
    kept = []
    for _ in range(60):
        actions = np.zeros(n_envs, dtype=np.int64)
        kept.append((theirs.step(actions), ours.step(actions)))
    for a, b in kept:  # at the end: what was returned does not change with the environments
        assert_equal(a, b)
    if isinstance(theirs, VecNormalize) and isinstance(ours, VecNormalize):
        assert_equal(theirs.get_original_reward(), ours.get_original_reward())
        assert_equal(theirs.get_original_obs(), ours.get_original_obs())
        assert_equal(theirs.ret_rms.var, ours.ret_rms.var)


def test_it_is_saved_and_copied_as_sb3s(tmp_path: Path) -> None:
    theirs, ours = both(BOX, 2, {})
    for env in (theirs, ours):
        env.reset()
        for _ in range(10):
            env.step(np.zeros(2, dtype=np.int64))
    assert isinstance(ours, LeanVecNormalize)
    assert isinstance(ours.obs_rms, LeanMoments)
    ours.save(str(tmp_path / "vecnormalize.pkl"))
    assert b"sb3_avgcorr" not in (tmp_path / "vecnormalize.pkl").read_bytes()
    loaded = VecNormalize.load(str(tmp_path / "vecnormalize.pkl"), DummyVecEnv([lambda: Wanderer(BOX)]))
    assert type(loaded) is VecNormalize
    for copied in (loaded.obs_rms, copy.deepcopy(ours.obs_rms), pickle.load(io.BytesIO(pickle.dumps(ours.obs_rms)))):
        assert type(copied) is RunningMeanStd
        assert_equal(copied.mean, theirs.obs_rms.mean)  # type: ignore[attr-defined]
        assert_equal(copied.var, theirs.obs_rms.var)  # type: ignore[attr-defined]
        assert copied.count == ours.obs_rms.count

    other = both(BOX, 1, {"training": False})[1]
    sync_envs_normalization(ours, other)
    assert_equal(other.obs_rms.mean, ours.obs_rms.mean)  # type: ignore[attr-defined]


def test_statistics_are_taken_over() -> None:
    theirs = both(BOX, 1, {})[0]
    assert isinstance(theirs, VecNormalize)
    theirs.reset()
    while not theirs.returns.any():  # to the middle of an episode
        theirs.step(np.zeros(1, dtype=np.int64))
    ours = LeanVecNormalize.like(theirs)
    assert ours.venv is theirs.venv
    assert_equal(ours.returns, theirs.returns)
    x = np.arange(3.0)
    assert_equal(ours.normalize_obs(x), theirs.normalize_obs(x))
    assert_equal(ours.normalize_reward(x), theirs.normalize_reward(x))
    assert_equal(ours.unnormalize_obs(x), theirs.unnormalize_obs(x))


def test_infos_are_copied_with_their_types() -> None:
    """Also those that are no plain dicts, or hold what another part of them holds."""
    shared = [1, 2]
    infos = [OrderedDict(a=shared), {"a": shared, "b": shared, "c": "text", "d": None}]
    copied = copy.deepcopy(Infos(infos))
    assert_equal(copied, infos)
    assert copied[1]["a"] is copied[1]["b"]
    assert copied[1]["a"] is not shared
