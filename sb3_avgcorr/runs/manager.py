"""How a training run is set up: RL Zoo's machinery, which reads the settings and makes environments and model."""

from __future__ import annotations

import argparse
import copy
import importlib
import inspect
import io
import json
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import gymnasium as gym
import rl_zoo3.utils
from stable_baselines3.common.vec_env import VecEnv

from sb3_avgcorr.common.averaging import AveragingCorrection
from sb3_avgcorr.errors import UserError, nearest, no_environment
from sb3_avgcorr.runs.jobs import Job, describe
from sb3_avgcorr.runs.results import Result
from sb3_avgcorr.zoo.algorithms import UncorrectedBAC, UncorrectedPPO
from sb3_avgcorr.zoo.config import paper_config
from sb3_avgcorr.zoo.manager import ExperimentManager
from sb3_avgcorr.zoo.registry import register
from sb3_avgcorr.zoo.signals import StopSignals

#: what a result of an earlier version means by a setting that it does not name
FORMERLY = {"correction_strength": 1.0}


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
        raise UserError(no_environment(env_id, gym.registry))
    if job.paper:
        paper_config(job.algo)


def settings_of(job: Job) -> dict[str, Any]:
    """
    Hyperparameters of a run: the entry of the file with the job's own put in, as RL Zoo reads them.

    :param job: a run
    """
    check_job(job)
    with redirect_stdout(io.StringIO()):
        try:
            return JobManager(job, Path()).read_hyperparameters()[0]
        except ValueError as error:
            raise UserError(" ".join(str(error).split())) from error


def changed_settings(result: Result) -> list[str]:
    """
    Which hyperparameters have another value now than when a run was made.

    :param result: a result that was made earlier
    :return: their names
    """
    now, then = plain_settings(settings_of(result.job)), {**FORMERLY, **result.settings}
    now = {**FORMERLY, **now}
    # the number of steps is the job's own
    return sorted(name for name in now.keys() | then.keys() if name != "n_timesteps" and now.get(name) != then.get(name))


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
        self._eval_without = job.eval_without
        self.settings: dict[str, Any] = {}

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        hyperparams, saved = super().read_hyperparameters()
        cls = rl_zoo3.utils.ALGOS[self.algo]
        if issubclass(cls, AveragingCorrection):
            # Corrected or not, all variants are trained by the same loop, in the least time.
            defaults: dict[str, Any] = {"fast": "always"}
            # A result must tell its strength, also where that is the algorithm's default, which may change.
            if hyperparams.get("correction", _default(cls, "correction")) is not None:
                defaults["correction_strength"] = _default(cls, "correction_strength")
            for settings in (hyperparams, saved):
                for name, value in defaults.items():
                    settings.setdefault(name, value)
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

    def evaluation_env(self, n_envs: int) -> VecEnv:
        """
        Make environments as in training, but without the wrappers that only training has.

        :param n_envs: number of environments
        """
        wrappers = self.settings.get("env_wrapper") or []
        wrappers = wrappers if isinstance(wrappers, list) else [wrappers]
        kept = [wrapper for wrapper in wrappers if str(_wrapper_name(wrapper)).rpartition(".")[2] not in self._eval_without]
        self.env_wrapper = rl_zoo3.utils.get_wrapper_class({"env_wrapper": kept}) if kept else None
        self.eval_env_kwargs = self.env_kwargs  # RL Zoo does not take them over from the file's entry
        return self.create_envs(n_envs, eval_env=True)


def _default(cls: type, option: str) -> Any:
    """Default of an option of the correction: the constructor's own, or the class's attribute."""
    parameter = inspect.signature(cls).parameters.get(option)
    return getattr(cls, option) if parameter is None else parameter.default


def _wrapper_name(wrapper: Any) -> Any:
    return next(iter(wrapper)) if isinstance(wrapper, dict) else wrapper


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """
    Settings as JSON holds them.

    :param settings: hyperparameters
    """

    def described(value: Any) -> Any:
        try:
            return describe(value)
        except ValueError:
            return str(value)

    plain: dict[str, Any] = json.loads(json.dumps(dict(settings), default=described, sort_keys=True))
    return plain
