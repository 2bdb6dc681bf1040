"""Tables in (CSV, Parquet), and placements out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from volition.choices.coding import holds_text
from volition.core.costs import geographic_hint
from volition.core.messages import shortened
from volition.core.validation import FloatArray
from volition.io.cells import (
    Cells,
    as_numbers,
    as_text,
    is_number,
    read_cells,
    require_columns,
    require_once,
    rows_of,
)
from volition.io.records import is_missing
from volition.io.results import write_csv


@dataclass
class Table:
    """Numbers chosen from a file."""

    columns: list[str]
    values: FloatArray  # (n, len(columns))
    weight: FloatArray | None
    ids: list[str] | None
    #: what the user should know about them
    notes: list[str] = field(default_factory=list)


def read_table(
    path: Path,
    columns: Sequence[str] | None = None,
    weight: str | None = None,
    id_column: str | None = None,
) -> Table:
    """Read the columns that hold entities, and where given their weight and identifier.

    Parameters
    ----------
    path : Path
        A CSV file with a header line (comma, semicolon or tab), a Parquet file, or points in a
        GeoJSON file.
    columns : list of str, optional
        By default all but ``weight`` and ``id_column``.
    weight, id_column : str, optional
        Names of those columns.

    Returns
    -------
    Table
    """
    cells = read_cells(path)
    require_once(columns or [])
    require_columns(cells, [*(columns or []), *filter(None, (weight, id_column))], path)
    others = {weight, id_column}
    chosen = list(columns) if columns else [name for name in cells.header if name not in others]
    if not chosen:
        raise ValueError(f"{path} has no column left for the entities.")
    if not cells.lines:
        raise ValueError(f"{path} has a header but no rows.")
    values = np.column_stack([as_numbers(cells, name, path) for name in chosen])
    return Table(
        chosen,
        values,
        None if weight is None else as_numbers(cells, weight, path),
        None if id_column is None else as_text(cells, id_column, path),
    )


def read_covariates(path: Path, names: Sequence[str]) -> dict[str, Any]:
    r"""Read covariates: columns of numbers, or of text where no cell is a number.

    Parameters
    ----------
    path : Path
        The table of entities.
    names : sequence of str
        Columns.

    Returns
    -------
    dict of str to array or list of str

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from volition.io.tables import read_covariates
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "drivers.csv"
    ...     _ = path.write_text("x,kind\n1,car\n2,van\n")
    ...     read_covariates(path, ["kind"])
    {'kind': ['car', 'van']}
    """
    cells = read_cells(path)
    require_once(names, "--covariates")
    require_columns(cells, names, path)
    found: dict[str, Any] = {}
    for name in names:
        column = cells.columns[name]
        empty = next((n for n, c in enumerate(column) if c is None or not str(c).strip()), None)
        if name not in cells.odd and empty is None and holds_text(column):
            found[name] = as_text(cells, name, path)
        else:
            found[name] = as_numbers(cells, name, path)
    return found


class Log(NamedTuple):
    """Answers read from a file."""

    columns: dict[str, Any]
    lines: list[int]  # of the file, one for each answer
    unanswered: int  # rows without a realised cluster, left out


def read_log(path: Path, *, names: bool = False) -> Log:
    """Read a log of answers, numbers where they must be.

    Columns: entity (as text), prescribed and realized (or realised), as numbers or as the centres'
    names; cost, timestamp, propensity and layout if there. Others are kept as they are: they may
    tell one row from another.

    Parameters
    ----------
    path : Path
        CSV or Parquet file.
    names : bool
        Whether clusters have names, so that numbers are names too.

    Returns
    -------
    Log
    """
    cells = read_cells(path)
    if "realised" in cells.columns and "realized" in cells.columns:
        raise ValueError(f"{path} has both columns 'realised' and 'realized'; keep one of them.")
    old = {"realised": "realized"}
    cells = cells._replace(
        header=[old.get(name, name) for name in cells.header],
        columns={old.get(name, name): column for name, column in cells.columns.items()},
        odd={old.get(name, name): kind for name, kind in cells.odd.items()},
    )
    require_columns(cells, ("entity", "prescribed", "realized"), path)
    if not cells.lines:
        raise ValueError(f"{path} has a header but no rows.")
    kept = [n for n, cell in enumerate(cells.columns["realized"]) if not is_missing(cell)]
    if not kept:
        raise ValueError(f"{path} has no row with a realised cluster.")
    unanswered = len(cells.lines) - len(kept)
    if unanswered:
        cells = cells._replace(
            columns={n: [column[row] for row in kept] for n, column in cells.columns.items()},
            lines=[cells.lines[row] for row in kept],
        )
    columns: dict[str, Any] = {}
    for name in cells.header:
        if name in ("cost", "propensity", "layout"):
            columns[name] = as_numbers(cells, name, path)
        elif name in ("prescribed", "realized"):
            columns[name] = _clusters(cells, name, path, names)
        elif name == "timestamp":
            times = as_text(cells, name, path)
            plain = all(is_number(time) for time in times)
            columns[name] = np.array([float(time) if plain else time for time in times])
        else:
            columns[name] = np.array([str(cell) for cell in cells.columns[name]], dtype=object)
    as_text(cells, "entity", path)  # refuses empty names
    return Log(columns, cells.lines, unanswered)


def _clusters(cells: Cells, name: str, path: Path, names: bool) -> Any:
    """Return clusters as numbers if all are, else as text."""
    given = cells.columns[name]
    if not names and (name in cells.odd or all(c is None or is_number(str(c)) for c in given)):
        return as_numbers(cells, name, path)
    return np.array([label.strip() for label in as_text(cells, name, path)], dtype=object)


def read_entities(
    path: Path,
    columns: str | Sequence[str] | None,
    weight: str | None,
    id_column: str | None,
    metric: str,
) -> Table:
    """Read entities as the command line names them, ``columns`` as a,b,c or in a list."""
    if isinstance(columns, str):
        columns = [name.strip() for name in columns.split(",")]
    names = list(columns) if columns else None
    table = read_table(path, names, weight, id_column)
    if "haversine" in metric and table.columns[0].lower().startswith(("lon", "lng")):
        raise ValueError(
            f"metric '{metric}' takes latitude first, then longitude; got columns "
            f"{','.join(table.columns)}. Say --columns with latitude first."
        )
    hint = geographic_hint(metric, table.columns, table.values)
    table.notes += [hint] if hint else []
    return table


def read_matrix(path: Path) -> FloatArray:
    """Read a K x K matrix of p(k | j) from a CSV file without header."""
    if not path.is_file():
        raise ValueError(f"No such file: {path}.")
    rows: list[list[float]] = []
    for line, cells in rows_of(path):
        for column, cell in enumerate(cells, start=1):
            if not is_number(cell):
                raise ValueError(
                    f"{path}, line {line}, column {column}: {shortened(cell)} is not a number; "
                    "the file must hold K rows of K probabilities, without header."
                )
        rows.append([float(cell) for cell in cells])
    if not rows or any(len(row) != len(rows) for row in rows):
        raise ValueError(
            f"{path} must hold K rows of K probabilities each, got {len(rows)} rows of "
            f"{sorted({len(row) for row in rows})} cells."
        )
    return np.array(rows)


def write_placement(
    folder: Path,
    table: Table,
    centers: FloatArray,
    labels: Any,
    costs: FloatArray | None,
    names: Sequence[str] | None = None,
) -> None:
    """Write centers.csv, and assignments.csv with the expected cost of each prescription.

    Clusters have numbers, or ``names``. Expected costs are empty where there are none to go by.
    """
    cluster = range(len(centers)) if names is None else names
    write_csv(
        folder / "centers.csv",
        ["cluster", *table.columns],
        ([k, *map(float, center)] for k, center in zip(cluster, centers, strict=True)),
    )
    ids = range(len(table.values)) if table.ids is None else table.ids
    expected: list[float | None] = [None] * len(table.values)
    if costs is not None:
        expected = [float(f"{row[j]:.6g}") for row, j in zip(costs, labels, strict=True)]
    write_csv(
        folder / "assignments.csv",
        ["entity", "prescribed", "expected_cost"],
        (
            [name, cluster[j] if j >= 0 else -1, cost]
            for name, j, cost in zip(ids, labels, expected, strict=True)
        ),
    )
