"""What all commands that write results have in common: where to, what may be replaced, Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

#: said of a result that Ctrl-C has cut short
STOPPED = "stopped by Ctrl-C; this is the best so far"


def _folder(text: str | Path) -> Path:
    if isinstance(text, str) and not text.strip():
        # typer would wrap a ValueError into a page of usage
        raise OSError('--out is empty; name a folder, or "." for the present one.')
    return Path(text)


Out = Annotated[
    Path,
    typer.Option(
        "--out", parser=_folder, metavar="PATH", help="Folder for the results; made if missing."
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace the results of an earlier run in the same folder."),
]


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether Ctrl-C was pressed; a second Ctrl-C ends at once.

    Examples
    --------
    >>> from volition.cli.output import stoppable
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
