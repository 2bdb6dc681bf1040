"""The cells of a file: CSV, Parquet and GeoJSON points, as text or as what the file holds."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from volition.core.messages import a_few, shortened
from volition.core.validation import FloatArray
from volition.io.results import plain_text

#: files that planners have, and what to do with them
OTHERS = {
    ".xlsx": "an Excel file; save the sheet as CSV",
    ".xlsm": "an Excel file; save the sheet as CSV",
    ".xls": "an Excel file; save the sheet as CSV",
    ".ods": "a spreadsheet; save the sheet as CSV",
    ".json": "a JSON file; save it as CSV, or call it .geojson if it holds GeoJSON points",
    ".zip": "a packed file; unpack it, and give the CSV, Parquet or GeoJSON file inside",
    ".gz": "a packed file; unpack it, and give the CSV, Parquet or GeoJSON file inside",
    ".shp": "a shapefile; save its points as CSV or GeoJSON",
    ".gpkg": "a GeoPackage; save its points as CSV or GeoJSON",
    ".kml": "a KML file; save its points as CSV or GeoJSON",
}
#: first bytes of files whose names say something else
STARTS = {b"PK\x03\x04": ".zip", b"\xd0\xcf\x11\xe0": ".xls", b"\x1f\x8b": ".gz"}


class Cells(NamedTuple):
    """What a file holds, by column."""

    header: list[str]
    columns: dict[str, Sequence[Any]]
    lines: list[int]  # where each row is in the file
    place: str  # what those are: "line", "row" or "feature"
    #: columns whose cells are no single number or text, and what they are
    odd: dict[str, str]


def read_cells(path: Path) -> Cells:
    r"""Read all cells of a file, of the kind that its name says.

    Parameters
    ----------
    path : Path
        ``.parquet`` or ``.pq``: Parquet; ``.geojson``: a FeatureCollection of points, whose
        properties become columns after ``latitude`` and ``longitude``; all else: CSV with a header
        line (comma, semicolon or tab).

    Returns
    -------
    Cells

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from volition.io.cells import read_cells
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "sensors.csv"
    ...     _ = path.write_text("name;x\na;1\nb;2\n")
    ...     read_cells(path).columns["name"]
    ('a', 'b')
    """
    suffix = path.suffix.lower()
    if not path.exists():
        raise ValueError(f"No such file: {path}.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; a CSV, Parquet or GeoJSON file is needed.")
    if suffix in OTHERS:
        raise ValueError(f"{path} is {OTHERS[suffix]}.")
    readers = {".parquet": _read_parquet, ".pq": _read_parquet, ".geojson": _read_geojson}
    cells = readers.get(suffix, _read_csv)(path)
    if not cells.header:
        raise ValueError(f"{path} has no columns.")
    twice = [name for name, times in Counter(cells.header).items() if times > 1]
    if twice:
        raise ValueError(f"{path} has the column {shortened(twice[0])} more than once.")
    return cells


def require_columns(cells: Cells, names: Sequence[str], path: Path) -> None:
    """Raise unless the file has these columns."""
    for name in names:
        if name not in cells.columns:
            raise ValueError(
                f"{path} has no column {shortened(name)}; it has {a_few(cells.header, 20)}."
            )


def require_once(names: Sequence[str], option: str = "--columns") -> None:
    """Raise if a column is asked for twice: it would count twice.

    Examples
    --------
    >>> from volition.io.cells import require_once
    >>> require_once(["x", "y"])
    """
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise ValueError(f"{option} names {shortened(twice)} more than once.")


def rows_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each line that is not blank; find out the delimiter."""
    try:
        with open(path, "rb") as raw:
            start = raw.read(4)
        for bytes_, suffix in STARTS.items():
            if start.startswith(bytes_):
                raise ValueError(f"{path} is {OTHERS[suffix]}.")
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


def _read_csv(path: Path) -> Cells:
    rows = rows_of(path)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{path} is empty; a header line and rows are needed.")
    header = [name.strip() for name in first[1]]
    if all(is_number(name) for name in header):
        raise ValueError(
            f"{path} has no header: its first line holds numbers only ({a_few(header)}); add a "
            "line with the columns' names."
        )
    lines, body = [], []
    for line, row in rows:
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {line}: {len(row)} cells, but the header has {len(header)}."
            )
        lines.append(line)
        body.append(row)
    columns = list(zip(*body, strict=True)) if body else [()] * len(header)
    return Cells(header, dict(zip(header, columns, strict=True)), lines, "line", {})


def is_number(cell: str) -> bool:
    """Return whether a text is a number, as people write them: 1_0 is none."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _read_parquet(path: Path) -> Cells:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"Reading {path} needs pyarrow: pip install 'volition[io]'.") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            header = list(file.schema_arrow.names)
            if len(set(header)) < len(header):
                return Cells(header, {}, [], "row", {})  # the caller refuses it
            table = file.read()
        columns = {name: table[name].to_pylist() for name in header}
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {_one_line(error)}.") from None
    kinds = {field.name: _odd_kind(field.type, pyarrow.types) for field in table.schema}
    odd = {name: kind for name, kind in kinds.items() if kind is not None}
    return Cells(header, columns, list(range(1, table.num_rows + 1)), "row", odd)


def _odd_kind(type_: Any, types: Any) -> str | None:
    """Return what a Parquet column holds, where that is neither a number nor text."""
    if types.is_dictionary(type_):
        return _odd_kind(type_.value_type, types)
    kinds = {
        "true or false": (types.is_boolean,),
        "bytes": (types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
        "lists": (types.is_list, types.is_large_list, types.is_fixed_size_list),
        "dates or times": (types.is_temporal,),
        "nested values": (types.is_nested,),
    }
    return next((kind for kind, tests in kinds.items() if any(t(type_) for t in tests)), None)


def _read_geojson(path: Path) -> Cells:
    """Read points; each feature is a row."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as GeoJSON: {_one_line(error)}.") from None
    if not isinstance(content, dict) or content.get("type") != "FeatureCollection":
        raise ValueError(f"{path} must hold a GeoJSON FeatureCollection of points.")
    features = content.get("features")
    if not isinstance(features, list):
        raise ValueError(f"{path} must hold a GeoJSON FeatureCollection with a list 'features'.")
    places, properties = [], []
    for number, feature in enumerate(features, start=1):
        where = f"{path}, feature {number}"
        feature = feature if isinstance(feature, dict) else {}
        places.append(_point(feature.get("geometry"), where))
        mine = feature.get("properties") or {}
        if not isinstance(mine, dict):
            raise ValueError(f"{where}: 'properties' must be an object, got {shortened(mine)}.")
        properties.append(mine)
    names = list(dict.fromkeys(name for mine in properties for name in mine))
    # Latitude first, as --metric haversine takes them.
    columns: dict[str, Sequence[Any]] = {
        "latitude": [y for _, y in places],
        "longitude": [x for x, _ in places],
    }
    for name in names:
        if name in columns:
            raise ValueError(f"{path} has a property '{name}', which is also a coordinate's name.")
        columns[name] = [mine.get(name) for mine in properties]
    odd = {name: kind for name in names if (kind := _odd_cells(columns[name])) is not None}
    return Cells(list(columns), columns, list(range(1, len(places) + 1)), "feature", odd)


def _point(geometry: Any, where: str) -> tuple[Any, Any]:
    kind = geometry.get("type") if isinstance(geometry, dict) else None
    if kind != "Point":
        got = "no geometry" if kind is None else f"a {shortened(kind)}"
        raise ValueError(f"{where} is {got}; only points are read.")
    place = geometry.get("coordinates")
    numbers = isinstance(place, list) and len(place) >= 2
    if not numbers or any(isinstance(v, bool) or not isinstance(v, int | float) for v in place[:2]):
        raise ValueError(
            f"{where}: a point's coordinates must be [longitude, latitude], got {shortened(place)}."
        )
    return place[0], place[1]


def _odd_cells(cells: Sequence[Any]) -> str | None:
    kinds = {bool: "true or false", list: "lists", dict: "nested values"}
    return next(
        (kind for type_, kind in kinds.items() if any(type(c) is type_ for c in cells)), None
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")


def as_numbers(cells: Cells, name: str, path: Path) -> FloatArray:
    """Return a column as finite numbers, or say in one sentence which cell is none."""
    column = cells.columns[name]
    if name in cells.odd:
        raise ValueError(
            f"{path}, column {shortened(name)} holds {cells.odd[name]}, not numbers; choose "
            "numeric columns, or correct the file."
        )
    try:
        values = np.array(column, dtype=np.float64)
        if np.isfinite(values).all() and not any(map(_underscored, column)):
            return values
    except (TypeError, ValueError, OverflowError):
        pass
    for line, cell in zip(cells.lines, column, strict=True):
        try:
            if np.isfinite(float(cell)) and not _underscored(cell):
                continue
        except (TypeError, ValueError, OverflowError):
            pass
        shown = "an empty cell" if cell is None or str(cell).strip() == "" else shortened(cell)
        raise ValueError(
            f"{path}, {cells.place} {line}, column {shortened(name)}: {shown} is not a finite "
            "number; choose numeric columns, or correct the file."
        )
    return values


def _underscored(cell: Any) -> bool:
    """Return whether a cell is a number to Python only, such as 1_0."""
    return isinstance(cell, str) and "_" in cell


def as_text(cells: Cells, name: str, path: Path) -> list[str]:
    """Return a column as text, as identifiers and names are."""
    if cells.odd.get(name, "dates or times") not in ("dates or times", "true or false"):
        raise ValueError(
            f"{path}, column {shortened(name)} holds {cells.odd[name]}; names must be text or "
            "numbers."
        )
    return [str(cell) for cell in cells.columns[name]]
