"""``sb3-avgcorr train``: RL Zoo's train with our algorithms, and ``--paper`` for the paper's settings."""

import importlib.util
import os

from sb3_avgcorr.cli.arguments import Arguments, KeyValue, agent_arguments, given, prepare, run
from sb3_avgcorr.errors import UserError, install
from sb3_avgcorr.zoo import registry
from sb3_avgcorr.zoo.config import paper_config
from sb3_avgcorr.zoo.signals import StopSignals


def train(argv: list[str]) -> int:
    """
    Train an agent, or search hyperparameters.

    :param argv: arguments after the command
    :return: exit code; as a shell has it, if a signal ended the run
    """
    if given(argv, "-h", "--help"):
        print("Of ours: --paper, the paper's settings (hyperparams/paper); the default --algo is averaging_ppo. Of RL Zoo:")
    options, rest = prepare(_arguments(), argv)
    if options.trained_agent and not (options.trained_agent.endswith(".zip") and os.path.isfile(options.trained_agent)):
        raise UserError(f"The trained agent {options.trained_agent!r} is not there; name the .zip file of a saved model.")
    if options.trial_id is not None and not (options.storage and options.study_name):
        raise UserError("--trial-id needs --storage and --study-name, which hold the trial.")
    if options.trial_id is not None and options.optimize:
        raise UserError("--trial-id trains with the settings of a trial, -optimize searches for more: leave one of them out.")
    if options.tensorboard_log and importlib.util.find_spec("tensorboard") is None:
        raise UserError(f"-tb needs tensorboard, which is not installed: {install('zoo')}")
    if options.paper:
        rest = [argument for argument in rest if argument != "--paper"]
        if not options.conf_file:
            rest += ["--conf-file", str(paper_config(options.algo))]
    if not given(rest, "--num-threads") and "OMP_NUM_THREADS" not in os.environ:
        # For networks of this size threads cost more than they gain, on a busy machine many times more.
        rest += ["--num-threads", "1"]
    # What else goes wrong is no mistake in the arguments: the traceback leads to the environment, or to a fault of ours.
    run("train", registry.train, rest, (UserError, ValueError, AssertionError, ImportError, OSError))
    return 0 if StopSignals.last is None else 128 + StopSignals.last


def _arguments() -> Arguments:
    parser = agent_arguments()
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("-conf", "--conf-file")
    parser.add_argument("-i", "--trained-agent")
    parser.add_argument("-params", "--hyperparams", nargs="+", action=KeyValue)
    parser.add_argument("--eval-env-kwargs", nargs="+", action=KeyValue)
    parser.add_argument("-tb", "--tensorboard-log")
    parser.add_argument("-optimize", "--optimize-hyperparameters", action="store_true", dest="optimize")
    parser.add_argument("--storage")
    parser.add_argument("--study-name")
    parser.at_least(0, "--trial-id")
    parser.at_least(1, "-n", "--n-timesteps", also=(-1,))  # RL Zoo's word for the budget of the file
    parser.at_least(1, "--n-jobs", also=(-1,))  # Optuna's word for all cores
    parser.at_least(0, "--n-startup-trials")
    for name in ("--eval-episodes", "--n-eval-envs", "--n-trials", "--max-total-trials", "--n-evaluations"):
        parser.at_least(1, name)
    return parser
