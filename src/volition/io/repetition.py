"""Rows of a log that repeat earlier ones: copies, or choices made again?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

#: columns that do not tell one row from another of the same entity
PLAIN = ("entity", "prescribed", "realized", "layout", "cost", "propensity")
#: repeated rows below which nothing is said, unless times tell; standard errors beyond chance
FEWEST, BEYOND = 5, 5.0


def note_repetition(
    columns: Mapping[str, Any], nearest: IntArray, at: Callable[[int], str]
) -> str | None:
    """Return a note where rows repeat earlier ones exactly, and more than choices would.

    Where a timestamp (or another column that differs from row to row) is the same too, a row is
    probably a copy. Where there is none, entities that choose again what they chose before are
    normal; a note is given only if nearly all that come again choose the same, and more often than
    other entities with the same nearest centre would.

    Parameters
    ----------
    columns : mapping of name to array of shape (m,)
        The log, with numbers of entities and clusters.
    nearest : array of shape (m,)
        Each row's nearest centre.
    at : callable
        Where a row is, in words.

    Returns
    -------
    str or None

    Examples
    --------
    >>> import numpy as np
    >>> from volition.io.repetition import note_repetition
    >>> log = {"entity": [0, 0], "prescribed": [1, 1], "realized": [1, 1], "timestamp": [5, 5]}
    >>> log = {name: np.array(column) for name, column in log.items()}
    >>> note_repetition(log, np.zeros(2, int), "row {}".format)[:34]
    '1 row repeats an earlier row exact'
    """
    plain = _codes([columns[name] for name in PLAIN if name in columns])
    again = _seen_before(plain)
    others = [name for name in columns if name not in PLAIN]
    if others:
        copies = _seen_before(_codes([plain, *(columns[name] for name in others)]))
        number = int(copies.sum())
        telling = "timestamp" in columns or 2 * number < again.sum()
        if number and telling:
            what = "row repeats" if number == 1 else "rows repeat"
            with_ = " and " + ("timestamp" if "timestamp" in columns else others[0])
            return (
                f"{number} {what} an earlier row exactly, with the same entity, clusters{with_} "
                f"(the first at {at(int(copies.argmax()))}); each is counted as a choice, so "
                "remove them if they are copies."
            )
        if telling:
            return None
    who = _codes([columns[name] for name in ("entity", "layout") if name in columns])
    come_again = _seen_before(who)
    if again.sum() < FEWEST or again.sum() < 0.95 * come_again.sum():
        return None
    expected, variance = _by_chance(columns, who, nearest, come_again)
    if again.sum() <= expected + BEYOND * np.sqrt(variance + 1):
        return None
    return (
        f"{int(again.sum())} rows repeat an earlier row (the first at {at(int(again.argmax()))}), "
        f"where about {expected:.0f} would do so by chance; without a timestamp copies cannot be "
        "told from choices, and each is counted as a choice."
    )


def _codes(columns: list[Any]) -> IntArray:
    """Return a number for each row, the same for rows that are the same in all columns."""
    out = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values = np.asarray(column)
        if values.dtype.kind == "O":
            numbers: dict[str, int] = {}
            texts = map(str, values.tolist())
            code = np.array([numbers.setdefault(text, len(numbers)) for text in texts])
        else:
            code = np.unique(values, return_inverse=True)[1]
        out = np.unique(out * (int(code.max()) + 1) + code, return_inverse=True)[1]
    return out


def _seen_before(codes: IntArray) -> NDArray[np.bool_]:
    seen = np.ones(len(codes), dtype=bool)
    seen[np.unique(codes, return_index=True)[1]] = False
    return seen


def _by_chance(
    columns: Mapping[str, Any], who: IntArray, nearest: IntArray, again: NDArray[np.bool_]
) -> tuple[float, float]:
    """Return how many of those that come again would repeat a row, by what others do."""
    act = _codes([nearest, columns["prescribed"], columns["realized"]])
    near = _codes([nearest])
    mine = _codes([who, act])
    alike, all_ = np.bincount(act)[act], np.bincount(near)[near]
    own, own_all = np.bincount(mine)[mine], np.bincount(who)[who]
    chance = (alike - own + 1) / np.maximum(all_ - own_all + 1, 1)
    # Any earlier row of the entity may be the one that is repeated.
    order = np.argsort(who, kind="stable")
    first = np.searchsorted(who[order], who[order])
    earlier = np.empty(len(who), dtype=np.int64)
    earlier[order] = np.arange(len(who)) - first
    p = np.minimum(chance * np.maximum(earlier, 1), 1)[again]
    return float(p.sum()), float((p * (1 - p)).sum())
