"""Gradients on blocks of a rollout, and the correction's regression, against torch."""

from __future__ import annotations

import copy
from typing import Any, Literal

import numpy as np
import pytest
import torch as th
from engine_models import ACTIONS, engine_of, with_rollout
from torch import nn
from torch.nn import functional as F

from sb3_avgcorr.common.policies import AsymmetricActorCriticPolicy
from sb3_avgcorr.fast import Regressor, evaluate


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("frozen", [False, True])
def test_block_gradients_are_autograds(action: str, frozen: bool) -> None:
    model = with_rollout(action=action, n_envs=3)
    policy, buffer = model.policy, model.rollout_buffer
    if frozen:
        policy.mlp_extractor.policy_net[0].bias.requires_grad_(False)
    engine = engine_of(model)
    n = buffer.rewards.size
    rng = np.random.default_rng(0)
    weights, advantages = rng.random(n), rng.normal(size=n)
    blocks = [slice(0, 40), np.array([3, 7, 60, 90]), slice(0, 0), np.arange(n)]
    u, c = engine.actor_block_gradients(weights, advantages, blocks)

    head = [policy.log_std] if hasattr(policy, "log_std") else []
    actor = [*head, *policy.mlp_extractor.policy_net.parameters(), *policy.action_net.parameters()]
    actor = [p for p in actor if p.requires_grad]
    assert u.shape == c.shape == (4, sum(p.numel() for p in actor))
    observations = th.as_tensor(buffer.observations.reshape(n, -1))
    actions = th.as_tensor(buffer.actions.reshape(n, -1)).float()
    _, log_prob, _ = policy.evaluate_actions(observations, actions.flatten() if action == "discrete" else actions)
    for rows, of_u, of_c in zip(blocks, u, c, strict=True):
        if len(advantages[rows]) == 0:
            assert not of_u.any()
            assert not of_c.any()
            continue
        for gradient, factor in ((of_u, advantages), (of_c, weights * advantages)):
            mean = (th.as_tensor(factor[rows], dtype=th.float32) * log_prob[rows]).mean()
            expected = th.autograd.grad(mean, actor, retain_graph=True)
            np.testing.assert_allclose(gradient, th.cat([g.flatten() for g in expected]).numpy(), rtol=1e-4, atol=1e-6)


def test_block_gradients_of_an_actor_that_sees_less() -> None:
    model = with_rollout(kind="dict", policy=AsymmetricActorCriticPolicy, policy_kwargs={"actor_keys": ["kind"]})
    n = model.rollout_buffer.rewards.size
    u, c = engine_of(model).actor_block_gradients(np.full(n, 2.0), np.ones(n), [slice(0, 9), slice(9, n)])
    np.testing.assert_allclose(c, 2.0 * u, rtol=1e-4, atol=1e-6)
    assert u.any()


def fit(net: nn.Sequential, loss: Literal["bce", "mse"], scale: float, by_engine: bool, turns: bool = False) -> list[float]:
    """Steps of a regression of the first feature's sigmoid; with ``turns``, in the other way every second time."""
    optimizer = th.optim.Adam([nn.Parameter(th.zeros(2)), *net.parameters()], lr=1e-2)
    regressor = Regressor.of([net], optimizer, loss, scale)
    assert regressor is not None
    losses = []
    for index in range(12):
        generator = th.Generator().manual_seed(index)
        x = th.randn(33, 4, generator=generator)
        y = th.sigmoid(x[:, 0])
        if by_engine and not (turns and index % 2):
            assert regressor.adopt()
            losses.append(regressor.step(x.numpy(), y.numpy()))
        else:
            z = net(x).squeeze(-1)
            value = F.binary_cross_entropy_with_logits(z, y) if loss == "bce" else F.mse_loss(F.softplus(z), scale * y)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses.append(value.item())
    return losses


@pytest.mark.parametrize(("loss", "scale"), [("bce", 1.0), ("mse", 29.0)])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("hidden", [0, 8])
@pytest.mark.parametrize("turns", [False, True])
def test_the_fit_is_torchs(loss: Any, scale: float, activation: type[nn.Module], hidden: int, turns: bool) -> None:
    th.manual_seed(0)
    layers = [nn.Linear(4, hidden), activation()] if hidden else []
    net = nn.Sequential(nn.Sequential(*layers), nn.Linear(hidden or 4, 1))
    twin = copy.deepcopy(net)
    np.testing.assert_allclose(
        fit(net, loss, scale, by_engine=True, turns=turns), fit(twin, loss, scale, by_engine=False), rtol=1e-4, atol=1e-5
    )
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        th.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_a_regression_learns_and_its_outputs_are_the_modules() -> None:
    th.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    losses = fit(net, "bce", 1.0, by_engine=True)
    assert losses[-1] < losses[0]
    regressor = Regressor.of([net], th.optim.Adam(net.parameters()))
    assert regressor is not None
    x = th.randn(1100, 4)
    expected = net(x).detach().numpy()
    np.testing.assert_allclose(regressor.outputs(x.numpy()), expected[:, 0], rtol=1e-5, atol=1e-6)
    outputs = evaluate([net], x.numpy())
    assert outputs is not None
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def test_a_loaded_optimiser_goes_on() -> None:
    net = nn.Sequential(nn.Linear(4, 1))
    optimizer = th.optim.Adam(net.parameters(), lr=1e-2)
    regressor = Regressor.of([net], optimizer)
    assert regressor is not None
    x, y = np.ones((5, 4), np.float32), np.full(5, 0.9, np.float32)
    assert regressor.adopt()
    regressor.step(x, y)
    state = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    regressor.step(x, y)
    expected = net[0].weight.detach().clone()
    net.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    assert regressor.adopt()
    regressor.step(x, y)
    th.testing.assert_close(net[0].weight.detach(), expected)


def test_other_networks_and_optimisers_are_not_served() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    assert Regressor.of([net], th.optim.Adam(net.parameters())) is None
    assert evaluate([net], np.zeros((1, 4), np.float32)) is None
    net = nn.Sequential(nn.Linear(4, 1))
    assert Regressor.of([net], th.optim.SGD(net.parameters())) is None
    assert Regressor.of([net.double()], th.optim.Adam(net.parameters())) is None
