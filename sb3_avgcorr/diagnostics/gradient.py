"""The angle between the corrected and the uncorrected policy gradient, freed of the noise that both share."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch as th

from sb3_avgcorr.diagnostics.estimates import Blocks, Estimate

BATCH = 512
#: gradients longer than this are sketched down to it, which keeps inner products to about half a percent
MAX_LENGTH = 2**16


class GradientComparison(NamedTuple):
    """What the correction does to the gradient."""

    angle: Estimate  # degrees, with the weights ĉ(s)
    power_angle: Estimate  # degrees, with the weights γ^t
    corrected_seen: bool  # whether the corrected gradient can be told from 0
    uncorrected_seen: bool  # whether the uncorrected one can
    cancels: bool  # whether only the corrected one can, and the uncorrected one is less than half as long, beyond chance


def block_gradients(
    log_prob: Callable[[np.ndarray], th.Tensor],
    parameters: Sequence[th.Tensor],
    coefficients: Sequence[np.ndarray],
    blocks: Blocks,
) -> np.ndarray:
    """
    Sum coefficient · ∇log π(a|s) over each block.

    :param log_prob: log π(a|s) of the samples with these numbers
    :param parameters: what to differentiate by
    :param coefficients: one array of coefficients for each sum that is wanted
    :param blocks: the episodes
    :return: shape (number of sums, number of blocks, length)
    """
    length = sum(p.numel() for p in parameters)
    sketch = th.Generator().manual_seed(0)
    place = th.randint(MAX_LENGTH, (length,), generator=sketch) if length > MAX_LENGTH else None
    sign = 2.0 * th.randint(2, (length,), generator=sketch) - 1.0 if length > MAX_LENGTH else None
    out = np.zeros((len(coefficients), blocks.number, min(length, MAX_LENGTH)), dtype=np.float64)
    order = np.argsort(blocks.of_row, kind="stable")
    for block, rows in enumerate(np.split(order, np.cumsum(np.bincount(blocks.of_row, minlength=blocks.number))[:-1])):
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            logs = log_prob(batch)
            for i, coefficient in enumerate(coefficients):
                loss = (logs * th.as_tensor(coefficient[batch], dtype=logs.dtype, device=logs.device)).sum()
                parts = th.autograd.grad(loss, parameters, allow_unused=True, retain_graph=i + 1 < len(coefficients))
                flat = th.cat(
                    [th.zeros(p.numel()) if g is None else g.flatten().cpu() for p, g in zip(parameters, parts, strict=True)]
                )
                if place is not None:
                    assert sign is not None
                    flat = th.zeros(MAX_LENGTH).index_add_(0, place, flat * sign)
                out[i, block] += flat.double().numpy()
    return out


def compare_gradients(
    gradients: np.ndarray, slope: tuple[np.ndarray, np.ndarray], k: float, blocks: Blocks
) -> GradientComparison:
    r"""
    Measure the angle between the corrected and the uncorrected gradient.

    Noise is common to both gradients and would draw their angle to that of the noise alone. So inner products are taken
    between different blocks only, Σ_{i≠j} u_i·v_j, whose expectation is that of the gradients themselves.

    The corrected gradient is u + k·h: u the uncorrected one, h the sum with coefficients (ĉ-1)·A, and k how far ĉ can be
    trusted, the slope of γ^t on ĉ out of sample. It varies little, but is only as right as ĉ. With γ^t in place of ĉ it
    varies more and needs no ĉ to be right, so the angle's interval is that one's.

    :param gradients: sums with coefficients A, (ĉ-1)·A and (γ^t/mean-1)·A in each block, shape (3, blocks, length)
    :param slope: covariance of γ^t with ĉ and variance of ĉ, summed over each block
    :param k: the trust in ĉ
    :param blocks: the episodes
    :return: the comparison
    """
    # the first row is the data themselves
    m = np.concatenate([np.ones((1, blocks.number)), blocks.draws])

    def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        gram = a @ b.T
        return np.einsum("ri,ij,rj->r", m, gram, m, optimize=True) - (m * m) @ np.diag(gram)

    u = gradients[0]
    uu = products(u, u)

    def corrected(h: np.ndarray, trust: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        uh, hh = products(u, h), products(h, h)
        uc, cc = uu + trust * uh, uu + 2.0 * trust * uh + trust**2 * hh
        known = (uu > 0.0) & (cc > 0.0)
        # no direction of its own: what it has in common with the other is chance, on average a right angle
        cosine = np.divide(uc, np.sqrt(np.where(known, uu * cc, 1.0)), out=np.zeros_like(uc), where=known)
        return np.where(trust > 0.0, np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))), 0.0), cc

    def seen(squares: np.ndarray) -> bool:
        return bool(squares[0] > 0.0 and np.percentile(squares[1:], 2.5) > 0.0)

    covariance, variance = m @ slope[0], m @ slope[1]
    trust = np.clip(np.divide(covariance, variance, out=np.zeros_like(variance), where=variance > 0.0), 0.0, 1.0)
    trust[0] = k
    angle, cc = corrected(gradients[1], trust)
    power_angle, power_cc = corrected(gradients[2], np.ones(len(m)))
    low, high = np.percentile(power_angle[1:], [2.5, 97.5])
    if not gradients[2].any():  # no discount: no correction at all
        low = high = power_angle[0] = 0.0
    elif not seen(uu) or power_cc[0] <= 0.0:
        low, high = 0.0, 180.0
    return GradientComparison(
        Estimate(angle[0], min(low, angle[0]), max(high, angle[0])),
        Estimate(power_angle[0], min(low, power_angle[0]), max(high, power_angle[0])),
        seen(cc),
        seen(uu),
        seen(cc) and not seen(uu) and bool(np.percentile(cc[1:] - 4.0 * uu[1:], 2.5) > 0.0),
    )
