"""The ring and the carousel: environments that keep their word, equal to what is known exactly, with recurring states."""

import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.env_util import make_vec_env

from sb3_avgcorr import AsymmetricActorCriticPolicy, AveragingPPO
from sb3_avgcorr.envs.carousel import CarouselEnv
from sb3_avgcorr.envs.ring import RingEnv
from sb3_avgcorr.tabular import torch_gradient

LAPS = {"avgcorr/Ring-v0": 12, "avgcorr/Carousel-v0": 24}  # id -> steps of a lap


@pytest.fixture(params=sorted(LAPS))
def env_id(request: pytest.FixtureRequest) -> str:
    return request.param


# -- both ---------------------------------------------------------------------------------------------------------------


def test_checkers_are_clean(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(env_id, render_mode="rgb_array").unwrapped)
        sb3_check_env(gym.make(env_id))


def test_episodes_end_after_their_laps_and_not_before(env_id: str) -> None:
    env = gym.make(env_id, laps=3)
    env.action_space.seed(0)
    length = 3 * LAPS[env_id]
    for _ in range(2):
        obs, _ = env.reset(seed=0)
        for t in range(length):
            assert env.observation_space.contains(obs)
            obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
            assert terminated == (t == length - 1)
            assert not truncated
    with pytest.raises(ResetNeeded):
        env.unwrapped.step(env.action_space.sample())


def test_not_before_reset(env_id: str) -> None:
    env = gym.make(env_id, disable_env_checker=True).unwrapped
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(env.action_space.sample())


def play(env: gym.Env, seed: int, steps: int = 24) -> tuple[list[dict[str, Any]], list[float]]:
    """
    :return: observations and rewards of some steps with the same random actions at every call
    """
    env.action_space.seed(0)
    observations, rewards = [env.reset(seed=seed)[0]], []
    for _ in range(steps):
        obs, reward, *_ = env.step(env.action_space.sample())
        observations.append(obs)
        rewards.append(float(reward))
    return observations, rewards


def test_same_seed_same_trajectory(env_id: str) -> None:
    env = gym.make(env_id)
    copy = pickle.loads(pickle.dumps(env))
    (observations, rewards), again, copied, other = play(env, 3), play(env, 3), play(copy, 3), play(env, 4)
    for one, two, three in zip(observations, again[0], copied[0], strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], two[key])
            np.testing.assert_array_equal(one[key], three[key])
    assert rewards == again[1] == copied[1] != other[1]


def test_noise_is_on_rewards_only_and_as_strong_as_it_says(env_id: str) -> None:
    quiet, noisy = (play(gym.make(env_id, laps=200, noise=noise), 0, 2400) for noise in (0.0, 3.0))
    for one, two in zip(quiet[0], noisy[0], strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], two[key])
    difference = np.subtract(noisy[1], quiet[1])
    assert abs(difference.mean()) < 4 * 3 / np.sqrt(2400)
    assert difference.std() == pytest.approx(3, rel=4 / np.sqrt(2 * 2400))
    assert abs(np.corrcoef(difference[1:], difference[:-1])[0, 1]) < 4 / np.sqrt(2400)


def test_only_the_first_quarter_is_free_of_the_strength(env_id: str) -> None:
    lap = LAPS[env_id]
    weak, strong = (np.array(play(gym.make(env_id, strength=s, noise=0), 1, 3 * lap)[1]) for s in (0.25, 1.0))
    first = np.arange(3 * lap) % lap < lap // 4
    np.testing.assert_array_equal(weak[first], strong[first])
    np.testing.assert_allclose(4 * weak[~first], strong[~first])
    assert (strong != 0).all()


@pytest.mark.parametrize(
    "kwargs, says",
    [
        ({"strength": -0.1}, "strength=-0.1"),
        ({"strength": float("nan")}, "strength=nan"),
        ({"laps": 0}, "laps=0"),
        ({"laps": 2.5}, "laps=2.5"),
        ({"laps": True}, "laps=True"),
        ({"noise": -1}, "noise=-1"),
        ({"noise": float("inf")}, "noise=inf"),
        ({"render_mode": "hologram"}, "render_mode"),
    ],
)
def test_wrong_arguments_are_named(env_id: str, kwargs: dict[str, Any], says: str) -> None:
    cls = gym.make(env_id).unwrapped.__class__
    with pytest.raises(ValueError, match=says):
        cls(**kwargs)


def test_pictures_go_round(env_id: str) -> None:
    env: Any = gym.make(env_id, laps=2, render_mode="rgb_array").unwrapped
    env.reset(seed=0)

    def marker() -> np.ndarray:
        return np.argwhere((env.render() == (70, 110, 200)).all(-1)).mean(axis=0) - (110, 120)

    lap = LAPS[env_id]
    turns, bars = [], []
    for _ in range(2 * lap):
        down, right = marker()
        turns.append(np.arctan2(right, -down) % (2 * np.pi))
        bars.append((env.render()[227] == 60).all(-1).sum())
        env.step(env.action_space.sample())
    expected = 2 * np.pi * (np.arange(2 * lap) % lap) / lap
    assert (np.abs(np.angle(np.exp(1j * (np.array(turns) - expected)))) < 0.05).all()
    np.testing.assert_allclose(bars, 220 * np.arange(2 * lap) / (2 * lap), atol=1)


# -- the ring and its MDP -----------------------------------------------------------------------------------------------


def test_every_state_and_action_is_the_mdps() -> None:
    env = RingEnv(laps=3, cells=8, strength=0.5, noise=0)
    mdp = env.finite_mdp(0.9)
    seen = env.state_observations()
    env.reset(seed=0)
    np.testing.assert_array_equal(mdp.observations, np.hstack([seen["observation"], seen["privileged"]]))
    for state in range(24):
        for action in range(2):
            env.state = state
            for key, value in env._observation().items():
                np.testing.assert_array_equal(value, seen[key][state])
            _, reward, terminated, _, _ = env.step(np.int64(action))
            # by hand: 2 of 8 cells pay 1 for action 1, the other six 0.3 for action 0
            assert reward == pytest.approx((2 * action - 1) * (1.0 if state % 8 < 2 else -0.3))
            assert reward == mdp.r[state, action]
            assert terminated == (state == 23) == bool(mdp.termination[state, action])
            if not terminated:
                assert mdp.P[[2 * state + action]].toarray()[0, env.state] == 1


@pytest.mark.parametrize("cells", [0, 2, 10, 12.0, True])
def test_cells_have_quarters(cells: Any) -> None:
    with pytest.raises(ValueError, match=f"cells={cells} must be a multiple of 4"):
        RingEnv(cells=cells)


@pytest.mark.parametrize("action", [2, -1, 0.5, None])
def test_ring_bad_actions(action: Any) -> None:
    env = RingEnv()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action must be an integer from 0 to 1"):
        env.step(action)


def gradients(env: RingEnv, gamma: float) -> dict[str, float]:
    """
    :return: gradient of the blind actor's log-odds at 0: uncorrected, true, and with the average of γ^t over a cell's laps
    """
    mdp = env.finite_mdp(gamma)
    theta = th.zeros((), dtype=th.float64, requires_grad=True)

    def policy(observations: th.Tensor) -> th.Tensor:
        return theta * th.tensor([0.0, 1.0]).expand(len(observations), 2)

    uniform = mdp.uniform_policy()
    d = mdp.d_pi(uniform)
    np.testing.assert_allclose(d, 1 / env.length)  # every cell of every lap is sampled equally often
    power = gamma ** np.arange(env.length)
    averaged = np.tile(power.reshape(env.laps, env.lap).mean(axis=0), env.laps)
    weights = {"none": d, "true": None, "power": d * power / (d @ power), "averaging": d * averaged / (d @ averaged)}
    return {name: torch_gradient(mdp, policy, w, parameters=[theta])[0].item() for name, w in weights.items()}


@pytest.mark.parametrize("laps", [1, 3, 50])
def test_the_mismatch_and_what_both_corrections_do_to_it(laps: int) -> None:
    gradient = gradients(RingEnv(laps=laps), 0.8)
    assert gradient["none"] < 0 < gradient["true"]
    # by hand: ∂/∂θ of the log-odds is half the pay of action 1 (reward differences of 2 · pay, times π(1-π) = 1/4)
    assert gradient["none"] == pytest.approx(0.5 * (3 - 9 * 0.6) / 12)
    steps = 0.8 ** np.arange(12)
    lap = 0.5 * (steps[:3].sum() - 0.6 * steps[3:].sum())
    ends = 1 - 0.8 ** (12 * laps)
    assert gradient["true"] == pytest.approx(0.2 * lap * ends / (1 - 0.8**12))
    # Both have the right expectation (of mean weight 1): a lap is like any other. Only their noise differs.
    assert gradient["power"] == pytest.approx(gradient["true"] / ends)
    assert gradient["averaging"] == pytest.approx(gradient["true"] / ends)
    for strength, sign in ((0.5, 1), (0.6, -1)):  # 0.6 · strength against 1/3
        assert np.sign(gradients(RingEnv(laps, strength=strength), 0.8)["none"]) == sign


def test_averaging_learns_what_the_discounted_return_wants_and_none_the_opposite() -> None:
    """With little noise, so that it is quick; what the study's noise and laps do is in docs/environments.md."""
    chosen = {}
    for correction in (None, "averaging"):
        model = AveragingPPO(
            AsymmetricActorCriticPolicy,
            make_vec_env("avgcorr/Ring-v0", 4, seed=0, env_kwargs={"laps": 5, "noise": 0.5}),
            n_steps=60,
            batch_size=240,
            learning_rate=3e-3,
            gamma=0.8,
            correction=correction,
            correction_strength=1.0,  # the averaging itself, not the choice of how far to go with it
            policy_kwargs={"actor_keys": ["observation"]},
            seed=0,
            device="cpu",
        ).learn(3_600)
        blind, _ = model.policy.obs_to_tensor({"observation": np.ones((1, 1), dtype=np.float32)})
        with th.no_grad():
            chosen[correction] = model.policy.get_distribution(blind).distribution.probs[0, 1].item()
    assert chosen[None] < 0.1
    assert chosen["averaging"] > 0.8


# -- the carousel -------------------------------------------------------------------------------------------------------


def test_the_cabin_moves_as_its_equation_says() -> None:
    """Against small steps of y'' = -ω² (y - rest) - 2ω y'."""
    env = CarouselEnv()
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    y, v = env.offset, env.velocity
    for _ in range(20):
        action, h = rng.uniform(-1, 1), 1e-5
        rest = action + 0.5 * env.gust
        obs, *_ = env.step(np.array([action]))
        for _ in range(10_000):
            v += h * (-400 * (y - rest) - 40 * v)
            y += h * v
        assert env.offset == pytest.approx(y, abs=2e-3)
        assert env.velocity == pytest.approx(v, abs=2e-2)
        np.testing.assert_allclose(obs["privileged"][3:], [env.offset, env.velocity / 20], rtol=1e-6)


def test_carousel_pays_and_tells_as_it_says() -> None:
    env = CarouselEnv(laps=2, strength=0.5, noise=0)
    obs, _ = env.reset(seed=0)
    for t in range(48):
        angle, first = 2 * np.pi * t / 24, t % 24 < 6
        np.testing.assert_allclose(obs["privileged"][:3], [np.cos(angle), np.sin(angle), first], atol=1e-6)
        np.testing.assert_allclose(obs["observation"], [env.gust], rtol=1e-6)
        obs, reward, *_ = env.step(env.action_space.sample())
        distance = (env.offset - (0.5 if first else -0.5)) / 0.5
        assert reward == pytest.approx(-(distance**2) * (1.0 if first else 0.5))


def test_carousel_stays_in_its_space_and_cuts_actions() -> None:
    one, two = CarouselEnv(laps=100), CarouselEnv(laps=100)
    rng = np.random.default_rng(0)
    one.reset(seed=0), two.reset(seed=0)
    for step in range(2400):
        if step % 7 == 0:
            sign = rng.choice([-1.0, 1.0])
        # Together with the strongest gusts, and against the swing: the worst that can be done.
        one.gust = two.gust = sign
        obs, *_ = one.step(np.array([sign]))
        two.step(np.array([9 * sign]))
        assert one.observation_space.contains(obs), obs
        assert (one.offset, one.velocity) == (two.offset, two.velocity)
        sign = -np.sign(one.velocity) if rng.random() < 0.5 else sign


@pytest.mark.parametrize("action", [[np.nan], [np.inf], [0.0, 0.0], 0.0])
def test_carousel_bad_actions(action: Any) -> None:
    env = CarouselEnv()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action must be one finite number"):
        env.step(np.array(action, np.float32))


def carousel_return(env: CarouselEnv, gamma: float, rest: float, gain: float) -> float:
    """
    :return: mean return over 100 episodes of ``a = rest + gain * gust``; the same gusts for every actor
    """
    total = 0.0
    for seed in range(50):
        for side in (-1, 1):  # every start with its mirror image
            env.reset(seed=seed)
            env.offset *= side
            for t in range(env.length):
                total += gamma**t * env.step(np.array([rest + gain * env.gust]))[1] / 100
    return total


@pytest.mark.parametrize("gamma, expected", [(0.8, 0.229), (1.0, -0.260)])
def test_optimal_offset_is_the_best_of_all_and_depends_on_the_discount(gamma: float, expected: float) -> None:
    env = CarouselEnv(laps=2, noise=0)
    best = env.optimal_offset(gamma)
    assert best == pytest.approx(expected, abs=2e-3)
    top = carousel_return(env, gamma, best, -0.5)
    for rest, gain in ((best + 0.03, -0.5), (best - 0.03, -0.5), (best, -0.4), (best, -0.6), (-best, -0.5), (best, 0.0)):
        assert carousel_return(env, gamma, rest, gain) < top
    # with nothing to pull the other way: the outer rail, or a little beyond, to be there sooner
    assert 0.5 <= CarouselEnv(strength=0.0).optimal_offset(gamma) < 0.6
    with pytest.raises(TypeError, match="not finite"):
        env.finite_mdp(gamma)
