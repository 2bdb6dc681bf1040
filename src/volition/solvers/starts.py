"""Where a search begins: given centres, annealing, k-means, and continuation from obedience."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.cluster import kmeans_plusplus

from volition.annealing.anneal import AnnealingResult, OnBeta, anneal
from volition.annealing.schedules import Geometric, Schedule
from volition.annealing.stability import DENSE_COORDINATES
from volition.core.autonomy import Passive
from volition.core.deadline import Deadline, OutOfTime
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.solvers.base import Solution, Status
from volition.solvers.candidates import Found, ranked
from volition.solvers.descent import Descent, floored_distortion
from volition.solvers.fixed_point import FixedPoint
from volition.solvers.sampling import canonical_order

#: k-means++ seedings of which a k-means start takes the best
SEEDINGS = 4
#: shares of overriding at which a continued start stops on its way from obedience
OVERRIDING_SHARES = (0.01, 0.1, 0.3, 0.6)


class StartKind(Enum):
    """How a start finds its centres."""

    GIVEN = auto()
    ANNEALED = auto()
    K_MEANS = auto()
    CONTINUED = auto()


class Begun(NamedTuple):
    """Centres to polish, and the annealing that led to them, if any."""

    centers: FloatArray
    annealing: AnnealingResult | None = None

    @property
    def cut_off(self) -> bool:
        """Whether an annealing ran out of time: its centres may all still be in one place."""
        return self.annealing is not None and self.annealing.status is Status.OUT_OF_TIME


class Start(NamedTuple):
    """A start that has not been made yet; ``make`` raises `OutOfTime` if it cannot end in time."""

    kind: StartKind
    name: str
    make: Callable[[Deadline], Begun]


@dataclass
class Starts:
    """All starts of a search, cheapest information first.

    Annealing finds the coarse structure but may take a wrong branch. K-means starts are cheap, and
    good when entities mostly obey. When they override to near centres, good solutions keep centres
    in twos and threes, which starts with fewer, doubled centres find.

    Parameters
    ----------
    problem : Problem
        The entities of the search.
    n_clusters : int
        Number of centres.
    descent : Descent
        Counts the iterations, and follows a solution from obedience.
    n_init : int
        Rounds of k-means starts.
    given : list of arrays of shape (K, d)
        Starts that the caller gives.
    schedule : Schedule, optional
        Of the annealed start.
    on_beta : callable, optional
        Progress of the annealed start.
    """

    problem: Problem
    n_clusters: int
    descent: Descent
    n_init: int
    given: list[FloatArray] = field(default_factory=list)
    schedule: Schedule | None = None
    on_beta: OnBeta | None = None

    def each(self, random_state: np.random.RandomState) -> Iterator[Start]:
        """Yield the starts in the order in which they are tried."""
        seeds = random_state.randint(np.iinfo(np.int32).max, size=self.n_init + 1)
        for number, Y in enumerate(self.given):
            yield Start(StartKind.GIVEN, f"given #{number}", partial(_as_given, Y))
        yield Start(StartKind.ANNEALED, "annealed", partial(self._annealed, int(seeds[0])))
        for number, seed in enumerate(seeds[1:].tolist()):
            for share in (1, 2, 3):
                size = max(1, round(self.n_clusters / share))
                if share > 1 and size == self.n_clusters:
                    continue
                name = f"k-means with {size} distinct #{number}"
                yield Start(StartKind.K_MEANS, name, partial(self._k_means, size, seed))
            if not isinstance(self.problem.autonomy, Passive):
                name = f"continued from obedience #{number}"
                yield Start(StartKind.CONTINUED, name, partial(self._continued, seed))

    @property
    def count(self) -> int:
        """How many starts there are."""
        return sum(1 for _ in self.each(np.random.RandomState(0)))

    def drawn(self) -> FloatArray:
        """Return entities at even steps along their order: centres that take no time to find."""
        order = canonical_order(self.problem)
        steps = (np.arange(self.n_clusters) + 0.5) / self.n_clusters * len(order)
        return self.problem.X[order[steps.astype(int)]].astype(np.float64)

    def _annealed(self, seed: int, deadline: Deadline) -> Begun:
        problem, descent = self.problem, self.descent
        # Elsewhere predictions would take longer than the annealing; none of them moves a centre.
        small = not deadline.finite or self.n_clusters * problem.d <= DENSE_COORDINATES
        result = anneal(
            problem,
            self.n_clusters,
            schedule=Geometric(tau=1.4) if self.schedule is None else self.schedule,
            max_iter=min(descent.max_iter, 100),
            tol=max(descent.tol, 1e-4),
            random_state=seed,
            on_beta=self.on_beta,
            deadline=deadline,
            predict=problem.collapses and small,
        )
        descent.n_iter += result.n_iter
        return Begun(result.centers, result)

    def _k_means(self, n_distinct: int, seed: int, deadline: Deadline) -> Begun:
        return Begun(self._means(n_distinct, seed, deadline))

    def _means(self, n_distinct: int, seed: int, deadline: Deadline) -> FloatArray:
        """Run Lloyd's algorithm for obedient entities; repeat centres if K is larger."""
        problem = self.problem
        order = canonical_order(problem)
        Z, weight = problem.cost.embed(problem.X)[order].astype(np.float64), problem.weight[order]
        n_distinct = min(n_distinct, len(Z))
        plain, rng = Problem(Z, sample_weight=weight), _Timed(seed, deadline)
        timed = plain.with_deadline(deadline)
        runs: list[Solution] = []
        for _ in range(SEEDINGS):
            try:
                seeds, _ = kmeans_plusplus(Z, n_distinct, sample_weight=weight, random_state=rng)
            except OutOfTime:
                if not runs:
                    raise
                break
            start = plain.centers(seeds)
            runs.append(FixedPoint().solve(timed, start, math.inf, max_iter=100, tol=1e-4))
            self.descent.n_iter += runs[-1].n_iter
        found = [Found(run.free_energy, run.centers.cpu().numpy(), "") for run in runs]
        means = ranked(found, problem)[0].centers
        if n_distinct < self.n_clusters:
            mass = np.bincount(plain.labels(means), weights=plain.weight, minlength=n_distinct)
            heaviest = np.argsort(-mass, kind="stable")
            means = means[heaviest[np.arange(self.n_clusters) % n_distinct]]
            means = means + 1e-3 * plain.scale * rng.standard_normal(means.shape)
        return problem.cost.unembed(means)

    def _continued(self, seed: int, deadline: Deadline) -> Begun:
        """Follow the solution from obedience to full autonomy."""
        descent = self.descent
        Y = self._means(self.n_clusters, seed, deadline.share(0.5))
        for share in OVERRIDING_SHARES:
            autonomy = self.problem.autonomy.with_overrides_scaled(share)
            partly = self.problem.with_autonomy(autonomy)
            scale = floored_distortion(partly, Y)
            beta = min(200 / scale, descent.beta)
            Y = descent.descend(partly, Y, beta, 60, 1e-4, deadline).centers.cpu().numpy()
        return Begun(Y)


def _as_given(Y: FloatArray, deadline: Deadline) -> Begun:
    return Begun(np.array(Y, dtype=np.float64))


class _Timed(np.random.RandomState):
    """Random numbers that run out at the deadline: ends scikit-learn's seeding, a single call."""

    def __init__(self, seed: int, deadline: Deadline) -> None:
        super().__init__(seed)
        self._deadline = deadline

    def uniform(self, *args: Any, **kwargs: Any) -> Any:
        """Draw as usual, in time."""
        self._deadline.check()
        return super().uniform(*args, **kwargs)
