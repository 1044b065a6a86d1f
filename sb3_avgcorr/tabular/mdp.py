"""Finite Markov decision processes solved exactly.

Symbols are the paper's (Che, Vasan and Mahmood, ICML 2023). Episodes that end are handled as the paper handles them:
after termination the next state is drawn from ρ, and the discount across that step is 0. Here that is one array,
``termination``: the probability that taking action ``a`` in state ``s`` ends the episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt

try:
    import scipy.sparse as sp

    from sb3_avgcorr.tabular.chain import Array, ChainClasses, States, closed_classes, invariant, listing, reachable, solve
except ImportError as error:
    raise ImportError("sb3_avgcorr.tabular needs SciPy: pip install 'sb3-avgcorr[experiments]'") from error

# How far a distribution handed in may be from summing to 1: room for float32 input, none for a mistake.
_SUM_TOLERANCE = 1e-6


class Samples(NamedTuple):
    """Sampled steps, each array of shape (n_steps, n_trajectories) as in SB3's rollout buffer."""

    states: States
    actions: States
    rewards: Array
    steps: States  # t inside the episode: 0 at its first step


class FiniteMDP:
    """
    A finite MDP (P, r, ρ, γ). Every method takes the policy as an array of probabilities of shape (S, A).

    :param P: Transition probabilities: an array (S, A, S), a sequence of A sparse (S, S) matrices, or one sparse
        (S·A, S) matrix with row ``s·A + a``. Rows sum to 1 less ``termination``.
    :param r: Expected reward of each state and action, shape (S, A).
    :param rho: Distribution of the initial state, shape (S,).
    :param gamma: Discount factor in (0, 1]. With 1, only what exists without discounting is available: the
        distributions (``d_gamma`` is then ``d_pi`` and ``c`` is 1) and, where every episode ends, ``v`` and ``q``.
    :param termination: Probability that the step ends the episode, shape (S, A); none ends by default. A terminal
        state in the paper's sense (one that is visited, and then left for ρ) is a row of zeros in P with
        termination 1. Time limits are no termination: they are the ``horizon`` of ``d_T``.
    :param observations: What the agent sees in each state, first axis S. One-hot by default.
    :param state_ids: The states' numbers elsewhere (e.g. in a Gymnasium environment), shape (S,).
    """

    def __init__(
        self,
        P: npt.ArrayLike | Sequence[Any] | sp.sparray | sp.spmatrix,
        r: npt.ArrayLike,
        rho: npt.ArrayLike,
        gamma: float,
        *,
        termination: npt.ArrayLike | None = None,
        observations: npt.ArrayLike | None = None,
        state_ids: npt.ArrayLike | None = None,
    ) -> None:
        self.rho: Array = _distributions(rho, "rho", (np.size(rho),))
        self.r: Array = np.array(r, dtype=np.float64)
        self.n_states = len(self.rho)
        if self.r.ndim != 2 or len(self.r) != self.n_states or not np.isfinite(self.r).all():
            raise ValueError(f"r must be finite, with shape (S, A) = ({self.n_states}, A); got shape {self.r.shape}")
        self.n_actions = self.r.shape[1]
        if not 0.0 < gamma <= 1.0:
            raise ValueError(f"gamma must be in (0, 1]; got {gamma}")
        self.gamma = float(gamma)
        self.P = _stack(P, self.n_states, self.n_actions)
        self.termination: Array = np.zeros_like(self.r) if termination is None else np.array(termination, dtype=np.float64)
        if self.termination.shape != self.r.shape or not ((self.termination >= 0) & (self.termination <= 1)).all():
            raise ValueError(
                f"termination must hold probabilities, with shape (S, A) = {self.r.shape}; got {self.termination.shape}"
            )
        total = self.P.sum(axis=1).reshape(self.r.shape) + self.termination
        if (self.P.data < 0).any() or not (np.abs(total - 1) < _SUM_TOLERANCE).all():
            s, a = np.unravel_index(np.argmax(np.nan_to_num(np.abs(total - 1), nan=np.inf)), total.shape)
            raise ValueError(
                "P must be non-negative and P[s, a].sum() + termination[s, a] must be 1; "
                f"in state {s}, action {a}, it is {total[s, a]:.8g}. Pass `termination` if episodes end."
            )
        self.state_ids: States = np.arange(self.n_states) if state_ids is None else np.asarray(state_ids, dtype=np.int64)
        self._observations = None if observations is None else np.asarray(observations)
        for name, rows in ("observations", self._observations), ("state_ids", self.state_ids):
            if rows is not None and (rows.ndim == 0 or len(rows) != self.n_states):
                raise ValueError(f"{name} must have one row a state ({self.n_states}); got shape {rows.shape}")

    @property
    def observations(self) -> npt.NDArray[Any]:
        """What the agent sees in each state; made only when asked for, since one-hot is S × S."""
        return np.eye(self.n_states, dtype=np.float32) if self._observations is None else self._observations

    @classmethod
    def from_gymnasium(
        cls,
        env: gym.Env[Any, Any] | str,
        gamma: float,
        *,
        rho: npt.ArrayLike | None = None,
        reachable_only: bool = True,
        **make_kwargs: Any,
    ) -> FiniteMDP:
        """
        The MDP of an environment with a transition table ``env.unwrapped.P`` (FrozenLake, CliffWalking, Taxi, ...).

        Observations are the environment's own, that is, the states' numbers, as an SB3 policy trained on it expects.
        The environment's time limit is not part of the MDP; give it to ``d_T`` and ``sample``.

        :param env: The environment or its id.
        :param gamma: Discount factor.
        :param rho: Initial distribution over the table's states; default: ``env.unwrapped.initial_state_distrib``.
        :param reachable_only: Leave out the states no policy ever acts in (holes, goals, cliffs); ``state_ids`` says
            which ones are left.
        :param make_kwargs: Passed on to ``gym.make`` if ``env`` is an id.
        """
        unwrapped: Any = (gym.make(env, **make_kwargs) if isinstance(env, str) else env).unwrapped
        table = getattr(unwrapped, "P", None)
        if table is None:
            raise ValueError(f"env must have a transition table `env.unwrapped.P`; {unwrapped} has none")
        rho = getattr(unwrapped, "initial_state_distrib", None) if rho is None else rho
        if rho is None:
            raise ValueError(f"{unwrapped} has no `initial_state_distrib`; pass the initial distribution as `rho`")
        n_states, n_actions = len(table), len(table[0])
        r, termination = np.zeros((n_states, n_actions)), np.zeros((n_states, n_actions))
        entries: list[tuple[float, int, int]] = []
        for s in range(n_states):
            for a in range(n_actions):
                for probability, next_state, reward, terminated in table[s][a]:
                    r[s, a] += probability * reward
                    if terminated:
                        termination[s, a] += probability
                    else:
                        entries.append((probability, s * n_actions + a, int(next_state)))
        data, rows, columns = (np.array(column) for column in zip(*entries, strict=True))
        # Entries for the same place are added up, as is right for a table that lists a next state twice.
        P = sp.coo_array((data, (rows, columns)), shape=(n_states * n_actions, n_states))
        ids = np.arange(n_states)
        mdp = cls(P, r, rho, gamma, termination=np.minimum(termination, 1), observations=ids, state_ids=ids)
        return mdp.restrict_to_reachable() if reachable_only else mdp

    def with_gamma(self, gamma: float) -> FiniteMDP:
        """The same MDP with another discount factor."""
        return self._copy(slice(None), gamma)

    def restrict_to_reachable(self) -> FiniteMDP:
        """The same MDP without the states that no policy reaches from ρ; ``state_ids`` keeps their old numbers."""
        P = self.P_pi(self.uniform_policy())  # positive wherever some action leads
        return self._copy(np.flatnonzero(reachable(P, self.rho)), self.gamma)

    def _copy(self, states: Any, gamma: float) -> FiniteMDP:
        # `states` is closed under P, so no probability is lost with the columns left out.
        rows = np.arange(self.n_states * self.n_actions).reshape(self.r.shape)[states].ravel()
        return FiniteMDP(
            self.P[rows][:, states],
            self.r[states],
            self.rho[states],
            gamma,
            termination=self.termination[states],
            observations=None if self._observations is None else self._observations[states],
            state_ids=self.state_ids[states],
        )

    # -- the chain under a policy ------------------------------------------------------------------------------------
    def uniform_policy(self) -> Array:
        """Every action equally likely in every state."""
        return np.full((self.n_states, self.n_actions), 1 / self.n_actions)

    def _policy(self, policy: npt.ArrayLike) -> Array:
        return _distributions(policy, "policy", (self.n_states, self.n_actions))

    def P_pi(self, policy: npt.ArrayLike) -> sp.csr_array:
        """p_π(s'|s) inside an episode, sparse (S, S). Rows sum to 1 less the probability that the episode ends."""
        mean = (self._policy(policy).ravel(), np.arange(self.r.size), np.arange(0, self.r.size + 1, self.n_actions))
        matrix = sp.csr_array(sp.csr_array(mean, shape=(self.n_states, self.r.size)) @ self.P)
        matrix.eliminate_zeros()
        return matrix

    def r_pi(self, policy: npt.ArrayLike) -> Array:
        """Expected reward of each state under the policy."""
        return (self._policy(policy) * self.r).sum(axis=1)

    def termination_pi(self, policy: npt.ArrayLike) -> Array:
        """Probability that the step taken in each state ends the episode."""
        return (self._policy(policy) * self.termination).sum(axis=1)

    def classes(self, policy: npt.ArrayLike) -> ChainClasses:
        """The recurrent classes, the transient and the unreachable states of the chain under the policy."""
        P = self.P_pi(policy)
        visited = reachable(P, self.rho)
        states = np.flatnonzero(visited)
        closed = closed_classes(P[states][:, states], self.termination_pi(policy)[states])
        # If no class can keep the chain, every state leads back to ρ, and ρ to every state: one class.
        recurrent = [states[members] for members in closed] or [states]
        transient = np.setdiff1d(states, np.concatenate(recurrent))
        return ChainClasses(recurrent, transient, np.flatnonzero(~visited))

    def check_irreducible(self, policy: npt.ArrayLike) -> None:
        """Raise a ValueError that names the classes if the chain is not irreducible, as the paper's theorem assumes."""
        classes = self.classes(policy)
        if not classes.irreducible:
            raise ValueError(
                "The chain under this policy is not irreducible: "
                f"{len(classes.recurrent)} recurrent class(es) {listing(classes.recurrent)}, "
                f"transient states {listing([classes.transient])}, unreachable states {listing([classes.unreachable])}. "
                "restrict_to_reachable() leaves out states that no policy reaches."
            )

    def d_pi(self, policy: npt.ArrayLike) -> Array:
        """
        Stationary distribution d_π of the chain that restarts from ρ after termination: the long-run share of
        steps spent in each state. It is 0 in transient and unreachable states. With more than one recurrent class
        there is no single one, and a ValueError names the classes.
        """
        recurrent = self.classes(policy).recurrent
        if len(recurrent) > 1:
            raise ValueError(
                f"The chain under this policy has {len(recurrent)} recurrent classes {listing(recurrent)}: "
                "which of them it ends up in is left to chance, so the stationary distribution is not unique"
            )
        states = recurrent[0]
        P = self.P_pi(policy)[states][:, states]
        d = np.zeros(self.n_states)
        if self.termination_pi(policy)[states].any():
            # Expected visits in an episode, by renewal proportional to the share of steps. Needs no dense restart matrix.
            d[states] = solve(sp.eye_array(len(states)) - P.T, self.rho[states])
        else:
            d[states] = invariant(P)
        return d / d.sum()

    def d_T(self, policy: npt.ArrayLike, horizon: int) -> Array:
        """
        Finite-horizon sampling distribution: the share of steps in each state when every episode starts from ρ and
        is cut after ``horizon`` steps. Without termination, the average of P(S_t = s) over t < ``horizon``.
        """
        visits = self._visits(policy, horizon, 1.0)
        return visits / visits.sum()

    def d_gamma(self, policy: npt.ArrayLike) -> Array:
        """
        Discounted distribution d_{π,γ}, summing to 1: the stationary distribution if, besides, every step restarts
        from ρ with probability 1-γ.
        """
        if self.gamma == 1:
            return self.d_pi(policy)
        d = self.occupancy(policy)
        return d / d.sum()

    def occupancy(self, policy: npt.ArrayLike) -> Array:
        """
        (1-γ) Σ_t γ^t P(S_t = s, episode not over): the weights with which the policy gradient theorem holds exactly.
        This is ``d_gamma`` where no episode ends; otherwise it sums to 1 - E[γ^length] and is ``d_gamma`` times that.
        """
        self._needs_discount("the discounted occupancy")
        return solve(sp.eye_array(self.n_states) - self.gamma * self.P_pi(policy).T, (1 - self.gamma) * self.rho)

    def c(self, policy: npt.ArrayLike, horizon: int | None = None) -> Array:
        """
        Averaging correction c(s) = d_{π,γ}(s) / d_π(s), whose mean under d_π is 1. Undefined where the sampling never
        goes: inf where d_{π,γ} is positive (transient states, or states not reached within ``horizon``, which no
        weighting of the samples can make up for), nan where it is 0, too (unreachable states).

        :param policy: Action probabilities, shape (S, A).
        :param horizon: If given, the ratio to what episodes cut after so many steps sample, ``d_T``.
        """
        sampling = self.d_pi(policy) if horizon is None else self.d_T(policy, horizon)
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.d_gamma(policy) / sampling

    def expected_power(self, policy: npt.ArrayLike, horizon: int) -> Array:
        """
        E[γ^t | s] over the steps of episodes cut after ``horizon`` steps: what a regression of γ^t on the state
        learns from endless data. Times (1-γ)·``horizon`` it tends to c. nan in states that are not visited.
        """
        with np.errstate(invalid="ignore"):
            return self._visits(policy, horizon, self.gamma) / self._visits(policy, horizon, 1.0)

    def recurrence_times(self, policy: npt.ArrayLike) -> Array:
        """Expected recurrence times E[τ⁺(s)] = 1 / d_π(s); inf in states that are not visited for ever."""
        with np.errstate(divide="ignore"):
            return 1 / self.d_pi(policy)

    def _visits(self, policy: npt.ArrayLike, horizon: int, gamma: float) -> Array:
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1; got {horizon}")
        step = gamma * self.P_pi(policy).T
        p = visits = self.rho
        for _ in range(horizon - 1):
            p = step @ p
            visits = visits + p
        return visits

    # -- values and gradient -----------------------------------------------------------------------------------------
    def v(self, policy: npt.ArrayLike) -> Array:
        """State values: expected discounted return (without the factor 1-γ)."""
        P = self.P_pi(policy)
        if self.gamma == 1 and (closed := closed_classes(P, self.termination_pi(policy))):
            raise ValueError(f"gamma=1 needs episodes that end: states {listing(closed)} are never left")
        return solve(sp.eye_array(self.n_states) - self.gamma * P, self.r_pi(policy))

    def q(self, policy: npt.ArrayLike) -> Array:
        """Action values, shape (S, A), (without the factor 1-γ)."""
        return self.r + self.gamma * (self.P @ self.v(policy)).reshape(self.r.shape)

    def J(self, policy: npt.ArrayLike) -> float:
        """The paper's objective (1-γ) E[Σ_t γ^t r(S_t, A_t)], **with** its factor 1-γ; ``rho @ v`` is without."""
        self._needs_discount("J, which has the factor 1-γ,")
        return float((1 - self.gamma) * self.rho @ self.v(policy))

    def gradient(self, policy: npt.ArrayLike, state_weights: npt.ArrayLike | None = None) -> Array:
        """
        Σ_s w(s) Σ_a ∇π(a|s) q(s,a), the gradient with respect to the logits of a tabular softmax policy, shape (S, A).

        :param policy: Action probabilities, shape (S, A).
        :param state_weights: w, shape (S,): ``d_pi`` gives the uncorrected gradient, ``d_pi * c`` the corrected one.
            Default: ``occupancy``, with which it is ∇J exactly.
        """
        policy = self._policy(policy)
        weights = self.weights(policy, state_weights)
        q = self.q(policy)
        return weights[:, None] * policy * (q - (policy * q).sum(axis=1, keepdims=True))

    def weights(self, policy: npt.ArrayLike, state_weights: npt.ArrayLike | None) -> Array:
        """``state_weights`` checked, or by default the weights that give ∇J."""
        weights = self.occupancy(policy) if state_weights is None else np.asarray(state_weights, dtype=np.float64)
        if weights.shape != (self.n_states,) or not np.isfinite(weights).all():
            raise ValueError(f"state_weights must be finite, with shape ({self.n_states},); got shape {weights.shape}")
        return weights

    def _needs_discount(self, what: str) -> None:
        if self.gamma == 1:
            raise ValueError(f"{what} does not exist at gamma=1; use gamma < 1, or d_pi, v and q")

    # -- sampling ----------------------------------------------------------------------------------------------------
    def sample(
        self,
        policy: npt.ArrayLike,
        n_steps: int,
        n_trajectories: int = 1,
        *,
        horizon: int | None = None,
        rng: np.random.Generator | int | None = None,
    ) -> Samples:
        """
        Follow the policy for ``n_steps`` in ``n_trajectories`` independent copies at once, as a VecEnv would: after
        termination, and after ``horizon`` steps, an episode starts anew from ρ with t = 0.

        :param policy: Action probabilities, shape (S, A).
        :param n_steps: Steps per trajectory.
        :param n_trajectories: Number of copies.
        :param horizon: Time limit of an episode; none by default.
        :param rng: Random generator or its seed.
        """
        rng = np.random.default_rng(rng)
        # One sorted array for all rows: row number plus the cumulative probability inside the row.
        lengths = np.diff(self.P.indptr)
        sums = np.concatenate([[0.0], np.cumsum(self.P.data)])
        row_of = np.repeat(np.arange(self.r.size), lengths)
        next_edges = np.minimum(sums[1:] - sums[self.P.indptr[row_of]], 1.0) + row_of
        never_ends = self.termination.ravel() <= 0
        action_edges = (np.cumsum(self._policy(policy), axis=1) + np.arange(self.n_states)[:, None]).ravel()
        shape = (n_steps, n_trajectories)
        states, actions, steps = (np.empty(shape, dtype=np.int64) for _ in range(3))
        s, t = rng.choice(self.n_states, n_trajectories, p=self.rho), np.zeros(n_trajectories, dtype=np.int64)
        for i in range(n_steps):
            place = np.searchsorted(action_edges, s + rng.random(n_trajectories), side="right")
            # Rounding may point one beyond the last action of positive probability; so below with the next state.
            a = np.minimum(place - s * self.n_actions, self.n_actions - 1)
            states[i], actions[i], steps[i] = s, a, t
            row = s * self.n_actions + a
            place = np.searchsorted(next_edges, row + rng.random(n_trajectories), side="right")
            end = self.P.indptr[row + 1]
            place = np.where(never_ends[row], np.minimum(place, end - 1), place)
            over = place >= end
            t = t + 1
            if horizon is not None:
                over |= t >= horizon
            s = self.P.indices[np.minimum(place, len(self.P.indices) - 1)].astype(np.int64)
            s[over], t[over] = rng.choice(self.n_states, over.sum(), p=self.rho), 0
        return Samples(states, actions, self.r[states, actions], steps)


def random_mdp(
    n_states: int,
    n_actions: int,
    gamma: float,
    rng: np.random.Generator | int | None = None,
    *,
    branching: int | None = None,
    termination: float = 0.0,
) -> FiniteMDP:
    """
    A random MDP that is irreducible under every policy with full support: Dirichlet transitions and start, normal rewards.

    :param n_states: Number of states.
    :param n_actions: Number of actions.
    :param gamma: Discount factor.
    :param rng: Random generator or its seed.
    :param branching: Next states of each state and action; default: all states.
    :param termination: Probability that a step ends the episode.
    """
    rng = np.random.default_rng(rng)
    branching = n_states if branching is None else branching
    if not 1 <= branching <= n_states:
        raise ValueError(f"branching must be between 1 and n_states={n_states}; got {branching}")
    rows = n_states * n_actions
    if branching == n_states:
        columns = np.tile(np.arange(n_states), (rows, 1))
    else:
        # Always one step on round a ring, so that every state is reached from every other.
        columns = rng.integers(n_states, size=(rows, branching))
        columns[:, 0] = (np.arange(rows) // n_actions + 1) % n_states
    data = (1 - termination) * rng.dirichlet(np.ones(branching), size=rows)
    P = sp.coo_array((data.ravel(), (np.repeat(np.arange(rows), branching), columns.ravel())), shape=(rows, n_states))
    r = rng.standard_normal((n_states, n_actions))
    return FiniteMDP(P, r, rng.dirichlet(np.ones(n_states)), gamma, termination=np.full_like(r, termination))


def _distributions(values: npt.ArrayLike, name: str, shape: tuple[int, ...]) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != shape or array.size == 0:
        raise ValueError(f"{name} must have shape {shape}; got {array.shape}")
    sums = array.sum(axis=-1, keepdims=True)
    if not (array >= 0).all() or not (np.abs(sums - 1) < _SUM_TOLERANCE).all():
        raise ValueError(f"{name} must hold probabilities that sum to 1; got sums from {sums.min():.8g} to {sums.max():.8g}")
    return array / sums


def _stack(P: Any, n_states: int, n_actions: int) -> sp.csr_array:
    rows = n_states * n_actions
    if sp.issparse(P):
        stacked = sp.csr_array(cast(Any, P), dtype=np.float64)
    elif isinstance(P, Sequence) and all(sp.issparse(matrix) for matrix in P):
        by_action = sp.csr_array(sp.vstack(list(P), format="csr"), dtype=np.float64)
        if by_action.shape != (rows, n_states):
            raise ValueError(f"P must hold {n_actions} matrices of shape ({n_states}, {n_states}); got {[m.shape for m in P]}")
        stacked = by_action[np.arange(rows).reshape(n_actions, n_states).T.ravel()]
    else:
        dense = np.asarray(P, dtype=np.float64)
        if dense.shape != (n_states, n_actions, n_states):
            raise ValueError(f"P must have shape (S, A, S) = {(n_states, n_actions, n_states)}; got {dense.shape}")
        stacked = sp.csr_array(dense.reshape(rows, n_states))
    if stacked.shape != (rows, n_states):
        raise ValueError(f"a sparse P must have shape (S·A, S) = {(rows, n_states)}; got {stacked.shape}")
    stacked.sum_duplicates()
    stacked.eliminate_zeros()
    return stacked
