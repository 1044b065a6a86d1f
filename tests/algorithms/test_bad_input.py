"""Mistakes are named: options, environments and policies that are not finite, and models that diverge."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from conftest import ClockEnv, FaultyEnv
from family import FAMILY, FULL, learned, make, make_with, vec_env
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.bac import BAC
from sb3_avgcorr.common.options import OPTIONS
from sb3_avgcorr.errors import Diverged

# Options

#: for each option, values that make no sense, and what the error must say is right
SENSELESS: dict[str, tuple[list[Any], str]] = {
    "correction": (["average", False, 1, ""], "'averaging', 'power' or None"),
    "correction_strength": ([-0.1, 1.1, np.nan, "Auto", True, None], r"'auto' or in \[0, 1\]"),
    "correction_network": (["both", None], "'shared' or 'separate'"),
    "correction_lambda": ([1.5, -0.1, None, np.nan, "0.5"], r"in \[0, 1\]"),
    "correction_learning_rate": ([-1e-3, np.inf, "fast", True], "None, a number >= 0 or a schedule"),
    "correction_epochs": ([-1, 1.5, True], "None or a whole number >= 0"),
    "correction_batch_size": ([0, 64.5, "64", True], "None or a whole number >= 1"),
    "correction_averaging": (["no", 1, None], "True or False"),
    "correction_shrinkage": (["no", 1, None], "True or False"),
    "normalize_correction": (["batch", None, 1], "True, False or 'running'"),
    "fast": (["yes", None, 1], "True, False or 'always'"),
    "correction_loss": (["l1", None], "'bce' or 'mse'"),
    "correction_scale": ([0.0, -1.0, np.inf, None, 50.0], "a number > 0|1 with correction_loss='bce'"),
    "correction_coef": ([-1.0, np.inf, "1"], "None or a number >= 0"),
    "correction_order": (["during", None], "'before' or 'after'"),
    "normalize_before_weighting": (["no", 0, None], "True or False"),
    "critic_learning_rate": ([-1.0, np.nan, "1e-3"], "None, a number >= 0 or a schedule"),
    "critic_epochs": ([-2, True, 1.0], "a whole number >= 0"),
    "critic_lambda": ([2.0, -0.5, "1"], r"None or in \[0, 1\]"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_senseless_options_are_named(option: str) -> None:
    values, allowed = SENSELESS[option]
    for value in [*values, object(), [1.0], {"a": 1}]:
        with pytest.raises(ValueError, match=rf"^{option}=.* makes no sense: it must be .*({allowed})"):
            make("ppo", **{option: value})
        model = make("ppo")
        setattr(model, option, value)
        with pytest.raises(ValueError, match=rf"^{option}=.* makes no sense"):
            learned(model, 1)


@pytest.mark.parametrize("gamma", [0.0, 1.1, -0.5, np.nan])
@pytest.mark.parametrize("name", FAMILY)
def test_every_class_checks(name: str, gamma: float) -> None:
    with pytest.raises(ValueError, match=r"gamma=.* makes no sense: it must be in \(0, 1\]"):
        make(name, gamma=gamma)
    with pytest.raises(ValueError, match=r"correction='averagin' makes no sense: it must be 'averaging', 'power' or None"):
        make(name, correction="averagin")
    with pytest.raises(TypeError, match="correction_lamda"):
        make(name, correction_lamda=0.5)


@pytest.mark.parametrize("name", [name for name in FAMILY if name != "reinforce"])  # which takes any keyword
@pytest.mark.parametrize(("written", "meant"), [("correction_lamda", "correction_lambda"), ("learnin_rate", "learning_rate")])
def test_a_misspelt_argument(name: str, written: str, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"{FAMILY[name].ours.__name__}\(\) got .* '{written}'; did you mean '{meant}'\?"):
        make(name, **{written: 0.5})


@pytest.mark.parametrize("name", FAMILY)
def test_a_mistake_made_later_is_an_error_at_the_next_rollout(name: str) -> None:
    model = learned(make(name), 1)
    before = {key: value.clone() for key, value in model.policy.state_dict().items()}
    model.correction = "averagin"
    with pytest.raises(ValueError, match="correction='averagin' makes no sense"):
        learned(model, 1, reset_num_timesteps=False)
    assert all(th.equal(value, before[key]) for key, value in model.policy.state_dict().items()), "before the update"
    model.correction = "averaging"
    learned(model, 1, reset_num_timesteps=False)


@pytest.mark.parametrize("before, later", [(None, "averaging"), ("power", "averaging"), ("averaging", "power")])
@pytest.mark.parametrize("name", ["ppo", "bac"])
def test_a_correction_chosen_later_is_that_correction(name: str, before: Any, later: str) -> None:
    options = {**FULL, "normalize_correction": True}
    model = learned(make(name, **options, correction=before), 1)
    model.correction = later
    learned(model, 2, reset_num_timesteps=False)
    weights, powers = model.correction_weights, 0.9**model._clock.steps
    assert weights.std() > 0.0
    assert np.allclose(weights, powers / powers.mean(), rtol=1e-4) == (later == "power")


@pytest.mark.parametrize("gamma", [np.float32(0.9), np.float64(0.9), 1])
def test_numbers_may_be_numpys(gamma: Any) -> None:
    learned(make("ppo", gamma=gamma, correction_epochs=np.int64(2), correction_lambda=np.float32(0.5)), 1)


@pytest.mark.parametrize("rate", [-1.0, float("nan")])
def test_bac_checks_its_learning_rate(rate: float) -> None:
    with pytest.raises(ValueError, match=r"critic_learning_rate=.* makes no sense"):
        BAC("MlpPolicy", "CartPole-v1", critic_learning_rate=rate)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.floats(width=32),
    st.sampled_from(["averaging", "power", "shared", "separate", "auto", "running", "bce", "mse", "before", "after", "x"]),
    st.just([0.5]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(list(OPTIONS)), ANYTHING, min_size=1, max_size=4))
def test_any_option_is_refused_by_name_or_works(options: dict[str, Any]) -> None:
    try:
        model = AveragingPPO("MlpPolicy", ClockEnv(5), n_steps=16, batch_size=16, n_epochs=1, device="cpu", **options)
    except ValueError as error:
        assert any(str(error).startswith(f"{name}=") for name in [*options, "correction_scale"])  # noqa: PT017
        return
    try:
        model.learn(32)
    except Diverged:
        rates = [options.get(name) or 0.0 for name in ("critic_learning_rate", "correction_learning_rate")]
        assert max(rates) > 1.0, options
        return
    assert np.isfinite(model.correction_weights).all(), options
    assert (model.correction_weights >= 0.0).all(), options


# Environments


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("fault", ["reward", "observation"])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("at", [15, 48])  # inside a rollout, and the last step of one
def test_what_is_not_finite_is_reported(fault: str, value: float, fast: bool, at: int) -> None:
    env = vec_env("ppo", lambda: FaultyEnv(at, fault, value, length=1000), 1)
    model = make_with(FAMILY["ppo"].ours, "ppo", env, **FULL, fast=fast)
    with pytest.raises(ValueError, match=f"{fault} is not finite: {value}"):
        learned(model, 3)
    assert all(th.isfinite(p).all() for p in model.policy.parameters()), "reported before it reached the weights"
    assert all(th.isfinite(p).all() for p in model.correction_net.parameters())


@pytest.mark.parametrize("correction", ["averaging", "power", None])
@pytest.mark.parametrize("name", FAMILY)
def test_every_class_reports_it(name: str, correction: str | None) -> None:
    env = vec_env(name, lambda: FaultyEnv(20, "reward", length=1000))
    with pytest.raises(ValueError, match="The reward is not finite: nan in environment 0, step 19 of the rollout"):
        learned(make_with(FAMILY[name].ours, name, env, correction=correction), 1)


def test_place_of_an_observation_matrix() -> None:
    def env(faulty: bool) -> Any:
        return lambda: FaultyEnv(20 if faulty else 10**9, "observation", length=1000, shape=(2, 3))

    model = make_with(FAMILY["ppo"].ours, "ppo", DummyVecEnv([env(False), env(True)]))
    with pytest.raises(ValueError, match=r"observation is not finite.*environment 1"):
        learned(model, 2)


# Policies that leave the finite numbers


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("correction", ["averaging", None])
@pytest.mark.parametrize("activation", [th.nn.Tanh, th.nn.ReLU])  # large parameters, and large outputs
def test_a_learning_rate_beyond_reason(env: str, fast: bool, correction: Any, activation: Any) -> None:
    settings = {"n_steps": 256, "learning_rate": 1e20, "policy_kwargs": {"activation_fn": activation}, "seed": 0}
    model = AveragingPPO("MlpPolicy", env, correction=correction, fast=fast, **settings)
    with pytest.raises(Diverged, match=r"policy's .* not finite after update \d+; a learning rate of 1e\+20 may be too high"):
        model.learn(20_000)
    assert model.num_timesteps < 2000, "told at once"


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("task", ["discrete", "continuous"])
@pytest.mark.parametrize("name", [name for name in FAMILY if name != "ppo_mask"])
def test_parameters_that_are_not_finite(name: str, task: str, fast: bool) -> None:
    model = learned(make(name, task=task, fast=fast), 1)
    with th.no_grad():
        model.policy.action_net.weight[0, 0] = np.nan
    with pytest.raises(Diverged, match="policy's parameters are not finite after update"):
        learned(model, 2, reset_num_timesteps=False)


def test_an_environments_own_error_stays_its_own() -> None:
    env = vec_env("ppo", lambda: FaultyEnv(5, gym.error.Error("the arm is stuck"), length=30), 1)
    with pytest.raises(gym.error.Error, match="the arm is stuck"):
        learned(make_with(FAMILY["ppo"].ours, "ppo", env), 1)
