"""``volition reproduce``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from volition.cli.options import Out, Quiet, Seed
from volition.io.results import check_writable
from volition.paper import STUDY_NAMES

ALL = "all"


def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(STUDY_NAMES)}, or {ALL}.")],
    out: Out = Path("volition-results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer seeds and cases where there are many.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an earlier run was stopped.")
    ] = False,
    restart: Annotated[
        bool,
        typer.Option(
            "--overwrite", "--restart", help="Replace an earlier run, whether finished or stopped."
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="For london: the paper's MATLAB file (variable Xz), or UTD19's "
            "detectors_public.csv."
        ),
    ] = None,
    published: Annotated[
        Path | None,
        typer.Option(
            help="Folder with table1.csv (kappa, gamma, zeta, temperature, "
            "distortion_ground_truth, aden_gap_percent, ignored_gap_percent) and london.csv "
            "(kappa, temperature, algorithm1, best_known): figures beyond those printed in the "
            "paper. Without it those columns are left out."
        ),
    ] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Run an experiment of the paper again, and put its figures beside the published ones.

    Each study has a folder of its own in that of the results. Writes page.md with tables and
    pictures, each table as CSV, each picture as PNG and SVG, and everything with seeds and versions
    as JSON. A run that is stopped goes on with --resume.
    """
    if resume and restart:
        raise ValueError("--resume keeps what is done and --restart does not: say one of them.")
    if seed < 0:
        raise ValueError(f"--seed must be 0 or more, got {seed}.")
    if published is not None and not published.is_dir():
        raise ValueError(f"--published {published} is no folder.")
    check_writable(out)

    from volition.cli.reproduce.run import Reproduction, studies_named
    from volition.paper import Settings

    settings = Settings(quick, seed, data, published)
    studies = studies_named(None if name == ALL else name)
    Reproduction(studies, out, settings, resume, restart).run(name == ALL, quiet)
