"""What ``volition phase`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from volition.annealing.n_clusters import Persistence, Suggestion
from volition.cli.pictures import plotting_to_files
from volition.core.costs import resolve_cost
from volition.core.problem import Problem
from volition.io.results import write_csv
from volition.io.tables import Table
from volition.plotting.text import save_figure


def problem_of(suggestion: Suggestion, table: Table, metric: str) -> Problem:
    """Return the problem that was annealed, for pictures of it."""
    problem = Problem(table.values, sample_weight=table.weight, cost=resolve_cost(metric))
    return problem.with_autonomy(suggestion.autonomy)


def write_path(
    suggestion: Suggestion, problem: Problem, summary: dict[str, Any], folder: Path
) -> None:
    """Write the path of the centres and how long each number of them persists."""
    write_csv(folder / "persistence.csv", list(Persistence._fields), map(list, suggestion.ranking))
    history = suggestion.path.history
    write_csv(folder / "path.csv", list(history[0]._fields), map(list, history))
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    title = f"{Path(summary['source']).name}, {summary['autonomy']}"
    figure = plotting_to_files().plot_phase(problem, suggestion.path, title)
    save_figure(figure, folder / "phase.png")


def write_movie(
    suggestion: Suggestion,
    problem: Problem,
    names: list[str],
    path: Path,
    tell: Callable[[str], None],
) -> None:
    """Write the annealing as a moving picture; ``tell`` hears how far it has got."""
    plotting_to_files().animate(
        problem,
        suggestion.path,
        path,
        names=names,
        on_frame=lambda i, n: tell(f"frame {i + 1} of {n}"),
    )
