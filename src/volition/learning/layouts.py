"""Where to ask: centres anywhere among the entities, around the best ones known, or these."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from volition.core.validation import FloatArray
from volition.learning.entities import Entities

#: share of layouts that are random over the data, and not around the best centres
ROAMING = 0.3
#: one layout in so many is the centres as they stand, to see what they cost
WATCHED = 8
#: largest perturbation of the centres, as a share of the data's range
SPREAD = 0.1


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
        parts, begins, exact, done = [], [], np.zeros(n, dtype=bool), 0
        while done < n:
            if self.left == 0:
                self.shown, self.exact = choose()
                self.left = each
            now = min(self.left, n - done)
            parts.append(self.shown)
            begins.append(done)
            exact[done : done + now] = self.exact
            self.left -= now
            done += now
        which = np.searchsorted(begins, np.arange(n), "right") - 1
        return np.array(parts), which, exact

    def copied(self) -> Self:
        """Return a copy; sets are never changed in place."""
        return copy.copy(self)

    def state(self) -> dict[str, Any]:
        """Return what a file needs."""
        return {"left": self.left, "shown": self.shown, "exact": self.exact}


@dataclass
class Layouts:
    """Chooses sets of centres to ask about.

    Parameters
    ----------
    n_clusters : int
    scale : float
        The data's spread.
    rng : Generator
    """

    n_clusters: int
    scale: float
    rng: np.random.Generator

    def near_or_far(
        self, centers: FloatArray, entities: Entities, *, roam: bool, settled: bool
    ) -> tuple[FloatArray, bool]:
        """Return centres anywhere, around the plan's, or the plan's; and whether it is these.

        Parameters
        ----------
        centers : array of shape (K, d)
            The plan's.
        entities : Entities
        roam : bool
            Whether nothing is known yet, so that all sets are random.
        settled : bool
            Whether the plan is final, so that only it is asked about.
        """
        roam = roam or self.rng.random() < ROAMING
        watched = self.rng.random() < 1 / WATCHED
        if settled or (watched and not roam):
            return centers.copy(), True
        if roam:
            return within(self._anywhere(entities), entities), False
        spread = SPREAD * entities.range * float(self.rng.random())
        moved = centers + spread * self.rng.standard_normal(centers.shape)
        return within(moved, entities), False

    def _anywhere(self, entities: Entities) -> FloatArray:
        """Return centres anywhere among the entities, drawn together by a random factor."""
        X, here = entities.X, entities.here
        drawn = X[here[self.rng.integers(0, len(here), self.n_clusters)]]
        mean = np.average(X, axis=0, weights=entities.weight)
        centers = mean + math.sqrt(self.rng.random()) * (drawn - mean)
        return centers + 0.02 * self.scale * self.rng.standard_normal(centers.shape)


def within(Y: FloatArray, entities: Entities) -> FloatArray:
    """Return centres where costs are defined."""
    if entities.cost.translation_invariant:
        return Y
    return np.clip(Y, entities.X.min(0), entities.X.max(0))
