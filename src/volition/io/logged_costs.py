"""Costs between the entities of a log and the centres as they stood, row by row."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from volition.core.costs import Cost
from volition.core.validation import FloatArray

IntArray = NDArray[np.int64]

#: numbers worked out at a time
CHUNK = 2**22


class LoggedCosts(NamedTuple):
    """Who was asked in each row of a log, and at which set of centres.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.core.costs import resolve_cost
    >>> from volition.io.logged_costs import LoggedCosts
    >>> X, sets, who = np.array([[0.0], [9.0]]), np.array([[[0.0], [8.0]]]), np.array([1, 0])
    >>> logged = LoggedCosts(resolve_cost("sqeuclidean"), X, who, np.zeros(2, int), sets)
    >>> logged.to_all().tolist()
    [[81.0, 1.0], [0.0, 64.0]]
    >>> logged.to(np.array([1, 1])).tolist()
    [1.0, 64.0]
    """

    cost: Cost
    X: FloatArray  # (n, d)
    entities: IntArray  # (m,)
    layout: IntArray  # (m,)
    layouts: FloatArray  # (L, K, d)

    def to_all(self, rows: Any = None) -> FloatArray:
        """Return the costs to all centres of some rows, shape (m, K)."""
        rows = np.arange(len(self.entities)) if rows is None else np.asarray(rows)
        K, d = self.layouts.shape[1:]
        out = np.empty((len(rows), K))
        # A cost has one call for neighbouring rows with the same centres.
        order = np.argsort(self.layout[rows], kind="stable")
        step = max(1, CHUNK // (K * d))
        for start in range(0, len(rows), step):
            part = order[start : start + step]
            some = rows[part]
            x = torch.from_numpy(np.asarray(self.X[self.entities[some]], dtype=np.float64))
            y = torch.from_numpy(np.asarray(self.layouts[self.layout[some]], dtype=np.float64))
            out[part] = self.cost.each(x, y).numpy()
        return out

    def to(self, clusters: IntArray) -> FloatArray:
        """Return the cost of one cluster in each row, shape (m,)."""
        out = np.empty(len(self.entities))
        step = max(1, CHUNK // self.layouts.shape[1])
        for start in range(0, len(out), step):
            rows = np.arange(start, min(start + step, len(out)))
            out[rows] = self.to_all(rows)[np.arange(len(rows)), clusters[rows]]
        return out

    def nearest(self) -> IntArray:
        """Return each row's nearest centre, shape (m,)."""
        out = np.empty(len(self.entities), dtype=np.int64)
        step = max(1, CHUNK // self.layouts.shape[1])
        for start in range(0, len(out), step):
            rows = np.arange(start, min(start + step, len(out)))
            out[rows] = self.to_all(rows).argmin(1)
        return out
