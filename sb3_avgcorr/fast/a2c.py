r"""
A2C's update (Mnih et al., 2016) as SB3's ``A2C.train()`` does it, with the gradient written out.

One gradient step on all n samples of the rollout, with advantages A, returns R and values v:

    L = -1/n Σ A·log π(a|s)  -  c_H/n Σ H  +  c_v/n Σ (v - R)²

    ∂L/∂ log π = -A/n        ∂L/∂H = -c_H/n        ∂L/∂v = 2c_v(v - R)/n
"""

from __future__ import annotations

import numpy as np
from stable_baselines3 import A2C
from stable_baselines3.common.utils import explained_variance

from sb3_avgcorr.fast.network import ActorCritic, Samples


def train(model: A2C, network: ActorCritic) -> None:
    """
    Update the policy with the rollout: the same as ``A2C.train()``, to rounding.

    :param model: the model
    :param network: its policy's networks
    """
    parameters, head = network.parameters, network.head
    network.structure.set_training_mode(True)
    model._update_learning_rate(model.policy.optimizer)
    samples = Samples(network, model.rollout_buffer)
    samples.order()  # SB3 draws one; a sum over all samples has none
    n = samples.n_samples
    actor_inputs, critic_inputs = samples.inputs(slice(None))
    advantages, _, returns, _ = samples.numbers
    with np.errstate(all="ignore"):  # as torch: what is not finite is found when the rollout is checked
        if model.normalize_advantage:
            advantages -= np.add.reduce(advantages) / n
            advantages /= np.sqrt(advantages.dot(advantages) / np.float32(n - 1)) + np.float32(1e-8)
        log_prob = head.evaluate(network.actor.forward(actor_inputs), samples.actions)
        entropy_loss = -float(np.mean(head.entropy()))
        policy_loss = -float(advantages.dot(log_prob)) / n
        delta = head.backward(advantages * np.float32(-1.0 / n), -model.ent_coef / n, parameters.gradients)
        network.actor.backward(delta, network.actor_gradients)

        error = network.critic.forward(critic_inputs)[:, 0] - returns
        value_loss = float(error.dot(error)) / n
        error *= 2.0 * model.vf_coef / n
        network.critic.backward(error[:, None], network.critic_gradients)
        parameters.clip_gradient(model.max_grad_norm)
        parameters.step()
    parameters.show_gradients()

    model._n_updates += 1
    buffer, record = model.rollout_buffer, model.logger.record
    record("train/n_updates", model._n_updates, exclude="tensorboard")
    record("train/explained_variance", explained_variance(buffer.values.flatten(), buffer.returns.flatten()))
    record("train/entropy_loss", entropy_loss)
    record("train/policy_loss", policy_loss)
    record("train/value_loss", value_loss)
    if hasattr(model.policy, "log_std"):
        record("train/std", float(model.policy.log_std.detach().exp().mean()))
