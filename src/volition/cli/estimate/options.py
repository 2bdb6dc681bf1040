"""What a user can tell ``volition estimate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from volition.core.deadline import Deadline

LogFile = Annotated[
    Path,
    typer.Option(
        help="Recorded choices: CSV or Parquet with columns entity, prescribed, realized "
        "[, cost, timestamp, propensity, layout]. Clusters are numbers, or names of the "
        "centres; realized is empty or -1 where no answer came."
    ),
]
Entities = Annotated[Path, typer.Option(help="Table of entities: CSV, Parquet or GeoJSON.")]
Centers = Annotated[
    Path,
    typer.Option(
        help="Table of the centres while the log was recorded. A column cluster says which is "
        "which (0 to K-1, 1 to K, or names), else rows count in their order; a column name or "
        "site names them; a column layout (0, 1, ..., the last today's) numbers sets of them."
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(help="Coordinates, as a,b,c. Default: the columns of --centers."),
]
Covariates = Annotated[
    str | None,
    typer.Option(
        help="Further columns of --entities that may matter for choices, as a,b,c: numbers, or "
        "text of at most 20 kinds."
    ),
]
IdColumn = Annotated[
    str | None, typer.Option("--id", help="Column that names the entities. Default: 0, 1, ...")
]
Metric = Annotated[str, typer.Option(help="Cost; see volition fit.")]
Family = Annotated[
    str,
    typer.Option(
        help="auto: what choices depend on is found out by choices held out. distance: the "
        "family of kappa, gamma, zeta and temperature."
    ),
]
Tolerance = Annotated[
    float, typer.Option(help="Share by which the log's costs may be off the geometry's.")
]
Region = Annotated[
    str | None,
    typer.Option(
        help="Where centres may stand: lowest then highest coordinates, as x1,y1,x2,y2. "
        "Default: the box of the entities and of the centres in the log."
    ),
]
TimeBudget = Annotated[
    float | None,
    typer.Option(
        help="Seconds for everything but writing the results. Searches for centres then end with "
        "the best so far; the fit of how entities choose, and its checks, are not cut short."
    ),
]


class EstimateOptions(NamedTuple):
    """A log, the files that go with it, how to read them, and what to estimate."""

    log: Path
    entities: Path
    centers: Path
    columns: str | None
    covariates: list[str]
    weight: str | None
    id_column: str | None
    metric: str
    family: str
    tolerance: float
    numbered_from: int | None
    skip_unknown: bool
    region: str | None
    deadline: Deadline
    seed: int
