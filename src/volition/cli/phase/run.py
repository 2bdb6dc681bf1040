"""What ``volition phase`` does: anneal, and note at which beta the centres split."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from rich.console import Console

import volition
from volition.annealing.anneal import Record
from volition.annealing.n_clusters import Suggestion, suggest_n_clusters
from volition.cli.interrupts import shown_status, stoppable
from volition.cli.outputs import PHASE_FILES, PHASE_MOVIE
from volition.cli.phase.files import problem_of, write_movie, write_path
from volition.cli.phase.printing import print_phase
from volition.cli.terminal import make_console
from volition.cli.warned import collected_warnings, sentences
from volition.core.autonomy import Autonomy
from volition.io.results import output_folder
from volition.io.tables import Table


class PhaseRun(NamedTuple):
    """What to anneal."""

    table: Table
    source: str
    autonomy: Autonomy
    metric: str
    n_max: int
    seed: int

    def run(self, out: Path, overwrite: bool, movie: bool, quiet: bool) -> None:
        """Anneal, write the results, and print what came out."""
        shown = Console(stderr=True) if not quiet and sys.stderr.isatty() else Console(quiet=True)
        began = perf_counter()
        with shown.status("annealing") as status, collected_warnings(self.table) as caught:
            suggestion = self._anneal(status)
            summary = self._summary(suggestion, perf_counter() - began)
            with output_folder(out, PHASE_FILES, overwrite) as folder:
                problem = problem_of(suggestion, self.table, self.metric)
                write_path(suggestion, problem, summary, folder)
                if movie:
                    names = self.table.columns
                    write_movie(suggestion, problem, names, folder / PHASE_MOVIE, status.update)
        files = [name for name in PHASE_FILES if movie or name != PHASE_MOVIE]
        console = make_console()
        print_phase(console, suggestion, summary, self.table.notes, f"{out}/: {', '.join(files)}")
        for message in sentences(caught):
            console.print(f"Warning: {message}")

    def _anneal(self, status: Any) -> Suggestion:
        with stoppable() as stopped:

            def on_beta(record: Record, _: Any) -> bool:
                status.update(f"beta = {record.beta:.4g}, {record.n_distinct} distinct centres")
                return stopped()

            return suggest_n_clusters(
                self.table.values,
                autonomy=self.autonomy,
                metric=self.metric,
                sample_weight=self.table.weight,
                n_max=self.n_max,
                random_state=self.seed,
                on_beta=on_beta,
            )

    def _summary(self, suggestion: Suggestion, seconds: float) -> dict[str, Any]:
        return {
            "volition": volition.__version__,
            "source": self.source,
            "n_entities": len(self.table.values),
            "columns": self.table.columns,
            "metric": self.metric,
            "autonomy": repr(self.autonomy),
            "status": shown_status(suggestion.path.status.value),
            "suggested": suggestion.n_clusters,
            "ranking": [p._asdict() for p in suggestion.ranking],
            "seconds": round(seconds, 3),
            "seed": self.seed,
        }
