"""
Every estimator of the correction, against the exact one, on finite MDPs.

    python benchmarks/estimators.py --out benchmarks/results            # some 20 minutes on one core
    python benchmarks/estimators.py --out benchmarks/results --full     # every case, γ from 0.8 to 0.995, 10 seeds: hours

Two tables go into ``estimators.csv`` and ``estimators.md``, row by row as they are measured:

- **samples**: the estimators (biased, power, averaging by counting, averaging as AveragingPPO learns it by default and with
  the paper's options) from 25 to 20,000 samples: residual bias, and squared bias and variance of the emphasis over buffers.
- **options**: AveragingPPO's options, each changed alone, after 12 rollouts of 2048 steps: residual bias.

The policy is fixed; the rollouts are sampled from the finite MDP and put into a real AveragingPPO's buffer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch as th
from matplotlib.figure import Figure

from sb3_avgcorr.envs.dot_reacher import DotReacherEnv
from sb3_avgcorr.envs.two_state import TwoStateEnv
from sb3_avgcorr.reporting.statistics import interval
from sb3_avgcorr.studies.replay import learn_from, make_estimator, rollouts, state_features
from sb3_avgcorr.tabular import FiniteMDP, Samples, random_mdp, residual_bias, tabular_correction

Array = npt.NDArray[np.float64]
ROLLOUT = 2048


class Case(NamedTuple):
    """A finite MDP, the length of its episodes, and how it is sampled."""

    make: Callable[[float], FiniteMDP]
    horizon: int
    n_envs: int = 1


def concentrated(n_states: int, gamma: float) -> FiniteMDP:
    """A random MDP that always starts in the same state."""
    mdp = random_mdp(n_states, 4, gamma, 3, branching=3)
    return FiniteMDP(mdp.P, mdp.r, np.eye(n_states)[0], gamma)


def corridor(gamma: float, n: int = 100) -> FiniteMDP:
    """A line walked from its left end, the action right succeeding with probability 0.6; observed as one number."""
    P, i = np.zeros((n, 2, n)), np.arange(n)
    for action, right in enumerate((0.4, 0.6)):
        P[i, action, np.minimum(i + 1, n - 1)] += right
        P[i, action, np.maximum(i - 1, 0)] += 1 - right
    r = np.zeros((n, 2))
    r[-1] = 1.0
    return FiniteMDP(P, r, np.eye(n)[0], gamma, observations=np.linspace(-1, 1, n, dtype=np.float32)[:, None])


CASES: dict[str, Case] = {
    "DotReacher, corner": Case(lambda gamma: DotReacherEnv(start="corner").finite_mdp(gamma), 500),
    "DotReacher, uniform": Case(lambda gamma: DotReacherEnv().finite_mdp(gamma), 500),
    "TwoState": Case(lambda gamma: TwoStateEnv().finite_mdp(gamma), 20),
    "FrozenLake 4x4": Case(lambda gamma: FiniteMDP.from_gymnasium("FrozenLake-v1", gamma), 100),
    "random, 50 states, one start": Case(lambda gamma: concentrated(50, gamma), 500),
    "corridor, 100 states": Case(corridor, 1000),
    "DotReacher, corner, 8 environments": Case(lambda gamma: DotReacherEnv(start="corner").finite_mdp(gamma), 500, 8),
    "Taxi": Case(lambda gamma: FiniteMDP.from_gymnasium("Taxi-v4", gamma), 200),
    "CliffWalking": Case(lambda gamma: FiniteMDP.from_gymnasium("CliffWalking-v1", gamma), 500),
    "random, 50 states, spread start": Case(lambda gamma: random_mdp(50, 4, gamma, 3, branching=3), 500),
}
QUICK_CASES = tuple(CASES)[:6]
OPTION_CASES = tuple(CASES)[:2]

#: one option changed at a time; the first row is the default
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    **{f"correction_network={v}": {"correction_network": v} for v in ("shared", "separate")},
    "correction_loss=mse, scale 50": {"correction_loss": "mse", "correction_scale": 50.0},
    **{f"correction_lambda={v}": {"correction_lambda": v} for v in (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)},
    **{f"correction_learning_rate={v}": {"correction_learning_rate": v} for v in (2e-3, 4e-3, 8e-3, 1.2e-2, 2.4e-2)},
    **{f"correction_epochs={v}": {"correction_epochs": v} for v in (1, 3, 4, 8, 16)},
    **{f"correction_batch_size={v}": {"correction_batch_size": v} for v in (128, 256, 512, None)},
    "correction_order=after": {"correction_order": "after"},
    "correction_averaging=False": {"correction_averaging": False},
    "correction_shrinkage=False": {"correction_shrinkage": False},
    "normalize_correction=False": {"normalize_correction": False},
    "shared, correction_coef=1": {"correction_network": "shared", "correction_coef": 1.0},
}
#: the paper's own options, as far as they are ours
PAPER: dict[str, Any] = {
    "correction_loss": "mse",
    "correction_scale": 50.0,
    "correction_lambda": 1.0,
    "correction_network": "shared",
    "correction_order": "after",
    "correction_shrinkage": False,
    "normalize_correction": False,
}


def policies(mdp: FiniteMDP) -> dict[str, Array]:
    """Fixed policies: every action alike, a random softmax policy, and one that mostly takes the greedy action."""
    logits = np.random.default_rng(7).standard_normal((mdp.n_states, mdp.n_actions))
    softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    greedy = 0.3 * mdp.uniform_policy()
    greedy[np.arange(mdp.n_states), mdp.q(mdp.uniform_policy()).argmax(axis=1)] += 0.7
    return {"uniform": mdp.uniform_policy(), "softmax": softmax, "greedy": greedy}


class Estimate(NamedTuple):
    """What one estimator made of one set of samples."""

    c: Array  # ĉ(s) of every state
    emphasis: Array  # of every state in the last buffer, summing to 1
    milliseconds: float  # of processor time per rollout


def learned(mdp: FiniteMDP, samples: Any, n_steps: int, n_envs: int, seed: int, options: dict[str, Any]) -> Estimate:
    """The package's own estimate, rollout after rollout."""
    estimator = make_estimator(mdp, n_steps * n_envs, seed, **options)
    spent, count = 0.0, 0
    for rollout in rollouts(samples, n_steps):
        begin = time.process_time()
        learn_from(estimator, mdp, rollout)
        spent, count = spent + time.process_time() - begin, count + 1
    c = estimator.ratio(state_features(mdp))
    weights = c[rollout.states[:n_steps]]
    return Estimate(c, _emphasis(rollout.states[:n_steps], weights, mdp.n_states), 1e3 * spent / count)


def counted(mdp: FiniteMDP, samples: Any, n_steps: int, kind: str) -> Estimate:
    """The estimates that need no network: weights of 1, γ^t itself, and its mean by state."""
    states, steps = samples.states[:-1], samples.steps[:-1]
    if kind == "biased":
        c = np.ones(mdp.n_states)
        weights = np.ones(states.shape)
    else:
        c = tabular_correction(states, steps, mdp.gamma, mdp.n_states)
        c = np.where(np.isnan(c), np.nanmean(c), c)  # a state that was not seen
        weights = mdp.gamma**steps if kind == "power" else c[states]
    return Estimate(c, _emphasis(states[-n_steps:], weights[-n_steps:], mdp.n_states), 0.0)


def _emphasis(states: npt.NDArray[np.int64], weights: Array, n_states: int) -> Array:
    e = np.bincount(states.ravel(), weights.ravel(), n_states)
    return e / e.sum() if e.sum() > 0 else np.full(n_states, 1 / n_states)


@lru_cache(maxsize=4)
def draw(case: str, gamma: float, policy_name: str, n_steps: int, n_trajectories: int) -> Samples:
    """The samples of all seeds at once, as independent columns; the same for every estimator."""
    mdp = CASES[case].make(gamma)
    policy = policies(mdp)[policy_name]
    return mdp.sample(policy, n_steps, n_trajectories, horizon=CASES[case].horizon, rng=0)


def measure(
    case: str, gamma: float, policy_name: str, n_samples: int, seeds: int, options: dict[str, Any] | str
) -> dict[str, Any]:
    """
    One row: an estimator on one case.

    :param case: key of ``CASES``
    :param gamma: discount factor
    :param policy_name: name of the policy
    :param n_samples: samples in all
    :param seeds: repeats, each with samples of its own
    :param options: AveragingPPO's options, or ``"biased"``, ``"power"``, ``"counting"``
    """
    spec = CASES[case]
    mdp = spec.make(gamma)
    policy = policies(mdp)[policy_name]
    n_steps = max(1, min(n_samples, ROLLOUT) // spec.n_envs)
    n_rollouts = max(1, n_samples // (n_steps * spec.n_envs))
    d, d_gamma = mdp.d_T(policy, spec.horizon), mdp.d_gamma(policy)
    drawn = draw(case, gamma, policy_name, n_rollouts * n_steps + 1, spec.n_envs * seeds)
    estimates = []
    for seed in range(seeds):
        columns = slice(seed * spec.n_envs, (seed + 1) * spec.n_envs)
        samples = Samples(*(array[:, columns] for array in drawn))  # type: ignore[arg-type]
        if isinstance(options, str):
            estimates.append(counted(mdp, samples, n_steps, options))
        else:
            estimates.append(learned(mdp, samples, n_steps, spec.n_envs, seed, options))
    # γ^t itself is unbiased: its residual bias is that of its mean by state only as far as it is noise
    residuals = [residual_bias(e.c, d, d_gamma) for e in estimates]
    mean, low, high = interval(residuals)
    emphasis = np.array([e.emphasis for e in estimates])
    return {
        "case": case,
        "gamma": gamma,
        "policy": policy_name,
        "samples": n_samples,
        "residual_bias": mean if options != "power" else float("nan"),
        "low": low if options != "power" else float("nan"),
        "high": high if options != "power" else float("nan"),
        # without what the noise of a mean of so many adds, so that it may be below 0
        "squared_bias": float((np.square(emphasis.mean(axis=0) - d_gamma) - emphasis.var(axis=0, ddof=1) / seeds).sum()),
        "variance": float(emphasis.var(axis=0).sum()),
        "mismatch": 0.5 * float(np.abs(d - d_gamma).sum()),
        "seeds": seeds,
        "ms_per_rollout": float(np.mean([e.milliseconds for e in estimates])),
    }


def jobs(full: bool, seeds: int) -> Iterator[dict[str, Any]]:
    """Every row of both tables."""
    gammas = (0.8, 0.9, 0.95, 0.99, 0.995) if full else (0.8, 0.9, 0.99, 0.995)
    names = ("uniform", "softmax", "greedy") if full else ("uniform", "greedy")
    sizes = (25, 100, 500, 2048, 8192, 20_480) if full else (25, 500, 2048, 20_480)
    estimators: dict[str, dict[str, Any] | str] = {
        "biased": "biased",
        "power": "power",
        "averaging, by counting": "counting",
        "averaging, default": {},
        "averaging, the paper's options": PAPER,
    }
    for case in OPTION_CASES if not full else CASES:
        for gamma in gammas if full else (0.9, 0.99):
            for option, kwargs in OPTIONS.items():
                row = measure(case, gamma, "uniform", 12 * ROLLOUT, seeds, kwargs)
                yield {"table": "options", "estimator": option, **row}
    for case in CASES if full else QUICK_CASES:
        for gamma in gammas:
            for policy_name in names:
                for n_samples in sizes:
                    for estimator, options in estimators.items():
                        row = measure(case, gamma, policy_name, n_samples, seeds, options)
                        yield {"table": "samples", "estimator": estimator, **row}


def report(frame: pd.DataFrame, command: str) -> str:
    """Both tables as Markdown."""
    lines = [
        "# Estimators of the correction compared",
        "",
        "Residual bias: 0 is a perfect correction, 1 is none, above 1 is harm (mean over seeds). The policy is fixed.",
        f"Made by `{command}`; every figure, with intervals, squared bias and variance, is in `estimators.csv`. What "
        "noise adds to a squared bias is taken off; 0 where nothing is left.",
        "",
    ]
    options = frame[frame["table"] == "options"]
    if len(options):
        wide = options.pivot_table(index="estimator", columns=["case", "gamma"], values="residual_bias", sort=False)
        spent = options.groupby("estimator", sort=False)["ms_per_rollout"].mean()
        heads = [f"{case}, γ {gamma}" for case, gamma in wide.columns]
        lines += ["## Options, each changed alone (12 rollouts of 2048 steps)", ""]
        lines += [f"| option | {' | '.join(heads)} | CPU ms a rollout |", "|---" * (len(heads) + 2) + "|"]
        for name, row in wide.iterrows():
            lines.append(f"| {name} | {' | '.join(f'{x:.2f}' for x in row)} | {spent[name]:.0f} |")
        lines.append("")
    samples = frame[frame["table"] == "samples"]
    if len(samples):
        lines += ["## Estimators and samples", ""]
        head = ["case", "γ", "policy", "samples", "estimator", "residual bias", "squared bias", "variance"]
        lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for _, r in samples.iterrows():
            residual = "unbiased" if np.isnan(r["residual_bias"]) else f"{r['residual_bias']:.2f}"
            squared_bias = f"{r['squared_bias']:.1e}" if r["squared_bias"] > 0.0 else "0"
            lines.append(
                f"| {r['case']} | {r['gamma']} | {r['policy']} | {r['samples']} | {r['estimator']} | {residual} "
                f"| {squared_bias} | {r['variance']:.1e} |"
            )
        lines.append("")
    return "\n".join(lines)


def picture(frame: pd.DataFrame) -> Figure:
    """Error against samples: squared bias and variance of the emphasis, and the residual bias."""
    samples = frame[(frame["table"] == "samples") & frame["case"].isin(OPTION_CASES) & (frame["policy"] == "uniform")]
    panels = list(samples[["case", "gamma"]].drop_duplicates().itertuples(index=False))
    figure = Figure(figsize=(3.4 * max(len(panels), 1), 8), layout="constrained")
    axes = figure.subplots(3, max(len(panels), 1), squeeze=False, sharex=True, sharey="row")
    for column, (case, gamma) in enumerate(panels):
        part = samples[(samples["case"] == case) & (samples["gamma"] == gamma)]
        for name, lines in part.groupby("estimator", sort=False):
            for axis, key in zip(axes[:, column], ("residual_bias", "squared_bias", "variance"), strict=True):
                axis.loglog(lines["samples"], lines[key].where(lines[key] > 0.0), marker="o", markersize=3, label=name)
        axes[0, column].axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
        axes[0, column].set_title(f"{case}, γ = {gamma}", fontsize=9)
        axes[2, column].set_xlabel("samples")
    for axis, label in zip(axes[:, 0], ("residual bias", "squared bias", "variance"), strict=True):
        axis.set_ylabel(label)
    axes[0, 0].legend(fontsize=7, frameon=False)
    return figure


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Estimators of the correction against the exact one.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--seeds", type=int, help="repeats of each row; default 3, with --full 10")
    parser.add_argument("--full", action="store_true", help="every case, γ, policy and size")
    args = parser.parse_args(argv)
    th.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    seeds = args.seeds or (10 if args.full else 3)
    rows: list[dict[str, Any]] = []
    path = args.out / "estimators.csv"
    for row in jobs(args.full, seeds):
        rows.append(row)
        pd.DataFrame([row]).to_csv(
            path, mode="w" if len(rows) == 1 else "a", header=len(rows) == 1, index=False, float_format="%.5g"
        )
        where = f"{row['table']:8s}{row['case']:36s}γ {row['gamma']:<6}{row['samples']:>6}"
        print(f"{where} {row['estimator']:34s}{row['residual_bias']:.3f}", flush=True)
    frame = pd.DataFrame(rows)
    command = f"python benchmarks/estimators.py{' --full' if args.full else ''} --seeds {seeds}"
    (args.out / "estimators.md").write_text(report(frame, command), encoding="utf-8")
    picture(frame).savefig(args.out / "estimators.png", dpi=110)


if __name__ == "__main__":
    main()
