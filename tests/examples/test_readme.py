"""The README's example runs as it stands, but for fewer steps, and its links lead somewhere."""

import re
from pathlib import Path

import numpy as np
import pytest

import sb3_avgcorr

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    short = (
        code.replace("50_000", "64").replace("progress_bar=True", "").replace('"CartPole-v1")', '"CartPole-v1", n_steps=64)')
    )
    *before, last = short.strip().splitlines()
    names: dict[str, object] = {}
    exec("\n".join(before), names)
    assert names["model"].num_timesteps == 64  # type: ignore[attr-defined]
    weights = eval(last, names)
    assert weights.shape == (1,)
    assert np.isfinite(weights).all()


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)\s#]+)", README))))
def test_links(link: str) -> None:
    assert link.startswith("https://") or (ROOT / link).exists()


def test_every_algorithm_is_in_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    algorithms = [name for name in sb3_avgcorr.__all__ if name.startswith("Averaging") or name == "BAC"]
    assert len(algorithms) >= 8
    assert [name for name in algorithms if f"`{name}`" not in changelog] == []


def test_the_version_is_the_same_everywhere() -> None:
    version = sb3_avgcorr.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    (date,) = re.findall(r"^date-released: (\S+)$", citation, flags=re.MULTILINE)
    assert f"version: {version}\n" in citation
    assert f"## {version} ({date})\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
