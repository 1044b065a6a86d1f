"""The mixin: what the fit may touch, what it must report, save and load, and what is learned."""

import io
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from conftest import SPACES, ClockEnv, FaultyEnv, SpaceEnv, policy_for, space_env
from stable_baselines3 import A2C, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_avgcorr import AveragingA2C, AveragingCorrection, AveragingPPO
from sb3_avgcorr.common.critic import critic_layers, critic_parameters

SETTINGS: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 1, "gamma": 0.9, "seed": 0, "device": "cpu"}

#: the authors' program (paper-facts.md, section 2), on SB3's update
AUTHORS: dict[str, Any] = {
    "vf_coef": 0.0,
    "correction_epochs": 3,
    "critic_epochs": 3,
    "critic_lambda": 1.0,
    "critic_learning_rate": 3e-3,
    "correction_learning_rate": 3e-3,
    "correction_batch_size": None,
    "correction_lambda": 1.0,
    "correction_order": "after",
    "correction_loss": "mse",
    "correction_scale": 49.0,
    "correction_coef": 4.0,
    "correction_shrinkage": False,
    "normalize_correction": False,
    "normalize_before_weighting": True,
    "target_kl": 0.01,
    "correction_network": "shared",
}

#: options that take different ways through the mixin
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "not fast": {"fast": False},
    "shared": {"correction_network": "shared"},
    "after": {"correction_order": "after", "correction_averaging": False},
    "power": {"correction": "power"},
    "running": {"normalize_correction": "running", "correction_lambda": 1.0},
    "authors": AUTHORS,
}


def ppo(env: Any = "CartPole-v1", policy: Any = "MlpPolicy", **options: Any) -> AveragingPPO:
    if callable(env):
        env = DummyVecEnv([env, env])
    return AveragingPPO(policy, env, **{**SETTINGS, **options})


def state(model: OnPolicyAlgorithm) -> dict[str, th.Tensor]:
    return {name: value.clone() for name, value in model.policy.state_dict().items()}


def same(a: dict[str, th.Tensor], b: dict[str, th.Tensor]) -> bool:
    return a.keys() == b.keys() and all(th.equal(a[name], b[name]) for name in a)


class AtTrain(BaseCallback):
    """Calls a function with the model once a rollout is complete, before it is trained on."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.function(self.model)


# Invariant 3: the actor is not touched


@pytest.mark.parametrize("options", [{}, {"correction_network": "shared"}, {"critic_epochs": 3, "critic_lambda": 1.0}])
@pytest.mark.parametrize("kind", ["box", "image", "dict_image"])
@pytest.mark.parametrize("share", [True, False])
def test_fit_leaves_the_actor_alone(kind: str, share: bool, options: dict[str, Any]) -> None:
    """Log-probabilities are the same to the bit around every fit, also with a features extractor that is shared."""
    fits = []

    class Checked(AveragingPPO):
        def _log_prob(self, rollout: Any) -> th.Tensor:
            n = rollout.steps.size
            with th.no_grad():
                return self.policy.evaluate_actions(*rollout.critic_inputs, th.zeros(n))[1]  # type: ignore[arg-type]

        def _fit(self, rollout: Any, *args: Any, **kwargs: Any) -> None:
            log_prob, parameters = self._log_prob(rollout), state(self)
            super()._fit(rollout, *args, **kwargs)
            changed = not same(parameters, state(self))
            assert th.equal(self._log_prob(rollout), log_prob)
            fits.append(changed)

    with_policy = {"share_features_extractor": share}
    Checked(
        policy_for(kind),
        DummyVecEnv([lambda: space_env(kind)] * 2),
        policy_kwargs=with_policy,
        **{**SETTINGS, "n_steps": 16, "n_epochs": 1},
        **options,
    ).learn(64)
    # the critic's own layers are changed by the shared fit and by critic_epochs, and not by a separate fit
    assert fits == [options == {"correction_network": "shared"}, *([True] if "critic_epochs" in options else [])] * 2


def test_fit_leaves_shared_layers_alone() -> None:
    # a user's network in which actor and critic share a layer
    class Shared(th.nn.Module):
        def __init__(self, features: int) -> None:
            super().__init__()
            self.latent_dim_pi = self.latent_dim_vf = 8
            self.both, self.own = th.nn.Linear(features, 8), th.nn.Linear(8, 8)

        def forward_actor(self, x: th.Tensor) -> th.Tensor:
            return th.tanh(self.both(x))

        def forward_critic(self, x: th.Tensor) -> th.Tensor:
            return th.tanh(self.own(th.tanh(self.both(x))))

        def forward(self, x: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
            return self.forward_actor(x), self.forward_critic(x)

    class Policy(ActorCriticPolicy):
        def _build_mlp_extractor(self) -> None:
            self.mlp_extractor = Shared(self.features_dim)  # type: ignore[assignment]

    model = ppo(policy=Policy)
    names = {id(p): name for name, p in model.policy.named_parameters()}
    assert [names[id(p)] for p in critic_layers(model.policy)] == [
        "mlp_extractor.own.weight",
        "mlp_extractor.own.bias",
        "value_net.weight",
        "value_net.bias",
    ]
    model.learn(64)


# What SB3's update sees


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_no_gradient_is_left_for_sb3(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def check(model: Any) -> None:
        seen.extend(p.grad for p in model.policy.parameters())

    original = PPO.train
    monkeypatch.setattr(PPO, "train", lambda self: (check(self), original(self))[1])
    model = ppo(**options)
    model.learn(32)
    assert seen
    assert all(gradient is None for gradient in seen)
    if model.correction_net is not None:
        assert all(p.grad is None for p in model.correction_net.parameters())
    # SB3's own zero_grad() comes before its backward(), so what a later fit leaves can only matter to clipping
    model.learn(32, reset_num_timesteps=False)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cls", [AveragingPPO, AveragingA2C])
def test_weights_are_finite_and_non_negative(cls: Any, options: dict[str, Any]) -> None:
    settings = {k: v for k, v in options.items() if cls is AveragingPPO or k != "target_kl"}
    settings |= SETTINGS if cls is AveragingPPO else {"seed": 0, "gamma": 0.9, "device": "cpu", "n_steps": 8}
    model = cls("MlpPolicy", make_vec_env("CartPole-v1", n_envs=3), **settings)
    assert model.correction_weights is None
    model.learn(3 * 3 * model.n_steps)
    weights = model.correction_weights
    assert weights.shape == (model.n_steps, 3)
    assert np.isfinite(weights).all()
    assert (weights >= 0.0).all()
    assert weights.max() > 0.0
    if model.normalize_correction is True:
        assert weights.mean() == pytest.approx(1.0, abs=1e-5)
    assert all(th.isfinite(p).all() for p in model.policy.parameters())


def test_power_weights_are_the_powers() -> None:
    model = ppo(correction="power", normalize_correction=False).learn(64)
    np.testing.assert_allclose(model.correction_weights, 0.9**model.rollout_buffer.episode_steps, rtol=1e-5)
    model = ppo(correction="power").learn(64)
    powers = 0.9**model.rollout_buffer.episode_steps
    np.testing.assert_allclose(model.correction_weights, powers / powers.mean(), rtol=1e-5)


def test_power_weights_late_in_an_episode() -> None:
    # γ^t itself vanishes; relative to its mean it does not
    model = ppo(ClockEnv(10**6), gamma=0.5, correction="power").learn(32 * 50)
    assert model.correction_weights.max() > 1.0
    assert np.isfinite(model.correction_weights).all()


@pytest.mark.parametrize("cls, theirs", [(AveragingPPO, PPO), (AveragingA2C, A2C)])
@pytest.mark.parametrize("constant", [0.37, 1.0, 1e-12])
def test_constant_weights_are_weights_of_one(cls: Any, theirs: Any, constant: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(cls, "_estimates", lambda self, features, **_: np.full(len(features), constant))
    settings = {"seed": 0, "n_steps": 16, "device": "cpu"}
    ours = cls("MlpPolicy", "CartPole-v1", fast=False, **settings).learn(64)
    assert (ours.correction_weights == 1.0).all()
    assert same(state(ours), state(theirs("MlpPolicy", "CartPole-v1", **settings).learn(64)))


def test_weights_reach_the_advantages(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = [], []
    monkeypatch.setattr(PPO, "train", lambda self: after.append(self.rollout_buffer.advantages.copy()))
    collected = AtTrain(lambda m: before.append(m.rollout_buffer.advantages.copy()))
    model = ppo(correction="power")
    model.learn(32, collected)
    np.testing.assert_array_equal(after[0], before[0] * model.correction_weights)

    # the authors' order: normalise over the rollout, then weigh
    model = ppo(correction="power", normalize_correction=False, normalize_before_weighting=True)
    model.learn(32, collected)
    normal = (before[1] - before[1].mean()) / (before[1].std() + 1e-8)
    np.testing.assert_allclose(after[1], normal * 0.9**model.rollout_buffer.episode_steps, rtol=1e-5)


def test_sb3_does_not_normalise_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = PPO.train
    monkeypatch.setattr(PPO, "train", lambda self: (seen.append(self.normalize_advantage), original(self))[1])
    model = ppo(normalize_before_weighting=True).learn(32)
    assert seen == [False]
    assert model.normalize_advantage is True, "the user's setting is back"


# Critic


def test_critic_learning_rate_is_used() -> None:
    rates = []
    model = ppo(critic_learning_rate=lambda progress: 0.5 * progress, learning_rate=lambda progress: 1e-3 * progress)
    model.learn(64)
    rates = [group["lr"] for group in model.policy.optimizer.param_groups]
    # the last of two updates starts with all steps done: no progress remains
    assert rates == [0.0, 0.0]
    model = ppo(critic_learning_rate=0.0, correction=None)
    critic, everything = critic_parameters(model.policy), list(model.policy.parameters())
    before = [p.detach().clone() for p in everything]
    model.learn(64)
    for p, old in zip(everything, before, strict=True):
        assert th.equal(p, old) == any(p is q for q in critic)
    assert [group["lr"] for group in model.policy.optimizer.param_groups] == [3e-4, 0.0]


@pytest.mark.parametrize("kind, share", [("box", True), ("image", True), ("image", False)])
def test_critic_parameters(kind: str, share: bool) -> None:
    model = ppo(lambda: space_env(kind), policy_for(kind), policy_kwargs={"share_features_extractor": share}, correction=None)
    names = {id(p): name for name, p in model.policy.named_parameters()}
    own = {names[id(p)].split(".")[0] for p in critic_parameters(model.policy)}
    assert own == {"value_net"} | ({"mlp_extractor"} if kind == "box" else set()) | (
        set() if share else {"vf_features_extractor"}
    )
    assert all("policy_net" not in names[id(p)] for p in critic_parameters(model.policy))


def test_vf_coef_zero_leaves_the_critic_to_critic_epochs() -> None:
    parameters = {}
    for epochs in (0, 4):
        model = ppo(vf_coef=0.0, correction=None, critic_epochs=epochs, critic_learning_rate=1e-2)
        critic = critic_parameters(model.policy)
        before = [p.detach().clone() for p in critic]
        model.learn(64)
        parameters[epochs] = [not th.equal(p, old) for p, old in zip(critic, before, strict=True)]
    assert not any(parameters[0])
    assert all(parameters[4])


@pytest.mark.parametrize("n_envs", [1, 2])
def test_critic_learns_its_monte_carlo_targets(n_envs: int) -> None:
    # reward 1 a step, episodes of 20, undiscounted: the value of t is 20 - t
    env = DummyVecEnv([lambda: ClockEnv(20)] * n_envs)
    model = AveragingPPO(
        "MlpPolicy",
        env,
        n_steps=100,
        batch_size=100,
        n_epochs=1,
        vf_coef=0.0,
        gamma=1.0,
        critic_epochs=40,
        critic_learning_rate=1e-2,
        critic_lambda=1.0,
        seed=0,
    )
    model.learn(600 * n_envs)
    t = np.arange(20)
    with th.no_grad():
        values = model.policy.predict_values(th.as_tensor(t[:, None] / 20.0, dtype=th.float32)).numpy()[:, 0]
    assert np.abs(values - (20 - t)).mean() < 1.0


# Save, load, go on (invariant 5)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cls", [AveragingPPO, AveragingA2C])
def test_save_and_load(cls: Any, options: dict[str, Any], tmp_path: Path) -> None:
    options = {k: v for k, v in options.items() if cls is AveragingPPO or k != "target_kl"}
    settings = SETTINGS if cls is AveragingPPO else {"seed": 0, "gamma": 0.9, "device": "cpu", "n_steps": 8}
    model = cls("MlpPolicy", make_vec_env(lambda: ClockEnv(1000), n_envs=2), **settings, **options).learn(192)
    model.save(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = cls.load(tmp_path / "model", device="cpu")
    ours, theirs = model.get_parameters(), loaded.get_parameters()
    assert ours.keys() == theirs.keys()
    for name in ours:
        th.testing.assert_close(theirs[name], ours[name], rtol=0.0, atol=0.0)
    for name in options:
        assert getattr(loaded, name) == getattr(model, name)
    np.testing.assert_array_equal(loaded.rollout_buffer.next_episode_steps, [96, 96])
    if options.get("correction") != "power":
        observations = np.linspace(0, 1, 10, dtype=np.float32)[:, None]
        np.testing.assert_array_equal(loaded.predict_correction(observations), model.predict_correction(observations))
        assert loaded._shrinkage.factor == model._shrinkage.factor


@pytest.mark.parametrize("options", [{}, {"correction_network": "shared", "correction_order": "after", "critic_epochs": 1}])
def test_going_on_is_the_same_loaded_or_not(options: dict[str, Any], tmp_path: Path) -> None:
    # an environment without randomness, so that the loaded model meets what the saved one would have met
    model = ppo(lambda: ClockEnv(1000), **options).learn(192)
    model.save(tmp_path / "model")
    env = model.get_env()
    loaded = AveragingPPO.load(tmp_path / "model", env=env, force_reset=False, device="cpu")
    results = []
    for each in (model, loaded):
        env.set_attr("t", 96)
        each.set_random_seed(1)  # as SB3, loading begins the streams anew
        each.learn(192, reset_num_timesteps=False)
        assert each.rollout_buffer.next_episode_steps[0] == 192
        results.append(state(each))
    assert same(*results)


def test_clock_restarts_when_loaded_with_another_environment(tmp_path: Path) -> None:
    ppo(ClockEnv(1000)).learn(64).save(tmp_path / "model")
    for n_envs in (1, 3):
        model = AveragingPPO.load(tmp_path / "model", env=make_vec_env(lambda: ClockEnv(1000), n_envs=n_envs))
        model.learn(32 * n_envs, reset_num_timesteps=False)
        np.testing.assert_array_equal(model.rollout_buffer.episode_steps, np.tile(np.arange(32)[:, None], n_envs))


def test_clock_of_a_model_saved_after_an_interruption(tmp_path: Path) -> None:
    model = ppo(DummyVecEnv([lambda: FaultyEnv(40, KeyboardInterrupt(), length=1000)]))
    with pytest.raises(KeyboardInterrupt):
        model.learn(1000)
    model.save(tmp_path / "model")
    loaded = AveragingPPO.load(tmp_path / "model", env=model.get_env(), force_reset=False)
    loaded.learn(32, reset_num_timesteps=False)
    assert loaded.rollout_buffer.episode_steps[0, 0] == 39


def test_get_and_set_parameters() -> None:
    a, b = ppo().learn(64), ppo(seed=1)
    b.set_parameters(a.get_parameters())
    own = {"correction_net", "correction_average", "correction_optimizer"}
    assert a.get_parameters().keys() == {"policy", "policy.optimizer"} | own
    th.testing.assert_close(b.get_parameters(), a.get_parameters(), rtol=0.0, atol=0.0)
    with pytest.raises(ValueError, match="policy"):
        b.set_parameters({"correction_net": a.get_parameters()["correction_net"]})
    # some of them, as SB3 allows
    c = ppo(seed=2)
    c.set_parameters({"correction_net": a.get_parameters()["correction_net"]}, exact_match=False)
    th.testing.assert_close(c.get_parameters()["correction_net"], a.get_parameters()["correction_net"])


@pytest.mark.parametrize("theirs, cls", [(PPO, AveragingPPO), (A2C, AveragingA2C)])
def test_sb3_zip_is_taken(theirs: Any, cls: Any, tmp_path: Path) -> None:
    model = theirs("MlpPolicy", "CartPole-v1", seed=0, n_steps=32, gamma=0.95, device="cpu").learn(64)
    model.save(tmp_path / "sb3")
    with pytest.warns(UserWarning, match="afresh"):
        ours = cls.load(tmp_path / "sb3", env=make_vec_env("CartPole-v1", n_envs=2), device="cpu")
    assert same(state(ours), state(model))
    th.testing.assert_close(ours.policy.optimizer.state_dict()["state"], model.policy.optimizer.state_dict()["state"])
    assert ours.gamma == 0.95
    assert ours.correction == "averaging"
    ours.learn(128)
    assert ours.correction_weights.shape == (32, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert cls.load(tmp_path / "sb3", correction=None, device="cpu").correction is None, "nothing to warn of"


def test_sb3_zip_with_a_critic_learning_rate(tmp_path: Path) -> None:
    PPO("MlpPolicy", "CartPole-v1", seed=0, n_steps=32, device="cpu").learn(64).save(tmp_path / "sb3")
    with pytest.warns(UserWarning, match="afresh"):
        model = AveragingPPO.load(tmp_path / "sb3", env=gym.make("CartPole-v1"), critic_learning_rate=1e-2, device="cpu")
    model.learn(64)
    assert [group["lr"] for group in model.policy.optimizer.param_groups] == [3e-4, 1e-2]


def test_options_can_be_changed_at_loading(tmp_path: Path) -> None:
    ppo().learn(32).save(tmp_path / "model")
    for options in ({"correction": None}, {"correction": "power"}, {"gamma": 1.0}, {"correction_learning_rate": 1e-4}):
        model = AveragingPPO.load(tmp_path / "model", env=gym.make("CartPole-v1"), device="cpu", **options)
        model.learn(32)
        assert np.isfinite(model.correction_weights).all()


def test_save_to_memory() -> None:
    file, model = io.BytesIO(), ppo().learn(32)
    model.save(file)
    file.seek(0)
    loaded = AveragingPPO.load(file)
    observations = np.zeros((2, 4), dtype=np.float32)
    np.testing.assert_array_equal(loaded.predict_correction(observations), model.predict_correction(observations))


# What a user may ask


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("network", ["shared", "separate"])
def test_predict_correction_of_every_space(kind: str, network: Any) -> None:
    env = DummyVecEnv([lambda: space_env(kind)] * 2)
    model = AveragingPPO(policy_for(kind), env, **{**SETTINGS, "n_steps": 16}, correction_network=network)
    observation = env.reset()
    np.testing.assert_array_equal(model.predict_correction(observation), np.ones(2))
    model.learn(64)
    for batch in (observation, model.get_env().reset()):  # images: channels last as the user has them, and first
        weights = model.predict_correction(batch)
        assert weights.shape == (2,)
        assert np.isfinite(weights).all()
        assert (weights >= 0.0).all()
    single = space_env(kind).observation_space.sample()
    assert model.predict_correction(single).shape == (1,)
    assert model.correction_weights.shape == (16, 2)


def test_predict_correction_is_the_last_rollouts_weights() -> None:
    model = ppo(lambda: ClockEnv(20))
    observations: list[np.ndarray] = []
    model.learn(640, AtTrain(lambda m: observations.append(m.rollout_buffer.observations.copy())))
    weights = model.predict_correction(observations[-1].reshape(-1, 1)).reshape(32, 2)
    np.testing.assert_allclose(weights, model.correction_weights, rtol=1e-4)
    assert weights.mean() == pytest.approx(1.0, abs=1e-4)


def test_predict_correction_without_one() -> None:
    observations = np.zeros((3, 4), dtype=np.float32)
    np.testing.assert_array_equal(ppo(correction=None).learn(32).predict_correction(observations), np.ones(3))
    np.testing.assert_array_equal(ppo(gamma=1.0).learn(32).predict_correction(observations), np.ones(3))
    with pytest.raises(ValueError, match="averaging"):
        ppo(correction="power").predict_correction(observations)


def test_weights_are_one_without_a_correction() -> None:
    for options in ({"correction": None}, {"gamma": 1.0}, {"gamma": 1.0, "correction": "power"}):
        model = ppo(**options).learn(32)
        np.testing.assert_array_equal(model.correction_weights, np.ones((32, 1)))


# What is learned


QUICK: dict[str, Any] = {"n_steps": 500, "batch_size": 250, "n_epochs": 1, "seed": 0, "device": "cpu"}


def error(model: Any, length: int = 20) -> float:
    """Mean relative error of the learned correction against γ^t, both with mean 1: of the weights, and as predicted."""
    powers = model.gamma**model.rollout_buffer.episode_steps
    of_weights = np.abs(model.correction_weights / (powers / powers.mean()) - 1.0).mean()
    t = np.arange(length)
    truth = model.gamma**t / np.mean(model.gamma**t)
    predicted = model.predict_correction((t / length).astype(np.float32)[:, None])
    return float(max(of_weights, np.abs(predicted / truth - 1.0).mean()))


@pytest.mark.parametrize(
    "options, steps",
    [
        ({}, 8000),
        ({"correction_network": "shared"}, 20_000),  # slower, for the critic pulls at the same layers
        ({"correction_loss": "mse", "correction_scale": 10.0, "correction_lambda": 1.0}, 6000),
        ({"correction_order": "after", "correction_averaging": False}, 8000),
    ],
    ids=["default", "shared", "mse", "after"],
)
def test_correction_matches_the_powers_where_the_state_tells_the_time(options: dict[str, Any], steps: int) -> None:
    model = AveragingPPO("MlpPolicy", ClockEnv(20), gamma=0.95, **QUICK, **options).learn(steps)
    assert error(model) < 0.05


def test_correction_of_a2c_matches_the_powers() -> None:
    env = DummyVecEnv([lambda: ClockEnv(20)] * 5)
    assert error(AveragingA2C("MlpPolicy", env, n_steps=20, gamma=0.95, seed=0, device="cpu").learn(15_000)) < 0.05


@pytest.mark.parametrize("reward", [0.0, 1.0, 1e4])
def test_correction_is_learned_whatever_the_size_of_rewards(reward: float) -> None:
    # sparse rewards are the paper's own subject: before the goal is found there is nothing but zeros
    model = AveragingPPO("MlpPolicy", ClockEnv(50, reward=reward), gamma=0.9, correction_learning_rate=3e-3, **QUICK).learn(
        6000
    )
    powers = 0.9**model.rollout_buffer.episode_steps
    assert np.corrcoef(model.correction_weights[:, 0], powers[:, 0])[0, 1] > 0.9
    assert 0.7 < model.correction_weights.std() / (powers / powers.mean()).std() < 1.3


@pytest.mark.parametrize("network", ["shared", "separate"])
@pytest.mark.parametrize("env", [ClockEnv(20, tells=False), SpaceEnv(SPACES["box"], length=20)], ids=["constant", "noise"])
def test_weights_are_constant_where_the_state_tells_nothing(env: gym.Env, network: Any) -> None:
    model = AveragingPPO("MlpPolicy", env, gamma=0.95, correction_network=network, **QUICK).learn(3000)
    assert np.abs(model.correction_weights - 1.0).max() < 0.05


# Mistakes are named


@pytest.mark.parametrize(
    "argument, value, allowed",
    [
        ("gamma", 0.0, r"\(0, 1\]"),
        ("gamma", 1.1, r"\(0, 1\]"),
        ("gamma", -0.5, r"\(0, 1\]"),
        ("gamma", np.nan, r"\(0, 1\]"),
        ("correction", "average", "averaging"),
        ("correction", False, "None"),
        ("correction_network", "both", "separate"),
        ("correction_loss", "l1", "bce"),
        ("correction_scale", 50.0, "mse"),
        ("correction_scale", 0.0, "> 0"),
        ("correction_scale", np.inf, "> 0|finite"),
        ("correction_lambda", 1.5, r"\[0, 1\]"),
        ("correction_lambda", -0.1, r"\[0, 1\]"),
        ("correction_lambda", None, r"\[0, 1\]"),
        ("correction_coef", -1.0, ">= 0"),
        ("correction_coef", np.inf, ">= 0|finite"),
        ("correction_learning_rate", -1e-3, ">= 0"),
        ("correction_learning_rate", np.inf, ">= 0|finite"),
        ("correction_learning_rate", "fast", "schedule"),
        ("correction_epochs", -1, ">= 0"),
        ("correction_epochs", 1.5, "whole number"),
        ("correction_batch_size", 0, ">= 1"),
        ("correction_order", "during", "after"),
        ("normalize_correction", "batch", "running"),
        ("critic_learning_rate", -1.0, ">= 0"),
        ("critic_epochs", -2, ">= 0"),
        ("critic_epochs", True, ">= 0"),
        ("critic_lambda", 2.0, r"\[0, 1\]"),
    ],
)
def test_senseless_hyperparameters_are_named(argument: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"{argument}=.*({allowed})"):
        ppo(**{argument: value})
    with pytest.raises(ValueError, match=argument):
        AveragingA2C("MlpPolicy", "CartPole-v1", **{argument: value})


@pytest.mark.parametrize("gamma", [np.float32(0.9), np.float64(0.9), 1])
def test_numbers_may_be_numpys(gamma: Any) -> None:
    ppo(gamma=gamma, correction_epochs=np.int64(2), correction_lambda=np.float32(0.5)).learn(32)


@pytest.mark.parametrize("value", [1, np.True_])
def test_a_true_value_normalises(value: Any) -> None:
    try:
        model = ppo(normalize_correction=value)
    except ValueError as error:
        assert "normalize_correction" in str(error)  # noqa: PT017  # to refuse it is as good
    else:
        assert model.learn(32).correction_weights.mean() == pytest.approx(1.0, abs=1e-5)


def test_unknown_argument() -> None:
    with pytest.raises(TypeError, match="correction_lamda"):
        ppo(correction_lamda=0.5)


def test_mixin_in_the_wrong_place() -> None:
    with pytest.raises(TypeError, match="before PPO"):

        class Late(PPO, AveragingCorrection):
            pass

    with pytest.raises(TypeError, match="off-policy"):

        class OffPolicy(AveragingCorrection, SAC):  # type: ignore[misc]
            pass

    with pytest.raises(TypeError, match="nothing to correct"):

        class Nothing(AveragingCorrection):
            pass


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fault", ["reward", "observation"])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("at", [40, 64])  # inside a rollout, and the last step of one
def test_what_is_not_finite_is_reported(fault: str, value: float, fast: bool, at: int) -> None:
    model = ppo(FaultyEnv(at, fault, value, length=1000), fast=fast)
    with pytest.raises(ValueError, match=f"{fault} is not finite: {value}"):
        model.learn(128)
    assert all(th.isfinite(p).all() for p in model.policy.parameters()), "reported before it reached the weights"
    assert model.correction_net is not None
    assert all(th.isfinite(p).all() for p in model.correction_net.parameters())


@pytest.mark.parametrize("correction", ["power", None])
def test_what_is_not_finite_is_reported_without_a_head_too(correction: Any) -> None:
    with pytest.raises(ValueError, match="reward is not finite"):
        ppo(FaultyEnv(10, "reward", length=1000), correction=correction).learn(64)


def test_place_of_what_is_not_finite() -> None:
    def env(faulty: bool) -> Any:
        return lambda: FaultyEnv(20 if faulty else 10**9, "reward", length=1000)

    with pytest.raises(ValueError, match="environment 1, step 19 of the rollout"):
        ppo(DummyVecEnv([env(False), env(True)])).learn(64)


def test_place_of_an_observation_matrix() -> None:
    def env(faulty: bool) -> Any:
        return lambda: FaultyEnv(20 if faulty else 10**9, "observation", length=1000, shape=(2, 3))

    with pytest.raises(ValueError, match="observation is not finite") as raised:
        ppo(DummyVecEnv([env(False), env(True)])).learn(64)
    assert "environment 1" in str(raised.value)


# Interruptions


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_interrupted_while_collecting(options: dict[str, Any], tmp_path: Path) -> None:
    model = ppo(FaultyEnv(45, KeyboardInterrupt(), length=20), **options)
    with pytest.raises(KeyboardInterrupt):
        model.learn(1000)
    model.save(tmp_path / "model")
    loaded = AveragingPPO.load(tmp_path / "model", env=ClockEnv(20))
    loaded.learn(64, reset_num_timesteps=False)
    model.learn(64, reset_num_timesteps=False)


@pytest.mark.parametrize("where", ["_fit", "_estimates", "_features"])
def test_interrupted_while_fitting(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = ppo(), []
    original = getattr(AveragingPPO, where)

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(where)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(AveragingPPO, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.learn(1000)
    monkeypatch.undo()
    model.save(tmp_path / "model")
    AveragingPPO.load(tmp_path / "model", env=gym.make("CartPole-v1")).learn(32, reset_num_timesteps=False)
    model.learn(64, reset_num_timesteps=False)
    assert "forward_critic" not in vars(model.policy.mlp_extractor), "nothing of ours is left in the policy"


# Logs

HEAD_KEYS = {"loss", "explained_variance"}
WEIGHT_KEYS = {"weight_min", "weight_max", "weight_std", "effective_sample_size", "mean_episode_step"}


def logged(model: Any) -> dict[str, Any]:
    """What of the correction was recorded in the last update."""
    values = model.logger.name_to_value
    return {name.split("/")[1]: value for name, value in values.items() if name.startswith("correction/")}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_logger_keys(options: dict[str, Any]) -> None:
    model = ppo(**options).learn(96)
    values = logged(model)
    expected = WEIGHT_KEYS if options.get("correction") == "power" else WEIGHT_KEYS | HEAD_KEYS
    assert expected <= values.keys()
    assert all(np.isfinite(value) for value in values.values())
    weights = model.correction_weights
    assert values["weight_min"] == pytest.approx(weights.min())
    assert values["weight_max"] == pytest.approx(weights.max())
    assert values["weight_std"] == pytest.approx(weights.std())
    assert values["mean_episode_step"] == pytest.approx(model.rollout_buffer.episode_steps.mean())
    assert values["effective_sample_size"] == pytest.approx(weights.sum() ** 2 / (weights.size * (weights**2).sum()), rel=1e-4)
    if "critic_learning_rate" in options:
        assert "train/critic_learning_rate" in model.logger.name_to_value


def test_nothing_is_logged_without_a_correction() -> None:
    assert logged(ppo(correction=None).learn(64)) == {}
