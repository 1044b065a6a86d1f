r"""
PPO's update (Schulman et al., 2017) as SB3's ``PPO.train()`` does it, with the gradient written out.

For a minibatch of n samples, r = exp(log π(a|s) - log π_old(a|s)), advantages A, returns R and values v,

    L = -1/n Σ min(rA, clip(r, 1-ε, 1+ε)·A)  -  c_H/n Σ H  +  c_v/n Σ (v - R)²

has the derivatives

    ∂L/∂ log π = -rA/n where rA ≤ clip(r)·A, else 0        ∂L/∂H = -c_H/n        ∂L/∂v = 2c_v(v - R)/n.

Heads and layers carry them on to the parameters. With ``clip_range_vf`` v is replaced by v_old + clip(v - v_old), whose
derivative is 0 where it is clipped. With c_v = 0 the critic rests, and is evaluated once (it may be trained elsewhere).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.utils import explained_variance

from sb3_avgcorr.fast.mlp import pieces
from sb3_avgcorr.fast.network import ActorCritic, Samples


class Settings(NamedTuple):
    """What does not change during an update."""

    clip_range: float
    clip_range_vf: float | None
    ent_coef: float
    vf_coef: float
    normalize_advantage: bool
    max_kl: float | None  # no step beyond it


class Means(NamedTuple):
    """Means over each minibatch of a pass."""

    kl: np.ndarray  # r - 1 - log r, an estimate of the KL divergence (Schulman, http://joschu.net/blog/kl-approx.html)
    clip_fraction: np.ndarray
    surrogate: np.ndarray
    squared_error: np.ndarray
    entropy: np.ndarray

    @classmethod
    def of(cls, terms: np.ndarray, batch_size: int, clip_range: float) -> Means:
        """
        Take the means of what a pass over the rollout wrote.

        :param terms: what :func:`gradient` wrote, sample by sample in the order of the pass
        :param batch_size: size of a minibatch; the last one may be shorter
        :param clip_range: ε
        :return: the means
        """
        log_ratio, *rest = terms
        excess = np.expm1(log_ratio)
        starts = np.arange(0, terms.shape[1], batch_size)
        sizes = np.diff([*starts, terms.shape[1]])
        everything = (excess - log_ratio, (np.abs(excess) > clip_range).astype(np.float32), *rest)
        return cls(*(np.add.reduceat(term, starts) / sizes for term in everything))


def train(model: PPO, network: ActorCritic) -> None:
    """
    Update the policy with the rollout: the same as ``PPO.train()``, to rounding.

    :param model: the model
    :param network: its policy's networks
    """
    parameters = network.parameters
    network.structure.set_training_mode(True)
    model._update_learning_rate(model.policy.optimizer)
    progress = model._current_progress_remaining
    clip_range: float = model.clip_range(progress)  # type: ignore[operator]
    clip_range_vf: float | None = None
    if model.clip_range_vf is not None:
        clip_range_vf = model.clip_range_vf(progress)  # type: ignore[operator]
    max_kl = None if model.target_kl is None else 1.5 * model.target_kl
    settings = Settings(clip_range, clip_range_vf, model.ent_coef, model.vf_coef, model.normalize_advantage, max_kl)

    samples = Samples(network, model.rollout_buffer)
    passes: list[Means] = []
    with np.errstate(all="ignore"):  # as torch: what is not finite is found when the rollout is checked
        resting: np.ndarray | None = None
        if settings.vf_coef == 0.0 and parameters.rest(network.critic.parameters):
            values = [network.values(samples.inputs(rows)[1]) for rows in pieces(samples.n_samples)]
            returns, old_values = samples.numbers[2:]
            resting = np.square(_errors(np.concatenate(values), returns, old_values, settings))
        for epoch in range(model.n_epochs):
            terms = np.empty((4, samples.n_samples), np.float32)
            order = samples.order()
            reached: float | None = None
            for start in range(0, samples.n_samples, model.batch_size):
                stop = min(start + model.batch_size, samples.n_samples)
                reached = gradient(network, samples, order[start:stop], settings, terms[:, start:stop], resting)
                if reached is not None:
                    break
                parameters.clip_gradient(model.max_grad_norm)
                parameters.step()
            passes.append(Means.of(terms[:, :stop], model.batch_size, clip_range))
            model._n_updates += 1
            if reached is not None:
                if model.verbose >= 1:
                    print(f"Early stopping at step {epoch} due to reaching max kl: {reached:.2f}")
                break
    parameters.show_gradients()
    _log(model, passes, settings)


def gradient(
    network: ActorCritic,
    samples: Samples,
    rows: np.ndarray,
    settings: Settings,
    terms: np.ndarray,
    resting: np.ndarray | None = None,
) -> float | None:
    """
    Write the gradient of PPO's loss on a minibatch into the network's gradient array, unless the policy has changed too much.

    :param network: the policy's networks
    :param samples: the rollout
    :param rows: which samples are the minibatch
    :param settings: coefficients of the loss
    :param terms: where to write log r, min(rA, clip(r)·A), (v - R)² and H of each sample, shape (4, n)
    :param resting: (v - R)² of the whole rollout, if the critic rests and its gradient is 0 already
    :return: the KL estimate, if it is beyond the largest and no gradient was written
    """
    n = len(rows)
    actor, critic, head = network.actor, network.critic, network.head
    advantages, old_log_prob, returns, old_values = samples.numbers.take(rows, axis=1)
    if settings.normalize_advantage and n > 1:
        advantages -= np.add.reduce(advantages) / n
        advantages /= math.sqrt(advantages.dot(advantages) / (n - 1)) + 1e-8

    actor_inputs, critic_inputs = samples.inputs(rows)
    log_prob = head.evaluate(actor.forward(actor_inputs), samples.actions.take(rows, axis=0))
    log_ratio = np.subtract(log_prob, old_log_prob, out=terms[0])
    ratio = np.exp(log_ratio)
    surrogate = advantages * ratio
    clipped = np.maximum(ratio, 1.0 - settings.clip_range, out=ratio)
    np.minimum(clipped, 1.0 + settings.clip_range, out=clipped)
    clipped *= advantages
    np.minimum(surrogate, clipped, out=terms[1])
    terms[3] = head.entropy()

    if resting is None:
        values = critic.forward(critic_inputs)[:, 0]
        error = _errors(values, returns, old_values, settings)
        np.multiply(error, error, out=terms[2])
    else:
        resting.take(rows, out=terms[2])

    if settings.max_kl is not None:
        kl = float(np.mean(np.expm1(log_ratio) - log_ratio))
        if kl > settings.max_kl:
            return kl
    surrogate *= surrogate <= clipped
    surrogate *= -1.0 / n
    actor.backward(head.backward(surrogate, -settings.ent_coef / n, network.parameters.gradients), network.actor_gradients)
    if resting is None:
        if settings.clip_range_vf is not None:
            error *= np.abs(values - old_values) <= settings.clip_range_vf
        error *= 2.0 * settings.vf_coef / n
        critic.backward(error[:, None], network.critic_gradients)
    return None


def _errors(values: np.ndarray, returns: np.ndarray, old_values: np.ndarray, settings: Settings) -> np.ndarray:
    """v - R, with v kept near its old value if the settings say so."""
    if settings.clip_range_vf is None:
        return values - returns
    return old_values + np.clip(values - old_values, -settings.clip_range_vf, settings.clip_range_vf) - returns


def _log(model: PPO, passes: list[Means], settings: Settings) -> None:
    """What ``PPO.train()`` logs."""
    means = Means(*map(np.concatenate, zip(*passes, strict=True)))
    buffer, record = model.rollout_buffer, model.logger.record
    record("train/entropy_loss", -np.mean(means.entropy))
    record("train/policy_gradient_loss", -np.mean(means.surrogate))
    record("train/value_loss", np.mean(means.squared_error))
    record("train/approx_kl", np.mean(passes[-1].kl))
    record("train/clip_fraction", np.mean(means.clip_fraction))
    loss = settings.vf_coef * means.squared_error - means.surrogate - settings.ent_coef * means.entropy
    record("train/loss", float(loss[-1]))
    record("train/explained_variance", explained_variance(buffer.values.flatten(), buffer.returns.flatten()))
    if hasattr(model.policy, "log_std"):
        record("train/std", float(model.policy.log_std.detach().exp().mean()))
    record("train/n_updates", model._n_updates, exclude="tensorboard")
    record("train/clip_range", settings.clip_range)
    if settings.clip_range_vf is not None:
        record("train/clip_range_vf", settings.clip_range_vf)
