"""What a training run did, seen afterwards: a plot and a table beside the model, and one closing line."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from sb3_avgcorr.common.correction import effective_sample_size

COLUMNS = ("timesteps", "weight_min", "weight_max", "weight_std", "effective_sample_size", "strength")


class CorrectionRecord(BaseCallback):
    """Keeps what the correction's weights looked like in each rollout, and the return of each episode."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[float, ...]] = []
        self.episodes: list[tuple[int, float]] = []
        self._seen: np.ndarray | None = None

    def _on_step(self) -> bool:
        for info in self.locals.get("infos", ()):
            if "episode" in info:
                self.episodes.append((self.num_timesteps, float(info["episode"]["r"])))
        return True

    def _on_rollout_start(self) -> None:
        self.note()

    def _on_training_end(self) -> None:
        self.note()

    def note(self) -> None:
        """Note the weights of the last rollout, if they were not noted yet."""
        model = getattr(self, "model", None)  # none yet if the run failed before its first step
        weights: np.ndarray | None = getattr(model, "correction_weights", None)
        if weights is None or weights is self._seen:
            return
        self._seen = weights
        strength: float | None = getattr(model, "correction_strength_used", None)
        self.rows.append(
            (
                self.num_timesteps,
                float(weights.min()),
                float(weights.max()),
                float(weights.std()),
                effective_sample_size(weights),
                np.nan if strength is None else float(strength),
            )
        )


def write_report(record: CorrectionRecord, title: str, folder: Path) -> list[Path]:
    """
    Write what was recorded as a table, ``correction.csv``, and a plot, ``correction.png``.

    :param record: what was recorded
    :param title: title of the plot
    :param folder: where to write
    :return: the files written; without matplotlib the table alone
    """
    if not record.rows:
        return []
    table = folder / "correction.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows((int(row[0]), *(f"{value:.6g}" for value in row[1:])) for row in record.rows)

    try:
        # Not through pyplot, which would open windows and take part in whatever the user plots.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return [table]

    figure = Figure(figsize=(7, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(3, 1, sharex=True)
    figure.suptitle(title)
    steps, low, high, _, share, strength = np.array(record.rows).T
    if record.episodes:
        x, returns = np.array(record.episodes).T
        axes[0].plot(x, returns, ".", markersize=2, color="0.7", label="episode")
        window = min(50, len(returns))
        axes[0].plot(
            x[window - 1 :],
            np.convolve(returns, np.full(window, 1.0 / window), "valid"),
            color="C0",
            label=f"mean of {window}" if window > 1 else None,
        )
        axes[0].legend(loc="best")
    axes[0].set_ylabel("return")
    # An outline, because weights that are all the same have no area.
    axes[1].fill_between(steps, low, high, facecolor="#ff7f0e66", edgecolor="C1", linewidth=0.8, label="smallest to largest")
    axes[1].axhline(1.0, color="0.3", linewidth=0.8, linestyle="--", label="no correction")
    axes[1].set_ylabel("weight of a state")
    axes[1].set_ylim(bottom=0.0)
    axes[1].legend(loc="best")
    axes[2].plot(steps, share, color="C2", label="effective sample size")
    if np.isfinite(strength).any():
        axes[2].plot(steps, strength, color="C3", label="strength of the correction")
    axes[2].set_ylabel("share")
    axes[2].set_ylim(0.0, 1.05)
    axes[2].legend(loc="best")
    axes[2].set_xlabel("steps")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.margins(x=0.01)
    picture = folder / "correction.png"
    figure.savefig(picture, dpi=110)
    return [table, picture]


def closing_line(model: BaseAlgorithm, record: CorrectionRecord, model_path: str, interrupted: bool) -> str:
    """
    Say in one line what was learned and where it is.

    :param model: the trained model
    :param record: what was recorded
    :param model_path: where the model was saved
    :param interrupted: whether training was ended early
    :return: the line
    """
    returns = [float(episode["r"]) for episode in model.ep_info_buffer or ()]
    learned = (
        f"mean return {np.mean(returns):.1f} over the last {len(returns)} episodes" if returns else "no episode was finished"
    )
    parts = [f"{'Stopped early' if interrupted else 'Done'} after {model.num_timesteps} steps: {learned}"]
    if record.rows and getattr(model, "correction", None) is not None:
        _, low, high, _, share, strength = record.rows[-1]
        how_far = f" at strength {strength:.2f}" if np.isfinite(strength) else ""
        parts.append(f"the correction weighted states {low:.2f} to {high:.2f}{how_far} (effective sample size {share:.0%})")
    return f"{'; '.join(parts)}. Saved in {model_path}"
