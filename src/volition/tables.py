"""Tables in (CSV, Parquet), and placements out."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from volition.outputs import plain_text, write_csv
from volition.validation import FloatArray


@dataclass
class Table:
    """Numbers chosen from a file."""

    columns: list[str]
    values: FloatArray  # (n, len(columns))
    weight: FloatArray | None
    ids: list[str] | None


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
        A CSV file with a header line (comma, semicolon or tab) or a Parquet file.
    columns : list of str, optional
        By default all but ``weight`` and ``id_column``.
    weight, id_column : str, optional
        Names of those columns.

    Returns
    -------
    Table
    """
    if not path.exists():
        raise ValueError(f"No such file: {path}.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; a CSV or Parquet file is needed.")
    read = _read_parquet if path.suffix.lower() in (".parquet", ".pq") else _read_csv
    header, cells, lines = read(path)
    for name in [*(columns or []), *filter(None, (weight, id_column))]:
        if name not in header:
            raise ValueError(f"{path} has no column '{name}'; it has {', '.join(header)}.")
    others = {weight, id_column}
    chosen = list(columns) if columns else [name for name in header if name not in others]
    if not chosen:
        raise ValueError(f"{path} has no column left for the entities.")
    if len(next(iter(cells.values()))) == 0:
        raise ValueError(f"{path} has a header but no rows.")
    values = np.column_stack([_numbers(cells[c], c, path, lines) for c in chosen])
    return Table(
        chosen,
        values,
        None if weight is None else _numbers(cells[weight], weight, path, lines),
        None if id_column is None else [str(v) for v in cells[id_column]],
    )


class Log(NamedTuple):
    """Answers read from a file."""

    columns: dict[str, Any]
    lines: list[int]  # of the file, one for each answer
    unanswered: int  # rows without a realised cluster, left out


def read_log(path: Path) -> Log:
    """Read a log of answers, numbers where they must be.

    Columns: entity (as text), prescribed and realized (or realised); cost, timestamp, propensity
    and layout if there.
    """
    if not path.is_file():
        raise ValueError(f"No such file: {path}.")
    read = _read_parquet if path.suffix.lower() in (".parquet", ".pq") else _read_csv
    header, cells, lines = read(path)
    names = {"realised": "realized"}
    cells = {names.get(name, name): cells[name] for name in header}
    for name in ("entity", "prescribed", "realized"):
        if name not in cells:
            raise ValueError(f"{path} has no column '{name}'; it has {', '.join(header)}.")
    if not lines:
        raise ValueError(f"{path} has a header but no rows.")
    # A row without a realised cluster is an answer that never came.
    kept = [n for n, cell in enumerate(cells["realized"]) if cell is not None and str(cell).strip()]
    if not kept:
        raise ValueError(f"{path} has no row with a realised cluster.")
    unanswered = len(lines) - len(kept)
    cells = {name: [values[n] for n in kept] for name, values in cells.items()}
    lines = [lines[n] for n in kept]
    columns: dict[str, Any] = {"entity": np.array([str(v) for v in cells["entity"]], dtype=object)}
    for name in ("prescribed", "realized", "cost", "propensity", "layout"):
        if name in cells:
            columns[name] = _numbers(cells[name], name, path, lines)
    if "timestamp" in cells:
        times = cells["timestamp"]
        plain = all(_is_number(str(v)) for v in times)
        columns["timestamp"] = np.array([float(v) if plain else str(v) for v in times])
    return Log(columns, lines, unanswered)


def read_entities(
    path: Path, columns: str | None, weight: str | None, id_column: str | None, metric: str
) -> Table:
    """Read entities as the command line names them, ``columns`` as a,b,c."""
    names = [name.strip() for name in columns.split(",")] if columns else None
    table = read_table(path, names, weight, id_column)
    if "haversine" in metric and table.columns[0].lower().startswith(("lon", "lng")):
        raise ValueError(
            f"metric '{metric}' takes latitude first, then longitude; got columns "
            f"{','.join(table.columns)}. Say --columns with latitude first."
        )
    return table


def _rows_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each line that is not blank; find out the delimiter."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            delimiter = max(",;\t", key=stream.readline().count)
            stream.seek(0)
            reader = csv.reader(stream, delimiter=delimiter)
            for row in reader:
                if any(cell.strip() for cell in row):
                    yield reader.line_num, [plain_text(cell) for cell in row]
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}.") from None


def _read_csv(path: Path) -> tuple[list[str], dict[str, Any], list[int]]:
    rows = _rows_of(path)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{path} is empty; a header line and rows are needed.")
    header = [name.strip() for name in first[1]]
    if all(_is_number(name) for name in header):
        raise ValueError(
            f"{path} has no header: its first line holds numbers only ({', '.join(header)}); add a "
            "line with the columns' names."
        )
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise ValueError(f"{path} has the column '{twice}' more than once.")
    lines, body = [], []
    for line, row in rows:
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {line}: {len(row)} cells, but the header has {len(header)}."
            )
        lines.append(line)
        body.append(row)
    columns = list(zip(*body, strict=True)) if body else [()] * len(header)
    return header, dict(zip(header, columns, strict=True)), lines


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path) -> tuple[list[str], dict[str, Any], list[int]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"Reading {path} needs pyarrow: pip install 'volition[io]'.") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}.") from None
    cells = {name: table[name].to_pylist() for name in table.column_names}
    return list(table.column_names), cells, list(range(1, table.num_rows + 1))


def _numbers(cells: Sequence[Any], name: str, path: Path, lines: list[int]) -> FloatArray:
    try:
        values = np.array(cells, dtype=np.float64)
        if np.isfinite(values).all():
            return values
    except (TypeError, ValueError):
        pass
    for line, cell in zip(lines, cells, strict=True):
        try:
            if np.isfinite(float(cell)):
                continue
        except (TypeError, ValueError):
            pass
        shown = "an empty cell" if cell is None or str(cell).strip() == "" else repr(cell)
        raise ValueError(
            f"{path}, line {line}, column '{name}': {shown} is not a finite number; choose numeric "
            "columns, or mend the file."
        )
    return values


def read_matrix(path: Path) -> FloatArray:
    """Read a K x K matrix of p(k | j) from a CSV file without header."""
    if not path.is_file():
        raise ValueError(f"No such file: {path}.")
    rows: list[list[float]] = []
    for line, cells in _rows_of(path):
        for column, cell in enumerate(cells, start=1):
            if not _is_number(cell):
                raise ValueError(
                    f"{path}, line {line}, column {column}: {cell!r} is not a number; the file "
                    "must hold K rows of K probabilities, without header."
                )
        rows.append([float(cell) for cell in cells])
    if not rows or any(len(row) != len(rows) for row in rows):
        raise ValueError(
            f"{path} must hold K rows of K probabilities each, got {len(rows)} rows of "
            f"{sorted({len(row) for row in rows})} cells."
        )
    return np.array(rows)


def write_placement(
    folder: Path, table: Table, centers: FloatArray, labels: Any, costs: FloatArray
) -> None:
    """Write centers.csv, and assignments.csv with the expected cost of each prescription."""
    write_csv(
        folder / "centers.csv",
        ["cluster", *table.columns],
        ([k, *map(float, center)] for k, center in enumerate(centers)),
    )
    ids = range(len(table.values)) if table.ids is None else table.ids
    write_csv(
        folder / "assignments.csv",
        ["entity", "prescribed", "expected_cost"],
        (
            [name, int(j), float(f"{row[j]:.6g}")]
            for name, j, row in zip(ids, labels, costs, strict=True)
        ),
    )
