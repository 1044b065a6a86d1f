"""``sb3-avgcorr compare``, end to end."""

import html
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sb3_avgcorr.cli.compare import main
from sb3_avgcorr.cli.main import main as command_line
from sb3_avgcorr.errors import UserError
from sb3_avgcorr.reporting import page
from sb3_avgcorr.reporting.comparison import analyse, write
from sb3_avgcorr.runs.jobs import Job
from sb3_avgcorr.runs.results import Episodes, Result
from sb3_avgcorr.runs.settings import variant
from sb3_avgcorr.runs.training import CHECKPOINT_SECONDS
from sb3_avgcorr.studies.compare import compare, plan

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)

#: two seeds of three variants, quick to train
SMALL = ["--env", "CartPole-v1", "--seeds", "2", "-n", "1024", "--jobs", "2", "-params", "n_epochs:1", "correction_epochs:1"]
TABLES = ("curves.csv", "summary.csv")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small comparison, made without a disturbance."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert main([*SMALL, "--out", str(out)]) == 0
    return out


def test_files(undisturbed: Path) -> None:
    names = {path.name for path in undisturbed.iterdir()}
    tables = {"curves.csv", "curves.parquet", "summary.csv", "summary.parquet"}
    assert names == {*tables, "return.png", "discounted.png", "summary.png", "report.html", "runs"}
    for name in ("curves", "summary"):
        frame = pd.read_csv(undisturbed / f"{name}.csv")
        pd.testing.assert_frame_equal(frame, pd.read_parquet(undisturbed / f"{name}.parquet"), check_dtype=False)
    curves = pd.read_csv(undisturbed / "curves.csv")
    assert set(curves["variant"]) == {"ppo", "power_ppo", "averaging_ppo"}
    assert set(curves["seed"]) == {0, 1}
    assert curves["step"].max() == 1024
    assert curves.notna().all(axis=None)
    # CartPole: rewards of 1, so that the discounted return is smaller
    assert (curves["discounted"] < curves["return"]).all()
    summary = pd.read_csv(undisturbed / "summary.csv")
    assert len(summary) == 2 * 2 * 3
    # the table's figures are those of the curves
    row = summary.query("kind == 'return' and measure == 'area' and variant == 'power_ppo'").iloc[0]
    own = curves[curves["variant"] == "power_ppo"]
    assert row["mean"] == pytest.approx(own["return"].mean())
    difference = row["mean"] - curves[curves["variant"] == "ppo"]["return"].mean()
    assert row["difference"] == pytest.approx(difference)


def test_stdout(undisturbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--out", str(undisturbed)]) == 0  # finished runs: at once
    said = capsys.readouterr().out
    assert "Settings: equal" in said
    assert "2 seeds, 1024 steps." in said
    assert re.search(
        r"averaging_ppo against ppo: undiscounted return: [a-z ]+ at the end, [a-z ]+ over training; discounted", said
    )
    assert "Discounted with γ = 0.98." in said
    assert str(undisturbed / "report.html") in said


def wait_and_kill(arguments: Sequence[str], out: Path, patience: float, after: int) -> None:
    """Start the real command, and kill it a while after it has written that many checkpoints or results."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sb3_avgcorr", "compare", *arguments, "--out", str(out)],
        env={**os.environ, CHECKPOINT_SECONDS: "0", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 240
        while time.monotonic() < end and process.poll() is None:
            if len([*out.glob("runs/*/checkpoint.bin"), *out.glob("runs/*/result.json")]) >= after:
                break
            time.sleep(0.01)
        time.sleep(patience)
        assert process.poll() is None, "it was over before it was killed"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def same_tables(a: Path, b: Path) -> None:
    for name in TABLES:
        assert (a / name).read_bytes() == (b / name).read_bytes()
    for path in a.glob("runs/*/result.json"):
        assert path.read_bytes() == (b / path.relative_to(a)).read_bytes()


def test_killed_and_given_again(undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        wait_and_kill(SMALL, tmp_path, 0.0, 1)
        time.sleep(0.5)  # the processes of the runs die after the command
        if [*tmp_path.glob("runs/*/checkpoint.bin")]:
            break
        shutil.rmtree(tmp_path)  # where the machine is busy a run may be over before the kill: another try
    assert not (tmp_path / "curves.csv").exists()
    monkeypatch.setenv(CHECKPOINT_SECONDS, "0")
    assert main([*SMALL, "--out", str(tmp_path)]) == 0
    same_tables(undisturbed, tmp_path)
    assert any("Going on from step" in log.read_text() for log in tmp_path.glob("runs/*/log.txt"))


@pytest.mark.slow
def test_killed_at_random_moments(undisturbed: Path, tmp_path: Path) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    rng = random.Random(seed)
    for after in (1, 2, 4):
        wait_and_kill(SMALL, tmp_path, rng.uniform(0.0, 1.0), after)
    code = subprocess.run(
        [sys.executable, "-m", "sb3_avgcorr", "compare", *SMALL, "--out", str(tmp_path)], capture_output=True, timeout=300
    ).returncode
    assert code == 0
    same_tables(undisturbed, tmp_path)


@pytest.mark.slow
def test_ray_gives_the_same_tables(undisturbed: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    assert main([*SMALL, "--out", str(tmp_path), "--ray"]) == 0
    same_tables(undisturbed, tmp_path)


def members(group: int) -> list[str]:
    """Processes of a group that live, by their command."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        state, _, its_group = rest.split()[:3]
        if int(its_group) == group and state != "Z":
            found.append(name)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_ctrl_c(tmp_path: Path) -> None:
    """It ends at once, says how to go on, and leaves no process behind."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sb3_avgcorr", "compare", *SMALL, "-n", "500000", "--out", str(tmp_path)],
        env={**os.environ, CHECKPOINT_SECONDS: "0", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal's group of processes
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests that run in the background ignore it
    )
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end and not list(tmp_path.glob("runs/*/checkpoint.bin")):
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "The same command goes on from here" in said
    assert "Traceback" not in said
    end = time.monotonic() + 20  # Python's own helpers follow
    while (left := members(process.pid)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left


# Settings


def test_equal_settings_differ_in_the_correction_only() -> None:
    assert variant("averaging_ppo", "CartPole-v1") == ("averaging_ppo", {})
    assert variant("ppo", "CartPole-v1") == ("averaging_ppo", {"correction": None})
    # γ^t is applied in full, whatever the averaging correction's strength
    assert variant("power_ppo", "CartPole-v1") == ("averaging_ppo", {"correction": "power", "correction_strength": 1.0})
    assert variant("bac", "CartPole-v1", paper=True) == ("averaging_bac", {"correction": None})
    assert variant("a2c", "CartPole-v1", hyperparams={"gamma": 0.5}) == ("averaging_a2c", {"gamma": 0.5, "correction": None})
    assert variant("ppo_lstm", "CartPole-v1") == ("averaging_ppo_lstm", {"correction": None})
    assert variant("sac", "Pendulum-v1", "own") == ("sac", {})
    with pytest.raises(UserError, match="'sac' has no averaging correction"):
        variant("sac", "Pendulum-v1")


def test_equal_settings_of_the_paper_train_the_critic_as_long() -> None:
    """There the passes of the correction train the critic, which would be untrained without them."""
    algo, options = variant("ppo", "MountainCarContinuous-v0", paper=True)
    assert algo == "averaging_ppo"
    assert options == {"correction": None, "critic_epochs": 80, "critic_learning_rate": 0.0044}
    assert variant("averaging_ppo", "MountainCarContinuous-v0", paper=True) == ("averaging_ppo", {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "CartPol-v1"], "did you mean 'CartPole-v1'"),
        (["--env", "CartPole-v1", "--algos", "ppo", "averaging_pop"], "did you mean 'averaging_ppo'"),
        (["--env", "CartPole-v1", "--algos", "pppo", "--settings", "own"], "did you mean 'ppo'"),
        (["--env", "CartPole-v1", "--algos", "ppo", "ppo"], "twice"),
        (["--env", "CartPole-v1", "--seeds", "0"], "--seeds is 0"),
        (["--env", "CartPole-v1", "--jobs", "0"], "--jobs is 0"),
        (["--env", "CartPole-v1", "--algos", "averaging_a2c", "--paper"], "paper has no settings"),
        (["--env", "CartPole-v1", "-params", "gama:0.9"], "did you mean 'gamma'"),
        (["--env", "CartPole-v1", "-params", "gamma"], "'gamma' (-params) must be key:value"),
        (["--env", "CartPole-v1", "-params", "policy:MlpPolicy"], "text in quotes"),
        (["--env", "CartPole-v1", "--env-kwargs", "a:b"], "'a:b' (--env-kwargs) must be key:value"),
        (["--env", ":CartPole-v1"], "The package ''"),
        (["--env", "CartPole-v1", "--algos", "ppo", "averaging_a2c"], "several families (a2c, ppo)"),
    ],
)
def test_mistakes_are_told_before_anything_is_made(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert command_line(["compare", *arguments, "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_steps_are_those_of_the_file() -> None:
    jobs = plan("CartPole-v1", seeds=2)
    assert {job.steps for group in jobs.values() for job in group} == {100_000}
    assert [job.label for group in jobs.values() for job in group] == ["ppo"] * 2 + ["power_ppo"] * 2 + ["averaging_ppo"] * 2
    assert [job.seed for job in jobs["ppo"]] == [0, 1]


# Analysis


def result(seed: int, level: float, gamma: float = 0.9, n: int = 40) -> Result:
    steps = np.arange(1, n + 1) * 25
    returns = level + np.random.default_rng(seed).normal(size=n)
    episodes = Episodes(steps, returns, 0.5 * returns, np.full(n, 25))
    none = Episodes(steps[:0], returns[:0], returns[:0], steps[:0])
    return Result(Job("ppo", "CartPole-v1", seed, 1000), gamma, episodes, none, {}, "")


def test_verdicts_by_the_interval_of_the_difference() -> None:
    levels = {"base": 10.0, "good": 15.0, "bad": 5.0, "same": 10.0}
    results = {name: [result(10 * i + s, level) for s in range(6)] for i, (name, level) in enumerate(levels.items())}
    comparison = analyse(results, 1000)
    assert comparison.verdicts["good"].count("better") == 4
    assert comparison.verdicts["bad"].count("worse") == 4
    assert comparison.verdicts["same"].count("cannot tell") == 4
    row = comparison.summary.query("kind == 'discounted' and measure == 'final' and variant == 'good'").iloc[0]
    assert row["difference"] == pytest.approx(2.5, abs=0.5)
    assert not any("too narrow" in note for note in comparison.notes)
    few = analyse({name: own[:2] for name, own in results.items()}, 1000)
    assert any("With 2 run(s)" in note for note in few.notes)


def test_discounted_returns_of_different_gammas_are_not_compared() -> None:
    comparison = analyse({"a": [result(0, 1.0), result(1, 1.0)], "b": [result(2, 9.0, 0.5), result(3, 9.0, 0.5)]}, 1000)
    assert "; discounted return: not comparable at the end, not" in comparison.verdicts["b"]
    assert any("own γ (a 0.9, b 0.5)" in note for note in comparison.notes)
    assert comparison.verdicts["b"].count("better") == 2


def test_failed_runs_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    light = {"n_epochs": 1, "correction_epochs": 1}
    fine = [Job("averaging_ppo", "CartPole-v1", seed, 256, "fine", hyperparams=light) for seed in (0, 1)]
    wrong = [Job("averaging_ppo", "CartPole-v1", 0, 256, "wrong", hyperparams={"gamma": 1.5})]
    # an episode takes 20 steps
    endless = [Job("averaging_ppo", "avgcorr/TwoState-v0", 0, 256, "long", hyperparams={**light, "n_envs": 16, "n_steps": 16})]
    comparison = compare({"fine": fine, "wrong": wrong, "long": endless}, tmp_path, title="<t>", progress=False)
    assert set(comparison.failed) == {wrong[0], endless[0]}
    assert "no episode ended within 256 steps" in comparison.failed[endless[0]]
    assert set(comparison.summary["variant"]) == {"fine"}
    assert any("wrong is missing" in note for note in comparison.notes)
    assert any("fine has corrected nothing in 2 of 2 runs" in note for note in comparison.notes)  # one rollout tells nothing
    text = (tmp_path / "report.html").read_text()
    assert "Runs that failed" in text
    assert html.escape(comparison.failed[wrong[0]]) in text
    assert str(comparison)
    nothing = compare({"wrong": wrong}, tmp_path / "nothing", progress=False)
    assert not nothing.files
    assert str(nothing)
    with pytest.raises(ValueError, match=r"runs of \[256, 512\] steps"):
        compare({"a": fine, "b": [Job("ppo", "CartPole-v1", 0, 512)]}, tmp_path)


# The page


NASTY = "$_{$ <script>document.title='<i>'</script> & \"quotes\" 'x' <img src=x onerror=alert(1)>"


def test_page_escapes_everything() -> None:
    made = page.page(NASTY, [page.text(NASTY, "h1", css=NASTY), page.table([NASTY], [[NASTY]]), page.figure(NASTY, b"png")])
    assert "<script" not in made
    assert "onerror=alert" not in made.replace(html.escape(NASTY), "")
    assert made.count(html.escape(NASTY)) == 7


def test_page_needs_nothing_from_elsewhere(undisturbed: Path) -> None:
    text = (undisturbed / "report.html").read_text()
    assert not re.search(r"<(script|link|iframe|object|embed)\b|@import|url\(|https?:|\son\w+=", text)
    assert text.count("<img ") == text.count('src="data:image/png;base64,') == 3


WRAPPER = """<!doctype html><title>waiting</title><iframe src="report.html" style="width:1000px;height:900px"></iframe><script>
onload = () => {
  const inside = document.querySelector("iframe").contentDocument;
  const images = [...inside.images].map(i => [i.naturalWidth, i.getBoundingClientRect().width, i.alt]);
  document.body.innerHTML = "";
  const out = document.createElement("pre");
  out.textContent = JSON.stringify({images, title: inside.title, rows: inside.querySelectorAll("tr").length,
    scripts: inside.scripts.length, wide: inside.documentElement.scrollWidth});
  document.body.append(out);
};
</script>"""


def chromium(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --allow-file-access-from-files --enable-logging=stderr --v=0"
    return subprocess.run(
        [str(CHROMIUM), *flags.split(), f"--user-data-dir={folder / 'profile'}", *arguments],
        text=True,
        capture_output=True,
        timeout=120,
    )


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_page_in_a_browser(tmp_path: Path) -> None:
    names = {"ppo": 10.0, NASTY: 12.0}
    results = {name: [result(10 * i + s, level) for s in range(3)] for i, (name, level) in enumerate(names.items())}
    comparison = analyse(results, 1000, title=f"Title {NASTY}", notes=[NASTY])
    write(comparison, tmp_path, f"sb3-avgcorr compare --env {NASTY}")
    (tmp_path / "wrapper.html").write_text(WRAPPER)
    shown = chromium(tmp_path, "--virtual-time-budget=5000", "--dump-dom", (tmp_path / "wrapper.html").as_uri())
    found = json.loads(html.unescape(re.search(r"<pre>(.*)</pre>", shown.stdout, re.DOTALL).group(1)))  # type: ignore[union-attr]
    assert len(found["images"]) == 3
    assert all(natural > 500 and drawn > 300 for natural, drawn, _ in found["images"])
    assert found["title"] == f"Title {NASTY}"  # as text: nothing of it was run
    assert found["scripts"] == 0
    assert found["rows"] == 4 * (1 + 2)
    picture = tmp_path / "shot.png"
    taken = chromium(tmp_path, "--window-size=1100,2400", f"--screenshot={picture}", (tmp_path / "report.html").as_uri())
    assert picture.stat().st_size > 20_000
    for run in (shown, taken):
        assert "CONSOLE" not in run.stderr, run.stderr
