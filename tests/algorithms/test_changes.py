"""What is changed after a model was made counts, as in SB3: options, policy, optimiser; copies, and callbacks that read."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch as th
from family import FULL, PAIRS, make
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed
from torch import nn

from sb3_avgcorr import BAC, AveragingA2C, AveragingBAC, AveragingPPO
from sb3_avgcorr.common.correction import ratio

LIGHT: dict[str, Any] = {"n_steps": 64, "batch_size": 32, "n_epochs": 1, "seed": 0, "device": "cpu"}


def ppo(env: str = "CartPole-v1", **options: Any) -> AveragingPPO:
    return AveragingPPO("MlpPolicy", env, **{**LIGHT, "correction_strength": 1.0, **options})


# Options


@pytest.mark.parametrize("correction", ["power", "averaging"])
def test_the_discount_factor_is_that_of_the_model(correction: str) -> None:
    first, later = (ppo(correction=correction, gamma=gamma, correction_shrinkage=False) for gamma in (0.9, 0.99))
    later.gamma = later.rollout_buffer.gamma = 0.9
    for model in (first, later):
        set_random_seed(0)
        model.learn(128)
    np.testing.assert_array_equal(later.correction_weights, first.correction_weights)
    if correction == "power":
        np.testing.assert_allclose(later.correction_weights, ratio(0.9**later._clock.steps), rtol=1e-5)


@pytest.mark.parametrize(
    "option, value",
    [
        ("correction_network", "shared"),
        ("correction_loss", "mse"),
        ("correction_averaging", False),
        ("critic_epochs", 2),
        ("critic_learning_rate", 0.5),
        ("correction_learning_rate", 0.5),
        ("fast", False),
    ],
)
def test_an_option_that_is_set_later_counts(option: str, value: Any) -> None:
    """The model is then the one that was made with it."""
    first, later = ppo(**{option: value}), ppo()
    setattr(later, option, value)
    later._setup_lr_schedule()
    for model in (first, later):
        set_random_seed(0)
        model.learn(128)
    assert (first._engine is None) == (later._engine is None)
    assert (first.correction_average is None) == (later.correction_average is None)
    for p, q in zip(first.policy.parameters(), later.policy.parameters(), strict=True):
        th.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


# Copies


@pytest.mark.parametrize("fast", [True, False])
def test_a_copy_goes_on_learning(fast: bool) -> None:
    model = ppo(fast=fast).learn(128)
    model.predict(np.zeros((1, 4), np.float32))  # SB3's policy keeps its last distribution, which has no graph then
    twin = copy.deepcopy(model)
    for each in (model, twin):
        set_random_seed(1)
        each.learn(128, reset_num_timesteps=False)
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_allclose(twin.predict_correction(observations), model.predict_correction(observations), rtol=1e-5)


# Callbacks


class ReadsRollouts(BaseCallback):
    """Goes through each rollout's minibatches, as one that trains a network of its own; leaves no trace in a stream."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        state = np.random.get_state()  # noqa: NPY002
        self.read = sum(len(batch.actions) for batch in self.model.rollout_buffer.get(16))  # type: ignore[attr-defined]
        np.random.set_state(state)  # noqa: NPY002


@pytest.mark.parametrize("name, task", [(name, task) for name, task in PAIRS if task in ("discrete", "dict", "masked")])
def test_a_callback_may_read_the_rollout(name: str, task: str) -> None:
    models = []
    for callback in (None, ReadsRollouts()):
        model = make(name, task=task, **FULL)
        set_random_seed(0)
        model.learn(2 * model.n_steps * model.n_envs, callback)
        models.append(model)
    for p, q in zip(*(model.policy.parameters() for model in models), strict=True):
        th.testing.assert_close(p, q, rtol=0.0, atol=0.0)
    np.testing.assert_array_equal(models[0].correction_weights, models[1].correction_weights)


class NewHead(BaseCallback):
    """Replaces the actor's last layer at the beginning of the second rollout by one that always takes action 1."""

    def __init__(self, head: type[nn.Linear]) -> None:
        super().__init__()
        self.head, self.starts, self.taken = head, 0, 0.0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.starts += 1
        if self.starts == 2:
            policy: Any = self.model.policy
            policy.action_net = self.head(64, 2)
            with th.no_grad():
                policy.action_net.weight.zero_()
                policy.action_net.bias.copy_(th.tensor([-30.0, 30.0]))
            policy.optimizer = th.optim.Adam(policy.parameters())

    def _on_rollout_end(self) -> None:
        self.taken = float(self.model.rollout_buffer.actions.mean())  # type: ignore[attr-defined]


class OwnLinear(nn.Linear):
    """A layer that the engine does not serve."""


@pytest.mark.parametrize("head", [nn.Linear, OwnLinear])
def test_a_callback_may_replace_a_layer_when_a_rollout_begins(head: type[nn.Linear]) -> None:
    callback = NewHead(head)
    ppo().learn(128, callback)
    assert callback.starts == 2
    assert callback.taken == 1.0


# Policy and optimiser


def test_parameters_may_be_frozen_and_thawed_between_short_rollouts() -> None:
    model = AveragingA2C("MlpPolicy", "Pendulum-v1", seed=0, device="cpu").learn(50)
    model.policy.log_std.requires_grad_(False)
    model.learn(100, reset_num_timesteps=False)
    model.policy.log_std.requires_grad_(True)
    model.learn(100, reset_num_timesteps=False)


def test_a_policy_that_is_replaced_has_its_critic_trained() -> None:
    model = AveragingBAC("MlpPolicy", "CartPole-v1", seed=0, device="cpu").learn(64)
    model.policy = copy.deepcopy(model.policy)
    before = [p.detach().clone() for p in model.policy.value_net.parameters()]
    model.learn(128, reset_num_timesteps=False)
    assert all(not th.equal(p, q) for p, q in zip(before, model.policy.value_net.parameters(), strict=True))


def test_a_critic_may_be_frozen_in_part() -> None:
    model = AveragingBAC("MlpPolicy", "CartPole-v1", seed=0, device="cpu").learn(64)
    frozen = model.policy.mlp_extractor.value_net[0].weight
    frozen.requires_grad_(False)
    before = frozen.clone()
    model.learn(128, reset_num_timesteps=False)
    assert th.equal(frozen, before)


@pytest.mark.parametrize("cls", [BAC, AveragingBAC])
def test_an_optimiser_that_is_replaced_gets_the_critics_learning_rate(cls: Any) -> None:
    model = cls("MlpPolicy", "CartPole-v1", learning_rate=0.01, critic_learning_rate=0.02, seed=0, device="cpu").learn(64)
    model.policy.optimizer = th.optim.Adam(model.policy.parameters())
    model.learn(128, reset_num_timesteps=False)
    assert [group["lr"] for group in model.policy.optimizer.param_groups] == [0.01, 0.02]
    critic = model.policy.optimizer.param_groups[1]["params"]
    assert {id(p) for p in critic} >= {id(p) for p in model.policy.value_net.parameters()}
