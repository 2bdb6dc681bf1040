"""Searching for centres on what was learned, which costs no answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from volition.annealing.anneal import anneal
from volition.annealing.schedules import Geometric
from volition.core.autonomy import Autonomy
from volition.core.deadline import NEVER, Deadline
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.learning.entities import Entities
from volition.solvers import Gradient, Status
from volition.solvers.descent import Descent
from volition.solvers.sampling import canonical_order, thin
from volition.solvers.search import Search

#: entities by which centres are moved, at most
MOVED_BY = 60_000
#: entities by which centres are searched for on a network
SEARCHED_BY = 1500


class Finder:
    """Finds centres for a model of how these entities respond.

    Parameters
    ----------
    entities : Entities
    n_clusters : int
    rng : Generator
    stage : int
        How often was searched before: the first search only finds out where to ask next.
    known : array of shape (K, d) or None
        The best centres so far.
    long : bool
        Whether there will be no later search, so that this one should take its time.
    region : array of shape (2, d), optional
        Lowest and highest coordinates that centres may have.
    deadline : Deadline, optional
        When a search ends with the best so far; ``out_of_time`` says whether one did.
    """

    def __init__(
        self, entities: Entities, n_clusters: int, rng: np.random.Generator, stage: int,
        known: FloatArray | None, long: bool = False, region: FloatArray | None = None,
        deadline: Deadline = NEVER,
    ) -> None:  # fmt: skip
        self.entities, self.n_clusters, self.rng = entities, n_clusters, rng
        self.stage, self.known, self.long, self.region = stage, known, long, region
        self.deadline, self.out_of_time = deadline, False

    def problem(self, model: Autonomy) -> Problem:
        """Return the problem of the entities that are here, or of a sample of them."""
        here, entities = self.entities.here, self.entities
        problem = Problem(
            entities.X[here],
            sample_weight=entities.weight[here],
            cost=entities.cost,
            autonomy=model.subset(here),
        )
        return thin(problem, canonical_order(problem), MOVED_BY)

    def portfolio(self, model: Autonomy) -> FloatArray:
        """Return the best centres for a model that is quick to evaluate."""
        # A log is given once, and short searches end in local optima too often (London, 25
        # centres: 1.4 % too expensive in two of five). Models by entity take several times as long.
        if self.long and not model.by_entity:
            problem = self.problem(model)
            half = self.deadline.share(0.5)
            found = [self._run(model, n_improved=8, deadline=end) for end in (half, self.deadline)]
            Y = min(found, key=problem.distortion)
        else:
            Y = self._run(model)
        return Y if self.region is None else self._in_region(Y, model)

    def _run(self, model: Autonomy, **more: Any) -> FloatArray:
        seed = np.random.RandomState(int(self.rng.integers(2**31)))
        # The second search may be the last; later ones begin near the best.
        effort: dict[str, Any] = (
            {"n_init": 2, "n_improved": 2} if model.by_entity else {"n_init": 3}
        )
        if self.stage == 0:
            effort = {"n_init": 1, "n_improved": 0}
        elif self.stage > 1:
            effort = {"n_init": 1, "n_improved": 1, "given": [self.known]}
        options = {"deadline": self.deadline} | effort | more
        result = Search(self.problem(model), self.n_clusters, seed, **options).run()
        self.out_of_time |= result.status is Status.OUT_OF_TIME
        return result.centers

    def _in_region(self, Y: FloatArray, model: Autonomy) -> FloatArray:
        """Return the best centres near these that stand in the region."""
        assert self.region is not None
        low, high = self.region
        polish = self._polisher(self.problem(model))
        for _ in range(3):
            inside = np.clip(Y, low, high)
            if np.array_equal(inside, Y):
                return Y
            Y = polish(inside)
        return np.clip(Y, low, high)

    def on_network(self, model: Autonomy, Y: FloatArray) -> FloatArray:
        """Return the best of several starts, polished on a model that is slow to evaluate."""
        annealed = anneal(
            self._few(self.problem(model)), self.n_clusters, solver=Gradient(),
            schedule=Geometric(tau=1.8), max_iter=40, tol=1e-4,
            random_state=int(self.rng.integers(2**31)), predict=False,
        )  # fmt: skip
        starts = [Y, annealed.centers]
        if self.stage and self.known is not None:
            starts.append(self.known)
        return self.polished(model, starts)

    def polished(self, model: Autonomy, starts: list[FloatArray]) -> FloatArray:
        """Return the best of some centres, each polished."""
        whole = self.problem(model)
        polish = self._polisher(self._few(whole))
        return min(map(polish, starts), key=whole.distortion)

    def _few(self, problem: Problem) -> Problem:
        return thin(problem, canonical_order(problem), SEARCHED_BY)

    def _polisher(self, problem: Problem) -> Callable[[FloatArray], FloatArray]:
        return partial(Descent(max_iter=60, tol=1e-4, deadline=self.deadline).polish, problem)
