"""Asymmetric actor-critic: an actor that sees less than its critic, usable by its dotted name from RL Zoo's YAML files."""

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.policies import MultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import MlpExtractor
from stable_baselines3.common.type_aliases import Schedule


class AsymmetricMlpExtractor(MlpExtractor):
    """
    SB3's two MLPs, where the actor's has a number of inputs of its own.

    :param actor_dim: number of the actor's features
    :param feature_dim: number of the critic's features
    :param kwargs: as for MlpExtractor
    """

    def __init__(self, actor_dim: int, feature_dim: int, **kwargs: Any) -> None:
        super().__init__(feature_dim, **kwargs)
        actor = MlpExtractor(actor_dim, **kwargs)
        self.policy_net, self.latent_dim_pi = actor.policy_net, actor.latent_dim_pi


class AsymmetricActorCriticPolicy(MultiInputActorCriticPolicy):
    """
    SB3's MultiInputPolicy whose actor sees only some keys of the Dict observation; the critic, and with it the averaging
    correction, see all: asymmetric actor-critic (Pinto et al., 2017), for what is known in simulation and not on the robot.

    Actor and critic have a features extractor each, of the same class. Once trained, ``predict`` needs no more than the
    actor's keys: ``model.predict({"observation": ...})``.

    :param observation_space: a Dict space
    :param action_space: action space
    :param lr_schedule: learning rate schedule (could be constant)
    :param actor_keys: keys that the actor sees
    :param share_features_extractor: must be False: a shared one would show the actor all keys
    :param kwargs: as for MultiInputActorCriticPolicy
    """

    observation_space: spaces.Dict

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        *,
        actor_keys: Sequence[str],
        share_features_extractor: bool = False,
        **kwargs: Any,
    ) -> None:
        if not isinstance(observation_space, spaces.Dict):
            raise ValueError(
                f"observation_space={observation_space} has no keys, of which actor_keys={actor_keys!r} could be some; "
                "AsymmetricActorCriticPolicy needs an environment with a Dict observation space."
            )
        known = list(observation_space.spaces)
        # a string is a sequence of strings, too, but nobody means its letters
        if isinstance(actor_keys, str) or not actor_keys or not set(actor_keys) <= set(known):
            raise ValueError(f"actor_keys={actor_keys!r} must be a list of one or more keys of the observation: {known}.")
        if share_features_extractor:
            raise ValueError(
                f"share_features_extractor={share_features_extractor} would show the actor all that the critic sees; "
                "it must be False."
            )
        self.actor_keys = [key for key in known if key in actor_keys]
        super().__init__(observation_space, action_space, lr_schedule, share_features_extractor=False, **kwargs)

    @property
    def actor_sees_less(self) -> bool:
        """Whether there is anything that the critic sees and the actor does not."""
        return len(self.actor_keys) < len(self.observation_space.spaces)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "actor_keys": self.actor_keys}

    def _build_mlp_extractor(self) -> None:
        # SB3 has made two extractors of all keys. The actor's gives way to one that never sees the others; where it may see
        # all, everything stays SB3's, to the bit.
        if not self.actor_sees_less:
            super()._build_mlp_extractor()
            return
        seen = spaces.Dict({key: self.observation_space[key] for key in self.actor_keys})
        extractor = self.features_extractor_class(seen, **self.features_extractor_kwargs)
        self.features_extractor = self.pi_features_extractor = extractor
        self.mlp_extractor = AsymmetricMlpExtractor(
            extractor.features_dim,
            self.features_dim,
            net_arch=self.net_arch,
            activation_fn=self.activation_fn,
            device=self.device,
        )
