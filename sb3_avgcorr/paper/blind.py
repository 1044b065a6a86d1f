"""Real algorithms on the counterexample, with an actor that sees less than its critic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import MlpExtractor

from sb3_avgcorr.a2c import AveragingA2C
from sb3_avgcorr.envs import register_envs
from sb3_avgcorr.envs.two_state import TOP
from sb3_avgcorr.ppo import AveragingPPO
from sb3_avgcorr.studies.variants import CORRECTIONS


class _Masked(MlpExtractor):
    """SB3's MLP, whose actor sees the features multiplied by a mask."""

    mask: th.Tensor

    def forward_actor(self, features: th.Tensor) -> th.Tensor:
        return super().forward_actor(features * self.mask)


class AsymmetricPolicy(ActorCriticPolicy):
    """
    An actor that sees only some components of the observation, beside a critic (and correction) that see all: asymmetric
    actor-critic, with a flat observation. It does not say so (``actor_sees_less``): the automatic strength has to find out.

    :param actor_sees: indices of the components the actor sees; none by default, which makes a policy that is the same
        in every state
    """

    def __init__(self, *args: Any, actor_sees: Sequence[int] = (), **kwargs: Any) -> None:
        self.actor_sees = tuple(actor_sees)
        super().__init__(*args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "actor_sees": self.actor_sees}

    def _build_mlp_extractor(self) -> None:
        unknown = [i for i in self.actor_sees if not 0 <= i < self.features_dim]
        if unknown:
            raise ValueError(
                f"actor_sees={self.actor_sees} must hold indices from 0 to {self.features_dim - 1}; got {unknown}"
            )
        extractor = _Masked(self.features_dim, net_arch=self.net_arch, activation_fn=self.activation_fn, device=self.device)
        mask = th.zeros(self.features_dim, device=self.device)
        mask[list(self.actor_sees)] = 1.0
        extractor.register_buffer("mask", mask)
        self.mlp_extractor = extractor


#: class, steps, settings. Advantages of one step: the two states' rewards cancel, so longer ones add only noise, and Adam
#: turns any noise into steps of full size, which would move the uncorrected agents, too, though in no direction.
ALGORITHMS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "PPO": (AveragingPPO, 30_000, {"n_steps": 1000, "batch_size": 1000, "learning_rate": 1e-3, "gae_lambda": 0.0}),
    "A2C": (AveragingA2C, 20_000, {"n_steps": 20, "gae_lambda": 0.0}),
}


def measure(
    *, seed: int, steps: int, tell: Callable[[int], None], algorithm: str, variant: str, gamma: float = 0.7
) -> dict[str, list[float]]:
    """
    One run on ``avgcorr/TwoState-v0`` with a policy that cannot tell the states apart.

    :param seed: seed of everything
    :param steps: environment steps
    :param tell: is called with the steps done so far
    :param algorithm: ``"PPO"`` or ``"A2C"``
    :param variant: one of ``CORRECTIONS``
    :param gamma: discount factor
    :return: γ, the steps, and π(top) at the end
    """
    register_envs()
    cls, _, settings = ALGORITHMS[algorithm]
    model = cls(
        AsymmetricPolicy, "avgcorr/TwoState-v0", gamma=gamma, seed=seed, device="cpu", **settings, **CORRECTIONS[variant]
    )

    def progress(locals_: dict[str, Any], globals_: dict[str, Any]) -> bool:
        tell(model.num_timesteps)
        return True

    model.learn(steps, callback=progress)
    return {"gamma": [gamma], "steps": [model.num_timesteps], "optimal_action": [top_probability(model)]}


def top_probability(model: Any) -> float:
    """
    π(top), which is the same in both states.

    :param model: a trained model
    """
    observations, _ = model.policy.obs_to_tensor(np.eye(2, dtype=np.float32))
    with th.no_grad():
        probabilities = model.policy.get_distribution(observations).distribution.probs[:, TOP]
    return float(probabilities[0])
