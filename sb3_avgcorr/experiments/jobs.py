"""
One training run of a comparison: through RL Zoo's machinery, resumable, with every episode written down.

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
import re
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import filelock
import gymnasium as gym
import numpy as np
import numpy.typing as npt
import rl_zoo3.utils
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, sync_envs_normalization

from sb3_avgcorr.zoo.algorithms import UncorrectedPPO
from sb3_avgcorr.zoo.config import ZooError, nearest, paper_config
from sb3_avgcorr.zoo.manager import ExperimentManager
from sb3_avgcorr.zoo.registry import register
from sb3_avgcorr.zoo.signals import StopSignals

Array = npt.NDArray[np.float64]

#: seconds between checkpoints; the environment variable is there for tests
CHECKPOINT_SECONDS = "SB3_AVGCORR_CHECKPOINT_SECONDS"
DEFAULT_CHECKPOINT_SECONDS = 20.0

RESULT, CHECKPOINT, LOG, PROGRESS, LOCK = "result.json", "checkpoint.bin", "log.txt", "progress", "lock"


#: attributes of a model that its set-up makes anew when it is loaded
RESET_BY_LOAD = ("_last_lstm_states", "_correction_rng")


class Locked(Exception):
    """Another process is at this job."""


@dataclass(frozen=True)
class Job:
    """
    One training run.

    :param algo: RL Zoo's name of the algorithm, one of ours or one of its own
    :param env: id of the environment, ``package:id`` if a package must be imported for it
    :param seed: seed of everything
    :param steps: environment steps to train for
    :param label: the variant's name in tables; default: the algorithm's. Runs that differ in nothing else are the same run
    :param paper: take the settings of the paper's file (``hyperparams/paper``)
    :param hyperparams: hyperparameters that differ from the file's entry, as RL Zoo's ``-params``
    :param env_kwargs: arguments of the environment
    :param eval_episodes: after training, episodes of the final policy (its actions drawn, as in training) in the environment
        without :class:`~sb3_avgcorr.envs.wrappers.GeometricTermination`
    """

    algo: str
    env: str
    seed: int
    steps: int
    label: str = ""
    paper: bool = False
    hyperparams: Mapping[str, Any] = field(default_factory=dict)
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    eval_episodes: int = 0

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.algo)
        for name in ("hyperparams", "env_kwargs"):
            object.__setattr__(self, name, copy.deepcopy(dict(getattr(self, name))))
        for name, least in (("steps", 1), ("seed", 0), ("eval_episodes", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                raise ValueError(f"{name} is {value!r}; it must be a whole number, at least {least}")
            object.__setattr__(self, name, int(value))

    def __hash__(self) -> int:
        return hash((self.name, self.label))

    @property
    def env_id(self) -> str:
        """Id of the environment without the package."""
        return self.env.rpartition(":")[2]

    @property
    def name(self) -> str:
        """Name of the run's folder: readable, and different for runs that differ in anything but their label."""
        return f"{_file_safe(self.algo)}-{_file_safe(self.env_id)}-{self.seed}-{_digest(self.description())[:12]}"

    def description(self) -> dict[str, Any]:
        """
        :return: every field but the label, ready for JSON
        """
        fields = asdict(self)
        del fields["label"]
        described: dict[str, Any] = json.loads(json.dumps(fields, sort_keys=True, default=_describe))
        return described


@dataclass(frozen=True)
class Episodes:
    """
    Finished episodes in the order of their ends, one entry each.

    :param step: environment steps of the run at the episode's end
    :param returns: undiscounted return, of rewards before any normalisation
    :param discounted: return from the episode's start, discounted with the algorithm's γ
    :param length: number of steps
    """

    step: npt.NDArray[np.int64]
    returns: Array
    discounted: Array
    length: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Result:
    """
    What a run left.

    :param job: the run
    :param gamma: the algorithm's γ
    :param episodes: episodes of training
    :param evaluation: episodes afterwards (``eval_episodes``); empty if none were asked for
    :param settings: hyperparameters, as RL Zoo records them
    :param parameters: digest of all parameters at the end
    """

    job: Job
    gamma: float
    episodes: Episodes
    evaluation: Episodes
    settings: Mapping[str, Any]
    parameters: str


def read_result(job: Job, folder: Path | str) -> Result | None:
    """
    :param job: a run
    :param folder: where runs are
    :return: its result; None if there is none yet
    """
    path = Path(folder) / job.name / RESULT
    if not path.exists():
        return None
    return parse_result(job, read_document(path))


def parse_result(job: Job, document: Mapping[str, Any]) -> Result:
    """
    :param job: a run
    :param document: what its result file holds
    :return: the result
    """
    return Result(
        job=job,
        gamma=document["gamma"],
        episodes=_episodes(document["episodes"]),
        evaluation=_episodes(document["evaluation"]),
        settings=document["settings"],
        parameters=document["parameters"],
    )


def check_job(job: Job) -> None:
    """
    Raise a ZooError if the algorithm, the environment or the paper's settings do not exist. Makes everything known that a
    run needs.

    :param job: a run
    """
    register()
    # The same algorithm as SB3's, which also knows the paper's schedule.
    rl_zoo3.utils.ALGOS["ppo"] = UncorrectedPPO
    module, colon, env_id = job.env.rpartition(":")
    known = rl_zoo3.utils.ALGOS.keys() - {"ars"}  # which tells callbacks nothing of its episodes
    if job.algo not in known:
        raise ZooError(f"There is no algorithm {job.algo!r}; {nearest(job.algo, known)}")
    if colon:
        try:
            importlib.import_module(module)
        except ImportError as error:
            message = f"The package {module!r}, which should register environments, cannot be imported: {error}"
            raise ZooError(message) from error
    if env_id not in gym.registry:
        raise ZooError(f"There is no environment {env_id!r}; {nearest(env_id, gym.registry)}")
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
            raise ZooError(" ".join(str(error).split())) from error


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


def set_aside_corrupt(home: Path) -> list[str]:
    """
    Rename files of a run that are corrupt or half-written, so that they are made again.

    :param home: the run's folder
    :return: what was found, in words
    """
    notes = []
    for name, read in ((RESULT, _check_result), (CHECKPOINT, read_checkpoint)):
        path = home / name
        if path.exists():
            try:
                read(path)
            except ValueError as error:
                notes.append(f"{error}; set aside as {_rename_aside(path, 'corrupt')}, and made again")
    return notes


def changed_settings(result: Result) -> list[str]:
    """
    :param result: a result that was made earlier
    :return: names of hyperparameters that the files would have otherwise now
    """
    now, then = _plain(settings_of(result.job)), result.settings
    # the number of steps is the job's own
    return sorted(name for name in now.keys() | then.keys() if name != "n_timesteps" and now.get(name) != then.get(name))


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """
    Write a JSON file, all or nothing, with a digest of itself.

    :param path: the file
    :param document: what it is to hold
    """
    _write(path, (json.dumps({"sha256": _digest(document), **document}, sort_keys=True) + "\n").encode())


def read_document(path: Path) -> dict[str, Any]:
    """
    :param path: a file of :func:`write_document`
    :return: what it holds; a ValueError names a file that is not as it was written
    """
    try:
        document = json.loads(path.read_bytes())
        sound = document.pop("sha256") == _digest(document)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is corrupt ({type(error).__name__}: {error})") from error
    if not sound:
        raise ValueError(f"{path} is corrupt (it does not match its own digest)")
    return dict(document)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """
    :param path: a checkpoint
    :return: what it holds; a ValueError names a file that is not as it was written
    """
    content = path.read_bytes()
    if content[:32] != hashlib.sha256(content[32:]).digest():
        raise ValueError(f"{path} is corrupt (it does not match its own digest)")
    checkpoint: dict[str, Any] = pickle.loads(content[32:])
    return checkpoint


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


class Recorder(BaseCallback):
    """
    Writes down every episode, and checkpoints now and then at the beginning of a rollout.

    :param home: folder of the run
    :param gamma: discount factor of the discounted returns
    """

    def __init__(self, home: Path, gamma: float) -> None:
        super().__init__()
        self.home, self.gamma = home, gamma
        self.every = float(os.environ.get(CHECKPOINT_SECONDS, DEFAULT_CHECKPOINT_SECONDS))
        self.episodes: dict[str, list[float]] = {"step": [], "return": [], "discounted": [], "length": []}
        self.actions: list[np.ndarray] = []
        self._open: dict[str, np.ndarray] = {}  # of the episodes that are not over
        self._random: dict[str, Any] | None = None  # to go on with, in a run that is resumed
        self._told = self._saved = time.monotonic()

    def resume(self, model: BaseAlgorithm, checkpoint: Mapping[str, Any]) -> BaseAlgorithm | None:
        """
        :param model: the model as it is before training, with its environments
        :param checkpoint: what :meth:`save` saved
        :return: the model to go on with; None if the environments did not come to where they were
        """
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
        self.episodes, self._open, self._random = checkpoint["episodes"], checkpoint["open"], checkpoint["random"]
        self.actions = list(checkpoint["actions"])
        return model

    def save(self) -> None:
        """Write a checkpoint. Called at the beginning of a rollout, when nothing of it has been drawn but gSDE's noise."""
        model, buffer = self.model, io.BytesIO()
        model.save(buffer)
        checkpoint = {
            "model": buffer.getvalue(),
            "reset_by_load": {name: getattr(model, name) for name in RESET_BY_LOAD if hasattr(model, name)},
            "actions": np.stack(self.actions) if self.actions else [],
            "episodes": self.episodes,
            "open": self._open,
            "random": self._random_state(),
        }
        content = pickle.dumps(checkpoint)
        _write(self.home / CHECKPOINT, hashlib.sha256(content).digest() + content)

    def _random_state(self) -> dict[str, Any]:
        noise = getattr(self.model.policy, "action_dist", None)
        drawn = {}
        if isinstance(noise, StateDependentNoiseDistribution):
            drawn = {name: getattr(noise, name).detach().clone() for name in ("exploration_mat", "exploration_matrices")}
        numpy_state = np.random.get_state()  # noqa: NPY002  # SB3's own stream
        return {"torch": th.get_rng_state(), "numpy": numpy_state, "python": random.getstate(), "noise": drawn}

    def _on_training_start(self) -> None:
        if not self._open:
            n = self.training_env.num_envs
            self._open = {"return": np.zeros(n), "discounted": np.zeros(n), "length": np.zeros(n, dtype=np.int64)}

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
        elif now - self._saved >= self.every and self.actions and isinstance(self.model, OnPolicyAlgorithm):
            # Algorithms with a replay buffer begin again: theirs is too large to be written every few seconds.
            self.save()
            self._saved = time.monotonic()

    def _on_step(self) -> bool:
        if isinstance(self.model, OnPolicyAlgorithm):
            self.actions.append(np.array(self.locals.get("clipped_actions", self.locals["actions"])))
        normalised: VecNormalize | None = self.model.get_vec_normalize_env()
        rewards = self.locals["rewards"] if normalised is None else normalised.get_original_reward()
        now = self._open
        now["return"] += rewards
        now["discounted"] += self.gamma ** now["length"] * rewards
        now["length"] += 1
        for index in np.flatnonzero(self.locals["dones"]):
            self.episodes["step"].append(self.num_timesteps)
            for name, values in now.items():
                self.episodes[name].append(values[index].item())
                values[index] = 0
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
    recorder = Recorder(home, getattr(model, "gamma", 1.0))
    path = home / CHECKPOINT
    resumed = recorder.resume(model, read_checkpoint(path)) if path.exists() else None
    if resumed is not None:
        model = resumed
        print(f"Going on from step {model.num_timesteps}.", flush=True)
    elif path.exists():
        aside = _rename_aside(path, "not-repeated")
        print(f"The environment did not repeat itself: beginning again ({aside}).", flush=True)
        return _train(job, home)
    model.learn(
        job.steps - (0 if resumed is None else resumed.num_timesteps),
        callback=[*manager.callbacks, recorder],
        log_interval=None,  # type: ignore[arg-type]
        reset_num_timesteps=resumed is None,
    )
    document = {
        "job": job.description(),
        "gamma": recorder.gamma,
        "settings": _plain(manager.settings),
        "parameters": _parameters_digest(model),
        "episodes": recorder.episodes,
        "evaluation": _evaluate(model, manager, job, recorder.gamma),
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
    episodes: dict[str, list[float]] = {"step": [], "return": [], "discounted": [], "length": []}
    if job.eval_episodes == 0:
        return episodes
    env = manager.evaluation_env()
    if model.get_vec_normalize_env() is not None:
        assert model.env is not None
        sync_envs_normalization(model.env, env)
    seed = int(np.random.default_rng([job.seed, 1]).integers(2**31))  # not training's
    set_random_seed(seed)
    env.seed(seed)
    obs: Any = env.reset()
    state, start = None, np.ones(1, dtype=bool)
    total = discounted = 0.0
    length = 0
    while len(episodes["step"]) < job.eval_episodes:
        action, state = model.predict(obs, state=state, episode_start=start, deterministic=False)
        obs, reward, start, _ = env.step(action)
        total += float(reward[0])
        discounted += gamma**length * float(reward[0])
        length += 1
        if start[0]:
            for name, value in (("step", job.steps), ("return", total), ("discounted", discounted), ("length", length)):
                episodes[name].append(value)
            total = discounted = 0.0
            length = 0
    env.close()
    return episodes


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


def _episodes(columns: Mapping[str, list[float]]) -> Episodes:
    step, returns, discounted, length = (columns[name] for name in ("step", "return", "discounted", "length"))
    return Episodes(
        np.asarray(step, dtype=np.int64),
        np.asarray(returns, dtype=np.float64),
        np.asarray(discounted, dtype=np.float64),
        np.asarray(length, dtype=np.int64),
    )


def _check_result(path: Path) -> None:
    document = read_document(path)
    missing = {"job", "gamma", "settings", "parameters", "episodes", "evaluation"} - document.keys()
    if missing:
        raise ValueError(f"{path} is corrupt (it lacks {', '.join(sorted(missing))})")


def _write(path: Path, content: bytes) -> None:
    """Write a file so that a process that dies in between leaves the old one."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _rename_aside(path: Path, why: str) -> str:
    """Rename a file to the first free ``name.why-N``; returns the new name."""
    number = 1
    while (aside := path.with_name(f"{path.name}.{why}-{number}")).exists():
        number += 1
    os.replace(path, aside)
    return aside.name


def _same(a: Any, b: Any) -> bool:
    """Whether two observations are equal, to the bit."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=np.asarray(a).dtype.kind == "f")


def _wrapper_name(wrapper: Any) -> Any:
    return next(iter(wrapper)) if isinstance(wrapper, dict) else wrapper


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _file_safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "_", name)


def _describe(value: Any) -> Any:
    """For JSON: classes by their name, numbers of numpy as Python's; whatever has no lasting description is refused."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    raise ValueError(f"A job's settings must be plain values (numbers, text, lists, mappings) or classes, not {value!r}")


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON holds them."""

    def describe(value: Any) -> Any:
        try:
            return _describe(value)
        except ValueError:
            return str(value)

    plain: dict[str, Any] = json.loads(json.dumps(dict(settings), default=describe, sort_keys=True))
    return plain
