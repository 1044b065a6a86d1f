"""``fast`` gives the same results in less time, for every class, and gives way to whatever a user puts into the policy."""

from typing import Any

import numpy as np
import pytest
import torch as th
from family import FAMILY, FULL, learned, make, snapshot

#: options under which something could go another way
WAYS: dict[str, dict[str, Any]] = {
    "power": {"correction": "power"},
    "averaging": {"correction_learning_rate": 1e-3},
    "after": {
        "correction_order": "after",
        "correction_network": "shared",
        "critic_epochs": 1,
        "correction_learning_rate": 1e-3,
    },
}


def vector(model: Any) -> np.ndarray:
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("task", ["discrete", "continuous"])
@pytest.mark.parametrize("name", ["ppo", "a2c", "bac", "trpo", "reinforce"])
def test_same_result_to_rounding(name: str, task: str, way: str) -> None:
    fast, slow = (learned(make(name, task=task, **FULL, **WAYS[way], fast=fast)) for fast in (True, False))
    np.testing.assert_allclose(vector(fast), vector(slow), atol=1e-4)
    np.testing.assert_allclose(fast.correction_weights, slow.correction_weights, rtol=1e-3)
    for part in ("last_obs", "n_updates"):
        np.testing.assert_array_equal(snapshot(fast)[part], snapshot(slow)[part])


@pytest.mark.parametrize("name", FAMILY)
def test_always_is_fast_without_a_correction_too(name: str) -> None:
    """The algorithm to rounding: the same actions and episodes, parameters that differ in the last digits."""
    ours = learned(make(name, correction=None, fast="always"))
    theirs = learned(make(name, ours=False))
    np.testing.assert_allclose(vector(ours), vector(theirs), atol=2e-5)
    np.testing.assert_array_equal(ours._last_obs, theirs._last_obs)
    np.testing.assert_array_equal(ours.correction_weights, 1.0)


@pytest.mark.parametrize("part", ["policy", "mlp_extractor", "action_net", "features_extractor"])
def test_hooks_are_called(part: str) -> None:
    counts = []
    for fast in (True, False):
        model, calls = make("ppo", **FULL, correction="power", fast=fast), []
        module = model.policy if part == "policy" else getattr(model.policy, part)
        module.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        learned(model, 2)
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("later", [False, True])
def test_a_method_put_on_the_policy_is_called(later: bool) -> None:
    model = make("ppo", **FULL, correction="power")
    if later:
        learned(model, 1)
    forward, calls = model.policy.forward, []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return forward(*args, **kwargs)

    model.policy.forward = counted
    learned(model, 1, reset_num_timesteps=False)
    assert len(calls) == model.n_steps
