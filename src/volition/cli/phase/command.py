"""``volition phase``: its options."""

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
    Seed,
    Temperature,
    Weight,
    Zeta,
)
from volition.cli.outputs import PHASE_FILES
from volition.io.results import check_writable


def phase(
    file: File,
    columns: Columns = None,
    weight: Weight = None,
    kappa: Kappa = None,
    gamma: Gamma = None,
    zeta: Zeta = None,
    temperature: Temperature = None,
    autonomy: Autonomy = None,
    metric: Metric = "sqeuclidean",
    n_max: Annotated[
        int, typer.Option("--max-clusters", help="Largest number of clusters to look at.")
    ] = 32,
    movie: Annotated[
        bool, typer.Option("--animate", help="Also write the annealing as annealing.gif.")
    ] = False,
    out: Out = Path("volition-phase"),
    overwrite: Overwrite = False,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Show at which scales the entities split, and how many clusters there are.

    Prints how long, in log beta, each number of distinct centres persists, the longest first.
    Writes persistence.csv, path.csv (every beta), summary.json and phase.png. Ctrl-C ends it early
    and writes the path so far; a second Ctrl-C ends it at once.
    """
    if n_max < 1:
        raise ValueError(f"--max-clusters must be an integer >= 1, got {n_max}.")
    check_writable(out, PHASE_FILES, overwrite)

    from volition.cli.autonomy import autonomy_from_options
    from volition.cli.phase.run import PhaseRun
    from volition.io.tables import read_entities

    options = AutonomyOptions(kappa, gamma, zeta, temperature, autonomy)
    chosen, columns = autonomy_from_options(options, file, columns, metric)
    table = read_entities(file, columns, weight, None, metric)
    PhaseRun(table, str(file), chosen, metric, n_max, seed).run(out, overwrite, movie, quiet)
