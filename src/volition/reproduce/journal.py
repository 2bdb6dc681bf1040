"""Running a study: one case after the other, each written down as soon as it is done."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import volition
from volition.reproduce.page import Page
from volition.reproduce.study import Case, Row, Settings, Study
from volition.tables import output_folder

JOURNAL = "cases.jsonl"

#: called with the study, how many cases are done of how many, the case that comes next (None at the
#: end), and how many seconds are left, about
OnCase = Callable[[Study, int, int, Case | None, float], Any]


class Journal:
    """Rows of a run that may be broken off at any time; a line that is not whole does not count."""

    def __init__(self, path: Path, header: dict[str, Any], resume: bool) -> None:
        self.path, self.rows = path, dict[str, Row]()
        if resume and path.is_file():
            lines = [one for one in map(_decoded, path.read_text("utf-8").split("\n")) if one]
            if lines and lines[0] != header:
                differ = [key for key in header if lines[0].get(key) != header[key]]
                raise ValueError(
                    f"{path} was begun with another {' and '.join(differ)} "
                    f"({', '.join(str(lines[0].get(key)) for key in differ)}); leave --resume away "
                    "to begin anew, or choose another --out."
                )
            self.rows = {line["name"]: line for line in lines[1:] if "name" in line}
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = [header, *self.rows.values()]
        text = "".join(json.dumps(line) + "\n" for line in whole)
        partial = path.with_suffix(".partial")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)

    def add(self, row: Row) -> None:
        """Write a row down, for good."""
        self.rows[row["name"]] = row
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def _decoded(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def run(
    study: Study,
    folder: Path,
    settings: Settings,
    *,
    resume: bool = False,
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
    on_case : callable, optional
        Told before each case, and at the end, how far it is.

    Returns
    -------
    Page

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from volition.reproduce import STUDIES, Settings, run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = run(STUDIES["figure1"], Path(folder), Settings(quick=True))
    ...     (Path(folder) / "page.md").is_file()
    True
    """
    cases = study.cases(settings)
    header = {
        "study": study.name,
        "volition": volition.__version__,
        "quick": settings.quick,
        "seed": settings.seed,
    }
    journal = Journal(folder / JOURNAL, header, resume)
    due = [case for case in cases if case.name not in journal.rows]
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
    rows = [journal.rows[case.name] for case in cases]
    with output_folder(folder) as work:
        page = Page(work, study, settings, rows)
        study.present(rows, page)
        page.write()
    return page
