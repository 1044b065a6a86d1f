"""The weights: finite and not negative whatever the rollout held (invariant 7), of the strength asked for, and logged."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import SPACES, ClockEnv, SpaceEnv, policy_for, space_env
from family import FAMILY, FULL, learned, make, make_with, on_update, vec_env
from stable_baselines3.common.envs import FakeImageEnv, IdentityEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_avgcorr import AveragingPPO

#: the authors' program (paper-facts.md, section 2), on SB3's update
AUTHORS: dict[str, Any] = {
    "vf_coef": 0.0,
    "correction_strength": 1.0,
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
    "correction_network": "shared",
}


@pytest.mark.parametrize("correction", ["averaging", "power"])
@pytest.mark.parametrize("reward, gamma", [(1e8, 0.01), (0.0, 0.9999)])
@pytest.mark.parametrize("name", FAMILY)
def test_finite_and_not_negative(name: str, reward: float, gamma: float, correction: str) -> None:
    env = vec_env(name, lambda: ClockEnv(length=40, reward=reward))
    options = {**FULL, "gamma": gamma, "correction": correction}
    model = make_with(FAMILY[name].ours, name, env, **options)
    assert model.correction_weights is None
    weights = learned(model, 4).correction_weights
    assert weights.shape == (24, 2)
    assert np.isfinite(weights).all()
    assert (weights >= 0.0).all()
    if model.normalize_correction is True:
        assert weights.mean() == pytest.approx(1.0, rel=1e-4)
    assert all(th.isfinite(p).all() for p in model.policy.parameters())


@pytest.mark.parametrize("options", [AUTHORS, {**AUTHORS, "correction_network": "separate", "fast": False}])
@pytest.mark.parametrize("name", ["ppo", "bac", "ppo_recurrent"])
def test_of_the_authors_program(name: str, options: dict[str, Any]) -> None:
    model = learned(make(name, **{**options, "gamma": 0.9}), 5)
    assert np.isfinite(model.correction_weights).all()
    assert (model.correction_weights > 0.0).all()


@pytest.mark.parametrize("name", FAMILY)
def test_power_is_the_power(name: str) -> None:
    for normalize in (True, False):
        env = vec_env(name, lambda: ClockEnv(length=17))
        model = make_with(FAMILY[name].ours, name, env, **FULL, correction="power", normalize_correction=normalize)
        weights = learned(model, 1).correction_weights
        powers = np.tile(0.9 ** (np.arange(24) % 17)[:, None], 2)
        np.testing.assert_allclose(weights, powers / (powers.mean() if normalize else 1.0), rtol=1e-5)


def test_power_does_not_vanish_late_in_an_episode() -> None:
    # γ^t itself does; relative to its mean it does not
    env = vec_env("ppo", lambda: ClockEnv(10**6), 1)
    model = learned(make_with(FAMILY["ppo"].ours, "ppo", env, **{**FULL, "gamma": 0.5}, correction="power", n_epochs=1), 60)
    np.testing.assert_allclose(model.correction_weights[1:] / model.correction_weights[:-1], 0.5, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILY)
def test_they_reach_the_advantages(name: str) -> None:
    seen: dict[str, np.ndarray] = {}

    def note(model: Any) -> None:
        seen["weighted"] = model.rollout_buffer.advantages.copy()

    model = make_with(on_update(name, note), name, make(name).get_env(), **FULL, correction="power")
    _, callback = model._setup_learn(1000)
    arguments = {"use_masking": True} if name == "ppo_mask" else {}
    model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=model.n_steps, **arguments)
    own = model.rollout_buffer.advantages.copy()
    model.train()
    np.testing.assert_array_equal(seen["weighted"], own * model.correction_weights)
    assert model.correction_weights.std() > 0.1


def test_normalised_before_weighting_in_place_of_the_algorithms_own() -> None:
    seen: list[Any] = []

    def note(model: Any) -> None:
        seen.extend([model.normalize_advantage, model.rollout_buffer.advantages / model.correction_weights])

    model = make_with(
        on_update("ppo", note), "ppo", make("ppo").get_env(), **FULL, correction="power", normalize_before_weighting=True
    )
    learned(model, 1)
    assert seen[0] is False
    assert model.normalize_advantage is True, "the user's setting is back"
    assert seen[1].mean() == pytest.approx(0.0, abs=1e-5)
    assert seen[1].std() == pytest.approx(1.0, abs=1e-5)


def test_one_sample_is_not_normalised_away() -> None:
    env = vec_env("a2c", ClockEnv, 1)
    model = make_with(FAMILY["a2c"].ours, "a2c", env, n_steps=1, normalize_before_weighting=True, vf_coef=0.0)
    before = th.nn.utils.parameters_to_vector(model.policy.action_net.parameters()).detach().clone()
    learned(model, 4)
    assert not th.equal(before, th.nn.utils.parameters_to_vector(model.policy.action_net.parameters()))


# How far to correct


@pytest.mark.parametrize("correction", ["averaging", "power"])
@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", FAMILY)
def test_strength(name: str, strength: float, correction: str) -> None:
    """The weights are 1 + k(ĉ - 1), ĉ being what predict_correction gives."""
    seen: dict[str, np.ndarray] = {}

    def note(model: Any) -> None:
        obs = model._critic_inputs()[0].numpy()
        if correction == "averaging":
            states = {} if name != "ppo_recurrent" else {"state": [s.numpy() for s in model._critic_inputs()[1]]}
            starts = {} if name != "ppo_recurrent" else {"episode_start": model._critic_inputs()[2].numpy()}
            seen["ratio"] = model.predict_correction(obs, **states, **starts).reshape(24, 2)
        else:
            steps = np.rint(model.rollout_buffer.observations[..., 0] * 17)
            seen["ratio"] = 0.9**steps / np.mean(0.9**steps)

    options = {**FULL, "correction": correction, "correction_strength": strength, "normalize_correction": True}
    options |= {"correction_epochs": 20, "correction_learning_rate": 1e-2}
    model = make_with(on_update(name, note), name, vec_env(name, lambda: ClockEnv(17)), **options)
    learned(model, 2)
    assert seen["ratio"].std() > 0.01
    np.testing.assert_allclose(model.correction_weights, 1.0 + strength * (seen["ratio"] - 1.0), rtol=1e-4)
    assert model.logger.name_to_value["correction/strength"] == strength == model.correction_strength_used


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("normalize", [True, False, "running"])
def test_a_strength_of_zero_weights_nothing(name: str, normalize: Any) -> None:
    model = make(name, **{**FULL, "correction_strength": 0.0, "normalize_correction": normalize})
    learned(model, 2)
    np.testing.assert_array_equal(model.correction_weights, np.ones_like(model.correction_weights))


@pytest.mark.parametrize("name", FAMILY)
def test_auto(name: str) -> None:
    model = make(name, **{**FULL, "correction_strength": "auto", "normalize_correction": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learned(model, 9)
    assert 0.0 <= model.correction_strength_used <= 1.0
    logged = model.logger.name_to_value
    assert logged["correction/strength"] == model.correction_strength_used
    cosine = logged["correction/gradient_cosine"]
    assert np.isnan(cosine) or -1.0 <= cosine <= 1.0
    assert np.isfinite(model.correction_weights).all()


@pytest.mark.parametrize("fast", [True, False])
def test_auto_corrects_where_the_uncorrected_gradient_is_noise(fast: bool) -> None:
    # Reward in the first of 20 steps for action 1, in all later ones for action 0, a little: γ = 0.5 wants action 1 of an
    # actor that cannot tell them apart, and the undiscounted weights want 0.
    class Tempting(ClockEnv):
        def step(self, action: Any) -> Any:
            first = self.t == 0
            observation, _, *rest = super().step(action)
            return observation, (1.0 if first else -0.2) * (2 * int(action) - 1), *rest

    class BlindActor(th.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.latent_dim_pi, self.latent_dim_vf = 1, 1

        def forward_actor(self, x: th.Tensor) -> th.Tensor:
            return th.ones_like(x)

        def forward_critic(self, x: th.Tensor) -> th.Tensor:
            return x

        def forward(self, x: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
            return self.forward_actor(x), self.forward_critic(x)

    class Blind(FAMILY["ppo"].theirs.policy_aliases["MlpPolicy"]):  # type: ignore[name-defined,misc]
        def _build_mlp_extractor(self) -> None:
            self.mlp_extractor = BlindActor()

    env = vec_env("ppo", lambda: Tempting(20), 8)
    settings = {"n_steps": 64, "batch_size": 512, "n_epochs": 20, "gamma": 0.5, "gae_lambda": 0.0, "learning_rate": 1e-6}
    model = AveragingPPO(Blind, env, **settings, seed=0, device="cpu", correction="power", fast=fast)
    learned(model, 10)
    assert model.correction_strength_used > 0.8


@pytest.mark.parametrize("fast", [True, False])
def test_auto_does_not_believe_an_estimate_that_no_rollout_has_tested(fast: bool) -> None:
    # States are drawn anew at each step, so that c(s) = 1: what one rollout says of ĉ is chance.
    env = DummyVecEnv([lambda: IdentityEnv(dim=4)])
    settings = {"n_steps": 512, "gamma": 0.4, "seed": 0, "device": "cpu", "fast": fast}
    model = AveragingPPO("MlpPolicy", env, **settings).learn(512)
    assert model.predict_correction(np.arange(4)).std() > 0.1
    assert model.correction_strength_used == 0.0
    np.testing.assert_array_equal(model.correction_weights, 1.0)
    model.learn(512 * 3, reset_num_timesteps=False)
    np.testing.assert_allclose(model.correction_weights, 1.0, atol=0.1)


@pytest.mark.parametrize("fast", [True, False])
def test_an_actor_without_a_gradient_is_corrected_in_full(fast: bool) -> None:
    class NoGradient(AveragingPPO):
        def _log_prob(self, rows: np.ndarray) -> th.Tensor:
            raise NotImplementedError("no graph")

    model = NoGradient(
        "MlpPolicy", vec_env("ppo", lambda: ClockEnv(17)), n_steps=24, batch_size=24, correction="power", gamma=0.9, fast=fast
    )
    with pytest.warns(UserWarning, match=r"NoGradient's actor cannot be taken \(no graph\)") as told:
        learned(model, 3)
    assert len([w for w in told if "cannot be taken" in str(w.message)]) == 1, "said once"
    assert model.correction_strength_used == 1.0
    assert model.correction_weights.std() > 0.1


# What is logged

WEIGHT_KEYS = {"weight_min", "weight_max", "weight_std", "effective_sample_size", "mean_episode_step", "strength"}


def logged(model: Any) -> dict[str, Any]:
    """What of the correction was recorded in the last update."""
    values = model.logger.name_to_value
    return {name.split("/")[1]: value for name, value in values.items() if name.startswith("correction/")}


@pytest.mark.parametrize("correction", ["averaging", "power"])
@pytest.mark.parametrize("name", FAMILY)
def test_logged(name: str, correction: str) -> None:
    model = make_with(FAMILY[name].ours, name, vec_env(name, lambda: ClockEnv(17)), **FULL, correction=correction)
    values, weights = logged(learned(model, 1)), model.correction_weights
    assert values.keys() >= (WEIGHT_KEYS if correction == "power" else WEIGHT_KEYS | {"loss", "explained_variance"})
    assert all(np.isfinite(value) for value in values.values())
    assert values["weight_min"] == pytest.approx(weights.min())
    assert values["weight_max"] == pytest.approx(weights.max())
    assert values["weight_std"] == pytest.approx(weights.std())
    assert values["mean_episode_step"] == pytest.approx((np.arange(24) % 17).mean())
    assert values["effective_sample_size"] == pytest.approx(weights.sum() ** 2 / (weights.size * (weights**2).sum()), rel=1e-4)
    assert logged(learned(make(name, correction=None), 1)) == {}


# predict_correction


@pytest.mark.parametrize("kind", SPACES)
def test_predict_correction_of_every_space(kind: str) -> None:
    env = DummyVecEnv([lambda: space_env(kind)] * 2)
    model = AveragingPPO(policy_for(kind), env, n_steps=16, batch_size=32, n_epochs=1, seed=0, device="cpu", **FULL)
    observation = env.reset()
    np.testing.assert_array_equal(model.predict_correction(observation), np.ones(2))
    model.learn(64)
    for batch in (observation, model.get_env().reset()):  # images: channels last as the user has them, and first
        weights = model.predict_correction(batch)
        assert weights.shape == (2,)
        assert np.isfinite(weights).all()
        assert (weights >= 0.0).all()
    assert model.predict_correction(space_env(kind).observation_space.sample()).shape == (1,)


@pytest.mark.parametrize("name", FAMILY)
def test_predict_correction_without_one(name: str) -> None:
    observations = np.zeros((3, 3), dtype=np.float32)
    for options in ({"correction": None}, {"gamma": 1.0}, {}):
        np.testing.assert_array_equal(make(name, **options).predict_correction(observations), np.ones(3))
    with pytest.raises(ValueError, match="needs correction='averaging'"):
        make(name, correction="power").predict_correction(observations)


@pytest.mark.parametrize("network", ["shared", "separate"])
@pytest.mark.parametrize("env", [ClockEnv(20, tells=False), SpaceEnv(SPACES["box"], length=20)], ids=["constant", "noise"])
def test_weights_are_constant_where_the_state_tells_nothing(env: Any, network: Any) -> None:
    quick: dict[str, Any] = {"n_steps": 500, "batch_size": 250, "n_epochs": 1, "seed": 0, "device": "cpu"}
    model = AveragingPPO("MlpPolicy", env, gamma=0.95, correction_network=network, correction_strength=1.0, **quick).learn(
        3000
    )
    assert np.abs(model.correction_weights - 1.0).max() < 0.05


def test_gradients_of_an_image_policy_leave_out_its_cnn() -> None:
    env = DummyVecEnv([lambda: FakeImageEnv(screen_height=36, screen_width=36, discrete=True)])
    model = AveragingPPO("CnnPolicy", env, n_steps=32, batch_size=16, seed=0, device="cpu")
    _, callback = model._setup_learn(32)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, 32)
    rng = np.random.default_rng(0)
    weights, advantages = rng.random(32), rng.normal(size=32)
    u, c = model._actor_gradients(weights, advantages, [np.arange(32)])
    net = model.policy.action_net
    assert u.shape == c.shape == (1, sum(p.numel() for p in net.parameters()))
    buffer = model.rollout_buffer
    observations = th.as_tensor(buffer.observations.reshape(32, *buffer.obs_shape))
    actions = th.as_tensor(buffer.actions.reshape(-1))
    log_prob = model.policy.get_distribution(observations).log_prob(actions)
    gradients = th.autograd.grad((th.as_tensor(weights * advantages) * log_prob).mean(), list(net.parameters()))
    np.testing.assert_allclose(c[0], th.cat([g.reshape(-1) for g in gradients]).numpy(), atol=1e-6)


def test_an_error_in_the_midst_of_the_gradients_is_not_taken_for_an_actor_without_one() -> None:
    class FailsOnBlocks(AveragingPPO):
        def _log_prob(self, rows: np.ndarray) -> th.Tensor:
            if len(rows) > 1:
                raise RuntimeError("out of memory")
            return super()._log_prob(rows)

    model = FailsOnBlocks(
        "MlpPolicy", vec_env("ppo", lambda: ClockEnv(17)), n_steps=24, batch_size=24, correction="power", gamma=0.9
    )
    with pytest.raises(RuntimeError, match="out of memory"):
        learned(model, 1)
