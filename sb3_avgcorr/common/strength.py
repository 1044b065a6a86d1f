r"""
How far to correct: the strength k in [0, 1] whose gradient has the least expected error, told from the rollouts themselves.

The corrected gradient c = mean(ĉ·g) points the right way but is noisy, because few samples carry the weight; the uncorrected
one u = mean(g) is steady but biased. The weights 1 + k·(ĉ - 1) give the gradient (1-k)·u + k·c, and the best k depends on how
large the bias is beside the noise. A rollout tells both, by its blocks (:mod:`sb3_avgcorr.common.gradients`). Rollouts share
no noise either, and a gradient lasts for several of them, so what a block has in common with earlier rollouts is signal, too.

Everything here takes arrays and knows nothing of models. Matrices of shape (2, 2) have the rows and columns (u, c).
"""

import numpy as np

from sb3_avgcorr.common.gradients import ROUNDING, Products, filled, gram_of, pseudo_values, thinned


def gradient_cosine(signal: np.ndarray) -> float:
    """
    Cosine of the angle between the uncorrected and the corrected gradient, cos = ⟨u, c⟩ / sqrt(⟨u, u⟩⟨c, c⟩).

    :param signal: noise-free products, shape (2, 2)
    :return: a number in [-1, 1]; not-a-number where one of the two gradients is zero or lost in noise
    """
    (uu, uc), (_, cc) = signal
    return float(np.clip(uc / np.sqrt(uu) / np.sqrt(cc), -1.0, 1.0)) if uu > 0.0 and cc > 0.0 else float("nan")


def uncorrected_scale(signal: np.ndarray) -> float:
    """
    The scale κ = ⟨u, c⟩ / ⟨u, u⟩, not below 0, that brings κ·u nearest to c.

    Adam, clipping and normalised advantages take the length out of a gradient: only its direction biases PPO.

    :param signal: noise-free products, shape (2, 2)
    :return: κ; 0 where the uncorrected gradient is zero or points away from the corrected one
    """
    (uu, uc), _ = signal
    return float(uc / uu) if uu > 0.0 and uc > 0.0 else 0.0


def least_error_strength(signal: np.ndarray, noise: np.ndarray, n: float = 1.0, trust: float = 1.0) -> float:
    r"""
    The strength k of least expected error of direction, once the noise of n rollouts has averaged out.

    The gradient a·u + b·c, averaged over n rollouts, misses the true c by

        E|a·ū + b·c̄ - c|² = |a·u + b·c - c|² + (a²·N(u,u) + 2ab·N(u,c) + b²·N(c,c)) / n.

    Its length does not matter to PPO (see :func:`uncorrected_scale`), so a and b are both free: the least squares solution
    has the direction that is nearest to c, the one of the greatest expected cosine. Up to a common factor it is

        a = ⟨u,c⟩·N(c,c) - ⟨c,c⟩·N(u,c)                                   (what is gained by leaving c: its noise)
        b = (⟨u,u⟩⟨c,c⟩ - ⟨u,c⟩²)·n + ⟨c,c⟩·N(u,u) - ⟨u,c⟩·N(u,c)         (what is gained by leaving u: bias, and its noise)
        k = b / (a + b),  cut to [0, 1].

    The bracket is ⟨u,u⟩·bias². An uncorrected gradient of zero gives 1 (a = -⟨c,c⟩·N(u,c) ≤ 0: u is noise that c has too); two
    gradients that are the same give a = b = 0, where k = 0 leaves the algorithm as it is.

    :param signal: noise-free products of the gradients, shape (2, 2), exact or estimated
    :param noise: products of the noise of one rollout's mean, same shape
    :param n: number of rollouts over which noise averages out and bias does not
    :param trust: share in [0, 1] of the gain b that counts, as far as it is told from none
    :return: k in [0, 1]
    """
    (uu, uc), (_, cc) = signal
    (nuu, nuc), (_, ncc) = np.asarray(noise) / n
    if uu + nuu <= 0.0:  # u is zero, noise and all, and with it a and b
        return float(cc > 0.0 and trust > 0.0)
    a = uc * ncc - cc * nuc
    b = uu * cc - uc * uc + cc * nuu - uc * nuc
    if not b > ROUNDING * cc * (uu + nuu) or trust <= 0.0:
        return 0.0
    return float(trust * b / (a + trust * b)) if a > 0.0 else 1.0


def _ramp(x: float, low: float, high: float) -> float:
    """Rise from 0 at ``low`` to 1 at ``high``."""
    return float(np.clip((x - low) / (high - low), 0.0, 1.0))


class Strength:
    r"""
    How far to correct, learned from the block gradients of one rollout after another.

    The products are averaged over recent rollouts, each gradient relative to the rollout's root mean squared block gradient
    (of u and c alike, so that a u of zero does no harm): the scale of rewards or of a loss cancels, also
    where it drifts. The averages go into :func:`least_error_strength`.

    A rollout's blocks are multiplied with each other and with *the past*, the mean gradients of about n earlier rollouts,
    which counts as one more block of their size. By itself, a rollout whose gradient is lost in noise tells nothing for
    dozens of rollouts. The past makes 2n pairs for every pair that a rollout has by itself, so the standard error of the
    products is sqrt(2n) times smaller, some 4 times. A gradient that does not last makes them smaller, too, u and c alike,
    and is believed later. Every pair of blocks counts the same, so a rollout counts by the pairs that it makes.

    A bias that leaves most of the gain is bearable: along u, at an angle of 45° to c, an update gains 71 % of what it would
    along c, and a policy that can tell states apart comes to the same end, whatever their weights; c would add its noise. So
    the bias counts only if bias² is above half of ⟨c, c⟩: u misses more of c than it has. And its estimate is noisy; to
    believe it early is to correct too much. So it counts only as far as it is told from that over recent rollouts: not at
    all up to the number of standard errors that chance reaches in so many looks (:attr:`doubt`: 1.5 at first, 3 after a
    hundred rollouts), in full from 1.5 more. The environments are the samples
    (:func:`~sb3_avgcorr.common.gradients.jackknife_products`), so that a few rollouts can tell a clear bias: a policy that
    has gone the wrong way may not come back. Where they are few, Student's t is turned into the number of standard errors
    that is as rare under a normal distribution (Wallace, 1959). κ adds no error of its own to first order, because bias² is
    at its least in κ. It is not taken below a half: weights of mean 1 that do not turn the gradient leave most of its
    length, and while u is lost in noise, any length of it could be said to explain c. A rollout of fewer than four blocks
    (A2C's) is taken for one block of many rollouts.

    So the algorithm is the uncorrected one until the data say that this goes the wrong way. What they say first is often not
    where c points, which is lost in noise, but that u does not go there: a step along u claims a gain of ⟨u, u⟩, of which
    ⟨u, c⟩ is real. Where u is told from 0, and ⟨u, c⟩ from half of ⟨u, u⟩ or more, that is enough to leave it (:attr:`lost`).
    It takes the same standard errors as a bias: whatever is looked at after every rollout meets its chance.

    And noise is the only thing that speaks against c. Where states that want opposite actions cancel out, u is nothing but its
    noise, while c may be plain in a single rollout. No angle shows that: what is left of u points along c half of the time,
    and with few parameters exactly so. So c is followed, too, where it is told to stand much further out of its noise than u
    does out of its own, ⟨c, c⟩ / N(c,c) > 4·⟨u, u⟩ / N(u,u) (:attr:`clearer`). As long as both are lost in noise, that
    takes a ⟨c, c⟩ of four times the standard errors that anything else takes to be believed.

    n says how long a gradient stays about the same. Until then n steps along it are n times as long, and so is their bias,
    while their noise is only sqrt(n) times as long. It stays while the policy does, until that has moved by about one nat of
    KL divergence, which is quadratic in the step: n updates of KL divergence d move it by n²·d, so n = sqrt(1/d), which is 10
    for the usual d = 0.01 of PPO (docs/defaults.md has the measured ones).

    Between what is told to be worth a correction and what is told to be bearable lies what is not told at all. There
    ``before`` decides, which is what the task lets expect: as a rule, the algorithm as it is; the full correction where the
    actor sees less than the critic, and must treat states alike that want different actions.

    :param n: number of rollouts over which noise averages out and bias does not
    :param memory: number of rollouts over which earlier ones are forgotten by a factor e
    :param before: strength in [0, 1] as long as nothing is told either way
    """

    #: share of ⟨c, c⟩ that bias² must be above to be worth a correction
    BEARABLE = 0.5
    #: fewest standard errors above that at which the bias begins to count, and how many more until it counts in full
    DOUBT, TRUST = 1.5, 1.5
    #: standard errors at which the length of a gradient is known
    KNOWN = 1.5
    #: share of the gain along u that must be real, below which κ is not taken
    REAL = 0.5
    #: how many times as far out of its noise as u (in squared length) c must stand to be followed, whatever their angle
    CLEARER = 4.0
    #: a rollout of fewer blocks is taken for one block, and so many of them for a rollout
    FEW, ENOUGH = 4, 16

    def __init__(
        self,
        n: float = 10.0,
        memory: float = 20.0,
        before: float = 0.0,
    ) -> None:
        if not n >= 1.0:
            raise ValueError(f"`n` must be at least 1 rollout, got {n!r}.")
        if not memory >= 1.0:
            raise ValueError(f"`memory` must be at least 1 rollout, got {memory}.")
        if not 0.0 <= before <= 1.0:
            raise ValueError(f"`before` must be from 0 to 1, got {before!r}.")
        self.n = n
        self.memory = memory
        self.before = before
        # sums over blocks of their weight w, of w², of w·x and w·x·xᵀ, x = (⟨u,u⟩, ⟨u,c⟩, ⟨c,c⟩, N(u,u), N(u,c), N(c,c))
        self._weight = self._squared_weight = 0.0
        self._looks = 0
        self._first = np.zeros(6)
        self._second = np.zeros((6, 6))
        # both gradients averaged over about n rollouts, shape (2, P), and how many rollouts that is
        self._past: np.ndarray | None = None
        self._rollouts = 0.0
        # gradients of short rollouts, as long as they are not enough: arrays (2, P)
        self._held: list[np.ndarray] = []

    def update(
        self,
        u: np.ndarray,
        c: np.ndarray,
        sizes: np.ndarray | None = None,
        independent: np.ndarray | None = None,
    ) -> bool:
        """
        Take in one rollout.

        :param u: uncorrected gradient on each block, shape (M, P)
        :param c: corrected gradient on each block, same shape
        :param sizes: rows of each block, shape (M,); all the same if not given
        :param independent: which blocks share no noise (:func:`independent_blocks`); all if not given
        :return: whether the rollout told anything; one without independent blocks, of zero gradients or of
            non-finite ones does not
        """
        # divided by the largest number first, so that no square overflows
        peak = np.maximum(np.max(np.abs(u), initial=0.0), np.max(np.abs(c), initial=0.0))  # keeps a not-a-number
        if not (np.isfinite(peak) and peak > 0.0):
            return False
        if len(u) < self.FEW:
            # a rollout this short is one block among those of its neighbours
            if self._held and self._held[0].shape[1] != u.shape[1]:
                self._held = []  # parameters were frozen or thawed
            self._held.append(np.stack([np.average(x, axis=0, weights=sizes) for x in (u, c)]))
            if len(self._held) < self.ENOUGH:
                return False
            (u, c), sizes, independent = np.stack(self._held, axis=1), None, None
            self._held = []
            peak = max(np.abs(u).max(), np.abs(c).max())
        sizes, independent = filled(len(u), sizes, independent)
        if not independent.any():
            return False
        x = thinned(u, c, peak)
        x /= np.sqrt(np.mean(np.sum(x * x, axis=2)))
        signals, pairs = self._with_the_past(x, sizes, independent)
        mean = np.tensordot(sizes / sizes.sum(), x, axes=(0, 1))
        self._remember(mean)
        noise = mean @ mean.T - signals.mean(axis=0)
        upper = np.triu_indices(2)
        values = np.concatenate([signals[:, upper[0], upper[1]], np.tile(noise[upper], (len(signals), 1))], axis=1)
        forget = np.exp(-1.0 / self.memory)
        self._looks += 1
        self._weight = float(forget * self._weight + pairs * len(values))
        self._squared_weight = float(forget**2 * self._squared_weight + pairs**2 * len(values))
        self._first = forget * self._first + pairs * values.sum(axis=0)
        self._second = forget * self._second + pairs * values.T @ values
        return True

    def _with_the_past(self, x: np.ndarray, sizes: np.ndarray, independent: np.ndarray) -> tuple[np.ndarray, float]:
        """
        What each source of noise of a rollout says of the products, by its pairs with other sources and with the past.

        :param x: both gradients on each block, shape (2, M, P)
        :param sizes: rows of each block
        :param independent: which blocks share no noise
        :return: pseudo-values, shape (G, 2, 2), and the number of pairs as a multiple of those that a rollout has by itself
        """
        if self._past is None or self._past.shape != x[:, 0].shape:
            return pseudo_values(gram_of(x), sizes, independent), 1.0
        rollouts = np.exp(-1.0 / self.n) * self._rollouts
        # one more block, as large as all that it remembers, and independent of every other
        gram = gram_of(np.concatenate([x, self._past[:, None]], axis=1))
        independent = np.pad(independent, (0, 1), constant_values=True)
        independent[-1, -1] = False
        return pseudo_values(gram, np.append(sizes, rollouts * sizes.sum()), independent, fixed=1), 1.0 + 2.0 * rollouts

    def _remember(self, mean: np.ndarray) -> None:
        """
        Take a rollout's gradients into the past.

        :param mean: both gradients of the rollout, shape (2, P)
        """
        if self._past is None or self._past.shape != mean.shape:
            self._past, self._rollouts = np.zeros_like(mean), 0.0
        self._rollouts = float(np.exp(-1.0 / self.n) * self._rollouts + 1.0)
        self._past += (mean - self._past) / self._rollouts

    @property
    def _degrees_of_freedom(self) -> float:
        """Number of blocks that count, less one; blocks all remembered alike count in full."""
        return self._weight**2 / self._squared_weight - 1.0 if self._weight > 0.0 else 0.0

    @property
    def known(self) -> bool:
        """Whether there are two blocks to compare, without which nothing can be told from noise."""
        return self._degrees_of_freedom > 0.5

    def _error(self, direction: np.ndarray) -> float:
        """Standard error of a linear function of the six averages."""
        mean = self._first / self._weight
        covariance = self._second / self._weight - np.outer(mean, mean)
        return float(np.sqrt(max(direction @ covariance @ direction, 0.0) / self._degrees_of_freedom))

    def _errors_from_zero(self, direction: np.ndarray) -> float:
        """How many standard errors a linear function of the averages is above 0, as if it were normally distributed."""
        value, error, freedom = float(direction @ self._first) / self._weight, self._error(direction), self._degrees_of_freedom
        if error <= ROUNDING * abs(value):
            return float(np.sign(value) * np.inf) if value else 0.0
        t = value / error
        return float(np.sign(t) * (8.0 * freedom + 1.0) / (8.0 * freedom + 3.0) * np.sqrt(freedom * np.log1p(t * t / freedom)))

    def _products(self) -> Products:
        """The averages, with ⟨u, u⟩ not below what noise alone would make it: else κ, which divides by it, would be noise."""
        uu, uc, cc, nuu, nuc, ncc = self._first / self._weight
        uu = max(uu, self.KNOWN * self._error(np.eye(6)[0]))
        uc = max(uc, 0.0) if uu > 0.0 else 0.0
        return Products(np.array([[uu, uc], [uc, cc]]), np.array([[max(nuu, 0.0), nuc], [nuc, max(ncc, 0.0)]]))

    def _bias_errors(self) -> float:
        """How many standard errors bias² is above a bearable one; below 0, if it is bearable; 0 where neither is known."""
        if not self.known:
            return 0.0
        signal, noise = self._products()
        kappa = max(uncorrected_scale(signal), self.REAL)
        direction = np.array([kappa**2, -2.0 * kappa, 1.0 - self.BEARABLE, 0.0, 0.0, 0.0])
        if abs(direction @ self._first) / self._weight <= ROUNDING * (abs(signal[1, 1]) + noise[1, 1]):
            return 0.0
        return self._errors_from_zero(direction)

    @property
    def bias(self) -> float:
        """
        How many standard errors bias² is above a bearable one, over recent rollouts; 0 where it is not, or is not known.

        It is what no scale of the uncorrected gradient can mend, bias² = |c - κu|² = ⟨c, c⟩ - 2κ⟨u, c⟩ + κ²⟨u, u⟩.
        """
        return max(self._bias_errors(), 0.0)

    @property
    def doubt(self) -> float:
        """How many standard errors are believed to be chance: the largest of t looks at noise is about sqrt(2·ln t)."""
        return max(self.DOUBT, float(np.sqrt(2.0 * np.log(max(self._looks, 1)))))

    @property
    def _believed(self) -> tuple[float, float]:
        """Standard errors at which something begins to be believed, and is believed in full."""
        return self.doubt, self.doubt + self.TRUST

    @property
    def trust(self) -> float:
        """How far the bias is believed, in [0, 1]."""
        return _ramp(self.bias, *self._believed)

    @property
    def bearable(self) -> float:
        """How far the bias is told to be bearable, in [0, 1]."""
        return _ramp(-self._bias_errors(), *self._believed)

    @property
    def lost(self) -> float:
        """How much of the gain along u is told to be missing, in [0, 1]: 0 if half of it or more is real, 1 if none is."""
        if not self.known:
            return 0.0
        claimed = self._errors_from_zero(np.eye(6)[0])
        missing = self._errors_from_zero(np.array([self.REAL, -1.0, 0.0, 0.0, 0.0, 0.0]))
        real = uncorrected_scale(self._products().signal)
        return _ramp(min(claimed, missing), *self._believed) * _ramp(-real, -self.REAL, 0.0)

    @property
    def clearer(self) -> float:
        """
        How far c is told to stand :attr:`CLEARER` times as far out of its noise as u out of its own, in [0, 1].

        Weights add noise, so that of c is not taken to be less than that of u.
        """
        if not self.known:
            return 0.0
        (nuu, _), (_, ncc) = self._products().noise
        direction = np.array([-max(ncc, nuu), 0.0, nuu / self.CLEARER, 0.0, 0.0, 0.0])
        return _ramp(self._errors_from_zero(direction), *self._believed)

    @property
    def expected(self) -> float:
        """What :attr:`before` says, as far as nothing is told either way."""
        return self.before * (1.0 - self.trust) * (1.0 - self.bearable)

    @property
    def k(self) -> float:
        """How far to correct, in [0, 1]; :attr:`before` as long as nothing is known."""
        if not self.known:
            return self.before
        return max(least_error_strength(*self._products(), self.n, self.trust), self.lost, self.clearer, self.expected)

    @property
    def cosine(self) -> float:
        """Noise-free cosine of corrected and uncorrected gradient; not-a-number where one of them is lost in noise."""
        if not self.known or min(self._errors_from_zero(np.eye(6)[i]) for i in (0, 2)) < self.KNOWN:
            return float("nan")
        uu, uc, cc = self._first[:3]
        return gradient_cosine(np.array([[uu, uc], [uc, cc]]))

    def get_state(self) -> dict[str, float | np.ndarray]:
        """
        What was learned, as plain numbers and arrays.

        :return: what :meth:`set_state` takes
        """
        return {
            "looks": float(self._looks),
            "weight": self._weight,
            "squared_weight": self._squared_weight,
            "first": self._first.copy(),
            "second": self._second.copy(),
            "past": np.empty((2, 0)) if self._past is None else self._past.copy(),
            "rollouts": self._rollouts,
            "held": np.array(self._held),
        }

    def set_state(self, state: dict[str, float | np.ndarray]) -> None:
        """
        Go on from what was learned before.

        :param state: what :meth:`get_state` gave
        """
        self._looks = int(state["looks"])
        self._weight, self._squared_weight = float(state["weight"]), float(state["squared_weight"])
        self._first, self._second = (np.array(state[name], dtype=np.float64) for name in ("first", "second"))
        past = np.array(state["past"], dtype=np.float64)
        self._past, self._rollouts = (past if past.size else None), float(state["rollouts"])
        self._held = list(np.asarray(state["held"]))
