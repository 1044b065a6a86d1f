"""Ctrl-C and SIGTERM end a training run in order: the model reached so far is saved."""

import math
import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """
    Ends a run in order when SIGINT or SIGTERM comes. Before the training a signal is a KeyboardInterrupt. During it the first
    one is only noted, for a callback to see between two steps: an interrupt in the middle of a step can leave the pipe to an
    environment's process half read, and then closing it waits for ever. Those who cannot wait for the next step send another.
    While the model is saved signals are ignored.
    """

    #: the signal that ended the last run of this process, if one did
    last: int | None = None

    def __init__(self) -> None:
        self.received = 0
        self._interrupt_from = 1.0
        self._before: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Take over the signals. Only the main thread can; elsewhere nothing changes."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}

    def training(self) -> None:
        """From now on the first signal is only noted."""
        self._interrupt_from = 2.0

    def saving(self) -> None:
        """From now on signals are ignored."""
        self._interrupt_from = math.inf

    def restore(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received += 1
        StopSignals.last = number
        if self.received >= self._interrupt_from:
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
