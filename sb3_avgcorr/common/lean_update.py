"""
Less work inside the algorithm's own update. For networks of a few small layers most of a gradient step's time is not spent
on arithmetic but around it: walking through modules for their parameters, building distribution objects, grouping tensors.
While ``train()`` runs, the calls it makes are answered by equivalents that do the arithmetic alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch as th
import torch.nn.functional as F
from stable_baselines3.common.distributions import CategoricalDistribution, DiagGaussianDistribution
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import MlpExtractor
from torch import nn
from torch.optim.adam import adam

LOG_2PI = math.log(2.0 * math.pi)
Layer = Callable[[th.Tensor], th.Tensor]
#: what the common layers do, without a module's call around it
LAYERS: dict[type[nn.Module], Callable[[Any], Layer]] = {
    nn.Linear: lambda layer: partial(F.linear, weight=layer.weight, bias=layer.bias),
    nn.Tanh: lambda layer: th.tanh,
    nn.ReLU: lambda layer: F.relu,
}
Evaluation = tuple[th.Tensor, th.Tensor, th.Tensor]


def plain_layers(*modules: nn.Module) -> list[Layer]:
    """
    The layers of an MLP as functions, which for a small one take half the time of its modules: the same results, to the bit.
    Whatever is not a plain layer (another class, or one with hooks) stays as it is. Valid until parameters are replaced.

    :param modules: applied one after the other
    """
    layers: list[Layer] = []
    for module in modules:
        hooked = module._forward_hooks or module._forward_pre_hooks
        if type(module) is nn.Sequential and not hooked:
            layers += plain_layers(*module)
        elif type(module) in LAYERS and not hooked:
            layers.append(LAYERS[type(module)](module))
        else:
            layers.append(module)
    return layers


def applied(layers: Iterable[Layer], x: th.Tensor) -> th.Tensor:
    """
    :param layers: of :func:`plain_layers`
    :param x: what the first one takes
    :return: what the last one gives
    """
    for layer in layers:
        x = layer(x)
    return x


def actor_layers(policy: ActorCriticPolicy) -> list[Layer]:
    """
    :param policy: the policy
    :return: what lies between the actor's features and the parameters of its distribution
    """
    extractor = policy.mlp_extractor
    own = type(extractor).forward_actor is MlpExtractor.forward_actor
    return plain_layers(extractor.policy_net, policy.action_net) if own else [extractor.forward_actor, policy.action_net]


def _critic_layers(policy: ActorCriticPolicy) -> list[Layer]:
    extractor = policy.mlp_extractor
    own = type(extractor).forward_critic is MlpExtractor.forward_critic
    return plain_layers(extractor.value_net, policy.value_net) if own else [extractor.forward_critic, policy.value_net]


@contextmanager
def lean_update(policy: BasePolicy, *, evaluation: bool) -> Iterator[None]:
    """
    Make gradient steps on a policy leaner for a while. Results differ from the originals' by rounding only.

    :param policy: the policy
    :param evaluation: whether its class evaluates actions as SB3's ActorCriticPolicy does, so that we may do it instead
    """
    parameters = list(policy.parameters())
    optimizer = policy.optimizer
    replaced: list[tuple[Any, str, Any]] = [
        (policy, "parameters", lambda recurse=True: iter(parameters)),
        (optimizer, "zero_grad", lambda set_to_none=True: _forget_gradients(parameters)),
    ]
    log_prob_and_entropy = EVALUATIONS.get(type(getattr(policy, "action_dist", None)))
    if evaluation and isinstance(policy, ActorCriticPolicy) and log_prob_and_entropy is not None:
        replaced.append((policy, "evaluate_actions", _evaluate_actions(policy, log_prob_and_entropy)))
    step = fused_adam_step(optimizer)
    if step is not None:
        replaced.append((optimizer, "step", step))
    for owner, name, function in replaced:
        owner.__dict__[name] = function
    clip = th.nn.utils.clip_grad_norm_
    th.nn.utils.clip_grad_norm_ = _clip_grad_norm(clip)
    try:
        yield
    finally:
        th.nn.utils.clip_grad_norm_ = clip
        for owner, name, _ in replaced:
            del owner.__dict__[name]


def _forget_gradients(parameters: Iterable[th.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _gaussian(policy: ActorCriticPolicy, mean: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    n_dims = mean.shape[1]
    log_std = policy.log_std
    z = (actions - mean) * th.exp(-log_std)
    log_scale = log_std.sum() + 0.5 * n_dims * LOG_2PI
    return -0.5 * (z * z).sum(dim=1) - log_scale, (log_scale + 0.5 * n_dims).expand(len(mean))


def _categorical(policy: ActorCriticPolicy, logits: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    log_probs = logits.log_softmax(dim=1)
    log_prob = log_probs.gather(1, actions.long().unsqueeze(1)).squeeze(1)
    # an action whose probability is 0 (a logit of minus infinity) adds nothing
    return log_prob, -(log_probs.exp() * log_probs.clamp(min=th.finfo(log_probs.dtype).min)).sum(dim=1)


#: for each distribution, log-probability of actions and entropy from the output of the actor's last layer
EVALUATIONS: dict[type, Callable[[ActorCriticPolicy, th.Tensor, th.Tensor], tuple[th.Tensor, th.Tensor]]] = {
    DiagGaussianDistribution: _gaussian,
    CategoricalDistribution: _categorical,
}


def _evaluate_actions(policy: ActorCriticPolicy, log_prob_and_entropy: Callable[..., Any]) -> Callable[..., Evaluation]:
    """As ``ActorCriticPolicy.evaluate_actions``, without a distribution object."""
    actor, critic = actor_layers(policy), _critic_layers(policy)

    def evaluate_actions(obs: Any, actions: th.Tensor) -> Evaluation:
        features: Any = policy.extract_features(obs)
        pi_features, vf_features = (features, features) if policy.share_features_extractor else features
        log_prob, entropy = log_prob_and_entropy(policy, applied(actor, pi_features), actions)
        return applied(critic, vf_features), log_prob, entropy

    return evaluate_actions


def fused_adam_step(optimizer: th.optim.Optimizer) -> Callable[[], None] | None:
    """
    :param optimizer: an optimiser
    :return: the step of a fused Adam, its tensors collected once; None if the optimiser is another one, has a hook, or has not
        made its first step, in which it sets up its state
    """
    if type(optimizer) is not th.optim.Adam or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return None
    groups: list[tuple[Any, ...]] = []
    for group in optimizer.param_groups:
        plain = group["fused"] and not (
            group["amsgrad"] or group["maximize"] or group["capturable"] or group["differentiable"]
        )
        parameters = [parameter for parameter in group["params"] if parameter.requires_grad]
        if (
            not plain
            or isinstance(group["lr"], th.Tensor)
            or not all(parameter in optimizer.state for parameter in parameters)
        ):
            return None
        states = [optimizer.state[parameter] for parameter in parameters]
        groups.append((group, parameters, *([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))))
    original = optimizer.step

    @th.no_grad()
    def step() -> None:
        gradients: list[list[Any]] = [[parameter.grad for parameter in parameters] for _, parameters, *_ in groups]
        if any(gradient is None for part in gradients for gradient in part):
            original()  # leaves out parameters without a gradient
            return
        for (group, parameters, means, squares, steps), part in zip(groups, gradients, strict=True):
            beta1, beta2 = group["betas"]
            adam(
                parameters,
                part,
                means,
                squares,
                [],
                steps,
                fused=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )

    return step


def _clip_grad_norm(original: Callable[..., th.Tensor]) -> Callable[..., th.Tensor]:
    """As torch's, for the one way SB3 calls it."""

    def clip_grad_norm(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> th.Tensor:
        if args or kwargs or isinstance(parameters, th.Tensor):
            return original(parameters, max_norm, *args, **kwargs)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients:
            return th.tensor(0.0)
        with th.no_grad():
            norm = th.linalg.vector_norm(th.stack(th._foreach_norm(gradients)))
            th._foreach_mul_(gradients, th.clamp(max_norm / (norm + 1e-6), max=1.0))
        return norm

    return clip_grad_norm
