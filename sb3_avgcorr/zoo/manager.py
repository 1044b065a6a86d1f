"""RL Zoo's experiment manager with our files, our checks and our report. Only what must differ is here."""

import os
import shutil
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import rl_zoo3
import rl_zoo3.exp_manager
import rl_zoo3.utils
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import SQLAlchemyError
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from sb3_avgcorr.common.averaging import AveragingCorrection
from sb3_avgcorr.errors import UserError
from sb3_avgcorr.zoo.algorithms import ALGORITHMS
from sb3_avgcorr.zoo.config import check_entry, hyperparams_folder, read_yaml
from sb3_avgcorr.zoo.masks import acts_in
from sb3_avgcorr.zoo.signals import NotForChildren, StopSignals
from sb3_avgcorr.zoo.summary import CorrectionRecord, closing_line, write_report

ZOO_FOLDER = Path(rl_zoo3.__file__).parent / "hyperparams"


def own_config(algo: str, env_id: str) -> str | None:
    """
    The file for a run that names none: ours. A task that ours does not know but RL Zoo has tuned the uncorrected algorithm
    for gets those settings, with the correction's defaults.

    :param algo: name of the algorithm
    :param env_id: id of the environment
    :return: path of the file; None for algorithms that are not ours
    """
    if algo not in ALGORITHMS:
        return None
    ours = hyperparams_folder() / f"{algo}.yml"
    theirs = ZOO_FOLDER / f"{ALGORITHMS[algo].base}.yml"
    is_bac = algo.endswith("bac")  # A2C's settings make no sense for it
    if not is_bac and env_id not in read_yaml(ours):
        known = read_yaml(theirs)
        if env_id in known or ("atari" in known and ExperimentManager.is_atari(env_id)):
            return str(theirs)
    return str(ours)


def create_tables(storage: str) -> None:
    """
    Make a database ready for Optuna. Of several workers that start at the same time one creates the tables, and the others
    fail in the attempt, which Optuna takes for an error.

    :param storage: URL of the database
    """
    for patience in (0.5, 1.0, 2.0, 4.0, None):
        try:
            RDBStorage(storage)
            return
        except (SQLAlchemyError, StorageInternalError):
            if patience is None:
                raise
            time.sleep(patience)


class ExperimentManager(rl_zoo3.exp_manager.ExperimentManager):
    """
    RL Zoo's, for our algorithms: finds our hyperparameter files, checks hyperparameters before anything is made, leaves no
    half-made run folder behind, and ends a run with a plot and a closing line.
    """

    def __init__(self, args: Any, algo: str, env_id: str, log_folder: str, *rest: Any, **kwargs: Any) -> None:
        kwargs["config"] = kwargs.get("config") or own_config(algo, env_id)
        super().__init__(args, algo, env_id, log_folder, *rest, **kwargs)
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
            if self._made:
                shutil.rmtree(self._made[0], ignore_errors=True)
                for parent in self._made[1:]:
                    if os.path.isdir(parent) and not os.listdir(parent):
                        os.rmdir(parent)
            if isinstance(error, (ValueError, AssertionError, OSError, ImportError)):
                # A value that makes no sense: the algorithm, the wrapper or the environment has said which.
                raise UserError(" ".join(str(error).split())) from error
            raise

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.config.endswith((".yml", ".yaml")):
            read_yaml(Path(self.config))
        hyperparams, saved = super().read_hyperparameters()
        cls = rl_zoo3.utils.ALGOS[self.algo]
        if self.algo in ALGORITHMS or issubclass(cls, AveragingCorrection):
            check_entry(self.algo, cls, hyperparams)
        return hyperparams, saved

    @staticmethod
    def _preprocess_schedules(hyperparams: dict[str, Any]) -> dict[str, Any]:
        hyperparams = rl_zoo3.exp_manager.ExperimentManager._preprocess_schedules(hyperparams)
        for key in ("correction_learning_rate", "critic_learning_rate"):
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
        with NotForChildren() if self.vec_env_class is SubprocVecEnv else nullcontext():
            env = super().create_envs(n_envs, eval_env, no_log or self.optimize_hyperparameters)
        return acts_in(env) if eval_env else env

    def create_callbacks(self) -> None:
        super().create_callbacks()
        self.callbacks.append(self._record)

    # The run

    def learn(self, model: BaseAlgorithm) -> None:
        rollout = getattr(model, "n_steps", 0) * model.n_envs
        if self.show_progress and self.log_interval == -1 and self.tensorboard_log is None and rollout:
            # Beside a progress bar, ten tables of SB3's logger are enough.
            self.log_interval = max(self.n_timesteps // rollout // 10, 1)
        try:
            super().learn(model)
        except (EOFError, ConnectionError):
            # SIGTERM for the whole process group: environments in processes of their own may be gone before we hear of it.
            time.sleep(0.2)
            if not self._signals.received:
                self._signals.restore()
                raise
        except BaseException:
            self._signals.restore()
            raise

    def save_trained_model(self, model: BaseAlgorithm) -> None:
        try:
            super().save_trained_model(model)
            self._record.note()
            write_report(self._record, f"{self.algo} on {self.env_name.gym_id}", Path(self.save_path))
            stopped_early = model.num_timesteps < self.n_timesteps
            print(closing_line(model, self._record, f"{self.save_path}/{self.env_name}.zip", stopped_early))
        finally:
            self._signals.restore()

    # The search

    def hyperparameters_optimization(self) -> None:
        try:
            if self.storage is not None and not self.storage.endswith(".log"):
                create_tables(self.storage)
            super().hyperparameters_optimization()
        except ValueError as error:
            # RL Zoo ends with the best trial, which is none if the search was stopped before one was complete.
            if self._signals.received:
                raise UserError("The search was stopped before a trial was complete.") from error
            raise
        finally:
            self._signals.restore()
