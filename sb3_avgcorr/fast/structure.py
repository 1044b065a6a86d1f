"""Whether a policy still consists of what was read from it, and whether anybody listens inside: asked before every rollout."""

from __future__ import annotations

from collections.abc import Sequence

from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

#: methods of the policy and of its layers whose work the engine does; a class or an object that has its own is not served
POLICY_METHODS = (
    "__call__",
    "forward",
    "extract_features",
    "get_distribution",
    "_get_action_dist_from_latent",
    "evaluate_actions",
    "predict_values",
    "obs_to_tensor",
)
EXTRACTOR_METHODS = ("forward", "forward_actor", "forward_critic")


class Structure:
    """
    The modules, parameters and optimiser of a policy, in the form in which a change is noticed fastest.

    :param policy: the policy
    """

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self.policy, self.optimizer = policy, policy.optimizer
        modules = list(policy.modules())
        members = [members for module in modules for members in (module._modules, module._parameters)]
        self._members = [(members_of, name, member) for members_of in members for name, member in members_of.items()]
        self._containers = members
        self._attributes = [vars(module) for module in modules]
        self._hooks = [
            hooks
            for module in modules
            for hooks in (
                module._forward_hooks,
                module._forward_pre_hooks,
                module._backward_hooks,
                module._backward_pre_hooks,
            )
        ]
        self._switches_plainly = type(policy).set_training_mode is BasePolicy.set_training_mode and all(
            type(module).train is nn.Module.train for module in modules
        )
        self._trained = [[(p, p.requires_grad) for p in group["params"]] for group in policy.optimizer.param_groups]

    def is_current(self) -> bool:
        """
        Tell whether the policy still consists of the same modules, parameters and optimiser.

        :return: whether it does; if not it must be read again
        """
        return (
            self.policy.optimizer is self.optimizer
            and all(container.get(name) is member for container, name, member in self._members)
            and sum(map(len, self._containers)) == len(self._members)
            and len(self.optimizer.param_groups) == len(self._trained)
            and all(
                len(group["params"]) == len(trained)
                and all(p is q and p.requires_grad == had for p, (q, had) in zip(group["params"], trained, strict=True))
                for group, trained in zip(self.optimizer.param_groups, self._trained, strict=True)
            )
        )

    def set_training_mode(self, mode: bool) -> None:
        """
        Put the policy in training mode or out of it, as its own ``set_training_mode()`` does with more ado.

        :param mode: whether it is trained
        """
        if self._switches_plainly and not _any_of(("train", "set_training_mode"), self.policy):
            for attributes in self._attributes:
                attributes["training"] = mode
        else:
            self.policy.set_training_mode(mode)

    def is_undisturbed(self) -> bool:
        """
        Tell whether nobody listens inside the policy, so that its computation may be done elsewhere.

        :return: whether no module has a hook, and no object a method of its own in place of its class's
        """
        return not (
            any(self._hooks)
            or any("forward" in attributes for attributes in self._attributes)
            or _any_of(POLICY_METHODS, self.policy)
            or _any_of(EXTRACTOR_METHODS, self.policy.mlp_extractor)
            or _has_any_global_hook()
        )


def _any_of(names: Sequence[str], thing: object) -> bool:
    attributes = vars(thing)
    return any(name in attributes for name in names)
