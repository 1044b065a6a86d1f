"""The verdict of a diagnosis: a grade where the interval allows one, else how many steps would."""

from typing import Literal, NamedTuple

from sb3_avgcorr.diagnostics.estimates import Estimate
from sb3_avgcorr.diagnostics.gradient import GradientComparison

#: degrees from which a change of the gradient is called moderate and large
MODERATE_ANGLE, LARGE_ANGLE = 10.0, 30.0
#: total variation from which the mismatch of the states is called so, where the gradient itself is lost in noise
MODERATE_VARIATION, LARGE_VARIATION = 0.05, 0.2
#: a diagnosis that would need more than so many times its steps is not worth the wait
PATIENCE = 100.0

Severity = Literal["negligible", "moderate", "large", "cannot tell yet"]


class Verdict(NamedTuple):
    """A grade, the reason for it, and what would help if there is none."""

    severity: Severity
    why: str
    #: steps of a diagnosis that would tell; None: this one tells, or steps do not help
    steps: int | None = None
    #: what would tell, where this diagnosis does not
    remedy: str = ""


def grade(estimate: Estimate, moderate: float, large: float) -> Severity:
    """
    Grade a number by its interval: both ends must have the same grade.

    :param estimate: the number
    :param moderate: threshold of ``"moderate"``
    :param large: threshold of ``"large"``
    :return: the grade, or ``"cannot tell yet"`` where the interval reaches over a threshold
    """

    def of(value: float) -> Severity:
        return "large" if value >= large else "moderate" if value >= moderate else "negligible"

    return of(estimate.low) if of(estimate.low) == of(estimate.high) else "cannot tell yet"


def steps_to_tell(estimate: Estimate, moderate: float, large: float, n_steps: int) -> int | None:
    """
    Forecast the steps after which an interval reaches over no threshold, if the number stays where it is and the interval
    shrinks with 1/√n.

    :param estimate: the number
    :param moderate: one threshold
    :param large: the other
    :param n_steps: the steps that gave this interval
    :return: steps in all, rounded up to two digits; None if that is more than 100 times ``n_steps``
    """
    factor = 1.0
    for threshold in moderate, large:
        if estimate.low < threshold <= estimate.high:
            side, gap = (
                (estimate - estimate.low, estimate - threshold)
                if estimate >= threshold
                else (estimate.high - estimate, threshold - estimate)
            )
            if side >= gap * PATIENCE**0.5:
                return None
            factor = max(factor, (side / gap) ** 2)
    needed = factor * n_steps
    digit = 10 ** max(len(str(int(needed))) - 2, 0)
    return int(-(-needed // digit) * digit)


def time_is_hidden(angle: Estimate, gradient: GradientComparison) -> bool:
    """
    Tell whether γ^t turns the gradient further than the weights ĉ(s) do, beyond chance.

    :param angle: degrees by which the weights ĉ(s) turn the gradient
    :param gradient: degrees by which γ^t turns it
    :return: whether what the critic sees does not tell the time well enough
    """
    return bool(angle < gradient.power_angle.low)


def judge(
    angle: Estimate, gradient: GradientComparison, variation: Estimate, gamma: float, n_steps: int, *, corrects: bool
) -> Verdict:
    """
    Judge the mismatch by the gradient's angle, and by the states where the gradient does not tell.

    :param angle: degrees by which the weights ĉ(s) turn the gradient
    :param gradient: what else is known of the gradients
    :param variation: total variation of discounted and sampled states
    :param gamma: discount factor
    :param n_steps: steps of the rollout
    :param corrects: whether ĉ(s) is told from a constant
    :return: the verdict
    """
    if gamma == 1.0:
        return Verdict("negligible", "without discounting (gamma=1) there is no mismatch")
    if gradient.cancels:
        return Verdict(
            "large", "the corrected gradient stands out of the noise; the uncorrected one, where states cancel out, does not"
        )
    by_states = grade(variation, MODERATE_VARIATION, LARGE_VARIATION)
    states = (
        f"total variation {variation:.3f} ({variation.low:.3f} to {variation.high:.3f}; thresholds {MODERATE_VARIATION:g} and "
        f"{LARGE_VARIATION:g})"
    )
    if not gradient.corrected_seen and not gradient.uncorrected_seen:
        why = f"both gradients are lost in noise, so the states alone decide: {states}"
        return _verdict(by_states, why, steps_to_tell(variation, MODERATE_VARIATION, LARGE_VARIATION, n_steps), n_steps)
    hidden = time_is_hidden(angle, gradient)
    judged = gradient.power_angle if hidden else angle
    by_angle = grade(judged, MODERATE_ANGLE, LARGE_ANGLE)
    if by_angle == "cannot tell yet" and not corrects and by_states == "negligible":
        return Verdict("negligible", f"the states do not tell early steps from late ones beyond chance: {states}")
    turned = (
        f"{'γ^t itself' if hidden else 'the correction'} turns the gradient by {judged:.1f}° ({judged.low:.1f}° to "
        f"{judged.high:.1f}°; thresholds {MODERATE_ANGLE:.0f}° and {LARGE_ANGLE:.0f}°)"
    )
    if by_angle == "negligible" and by_states == "large":
        return Verdict(
            "cannot tell yet",
            f"{turned}, but that is this policy's gradient; discounted and sampled states are far apart: {states}",
            remedy="Another policy's gradient may be turned: diagnose a trained model (--model), or along a training run "
            "(--algo ppo, CorrectionDiagnosticsCallback).",
        )
    return _verdict(by_angle, turned, steps_to_tell(judged, MODERATE_ANGLE, LARGE_ANGLE, n_steps), n_steps)


def _verdict(severity: Severity, why: str, steps: int | None, n_steps: int) -> Verdict:
    if severity != "cannot tell yet":
        return Verdict(severity, why)
    if steps is None:
        return Verdict(severity, why, remedy="No sensible number of steps would tell: the number is too close to a threshold.")
    remedy = (
        f"About {steps - n_steps} more steps would tell, if the number stays where it is: diagnose with n_steps={steps} "
        f"(--n-steps {steps})."
    )
    return Verdict(severity, why, steps, remedy)
