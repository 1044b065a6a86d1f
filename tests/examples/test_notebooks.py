"""The notebooks run at small sizes, are committed with their outputs, and say nothing of the machine that made them."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_both_are_there() -> None:
    assert NAMES == ["does_my_task_need_it", "quick_start"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_it_is_committed_with_its_outputs(path: Path) -> None:
    cells = code_cells(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_it_names_no_path_of_a_machine(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    texts = [cell.source for cell in cells]
    texts += [output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs]
    assert not [text for text in texts if re.search(r"(?<![\w.])/(home|root|tmp|work|usr|Users)/", text)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_STEPS", "1000")
    notebook = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    # an error in a cell is raised here
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(output.get("text", "") for cell in code_cells(notebook) for output in cell.outputs)
    if path.stem == "quick_start":
        assert "same correction: True" in said
        assert "same actions from SB3's PPO: True" in said
        assert (tmp_path / "dot_reacher.zip").exists()
    else:
        assert "Verdict: " in said
        assert "averaging_ppo against ppo" in said
        assert (tmp_path / "kiln-compare" / "report.html").exists()
