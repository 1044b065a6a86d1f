"""What the tests of the command line share. Import the fixture by name to have it used."""

from collections.abc import Iterator

import matplotlib
import pytest
import rl_zoo3.utils

#: settings of a run that is over at once
SMALL = ["-params", "n_steps:64", "n_envs:2", "n_epochs:2", "batch_size:64"]
QUICK = ["-n", "256", "--eval-freq", "-1", "--verbose", "0", "--seed", "1"]


@pytest.fixture(autouse=True)
def same_algorithms_and_plots_afterwards() -> Iterator[None]:
    """RL Zoo's table of algorithms and matplotlib's backend are of the whole process."""
    before, backend = dict(rl_zoo3.utils.ALGOS), matplotlib.get_backend()
    matplotlib.use("Agg")
    yield
    rl_zoo3.utils.ALGOS.clear()
    rl_zoo3.utils.ALGOS.update(before)
    matplotlib.use(backend)
