"""Values far from all others: what they do to the arithmetic, and warnings about them.

Squared distances of size s² carry an error of eps s², and tolerances are shares of the entities'
variance. One value a million spreads away makes both larger than all that the other entities cost.
`bulk_of` measures the spread of most entities; `warn_of_outliers` names the few far ones.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from volition.core.messages import DataWarning
from volition.core.validation import FloatArray

#: rows from which the spread of most entities is measured
BULK_ROWS = 10_000
#: a value this many spreads away is far; for a usual code of "missing" the second number is enough
FAR_SPREADS, FAR_CODE_SPREADS = 1e3, 1e2
#: far values are named where, together, they make up this share of their column's variance
DOMINANT_SHARE = 0.99
#: and where they are few: no more than this share of the rows
FAR_ROWS_SHARE = 0.01
#: rounding error of a value, in spreads, from which results are not reliable
UNRELIABLE_ROUNDING = 0.03
#: one code for "missing" is named where it makes up this share of its column's variance
CODE_SHARE = 0.5
#: equal values are likely codes if they are this many spreads away, no others half as far on their
#: side, and no more than this share of the rows
REPEATED_SPREADS, REPEATED_ROUND_SPREADS, REPEATED_ROWS_SHARE = 10.0, 20.0, 0.05
#: what often stands for "missing": -99, 999, 99999 and the like
MISSING_CODES = tuple(sign * (10**digits - 1) for digits in range(2, 17) for sign in (-1, 1))
PACKAGE_FOLDER = str(Path(__file__).parents[1])


class OutlierWarning(DataWarning):
    """A few values are so far from all others that they decide the result."""


class Bulk(NamedTuple):
    """Where most entities are: medians (d,), and the median squared distance from there."""

    center: FloatArray
    square: float


def bulk_of(X: FloatArray, weight: FloatArray | None = None) -> Bulk:
    """Return where most entities are, and how far apart.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.core.outliers import bulk_of
    >>> bulk = bulk_of(np.array([[1.0], [2.0], [3.0], [4.0], [1e9]]))
    >>> bulk.center.tolist(), bulk.square
    ([3.0], 1.0)
    """
    X = _sample(X, weight)
    center = np.median(X, axis=0)
    return Bulk(center, float(np.median(((X - center) ** 2).sum(1))))


def _sample(X: FloatArray, weight: FloatArray | None) -> FloatArray:
    rows = np.arange(len(X)) if weight is None else np.flatnonzero(weight > 0)
    return X[rows[:: -(-len(rows) // BULK_ROWS)]].astype(np.float64)


def warn_of_outliers(
    X: FloatArray,
    weight: FloatArray | None = None,
    columns: Sequence[str] | None = None,
    since: int = 0,
) -> None:
    """Warn of codes for missing values, and of rows so far away that they alone decide.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities.
    weight : array of shape (n,), optional
        Relative weights; rows without weight decide nothing.
    columns : list of str, optional
        Names of the columns.
    since : int, default=0
        Warn only about this row and later ones; earlier rows were checked before.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from volition.core.outliers import warn_of_outliers
    >>> X = np.append(np.arange(50.0), [-9999.0, -9999.0, -9999.0])[:, None]
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_of_outliers(X, columns=["age"])
    >>> print(caught[0].message)
    Column 'age' holds -9999 in 3 rows (the first is row 50), 771 times as far from the median as
    entities typically are: if -9999 stands for a missing value, remove these rows.
    """
    X = np.asarray(X)
    rows = np.arange(len(X)) if weight is None else np.flatnonzero(weight > 0)
    if len(rows) == 0:
        return
    sample = _sample(X, weight)
    medians = np.median(sample, axis=0)
    spreads = np.median(np.abs(sample - medians), axis=0)
    highest, lowest = X.max(axis=0), X.min(axis=0)
    farthest = np.maximum(highest - medians, medians - lowest)
    for column in np.flatnonzero((farthest > REPEATED_SPREADS * spreads) & (spreads > 0)).tolist():
        label = f"Column {column}" if columns is None else f"Column '{columns[column]}'"
        away = (X[rows, column].astype(np.float64) - medians[column]) / spreads[column]
        message = _message(X[rows, column], rows, away, label, since)
        if message:
            warnings.warn(message, OutlierWarning, stacklevel=_outside())


def _outside() -> int:
    """Return the stack level of the first caller outside this package, for warnings."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
        frame, level = frame.f_back, level + 1
    return level


def _message(
    values: FloatArray, rows: np.ndarray, sides: FloatArray, label: str, since: int
) -> str:
    """Return what to say about one column, if anything."""
    away = np.abs(sides)
    far = np.flatnonzero(away > REPEATED_SPREADS)
    if len(far) == 0:
        return ""
    total = float((away * away).sum())
    found, first, counts = np.unique(values[far], return_index=True, return_counts=True)
    # Others that stand alone are the last ones on their side.
    suspects = np.isin(found, [*MISSING_CODES, 0, -1, found[0], found[-1]])
    for number in np.flatnonzero(suspects).tolist():
        value, count, one = float(found[number]), int(counts[number]), int(far[first[number]])
        where = far[values[far] == found[number]]
        if rows[where[-1]] < since or not _stands_for_missing(value, where, sides, total):
            continue
        some = "1 row" if count == 1 else f"{count} rows"
        return (
            f"{label} holds {value:.15g} in {some} (the first is row "
            f"{rows[one]}), {away[one]:.3g} times as far from the median as entities "
            f"typically are: if {value:.15g} stands for a missing value, remove "
            f"{'this row' if count == 1 else 'these rows'}."
        )
    far = np.flatnonzero(away > FAR_SPREADS)
    few = len(far) <= max(3, FAR_ROWS_SHARE * len(values))
    if len(far) == 0 or not few or float((away[far] ** 2).sum()) < DOMINANT_SHARE * total:
        return ""
    if rows[far[-1]] < since:
        return ""
    worst = int(far[away[far].argmax()])
    # Even at its own value, a centre is off by a rounding error: squared, more than others cost.
    lost = float(np.finfo(values.dtype).eps) * away[worst] > UNRELIABLE_ROUNDING
    hopeless = f" {values.dtype} cannot tell the others apart beside it: the cost is not reliable."
    others = f" (and {len(far) - 1} more rows like it)" if len(far) > 1 else ""
    return (
        f"{label} is {values[worst]:.6g} at row {rows[worst]}{others}, "
        f"{away[worst]:.3g} times as far from the median as entities typically are: it "
        "outweighs all other entities, and decides where centres go. If it is a mistake or stands "
        f"for a missing value, remove the row.{hopeless if lost else ''}"
    )


def _stands_for_missing(value: float, where: np.ndarray, sides: FloatArray, total: float) -> bool:
    """Whether equal values look like a code: by what they are, or by standing alone."""
    away, count = abs(float(sides[where[0]])), len(where)
    if value in MISSING_CODES and away > FAR_CODE_SPREADS:
        return count > 1 or away > FAR_SPREADS or away * away > CODE_SHARE * total
    usual = value in (0, -1, *MISSING_CODES)
    if count < (2 if usual else 3) or count > max(3, REPEATED_ROWS_SHARE * len(sides)):
        return False
    if away <= (REPEATED_SPREADS if usual else REPEATED_ROUND_SPREADS) or value != round(value):
        return False
    others = np.delete(sides, where) * np.sign(sides[where[0]])
    return bool(others.max(initial=0.0) < away / 2)
