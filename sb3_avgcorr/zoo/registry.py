"""Makes our algorithms, environments, hyperparameter files and search spaces known to RL Zoo."""

import rl_zoo3.train
import rl_zoo3.utils

from sb3_avgcorr.envs import register_envs
from sb3_avgcorr.zoo.algorithms import ALGORITHMS
from sb3_avgcorr.zoo.manager import ExperimentManager
from sb3_avgcorr.zoo.search import register_search_spaces


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
    # RL Zoo's way to another manager: `train` takes the class from its module. Ours is RL Zoo's for its own algorithms, too.
    rl_zoo3.train.ExperimentManager = ExperimentManager  # type: ignore[misc]
