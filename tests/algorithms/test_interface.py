"""A user of SB3 or sb3-contrib finds the same arguments and methods in every class."""

import inspect
from typing import Any

import pytest
from conftest import ClockEnv
from family import FAMILY
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.common.options import OPTIONS


@pytest.mark.parametrize("name", FAMILY)
def test_takes_the_algorithms_arguments_and_the_corrections(name: str) -> None:
    member = FAMILY[name]
    theirs, ours = (dict(inspect.signature(cls).parameters) for cls in (member.theirs, member.ours))
    own = [key for key in theirs if key not in OPTIONS]
    assert [key for key in ours if key not in OPTIONS] == own
    for key in own:
        assert (ours[key].default, ours[key].kind) == (theirs[key].default, theirs[key].kind)
    for key in OPTIONS:
        assert ours[key].kind is inspect.Parameter.KEYWORD_ONLY
    for key in ours:  # sb3-contrib does not document every one of its own
        if key in OPTIONS or f":param {key}:" in (member.theirs.__doc__ or ""):
            assert f":param {key}:" in member.ours.__doc__, f"{key} is not documented"
    assert not member.ours.__doc__.strip().startswith(":param")


@pytest.mark.parametrize("name", FAMILY)
def test_methods_are_the_algorithms(name: str) -> None:
    member = FAMILY[name]
    checked = 0
    for key, method in inspect.getmembers(member.theirs, inspect.isfunction):
        ours = inspect.signature(getattr(member.ours, key)).parameters
        if not key.startswith("_") and "args" not in ours:
            assert list(ours) == list(inspect.signature(method).parameters), key
            checked += 1
    assert checked > 10


@pytest.mark.parametrize("name", [name for name in FAMILY if name != "reinforce"])
def test_learn_has_the_algorithms_defaults(name: str) -> None:
    member = FAMILY[name]
    ours, theirs = (inspect.signature(cls.learn).parameters for cls in (member.ours, member.theirs))
    for key, parameter in theirs.items():
        assert ours[key].default == (member.ours.__name__ if key == "tb_log_name" else parameter.default)


def test_positional_arguments() -> None:
    model = AveragingPPO("MlpPolicy", ClockEnv(), 1e-3, 64, 32, 3, 0.95, 0.9, correction="power")
    assert (model.n_steps, model.batch_size, model.n_epochs, model.gamma, model.gae_lambda) == (64, 32, 3, 0.95, 0.9)


@pytest.mark.parametrize("name", FAMILY)
def test_is_an_instance_of_what_it_corrects(name: str) -> None:
    member: Any = FAMILY[name]
    assert issubclass(member.ours, (member.theirs, BaseAlgorithm))
    assert member.ours.policy_aliases == member.theirs.policy_aliases
