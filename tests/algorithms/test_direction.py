"""One update on the paper's counterexample goes where ∇J points, for every class, and not without the correction."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from conftest import example
from family import FAMILY, policy_name, vec_env

from sb3_avgcorr.envs.two_state import TOP, TwoStateEnv

GAMMA, THETA = 0.5, -0.5


def policy_of_theta() -> np.ndarray:
    """π of an actor that cannot tell the states apart, whose logits are THETA for "top" and 0."""
    policy = np.full((2, 2), 1.0 / (1.0 + np.exp(THETA)))
    policy[:, TOP] = 1.0 - policy[:, TOP]
    return policy


def blind(policy_class: Any) -> Any:
    """A policy of this kind whose actor cannot tell the states apart: its logits are the last layer's bias."""

    class Blind(policy_class):
        def _build_mlp_extractor(self) -> None:
            dim = getattr(self, "lstm_output_dim", self.features_dim)
            self.mlp_extractor = example.BlindActor(dim, self.net_arch, self.activation_fn, self.device)

    return Blind


def step_of_theta(name: str, seed: int, correction: str | None) -> float:
    """Change of θ = logit of "top" minus that of "bottom" in one update on one rollout, with exact advantages."""
    member = FAMILY[name]
    policy_kwargs: dict[str, Any] = {"net_arch": {"pi": [], "vf": [16]}}
    if name == "ppo_recurrent":
        policy_kwargs["lstm_hidden_size"] = 8
    options: dict[str, Any] = {"normalize_advantage": False} if name != "reinforce" else {}
    if correction == "averaging":
        # enough of a fit for one rollout of two states
        options |= {"correction_epochs": 40, "correction_batch_size": 64, "correction_learning_rate": 1e-2}
    mdp = TwoStateEnv().finite_mdp(GAMMA)
    advantages = mdp.q(policy_of_theta()) - mdp.v(policy_of_theta())[:, None]

    class ExactAdvantages(member.ours):  # type: ignore[name-defined,misc]
        def train(self) -> None:
            buffer = self.rollout_buffer
            states, actions = buffer.observations.argmax(-1), buffer.actions[..., 0].astype(int)
            buffer.advantages = advantages[states, actions].astype(np.float32)
            super().train()

    model = ExactAdvantages(
        blind(member.theirs.policy_aliases[policy_name(name)]),
        vec_env(name, lambda: gym.wrappers.TimeLimit(TwoStateEnv(), 20), n_envs=8),
        n_steps=40,
        gamma=GAMMA,
        seed=seed,
        device="cpu",
        correction=correction,
        correction_strength=1.0,
        policy_kwargs=policy_kwargs,
        **member.one_step,
        **options,
    )
    bias = model.policy.action_net.bias
    with th.no_grad():
        bias[TOP], bias[1 - TOP] = THETA, 0.0
    model.learn(320)
    return float((bias[TOP] - bias[1 - TOP]).detach()) - THETA


@pytest.mark.parametrize("name", FAMILY)
def test_direction(name: str) -> None:
    # ∇J points to "top" (both rows of the tabular gradient belong to the one parameter)
    assert TwoStateEnv().finite_mdp(GAMMA).gradient(policy_of_theta())[:, TOP].sum() > 0.0
    for correction in ("averaging", "power"):
        steps = [step_of_theta(name, seed, correction) for seed in range(3)]
        assert min(steps) > 1e-5, (correction, steps)
    uncorrected: list[float] = []
    while not (uncorrected and min(uncorrected) < -1e-5 and max(uncorrected) > 1e-5):
        assert len(uncorrected) < 10, uncorrected  # all to one side has probability 0.002
        uncorrected.append(step_of_theta(name, len(uncorrected), None))


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    results = example.main(total_timesteps=4800, seeds=1)
    assert results["averaging"][0] > 0.7
    assert results["power"][0] > 0.7
    assert results[None][0] < 0.65
    assert "correction='averaging'" in capsys.readouterr().out
