"""Counts of realised clusters for each entity, blended with everybody's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volition.core.validation import FloatArray
from volition.populations.answers import IntArray

#: how many answers of an entity everybody's answers are worth: the candidates
POOLING = np.array([0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0, 10000.0])
#: logarithm of the unit beyond which all counts are rescaled
LARGEST_UNIT = 200.0


class Counts:
    """How often each entity used k when told j; a count stays true when the centres move.

    What an entity has in common with all others is learned from all of them: everybody's shares
    count as some answers of its own. How many is found out by how well that foretells answers.

    Parameters
    ----------
    n, K : int
        Numbers of entities and clusters.
    forgetting : float
        Rate at which answers lose weight.
    """

    def __init__(self, n: int, K: int, forgetting: float = 0.0) -> None:
        self.table = np.zeros((n, K, K))
        self.evidence = np.zeros(len(POOLING))
        self.unit = 1.0
        self.forgetting = forgetting
        #: rows of the table as they were before the present call, to put back
        self._before: list[tuple[FloatArray, IntArray, FloatArray]] = []

    @property
    def total(self) -> float:
        """Answers that count, those that have faded less."""
        return float(self.table.sum()) / self.unit

    @property
    def pooling(self) -> float:
        """How many answers of its own everybody's answers are worth to an entity."""
        # Without evidence everybody counts as like everybody else.
        return float(POOLING[::-1][int(self.evidence[::-1].argmax())])

    def pooled(self) -> FloatArray:
        """Return everybody's choices, (K, K), a little short of certain."""
        counts = self.table.sum(0) / self.unit + 1 / self.table.shape[1]
        return counts / counts.sum(1, keepdims=True)

    def p(self, rows: Any, pooling: float | None = None) -> FloatArray:
        """Return p(k | j, i) as estimated for some entities."""
        pooling = self.pooling if pooling is None else pooling
        counts = self.table[rows] / self.unit
        return (counts + pooling * self.pooled()) / (counts.sum(2, keepdims=True) + pooling)

    def expected(self, rows: Any, D: FloatArray, pooling: float | None = None) -> FloatArray:
        """Return the expected costs of some entities, (m, K), from costs D of being served."""
        return np.einsum("ijk,ik->ij", self.p(rows, pooling), D)

    def doubt(self, rows: Any, D: FloatArray, pooling: float) -> FloatArray:
        """Return the standard error of the expected costs, (m, K)."""
        # A few equal answers must not pass for certainty: the spread is partly everybody's.
        p = self.p(rows, pooling + 5)
        mean = np.einsum("ijk,ik->ij", p, D)
        spread = np.einsum("ijk,ik->ij", p, D**2) - mean**2
        answers = self.table[rows].sum(2) / self.unit + pooling + 1
        return np.sqrt(np.maximum(spread, 0) / answers)

    def regret(self, D: FloatArray, weight: FloatArray) -> float:
        """Return by what share prescribing by the counts may cost more than knowing all."""
        belief = np.exp(self.evidence - self.evidence.max())
        belief /= belief.sum()
        everyone = slice(None)
        best = self.expected(everyone, D).argmin(1)
        rows, total, cost = np.arange(len(D)), 0.0, 0.0
        rng = np.random.default_rng(0)  # the same draws every time: a smooth function of the state
        for pooling, share in zip(POOLING, belief, strict=True):
            if share < 1e-3:
                continue
            q, doubt = self.expected(everyone, D, pooling), self.doubt(everyone, D, pooling)
            loss = np.zeros(len(D))
            for _ in range(8):
                truth = q + doubt * rng.standard_normal(q.shape)
                loss += (truth[rows, best] - truth.min(1)) / 8
            total += share * float(weight @ loss)
            cost += share * float(weight @ q[rows, best])
        return total / max(cost, 1e-300)

    def add(self, i: IntArray, j: IntArray, k: IntArray) -> None:
        """Count answers, in place; `undo` takes them back."""
        # Answers of one pair within a slice do not foretell each other: slices are kept short.
        length = max(64, self.table.shape[0] * self.table.shape[1] // 4)
        for lo in range(0, len(k), length):
            part = slice(lo, lo + length)
            self._add(i[part], j[part], k[part])

    def _add(self, i: IntArray, j: IntArray, k: IntArray) -> None:
        pooled, rows = self.pooled(), np.arange(len(i))
        # How well would each pooling have foretold these answers?
        counts = self.table[i, j] / self.unit
        mine, seen = counts[rows, k], counts.sum(1)
        foretold = mine[:, None] + POOLING * pooled[j, k][:, None]
        foretold = foretold / (seen[:, None] + POOLING)
        fading = self.forgetting * len(i)
        evidence = self.evidence * math.exp(-fading) + np.log(foretold).sum(0)
        self.evidence = evidence - evidence.max()
        # Instead of all old answers losing weight, new ones get more; now and then all is rescaled.
        if math.log(self.unit) + fading > LARGEST_UNIT:
            self.table = self.table * (math.exp(-fading) / self.unit)
            self.unit = 1.0
        else:
            self.unit *= math.exp(fading)
        touched = np.unique(i)
        self._before.append((self.table, touched, self.table[touched].copy()))
        np.add.at(self.table, (i, j, k), self.unit)

    def copied(self) -> Counts:
        """Return a copy that shares the table, which `undo` puts back as it was."""
        other = Counts.__new__(Counts)
        vars(other).update(vars(self) | {"_before": []})
        return other

    def undo(self) -> None:
        """Put the table back as it was when this copy was made."""
        while self._before:
            table, rows, values = self._before.pop()
            table[rows] = values

    def faded(self) -> None:
        """Keep next to nothing: until answers come, the old behaviour is the best guess."""
        self.table = self.table * (0.01 / max(1.0, float(self.table.sum(2).max()) / self.unit))
        self.evidence = np.zeros(len(POOLING))

    def grown(self, more: int) -> None:
        """Make room for more entities."""
        self.table = np.concatenate([self.table, np.zeros((more, *self.table.shape[1:]))])

    def state(self) -> dict[str, Any]:
        """Return what a file needs."""
        # The table goes on being changed in place.
        return {"table": self.table.copy(), "evidence": self.evidence, "unit": self.unit}
