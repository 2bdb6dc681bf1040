"""Running a study: one case after the other, each written down as soon as it is done."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import sklearn
import torch

import volition
from volition.io.checked_files import naming, reading, replace_file, shown
from volition.io.results import output_folder
from volition.paper.page import Page
from volition.paper.study import Case, Row, Settings, Study

JOURNAL = "cases.jsonl"

#: called with the study, how many cases are done of how many, the case that comes next (None at the
#: end), and how many seconds are left, about
OnCase = Callable[[Study, int, int, Case | None, float], Any]


class Journal:
    """Rows of a run that may be broken off at any time; a line that is not whole does not count."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path, self.header = path, header
        self.rows: dict[str, Row] = {}

    def open(self, resume: bool, restart: bool, n_cases: int) -> None:
        """Go on from what an earlier run has left, or start again.

        Raises ValueError, and changes nothing, where what is there does not fit, or would be lost.
        """
        found = [] if restart else self._found()
        if resume and found:
            differ = [key for key in self.header if found[0].get(key) != self.header[key]]
            if differ:
                was = ", ".join(f"{key} {shown(str(found[0].get(key)))}" for key in differ)
                now = ", ".join(f"{key} {self.header[key]}" for key in differ)
                raise ValueError(
                    f"{self.path} was begun with {was}, not with {now}; --restart starts again, "
                    "another --out keeps both."
                )
            self.rows = {line["name"]: line for line in found[1:]}
        elif not restart and 1 < len(found) <= n_cases:
            raise ValueError(
                f"{self.path} holds a run that was stopped after {len(found) - 1} cases; --resume "
                "goes on with it, --restart starts again."
            )
        elif not restart and found and found[0].get("quick") is False and self.header["quick"]:
            raise ValueError(
                f"{self.path} holds a full run; --restart replaces it by a quick one, another "
                "--out keeps both."
            )

    def _found(self) -> list[Row]:
        """Return the header and the rows that are there; the last line may be cut short."""
        if not self.path.is_file():
            return []
        lines = self.path.read_bytes().split(b"\n")
        found: list[Row] = []
        for number, line in enumerate(lines, start=1):
            row = _decoded(line)
            if row is None and (number == len(lines) or not line.strip()):
                continue  # a run that was killed while it wrote, or the end of the file
            if row is None or (found and not isinstance(row.get("name"), str)):
                raise ValueError(
                    f"{self.path}, line {number} is damaged: it holds no result of a case; correct "
                    "or remove the file, or start again with --overwrite."
                )
            found.append(row)
        if found and found[0].get("study") != self.header["study"]:
            raise ValueError(
                f"{self.path}, line 1 is damaged: it does not begin a run of "
                f"{self.header['study']}; correct or remove the file, or start again with "
                "--overwrite."
            )
        return found

    def write(self) -> None:
        """Write what is kept of an earlier run."""
        with naming(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(map(_encoded, (self.header, *self.rows.values())))
        replace_file(self.path, lambda name: Path(name).write_text(text, encoding="utf-8"))

    def add(self, row: Row) -> None:
        """Write a row down, for good."""
        self.rows[row["name"]] = row
        line = _encoded(row).encode()
        with naming(self.path), open(self.path, "ab", buffering=0) as stream:
            size = stream.tell()
            try:
                while line:
                    line = line[stream.write(line) :]
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(size)  # half a line would be in the way of the next one
                raise


def _encoded(row: Row) -> str:
    """Return a row as a line that carries its own checksum."""
    return json.dumps({**row, "sum": _sum(row)}) + "\n"


def _decoded(line: bytes) -> Row | None:
    """Return the row of a line; None where it is not whole, or a digit is not as it was."""
    try:
        row = json.loads(line)
        return row if row.pop("sum") == _sum(row) else None
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        return None


def _sum(row: Row) -> str:
    return hashlib.sha256(json.dumps(row).encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Return the versions that results may depend on."""
    return {
        "volition": volition.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "scikit-learn": sklearn.__version__,
    }


def open_journal(
    study: Study, folder: Path, settings: Settings, resume: bool, restart: bool
) -> Journal:
    """Return the journal of a study, with what is kept of an earlier run; check all input."""
    study.check(settings)
    header: dict[str, Any] = {
        "study": study.name,
        **versions(),
        "quick": settings.quick,
        "seed": settings.seed,
    }
    if study.needs_data:
        content = settings.london().tobytes()
        header["data"] = hashlib.sha256(content).hexdigest()[:16]
    journal = Journal(folder / JOURNAL, header)
    journal.open(resume, restart, len(study.cases(settings)))
    return journal


def run(
    study: Study,
    folder: Path,
    settings: Settings,
    *,
    resume: bool = False,
    restart: bool = False,
    on_case: OnCase | None = None,
) -> Page:
    """Do a study; write its page, tables, pictures and rows to a folder.

    Parameters
    ----------
    study : Study
        What to do.
    folder : Path
        Where the results go; made if missing.
    settings : Settings
        Seed, quick or not, where data are.
    resume : bool
        Whether cases that an earlier run has finished are kept.
    restart : bool
        Whether a run that was stopped, or a full one where this one is quick, may be thrown away.
    on_case : callable, optional
        Called before each case, and at the end, with how far the run has got.

    Returns
    -------
    Page

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from volition.paper import STUDIES, Settings, run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = run(STUDIES["figure1"], Path(folder), Settings(quick=True))
    ...     (Path(folder) / "page.md").is_file()
    True
    """
    cases = study.cases(settings)
    journal = open_journal(study, folder, settings, resume, restart)
    journal.write()
    due = [case for case in cases if case.name not in journal.rows]
    kept = len(due) < len(cases)
    left, worked, planned = sum(case.seconds for case in due), 0.0, 0.0
    for number, case in enumerate(due):
        # What is left, by what cases have taken so far against what they were expected to.
        pace = worked / planned if planned > 0 else 1.0
        if on_case is not None:
            on_case(study, len(cases) - len(due) + number, len(cases), case, left * pace)
        began = perf_counter()
        row = study.solve(case.params, settings)
        took = perf_counter() - began
        journal.add({"name": case.name, **case.params, **row, "took_s": round(took, 3)})
        worked, planned, left = worked + took, planned + case.seconds, left - case.seconds
    if on_case is not None:
        on_case(study, len(cases), len(cases), None, 0.0)
    import matplotlib

    matplotlib.use("Agg")
    rows = [journal.rows[case.name] for case in cases]
    # A row of an earlier run may be whole, and yet not what the study needs.
    with output_folder(folder) as work, reading(journal.path) if kept else nullcontext():
        page = Page(work, study, settings, rows, journal.header)
        study.present(rows, page)
        page.write()
    return page
