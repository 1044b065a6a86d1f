"""
What do the lean vectorised environments and the fused Adam save?

    OMP_NUM_THREADS=1 python benchmarks/lean.py            # prints the tables
    OMP_NUM_THREADS=1 python benchmarks/lean.py --write    # and writes them to benchmarks/results/lean.md

Both sides do the same (tests/fast compares them) and take turns in short rounds; processor time of one thread, medians over
rounds. The environments are as RL Zoo makes them: a monitor, ``DummyVecEnv``, ``VecNormalize``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from sb3_avgcorr.fast.parameters import FlatGroup, _adam, _fused_adam
from sb3_avgcorr.fast.vec_env import LeanDummyVecEnv, LeanVecNormalize

RESULTS = Path(__file__).parent / "results" / "lean.md"
ENVIRONMENTS = (("CartPole-v1", 1), ("CartPole-v1", 8), ("HalfCheetah-v5", 1), ("HalfCheetah-v5", 8), ("Ant-v5", 1))
#: hidden layers of 64 and of 256, actor and critic of HalfCheetah
PARAMETERS = (11_000, 146_000)


def microseconds(sides: list[Callable[[], None]], calls: int, rounds: int) -> np.ndarray:
    """Time of a call of each side."""
    taken = np.empty((rounds, len(sides)))
    for row in taken:
        for index, side in enumerate(sides):
            start = time.process_time()
            for _ in range(calls):
                side()
            row[index] = (time.process_time() - start) / calls * 1e6
    medians: np.ndarray = np.median(taken[1:], axis=0)  # the first warms up
    return medians


def stepping(env: VecEnv) -> Callable[[], None]:
    """A step of environments, with the same actions for all."""
    env.seed(0)
    env.reset()
    env.action_space.seed(0)
    actions = np.stack([env.action_space.sample() for _ in range(env.num_envs)])

    def step() -> None:
        env.step(actions)

    return step


def environments(env_id: str, n_envs: int, rounds: int) -> np.ndarray:
    """Time of a step: the bare environment, SB3's and ours."""
    bare = gym.make(env_id)
    bare.reset(seed=0)
    action = bare.action_space.sample()

    def step() -> None:
        for _ in range(n_envs):
            _, _, terminated, truncated, _ = bare.step(action)
            if terminated or truncated:
                bare.reset()

    theirs = VecNormalize(make_vec_env(env_id, n_envs, vec_env_cls=DummyVecEnv))
    ours = LeanVecNormalize.like(VecNormalize(make_vec_env(env_id, n_envs, vec_env_cls=LeanDummyVecEnv)))
    return microseconds([step, stepping(theirs), stepping(ours)], 200, rounds)


def adam(size: int, rounds: int) -> np.ndarray:
    """Time of a step: numpy's, and torch's fused one."""
    settings = {"betas": (0.9, 0.999), "lr": 1e-4, "eps": 1e-5, "weight_decay": 0.0}
    sides = []
    for rule in (_adam, _fused_adam):
        values, gradient, first, second = np.random.default_rng(0).random((4, size), dtype=np.float32)
        group = FlatGroup(values, gradient, [first, second], np.ones(1, np.float32))
        sides.append(lambda rule=rule, group=group: rule(settings, group))
    return microseconds(sides, 100, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="rounds of each side")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name} too")
    args = parser.parse_args()
    th.set_num_threads(1)
    lines = [
        "# Lean environments and the fused Adam",
        "",
        f"Made by `OMP_NUM_THREADS=1 python benchmarks/lean.py --write --rounds {args.rounds}`. Microseconds, processor time.",
        "",
        "| a step of | the bare environments | SB3's `DummyVecEnv` and `VecNormalize` | lean |",
        "|---|---|---|---|",
    ]
    for env_id, n_envs in ENVIRONMENTS:
        figures = " | ".join(f"{x:.0f}" for x in environments(env_id, n_envs, args.rounds))
        lines.append(f"| {env_id}, {n_envs} environment{'s' * (n_envs > 1)} | {figures} |")
    lines += ["", "| a step of Adam on | numpy | fused |", "|---|---|---|"]
    for size in PARAMETERS:
        figures = " | ".join(f"{x:.0f}" for x in adam(size, args.rounds))
        lines.append(f"| {size:,} parameters | {figures} |")
    print("\n".join(lines))
    if args.write:
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
