"""What a diagnosis found, in words, as a table and as a page."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sb3_avgcorr.diagnostics.estimates import Estimate
from sb3_avgcorr.diagnostics.gradient import GradientComparison
from sb3_avgcorr.reporting import page

#: degrees from which a change of the gradient is called moderate and large
MODERATE_ANGLE, LARGE_ANGLE = 10.0, 30.0
#: where the gradient itself is lost in noise: total variation from which the mismatch of the states is called so
MODERATE_VARIATION, LARGE_VARIATION = 0.05, 0.2

Severity = Literal["negligible", "moderate", "large"]
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

    @property
    def severity(self) -> Severity:
        """The verdict in one word."""
        return self._judge()[0]

    @property
    def verdict(self) -> str:
        """The verdict in one sentence, which begins with ``negligible``, ``moderate`` or ``large``."""
        severity, why = self._judge()
        return f"{severity}: {why}."

    def _judge(self) -> tuple[Severity, str]:
        angle, variation, gradient = self.gradient_angle, self.total_variation, self.gradient
        if self.gamma == 1.0:
            return "negligible", "without discounting (gamma=1) there is no mismatch"
        if self.effective_sample_size == 1.0:
            return "negligible", (
                "the states do not tell early steps from late ones beyond chance, and the correction weighs all alike "
                f"(total variation {variation:.3f}, at most {variation.high:.3f})"
            )
        if gradient.corrected_seen and not gradient.uncorrected_seen:
            return "large", (
                "the corrected gradient stands out of the noise; the uncorrected one, where states cancel each other, does not"
            )
        if not gradient.corrected_seen:
            severity = _grade(variation, MODERATE_VARIATION, LARGE_VARIATION)
            return severity, (
                f"both gradients are lost in noise, so judged by the states alone: total variation {variation:.2f} "
                f"({variation.low:.2f} to {variation.high:.2f}; thresholds {MODERATE_VARIATION} and {LARGE_VARIATION})"
            )
        return _grade(angle, MODERATE_ANGLE, LARGE_ANGLE), (
            f"the correction turns the gradient by {angle:.0f}° ({angle.low:.0f}° to {angle.high:.0f}°; thresholds "
            f"{MODERATE_ANGLE:.0f}° and {LARGE_ANGLE:.0f}°)"
        )

    @property
    def advice(self) -> str:
        """What to try."""
        if self.severity == "negligible":
            return "Nothing to gain from a correction here; it costs nothing but time."
        against = f"Compare under equal settings on {self.env}: AveragingPPO with correction='averaging', 'power' and None."
        if self.explained_variance < 0.1:
            against += (
                " The state explains little of γ^t; if your critic can be given the time or other information that the actor "
                "lacks, the averaging correction sees more."
            )
        return against + " The corrected gradient climbs the discounted return: check that this is the one you want."

    def as_dict(self) -> dict[str, Any]:
        """
        :return: everything but the samples, ready for JSON
        """
        numbers = {name: getattr(self, name) for name in MEASURES}
        return {
            "env": self.env,
            "policy": self.policy,
            "gamma": self.gamma,
            "n_steps": self.n_steps,
            "n_episodes": self.n_episodes,
            **{name: {"value": float(x), "low": x.low, "high": x.high} for name, x in numbers.items()},
            "weight_quantiles": self.weight_quantiles,
            "severity": self.severity,
            "verdict": self.verdict,
            "advice": self.advice,
            "notes": self.notes,
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """
        :return: measure, value and interval, as the table shows them
        """
        numbers = [(label, getattr(self, name), 1 if name == "gradient_angle" else 3) for name, label in MEASURES.items()]
        return [(label, f"{x:.{d}f}", f"{x.low:.{d}f} to {x.high:.{d}f}") for label, x, d in numbers]

    def heading(self) -> str:
        """
        :return: what was diagnosed
        """
        return f"{self.env} · {self.policy} · gamma {self.gamma:g} · {self.n_steps} steps, {self.n_episodes} episodes"

    def spread(self) -> str:
        """
        :return: how far the weights spread
        """
        low, five, median, ninety_five, high = self.weight_quantiles
        return f"{low:.2f} · {five:.2f} · {median:.2f} · {ninety_five:.2f} · {high:.2f}"

    def __str__(self) -> str:
        rows = [*self.rows(), ("weights: min · 5 % · median · 95 % · max", self.spread(), "")]
        width = max(len(label) for label, _, _ in rows)
        lines = [f"  {label:<{width}}  {value:>7}  {interval}".rstrip() for label, value, interval in rows]
        notes = [f"Note: {note}" for note in self.notes]
        return "\n".join([self.heading(), "", *lines, "", f"Verdict: {self.verdict}", self.advice, *notes])

    def save(self, folder: str | Path, history: list[dict[str, float]] | None = None) -> Path:
        """
        Write report.json, the plots as PNG and one self-contained page, report.html. Needs matplotlib.

        :param folder: where to; made if need be
        :param history: what :class:`CorrectionDiagnosticsCallback` recorded along a training run
        :return: the page
        """
        from sb3_avgcorr.diagnostics.plots import plot_history, plot_states, plot_steps

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(json.dumps({**self.as_dict(), "history": history or []}, indent=1) + "\n")
        figures = {"steps.png": "Weight against the step of the episode", "states.png": "Weight over the states"}
        plot_steps(self, folder / "steps.png")
        plot_states(self, folder / "states.png")
        if history:
            figures["training.png"] = "Along training"
            plot_history(history, folder / "training.png")
        path = folder / "report.html"
        path.write_text(self._page({title: (folder / name).read_bytes() for name, title in figures.items()}))
        return path

    def _page(self, figures: dict[str, bytes]) -> str:
        rows = [*self.rows(), ("weights: min · 5 % · median · 95 % · max", self.spread(), "")]
        body = [
            page.text(f"Discount-factor mismatch: {self.env}", "h1"),
            page.text(self.heading()),
            page.text(self.verdict, css=f"verdict {self.severity}"),
            page.text(self.advice),
            *(page.text(note, css="note") for note in self.notes),
            page.table(("measure", "value", "95 % interval"), rows),
            *(page.figure(title, png) for title, png in figures.items()),
        ]
        return page.page(f"{self.env}: discount mismatch", body)


def _grade(value: float, moderate: float, large: float) -> Severity:
    return "large" if value >= large else "moderate" if value >= moderate else "negligible"
