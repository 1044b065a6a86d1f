"""
Run the tests of Stable-Baselines3 and sb3-contrib with our classes in place of theirs.

    python tests/packaging/run_sb3_tests.py [PACKAGE or FILE ...] [-- PYTEST OPTIONS]

The source distributions of the installed releases hold the tests. They are fetched, and behind each import of a class that
we have corrected a line is written that puts ours under its name. Tests of algorithms that are not ours are left out.
"""

import ast
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

OURS = {
    "PPO": "AveragingPPO",
    "A2C": "AveragingA2C",
    "TRPO": "AveragingTRPO",
    "MaskablePPO": "AveragingMaskablePPO",
    "RecurrentPPO": "AveragingRecurrentPPO",
}
FILES: dict[str, tuple[str, ...]] = {
    "stable-baselines3": (
        "test_callbacks",
        "test_cnn",
        "test_custom_policy",
        "test_deterministic",
        "test_dict_env",
        "test_gae",
        "test_logger",
        "test_predict",
        "test_run",
        "test_save_load",
        "test_sde",
        "test_spaces",
        "test_tensorboard",
        "test_train_eval_mode",
    ),
    "sb3-contrib": (
        "test_cnn",
        "test_deterministic",
        "test_dict_env",
        "test_identity",
        "test_invalid_actions",
        "test_lstm",
        "test_run",
        "test_save_load",
        "test_train_eval_mode",
        "test_utils",
    ),
}
# pytest's -k knows no case, so that "ARS" alone would leave out whatever is parsed
NOT_OURS = ("[ARS", "CrossQ", "DDPG", "DQN", "HerReplay", "SAC", "TD3", "TQC")
LEFT_OUT = (
    # These assert a class's name: in a warning, and in the folder of TensorBoard's files.
    "tests/test_run.py::test_ppo_warnings",
    "tests/test_tensorboard.py::test_tensorboard[a2c]",
    "tests/test_tensorboard.py::test_tensorboard[ppo]",
    # TD3's alone, though its name does not say so: a model of 2 GB.
    "tests/test_save_load.py::test_save_load_large_model",
)


def with_our_classes(source: str) -> str:
    """
    Put our classes under the names of those they correct.

    :param source: a test file
    :return: the file with a line more behind each import of such a class
    """
    lines = source.splitlines()
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    for node in sorted(imports, key=lambda node: node.lineno, reverse=True):
        if (node.module or "").split(".")[0] in ("stable_baselines3", "sb3_contrib"):
            pairs = [f"{OURS[name.name]} as {name.asname or name.name}" for name in node.names if name.name in OURS]
            if pairs:
                lines.insert(
                    node.end_lineno or node.lineno, " " * node.col_offset + f"from sb3_avgcorr import {', '.join(pairs)}"
                )
    return "\n".join(lines) + "\n"


def fetch(package: str, folder: Path) -> Path:
    """
    Get the tests of the installed release.

    :param package: name of the package
    :param folder: where to put them
    :return: folder that holds tests/ and nothing else, so that the installed package is imported
    """
    requirement = f"{package}=={version(package)}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(folder)]
    subprocess.run([*command, requirement], check=True)
    (archive,) = folder.glob(f"{package.replace('-', '_')}-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    home = folder / package
    home.mkdir()
    return (folder / archive.name.removesuffix(".tar.gz") / "tests").rename(home / "tests")


def main(arguments: Sequence[str]) -> int:
    """
    Fetch, replace, run.

    :param arguments: names of packages or test files, all if there are none; behind ``--`` options of pytest
    :return: exit code
    """
    split = arguments.index("--") if "--" in arguments else len(arguments)
    only, options = set(arguments[:split]), arguments[split + 1 :]
    failed = []
    with tempfile.TemporaryDirectory(prefix="sb3-tests-") as temporary:
        for package, names in FILES.items():
            tests = fetch(package, Path(temporary))
            chosen = [name for name in names if not only or only & {name, package}]
            for name in chosen:
                path = tests / f"{name}.py"
                path.write_text(with_our_classes(path.read_text(encoding="utf-8")), encoding="utf-8")
            if not chosen:
                continue
            print(f"{package} {version(package)}: {', '.join(chosen)}", flush=True)
            leave_out = " and ".join(f"not {name}" for name in NOT_OURS)
            command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-k", leave_out]
            command += ["-n", "auto", "--dist", "worksteal", *(f"--deselect={name}" for name in LEFT_OUT), *options]
            command += [f"tests/{name}.py" for name in chosen]
            one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, cwd=tests.parent, env=one_thread, check=False)
            if done.returncode:
                failed.append(package)
    print(f"Failed: {', '.join(failed)}" if failed else "The tests of both pass with our classes.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
