"""The examples on the pages of the algorithms run as they stand, but for fewer steps."""

import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "algorithms").glob("*.md"))
EXAMPLES = [page for page in PAGES if "## Example" in page.read_text(encoding="utf-8")]


def test_every_algorithm_has_an_example() -> None:
    assert {page.stem for page in EXAMPLES} == {page.stem for page in PAGES} - {"index"}


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_the_example_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # models are saved where one stands
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    short, steps = re.subn(r"total_timesteps=[\d_]+", "total_timesteps=64", code)
    assert steps == 1
    names: dict[str, object] = {}
    exec(compile(short.replace("verbose=1", "n_steps=32"), str(page), "exec"), names)
    model = names["model"]
    assert model.num_timesteps >= 64  # type: ignore[attr-defined]
    if "weights" in names:
        assert (names["weights"] >= 0).all()  # type: ignore[operator]
