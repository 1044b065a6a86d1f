"""``sb3-avgcorr push-to-hub``: RL Zoo's, which looks where `train` writes."""

import importlib
import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sb3_avgcorr.cli.arguments import run
from sb3_avgcorr.cli.enjoy import trained_agent_arguments, with_run


def push_to_hub(argv: list[str]) -> None:
    """
    Share a trained agent on the Hugging Face hub.

    :param argv: arguments after the command
    """
    parser = trained_agent_arguments()
    parser.add_argument("-name", "--repo-name")  # or `-n` would take it for `-n ame`
    rest = with_run(parser, argv)
    with _metadata_under_its_old_name():
        run("push-to-hub", lambda: runpy.run_module("rl_zoo3.push_to_hub", run_name="__main__"), rest, Exception)


@contextmanager
def _metadata_under_its_old_name() -> Iterator[None]:
    """
    Add a name to a module of another package while RL Zoo's script runs.

    RL Zoo 2.9 imports ``generate_metadata``, which sb3-team-hf-integration 3.2 has only as a private function, which gives an
    object for a dict: the script cannot be imported without it. Nothing is replaced; where the name exists, nothing is done.
    """
    hub: Any = importlib.import_module("huggingface_sb3.push_to_hub")  # the package has a function of that name, too
    if hasattr(hub, "generate_metadata"):
        yield
        return
    hub.generate_metadata = lambda *args: hub._generate_metadata(*args).to_dict()
    try:
        yield
    finally:
        del hub.generate_metadata
