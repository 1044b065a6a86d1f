"""
Steps per second of AveragingPPO against SB3's PPO (and SBX's, if installed), collecting and training apart.

    python benchmarks/throughput.py                 # the whole table, about 20 minutes
    python benchmarks/throughput.py --only main     # CartPole and HalfCheetah with 1 and 8 environments

The contestants take turns, one rollout each, in processes of their own that wait while another works; figures are medians
over the repeats, ratios are to SB3 in the same turn. Times are processor time of a process with one thread, which other work
on the machine disturbs less than the clock on the wall. Writes benchmarks/results/throughput.{md,csv}.
"""

import argparse
import csv
import multiprocessing as mp
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")

RESULTS = Path(__file__).parent / "results"
CONTESTANTS = ["sb3", "averaging", "averaging, fast=False", "correction=None", "floor"]
if find_spec("sbx") is not None:
    CONTESTANTS.append("sbx")


@dataclass(frozen=True)
class Case:
    """One row group of the table."""

    group: str
    env: str
    n_envs: int
    rollout: int = 2048  # samples of a rollout, over all environments
    width: int = 64
    policy: str = "MlpPolicy"
    repeats: int = 7
    contestants: tuple[str, ...] = tuple(CONTESTANTS)
    algorithm: str = "PPO"
    batch_size: int = 64
    threads: int = 1  # of torch; with more than one the clock on the wall counts


def cases() -> Iterator[Case]:
    both = ("sb3", "averaging")
    for env in ("CartPole-v1", "HalfCheetah-v5"):
        yield Case("main", env, 1)
        yield Case("main", env, 8, rollout=8 * 2048, repeats=4)  # SB3's default of 2048 steps an environment
    for n_envs in (1, 8):
        yield Case("spaces", "dict", n_envs, policy="MultiInputPolicy", contestants=both, repeats=4)
    for n_envs in (1, 8):
        yield Case("spaces", "asymmetric", n_envs, policy="asymmetric", contestants=both, repeats=4)
    yield Case("spaces", "image", 8, rollout=512, policy="CnnPolicy", contestants=both, repeats=3)
    for rollout in (2048, 8192, 65536):
        yield Case("rollout length", "CartPole-v1", 8, rollout=rollout, contestants=both, repeats=3)
    for n_envs in (1, 4, 16, 64):
        yield Case("environments", "CartPole-v1", n_envs, contestants=both, repeats=4)
    for n_envs in (1, 8):
        yield Case("A2C", "CartPole-v1", n_envs, rollout=5 * n_envs, contestants=both, repeats=200, algorithm="A2C")
    for batch_size in (64, 256, 2048):
        yield Case("batch", "CartPole-v1", 8, contestants=both, repeats=3, batch_size=batch_size)
    for width in (64, 256, 512):
        yield Case("width", "CartPole-v1", 8, width=width, contestants=both, repeats=3)
    # where the engine, which is left in charge here, should give way to torch's threads
    for batch_size, width in ((64, 64), (256, 64), (256, 256), (512, 256), (2048, 256)):
        yield Case(
            "threads",
            "CartPole-v1",
            8,
            width=width,
            batch_size=batch_size,
            contestants=both,
            repeats=5,
            threads=os.cpu_count() or 1,
        )


def make_env(name: str) -> Any:
    import gymnasium as gym
    from gymnasium import spaces

    class Noise(gym.Env):
        """An environment that costs nothing: random observations, episodes of 100 steps."""

        def __init__(self, space: spaces.Space) -> None:
            self.observation_space, self.action_space = space, spaces.Discrete(4)
            self.fixed = [space.sample() for _ in range(8)]
            self.t = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
            self.t = 0
            return self.fixed[0], {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            self.t += 1
            return self.fixed[self.t % 8], 1.0, False, self.t >= 100, {}

    vector = spaces.Box(-1.0, 1.0, (16,), np.float32)
    if name in ("dict", "asymmetric"):
        return Noise(spaces.Dict({"position": vector, "goal": vector, "mode": spaces.Discrete(4)}))
    if name == "image":
        return Noise(spaces.Box(0, 255, (4, 84, 84), np.uint8))
    return gym.make(name)


class Floor:
    """
    What no algorithm can do without: the environments as SB3 steps them, and the products and activations of the update.

    :param env: the environments
    :param case: the case
    """

    def __init__(self, env: Any, case: Case) -> None:
        self.env, self.n_steps, self.rollout_buffer = env, case.rollout // case.n_envs, None
        self._actions = [np.array([env.action_space.sample() for _ in range(case.n_envs)]) for _ in range(64)]
        self._minibatches = 10 * case.rollout // case.batch_size
        inputs = env.observation_space.shape[0]
        sizes = [(inputs, case.width), (case.width, case.width), (case.width, 1)] * 2  # actor and critic
        floats = np.random.default_rng(0).standard_normal
        self._layers = [
            (
                floats((case.batch_size, i), np.float32),
                floats((o, i), np.float32),
                floats((case.batch_size, o), np.float32),
                o > 1,
            )
            for i, o in sizes
        ]
        env.reset()

    def _setup_learn(self, steps: int) -> tuple[int, None]:
        return steps, None

    def collect_rollouts(self, env: Any, *_: Any, n_rollout_steps: int) -> None:
        for step in range(n_rollout_steps):
            env.step(self._actions[step % 64])

    def train(self) -> None:
        for _ in range(self._minibatches):
            for x, weight, delta, hidden in self._layers:
                z = x @ weight.T
                if hidden:
                    np.tanh(z, out=z)
                _ = delta.T @ x, delta @ weight


def make_model(contestant: str, case: Case) -> Any:
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    import sb3_avgcorr

    env = make_vec_env(lambda: make_env(case.env), n_envs=case.n_envs, seed=0)
    kwargs: dict[str, Any] = {"n_steps": case.rollout // case.n_envs, "seed": 0, "device": "cpu"}
    if case.algorithm == "PPO":
        kwargs["batch_size"] = case.batch_size
    if case.width != 64:
        kwargs["policy_kwargs"] = {"net_arch": {"pi": [case.width] * 2, "vf": [case.width] * 2}}
    policy: Any = case.policy
    if policy == "asymmetric":
        policy, kwargs["policy_kwargs"] = sb3_avgcorr.AsymmetricActorCriticPolicy, {"actor_keys": ["position"]}
    if contestant == "floor":
        return Floor(env, case)
    if contestant == "sb3":
        return getattr(stable_baselines3, case.algorithm)(policy, env, **kwargs)
    if contestant == "sbx":
        import sbx

        return sbx.PPO(policy, env, **kwargs)
    options = {"averaging, fast=False": {"fast": False}, "correction=None": {"correction": None}}.get(contestant, {})
    return getattr(sb3_avgcorr, f"Averaging{case.algorithm}")(policy, env, **kwargs, **options)


def contestant_process(contestant: str, case: Case, pipe: Connection) -> None:
    """Waits for its turn, makes one rollout and one update, tells how long they took, and at the end its peak memory."""
    import torch as th

    th.set_num_threads(case.threads)
    clock = time.process_time if case.threads == 1 else time.perf_counter
    if case.group == "threads":
        from sb3_avgcorr.fast import engine

        engine.LARGEST_LAYER = sys.maxsize
    model = make_model(contestant, case)
    _, callback = model._setup_learn(10**9)
    fit_seconds, strength_seconds = [0.0], [0.0]
    if hasattr(model, "_averaging_ratio"):
        model._averaging_ratio = timed(model._averaging_ratio, fit_seconds)
        model._find_strength = timed(model._find_strength, strength_seconds)
    pipe.send("ready")
    while pipe.recv() == "go":
        fit_seconds[0] = strength_seconds[0] = 0.0
        start = clock()
        model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=model.n_steps)
        collected = clock()
        model.train()
        pipe.send((collected - start, clock() - collected, fit_seconds[0], strength_seconds[0]))
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[0] += time.process_time() - start

    return wrapper


def run(case: Case) -> list[dict[str, Any]]:
    context = mp.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []
    for contestant in case.contestants:
        mine, theirs = context.Pipe()
        process = context.Process(target=contestant_process, args=(contestant, case, theirs), daemon=True)
        process.start()
        processes.append(process)
        pipes[contestant] = mine
    for pipe in pipes.values():
        pipe.recv()
    turns: dict[str, list[tuple[float, float, float, float]]] = {contestant: [] for contestant in case.contestants}
    for repeat in range(case.repeats + 1):
        for contestant, pipe in pipes.items():
            pipe.send("go")
            times = pipe.recv()
            if repeat > 0:  # the first turn warms up
                turns[contestant].append(times)
    rows = []
    for contestant, pipe in pipes.items():
        pipe.send("stop")
        own, sb3 = turns[contestant], turns["sb3"]
        per_step = 1e6 / case.rollout
        rows.append(
            {
                "group": case.group,
                "env": case.env,
                "envs": case.n_envs,
                "rollout": case.rollout,
                "width": case.width,
                "batch": case.batch_size,
                "contestant": contestant,
                "collect_us": round(statistics.median(t[0] for t in own) * per_step, 1),
                "train_us": round(statistics.median(t[1] for t in own) * per_step, 1),
                "fit_share": round(statistics.median(t[2] / (t[0] + t[1]) for t in own), 3),
                "strength_share": round(statistics.median(t[3] / (t[0] + t[1]) for t in own), 3),
                "collect_ratio": round(statistics.median(s[0] / t[0] for t, s in zip(own, sb3, strict=True)), 2),
                "train_ratio": round(statistics.median(s[1] / t[1] for t, s in zip(own, sb3, strict=True)), 2),
                "speed_ratio": round(statistics.median(sum(s[:2]) / sum(t[:2]) for t, s in zip(own, sb3, strict=True)), 2),
                "peak_mib": round(pipe.recv()),
            }
        )
    for process in processes:
        process.join()
    for row in rows:
        row["memory_ratio"] = round(row["peak_mib"] / rows[0]["peak_mib"], 2)
    return rows


def machine() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor()
    versions = []
    for package in ("stable-baselines3", "torch", "gymnasium", "numpy", "sbx-rl"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"{package} not installed")
    return f"{os.cpu_count()} cores, {model}, Python {platform.python_version()}; one torch thread; {', '.join(versions)}"


COLUMNS = {
    "env": "environment",
    "envs": "envs",
    "rollout": "rollout",
    "width": "width",
    "batch": "batch",
    "contestant": "",
    "collect_us": "collect µs/step",
    "train_us": "train µs/step",
    "fit_share": "fit / all",
    "strength_share": "strength / all",
    "collect_ratio": "collect ×",
    "train_ratio": "train ×",
    "speed_ratio": "**speed ×**",
    "memory_ratio": "memory ×",
}


def write(rows: list[dict[str, Any]]) -> None:
    """Put rows into the tables, in place of those of the same groups."""
    RESULTS.mkdir(exist_ok=True)
    groups = list(dict.fromkeys(case.group for case in cases()))
    if (RESULTS / "throughput.csv").is_file():
        with open(RESULTS / "throughput.csv", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["group"] not in {own["group"] for own in rows}] + rows
    rows = sorted(rows, key=lambda row: groups.index(row["group"]))
    with open(RESULTS / "throughput.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    lines = [
        "# Throughput",
        "",
        f"Made by `python benchmarks/throughput.py`, group by group (`--only`). {machine()}.",
        "",
        "× is the ratio to SB3's PPO with the same hyperparameters (speed: more is faster; memory: peak resident set of the",
        "process, less is better), the median over turns. `fit / all` is the correction's fit and evaluation as a share of",
        "all time, `strength / all` the search for its strength, in the first 16 rollouts, where it is looked for in each.",
        "*floor* is the environments as SB3 steps them, and the products and activations of the update, nothing else.",
    ]
    for group in dict.fromkeys(row["group"] for row in rows):
        lines += ["", f"## {group}", "", "| " + " | ".join(COLUMNS.values()) + " |", "|" + "---|" * len(COLUMNS)]
        lines += ["| " + " | ".join(str(row[c]) for c in COLUMNS) + " |" for row in rows if row["group"] == group]
    (RESULTS / "throughput.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    groups = list(dict.fromkeys(case.group for case in cases()))
    parser.add_argument("--only", nargs="*", choices=groups, default=groups, help="row groups to run")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case in cases():
        if case.group in arguments.only:
            rows += run(case)
            for row in rows[-len(case.contestants) :]:
                print({key: row[key] for key in COLUMNS}, flush=True)
            write(rows)


if __name__ == "__main__":
    sys.exit(main())
