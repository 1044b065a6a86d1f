"""The two finite environments: real Gymnasium environments, and the same as their finite MDP."""

import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled, ResetNeeded
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from sb3_avgcorr.envs import register_envs
from sb3_avgcorr.envs.dot_reacher import CENTRE, MOVES, DotReacherEnv
from sb3_avgcorr.envs.two_state import BOTTOM, TOP, TwoStateEnv

register_envs()

MAKERS: dict[str, Any] = {
    "two_state": TwoStateEnv,
    "uniform": DotReacherEnv,
    "corner": lambda **kwargs: DotReacherEnv("corner", **kwargs),
    "cell": lambda **kwargs: DotReacherEnv((8, 2), **kwargs),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]


def test_checkers_are_satisfied(make: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(render_mode="rgb_array"), skip_render_check=True)
        sb3_check_env(make(), warn=True)


@pytest.mark.parametrize("env_id, limit", [("avgcorr/TwoState-v0", 20), ("avgcorr/DotReacher-v0", 500)])
def test_registered_with_the_papers_time_limit(env_id: str, limit: int) -> None:
    env = gym.make(env_id)
    env.reset(seed=0)
    for t in range(1, limit + 1):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert not terminated
        assert truncated == (t == limit)
    assert env.unwrapped.finite_mdp(0.9).n_states == {20: 2, 500: 81}[limit]  # type: ignore[attr-defined]


@pytest.mark.parametrize("env_id", ["avgcorr/TwoState-v0", "avgcorr/DotReacher-v0"])
def test_registered_ones_satisfy_the_checker_rendering_included(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(env_id, render_mode="rgb_array").unwrapped)


def test_seeding() -> None:
    def play(seed: int) -> list[float]:
        env = DotReacherEnv()
        observations = [env.reset(seed=seed)[0]] + [env.step(np.int64(i % 8))[0] for i in range(200)]
        return np.concatenate(observations).tolist()

    assert play(3) == play(3)
    assert play(3) != play(4)


def test_two_state_rewards_by_hand() -> None:
    env = TwoStateEnv()
    observation, _ = env.reset(seed=0)
    assert observation.tolist() == [1, 0]
    rewards = []
    for action in (TOP, TOP, BOTTOM, BOTTOM):
        observation, reward, *_ = env.step(action)
        rewards.append(reward)
        assert observation[env.state] == 1
    assert rewards == [1, -1, -1, 1]
    assert env.state == 0


def test_dot_reacher_moves_by_hand() -> None:
    env = DotReacherEnv("corner")
    observation, _ = env.reset(seed=0)
    np.testing.assert_array_equal(observation, np.float32([-0.8, -0.8]))
    action = {tuple(move): i for i, move in enumerate(MOVES.tolist())}
    assert len(action) == 8
    # Against the border, along it, and straight to the centre.
    path = [((-1, 0), (-0.8, -0.8)), ((1, -1), (-0.6, -0.8)), ((-1, 1), (-0.8, -0.6)), ((0, -1), (-0.8, -0.8))]
    path += [((1, 1), (x, x)) for x in (-0.6, -0.4, -0.2, 0.0)]
    for move, expected in path:
        observation, reward, *_ = env.step(np.int64(action[move]))
        np.testing.assert_allclose(observation, expected, atol=1e-7)
        assert reward == (0.0 if expected == (0.0, 0.0) else -0.01)
    assert env.state == CENTRE
    assert DotReacherEnv((8, 2)).reset()[0].tolist() == np.float32([0.8, -0.4]).tolist()


def test_environment_and_table_agree(make: Any) -> None:
    """Every state and action tried: next states, mean rewards and observations are those of the table."""
    env = make()
    env.reset(seed=0)
    mdp = env.finite_mdp(0.9)
    P = mdp.P.toarray().reshape(mdp.n_states, mdp.n_actions, mdp.n_states)
    for s in range(mdp.n_states):
        for a in range(mdp.n_actions):
            certain = P[s, a].max() == 1
            n = 1 if certain else 3000
            counts, reward = np.zeros(mdp.n_states), 0.0
            for _ in range(n):
                env.state = s
                observation, step_reward, *_ = env.step(np.int64(a))
                np.testing.assert_array_equal(observation, mdp.observations[env.state])
                counts[env.state] += 1
                reward += step_reward / n
            # Five standard deviations of a share; nothing at all where the step is certain.
            spread = np.sqrt(P[s, a] * (1 - P[s, a]) / n)
            assert (np.abs(counts / n - P[s, a]) <= 5 * spread + 1e-12).all()
            assert reward == pytest.approx(mdp.r[s, a], abs=1e-12 if certain else 0.01 * 5 * spread.max())
    starts = np.zeros(mdp.n_states)
    for _ in range(5000):
        observation, _ = env.reset()
        np.testing.assert_array_equal(observation, mdp.observations[env.state])
        starts[env.state] += 1
    assert (np.abs(starts / 5000 - mdp.rho) <= 5 * np.sqrt(mdp.rho * (1 - mdp.rho) / 5000)).all()


def test_played_episodes_visit_states_as_computed() -> None:
    """A policy of an SB3 model, played in the environment, against d_T of the table."""
    from sb3_avgcorr.tabular import policy_probabilities

    env = gym.make("avgcorr/DotReacher-v0", start="corner")
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=64, seed=0)
    mdp = env.unwrapped.finite_mdp(0.9)  # type: ignore[attr-defined]
    pi = policy_probabilities(mdp, model.policy).detach().numpy()
    pi = pi**3 / (pi**3).sum(axis=1, keepdims=True)  # further from uniform
    rng = np.random.default_rng(0)
    episodes = 40
    counts = np.zeros((episodes, mdp.n_states))
    for episode in range(episodes):
        env.reset(seed=episode)
        truncated = False
        while not truncated:
            s = env.unwrapped.state  # type: ignore[attr-defined]
            counts[episode, s] += 1 / 500
            truncated = env.step(rng.choice(8, p=pi[s]))[3]
    error = counts.mean(axis=0) - mdp.d_T(pi, 500)
    assert (np.abs(error) < 5 * counts.std(axis=0) / np.sqrt(episodes) + 1e-3).all()
    assert np.abs(error).max() < 0.5 * np.abs(mdp.d_T(pi, 500) - mdp.d_gamma(pi)).max()


@pytest.mark.parametrize("action", [-1, 8, 1.5, "top", None])
def test_bad_actions_raise(action: Any) -> None:
    for env in (TwoStateEnv(), DotReacherEnv()):
        env.reset(seed=0)
        with pytest.raises(ValueError, match="action must be an integer from 0 to"):
            env.step(action)


def test_bad_arguments_raise() -> None:
    for start in ("middle", (9, 0), (1, 2, 3), (0.5, 1)):
        with pytest.raises(ValueError, match="start must be"):
            DotReacherEnv(start)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="render_mode must be"):
        TwoStateEnv(render_mode="ansi")
    with pytest.raises(ResetNeeded):
        DotReacherEnv().step(np.int64(0))


def test_rgb_array_shows_the_state(make: Any) -> None:
    env = make(render_mode="rgb_array")
    env.reset(seed=0)
    frames = set()
    n_states = env.finite_mdp(0.9).n_states
    for state in range(n_states):
        env.state = state
        frame = env.render()
        assert frame.dtype == np.uint8
        assert frame.ndim == 3
        frames.add(frame.tobytes())
    assert len(frames) == n_states


def test_two_state_shows_the_action() -> None:
    env = TwoStateEnv(render_mode="rgb_array")
    frames = []
    for action in (TOP, BOTTOM):
        env.reset(seed=0)
        env.step(np.int64(action))
        frames.append(env.render())
    assert (frames[0] != frames[1]).any()


def test_human_window(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import pygame

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = make(render_mode="human")
    env.metadata = env.metadata | {"render_fps": 1000}
    env.reset(seed=0)
    env.step(np.int64(0))
    shown = pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)
    np.testing.assert_array_equal(shown, env._draw())
    assert env.render() is None
    env.close()
    assert not pygame.display.get_init()


def test_human_window_without_pygame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(DependencyNotInstalled, match="needs pygame"):
        TwoStateEnv(render_mode="human").reset(seed=0)
