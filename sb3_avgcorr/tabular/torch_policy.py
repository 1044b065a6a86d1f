"""Exact gradients of torch policies, evaluated on all states of a finite MDP."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch as th
from stable_baselines3.common.policies import BasePolicy

from sb3_avgcorr.tabular.mdp import FiniteMDP

TorchPolicy = BasePolicy | th.nn.Module | Callable[[th.Tensor], th.Tensor]
Outputs = Literal["logits", "probabilities"]


def policy_probabilities(mdp: FiniteMDP, policy: TorchPolicy, outputs: Outputs = "logits") -> th.Tensor:
    """
    π(a|s) for every state, shape (S, A), in float64 and differentiable in the policy's parameters.

    :param mdp: The MDP; its ``observations`` are what the policy is given.
    :param policy: An SB3 actor-critic policy with discrete actions, or a module or function from the observations of all
        states (floats in the dtype of a module's parameters, float64 for a function) to a tensor of shape (S, A).
    :param outputs: What that tensor holds.
    """
    if isinstance(policy, BasePolicy):
        # Not ActorCriticPolicy: sb3-contrib's maskable policy is none.
        get_distribution: Any = getattr(policy, "get_distribution", None)
        if get_distribution is None:
            raise ValueError(f"policy must be an actor-critic policy, with get_distribution(); got {type(policy).__name__}")
        distribution = get_distribution(policy.obs_to_tensor(mdp.observations)[0]).distribution
        if not isinstance(distribution, th.distributions.Categorical):
            raise ValueError(f"policy must have a Discrete action space; got {policy.action_space}")
        logits = distribution.logits.double()
    else:
        if outputs not in ("logits", "probabilities"):
            raise ValueError(f"outputs must be 'logits' or 'probabilities'; got {outputs!r}")
        observations = th.as_tensor(mdp.observations)
        if observations.is_floating_point():
            parameter = next(policy.parameters(), None) if isinstance(policy, th.nn.Module) else None
            observations = observations.double() if parameter is None else observations.to(parameter)
        values = policy(observations).double()
        if outputs == "probabilities":
            return _checked(mdp, values)
        logits = values
    return th.softmax(_checked(mdp, logits), dim=-1)


def torch_gradient(
    mdp: FiniteMDP,
    policy: TorchPolicy,
    state_weights: npt.ArrayLike | None = None,
    *,
    parameters: Iterable[th.Tensor] | None = None,
    outputs: Outputs = "logits",
) -> list[th.Tensor]:
    """
    Σ_s w(s) Σ_a ∇π(a|s) q(s,a) with the exact q, for the parameters of any torch policy.

    :param mdp: The MDP.
    :param policy: As in ``policy_probabilities``.
    :param state_weights: w, shape (S,); default: ``mdp.occupancy``, with which it is ∇J exactly.
    :param parameters: What to differentiate by; default: the module's parameters.
    :param outputs: As in ``policy_probabilities``.
    :return: One tensor a parameter; zeros for those the policy does not depend on (an SB3 policy's critic).
    """
    if parameters is None:
        if not isinstance(policy, th.nn.Module):
            raise ValueError("parameters must be given when policy is not a torch module")
        parameters = policy.parameters()
    parameters = list(parameters)
    probabilities = policy_probabilities(mdp, policy, outputs)
    pi = probabilities.detach().cpu().numpy()
    weighted_q = th.as_tensor(mdp.weights(pi, state_weights)[:, None] * mdp.q(pi), device=probabilities.device)
    gradients = th.autograd.grad((weighted_q * probabilities).sum(), parameters, allow_unused=True)
    return [
        th.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]


def differentiable_J(mdp: FiniteMDP, probabilities: th.Tensor) -> th.Tensor:
    """
    The paper's objective J (with its factor 1-γ), differentiable in the action probabilities: a dense solve, to check
    gradients with. For logits: ``differentiable_J(mdp, torch.softmax(logits, -1))``.

    :param mdp: The MDP, with gamma < 1.
    :param probabilities: π(a|s), float64, shape (S, A).
    """
    if mdp.gamma == 1:
        raise ValueError("J, which has the factor 1-γ, does not exist at gamma=1")
    probabilities = _checked(mdp, probabilities)
    P = th.as_tensor(np.asarray(mdp.P.toarray()).reshape(mdp.n_states, mdp.n_actions, mdp.n_states))
    P_pi = th.einsum("sa,sat->st", probabilities, P)
    r_pi = (probabilities * th.as_tensor(mdp.r)).sum(dim=1)
    v = th.linalg.solve(th.eye(mdp.n_states, dtype=th.float64) - mdp.gamma * P_pi, r_pi)
    return (1 - mdp.gamma) * th.as_tensor(mdp.rho) @ v


def _checked(mdp: FiniteMDP, values: th.Tensor) -> th.Tensor:
    if values.shape != (mdp.n_states, mdp.n_actions):
        raise ValueError(f"the policy must give a tensor of shape {(mdp.n_states, mdp.n_actions)}; got {tuple(values.shape)}")
    return values
