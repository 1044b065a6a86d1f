"""RL Zoo's experiment manager with our files, our checks and our report. Only what must differ is here."""

import importlib
import os
import runpy
import shutil
import time
import traceback
import zipfile
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import rl_zoo3
import rl_zoo3.exp_manager
import rl_zoo3.utils
import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import SQLAlchemyError
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from sb3_avgcorr.common.averaging import AveragingCorrection
from sb3_avgcorr.common.options import OPTIONS
from sb3_avgcorr.errors import FailedRun, UserError, one_line, user_error
from sb3_avgcorr.fast.vec_env import LeanDummyVecEnv, LeanVecNormalize
from sb3_avgcorr.zoo.algorithms import ALGORITHMS
from sb3_avgcorr.zoo.config import check_entry, own_file, read_yaml
from sb3_avgcorr.zoo.masks import MaskSource, ZooMaskablePPO, acts_in
from sb3_avgcorr.zoo.signals import NotForChildren, StopSignals
from sb3_avgcorr.zoo.summary import CorrectionRecord, closing_line, write_report

ZOO_FOLDER = Path(rl_zoo3.__file__).parent / "hyperparams"


def own_config(algo: str, env_id: str) -> str | None:
    """
    Find the file for a run that names none: ours. A task that ours does not know but RL Zoo has tuned the uncorrected
    algorithm for gets those settings, with the correction's defaults.

    :param algo: name of the algorithm
    :param env_id: id of the environment
    :return: path of the file; None for algorithms that are not ours
    """
    if algo not in ALGORITHMS:
        return None
    ours = own_file(algo)
    theirs = ZOO_FOLDER / f"{ALGORITHMS[algo].base}.yml"
    is_bac = algo.endswith("bac")  # A2C's settings make no sense for it
    if not is_bac and env_id not in read_yaml(ours):
        known = read_yaml(theirs)
        if env_id in known or ("atari" in known and ExperimentManager.is_atari(env_id)):
            return str(theirs)
    return str(ours)


def open_storage(storage: str) -> None:
    """
    Make a database ready for Optuna. Of several workers that start at the same time one creates the tables, and the others
    fail in the attempt, which Optuna takes for an error.

    :param storage: URL of the database
    """
    try:
        sqlalchemy.create_engine(storage).connect().close()
        for patience in (0.5, 1.0, 2.0, 4.0, None):
            try:
                RDBStorage(storage)
                return
            except (SQLAlchemyError, StorageInternalError):
                if patience is None:
                    raise
                time.sleep(patience)
    except (SQLAlchemyError, StorageInternalError, ImportError) as error:  # the last: the database's driver
        reason = one_line(getattr(error, "orig", None) or error)
        raise UserError(f"The storage {storage!r} (--storage) cannot be opened: {reason}") from error


class StopBetweenSteps(BaseCallback):
    """
    Ends the training after the step in which a signal came.

    :param signals: what notes the signal
    """

    def __init__(self, signals: StopSignals) -> None:
        super().__init__()
        self._signals = signals

    def _on_step(self) -> bool:
        return not self._signals.received


class ExperimentManager(rl_zoo3.exp_manager.ExperimentManager):
    """
    RL Zoo's, for our algorithms: finds our hyperparameter files, checks hyperparameters before anything is made, leaves no
    half-made run folder behind, and ends a run with a plot and a closing line.
    """

    def __init__(self, args: Any, algo: str, env_id: str, log_folder: str, *rest: Any, **kwargs: Any) -> None:
        kwargs["config"] = kwargs.get("config") or own_config(algo, env_id)
        super().__init__(args, algo, env_id, log_folder, *rest, **kwargs)
        if self.vec_env_class is DummyVecEnv:
            self.vec_env_class = LeanDummyVecEnv
        self._uuid = kwargs.get("uuid_str", "")
        self._record = CorrectionRecord()
        self._made: list[str] = []  # folders that were not there before, the innermost first
        self._signals = StopSignals()

    # Before anything is made

    def setup_experiment(self) -> tuple[BaseAlgorithm, dict[str, Any]] | None:
        self._signals.install()
        try:
            return super().setup_experiment()
        except BaseException as error:
            self._signals.restore()
            self._remove_run()
            if isinstance(error, Exception):
                # A value that makes no sense: the algorithm, the wrapper or the environment has said which.
                if self.verbose > 1:
                    traceback.print_exc()
                raise user_error(error) from error
            raise

    def _remove_run(self) -> None:
        """Remove the folders that were made for this run."""
        if self._made:
            shutil.rmtree(self._made[0], ignore_errors=True)
            for parent in self._made[1:]:
                if os.path.isdir(parent) and not os.listdir(parent):
                    os.rmdir(parent)

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self._check_config()
        if self.trial_id is not None and self.storage and self.study_name:
            # Here, because RL Zoo takes trial 0 for no trial.
            self.custom_hyperparams = {**self._trial(), **(self.custom_hyperparams or {})}
            self.trial_id = None
        hyperparams, saved = super().read_hyperparameters()
        cls = rl_zoo3.utils.ALGOS[self.algo]
        if self.algo in ALGORITHMS or issubclass(cls, AveragingCorrection):
            check_entry(self.algo, cls, hyperparams)
        return hyperparams, saved

    def _check_config(self) -> None:
        """Raise a UserError if the file of hyperparameters, or the package that holds them, cannot be read."""
        if self.config.endswith((".yml", ".yaml")):
            read_yaml(Path(self.config))
            return
        try:
            if self.config.endswith(".py"):
                found = runpy.run_path(self.config)["hyperparams"]
            else:
                found = importlib.import_module(self.config).hyperparams
            if not all(isinstance(entry, dict) for entry in found.values()):
                raise TypeError("`hyperparams` is no mapping from environment ids to mappings of hyperparameters")
        except Exception as error:  # whatever a user's file does
            raise UserError(
                f"{self.config!r} (-conf) must be a .yml or .yaml file, or a .py file or Python package with `hyperparams` in "
                f"it: {type(error).__name__}: {error}"
            ) from error

    def _trial(self) -> dict[str, Any]:
        """Read the hyperparameters of ``--trial-id``."""
        assert self.storage is not None
        assert self.study_name is not None
        try:
            return self.load_trial(self.storage, self.study_name, self.trial_id)
        except IndexError as error:
            raise UserError(f"The study {self.study_name!r} has no trial {self.trial_id} (--trial-id).") from error
        except (KeyError, OSError, SQLAlchemyError, StorageInternalError, ImportError) as error:
            reason = one_line(getattr(error, "orig", None) or error)
            raise UserError(
                f"The study {self.study_name!r} cannot be read from {self.storage!r} (--storage): {reason}"
            ) from error

    @staticmethod
    def _preprocess_schedules(hyperparams: dict[str, Any]) -> dict[str, Any]:
        hyperparams = rl_zoo3.exp_manager.ExperimentManager._preprocess_schedules(hyperparams)
        for key in (name for name, option in OPTIONS.items() if option.schedule):
            if isinstance(hyperparams.get(key), str):
                _, _, initial = hyperparams[key].partition("_")
                hyperparams[key] = rl_zoo3.utils.SimpleLinearSchedule(initial)
        return hyperparams

    def create_log_folder(self) -> None:
        if self.optimize_hyperparameters:
            return  # a search writes its report elsewhere; an empty run would be the "latest" that `enjoy` looks for
        parents = [folder for folder in (self.log_path, self.log_folder) if not os.path.isdir(folder)]
        while True:
            try:
                os.makedirs(self.save_path)
                break
            except FileExistsError:  # another run took this number meanwhile
                latest = rl_zoo3.utils.get_latest_run_id(self.log_path, self.env_name)
                self.save_path = os.path.join(self.log_path, f"{self.env_name}_{latest + 1}{self._uuid}")
        self._made = [self.save_path, *parents]
        self.params_path = f"{self.save_path}/{self.env_name}"
        super().create_log_folder()

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        if self.vec_env_class is SubprocVecEnv:
            self._try_one(self.eval_env_kwargs if eval_env else self.env_kwargs)
        with NotForChildren() if self.vec_env_class is SubprocVecEnv else nullcontext():
            env = super().create_envs(n_envs, eval_env, no_log or self.optimize_hyperparameters)
        return acts_in(env) if eval_env else env

    def _maybe_normalize(self, env: VecEnv, eval_env: bool) -> VecEnv:
        made = super()._maybe_normalize(env, eval_env)
        return LeanVecNormalize.like(made) if type(made) is VecNormalize else made

    def _try_one(self, env_kwargs: dict[str, Any]) -> None:
        """Make an environment here first: one that cannot be made in another process says so only there."""
        env = gym.spec(self.env_name.gym_id).make(**env_kwargs)
        if self.env_wrapper is not None:
            env = self.env_wrapper(env)
        env.close()

    def _save_config(self, saved_hyperparams: dict[str, Any]) -> None:
        if issubclass(rl_zoo3.utils.ALGOS[self.algo], ZooMaskablePPO):
            # What RL Zoo reads again when it makes the environment to enjoy the agent in.
            wrappers = saved_hyperparams.get("vec_env_wrapper") or []
            wrappers = wrappers if isinstance(wrappers, list) else [wrappers]
            saved_hyperparams = {**saved_hyperparams, "vec_env_wrapper": [*wrappers, MaskSource.name()]}
        super()._save_config(saved_hyperparams)

    def create_callbacks(self) -> None:
        super().create_callbacks()
        self.callbacks += [self._record, StopBetweenSteps(self._signals)]

    # The run

    def learn(self, model: BaseAlgorithm) -> None:
        rollout = getattr(model, "n_steps", 0) * model.n_envs
        if self.show_progress and self.log_interval == -1 and self.tensorboard_log is None and rollout:
            # Beside a progress bar, ten tables of SB3's logger are enough.
            self.log_interval = max(self.n_timesteps // rollout // 10, 1)
        self._signals.training()
        try:
            super().learn(model)
        except (EOFError, ConnectionError):
            # SIGTERM for the whole process group: environments in processes of their own may be gone before we hear of it.
            time.sleep(0.2)
            if not self._signals.received:
                self._signals.restore()
                raise
        except (ValueError, ArithmeticError, AssertionError, OSError) as error:
            # A policy that is no longer finite, an environment that gives what it should not, a full disk.
            self._signals.restore()
            if model.num_timesteps == 0:
                self._remove_run()
            self._remove_truncated()
            raise FailedRun(f"Training failed after {model.num_timesteps} steps: {one_line(error)}") from error
        except BaseException:
            self._signals.restore()
            raise

    def save_trained_model(self, model: BaseAlgorithm) -> None:
        self._signals.saving()
        try:
            super().save_trained_model(model)
            self._record.note()
            write_report(self._record, f"{self.algo} on {self.env_name.gym_id}", Path(self.save_path))
            stopped_early = model.num_timesteps < self.n_timesteps
            print(closing_line(model, self._record, f"{self.save_path}/{self.env_name}.zip", stopped_early))
        except Exception as error:
            self._remove_truncated()
            raise FailedRun(f"The run could not be saved in {self.save_path}: {one_line(_root(error))}") from error
        finally:
            self._signals.restore()

    def _remove_truncated(self) -> None:
        """Remove models that were not written to the end, which nobody could load."""
        for path in Path(self.save_path).glob("*.zip"):
            if not zipfile.is_zipfile(path):
                with suppress(OSError):
                    path.unlink()

    # The search

    def hyperparameters_optimization(self) -> None:
        try:
            if self.storage is not None and not self.storage.endswith(".log"):
                open_storage(self.storage)
            super().hyperparameters_optimization()
        except UserError:
            raise
        except Exception as error:
            # RL Zoo ends with the best trial, which is none if the search was stopped before one was complete.
            if self._signals.received:
                raise UserError("The search was stopped before a trial was complete.") from error
            raise FailedRun(f"The search failed: {one_line(error)}") from error
        finally:
            self._signals.restore()


def _root(error: BaseException) -> BaseException:
    """Find what the file system said: SB3's and PyTorch's saving cover it with errors of their own."""
    while not isinstance(error, OSError) and error.__context__ is not None:
        error = error.__context__
    return error
