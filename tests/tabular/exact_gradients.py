"""What the tests of finite MDPs share: gradients by other means, and the theorem as a check."""

from collections.abc import Callable

import numpy as np
import pytest
import torch as th
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax

from sb3_avgcorr.envs.dot_reacher import DotReacherEnv
from sb3_avgcorr.envs.two_state import TwoStateEnv
from sb3_avgcorr.tabular import (
    FiniteMDP,
    differentiable_J,
    random_mdp,
)

Array = NDArray[np.float64]


def restart_chain(mdp: FiniteMDP, pi: Array) -> Array:
    """The whole chain, dense: after termination on from ρ."""
    return mdp.P_pi(pi).toarray() + np.outer(mdp.termination_pi(pi), mdp.rho)


def autograd_gradient(mdp: FiniteMDP, logits: Array) -> Array:
    tensor = th.tensor(logits, requires_grad=True)
    (gradient,) = th.autograd.grad(differentiable_J(mdp, th.softmax(tensor, -1)), tensor)
    return gradient.numpy()


def finite_difference(function: Callable[[Array], float], x: Array, direction: Array, h: float = 2e-3) -> float:
    """Six-point central difference: with plain ones, rounding and curvature together leave more than 1e-10."""
    stencil = {1: 3 / 4, 2: -3 / 20, 3: 1 / 60}
    return sum(w * (function(x + k * h * direction) - function(x - k * h * direction)) for k, w in stencil.items()) / h


def check_theorem(mdp: FiniteMDP, logits: Array, rng: np.random.Generator) -> None:
    pi = softmax(logits, axis=1)
    d_pi, c = mdp.d_pi(pi), mdp.c(pi)
    # Where episodes end, c·d_π sums to 1 and the exact weights to 1 - E[γ^length]; without, that factor is 1.
    mass = mdp.occupancy(pi).sum()
    if not mdp.termination.any():
        assert mass == pytest.approx(1, abs=1e-12)
    corrected = mass * mdp.gradient(pi, d_pi * c)
    np.testing.assert_allclose(corrected, autograd_gradient(mdp, logits), atol=1e-10, rtol=0)
    np.testing.assert_allclose(corrected, mdp.gradient(pi), atol=1e-10, rtol=0)
    for _ in range(3):
        direction = rng.normal(size=logits.shape)
        direction /= np.linalg.norm(direction)
        numerical = finite_difference(lambda x: mdp.J(softmax(x, axis=1)), logits, direction)
        assert numerical == pytest.approx((corrected * direction).sum(), abs=1e-10)


def two_state(gamma: float) -> FiniteMDP:
    return TwoStateEnv().finite_mdp(gamma)


def corner(gamma: float) -> FiniteMDP:
    return DotReacherEnv("corner").finite_mdp(gamma)


@st.composite
def mdps_and_logits(draw: st.DrawFn, endings: tuple[float, ...] = (0.0, 0.1)) -> tuple[FiniteMDP, Array]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    mdp = random_mdp(
        draw(st.integers(1, 8)),
        draw(st.integers(2, 4)),
        draw(st.floats(0.05, 0.99)),
        rng,
        termination=draw(st.sampled_from(endings)),
    )
    return mdp, rng.normal(size=mdp.r.shape)
