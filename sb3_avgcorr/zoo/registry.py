"""Makes our algorithms, environments, hyperparameter files and search spaces known to RL Zoo."""

import rl_zoo3
import rl_zoo3.enjoy
import rl_zoo3.exp_manager
import rl_zoo3.train
import rl_zoo3.utils

from sb3_avgcorr.envs import register_envs
from sb3_avgcorr.zoo.algorithms import ALGORITHMS
from sb3_avgcorr.zoo.manager import ExperimentManager
from sb3_avgcorr.zoo.masks import acts_in
from sb3_avgcorr.zoo.search import register_search_spaces

_create_test_env = rl_zoo3.utils.create_test_env


def _create_test_env_and_tell(*args: object, **kwargs: object) -> object:
    return acts_in(_create_test_env(*args, **kwargs))  # type: ignore[arg-type]


def register() -> None:
    """
    Register with RL Zoo. Its own algorithms stay as they are. May be called any number of times. Without our command line::

        from sb3_avgcorr.zoo import register; register()
        from rl_zoo3.train import train; train()
    """
    register_envs()
    # The same dict object is what every module of RL Zoo holds.
    rl_zoo3.utils.ALGOS.update({name: algorithm.cls for name, algorithm in ALGORITHMS.items()})
    register_search_spaces()
    rl_zoo3.train.ExperimentManager = ExperimentManager  # type: ignore[misc]
    for module in (rl_zoo3, rl_zoo3.utils, rl_zoo3.enjoy):
        setattr(module, "create_test_env", _create_test_env_and_tell)  # noqa: B010  # a module's name, as a user would patch it
