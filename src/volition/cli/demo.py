"""``volition demo``: the paper's small data set, solved as ``volition fit`` does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from volition.cli.options import Out, Quiet, Seed
from volition.cli.outputs import FIT_FILES
from volition.io.results import check_writable

SOURCE = "the four groups of the paper's figure 1"


def demo(
    out: Out = Path("volition-demo"),
    kappa: Annotated[float, typer.Option(help="How often entities override, 0 to 1.")] = 0.3,
    temperature: Annotated[
        float, typer.Option(help="How freely they choose: small = the nearest, large = any.")
    ] = 0.01,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Solve the paper's small data set: 1800 entities, 4 centres, 30 % of prescriptions ignored."""
    from volition import AutonomyAwareClustering, DistanceAutonomy
    from volition.cli.fit.run import run_fit
    from volition.datasets import load_four_groups
    from volition.io.tables import Table

    autonomy = DistanceAutonomy(kappa, temperature=temperature)
    check_writable(out, FIT_FILES, overwrite=_source_of(out) == SOURCE)
    table = Table(["x", "y"], load_four_groups().data, None, None)
    model = AutonomyAwareClustering(4, autonomy=autonomy, random_state=seed)
    run_fit(model, table, out, quiet, source=SOURCE)


def _source_of(folder: Path) -> Any:
    """Return what the results in a folder were made from; None if there are none."""
    try:
        return json.loads((folder / "summary.json").read_text(encoding="utf-8"))["source"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
