"""The engine's networks and heads, against torch's autograd and SB3's distributions."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common import distributions
from torch import nn

from sb3_avgcorr.fast.heads import Bernoulli, Categorical, Gaussian, Head, MultiCategorical
from sb3_avgcorr.fast.mlp import Gradients, Mlp, layers_of

ACTIVATIONS: list[nn.Module] = [
    nn.Tanh(),
    nn.ReLU(),
    nn.LeakyReLU(0.2),
    nn.ELU(0.7),
    nn.Sigmoid(),
    nn.SiLU(),
    nn.GELU(),
    nn.Softplus(),
]


def network(sizes: list[int], activation: nn.Module, bias: bool = True) -> nn.Sequential:
    modules: list[nn.Module] = []
    for before, after in pairwise(sizes):
        modules += [nn.Linear(before, after, bias=bias), activation]
    return nn.Sequential(*modules[:-1])


def bound(torch_network: nn.Module) -> tuple[Mlp, dict[nn.Parameter, np.ndarray], Gradients]:
    """The same network on numpy arrays, and where its gradients go."""
    layers = layers_of([torch_network])
    assert layers is not None
    mlp = Mlp(layers)
    mlp.bind({p: p.detach().numpy() for p in torch_network.parameters()})
    arrays = {p: np.full(p.shape, np.nan, np.float32) for p in torch_network.parameters()}
    return mlp, arrays, mlp.gradients(arrays)


@settings(max_examples=60, deadline=None)
@given(
    activation=st.sampled_from(ACTIVATIONS),
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    n_rows=st.integers(1, 12),
    bias=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_outputs_and_gradients_are_autograds(
    activation: nn.Module, sizes: list[int], n_rows: int, bias: bool, seed: int
) -> None:
    th.manual_seed(seed)
    torch_network = network(sizes, activation, bias)
    mlp, arrays, gradients = bound(torch_network)
    x, delta, weights = th.randn(n_rows, sizes[0]), th.randn(n_rows, sizes[-1]), th.rand(n_rows)
    outputs = torch_network(x)
    np.testing.assert_allclose(mlp.forward(x.numpy()), outputs.detach().numpy(), rtol=1e-5, atol=1e-6)

    weighted_arrays = {p: np.full(p.shape, np.nan, np.float32) for p in arrays}
    mlp.backward(delta.numpy().copy(), gradients, weights.numpy(), mlp.gradients(weighted_arrays))
    parameters = list(arrays)
    expected = th.autograd.grad((outputs * delta).sum(), parameters, retain_graph=True)
    weighted = th.autograd.grad((weights[:, None] * outputs * delta).sum(), parameters)
    for p, gradient, of_weighted in zip(parameters, expected, weighted, strict=True):
        np.testing.assert_allclose(arrays[p], gradient.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(weighted_arrays[p], of_weighted.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: type(a).__name__)
def test_extreme_inputs(activation: nn.Module) -> None:
    """Very large numbers do not overflow, and NaN stays NaN, as in torch."""
    linear = nn.Linear(1, 1)
    torch_network = nn.Sequential(linear, activation)
    with th.no_grad():
        linear.weight.fill_(1.0)
        linear.bias.fill_(0.0)
    mlp, arrays, gradients = bound(torch_network)
    for number in (-1e4, -50.0, -0.0, 0.0, 50.0, 1e4, float("nan")):
        x = th.tensor([[number]])
        outputs = torch_network(x)
        np.testing.assert_allclose(mlp.forward(x.numpy()), outputs.detach().numpy(), rtol=1e-5, atol=1e-6)
        mlp.backward(np.ones((1, 1), np.float32), gradients)
        bias = linear.bias
        expected = th.autograd.grad(outputs.sum(), bias)[0]
        if np.isfinite(number):
            np.testing.assert_allclose(arrays[bias], expected.numpy(), rtol=1e-5, atol=1e-6)


def test_what_is_not_trained_has_no_gradient() -> None:
    torch_network = network([3, 4, 2], nn.Tanh())
    mlp, arrays, _ = bound(torch_network)
    frozen = next(torch_network.parameters())
    mlp.forward(np.ones((5, 3), np.float32))
    mlp.backward(np.ones((5, 2), np.float32), mlp.gradients({p: a for p, a in arrays.items() if p is not frozen}))
    assert np.isnan(arrays[frozen]).all()
    assert all(np.isfinite(a).all() for p, a in arrays.items() if p is not frozen)


class OwnTanh(nn.Tanh):
    """Somebody's own activation."""


@pytest.mark.parametrize(
    "modules",
    [
        [nn.Linear(2, 2), OwnTanh()],
        [nn.Linear(2, 2), nn.GELU(approximate="tanh")],
        [nn.Linear(2, 2), nn.Softplus(beta=2.0)],
        [nn.Linear(2, 2), nn.LayerNorm(2)],
        [nn.Linear(2, 2), nn.Dropout(0.5)],
        [nn.Linear(2, 2), nn.Tanh(), nn.Tanh()],
        [nn.Tanh(), nn.Linear(2, 2)],
        [],
    ],
    ids=lambda options: re.sub(r" at 0x\w+", "", str(options)),  # the same in every process
)
def test_other_layers_are_not_served(modules: list[nn.Module]) -> None:
    assert layers_of([nn.Sequential(*modules)]) is None


def heads(n_rows: int) -> list[tuple[Head, distributions.Distribution, int, np.ndarray, nn.Parameter | None]]:
    """Each head, SB3's distribution, number of outputs, actions, and the head's own parameter."""
    log_std = nn.Parameter(0.5 * th.randn(3))
    gaussian = Gaussian(log_std)
    gaussian.bind({log_std: log_std.detach().numpy()})
    return [
        (gaussian, distributions.DiagGaussianDistribution(3), 3, th.randn(n_rows, 3).numpy(), log_std),
        (Categorical(), distributions.CategoricalDistribution(4), 4, th.randint(4, (n_rows, 1)).float().numpy(), None),
        (
            MultiCategorical([2, 3]),
            distributions.MultiCategoricalDistribution([2, 3]),
            5,
            th.randint(2, (n_rows, 2)).float().numpy(),
            None,
        ),
        (Bernoulli(), distributions.BernoulliDistribution(3), 3, th.randint(2, (n_rows, 3)).float().numpy(), None),
    ]


@settings(max_examples=25, deadline=None)
@given(n_rows=st.integers(1, 9), scale=st.sampled_from([0.1, 1.0, 20.0]), seed=st.integers(0, 2**16))
def test_log_probability_entropy_and_gradients_are_sb3s(n_rows: int, scale: float, seed: int) -> None:
    th.manual_seed(seed)
    for head, distribution, size, actions, log_std in heads(n_rows):
        outputs = (scale * th.randn(n_rows, size)).requires_grad_()
        made = distribution.proba_distribution(*((outputs,) if log_std is None else (outputs, log_std)))
        chosen = th.as_tensor(actions)
        log_prob = made.log_prob(chosen.flatten() if isinstance(head, Categorical) else chosen)
        entropy = made.entropy()
        assert entropy is not None
        np.testing.assert_allclose(head.evaluate(outputs.detach().numpy(), actions), log_prob.detach(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.broadcast_to(head.entropy(), n_rows), entropy.detach(), rtol=1e-5, atol=1e-5)

        g = th.randn(n_rows)
        for d_entropy in (0.0, -0.3):
            head.evaluate(outputs.detach().numpy(), actions)
            head.entropy()
            parameters: list[th.Tensor] = [outputs] if log_std is None else [outputs, log_std]
            loss = (g * log_prob).sum() + d_entropy * entropy.sum()
            expected = th.autograd.grad(loss, parameters, retain_graph=True)
            gradients = {} if log_std is None else {log_std: np.empty(3, np.float32)}
            delta = head.backward(g.numpy(), d_entropy, gradients)
            np.testing.assert_allclose(delta, expected[0].numpy(), rtol=2e-5, atol=1e-5)
            if log_std is not None:
                np.testing.assert_allclose(gradients[log_std], expected[1].numpy(), rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("n_rows", [1, 3, 40])
def test_samples_are_sb3s(n_rows: int) -> None:
    """From the same stream: the same actions, and the stream stands at the same place afterwards."""
    th.manual_seed(3)
    for head, distribution, size, _, log_std in heads(n_rows):
        outputs = th.randn(n_rows, size)
        made = distribution.proba_distribution(*((outputs,) if log_std is None else (outputs, log_std)))
        for draw in range(20):
            th.manual_seed(draw)
            expected, after = made.sample().detach().numpy(), th.rand(1)
            th.manual_seed(draw)
            actions = head.sample(outputs.numpy())
            assert actions.dtype == expected.dtype
            np.testing.assert_allclose(actions, expected, rtol=1e-6, atol=1e-6)
            assert th.equal(th.rand(1), after)


def test_impossible_actions_have_no_part_in_the_entropy() -> None:
    """A logit of minus infinity, as of a policy that masks actions."""
    head = Categorical()
    head.evaluate(np.array([[0.0, 0.0, -np.inf]], np.float32), np.zeros((1, 1), np.float32))
    np.testing.assert_allclose(head.entropy(), np.log(2.0), rtol=1e-6)
    assert np.isfinite(head.backward(np.ones(1, np.float32), 1.0, {})).all()
