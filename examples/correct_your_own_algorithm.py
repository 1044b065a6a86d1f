"""
Correct an algorithm that this package knows nothing about: REINFORCE with a baseline, written for Stable-Baselines3.

    python examples/correct_your_own_algorithm.py

The task is the paper's counterexample. The actor cannot tell its two states apart, which want opposite actions; under
discounting the first state counts more, so "top" is right. Without the correction both states count the same, and
nothing is learned but noise.
"""

from typing import Any, ClassVar

import gymnasium as gym
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import MlpExtractor
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from torch.nn import functional as F

from sb3_avgcorr import AveragingCorrection
from sb3_avgcorr.envs.two_state import TOP, TwoStateEnv


class Reinforce(OnPolicyAlgorithm):
    """
    REINFORCE with a learned baseline: one step on -log π(a|s)·(return - baseline) for each rollout. Anybody's algorithm: it
    takes its advantages from SB3's rollout buffer, and that is all the correction asks for.

    :param policy: The policy model to use
    :param env: The environment to learn from
    :param learning_rate: The learning rate, it can be a function of the current progress remaining
    :param n_steps: The number of steps to run for each environment per update
    :param gamma: Discount factor
    :param vf_coef: Weight of the baseline's loss
    :param policy_kwargs: additional arguments to be passed to the policy on creation
    :param seed: Seed for the pseudo random generators
    :param device: Device on which the code should be run
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"MlpPolicy": ActorCriticPolicy}

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 5e-2,
        n_steps: int = 40,
        gamma: float = 0.99,
        vf_coef: float = 1.0,
        policy_kwargs: dict[str, Any] | None = None,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            n_steps=n_steps,
            gamma=gamma,
            gae_lambda=1.0,  # advantage = Monte-Carlo return - baseline
            ent_coef=0.0,
            vf_coef=vf_coef,
            max_grad_norm=0.0,
            use_sde=False,
            sde_sample_freq=-1,
            policy_kwargs=policy_kwargs,
            seed=seed,
            device=device,
            _init_setup_model=_init_setup_model,
        )

    def train(self) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        for data in self.rollout_buffer.get():
            actions = data.actions.long().flatten() if isinstance(self.action_space, gym.spaces.Discrete) else data.actions
            values, log_prob, _ = self.policy.evaluate_actions(data.observations, actions)
            loss = self.vf_coef * F.mse_loss(values.flatten(), data.returns) - (data.advantages * log_prob).mean()
            self.policy.optimizer.zero_grad()
            loss.backward()
            self.policy.optimizer.step()


class AveragingReinforce(AveragingCorrection, Reinforce):
    """The whole work: REINFORCE with the averaging correction."""


class BlindActor(MlpExtractor):
    """Hidden layers of which only the critic's (and so the correction's) see the state."""

    def forward_actor(self, features: th.Tensor) -> th.Tensor:
        return super().forward_actor(th.zeros_like(features))


class BlindActorPolicy(ActorCriticPolicy):
    """A policy with a :class:`BlindActor`."""

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = BlindActor(self.features_dim, self.net_arch, self.activation_fn, self.device)


def probability_of_top(model: OnPolicyAlgorithm) -> float:
    observation, _ = model.policy.obs_to_tensor(TwoStateEnv().reset()[0])
    with th.no_grad():
        return float(model.policy.get_distribution(observation).distribution.probs[0, TOP])  # type: ignore[union-attr]


def main(total_timesteps: int = 12_000, seeds: int = 2) -> dict[str | None, list[float]]:
    results: dict[str | None, list[float]] = {}
    for correction in (None, "power", "averaging"):
        results[correction] = []
        for seed in range(seeds):
            env = make_vec_env(lambda: gym.wrappers.TimeLimit(TwoStateEnv(), 20), n_envs=8)
            model = AveragingReinforce(
                BlindActorPolicy,
                env,
                gamma=0.8,
                correction=correction,
                correction_strength=1.0,  # the task is known to need it; "auto" would first make sure
                policy_kwargs={"net_arch": {"pi": [], "vf": [16]}},
                seed=seed,
                device="cpu",
            ).learn(total_timesteps, log_interval=10**9)
            results[correction].append(probability_of_top(model))
        shown = ", ".join(f"{p:.2f}" for p in results[correction])
        print(f"correction={correction!r:12} probability of the better action, by seed: {shown}")
    return results


if __name__ == "__main__":
    th.set_num_threads(1)
    main()
