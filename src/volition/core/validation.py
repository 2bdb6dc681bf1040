"""Checks on user input: each failure is one sentence that names the input and what is allowed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from volition.core.messages import DataWarning

FloatArray = NDArray[np.floating[Any]]

#: share of the largest weight below which a weight is none
LEAST_WEIGHT = 1e-100
#: How far a row of probabilities may be from summing to one.
ROW_SUM_TOLERANCE = 1e-6


def check_entities(X: Any, columns: Sequence[str] | None = None) -> FloatArray:
    """Return X as a finite 2-d float array; float32 stays float32, all else becomes float64."""
    check_kind(X)
    X = np.asarray(X)
    check_kind(X)
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(
            "X must be a two-dimensional table with at least one row and one column, "
            f"got shape {X.shape}."
        )
    if X.dtype not in (np.float32, np.float64):
        try:
            X = X.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"X must hold numbers only: {error}.") from None
    check_finite(X, "X", columns)
    return X


def check_kind(X: Any) -> None:
    """Raise for tables that numpy would take for numbers though they are none.

    Parameters
    ----------
    X : array or frame
        What was given as entities.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.core.validation import check_kind
    >>> check_kind(np.zeros((2, 2)))
    """
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        hidden = np.argwhere(np.ma.getmaskarray(X))
        raise ValueError(
            f"X is a masked array, and {len(hidden)} of its values are masked (the first at "
            f"{_entry(hidden[0])}); leave these rows out, or fill them."
        )
    names, kinds = list(getattr(X, "columns", [])), getattr(X, "dtypes", None)
    types = [getattr(X, "dtype", None)] if kinds is None else list(kinds)
    for number, dtype in enumerate(types):
        kind = getattr(dtype, "kind", "")
        if kind in ("M", "m", "c"):
            where = f"column {names[number]!r} of X" if number < len(names) else "X"
            if kind == "c":
                raise ValueError(f"Complex data not supported: {where} must hold real numbers.")
            raise ValueError(f"{where} holds dates or times; only numbers are allowed.")


def _entry(index: NDArray[np.int64]) -> str:
    return ", ".join(f"{name} {int(i)}" for name, i in zip(("row", "column"), index, strict=False))


def check_finite(X: FloatArray, name: str, columns: Sequence[str] | None = None) -> None:
    """Raise if a value is NaN or infinite, naming its row and column."""
    # One sum is finite only if all values are; overflow of the sum itself is settled below.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(X.sum(dtype=np.float64)):
            return
    bad = np.argwhere(~np.isfinite(X))
    if len(bad) == 0:
        return
    row, column = (int(v) for v in bad[0])
    label = f"column {column}" if columns is None else f"column '{columns[column]}'"
    value = "NaN" if np.isnan(X[row, column]) else "infinity"
    raise ValueError(
        f"{name} contains {value} at row {row}, {label}; only finite numbers are allowed "
        f"({len(bad)} such value{'s' if len(bad) > 1 else ''} in all)."
    )


def check_weights(sample_weight: Any, n_samples: int) -> FloatArray | None:
    """Return weights that sum to one, or None for equal weights."""
    if sample_weight is None:
        return None
    weight = np.asarray(sample_weight, dtype=np.float64)
    if weight.ndim == 0:
        weight = np.full(n_samples, float(weight))
    if weight.shape != (n_samples,):
        raise ValueError(
            f"sample_weight must have shape ({n_samples},), one weight per row of X, "
            f"got {weight.shape}."
        )
    if not np.all(np.isfinite(weight)):
        row = int(np.flatnonzero(~np.isfinite(weight))[0])
        raise ValueError(f"sample_weight contains a non-finite value at row {row}.")
    if np.any(weight < 0):
        row = int(np.flatnonzero(weight < 0)[0])
        raise ValueError(
            f"sample_weight is negative at row {row} ({weight[row]:g}); weights must be >= 0."
        )
    if not np.any(weight > 0):
        raise ValueError("sample_weight is zero for every row; at least one must be positive.")
    largest = weight.max()
    weight = weight / largest  # keeps the sum finite whatever the weights' scale
    lost = np.flatnonzero((weight > 0) & (weight < LEAST_WEIGHT))
    if len(lost):
        warnings.warn(
            f"sample_weight of {len(lost)} row{'s' if len(lost) > 1 else ''} (the first is row "
            f"{lost[0]}) is less than {LEAST_WEIGHT:g} of the largest ({largest:g}, at row "
            f"{int(weight.argmax())}): too little to count.",
            DataWarning,
            stacklevel=2,
        )
        weight[lost] = 0
    return weight / weight.sum()


def check_stochastic(p: FloatArray, name: str) -> None:
    """Raise unless the last axis of p holds probabilities that sum to one."""
    _raise_first(~np.isfinite(p), name, "is not a finite number", p)
    _raise_first(p < 0, name, "is negative", p)
    total = p.sum(axis=-1)
    off = np.argwhere(np.abs(total - 1) > ROW_SUM_TOLERANCE)
    if len(off):
        where = tuple(int(v) for v in off[0])
        raise ValueError(
            f"{name}: {_place(where)} sums to {total[where]:.6g}; "
            "each row must hold probabilities that sum to 1."
        )


def _raise_first(bad: NDArray[np.bool_], name: str, what: str, p: FloatArray) -> None:
    hits = np.argwhere(bad)
    if len(hits):
        where = tuple(int(v) for v in hits[0])
        raise ValueError(
            f"{name}: {_place(where[:-1])}, realised cluster {where[-1]} {what} "
            f"({p[where]:g}); probabilities must lie in [0, 1]."
        )


def _place(where: tuple[int, ...]) -> str:
    if len(where) == 1:
        return f"row {where[0]}"
    return f"entity {where[0]}, row {where[1]}"


def check_centers(Y: Any, n_features: int, name: str = "centers") -> NDArray[np.float64]:
    """Return centres as a finite (K, d) float64 array."""
    Y = np.array(Y, dtype=np.float64)
    if Y.ndim != 2 or len(Y) == 0 or Y.shape[1] != n_features:
        raise ValueError(
            f"{name} must have shape (n_clusters, {n_features}), one row per centre, got {Y.shape}."
        )
    check_finite(Y, name)
    return Y


def check_scalar(
    value: Any, name: str, low: float, high: float = float("inf"), *, open_low: bool = False
) -> float:
    """Return value as a float within [low, high], or (low, high] when ``open_low``."""
    left = "(" if open_low else "["
    allowed = f"{left}{low:g}, {high:g}]" if np.isfinite(high) else f"{left}{low:g}, infinity)"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number in {allowed}, got {value!r}.") from None
    inside = (number > low if open_low else number >= low) and number <= high
    if not inside or not np.isfinite(number):
        raise ValueError(f"{name} must be a number in {allowed}, got {value!r}.")
    return number


def check_integer(value: Any, name: str, low: int, also: str = "") -> None:
    """Raise unless value is an integer of at least ``low``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < low:
        raise ValueError(f"{name} must be an integer >= {low}{also}, got {value!r}.")
