"""
What it costs to be PPO until a bias is told: the arm of the long-tail tasks at strength 0.5, where a bias is told late.

    python benchmarks/waiting.py             # some 15 minutes on two cores

writes two tables to benchmarks/results/waiting.md:

- **cost**: discounted return of the final policy after so many rollouts of PPO before the correction in full, beside that
  of an automatic strength that is PPO until a bias is told, and the rollout from which it corrects. (By default it corrects
  from the first rollout on where the actor sees less than the critic, as here: this benchmark is the reason.)
- **onset**: noise-free products of the uncorrected and the corrected gradient along PPO's own path, averaged over all seeds.
  Where ⟨u, c⟩ is ⟨u, u⟩ or more, all of the gain along u is real, and no rule can tell a bias.
"""

from __future__ import annotations

import argparse
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch as th
from strength import discounted_return, made, table

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.common.gradients import blocks, gradient_products, independent_blocks
from sb3_avgcorr.reporting.statistics import difference, interval

RESULTS = Path(__file__).parent / "results" / "waiting.md"
ENV, MISMATCH, STEPS = "avgcorr/LongTailReacher-v0", 0.5, 100_000
#: the long-tail experiment has the seeds from 10 to 19, and the strength was made with smaller ones
FIRST_SEED = 20
#: rollouts of PPO before the correction in full; None: as many as it takes to tell a bias
DELAYS: tuple[int | None, ...] = (0, 1, 5, 8, 12, None)
AUTO = "until a bias is told"
#: rollouts whose products are averaged
ONSET, TOGETHER = 14, 2


class Delayed(AveragingPPO):
    """AveragingPPO that is PPO for the first rollouts, and corrects in full from then on."""

    delay: int | None = None
    strengths: list[float]

    def _find_strength(self, ratio: np.ndarray) -> float:
        k = super()._find_strength(ratio) if self.delay is None else float(len(self.strengths) >= self.delay)
        self.strengths.append(k)
        return k


class Watched(AveragingPPO):
    """AveragingPPO with a strength of 0 (so it is PPO), which keeps the noise-free products of every rollout's gradients."""

    products: list[np.ndarray]

    def _find_strength(self, ratio: np.ndarray) -> float:
        advantages = self.rollout_buffer.advantages - self.rollout_buffer.advantages.mean()
        parts = blocks(*ratio.shape)
        u, c = self._actor_gradients(ratio.reshape(-1), advantages.reshape(-1), parts)
        signal, noise = gradient_products(
            u, c, np.array([len(part) for part in parts]), independent_blocks(parts, self.n_envs)
        )
        # relative to the mean squared block, which no chance of the mean makes small
        scale = np.mean(np.sum(u * u, axis=1) + np.sum(c * c, axis=1)) / len(parts)
        self.products.append(np.stack([signal, noise]) / scale)
        return 0.0


def wait(argument: tuple[int | None, int]) -> tuple[float, int | None]:
    """Train with a delay, and give the discounted return and the first rollout that was corrected by more than a half."""
    delay, seed = argument
    th.set_num_threads(1)
    model = made(Delayed, ENV, seed, strength=MISMATCH)
    model.delay, model.strengths = delay, []
    model._strength.before = 0.0
    model.learn(STEPS)
    first = next((i + 1 for i, k in enumerate(model.strengths) if k > 0.5), None)
    return discounted_return(model), first


def watch(seed: int) -> np.ndarray:
    """Train PPO for the first rollouts; shape (rollouts, 2, 2, 2): signal and noise of (u, c)."""
    th.set_num_threads(1)
    model = made(Watched, ENV, seed, strength=MISMATCH)
    model.products = []
    model.learn(ONSET * model.n_steps * model.n_envs)
    return np.stack(model.products)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    args = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + args.seeds)
    with get_context("spawn").Pool(args.jobs) as pool:
        pairs = [(delay, seed) for delay in DELAYS for seed in seeds]
        found = dict(zip(pairs, pool.map(wait, pairs, 1), strict=True))
        products = np.stack(pool.map(watch, seeds, 1))
    returns = {delay: np.array([found[delay, seed][0] for seed in seeds]) for delay in DELAYS}
    rows = [
        [
            AUTO if delay is None else str(delay),
            ", ".join(str(found[delay, seed][1] or "-") for seed in seeds) if delay is None else str(delay + 1),
            str(interval(x)),
            "" if delay == 0 else difference(x, returns[0]).text(2),
        ]
        for delay, x in returns.items()
    ]
    lines = [
        "# What it costs to be PPO until a bias is told",
        "",
        f"Made by `python benchmarks/waiting.py --seeds {args.seeds}`: {ENV} at strength {MISMATCH}, {STEPS:,} steps "
        f"(53 rollouts), seeds from {FIRST_SEED} on. Intervals are 95 %: Student's for a mean, Welch's for a difference.",
        "",
        "## Cost: discounted return after so many rollouts of PPO",
        *table(["rollouts of PPO", "corrected from rollout", "discounted return", "difference to 0"], rows),
        "",
        "## Onset: products of the gradients along PPO's path, relative to a mean squared block",
    ]
    rows = []
    for start in range(0, ONSET, TOGETHER):
        part = products[:, start : start + TOGETHER].mean(axis=1)
        cells = [
            interval(part[:, kind, i, j]).text(2) for kind, i, j in ((0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 0, 0), (1, 1, 1))
        ]
        rows.append([f"{start + 1} to {start + TOGETHER}", *cells])
    lines += table(["rollouts", "⟨u, u⟩", "⟨u, c⟩", "⟨c, c⟩", "N(u, u)", "N(c, c)"], rows)
    RESULTS.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
