"""TruncationAsTermination, GeometricTermination, and VecNormalize in the place of the paper's observation filter."""

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_avgcorr.envs.wrappers import GeometricTermination, TruncationAsTermination


class Clock(gym.Env):
    """Observes the step in the episode; over at ``ends_at``, if given."""

    def __init__(self, ends_at: int | None = None) -> None:
        self.observation_space = gym.spaces.Box(0, np.inf, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.ends_at = ends_at
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.t == self.ends_at, False, {}


class EarlyLate(Clock):
    """
    Five steps in which action 0 earns 1 and action 1 loses it, then 195 in which action 1 is a little better. The policy
    sees nothing, so it has to settle for one action: action 0 for γ = 0.9, action 1 without discounting.
    """

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        better, gain = (0, 1.0) if self.t < 5 else (1, 0.2)
        self.t += 1
        return np.zeros(1, np.float32), gain if action == better else -gain, self.t == 200, False, {}


def test_truncation_counts_as_termination() -> None:
    env = TruncationAsTermination(gym.wrappers.TimeLimit(Clock(), 3))
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (True, False)]
    env = TruncationAsTermination(gym.wrappers.TimeLimit(Clock(ends_at=2), 3))
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(2)] == [(False, False), (True, False)]


@pytest.mark.parametrize("wrapped", [False, True])
def test_sb3_does_not_bootstrap_over_it(wrapped: bool) -> None:
    """With SB3 the wrapper decides whether the value of the last state is added to the last reward."""

    def make() -> gym.Env:
        env = gym.wrappers.TimeLimit(Clock(), 4)
        return TruncationAsTermination(env) if wrapped else env

    model = PPO("MlpPolicy", DummyVecEnv([make]), n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu")
    model.learn(8)
    rewards = model.rollout_buffer.rewards[:, 0]
    np.testing.assert_array_equal(rewards[[0, 1, 2, 4, 5, 6]], 1.0)
    assert (rewards[[3, 7]] == 1.0).all() == wrapped


def test_rl_zoo_finds_the_wrappers_by_name() -> None:
    zoo = pytest.importorskip("rl_zoo3.utils")
    names = [
        "sb3_avgcorr.envs.wrappers.TruncationAsTermination",
        {"sb3_avgcorr.envs.wrappers.GeometricTermination": {"gamma": 0.9}},
    ]
    env = zoo.get_wrapper_class({"env_wrapper": names})(Clock())
    assert isinstance(env, GeometricTermination)
    assert env.gamma == 0.9
    assert isinstance(env.env, TruncationAsTermination)


def test_geometric_states_come_from_the_discounted_distribution() -> None:
    """Step t is seen in a share (1-γ)γ^t of all samples."""
    gamma, samples = 0.8, 40_000
    env = GeometricTermination(Clock(), gamma)
    obs, _ = env.reset(seed=0)
    seen = np.zeros(1000)
    for _ in range(samples):
        seen[int(obs[0])] += 1
        obs, _, terminated, truncated, info = env.step(0)
        assert not terminated
        assert info["geometric_end"] == truncated
        if truncated:
            obs, _ = env.reset()
    expected = (1 - gamma) * gamma ** np.arange(8)
    # Samples of one episode go together, so the spread is a little wider than the binomial one; 5 of those are ample.
    np.testing.assert_allclose(seen[:8] / samples, expected, atol=5 * np.sqrt(0.2 * 0.8 / samples))


def test_geometric_termination_has_the_discounted_return() -> None:
    """terminate=True: the expected undiscounted return is the discounted one, 1 / (1-γ) for a reward of 1."""
    env = GeometricTermination(Clock(), 0.9, terminate=True)
    env.reset(seed=1)
    lengths = []
    for _ in range(4000):
        env.reset()
        length, over = 0, False
        while not over:
            _, _, over, truncated, _ = env.step(0)
            assert not truncated
            length += 1
        lengths.append(length)
    assert np.mean(lengths) == pytest.approx(10.0, abs=4 * np.std(lengths) / np.sqrt(4000))


def test_geometric_leaves_the_rest_alone() -> None:
    # An end of the task's own stays a termination, also where the coin falls on the same step.
    env = GeometricTermination(Clock(ends_at=1), 1e-9)
    env.reset(seed=0)
    _, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated, info["geometric_end"]) == (True, False, False)
    # γ = 1 ends nothing.
    env = GeometricTermination(Clock(), 1.0)
    env.reset(seed=0)
    assert not any(env.step(0)[3] for _ in range(1000))
    # Same seed, same trajectory as without, and the same ends again.
    plain, wrapped = gym.make("CartPole-v1"), GeometricTermination(gym.make("CartPole-v1"), 0.9)
    ends = []
    for _ in range(2):
        a, _ = plain.reset(seed=3)
        b, _ = wrapped.reset(seed=3)
        steps, over = 0, False
        while not over:
            np.testing.assert_array_equal(a, b)
            a, *_ = plain.step(steps % 2)
            b, _, terminated, truncated, _ = wrapped.step(steps % 2)
            steps, over = steps + 1, terminated or truncated
        ends.append(steps)
    assert ends[0] == ends[1]
    assert pickle.loads(pickle.dumps(wrapped)).gamma == 0.9


@pytest.mark.parametrize("gamma", [0.0, -0.5, 1.1, float("nan")])
def test_geometric_gamma_is_checked(gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma is"):
        GeometricTermination(Clock(), gamma)


def test_the_order_that_would_discount_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="GeometricTermination"):
        TruncationAsTermination(gym.wrappers.TimeLimit(GeometricTermination(Clock(), 0.9), 5))
    TruncationAsTermination(GeometricTermination(Clock(), 0.9, terminate=True))


@pytest.mark.slow
def test_plain_ppo_follows_the_discounted_objective_under_it() -> None:
    """Uncorrected PPO at γ = 0.9 chooses the action of the many late steps; with geometric ends the one that J_γ wants."""
    chosen = {}
    for name, make in (
        ("plain", EarlyLate),
        ("truncated", lambda: GeometricTermination(EarlyLate(), 0.9)),
        ("terminated", lambda: GeometricTermination(EarlyLate(), 0.9, terminate=True)),
    ):
        gamma = 1.0 if name == "terminated" else 0.9
        model = PPO(
            "MlpPolicy",
            DummyVecEnv([make]),
            n_steps=500,
            batch_size=250,
            learning_rate=5e-3,
            gamma=gamma,
            seed=0,
            device="cpu",
            policy_kwargs={"net_arch": [8]},
        )
        model.learn(4000)
        probs = model.policy.get_distribution(model.policy.obs_to_tensor(np.zeros((1, 1)))[0]).distribution.probs
        chosen[name] = float(probs[0, 0].detach())
    assert chosen["plain"] < 0.2
    assert chosen["truncated"] > 0.8
    assert chosen["terminated"] > 0.8


def test_vec_normalize_is_the_papers_observation_filter() -> None:
    """The running filter: mean and deviation of all observations so far, the newest included; cut off at ±10."""
    rng = np.random.default_rng(0)
    scale = np.array([1.0, 30.0, 0.5])

    class Noise(gym.Env):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            return self.step(0)[0], {}

        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            return (5.0 + scale * rng.standard_normal(3)).astype(np.float32), 2.5, False, False, {}

    venv = VecNormalize(DummyVecEnv([Noise]), norm_obs=True, norm_reward=False, clip_obs=10.0)
    normalised, raw = [venv.reset()[0]], [venv.get_original_obs()[0]]
    for _ in range(300):
        obs, reward, _, _ = venv.step(np.array([0]))
        normalised.append(obs[0])
        raw.append(venv.get_original_obs()[0])
        assert reward[0] == 2.5
    # VecNormalize begins with a ten-thousandth of an observation of mean 0 and variance 1, soon forgotten.
    for n in range(50, 301):
        so_far = np.array(raw[: n + 1], np.float64)
        expected = np.clip((so_far[-1] - so_far.mean(0)) / so_far.std(0), -10, 10)
        np.testing.assert_allclose(normalised[n], expected, atol=2e-3)
