"""
Why PPO learns nothing on PointMass with the paper's settings: one thing changed at a time.

    python benchmarks/point_mass.py          # some 30 minutes on two cores

writes a table to benchmarks/results/point_mass.md. The target is small and the reward 0 everywhere else, so that most rollouts
hold nothing but zeros. Their advantages are errors of the critic; normalised, they move the policy as far as any others, until
the KL divergence stops them.
"""

from __future__ import annotations

import argparse
import json
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

import sb3_avgcorr.envs  # noqa: F401  (registers them)
from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.manager import settings_of

RESULTS = Path(__file__).parent / "results" / "point_mass.md"
ENV = "avgcorr/PointMassEasy-v0"
#: a rollout without a reward above this has not met the target
MET = 0.1
#: what is changed in the paper's settings of PPO
VARIANTS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "noise of standard deviation 1, not 0.6": {"log_std_init": 0.0},
    "noise that lasts 16 steps": {"use_sde": True, "sde_sample_freq": 16},
    "no update from rollouts that did not meet the target": {"skips": True},
}


class Rollouts(BaseCallback):
    """Notes of every rollout whether it met the target: the buffer's rewards hold the value of what a time limit cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.met: list[bool] = []

    def _on_rollout_start(self) -> None:
        self.met.append(False)

    def _on_step(self) -> bool:
        self.met[-1] |= bool(self.locals["rewards"].max() > MET)
        return True


class Skipping(AveragingPPO):
    """AveragingPPO that leaves the policy alone where nothing was earned."""

    rollouts: Rollouts

    def train(self) -> None:
        if self.rollouts.met[-1]:
            super().train()


def run(arguments: tuple[str, int, int, Path]) -> dict[str, Any]:
    """
    One run, kept in a file.

    :param arguments: name of the variant, seed, steps, folder for results
    :return: what came of it
    """
    name, seed, steps, folder = arguments
    path = folder / f"{list(VARIANTS).index(name)}-{seed}-{steps}.json"
    if path.exists():
        return json.loads(path.read_text())
    th.set_num_threads(1)
    settings = settings_of(Job("ppo", ENV, seed, steps, paper=True))
    settings = {key: value for key, value in settings.items() if key not in ("env_wrapper", "n_envs", "n_timesteps")}
    changes = dict(VARIANTS[name])
    algorithm = Skipping if changes.pop("skips", False) else AveragingPPO
    if "log_std_init" in changes:
        settings["policy_kwargs"] = {**settings["policy_kwargs"], "log_std_init": changes.pop("log_std_init")}
    env = Monitor(gym.make(ENV))
    model = algorithm(env=env, correction=None, seed=seed, device="cpu", **{**settings, **changes})
    rollouts = Rollouts()
    if isinstance(model, Skipping):
        model.rollouts = rollouts
    model.learn(steps, callback=rollouts)
    observations = model.rollout_buffer.observations.reshape(-1, 4)
    result = {
        "met": rollouts.met,
        "returns": env.get_episode_rewards(),
        "std": None if model.use_sde else float(model.policy.log_std.detach().exp().mean()),
        "action": float(np.abs(model.predict(observations, deterministic=True)[0]).max(axis=1).mean()),
    }
    path.write_text(json.dumps(result))
    return result


def row(name: str, results: list[dict[str, Any]]) -> str:
    """
    A line of the table.

    :param name: name of the variant
    :param results: its runs
    """

    def thirds(values: list[Any]) -> tuple[float, float]:
        third = max(1, len(values) // 3)
        return float(np.mean(values[:third])), float(np.mean(values[-third:]))

    met = [f"{np.mean([thirds(r['met'])[i] for r in results]):.2f}" for i in range(2)]
    returns = [", ".join(f"{thirds(r['returns'])[i]:.3g}" for r in results) for i in range(2)]
    std = "" if results[0]["std"] is None else f"{np.mean([r['std'] for r in results]):.2f}"
    push = f"{np.mean([r['action'] for r in results]):.2f}"
    return "| " + " | ".join((name, *met, std, push, *returns)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--runs", type=Path, default=Path("runs/point_mass"), help="finished runs are kept here")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    tasks = [(name, seed, args.steps, args.runs) for name in VARIANTS for seed in range(args.seeds)]
    with get_context("spawn").Pool(args.jobs, maxtasksperchild=1) as pool:
        results = dict(zip([task[:2] for task in tasks], pool.imap(run, tasks, chunksize=1), strict=True))
    columns = ("changed", "met, first third", "last third", "std of the noise at the end", "push at the end")
    lines = [
        "# Why PPO learns nothing on PointMass with the paper's settings",
        "",
        f"`python benchmarks/point_mass.py --steps {args.steps} --seeds {args.seeds}`: PPO with the paper's own settings, no",
        f"correction. *Met*: share of rollouts (4 episodes) with a reward above {MET}. *Push*: the larger part of the mean",
        "action, averaged over the states of the last rollout; 1 is full force. Returns are means over a third of training.",
        "",
        "| " + " | ".join((*columns, "return by seed, first third", "last third")) + " |",
        "|---|---|---|---|---|---|---|",
        *(row(name, [results[name, seed] for seed in range(args.seeds)]) for name in VARIANTS),
    ]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
