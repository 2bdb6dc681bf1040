"""Does behaviour depend on where the centres stand? Ask at two placements, and compare.

A table per entity assumes that it does not. If so, the shares of used centres for each prescribed
one are the same at both placements, whatever the entities are like.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import chi2

from volition.validation import FloatArray

#: share of a budget that is asked at the two placements, and questions at least and at most;
#: smaller budgets have no room for it
SHARE, FEWEST, MOST = 0.05, 200, 1000
#: chance that behaviour which does not depend on the centres seems to
FALSE_ALARM = 1e-3


class Assumption(NamedTuple):
    """What came of the comparison."""

    n_answers: int
    statistic: float
    p_value: float

    @property
    def failed(self) -> bool:
        """Whether behaviour depends on where the centres stand."""
        return self.p_value < FALSE_ALARM


class Probe:
    """Two placements, and how often each centre was used there, by what was prescribed."""

    def __init__(self, placements: FloatArray, n_questions: int) -> None:
        self.placements = placements  # (2, K, d)
        self.left = n_questions
        self.half = -(-n_questions // 2)
        K = placements.shape[1]
        self.counts = np.zeros((2, K, K))

    @staticmethod
    def size(budget: int) -> int:
        """Return how many questions of a budget go to the two placements."""
        n = min(MOST, int(SHARE * budget))
        return n if n >= FEWEST else 0

    def next(self, n: int) -> FloatArray:
        """Return the placement of the next n questions, which all have the same."""
        first = self.left > self.half
        self.left -= n
        return self.placements[0 if first else 1]

    def room(self) -> int:
        """Return how many questions are left at the placement that is asked about."""
        return self.left - self.half if self.left > self.half else self.left

    def which(self, centers: FloatArray, m: int) -> Any:
        """Return for each of m answers at which placement it was given, -1 for neither."""
        Y = np.broadcast_to(centers, (m, *self.placements.shape[1:]))
        here = [(one == Y).all((1, 2)) for one in self.placements]
        return np.where(here[0], 0, np.where(here[1], 1, -1))

    def add(self, prescribed: Any, realized: Any, centers: FloatArray) -> None:
        """Take in answers; those at other centres are passed over."""
        at = self.which(centers, len(prescribed))
        mine = at >= 0
        np.add.at(self.counts, (at[mine], prescribed[mine], realized[mine]), 1)

    def result(self) -> Assumption:
        """Compare the placements.

        Examples
        --------
        >>> import numpy as np
        >>> from volition.learners.probe import Probe
        >>> probe = Probe(np.zeros((2, 2, 1)), 0)
        >>> probe.counts[:] = [[[30, 10], [10, 30]], [[10, 30], [30, 10]]]
        >>> probe.result().failed
        True
        """
        statistic, degrees = 0.0, 0
        for j in range(self.counts.shape[1]):
            table = self.counts[:, j]
            table = table[:, table.sum(0) > 0]
            rows, columns, total = table.sum(1), table.sum(0), table.sum()
            if min(rows) == 0 or table.shape[1] < 2:
                continue
            expected = np.outer(rows, columns) / total
            # Rare centres are taken together: the law is only right where some are expected.
            rare = expected.min(0) < 5
            if rare.any():
                keep = ~rare
                table = np.column_stack([table[:, keep], table[:, rare].sum(1)])
                expected = np.column_stack([expected[:, keep], expected[:, rare].sum(1)])
            if table.shape[1] < 2 or expected.min() < 1:
                continue
            statistic += float(((table - expected) ** 2 / expected).sum())
            degrees += table.shape[1] - 1
        p_value = float(chi2.sf(statistic, degrees)) if degrees else 1.0
        return Assumption(int(self.counts.sum()), statistic, p_value)
