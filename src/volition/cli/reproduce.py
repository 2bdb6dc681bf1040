"""``volition reproduce``: the paper's tables and figures, one command each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from volition.cli.output import Out
from volition.cli.terminal import make_console
from volition.io.results import check_writable
from volition.paper import STUDIES, Case, Settings, Study, open_journal, run, together
from volition.paper.page import HEAD

ALL = "all"


def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(STUDIES)}, or {ALL}.")],
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
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Run an experiment of the paper again, and put its figures beside the published ones.

    Each study has a folder of its own in that of the results. Writes page.md with tables and
    pictures, each table as CSV, each picture as PNG and SVG, and everything with seeds and versions
    as JSON. A run that is stopped goes on with --resume.
    """
    if name not in (*STUDIES, ALL):
        raise ValueError(f"There is no study '{name}'; choose {', '.join(STUDIES)}, or {ALL}.")
    if resume and restart:
        raise ValueError("--resume keeps what is done and --restart does not: say one of them.")
    if seed < 0:
        raise ValueError(f"--seed must be 0 or more, got {seed}.")
    if published is not None and not published.is_dir():
        raise ValueError(f"--published {published} is no folder.")
    check_writable(out)
    settings = Settings(quick, seed, data, published)
    studies = list(STUDIES.values()) if name == ALL else [STUDIES[name]]
    console = make_console()
    without = [study for study in studies if study.needs_data and data is None]
    if name == ALL and without:
        studies = [study for study in studies if study not in without]
        for study in without:
            console.print(f"{study.name}: left out, because it needs --data.")
    for study in studies:  # nothing is begun that could not be finished
        open_journal(study, out / study.name, settings, resume, restart)
        files = ("page.md", f"{study.name}.json")
        check_writable(out / study.name, files, resume or restart, "--resume keeps them, ")
    _check_readme(out / "README.md", restart)
    for study in studies:
        minutes = study.expected(settings) / 60
        console.print(f"{study.name}: about {_minutes(minutes)} on two cores.")
    total = sum(study.expected(settings) for study in studies) / 60
    if len(studies) > 1:
        console.print(f"In all: about {_minutes(total)}.")
    with _Shown(quiet) as shown:
        try:
            for study in studies:
                folder = out / study.name
                run(study, folder, settings, resume=resume, restart=restart, on_case=shown)
                console.print(f"{study.name}: {folder / 'page.md'}")
        except KeyboardInterrupt:
            console.print("Stopped. What is done is kept: the same command with --resume goes on.")
            raise SystemExit(130) from None
    path = together(out, list(STUDIES.values()))
    console.print(f"All pages that are there together: {path}")


def _check_readme(path: Path, overwrite: bool) -> None:
    """Raise ValueError where the page that joins all others would replace one of somebody else."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder, but a file must go there.")
    if path.is_file() and not overwrite and not path.read_bytes().startswith(HEAD.encode()):
        raise ValueError(
            f"{path} was not written by volition reproduce; --overwrite replaces it, another --out "
            "keeps both."
        )


def _minutes(minutes: float) -> str:
    return f"{60 * minutes:.0f} s" if minutes < 1 else f"{minutes:.0f} min"


class _Shown:
    """Progress: a bar on a terminal, a line for each case elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.bar = quiet, sys.stderr.isatty()
        self.console = make_console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(), console=self.console, disable=quiet or not self.bar,
            transient=True,
        )  # fmt: skip
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> _Shown:
        self.progress.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.progress.stop()

    def __call__(self, study: Study, done: int, total: int, case: Case | None, left: float) -> None:
        if self.quiet:
            return
        remaining = f"about {_minutes(left / 60)} left" if case is not None else "drawing"
        doing = study.name if case is None else f"{study.name}: {case.name}"
        if not self.bar:
            if case is not None:
                self.console.print(f"[{done + 1}/{total}] {doing}; {remaining}")
            return
        if study.name not in self.tasks:
            self.tasks[study.name] = self.progress.add_task(doing, total=total, left=remaining)
        self.progress.update(
            self.tasks[study.name], completed=done, description=doing, left=remaining
        )
