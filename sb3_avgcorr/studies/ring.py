"""
Where states recur: averaging against γ^t on a ring that is walked round and round, by the number of laps.

The paper's core argument is that averaging has less variance than γ^t where later states are like earlier ones. On the ring
the actor is blind and every lap is like the first; only the first laps count for the discounted return.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch as th
from stable_baselines3.common.utils import obs_as_tensor

from sb3_avgcorr.reporting.claims import Claim, Relation, judge
from sb3_avgcorr.reporting.figures import curves
from sb3_avgcorr.reporting.findings import Findings, Picture, Section, Table
from sb3_avgcorr.reporting.statistics import interval
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.runner import Outcome
from sb3_avgcorr.studies.experiment import Experiment, Plan, Size, results_of, with_earlier
from sb3_avgcorr.studies.long_tail import FIRST_SEED, rival
from sb3_avgcorr.zoo.config import hyperparams_folder, read_yaml

ENV = "avgcorr/Ring-v0"
LAPS = (1, 3, 10, 50)
VARIANTS = ("none", "power", "averaging", "auto", "geometric")
#: what should hold with 50 laps
EXPECTATIONS: tuple[tuple[str, str, Relation, str], ...] = (
    ("averaging has the higher discounted return than PPO", "averaging", "better than", "none"),
    ("averaging has the higher discounted return than power", "averaging", "better than", "power"),
    ("auto is as good as averaging", "auto", "as good as", "averaging"),
    ("averaging is as good as geometric resets", "averaging", "as good as", "geometric"),
)


def probe(model: Any) -> dict[str, float]:
    """
    What the trained actor does, and what that earns, exactly: without the noise of rewards and of drawn actions.

    :param model: a model trained on the ring
    :return: probability of the action that the discounted return wants, the discounted return, and the best one
    """
    env = model.get_env().envs[0].unwrapped
    mdp = env.finite_mdp(model.gamma)
    with th.no_grad():
        seen = obs_as_tensor(env.state_observations(), model.device)
        pi = model.policy.get_distribution(seen).distribution.probs.double().numpy()

    def discounted(policy: npt.NDArray[np.float64]) -> float:
        return float(mdp.rho @ mdp.v(policy))

    always = [discounted(np.tile(np.eye(2)[action], (mdp.n_states, 1))) for action in range(2)]
    wanted = int(np.argmax(always))
    return {"wanted_action": float(pi[0, wanted]), "discounted": discounted(pi), "best": max(always)}


@dataclass(frozen=True)
class Ring(Experiment):
    """
    Discounted return against the number of laps.

    :param laps: numbers of laps
    """

    laps: tuple[int, ...] = LAPS
    name: str = "ring"
    where: str = "ours"
    purpose: str = "averaging against γ^t where states recur, by the number of laps"

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.name,)

    def plan(self, size: Size) -> Plan:
        entry = read_yaml(hyperparams_folder() / "averaging_ppo.yml")[ENV]
        steps = size.steps or int(entry["n_timesteps"])
        seeds = range(FIRST_SEED, FIRST_SEED + (size.seeds or (10 if size.full else 3)))
        planned = {}
        for laps in self.laps:
            for variant in VARIANTS:
                hyperparams, without = rival(variant, entry["gamma"])
                planned[laps, variant] = [
                    Job(
                        "averaging_ppo",
                        ENV,
                        seed,
                        steps,
                        variant,
                        hyperparams=hyperparams,
                        env_kwargs={"laps": laps},
                        eval_without=without,
                        probe=f"{__name__}.probe",
                    )
                    for seed in seeds
                ]
        return planned

    def judge(self, size: Size, plan: Plan, outcome: Outcome) -> Findings:
        made = [
            {"laps": laps, "variant": variant, "seed": job.seed, "run": job.name, "steps": job.steps, **result.probe}
            for (laps, variant), results in results_of(plan, outcome).items()
            for result in results
            for job in [result.job]
        ]
        frame, kept = with_earlier(self.name, pd.DataFrame(made), plan, outcome)
        words = {"discounted": "discounted return (exact)", "wanted_action": "P(action the discounted return wants)"}
        pictures = [
            Picture(
                f"{self.name}-{measure}.png",
                f"{label} against laps",
                curves(frame, x="laps", y=measure, line="variant", ylabel=label, log_x=True, ylim=limits),
            )
            for (measure, label), limits in zip(words.items(), (None, (-0.02, 1.02)), strict=True)
        ]
        last = int(frame["laps"].max())
        values = {variant: part["discounted"].to_numpy() for variant, part in frame[frame["laps"] == last].groupby("variant")}
        claims = []
        for text, first, relation, second in EXPECTATIONS:
            if first in values and second in values:
                verdict, apart = judge(relation, values[first], values[second])
                claims.append(Claim(text, verdict, apart, f"{last} laps"))
        few = frame[frame["laps"] == frame["laps"].min()].groupby("variant")["discounted"]
        for variant, relation, text in (
            ("averaging", "as good as", "averaging does not fall with the laps"),
            ("power", "worse than", "power falls with the laps"),
        ):
            if variant in values and variant in few.groups:
                verdict, apart = judge(relation, values[variant], few.get_group(variant))
                claims.append(Claim(text, verdict, apart, f"{last} laps against {frame['laps'].min()}"))
        rows = [
            [str(laps), str(variant), interval(part["discounted"]).text(3), interval(part["wanted_action"]).text(3)]
            for (laps, variant), part in frame.groupby(["laps", "variant"], sort=False)
        ]
        note = (
            f"`{ENV}`: a ring of 12 cells that is walked round whatever one does; in its first quarter one action earns, "
            f"elsewhere the other, beside noise; the actor is blind, critic and correction see the cell. "
            f"{frame['seed'].nunique()} seeds of {frame['steps'].max():,} steps, equal settings "
            "(`hyperparams/averaging_ppo.yml`). *averaging* and *power* correct in full, *auto* as far as it pays, "
            f"*geometric* is PPO on episodes that end with probability 1-γ after each step. The return is that of the "
            f"trained policy, from the exact finite MDP; the best is {frame['best'].mean():.3g}."
        )
        heading = ["laps", "variant", "discounted return", "P(wanted action)"]
        return Findings(
            self.name,
            "Where states recur: return against laps",
            [note],
            [Section(pictures=pictures, claims=claims, tables=[Table(heading, rows)])],
            {self.name: kept},
        )
