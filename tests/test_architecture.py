"""The rooms of the package: imports point downwards, and a line of code knows its room."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "sb3_avgcorr"
ALGORITHMS = ("ppo", "a2c", "bac", "trpo", "ppo_mask", "ppo_recurrent")
#: from top to bottom; what stands in one line is level
LAYERS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("paper",),
    ("studies",),
    ("reporting",),
    ("runs",),
    ("zoo",),
    ("__init__",),  # what a user imports: the algorithms and the diagnosis
    ("diagnostics",),
    ALGORITHMS,
    ("fast",),
    ("common",),
    ("envs", "tabular"),
    ("errors",),
)
HEIGHT = {room: -number for number, rooms in enumerate(LAYERS) for room in rooms}
#: the one way up: the mixin asks whether the engine can serve this model
WAY_UP = ("common/averaging.py", "fast")
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """The room that a file stands in: a folder of the package, or the file's own name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Rooms that a file imports from, anywhere in it, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            module = node.module or ""
            # from sb3_avgcorr import runs, as well as from sb3_avgcorr.runs import ...
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "sb3_avgcorr" else [module]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "sb3_avgcorr":
                room = rest.partition(".")[0]
                yield node.lineno, room if room in HEIGHT else "__init__"


def test_every_file_has_a_room() -> None:
    assert {room_of(path) for path in FILES} <= HEIGHT.keys()
    assert {"runs", "reporting", "paper", "studies", "cli", "zoo", "common", "fast"} <= {room_of(path) for path in FILES}


@pytest.mark.parametrize("room", HEIGHT)
def test_imports_point_downwards(room: str) -> None:
    wrong = []
    for path in FILES:
        own = room_of(path)
        if own != room:
            continue
        for line, other in imported(path):
            name = path.relative_to(PACKAGE).as_posix()
            level = own in ALGORITHMS or other in ALGORITHMS  # an algorithm knows no other
            up = HEIGHT[other] > HEIGHT[own] or (level and own != other and HEIGHT[other] == HEIGHT[own])
            if up and (name, other) != WAY_UP:
                wrong.append(f"{name}:{line} imports {other}")
    assert not wrong, "\n".join(wrong)


def test_the_way_up_is_one_function() -> None:
    """The engine is asked for by name, once."""
    path = PACKAGE / WAY_UP[0]
    assert len([line for line, room in imported(path) if room == WAY_UP[1]]) <= 1


def calls(path: Path) -> set[str]:
    """Names of the plain functions that a file calls."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def test_nothing_prints_in_runs() -> None:
    printing = [path.name for path in FILES if room_of(path) == "runs" and "print" in calls(path)]
    assert printing == []


def test_nothing_trains_in_reporting() -> None:
    training = [path.name for path in FILES if room_of(path) == "reporting" and {"run_jobs", "run_job", "train"} & calls(path)]
    assert training == []
