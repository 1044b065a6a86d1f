"""The registered environments: interface, seeding, bounds, rendering, and what is particular to each task."""

import json
import os
import pickle
import subprocess
import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as gym_check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sb3_avgcorr.envs import ENV_IDS, register_envs

register_envs()

SIMULATED = [env_id for env_id in ENV_IDS if "Mass" in env_id or "Sparse" in env_id or "UR5" in env_id]
SPARSE = ["avgcorr/SparseReacherEasy-v0", "avgcorr/SparseReacherHard-v0"]
LIMITS = {
    "TwoState": 20,
    "DotReacher": 500,
    "PointMass": 1000,
    "Sparse": 10_000,
    "UR5": 100,
    "LongTail": None,
    "Ring": None,
    "Carousel": None,
}


def run_python(code: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **env}, check=False
    )


# -- all environments ------------------------------------------------------------------------------------------


def test_registering_twice_changes_nothing() -> None:
    before = {env_id: gym.spec(env_id) for env_id in ENV_IDS}
    register_envs()
    assert {env_id: gym.spec(env_id) for env_id in ENV_IDS} == before
    for env_id in ENV_IDS:
        assert gym.spec(env_id).max_episode_steps == next(n for name, n in LIMITS.items() if name in env_id)


def test_import_is_enough_and_light() -> None:
    code = (
        "import sys, gymnasium as gym\n"
        "env = gym.make('sb3_avgcorr:avgcorr/TwoState-v0')\n"
        "assert not [m for m in sys.modules if m.endswith(('ur5_reacher', 'point_mass', 'sparse_reacher'))\n"
        "            and m.startswith('sb3_avgcorr')]\n"
        "import sb3_avgcorr\n"
        "assert all(i in gym.registry for i in sb3_avgcorr.envs.ENV_IDS)\n"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_checkers_are_clean(env_id: str) -> None:
    env = gym.make(env_id)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Rendering has a test of its own; this one would also open a window.
        gym_check_env(env.unwrapped, skip_render_check=True)
        sb3_check_env(env)
    env.close()


def rollout(env: gym.Env, seed: int, steps: int) -> list[Any]:
    rng = np.random.default_rng(7)
    trace: list[Any] = [env.reset(seed=seed)[0]]
    for _ in range(steps):
        if isinstance(env.action_space, gym.spaces.Discrete):
            action: Any = rng.integers(env.action_space.n)
        else:
            action = rng.uniform(env.action_space.low, env.action_space.high)
        obs, reward, terminated, truncated, _ = env.step(action)
        trace += [obs, reward, terminated, truncated]
        if terminated or truncated:
            trace.append(env.reset()[0])
    return trace


@pytest.mark.parametrize("env_id", SIMULATED)
def test_same_seed_same_trajectory(env_id: str) -> None:
    # A short timeout, so that the arm's random poses are part of it.
    env = gym.make(env_id, **({"timeout": 20} if env_id in SPARSE else {}))
    copy = pickle.loads(pickle.dumps(env))
    first, again, elsewhere = rollout(env, 3, 150), rollout(env, 3, 150), rollout(copy, 3, 150)
    other = rollout(env, 4, 150)
    for a, b, c in zip(first, again, elsewhere, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize("env_id", SIMULATED)
def test_same_seed_same_trajectory_in_subprocesses(env_id: str) -> None:
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (120, 2, 2)).astype(np.float32)
    runs = []
    for vec_env_cls, kwargs in ((DummyVecEnv, {}), (SubprocVecEnv, {"start_method": "fork"})):
        env_kwargs = {"timeout": 20} if env_id in SPARSE else {}
        venv = make_vec_env(env_id, n_envs=2, seed=5, env_kwargs=env_kwargs, vec_env_cls=vec_env_cls, vec_env_kwargs=kwargs)
        obs = [venv.reset()]
        rewards = []
        for action in actions:
            o, r, _, _ = venv.step(action)
            obs.append(o)
            rewards.append(r)
        venv.close()
        runs.append((np.array(obs), np.array(rewards)))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    # DummyVecEnv keeps rewards as float32, SubprocVecEnv as they come.
    np.testing.assert_array_equal(runs[0][1], runs[1][1].astype(np.float32))
    assert not np.array_equal(runs[0][0][:, 0], runs[0][0][:, 1])


@pytest.mark.parametrize("env_id", SIMULATED)
def test_observations_stay_in_their_space(env_id: str) -> None:
    env = gym.make(env_id)
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    action = env.action_space.sample()
    for step in range(10_000):
        assert env.observation_space.contains(obs), obs
        # Half of the time the same action for longer, which goes to places white noise does not reach.
        if (step // 1000) % 2 == 0 or step % 50 == 0:
            action = env.action_space.sample()
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()


@pytest.mark.parametrize("env_id", SIMULATED)
@pytest.mark.parametrize(
    "action, says",
    [
        ([np.nan, 0.0], "finite"),
        ([0.0, np.inf], "finite"),
        ([0.0], "shape"),
        ([[0.0, 0.0]], "shape"),
        (0.0, "shape"),
        ([0.0, 0.0, 0.0], "shape"),
    ],
)
def test_bad_actions_raise(env_id: str, action: Any, says: str) -> None:
    env = gym.make(env_id, disable_env_checker=True).unwrapped
    env.reset(seed=0)
    with pytest.raises(ValueError, match=f"action .*{says}"):
        env.step(np.array(action, np.float32))


@pytest.mark.parametrize("env_id", SIMULATED)
def test_actions_beyond_the_bounds_are_the_bounds(env_id: str) -> None:
    one, two = gym.make(env_id), gym.make(env_id)
    one.reset(seed=0), two.reset(seed=0)
    for _ in range(5):
        a = one.step(np.array([1.0, -1.0], np.float32))
        b = two.step(np.array([7.0, -9.0], np.float32))
        np.testing.assert_array_equal(a[0], b[0])
        assert a[1] == b[1]


@pytest.mark.parametrize(
    "hidden, env_id",
    [
        ("dm_control", "avgcorr/PointMassEasy-v0"),
        ("shimmy", "avgcorr/SparseReacherHard-v0"),
        ("mujoco", "avgcorr/UR5Reacher-v0"),
        ("mujoco", "avgcorr/PointMassEasy-v0"),
    ],
)
def test_missing_extra_says_what_to_install(hidden: str, env_id: str) -> None:
    code = (
        f"import sys; sys.modules[{hidden!r}] = None\n"
        "import gymnasium as gym, sb3_avgcorr\n"
        "from sb3_avgcorr.envs import register_envs; register_envs()\n"
        f"try: gym.make({env_id!r})\n"
        "except ImportError as error: print(type(error).__name__ + ': ' + str(error))\n"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.strip().splitlines()
    assert 'pip install "sb3-avgcorr[dm-control]"' in line
    assert hidden in line


# -- rendering -------------------------------------------------------------------------------------------------

RENDER = """
import json, sys, gymnasium as gym, numpy as np
from sb3_avgcorr.envs import register_envs
register_envs()
from gymnasium.utils.env_checker import check_env
out = {}
for env_id in sys.argv[1:]:
    env = gym.make(env_id, render_mode="rgb_array", width=320, height=240)
    env.reset(seed=0)
    first = env.render()
    for _ in range(20):
        env.step(np.array([0.9, -0.9], np.float32))
    second = env.render()
    red, green, blue = (first[..., i].astype(int) for i in range(3))
    out[env_id] = {
        "shape": first.shape, "dtype": str(first.dtype), "colours": len(np.unique(first.reshape(-1, 3), axis=0)),
        "changed": int((first != second).any(-1).sum()), "fps": env.metadata["render_fps"],
        "red": int(((red > 120) & (green < 60) & (blue < 60)).sum()),
        "yellow": int(((red > 150) & (green > 100) & (blue < 90)).sum()),
        "blue": int(((blue > red + 50) & (blue > 120) & (green > 80) & (red < 130)).sum()),
    }
    env.close()
print("RESULT " + json.dumps(out))
"""


@pytest.fixture(scope="module")
def pictures() -> dict[str, Any]:
    probe = "import mujoco; c = mujoco.GLContext(64, 64); c.make_current(); c.free(); print('works')"
    # In a process of its own, because the simulators choose their renderer once, when they are imported.
    errors = {}
    for backend in ("egl", "osmesa"):
        result = run_python(probe, MUJOCO_GL=backend)
        if "works" in result.stdout:
            result = subprocess.run(
                [sys.executable, "-c", RENDER, *SIMULATED],
                capture_output=True,
                text=True,
                timeout=180,
                env={**os.environ, "MUJOCO_GL": backend},
                check=False,
            )
            assert result.returncode == 0, result.stderr
            return json.loads(result.stdout.split("RESULT ")[1])
        errors[backend] = (result.stderr.strip().splitlines() or ["no message"])[-1]
    pytest.skip(f"no renderer here: neither EGL nor OSMesa works ({errors})")


@pytest.mark.parametrize("env_id", SIMULATED)
def test_renders(env_id: str, pictures: dict[str, Any]) -> None:
    picture = pictures[env_id]
    assert picture["shape"] == [240, 320, 3]
    assert picture["dtype"] == "uint8"
    assert picture["colours"] > 50
    assert picture["changed"] > 20, "after 20 steps nothing has moved in the picture"
    assert picture["fps"] == (25 if "UR5" in env_id else 50)


def test_ur5_picture_shows_target_box_and_arm(pictures: dict[str, Any]) -> None:
    picture = pictures["avgcorr/UR5Reacher-v0"]
    assert picture["red"] > 20, "no target"
    assert picture["yellow"] > 200, "no safety box"
    assert picture["blue"] > 100, "no joint caps"


@pytest.mark.parametrize("env_id", SIMULATED)
def test_unknown_render_mode_raises(env_id: str) -> None:
    cls = gym.make(env_id).unwrapped.__class__
    with pytest.raises(ValueError, match="render_mode is 'hologram'"):
        cls(render_mode="hologram")


# -- point mass ------------------------------------------------------------------------------------------------


def test_point_mass_is_dm_controls() -> None:
    from dm_control import suite

    env = gym.make("avgcorr/PointMassEasy-v0")
    bare = suite.load("point_mass", "easy", task_kwargs={"random": np.random.RandomState(11)})
    obs, _ = env.reset(seed=11)
    timestep = bare.reset()
    rng = np.random.default_rng(0)
    paid = 0.0
    for step in range(1, 1001):
        np.testing.assert_array_equal(obs, np.concatenate(list(timestep.observation.values())).astype(np.float32))
        # Towards the middle, where there is a reward to compare.
        action = np.clip(-5 * obs[:2] + 0.2 * rng.standard_normal(2), -1, 1).astype(np.float32)
        obs, reward, terminated, truncated, _ = env.step(action)
        timestep = bare.step(action)
        assert reward == timestep.reward
        assert not terminated
        assert truncated == (step == 1000) == timestep.last()
        paid += reward
    assert paid > 100


# -- sparse reacher --------------------------------------------------------------------------------------------


def target_of(env: gym.Env) -> tuple[float, float]:
    x, y, _ = env.unwrapped.physics.named.model.geom_pos["target"]
    return float(x), float(y)


@pytest.mark.parametrize("task, touch", [("easy", 0.06), ("hard", 0.025)])
def test_sparse_reacher_episode(task: str, touch: float) -> None:
    """Against dm_control's rules, over whole episodes: reward, end, timeouts, target."""
    timeout = 15
    env = gym.make(f"avgcorr/SparseReacher{task.capitalize()}-v0", timeout=timeout)
    env.action_space.seed(0)
    env.reset(seed=0)
    targets: list[tuple[float, float]] = []
    jumps: list[float] = []
    for _ in range(4):
        obs, info = env.reset()
        assert info == {"timeouts": 0, "timed_out": False, "is_success": False}
        target = target_of(env)
        assert target not in targets
        targets.append(target)
        total, length, in_try, timeouts, terminated, truncated = 0.0, 0, 0, 0, False, False
        while not (terminated or truncated):
            before = obs
            obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
            total, length, in_try = total + float(reward), length + 1, in_try + 1
            assert target_of(env) == target
            assert info["timed_out"] == (in_try == timeout and not terminated)
            if info["timed_out"]:
                in_try, timeouts = 0, timeouts + 1
                np.testing.assert_array_equal(obs[4:], 0.0)
                jumps.append(np.abs(obs[:2] - before[:2]).max())
            else:
                assert (np.hypot(obs[2], obs[3]) <= touch) == terminated
            assert info["timeouts"] == timeouts
            assert info["is_success"] == terminated
        assert total == -length
        assert terminated
        assert timeouts > 0 or length < timeout
    # In 0.02 s at 7 rad/s no joint turns further than 0.14 rad.
    assert np.median(jumps) > 0.5


def test_sparse_reacher_ends_in_the_target_only() -> None:
    env = gym.make("avgcorr/SparseReacherHard-v0").unwrapped
    for offset, reached in ((0.02, True), (0.03, False)):
        env.reset(seed=0)
        physics = env.physics
        finger = physics.named.data.geom_xpos["finger", :2].copy()
        physics.named.model.geom_pos["target", :2] = finger + np.array([offset, 0.0])
        physics.forward()
        _, reward, terminated, truncated, info = env.step(np.zeros(2, np.float32))
        assert (terminated, truncated, info["is_success"], reward) == (reached, False, reached, -1.0)
    env.reset()
    env.step(np.zeros(2, np.float32))


def test_sparse_reacher_outer_limit() -> None:
    env = gym.make("avgcorr/SparseReacherHard-v0", timeout=5, max_episode_steps=23)
    env.reset(seed=0)
    for step in range(1, 24):
        _, _, terminated, truncated, info = env.step(np.zeros(2, np.float32))
        assert (terminated, truncated) == (False, step == 23)
    assert info["is_success"] is False
    assert info["timeouts"] == 4


def test_step_after_the_end_raises() -> None:
    env = gym.make("avgcorr/SparseReacherEasy-v0").unwrapped
    with pytest.raises(ResetNeeded):
        env.step(np.zeros(2, np.float32))
    env.reset(seed=0)
    env.physics.named.model.geom_pos["target", :2] = env.physics.named.data.geom_xpos["finger", :2]
    env.physics.forward()
    assert env.step(np.zeros(2, np.float32))[2]
    with pytest.raises(ResetNeeded):
        env.step(np.zeros(2, np.float32))


@pytest.mark.parametrize("kwargs, says", [({"timeout": 0}, "timeout is 0"), ({"timeout": 2.5}, "timeout is 2.5")])
def test_sparse_reacher_arguments(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        gym.make("avgcorr/SparseReacherEasy-v0", **kwargs)


def test_sparse_reacher_unknown_task() -> None:
    with pytest.raises(ValueError, match="task is 'medium'"):
        gym.make("avgcorr/SparseReacherEasy-v0", task="medium")
