"""What MaskablePPO and RecurrentPPO have beyond PPO: masks are kept, and the correction sees the critic's memory."""

from typing import Any

import numpy as np
import pytest
import torch as th
from conftest import ClockEnv
from family import FULL, SMALL_LSTM, learned, make
from test_actor_untouched import LinearExtractor

from sb3_avgcorr import AveragingPPO, AveragingRecurrentPPO

# Masks


@pytest.mark.parametrize("options", [{}, {"correction": "power"}, {"correction_strength": "auto"}], ids=str)
def test_masks_are_kept(options: dict[str, Any]) -> None:
    # MaskedEnv raises at an invalid action
    model = learned(make("ppo_mask", task="masked", **{**FULL, **options}), 4)
    assert np.isfinite(model.correction_weights).all()
    masks = model.rollout_buffer.action_masks.reshape(-1, 3).astype(bool)
    assert masks.sum(axis=1).tolist() == [2] * 48
    actions, _ = model.predict(np.zeros((48, 3), dtype=np.float32), action_masks=masks)
    assert masks[np.arange(48), actions].all()


def test_the_strengths_gradient_knows_the_masks() -> None:
    class Watched(type(make("ppo_mask"))):  # type: ignore[misc]
        def train(self) -> None:
            rows = np.arange(10, 30)
            told = self._log_prob(rows).detach().numpy()
            np.testing.assert_allclose(told, self.rollout_buffer.log_probs.reshape(-1)[rows], atol=1e-6)
            super().train()

    model = make("ppo_mask", task="masked")
    Watched("MlpPolicy", model.get_env(), n_steps=24, batch_size=24, seed=0, device="cpu").learn(96)


def test_masks_can_be_left_out() -> None:
    model = make("ppo_mask").learn(96, use_masking=False)
    assert (model.rollout_buffer.action_masks == 1.0).all()
    with pytest.raises(AssertionError, match="an invalid action"):
        make("ppo_mask", task="masked").learn(96, use_masking=False)


# Memory

LSTMS: dict[str, dict[str, Any]] = {
    "own": {},
    "two layers": {"n_lstm_layers": 2},
    "shared": {"shared_lstm": True, "enable_critic_lstm": False},
    "none for the critic": {"enable_critic_lstm": False},
    "own extractors": {"share_features_extractor": False, "features_extractor_class": LinearExtractor},
}


@pytest.mark.parametrize("lstm", LSTMS.values(), ids=LSTMS)
@pytest.mark.parametrize("task", ["discrete", "dict"])
def test_memory_is_the_critics(lstm: dict[str, Any], task: str) -> None:
    if task == "dict" and "features_extractor_class" in lstm:
        lstm = {"share_features_extractor": False}
    model = make("ppo_recurrent", task=task, policy_kwargs={**SMALL_LSTM, **lstm})
    _, callback = model._setup_learn(1000)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    buffer, inputs = model.rollout_buffer, model._critic_inputs()
    with th.no_grad():
        values = model.policy.predict_values(*inputs).numpy().reshape(buffer.values.shape)
        np.testing.assert_allclose(values, buffer.values, atol=1e-6)
        log_probs = model._log_prob(np.arange(48)).numpy().reshape(24, 2)
        np.testing.assert_allclose(log_probs, buffer.log_probs, atol=1e-6)

    # and the same memory is had step by step, from outside
    observations, _, starts = inputs
    state = None
    for step in range(model.n_steps):
        rows = slice(2 * step, 2 * step + 2)
        if task == "dict":  # the buffer gives a Discrete observation an axis more
            spaces_of = model.observation_space.spaces
            obs: Any = {key: value[rows].numpy().reshape(2, *spaces_of[key].shape) for key, value in observations.items()}
        else:
            obs = observations[rows].numpy()
        if step > 0 and (lstm.get("enable_critic_lstm", True) or lstm.get("shared_lstm", False)):
            expected = (buffer.hidden_states_vf[step], buffer.cell_states_vf[step])
            np.testing.assert_allclose(state, expected, atol=1e-6)
        state = model.next_critic_state(obs, state, starts[rows].numpy())


def test_the_correction_sees_the_memory() -> None:
    # The observation is always the same: only a memory can tell the time.
    options: dict[str, Any] = {
        "gamma": 0.7,
        "n_steps": 64,
        "correction_strength": 1.0,
        "correction_epochs": 60,
        "correction_learning_rate": 1e-2,
        "correction_lambda": 1.0,
        "correction_shrinkage": False,
        "seed": 0,
        "device": "cpu",
    }
    blind = learned(AveragingPPO("MlpPolicy", ClockEnv(length=8, tells=False), **options), 2)
    np.testing.assert_allclose(blind.correction_weights, 1.0, atol=1e-5)
    kwargs = {"lstm_hidden_size": 16}
    model = AveragingRecurrentPPO("MlpLstmPolicy", ClockEnv(length=8, tells=False), policy_kwargs=kwargs, **options)
    learned(model, 2)
    powers = 0.7 ** (np.arange(64) % 8)
    assert np.corrcoef(model.correction_weights[:, 0], powers)[0, 1] > 0.95

    observation = np.ones((1, 1), dtype=np.float32)
    state, corrections = None, []
    for _ in range(8):
        corrections.append(model.predict_correction(observation, state).item())
        state = model.next_critic_state(observation, state)
    assert corrections[0] > corrections[2] > corrections[7]
    # an episode's start forgets the state
    assert model.predict_correction(observation, state, np.array([True])).item() == pytest.approx(corrections[0], rel=1e-5)
    assert model.predict_correction(observation, state).item() < corrections[2]
    with pytest.raises(ValueError, match=r"state has the shapes .* must be of shape \(1, 1, 16\)"):
        model.predict_correction(observation, (np.zeros((1, 2, 16)), np.zeros((1, 2, 16))))
