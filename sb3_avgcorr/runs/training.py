"""
How a training run of a comparison is made: through RL Zoo's machinery, resumable, with every episode written down.

A checkpoint cannot hold the environments, which in general cannot be saved in the middle of an episode. It holds the actions
they were given instead: a resumed run gives the same actions to environments with the same seed, checks that they come to
where the broken one stood, and goes on. So checkpoints leave no trace in a run, and broken and unbroken runs are the same.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization

from sb3_avgcorr.runs.files import CHECKPOINT, PROGRESS, read_checkpoint, rename_aside, write_checkpoint
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.manager import JobManager, check_job, plain_settings
from sb3_avgcorr.runs.results import GAMMAS, discounted_column

#: seconds between checkpoints; the environment variable is there for tests
CHECKPOINT_SECONDS = "SB3_AVGCORR_CHECKPOINT_SECONDS"
DEFAULT_CHECKPOINT_SECONDS = 20.0

#: environments in which a trained policy is evaluated, at most
EVALUATION_ENVS = 10

#: attributes of a model that its set-up makes anew when it is loaded
RESET_BY_LOAD = ("_last_lstm_states", "_correction_rng")


class EpisodeLog:
    """
    Adds up rewards, and writes down every episode that ends.

    :param n_envs: number of environments
    :param gamma: discount factor of the algorithm
    """

    def __init__(self, n_envs: int, gamma: float) -> None:
        gammas = {"return": 1.0, "discounted": gamma, **{discounted_column(other): other for other in GAMMAS}}
        self._kinds = tuple(gammas)
        self._gammas = np.array(list(gammas.values()))[:, None]
        # of the episodes that are not over: γ^t of their next step, their returns, a row for each γ, and their lengths
        self._powers = np.ones((len(gammas), n_envs))
        self._returns = np.zeros((len(gammas), n_envs))
        self._lengths = np.zeros(n_envs, dtype=np.int64)
        self.columns: dict[str, list[float]] = {name: [] for name in ("step", *gammas, "length")}

    def add(self, rewards: np.ndarray, dones: np.ndarray, step: int) -> None:
        """
        Take a step of every environment.

        :param rewards: of each environment, before any normalisation
        :param dones: whether its episode ended
        :param step: environment steps of the run so far
        """
        self._returns += self._powers * rewards
        self._powers *= self._gammas
        self._lengths += 1
        if dones.any():
            for name, values in self._of(dones, step).items():
                self.columns[name] += values
            self._powers[:, dones] = 1.0
            self._returns[:, dones] = 0.0
            self._lengths[dones] = 0

    def open_episodes(self, step: int) -> dict[str, list[float]]:
        """
        The episodes that are not over, as far as they have come.

        :param step: environment steps of the run so far
        :return: their columns
        """
        return self._of(self._lengths > 0, step)

    def _of(self, which: np.ndarray, step: int) -> dict[str, list[float]]:
        """The columns of some environments' episodes."""
        lengths = self._lengths[which].tolist()
        returns = self._returns[:, which].tolist()
        return {"step": [step] * len(lengths), **dict(zip(self._kinds, returns, strict=True)), "length": lengths}


class Recorder(BaseCallback):
    """
    Writes down every episode, and checkpoints now and then at the beginning of a rollout.

    :param home: folder of the run
    :param log: where episodes are written down
    :param settings: the run's hyperparameters, which a checkpoint must share
    """

    def __init__(self, home: Path, log: EpisodeLog, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.home, self.log, self.settings = home, log, settings
        self.every = float(os.environ.get(CHECKPOINT_SECONDS, DEFAULT_CHECKPOINT_SECONDS))
        # all actions up to the last checkpoint, and those since then, one entry a step
        self._past: np.ndarray | None = None
        self._recent: list[np.ndarray] = []
        self._random: dict[str, Any] | None = None  # to go on with, in a run that is resumed
        self._told = self._saved = time.monotonic()
        self._pause = self.every
        #: the greatest strength with which a rollout was corrected; None: there is no correction
        self.strongest: float | None = None

    def resume(self, model: BaseAlgorithm, checkpoint: Mapping[str, Any]) -> BaseAlgorithm | None:
        """
        Go on from a checkpoint, with environments that are given the same actions again.

        :param model: the model as it is before training, with its environments
        :param checkpoint: what :meth:`save` saved
        :return: the model to go on with; None if the environments did not come to where they were, or the settings are others
        """
        if checkpoint["settings"] != self.settings:
            return None
        if "strongest" not in checkpoint or vars(checkpoint["log"]).keys() != vars(self.log).keys():  # of an earlier version
            return None
        env = model.get_env()
        assert env is not None
        model = type(model).load(io.BytesIO(checkpoint["model"]), env=env, device="cpu", force_reset=False)
        for name, value in checkpoint["reset_by_load"].items():
            setattr(model, name, value)
        estimator = getattr(model, "correction_estimator", None)
        if estimator is not None:
            estimator.rng = model._correction_rng  # type: ignore[attr-defined]  # one stream, as before
        set_random_seed(model.seed or 0)
        env.seed(model.seed)
        obs: Any = env.reset()
        for actions in checkpoint["actions"]:
            obs = env.step(actions)[0]
        if not _same(obs, model._last_obs):
            return None
        self.log, self._random = checkpoint["log"], checkpoint["random"]
        self._past = checkpoint["actions"]
        self.strongest = checkpoint["strongest"]
        return model

    def save(self) -> None:
        """Write a checkpoint. Called at the beginning of a rollout, when nothing of it has been drawn but gSDE's noise."""
        model, buffer = self.model, io.BytesIO()
        model.save(buffer)
        recent = np.stack(self._recent)
        self._past = recent if self._past is None else np.concatenate((self._past, recent))
        self._recent = []
        checkpoint = {
            "model": buffer.getvalue(),
            "reset_by_load": {name: getattr(model, name) for name in RESET_BY_LOAD if hasattr(model, name)},
            "actions": self._past,
            "log": self.log,
            "settings": self.settings,
            "random": self._random_state(),
            "strongest": self.strongest,
        }
        write_checkpoint(self.home / CHECKPOINT, checkpoint)

    def _random_state(self) -> dict[str, Any]:
        noise = getattr(self.model.policy, "action_dist", None)
        drawn = {}
        if isinstance(noise, StateDependentNoiseDistribution):
            drawn = {name: getattr(noise, name).detach().clone() for name in ("exploration_mat", "exploration_matrices")}
        numpy_state = np.random.get_state()  # noqa: NPY002  # SB3's own stream
        return {"torch": th.get_rng_state(), "numpy": numpy_state, "python": random.getstate(), "noise": drawn}

    def _note_strength(self) -> None:
        """Called after every update."""
        used: float | None = getattr(self.model, "correction_strength_used", None)
        if used is not None:
            self.strongest = max(used, self.strongest or 0.0)

    def _on_training_end(self) -> None:
        self._note_strength()

    def _on_rollout_start(self) -> None:
        self._note_strength()
        now = time.monotonic()
        if now - self._told > 1.0:
            self._told = now
            (self.home / PROGRESS).write_text(str(self.model.num_timesteps))
        if self._random is not None:
            th.set_rng_state(self._random["torch"])
            np.random.set_state(self._random["numpy"])  # noqa: NPY002
            random.setstate(self._random["python"])
            for name, value in self._random["noise"].items():
                setattr(self.model.policy.action_dist, name, value)
            self._random = None
        elif now - self._saved >= self._pause and self._recent and isinstance(self.model, OnPolicyAlgorithm):
            # Algorithms with a replay buffer begin again: theirs is too large to be written every few seconds.
            self.save()
            self._saved = time.monotonic()
            if self.every > 0.0:  # checkpoints of a long run grow, and should not take its time
                self._pause = max(self.every, 20.0 * (self._saved - now))

    def _on_step(self) -> bool:
        if isinstance(self.model, OnPolicyAlgorithm):
            self._recent.append(np.array(self.locals.get("clipped_actions", self.locals["actions"])))
        normalised: VecNormalize | None = self.model.get_vec_normalize_env()
        rewards = self.locals["rewards"] if normalised is None else normalised.get_original_reward()
        self.log.add(rewards, self.locals["dones"], self.num_timesteps)
        return True


def train(job: Job, home: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """
    Train, or go on from the last checkpoint.

    :param job: the run
    :param home: its folder, locked by us
    :param say: takes a line for the run's log
    :return: what the result file is to hold
    """
    check_job(job)
    manager = JobManager(job, home)
    made = manager.setup_experiment()
    assert made is not None
    model = made[0]
    gamma = getattr(model, "gamma", 1.0)
    settings = plain_settings(manager.settings)
    recorder = Recorder(home, EpisodeLog(model.n_envs, gamma), settings)
    path = home / CHECKPOINT
    resumed = recorder.resume(model, read_checkpoint(path)) if path.exists() else None
    if resumed is not None:
        model = resumed
        say(f"Going on from step {model.num_timesteps}.")
    elif path.exists():
        aside = rename_aside(path, "not-used")
        say(f"The settings have changed, or the environment did not repeat itself: beginning again ({aside}).")
        return train(job, home, say)
    model.learn(
        job.steps - (0 if resumed is None else resumed.num_timesteps),
        callback=[*manager.callbacks, recorder],
        log_interval=None,  # type: ignore[arg-type]
        reset_num_timesteps=resumed is None,
    )
    document = {
        "job": job.description(),
        "gamma": gamma,
        "settings": settings,
        "parameters": parameters_digest(model),
        "strongest": recorder.strongest,
        "episodes": recorder.log.columns,
        "open": recorder.log.open_episodes(job.steps),
        "evaluation": _evaluate(model, manager, job, gamma),
    }
    if job.probe:
        document["probe"] = named(job.probe)(model)
    _save_model(model, home)
    assert model.env is not None
    model.env.close()
    return document


def named(function: str) -> Callable[..., Any]:
    """
    Find a function by its dotted name.

    :param function: the name
    """
    module, _, name = function.rpartition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _evaluate(model: BaseAlgorithm, manager: JobManager, job: Job, gamma: float) -> dict[str, list[float]]:
    """
    Episodes of the final policy on the task itself, in several environments at a time.

    Each environment has its share of the episodes: of those that end first, short ones would be too many.
    """
    n_envs = min(job.eval_episodes, EVALUATION_ENVS)
    log = EpisodeLog(n_envs, gamma)
    if n_envs == 0:
        return log.columns
    env = manager.evaluation_env(n_envs)
    if model.get_vec_normalize_env() is not None:
        assert model.env is not None
        sync_envs_normalization(model.env, env)
    seed = int(np.random.default_rng([job.seed, 1]).integers(2**31))  # not training's
    set_random_seed(seed)
    env.seed(seed)
    obs: Any = env.reset()
    state, start = None, np.ones(n_envs, dtype=bool)
    missing = (job.eval_episodes + np.arange(n_envs)) // n_envs
    while missing.any():
        action, state = model.predict(obs, state=state, episode_start=start, deterministic=False)
        obs, reward, start, _ = env.step(action)
        log.add(reward, start & (missing > 0), job.steps)
        missing -= start & (missing > 0)
    env.close()
    return log.columns


def _save_model(model: BaseAlgorithm, home: Path) -> None:
    """Leave the trained model for whoever wants to look at it."""
    model.save(home / "model.zip")
    normalised = model.get_vec_normalize_env()
    if normalised is not None:
        normalised.save(str(home / "vecnormalize.pkl"))


def parameters_digest(model: BaseAlgorithm) -> str:
    """
    Digest of all parameters of a model and of its optimisers' state.

    :param model: the model
    """
    digest = hashlib.sha256()

    def add(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key in sorted(value, key=str):
                add(f"{name}.{key}", value[key])
        elif isinstance(value, th.Tensor):
            digest.update(name.encode() + value.detach().cpu().numpy().tobytes())

    add("", model.get_parameters())
    return digest.hexdigest()


def _same(a: Any, b: Any) -> bool:
    """Whether two observations are equal, to the bit."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=np.asarray(a).dtype.kind == "f")
