"""What ``volition fit`` does: a fit, and the same as if all entities obeyed, to compare."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from rich.console import Console
from sklearn.base import clone

from volition.cli.fit.files import summarize, write_results
from volition.cli.fit.printing import print_summary
from volition.cli.interrupts import StopCallback, stoppable
from volition.cli.options import seconds_of
from volition.cli.outputs import FIT_FILES
from volition.cli.terminal import make_console
from volition.cli.warned import collected_warnings, sentences
from volition.core.deadline import NEVER, Deadline
from volition.estimators import AutonomyAwareClustering
from volition.io.results import output_folder
from volition.io.tables import Table
from volition.metrics import distortion

#: of the time that is left: what the fit may take, and what the fit that ignores autonomy may take
#: after it, before it is judged
FIT_SHARE, IGNORING_SHARE = 0.6, 0.85


class Comparison(NamedTuple):
    """A fit, and what it would have cost to ignore autonomy."""

    model: AutonomyAwareClustering
    #: seconds that the fit took
    seconds: float
    #: the fit as if all entities obeyed; None if Ctrl-C came before its end
    ignoring: AutonomyAwareClustering | None
    #: its cost, judged with autonomy
    ignored: float | None


def run_fit(
    model: AutonomyAwareClustering,
    table: Table,
    out: Path,
    quiet: bool,
    source: str,
    deadline: Deadline = NEVER,
) -> None:
    """Fit a model to a table, compare, write the results and print what came out."""
    console = make_console()
    shows = not quiet and sys.stdout.isatty()
    with collected_warnings(table) as caught, stoppable() as stopped:
        watch = _Watch(console, shows, stopped)
        compared = _improved(_fit_both(model, table, deadline, watch), table, deadline, watch)
    summary = summarize(compared.model, table, source, compared.seconds, compared.ignored)
    if shows:
        console.print(f"Writing {len(table.values)} prescriptions to {out}/")
    with output_folder(out, FIT_FILES) as folder:
        write_results(compared.model, compared.ignoring, table, summary, folder)
    print_summary(console, summary, out)
    for note in table.notes:
        console.print(f"Note: {note}")
    for message in sentences(caught):
        console.print(f"Warning: {message}")


class _Watch(NamedTuple):
    """What watches the fits: Ctrl-C, and a progress bar under a heading."""

    console: Console
    shows: bool
    stopped: Callable[[], bool]

    def fit(
        self, model: AutonomyAwareClustering, table: Table, heading: str
    ) -> AutonomyAwareClustering:
        """Fit a model under watch, and return it without the watch."""
        callbacks: list[Any] = [StopCallback(self.stopped)]
        if self.shows:
            from sklearn.callback import ProgressBar

            self.console.print(heading)
            callbacks.insert(0, ProgressBar())
        model.set_callbacks(*callbacks).fit(table.values, sample_weight=table.weight)
        return model.set_callbacks()


def _fit_both(
    model: AutonomyAwareClustering, table: Table, deadline: Deadline, watch: _Watch
) -> Comparison:
    began = perf_counter()
    model.time_budget = seconds_of(deadline, FIT_SHARE)
    watch.fit(model, table, "Placing the centres")
    seconds = perf_counter() - began
    if watch.stopped():
        return Comparison(model, seconds, None, None)
    ignoring = AutonomyAwareClustering(
        model.n_clusters,
        metric=model.metric,
        solver=model.solver,
        time_budget=seconds_of(deadline, IGNORING_SHARE),
        random_state=model.random_state,
    )
    watch.fit(ignoring, table, "Placing them as if all entities obeyed, to compare")
    if watch.stopped():
        # A search that was cut short would make autonomy look too good.
        return Comparison(model, seconds, None, None)
    ignored = distortion(
        table.values,
        ignoring.cluster_centers_,
        model.autonomy,
        ignoring.labels_,
        metric=model.metric,
        sample_weight=table.weight,
    )
    return Comparison(model, seconds, ignoring, ignored)


def _improved(compared: Comparison, table: Table, deadline: Deadline, watch: _Watch) -> Comparison:
    """Return the comparison; where ignoring autonomy did better, the fit goes on from there.

    That happens where the search had too little time.
    """
    model, ignoring, ignored = compared.model, compared.ignoring, compared.ignored
    if ignoring is None or ignored is None or ignored >= model.distortion_:
        return compared
    other = clone(model).set_params(
        init=ignoring.cluster_centers_, time_budget=seconds_of(deadline, 1.0)
    )
    watch.fit(other, table, "Going on from those, which are better")
    return compared._replace(model=min(model, other, key=lambda one: one.distortion_))
