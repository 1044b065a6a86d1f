"""How far an estimated correction is from the exact one, and the estimate by counting."""

from math import ceil, log

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def total_variation(p: npt.ArrayLike, q: npt.ArrayLike) -> float:
    """Total variation distance of two distributions, ½ Σ|p - q|."""
    p, q = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    if p.shape != q.shape:
        raise ValueError(f"p and q must have the same shape; got {p.shape} and {q.shape}")
    return float(0.5 * np.abs(p - q).sum())


def residual_bias(c_hat: npt.ArrayLike, d_pi: npt.ArrayLike, d_gamma: npt.ArrayLike) -> float:
    """
    TV(ĉ·d_π / Σ ĉ·d_π, d_{π,γ}) / TV(d_π, d_{π,γ}): 0 is a perfect correction, 1 is none, above 1 is harm.
    nan if d_π and d_{π,γ} are the same to rounding, where there is nothing to correct.

    :param c_hat: Weights of the states, on any scale; ignored where ``d_pi`` is 0.
    :param d_pi: Distribution the states are sampled from.
    :param d_gamma: Discounted distribution.
    """
    d_pi, d_gamma = np.asarray(d_pi, dtype=np.float64), np.asarray(d_gamma, dtype=np.float64)
    weighted = np.where(d_pi > 0, np.asarray(c_hat, dtype=np.float64) * d_pi, 0.0)
    if not (weighted >= 0).all() or not 0 < weighted.sum() < np.inf:
        raise ValueError("c_hat must be finite and non-negative, and positive somewhere, where d_pi is positive")
    mismatch = total_variation(d_pi, d_gamma)
    if mismatch < 1e-14:
        return float("nan")
    return total_variation(weighted / weighted.sum(), d_gamma) / mismatch


def tabular_correction(states: npt.ArrayLike, steps: npt.ArrayLike, gamma: float, n_states: int) -> Array:
    """
    The correction estimated by counting: for each state the mean of γ^t over the samples, nan where there are none.
    The paper's ĉ_D is this times (1-γ)·T.

    :param states: State of each sample, any shape.
    :param steps: Step of each sample inside its episode, same shape.
    :param gamma: Discount factor.
    :param n_states: Number of states.
    """
    states, powers = np.ravel(states), gamma ** np.ravel(steps)
    with np.errstate(invalid="ignore"):
        return np.bincount(states, powers, n_states) / np.bincount(states, minlength=n_states)


def error_bound_size(n_states: int, gamma: float, epsilon: float, delta: float) -> tuple[int, int]:
    """
    The paper's error bound (Section 5, proof in its Appendix C): with k trajectories of T steps the corrected state
    distribution is within ε of d_{π,γ} in every state, with probability at least 1-δ. Its proof leaves out the factor 2 of
    the two-sided Hoeffding inequality: what it proves with these numbers is 1-2δ.

    :return: k = ⌈2/ε² log(S/δ)⌉ and T = ⌈log(ε/2) / log γ⌉
    """
    if not (0 < epsilon < 1 and 0 < delta < 1 and 0 < gamma < 1):
        raise ValueError(f"epsilon, delta and gamma must be in (0, 1); got {epsilon}, {delta} and {gamma}")
    return ceil(2 / epsilon**2 * log(n_states / delta)), ceil(log(epsilon / 2) / log(gamma))
