"""Returns of three batch actor-critic agents on DotReacher (the paper's Appendix E)."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from sb3_avgcorr.paper.dot_reacher import POINTS
from sb3_avgcorr.reporting.claims import Claim, judge
from sb3_avgcorr.reporting.figures import curves
from sb3_avgcorr.reporting.findings import Findings, Picture, Section, Table
from sb3_avgcorr.reporting.statistics import interval
from sb3_avgcorr.runs.jobs import FunctionJob
from sb3_avgcorr.runs.runner import Outcome
from sb3_avgcorr.studies.experiment import Experiment, Plan, Size, frame_of

AGENTS: dict[str, str | None] = {"none": None, "power": "power", "averaging": "averaging"}


@dataclass(frozen=True)
class DotReacherReturns(Experiment):
    """
    Three agents, all with the settings the paper tuned for the shared correction network.

    :param start: where episodes start; the paper: uniform
    """

    start: str = "uniform"
    name: str = "dotreacher"
    where: str = "App. E"
    purpose: str = "returns on the discrete reacher"

    def plan(self, size: Size) -> Plan:
        seeds = size.seeds or (10 if size.full else 3)
        steps = size.steps or (40_000 if size.full else 10_000)
        every = max(100, steps // POINTS)
        return {
            agent: [
                FunctionJob(
                    "sb3_avgcorr.paper.dot_reacher.measure",
                    seed,
                    steps,
                    agent,
                    {"network": "shared", "bias": False, "every": every, "start": self.start, "correction": correction},
                )
                for seed in range(seeds)
            ]
            for agent, correction in AGENTS.items()
        }

    def judge(self, size: Size, plan: Plan, outcome: Outcome) -> Findings:
        return self.findings(frame_of(plan, outcome, ("agent",)))

    def findings(self, frame: pd.DataFrame) -> Findings:
        """
        What the figures say.

        :param frame: return by agent, seed and step
        """
        figure = curves(frame, x="step", y="return", line="agent", ylabel="return of an episode (500 steps)")
        by_agent = {str(agent): part.groupby("seed")["return"].mean() for agent, part in frame.groupby("agent", sort=False)}
        claims = []
        for other in ("none", "power"):
            if "averaging" in by_agent and other in by_agent:
                verdict, apart = judge("better than", by_agent["averaging"], by_agent[other])
                claims.append(Claim(f"averaging has the higher mean return over training than {other}", verdict, apart))
        rows = [[f"mean return over training, {agent}", interval(values).text(3)] for agent, values in by_agent.items()]
        note = (
            f"DotReacher, start {self.start}; {frame['seed'].nunique()} seeds, {frame['step'].max()} steps; all three agents "
            "with the settings the paper gives for the shared correction network (it gives none for the other two), so only "
            "the weights differ. The shortest way to the centre earns about -3.7 an episode."
        )
        picture = Picture(f"{self.name}.png", "Returns on DotReacher", figure)
        section = Section(pictures=[picture], claims=claims, tables=[Table(["figure", "mean (95 % interval)"], rows)])
        return Findings(self.name, "Returns on DotReacher", [note], [section], {self.name: frame})
