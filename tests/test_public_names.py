"""What ``from sb3_avgcorr import …`` gives, on a bare install too."""

import subprocess
import sys

import pytest

import sb3_avgcorr

PUBLIC = {
    "BAC",
    "AsymmetricActorCriticPolicy",
    "AveragingA2C",
    "AveragingBAC",
    "AveragingCorrection",
    "AveragingMaskablePPO",
    "AveragingPPO",
    "AveragingRecurrentPPO",
    "AveragingTRPO",
    "CorrectionDiagnosticsCallback",
    "__version__",
    "diagnose",
}

BARE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Blocked())
from sb3_avgcorr import *
import sb3_avgcorr
print(*sorted(name for name in globals() if name in {public!r}))
{then}
"""


def bare(blocked: set[str], then: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program where some packages cannot be imported."""
    program = BARE.format(blocked=blocked, public=PUBLIC, then=then)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


def test_everything_is_there() -> None:
    assert set(sb3_avgcorr.__all__) == PUBLIC
    assert set(dir(sb3_avgcorr)) >= PUBLIC
    for name in PUBLIC:
        assert getattr(sb3_avgcorr, name) is not None
    with pytest.raises(AttributeError, match="module 'sb3_avgcorr' has no attribute 'AveragingDQN'"):
        sb3_avgcorr.AveragingDQN  # noqa: B018


def test_star_import_on_a_bare_install() -> None:
    extras = {"sb3_contrib", "rl_zoo3", "matplotlib", "pandas", "scipy", "rliable", "pyarrow", "filelock", "ray", "optuna"}
    done = bare(extras)
    assert done.returncode == 0, done.stderr
    expected = PUBLIC - {"AveragingMaskablePPO", "AveragingRecurrentPPO", "AveragingTRPO"}
    assert set(done.stdout.split()) >= expected - {"CorrectionDiagnosticsCallback", "diagnose"}
    assert set(done.stdout.split()) <= expected


def test_what_is_missing_names_its_extra() -> None:
    done = bare({"sb3_contrib"}, "sb3_avgcorr.AveragingTRPO")
    assert done.returncode == 1
    assert 'ImportError: AveragingTRPO needs sb3_contrib: pip install "sb3-avgcorr[contrib]"' in done.stderr


def test_importing_the_package_is_quick() -> None:
    """Torch takes seconds, during which Ctrl-C could not be answered in one line."""
    program = "import sys, sb3_avgcorr, sb3_avgcorr.cli.main; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60).stdout == "False\n"
