"""
Use the wheel with the oldest SB3, sb3-contrib, rl_zoo3 and Gymnasium that it admits.

    python tests/packaging/check_oldest.py dist/sb3_avgcorr-0.1.0-py3-none-any.whl

The lower bounds are read from the wheel. Everything else is as in constraints.txt.
"""

import re
import shutil
import sys
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

from check_wheel import TINY_COMPARE, TINY_TRAIN
from fresh import CONSTRAINTS, REPOSITORY, Check, Fresh, snippet, train_save_load
from packaging.requirements import Requirement

OLD = ("stable-baselines3", "sb3-contrib", "rl-zoo3", "gymnasium")
CLASSES = (
    "AveragingPPO",
    "AveragingA2C",
    "BAC",
    "AveragingBAC",
    "AveragingTRPO",
    "AveragingMaskablePPO",
    "AveragingRecurrentPPO",
)


def normalised(name: str) -> str:
    """The name of a package as the registry compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lower_bounds(wheel: Path, *extras: str) -> dict[str, str]:
    """
    Read the lower bounds.

    :param wheel: the wheel
    :param extras: extras that are installed
    :return: package -> oldest release that the wheel admits; where several bounds are given, the last one's
    """
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(file.read(name).decode())
    bounds: dict[str, str] = {}
    for extra in ("", *extras):
        for line in metadata.get_all("Requires-Dist", []):
            requirement = Requirement(line)
            asked = requirement.marker is None if not extra else f'extra == "{extra}"' in str(requirement.marker)
            lowest = [spec.version for spec in requirement.specifier if spec.operator == ">="]
            if asked and lowest and normalised(requirement.name) in OLD:
                bounds[normalised(requirement.name)] = lowest[0]
    return bounds


def constraints(folder: Path, bounds: dict[str, str]) -> Path:
    """
    Write the constraints.

    :param folder: where to
    :param bounds: package -> release
    :return: the file
    """
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if normalised(re.split("[=<>#]", line)[0].strip()) not in OLD]
    path = folder / "oldest.txt"
    path.write_text("\n".join([*kept, *(f"{name}=={version}" for name, version in bounds.items())]), encoding="utf-8")
    return path


def main(wheel: str) -> int:
    """
    Run the checks, first of the algorithms alone, then of the command line, which needs a newer Gymnasium.

    :param wheel: the wheel
    :return: exit code
    """
    path = Path(wheel).resolve()
    exactness = Check(
        "SB3's results to the bit", ("-m", "pytest", "-q", str(REPOSITORY / "tests" / "algorithms" / "test_exactness.py"))
    )
    stages = {
        ("contrib",): [train_save_load(*CLASSES), exactness],
        ("contrib", "zoo", "experiments"): [
            train_save_load(*CLASSES),
            Check("train", ("sb3-avgcorr", "train", *TINY_TRAIN)),
            Check("enjoy", ("sb3-avgcorr", "enjoy", "--env", "CartPole-v1", "-n", "200", "--no-render")),
            Check("compare", ("sb3-avgcorr", *TINY_COMPARE, "--out", "compared")),
        ],
    }
    folder = Path(tempfile.mkdtemp(prefix="sb3-avgcorr-oldest-"))
    try:
        fresh = Fresh(folder / "venv")
        fresh.install("torch", "pytest", "packaging")
        for extras, checks in stages.items():
            bounds = lower_bounds(path, *extras)
            print(f"[{extras[-1]}] with {', '.join(f'{name} {version}' for name, version in bounds.items())}", flush=True)
            fresh.install(f"{path}[{extras[-1]}]", constraints=constraints(folder, bounds))
            told = "\n".join(f"assert Version(version('{name}')) == Version('{number}')" for name, number in bounds.items())
            code = "from importlib.metadata import version\nfrom packaging.version import Version\n" + told
            for check in (snippet("these releases are installed", code), *checks):
                fresh.run(check)
        print(f"{len(fresh.failed)} failed: {'; '.join(fresh.failed)}" if fresh.failed else "Every check passed.")
        return 1 if fresh.failed else 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
