"""What ``volition reproduce`` does: one study after the other, with progress."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from volition.cli.terminal import make_console
from volition.io.results import check_writable
from volition.paper import STUDIES, Case, Settings, Study, open_journal, run, together
from volition.paper.page import HEAD


def studies_named(name: str | None) -> list[Study]:
    """Return the study of this name; all of them without a name."""
    if name is None:
        return list(STUDIES.values())
    if name not in STUDIES:
        raise ValueError(f"There is no study '{name}'; choose {', '.join(STUDIES)}, or all.")
    return [STUDIES[name]]


class Reproduction(NamedTuple):
    """Studies to be run, and what the user has chosen."""

    studies: list[Study]
    out: Path
    settings: Settings
    resume: bool
    restart: bool

    def run(self, may_skip: bool, quiet: bool) -> None:
        """Run the studies; where ``may_skip`` says so, leave out those that lack their data."""
        console = make_console()
        runs = self._with_data(console) if may_skip else self
        runs._check_folders()
        runs._print_times(console)
        with _Shown(quiet) as shown:
            try:
                for study in runs.studies:
                    folder = self.out / study.name
                    how = {"resume": self.resume, "restart": self.restart}
                    run(study, folder, self.settings, **how, on_case=shown)
                    console.print(f"{study.name}: {folder / 'page.md'}")
            except KeyboardInterrupt:
                console.print(
                    "Stopped. What is done is kept: the same command with --resume goes on."
                )
                raise SystemExit(130) from None
        path = together(self.out, list(STUDIES.values()))
        console.print(f"All pages that are there together: {path}")

    def _with_data(self, console: Console) -> Reproduction:
        """Return the studies that have the data they need, and say which have not."""
        lacking = [s for s in self.studies if s.needs_data and self.settings.data is None]
        for study in lacking:
            console.print(f"{study.name}: left out, because it needs --data.")
        return self._replace(studies=[s for s in self.studies if s not in lacking])

    def _check_folders(self) -> None:
        """Raise ValueError before anything is begun that could not be finished."""
        for study in self.studies:
            folder, files = self.out / study.name, ("page.md", f"{study.name}.json")
            open_journal(study, folder, self.settings, self.resume, self.restart)
            check_writable(folder, files, self.resume or self.restart, "--resume keeps them, ")
        _check_readme(self.out / "README.md", self.restart)

    def _print_times(self, console: Console) -> None:
        minutes = [study.expected(self.settings) / 60 for study in self.studies]
        for study, each in zip(self.studies, minutes, strict=True):
            console.print(f"{study.name}: about {_minutes(each)} on two cores.")
        if len(minutes) > 1:
            console.print(f"In all: about {_minutes(sum(minutes))}.")


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
