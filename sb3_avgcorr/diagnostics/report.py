"""What a diagnosis found: the measures, the verdict in words, and a table."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sb3_avgcorr.diagnostics.estimates import Estimate
from sb3_avgcorr.diagnostics.gradient import GradientComparison
from sb3_avgcorr.diagnostics.strength import ChosenStrength
from sb3_avgcorr.diagnostics.verdict import Severity, Verdict, judge

MEASURES = {
    "distance": "initial vs sampling states, max-norm of histograms (Table 1)",
    "classifier_distance": "initial vs sampling states, total variation by a classifier",
    "total_variation": "discounted vs sampling states, total variation",
    "explained_variance": "share of γ^t's variance that the state explains",
    "effective_sample_size": "effective share of samples under the weights",
    "gradient_angle": "angle of corrected and uncorrected gradient (degrees)",
}


@dataclass
class DiagnosisReport:
    """
    The measures, each a number with its 95 % interval (``.low``, ``.high``), and the verdict. Prints as a table.
    """

    distance: Estimate
    classifier_distance: Estimate
    total_variation: Estimate
    explained_variance: Estimate
    effective_sample_size: Estimate
    gradient_angle: Estimate
    gradient: GradientComparison
    #: what ``correction_strength="auto"`` would choose, and why
    strength: ChosenStrength
    #: minimum, 5 %, median, 95 % and maximum of ĉ(s) over the rollout
    weight_quantiles: tuple[float, ...]
    gamma: float
    n_steps: int
    n_episodes: int
    #: a sample of the rollout, for plots
    steps: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    features: np.ndarray = field(repr=False)
    env: str = ""
    policy: str = ""
    #: rows and columns of a grid world
    grid: tuple[int, int] | None = None
    notes: list[str] = field(default_factory=list)

    def _judge(self) -> Verdict:
        return judge(
            self.gradient_angle,
            self.gradient,
            self.total_variation,
            self.gamma,
            self.n_steps,
            corrects=self.effective_sample_size < 1.0,
        )

    @property
    def severity(self) -> Severity:
        """The verdict without its reason: ``negligible``, ``moderate``, ``large`` or ``cannot tell yet``."""
        return self._judge().severity

    @property
    def verdict(self) -> str:
        """The verdict in one sentence, which begins with the severity."""
        judged = self._judge()
        return f"{judged.severity}: {judged.why}."

    @property
    def steps_to_tell(self) -> int | None:
        """Steps of a diagnosis that would tell; None if this one tells, or if steps do not help."""
        return self._judge().steps

    @property
    def advice(self) -> str:
        """What to try."""
        judged = self._judge()
        if judged.severity == "negligible":
            noise = ", and its weights add noise to the gradient" if self.strength.noise > 1.1 else ""
            return f"There is little to gain from a correction here{noise}."
        if judged.severity == "cannot tell yet":
            return judged.remedy
        against = (
            f"Compare under equal settings on {self.env}: AveragingPPO as it is, with correction_strength=1, with "
            f"correction='power' and with correction=None (sb3-avgcorr compare --env {self.env})."
        )
        if self.explained_variance < 0.1:
            against += (
                " The state explains little of γ^t; if your critic can be given the time or other information that the actor "
                "lacks, the averaging correction sees more."
            )
        return against + " The corrected gradient climbs the discounted return: check that this is the one you want."

    def as_dict(self) -> dict[str, Any]:
        """
        Give everything but the samples, ready for JSON.

        :return: names and values
        """
        numbers = {name: getattr(self, name) for name in MEASURES}
        strength = {name: None if np.isnan(x) else x for name, x in self.strength._asdict().items()}
        return {
            "env": self.env,
            "policy": self.policy,
            "gamma": self.gamma,
            "n_steps": self.n_steps,
            "n_episodes": self.n_episodes,
            **{name: {"value": float(x), "low": x.low, "high": x.high} for name, x in numbers.items()},
            "strength": {**strength, "why": self.strength.why},
            "weight_quantiles": self.weight_quantiles,
            "severity": self.severity,
            "verdict": self.verdict,
            "steps_to_tell": self.steps_to_tell,
            "advice": self.advice,
            "notes": self.notes,
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """
        Give the rows of the table.

        :return: measure, value and interval, as the table shows them
        """
        numbers = [(label, getattr(self, name), 1 if name == "gradient_angle" else 3) for name, label in MEASURES.items()]
        return [
            *((label, f"{x:.{d}f}", f"{x.low:.{d}f} to {x.high:.{d}f}") for label, x, d in numbers),
            ("strength that correction_strength='auto' would choose", f"{self.strength.k:.2f}", ""),
            ("weights: min · 5 % · median · 95 % · max", " · ".join(f"{w:.2f}" for w in self.weight_quantiles), ""),
        ]

    def heading(self) -> str:
        """
        Say what was diagnosed.

        :return: one line
        """
        return f"{self.env} · {self.policy} · gamma {self.gamma:g} · {self.n_steps} steps, {self.n_episodes} episodes"

    def conclusions(self) -> list[str]:
        """
        Say what follows from the measures, after the verdict.

        :return: sentences
        """
        return [
            self.advice,
            f"correction_strength='auto' would choose {self.strength}.",
            *(f"Note: {note}" for note in self.notes),
        ]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(label) for label, _, _ in rows)
        lines = [f"  {label:<{width}}  {value:>7}  {interval}".rstrip() for label, value, interval in rows]
        return "\n".join([self.heading(), "", *lines, "", f"Verdict: {self.verdict}", *self.conclusions()])

    def save(self, folder: str | Path, history: list[dict[str, float]] | None = None) -> Path:
        """
        Write report.json, the plots as PNG and one self-contained page, report.html. Needs matplotlib.

        :param folder: where to; made if need be
        :param history: what :class:`CorrectionDiagnosticsCallback` recorded along a training run
        :return: the page
        """
        from sb3_avgcorr.diagnostics.writing import write  # matplotlib is needed for nothing else

        return write(self, Path(folder), history or [])
