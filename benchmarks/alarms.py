"""
How often the strength leaves 0 under our settings for a task (RL Zoo's), and which part of its rule says so.

    python benchmarks/alarms.py --env Walker2d-v5 --seed 0     # some 14 minutes

trains AveragingPPO as it is by default and writes a table to benchmarks/results/alarms.md. Where PPO goes the right way, every
rollout above 0 is a false alarm.
"""

import argparse
import io
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.manager import JobManager, check_job

RESULTS = Path(__file__).parent / "results" / "alarms.md"
PARTS = ("trust", "lost", "clearer")


class Parts(BaseCallback):
    """Notes after every update: steps, the strength that was used, and how far each part of the rule believes something."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self._note()

    def _on_training_end(self) -> None:
        self._note()

    def _note(self) -> None:
        model: Any = self.model
        rule = model._strength
        self.rows.append([self.num_timesteps, model.correction_strength_used, *(getattr(rule, part) for part in PARTS)])


def train(env: str, seed: int, steps: int) -> np.ndarray:
    """
    Train, and tell the strength.

    :param env: id of the task
    :param seed: seed
    :param steps: environment steps
    :return: a row for each update: steps, strength, parts
    """
    job, callback = Job("averaging_ppo", env, seed, steps), Parts()
    check_job(job)
    with TemporaryDirectory() as home, redirect_stdout(io.StringIO()):  # RL Zoo prints the settings
        made = JobManager(job, Path(home)).setup_experiment()
    assert made is not None
    made[0].learn(steps, callback)
    return np.array(callback.rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Walker2d-v5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    th.set_num_threads(1)
    rows = train(args.env, args.seed, args.steps)
    above = rows[rows[:, 1] > 0.0]
    command = f"python benchmarks/alarms.py --env {args.env} --seed {args.seed} --steps {args.steps}"
    lines = ["# When the strength leaves 0", "", f"`{command}`: {len(above)} of {len(rows)} rollouts."]
    if len(above):
        lines += ["", f"| after steps | strength | {' | '.join(PARTS)} |", "|" + "---|" * (2 + len(PARTS))]
        lines += [f"| {row[0]:,.0f} | {' | '.join(f'{x:.3f}' for x in row[1:])} |" for row in above]
    args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
