"""What ``volition phase`` prints."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from volition.annealing.n_clusters import Suggestion
from volition.cli.interrupts import STOPPED
from volition.core.costs import cost_unit_name


def print_phase(
    console: Console,
    suggestion: Suggestion,
    summary: dict[str, Any],
    notes: list[str],
    written: str,
) -> None:
    """Print the most persistent numbers of clusters, notes, and what was written where."""
    columns = summary["columns"]
    console.print(
        f"{summary['n_entities']} entities ({', '.join(columns)}), {summary['autonomy']}; "
        f"{summary['seconds']:.1f} s. The most persistent numbers of clusters (beta is one over a "
        f"cost, in {cost_unit_name(summary['metric'], columns)}):"
    )
    console.print(str(suggestion))
    for note in notes:
        console.print(f"Note: {note}")
    if summary["status"] == STOPPED:
        console.print(
            f"The annealing was {STOPPED}, up to beta = {suggestion.path.beta:.4g}; what splits "
            "later was not looked at."
        )
    console.print(f"Results in {written}")
