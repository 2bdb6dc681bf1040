"""``volition fit``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from volition.cli.options import (
    Autonomy,
    AutonomyOptions,
    Columns,
    File,
    Gamma,
    Kappa,
    Metric,
    Out,
    Overwrite,
    Quiet,
    RowNames,
    Seed,
    Temperature,
    Weight,
    Zeta,
    deadline_of,
)
from volition.cli.outputs import FIT_FILES
from volition.io.results import check_writable


def fit(
    file: File,
    clusters: Annotated[int, typer.Option("--clusters", "-k", help="Number of centres K.")],
    columns: Columns = None,
    weight: Weight = None,
    id_column: RowNames = None,
    kappa: Kappa = None,
    gamma: Gamma = None,
    zeta: Zeta = None,
    temperature: Temperature = None,
    autonomy: Autonomy = None,
    metric: Metric = "sqeuclidean",
    solver: Annotated[str, typer.Option(help="auto, fixed_point, armijo or gradient.")] = "auto",
    time_budget: Annotated[
        float | None,
        typer.Option(
            help="Seconds for everything but writing the results; then the best so far is kept. "
            "Of what reading leaves, 60 % are for the fit, the rest for the same fit as if all "
            "entities obeyed."
        ),
    ] = None,
    out: Out = Path("volition-results"),
    overwrite: Overwrite = False,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Place K centres and prescribe one to every entity of a table.

    Writes centers.csv, assignments.csv, summary.json, clusters.png and model.safetensors, and says
    what ignoring autonomy would have cost: centres found by the same solver as if all entities
    obeyed, numbered by position, each entity prescribed its nearest, judged with autonomy.
    Ctrl-C ends it early and writes the best so far; a second Ctrl-C ends it at once.
    """
    deadline = deadline_of(time_budget)
    check_writable(out, FIT_FILES, overwrite)

    from volition import AutonomyAwareClustering
    from volition.cli.autonomy import autonomy_from_options
    from volition.cli.fit.run import run_fit
    from volition.io.tables import read_entities

    options = AutonomyOptions(kappa, gamma, zeta, temperature, autonomy)
    chosen, columns = autonomy_from_options(options, file, columns, metric)
    table = read_entities(file, columns, weight, id_column, metric)
    model = AutonomyAwareClustering(
        clusters, autonomy=chosen, metric=metric, solver=solver, random_state=seed
    )
    run_fit(model, table, out, quiet, source=str(file), deadline=deadline)
