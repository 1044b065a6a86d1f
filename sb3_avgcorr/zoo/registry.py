"""Makes our algorithms, environments and search spaces known to RL Zoo, and runs its training with our files and checks."""

from types import FunctionType

import rl_zoo3.train
import rl_zoo3.utils

from sb3_avgcorr.envs import register_envs
from sb3_avgcorr.zoo.algorithms import ALGORITHMS
from sb3_avgcorr.zoo.manager import ExperimentManager
from sb3_avgcorr.zoo.search import register_search_spaces


def register() -> None:
    """
    Register with RL Zoo. Its own algorithms stay as they are. May be called any number of times.
    """
    register_envs()
    # The same dict object is what every module of RL Zoo holds.
    rl_zoo3.utils.ALGOS.update({name: algorithm.cls for name, algorithm in ALGORITHMS.items()})
    register_search_spaces()


def train() -> None:
    """
    RL Zoo's ``train()``, which reads ``sys.argv``, with our :class:`ExperimentManager`.

    Its code runs in a namespace of ours, where the manager's name stands for our class: RL Zoo has no argument for that, and
    its own module stays as it is, for whoever else uses it.
    """
    register()
    theirs = rl_zoo3.train.train
    FunctionType(theirs.__code__, {**theirs.__globals__, "ExperimentManager": ExperimentManager}, theirs.__name__)()
