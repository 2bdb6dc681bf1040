"""Options that several commands have, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from volition.core.deadline import Deadline

#: of `volition.core.costs`, which takes seconds to load; a test compares the two
METRICS = ("sqeuclidean", "haversine", "sqhaversine")


def _folder(text: str | Path) -> Path:
    if isinstance(text, str) and not text.strip():
        # typer would wrap a ValueError into a page of usage
        raise OSError('--out is empty; name a folder, or "." for the present one.')
    return Path(text)


Out = Annotated[
    Path,
    typer.Option(
        "--out", parser=_folder, metavar="PATH", help="Folder for the results; made if missing."
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace the results of an earlier run in the same folder."),
]
OptionalOut = Annotated[
    Path | None,
    typer.Option(
        "--out",
        parser=_folder,
        metavar="PATH",
        help="Folder for the results; made if missing. Default: they are only printed.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]

# -- entities -------------------------------------------------------------------------------------

Model = Annotated[
    Path, typer.Argument(help="A placement: model.safetensors of volition fit, or its folder.")
]
RowNames = Annotated[
    str | None, typer.Option("--id", help="Column that names the entities in the results.")
]
File = Annotated[
    Path,
    typer.Argument(help="Table of entities: CSV with a header, Parquet, or points in GeoJSON."),
]
Columns = Annotated[
    str | None,
    typer.Option(help="Columns with the entities' coordinates, as a,b,c. Default: all."),
]
Weight = Annotated[str | None, typer.Option(help="Column with the entities' weights.")]
Metric = Annotated[
    str,
    typer.Option(
        help=f"Cost: {', '.join(METRICS)}. The last two take columns latitude,longitude in "
        "degrees and give kilometres, or kilometres squared."
    ),
]

# -- autonomy -------------------------------------------------------------------------------------

Kappa = Annotated[
    float | None,
    typer.Option(help="Probability that an entity overrides its prescription, 0 to 1."),
]
Gamma = Annotated[
    float | None,
    typer.Option(help="When overriding: weight of the distance entity to alternative [0]."),
]
Zeta = Annotated[
    float | None,
    typer.Option(help="When overriding: weight of the distance prescribed to alternative [1]."),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        help="When overriding: small = the nearest alternative, large = any. In units of the "
        "cost (squared units of the columns, for the default metric) [1]."
    ),
]
Autonomy = Annotated[
    Path | None,
    typer.Option(
        help="Instead of kappa etc.: what volition estimate has learned (.safetensors), or a CSV "
        "without header, K rows of K probabilities; row j says where entities go that are "
        "prescribed j."
    ),
]


class AutonomyOptions(NamedTuple):
    """What the user says about how entities override."""

    kappa: float | None
    gamma: float | None
    zeta: float | None
    temperature: float | None
    file: Path | None


# -- logs -----------------------------------------------------------------------------------------

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

# -- time -----------------------------------------------------------------------------------------


def deadline_of(time_budget: float | None) -> Deadline:
    """Return when the time budget of a command ends; it must be positive, or None for never."""
    if time_budget is not None and not time_budget > 0:
        raise ValueError(f"--time-budget must be a positive number of seconds, got {time_budget}.")
    return Deadline.after(time_budget)


def seconds_of(deadline: Deadline, share: float) -> float | None:
    """Return a share of the time that is left as a fit's budget, which must be positive."""
    return max(share * deadline.left, 1e-3) if deadline.finite else None
