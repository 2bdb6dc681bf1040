"""``solver="auto"``: many starts, exact-gradient polishing, moving centres, and the best is kept.

No single start is best everywhere. Annealing finds the coarse structure but may take a wrong
branch; k-means starts are cheap and good when entities mostly obey; when they override to near
centres, good solutions keep centres in twos and threes, which starts with fewer, doubled centres
find. The best are then improved by taking a centre away from where it is little missed and putting
it where it helps most. Every start is polished by the exact gradient, and all tries are reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from sklearn.cluster import kmeans_plusplus

from volition.annealing.anneal import AnnealingResult, OnBeta, anneal
from volition.annealing.schedules import Geometric, Schedule
from volition.annealing.stability import DENSE_COORDINATES
from volition.core.autonomy import Passive
from volition.core.deadline import NEVER, Deadline, OutOfTime
from volition.core.kernels.blocks import threads_for
from volition.core.outliers import bulk_of
from volition.core.problem import FEW_COLUMNS, Problem
from volition.core.validation import FloatArray
from volition.io.serialization import registered
from volition.solvers import FixedPoint, Gradient, Solution, Status

#: entities on which the search runs, at most, and entities times clusters, which set the cost of a
#: step; the best solution is then polished on all entities
SEARCH_SIZE, SEARCH_PAIRS = 8192, 200_000
SEARCH_SIZE_BY_ENTITY, SEARCH_PAIRS_BY_ENTITY = 3000, 75_000
SCREEN_SIZE = 1500
#: betas of a polish, times the distortion: from blurred to hard
LADDER = (3.0, 15.0, 150.0, 2000.0)
#: k-means++ seedings of which a k-means start takes the best
SEEDINGS = 4
#: no further start is tried once so many have led to the best solution
AGREEMENT = 4
#: values nearer than this share of the data's cost count as one solution found twice
TIE = 1e-9
#: reallocation: starts it is applied to, rounds for each, moves of which a round runs a sprint of
#: so many iterations, moves that are then finished, and the most pairs (from, to) that are screened
BASES, ROUNDS, RUNNERS, SPRINT, FINISHERS, PAIRS = 3, 6, 12, 15, 4, 784


#: what is added to the name of a start that was improved by moving centres
MOVED = ", reallocated"
#: of the time that is left: what a start may take before it is polished, and what the search on a
#: sample may take before its best is polished on all entities
START_SHARE, SEARCH_SHARE = 1 / 3, 2 / 3
#: name of the start that takes no time
DRAWN = "entities drawn"
#: number of centres up to which the best is shaken, and how often
FEW, SHAKES = 12, 60


@registered
class Candidate(NamedTuple):
    """One thing that was tried and what it reached (on the entities of the search)."""

    name: str
    distortion: float
    n_iter: int
    seconds: float


class Found(NamedTuple):
    """A solution, its value on the entities of the search, and where it came from."""

    value: float
    centers: FloatArray
    name: str


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


#: called when a candidate begins (name) and when it is done (candidate, centers, beta)
OnBegin = Callable[[str], Any]
OnEnd = Callable[[Candidate, FloatArray, float], Any]


@dataclass
class Search:
    """A run of the portfolio.

    Parameters
    ----------
    problem : Problem
        What to solve.
    n_clusters : int
        Number of centres.
    beta : float, default=inf
        The beta whose free energy counts; at infinity that is the distortion.
    n_init : int, default=3
        Rounds of k-means starts; each round has one with K, K/2 and K/3 distinct centres.
    given : list of arrays of shape (K, d), optional
        Further starts, tried first.
    n_improved : int, default=3
        How many of the best starts are improved by moving centres about, one at a time.
    agreement : int or None
        No further start is tried once so many have led to the best solution; None tries all.
    max_iter, tol : int, float
        Of each exact-gradient run.
    schedule : Schedule, optional
        Of the annealed start.
    random_state : RandomState
        Source of all seeds.
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
    n_improved: int = BASES
    agreement: int | None = AGREEMENT
    max_iter: int = 300
    tol: float = 1e-6
    schedule: Schedule | None = None
    deadline: Deadline = NEVER
    on_begin: OnBegin = lambda name: None
    on_end: OnEnd = lambda candidate, centers, beta: False
    on_beta: OnBeta | None = None
    candidates: list[Candidate] = field(default_factory=list)
    n_iter: int = 0

    def __post_init__(self) -> None:
        size, pairs = SEARCH_SIZE, SEARCH_PAIRS
        if self.problem.autonomy.by_entity:
            size, pairs = SEARCH_SIZE_BY_ENTITY, SEARCH_PAIRS_BY_ENTITY
        # Never fewer than ten entities per cluster: a sample must still show the clusters.
        size = min(size, max(pairs // self.n_clusters, 10 * self.n_clusters))
        self._work = thin(self.problem, canonical_order(self.problem), size)
        self._screen = thin(self._work, canonical_order(self._work), SCREEN_SIZE)

    @property
    def most_tasks(self) -> int:
        """How many candidates there may be, for progress."""
        return sum(1 for _ in self._starts(np.random.RandomState(0))) + self.n_improved * ROUNDS + 1

    def run(self) -> SearchResult:
        """Try everything; keep the best."""
        whole = self.deadline
        if self._work is not self.problem:
            self.deadline = whole.share(SEARCH_SHARE)
        with threads_for(self._work.n_blocks):
            best, annealing, stopped = self._search()
        self.deadline = whole
        with threads_for(self.problem.n_blocks):
            Y, status = self.finish(best.centers)
            beta = self.beta_of(self.problem, Y)
        return SearchResult(
            Y, beta, self.candidates, best.name, annealing, self.n_iter, stopped or status
        )

    def _search(self) -> tuple[Found, AnnealingResult, Status | None]:
        """Return the best of all starts, the annealed one, and what stopped the search, if any."""
        stopped, annealing, cut = None, None, False
        found: list[Found] = []
        for name, start in self._starts(self.random_state):
            # An annealing that was cut off has hardly split: another start must follow it.
            if len(found) > cut and annealing is not None and self.deadline.passed:
                stopped = Status.OUT_OF_TIME
                break
            if self._agreed(found):
                break
            began, before = perf_counter(), self.n_iter
            self.on_begin(name)
            try:
                Y = start(self.deadline.share(START_SHARE))
            except OutOfTime:
                name, Y = DRAWN, self._drawn()
            if isinstance(Y, AnnealingResult):
                annealing, Y = Y, Y.centers
                self.n_iter += annealing.n_iter
                cut = annealing.status is Status.OUT_OF_TIME
            if not (cut and name == "annealed"):
                Y = self.polish(self._work, Y)
            found.append(Found(self.value(self._work, Y), Y, name))
            asked = self._report(name, found[-1], began, before)
            if asked or (annealing is not None and annealing.status is Status.STOPPED):
                stopped = Status.STOPPED
                break
        assert annealing is not None
        ranked = self._ranked(found)
        if stopped is None and self.n_clusters > 1:
            apart = [ranked[0]]
            for one in [] if self._agreed(found) else ranked[1:]:
                if one.value > apart[-1].value + 1e-4 * abs(apart[-1].value):
                    apart.append(one)
            for base in apart[: self.n_improved]:
                improved, stopped = self._reallocate(base)
                found.append(improved)
                if stopped is not None:
                    break
            ranked = self._ranked(found)
            # Where moving centres helps, the starts were not to be trusted: with few centres there
            # are few such moves, and blind ones find more.
            doubtful = ranked[0].name.endswith(MOVED) or (self.given and not self._agreed(found))
            if stopped is None and doubtful and self.n_clusters <= FEW:
                shaken, stopped = self._shake(ranked[0])
                ranked = self._ranked([shaken, *ranked])
        return ranked[0], annealing, stopped

    def _agreed(self, found: list[Found]) -> bool:
        """Whether so many starts led to the best solution that more are hardly worth their time."""
        best = min((one.value for one in found), default=math.inf)
        near = TIE * self._work.cost_scale * 100
        agreeing = sum(one.value <= best + near for one in found)
        return self.agreement is not None and agreeing >= self.agreement

    def _ranked(self, found: list[Found]) -> list[Found]:
        """Sort by value; of equals (the same solution found again) the first stands for all."""
        tie = TIE * self._work.cost_scale
        kept: list[Found] = []
        for one in found:
            if not any(abs(one.value - other.value) <= tie for other in kept):
                kept.append(one)
        return sorted(kept, key=lambda one: one.value)

    def _report(self, name: str, found: Found, began: float, before: int) -> bool:
        cost = self._work.free_energy(found.centers, math.inf)
        candidate = Candidate(name, cost, self.n_iter - before, perf_counter() - began)
        self.candidates.append(candidate)
        return bool(self.on_end(candidate, found.centers, self.beta_of(self._work, found.centers)))

    def beta_of(self, problem: Problem, Y: FloatArray) -> float:
        """Return the beta that counts, or if that is infinite one at which the policy is hard."""
        return (
            self.beta
            if math.isfinite(self.beta)
            else LADDER[-1] / self.floored_distortion(problem, Y)
        )

    # -- starts -----------------------------------------------------------------------------------

    def _starts(
        self, random_state: np.random.RandomState
    ) -> Iterator[tuple[str, Callable[[Deadline], Any]]]:
        seeds = random_state.randint(np.iinfo(np.int32).max, size=self.n_init + 1)
        for number, Y in enumerate(self.given):
            yield f"given #{number}", partial(_as_given, Y)
        yield "annealed", partial(self._annealed, int(seeds[0]))
        for number, seed in enumerate(seeds[1:].tolist()):
            for share in (1, 2, 3):
                size = max(1, round(self.n_clusters / share))
                if share > 1 and size == self.n_clusters:
                    continue
                yield f"k-means with {size} distinct #{number}", partial(self._k_means, size, seed)
            if not isinstance(self.problem.autonomy, Passive):
                yield f"continued from obedience #{number}", partial(self._continued, seed)

    def _drawn(self) -> FloatArray:
        """Return entities at even steps along their order: centres that take no time to find."""
        order = canonical_order(self._work)
        steps = (np.arange(self.n_clusters) + 0.5) / self.n_clusters * len(order)
        return self._work.X[order[steps.astype(int)]].astype(np.float64)

    def _annealed(self, seed: int, deadline: Deadline) -> AnnealingResult:
        work = self._work
        # Elsewhere predictions would take longer than the annealing; none of them moves a centre.
        small = not deadline.finite or self.n_clusters * work.d <= DENSE_COORDINATES
        return anneal(
            work,
            self.n_clusters,
            schedule=Geometric(tau=1.4) if self.schedule is None else self.schedule,
            max_iter=min(self.max_iter, 100),
            tol=max(self.tol, 1e-4),
            random_state=seed,
            on_beta=self.on_beta,
            deadline=deadline,
            predict=work.collapses and small,
        )

    def _k_means(self, n_distinct: int, seed: int, deadline: Deadline) -> FloatArray:
        """Lloyd's algorithm for obedient entities; centres are repeated if K is larger."""
        work = self._work
        order = canonical_order(work)
        Z, weight = work.cost.embed(work.X)[order].astype(np.float64), work.weight[order]
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
            self.n_iter += runs[-1].n_iter
        means = self._ranked(
            [Found(run.free_energy, run.centers.cpu().numpy(), "") for run in runs]
        )[0].centers
        if n_distinct < self.n_clusters:
            mass = np.bincount(plain.labels(means), weights=plain.weight, minlength=n_distinct)
            heaviest = np.argsort(-mass, kind="stable")
            means = means[heaviest[np.arange(self.n_clusters) % n_distinct]]
            means = means + 1e-3 * plain.scale * rng.standard_normal(means.shape)
        return work.cost.unembed(means)

    def _continued(self, seed: int, deadline: Deadline) -> FloatArray:
        """Follow the solution from obedience to full autonomy."""
        Y = self._k_means(self.n_clusters, seed, deadline.share(0.5))
        for t in (0.01, 0.1, 0.3, 0.6):
            partly = self._work.with_autonomy(self._work.autonomy.with_overrides_scaled(t))
            scale = self.floored_distortion(partly, Y)
            beta = min(200 / scale, self.beta)
            Y = self._descend(partly, Y, beta, 60, 1e-4, deadline).centers.cpu().numpy()
        return Y

    # -- improving --------------------------------------------------------------------------------

    def value(self, problem: Problem, Y: FloatArray) -> float:
        """Return the free energy that counts: the distortion, when beta is infinite."""
        return problem.free_energy(Y, self.beta)

    def polish(
        self, problem: Problem, Y: FloatArray, ladder: tuple[float, ...] = LADDER
    ) -> FloatArray:
        """Descend at rising betas up to the one that counts."""
        start, max_iter, tol = Y, min(self.max_iter, 100), max(self.tol, 1e-4)
        for rung in ladder:
            if self.deadline.passed:
                break
            beta = rung / self.floored_distortion(problem, Y)
            if beta < self.beta:
                Y = self._descend(problem, Y, beta, max_iter, tol).centers.cpu().numpy()
        solution = self._descend(problem, Y, self.beta, max_iter, tol)
        Y = solution.centers.cpu().numpy()
        if solution.status is Status.OUT_OF_TIME and not np.array_equal(Y, start):
            # Cut off at a lower beta, where centres are drawn together: it may have been better.
            return min(start, Y, key=lambda centers: self.value(problem, centers))
        return Y

    def floored_distortion(self, problem: Problem, Y: FloatArray) -> float:
        """Return the distortion, kept away from zero: the cost that sets the scale of beta."""
        return max(problem.free_energy(Y, math.inf), 1e-9 * problem.cost_scale)

    def _descend(
        self,
        problem: Problem,
        Y: FloatArray,
        beta: float,
        max_iter: int,
        tol: float,
        deadline: Deadline | None = None,
    ) -> Solution:
        timed = problem.with_deadline(self.deadline if deadline is None else deadline)
        start = problem.centers(Y)
        solution = Gradient().solve(timed, start, beta, max_iter=max_iter, tol=tol)
        self.n_iter += solution.n_iter
        return solution

    def finish(self, Y: FloatArray) -> tuple[FloatArray, Status]:
        """Converge on all entities."""
        problem = self.problem
        if self._work is not problem:
            Y = self.polish(problem, Y, LADDER[-1:])
        solution = self._descend(problem, Y, self.beta, self.max_iter, self.tol)
        status = solution.status
        if problem.cost.mean_is_optimal and not problem.autonomy.depends_on_centers:
            # Weighted means are exact where a quasi-Newton step is only close.
            timed = problem.with_deadline(self.deadline)
            solution = FixedPoint().solve(
                timed, solution.centers, self.beta, max_iter=self.max_iter, tol=1e-14
            )
            self.n_iter += solution.n_iter
        return solution.centers.cpu().numpy(), status

    def _reallocate(self, base: Found) -> tuple[Found, Status | None]:
        """Move centres, one at a time, to where they help most; also say what stopped it."""
        work, best = self._work, base
        for number in range(ROUNDS):
            began, before = perf_counter(), self.n_iter
            name = f"{base.name}, reallocation #{number}"
            self.on_begin(name)
            # A short descent tells promising moves from others; only those are finished.
            race: list[Found] = []
            try:
                moves = self._moves(best.centers)
            except OutOfTime:
                moves = []
            for move in moves:
                if self.deadline.passed:
                    break
                beta = min(LADDER[-2] / self.floored_distortion(work, move), self.beta)
                Y = self._descend(work, move, beta, SPRINT, 1e-4).centers.cpu().numpy()
                race.append(Found(self.value(work, Y), Y, name))
            trials = [best]
            for runner in self._ranked(race)[:FINISHERS]:
                if self.deadline.passed:
                    break
                Y = self.polish(work, runner.centers, LADDER[1:])
                trials.append(Found(self.value(work, Y), Y, base.name + MOVED))
            after = self._ranked(trials)[0]
            if self._report(name, after, began, before):
                return after, Status.STOPPED
            if self.deadline.passed:
                return after, Status.OUT_OF_TIME
            if after is best or after.value > best.value - 1e-6 * work.cost_scale:
                return after, None
            best = after
        return best, None

    def _shake(self, base: Found) -> tuple[Found, Status | None]:
        """Put one or two centres anywhere, polish, keep what is better; again and again."""
        screen, best, name = self._screen, base, f"{base.name}, shaken"
        began, before = perf_counter(), self.n_iter
        self.on_begin(name)
        order = canonical_order(screen)
        share = np.cumsum(screen.weight[order]) / screen.weight[order].sum()
        least = self.value(screen, self.polish(screen, best.centers, LADDER[-1:]))
        for _ in range(SHAKES):
            if self.deadline.passed:
                break
            Y, size = best.centers.copy(), self.random_state.randint(1, 3)
            where = np.searchsorted(share[:-1], self.random_state.random_sample(size))
            Y[self.random_state.permutation(self.n_clusters)[:size]] = screen.X[order[where]]
            Y = self.polish(screen, Y, LADDER[2:])
            value = self.value(screen, Y)
            if value > least - 1e-6 * screen.cost_scale:
                continue
            Y = self.polish(self._work, Y, LADDER[-1:])
            found = Found(self.value(self._work, Y), Y, name)
            if found.value < best.value:
                best, least = found, value
        stopped = Status.STOPPED if self._report(name, best, began, before) else None
        return best, stopped or (Status.OUT_OF_TIME if self.deadline.passed else None)

    def _moves(self, Y: FloatArray) -> list[FloatArray]:
        """Return the most promising layouts with one centre moved, judged before optimising."""
        screen, K = self._screen.with_deadline(self.deadline), self.n_clusters
        spread = spread_of_clusters(screen, Y)

        def join(k: int, j: int) -> FloatArray:
            Z = Y.copy()
            Z[k] = Y[j] + 0.01 * spread[j]
            return Z

        def split(k: int, j: int) -> FloatArray:
            Z = Y.copy()
            Z[k], Z[j] = Y[j] + 0.8 * spread[j], Y[j] - 0.8 * spread[j]
            return Z

        def swap(k: int, j: int) -> FloatArray:
            Z = Y.copy()
            Z[[k, j]] = Y[[j, k]]
            return Z

        kinds = [join, split] if screen.autonomy.interchangeable else [join, split, swap]
        givers = takers = np.arange(K)
        if K * K > PAIRS:
            side = math.isqrt(PAIRS)
            distance = np.stack([np.linalg.norm(y - Y, axis=1) for y in Y])
            np.fill_diagonal(distance, np.inf)
            nearest = distance.argmin(1)
            loss = [self.value(screen, join(k, int(nearest[k]))) for k in range(K)]
            givers = np.argsort(loss, kind="stable")[:side]
            giver = int(givers[0])
            gain = [self.value(screen, split(giver, j)) if j != giver else np.inf for j in range(K)]
            takers = np.argsort(gain, kind="stable")[:side]
        scored = [
            (self.value(screen, Z), Z)
            for k in givers.tolist()
            for j in takers.tolist()
            if j != k
            for Z in (kind(k, j) for kind in kinds)
        ]
        scored.sort(key=lambda pair: pair[0])
        distinct: list[FloatArray] = []
        last = -math.inf
        for score, Z in scored:
            if score > last + TIE * screen.cost_scale:
                distinct.append(Z)
                last = score
            if len(distinct) == RUNNERS:
                break
        return distinct


def _as_given(Y: FloatArray, deadline: Deadline) -> FloatArray:
    return np.array(Y, dtype=np.float64)


class _Timed(np.random.RandomState):
    """Random numbers that run out at the deadline: ends scikit-learn's seeding, a single call."""

    def __init__(self, seed: int, deadline: Deadline) -> None:
        super().__init__(seed)
        self._deadline = deadline

    def uniform(self, *args: Any, **kwargs: Any) -> Any:
        """Draw as usual, in time."""
        self._deadline.check()
        return super().uniform(*args, **kwargs)


def canonical_order(problem: Problem) -> np.ndarray:
    """Order entities of positive weight by coordinates.

    Draws along this order depend on the data as a weighted set only: not on the order of rows, nor
    on whether an entity of weight two is one row or two.
    """
    order = lexical_order(problem.X)
    return order[problem.weight[order] > 0]


def lexical_order(X: FloatArray) -> np.ndarray:
    """Return what ``np.lexsort(X.T[::-1])`` does, sorting by later columns only where needed.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.solvers.search import lexical_order
    >>> lexical_order(np.array([[1.0, 2.0], [0.0, 5.0], [1.0, 1.0]])).tolist()
    [1, 2, 0]
    """
    order = np.argsort(X[:, 0], kind="stable")
    first = X[order, 0]
    same = first[1:] == first[:-1]
    if X.shape[1] == 1 or not same.any():
        return order
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    rows = order[tied]
    order[tied] = rows[np.lexsort(X[rows].T[::-1])]
    return order


def thin(problem: Problem, order: np.ndarray, size: int) -> Problem:
    """Return the problem itself, or a systematic sample of about ``size`` entities.

    Where a few far entities hold nearly all variance, the farthest are in every sample.
    """
    if len(order) <= size:
        return problem
    if problem.dominated_by_few:
        X, weight = problem.X[order].astype(np.float64), problem.weight[order].astype(np.float64)
        away = weight * ((X - bulk_of(X).center) ** 2).sum(1)
        far = np.sort(np.argsort(-away, kind="stable")[: size // 10])
        near = np.delete(np.arange(len(order)), far)
        picked, counts = _systematic(weight[near], size)
        share = counts / counts.sum() * weight[near].sum()
        index = np.concatenate([order[far], order[near[picked]]])
        return problem.subset(index, np.concatenate([weight[far], share]))
    picked, counts = _systematic(problem.weight[order].astype(np.float64), size)
    return problem.subset(order[picked], counts.astype(np.float64))


def _systematic(weight: FloatArray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which entities a systematic sample of ``size`` picks, and how often."""
    edges = np.cumsum(weight)
    marks = (np.arange(size) + 0.5) / size * edges[-1]
    return np.unique(np.searchsorted(edges, marks), return_counts=True)


def spread_of_clusters(problem: Problem, Y: FloatArray) -> FloatArray:
    """Return, per cluster, the main axis of its entities times their deviation along it."""
    X, weight, labels = problem.X.astype(np.float64), problem.weight, problem.labels(Y)
    spread = np.zeros_like(Y)
    for j in range(len(Y)):
        inside = labels == j
        total = weight[inside].sum()
        if total <= 0:
            continue
        x = X[inside] - np.average(X[inside], axis=0, weights=weight[inside])
        if len(x) < problem.d and problem.d > FEW_COLUMNS:
            _, lengths, lines = np.linalg.svd(
                x * np.sqrt(weight[inside, None] / total), full_matrices=False
            )
            axis, value = lines[0], float(lengths[0]) ** 2
        else:
            values, axes = np.linalg.eigh((x * weight[inside, None]).T @ x / total)
            axis, value = axes[:, -1], float(values[-1])
        axis = axis * np.sign(axis[np.abs(axis).argmax()])
        spread[j] = axis * math.sqrt(max(value, 0.0))
    return spread
