"""``volition evaluate``: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from volition.cli.options import Columns, File, Model, OptionalOut, Overwrite, Weight
from volition.cli.outputs import EVALUATE_FILES
from volition.io.results import check_writable


def evaluate(
    model: Model,
    file: File,
    columns: Columns = None,
    weight: Weight = None,
    prescribed: Annotated[
        str | None,
        typer.Option(
            help="Column with the centre that is recommended to each entity today, by its number. "
            "Default: the best one is recommended."
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(help="Also say how many are expected to use a centre that costs at most this"),
    ] = None,
    out: OptionalOut = None,
    overwrite: Overwrite = False,
) -> None:
    """Say what the centres of a saved placement cost for the entities of a table.

    Prints the expected cost, how it is spread over entities, who is expected to follow, and how
    much each centre is recommended and used. With --out also writes loads.csv and summary.json.
    """
    if out is not None:
        check_writable(out, EVALUATE_FILES, overwrite)

    from volition.cli.evaluate.run import run_evaluate

    run_evaluate(model, file, columns, weight, prescribed, within, out)
