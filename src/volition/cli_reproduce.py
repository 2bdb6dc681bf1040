"""``volition reproduce``: the paper's tables and figures, one command each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from volition.reproduce import STUDIES, Case, Page, Settings, Study, run
from volition.tables import check_writable

ALL = "all"


def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(STUDIES)}, or {ALL}.")],
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the results; each study has its own in it.")
    ] = Path("volition-results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer seeds and cases: minutes instead of an hour.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an earlier run was stopped.")
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
            help="Folder with table1.csv and london.csv: published figures beyond those printed "
            "in the paper."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Run an experiment of the paper again, and put its figures beside the published ones.

    Writes page.md with tables and pictures, each table as CSV, each picture as PNG and SVG, and
    everything with seeds and versions as JSON. A run that is stopped goes on with --resume.
    """
    if name not in (*STUDIES, ALL):
        raise ValueError(f"There is no study '{name}'; choose {', '.join(STUDIES)}, or {ALL}.")
    check_writable(out)
    settings = Settings(quick, seed, data, published)
    studies = list(STUDIES.values()) if name == ALL else [STUDIES[name]]
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if any(study.needs_data for study in studies):
        try:
            settings.london()
        except ValueError as error:
            if name != ALL:
                raise
            console.print(f"Left out: {error}")
            studies = [study for study in studies if not study.needs_data]
    settings.figures("table1.csv")
    for study in studies:
        minutes = study.expected(settings) / 60
        console.print(f"{study.name}: about {_minutes(minutes)} on two cores.")
    pages = {}
    with _Shown(quiet) as shown:
        try:
            for study in studies:
                folder = out / study.name
                page = run(study, folder, settings, resume=resume, on_case=shown)
                pages[study.name] = page
                console.print(f"{study.name}: {folder / 'page.md'}")
        except KeyboardInterrupt:
            console.print(
                "Stopped. What is done is kept: go on with the same command and --resume."
            )
            raise SystemExit(130) from None
    if name == ALL:
        path = out / "README.md"
        path.write_text(_together(pages), encoding="utf-8")
        console.print(f"All pages together: {path}")


def _together(pages: dict[str, Page]) -> str:
    """Return all pages as one, with a table of contents."""
    parts = ["# Results\n\nThe paper's tables and figures, obtained with Volition. "]
    parts[0] += "Each section ends with the command that makes it.\n"
    parts += [page.markdown(prefix=f"{name}/", level=2) for name, page in pages.items()]
    return "\n".join(parts)


def _minutes(minutes: float) -> str:
    return f"{60 * minutes:.0f} s" if minutes < 1 else f"{minutes:.0f} min"


class _Shown:
    """Progress: a bar on a terminal, a line for each case elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.bar = quiet, sys.stderr.isatty()
        self.console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
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
        remaining = f"about {_minutes(left / 60)} left" if case is not None else "done"
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
