"""What the critic of an actor-critic policy sees, and which parameters are its own."""

from collections.abc import Iterable
from typing import Any

import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import FloatSchedule
from torch import nn


class _Captured(Exception):
    """Carries the critic's features out of ``predict_values``, whose remaining layers are not needed then."""

    def __init__(self, features: th.Tensor) -> None:
        self.features = features


@th.no_grad()
def critic_features(policy: ActorCriticPolicy, *inputs: Any) -> th.Tensor:
    """
    What the critic's own layers see: the observations after the features extractor (and after the memory of a recurrent
    policy). Taken where the policy itself passes it on, so that custom policies are read right too.

    :param policy: the policy
    :param inputs: what ``policy.predict_values`` takes: observations, and states and episode starts if it has a memory
    :return: features, shape (n, features_dim), without a graph
    """

    def capture(features: th.Tensor) -> th.Tensor:
        raise _Captured(features)

    extractor = policy.mlp_extractor
    extractor.forward_critic = capture  # type: ignore[method-assign]  # on the instance only
    try:
        policy.predict_values(*inputs)
    except _Captured as captured:
        return captured.features
    finally:
        del extractor.forward_critic
    raise unreadable(policy)


def unreadable(policy: BasePolicy) -> TypeError:
    """
    :param policy: a policy whose critic cannot be read
    :return: what to raise
    """
    return TypeError(
        f"{type(policy).__name__}.predict_values() does not go through mlp_extractor.forward_critic() and value_net, where "
        "the critic's features are read. Use a policy that does, as SB3's ActorCriticPolicy."
    )


def check_critic(policy: BasePolicy) -> None:
    """
    Raise a TypeError if a policy has not the parts by which its critic is read.

    :param policy: the policy
    """
    parts = ("predict_values", "mlp_extractor", "value_net", "pi_features_extractor", "vf_features_extractor")
    if not all(hasattr(policy, part) for part in parts):
        raise unreadable(policy)


def _reached(output: th.Tensor, parameters: list[nn.Parameter]) -> set[nn.Parameter]:
    """The parameters that an output depends on, whatever their values: an unused one has no gradient, not a zero one."""
    if not output.requires_grad:
        return set()
    gradients = th.autograd.grad(output.sum(), parameters, allow_unused=True)
    return {p for p, g in zip(parameters, gradients, strict=True) if g is not None}


def critic_layers(policy: ActorCriticPolicy) -> list[nn.Parameter]:
    """
    Parameters between the critic's features and its value that the actor does not use: those a fit of the critic may
    change without changing what the actor does. The features extractor is not among them.

    :param policy: the policy
    :return: parameters in the policy's own order
    """
    parameters = [p for p in policy.parameters() if p.requires_grad]

    def features(extractor: Any) -> th.Tensor:
        return th.zeros(1, getattr(policy, "lstm_output_dim", extractor.features_dim), device=policy.device)

    was_training = policy.training
    policy.set_training_mode(False)  # nothing may be drawn or counted by dropout or batch normalisation
    with th.enable_grad():
        critic = policy.mlp_extractor.forward_critic(features(policy.vf_features_extractor))
        actor = policy.mlp_extractor.forward_actor(features(policy.pi_features_extractor))
        of_critic, of_actor = _reached(policy.value_net(critic), parameters), _reached(actor, parameters)
    policy.set_training_mode(was_training)
    return [p for p in parameters if p in of_critic - of_actor]


def critic_parameters(policy: ActorCriticPolicy) -> list[nn.Parameter]:
    """
    All parameters that only the critic uses: its layers, and its features extractor and memory where they are its own.

    :param policy: the policy
    :return: parameters in the policy's own order
    """
    own: set[nn.Parameter] = set(critic_layers(policy))
    modules: Iterable[nn.Module | None] = (getattr(policy, "lstm_critic", None), getattr(policy, "critic", None))
    if not policy.share_features_extractor:
        modules = (*modules, policy.vf_features_extractor)
    own.update(p for module in modules if module is not None for p in module.parameters())
    return [p for p in policy.parameters() if p in own]


class CriticLearningRate(OnPolicyAlgorithm):
    """Base of algorithms whose critic may have a learning rate of its own: a second group of the policy's optimiser."""

    #: learning rate of the critic's parameters, can be a function of the remaining progress; None: ``learning_rate``
    critic_learning_rate: float | Schedule | None = None

    def _setup_model(self) -> None:
        super()._setup_model()
        own = self.critic_learning_rate
        if isinstance(own, (int, float)) and not own >= 0.0:
            raise ValueError(f"critic_learning_rate={own!r} makes no sense: it must be None, a number >= 0 or a schedule.")
        self._critic_lr_schedule = FloatSchedule(self.lr_schedule if own is None else own)
        if own is not None:
            check_critic(self.policy)
            of_critic = critic_parameters(self.policy)
            rest = [p for p in self.policy.parameters() if not any(p is q for q in of_critic)]
            self.policy.optimizer = self.policy.optimizer_class(  # type: ignore[call-arg]
                [{"params": rest}, {"params": of_critic}], lr=self.lr_schedule(1), **self.policy.optimizer_kwargs
            )

    def _update_learning_rate(self, optimizers: list[th.optim.Optimizer] | th.optim.Optimizer) -> None:
        super()._update_learning_rate(optimizers)
        if self.critic_learning_rate is not None:
            rate = self._critic_lr_schedule(self._current_progress_remaining)
            self.logger.record("train/critic_learning_rate", rate)
            self.policy.optimizer.param_groups[1]["lr"] = rate
