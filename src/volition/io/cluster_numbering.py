"""Which centre a log means: by name, by number, and by numbers from 0 or from 1.

Numbers from 1 whose last cluster happens to be missing are in the same range as numbers from 0.
Taken for the latter, every centre stands for its neighbour and all results are wrong. Two things
tell: logged costs, and prescriptions, which are nearer to entities by the right numbering.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from volition.core.messages import a_few, shortened
from volition.core.validation import FloatArray
from volition.io.logged_costs import LoggedCosts

IntArray = NDArray[np.int64]

#: rows on which numberings are compared, at most
COMPARED = 20_000
#: how unlikely an advantage must be, if prescriptions have nothing to do with where entities are,
#: before a log is refused; and before its numbering is taken for granted
REFUSED, TRUSTED = 1e-4, 1e-3


class Clusters(NamedTuple):
    """Prescribed and realised clusters as numbers from 0, how they are called, and a caution."""

    prescribed: IntArray
    realized: IntArray
    names: list[str] | None
    note: str | None


def check_center_names(names: Any, K: int) -> list[str] | None:
    """Return the names of K centres as text, all different.

    Examples
    --------
    >>> from volition.io.cluster_numbering import check_center_names
    >>> check_center_names(["mall", "port "], 2)
    ['mall', 'port']
    """
    if names is None:
        return None
    out = [str(name).strip() for name in names]
    if len(out) != K:
        raise ValueError(f"center_names has {len(out)} names, but there are {K} centres.")
    if "" in out:
        raise ValueError(f"center_names has no name for centre {out.index('')}.")
    if len(set(out)) < K:
        twice = next(name for name, times in Counter(out).items() if times > 1)
        raise ValueError(f"center_names has the name {shortened(twice)} more than once.")
    return out


def read_clusters(
    prescribed: Any,
    realized: Any,
    names: list[str] | None,
    numbered_from: int | None,
    logged: LoggedCosts,
    agrees: Callable[[IntArray], bool | None],
    at: Callable[[int], str],
) -> Clusters:
    """Return the clusters that a log means, or ask which.

    Parameters
    ----------
    prescribed, realized : arrays of shape (m,)
        As the log has them: numbers, or names of centres.
    names : list of str or None
        Of the centres.
    numbered_from : {0, 1} or None
        First number, if the user has said so.
    logged : LoggedCosts
        Where entities and centres are.
    agrees : callable
        Whether logged costs are those of the given realised clusters; None if there are none.
    at : callable
        Where a row is, in words.

    Returns
    -------
    Clusters
    """
    if numbered_from not in (None, 0, 1) or isinstance(numbered_from, bool):
        raise ValueError(f"numbered_from must be 0 or 1, got {shortened(numbered_from)}.")
    K = logged.layouts.shape[1]
    whole = _whole_names(names)
    given = {"prescribed": _labels(prescribed, names), "realized": _labels(realized, names)}
    if any(isinstance(labels, list) for labels in given.values()) or (
        whole is not None and whole not in (list(range(K)), list(range(1, K + 1)))
    ):
        number = {name: k for k, name in enumerate(names or [])}
        found = [_by_name(labels, what, number, at) for what, labels in given.items()]
        return Clusters(found[0], found[1], names, None)
    first = numbered_from if numbered_from is not None else (whole[0] if whole else 0)
    numbers = [_by_number(labels, what, at, first, K) for what, labels in given.items()]
    note = None
    if numbered_from is None:
        note = _question(numbers[0], numbers[1], first, logged, agrees)
    for (what, _), column in zip(given.items(), numbers, strict=True):
        bad = np.flatnonzero((column < first) | (column >= first + K))
        if len(bad):
            raise ValueError(_no_cluster(what, column[bad[0]], at(int(bad[0])), first, K))
    if names is None and first == 1:
        names = [str(k + 1) for k in range(K)]
    return Clusters(numbers[0] - first, numbers[1] - first, names, note)


def _whole_names(names: list[str] | None) -> list[int] | None:
    """Return names that are whole numbers as such."""
    if names is None or not all(name.isascii() and name.isdigit() for name in names):
        return None
    return [int(name[:18]) for name in names]


def _labels(values: Any, names: list[str] | None) -> FloatArray | list[str]:
    """Return clusters as numbers if all are, else as text."""
    array = np.asarray(values)
    if array.dtype.kind in "iuf":
        return array.astype(np.float64)
    cells = array.tolist()
    texts = [str(cell).strip() for cell in cells]
    if any(isinstance(cell, bool) for cell in cells):
        return texts
    if (
        any(isinstance(cell, str) for cell in cells)
        and names is not None
        and not _whole_names(names)
    ):
        return texts  # where centres have names, a text is one of them
    try:
        return np.array([float(cell) for cell in cells])
    except (TypeError, ValueError):
        return texts


def _by_name(
    labels: FloatArray | list[str], what: str, number: dict[str, int], at: Callable[[int], str]
) -> IntArray:
    texts = labels if isinstance(labels, list) else [f"{label:.17g}" for label in labels.tolist()]
    for row, label in enumerate(texts):
        if label not in number:
            known = (
                f"the centres are named {a_few(number)}."
                if number
                else "the centres have no names: give them some (center_names=, or a column "
                "cluster, name or site in the file of centres), or number clusters from 0 on."
            )
            raise ValueError(f"The log has {what} cluster {shortened(label)} at {at(row)}; {known}")
    return np.array([number[label] for label in texts], dtype=np.int64)


def _by_number(
    labels: FloatArray | list[str], what: str, at: Callable[[int], str], first: int, K: int
) -> IntArray:
    numbers = np.asarray(labels, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~((numbers == np.round(numbers)) & (np.abs(numbers) < 2**53)))
    if len(bad):
        raise ValueError(_no_cluster(what, numbers[bad[0]], at(int(bad[0])), first, K))
    return numbers.astype(np.int64)


def _no_cluster(what: str, number: float, where: str, first: int, K: int) -> str:
    return (
        f"The log has {what} cluster {number:g} at {where}; clusters are numbered {first} to "
        f"{first + K - 1}."
    )


def _question(
    prescribed: IntArray,
    realized: IntArray,
    first: int,
    logged: LoggedCosts,
    agrees: Callable[[IntArray], bool | None],
) -> str | None:
    """Raise where the log looks as if it were numbered otherwise; return a note where unsure."""
    K, other = logged.layouts.shape[1], 1 - first
    low = int(min(prescribed.min(), realized.min()))
    high = int(max(prescribed.max(), realized.max()))
    if low < other or high >= other + K:
        return None  # as numbered otherwise it cannot be
    answer = f"say numbered_from={other} (--numbered-from {other}) if that is so"
    if low < first or high >= first + K:
        never = "never 0" if first == 0 else f"but the centres are numbered 1 to {K}"
        raise ValueError(
            f"The log's clusters go from {low} to {high}, {never}, and there are {K} centres: they "
            f"seem to be numbered from {other}; {answer}, or correct the log."
        )
    as_is, shifted = agrees(realized - first), agrees(realized - other)
    if as_is and not shifted:
        return None
    unused = first if first == 0 else K
    answer = (
        f"say numbered_from={other} (--numbered-from {other}) if that is so, and "
        f"numbered_from={first} (--numbered-from {first}) if not"
    )
    if shifted and not as_is:
        raise ValueError(
            f"The log's costs are those of its realised clusters only if clusters are numbered "
            f"from {other}; {answer}."
        )
    better, trusted, costs = _compared(prescribed, realized, first, logged)
    if better:
        raise ValueError(
            f"The log never has cluster {unused}, and entities are much nearer to what was "
            f"prescribed if clusters are numbered from {other} (median cost {costs[1]:.4g}) than "
            f"if numbered from {first} ({costs[0]:.4g}); {answer}."
        )
    if trusted:
        return None
    return (
        f"The log never has cluster {unused}; it was read as numbered from {first}, and nothing "
        f"in it shows whether that is right: if it is numbered from {other}, say "
        f"numbered_from={other} (--numbered-from {other})."
    )


def _compared(
    prescribed: IntArray, realized: IntArray, first: int, logged: LoggedCosts
) -> tuple[bool, bool, tuple[float, float]]:
    """Return whether the other numbering is clearly better, this one is, and both median costs.

    How near a centre is counts by its rank: nearest, second, or farther; less each centre's mean.
    If prescriptions do not depend on where entities are, the expected difference is then zero
    whatever the centres, and no far entity and no far centre can outweigh the rest.
    """
    m = len(prescribed)
    rows = np.arange(m) if m <= COMPARED else np.linspace(0, m - 1, COMPARED).astype(np.int64)
    D = logged.to_all(rows)
    each, j, k = np.arange(len(rows)), prescribed[rows], realized[rows]
    rank = np.minimum(D.argsort(1).argsort(1), 2).astype(np.float64)
    rank -= rank.mean(0)
    here, there = ((rank[each, j - b] + rank[each, k - b]) / 2 for b in (first, 1 - first))
    gain = here - there
    # Rows of one entity are not independent.
    _, entity = np.unique(logged.entities[rows], return_inverse=True)
    n, often = int(entity.max()) + 1, np.bincount(entity)
    costs = tuple(float(np.median(D[each, j - b])) for b in (first, 1 - first))
    if n < 2:
        return False, False, (costs[0], costs[1])
    mean = float(gain.mean())
    sums = np.bincount(entity, gain) - often * mean
    error = np.sqrt(n / (n - 1) * (sums**2).sum()) / len(rows)
    # Few entities may agree by chance, so each counts as uncertain by half a rank at least.
    error = max(error, 0.5 / np.sqrt(n))
    better = bool(student.sf(mean / error, n - 1) < REFUSED) and costs[1] < costs[0]
    trusted = bool(student.cdf(mean / error, n - 1) < TRUSTED)
    return better, trusted, (costs[0], costs[1])
