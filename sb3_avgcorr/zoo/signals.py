"""Ctrl-C and SIGTERM end a training run in order: the model reached so far is saved."""

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Turns the first SIGINT or SIGTERM into a KeyboardInterrupt, and ignores later ones, which would break off the saving."""

    #: the signal that ended the last run of this process, if one did
    last: int | None = None

    def __init__(self) -> None:
        self.received = False
        self._before: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Take over the signals. Only the main thread can; elsewhere nothing changes."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}

    def restore(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received = True
            StopSignals.last = number
            raise KeyboardInterrupt


class NotForChildren:
    """
    Processes started meanwhile ignore Ctrl-C, which a terminal sends to them too: an environment that dies of it takes the
    chance to end in order from the process that learns.
    """

    def __enter__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)
