"""How far many runs are, on the screen."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping, Sequence

from tqdm import tqdm

from sb3_avgcorr.runs.jobs import AnyJob
from sb3_avgcorr.runs.runner import Observer


class Display(Observer):
    """A progress bar with the time left; where there is no terminal, a line for each run that ends."""

    def __init__(self) -> None:
        self._lines = not sys.stderr.isatty()
        self._bar: tqdm | None = None
        self._began = time.monotonic()
        self._total = 0
        # steps of the runs that have ended, and of those that have not, by name
        self._ended: dict[str, int] = {}
        self._steps: dict[str, int] = {}

    def note(self, text: str) -> None:
        tqdm.write(text, file=sys.stderr)

    def begin(self, jobs: Sequence[AnyJob], finished: Collection[str], steps: Mapping[str, int]) -> None:
        self._total, self._began = len(jobs), time.monotonic()
        self._ended = {job.name: job.steps for job in jobs if job.name in finished}
        self._steps = dict(steps)
        self._bar = tqdm(
            total=sum(job.steps for job in jobs),
            initial=self.steps,  # what was there before must not count for the speed, and so for the time left
            unit=" steps",
            unit_scale=True,
            desc=f"{len(self._ended)}/{self._total} runs",
            disable=self._lines,
        )

    @property
    def steps(self) -> int:
        """Steps made so far, of runs that wait for their turn too."""
        return sum(self._ended.values()) + sum(self._steps.values())

    def advance(self, steps: Mapping[str, int]) -> None:
        self._steps.update({name: max(now, self._steps[name]) for name, now in steps.items()})
        if self._bar is not None and not self._bar.disable:
            self._bar.update(max(self.steps - int(self._bar.n), 0))

    def end(self, job: AnyJob, problem: str | None) -> None:
        self._ended[job.name] = job.steps
        self._steps.pop(job.name, None)
        if self._bar is not None:
            self._bar.set_description(f"{len(self._ended)}/{self._total} runs")
        if problem is not None:
            self.note(f"{job.title} failed: {problem}")
        elif self._lines:
            seconds = time.monotonic() - self._began
            print(f"{len(self._ended)}/{self._total} runs after {seconds:.0f} s: {job.title}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
