"""``sb3-avgcorr diagnose``: does a task suffer from the mismatch?"""

import argparse
import ast
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_avgcorr.diagnostics.analysis import diagnose
from sb3_avgcorr.diagnostics.callback import CorrectionDiagnosticsCallback
from sb3_avgcorr.errors import UserError, one_line, user_error

#: algorithms that can be trained on the spot: name -> (module, class)
ALGORITHMS = {
    "ppo": ("stable_baselines3", "PPO"),
    "a2c": ("stable_baselines3", "A2C"),
    "trpo": ("sb3_contrib", "TRPO"),
    "ppo_mask": ("sb3_contrib", "MaskablePPO"),
    "ppo_lstm": ("sb3_contrib", "RecurrentPPO"),
    "averaging_ppo": ("sb3_avgcorr", "AveragingPPO"),
    "averaging_a2c": ("sb3_avgcorr", "AveragingA2C"),
    "averaging_trpo": ("sb3_avgcorr", "AveragingTRPO"),
}


def _keyword(text: str) -> tuple[str, Any]:
    key, colon, value = text.partition(":")
    if not colon or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not key:value")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def parser() -> argparse.ArgumentParser:
    """
    List the options.

    :return: the parser
    """
    p = argparse.ArgumentParser(prog="sb3-avgcorr diagnose", description="Does this task suffer from the discount mismatch?")
    p.add_argument("--env", required=True, help="id of a Gymnasium environment")
    p.add_argument("--env-kwargs", nargs="+", type=_keyword, default=[], metavar="KEY:VALUE", help="its arguments")
    p.add_argument("--gym-packages", nargs="+", default=[], help="modules to import that register environments")
    p.add_argument("--model", help="a saved on-policy model (it is only read)")
    p.add_argument("--vecnormalize", help="the VecNormalize statistics saved with it")
    p.add_argument("--algo", choices=ALGORITHMS, help="train this algorithm on the spot, with its default settings")
    p.add_argument("--steps", type=int, default=50_000, help="how many steps to train (default: %(default)s)")
    p.add_argument("--gamma", type=float, help="discount factor (default: the model's, else 0.99)")
    p.add_argument("--n-steps", type=int, default=20_000, help="steps of the diagnosis (default: %(default)s)")
    p.add_argument("--n-envs", type=int, default=8, help="copies of the environment (default: %(default)s)")
    p.add_argument("--n-resets", type=int, default=5000, help="resets for the initial states (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="seed (default: %(default)s)")
    p.add_argument("--out", help="folder for report.html, report.json and the plots")
    p.add_argument("--json", action="store_true", help="print JSON in place of the table")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the command.

    :param argv: arguments after ``sb3-avgcorr diagnose``
    :return: exit code
    """
    options = parser().parse_args(argv)
    check(options)
    env = make_env(options)
    try:
        policy: Any = options.model
        history: list[dict[str, float]] = []
        if options.algo:
            policy, history = train(options, env)
        report = diagnose(env, policy, options.gamma, n_steps=options.n_steps, n_resets=options.n_resets, seed=options.seed)
        report.env = options.env
        print(json.dumps(report.as_dict(), indent=1) if options.json else report)
        if options.out:
            print(f"Written: {report.save(options.out, history)}", file=sys.stderr)
    except (ValueError, OSError, ImportError, AssertionError, NotImplementedError) as error:
        # the last two are how SB3 says that it does not know a space
        raise user_error(error) from error
    finally:
        env.close()
    return 0


def check(options: argparse.Namespace) -> None:
    """
    Find mistakes before anything is run.

    :param options: the options
    """
    if options.model and options.algo:
        raise UserError("--model and --algo were both given: give a saved model or an algorithm to train, not both.")
    for name, value, least in (
        ("--steps", options.steps, 1),
        ("--n-steps", options.n_steps, 100),
        ("--n-envs", options.n_envs, 1),
        ("--n-resets", options.n_resets, 10),
    ):
        if value < least:
            raise UserError(f"{name} {value} is too few: it must be at least {least}.")
    if not 0 <= options.seed < 2**32:
        raise UserError(f"--seed {options.seed} cannot be used: it must be from 0 to {2**32 - 1}.")
    if options.gamma is not None and not 0.0 < options.gamma <= 1.0:
        raise UserError(f"--gamma {options.gamma:g} cannot be used: it must be above 0, and at most 1.")
    if options.model and not any(Path(f"{options.model}{suffix}").is_file() for suffix in ("", ".zip")):
        raise UserError(f"--model {options.model}: there is no such file.")
    if options.vecnormalize and not Path(options.vecnormalize).is_file():
        raise UserError(f"--vecnormalize {options.vecnormalize}: there is no such file.")
    if options.out:
        try:
            Path(options.out).mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=options.out):
                pass
        except OSError as error:
            raise UserError(f"--out {options.out}: nothing can be written there ({error.strerror}).") from error
        importlib.import_module("matplotlib")  # if it is missing, that is said now, and not after the training


def make_env(options: argparse.Namespace) -> VecEnv:
    """
    Make the copies of the environment. Whatever goes wrong here is for the user to mend.

    :param options: the options
    :return: the environment, with its statistics if there are any
    """
    for package in options.gym_packages:
        try:
            importlib.import_module(package)
        except Exception as error:
            raise UserError(f"--gym-packages {package} cannot be imported: {one_line(error)}") from error
    arguments = dict(options.env_kwargs)
    try:
        env = make_vec_env(options.env, options.n_envs, env_kwargs=arguments)
    except Exception as error:
        given = f" with --env-kwargs {arguments}" if arguments else ""
        raise UserError(f"--env {options.env}{given} cannot be made: {one_line(error)}") from error
    if not options.vecnormalize:
        return env
    try:
        return VecNormalize.load(options.vecnormalize, env)
    except Exception as error:
        env.close()
        raise UserError(
            f"--vecnormalize {options.vecnormalize} does not hold statistics for {options.env} as VecNormalize.save() writes "
            f"them: {one_line(error)}"
        ) from error


def train(options: argparse.Namespace, env: VecEnv) -> tuple[Any, list[dict[str, float]]]:
    """
    Train on the spot, and diagnose about ten times on the way.

    :param options: the options
    :param env: the environment
    :return: the model, and what the callback recorded
    """
    module, name = ALGORITHMS[options.algo]
    algorithm: Any = getattr(importlib.import_module(module), name)
    lstm = "Lstm" if options.algo == "ppo_lstm" else ""
    images = is_image_space(env.observation_space)
    kind = "MultiInput" if hasattr(env.observation_space, "spaces") else "Cnn" if images else "Mlp"
    settings = {} if options.gamma is None else {"gamma": options.gamma}
    model = algorithm(f"{kind}{lstm}Policy", env, seed=options.seed, device="auto" if images else "cpu", **settings)
    rollouts = -(-options.steps // (model.n_steps * env.num_envs))
    callback = CorrectionDiagnosticsCallback(every=max(1, rollouts // 10), seed=options.seed)
    model.learn(options.steps, callback=callback)
    return model, callback.history
