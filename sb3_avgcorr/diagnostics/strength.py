"""The strength that ``correction_strength="auto"`` would choose on a task, and why."""

from typing import NamedTuple

import numpy as np

from sb3_avgcorr.common.gradients import gradient_products
from sb3_avgcorr.common.strength import Strength, gradient_cosine, least_error_strength

#: independent parts of the rollout, at most, that tell how sure the bias is
PARTS = 16


class ChosenStrength(NamedTuple):
    """How far to correct, and what it rests on."""

    k: float
    cosine: float  # of corrected and uncorrected gradient, free of noise; NaN where one is lost in it
    bias: float  # how many standard errors the squared bias of the uncorrected gradient is above a bearable one
    doubt: float  # how many standard errors are believed to be chance
    lost: float  # how much of what the uncorrected gradient claims to gain is told to be missing, in [0, 1]
    clearer: float  # how far the corrected gradient is told to stand much clearer of its noise, in [0, 1]
    expected: float  # what an actor that sees less than the critic lets expect, as far as nothing is told, in [0, 1]
    noise: float  # variance of the corrected gradient, as a multiple of the uncorrected one's
    rollout: int  # steps of the training rollouts that it is for

    @property
    def why(self) -> str:
        """The reason in one sentence."""
        noise = f"the corrected gradient has {self.noise:.1f} times the variance of the uncorrected one"
        if self.lost > 0.0 and self.k == self.lost:
            return f"less than half of the gain that the uncorrected gradient promises is real, and {noise}"
        if self.clearer > 0.0 and self.k == self.clearer:
            return f"the corrected gradient stands much clearer of its noise than the uncorrected one does, and {noise}"
        if self.expected > 0.0 and self.k == self.expected:
            return f"the actor sees less than the critic, the bias was not found to be bearable, and {noise}"
        errors = f"{self.bias:.1f} standard errors above a bearable one"
        if self.k == 0.0 and self.bias < self.doubt:
            return f"no bias was found that would be worth it ({errors}; it counts from {self.doubt:.1f}), and {noise}"
        return f"the bias is {errors}, and on rollouts of {self.rollout} steps {noise}"

    def __str__(self) -> str:
        return f"{self.k:.2f}: {self.why}"


def choose_strength(u: np.ndarray, c: np.ndarray, sizes: np.ndarray, rollout: int, before: float = 0.0) -> ChosenStrength:
    """
    Choose the strength for training on rollouts of some size from the gradients of independent blocks.

    :param u: uncorrected gradient summed over each block, shape (blocks, length)
    :param c: corrected gradient summed over each block, same shape
    :param sizes: samples of each block
    :param rollout: samples of a training rollout
    :param before: strength as long as nothing is told either way
    :return: the strength
    """
    u, c = u / sizes[:, None], c / sizes[:, None]
    # the parts of this rollout play the rollouts of a training
    strength = Strength(memory=np.inf, before=before)
    for part in np.array_split(np.arange(len(sizes)), max(1, min(PARTS, len(sizes) // 2))):
        strength.update(u[part], c[part], sizes[part])
    signal, noise = gradient_products(u, c, sizes)
    # noise falls with the size of a rollout
    least_error = least_error_strength(signal, noise * sizes.sum() / rollout, strength.n, strength.trust)
    lost, clearer, expected = strength.lost, strength.clearer, strength.expected
    more_noise = float(noise[1, 1] / noise[0, 0]) if noise[0, 0] > 0.0 else np.nan
    return ChosenStrength(
        k=max(least_error, lost, clearer, expected),
        cosine=gradient_cosine(signal),
        bias=strength.bias,
        doubt=strength.doubt,
        lost=lost,
        clearer=clearer,
        expected=expected,
        noise=more_noise,
        rollout=rollout,
    )
