"""
How a training run of a comparison is made: through RL Zoo's machinery, resumable, with every episode written down.

A checkpoint cannot hold the environments, which in general cannot be saved in the middle of an episode. It holds the actions
they were given instead: a resumed run gives the same actions to environments with the same seed, checks that they come to
where the broken one stood, and goes on. So checkpoints leave no trace in a run, and broken and unbroken runs are the same.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import importlib
import io
import json
import os
import pickle
import random
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import filelock
import gymnasium as gym
import numpy as np
import rl_zoo3.utils
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, sync_envs_normalization

from sb3_avgcorr.common.averaging import AveragingCorrection
from sb3_avgcorr.errors import UserError, nearest
from sb3_avgcorr.runs.jobs import (
    CHECKPOINT,
    GAMMAS,
    LOCK,
    LOG,
    PROGRESS,
    RESULT,
    Job,
    Result,
    describe,
    discounted_column,
    read_checkpoint,
    rename_aside,
    set_aside_corrupt,
    write_bytes,
    write_document,
)
from sb3_avgcorr.zoo.algorithms import UncorrectedBAC, UncorrectedPPO
from sb3_avgcorr.zoo.config import paper_config
from sb3_avgcorr.zoo.manager import ExperimentManager
from sb3_avgcorr.zoo.registry import register
from sb3_avgcorr.zoo.signals import StopSignals

#: seconds between checkpoints; the environment variable is there for tests
CHECKPOINT_SECONDS = "SB3_AVGCORR_CHECKPOINT_SECONDS"
DEFAULT_CHECKPOINT_SECONDS = 20.0

#: attributes of a model that its set-up makes anew when it is loaded
RESET_BY_LOAD = ("_last_lstm_states", "_correction_rng")


class Locked(Exception):
    """Another process is at this job."""


def check_job(job: Job) -> None:
    """
    Raise a UserError if the algorithm, the environment or the paper's settings do not exist. Makes everything known that a
    run needs.

    :param job: a run
    """
    register()
    # The same algorithms, which also know the paper's schedule and the fast path.
    rl_zoo3.utils.ALGOS.update(ppo=UncorrectedPPO, bac=UncorrectedBAC)
    module, colon, env_id = job.env.rpartition(":")
    known = rl_zoo3.utils.ALGOS.keys() - {"ars"}  # which tells callbacks nothing of its episodes
    if job.algo not in known:
        raise UserError(f"There is no algorithm {job.algo!r}; {nearest(job.algo, known)}")
    if colon:
        try:
            importlib.import_module(module)
        except (ImportError, ValueError, TypeError) as error:  # the latter two: not the name of a package
            message = f"The package {module!r}, which should register environments, cannot be imported: {error}"
            raise UserError(message) from error
    if env_id not in gym.registry:
        raise UserError(f"There is no environment {env_id!r}; {nearest(env_id, gym.registry)}")
    if job.paper:
        paper_config(job.algo)


def settings_of(job: Job) -> dict[str, Any]:
    """
    :param job: a run
    :return: its hyperparameters: the entry of the file with the job's own put in, as RL Zoo reads them
    """
    check_job(job)
    with redirect_stdout(io.StringIO()):
        try:
            return JobManager(job, Path()).read_hyperparameters()[0]
        except ValueError as error:
            raise UserError(" ".join(str(error).split())) from error


def changed_settings(result: Result) -> list[str]:
    """
    :param result: a result that was made earlier
    :return: names of hyperparameters that the files would have otherwise now
    """
    now, then = _plain(settings_of(result.job)), result.settings
    # the number of steps is the job's own
    return sorted(name for name in now.keys() | then.keys() if name != "n_timesteps" and now.get(name) != then.get(name))


def run_job(job: Job, folder: Path | str, *, wait: bool = False) -> None:
    """
    Train, or go on from the last checkpoint, in this process; leaves ``result.json`` in the run's folder. Does nothing if it
    is there already.

    :param job: the run
    :param folder: where runs are; the run has a folder of its own in it
    :param wait: wait for another process that is at the same job, instead of raising :class:`Locked`
    """
    home = Path(folder) / job.name
    home.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(home / LOCK)  # the kernel releases it when the process dies
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except filelock.Timeout:
        raise Locked(f"Another process is at {home}") from None
    threads = th.get_num_threads()
    try:
        for note in set_aside_corrupt(home):
            print(note, file=sys.stderr)
        if (home / RESULT).exists():
            return
        # Networks of this size gain nothing from threads, and sums must not depend on their number.
        th.set_num_threads(1)
        with (home / LOG).open("a") as log, redirect_stdout(log), redirect_stderr(log):
            try:
                document = _train(job, home)
            except BaseException:
                traceback.print_exc()
                raise
        write_document(home / RESULT, document)
        (home / CHECKPOINT).unlink(missing_ok=True)
    finally:
        th.set_num_threads(threads)
        lock.release()


class NoSignals(StopSignals):
    """In a comparison the runner ends runs, and a checkpoint is never far: signals keep their meaning."""

    def install(self) -> None:
        return


class JobManager(ExperimentManager):
    """
    RL Zoo's manager for one run of a comparison: the same settings, environments and model, and nothing written.

    :param job: the run
    :param home: its folder
    """

    def __init__(self, job: Job, home: Path) -> None:
        super().__init__(
            argparse.Namespace(),
            job.algo,
            job.env_id,
            str(home),
            n_timesteps=job.steps,
            eval_freq=-1,
            hyperparams=copy.deepcopy(dict(job.hyperparams)),
            env_kwargs=copy.deepcopy(dict(job.env_kwargs)),
            seed=job.seed,
            verbose=0,
            device="cpu",
            config=str(paper_config(job.algo)) if job.paper else None,
        )
        self._signals = NoSignals()
        self.settings: dict[str, Any] = {}

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        hyperparams, saved = super().read_hyperparameters()
        if issubclass(rl_zoo3.utils.ALGOS[self.algo], AveragingCorrection):
            # Corrected or not, all variants are trained by the same loop, in the least time.
            for settings in (hyperparams, saved):
                settings.setdefault("fast", "always")
        self.settings = copy.deepcopy(dict(saved))  # RL Zoo changes parts of it later
        return hyperparams, saved

    def create_log_folder(self) -> None:
        return

    def create_callbacks(self) -> None:
        return

    def _save_config(self, saved_hyperparams: dict[str, Any]) -> None:
        return

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        return super().create_envs(n_envs, eval_env, no_log=True)

    def evaluation_env(self) -> VecEnv:
        """
        :return: one environment as in training, but episodes end only where the task ends them
        """
        wrappers = self.settings.get("env_wrapper") or []
        wrappers = wrappers if isinstance(wrappers, list) else [wrappers]
        kept = [wrapper for wrapper in wrappers if "GeometricTermination" not in str(_wrapper_name(wrapper))]
        self.env_wrapper = rl_zoo3.utils.get_wrapper_class({"env_wrapper": kept}) if kept else None
        self.eval_env_kwargs = self.env_kwargs  # RL Zoo does not take them over from the file's entry
        return self.create_envs(1, eval_env=True)


class EpisodeLog:
    """
    Adds up rewards, and writes down every episode that ends.

    :param n_envs: number of environments
    :param gamma: discount factor of the algorithm
    """

    def __init__(self, n_envs: int, gamma: float) -> None:
        self.gammas = {"discounted": gamma, **{discounted_column(other): other for other in GAMMAS}}
        # of the episodes that are not over
        self._open: dict[str, np.ndarray] = {name: np.zeros(n_envs) for name in ("return", *self.gammas)}
        self._open["length"] = np.zeros(n_envs, dtype=np.int64)
        self.columns: dict[str, list[float]] = {name: [] for name in ("step", *self._open)}

    def add(self, rewards: np.ndarray, dones: np.ndarray, step: int) -> None:
        """
        :param rewards: of each environment, before any normalisation
        :param dones: whether its episode ended
        :param step: environment steps of the run so far
        """
        now = self._open
        now["return"] += rewards
        for name, gamma in self.gammas.items():
            now[name] += gamma ** now["length"] * rewards
        now["length"] += 1
        for index in np.flatnonzero(dones):
            self.columns["step"].append(step)
            for name, values in now.items():
                self.columns[name].append(values[index].item())
                values[index] = 0

    def open_episodes(self, step: int) -> dict[str, list[float]]:
        """
        :param step: environment steps of the run so far
        :return: columns of the episodes that are not over
        """
        begun = np.flatnonzero(self._open["length"])
        return {"step": [step] * len(begun), **{name: values[begun].tolist() for name, values in self._open.items()}}


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

    def resume(self, model: BaseAlgorithm, checkpoint: Mapping[str, Any]) -> BaseAlgorithm | None:
        """
        :param model: the model as it is before training, with its environments
        :param checkpoint: what :meth:`save` saved
        :return: the model to go on with; None if the environments did not come to where they were, or the settings are others
        """
        if checkpoint["settings"] != self.settings:
            return None
        env = model.get_env()
        assert env is not None
        model = type(model).load(io.BytesIO(checkpoint["model"]), env=env, device="cpu", force_reset=False)
        for name, value in checkpoint["reset_by_load"].items():
            setattr(model, name, value)
        set_random_seed(model.seed or 0)
        env.seed(model.seed)
        obs: Any = env.reset()
        for actions in checkpoint["actions"]:
            obs = env.step(actions)[0]
        if not _same(obs, model._last_obs):
            return None
        self.log, self._random = checkpoint["log"], checkpoint["random"]
        self._past = checkpoint["actions"]
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
        }
        content = pickle.dumps(checkpoint)
        write_bytes(self.home / CHECKPOINT, hashlib.sha256(content).digest() + content)

    def _random_state(self) -> dict[str, Any]:
        noise = getattr(self.model.policy, "action_dist", None)
        drawn = {}
        if isinstance(noise, StateDependentNoiseDistribution):
            drawn = {name: getattr(noise, name).detach().clone() for name in ("exploration_mat", "exploration_matrices")}
        numpy_state = np.random.get_state()  # noqa: NPY002  # SB3's own stream
        return {"torch": th.get_rng_state(), "numpy": numpy_state, "python": random.getstate(), "noise": drawn}

    def _on_rollout_start(self) -> None:
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


def _train(job: Job, home: Path) -> dict[str, Any]:
    """
    :param job: the run
    :param home: its folder, locked by us
    :return: what the result file is to hold
    """
    check_job(job)
    manager = JobManager(job, home)
    made = manager.setup_experiment()
    assert made is not None
    model = made[0]
    gamma = getattr(model, "gamma", 1.0)
    settings = _plain(manager.settings)
    recorder = Recorder(home, EpisodeLog(model.n_envs, gamma), settings)
    path = home / CHECKPOINT
    resumed = recorder.resume(model, read_checkpoint(path)) if path.exists() else None
    if resumed is not None:
        model = resumed
        print(f"Going on from step {model.num_timesteps}.", flush=True)
    elif path.exists():
        aside = rename_aside(path, "not-used")
        print(f"The settings have changed, or the environment did not repeat itself: beginning again ({aside}).", flush=True)
        return _train(job, home)
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
        "parameters": _parameters_digest(model),
        "episodes": recorder.log.columns,
        "open": recorder.log.open_episodes(job.steps),
        "evaluation": _evaluate(model, manager, job, gamma),
    }
    _save_model(model, home)
    assert model.env is not None
    model.env.close()
    return document


def _evaluate(model: BaseAlgorithm, manager: JobManager, job: Job, gamma: float) -> dict[str, list[float]]:
    """
    :param model: the trained model
    :param manager: what made its environments
    :param job: the run
    :param gamma: discount factor
    :return: episodes of the final policy
    """
    log = EpisodeLog(1, gamma)
    if job.eval_episodes == 0:
        return log.columns
    env = manager.evaluation_env()
    if model.get_vec_normalize_env() is not None:
        assert model.env is not None
        sync_envs_normalization(model.env, env)
    seed = int(np.random.default_rng([job.seed, 1]).integers(2**31))  # not training's
    set_random_seed(seed)
    env.seed(seed)
    obs: Any = env.reset()
    state, start = None, np.ones(1, dtype=bool)
    while len(log.columns["step"]) < job.eval_episodes:
        action, state = model.predict(obs, state=state, episode_start=start, deterministic=False)
        obs, reward, start, _ = env.step(action)
        log.add(reward, start, job.steps)
    env.close()
    return log.columns


def _save_model(model: BaseAlgorithm, home: Path) -> None:
    """Leave the trained model for whoever wants to look at it."""
    model.save(home / "model.zip")
    normalised = model.get_vec_normalize_env()
    if normalised is not None:
        normalised.save(str(home / "vecnormalize.pkl"))


def _parameters_digest(model: BaseAlgorithm) -> str:
    digest = hashlib.sha256()
    parameters = model.get_parameters()
    for name in sorted(parameters):
        for key, value in sorted(parameters[name].items(), key=lambda item: str(item[0])):
            if isinstance(value, th.Tensor):
                digest.update(f"{name}.{key}".encode() + value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _same(a: Any, b: Any) -> bool:
    """Whether two observations are equal, to the bit."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=np.asarray(a).dtype.kind == "f")


def _wrapper_name(wrapper: Any) -> Any:
    return next(iter(wrapper)) if isinstance(wrapper, dict) else wrapper


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON holds them."""

    def described(value: Any) -> Any:
        try:
            return describe(value)
        except ValueError:
            return str(value)

    plain: dict[str, Any] = json.loads(json.dumps(dict(settings), default=described, sort_keys=True))
    return plain
