"""Questions described by numbers, and answers to them: what drift is looked for in."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from volition.core.validation import FloatArray
from volition.populations.answers import IntArray

#: numbers that describe a question, besides the prescribed centre
N_GEOMETRY = 15


@dataclass(frozen=True)
class WatchedAnswers:
    """Answers in the order in which they were told, and what was asked.

    Parameters
    ----------
    entities, prescribed : arrays of shape (m,)
        Numbers of entities and clusters.
    costs : array of shape (m, K)
        Costs of the entity to the centres that it was shown, in a unit that never changes: that of
        a single centre for all.
    apart : array of shape (m, K)
        Costs between the prescribed centre and all, in the same unit.
    centers : array of shape (K, d) or (m, K, d)
        Centres that were shown.
    realized : array of shape (m,), optional
        Clusters that were realised; None where answers do not tell.
    cost : array of shape (m,), optional
        What was paid, in any unit. It is looked at where ``realized`` is None.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.learning.drift.questions import WatchedAnswers
    >>> Y = np.array([[0.0], [2.0]])
    >>> len(WatchedAnswers([4], [0], [[1.0, 1.0]], [[0.0, 4.0]], Y, realized=[1]))
    1
    """

    entities: IntArray
    prescribed: IntArray
    costs: FloatArray
    apart: FloatArray
    centers: FloatArray
    realized: IntArray | None = None
    cost: FloatArray | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kind = np.int64 if "IntArray" in str(field.type) else np.float64
            if value is not None:
                object.__setattr__(self, field.name, np.asarray(value, dtype=kind))
        if self.realized is None and self.cost is None:
            raise ValueError("Answers need realized or cost.")
        m, shape = len(self.prescribed), self.costs.shape
        sizes = [len(v) for v in (self.entities, self.realized, self.cost) if v is not None]
        if self.costs.ndim != 2 or {m, *sizes} != {shape[0]} or self.apart.shape != shape:
            raise ValueError(f"Answers differ in length: costs have shape {shape}, {m} prescribed.")
        if self.centers.ndim not in (2, 3) or self.centers.shape[-2] != shape[1]:
            raise ValueError(f"centers have shape {self.centers.shape}, costs {shape}.")

    def __len__(self) -> int:
        return len(self.prescribed)

    def take(self, rows: Any) -> WatchedAnswers:
        """Return some of them."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found = {name: None if v is None else v[rows] for name, v in found.items()}
        found["centers"] = self.centers if self.centers.ndim == 2 else self.centers[rows]
        return WatchedAnswers(**found)


def bent(x: FloatArray, scale: float) -> FloatArray:
    """Return x, bent to stay between -1 and 1."""
    return x / (np.abs(x) + scale)


def geometry(j: IntArray, D: FloatArray, apart: FloatArray) -> FloatArray:
    """Return what questions look like, (m, K + N_GEOMETRY); the first K say which centre it is."""
    m, K = D.shape
    rows = np.arange(m)
    u, away = K * D, K * apart
    own = u[rows, j]
    others = u.copy()
    others[rows, j] = away[rows, j] = np.inf
    nearest, near = others.min(1), away.min(1)
    rank = (others < own[:, None]).sum(1)
    soft = np.exp(-others).sum(1)
    gap = own - nearest
    columns = [
        rank == 0, rank == 1, rank / (K - 1),
        bent(own, 0.2), bent(own, 1.0), bent(own, 5.0),
        bent(nearest, 0.2), bent(nearest, 1.0), bent(nearest, 5.0),
        bent(gap, 0.3), bent(gap, 1.5), bent(near, 0.3), bent(near, 2.0),
        soft / (1 + soft), bent(u.mean(1), 3.0),
    ]  # fmt: skip
    return np.concatenate([np.eye(K)[j], np.stack(columns, 1).astype(np.float64)], axis=1)


class Past:
    """What each entity, or pair of an entity and a prescription, has answered so far."""

    def __init__(self) -> None:
        self.table = np.zeros((0, 3))  # answers, sums of residuals, sums of outcomes

    def at(self, rows: IntArray) -> FloatArray:
        """Return the sums of some, (3, m)."""
        have = len(self.table)
        if (need := int(rows.max(initial=-1)) + 1) > have:
            more = np.zeros((max(need, 2 * have) - have, 3))
            self.table = np.concatenate([self.table, more])
        return self.table[rows].T

    def add(self, rows: IntArray, residuals: FloatArray, outcomes: FloatArray) -> None:
        """Take in answers."""
        np.add.at(self.table, rows, np.stack([np.ones(len(rows)), residuals, outcomes], 1))
