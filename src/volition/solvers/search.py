"""``solver="auto"``: many starts, exact-gradient polishing, moving centres, and the best is kept.

No single start is best everywhere (see `starts`). Every start is polished by the exact gradient
(see `descent`). The best are then improved by moving a centre from where it helps least to where it
helps most (see `reallocation`). All tries are reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from volition.annealing.anneal import AnnealingResult, OnBeta
from volition.annealing.schedules import Schedule
from volition.core.deadline import NEVER, Deadline, OutOfTime
from volition.core.kernels.blocks import threads_for
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.solvers.base import Status
from volition.solvers.candidates import (
    SAME_VALUE,
    Candidate,
    Found,
    OnBegin,
    OnEnd,
    Reporter,
    ranked,
)
from volition.solvers.descent import POLISH_BETAS, Descent
from volition.solvers.reallocation import MAX_ROUNDS, Reallocation
from volition.solvers.sampling import canonical_order, thin
from volition.solvers.shaking import Shaking
from volition.solvers.starts import Begun, Start, StartKind, Starts

#: entities on which the search runs, at most, and entities times clusters, which set the cost of a
#: step; the best solution is then polished on all entities
SEARCH_SIZE, SEARCH_PAIRS = 8192, 200_000
SEARCH_SIZE_BY_ENTITY, SEARCH_PAIRS_BY_ENTITY = 3000, 75_000
SCREEN_SIZE = 1500
#: no further start is tried once this many have led to the best solution
AGREEMENT = 4
#: starts that are improved by moving centres
IMPROVED_STARTS = 3
#: of the time that is left: what a start may take before it is polished, and what the search on a
#: sample may take before its best is polished on all entities
START_SHARE, SEARCH_SHARE = 1 / 3, 2 / 3
#: number of centres up to which the best is shaken, and how often
SHAKEN_CENTERS, SHAKES = 12, 60


@dataclass
class SearchResult:
    """The best centres, and the report."""

    centers: FloatArray
    beta: float
    candidates: list[Candidate]
    winner: str
    annealing: AnnealingResult
    n_iter: int
    status: Status


@dataclass
class Tried:
    """What the starts of a search have led to."""

    found: list[Found] = field(default_factory=list)
    annealing: AnnealingResult | None = None
    #: what stopped the search before its end, if anything
    stopped: Status | None = None

    @property
    def usable(self) -> bool:
        """Whether the search may end here: annealed, and a start that was not cut off is there."""
        if self.annealing is None:
            return False
        return len(self.found) > (self.annealing.status is Status.OUT_OF_TIME)


@dataclass
class Search:
    """A search for the best centres from many starts.

    Parameters
    ----------
    problem : Problem
        What to solve.
    n_clusters : int
        Number of centres.
    random_state : RandomState
        Source of all seeds.
    beta : float, default=inf
        The beta whose free energy counts; at infinity that is the distortion.
    n_init : int, default=3
        Rounds of k-means starts; each round has one with K, K/2 and K/3 distinct centres.
    given : list of arrays of shape (K, d), optional
        Further starts, tried first.
    n_improved : int, default=3
        How many of the best starts are improved by moving centres about, one at a time.
    n_shakes : int, default=60
        How many random moves of one or two centres are tried where there are at most twelve and
        moving single centres has helped.
    agreement : int or None
        No further start is tried once this many have led to the best solution; None tries all.
    max_iter, tol : int, float
        Of each exact-gradient run.
    schedule : Schedule, optional
        Of the annealed start.
    deadline : Deadline, optional
        When the search ends with the best so far.
    on_begin, on_end, on_beta : callable, optional
        Progress; a true answer of the latter two stops.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import DistanceAutonomy
    >>> from volition.datasets import load_four_groups
    >>> from volition.solvers.search import Search
    >>> from volition.core.problem import Problem
    >>> problem = Problem(load_four_groups().data, autonomy=DistanceAutonomy(0.3, temperature=0.01))
    >>> result = Search(problem, 4, random_state=np.random.RandomState(0)).run()
    >>> round(problem.distortion(result.centers), 5)
    0.06965
    """

    problem: Problem
    n_clusters: int
    random_state: np.random.RandomState
    beta: float = math.inf
    n_init: int = 3
    given: list[FloatArray] = field(default_factory=list)
    n_improved: int = IMPROVED_STARTS
    n_shakes: int = SHAKES
    agreement: int | None = AGREEMENT
    max_iter: int = 300
    tol: float = 1e-6
    schedule: Schedule | None = None
    deadline: Deadline = NEVER
    on_begin: OnBegin = lambda name, has_betas: None
    on_end: OnEnd = lambda candidate, centers, beta: False
    on_beta: OnBeta | None = None

    def __post_init__(self) -> None:
        size, pairs = SEARCH_SIZE, SEARCH_PAIRS
        if self.problem.autonomy.by_entity:
            size, pairs = SEARCH_SIZE_BY_ENTITY, SEARCH_PAIRS_BY_ENTITY
        # Never fewer than ten entities per cluster: a sample must still show the clusters.
        size = min(size, max(pairs // self.n_clusters, 10 * self.n_clusters))
        self._sample = thin(self.problem, canonical_order(self.problem), size)
        self._screen = thin(self._sample, canonical_order(self._sample), SCREEN_SIZE)
        self._descent = Descent(self.beta, self.max_iter, self.tol, self.deadline)
        self._reporter = Reporter(self._sample, self._descent, self.on_begin, self.on_end)
        self._starts = Starts(
            self._sample,
            self.n_clusters,
            self._descent,
            self.n_init,
            self.given,
            self.schedule,
            self.on_beta,
        )

    @property
    def most_tasks(self) -> int:
        """How many candidates there may be, for progress."""
        return self._starts.count + self.n_improved * MAX_ROUNDS + 1

    def run(self) -> SearchResult:
        """Try everything; keep the best."""
        descent, problem = self._descent, self.problem
        if self._sample is not problem:
            descent.deadline = self.deadline.share(SEARCH_SHARE)
        with threads_for(self._sample.n_blocks):
            tried = self._try_starts()
            best = self._improve(tried)
        assert tried.annealing is not None
        descent.deadline = self.deadline
        with threads_for(problem.n_blocks):
            Y = best.centers
            if self._sample is not problem:
                Y = descent.polish(problem, Y, POLISH_BETAS[-1:])
            Y, status = descent.finish(problem, Y)
            beta = descent.hard_beta(problem, Y)
        return SearchResult(
            Y,
            beta,
            self._reporter.candidates,
            best.name,
            tried.annealing,
            descent.n_iter,
            tried.stopped or status,
        )

    def _try_starts(self) -> Tried:
        """Make and polish one start after another, until enough agree or time is up."""
        tried = Tried()
        for start in self._starts.each(self.random_state):
            # An annealing that was cut off has few distinct centres: try another start too.
            if tried.usable and self._descent.deadline.passed:
                tried.stopped = Status.OUT_OF_TIME
                break
            if self._agreed(tried.found):
                break
            self._try(start, tried)
            if tried.stopped is not None:
                break
        return tried

    def _try(self, start: Start, tried: Tried) -> None:
        """Make one start, polish it, and add it to what was tried."""
        descent, sample = self._descent, self._sample
        with self._reporter.task(start.name, start.kind is StartKind.ANNEALED) as task:
            try:
                begun = start.make(descent.deadline.share(START_SHARE))
            except OutOfTime:
                task.name, begun = "entities drawn", Begun(self._starts.drawn())
            tried.annealing = begun.annealing or tried.annealing
            Y = begun.centers if begun.cut_off else descent.polish(sample, begun.centers)
            found = task.found = Found(descent.value(sample, Y), Y, task.name)
        tried.found.append(found)
        annealing = begun.annealing
        if task.stopped or (annealing is not None and annealing.status is Status.STOPPED):
            tried.stopped = Status.STOPPED

    def _improve(self, tried: Tried) -> Found:
        """Return the best of what was tried, after moving its centres where that may help."""
        found = tried.found
        if tried.stopped is not None or self.n_clusters == 1:
            return self._ranked(found)[0]
        parts = (self._sample, self._screen, self._descent, self._reporter)
        for base in self._apart(found)[: self.n_improved]:
            improved, tried.stopped = Reallocation(*parts).improve(base)
            found.append(improved)
            if tried.stopped is not None:
                break
        best = self._ranked(found)[0]
        # Where moving a centre has helped, the starts were poor. With few centres there are few
        # such moves, and random ones find more.
        doubtful = best.reallocated or (self.given and not self._agreed(found))
        few = self.n_clusters <= SHAKEN_CENTERS and self.n_shakes > 0
        if tried.stopped is None and doubtful and few:
            shaking = Shaking(*parts, self.n_shakes)
            shaken, tried.stopped = shaking.improve(best, self.random_state)
            best = self._ranked([shaken, *self._ranked(found)])[0]
        return best

    def _apart(self, found: list[Found]) -> list[Found]:
        """Return the best solutions that clearly differ; only the best where most starts agree."""
        best, *others = self._ranked(found)
        apart = [best]
        for one in [] if self._agreed(found) else others:
            if one.value > apart[-1].value + 1e-4 * abs(apart[-1].value):
                apart.append(one)
        return apart

    def _agreed(self, found: list[Found]) -> bool:
        """Whether enough starts led to the best solution that further ones can be skipped."""
        best = min((one.value for one in found), default=math.inf)
        near = SAME_VALUE * self._sample.cost_scale * 100
        agreeing = sum(one.value <= best + near for one in found)
        return self.agreement is not None and agreeing >= self.agreement

    def _ranked(self, found: list[Found]) -> list[Found]:
        return ranked(found, self._sample)
