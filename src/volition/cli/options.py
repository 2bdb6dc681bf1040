"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

NumberedFrom = Annotated[
    int | None,
    typer.Option(
        help="First number of the clusters in the log, 0 or 1. Default: as in the column cluster "
        "of --centers, else 0; a log that looks otherwise is refused until this is said.",
    ),
]
SkipUnknown = Annotated[
    bool,
    typer.Option(
        "--skip-unknown",
        help="Leave out (and count) the log's rows whose entity is not in --entities.",
    ),
]
