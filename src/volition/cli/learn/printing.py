"""What ``volition learn`` shows while it runs, and prints at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from volition.cli.learn.learners import AnyLearner
from volition.cli.learn.source import Source
from volition.cli.outputs import LEARN_STATE
from volition.learning.trial import PLAIN as PLAIN_PLAN

#: why a fit ended, if Ctrl-C has ended it
CTRL_C = "ended by Ctrl-C"


def print_assumption(console: Console, source: Source) -> None:
    """Say where the population is known to do what a table per entity cannot learn."""
    moving = [m for m in source.models.values() if m.depends_on_centers]
    if moving:
        console.print(
            f"Note: {moving[0]!r} depends on where the centres stand, and a table per entity "
            "assumes that it does not. If the first answers show it, --learner choice takes over."
        )


@contextmanager
def progress_display(quiet: bool) -> Iterator[Callable[[Any], Any]]:
    """Give a function that shows how far a learner has got."""
    if quiet or not sys.stderr.isatty():
        yield lambda learner: None
        return
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
        console=Console(stderr=True),
    )  # fmt: skip
    with progress:
        task = progress.add_task("asking", total=None)

        def update(learner: Any) -> None:
            estimate = learner.distortion_estimate()
            seen = "" if np.isnan(estimate.value) else f", distortion {_interval(estimate)}"
            changes = f", {len(learner.changes_)} changes" if learner.changes_ else ""
            progress.update(
                task,
                description=f"beta {learner.beta_:.3g}, {learner.n_interactions_} interactions"
                f"{seen}{changes}",
                completed=learner.n_interactions_,
                total=learner.most_interactions_,
            )

        yield update


def _interval(estimate: Any) -> str:
    return f"{estimate.value:.4g} ± {estimate.high - estimate.value:.2g}"


def print_summary(console: Console, model: AnyLearner, summary: dict[str, Any], out: Path) -> None:
    """Print how the fit ended, what the result costs, what has changed, and where results are."""
    early = (
        " Ended early by Ctrl-C; what was learned is kept."
        if model.stop_reason_ == CTRL_C
        else f" Ended: {model.stop_reason_}."
    )
    console.print(
        f"{summary['n_entities']} entities ({', '.join(summary['columns'])}), "
        f"{summary['n_clusters']} centres: {summary['n_interactions']} prescriptions, "
        f"{summary['n_answers']} answers; {summary['seconds']:.1f} s.{early}"
    )
    console.print(_costs(model, summary))
    if summary["expected_regret"] is not None:
        most = max(100 * summary["expected_regret"], 0.01)
        console.print(
            "If behaviour does not depend on where the centres stand, not knowing each entity "
            f"better is believed to cost {most:.2g} % at most."
        )
    for change in model.changes_:
        console.print(
            f"At interaction {change.n_interactions} a change was noticed: {change.what}, "
            f"{change.before:.2f} to {change.after:.2f}."
        )
    for at in summary["changes_not_reached"]:
        console.print(
            f"The simulated change at interaction {at} was not reached: try --tol 0 and more "
            "--interactions."
        )
    files = "centers.csv, assignments.csv, history.csv, summary.json, learning.png"
    pictures = "".join(f", change-{n + 1}.png" for n in range(len(model.changes_)))
    network = ", network.safetensors" if (out / "network.safetensors").exists() else ""
    console.print(f"Results in {out}/: {files}{pictures}{network}, {LEARN_STATE}")


def _costs(model: AnyLearner, summary: dict[str, Any]) -> RichTable:
    """Return a table of what the result costs, as far as that is known."""
    table = RichTable(box=None, pad_edge=False)
    unit = f" ({summary['cost_unit']})" if summary["cost_unit"] else ""
    table.add_column(f"cost per entity{unit}")
    table.add_column("", justify="right")
    if model.kept_ != PLAIN_PLAN:
        table.add_row("by what was learned", f"{summary['distortion_learned']:.6g}")
    estimate = model.distortion_estimate()
    if estimate.n_answers > 1 and not np.isnan(estimate.value):
        what = "k-means, nearest prescribed, by" if model.kept_ == PLAIN_PLAN else "by"
        table.add_row(f"{what} {estimate.n_answers} answers", _interval(estimate))
    for one in model.tried_:
        if one.name != model.kept_ and not np.isnan(one.estimate.value):
            shown = "k-means, nearest prescribed" if one.name == PLAIN_PLAN else "learned plan"
            name = f"not kept: {shown}, {one.estimate.n_answers} answers"
            table.add_row(name, _interval(one.estimate))
    if "true_distortion" in summary:
        table.add_row("in truth (simulated)", f"{summary['true_distortion']:.6g}")
        best, gap = summary["optimum_for_known_p"][-1][1], summary["gap_percent"]
        shown = "" if gap is None else f" (gap {gap:.2f} %)"
        table.add_row("optimum for known p", f"{best:.6g}{shown}")
    return table
