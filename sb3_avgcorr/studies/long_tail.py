"""
Where the correction changes the goal: return against the strength of the mismatch, every variant with the same settings.

The tasks are of the long-tail kind (:mod:`sb3_avgcorr.envs.long_tail`): a few early steps, and a tail that pulls what actor
parameters share the other way, while critic and correction see what the actor does not. Beside PPO and the corrections
there are two rivals for whoever may reset at will: PPO on episodes that end with probability 1-γ after each step
(geometric), and the averaging correction on episodes that are cut, and bootstrapped, after 3/(1-γ) steps (cut). All are
evaluated on the task itself, after training, with actions drawn as in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from sb3_avgcorr.reporting.claims import Claim, Relation, judge
from sb3_avgcorr.reporting.figures import curves
from sb3_avgcorr.reporting.findings import Findings, Picture, Section, Table
from sb3_avgcorr.reporting.statistics import interval
from sb3_avgcorr.runs.jobs import FOR_TRAINING, Job
from sb3_avgcorr.runs.runner import Outcome
from sb3_avgcorr.studies.experiment import Experiment, Plan, Size, results_of, with_earlier
from sb3_avgcorr.studies.variants import CORRECTIONS
from sb3_avgcorr.zoo.config import hyperparams_folder, read_yaml

#: task -> strengths of the mismatch
TASKS: dict[str, tuple[float, ...]] = {
    "avgcorr/LongTail-v0": (0.0, 0.1, 0.2, 0.5),
    "avgcorr/LongTailContinuous-v0": (0.0, 0.1, 0.2, 0.5),
    "avgcorr/LongTailReacher-v0": (0.0, 0.5, 1.0),
}
#: variant -> settings of the correction
VARIANTS: dict[str, dict[str, Any]] = {
    **CORRECTIONS,
    "geometric": CORRECTIONS["none"],
    "cut": CORRECTIONS["averaging"],
}
EPISODES = 50
#: the tasks and the automatic strength were made while looking at smaller seeds
FIRST_SEED = 10
MEASURES = {"discounted": "discounted return", "return": "undiscounted return"}
#: claims of the discounted return, where nothing pulls the other way and where something does
EXPECTATIONS: dict[bool, tuple[tuple[str, str, Relation, str], ...]] = {
    False: (
        (
            "auto is not significantly worse than PPO where nothing pulls the other way",
            "auto",
            "not significantly worse than",
            "none",
        ),
        ("averaging is as good as PPO where nothing pulls the other way", "averaging", "as good as", "none"),
        ("power is as good as PPO where nothing pulls the other way", "power", "as good as", "none"),
    ),
    True: (
        ("averaging has the higher discounted return than PPO", "averaging", "better than", "none"),
        ("auto is not significantly worse than averaging", "auto", "not significantly worse than", "averaging"),
        ("power has the higher discounted return than PPO", "power", "better than", "none"),
        ("geometric resets have the higher discounted return than PPO", "geometric", "better than", "none"),
        ("averaging is as good as geometric resets", "averaging", "as good as", "geometric"),
        ("averaging on cut episodes has the higher discounted return than averaging", "cut", "better than", "averaging"),
        ("averaging on cut episodes is as good as geometric resets", "cut", "as good as", "geometric"),
    ),
}


def rival(variant: str, gamma: float) -> tuple[dict[str, Any], tuple[str, ...]]:
    """
    How a variant of ``VARIANTS`` is trained.

    :param variant: the variant
    :param gamma: discount factor of the task's settings
    :return: hyperparameters, and the names of the wrappers that only training has
    """
    hyperparams = dict(VARIANTS[variant])
    if variant == "geometric":
        hyperparams["env_wrapper"] = [{"sb3_avgcorr.envs.wrappers.GeometricTermination": {"gamma": gamma}}]
    if variant == "cut":
        limit = round(3.0 / (1.0 - gamma))
        hyperparams["env_wrapper"] = [{"gymnasium.wrappers.TimeLimit": {"max_episode_steps": limit}}]
        return hyperparams, ("TimeLimit",)
    return hyperparams, FOR_TRAINING


def job_of(env: str, strength: float, variant: str, seed: int, steps: int | None = None) -> Job:
    """
    One run.

    :param env: id of the task
    :param strength: strength of the mismatch
    :param variant: one of ``VARIANTS``
    :param seed: the seed
    :param steps: environment steps, if not those of the task's settings
    """
    entry = read_yaml(hyperparams_folder() / "averaging_ppo.yml")[env]
    hyperparams, without = rival(variant, entry["gamma"])
    return Job(
        "averaging_ppo",
        env,
        seed,
        steps or int(entry["n_timesteps"]),
        label=variant,
        hyperparams=hyperparams,
        env_kwargs={"strength": strength},
        eval_episodes=EPISODES,
        eval_without=without,
    )


@dataclass(frozen=True)
class LongTail(Experiment):
    """
    Return against the strength of the mismatch.

    :param tasks: task -> strengths
    """

    tasks: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: TASKS)
    name: str = "long-tail"
    where: str = "ours"
    purpose: str = "tasks where the correction changes the goal, equal settings"

    @property
    def envs(self) -> tuple[str, ...]:
        return tuple(self.tasks)

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.name,)

    def plan(self, size: Size) -> Plan:
        seeds = range(FIRST_SEED, FIRST_SEED + (size.seeds or (10 if size.full else 3)))
        return {
            (env, strength, variant): [job_of(env, strength, variant, seed, size.steps) for seed in seeds]
            for env, strengths in size.only(self.tasks).items()
            for strength in strengths
            for variant in VARIANTS
        }

    def judge(self, size: Size, plan: Plan, outcome: Outcome) -> Findings:
        rows = [
            {
                **dict(zip(("task", "strength", "variant"), cell, strict=True)),
                "seed": result.job.seed,
                "run": result.job.name,
                "steps": result.job.steps,
                "discounted": result.evaluation.discounted.mean(),
                "return": result.evaluation.returns.mean(),
            }
            for cell, results in results_of(plan, outcome).items()
            for result in results
        ]
        frame, kept = with_earlier(self.name, pd.DataFrame(rows), plan, outcome)
        pictures = [
            Picture(
                f"{self.name}-{measure}.png",
                f"{words} against strength",
                curves(frame, x="strength", y=measure, line="variant", panel="task", ylabel=words, share_y=False),
            )
            for measure, words in MEASURES.items()
        ]
        table = [
            [*map(str, place), *(interval(part[measure]).text(3) for measure in MEASURES)]
            for place, part in frame.groupby(["task", "strength", "variant"], sort=False)
        ]
        note = (
            f"{frame['seed'].nunique()} seeds; equal settings (`hyperparams/averaging_ppo.yml`); the mean of {EPISODES} "
            "episodes after training, in the task itself also for the agents trained with geometric resets (PPO) and with "
            "episodes cut at 3/(1-γ) steps (averaging). *averaging* and *power* correct in full, *auto* as far as it pays. "
            "The corrected gradient climbs the discounted return; the undiscounted one, which the tail dominates, is what it "
            "may cost."
        )
        heading = ["task", "strength", "variant", "discounted", "undiscounted"]
        return Findings(
            self.name,
            "Where it matters: return against the strength of the mismatch",
            [note],
            [Section(pictures=pictures, claims=_claims(frame), tables=[Table(heading, table)])],
            {self.name: kept},
        )


def _claims(frame: pd.DataFrame) -> list[Claim]:
    """By the discounted return, at every strength."""
    claims = []
    for env, strength in frame[["task", "strength"]].drop_duplicates().itertuples(index=False):
        part = frame[(frame["task"] == env) & (frame["strength"] == strength)]
        values = {variant: own["discounted"].to_numpy(dtype=float) for variant, own in part.groupby("variant")}
        for text, first, relation, second in EXPECTATIONS[strength > 0.0]:
            if first in values and second in values:
                verdict, apart = judge(relation, values[first], values[second])
                claims.append(Claim(text, verdict, apart, f"{env}, strength {strength:g}"))
    return claims
