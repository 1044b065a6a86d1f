"""The UR5 arm: kinematics, limits, rewards and resets."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from sb3_avgcorr.envs import register_envs

register_envs()


HOME = np.array([1.58724391, -2.4, 1.5, -0.71790582, 1.63685572, 1.00910473])
BOX = np.array([[-0.2, -0.3, 0.5], [0.2, 0.4, 1.0]])
JOINTS = np.radians([[-180.0, -120.0], [-60.0, 130.0]])


def dh_fingertip(q: np.ndarray) -> np.ndarray:
    """The UR5's Denavit-Hartenberg chain, independent of MuJoCo."""
    d = [0.089159, 0.0, 0.0, 0.10915, 0.09465, 0.0823]
    a = [0.0, -0.425, -0.39225, 0.0, 0.0, 0.0]
    alpha = [np.pi / 2, 0.0, 0.0, np.pi / 2, -np.pi / 2, 0.0]
    pose = np.eye(4)
    for i in range(6):
        c, s, ca, sa = np.cos(q[i]), np.sin(q[i]), np.cos(alpha[i]), np.sin(alpha[i])
        pose = pose @ np.array(
            [[c, -s * ca, s * sa, a[i] * c], [s, c * ca, -c * sa, a[i] * s], [0, sa, ca, d[i]], [0, 0, 0, 1]]
        )
    return pose[:3, 3]


def jacobian(q2: float, q3: float) -> np.ndarray:
    """d(y, z) / d(q2, q3) by differences of the DH chain."""
    columns = []
    for step in ([1e-6, 0.0], [0.0, 1e-6]):
        ends = []
        for sign in (1, -1):
            q = HOME.copy()
            q[1:3] = np.array([q2, q3]) + sign * np.array(step)
            ends.append(dh_fingertip(q)[1:])
        columns.append((ends[0] - ends[1]) / 2e-6)
    return np.array(columns).T


def make_ur5(**kwargs: Any) -> Any:
    return gym.make("avgcorr/UR5Reacher-v0", disable_env_checker=True, **kwargs).unwrapped


def test_ur5_forward_kinematics_are_the_dh_chain() -> None:
    import mujoco

    env = make_ur5()
    rng = np.random.default_rng(0)
    for _ in range(200):
        q = rng.uniform(-np.pi, np.pi, 6)
        env.data.qpos[:] = q
        mujoco.mj_kinematics(env.model, env.data)
        np.testing.assert_allclose(env.data.site("fingertip").xpos, dh_fingertip(q), atol=1e-6)


def test_ur5_masses() -> None:
    env = make_ur5()
    masses = [env.model.body(f"link{i}").mass[0] for i in range(1, 7)]
    assert masses == [3.7, 8.393, 2.275, 1.219, 1.219, 0.1879]
    # A principal moment of a real body is no larger than the other two together.
    for i in range(1, 7):
        inertia = np.sort(env.model.body(f"link{i}").inertia)
        assert inertia[0] > 0
        assert inertia[2] <= inertia[0] + inertia[1] + 1e-12


def test_ur5_x_cannot_leave_the_box() -> None:
    """The guard looks at y and z only."""
    for q2 in np.linspace(*JOINTS[:, 0], 40):
        for q3 in np.linspace(*JOINTS[:, 1], 40):
            q = HOME.copy()
            q[1:3] = q2, q3
            assert 0.08 < dh_fingertip(q)[0] < 0.12


def test_ur5_observation_and_reward() -> None:
    env = make_ur5(normalize_action=False)
    assert env.action_space == gym.spaces.Box(-0.3, 0.3, (2,), np.float32)
    obs, info = env.reset(seed=0, options={"target": (0.1, 0.8)})
    tip = dh_fingertip(HOME)
    np.testing.assert_allclose(obs, [-2.4, 1.5, 0, 0, tip[1] - 0.1, tip[2] - 0.8, 0, 0], atol=1e-6)
    assert info["distance"] == pytest.approx(np.hypot(tip[1] - 0.1, tip[2] - 0.8), abs=1e-6)
    q = HOME.copy()
    speed = np.zeros(2)
    for _ in range(12):
        action = np.array([0.15, -0.3])
        obs, reward, terminated, truncated, info = env.step(action.astype(np.float32))
        change = np.clip(action - speed, -0.056, 0.056)
        q[1:3] += (speed + change / 2) * 0.04
        speed = speed + change
        tip = dh_fingertip(q)
        d = np.hypot(tip[1] - 0.1, tip[2] - 0.8)
        # The servos' time step is 4 ms: half of it, at the present speed, is what the pose may be ahead of the ramp.
        np.testing.assert_allclose(obs[:2], q[1:3], atol=0.002 * 0.3 + 1e-6)
        np.testing.assert_allclose(obs[2:4], speed / 0.3, atol=1e-6)
        np.testing.assert_allclose(obs[6:], action / 0.3, atol=1e-6)
        assert info["distance"] == pytest.approx(d, abs=1e-3)
        exact = np.hypot(obs[4], obs[5])
        assert reward == pytest.approx((-exact + np.exp(-(exact**2) / 0.01)) * 5, abs=1e-5)
        assert not terminated
        assert not truncated


def test_ur5_episodes_last_four_seconds_and_start_at_home() -> None:
    env = gym.make("avgcorr/UR5Reacher-v0")
    for _ in range(2):
        obs, _ = env.reset()
        np.testing.assert_allclose(obs[:2], HOME[1:3], atol=1e-6)
        for step in range(1, 101):
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            assert (terminated, truncated) == (False, step == 100)
    assert env.unwrapped.dt == pytest.approx(0.04)


def test_ur5_targets_fill_the_box() -> None:
    env = make_ur5()
    env.reset(seed=0)
    tip = dh_fingertip(HOME)[1:]
    targets = np.array([tip - env.reset()[0][4:6] for _ in range(500)])
    assert (targets >= BOX[0, 1:] - 1e-6).all()
    assert (targets <= BOX[1, 1:] + 1e-6).all()
    np.testing.assert_allclose(targets.min(0), BOX[0, 1:], atol=0.01)
    np.testing.assert_allclose(targets.max(0), BOX[1, 1:], atol=0.01)
    with pytest.raises(ValueError, match=r"target is \(0.5, 0.8\)"):
        env.reset(options={"target": (0.5, 0.8)})


def push(direction: tuple[float, float]) -> Any:
    """Full speed of both joints towards where ``direction`` in y, z grows."""
    return lambda env, rng: np.sign(jacobian(*env.data.qpos[1:3]).T @ np.array(direction))


def hold(action: tuple[float, float]) -> Any:
    return lambda env, rng: np.array(action, float)


class Sticky:
    """Bang-bang actions held for a while."""

    def __init__(self) -> None:
        self.action = np.ones(2)

    def __call__(self, env: Any, rng: np.random.Generator) -> np.ndarray:
        if rng.random() < 0.05:
            self.action = rng.choice([-1.0, 0.0, 1.0], 2)
        return self.action


BEHAVIOURS: dict[str, Any] = {
    "random": lambda env, rng: rng.uniform(-1, 1, 2),
    "sticky": Sticky(),
    **{f"push{d}": push(d) for d in [(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)]},
    **{f"joints{d}": hold(d) for d in [(1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1)]},
}


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_ur5_safety(name: str) -> None:
    env = make_ur5()
    rng = np.random.default_rng(0)
    steps = {"random": 10_000, "sticky": 10_000}.get(name, 500)
    env.reset(seed=0)
    outside, beyond, fastest, held, jerk, turned = -1.0, -1.0, 0.0, 0.0, 0.0, 0
    before = np.zeros(6)
    last: dict[str, Any] = {}
    for step in range(steps):
        if step % 1000 == 999:
            env.reset()
            before = np.zeros(6)
        *_, last = env.step(BEHAVIOURS[name](env, rng))
        turned += last["turned_back"]
        tip, q, v = env.data.site("fingertip").xpos, env.data.qpos, env.data.qvel
        outside = max(outside, (BOX[0] - tip).max(), (tip - BOX[1]).max())
        beyond = max(beyond, (JOINTS[0] - q[1:3]).max(), (q[1:3] - JOINTS[1]).max())
        fastest = max(fastest, np.abs(v).max())
        held = max(held, np.abs(q - HOME)[[0, 3, 4, 5]].max())
        jerk = max(jerk, np.abs(v - before).max())
        before = v.copy()
    assert outside < 0.02, "the issue's bound"
    assert outside < 0.001, "what the guard is good for"
    assert beyond < 0
    assert fastest <= 0.3 + 1e-7
    assert held < 1e-7
    assert jerk <= 1.4 * 0.04 + 1e-7
    if name not in ("random", "sticky"):
        assert turned > 100, "pushing against a bound all the time must be refused often"


def test_ur5_is_turned_back_and_goes_on() -> None:
    """At the bound the arm moves away from it, although the agent keeps pushing; and the agent gets it off again."""
    env = make_ur5()
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    heights, turned = [], []
    for _ in range(300):
        *_, info = env.step(push((0, 1))(env, rng))
        heights.append(env.data.site("fingertip").xpos[2])
        turned.append(info["turned_back"])
    at_bound = np.array(heights[100:])
    assert at_bound.max() > 0.99
    assert at_bound.max() - at_bound.min() > 2e-4, "it stands at the bound"
    moves = np.diff(heights)[100:]
    overruled = np.array(turned[101:])
    assert (moves[overruled] < 0).mean() > 0.5
    for _ in range(60):
        # Straight down.
        action = np.linalg.solve(jacobian(*env.data.qpos[1:3]), [0.0, -1.0])
        env.step(action / np.abs(action).max())
    assert env.data.site("fingertip").xpos[2] < 0.9


def test_ur5_scripted_controller_beats_random() -> None:
    env = gym.make("avgcorr/UR5Reacher-v0")
    rng = np.random.default_rng(0)
    returns: dict[str, list[float]] = {"random": [], "scripted": []}
    for name, seen in returns.items():
        env.reset(seed=0)
        for _ in range(10):
            obs, _ = env.reset()
            total, truncated = 0.0, False
            while not truncated:
                if name == "random":
                    action = rng.uniform(-1, 1, 2)
                else:
                    way = -np.linalg.lstsq(jacobian(obs[0], obs[1]), obs[4:6], rcond=None)[0]
                    action = 10 * way
                    action = action / max(1.0, np.abs(action).max())
                obs, reward, _, truncated, _ = env.step(action.astype(np.float32))
                total += float(reward)
            seen.append(total)
    assert np.mean(returns["scripted"]) > np.mean(returns["random"]) + 150
    assert np.all(np.array(returns["scripted"]) > np.array(returns["random"]))
