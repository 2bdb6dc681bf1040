"""What ``volition predict`` does: recommendations for the entities of a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from volition.cli.outputs import PREDICT_FILES
from volition.cli.placements import read_entities_for, read_placement, unnamed
from volition.cli.terminal import make_console
from volition.cli.warned import collected_warnings, sentences
from volition.core.costs import cost_unit_name
from volition.io.results import output_folder, write_csv


def run_predict(
    path: Path, file: Path, columns: str | None, id_column: str | None, out: Path
) -> None:
    """Read a placement and entities, write what to recommend, and print where it is."""
    model = read_placement(path)
    table = read_entities_for(model, file, columns, None, id_column)
    unit = cost_unit_name(model.metric, table.columns)
    with collected_warnings(table) as caught:
        costs = unnamed(model).transform(table.values)
        labels = model.predict(table.values)
        realized = model.predict_realized(table.values)
    rows = np.arange(len(labels))
    names = rows if table.ids is None else table.ids
    expected, follows = costs[rows, labels], realized[rows, labels]
    with output_folder(out, PREDICT_FILES) as folder:
        write_csv(
            folder / PREDICT_FILES[0],
            ["entity", "prescribed", "expected_cost", "follows"],
            (
                [name, int(j), float(f"{cost:.6g}"), float(f"{share:.6g}")]
                for name, j, cost, share in zip(names, labels, expected, follows, strict=True)
            ),
        )
    console = make_console()
    console.print(
        f"{len(labels)} entities, {model.n_clusters} centres: expected cost per entity "
        f"{expected.mean():.6g}{f' ({unit})' if unit else ''}, {100 * follows.mean():.1f} % are "
        "expected to follow the recommendation."
    )
    console.print(f"Results in {out}/: {', '.join(PREDICT_FILES)}")
    for note in (*table.notes, *sentences(caught)):
        console.print(f"Note: {note}")
