"""The diagnosis along a training run."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_avgcorr.common.clock import episode_steps
from sb3_avgcorr.diagnostics.analysis import Starts, analyse
from sb3_avgcorr.diagnostics.report import MEASURES, DiagnosisReport
from sb3_avgcorr.diagnostics.rollout import RolloutView


class CorrectionDiagnosticsCallback(BaseCallback):
    """
    Measures the mismatch on the rollouts that training collects, and logs it as ``diagnostics/*``.

    It uses the advantages that training uses, works with every on-policy algorithm (SB3's own PPO too), and training goes on
    as if it were not there.

    :param every: measure every so many rollouts
    :param reset_env: id of an environment or an environment of its own to draw initial states from; None: those seen in
        training
    :param n_resets: number of initial states
    :param seed: seed of the measures' own random numbers
    :param verbose: 1 prints each verdict
    """

    model: OnPolicyAlgorithm

    def __init__(
        self,
        every: int = 10,
        reset_env: str | gym.Env[Any, Any] | VecEnv | None = None,
        n_resets: int = 5000,
        seed: int = 0,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        if every < 1:
            raise ValueError(f"every={every!r} makes no sense: it must be a whole number >= 1.")
        self.every, self.reset_env, self.n_resets = every, reset_env, n_resets
        self.rng = np.random.default_rng(seed)
        #: one row of numbers for each measurement: ``timesteps``, every measure and its interval
        self.history: list[dict[str, float]] = []
        #: the last measurement
        self.report: DiagnosisReport | None = None
        self.rollouts = 0
        self._starts: Starts | None = None
        self._seen = 0
        self._next_steps: np.ndarray | None = None

    def _on_training_start(self) -> None:
        if not isinstance(self.model, OnPolicyAlgorithm):
            raise ValueError(f"{type(self.model).__name__} is off-policy: the mismatch is one of on-policy algorithms.")
        if self._next_steps is None or len(self._next_steps) != self.training_env.num_envs:
            self._next_steps = np.zeros(self.training_env.num_envs, dtype=np.int64)
        if self.reset_env is not None and self._starts is None:
            env: Any = self.reset_env
            # seeded, for SB3 would else draw a seed from the stream that training draws from
            env = make_vec_env(env, seed=int(self.rng.integers(2**31))) if isinstance(env, str) else env
            wrapped = self.model._wrap_env(env, monitor_wrapper=False)
            self._starts = Starts(self.training_env).reset(wrapped, self.n_resets)
            self._seen = self.n_resets

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        assert self._next_steps is not None
        buffer: Any = self.model.rollout_buffer
        first = self._next_steps
        steps = episode_steps(buffer.episode_starts, first)
        self._next_steps = np.where(self.locals["dones"], 0, steps[-1] + 1)
        self.rollouts += 1
        if self.reset_env is None:
            self._keep_starts(buffer)
        if self.rollouts % self.every != 0 or self._starts is None or self._seen < 2:
            return
        view = RolloutView(self.model, first)
        mode = self.model.policy.training
        self.model.policy.set_training_mode(False)
        with th.random.fork_rng():
            th.manual_seed(int(self.rng.integers(2**31)))
            try:
                report = analyse(view, self._starts, self.model.gamma, self.rng, buffer.advantages)
            except ValueError as error:  # a rollout inside one episode: nothing to say, and no reason to end a training
                self.logger.record("diagnostics/skipped", str(error)[:60], exclude="tensorboard")
                return
            finally:
                self.model.policy.set_training_mode(mode)
        report.policy, report.env = f"{type(self.model).__name__} after {self.num_timesteps} steps", "training"
        self.report = report
        row: dict[str, float] = {"timesteps": float(self.num_timesteps)}
        for name in MEASURES:
            x = getattr(report, name)
            row.update({name: float(x), f"{name}_low": x.low, f"{name}_high": x.high})
            self.logger.record(f"diagnostics/{name}", float(x))
        row["strength"] = report.strength.k
        self.logger.record("diagnostics/strength", report.strength.k)
        self.history.append(row)
        if self.verbose > 0:
            print(f"{self.num_timesteps} steps: {report.verdict}")

    def _keep_starts(self, buffer: Any) -> None:
        """Initial states as they come, the latest ``n_resets`` of them."""
        if self._starts is None:
            self._starts = Starts(self.training_env)
        where = buffer.episode_starts.astype(bool)
        if not where.any():
            return
        obs = buffer.observations
        kept = self._starts.observations
        first = {key: x[where] for key, x in obs.items()} if isinstance(obs, dict) else obs[where]
        kept.append(self._starts.raw(first))
        self._seen += int(where.sum())
        while len(kept) > 1 and self._seen - _size(kept[0]) >= self.n_resets:
            self._seen -= _size(kept.pop(0))


def _size(batch: Any) -> int:
    return len(next(iter(batch.values())) if isinstance(batch, dict) else batch)
