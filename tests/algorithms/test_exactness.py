"""With nothing to correct every class is the algorithm that it corrects, to the bit (invariants 1 and 2)."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import ClockEnv
from family import FAMILY, FULL, PAIRS, assert_equal, differs, learned, make, make_with, snapshot, vec_env

#: options under which there is nothing to correct
NOTHING: dict[str, dict[str, Any]] = {
    "none": {"correction": None},
    "averaging, gamma 1": {"gamma": 1.0},
    "power, gamma 1, not fast": {"gamma": 1.0, "correction": "power", "fast": False},
}
CASES = [(name, task, case) for name, task in PAIRS for case in NOTHING if task == "discrete" or case == "none"]


@cache
def reference(name: str, task: str, gamma: float | None = None) -> dict[str, Any]:
    """The algorithm's own result; several tests compare with the same one."""
    return snapshot(learned(make(name, ours=False, task=task, **({} if gamma is None else {"gamma": gamma}))))


@pytest.mark.parametrize("name, task, case", CASES)
def test_same_as_the_algorithm(name: str, task: str, case: str) -> None:
    model = learned(make(name, task=task, **NOTHING[case]))
    ours, theirs = snapshot(model), reference(name, task, NOTHING[case].get("gamma"))
    assert theirs["optimizer"], "an optimiser that has not stepped would prove nothing"
    assert_equal(ours, theirs)
    np.testing.assert_array_equal(model.correction_weights, np.ones((model.n_steps, model.n_envs)))


@pytest.mark.parametrize("correction", ["averaging", "power"])
@pytest.mark.parametrize("name", FAMILY)
def test_the_correction_changes_the_update(name: str, correction: str) -> None:
    # else the test above could not fail
    assert differs(snapshot(learned(make(name, **FULL, correction=correction))), reference(name, "discrete", 0.9))


@pytest.mark.parametrize(
    "name, settings",
    [
        ("ppo", {"target_kl": 1e-4}),
        ("ppo", {"clip_range_vf": 0.1, "ent_coef": 0.1}),
        ("ppo", {"normalize_advantage": False}),
        ("a2c", {"use_rms_prop": False, "normalize_advantage": True}),
        ("trpo", {"sub_sampling_factor": 2}),
        ("ppo_recurrent", {"target_kl": 1e-4}),
    ],
)
def test_same_with_other_settings(name: str, settings: dict[str, Any]) -> None:
    ours = snapshot(learned(make(name, correction=None, **settings)))
    assert_equal(ours, snapshot(learned(make(name, ours=False, **settings))))


@pytest.mark.parametrize("name", FAMILY)
def test_same_when_saved_loaded_and_continued(name: str, tmp_path: Path) -> None:
    results = []
    for ours in (True, False):
        model = make(name, ours=ours, correction=None)
        learned(learned(model, 2), 2, reset_num_timesteps=False).save(tmp_path / "model")
        model = type(model).load(tmp_path / "model", env=make(name, ours=False).get_env(), device="cpu")
        results.append(snapshot(learned(model, 2, reset_num_timesteps=False)))
    assert_equal(*results)


# Weights that are all the same


@pytest.mark.parametrize("name", FAMILY)
def test_a_constant_correction_is_none(name: str) -> None:
    # a network of its own, for a shared one trains the critic as well; one that knows nothing and learns nothing
    options = {"correction_network": "separate", "correction_learning_rate": 0.0, "correction_coef": 0.0}
    model = make(name, **{**FULL, **options, "normalize_correction": True, "fast": False})
    with th.no_grad():
        for networks in (model.correction_net, model.correction_average):
            networks.load_state_dict({key: value * 0 for key, value in networks.state_dict().items()})
    assert_equal(snapshot(learned(model)), reference(name, "discrete", 0.9))
    np.testing.assert_array_equal(model.correction_weights, 1.0)


@pytest.mark.parametrize("name", FAMILY)
def test_episodes_of_one_step_need_no_correction(name: str) -> None:
    # γ^t is 1 everywhere
    member, results = FAMILY[name], []
    for cls in (member.ours, member.theirs):
        env = vec_env(name, lambda: ClockEnv(length=1))
        model = make_with(cls, name, env, correction="power", correction_strength=1.0, gamma=0.9, fast=False)
        results.append(snapshot(learned(model)))
    assert_equal(*results)


def test_a_critic_learning_rate_of_the_same_size_is_no_change() -> None:
    # Adam works element by element: parameter groups with the same learning rate must not matter
    ours = snapshot(learned(make("ppo", correction=None, critic_learning_rate=3e-4)))
    assert_equal(ours["policy"], reference("ppo", "discrete")["policy"])


# Random streams with the correction on


@pytest.mark.parametrize("network", ["shared", "separate"])
@pytest.mark.parametrize("name, task", PAIRS)
def test_construction_draws_nothing(name: str, task: str, network: str) -> None:
    options = {"correction_network": network, "critic_epochs": 1}
    assert_equal(*(snapshot(make(name, ours=ours, task=task, **options)) for ours in (True, False)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"correction": "power", "normalize_before_weighting": True, "normalize_correction": "running", "fast": False},
        {"correction_network": "shared", "correction_loss": "mse", "correction_order": "after", "critic_epochs": 2},
    ],
    ids=["default", "power", "shared"],
)
@pytest.mark.parametrize("name", FAMILY)
def test_the_correction_draws_nothing(name: str, options: dict[str, Any]) -> None:
    # Parameters differ, but episodes have a fixed length, so that the algorithm's own draws are the same in number.
    ours, theirs = (snapshot(learned(make(name, ours=each, **{**FULL, **options}))) for each in (True, False))
    assert_equal(ours["streams"], theirs["streams"])
    assert differs(ours, theirs)


@pytest.mark.parametrize("name", FAMILY)
def test_same_seed_same_result(name: str) -> None:
    assert_equal(*(snapshot(learned(make(name, gamma=0.9), 4)) for _ in range(2)))


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_reproducible_when_seeded_from_outside(name: str) -> None:
    # as SB3: who seeds numpy, torch and the environments, and gives the model no seed, gets the same result again
    def run() -> dict[str, Any]:
        np.random.seed(0)  # noqa: NPY002
        th.manual_seed(0)
        env = vec_env(name, lambda: ClockEnv(13), seed=0)
        return snapshot(learned(make_with(FAMILY[name].ours, name, env, **FULL, seed=None)))

    assert_equal(run(), run())
