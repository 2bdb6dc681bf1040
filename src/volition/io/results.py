"""Results on disk: each folder complete or not at all, no earlier result lost, no cell executed.

Spreadsheets execute a cell of text that begins with = + - @ or a tab. Such text gets an apostrophe
in front (the way of OWASP), and so does text in which apostrophes stand before such a sign, so that
nothing is ambiguous: ``plain_text`` takes exactly one away again. Numbers are written as they are.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from volition.io.checked_files import WriteError, naming, reason_of, sweep, temporary_prefix

#: text that spreadsheets take for a formula (also with full-width signs), or for one once an
#: apostrophe is gone
_FORMULA = re.compile("'*[=+\\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


def safe_text(text: str) -> str:
    """Return text as a spreadsheet shows it and does not execute it; numbers stay numbers.

    Examples
    --------
    >>> from volition.io.results import safe_text
    >>> safe_text("=1+1"), safe_text("-3.5"), safe_text("O'Neill")
    ("'=1+1", '-3.5', "O'Neill")
    """
    if text[:1].isalnum() or not _FORMULA.match(text) or _NUMBER.fullmatch(text):
        return text
    return f"'{text}"


def plain_text(text: str) -> str:
    """Return text that `safe_text` has made safe as it was before; leave other text as it is.

    Examples
    --------
    >>> from volition.io.results import plain_text
    >>> plain_text("'=1+1"), plain_text("'tis")
    ('=1+1', "'tis")
    """
    return text[1:] if text[:1] == "'" and safe_text(text[1:]) == text else text


class _Lines:
    """Lets the csv module quote carriage returns, which it does only where they end lines."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, line: str) -> None:
        self.stream.write(line.removesuffix("\r\n") + "\n")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file; text that a spreadsheet would execute is made safe by `safe_text`."""
    with naming(path), open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(_Lines(stream), lineterminator="\r\n")
        writer.writerow([safe_text(str(name)) for name in header])
        writer.writerows([_cell(value) for value in row] for row in rows)


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, int | float | np.number | np.bool_):
        return value
    return safe_text(str(value))


def check_writable(
    folder: Path, files: Sequence[str] = (), overwrite: bool = False, instead: str = ""
) -> None:
    """Raise ValueError unless results can go to a folder, before anything is computed.

    Parameters
    ----------
    folder : Path
        Made, and taken away again, to see whether it can be.
    files : list of str
        Names, or patterns of names, of the files that are going to be written.
    overwrite : bool
        Whether they may replace those of an earlier run.
    instead : str
        What else the user can do, for the message.
    """
    try:
        there = folder
        while not there.exists():
            there = there.parent
        if not there.is_dir():
            raise ValueError(f"The output folder {folder} cannot be written: {there} is a file.")
        with _made(folder):
            tempfile.TemporaryDirectory(prefix=temporary_prefix(), dir=folder).cleanup()
            found = [name for name in sorted(os.listdir(folder)) if _matches(name, files)]
            for name in found:
                if (folder / name).is_dir():
                    raise ValueError(f"{folder / name} is a folder, but a file must go there.")
    except OSError as error:
        raise ValueError(
            f"The output folder {folder} cannot be written: {reason_of(error)}."
        ) from None
    if found and not overwrite:
        raise ValueError(
            f"The output folder {folder} holds results of an earlier run ({', '.join(found)}); "
            f"{instead}--overwrite replaces them, another --out keeps both."
        )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


#: folders that results have been moved to, by this process
finished: list[Path] = []


@contextmanager
def _made(folder: Path) -> Iterator[list[Path]]:
    """Make a folder; afterwards take away again those that the list names, if they are empty."""
    made = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield made
    finally:
        for empty in made:
            with suppress(OSError):
                empty.rmdir()


@contextmanager
def output_folder(
    folder: Path, files: Sequence[str] = (), overwrite: bool = True
) -> Iterator[Path]:
    """Give a temporary folder; on success its files move to ``folder``, else nothing changes.

    What killed runs have left in ``folder`` is swept first.

    Parameters
    ----------
    folder : Path
        Made if missing.
    files : list of str
        Names, or patterns of names, of files of an earlier run that are no longer true: those that
        are not replaced are removed.
    overwrite : bool
        Whether files of an earlier run may be replaced.
    """
    try:
        with _made(folder) as made:
            sweep(folder)
            work = Path(tempfile.mkdtemp(prefix=temporary_prefix(), dir=folder))
            try:
                yield work
                finished.append(folder)
                _move(work, folder, files, overwrite)
                made.clear()
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except WriteError as error:
        inside = Path(error.path).parent == work
        raise WriteError(folder / Path(error.path).name if inside else error.path,
                         error.reason) from None  # fmt: skip
    except OSError as error:
        raise WriteError(f"The output folder {folder}", reason_of(error)) from None


def _move(work: Path, folder: Path, files: Sequence[str], overwrite: bool) -> None:
    new = sorted(work.iterdir())
    for file in new:
        if (folder / file.name).is_dir():
            raise ValueError(f"{folder / file.name} is a folder, but a file must go there.")
        if not overwrite and (folder / file.name).exists():
            raise ValueError(f"{folder / file.name} was written by another run in the meantime.")
    stale = {name for name in os.listdir(folder) if _matches(name, files)}
    for file in new:
        os.replace(file, folder / file.name)
    for name in stale - {file.name for file in new}:
        with suppress(OSError):
            (folder / name).unlink()


def plain_json(value: Any) -> Any:
    """Return what JSON can hold: null for numbers that are not finite.

    Examples
    --------
    >>> from volition.io.results import plain_json
    >>> plain_json({"cost": [1.0, float("nan")]})
    {'cost': [1.0, None]}
    """
    if isinstance(value, dict):
        return {name: plain_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
