"""The paper's table of expected costs: asynchronous Q-learning with Robbins-Monro steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from volition.core.validation import FloatArray, check_scalar
from volition.io.serialization import registered
from volition.populations.answers import IntArray


@registered
@dataclass(frozen=True)
class RobbinsMonro:
    """Step size ``scale / (offset + n)^power`` of the n-th step, n from 1, at most 1.

    The sum of the steps diverges and that of their squares converges for power in (0.5, 1].

    Examples
    --------
    >>> from volition import RobbinsMonro
    >>> [round(float(RobbinsMonro(power=1.0)(n)), 3) for n in (1, 2, 4)]
    [1.0, 0.5, 0.25]
    """

    power: float = 0.7
    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if check_scalar(self.power, "power", 0, 1) <= 0.5:
            raise ValueError(f"power must lie in (0.5, 1], got {self.power!r}.")
        check_scalar(self.scale, "scale", 0, open_low=True)
        check_scalar(self.offset, "offset", 0)

    def __call__(self, n: Any) -> Any:
        """Return the size of the n-th step."""
        return np.minimum(1.0, self.scale / (self.offset + n) ** self.power)


class CostTable:
    """What autonomy adds to the cost of obeying, for each entity and prescription.

    Of q(i, j) the cost of obeying is known. What autonomy adds to it changes less when the centres
    move.

    Parameters
    ----------
    n, K : int
        Numbers of entities and clusters.
    step : RobbinsMonro
        Step size at the n-th visit of a pair.
    forgetting : float
        Rate at which answers lose weight.
    """

    def __init__(self, n: int, K: int, step: RobbinsMonro, forgetting: float = 0.0) -> None:
        self.table, self.visits = np.zeros((2, n, K))
        self.step, self.forgetting = step, forgetting

    def expected(self, rows: Any, D: FloatArray) -> FloatArray:
        """Return the expected costs of some entities, (m, K), from costs D of being served."""
        result: FloatArray = D + self.table[rows]
        return result

    def add(self, i: IntArray, j: IntArray, extra: FloatArray) -> None:
        """Take in what answers cost more than obeying; arrays are replaced, not changed."""
        table, visits = self.table.copy(), self.visits.copy()
        # Pairs that occur several times in the batch are updated one after the other.
        pair = i * table.shape[1] + j
        order = np.argsort(pair, kind="stable")
        rank = np.empty(len(pair), dtype=np.int64)
        rank[order] = np.arange(len(pair)) - np.searchsorted(pair[order], pair[order])
        floor = 1 - math.exp(-self.forgetting * table.size)
        for r in range(int(rank.max()) + 1):
            now = rank == r
            a, b = i[now], j[now]
            visits[a, b] += 1
            epsilon = np.maximum(self.step(visits[a, b]), floor)
            table[a, b] += epsilon * (extra[now] - table[a, b])
        self.table, self.visits = table, visits

    def faded(self) -> None:
        """Let the next answers count as much as the first ones did."""
        self.visits = np.minimum(self.visits, 1)

    def grown(self, more: int) -> None:
        """Make room for more entities."""
        none = np.zeros((more, self.table.shape[1]))
        self.table = np.concatenate([self.table, none])
        self.visits = np.concatenate([self.visits, none])

    def state(self) -> dict[str, Any]:
        """Return what a file needs."""
        return {"table": self.table, "visits": self.visits}
