r"""
Signal and noise of two gradients, told from blocks of a rollout.

Take the uncorrected gradient u and the corrected one c on each of M blocks that share no noise. What different blocks have in
common is signal; what their mean has beyond that is noise. Matrices of shape (2, 2) have the rows and columns (u, c).
"""

from typing import NamedTuple

import numpy as np

#: a squared length below this share of the whole is rounding (gradients come in single precision)
ROUNDING = 1e-9
#: parameters whose gradients are multiplied at once, and about how many of them are looked at
PIECE, MOST_PARAMETERS = 256, 65_536


class Products(NamedTuple):
    """Inner products of the uncorrected and the corrected gradient, each a symmetric matrix of shape (2, 2)."""

    signal: np.ndarray  # of the gradients themselves, free of noise
    noise: np.ndarray  # of the noise in their mean over a rollout


def blocks(n_steps: int, n_envs: int, count: int = 16, shortest: int = 16) -> list[np.ndarray]:
    """
    Split a rollout into blocks: stretches of one environment, or, where there are many, some environments each.

    Steps that are near share noise, so a block is not shorter than ``shortest`` steps, unless it is all that an environment
    has: five steps of eight environments are eight blocks, five steps of one are a single block, which tells nothing.

    :param n_steps: steps of the rollout
    :param n_envs: environments of the rollout
    :param count: how many blocks there are to be, at most
    :param shortest: fewest rows of a block that cuts an environment's stretch
    :return: one array of rows a block; row step·n_envs + env is that step of that environment
    """
    for name, value in {"n_steps": n_steps, "n_envs": n_envs, "count": count, "shortest": shortest}.items():
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}.")
    rows = np.arange(n_steps * n_envs).reshape(n_steps, n_envs)
    if n_envs >= count:
        return [part.ravel() for part in np.array_split(rows, count, axis=1)]
    pieces = max(1, min(count // n_envs, n_steps // shortest))
    return [part for env in rows.T for part in np.array_split(env, pieces)]


def independent_blocks(split: list[np.ndarray], n_envs: int) -> np.ndarray:
    """
    Which blocks share no noise: those of different environments, or, of a single environment, those that are no neighbours.

    Steps of one episode share noise: an advantage sums over the steps that follow, and what was drawn at the start lasts to
    the end. Shared noise looks like signal, and little is enough: a correlation of 0.1 makes a bias where there is none.

    :param split: what :func:`blocks` gave
    :param n_envs: environments of the rollout
    :return: a symmetric array of truth values, shape (M, M)
    """
    if n_envs == 1:
        place = np.arange(len(split))
        return np.asarray(np.abs(place[:, None] - place) > 1)
    env = np.array([rows[0] % n_envs for rows in split])
    return np.asarray(env[:, None] != env)


def gradient_products(
    u: np.ndarray, c: np.ndarray, sizes: np.ndarray | None = None, independent: np.ndarray | None = None
) -> Products:
    r"""
    Inner products of two gradients and of their noise, from block gradients.

    Write x_j = x + e_j for a gradient on block j. Noise of independent blocks has no product on average, E[x_i·y_j] = x·y,
    and the rollout's mean x̄ = Σ_j p_j·x_j, with p_j the block's share of the rows, has all of it. So

        ⟨x, y⟩ = mean of x_i·y_j over independent i, j, weighted by p_i·p_j          N(x, y) = x̄·ȳ - ⟨x, y⟩

    estimate the product of the gradients and the covariance of the two means (summed over parameters) without bias. With M
    blocks of one size, all independent, N(x, y) = (mean_j x_j·y_j - ⟨x, y⟩) / M.

    :param u: uncorrected gradient on each block (a mean over its rows), shape (M, P)
    :param c: corrected gradient on each block, same shape
    :param sizes: rows of each block, shape (M,); all the same if not given
    :param independent: which blocks share no noise, symmetric, shape (M, M); all that are not the same, if not given
    :return: ⟨·, ·⟩ and N(·, ·); not-a-number if no two blocks are independent, which leaves signal and noise alike
    """
    return _products_of(gram_of(thinned(u, c)), *filled(len(u), sizes, independent))


def filled(m: int, sizes: np.ndarray | None, independent: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """What is known of m blocks, with what was not given: sizes alike, no noise shared."""
    sizes = np.ones(m) if sizes is None else np.asarray(sizes, dtype=np.float64)
    independent = ~np.eye(m, dtype=bool) if independent is None else np.asarray(independent)
    if sizes.shape != (m,) or independent.shape != (m, m):
        raise ValueError(f"`sizes` must have shape ({m},), `independent` ({m}, {m}), got {sizes.shape}, {independent.shape}.")
    return sizes, independent


def _products_of(gram: np.ndarray, sizes: np.ndarray, independent: np.ndarray) -> Products:
    if not independent.any():
        return Products(np.full((2, 2), np.nan), np.full((2, 2), np.nan))
    pairs = np.outer(sizes, sizes)
    mean, signal = (np.einsum("aibj,ij->ab", gram, w) / np.sum(w) for w in (pairs, pairs * independent))
    return Products(signal, mean - signal)


def thinned(u: np.ndarray, c: np.ndarray, unit: float = 1.0) -> np.ndarray:
    """
    (u, c) / unit in double precision, shape (2, M, P'), P' parameters at most about ``MOST_PARAMETERS``.

    Of a large network every second, third, ... piece is taken: the products are compared with each other only, and a part of
    the parameters, spread over all layers, is enough to estimate their proportions.
    """
    if np.ndim(u) != 2 or np.shape(u) != np.shape(c):
        raise ValueError(f"`u` and `c` must have the same shape (blocks, parameters), got {np.shape(u)} and {np.shape(c)}.")
    length = u.shape[1]
    starts = range(0, length, PIECE * -(-length // MOST_PARAMETERS))
    return np.stack([np.concatenate([x[:, i : i + PIECE] for i in starts], axis=1) for x in (u, c)]).astype(np.float64) / unit


def gram_of(x: np.ndarray) -> np.ndarray:
    """
    All inner products of gradients.

    :param x: gradients u and c on each block, shape (2, M, P)
    :return: shape (2, M, 2, M); in pieces, which are so small that numpy's BLAS starts no threads for them
    """
    _, m, length = x.shape
    rows = x.reshape(2 * m, length)
    gram = np.zeros((2 * m, 2 * m))
    for start in range(0, length, PIECE):
        piece = rows[:, start : start + PIECE]
        gram += piece @ piece.T
    return gram.reshape(2, m, 2, m)


def jackknife_products(
    u: np.ndarray, c: np.ndarray, sizes: np.ndarray | None = None, independent: np.ndarray | None = None
) -> np.ndarray:
    r"""
    What each source of noise says of the noise-free products: the jackknife's pseudo-values (Tukey, 1958).

    A source is an environment, all of whose blocks are left out together, because they share noise; a block, where it is
    independent of others by itself. With x the products from all G sources and x_{-g} those without source g, the
    pseudo-value G·x - (G-1)·x_{-g} is what source g adds. The mean of the pseudo-values is x, but for a term of order 1/G
    where sources differ in their partners, and their scatter is that of x, so one rollout already tells how well its
    products are known.

    :param u: uncorrected gradient on each block, shape (M, P)
    :param c: corrected gradient on each block, same shape
    :param sizes: rows of each block, shape (M,); all the same if not given
    :param independent: which blocks share no noise, shape (M, M); all that are not the same, if not given
    :return: the pseudo-values, shape (G, 2, 2), with the mean x; x alone, shape (1, 2, 2), if a source cannot be missed
    """
    return pseudo_values(gram_of(thinned(u, c)), *filled(len(u), sizes, independent))


def pseudo_values(gram: np.ndarray, sizes: np.ndarray, independent: np.ndarray, fixed: int = 0) -> np.ndarray:
    """The last ``fixed`` blocks are partners of the others that are never left out."""
    # blocks of one source share noise with the same others
    source = np.unique(independent[: len(sizes) - fixed], axis=0, return_inverse=True)[1].reshape(-1)
    member = np.pad(np.eye(source.max() + 1)[:, source], ((0, 0), (0, fixed)))
    m = len(member)
    pairs = np.outer(sizes, sizes) * independent
    products = gram * pairs[None, :, None, :]
    total, weight = products.sum(axis=(1, 3)), pairs.sum()
    without_weight = weight - 2.0 * member @ pairs.sum(axis=1)
    if m < 3 or np.any(without_weight <= ROUNDING * weight):
        return (total / weight)[None]
    of_block = products.sum(axis=3).transpose(1, 0, 2) + products.sum(axis=1).transpose(2, 0, 1)
    without = (total - np.tensordot(member, of_block, axes=1)) / without_weight[:, None, None]
    values = m * total / weight - (m - 1) * without
    return values + (total / weight - values.mean(axis=0))
