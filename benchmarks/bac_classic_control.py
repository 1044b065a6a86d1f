"""
Batch actor-critic on classic control: the paper's Figure 3, and the same comparison with equal settings.

    python benchmarks/bac_classic_control.py --jobs 2 --runs runs/bac_classic_control

runs what is missing in --runs (every run is stored when it is done, so the command can be stopped and given again) and then
writes docs/results/bac_classic_control.{md,csv,png}. --summary-only writes them from the runs that are there.
"""

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import matplotlib
import numpy as np
import pandas as pd
import torch as th
from scipy import stats
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from sb3_avgcorr.bac import AveragingBAC
from sb3_avgcorr.envs.wrappers import TruncationAsTermination

matplotlib.use("Agg")
from matplotlib import pyplot as plt

TASKS = ("CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0")
VARIANTS = ("none", "power", "averaging")
COLOURS = {"none": "tab:gray", "power": "tab:blue", "averaging": "tab:orange"}
BIN = 5_000  # steps per point of a curve, as in the reference figures
LAST = 4  # points whose mean is the final return
REPETITIONS = 10_000

# The paper's Table of BAC settings (γ = 0.995 throughout); "our correction" is the default of AveragingBAC.
BASELINE_ROW: dict[str, Any] = {
    "learning_rate": 8e-4,
    "critic_learning_rate": None,
    "n_steps": 64,
    "vf_coef": 8.8,
    "policy_kwargs": {"net_arch": {"pi": [32, 32], "vf": [128, 128]}},
}


class Job(NamedTuple):
    task: str
    row: str  # whose settings: "baseline" or "averaging"
    variant: str
    seed: int

    def path(self, folder: Path) -> Path:
        return folder / f"{self.task}_{self.row}_{self.variant}_{self.seed}.json"


def jobs(tasks: list[str], seeds: int) -> list[Job]:
    own = [("averaging", "averaging"), ("baseline", "none"), ("baseline", "power")]
    equal = [("averaging", "none"), ("averaging", "power")]
    # The paper's comparison first, and seed by seed: what is there early is a smaller experiment and not a part of one.
    return [
        Job(task, row, variant, seed)
        for cells in (own, equal)
        for seed in range(seeds)
        for task in tasks
        for row, variant in cells
    ]


def make_env(task: str) -> VecEnv:
    # Old Gym, which the paper used, counted the time limit as the end of the task.
    env: VecEnv = DummyVecEnv([lambda: Monitor(TruncationAsTermination(gym.make(task)))])
    if isinstance(env.action_space, gym.spaces.Box):
        env = VecNormalize(env, norm_obs=True, norm_reward=False)
    return env


def run(job: Job, steps: int, folder: Path) -> Job:
    th.set_num_threads(1)
    th.distributions.Distribution.set_default_validate_args(False)  # takes time in every step and changes nothing
    env = make_env(job.task)
    model = AveragingBAC(
        "MlpPolicy",
        env,
        seed=job.seed,
        device="cpu",
        correction=None if job.variant == "none" else job.variant,
        **(BASELINE_ROW if job.row == "baseline" else {}),
    )
    model.learn(steps, log_interval=10**9)
    vec_env: Any = env.unwrapped
    monitor = vec_env.envs[0]
    result = {
        **job._asdict(),
        "steps": np.cumsum(monitor.get_episode_lengths()).tolist(),
        "returns": monitor.get_episode_rewards(),
    }
    part = job.path(folder).with_suffix(".part")
    part.write_text(json.dumps(result))
    part.rename(job.path(folder))  # a run that was stopped leaves no half of a result
    return job


def curve(result: dict[str, Any], steps: int) -> np.ndarray:
    """Mean return of the episodes that ended in each bin; the value before where none did."""
    bins = (np.array(result["steps"]) - 1) // BIN
    means = pd.Series(result["returns"]).groupby(bins).mean().reindex(range(steps // BIN))
    return means.ffill().bfill().to_numpy()


def load(folder: Path, steps: int) -> pd.DataFrame:
    frames = []
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        values = curve(result, steps)
        identity = {key: result[key] for key in Job._fields}
        frames.append(pd.DataFrame({**identity, "step": BIN * np.arange(1, len(values) + 1), "return": values}))
    return pd.concat(frames, ignore_index=True)


def curves(data: pd.DataFrame, task: str, row: str, variant: str) -> np.ndarray:
    """Shape (n_seeds, n_points). The averaging variant has one row of settings only."""
    row = "averaging" if variant == "averaging" else row
    part = data[(data.task == task) & (data.row == row) & (data.variant == variant)]
    return part.pivot(index="seed", columns="step", values="return").to_numpy()


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over seeds with its 95 % bootstrap interval, for each column of (n_seeds, n)."""
    point = values.mean(axis=0)
    if len(values) < 2:
        return point, point, point
    ci = stats.bootstrap((values,), np.mean, n_resamples=REPETITIONS, axis=0, method="percentile", rng=0).confidence_interval
    return point, np.asarray(ci.low), np.asarray(ci.high)


def scores(values: np.ndarray) -> dict[str, np.ndarray]:
    return {"area": values.mean(axis=1), "final": values[:, -LAST:].mean(axis=1)}


def difference(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """Difference of means with its 95 % bootstrap interval, seeds drawn anew in both."""
    ci = stats.bootstrap(
        (a, b), lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis), n_resamples=REPETITIONS, method="percentile", rng=0
    ).confidence_interval
    return float(a.mean() - b.mean()), float(ci.low), float(ci.high)


def show(point: float, low: float, high: float) -> str:
    return f"{point:.1f} [{low:.1f}, {high:.1f}]"


def verdict(low: float, high: float, better: bool) -> str:
    if low > 0.0:
        return "holds" if better else "does not hold: averaging is better"
    if high < 0.0:
        return "does not hold: averaging is worse"
    return "not shown: the interval holds 0" if better else "not contradicted: the interval holds 0"


def plot(data: pd.DataFrame, path: Path) -> None:
    tasks = [task for task in TASKS if task in set(data.task)]
    figure, axes = plt.subplots(2, len(tasks), figsize=(4.2 * len(tasks), 6.4), sharex=True, sharey="col", squeeze=False)
    for (i, row), (j, task) in product(enumerate(("baseline", "averaging")), enumerate(tasks)):
        axis = axes[i, j]
        for variant in VARIANTS:
            values = curves(data, task, row, variant)
            if not len(values):
                continue
            point, low, high = interval(values)
            steps = BIN * np.arange(1, len(point) + 1)
            axis.plot(steps, point, color=COLOURS[variant], label=variant)
            axis.fill_between(steps, low, high, color=COLOURS[variant], alpha=0.2, linewidth=0)
        axis.set_title(
            f"{task}\n{'each with its own settings' if row == 'baseline' else 'all with the settings of averaging'}"
        )
        axis.set_xlabel("steps" if i else "")
        axis.set_ylabel("return" if j == 0 else "")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def results_table(data: pd.DataFrame) -> list[str]:
    lines = ["| task | settings | variant | seeds | area under the curve | final return |", "|---|---|---|---|---|---|"]
    for task in TASKS:
        for row, variant in (("baseline", "none"), ("baseline", "power"), *product(("averaging",), VARIANTS)):
            values = curves(data, task, row, variant)
            if len(values):
                cells = [show(*(float(x[0]) for x in interval(s[:, None]))) for s in scores(values).values()]
                lines.append(f"| {task} | of the {row} row | {variant} | {len(values)} | {cells[0]} | {cells[1]} |")
    return lines


def claims_table(data: pd.DataFrame) -> list[str]:
    """What the paper says of its Figure 3, one row for each claim and baseline."""
    claims = [
        ("CartPole-v1", "averaging learns faster", "area", True),
        ("MountainCarContinuous-v0", "averaging learns faster", "area", True),
        ("MountainCarContinuous-v0", "averaging ends higher", "final", True),
        ("Acrobot-v1", "all three are alike", "area", False),
    ]
    lines = [
        "| the paper's claim | measure | against | each with its own settings | | all with the settings of averaging | |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, claim, measure, better in claims:
        averaging = curves(data, task, "averaging", "averaging")
        for other in ("none", "power"):
            cells = []
            for row in ("baseline", "averaging"):
                values = curves(data, task, row, other)
                if min(len(values), len(averaging)) < 2:
                    cells += ["", "not run"]
                    continue
                d = difference(scores(averaging)[measure], scores(values)[measure])
                cells += [show(*d), verdict(*d[1:], better)]
            lines.append(f"| {task}: {claim} | {measure} | {other} | " + " | ".join(cells) + " |")
    return lines


def reference_table(data: pd.DataFrame, reference: Path) -> list[str]:
    """The authors' own program on CartPole, mean return over its first steps."""
    authors = json.loads(reference.read_text())
    task, n = authors["env"], len(authors["runs"][0]["returns"])
    lines = [
        f"Mean return over the first {n * authors['steps_per_point'] // 1000}k steps of {task}, by seed:",
        "",
        "| variant | the authors' program | here |",
        "|---|---|---|",
    ]
    for variant in VARIANTS:
        theirs = [np.mean(r["returns"]) for r in authors["runs"] if r["variant"] == variant]
        ours = curves(data, task, "baseline", variant)[:, :n].mean(axis=1)
        lines.append(f"| {variant} | {', '.join(f'{x:.0f}' for x in theirs)} | {', '.join(f'{x:.0f}' for x in ours)} |")
    return lines


def summarise(data: pd.DataFrame, out: Path, command: str, reference: Path | None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    data.round(2).to_csv(out / "bac_classic_control.csv", index=False)
    plot(data, out / "bac_classic_control.png")
    steps, counts = int(data.step.max()), data.groupby(["task", "row", "variant"]).seed.nunique()
    seeds = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    text = [
        "# Batch actor-critic on classic control (the paper's Figure 3)",
        "",
        f"Made by `{command}`: {seeds} seeds, {steps // 1000}k steps, one environment.",
        "",
        "- Returns are undiscounted and those of the training episodes. Time limits count as termination, as in the paper.",
        "  On MountainCarContinuous observations are normalised by a running filter and the policy's standard deviation is 1.",
        '- "Settings of the averaging row": the paper\'s tuned settings of "our correction" (buffer 128, actor 0.0003, critic',
        "  0.009, value loss × 9.6, scale 29, 64 units); of the baseline row: those of its two baselines (buffer 64, one",
        "  learning rate 0.0008, value loss × 8.8, critic 128 and actor 32 units). γ = 0.995. The paper compares each",
        "  variant with its own row; only the comparison with equal settings says what the correction does.",
        "- Against the authors' program the correction's output is softplus (ReLU can die) and starts at the mean γ^t.",
        f"- Area: mean return over the run (points of {BIN} steps). Final: mean over the last {LAST * BIN // 1000}k steps.",
        "  Intervals: 95 %, bootstrap over seeds; with so few seeds they are rather too narrow.",
        "",
        "![curves](bac_classic_control.png)",
        "",
        *results_table(data),
        "",
        "## Which of the paper's claims hold up",
        "",
        "Difference of averaging and the other variant, with its 95 % interval:",
        "",
        *claims_table(data),
        "",
    ]
    if reference is not None and "CartPole-v1" in set(data.task):
        text += ["## Against the authors' own program", "", *reference_table(data, reference), ""]
    (out / "bac_classic_control.md").write_text("\n".join(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--runs", type=Path, default=Path("runs/bac_classic_control"), help="where the runs are stored")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="where the results are written")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--reference", type=Path, help="curves of the authors' program on CartPole (JSON) to compare with")
    parser.add_argument("--summary-only", action="store_true", help="run nothing, write the results of the runs there are")
    args = parser.parse_args()

    args.runs.mkdir(parents=True, exist_ok=True)
    missing = [job for job in jobs(args.tasks, args.seeds) if not job.path(args.runs).exists()]
    if missing and not args.summary_only:
        # forked: all runs are made by the program as it was when the command was given
        with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
            futures = [pool.submit(run, job, args.steps, args.runs) for job in missing]
            for done, future in enumerate(as_completed(futures), start=1):
                print(f"{done}/{len(missing)} {future.result()}", flush=True)
    command = f"python benchmarks/bac_classic_control.py --seeds {args.seeds} --steps {args.steps}"
    summarise(load(args.runs, args.steps), args.out, command, args.reference)


if __name__ == "__main__":
    main()
