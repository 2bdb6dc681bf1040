"""Who answers ``volition learn``: a simulated population, or a log."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

from volition.cli.learn.options import LogOptions
from volition.core.autonomy import Autonomy
from volition.io.logs import read_logged
from volition.io.records import unanswered_note
from volition.io.tables import Table
from volition.populations import LoggedPopulation


@dataclass
class Source:
    """Who answers, and what is known about them."""

    population: Any
    table: Table
    metric: str
    name: str
    n_clusters: int | None = None
    #: known models by the interaction from which on they hold; empty for a log
    models: dict[int, Autonomy] = field(default_factory=dict)
    #: what the user should know about the files
    notes: list[str] = field(default_factory=list)
    center_names: list[str] | None = None


def read_log_source(options: LogOptions) -> Source:
    """Read a log, its entities and its centres."""
    if options.log is None or options.entities is None or options.centers is None:
        raise ValueError("--log needs --entities FILE and --centers FILE.")
    files = read_logged(
        options.log, options.entities, options.centers, options.columns, None, options.id_column,
        options.metric,
    )  # fmt: skip
    if len(files.centers.layouts) > 1:
        raise ValueError(
            f"{options.centers} has {len(files.centers.layouts)} sets of centres; learning from a "
            "log takes one, volition estimate takes several."
        )
    notes = list(files.table.notes)
    if files.log.unanswered:
        notes.append(unanswered_note(files.log.unanswered))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            people = LoggedPopulation(
                files.log.columns, files.table.values, files.centers.layouts[0],
                entity_ids=files.ids, metric=options.metric, lines=files.log.lines,
                center_names=files.centers.names, tolerance=options.tolerance,
                numbered_from=options.numbered_from, skip_unknown=options.skip_unknown,
            )  # fmt: skip
        except ValueError as error:
            raise ValueError(f"{options.log}: {error}") from None
    notes += [str(warning.message) for warning in caught]
    return Source(
        people, files.table, options.metric, options.log.name, len(people.centers), {}, notes,
        people.center_names,
    )  # fmt: skip
