"""Does behaviour depend on where the centres stand? Ask at random placements, and see.

A table per entity assumes that it does not. At a random placement any centre may stand anywhere.
So if behaviour does not depend on it, neither those who obey nor what the others use goes with how
near a centre is, whatever the entities are like. Placements are independent of each other: what
goes together is summed for each of them, and the sums are compared with zero.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import t

from volition.core.costs import Cost
from volition.core.validation import FloatArray
from volition.io.serialization import registered
from volition.populations.answers import IntArray

#: share of a budget that is asked at random placements, and questions at least and at most;
#: smaller budgets have no room for it
SHARE, FEWEST, MOST = 0.05, 200, 1000
#: questions about one placement, on average
EACH = 12
#: chance that behaviour which does not depend on the centres seems to
FALSE_ALARM = 1e-3
#: comparisons: obeying by nearness to the entity and to all entities; what is used instead, by
#: nearness to the entity, to the prescribed centre and to all entities
OBEYING, USING = 2, 3


@registered
class Assumption(NamedTuple):
    """What came of the comparison."""

    n_answers: int
    statistic: float  # the largest of several t statistics
    p_value: float

    @property
    def failed(self) -> bool:
        """Whether behaviour depends on where the centres stand."""
        return self.p_value < FALSE_ALARM


class Probe:
    """Random placements, and how what was done there goes with nearness.

    Parameters
    ----------
    placements : array of shape (P, K, d)
        Placements, each with its centres in random order.
    n_questions : int
        Questions in all.
    X : array of shape (n, d)
        Entities.
    cost : Cost
    """

    def __init__(self, placements: FloatArray, n_questions: int, X: FloatArray, cost: Cost) -> None:
        self.placements = placements
        self.n_questions = self.left = n_questions
        self.X, self._cost = X, cost
        P = len(placements)
        #: sums over answers at each placement: nearness of the prescribed, the same of those who
        #: obeyed, and of what the others used
        self.sums = np.zeros((P, 2 * OBEYING + USING))
        self.counts = np.zeros((P, 2))  # answers, and those who obeyed

    @staticmethod
    def size(budget: int) -> int:
        """Return how many questions of a budget go to random placements."""
        n = min(MOST, int(SHARE * budget))
        return n if n >= FEWEST else 0

    @property
    def _at(self) -> int:
        """Number of the placement that is asked about."""
        done = self.n_questions - self.left
        return min(len(self.placements) - 1, done * len(self.placements) // self.n_questions)

    def room(self) -> int:
        """Return how many questions are left about it."""
        end = -(-(self._at + 1) * self.n_questions // len(self.placements))
        return max(1, end - (self.n_questions - self.left))

    def next(self, n: int) -> FloatArray:
        """Return the placement of the next n questions, which all have the same."""
        number = self._at
        self.left -= n
        return self.placements[number]

    def add(
        self, entities: IntArray, prescribed: IntArray, realized: IntArray, centers: FloatArray
    ) -> None:
        """Take in answers; those at other centres are passed over."""
        Y = np.broadcast_to(centers, (len(entities), *self.placements.shape[1:]))
        for number, one in enumerate(self.placements):
            rows = np.flatnonzero((one == Y).all((1, 2)))
            if len(rows):
                self._add(number, entities[rows], prescribed[rows], realized[rows])

    def _add(self, number: int, i: IntArray, j: IntArray, k: IntArray) -> None:
        y, rows = torch.from_numpy(self.placements[number]), np.arange(len(i))
        x = torch.from_numpy(np.ascontiguousarray(self.X))
        with torch.no_grad():
            D = self._cost.pairwise(x[i], y).numpy()
            among = np.broadcast_to(self._cost.pairwise(x, y).numpy().mean(0), D.shape)
            apart = self._cost.pairwise(y, y).numpy()[j]
        obeyed = j == k
        near = np.stack([_standard(one)[rows, j] for one in (D, among)], axis=1)
        others = np.ones(D.shape, dtype=bool)
        others[rows, j] = False
        used = np.stack([_standard(one, others)[rows, k] for one in (D, apart, among)], axis=1)
        self.counts[number] += len(i), obeyed.sum()
        self.sums[number] += np.concatenate(
            [near.sum(0), near[obeyed].sum(0), used[~obeyed].sum(0)]
        )

    def with_entities(self, X: FloatArray) -> Probe:
        """Return the same probe for more entities."""
        other = copy.deepcopy(self)
        other.X = X
        return other

    def state(self) -> dict[str, Any]:
        """Return what a file needs."""
        names = ("placements", "n_questions", "left", "sums", "counts")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_state(cls, state: dict[str, Any], X: FloatArray, cost: Cost) -> Probe:
        """Return the probe that `state` describes."""
        probe = cls(state["placements"], state["n_questions"], X, cost)
        vars(probe).update(state)
        return probe

    def result(self) -> Assumption:
        """Compare the sums of all placements with zero.

        Examples
        --------
        Three entities in four obey, and the others use the nearest centre:

        >>> import numpy as np
        >>> from volition.core.costs import resolve_cost
        >>> from volition.learning.probe import Probe
        >>> rng = np.random.default_rng(0)
        >>> X = rng.random((100, 2))
        >>> probe = Probe(rng.random((20, 3, 2)), 200, X, resolve_cost("sqeuclidean"))
        >>> for Y in probe.placements:
        ...     i, j = rng.integers(0, 100, 10), rng.integers(0, 3, 10)
        ...     nearest = ((X[i][:, None] - Y) ** 2).sum(2).argmin(1)
        ...     probe.add(i, j, np.where(rng.random(10) < 0.75, j, nearest), Y)
        >>> probe.result().failed
        True
        """
        answers, obeyed = self.counts.sum(0)
        some = self.counts[:, 0] > 0
        if some.sum() < 3:
            return Assumption(int(answers), 0.0, 1.0)
        all_near, near, used = np.split(self.sums[some], [OBEYING, 2 * OBEYING], axis=1)
        sums = np.concatenate([near - obeyed / answers * all_near, used], axis=1)
        P, spread = len(sums), sums.std(0, ddof=1)
        found = np.abs(sums.mean(0)) / np.maximum(spread, 1e-300) * np.sqrt(P)
        found = np.where(spread > 1e-12, found, 0.0)
        largest = float(found.max())
        # One of several comparisons is the largest by chance as well.
        p_value = min(1.0, 2 * len(found) * float(t.sf(largest, P - 1)))
        return Assumption(int(answers), largest, p_value)


def _standard(values: FloatArray, among: Any = True) -> FloatArray:
    """Return each row less its mean over some places, in its standard deviations there."""
    where = np.broadcast_to(among, values.shape)
    count = np.maximum(1, where.sum(1, keepdims=True))
    off = values - (values * where).sum(1, keepdims=True) / count
    spread = np.sqrt((off**2 * where).sum(1, keepdims=True) / count)
    return np.divide(off, spread, out=np.zeros_like(off), where=spread > 0)
