"""Does behaviour depend on where the centres stand? Ask at random placements, and see.

A table per entity assumes that it does not. At a random placement any centre may stand anywhere.
So if behaviour does not depend on it, neither those who obey nor what the others use goes with how
near a centre is, whatever the entities are like. Placements are independent of each other: what
goes together is summed for each of them, and the sums are compared with zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import t

from volition.core.validation import FloatArray
from volition.io.serialization import registered
from volition.learning.entities import Entities
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


@registered
@dataclass(frozen=True)
class Probe:
    """Random placements, and how what was done there goes with nearness.

    Nothing is changed in place: `added` returns another object.

    Parameters
    ----------
    placements : array of shape (P, K, d)
        Placements, each with its centres in random order.
    n_questions : int
        Questions in all, the first ones of a fit.
    sums : array of shape (P, 7)
        Sums over answers at each placement: nearness of the prescribed, the same of those who
        obeyed, and of what the others used.
    counts : array of shape (P, 2)
        Answers at each placement, and those who obeyed.
    """

    placements: FloatArray
    n_questions: int
    sums: FloatArray
    counts: FloatArray

    @classmethod
    def at(cls, placements: FloatArray, n_questions: int) -> Probe:
        """Return a probe that has no answers yet."""
        P = len(placements)
        return cls(placements, n_questions, np.zeros((P, 2 * OBEYING + USING)), np.zeros((P, 2)))

    @staticmethod
    def size(budget: int) -> int:
        """Return how many questions of a budget go to random placements."""
        n = min(MOST, int(SHARE * budget))
        return n if n >= FEWEST else 0

    def place(self, asked: int) -> tuple[FloatArray, int]:
        """Return the placement after so many questions, and how many are left about it."""
        P, n = len(self.placements), self.n_questions
        number = min(P - 1, asked * P // n)
        return self.placements[number], max(1, -(-(number + 1) * n // P) - asked)

    def added(
        self, entities: Entities, i: IntArray, j: IntArray, k: IntArray, centers: FloatArray
    ) -> Probe:
        """Return the probe with more answers: entity i used k when told j.

        Answers at other centres are passed over.
        """
        sums, counts = self.sums.copy(), self.counts.copy()
        Y = np.broadcast_to(centers, (len(i), *self.placements.shape[1:]))
        for number, one in enumerate(self.placements):
            here = np.flatnonzero((one == Y).all((1, 2)))
            if len(here):
                sums[number] += _nearness(entities, i[here], j[here], k[here], one)
                counts[number] += len(here), (j[here] == k[here]).sum()
        return replace(self, sums=sums, counts=counts)

    def result(self) -> Assumption:
        """Compare the sums of all placements with zero.

        Examples
        --------
        Three entities in four obey, and the others use the nearest centre:

        >>> import numpy as np
        >>> from volition.core.costs import resolve_cost
        >>> from volition.learning.entities import Entities
        >>> from volition.learning.probe import Probe
        >>> rng = np.random.default_rng(0)
        >>> people = Entities.of(rng.random((100, 2)), None, resolve_cost("sqeuclidean"))
        >>> probe = Probe.at(rng.random((20, 3, 2)), 200)
        >>> for Y in probe.placements:
        ...     i, j = rng.integers(0, 100, 10), rng.integers(0, 3, 10)
        ...     k = np.where(rng.random(10) < 0.75, j, people.distances(Y, i).argmin(1))
        ...     probe = probe.added(people, i, j, k, Y)
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


def _nearness(
    entities: Entities, i: IntArray, j: IntArray, k: IntArray, Y: FloatArray
) -> FloatArray:
    """Return the sums over answers at one placement; see `Probe`."""
    rows, obeyed, y = np.arange(len(i)), j == k, torch.from_numpy(Y)
    D = entities.distances(Y, i)
    among = np.broadcast_to(entities.distances(Y).mean(0), D.shape)
    with torch.no_grad():
        apart = entities.cost.pairwise(y, y).numpy()[j]
    near = np.stack([_standard(one)[rows, j] for one in (D, among)], axis=1)
    others = np.ones(D.shape, dtype=bool)
    others[rows, j] = False
    used = np.stack([_standard(one, others)[rows, k] for one in (D, apart, among)], axis=1)
    return np.concatenate([near.sum(0), near[obeyed].sum(0), used[~obeyed].sum(0)])


def _standard(values: FloatArray, among: Any = True) -> FloatArray:
    """Return each row less its mean over some places, in its standard deviations there."""
    where = np.broadcast_to(among, values.shape)
    count = np.maximum(1, where.sum(1, keepdims=True))
    off = values - (values * where).sum(1, keepdims=True) / count
    spread = np.sqrt((off**2 * where).sum(1, keepdims=True) / count)
    return np.divide(off, spread, out=np.zeros_like(off), where=spread > 0)
