"""The actor's gradients on parts of a rollout, which tell how far to correct."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

#: rollouts for each of which the gradients are taken at first
FIRST_ROLLOUTS = 16
#: passes of the algorithm's update for which they are taken once after that
PASSES = 16


class NoGradient(Exception):
    """The log-probability of an actor cannot be evaluated, or has no gradient."""


def gradients_are_due(rollout: int, passes: int) -> bool:
    """
    Tell whether the gradients are to be taken for a rollout, which costs about as much as one pass of the update.

    They are taken for every rollout at first, when a bias does most harm, and then so often that they stay below a tenth of
    the update's passes.

    :param rollout: number of the rollout, from 1
    :param passes: passes of the algorithm's update over a rollout
    :return: whether they are
    """
    return rollout <= FIRST_ROLLOUTS or rollout % math.ceil(PASSES / passes) == 0


def block_gradients(
    log_prob: Callable[[np.ndarray], th.Tensor], policy: BasePolicy, coefficients: np.ndarray, blocks: Sequence[np.ndarray]
) -> np.ndarray:
    r"""
    Compute ∇ mean(a·log π) over the samples of each block, for several coefficients a of each sample.

    Without the layers of a features extractor, if there are others: a CNN has a hundred times as many parameters, whose
    gradients would need more time and memory than the update itself. What is behind it has to do.

    :param log_prob: evaluates log π of some samples, with a graph
    :param policy: the policy
    :param coefficients: a, shape (n_coefficients, n_samples)
    :param blocks: the samples of each block
    :return: gradients of these parameters, as far as log π depends on them, shape (n_coefficients, n_blocks, n_parameters)
    """
    parameters = [p for p in policy.parameters() if p.requires_grad]
    below = {p for m in policy.modules() if isinstance(m, BaseFeaturesExtractor) for p in m.parameters()}
    with th.enable_grad():
        try:
            used = th.autograd.grad(log_prob(blocks[0][:1]).sum(), parameters, allow_unused=True)
        except (NotImplementedError, TypeError, AttributeError, RuntimeError) as error:
            raise NoGradient(str(error)) from error
        parameters = [p for p, gradient in zip(parameters, used, strict=True) if gradient is not None]
        parameters = [p for p in parameters if p not in below] or parameters
        rows = []
        for block in blocks:
            log_probs = log_prob(block)
            for a in th.as_tensor(coefficients[:, block], dtype=log_probs.dtype, device=log_probs.device):
                gradients = th.autograd.grad((a * log_probs).mean(), parameters, retain_graph=True)
                rows.append(th.cat([gradient.reshape(-1) for gradient in gradients]).cpu().numpy())
    with th.no_grad():
        log_prob(blocks[0][:1])  # a policy keeps its last distribution; one with a graph could not be copied
    n_coefficients = len(coefficients)
    return np.stack(rows).reshape(len(blocks), n_coefficients, -1).swapaxes(0, 1)
