"""Where to ask: centres anywhere among the entities, around the best ones known, or these."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from volition.core.validation import FloatArray
from volition.io.serialization import registered
from volition.learning.entities import Entities

#: share of layouts that are random over the data, and not around the best centres
ROAMING = 0.3
#: one layout in so many is the centres as they stand, to see what they cost
WATCHED = 8
#: largest perturbation of the centres, as a share of the data's range
SPREAD = 0.1


@registered
@dataclass
class Showing:
    """The set of centres that is being asked about, and for how many more questions."""

    left: int = 0
    shown: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    #: whether the set is the plan's
    exact: bool = False

    def take(
        self, n: int, each: int, choose: Callable[[], tuple[FloatArray, bool]]
    ) -> tuple[FloatArray, np.ndarray, np.ndarray]:
        """Return sets for n questions, which one each has, and whether it is the plan's.

        ``choose`` gives the next set, and whether it is the plan's; ``each`` questions are about
        one set.
        """
        sets, sizes, exact, wanted = [], [], [], n
        while wanted:
            if self.left == 0:
                self.shown, self.exact = choose()
                self.left = each
            now = min(self.left, wanted)
            sets.append(self.shown)
            sizes.append(now)
            exact.append(self.exact)
            self.left -= now
            wanted -= now
        return np.array(sets), np.repeat(np.arange(len(sets)), sizes), np.repeat(exact, sizes)


def next_layout(
    centers: FloatArray, entities: Entities, scale: float, rng: np.random.Generator, *,
    roam: bool, settled: bool,
) -> tuple[FloatArray, bool]:  # fmt: skip
    """Return centres anywhere, around the plan's, or the plan's; and whether it is these.

    Parameters
    ----------
    centers : array of shape (K, d)
        The plan's.
    entities : Entities
    scale : float
        The data's spread.
    rng : Generator
    roam : bool
        Whether nothing is known yet, so that all sets are random.
    settled : bool
        Whether the plan is final, so that only it is asked about.
    """
    roam = roam or rng.random() < ROAMING
    watched = rng.random() < 1 / WATCHED
    if settled or (watched and not roam):
        return centers.copy(), True
    if roam:
        return within(_anywhere(len(centers), entities, scale, rng), entities), False
    spread = SPREAD * entities.range * float(rng.random())
    return within(centers + spread * rng.standard_normal(centers.shape), entities), False


def _anywhere(
    n_clusters: int, entities: Entities, scale: float, rng: np.random.Generator
) -> FloatArray:
    """Return centres anywhere among the entities, drawn together by a random factor."""
    X, here = entities.X, entities.here
    drawn = X[here[rng.integers(0, len(here), n_clusters)]]
    mean = np.average(X, axis=0, weights=entities.weight)
    centers = mean + math.sqrt(rng.random()) * (drawn - mean)
    return centers + 0.02 * scale * rng.standard_normal(centers.shape)


def within(Y: FloatArray, entities: Entities) -> FloatArray:
    """Return centres where costs are defined."""
    if entities.cost.translation_invariant:
        return Y
    return np.clip(Y, entities.X.min(0), entities.X.max(0))
