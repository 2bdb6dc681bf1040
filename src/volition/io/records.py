"""One reading of logs: what was recorded, checked, as numbers of entities and clusters.

Every row either becomes a record, or is counted and said to be left out, or is refused in one
sentence. Names and numbers of clusters are resolved here, and here is asked which numbering a log
has where its numbers allow two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from volition.core.costs import Cost
from volition.core.messages import a_few, shortened
from volition.core.validation import FloatArray, check_integer
from volition.io.cluster_numbering import check_center_names, read_clusters
from volition.io.logged_costs import LoggedCosts
from volition.io.repetition import note_repetition

IntArray = NDArray[np.int64]
#: where a row is, in words
At = Callable[[int], str]


class Records(NamedTuple):
    """A log's answers, one row each, in its order."""

    entities: IntArray  # (m,)
    prescribed: IntArray  # (m,)
    realized: IntArray  # (m,)
    layout: IntArray  # (m,) number of the set of centres
    propensity: FloatArray | None  # (m,)
    rows: IntArray  # (m,) row of the log
    center_names: list[str] | None
    notes: list[str]  # what was left out, and what looks odd
    unanswered: float = 0.0  # share of rows that had no answer


#: kinds of arrays that numpy would take for numbers though they are none
WRONG_KINDS = {"b": "true or false", "M": "dates", "m": "durations", "c": "complex numbers"}


@dataclass(frozen=True)
class LogOptions:
    """How a log is to be read.

    Parameters
    ----------
    entity_ids : sequence, optional
        How the log names the rows of X. Default: their numbers.
    center_names : sequence of str, optional
        Names of the centres, in order.
    numbered_from : {0, 1}, optional
        First number of the clusters. Default: 0, unless the log looks as if it were 1, which is
        then asked.
    skip_unknown : bool
        Whether rows of unknown entities are left out; they are an error otherwise.
    tolerance : float
        By how much a logged cost may differ from the geometry's, as a share of itself or of the
        mean, whichever is larger.
    lines : sequence of int, optional
        Line of the file that each row comes from, for messages.
    unanswered : int
        Rows without an answer that were left out of the log before, and said to be.
    """

    entity_ids: Any = None
    center_names: Any = None
    numbered_from: int | None = None
    skip_unknown: bool = False
    tolerance: float = 1e-4
    lines: Any = None
    unanswered: int = 0

    def place(self, row: int) -> str:
        """Return in words where a row of the log is."""
        return f"row {row}" if self.lines is None else f"line {self.lines[row]}"


def is_missing(cell: Any) -> bool:
    """Return whether a realised cluster says that no answer came: empty, NaN or -1.

    Examples
    --------
    >>> from volition.io.records import is_missing
    >>> [is_missing(cell) for cell in ("", None, float("nan"), -1, "-1", 0, "mall")]
    [True, True, True, True, True, False, False]
    """
    if cell is None or type(cell).__name__ in ("NAType", "MaskedConstant"):
        return True
    if isinstance(cell, str):
        return cell.strip() in ("", "-1", "-1.0")
    return isinstance(cell, int | float | np.number) and (cell != cell or cell == -1)


def read_records(
    log: Any, X: FloatArray, layouts: FloatArray, cost: Cost, options: LogOptions | None = None
) -> Records:
    """Return a log's records, checked.

    Parameters
    ----------
    log : DataFrame or mapping of column name to values
        ``entity``, ``prescribed``, ``realized`` (or ``realised``; empty, NaN or -1 where no answer
        came); optionally ``cost``, ``timestamp``, ``propensity`` and ``layout``.
    X : array of shape (n, d)
        Entities.
    layouts : array of shape (L, K, d)
        Sets of centres.
    cost : Cost
        Of being served.
    options : LogOptions, optional
        How to read it.

    Returns
    -------
    Records

    Examples
    --------
    >>> import numpy as np
    >>> from volition.core.costs import resolve_cost
    >>> from volition.io.records import LogOptions, read_records
    >>> log = {"entity": [0, 1], "prescribed": ["port", "mall"], "realized": ["mall", "mall"]}
    >>> named = LogOptions(center_names=["mall", "port"])
    >>> X, Y = np.array([[0.0], [9.0]]), np.array([[[0.0], [8.0]]])
    >>> read_records(log, X, Y, resolve_cost("sqeuclidean"), named).prescribed.tolist()
    [1, 0]
    """
    options = options or LogOptions()
    check_integer(options.unanswered, "unanswered", 0)
    columns, entities, rows, notes, unanswered = _usable_rows(log_columns(log), len(X), options)

    def at(row: int) -> str:
        return options.place(int(rows[row]))

    layout = _layout(columns.get("layout"), len(layouts), len(rows), at)
    logged = LoggedCosts(cost, X, entities, layout, np.asarray(layouts, dtype=np.float64))
    paid = _finite(columns.get("cost"), "cost", at)

    def agrees(realized: IntArray) -> bool | None:
        return None if paid is None else not _off(paid, logged.to(realized), options).any()

    names = check_center_names(options.center_names, layouts.shape[1])
    prescribed, realized, names, note = read_clusters(
        columns["prescribed"], columns["realized"], names, options.numbered_from, logged, agrees, at
    )
    notes.append(note)
    notes.append(_check_times(columns.get("timestamp"), layout, at))
    if paid is not None:
        _check_costs(paid, logged, realized, names, options, at)
    propensity = _propensity(columns.get("propensity"), at)
    nearest = logged.nearest()
    if propensity is not None:
        notes.append(_certain(propensity, entities, layout, prescribed, nearest))
    resolved = {"entity": entities, "prescribed": prescribed, "realized": realized}
    notes.append(note_repetition({**columns, **resolved}, nearest, at))
    said = [note for note in notes if note]
    return Records(
        entities, prescribed, realized, layout, propensity, rows, names, said, unanswered
    )


class _UsableRows(NamedTuple):
    """The rows of a log that have an answer and a known entity."""

    columns: dict[str, Any]
    entities: IntArray  # (m,)
    rows: IntArray  # (m,) their numbers in the log
    notes: list[str | None]  # what was left out
    unanswered: float  # share of rows without an answer


def _usable_rows(columns: dict[str, Any], n: int, options: LogOptions) -> _UsableRows:
    """Leave out rows without an answer and, where allowed, those of unknown entities."""
    rows, notes = np.arange(len(columns["entity"])), []
    silent = np.array([is_missing(cell) for cell in columns["realized"].tolist()])
    if silent.all():
        raise ValueError("The log has no row with a realised cluster.")
    unanswered = (int(silent.sum()) + options.unanswered) / (len(rows) + options.unanswered)
    if silent.any():
        notes.append(unanswered_note(int(silent.sum())))
        columns, rows = _some(columns, rows, ~silent)
    entities = _entities(columns["entity"], n, rows, options)
    known = entities >= 0
    if not known.all():
        notes.append(_skipped(columns["entity"][~known], len(known)))
        columns, rows = _some(columns, rows, known)
        entities = entities[known]
    return _UsableRows(columns, entities, rows, [*notes], unanswered)


def unanswered_note(number: int) -> str:
    """Return what is said of rows without an answer.

    Examples
    --------
    >>> from volition.io.records import unanswered_note
    >>> unanswered_note(1)
    '1 row without a realised cluster was left out.'
    """
    rows, were = ("row", "was") if number == 1 else ("rows", "were")
    return f"{number} {rows} without a realised cluster {were} left out."


def log_columns(log: Any) -> dict[str, Any]:
    """Return the log's columns as arrays, checked for presence and length."""
    names = [str(name) for name in log]
    if "realised" in names and "realized" in names:
        raise ValueError("The log has both columns 'realised' and 'realized'; keep one of them.")
    columns = {str(name): _plain_array(log[name]) for name in log}
    if "realised" in columns:
        columns["realized"] = columns.pop("realised")
    for name in ("entity", "prescribed", "realized"):
        if name not in columns:
            raise ValueError(f"The log has no column '{name}'; it has {a_few(names) or 'none'}.")
    if len({len(values) for values in columns.values()}) > 1:
        raise ValueError("The log's columns differ in length.")
    if len(columns["entity"]) == 0:
        raise ValueError("The log is empty.")
    for name in ("entity", "prescribed", "realized", "cost", "propensity", "layout"):
        kind = columns[name].dtype.kind if name in columns else ""
        if kind in WRONG_KINDS:
            raise ValueError(
                f"The log's column '{name}' holds {WRONG_KINDS[kind]}; numbers or names are needed."
            )
    return columns


def _plain_array(values: Any) -> Any:
    if isinstance(values, np.ma.MaskedArray):
        hidden = np.ma.getmaskarray(values)
        values = np.array(values.data, dtype=object)
        values[hidden] = None
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"The log's columns must have one dimension, got shape {array.shape}.")
    return array


def _some(columns: dict[str, Any], rows: IntArray, keep: Any) -> tuple[dict[str, Any], IntArray]:
    return {name: values[keep] for name, values in columns.items()}, rows[keep]


def _entities(entity: Any, n: int, rows: IntArray, options: LogOptions) -> IntArray:
    """Return the entities' numbers, -1 for those that are unknown and may be."""
    ids = range(n) if options.entity_ids is None else list(options.entity_ids)
    if len(ids) != n:
        raise ValueError(f"entity_ids has {len(ids)} entries, but X has {n} rows.")
    number = {name: i for i, name in enumerate(ids)}
    if len(number) < n:
        twice = next(name for i, name in enumerate(ids) if number[name] != i)
        raise ValueError(f"entity_ids names {shortened(twice)} more than once.")
    cells = entity.tolist()
    out = np.array([number.get(name, -1) for name in cells], dtype=np.int64)
    unknown = np.flatnonzero(out < 0)
    if len(unknown) == len(out) or (len(unknown) and not options.skip_unknown):
        row, who = int(unknown[0]), len({cells[r] for r in unknown.tolist()})
        where = options.place(int(rows[row]))
        offer = (
            "entity_ids (--id) says how those are named"
            if len(unknown) == len(out)
            else "entity_ids (--id) says how those are named, and skip_unknown=True "
            "(--skip-unknown) leaves such rows out"
        )
        raise ValueError(
            f"The log names entity {shortened(cells[row])} at {where}, which is not among the {n} "
            f"entities ({len(unknown)} of {len(out)} rows name {who} such); {offer}."
        )
    return out


def _skipped(unknown: Any, of: int) -> str:
    who = len(set(unknown.tolist()))
    return (
        f"{len(unknown)} of {of} rows were left out, because they name {who} unknown "
        f"entit{'y' if who == 1 else 'ies'}."
    )


def _layout(given: Any, L: int, m: int, at: At) -> IntArray:
    """Return the number of each row's set of centres."""
    if given is None:
        if L > 1:
            raise ValueError("centers holds several sets, but the log has no column 'layout'.")
        return np.zeros(m, dtype=np.int64)
    numbers = _finite(given, "layout", at)
    assert numbers is not None
    if L == 1 and len(different := np.unique(numbers)) > 1:
        raise ValueError(
            f"The log has {len(different)} layouts, but centers holds one set; give all, with "
            "shape (L, K, d)."
        )
    bad = np.flatnonzero((numbers < 0) | (numbers >= L) | (numbers != np.round(numbers)))
    if len(bad):
        allowed = f"are numbered 0 to {L - 1}" if L > 1 else "have one number here, 0"
        raise ValueError(
            f"The log's layout at {at(int(bad[0]))} is {numbers[bad[0]]:g}; sets of centres "
            f"{allowed}."
        )
    if not (numbers == L - 1).any():
        raise ValueError(
            f"The log has no answer at today's centres, those of the last layout, {L - 1}; its "
            f"last is {numbers.max():.0f}. Leave out the centres that were not yet in use."
        )
    return numbers.astype(np.int64)


def _finite(values: Any, name: str, at: At) -> FloatArray | None:
    if values is None:
        return None
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"The log's {name} must hold numbers.") from None
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        what = "NaN" if np.isnan(numbers[bad[0]]) else "infinite"
        raise ValueError(f"The log's {name} at {at(int(bad[0]))} is {what}.")
    return numbers


def _check_times(times: Any, layout: IntArray, at: At) -> str | None:
    """Refuse a log that is not in the order of time; return a note where the order is not clear."""
    if times is None:
        return None
    times = np.asarray(times)
    known, values = _comparable(times)
    if values is None:
        some = [times[np.flatnonzero(known & (layout == number))] for number in np.unique(layout)]
        if all((mine[1:] >= mine[:-1]).all() for mine in some):
            return None
        return (
            f"The log's timestamps, such as {shortened(str(times[known][0]))}, are neither numbers "
            "nor dates like 2024-01-31 08:00; the order of its rows is taken for that of time."
        )
    for number in np.unique(layout):
        rows = np.flatnonzero((layout == number) & known)
        mine = values[rows]
        try:
            late = np.flatnonzero(mine[1:] < mine[:-1])
        except TypeError:
            raise ValueError("The log's timestamp must hold times of one kind.") from None
        if len(late):
            row, before = rows[int(late[0]) + 1], rows[int(late[0])]
            raise ValueError(
                f"The log's timestamp at {at(int(row))} ({_time(times[row])}) is before the "
                f"one above it ({_time(times[before])}); sort the log by time."
            )
    return None


def _comparable(times: Any) -> tuple[NDArray[np.bool_], Any]:
    """Return which times are known, and all as what can be compared; None if text is no time."""
    cells = times.tolist()
    known = np.array([not _no_time(cell) for cell in cells])
    if times.dtype.kind in "iufMm" or not any(isinstance(cell, str) for cell in cells):
        return known, times
    texts = [cell.strip() for cell in times[known].tolist() if isinstance(cell, str)]
    if len(texts) < known.sum():
        raise ValueError("The log's timestamp must hold times of one kind.")
    values = np.full(len(times), np.nan)
    for kind in (float, _seconds):
        try:
            values[known] = [kind(text) for text in texts]
        except ValueError:
            continue
        return known, values
    return known, None


def _no_time(cell: Any) -> bool:
    text = cell.strip().lower() if isinstance(cell, str) else cell
    return text is None or text != text or text in ("", "none", "nan", "nat", "na", "n/a", "null")


def _seconds(text: str) -> float:
    """Return seconds since 1970 of a date, or of a date and time, in the order year, month, day."""
    if not text[:4].isdigit() or text[4:5] != "-":
        raise ValueError("no such date")
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _time(value: Any) -> str:
    return shortened(str(value))[1:-1] if isinstance(value, str) else str(value)


def _off(paid: FloatArray, true: FloatArray, options: LogOptions) -> NDArray[np.bool_]:
    """Return which logged costs are not the geometry's."""
    allowed = options.tolerance * np.maximum(np.abs(true), np.abs(true).mean())
    off: NDArray[np.bool_] = np.abs(paid - true) > allowed + 1e-300
    return off


def _check_costs(
    paid: FloatArray,
    logged: LoggedCosts,
    realized: IntArray,
    names: list[str] | None,
    options: LogOptions,
    at: At,
) -> None:
    true = logged.to(realized)
    off = np.flatnonzero(_off(paid, true, options))
    if len(off):
        row = int(off[0])
        k = int(realized[row])
        worst = float((np.abs(paid - true)[off] / np.maximum(np.abs(true), 1e-300)[off]).max())
        raise ValueError(
            f"The log's cost at {at(row)} is {paid[row]:.8g}, but entity "
            f"{int(logged.entities[row])} is {true[row]:.8g} from cluster "
            f"{k if names is None else shortened(names[k])}; check centers, metric and the order "
            f"of entities ({len(off)} such row{'s' if len(off) > 1 else ''}), or allow more with "
            f"tolerance (--tolerance; now {options.tolerance:g}, the worst is off by a share of "
            f"{worst:.2g})."
        )


def _propensity(given: Any, at: At) -> FloatArray | None:
    propensity = _finite(given, "propensity", at)
    if propensity is not None:
        bad = np.flatnonzero(~((propensity > 0) & (propensity <= 1)))
        if len(bad):
            raise ValueError(
                f"The log's propensity at {at(int(bad[0]))} is {propensity[bad[0]]:g}; what was "
                "prescribed had a probability above 0, and at most 1."
            )
    return propensity


def _certain(
    propensity: FloatArray,
    entities: IntArray,
    layout: IntArray,
    prescribed: IntArray,
    nearest: IntArray,
) -> str | None:
    """Refuse certainty that the log itself contradicts; return a note where it may."""
    if not (propensity == 1).all():
        return None
    asked = np.unique(np.stack([layout, entities, prescribed]), axis=1)
    who, times = np.unique(asked[:2], axis=1, return_counts=True)
    if (times > 1).any():
        entity = int(who[1, int((times > 1).argmax())])
        raise ValueError(
            f"The log's propensity is 1 everywhere, but entity {entity} was prescribed different "
            f"clusters ({int((times > 1).sum())} in all were); 1 means that nothing else could "
            "have been prescribed, so give the true probabilities, or leave the column out."
        )
    if len(np.unique(prescribed == nearest)) > 1:
        return (
            "The log's propensity is 1 everywhere, though not all entities were prescribed their "
            "nearest centre; if chance decided, estimates that weigh rows by it are wrong."
        )
    return None
