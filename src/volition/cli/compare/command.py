"""``volition compare``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from volition.cli.options import Columns, OptionalOut, Overwrite, Weight
from volition.cli.outputs import COMPARE_FILES
from volition.io.results import check_writable


def compare(
    first: Annotated[Path, typer.Argument(help="A placement: model.safetensors or its folder.")],
    second: Annotated[Path, typer.Argument(help="Another placement.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Table of entities on which both are judged. Default: only the moves."),
    ] = None,
    columns: Columns = None,
    weight: Weight = None,
    out: OptionalOut = None,
    overwrite: Overwrite = False,
) -> None:
    """Say how far two saved placements are apart, and what each costs for the same entities.

    Centres are matched so that all moves together are shortest. Costs are judged with the
    behaviour of the second placement, and with that of the first one too where it differs. With
    --out also writes moves.csv and summary.json.
    """
    if out is not None:
        check_writable(out, COMPARE_FILES, overwrite)

    from volition.cli.compare.run import run_compare

    run_compare(first, second, data, columns, weight, out)
