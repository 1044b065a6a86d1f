"""What a run says of itself afterwards."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.common.correction import effective_sample_size
from sb3_avgcorr.zoo.summary import CorrectionRecord, closing_line, write_report


@pytest.fixture(scope="module")
def run() -> tuple[AveragingPPO, CorrectionRecord]:
    """A short run that was recorded."""
    record = CorrectionRecord()
    model = AveragingPPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=1, correction_strength=0.5, seed=0)
    return model.learn(192, callback=record), record


def test_the_table_holds_the_weights_and_the_strength(run: tuple[AveragingPPO, CorrectionRecord], tmp_path: Path):
    model, record = run
    table, picture = write_report(record, "title", tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["timesteps"]) for row in rows] == [64, 128, 192]
    weights = model.correction_weights
    assert float(rows[-1]["weight_min"]) == pytest.approx(weights.min(), rel=1e-4)
    assert float(rows[-1]["weight_max"]) == pytest.approx(weights.max(), rel=1e-4)
    assert float(rows[-1]["effective_sample_size"]) == pytest.approx(effective_sample_size(weights), rel=1e-4)
    assert {float(row["strength"]) for row in rows} == {0.5}


def test_the_closing_line(run: tuple[AveragingPPO, CorrectionRecord]):
    model, record = run
    line = closing_line(model, record, "somewhere.zip", interrupted=False)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    assert line.startswith(f"Done after 192 steps: mean return {np.mean(returns):.1f} over the last {len(returns)} episodes; ")
    assert "at strength 0.50 (effective sample size " in line
    assert line.endswith("Saved in somewhere.zip")
    assert closing_line(model, record, "somewhere.zip", interrupted=True).startswith("Stopped early after 192 steps")


def test_without_matplotlib_there_is_the_table(
    run: tuple[AveragingPPO, CorrectionRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert write_report(run[1], "title", tmp_path) == [tmp_path / "correction.csv"]
    assert [path.name for path in tmp_path.iterdir()] == ["correction.csv"]


def test_an_uncorrected_run_has_nothing_to_report(tmp_path: Path):
    assert write_report(CorrectionRecord(), "title", tmp_path) == []
    assert list(tmp_path.iterdir()) == []
