"""The engine's update is that of SB3's PPO, to rounding: every space, option and activation that it takes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch as th
from engine_models import ACTIONS, assert_same, engine_of, with_rollout
from stable_baselines3 import PPO
from stable_baselines3.common.utils import set_random_seed
from torch import nn

from sb3_avgcorr.common.policies import AsymmetricActorCriticPolicy


def assert_update_is_sb3s(**kwargs: Any) -> tuple[PPO, PPO]:
    expected, model = with_rollout(**kwargs), with_rollout(**kwargs)
    before = [p.detach().clone() for p in expected.policy.parameters()]
    engine = engine_of(model)
    for _ in range(2):  # the second begins with moments
        set_random_seed(7)
        expected.train()
        drawn = np.random.get_state()[1]  # noqa: NPY002
        set_random_seed(7)
        assert engine.trains()
        engine.train()
        np.testing.assert_array_equal(np.random.get_state()[1], drawn)  # noqa: NPY002
    assert any(not th.equal(p, q) for p, q in zip(before, expected.policy.parameters(), strict=True))
    assert_same(expected, model)
    return expected, model


@pytest.mark.parametrize("kind", ["box", "matrix", "discrete", "multi_discrete", "multi_binary", "dict"])
@pytest.mark.parametrize("action", ["box", "discrete"])
def test_observations(kind: str, action: str) -> None:
    assert_update_is_sb3s(kind=kind, action=action)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("ent_coef", [0.0, 0.1])
def test_actions(action: str, ent_coef: float) -> None:
    assert_update_is_sb3s(action=action, ent_coef=ent_coef)


@pytest.mark.parametrize(
    "options",
    [
        {"clip_range": 0.01, "n_epochs": 6},
        {"clip_range": lambda progress: 0.3 * progress, "learning_rate": lambda progress: 1e-2 * progress},
        {"clip_range_vf": 0.05},
        {"clip_range_vf": lambda progress: 0.5 * progress},
        {"normalize_advantage": False},
        {"vf_coef": 0.0},
        {"vf_coef": 0.0, "clip_range_vf": 0.05, "batch_size": 36},
        {"vf_coef": 3.0, "ent_coef": 0.5},
        {"max_grad_norm": 1e-3},
        {"max_grad_norm": float("inf")},
        {"batch_size": 36, "normalize_advantage": True},
        {"batch_size": 95},  # the last minibatch is a single sample
        {"batch_size": 96},
        {"batch_size": 1000},
        {"n_envs": 1},
        {"n_envs": 5, "n_steps": 16},
        {"learning_rate": 0.0},
    ],
    ids=lambda options: re.sub(r" at 0x\w+", "", str(options)),  # the same in every process
)
@pytest.mark.parametrize("action", ["box", "discrete"])
def test_options(options: dict[str, Any], action: str) -> None:
    if options.get("learning_rate") == 0.0:
        expected, model = with_rollout(action=action, **options), with_rollout(action=action, **options)
        expected.train()
        engine_of(model).train()
        for p, q in zip(expected.policy.parameters(), model.policy.parameters(), strict=True):
            assert th.equal(p, q)
    else:
        assert_update_is_sb3s(action=action, **options)


def test_a_critic_without_a_loss_rests() -> None:
    """With ``vf_coef=0`` it is evaluated once, whatever the number of passes; the value loss is logged all the same."""
    counts = []
    for n_epochs in (1, 5):
        model = with_rollout(vf_coef=0.0, n_epochs=n_epochs)
        engine = engine_of(model)
        critic = engine.network.critic
        before = [p.detach().clone() for p in critic.parameters]
        calls: list[int] = []
        forward = critic.forward
        critic.forward = lambda x, forward=forward, calls=calls: (calls.append(len(x)), forward(x))[1]  # type: ignore[method-assign]
        engine.train()
        counts.append(sum(calls))
        assert all(th.equal(p, q) for p, q in zip(before, critic.parameters, strict=True))
        assert model.logger.name_to_value["train/value_loss"] > 0.0
    assert counts == [96, 96]


@pytest.mark.parametrize("optimizer", [th.optim.Adam, th.optim.RMSprop])
def test_a_critic_whose_loss_is_taken_away(optimizer: type[th.optim.Optimizer]) -> None:
    """Adam moves on for a while when gradients become 0, and so values change from pass to pass; RMSprop stands still."""
    policy_kwargs = {"optimizer_class": optimizer, "optimizer_kwargs": {"eps": 1e-5}}
    expected, model = (with_rollout(policy_kwargs=policy_kwargs) for _ in range(2))
    engine = engine_of(model)
    for vf_coef in (0.5, 0.0):
        for each, train in ((expected, expected.train), (model, engine.train)):
            each.vf_coef = vf_coef
            set_random_seed(7)
            assert engine.trains()
            before = [p.detach().clone() for p in each.policy.value_net.parameters()]
            train()
            moved = any(not th.equal(p, q) for p, q in zip(before, each.policy.value_net.parameters(), strict=True))
            assert moved == (vf_coef > 0.0 or optimizer is th.optim.Adam)
    assert_same(expected, model)


def test_a_critic_without_a_loss_whose_weights_decay() -> None:
    """It moves without a gradient and without moments, in the first update already."""
    policy_kwargs = {"optimizer_kwargs": {"weight_decay": 0.1}}
    expected, model = (with_rollout(policy_kwargs=policy_kwargs, vf_coef=0.0, learning_rate=1e-2) for _ in range(2))
    engine = engine_of(model)
    for train in (expected.train, engine.train):
        set_random_seed(7)
        train()
    assert_same(expected, model)


@pytest.mark.parametrize("target_kl", [1e-3, 1.0])
def test_target_kl(target_kl: float, capsys: pytest.CaptureFixture[str]) -> None:
    """The same step is the last one, with the same message."""
    options = {"target_kl": target_kl, "learning_rate": 1e-2, "n_epochs": 8, "verbose": 1, "clip_range_vf": 0.2}
    expected, _ = assert_update_is_sb3s(action="discrete", **options)
    assert (expected._n_updates < 16) == (target_kl < 1.0)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Early")]
    assert (len(lines) > 0) == (target_kl < 1.0)
    assert lines[::2] == lines[1::2]


def test_target_kl_before_the_first_step() -> None:
    model = with_rollout(target_kl=1e-9)
    model.rollout_buffer.log_probs += 0.1
    before = [p.detach().clone() for p in model.policy.parameters()]
    engine_of(model).train()
    assert all(th.equal(p, q) for p, q in zip(before, model.policy.parameters(), strict=True))
    assert model._n_updates == 1


@pytest.mark.parametrize(
    "policy_kwargs",
    [
        {"activation_fn": nn.ReLU},
        {"activation_fn": nn.ELU, "net_arch": [8]},
        {"activation_fn": nn.LeakyReLU},
        {"activation_fn": nn.SiLU},
        {"activation_fn": nn.GELU},
        {"activation_fn": nn.Sigmoid, "ortho_init": False},
        {"activation_fn": nn.Softplus},
        {"net_arch": []},
        {"net_arch": {"pi": [4], "vf": [16, 8, 4]}},
        {"share_features_extractor": False},
        {"log_std_init": -1.0},
        {"optimizer_kwargs": {"eps": 1e-8, "betas": (0.5, 0.9), "weight_decay": 0.1}},
        {"optimizer_kwargs": {"fused": True}},
    ],
    ids=lambda options: re.sub(r" at 0x\w+", "", str(options)),  # the same in every process
)
def test_policies(policy_kwargs: dict[str, Any]) -> None:
    assert_update_is_sb3s(policy_kwargs=policy_kwargs, learning_rate=3e-3)


@pytest.mark.parametrize("keys", [["vector"], ["kind"], ["vector", "kind"]])
def test_asymmetric_policy(keys: list[str]) -> None:
    assert_update_is_sb3s(kind="dict", policy=AsymmetricActorCriticPolicy, policy_kwargs={"actor_keys": keys})


@pytest.mark.parametrize("kind", ["box", "discrete", "dict"])
def test_features_of_long_rollouts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not kept, but computed minibatch by minibatch."""
    monkeypatch.setattr("sb3_avgcorr.fast.network.LARGEST_MATRIX", 10)
    assert_update_is_sb3s(kind=kind, action="discrete")


def test_two_groups_with_learning_rates_of_their_own_and_frozen_parameters() -> None:
    """As with a critic learning rate, and a standard deviation that is not learned."""

    def changed() -> PPO:
        model = with_rollout()
        policy = model.policy
        critic = [*policy.mlp_extractor.value_net.parameters(), *policy.value_net.parameters()]
        rest = [p for p in policy.parameters() if all(p is not q for q in critic)]
        policy.optimizer = th.optim.Adam([{"params": rest}, {"params": critic, "lr": 1e-2, "weight_decay": 0.01}], lr=1e-3)
        model._update_learning_rate = lambda optimizers: None  # type: ignore[method-assign]
        policy.log_std.requires_grad_(False)
        policy.mlp_extractor.policy_net[0].weight.requires_grad_(False)
        return model

    expected, model = changed(), changed()
    set_random_seed(7)
    expected.train()
    set_random_seed(7)
    engine_of(model).train()
    assert_same(expected, model)
    assert th.equal(model.policy.log_std, th.zeros(3))


def test_a_buffer_that_was_read_before() -> None:
    """SB3's ``get()`` leaves the buffer rearranged; reading it again gives the same update."""
    expected, model = with_rollout(n_envs=3), with_rollout(n_envs=3)
    for each in (expected, model):
        next(iter(each.rollout_buffer.get(8)))
    set_random_seed(7)
    expected.train()
    set_random_seed(7)
    engine_of(model).train()
    assert_same(expected, model)


def test_the_buffer_stays_as_it_was_collected() -> None:
    model = with_rollout()
    before = {name: array.copy() for name, array in vars(model.rollout_buffer).items() if isinstance(array, np.ndarray)}
    engine_of(model).train()
    for name, array in before.items():
        np.testing.assert_array_equal(vars(model.rollout_buffer)[name], array)


def test_an_incomplete_rollout_is_refused() -> None:
    model = with_rollout()
    model.rollout_buffer.full = False
    engine = engine_of(model)
    with pytest.raises(AssertionError, match="not complete"):
        engine.train()
