"""
What the strength's three numbers should be: n, the number of blocks, and the memory.

    python benchmarks/strength.py            # some 20 minutes on two cores

writes four tables to benchmarks/results/strength.md:

- **n**: how long a gradient lasts. Rollouts share no noise, so ⟨g_i, g_{i+l}⟩ of two of them has none on average, and
  divided by the noise-free ⟨g_i, g_i⟩ it is the correlation after l updates of PPO. Beside it the KL divergence of an update.
- **blocks**: how well one rollout tells the squared length of the corrected gradient, by the number of its blocks.
- **telling**: after how many rollouts of PPO a bias counts in full, told by rollouts alone and with the past, and by
  the angle from which it counts.
- **returns** by n and memory, each changed alone.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

import sb3_avgcorr.envs  # noqa: F401  (registers them)
from sb3_avgcorr import AsymmetricActorCriticPolicy, AveragingPPO
from sb3_avgcorr.common.gradients import blocks, gradient_products, independent_blocks
from sb3_avgcorr.common.strength import Strength
from sb3_avgcorr.reporting.statistics import interval

RESULTS = Path(__file__).parent / "results" / "strength.md"
TASKS = ("CartPole-v1", "HalfCheetah-v5", "Hopper-v5", "Swimmer-v5")
ROLLOUTS, LAGS = 60, (1, 2, 5, 10, 20)
BLOCKS = (4, 8, 16, 32, 64)
#: tasks of the third table, with the arguments of their environments: a bias that changes the goal, one that does not, none
TELLING: tuple[tuple[str, dict[str, float]], ...] = (
    ("avgcorr/LongTailReacher-v0", {"strength": 1.0}),
    ("Swimmer-v5", {}),
    ("avgcorr/LongTailReacher-v0", {"strength": 0.0}),
)
#: share of ⟨c, c⟩ that bias² must be above to count: angles of 18°, 45° (the default) and 60°
BEARABLE = {"18°": 0.1, "45°": 0.5, "60°": 0.75}
ALONE = "45°, by rollouts alone"
#: n and memory, the defaults first
CHOICES = ((10.0, 20.0), (3.0, 20.0), (30.0, 20.0), (10.0, 7.0), (10.0, 60.0))
#: tasks of the last table: steps, and arguments of the environment
RETURNS: dict[str, tuple[int, dict[str, float]]] = {
    "avgcorr/LongTailReacher-v0": (100_000, {"strength": 1.0}),
    "avgcorr/LongTail-v0": (40_000, {"strength": 0.5}),
}
#: number of environments and settings of tasks whose actor sees less than the critic (hyperparams/averaging_ppo.yml)
ASYMMETRIC: dict[str, tuple[int, dict[str, Any]]] = {
    "avgcorr/LongTailReacher-v0": (
        8,
        {
            "n_steps": 240,
            "batch_size": 240,
            "gamma": 0.95,
            "learning_rate": 1e-3,
            "policy_kwargs": {"actor_keys": ["observation"], "log_std_init": -1.0},
        },
    ),
    "avgcorr/LongTail-v0": (
        4,
        {
            "n_steps": 500,
            "batch_size": 250,
            "gamma": 0.9,
            "learning_rate": 1e-3,
            "policy_kwargs": {"actor_keys": ["observation"]},
        },
    ),
}


class Watched(AveragingPPO):
    """AveragingPPO with a strength of 0 (so it is PPO), which keeps what the gradients of every rollout say."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.means: list[np.ndarray] = []  # u and c of each rollout, and their noise-free squares
        self.squares: list[np.ndarray] = []
        self.told: dict[int, list[float]] = defaultdict(list)  # number of blocks -> noise-free ⟨c, c⟩ of each rollout
        self.seconds: dict[int, float] = defaultdict(float)

    def _find_strength(self, ratio: np.ndarray) -> float:
        advantages = self.rollout_buffer.advantages - self.rollout_buffer.advantages.mean()
        for count in BLOCKS:
            start = time.process_time()
            parts = blocks(ratio.shape[0], ratio.shape[1], count)
            u, c = self._actor_gradients(ratio.reshape(-1), advantages.reshape(-1), parts)
            sizes, independent = np.array([len(part) for part in parts]), independent_blocks(parts, self.n_envs)
            signal, noise = gradient_products(u, c, sizes, independent)
            self.seconds[count] += time.process_time() - start
            scale = np.trace(signal + noise)
            self.told[count].append(signal[1, 1] / scale)
            if count == 16:
                self.means.append(np.stack([u.mean(axis=0), c.mean(axis=0)]) / np.sqrt(scale))
                self.squares.append(np.diag(signal) / scale)
        return 0.0


class Telling(AveragingPPO):
    """AveragingPPO with a strength of 0 (so it is PPO), whose gradients are told by rollouts alone and with the past."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.strengths = {angle: Strength() for angle in (ALONE, *BEARABLE)}
        for angle, share in BEARABLE.items():
            self.strengths[angle].BEARABLE = share  # type: ignore[misc]
        self.trusts: dict[str, list[float]] = {name: [] for name in self.strengths}

    def _find_strength(self, ratio: np.ndarray) -> float:
        advantages = self.rollout_buffer.advantages - self.rollout_buffer.advantages.mean()
        parts = blocks(*ratio.shape)
        u, c = self._actor_gradients(ratio.reshape(-1), advantages.reshape(-1), parts)
        for name, strength in self.strengths.items():
            if name == ALONE:
                strength._past = None
            strength.update(u, c, np.array([len(part) for part in parts]), independent_blocks(parts, self.n_envs))
            self.trusts[name].append(strength.trust)
        return 0.0


class Divergences(BaseCallback):
    """Keeps the KL divergence of each update."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def _on_rollout_start(self) -> None:
        if (value := self.logger.name_to_value.get("train/approx_kl")) is not None:
            self.values.append(value)

    def _on_step(self) -> bool:
        return True


Model = TypeVar("Model", bound=AveragingPPO)


def made(cls: type[Model], env: str, seed: int, **kwargs: float) -> Model:
    """A model on a task: on MuJoCo's and CartPole four environments, normalised as RL Zoo does for MuJoCo."""
    if env not in ASYMMETRIC:
        return cls("MlpPolicy", VecNormalize(make_vec_env(env, 4, seed=seed)), n_steps=512, seed=seed, device="cpu")
    n_envs, settings = ASYMMETRIC[env]
    vec_env = make_vec_env(env, n_envs, seed=seed, env_kwargs=kwargs)
    return cls(AsymmetricActorCriticPolicy, vec_env, seed=seed, device="cpu", **settings)


def watch(argument: tuple[str, int]) -> dict[str, Any]:
    """Train PPO and say how its gradients hang together."""
    env, seed = argument
    th.set_num_threads(1)
    model, divergences = made(Watched, env, seed), Divergences()
    model.learn(2048 * ROLLOUTS, callback=divergences)
    x = np.stack(model.means).astype(np.float64)
    products = [[np.mean(np.sum(x[:-lag, i] * x[lag:, i], axis=1)) for lag in LAGS] for i in range(2)]
    return {
        "products": np.array(products),
        "squares": np.mean(model.squares, axis=0),
        "divergence": float(np.mean(divergences.values)),
        # rollout by rollout against a neighbour: what is left is the error of telling, not the course of training
        "error": {count: float(np.std(np.diff(told)) / np.sqrt(2.0)) for count, told in model.told.items()},
        "ms": {count: 1000.0 * seconds / ROLLOUTS for count, seconds in model.seconds.items()},
    }


def tell(argument: tuple[int, int]) -> dict[str, int | None]:
    """Train PPO, and say after how many rollouts a bias counts in full, if it does."""
    (env, kwargs), seed = TELLING[argument[0]], argument[1]
    th.set_num_threads(1)
    model = made(Telling, env, seed, **kwargs)
    model.learn(100_000)
    # the first rollout is the one that has shaped ĉ, and does not count in training
    return {name: next((i + 1 for i, x in enumerate(t) if i and x >= 1.0), None) for name, t in model.trusts.items()}


def train(argument: tuple[str, float, float, int]) -> float:
    """Train AveragingPPO with other numbers, and give the discounted return of its policy."""
    env, n, memory, seed = argument
    th.set_num_threads(1)
    steps, kwargs = RETURNS[env]
    model = made(AveragingPPO, env, seed, **kwargs)
    model._strength = Strength(n=n, memory=memory)  # PPO until a bias is told, so that they matter
    model.learn(steps)
    return discounted_return(model)


def discounted_return(model: AveragingPPO) -> float:
    """The discounted return of a model's policy, the mean of 48 episodes."""
    vec_env = cast(VecEnv, model.get_env())
    returns = []
    for _ in range(48 // model.n_envs):  # the first episode of each environment
        observation, total, discount = vec_env.reset(), np.zeros(model.n_envs), np.ones(model.n_envs)
        while discount.any():
            observation, rewards, dones, _ = vec_env.step(model.predict(cast(Any, observation))[0])
            total += discount * rewards
            discount *= model.gamma * ~dones
        returns.append(total.mean())
    return float(np.mean(returns))


def table(heading: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    return ["", *(f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *rows))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="of the first three tables")
    parser.add_argument("--training-seeds", type=int, default=5, help="of the last; 0: without it")
    args = parser.parse_args()
    lines = ["# The strength: n, blocks and memory", "", f"Made by `python benchmarks/strength.py --seeds {args.seeds}"]
    lines[-1] += (
        f" --training-seeds {args.training_seeds}`. PPO with SB3's defaults, 4 environments of 512 steps, `VecNormalize`."
    )
    with get_context("spawn").Pool(2) as pool:
        found = pool.map(watch, [(env, seed) for env in TASKS for seed in range(args.seeds)], 1)
        seen = {env: found[i * args.seeds : (i + 1) * args.seeds] for i, env in enumerate(TASKS)}
        lasting, telling = [], []
        for env, runs in seen.items():
            square = np.mean([x["squares"] for x in runs], axis=0)
            divergence = float(np.mean([x["divergence"] for x in runs]))
            for i, name in enumerate(("uncorrected", "corrected")):
                correlation = np.mean([x["products"][i] for x in runs], axis=0) / square[i]
                cells = [f"{value:.2f}" for value in correlation] if square[i] > 0.02 else ["lost in noise"] * len(LAGS)
                lasting.append([env, name, *cells, f"{divergence:.4f}", f"{divergence**-0.5:.1f}"])
            error = {count: np.mean([x["error"][count] for x in runs]) for count in BLOCKS}
            telling.append([env, *(f"{error[count]:.3f}" for count in BLOCKS)])
        cost = {count: np.mean([x["ms"][count] for x in found]) for count in BLOCKS}
        telling.append(["CPU ms a rollout", *(f"{cost[count]:.1f}" for count in BLOCKS)])
        places = [(place, seed) for place in range(len(TELLING)) for seed in range(args.seeds)]
        first = dict(zip(places, pool.map(tell, places, 1), strict=True))
        jobs = [(env, *choice, seed) for env in RETURNS for choice in CHOICES for seed in range(args.training_seeds)]
        returns = np.array(pool.map(train, jobs, 1)).reshape(len(RETURNS), len(CHOICES), args.training_seeds)
    lines += ["", "## n: correlation of a gradient with that of the rollout l updates later"]
    lines += table(["task", "gradient", *(f"l = {lag}" for lag in LAGS), "KL of an update", "sqrt(1/KL)"], lasting)
    lines += ["", "## Blocks: standard error of ⟨c, c⟩ told by one rollout, as a share of the mean's whole square"]
    lines += table(["task", *(f"{count} blocks" for count in BLOCKS)], telling)
    lines += [
        "",
        "## Telling: after how many rollouts of PPO a bias counts in full, by seed (-: not in 100,000 steps)",
    ]
    rows = [
        [
            env + "".join(f", {name} {value:g}" for name, value in kwargs.items()),
            *(", ".join(str(first[place, seed][name] or "-") for seed in range(args.seeds)) for name in (ALONE, *BEARABLE)),
        ]
        for place, (env, kwargs) in enumerate(TELLING)
    ]
    lines += table(["task", ALONE, *(f"{angle}, with the past" for angle in BEARABLE)], rows)
    if args.training_seeds:
        lines += [
            "",
            "## Discounted return of the final policy by n and memory",
        ]
        rows = [
            [f"{n:g}", f"{memory:g}", *(str(interval(returns[e, c])) for e in range(len(RETURNS)))]
            for c, (n, memory) in enumerate(CHOICES)
        ]
        lines += table(
            ["n", "memory", *(f"{env}, strength {kwargs['strength']:g}" for env, (_, kwargs) in RETURNS.items())], rows
        )
    RESULTS.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
