"""Covariates as numbers: text such as "car" and "van" becomes columns of 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from volition.core.messages import a_few, shortened
from volition.core.validation import FloatArray, check_finite
from volition.io.records import is_missing
from volition.io.serialization import registered

#: different texts that a covariate may have
MOST_LEVELS = 20
#: covariates are squared
LARGEST_COVARIATE = 1e100


@registered
class Coding(NamedTuple):
    """How covariates become numbers, so that those of other entities become the same."""

    columns: tuple[str, ...]
    levels: dict[str, list[str]]  # of columns that hold text, sorted; the first is all zeros

    @property
    def names(self) -> list[str]:
        """Names of the columns of numbers: ``kind=van`` for text, else the column's own."""
        return [
            f"{column}={level}" if level is not None else column
            for column in self.columns
            for level in (self.levels[column][1:] if column in self.levels else [None])
        ]

    def apply(self, covariates: Any, n: int) -> FloatArray:
        """Return the covariates of ``n`` entities as numbers, (n, c).

        Columns that have names are taken by name, others in the order of the model's.
        """
        columns = named_columns(covariates, n)
        if _names(covariates) is not None and self.columns != _unnamed(len(self.columns)):
            for name in (*self.columns, *columns):
                if name not in columns or name not in self.columns:
                    what = "missing" if name in self.columns else "unknown"
                    raise ValueError(
                        "covariates must have the columns of the model, "
                        f"{a_few(self.columns)}, but {shortened(name)} is {what}."
                    )
            columns = {name: columns[name] for name in self.columns}
        if len(columns) != len(self.columns):
            raise ValueError(
                f"covariates has {len(columns)} columns, but {len(self.columns)} are expected."
            )
        parts = []
        for name, given in zip(self.columns, columns.values(), strict=True):
            if name not in self.levels:
                parts.append(_numbers(name, given)[:, None])
                continue
            levels, texts = self.levels[name], _texts(name, given)
            odd = next((text for text in texts if text not in levels), None)
            if odd is not None:
                raise ValueError(
                    f"covariate '{name}' is {shortened(odd)} for some entity, which the model has "
                    f"never seen; it knows {a_few(levels)}."
                )
            parts.append(np.array([[text == level for level in levels[1:]] for text in texts]))
        out = np.concatenate(parts, axis=1).astype(np.float64)
        check_finite(out, "covariates")
        return out


def make_coding(covariates: Any, n: int) -> Coding:
    """Return how covariates of ``n`` entities become numbers.

    They are a frame, a mapping of name to values, or an array (n, c) or (n,), of numbers or text.

    Examples
    --------
    >>> from volition.choices.coding import make_coding
    >>> coding = make_coding([["car"], ["van"], ["bus"]], 3)
    >>> coding.names
    ['covariate 0=car', 'covariate 0=van']
    >>> coding.apply([["van"], ["bus"]], 2).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    columns = named_columns(covariates, n)
    levels = {}
    for name, given in columns.items():
        if not holds_text(given):
            _numbers(name, given)  # refuses what is neither
            continue
        levels[name] = found = sorted(set(_texts(name, given)))
        if len(found) > MOST_LEVELS:
            raise ValueError(
                f"covariate '{name}' holds {len(found)} different texts; at most {MOST_LEVELS} "
                "are allowed, so put them into fewer groups."
            )
        if len(found) == 1:
            raise ValueError(
                f"covariate '{name}' is {shortened(found[0])} for every entity, so no choice can "
                "depend on it; leave it out."
            )
    return Coding(tuple(columns), levels)


def check_covariates(covariates: Any, n: int, width: int | None = None) -> FloatArray:
    """Return covariates as numbers, one row per entity, and as many columns as there should be."""
    Z = _two_dimensional(covariates)
    if Z.ndim != 2 or len(Z) != n:
        raise ValueError(f"covariates must have one row for each of {n} entities, got {Z.shape}.")
    if Z.dtype.kind not in "fiub":
        raise ValueError("covariates must be numbers; code categories as columns of 0 and 1.")
    Z = Z.astype(np.float64)
    check_finite(Z, "covariates")
    if Z.size and np.abs(Z).max() > LARGEST_COVARIATE:
        row, column = np.unravel_index(int(np.abs(Z).argmax()), Z.shape)
        raise ValueError(
            f"covariates has {Z[row, column]:g} at row {row}, column {column}; use larger units, "
            f"up to {LARGEST_COVARIATE:g}."
        )
    if width is not None and Z.shape[1] != width:
        raise ValueError(f"covariates has {Z.shape[1]} columns, but {width} are expected.")
    return Z


def are_numbers(covariates: Any) -> bool:
    """Return whether covariates are an array of numbers already, without names."""
    return _names(covariates) is None and np.asarray(covariates).dtype.kind in "fiub"


def holds_text(cells: Sequence[Any]) -> bool:
    """Return whether a column is text: no cell of it is a number, not even by mistake."""
    return not any(map(_is_number, cells))


def _is_number(cell: Any) -> bool:
    if isinstance(cell, str):
        try:
            float(cell)
        except ValueError:
            return False
        return True
    return isinstance(cell, int | float | np.number | np.bool_)


def _names(covariates: Any) -> Any:
    """Return the names of columns; None for an array, which has none."""
    return getattr(covariates, "columns", covariates if isinstance(covariates, Mapping) else None)


def _unnamed(n: int) -> tuple[str, ...]:
    """Return what stands for the names of ``n`` columns without any."""
    return tuple(f"covariate {c}" for c in range(n))


def _two_dimensional(covariates: Any) -> Any:
    Z = np.asarray(covariates)
    return Z[:, None] if Z.ndim == 1 else Z


def named_columns(covariates: Any, n: int) -> dict[str, list[Any]]:
    """Return the columns by name; numbers stand for names where there are none."""
    named, Z = _names(covariates), _two_dimensional(covariates)
    columns: dict[str, list[Any]] = {}
    if named is not None:
        columns = {str(name): list(covariates[name]) for name in named}
    elif Z.ndim == 2:
        columns = dict(zip(_unnamed(Z.shape[1]), Z.T.tolist(), strict=True))
    if {len(column) for column in columns.values()} != {n}:
        raise ValueError(f"covariates must have one row for each of {n} entities.")
    return columns


def _numbers(name: str, cells: Sequence[Any]) -> FloatArray:
    for cell in cells:
        if not _is_number(cell):
            raise ValueError(
                f"covariate '{name}' holds numbers and {shortened(cell)}; it must be all numbers "
                "or all text."
            )
    return np.array([float(cell) for cell in cells])


def _texts(name: str, cells: Sequence[Any]) -> list[str]:
    for row, cell in enumerate(cells):
        if is_missing(cell) or _is_number(cell):
            what = "missing" if is_missing(cell) else shortened(cell)
            raise ValueError(f"covariate '{name}' of entity {row} is {what}; text is needed.")
    return [str(cell).strip() for cell in cells]
