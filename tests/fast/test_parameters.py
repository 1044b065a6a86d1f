"""A policy whose parameters lie in the engine's array goes on being a policy of SB3's, whatever is done to it."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch as th
from engine_models import assert_same, engine_of, with_rollout
from stable_baselines3 import PPO
from stable_baselines3.common.utils import set_random_seed

from sb3_avgcorr.fast import engine_for, parameters
from sb3_avgcorr.fast.parameters import FlatParameters


def trained(by_engine: bool, change: Callable[[PPO], Any] = lambda model: None) -> PPO:
    """A model after an update, a change, and another update."""
    model = with_rollout(n_epochs=2)
    engine = engine_of(model)
    for index in range(2):
        set_random_seed(index)
        if by_engine:
            assert engine.trains()
            engine.train()
        else:
            model.train()
        if index == 0:
            change(model)
    return model


def _set_learning_rate(model: PPO) -> None:
    model.learning_rate = 0.05
    model._setup_lr_schedule()


def _set_epsilon(model: PPO) -> None:
    model.policy.optimizer.param_groups[0]["eps"] = 0.1


def _change_in_place(model: PPO) -> None:
    with th.no_grad():
        for p in model.policy.parameters():
            p.mul_(0.5)


def _replace_data(model: PPO) -> None:
    for p in model.policy.parameters():
        p.data = 0.5 * p.data


def _load_own_parameters(model: PPO) -> None:
    parameters = copy.deepcopy(model.get_parameters())
    for value in parameters["policy"].values():
        value.add_(0.01)
    for state in parameters["policy.optimizer"]["state"].values():
        state["exp_avg"].mul_(0.5)
    model.set_parameters(parameters)


def _reset_optimizer_state(model: PPO) -> None:
    model.policy.optimizer.state.clear()


def _new_optimizer(model: PPO) -> None:
    model.policy.optimizer = th.optim.Adam(model.policy.parameters(), lr=1e-3)


def _freeze(model: PPO) -> None:
    model.policy.mlp_extractor.policy_net[0].weight.requires_grad_(False)


def _to_cpu(model: PPO) -> None:
    model.policy.to("cpu")


def _torch_step(model: PPO) -> None:
    """Somebody takes a step of their own with the policy's optimiser."""
    observations = th.zeros(5, 3)
    values, log_prob, _ = model.policy.evaluate_actions(observations, th.zeros(5, 3))
    model.policy.optimizer.zero_grad()
    (values.sum() + log_prob.sum()).backward()
    model.policy.optimizer.step()


@pytest.mark.parametrize(
    "change",
    [
        _set_learning_rate,
        _set_epsilon,
        _change_in_place,
        _replace_data,
        _load_own_parameters,
        _reset_optimizer_state,
        _new_optimizer,
        _freeze,
        _to_cpu,
        _torch_step,
    ],
)
def test_changes_between_updates(change: Callable[[PPO], None]) -> None:
    assert_same(trained(False, change), trained(True, change))


def test_engine_and_torch_take_turns() -> None:
    model, expected = with_rollout(), with_rollout()
    engine = engine_of(model)
    for index in range(4):
        for each in (model, expected):
            set_random_seed(index)
            if each is model and index % 2 == 0:
                assert engine.trains()
                engine.train()
            else:
                each.train()
    assert_same(expected, model)


def test_a_deep_copy_has_an_engine_of_its_own() -> None:
    model = trained(True)
    model.engine = engine_of(model)  # type: ignore[attr-defined]
    twin = copy.deepcopy(model)
    before = [p.detach().clone() for p in twin.policy.parameters()]
    assert twin.engine.model is twin
    set_random_seed(5)
    assert model.engine.trains()  # type: ignore[attr-defined]
    model.engine.train()  # type: ignore[attr-defined]
    assert all(th.equal(p, q) for p, q in zip(before, twin.policy.parameters(), strict=True))
    set_random_seed(5)
    assert twin.engine.trains()
    twin.engine.train()
    assert_same(model, twin)


def test_the_policy_can_be_pickled_and_saved(tmp_path: Path) -> None:
    model = trained(True)
    policy = pickle.loads(pickle.dumps(model.policy))
    for p, q in zip(policy.parameters(), model.policy.parameters(), strict=True):
        assert th.equal(p, q)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", device="cpu")
    for p, q in zip(loaded.policy.parameters(), model.policy.parameters(), strict=True):
        assert th.equal(p, q)
    a, b = loaded.policy.optimizer.state_dict(), model.policy.optimizer.state_dict()
    for index, state in b["state"].items():
        for name, value in state.items():
            assert th.equal(a["state"][index][name], value)


def test_a_state_dict_holds_no_more_than_its_parameters() -> None:
    """A view saved with all of the array behind it would make files many times as large."""
    model = with_rollout()
    sizes = []
    for _ in range(2):
        file = io.BytesIO()
        th.save(model.policy.state_dict(), file)
        sizes.append(file.tell())
        assert engine_for(model) is not None
    assert abs(sizes[1] - sizes[0]) < 2000


def test_an_untrained_model_has_no_optimiser_state() -> None:
    model = with_rollout()
    engine = engine_for(model)
    assert engine is not None
    assert engine.serves()
    assert model.policy.optimizer.state_dict()["state"] == {}


def test_training_mode_is_that_of_sb3_in_every_module() -> None:
    model = with_rollout()
    engine = engine_of(model)
    assert not any(module.training for module in model.policy.modules())
    engine.train()
    assert all(module.training for module in model.policy.modules())
    seen: list[bool] = []
    model.policy.set_training_mode = seen.append  # type: ignore[method-assign]
    engine.train()
    assert seen == [True]


def test_autograd_goes_on_working_beside_it() -> None:
    """A graph made before and another made after an update give gradients, as with torch's own in-place steps."""
    model = trained(True)
    values = model.policy.predict_values(th.zeros(2, 3))
    values.sum().backward()
    engine_of(model).train()
    model.policy.optimizer.zero_grad()
    model.policy.predict_values(th.zeros(2, 3)).sum().backward()
    assert model.policy.value_net.bias.grad is not None


def test_two_models_in_two_threads() -> None:
    # np.random is one stream for all threads: each minibatch is the whole rollout, whose order matters by rounding only
    alone, together = ([with_rollout(n_epochs=2, batch_size=96) for _ in range(2)] for _ in range(2))

    def train(model: PPO) -> None:
        engine = engine_of(model)
        for _ in range(20):
            assert engine.trains()
            engine.train()

    for model in alone:
        train(model)
    threads = [threading.Thread(target=train, args=(model,)) for model in together]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(alone, together, strict=True):
        for p, q in zip(a.policy.parameters(), b.policy.parameters(), strict=True):
            th.testing.assert_close(p, q, rtol=1e-4, atol=1e-4)


def test_every_trained_parameter_must_be_in_a_group() -> None:
    first, second = th.nn.Parameter(th.zeros(2)), th.nn.Parameter(th.zeros(2))
    with pytest.raises(ValueError, match="exactly one group"):
        FlatParameters([first, second], th.optim.Adam([first]))


def test_a_parameter_without_a_gradient_keeps_no_subnormal_moment() -> None:
    """As behind a ReLU that never fires again. Torch's own Adam keeps subnormal moments for ever; parameters are the same."""
    start = th.linspace(-1.0, 1.0, 10)
    theirs, ours = (th.nn.Parameter(start.clone()) for _ in range(2))
    adam, flat = th.optim.Adam([theirs], lr=0.01), FlatParameters([ours], th.optim.Adam([ours], lr=0.01))
    flat.adopt()
    flat.adopt_moments()
    gradient = th.ones(10)
    for step in range(1200):
        gradient[:5] = float(step < 10)
        gradient[5:] = -gradient[5:]
        theirs.grad = gradient
        adam.step()
        flat.gradient[:] = gradient.numpy()
        flat.step()
    th.testing.assert_close(ours.data[:5], theirs.data[:5], rtol=1e-6, atol=1e-7)
    th.testing.assert_close(ours.data[5:], theirs.data[5:], rtol=1e-4, atol=1e-5)
    smallest = th.finfo(th.float32).tiny
    assert th.all(adam.state[theirs]["exp_avg"][:5] < smallest)
    assert th.all(adam.state[theirs]["exp_avg"][:5] > 0.0)
    assert th.all(flat.optimizer.state[ours]["exp_avg"][:5] == 0.0)


@pytest.mark.parametrize("rule", [parameters._adam, parameters._fused_adam])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_both_forms_of_adam_are_torchs(
    monkeypatch: pytest.MonkeyPatch, rule: Callable[..., None], weight_decay: float
) -> None:
    """Two groups with settings of their own, 20 steps."""
    monkeypatch.setattr(parameters, "adam_rule", lambda: rule)
    start = [th.linspace(-1.0, 1.0, 12).view(3, 4), th.linspace(1.0, 2.0, 5)]
    theirs, ours = ([th.nn.Parameter(x.clone()) for x in start] for _ in range(2))
    groups = [
        [
            {"params": [first], "lr": 0.01, "eps": 1e-5},
            {"params": [second], "lr": 0.003, "betas": (0.5, 0.9), "weight_decay": weight_decay},
        ]
        for first, second in (theirs, ours)
    ]
    adam, flat = th.optim.Adam(groups[0]), FlatParameters(ours, th.optim.Adam(groups[1]))
    assert flat.adopt()
    assert flat.adopt_moments()
    generator = th.Generator().manual_seed(0)
    for _ in range(20):
        for a, b in zip(theirs, ours, strict=True):
            a.grad = th.randn(a.shape, generator=generator)
            flat.gradients[b][:] = a.grad.numpy()
        adam.step()
        flat.step()
    for a, b in zip(theirs, ours, strict=True):
        th.testing.assert_close(b.data, a.data, rtol=1e-5, atol=1e-6)
        for name, value in adam.state[a].items():
            th.testing.assert_close(flat.optimizer.state[b][name], value, rtol=1e-5, atol=1e-7)


def unknown(*args: Any, **kwargs: Any) -> None:
    raise TypeError("another signature")


def does_nothing(*args: Any, **kwargs: Any) -> None:
    return


@pytest.mark.parametrize("fused", [unknown, does_nothing])
def test_without_a_fused_adam_numpy_serves(monkeypatch: pytest.MonkeyPatch, fused: Callable[..., None]) -> None:
    """As with a release of torch that has no such function, or another one of that name."""
    choose = parameters.adam_rule.__wrapped__
    assert choose() is parameters._fused_adam  # the release that is pinned has it
    monkeypatch.setattr(parameters, "_fused_adam", fused)
    assert choose() is parameters._adam
