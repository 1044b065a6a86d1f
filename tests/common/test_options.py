"""The table of options is what the signature, the checks, the docstring and the search space say."""

import inspect
from typing import Any

import optuna
import pytest

from sb3_avgcorr import AveragingA2C, AveragingBAC, AveragingCorrection, AveragingPPO
from sb3_avgcorr.common.options import OPTIONS, CorrectionOptions, check_options

CLASSES = [AveragingPPO, AveragingA2C, AveragingBAC]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_option_is_an_argument_with_the_classs_default(cls: Any) -> None:
    parameters = inspect.signature(cls).parameters
    model = cls("MlpPolicy", "CartPole-v1", device="cpu")
    for name, option in OPTIONS.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == getattr(cls, name) == getattr(model, name)
        assert option.accepts(getattr(cls, name)), name
        assert f":param {name}: " in cls.__doc__


def test_every_user_comes_before_the_authors_schedule() -> None:
    authors = [option.authors for option in OPTIONS.values()]
    assert authors == sorted(authors)
    doc = AveragingPPO.__doc__ or ""
    places = [doc.index(f":param {name}:") for name in OPTIONS]
    assert places == sorted(places)


def test_what_may_be_searched_is_accepted() -> None:
    searched = 0
    for name, option in OPTIONS.items():
        if option.search is None:
            continue
        kind, *rest = option.search
        values = rest[0] if kind == "categorical" else rest[:2]
        assert all(option.accepts(value) for value in values), name
        trial = optuna.trial.FixedTrial({name: values[0]})
        suggest = getattr(trial, f"suggest_{kind}")
        assert suggest(name, *([values] if kind == "categorical" else values)) == values[0]
        searched += 1
    assert searched > 8


def test_a_schedule_is_taken_where_it_is_said() -> None:
    for name, option in OPTIONS.items():
        assert option.accepts(lambda progress: progress) == option.schedule, name


def test_options_alone_are_checked() -> None:
    class Model(CorrectionOptions):
        gamma = 0.9

    check_options(Model())
    with pytest.raises(ValueError, match=r"correction_scale=29 makes no sense: it must be 1 with correction_loss='bce'"):
        check_options(Model(correction_scale=29))
    check_options(Model(correction_scale=29, correction_loss="mse"))
    with pytest.raises(TypeError, match="correction_stength"):
        Model(correction_stength=1.0)  # type: ignore[call-arg]


def test_the_mixin_alone_has_the_defaults() -> None:
    assert AveragingCorrection.correction == "averaging"
    assert AveragingA2C.normalize_correction == "running"
    assert AveragingBAC.correction_strength == 1.0
