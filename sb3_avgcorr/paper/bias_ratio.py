"""Bias ratio on DotReacher (the paper's Appendix E), for a shared and a separate correction network, and the residual bias."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from sb3_avgcorr.errors import UserError
from sb3_avgcorr.paper.dot_reacher import POINTS
from sb3_avgcorr.reporting.claims import Claim, between
from sb3_avgcorr.reporting.figures import curves
from sb3_avgcorr.reporting.findings import Findings, Picture, Section
from sb3_avgcorr.reporting.statistics import interval
from sb3_avgcorr.runs.jobs import FunctionJob
from sb3_avgcorr.runs.runner import Outcome
from sb3_avgcorr.studies.experiment import Experiment, Plan, Size, frame_of

#: steps between records, at least
SHORTEST = 100


@dataclass(frozen=True)
class BiasRatio(Experiment):
    """
    Batch actor-critic with the paper's settings, and both measures along it.

    :param networks: ``"shared"`` and ``"separate"``
    :param start: where episodes start; the paper: uniform
    """

    networks: tuple[str, ...] = ("shared", "separate")
    start: str = "uniform"
    name: str = "bias-ratio"
    where: str = "App. E"
    purpose: str = "bias left by the learned correction"

    def plan(self, size: Size) -> Plan:
        seeds = size.seeds or (10 if size.full else 3)
        steps = size.steps or (40_000 if size.full else 10_000)
        every = max(SHORTEST, steps // POINTS)
        if steps < SHORTEST:
            raise UserError(
                f"--steps is {steps}; {self.name} records the agent every {SHORTEST} steps, so it must be at least that."
            )
        return {
            network: [
                FunctionJob(
                    "sb3_avgcorr.paper.dot_reacher.measure",
                    seed,
                    steps,
                    network,
                    {"network": network, "every": every, "start": self.start},
                )
                for seed in range(seeds)
            ]
            for network in self.networks
        }

    def judge(self, size: Size, plan: Plan, outcome: Outcome) -> Findings:
        return self.findings(frame_of(plan, outcome, ("network",)))

    def findings(self, frame: pd.DataFrame) -> Findings:
        """
        What the figures say.

        :param frame: ratio and residual by network, seed and step
        """
        base, steps = frame[["network", "seed", "step"]], int(frame["step"].max())
        long = pd.concat(
            [
                base.assign(measure="bias ratio (Appendix E)", value=frame["ratio"]),
                base.assign(measure="residual bias", value=frame["residual"]),
            ]
        )
        figure = curves(
            long, x="step", y="value", line="network", panel="measure", ylabel="1 = no correction", log=True, hline=1.0
        )
        claims = []
        for network, part in frame.groupby("network", sort=False):
            early = part[part["step"] <= max(steps // 4, part["step"].min())].groupby("seed")["ratio"].mean()
            late = part[part["step"] > 3 * steps // 4].groupby("seed")
            for what, values in (
                (f"bias ratio below 1 over the first {steps // 4} steps", early),
                (f"bias ratio below 1 over the last {steps // 4} steps", late["ratio"].mean()),
                (f"residual bias below 1 over the last {steps // 4} steps", late["residual"].mean()),
            ):
                found = interval(values)
                claims.append(Claim(what, between(found, high=1.0), found, str(network)))
        note = (
            f"Batch actor-critic with the averaging correction on DotReacher, start {self.start}, the settings of the paper's "
            f"table for each network; {frame['seed'].nunique()} seeds, {steps} steps. The bias ratio is taken over the "
            "buffers of 25 and 45 samples it trains on, where it is mostly sampling noise; the residual bias is free of that: "
            "0 is a perfect correction, 1 is none, above 1 is harm."
        )
        section = Section(pictures=[Picture(f"{self.name}.png", "Bias ratio on DotReacher", figure)], claims=claims)
        return Findings(self.name, "Bias ratio on DotReacher", [note], [section], {self.name: frame})
