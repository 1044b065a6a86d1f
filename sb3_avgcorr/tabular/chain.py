"""Sparse Markov chains: their classes, their stationary distribution, and the linear solve that everything exact rests on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, gmres, splu

Array = npt.NDArray[np.float64]
States = npt.NDArray[np.int64]

# Below this, a direct solve is quick whatever the structure.
_DIRECT_BELOW = 1500


class ChainClasses(NamedTuple):
    """How the states fall into classes when a policy is followed from ρ, with a restart from ρ after termination.

    ``recurrent``: the classes that are never left; ``transient``: visited from ρ, but left for good;
    ``unreachable``: never visited from ρ.
    """

    recurrent: list[States]
    transient: States
    unreachable: States

    @property
    def irreducible(self) -> bool:
        """Every state is visited again and again: what the paper assumes."""
        return len(self.recurrent) == 1 and not self.transient.size and not self.unreachable.size


def solve(matrix: Any, rhs: Array) -> Array:
    """
    Solve ``matrix @ x = rhs`` for a sparse I - γP or its transpose.

    Large chains are one of two kinds. Where every state leads anywhere, factorising fills up the matrix, but a Krylov method
    is done after some tens of steps; on a grid or a line it is the other way round. So try Krylov for a few steps, and
    factorise if the residual is not down to rounding by then.
    """
    x = _krylov(sp.csr_array(matrix), rhs)
    if x is None:
        factors = _factorise(matrix)
        x = factors.solve(rhs)
        x += factors.solve(rhs - matrix @ x)
    return x


def _krylov(matrix: Any, rhs: Array) -> Array | None:
    if len(rhs) < _DIRECT_BELOW:
        return None
    x = np.zeros_like(rhs)
    for _ in range(3):  # starting again on the true residual takes it down to rounding
        x += gmres(matrix, rhs - matrix @ x, rtol=1e-12, atol=0.0, restart=60, maxiter=1)[0]
    return x if np.linalg.norm(rhs - matrix @ x) <= 1e-14 * np.linalg.norm(rhs) else None


def _factorise(matrix: Any) -> Any:
    # I - γP and its transpose are M-matrices: diagonal pivots are stable, and let the ordering keep the fill low.
    return splu(sp.csc_array(matrix), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})


def reachable(P: sp.csr_array, rho: Array) -> npt.NDArray[np.bool_]:
    """Which states are visited with positive probability from rho."""
    step = sp.csr_array(P.T) > 0
    reached = rho > 0
    while True:
        more = reached | (step @ reached)
        if (more == reached).all():
            return reached
        reached = more


def closed_classes(P: sp.csr_array, termination: Array) -> list[States]:
    """Classes that are left neither for another class nor by termination."""
    count, label = connected_components(P, directed=True, connection="strong")
    edges = P.tocoo()
    leaving = np.zeros(count, dtype=bool)
    leaving[label[edges.row[label[edges.row] != label[edges.col]]]] = True
    leaving[label[termination > 0]] = True
    return [np.flatnonzero(label == k) for k in np.flatnonzero(~leaving)]


def invariant(P: sp.csr_array) -> Array:
    """
    Stationary distribution of an irreducible chain: Krylov on (I - Pᵀ + u1ᵀ) d = u if that is quick, else inverse
    iteration, which is the discounted distribution with γ next to 1, started again from its own result.
    """
    n = P.shape[0]
    step, u = sp.csr_array(P.T), np.full(n, 1 / n)
    d = _krylov(LinearOperator((n, n), matvec=lambda x: x - step @ x + x.sum() * u, dtype=np.float64), u)
    if d is not None:
        return d
    factors = _factorise((1 + 1e-8) * sp.eye_array(n) - step)
    d = u
    for _ in range(100):
        previous, d = d, factors.solve(d)
        d = d / d.sum()
        if np.abs(d - previous).sum() < 1e-13:
            return d
    raise ValueError(
        "The chain under this policy nearly falls apart: it takes more than about 1e8 steps to get from some states to "
        "others, too many for its stationary distribution to be computed in double precision"
    )


def listing(classes: Sequence[States], limit: int = 8) -> str:
    """The classes for an error message, the long ones cut short."""
    shown = [str(members.tolist()) if len(members) <= limit else f"{members[:limit].tolist()}…" for members in classes]
    return ", ".join(shown[:limit]) + ", …" * (len(shown) > limit)
