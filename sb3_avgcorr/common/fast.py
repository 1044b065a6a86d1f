"""
The fast path: the same actions, minibatches and update as SB3's, with less work around them.

Collecting, only the action is needed at each step; values and log-probabilities of the whole rollout are computed in one
batch at its end, time-limit bootstraps too. Training, minibatches are indexed in torch without a copy of the rollout, Adam is
the fused one, and the calls of SB3's update are answered with less ado (lean_update.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
)
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BaseModel, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv
from torch.distributions import Distribution

from sb3_avgcorr.common.correction import lambda_returns
from sb3_avgcorr.common.lean_update import actor_layers, applied, lean_update

if TYPE_CHECKING:
    from sb3_avgcorr.common.averaging import AveragingCorrection

#: methods of the policy whose work the lean collection does in its own way
REPLACED_POLICY_METHODS = (
    "forward",
    "extract_features",
    "get_distribution",
    "_get_action_dist_from_latent",
    "evaluate_actions",
    "predict_values",
)

#: rows evaluated at once: enough to be efficient, few enough for a processor's cache
EVALUATION_BATCH = 512


@contextmanager
def without_validation() -> Iterator[None]:
    """Torch's distributions check their arguments at each use; ours are checked once a rollout instead."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def lean_training(policy: BasePolicy) -> Iterator[None]:
    """
    What makes the algorithm's own ``train()`` faster while it runs.

    :param policy: the policy that is trained
    """
    evaluation = _unchanged(type(policy), ActorCriticPolicy, "evaluate_actions", "_get_action_dist_from_latent")
    with without_validation(), lean_update(policy, evaluation=evaluation):
        yield


def use_fused_adam(optimizer: th.optim.Optimizer, optimizer_kwargs: dict[str, Any]) -> None:
    """
    Let Adam update all parameters in one call, unless the user chose an implementation.

    :param optimizer: the policy's optimiser, not yet used
    :param optimizer_kwargs: what the user asked of it
    """
    chosen = {"fused", "foreach", "capturable", "differentiable"} & optimizer_kwargs.keys()
    if type(optimizer) in (th.optim.Adam, th.optim.AdamW) and not chosen:
        for group in optimizer.param_groups:
            group["fused"] = True


def _unchanged(cls: type, base: type, *methods: str) -> bool:
    return all(getattr(cls, method, None) is getattr(base, method) for method in methods)


def has_parameters(module: th.nn.Module) -> bool:
    """
    :param module: a features extractor
    :return: whether it has layers to evaluate (a CNN), or only rearranges the observation
    """
    return next(module.parameters(), None) is not None


def _sample_categorical(logits: th.Tensor) -> th.Tensor:
    # what torch.multinomial does to draw one sample, without its checks: argmax p/q with q exponential
    return (logits.softmax(-1) / th.empty_like(logits).exponential_(1)).argmax(-1)


def _sample_multi_categorical(policy: ActorCriticPolicy, logits: th.Tensor) -> th.Tensor:
    parts = logits.split(policy.action_dist.action_dims, dim=1)  # type: ignore[attr-defined]
    return th.stack([_sample_categorical(part) for part in parts], dim=1)


#: for each distribution, how to draw what SB3 would draw, from the same stream, given the output of the actor's last layer
SAMPLERS: dict[type, Callable[[ActorCriticPolicy, th.Tensor], th.Tensor]] = {
    DiagGaussianDistribution: lambda policy, mean: mean + th.randn_like(mean) * policy.log_std.exp(),
    CategoricalDistribution: lambda policy, logits: _sample_categorical(logits),
    MultiCategoricalDistribution: _sample_multi_categorical,
    BernoulliDistribution: lambda policy, logits: th.bernoulli(th.sigmoid(logits)),
}


def sampler(policy: ActorCriticPolicy) -> Callable[[Any], tuple[np.ndarray, th.Tensor]]:
    """
    Something that draws actions as ``policy.forward`` would, without their values and log-probabilities.

    :param policy: the policy
    :return: takes observations as tensors, and gives one action for each, and the features it was chosen by
    """
    draw, layers, space = SAMPLERS[type(policy.action_dist)], actor_layers(policy), policy.observation_space
    # what preprocessing comes to for an observation of real numbers
    plain = (
        isinstance(space, spaces.Box) and not is_image_space(space) and type(policy.pi_features_extractor) is FlattenExtractor
    )

    def sample(observations: Any) -> tuple[np.ndarray, th.Tensor]:
        with th.inference_mode():
            if plain:
                features = observations.float().flatten(1)
            else:
                features = BaseModel.extract_features(policy, observations, policy.pi_features_extractor)
            return draw(policy, applied(layers, features)).cpu().numpy(), features

    return sample


def collects_fast(model: AveragingCorrection, algorithm: type[OnPolicyAlgorithm]) -> bool:
    """
    :param model: the model
    :param algorithm: the algorithm it corrects
    :return: whether the lean collection does the same as the algorithm's own: not with gSDE, nor where a method that it
        replaces was overridden
    """
    return (
        not model.use_sde
        and _unchanged(algorithm, OnPolicyAlgorithm, "collect_rollouts")
        and isinstance(model.policy, ActorCriticPolicy)
        and _unchanged(type(model.policy), ActorCriticPolicy, *REPLACED_POLICY_METHODS)
        and type(model.policy.action_dist) in SAMPLERS
        and model.rollout_buffer.lean
        # two extractors with layers: there is nothing to save, as both must be evaluated on every observation
        and (model.policy.share_features_extractor or not has_parameters(model.policy.pi_features_extractor))
    )


def collect_rollouts(
    model: AveragingCorrection, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
) -> bool:
    """
    As ``OnPolicyAlgorithm.collect_rollouts``. Callbacks find the same locals at each step, except for ``values`` and
    ``log_probs``, which are not known before the rollout is complete.

    :param model: the model
    :param env: the training environment
    :param callback: called at each step, and at the beginning and end of the rollout
    :param rollout_buffer: the buffer to fill
    :param n_rollout_steps: number of steps per environment
    :return: False if a callback ended the rollout prematurely
    """
    policy, action_space, buffer = model.policy, model.action_space, rollout_buffer
    assert model._last_obs is not None, "No previous observation was provided"
    policy.set_training_mode(False)
    buffer.reset()
    callback.on_rollout_start()

    action_shape = (buffer.n_envs, buffer.action_dim)
    sample = sampler(policy)
    keep_features = has_parameters(policy.pi_features_extractor)  # those of a CNN are not computed twice
    features: list[th.Tensor] = []
    truncated: list[tuple[int, int, Any]] = []  # (step, environment, terminal observation) to bootstrap from
    seen = {"self": model, "env": env, "callback": callback, "rollout_buffer": buffer, "n_rollout_steps": n_rollout_steps}
    for n_steps in range(n_rollout_steps):
        last_obs: Any = model._last_obs
        obs_tensor = obs_as_tensor(last_obs, model.device)
        actions, step_features = sample(obs_tensor)
        actions = actions.reshape(-1, *action_space.shape)  # type: ignore[misc]
        if keep_features:
            features.append(step_features)
        clipped_actions = actions
        if isinstance(action_space, spaces.Box):
            clipped_actions = np.clip(actions, action_space.low, action_space.high)
        new_obs, rewards, dones, infos = env.step(clipped_actions)
        model.num_timesteps += env.num_envs

        seen.update(
            n_steps=n_steps,
            obs_tensor=obs_tensor,
            actions=actions,
            clipped_actions=clipped_actions,
            new_obs=new_obs,
            rewards=rewards,
            dones=dones,
            infos=infos,
        )
        callback.update_locals(seen)
        if not callback.on_step():
            buffer.pos = n_steps
            return False

        model._update_info_buffer(infos, dones)
        if dones.any():
            for index in np.flatnonzero(dones):
                info = infos[index]
                if info.get("terminal_observation") is not None and info.get("TimeLimit.truncated", False):
                    truncated.append((n_steps, int(index), info["terminal_observation"]))

        observations: Any = buffer.observations
        if isinstance(observations, dict):
            for key, array in observations.items():
                array[n_steps] = np.reshape(last_obs[key], array.shape[1:])
        else:
            observations[n_steps] = np.reshape(last_obs, observations.shape[1:])
        buffer.actions[n_steps] = actions.reshape(action_shape)
        buffer.rewards[n_steps] = rewards
        buffer.episode_starts[n_steps] = model._last_episode_starts
        buffer.pos = n_steps + 1  # a rollout that breaks off tells the clock how far it came
        model._last_obs = new_obs  # type: ignore[assignment]
        model._last_episode_starts = dones
    buffer.full = True

    evaluate(policy, buffer, action_space, th.cat(features) if keep_features else None)
    for start in range(0, len(truncated), EVALUATION_BATCH):
        steps, indices, terminal = zip(*truncated[start : start + EVALUATION_BATCH], strict=True)
        batch = (
            {k: np.stack([o[k] for o in terminal]) for k in terminal[0]}
            if isinstance(terminal[0], dict)
            else np.stack(terminal)
        )
        with th.no_grad():
            values = policy.predict_values(policy.obs_to_tensor(batch)[0])
        buffer.rewards[list(steps), list(indices)] += model.gamma * values.cpu().numpy().flatten()
    with th.no_grad():
        values = policy.predict_values(obs_as_tensor(new_obs, model.device))  # type: ignore[arg-type]
    buffer.compute_returns_and_advantage(last_values=values, dones=dones)

    seen.update(values=values, log_probs=buffer.log_probs[-1])
    callback.update_locals(seen)
    callback.on_rollout_end()
    return True


@th.no_grad()
@without_validation()
def evaluate(
    policy: ActorCriticPolicy, buffer: RolloutBuffer, action_space: spaces.Space, features: th.Tensor | None = None
) -> None:
    """
    Fill in the values and log-probabilities of a whole rollout.

    :param policy: the policy that made it
    :param buffer: the buffer that holds its observations and actions
    :param action_space: the action space
    :param features: features of the observations, which actor and critic share, if they are known
    """
    n_samples = buffer.buffer_size * buffer.n_envs
    observations = flat_observations(buffer)
    actions = buffer.to_torch(buffer.actions.reshape(n_samples, -1).astype(np.float32, copy=False), copy=False)
    if isinstance(action_space, spaces.Discrete):
        actions = actions.long().flatten()
    values, log_probs = buffer.values.reshape(-1), buffer.log_probs.reshape(-1)  # views
    for start in range(0, n_samples, EVALUATION_BATCH):
        rows = slice(start, start + EVALUATION_BATCH)
        if features is None:
            obs = {k: v[rows] for k, v in observations.items()} if isinstance(observations, dict) else observations[rows]
            value, log_prob, _ = policy.evaluate_actions(obs, actions[rows])
        else:
            latent_pi, latent_vf = policy.mlp_extractor(features[rows])
            value = policy.value_net(latent_vf)
            log_prob = policy._get_action_dist_from_latent(latent_pi).log_prob(actions[rows])
        values[rows] = value.cpu().numpy().flatten()
        log_probs[rows] = log_prob.cpu().numpy()


def flat_observations(buffer: RolloutBuffer) -> Any:
    """
    :param buffer: a buffer as collected
    :return: its observations as tensors that share its memory, row (step, environment) by row
    """

    def rows(array: np.ndarray) -> th.Tensor:
        return buffer.to_torch(array.reshape(-1, *array.shape[2:]), copy=False)

    observations: Any = buffer.observations
    return {k: rows(v) for k, v in observations.items()} if isinstance(observations, dict) else rows(observations)


class LeanRolloutBuffer(RolloutBuffer):
    """
    Part of a clocked buffer that serves the fast path: the same minibatches as SB3's, from the same permutation, without a
    rearranged copy of the rollout; advantages in one vectorised pass.
    """

    #: whether this buffer serves the fast path; only SB3's own two classes are known well enough for that
    lean = False
    LEAN_CLASSES = (RolloutBuffer, DictRolloutBuffer)

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: np.ndarray) -> None:
        if not self.lean:
            return super().compute_returns_and_advantage(last_values, dones)
        last = last_values.cpu().numpy().flatten()
        returns = lambda_returns(self.rewards, self.values, self.episode_starts, last, dones, self.gamma, self.gae_lambda)
        self.advantages = (returns - self.values).astype(np.float32)
        self.returns = self.advantages + self.values

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        if not self.lean:
            yield from super().get(batch_size)
            return
        assert self.full, "The rollout is not complete"
        n_samples = self.buffer_size * self.n_envs
        permutation = np.random.permutation(n_samples)  # noqa: NPY002  # SB3's own stream
        # SB3 numbers the samples environment by environment; here they lie step by step
        rows = permutation % self.buffer_size * self.n_envs + permutation // self.buffer_size
        indices = th.as_tensor(rows, device=self.device)
        observations = flat_observations(self)
        actions = self.actions.reshape(n_samples, self.action_dim).astype(np.float32, copy=False)
        arrays = (actions, *(x.reshape(n_samples) for x in (self.values, self.log_probs, self.advantages, self.returns)))
        tensors = [self.to_torch(array, copy=False) for array in arrays]
        for batch in indices.split(n_samples if batch_size is None else batch_size):
            rest = [tensor[batch] for tensor in tensors]
            if isinstance(observations, dict):
                yield DictRolloutBufferSamples({key: value[batch] for key, value in observations.items()}, *rest)
            else:
                yield RolloutBufferSamples(observations[batch], *rest)
