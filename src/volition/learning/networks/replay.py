"""Answers that a network is trained on, kept with the centres at which they were given."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from volition.core.validation import FloatArray
from volition.io.checked_files import expect
from volition.populations.answers import IntArray


class AnswerGroups(NamedTuple):
    """Groups of answers, each about one set of centres; unused places are not ``valid``."""

    centers: FloatArray  # (G, K, d)
    entities: IntArray  # (G, S)
    prescribed: IntArray  # (G, S)
    target: FloatArray  # (G, S)
    candidates: NDArray[np.bool_]  # (G, S, K): clusters that may have served
    valid: NDArray[np.bool_]  # (G, S)


def distinct_sets(centers: FloatArray) -> tuple[IntArray, IntArray]:
    """Return where each set of centres is first, and which one each of (m, K, d) is.

    Answers about one set mostly come one after the other: only the first of each run is looked up.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.learning.networks.replay import distinct_sets
    >>> first, which = distinct_sets(np.array([2.0, 2.0, 1.0, 2.0]).reshape(4, 1, 1))
    >>> first.tolist(), which.tolist()
    ([2, 0], [1, 1, 0, 1])
    """
    keys = np.ascontiguousarray(centers).reshape(len(centers), -1)
    begins = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(1)))
    heads = keys[begins].view([("", keys.dtype)] * keys.shape[1])[:, 0]
    _, first, which = np.unique(heads, return_index=True, return_inverse=True)
    return begins[first], np.repeat(which, np.diff(begins, append=len(keys)))


class Replay:
    """The latest answers, in groups of at most ``width`` about the same centres.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.learning.networks.replay import Replay
    >>> replay = Replay(n_clusters=2, n_features=1, width=4, capacity=100)
    >>> Y = np.array([[[0.0], [1.0]]] * 3)
    >>> where = replay.add(Y, np.arange(3), np.zeros(3, int), np.ones(3), np.ones((3, 2), bool))
    >>> where.tolist(), replay.take(where).valid.sum()
    ([0], np.int64(3))
    """

    def __init__(self, n_clusters: int, n_features: int, width: int, capacity: int) -> None:
        self.width, self.capacity = width, capacity
        self.n_groups = 0
        self._shape = (n_clusters, n_features)
        self._groups = self._blank(64)
        self._open: dict[bytes, int] = {}

    def __len__(self) -> int:
        return int(self._groups.valid[: self.n_groups].sum())

    def _blank(self, size: int) -> AnswerGroups:
        S, (K, d) = self.width, self._shape
        entities, prescribed = np.zeros((2, size, S), dtype=np.int64)
        return AnswerGroups(
            np.zeros((size, K, d)),
            entities,
            prescribed,
            np.zeros((size, S)),
            np.zeros((size, S, K), dtype=bool),
            np.zeros((size, S), dtype=bool),
        )

    def add(
        self,
        centers: FloatArray,
        entities: IntArray,
        prescribed: IntArray,
        target: FloatArray,
        candidates: NDArray[np.bool_],
    ) -> IntArray:
        """Keep answers, ``centers`` (m, K, d) a set for each; return the groups they are in."""
        # Centres are told apart exactly: those of one question are those of its answer.
        first, which = distinct_sets(centers)
        touched: list[int] = []
        members = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
        for number in np.argsort(first):  # in the order in which they came
            rows = members[number]
            touched += self._add_some(
                centers[rows[0]], rows, entities, prescribed, target, candidates
            )
        dropped = self._forget()
        kept = np.unique(touched) - dropped
        return kept[kept >= 0]

    def _add_some(
        self,
        Y: FloatArray,
        rows: IntArray,
        entities: IntArray,
        prescribed: IntArray,
        target: FloatArray,
        candidates: NDArray[np.bool_],
    ) -> list[int]:
        key, touched = Y.tobytes(), []
        while len(rows):
            group = self._open.get(key)
            if group is None:
                group = self._open[key] = self._new(Y)
            free = np.flatnonzero(~self._groups.valid[group])[: len(rows)]
            now, rows = rows[: len(free)], rows[len(free) :]
            for column, values in zip(
                self._groups[1:], (entities, prescribed, target, candidates, None), strict=True
            ):
                column[group, free] = True if values is None else values[now]
            touched.append(group)
            if self._groups.valid[group].all():
                del self._open[key]
        return touched

    def _new(self, Y: FloatArray) -> int:
        if self.n_groups == len(self._groups.valid):
            larger = self._blank(2 * self.n_groups)
            for new, old in zip(larger, self._groups, strict=True):
                new[: self.n_groups] = old
            self._groups = larger
        self._groups.centers[self.n_groups] = Y
        self.n_groups += 1
        return self.n_groups - 1

    def _forget(self) -> int:
        """Drop the oldest groups once there are half as many again as wanted; return how many.

        Groups that are mostly empty count by the answers in them, though for an eighth at least.
        """
        if self.n_groups <= 1.5 * self.capacity:
            return 0
        size = np.maximum(self._groups.valid[: self.n_groups].mean(1), 1 / 8)
        if size.sum() <= 1.5 * self.capacity:
            return 0
        newest = np.cumsum(size[::-1])
        keep = int(np.searchsorted(newest, self.capacity, "right"))
        drop = self.n_groups - keep
        for column in self._groups:
            column[:keep] = column[drop : self.n_groups].copy()
            column[keep:] = 0
        self.n_groups = keep
        self._open = {key: group - drop for key, group in self._open.items() if group >= drop}
        return drop

    def take(self, groups: IntArray) -> AnswerGroups:
        """Return some groups."""
        columns: Any = (column[groups] for column in self._groups)
        return AnswerGroups(*columns)

    def state(self) -> dict[str, np.ndarray]:
        """Return arrays to be saved."""
        opened = np.array(sorted(self._open.values()), dtype=np.int64)
        kept = self.take(np.arange(self.n_groups))
        return {**kept._asdict(), "open": opened}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Go back to a saved state."""
        opened = arrays["open"]
        self.n_groups = len(arrays["valid"])
        self._groups = self._blank(max(64, self.n_groups))
        for name, column in self._groups._asdict().items():
            shape = (self.n_groups, *column.shape[1:])
            column[: self.n_groups] = expect(arrays, name, shape, column.dtype.kind)
        centers = self._groups.centers
        self._open = {centers[group].tobytes(): int(group) for group in opened}
