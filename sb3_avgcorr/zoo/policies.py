"""A policy for the paper's networks, usable by its dotted name from RL Zoo's YAML files."""

from typing import Any

from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import create_mlp
from torch import nn


class TwoActivationsPolicy(ActorCriticPolicy):
    """
    SB3's MlpPolicy whose critic has an activation function of its own: the authors' PPO has a tanh actor and a ReLU critic.

    :param args: as for ActorCriticPolicy
    :param critic_activation_fn: activation function of the critic's hidden layers; ``activation_fn`` is the actor's
    :param kwargs: as for ActorCriticPolicy
    """

    def __init__(self, *args: Any, critic_activation_fn: type[nn.Module] = nn.ReLU, **kwargs: Any) -> None:
        self.critic_activation_fn = critic_activation_fn
        super().__init__(*args, **kwargs)

    def _build_mlp_extractor(self) -> None:
        super()._build_mlp_extractor()
        arch = self.net_arch["vf"] if isinstance(self.net_arch, dict) else self.net_arch
        layers = create_mlp(self.features_dim, -1, list(arch), self.critic_activation_fn)
        self.mlp_extractor.value_net = nn.Sequential(*layers).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "critic_activation_fn": self.critic_activation_fn}
