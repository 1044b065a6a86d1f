"""``sb3-avgcorr diagnose``."""

import argparse
import ast
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecNormalize

import sb3_avgcorr
from sb3_avgcorr.diagnostics.analysis import diagnose
from sb3_avgcorr.diagnostics.callback import CorrectionDiagnosticsCallback

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
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not key:value")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def parser() -> argparse.ArgumentParser:
    """
    :return: the options
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
    :param argv: arguments after ``sb3-avgcorr diagnose``
    :return: exit code
    """
    options = parser().parse_args(argv)
    if options.model and options.algo:
        parser().error("give --model or --algo, not both")
    sb3_avgcorr.envs.register_envs()
    env = None
    try:
        for package in options.gym_packages:
            importlib.import_module(package)
        env = make_vec_env(options.env, options.n_envs, env_kwargs=dict(options.env_kwargs))
        if options.vecnormalize:
            env = VecNormalize.load(options.vecnormalize, env)
        policy: Any = options.model
        history: list[dict[str, float]] = []
        if options.algo:
            policy, history = _train(options, env)
        report = diagnose(
            env,
            policy,
            options.gamma,
            n_steps=options.n_steps,
            n_resets=options.n_resets,
            seed=options.seed,
        )
        report.env = options.env
        print(json.dumps(report.as_dict(), indent=1) if options.json else report)
        if options.out:
            print(f"Written: {report.save(Path(options.out), history)}", file=sys.stderr)
        return 0
    except (ValueError, OSError, ImportError, gym.error.Error, AssertionError, NotImplementedError) as error:
        # the last two are how SB3 says that it does not know a space
        print(f"sb3-avgcorr diagnose: {error}", file=sys.stderr)
        return 2
    finally:
        if env is not None:
            env.close()


def _train(options: argparse.Namespace, env: Any) -> tuple[Any, list[dict[str, float]]]:
    module, name = ALGORITHMS[options.algo]
    lstm = "Lstm" if options.algo == "ppo_lstm" else ""
    images = is_image_space(env.observation_space)
    kind = "MultiInput" if hasattr(env.observation_space, "spaces") else "Cnn" if images else "Mlp"
    settings = {} if options.gamma is None else {"gamma": options.gamma}
    algorithm: Any = getattr(importlib.import_module(module), name)
    model = algorithm(f"{kind}{lstm}Policy", env, seed=options.seed, device="auto" if images else "cpu", **settings)
    rollouts = max(1, options.steps // (model.n_steps * env.num_envs))
    callback = CorrectionDiagnosticsCallback(every=max(1, rollouts // 10), seed=options.seed)
    model.learn(options.steps, callback=callback)
    return model, callback.history
