"""The verdict respects its own interval."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_avgcorr.diagnostics import DiagnosisReport, Estimate
from sb3_avgcorr.diagnostics.gradient import GradientComparison
from sb3_avgcorr.diagnostics.strength import ChosenStrength
from sb3_avgcorr.diagnostics.verdict import grade, steps_to_tell, time_is_hidden


def report(
    angle: tuple[float, float, float],
    variation: tuple[float, float, float] = (0.1, 0.09, 0.11),
    *,
    power: tuple[float, float, float] | None = None,
    seen: bool = True,
    cancels: bool = False,
    size: float = 0.9,
    noise: float = 1.5,
) -> DiagnosisReport:
    """A report of 1000 steps; numbers are (value, low, high)."""
    zero = Estimate(0.0, 0.0, 0.0)
    turned = Estimate(*angle)
    return DiagnosisReport(
        distance=zero,
        classifier_distance=zero,
        total_variation=Estimate(*variation),
        explained_variance=zero,
        effective_sample_size=Estimate(size, size, size),
        gradient_angle=turned,
        gradient=GradientComparison(turned, Estimate(*(power or angle)), seen, seen, cancels),
        strength=ChosenStrength(0.5, 0.9, 4.0, 1.5, 0.0, 0.0, 0.0, noise, 2048),
        weight_quantiles=(1.0,) * 5,
        gamma=0.9,
        n_steps=1000,
        n_episodes=50,
        steps=np.zeros(1),
        weights=np.ones(1),
        features=np.zeros((1, 1)),
        env="Task-v0",
    )


@pytest.mark.parametrize(
    "angle, severity, steps",
    [
        ((5.0, 1.0, 9.9), "negligible", None),
        ((20.0, 10.0, 29.9), "moderate", None),
        ((40.0, 30.0, 90.0), "large", None),
        # 2 from the threshold with an interval of 4 to that side: half the width needs four times the steps
        ((12.0, 8.0, 16.0), "cannot tell yet", 4000),
        # two thresholds: (15/10)² and (25/10)² times the steps
        ((20.0, 5.0, 45.0), "cannot tell yet", 6300),
        # at the threshold itself no number of steps tells
        ((10.0, 9.0, 11.0), "cannot tell yet", None),
        ((9.99, 0.0, 90.0), "cannot tell yet", None),
        # what issue 19 found
        ((0.0, 0.0, 90.0), "cannot tell yet", 81000),
    ],
)
def test_a_grade_needs_an_interval_between_thresholds(angle: Any, severity: str, steps: int | None) -> None:
    found = report(angle)
    assert found.severity == severity
    assert found.verdict.startswith(f"{severity}: ")
    assert found.steps_to_tell == found.as_dict()["steps_to_tell"] == steps
    if steps is not None:
        assert f"n_steps={steps}" in found.advice
        assert f"About {steps - 1000} more steps" in found.advice
    elif severity == "cannot tell yet":
        assert "No sensible number of steps" in found.advice


angles = st.tuples(*[st.floats(0.0, 180.0)] * 3).map(lambda x: (sorted(x)[1], sorted(x)[0], sorted(x)[2]))
variations = st.tuples(*[st.floats(0.0, 1.0)] * 3).map(lambda x: (sorted(x)[1], sorted(x)[0], sorted(x)[2]))


@given(angles, variations, st.booleans())
def test_negligible_is_never_said_of_what_may_be_large(angle: Any, variation: Any, corrects: bool) -> None:
    found = report(angle, variation, size=0.9 if corrects else 1.0)
    if found.severity == "negligible":
        assert angle[2] < 10.0 or (not corrects and variation[2] < 0.05)
        assert variation[1] < 0.2
    else:
        assert "little to gain" not in found.advice
    if found.severity == "large":
        assert angle[1] >= 30.0


@given(angles)
def test_after_the_steps_that_would_tell_the_interval_tells(angle: Any) -> None:
    estimate = Estimate(*angle)
    steps = steps_to_tell(estimate, 10.0, 30.0, 1000)
    if steps is None:
        assert grade(estimate, 10.0, 30.0) == "cannot tell yet"
        return
    assert steps >= 1000
    narrower = (1000 / (1.001 * steps)) ** 0.5
    later = Estimate(estimate, estimate - narrower * (estimate - angle[1]), estimate + narrower * (angle[2] - estimate))
    assert grade(later, 10.0, 30.0) != "cannot tell yet"


def test_states_far_apart_are_not_negligible_whatever_this_policys_gradient() -> None:
    found = report((0.0, 0.0, 1.2), (0.235, 0.233, 0.238))
    assert found.severity == "cannot tell yet"
    assert "0.235" in found.verdict
    assert "--algo" in found.advice
    assert report((0.0, 0.0, 1.2), (0.15, 0.1, 0.19)).severity == "negligible"


def test_states_decide_where_gradients_are_lost_in_noise() -> None:
    lost = (90.0, 0.0, 180.0)
    for variation, severity, steps in (
        ((0.02, 0.0, 0.04), "negligible", None),
        ((0.1, 0.06, 0.14), "moderate", None),
        ((0.4, 0.3, 0.5), "large", None),
        ((0.1, 0.0, 0.15), "cannot tell yet", 4000),
    ):
        found = report(lost, variation, seen=False)
        assert (found.severity, found.steps_to_tell) == (severity, steps)
        assert "lost in noise" in found.verdict
    # the corrected gradient is there and the other one is not: no angle is needed
    assert report(lost, cancels=True).severity == "large"


def test_time_is_hidden_only_where_the_power_turns_further() -> None:
    hidden = report((0.0, 0.0, 110.0), power=(104.0, 95.0, 110.0))
    assert time_is_hidden(hidden.gradient_angle, hidden.gradient)
    assert hidden.severity == "large"
    assert "γ^t itself turns the gradient by 104.0°" in hidden.verdict
    # ĉ turns the gradient further than γ^t does: nothing is hidden, and the interval of both decides
    further = report((35.0, 12.0, 35.0), power=(20.0, 12.0, 28.0))
    assert not time_is_hidden(further.gradient_angle, further.gradient)
    assert further.severity == "cannot tell yet"


def test_advice_names_noise_where_there_is_some() -> None:
    assert "add noise" in report((1.0, 0.0, 2.0), noise=1.5).advice
    assert "noise" not in report((1.0, 0.0, 2.0), noise=1.0).advice
    assert "discounted return" in report((50.0, 40.0, 60.0)).advice
    for severity in report((1.0, 0.0, 2.0)), report((50.0, 40.0, 60.0)):
        assert "costs nothing" not in str(severity)


def test_strength_is_told_with_its_reason() -> None:
    printed = str(report((20.0, 15.0, 25.0)))
    assert "correction_strength='auto' would choose 0.50: the bias is 4.0 standard errors above a bearable one" in printed
    assert "1.5 times the variance" in printed
    assert report((20.0, 15.0, 25.0)).as_dict()["strength"]["k"] == 0.5
    assert "no bias was found that would be worth it" in ChosenStrength(0.0, 0.9, 0.3, 1.5, 0.0, 0.0, 0.0, 1.5, 2048).why
