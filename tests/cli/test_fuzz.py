"""Any arguments whatever: no traceback, no success without something to show for it."""

import inspect
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zoo_fixtures import same_algorithms_and_plots_afterwards  # noqa: F401

from sb3_avgcorr import AveragingPPO
from sb3_avgcorr.cli import main as cli

#: values that somebody may write: numbers at the edges, words, code, paths
NUMBERS = ["0", "-1", "1", "2", "3.5", "-0.0", "1e400", "float('nan')", "99999999999999999999"]
CODE = ["None", "True", "'text'", "[]", "{}", "()", "dict(a=1)", "1/0", "lambda x: x", "'lin_1'"]
TEXT = ["", "-", "--", "é\x00", "ppo", "CartPole-v1", "nothere.zip", "folder", "file.zip", "file.yml"]
word = st.sampled_from([*NUMBERS, *CODE, *TEXT]) | st.text(max_size=6)
#: hyperparameters, but for those of which a wild value makes a long run of a short one
NAMES = [*inspect.signature(AveragingPPO).parameters, "normalize", "env_wrapper", "callback", "frame_stack", "nonsense"]
NAMES = [name for name in NAMES if "epochs" not in name and name not in ("n_steps", "stats_window_size")]
value = st.sampled_from(NUMBERS) | st.floats().map(repr) | st.sampled_from(CODE)
pair = st.tuples(st.sampled_from(NAMES), value).map(":".join) | word

#: options that take a value, by command; none of which makes a run longer
OPTIONS = {
    "train": """--algo --env -conf -i --device --seed --vec-env --trial-id --storage --study-name --eval-freq --eval-episodes
        --n-eval-envs --num-threads --log-interval --save-freq -tb -f -n""",
    "enjoy": "--algo --env -f --exp-id --n-envs --seed --device --load-checkpoint --reward-log -n",
    "record-video": "--algo --env -f --exp-id --seed --load-checkpoint -n --n-envs",
    "push-to-hub": "--algo --env -f --exp-id --seed --load-checkpoint -n -orga -name",
    "plot-train": "-a -e -f --fontsize -max -x -y -w --save",
    "all-plots": "-a -e -f -l -k -max -min -o --save",
    "plot-from-file": "-i -skip --keep-envs --format -loc --save",
}
#: what comes last, so that a run that gets through is over at once and stays within its folder
ENDING = {
    "train": ["-n", "32", "--eval-freq", "-1", "--verbose", "0", "--vec-env", "dummy", "-f", "logs", "-params", "n_steps:16"],
    "enjoy": ["-n", "5", "--no-render", "--n-envs", "1"],
}


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder with things of the wrong kind in it."""
    before, folder = Path.cwd(), Path(tempfile.mkdtemp())
    (folder / "folder").mkdir()
    (folder / "file.zip").write_bytes(b"PK\x03\x04 no archive")
    (folder / "file.yml").write_text("CartPole-v1: {policy: MlpPolicy, n_timesteps: 32, n_steps: [1]}")
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


def check(command: str, arguments: list[str], ending: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command; an exception that comes out of it is the traceback that a user would see."""
    with workplace() as folder:
        try:
            code: object = cli.main([command, *arguments, *ending])
        except SystemExit as leaving:  # argparse, which has shown the usage
            code = leaving.code
        output, error = capsys.readouterr()
        assert "Traceback" not in error
        if code == 0:
            made = [path for path in folder.rglob("*.zip") if path.parent.name.endswith("_1")]
            assert made or "usage" in output, (arguments, output)
        else:
            assert code in (1, 2)
            assert error.strip(), arguments


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A command with options of its own and values of any kind."""
    command = draw(st.sampled_from(list(OPTIONS)))
    options = draw(st.lists(st.tuples(st.sampled_from(OPTIONS[command].split()), word), max_size=3))
    return command, [argument for both in options for argument in both] + draw(st.lists(word, max_size=1))


FUZZ = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=40, **FUZZ)
@given(line=command_lines())
def test_any_options(line: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]):
    command, arguments = line
    check(command, arguments, ENDING.get(command, []), capsys)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=25, **FUZZ)
@given(pairs=st.lists(pair, min_size=1, max_size=2))
def test_any_hyperparameters(pairs: list[str], capsys: pytest.CaptureFixture[str]):
    check("train", ["--seed", "1"], [*ENDING["train"], *pairs], capsys)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=1500, **FUZZ)
@given(line=command_lines())
def test_any_options_at_length(line: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]):
    command, arguments = line
    check(command, arguments, ENDING.get(command, []), capsys)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=500, **FUZZ)
@given(pairs=st.lists(pair, min_size=1, max_size=3))
def test_any_hyperparameters_at_length(pairs: list[str], capsys: pytest.CaptureFixture[str]):
    check("train", ["--seed", "1"], [*ENDING["train"], *pairs], capsys)
