"""Questions and answers: what passes between a learner and a population.

A learner sees nothing of a population but its answers. Entities are numbered; a number stays an
entity's own when others come and go. An answer that never came has the realised cluster -1 and the
cost NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from volition.core.validation import FloatArray, check_finite

IntArray = NDArray[np.int64]
#: costs beyond this are mistakes: their squares would not be numbers
LARGEST = 1e100


@dataclass(frozen=True)
class Prescriptions:
    """Questions: which entity was told to use which cluster, and where the centres stood.

    Parameters
    ----------
    entities, prescribed : arrays of shape (m,)
        Numbers of entities and clusters.
    centers : array of shape (K, d), or (m, K, d) where every question has its own
        Centres that the entities are shown.
    ids : array of shape (m,), optional
        A learner's numbers for its questions, by which it knows a late or repeated answer. None
        for prescriptions that someone else made, as in a log.
    propensity : array of shape (m,), optional
        How likely each prescription was when it was chosen.
    version : array of shape (m,), optional
        Number of the centres that were shown: equal numbers, equal centres.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import Prescriptions
    >>> asked = Prescriptions(np.array([4, 7]), np.array([0, 1]), np.zeros((2, 1)))
    >>> len(asked), asked.take([1]).entities.tolist()
    (2, [7])
    """

    entities: IntArray
    prescribed: IntArray
    centers: FloatArray
    ids: IntArray | None = None
    propensity: FloatArray | None = None
    version: IntArray | None = None

    def __post_init__(self) -> None:
        for name in ("entities", "prescribed", "ids", "version"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _whole(getattr(self, name), name))
        object.__setattr__(self, "centers", np.asarray(self.centers, dtype=np.float64))
        if self.propensity is not None:
            object.__setattr__(self, "propensity", np.asarray(self.propensity, dtype=np.float64))
        sizes = {len(values) for values in self._columns().values()}
        if len(sizes) > 1:
            raise ValueError(f"entities, prescribed and ids differ in length: {sorted(sizes)}.")

    def __len__(self) -> int:
        return len(self.entities)

    def take(self, index: Any) -> Prescriptions:
        """Return some of the questions, in the order of ``index`` (numbers or a mask)."""
        index = _index(index)
        some = {name: values[index] for name, values in self._columns().items()}
        centers = self.centers[index] if self.centers.ndim == 3 else self.centers
        return Prescriptions(centers=centers, **some)

    def _columns(self) -> dict[str, Any]:
        """Return what holds one number for each question, as far as it is known."""
        found = {name: getattr(self, name) for name in COLUMNS}
        return {name: values for name, values in found.items() if values is not None}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prescriptions):
            return NotImplemented
        mine, theirs = self._columns(), other._columns()
        same = mine.keys() == theirs.keys() and all(
            np.array_equal(mine[name], theirs[name]) for name in mine
        )
        # One set of centres for all is the same as that set for each.
        a, b = self.centers, other.centers
        return same and a.shape[-2:] == b.shape[-2:] and bool((a == b).all())

    __hash__ = None  # type: ignore[assignment]

    def to_records(self) -> list[dict[str, Any]]:
        """Return plain rows for a database, one for each question, as JSON can hold them.

        Examples
        --------
        >>> from volition import Prescriptions
        >>> asked = Prescriptions([4], [1], [[0.0], [9.0]], [17], [0.5], [3])
        >>> asked.to_records()
        [{'id': 17, 'entity': 4, 'prescribed': 1, 'propensity': 0.5, 'version': 3,
          'centers': [[0.0], [9.0]]}]
        >>> Prescriptions.from_records(asked.to_records()) == asked
        True
        """
        columns = {COLUMNS[name]: values.tolist() for name, values in self._columns().items()}
        columns["centers"] = np.broadcast_to(
            self.centers, (len(self), *self.centers.shape[-2:])
        ).tolist()
        rows = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    @classmethod
    def from_records(cls, records: Any) -> Prescriptions:
        """Return the questions that `to_records` wrote, all or some of them, in any order.

        Parameters
        ----------
        records : sequence of mappings
            Each with ``entity``, ``prescribed`` and ``centers``, and ``id``, ``propensity`` and
            ``version`` in all rows or in none.
        """
        rows = list(records)
        if not rows:
            raise ValueError("There are no records to make questions of.")
        given: dict[str, Any] = {}
        for field_name, name in COLUMNS.items():
            found = [row[name] for row in rows if row.get(name) is not None]
            needed = field_name in ("entities", "prescribed")
            if len(found) not in ((len(rows),) if needed else (0, len(rows))):
                raise ValueError(f"Some records have no '{name}'.")
            given[field_name] = np.array(found) if found else None
        try:
            centers = np.array([row["centers"] for row in rows], dtype=np.float64)
        except (KeyError, ValueError, TypeError):
            raise ValueError("Each record must have 'centers', K rows of numbers.") from None
        same = centers.ndim == 3 and (centers == centers[0]).all()
        return cls(centers=centers[0] if same else centers, **given)


#: columns of questions, and what they are called in records
COLUMNS = {
    "ids": "id",
    "entities": "entity",
    "prescribed": "prescribed",
    "propensity": "propensity",
    "version": "version",
}


@dataclass(frozen=True)
class Response:
    """Answers, row by row: the cluster that was realised (None: not revealed) and its cost.

    No answer came where the cluster is -1 or not revealed, and the cost NaN. Where only one of the
    two is known, the other one is -1 or NaN; a cost of None means that none is known.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import Response
    >>> Response(np.array([2, -1]), np.array([0.5, np.nan])).answered.tolist()
    [True, False]
    """

    realized: IntArray | None
    cost: FloatArray

    def __post_init__(self) -> None:
        if self.cost is None:
            if self.realized is None:
                raise ValueError("cost must be one number for each answer, got None.")
            object.__setattr__(self, "cost", np.full(len(self.realized), np.nan))
        try:
            object.__setattr__(self, "cost", np.array(self.cost, dtype=np.float64))
        except (TypeError, ValueError):
            got = " ".join(repr(self.cost).split())
            got = got if len(got) <= 80 else got[:77] + "..."
            raise ValueError(
                f"cost must be numbers, or NaN where no answer came; got {got}."
            ) from None
        if self.cost.ndim != 1:
            got = f"an array of shape {self.cost.shape}" if self.cost.ndim else "a single one"
            raise ValueError(f"cost must be one number for each answer, got {got}.")
        too_large = np.flatnonzero(np.abs(self.cost) > LARGEST)
        if len(too_large):
            raise ValueError(
                f"cost must be a number within {LARGEST:g}, or NaN where no answer came; row "
                f"{too_large[0]} is {self.cost[too_large[0]]}."
            )
        if self.realized is not None:
            realized = np.asarray(self.realized)
            if realized.dtype.kind == "f" and realized.shape == self.cost.shape:
                realized = np.where(np.isnan(realized), -1, realized)
            object.__setattr__(self, "realized", _whole(realized, "realized"))

    def __len__(self) -> int:
        return len(self.cost)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which rows hold an answer."""
        told = np.isfinite(self.cost)
        return told if self.realized is None else told | (self.realized >= 0)

    def take(self, index: Any) -> Response:
        """Return some of the answers."""
        index = _index(index)
        return Response(None if self.realized is None else self.realized[index], self.cost[index])


def _whole(values: Any, name: str) -> IntArray:
    """Return whole numbers as such, by position, whatever holds them."""
    numbers = np.asarray(values)
    if numbers.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {numbers.shape}.")
    if numbers.dtype.kind not in "iu":
        try:
            bad = np.flatnonzero(numbers.astype(np.float64) != np.round(numbers.astype(np.float64)))
        except (TypeError, ValueError):
            bad = np.arange(1)
        if len(bad) and len(numbers):
            raise ValueError(
                f"{name} must hold whole numbers, got {numbers[bad[0]]!r} at row {bad[0]}."
            )
    return numbers.astype(np.int64)


def _index(index: Any) -> Any:
    index = np.asarray(index)
    return index.astype(np.int64) if index.size == 0 else index


class Population(Protocol):
    """Whoever answers: the only thing that a learner asks for."""

    def respond(self, entities: IntArray, prescribed: IntArray, centers: FloatArray) -> Response:
        """Return what each entity did when told to use the prescribed centre."""


def check_questions(
    entities: Any, prescribed: Any, centers: Any, n_entities: int, n_features: int
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return entities, prescribed clusters and centres as arrays that fit each other."""
    numbers = [np.atleast_1d(np.asarray(values)) for values in (entities, prescribed)]
    Y = np.array(centers, dtype=np.float64)
    shape = numbers[0].shape
    if any(v.dtype.kind not in "iu" or v.shape != shape or v.ndim != 1 for v in numbers):
        raise ValueError(
            "entities and prescribed must be two arrays of whole numbers of one length, got "
            f"shapes {numbers[0].shape} and {numbers[1].shape}."
        )
    if (
        Y.ndim not in (2, 3)
        or Y.shape[-1] != n_features
        or 0 in Y.shape[-2:]
        or (Y.ndim == 3 and len(Y) != len(numbers[0]))
    ):
        raise ValueError(
            f"centers must have shape (K, {n_features}), or ({len(numbers[0])}, K, {n_features}) "
            f"with one set per question, got {Y.shape}."
        )
    check_finite(Y.reshape(-1, n_features), "centers")
    check_range(numbers[0], "entity", n_entities)
    check_range(numbers[1], "cluster", Y.shape[-2])
    return numbers[0].astype(np.int64), numbers[1].astype(np.int64), Y


def check_range(numbers: Any, what: str, limit: int) -> None:
    """Raise one sentence unless all numbers are those of something there is."""
    bad = np.flatnonzero((numbers < 0) | (numbers >= limit))
    if len(bad):
        raise ValueError(
            f"There is no {what} {numbers[bad[0]]} (row {bad[0]}); {what} numbers go from 0 to "
            f"{limit - 1}."
        )
