"""Collecting rollouts with an episode clock beside them, and reading them as the correction needs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from sb3_avgcorr.common.clock import EpisodeClock
from sb3_avgcorr.common.correction import lambda_returns
from sb3_avgcorr.common.rollout import Rollout, check_finite, check_policy, flat_observations, restore_order
from sb3_avgcorr.common.saving import SavedCorrection


class ClockedRollouts(SavedCorrection):
    """Base of algorithms with a correction: collects rollouts, by the engine or as the algorithm does, and keeps the time."""

    rollout_buffer: RolloutBuffer
    #: λ of the critic's targets; None: the algorithm's returns
    critic_lambda: float | None
    _clock: EpisodeClock
    _engine: Any  # of sb3_avgcorr.fast, or None
    #: t of the observation that the next rollout begins with, as SB3's _last_episode_starts
    _last_episode_steps: np.ndarray | None

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, *args: Any, **kwargs: Any
    ) -> bool:
        complete = True
        try:
            if self._engine is not None and self._engine.collects():
                complete = self._engine.collect(env, callback, rollout_buffer, *args, **kwargs)
            else:
                complete = super().collect_rollouts(env, callback, rollout_buffer, *args, **kwargs)
        except Exception:
            # torch reports a NaN observation as a distribution with wrong parameters, an environment as a wrong action
            check_finite("observation", self._last_obs, rollout=False)
            check_policy(self, self._last_values())
            raise
        finally:
            restore_order(rollout_buffer)
            # An exception or a callback may break a rollout off; it has moved the environments all the same.
            rows = rollout_buffer.buffer_size if rollout_buffer.full else rollout_buffer.pos
            assert self._last_episode_starts is not None
            self._clock.read(rollout_buffer.episode_starts[:rows], self._last_episode_starts)
            if not complete:
                self._clock.skip(callback.locals.get("dones", np.zeros(env.num_envs, dtype=bool)))
            self._last_episode_steps = self._clock.next_steps
        return complete

    def _critic_inputs(self) -> tuple[Any, ...]:
        """
        Give what ``policy.predict_values`` takes to evaluate the rollout.

        :return: tensors, row (step, environment) by row
        """
        return (flat_observations(self.rollout_buffer),)

    def _last_values(self) -> np.ndarray:
        """
        Evaluate the state that follows the rollout.

        :return: its value, shape (n_envs,)
        """
        with th.no_grad():
            obs, _ = self.policy.obs_to_tensor(self._last_obs)  # type: ignore[arg-type]
            return self.policy.predict_values(obs).cpu().numpy().flatten()

    def _rollout(self) -> Rollout:
        buffer = self.rollout_buffer
        returns = buffer.returns
        if self.critic_lambda is not None:
            assert self._last_episode_starts is not None
            returns = lambda_returns(
                buffer.rewards,
                buffer.values,
                buffer.episode_starts,
                self._last_values(),
                self._last_episode_starts,
                self.gamma,
                self.critic_lambda,
            )
        value_loss = float(np.mean(np.square(buffer.values - returns)))
        return Rollout(self._critic_inputs(), self._clock.steps, returns, value_loss)

    def _check_rollout(self) -> None:
        """Raise an error that names what of the rollout is missing or not finite, and whose fault that is."""
        buffer = self.rollout_buffer
        if self._clock.steps.shape != buffer.rewards.shape:
            raise TypeError(
                f"{type(self).__name__} cannot be corrected: its collect_rollouts() does not fill self.rollout_buffer, from "
                "which the episode clock reads."
            )
        check_finite("reward", buffer.rewards)
        check_finite("observation", buffer.observations)
        check_finite("observation", self._last_obs, rollout=False)  # its value is in the advantages
        check_policy(self, buffer.values, buffer.log_probs, buffer.advantages)
