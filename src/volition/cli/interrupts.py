"""Ctrl-C ends a computation with the best so far; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from volition.solvers import Status

#: said of a result that Ctrl-C has cut short
STOPPED = "stopped by Ctrl-C; this is the best so far"


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether Ctrl-C was pressed; a second Ctrl-C ends at once.

    Examples
    --------
    >>> from volition.cli.interrupts import stoppable
    >>> with stoppable() as stopped:
    ...     stopped()
    False
    """
    pressed: list[bool] = []
    if threading.current_thread() is not threading.main_thread():  # signals reach only the main one
        yield lambda: False
        return

    def note(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


class StopCallback:
    """A scikit-learn callback that ends a fit with the best so far once ``stopped`` says so."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self.stopped = stopped

    def setup(self, estimator: Any, context: Any) -> None:
        """Do nothing before a fit."""

    def teardown(self, estimator: Any, context: Any) -> None:
        """Do nothing after a fit."""

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        """Do nothing before a task."""

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        """Say whether to stop."""
        return self.stopped()


def shown_status(status: str) -> str:
    """Return how a fit ended, for users; here only Ctrl-C can stop one from outside."""
    return STOPPED if status == Status.STOPPED.value else status
