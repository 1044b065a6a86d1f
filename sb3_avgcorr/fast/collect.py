"""
Lean rollouts: at each step only the action is computed, by a few numpy calls; values, log-probabilities and time-limit
bootstraps of the whole rollout follow in one batch at its end, advantages in one vectorised pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from sb3_avgcorr.common.correction import lambda_returns
from sb3_avgcorr.fast.callbacks import StepLocals, give_lazy_locals, may_change_parameters
from sb3_avgcorr.fast.features import rows_of, take
from sb3_avgcorr.fast.mlp import EVALUATION_BATCH, pieces
from sb3_avgcorr.fast.network import ActorCritic


class Pending:
    """
    Values and log-probabilities of a rollout that are still to be computed.

    They are those of the parameters that chose the actions. Parameters rarely change before the rollout is complete; where a
    callback might change them, it is watched, and what lies before the change is computed with a copy of the old ones.

    :param network: the policy's networks
    :param buffer: the rollout
    :param gamma: discount factor of time-limit bootstraps
    :param watched: whether parameters may change
    """

    def __init__(self, network: ActorCritic, buffer: RolloutBuffer, gamma: float, watched: bool) -> None:
        self.network, self.buffer, self.gamma = network, buffer, gamma
        self.first_step = 0
        self.truncated: list[tuple[int, int, Any]] = []  # (step, environment, terminal observation) to bootstrap from
        self.known = network.parameters.values.copy() if watched else None
        # of a CNN, what its layers gave at each step is kept
        shape = (buffer.buffer_size, buffer.n_envs, network.actor.layers[0].weight.shape[1])
        self.features = np.empty(shape, np.float32) if network.has_layers_below else None

    def compute(self, stop: int) -> None:
        """
        Compute what is pending.

        :param stop: number of steps that are in the buffer
        """
        reach = max(1, EVALUATION_BATCH // self.buffer.n_envs)
        for first in range(self.first_step, stop, reach):
            self._evaluate(slice(first, min(first + reach, stop)))
        self.first_step = stop
        for rows in pieces(len(self.truncated)):
            self._bootstrap(self.truncated[rows])
        self.truncated.clear()

    def _evaluate(self, steps: slice) -> None:
        network, buffer = self.network, self.buffer
        if self.features is None:
            of_actor, of_critic = network.inputs(rows_of(take(buffer.observations, steps)))
        else:
            of_actor = of_critic = rows_of(self.features[steps])
        actions = buffer.actions[steps].reshape(len(of_actor), -1).astype(np.float32, copy=False)
        buffer.values[steps] = network.values(of_critic).reshape(-1, buffer.n_envs)
        buffer.log_probs[steps] = network.log_probs(of_actor, actions).reshape(-1, buffer.n_envs)

    def _bootstrap(self, truncated: list[tuple[int, int, Any]]) -> None:
        """Add the value of the state in which a time limit cut an episode to the reward before it."""
        steps, environments, observations = zip(*truncated, strict=True)
        batch: Any
        if isinstance(observations[0], dict):
            batch = {key: np.stack([each[key] for each in observations]) for key in observations[0]}
        else:
            batch = np.stack(observations)
        values = self.network.values(self.network.critic_features(batch))
        self.buffer.rewards[list(steps), list(environments)] += self.gamma * values

    def follow(self, stop: int) -> None:
        """
        If a callback has changed the parameters: compute what is pending with the old ones.

        :param stop: number of steps that are in the buffer
        """
        parameters = self.network.parameters
        if not parameters.adopt():
            raise RuntimeError("A callback moved the policy to another device or data type in the middle of a rollout.")
        assert self.known is not None
        if not np.array_equal(self.known, parameters.values):
            changed = parameters.values.copy()
            parameters.values[:] = self.known
            self.compute(stop)
            parameters.values[:] = self.known = changed


class Step:
    """
    The step that a rollout is at, and what SB3 knows of it that is not needed to act.

    :param model: the model
    :param network: its policy's networks
    """

    def __init__(self, model: OnPolicyAlgorithm, network: ActorCritic) -> None:
        self.model, self.network = model, network
        self.observations: Any = None
        self.actions: np.ndarray = np.empty(0)

    def obs_tensor(self) -> Any:
        """
        The observations.

        :return: as tensors
        """
        return obs_as_tensor(self.observations, self.model.device)

    def values(self) -> th.Tensor:
        """
        Values of the observations.

        :return: shape (n_envs, 1)
        """
        return th.from_numpy(self.network.values(self.network.critic_features(self.observations))[:, None])

    def log_probs(self) -> th.Tensor:
        """
        Log-probabilities of the actions.

        :return: shape (n_envs,)
        """
        inputs = self.network.actor_features(self.observations)
        return th.from_numpy(self.network.log_probs(inputs, self.actions.reshape(len(inputs), -1).astype(np.float32)))


def collect(
    model: OnPolicyAlgorithm,
    network: ActorCritic,
    env: VecEnv,
    callback: BaseCallback,
    buffer: RolloutBuffer,
    n_rollout_steps: int,
) -> np.ndarray | None:
    """
    Fill an empty rollout buffer as ``OnPolicyAlgorithm.collect_rollouts()`` does, to rounding, once its beginning was told.

    :param model: the model
    :param network: its policy's networks
    :param env: the training environment
    :param callback: called at each step, and at the end of the rollout
    :param buffer: the buffer to fill
    :param n_rollout_steps: number of steps per environment
    :return: values of the states after the last step, shape (n_envs,); None if a callback ended the rollout
    """
    assert model._last_obs is not None, "No previous observation was provided"

    action_space = model.action_space
    bounds = (action_space.low, action_space.high) if isinstance(action_space, spaces.Box) else None
    action_shape, stored_shape = (buffer.n_envs, *(action_space.shape or ())), (buffer.n_envs, buffer.action_dim)
    features, forward, sample = network.actor_features, network.actor.forward, network.head.sample
    observations: Any = buffer.observations
    stored_actions, stored_rewards, starts = buffer.actions, buffer.rewards, buffer.episode_starts
    watched = may_change_parameters(callback)
    pending = Pending(network, buffer, model.gamma, watched)
    step = Step(model, network)
    lazy: dict[str, Any] = {"values": step.values, "log_probs": step.log_probs, "obs_tensor": step.obs_tensor}
    for known in give_lazy_locals(callback, lazy):
        for name in lazy:
            known.pop(name, None)
    seen = StepLocals(
        {"self": model, "env": env, "callback": callback, "rollout_buffer": buffer, "n_rollout_steps": n_rollout_steps}, lazy
    )
    for n_steps in range(n_rollout_steps):
        last_obs: Any = model._last_obs
        inputs = features(last_obs)
        if pending.features is not None:
            pending.features[n_steps] = inputs
        outputs = forward(inputs)
        total = np.add.reduce(outputs, axis=None)
        if total != total and np.isnan(outputs).any():  # NaN, told without looking at each number
            raise ValueError(
                f"The actor's output is {outputs.tolist()} at step {n_steps} of the rollout: its observation "
                f"{last_obs!r} or the policy's parameters are not finite."
            )
        actions = sample(outputs)
        if actions.shape != action_shape:
            actions = actions.reshape(action_shape)
        clipped_actions = actions
        if bounds is not None:
            clipped_actions = np.minimum(np.maximum(actions, bounds[0]), bounds[1])
        new_obs, rewards, dones, infos = env.step(clipped_actions)
        model.num_timesteps += env.num_envs

        step.observations, step.actions = last_obs, actions
        seen.update(
            n_steps=n_steps,
            actions=actions,
            clipped_actions=clipped_actions,
            new_obs=new_obs,
            rewards=rewards,
            dones=dones,
            infos=infos,
        )
        callback.update_locals(seen)
        if not callback.on_step():
            if n_steps > 0:
                pending.compute(n_steps)
            return None
        model._update_info_buffer(infos, dones)

        if isinstance(observations, dict):
            for key, array in observations.items():
                array[n_steps] = last_obs[key].reshape(array.shape[1:])
        else:
            observations[n_steps] = last_obs.reshape(observations.shape[1:])
        stored_actions[n_steps] = actions.reshape(stored_shape)
        stored_rewards[n_steps] = rewards
        starts[n_steps] = model._last_episode_starts
        buffer.pos = n_steps + 1
        if watched:
            pending.follow(n_steps + 1)
        for index, done in enumerate(dones.tolist()):
            info = infos[index]
            if done and info.get("terminal_observation") is not None and info.get("TimeLimit.truncated", False):
                pending.truncated.append((n_steps, index, info["terminal_observation"]))
        model._last_obs = new_obs  # type: ignore[assignment]
        model._last_episode_starts = dones
    buffer.full = buffer.pos == buffer.buffer_size

    with np.errstate(all="ignore"):
        pending.compute(n_rollout_steps)
        last_values = network.values(network.critic_features(new_obs))
        returns = lambda_returns(
            buffer.rewards, buffer.values, buffer.episode_starts, last_values, dones, buffer.gamma, buffer.gae_lambda
        )
    buffer.advantages = (returns - buffer.values).astype(np.float32)
    buffer.returns = buffer.advantages + buffer.values

    # what SB3's own loop has at this point
    last_log_probs = th.from_numpy(buffer.log_probs[n_rollout_steps - 1].copy())
    seen.update(n_steps=n_rollout_steps, values=th.from_numpy(last_values[:, None]), log_probs=last_log_probs)
    callback.update_locals(seen)
    callback.on_rollout_end()
    return last_values
