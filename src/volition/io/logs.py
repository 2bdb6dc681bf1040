"""A log with its entities and centres, read from files: the same for every command."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from volition.core.messages import a_few, shortened
from volition.core.validation import FloatArray
from volition.io.cells import (
    Cells,
    as_numbers,
    as_text,
    is_number,
    read_cells,
    require_columns,
    require_once,
)
from volition.io.cluster_numbering import check_center_names
from volition.io.tables import Log, Table, read_entities, read_log

#: columns of a file of centres that are no coordinates
LABELS = ("cluster", "layout", "name", "site", "share_prescribed", "share_realized")


class Centers(NamedTuple):
    """Sets of centres as a file has them, in order."""

    layouts: FloatArray  # (L, K, d)
    columns: list[str]
    names: list[str] | None
    in_order: bool  # a column cluster says which is which
    by_name: bool  # it holds names, which the log must use

    def by_their_names(self) -> Centers:
        """Return them in the order of their names."""
        assert self.names is not None
        order = sorted(range(len(self.names)), key=self.names.__getitem__)
        names = [self.names[k] for k in order]
        return self._replace(layouts=self.layouts[:, order], names=names)


class LoggedFiles(NamedTuple):
    """What the files of a log hold."""

    table: Table
    ids: list[str]
    centers: Centers
    log: Log


def read_centers(path: Path, columns: str | None = None) -> Centers:
    r"""Read sets of centres, each in the order of its clusters.

    Parameters
    ----------
    path : Path
        Table of centres. A column ``cluster`` says which row is which: numbers 0 to K - 1 (or 1 to
        K), or names. Without it rows count in their order. A column ``name`` or ``site`` names the
        centres. A column ``layout`` numbers sets of centres 0, 1, ..., the last one today's.
    columns : str, optional
        Coordinates, as a,b,c. Default: all other columns.

    Returns
    -------
    Centers

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from volition.io.logs import read_centers
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "today.csv"
    ...     _ = path.write_text("cluster,x\nport,8\nmall,0\n")
    ...     read_centers(path).names
    ['mall', 'port']
    """
    given = [name.strip() for name in columns.split(",")] if columns else None
    cells = _with_cluster(read_cells(path), given or [])
    names = given or [name for name in cells.header if name not in LABELS]
    require_once(names)
    require_columns(cells, names, path)
    if not names:
        raise ValueError(f"{path} has no columns with coordinates; it has {a_few(cells.header)}.")
    if not cells.lines:
        raise ValueError(f"{path} has a header but no rows.")
    Y = np.column_stack([as_numbers(cells, name, path) for name in names])
    labels = [name for name in LABELS if name in cells.columns and name not in names]
    layout = _layouts(cells, path) if "layout" in labels else np.zeros(len(Y), dtype=np.int64)
    sets = [np.flatnonzero(layout == number) for number in range(layout.max() + 1)]
    if len({len(rows) for rows in sets}) > 1:
        sizes = a_few(len(rows) for rows in sets)
        raise ValueError(
            f"{path}: the column layout must number sets of equally many centres, but they have "
            f"{sizes}."
        )
    by_name, called = False, None
    if "cluster" in labels:
        sets, called, by_name = _ordered(cells, sets, path)
    named = next((label for label in ("name", "site") if label in labels), None)
    if named is not None and not by_name:
        called = _one_name_each(as_text(cells, named, path), named, sets, path)
    in_order = "cluster" in labels
    if not in_order:
        _check_ignored(cells, [name for name in cells.header if name not in names], sets, path)
    return Centers(np.array([Y[rows] for rows in sets]), names, called, in_order, by_name)


def _with_cluster(cells: Cells, names: list[str]) -> Cells:
    """Return the cells with a column ``Cluster`` called ``cluster``, unless it is a coordinate."""
    mine = [name for name in cells.header if name.strip().lower() == "cluster"]
    if len(mine) != 1 or mine[0] in names:
        return cells
    new = {mine[0]: "cluster"}
    return cells._replace(
        header=[new.get(name, name) for name in cells.header],
        columns={new.get(name, name): column for name, column in cells.columns.items()},
        odd={new.get(name, name): kind for name, kind in cells.odd.items()},
    )


def _check_ignored(cells: Cells, ignored: list[str], sets: list[np.ndarray], path: Path) -> None:
    """Raise if a column that is not read numbers the centres in another order than the rows."""
    K = len(sets[0])
    for name in ignored:
        texts = [str(cell).strip() for cell in cells.columns[name]]
        if name == "layout" or not all(is_number(text) for text in texts):
            continue
        found = [[float(texts[row]) for row in rows] for rows in sets]
        for first in (0, 1):
            order = [float(first + k) for k in range(K)]
            if any(mine != order for mine in found) and all(sorted(m) == order for m in found):
                raise ValueError(
                    f"{path}: the column {shortened(name)} numbers the centres {first} to "
                    f"{first + K - 1}, but not in the order of the rows, and it is not read: "
                    "rename it to cluster if the log means these numbers, or drop it if the log "
                    "counts the rows."
                )


def _layouts(cells: Cells, path: Path) -> np.ndarray:
    numbers = as_numbers(cells, "layout", path)
    most = len(numbers)
    bad = np.flatnonzero((numbers < 0) | (numbers >= most) | (numbers != np.round(numbers)))
    where = f"{cells.place} {cells.lines[bad[0]]}" if len(bad) else ""
    missing = sorted(set(range(int(numbers.max()) + 1)) - set(numbers)) if not len(bad) else []
    if len(bad) or missing:
        what = f"{where} has {numbers[bad[0]]:g}" if len(bad) else f"there is no {missing[0]}"
        raise ValueError(
            f"{path}: the column layout must number sets of equally many centres 0, 1, ..., and "
            f"{what}."
        )
    return numbers.astype(np.int64)


def _ordered(
    cells: Cells, sets: list[np.ndarray], path: Path
) -> tuple[list[np.ndarray], list[str] | None, bool]:
    """Return each set's rows in the order of their clusters, these clusters' names, and if any."""
    labels = [label.strip() for label in as_text(cells, "cluster", path)]
    for label, line in zip(labels, cells.lines, strict=True):
        if label in ("", "None"):
            raise ValueError(f"{path}, {cells.place} {line}: the column cluster is empty.")
    K, numeric = len(sets[0]), all(is_number(label) for label in labels)
    keys = [float(label) for label in labels] if numeric else labels
    for number, rows in enumerate(sets):
        mine = [labels[row] for row in rows]
        twice = next((one for one, times in Counter(mine).items() if times > 1), None)
        in_set = f" in layout {number}" if len(sets) > 1 else ""
        if twice is not None:
            raise ValueError(
                f"{path} has cluster {shortened(twice)} more than once{in_set}; each of the {K} "
                "centres needs its own."
            )
    expected = sorted({keys[row] for row in sets[0]})
    if numeric:
        first = 1 if expected[0] == 1 else 0
        expected = [float(first + k) for k in range(K)]
    for number, rows in enumerate(sets):
        gone = [key for key in expected if key not in {keys[row] for row in rows}]
        if gone:
            which = f"{gone[0]:g}" if numeric else shortened(gone[0])
            in_set = f" in layout {number}" if len(sets) > 1 else ""
            rule = (
                f"the column cluster must number the {K} centres 0 to {K - 1} (or 1 to {K}); other "
                "names belong in a column name"
                if numeric
                else "every set must have the same clusters"
            )
            raise ValueError(f"{path} has no cluster {which}{in_set}; {rule}.")
    ordered = [np.array(sorted(rows, key=lambda row: keys[row])) for rows in sets]
    if not numeric:
        return ordered, check_center_names(expected, K), True
    return ordered, ([str(k + 1) for k in range(K)] if expected[0] == 1 else None), False


def _one_name_each(labels: list[str], column: str, sets: list[np.ndarray], path: Path) -> list[str]:
    """Return the names of the centres, which must be the same in all sets."""
    names = [[labels[row] for row in rows] for rows in sets]
    for number, mine in enumerate(names):
        if mine != names[0]:
            raise ValueError(
                f"{path}: the column {column} names centres differently in layouts 0 and {number}; "
                "give them a column cluster."
            )
    try:
        found = check_center_names(names[0], len(names[0]))
    except ValueError as error:
        raise ValueError(
            f"{path}, column {column}: {str(error).replace('center_names', 'it')}"
        ) from None
    assert found is not None
    return found


def _check_common(names: list[str], centers: Path, entities: Path) -> None:
    """Raise if entities lack a column of the centres, which may be no coordinate."""
    header = read_cells(entities).header
    missing = next((name for name in names if name not in header), None)
    if missing is not None:
        raise ValueError(
            f"{entities} has no column {shortened(missing)}, which {centers} has; if it says which "
            "centre is which, rename it there to cluster (numbers or names), and if it is "
            f"something else, name the coordinates with --columns. {entities} has "
            f"{a_few(header, 20)}."
        )


def read_logged(
    log: Path,
    entities: Path,
    centers: Path,
    columns: str | None,
    weight: str | None,
    id_column: str | None,
    metric: str,
) -> LoggedFiles:
    """Read the three files of a log, ``columns`` as a,b,c (default: those of the centres)."""
    places = read_centers(centers, columns)
    try:
        table = read_entities(entities, places.columns, weight, id_column, metric)
    except ValueError:
        if columns is None:
            _check_common(places.columns, centers, entities)
        raise
    records = read_log(log, names=places.by_name)
    named = any(records.columns[name].dtype.kind == "O" for name in ("prescribed", "realized"))
    if named and places.names is not None and not places.in_order:
        places = (
            places.by_their_names()
        )  # the order of rows then means nothing, and decides nothing
    ids = [str(i) for i in range(len(table.values))] if table.ids is None else table.ids
    return LoggedFiles(table, ids, places, records)
