"""The long tail with a physical arm, and the pictures of all three."""

import json
import os
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from sb3_avgcorr.envs.long_tail import LongTailContinuousEnv, LongTailEnv


def test_reacher_shows_the_actor_reachers_observation_and_pays_as_it_says() -> None:
    pytest.importorskip("mujoco")
    env: Any = gym.make("avgcorr/LongTailReacher-v0", strength=0.5, early=3, length=6).unwrapped
    obs, _ = env.reset(seed=0)
    units = np.array([1, 1, 1, 1, 0.1, 0.1, 10, 10, 0.1, 0.1])
    goal = 0.1 * obs["observation"][4:6]
    turned = np.array([-goal[1], goal[0]])  # by 90°
    for t in range(6):
        obs, reward, *_ = env.step(np.array([0.3, -0.2], np.float32))
        np.testing.assert_allclose(units * obs["observation"], env._get_obs(), atol=1e-6)
        tip = env.get_body_com("fingertip")[:2]
        assert reward == pytest.approx(-10 * np.linalg.norm(tip - (goal if t < 3 else turned)), abs=1e-5)
        # what the critic is told holds for the step to come
        np.testing.assert_allclose(0.1 * obs["privileged"][:2], tip - (goal if t + 1 < 3 else turned), atol=1e-6)


def test_reacher_moves_at_the_speed_asked_for() -> None:
    pytest.importorskip("mujoco")
    env: Any = gym.make("avgcorr/LongTailReacher-v0").unwrapped
    env.reset(seed=0)
    env.set_state(np.array([0.0, 0.0, *env.goal]), np.zeros(4))
    for speeds in ([0.3, -0.1], [1.0, 0.1], [-0.5, 0.0]):
        for _ in range(5):  # 20 rad/s of change would take 5 steps at the motors' limit
            obs, *_ = env.step(np.array(speeds, np.float32))
        np.testing.assert_allclose(obs["observation"][6:8], speeds, atol=0.01)


def test_reacher_stays_in_its_space() -> None:
    pytest.importorskip("mujoco")
    env = gym.make("avgcorr/LongTailReacher-v0")
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    for step in range(4000):
        assert env.observation_space.contains(obs), obs
        if step % 30 == 0:  # long enough to run into the elbow's stops
            action = rng.choice([-1.0, 1.0], 2).astype(np.float32)
        obs, _, terminated, _, _ = env.step(action)
        if terminated:
            obs, _ = env.reset()


@pytest.mark.parametrize("action", [[np.nan, 0.0], [0.0], [[0.0, 0.0]]])
def test_reacher_bad_actions(action: Any) -> None:
    pytest.importorskip("mujoco")
    env = gym.make("avgcorr/LongTailReacher-v0", disable_env_checker=True).unwrapped
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action"):
        env.step(np.array(action, np.float32))


def test_reacher_cuts_actions_and_starts_anywhere() -> None:
    pytest.importorskip("mujoco")
    one, two = (gym.make("avgcorr/LongTailReacher-v0").unwrapped for _ in range(2))
    one.reset(seed=0), two.reset(seed=0)
    a, b = one.step(np.array([1.0, -1.0])), two.step(np.array([7.0, -9.0]))
    assert all(np.array_equal(a[0][key], b[0][key]) for key in a[0])
    assert a[1] == b[1]
    starts = np.array([one.reset(seed=seed)[0]["observation"] for seed in range(300)])
    radius = np.hypot(*starts[:, 4:6].T)
    assert 1.0 <= radius.min() < 1.1  # in units of 0.1 m
    assert 1.9 < radius.max() <= 2.0
    assert (np.abs(np.arctan2(starts[:, 5], starts[:, 4])) <= np.pi / 6 + 1e-6).all()
    assert abs(starts[:, 0].mean()) < 0.2  # the shoulder's cosine: no direction is preferred
    assert (starts[:, 6:8] == 0).all()


def test_simulator_is_imported_only_when_made() -> None:
    code = (
        "import sys, gymnasium as gym, sb3_avgcorr\n"
        "gym.make('avgcorr/LongTail-v0'), gym.make('avgcorr/LongTailContinuous-v0')\n"
        "assert 'mujoco' not in sys.modules\n"
        "sys.modules['mujoco'] = None\n"
        "try: gym.make('avgcorr/LongTailReacher-v0')\n"
        "except ImportError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert 'pip install "sb3-avgcorr[dm-control]"' in result.stdout


RENDER = """
import json, gymnasium as gym, numpy as np, sb3_avgcorr
env = gym.make("avgcorr/LongTailReacher-v0", render_mode="rgb_array", width=160, height=120)
env.reset(seed=0)
first = env.render()
for _ in range(20):
    env.step(np.array([0.9, -0.9], np.float32))
second = env.render()
print("RESULT", json.dumps([first.shape, str(first.dtype), int((first != second).any(-1).sum())]))
env.close()
"""


def test_reacher_renders() -> None:
    pytest.importorskip("mujoco")
    errors = {}
    for backend in ("egl", "osmesa"):
        environment = {**os.environ, "MUJOCO_GL": backend}
        probe = "import mujoco; c = mujoco.GLContext(64, 64); c.make_current(); c.free(); print('works')"
        arguments: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 180, "env": environment, "check": False}
        tried = subprocess.run([sys.executable, "-c", probe], **arguments)
        if "works" in tried.stdout:
            result = subprocess.run([sys.executable, "-c", RENDER], **arguments)
            assert result.returncode == 0, result.stderr
            shape, dtype, changed = json.loads(result.stdout.split("RESULT ")[1])
            assert shape == [120, 160, 3]
            assert dtype == "uint8"
            assert changed > 20
            return
        errors[backend] = (tried.stderr.strip().splitlines() or ["no message"])[-1]
    pytest.skip(f"no renderer here: neither EGL nor OSMesa works ({errors})")


@pytest.mark.parametrize("cls", [LongTailEnv, LongTailContinuousEnv])
def test_pictures_show_clock_cue_and_response(cls: Any) -> None:
    env = cls(render_mode="rgb_array", early=50)
    env.reset(seed=0)
    env._cue = 1.0
    first = env.render()
    for _ in range(100):
        env.step(env.action_space.sample())
    env._cue, env._response = -1.0, 1.0
    second = env.render()
    blue, dark = (second == (70, 110, 200)).all(-1), (second == 60).all(-1)
    assert blue.any()
    assert not blue[:, 161:].any()
    assert dark[:, 161:].any()
    assert (first == (70, 110, 200)).all(-1)[:, 161:].any()
    green, orange = ((second == colour).all(-1).any(axis=0).sum() for colour in ((60, 150, 60), (240, 130, 30)))
    assert green == 75  # steps 0 to 50 of 200, in a bar of 300 pixels
    assert orange == 75  # steps 50 to 100 of 200
    with pytest.raises(ValueError, match="render_mode"):
        cls(render_mode="hologram")
