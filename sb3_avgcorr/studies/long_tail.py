"""
Where the correction changes the goal: return against the strength of the mismatch, every variant with the same settings.

The tasks are of the long-tail kind (:mod:`sb3_avgcorr.envs.long_tail`): a few early steps, and a tail that pulls what actor
parameters share the other way, while critic and correction see what the actor does not. Beside PPO and the two corrections
there is the obvious alternative: PPO on episodes that end with probability 1-γ after each step. All are evaluated on the task
itself, after training, with actions drawn as in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sb3_avgcorr.paper.claims import command_of, judge, only
from sb3_avgcorr.paper.training import Expectation
from sb3_avgcorr.reporting.figures import curves, interval, shown
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.runner import run_jobs
from sb3_avgcorr.zoo.config import hyperparams_folder, read_yaml

#: task -> strengths of the mismatch
TASKS: dict[str, tuple[float, ...]] = {
    "avgcorr/LongTail-v0": (0.0, 0.1, 0.2, 0.5),
    "avgcorr/LongTailContinuous-v0": (0.0, 0.1, 0.2, 0.5),
    "avgcorr/LongTailReacher-v0": (0.0, 0.5, 1.0),
}
VARIANTS = ("biased", "power", "averaging", "geometric")
EPISODES = 50
#: the tasks were made while looking at seeds 0 and 1
FIRST_SEED = 10
MEASURES = ("discounted", "return")
EXPECTATIONS = {
    False: (
        Expectation("averaging is as good as PPO where nothing pulls the other way", "averaging", "as good as", "biased"),
        Expectation("power is as good as PPO where nothing pulls the other way", "power", "as good as", "biased"),
    ),
    True: (
        Expectation("averaging has the higher discounted return than PPO", "averaging", "better than", "biased"),
        Expectation("power has the higher discounted return than PPO", "power", "better than", "biased"),
        Expectation("geometric resets have the higher discounted return than PPO", "geometric", "better than", "biased"),
        Expectation("averaging is as good as geometric resets", "averaging", "as good as", "geometric"),
    ),
}


def job_of(env: str, strength: float, variant: str, seed: int, steps: int | None = None) -> Job:
    """
    :param env: id of the task
    :param strength: strength of the mismatch
    :param variant: one of ``VARIANTS``
    :param seed: the seed
    :param steps: environment steps, if not those of the task's settings
    """
    entry = read_yaml(hyperparams_folder() / "averaging_ppo.yml")[env]
    hyperparams: dict[str, Any] = {}
    if variant != "averaging":
        hyperparams["correction"] = "power" if variant == "power" else None
    if variant == "geometric":
        wrapper = "sb3_avgcorr.envs.wrappers.GeometricTermination"
        hyperparams["env_wrapper"] = [{wrapper: {"gamma": entry["gamma"]}}]
    return Job(
        "averaging_ppo",
        env,
        seed,
        steps or int(entry["n_timesteps"]),
        label=variant,
        hyperparams=hyperparams,
        env_kwargs={"strength": strength},
        eval_episodes=EPISODES,
    )


def run(
    out: Path | str,
    *,
    full: bool = False,
    seeds: int | None = None,
    steps: int | None = None,
    runs: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    envs: Sequence[str] | None = None,
    tasks: dict[str, tuple[float, ...]] | None = None,
) -> dict[str, Any]:
    """
    :param out: directory for ``long-tail.csv``, ``.md`` and the figures
    :param full: 10 seeds
    :param seeds: number of seeds, if not the size's own
    :param steps: environment steps, if not those of the tasks' settings
    :param runs: where runs are kept; default: ``out/runs``
    :param workers: processes at a time
    :param ray: address of a Ray cluster; ``""``: one of this machine
    :param envs: only these tasks
    :param tasks: task -> strengths, if not ``TASKS``
    :return: claims with their verdicts, the report and what failed
    """
    out, tasks = Path(out), only(TASKS if tasks is None else tasks, envs)
    out.mkdir(parents=True, exist_ok=True)
    n_seeds = seeds or (10 if full else 3)
    jobs = {
        (env, strength, variant, seed): job_of(env, strength, variant, seed, steps)
        for seed in range(FIRST_SEED, FIRST_SEED + n_seeds)
        for env, strengths in tasks.items()
        for strength in strengths
        for variant in VARIANTS
    }
    outcome = run_jobs(list(jobs.values()), runs or out / "runs", workers=workers, ray=ray)
    rows = []
    for (env, strength, variant, seed), job in jobs.items():
        if job in outcome.results:
            episodes = outcome.results[job].evaluation
            means = {"discounted": episodes.discounted.mean(), "return": episodes.returns.mean()}
            rows.append({"task": env, "strength": strength, "variant": variant, "seed": seed, "steps": job.steps, **means})
    failed = [f"{job.label} on {job.env}, seed {job.seed}: {why}" for job, why in outcome.failed.items()]
    if not rows:
        return {"experiment": "long-tail", "claims": [], "report": "No run was finished.", "failed": failed}
    frame = pd.DataFrame(rows)
    frame.to_csv(out / "long-tail.csv", index=False, float_format="%.6g")
    command = command_of("long-tail", full=full, seeds=seeds, steps=steps, envs=envs)
    lines = [
        "# Where it matters: return against the strength of the mismatch",
        "",
        f"{n_seeds} seeds; equal settings (`hyperparams/averaging_ppo.yml`); the mean of {EPISODES} episodes after training, "
        "in the task itself also for the agent trained with geometric resets. The corrected gradient climbs the discounted "
        "return; the undiscounted one, which the tail dominates, is what it may cost. Bands: 95 % bootstrap intervals.",
        "",
        f"Made by `{command}`; every figure is in `long-tail.csv`.",
        "",
    ]
    for measure in MEASURES:
        image = f"long-tail-{measure}.png"
        figure = curves(frame, x="strength", y=measure, line="variant", panel="task", share_y=False)
        figure.savefig(out / image, dpi=110)
        lines += [f"![{measure} against strength]({image})", ""]
    claims = _claims(frame, tasks)
    lines += ["| claim | task | difference (95 % Welch interval) | this run |", "|---|---|---|---|"]
    for claim in claims:
        lines.append(f"| {claim['claim']} | {claim['task']} | {shown(*claim['difference'])} | {claim['verdict']} |")
    lines += ["", "| task | strength | variant | discounted | undiscounted |", "|---|---|---|---|---|"]
    for place, part in frame.groupby(["task", "strength", "variant"], sort=False):
        cells = [shown(*interval(part[measure])) for measure in MEASURES]
        lines.append(f"| {' | '.join(map(str, place))} | {cells[0]} | {cells[1]} |")
    lines += ["", *(f"Failed: {line}" for line in failed)]
    report = "\n".join(lines).rstrip() + "\n"
    (out / "long-tail.md").write_text(report, encoding="utf-8")
    return {"experiment": "long-tail", "claims": claims, "report": report, "failed": failed}


def _claims(frame: pd.DataFrame, tasks: dict[str, tuple[float, ...]]) -> list[dict[str, Any]]:
    """By the discounted return, without a mismatch and at its largest strength."""
    claims = []
    for env, strengths in tasks.items():
        for strength in dict.fromkeys((min(strengths), max(strengths))):
            part = frame[(frame["task"] == env) & (frame["strength"] == strength)]
            values = {
                variant: part.loc[part["variant"] == variant, "discounted"].to_numpy(dtype=float) for variant in VARIANTS
            }
            for expectation in EXPECTATIONS[strength > 0.0]:
                if len(values[expectation.first]) and len(values[expectation.second]):
                    verdict, ends = judge(expectation, values[expectation.first], values[expectation.second])
                    place = f"{env}, strength {strength:g}"
                    claims.append({"claim": expectation.text, "task": place, "verdict": verdict, "difference": ends})
    return claims
