"""What a user can tell ``volition learn``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from volition.cli.outputs import LEARN_STATE

LEARNERS = ("tabular", "choice", "aden")
#: how logs are read by default
METRIC, TOLERANCE = "sqeuclidean", 1e-4

# -- who answers ----------------------------------------------------------------------------------

PopulationFile = Annotated[
    Path | None,
    typer.Option(help="Simulated population: a TOML file, see the README. Or --log."),
]
LogFile = Annotated[
    Path | None,
    typer.Option(
        help="Recorded answers: CSV or Parquet with columns entity, prescribed, realized "
        "[, cost, timestamp]. Clusters are numbers, or names of the centres; realized is empty "
        "or -1 where no answer came. Needs --entities and --centers."
    ),
]
Entities = Annotated[
    Path | None, typer.Option(help="With --log: table of entities: CSV, Parquet or GeoJSON.")
]
Centers = Annotated[
    Path | None,
    typer.Option(
        help="With --log: table of the centres while it was recorded. A column cluster says "
        "which is which (0 to K-1, 1 to K, or names), else rows count in their order; a column "
        "name or site names them."
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(help="With --log: coordinates, as a,b,c. Default: the columns of --centers."),
]
IdColumn = Annotated[
    str | None,
    typer.Option("--id", help="With --log: column that names the entities. Default: 0, 1, ..."),
]
Metric = Annotated[str, typer.Option(help="With --log: cost.")]
Tolerance = Annotated[
    float, typer.Option(help="With --log: share by which its costs may be off the geometry's.")
]

# -- who learns -----------------------------------------------------------------------------------

Clusters = Annotated[int | None, typer.Option("--clusters", "-k", help="Number of centres K.")]
LearnerName = Annotated[
    str | None,
    typer.Option(
        "--learner",
        help="choice (default): a model of choices, which may depend on where the centres "
        "stand. tabular (default with --log, --forgetting or --estimate costs): a table per "
        "entity, for behaviour that does not depend on the centres. aden: a network that "
        "learns from costs alone.",
    ),
]
Interactions = Annotated[
    int | None,
    typer.Option(
        help="Questions to ask at most. Default: as many as it takes, up to 50,000; tabular: "
        "100 per entity and centre; aden: up to 100,000 (a million where costs are negative)."
    ),
]
TableOf = Annotated[
    str,
    typer.Option("--estimate", help="Table kept per entity: choices, or costs as in the paper."),
]
Tol = Annotated[
    float | None,
    typer.Option(
        help="Stop once centres improve by less than this share (default 0.001); tabular: once "
        "not knowing more is believed to cost less (default 0.003)."
    ),
]
Exploration = Annotated[
    float | None,
    typer.Option(
        help="Share of blind prescriptions. Default: 0.3; tabular: 0.1; aden has its own, 0.3."
    ),
]
Network = Annotated[
    Path | None,
    typer.Option(help="aden: network.safetensors of another run, to start from."),
]
Forgetting = Annotated[
    float, typer.Option(help="One over the answers after which an answer's weight is 1/e.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help=f"Go on from {LEARN_STATE} in the output folder.")
]


class LogOptions(NamedTuple):
    """A log, the files that go with it, and how to read them."""

    log: Path | None
    entities: Path | None
    centers: Path | None
    columns: str | None
    id_column: str | None
    metric: str
    tolerance: float
    numbered_from: int | None
    skip_unknown: bool

    def refuse_without_log(self) -> None:
        """Raise ValueError where something is said that only a log needs."""
        given = {
            "--entities": self.entities,
            "--centers": self.centers,
            "--columns": self.columns,
            "--id": self.id_column,
            "--metric": None if self.metric == METRIC else self.metric,
            "--tolerance": None if self.tolerance == TOLERANCE else self.tolerance,
            "--numbered-from": self.numbered_from,
            "--skip-unknown": self.skip_unknown or None,
        }
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} belongs to --log; a population's file says it itself.")


class LearnerOptions(NamedTuple):
    """Which learner, and how it learns; None leaves it to the learner."""

    name: str
    n_clusters: int | None
    interactions: int | None
    estimate: str
    tol: float | None
    exploration: float | None
    network: Path | None
    forgetting: float
    seed: int

    def check(self, with_log: bool) -> None:
        """Raise ValueError where options, or a log, do not go with the learner."""
        name = self.name
        if with_log and name in ("choice", "aden"):
            raise ValueError(
                f"--learner {name} asks how entities respond when centres move, which a log does "
                "not tell; use --learner tabular with --log, or volition estimate."
            )
        if self.network is not None and name != "aden":
            raise ValueError("--network belongs to --learner aden.")
        if name not in LEARNERS:
            raise ValueError(f"--learner must be tabular, choice or aden, got {name!r}.")
        if name == "tabular":
            return
        if self.estimate != "choices":
            raise ValueError("--estimate belongs to --learner tabular.")
        if self.forgetting != 0:
            raise ValueError("--forgetting belongs to --learner tabular.")
