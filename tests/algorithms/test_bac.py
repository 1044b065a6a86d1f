"""BAC and AveragingBAC: the paper's batch actor-critic on top of SB3's A2C."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from conftest import ClockEnv, space_env
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from sb3_avgcorr.bac import BAC, AveragingBAC
from sb3_avgcorr.common.critic import critic_parameters

AS_A2C: dict[str, Any] = {
    "learning_rate": 3e-4,
    "n_steps": 128,
    "gamma": 0.995,
    "gae_lambda": 0.0,
    "vf_coef": 9.6,
    "max_grad_norm": float("inf"),
    "use_rms_prop": False,
    "policy_kwargs": {
        "net_arch": {"pi": [64, 64], "vf": [64, 64]},
        "activation_fn": nn.ReLU,
        "ortho_init": False,
        "optimizer_kwargs": {"eps": 1e-8},
    },
}


def parameters(model: A2C) -> list[th.Tensor]:
    return list(model.policy.state_dict().values())


def same(a: A2C, b: A2C) -> bool:
    return all(th.equal(x, y) for x, y in zip(parameters(a), parameters(b), strict=True))


@pytest.mark.parametrize("env", ["CartPole-v1", "MountainCarContinuous-v0"])
def test_is_a2c_with_other_arguments(env: str) -> None:
    ours = BAC("MlpPolicy", env, critic_learning_rate=None, fixed_std=False, seed=1, device="cpu").learn(512)
    theirs = A2C("MlpPolicy", env, seed=1, device="cpu", **AS_A2C).learn(512)
    assert same(ours, theirs)
    assert not same(ours, BAC("MlpPolicy", env, fixed_std=False, seed=1, device="cpu").learn(512))


def test_positional_arguments_and_own_policy_kwargs() -> None:
    kwargs = {"net_arch": [7], "optimizer_class": th.optim.SGD}
    model = BAC("MlpPolicy", "CartPole-v1", 1e-3, 16, 0.9, 0.5, policy_kwargs=kwargs, device="cpu")
    assert (model.learning_rate, model.n_steps, model.gamma, model.gae_lambda) == (1e-3, 16, 0.9, 0.5)
    assert isinstance(model.policy.optimizer, th.optim.SGD)
    assert model.policy.mlp_extractor.latent_dim_vf == 7
    assert kwargs == {"net_arch": [7], "optimizer_class": th.optim.SGD}
    model.learn(32)


def test_one_step_td_advantages() -> None:
    model = BAC("MlpPolicy", ClockEnv(length=10), n_steps=25, device="cpu")
    model.train = lambda: None  # type: ignore[method-assign]
    model.learn(25)
    buffer = model.rollout_buffer
    done = np.arange(1, 26) % 10 == 0
    values, next_values = buffer.values[:, 0], np.append(buffer.values[1:, 0], 0.0)
    expected = buffer.rewards[:, 0] + 0.995 * next_values * ~done - values
    np.testing.assert_allclose(buffer.advantages[:-1, 0], expected[:-1], atol=1e-6)  # what follows the last row is not stored
    np.testing.assert_allclose(buffer.returns, buffer.advantages + buffer.values, atol=1e-6)


@pytest.mark.parametrize("cls", [BAC, AveragingBAC])
def test_own_learning_rates(cls: Any) -> None:
    # Adam's first step is the learning rate itself, for every parameter with a gradient
    model = cls("MlpPolicy", "CartPole-v1", learning_rate=1e-3, critic_learning_rate=lambda p: 0.02, seed=0, device="cpu")
    before = {name: p.clone() for name, p in model.policy.named_parameters()}
    of_critic = {id(p) for p in critic_parameters(model.policy)}
    assert len(of_critic) == 6
    model.learn(128)
    for name, p in model.policy.named_parameters():
        expected = 0.02 if id(p) in of_critic else 1e-3
        assert (p - before[name]).abs().max().item() == pytest.approx(expected, rel=0.02), name
    assert model.logger.name_to_value["train/critic_learning_rate"] == 0.02


def test_standard_deviation_stays() -> None:
    model = BAC("MlpPolicy", "MountainCarContinuous-v0", seed=0, device="cpu").learn(512)
    assert model.policy.log_std.exp().item() == 1.0
    learns = BAC("MlpPolicy", "MountainCarContinuous-v0", fixed_std=False, seed=0, device="cpu").learn(512)
    assert learns.policy.log_std.exp().item() != 1.0
    given = AveragingBAC("MlpPolicy", "MountainCarContinuous-v0", policy_kwargs={"log_std_init": -1.0}, device="cpu").learn(
        256
    )
    assert given.policy.log_std.item() == -1.0


# AveragingBAC


@pytest.mark.parametrize("env", ["CartPole-v1", "MountainCarContinuous-v0"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"critic_learning_rate": None, "n_steps": 64}, {"critic_learning_rate": lambda p: 0.01 * p, "vf_coef": 0.5}],
)
def test_is_bac_without_a_correction(env: str, settings: dict[str, Any]) -> None:
    ours = AveragingBAC("MlpPolicy", env, correction=None, seed=1, device="cpu", **settings).learn(640)
    assert same(ours, BAC("MlpPolicy", env, seed=1, device="cpu", **settings).learn(640))


def test_power_changes_the_actor_alone_at_first() -> None:
    # The first rollout is the same, and so is the critic's loss; later ones are not.
    power = AveragingBAC("MlpPolicy", "CartPole-v1", correction="power", fast=False, gamma=0.9, seed=1, device="cpu").learn(
        128
    )
    plain = BAC("MlpPolicy", "CartPole-v1", gamma=0.9, seed=1, device="cpu").learn(128)
    pairs = [zip(m(power.policy), m(plain.policy), strict=True) for m in (critic_parameters, lambda p: p.parameters())]
    assert all(th.equal(a, b) for a, b in pairs[0])
    assert not all(th.equal(a, b) for a, b in pairs[1])
    np.testing.assert_allclose(power.correction_weights, 0.9**power._clock.steps, rtol=1e-6)


def test_critic_and_correction_make_one_step_together() -> None:
    """The paper's shared form, written out: value loss × vf_coef + loss of softplus(z) against 29·γ^t, one Adam step."""
    model = AveragingBAC("MlpPolicy", ClockEnv(length=50), seed=0, device="cpu", gamma=0.9)
    policy, net = model.policy, model.correction_net
    assert net is not None
    train, expected = model.train, []

    def written_out() -> None:
        buffer = model.rollout_buffer
        powers = 0.9 ** (np.arange(128) % 50)
        net.calibrate(float(powers.mean()))
        latent = policy.mlp_extractor.forward_critic(th.as_tensor(buffer.observations.reshape(-1, 1)))
        value_loss = (policy.value_net(latent).flatten() - th.as_tensor(buffer.returns.flatten())).square().mean()
        targets = th.as_tensor(29.0 * powers).float()
        correction_loss = (nn.functional.softplus(net(latent)) - targets).square().mean()
        trained = [*critic_parameters(policy), *net.head.parameters()]
        gradients = th.autograd.grad(9.6 * value_loss + correction_loss, trained)
        # Adam's first step
        for p, g in zip(trained, gradients, strict=True):
            expected.append((p, (p - 9e-3 * g / (g.abs() + 1e-8)).detach(), g.abs() > 1e-4))
        train()

    model.train = written_out  # type: ignore[method-assign]
    model.learn(128)
    assert sum(int(clear.sum()) for *_, clear in expected) > 1000
    for parameter, value, clear in expected:
        np.testing.assert_allclose(parameter.detach()[clear], value[clear], atol=1e-5)


def test_correction_coef_and_learning_rate_follow_the_critic() -> None:
    model = AveragingBAC("MlpPolicy", "CartPole-v1", vf_coef=4.0, critic_learning_rate=0.02, device="cpu")
    assert model._loss_coefficients(None) == (4.0, 1.0)  # type: ignore[arg-type]
    assert model._correction_lr_schedule(1.0) == 0.02
    model = AveragingBAC("MlpPolicy", "CartPole-v1", correction_coef=3.0, correction_learning_rate=0.5, device="cpu")
    assert model._loss_coefficients(None) == (1.0, 3.0)  # type: ignore[arg-type]
    assert model._correction_lr_schedule(1.0) == 0.5


def test_no_value_loss_no_step_of_the_value_head() -> None:
    model = AveragingBAC("MlpPolicy", ClockEnv(), vf_coef=0.0, n_steps=16, device="cpu")
    before = model.policy.value_net.weight.detach().clone()
    head = model.correction_net.head.weight.detach().clone()  # type: ignore[union-attr]
    model.learn(64)
    assert th.equal(before, model.policy.value_net.weight)
    assert not th.equal(head, model.correction_net.head.weight)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"correction_network": "separate"},
        {"correction_epochs": 0},
        {"policy": "CnnPolicy"},
        {"policy": "CnnPolicy", "policy_kwargs": {"share_features_extractor": False}},
        {"correction": "power"},
        {"gamma": 1.0},
    ],
    ids=str,
)
def test_the_whole_critic_learns(options: dict[str, Any]) -> None:
    # Whoever trains it, no parameter of the critic is left out, and vf_coef is what it was.
    policy = options.pop("policy", "MlpPolicy") if (options := dict(options)) else "MlpPolicy"
    env: gym.Env = space_env("image" if policy == "CnnPolicy" else "box")
    model = AveragingBAC(policy, env, n_steps=16, seed=0, device="cpu", **options)
    of_critic = critic_parameters(model.policy)
    before = [p.clone() for p in of_critic]
    model.learn(32)
    assert all(not th.equal(p, q) for p, q in zip(of_critic, before, strict=True))
    assert model.vf_coef == 9.6


def test_vf_coef_survives_a_failing_update() -> None:
    model = AveragingBAC("MlpPolicy", ClockEnv(reward=np.nan), device="cpu")
    with pytest.raises(ValueError, match="reward"):
        model.learn(128)
    assert model.vf_coef == 9.6


@pytest.mark.parametrize("cls", [BAC, AveragingBAC])
def test_save_load(cls: Any, tmp_path: Path) -> None:
    model = cls("MlpPolicy", "MountainCarContinuous-v0", critic_learning_rate=0.02, vf_coef=2.0, seed=0, device="cpu").learn(
        256
    )
    model.save(tmp_path / "model")
    loaded = cls.load(tmp_path / "model", env=gym.make("MountainCarContinuous-v0"), device="cpu")
    assert same(loaded, model)
    assert (loaded.critic_learning_rate, loaded.vf_coef, loaded.fixed_std) == (0.02, 2.0, True)
    assert not loaded.policy.log_std.requires_grad
    loaded.learn(128, reset_num_timesteps=False)
    assert loaded.policy.optimizer.param_groups[-1]["lr"] == 0.02
    assert loaded.policy.log_std.item() == 0.0
    if cls is AveragingBAC:
        changed = cls.load(tmp_path / "model", vf_coef=3.0, critic_learning_rate=0.1, device="cpu")
        assert changed._loss_coefficients(None) == (3.0, 1.0)
        assert changed._correction_lr_schedule(1.0) == 0.1


def test_many_environments() -> None:
    model = AveragingBAC("MlpPolicy", make_vec_env("CartPole-v1", n_envs=4), n_steps=32, seed=0, device="cpu").learn(256)
    assert model.correction_weights is not None
    assert model.correction_weights.shape == (32, 4)
    assert (model.correction_weights > 0.0).all()


@pytest.mark.slow
def test_learns_cartpole() -> None:
    for correction in ("averaging", None):
        model = AveragingBAC("MlpPolicy", "CartPole-v1", correction=correction, seed=0, device="cpu").learn(60_000)
        assert model.ep_info_buffer is not None
        assert np.mean([info["r"] for info in model.ep_info_buffer]) > 100.0
