"""The loop over beta: solve, let the schedule choose the next beta, solve again."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import check_random_state

from volition.annealing.schedules import Geometric, Move, Schedule, State
from volition.annealing.stability import (
    NoCurvatureError,
    assess_stability,
    blur_length,
    count_distinct,
)
from volition.core.deadline import Deadline, OutOfTime
from volition.core.kernels.blocks import threads_for
from volition.core.problem import Problem, Summary
from volition.core.validation import FloatArray, check_centers, check_integer
from volition.io.serialization import registered
from volition.solvers import FixedPoint, Gradient, Solution, Solver, Status

#: size of the perturbation between betas, as a share of the length at which the policy is blurred
PERTURBATION = 1e-3
#: where all centres leave one place for more than this many, chance has decided the direction
CHANCE_PLACES = 5


@registered
class Record(NamedTuple):
    """One line of the history: the state that was reached at one beta."""

    beta: float
    n_iter: int
    free_energy: float
    distortion: float
    hard_distortion: float
    entropy: float
    n_distinct: int
    step_size: float
    handovers: int
    status: str


@registered
class PhaseTransition(NamedTuple):
    """A change in the number of distinct centres.

    ``beta`` is the first beta with the new number. ``predicted`` is the critical beta (Theorem 2)
    of the last minimum before it. It is None where it was not computed, and where centres merge
    again, which the theorem does not cover.
    """

    beta: float
    n_before: int
    n_after: int
    predicted: float | None


#: called after each beta with the record and the centres; a true answer stops the annealing
OnBeta = Callable[[Record, FloatArray], Any]


@dataclass(frozen=True)
class AnnealingResult:
    """Where annealing led, and how.

    Attributes
    ----------
    centers : ndarray of shape (K, d)
        Centres at the last beta, converged, without perturbation.
    beta : float
        The last beta.
    history : list of Record
        One record per beta.
    path : list of ndarray
        The centres at each beta.
    transitions : list of PhaseTransition
        The betas at which the number of distinct centres changed.
    status : Status
        How the last beta ended, or what stopped the annealing.
    discarded_iter : int, default=0
        Inner iterations on paths that were not kept.
    """

    centers: FloatArray
    beta: float
    history: list[Record]
    path: list[FloatArray]
    transitions: list[PhaseTransition]
    status: Status
    discarded_iter: int = 0

    @property
    def n_iter(self) -> int:
        """Inner iterations, all betas together."""
        return sum(record.n_iter for record in self.history) + self.discarded_iter


def describe(problem: Problem, solution: Solution, beta: float, summary: Summary) -> Record:
    """Return the line of history for what a solver reached at one beta."""
    return Record(
        beta,
        solution.n_iter,
        summary.free_energy,
        summary.distortion,
        summary.hard_distortion,
        summary.entropy,
        count_distinct(problem, solution.centers.cpu().numpy(), beta),
        solution.step_size,
        solution.handovers,
        solution.status.value,
    )


def anneal(
    problem: Problem,
    init: Any,
    *,
    solver: Solver | None = None,
    schedule: Schedule | None = None,
    max_iter: int = 300,
    tol: float = 1e-6,
    perturb: bool = True,
    random_state: Any = None,
    on_beta: OnBeta | None = None,
    deadline: Deadline | Callable[[], bool] | None = None,
    predict: bool = True,
) -> AnnealingResult:
    """Solve the problem at one beta after another, each from the solution before.

    Parameters
    ----------
    problem : Problem
        What to solve.
    init : int or array of shape (K, d)
        Number of clusters, all starting at the mean; or the centres to start from.
    solver : Solver, optional
        By default Algorithm 1 where the cost has a closed-form centre update and p does not depend
        on the centres, the exact gradient otherwise and for the schedule `Critical`.
    schedule : Schedule, optional
        By default geometric, with ends that fit the data.
    max_iter : int, default=300
        Largest number of iterations at one beta.
    tol : float, default=1e-6
        A beta is done when centres move by less than this share of the data's spread.
    perturb : bool, default=True
        Move centres by a thousandth of the blur between betas, so that they can leave saddle
        points. The solver starts from the perturbed centres; what is kept is what it converges to.
    random_state : int, RandomState or None
        Seed of the perturbation.
    on_beta : callable, optional
        Called with (record, centers) after each beta; a true answer stops.
    deadline : Deadline or callable, optional
        Asked before each beta; a true answer stops. A `Deadline` also stops in the middle of one.
    predict : bool, default=True
        Compute the critical beta of the state before each transition, to compare with.

    Returns
    -------
    AnnealingResult

    Examples
    --------
    >>> from volition import DistanceAutonomy, anneal
    >>> from volition.datasets import load_four_groups
    >>> from volition.core.problem import Problem
    >>> problem = Problem(load_four_groups().data, autonomy=DistanceAutonomy(0.2, temperature=100))
    >>> result = anneal(problem, 4, random_state=0)
    >>> result.status.value, round(problem.distortion(result.centers), 4)
    ('converged', 0.0879)
    """
    _check_object(solver, "solver", "solve", "volition.solvers")
    _check_object(schedule, "schedule", "next", "volition.annealing.schedules")
    check_integer(max_iter, "max_iter", 1)
    schedule = Geometric() if schedule is None else schedule
    start, at_mean = _first_centers(problem, init)
    loop = _Loop(
        problem,
        problem.with_deadline(deadline) if isinstance(deadline, Deadline) else problem,
        _default_solver(problem, schedule) if solver is None else solver,
        schedule,
        _Perturbation(problem, check_random_state(random_state)) if perturb else None,
        max_iter,
        tol,
        on_beta,
        (lambda: False) if deadline is None else deadline,
        predict,
    )
    passes = getattr(schedule, "passes", 1) if perturb and at_mean else 1
    with threads_for(problem.n_blocks):
        return _best_of_passes(loop, start, at_mean, passes)


def _first_centers(problem: Problem, init: Any) -> tuple[FloatArray, bool]:
    """Return the centres to start from, and whether they are all at the mean.

    There all centres coincide, a saddle point at any beta above the first split.
    """
    at_mean = isinstance(init, int | np.integer)
    if at_mean:
        check_integer(init, "init (as a number of clusters)", 1)
        start = np.repeat(problem.mean_center(), int(init), axis=0)
    else:
        start = check_centers(init, problem.d, "init")
    problem.autonomy.check(len(start), problem.n)
    return start, at_mean


def _best_of_passes(loop: _Loop, start: FloatArray, at_mean: bool, passes: int) -> AnnealingResult:
    """Anneal once, or again where chance has decided which way the centres jumped."""
    results = [loop.run(start, at_mean)]
    while len(results) < passes and _left_to_chance(loop.problem, results[-1]):
        results.append(loop.run(start, at_mean))
    best = results.pop()
    while results:
        best = _lower(results.pop(), best)
    return best


def _check_object(value: Any, name: str, method: str, room: str) -> None:
    if value is not None and (isinstance(value, type) or not hasattr(value, method)):
        raise ValueError(f"{name} must be a {name} object such as those in {room}, got {value!r}.")


def _default_solver(problem: Problem, schedule: Schedule) -> Solver:
    frozen = problem.cost.mean_is_optimal and not problem.autonomy.depends_on_centers
    return FixedPoint() if frozen and not getattr(schedule, "preconditions", False) else Gradient()


def _left_to_chance(problem: Problem, result: AnnealingResult) -> bool:
    """Whether all centres jumped apart at once, in a direction that the perturbation chose.

    Groups of equal shape split at once too, but not because centres pull each other along: that
    takes a p that depends on the centres.
    """
    if result.status is not Status.CONVERGED or not problem.autonomy.depends_on_centers:
        return False
    return any(t.n_before == 1 and t.n_after > CHANCE_PLACES for t in result.transitions)


def _lower(first: AnnealingResult, second: AnnealingResult) -> AnnealingResult:
    """Return the result of lower free energy, with the iterations of both."""
    lower = second.history[-1].free_energy < first.history[-1].free_energy
    # One that did not converge did not get to the same beta.
    best, other = first, second
    if lower and second.status is Status.CONVERGED:
        best, other = second, first
    return replace(best, discarded_iter=best.discarded_iter + other.n_iter)


@dataclass(frozen=True)
class _Perturbation:
    """Random moves of all centres, which let them leave saddle points."""

    problem: Problem
    rng: np.random.RandomState

    def of(self, Y: torch.Tensor, blur: float, beta: float) -> torch.Tensor:
        """Return the centres, moved by this multiple of the length of the blur."""
        size = blur * blur_length(self.problem, beta)
        noise = self.rng.standard_normal(tuple(Y.shape)) * size / math.sqrt(self.problem.d)
        return Y + self.problem.centers(noise)


@dataclass
class _Path:
    """The states that annealing has gone through."""

    history: list[Record] = field(default_factory=list)
    centers: list[FloatArray] = field(default_factory=list)
    criticals: list[float] = field(default_factory=list)
    state: State | None = None

    def add(self, record: Record, summary: Summary, centers: FloatArray, move: Move) -> None:
        """Append what was reached."""
        self.history.append(record)
        self.centers.append(centers)
        # A chain of all states would keep all their moves.
        before = self.state and self.state._replace(previous=None)
        self.state = State(record.beta, summary, record.n_distinct, centers, before, move)

    def transitions(self) -> list[PhaseTransition]:
        """Return where the number of distinct centres changed."""
        return [
            PhaseTransition(
                b.beta,
                a.n_distinct,
                b.n_distinct,
                critical if b.n_distinct > a.n_distinct and not math.isnan(critical) else None,
            )
            for a, b, critical in zip(
                self.history, self.history[1:], self.criticals[1:], strict=False
            )
            if a.n_distinct != b.n_distinct
        ]

    def end(self, status: Status) -> AnnealingResult:
        """Return the result."""
        return AnnealingResult(
            self.centers[-1].copy(),
            self.history[-1].beta,
            self.history,
            self.centers,
            self.transitions(),
            status,
        )


@dataclass(frozen=True)
class _Loop:
    """Annealing with all its parts: `run` is the loop over beta."""

    problem: Problem
    #: the same problem, whose sums end at the deadline
    timed: Problem
    solver: Solver
    schedule: Schedule
    perturbation: _Perturbation | None
    max_iter: int
    tol: float
    on_beta: OnBeta | None
    late: Callable[[], bool]
    predict: bool

    def run(self, start: FloatArray, at_mean: bool) -> AnnealingResult:
        """Go from beta to beta, each from the solution before, until the schedule ends."""
        path, Y = _Path(), self.problem.centers(start)
        status = Status.CONVERGED
        move: Move | None = Move(self.schedule.start(self.problem))
        while move is not None:
            if path.history and self.late():
                return path.end(Status.OUT_OF_TIME)
            solution = self._solve(Y, move, perturb=at_mean or bool(path.history))
            Y, status = solution.centers, solution.status
            record, centers = self._add(path, solution, move)
            if self.on_beta is not None and self.on_beta(record, centers):
                return path.end(Status.STOPPED)
            if status is Status.OUT_OF_TIME:
                return path.end(status)
            try:
                move = self._next_move(path)
            except OutOfTime:
                return path.end(Status.OUT_OF_TIME)
        return path.end(status)

    def _solve(self, Y: torch.Tensor, move: Move, perturb: bool) -> Solution:
        """Minimise the free energy at the move's beta, from where the move says."""
        noise, origin = self.perturbation, Y
        if move.origin is not None:
            origin = self.problem.centers(move.origin)
        elif noise is not None and perturb:
            origin = noise.of(Y, PERTURBATION, move.beta)
        solution = self._minimise(origin, move, move.preconditioner)
        if noise is None or move.leap == 0:
            return solution
        other = self._minimise(noise.of(origin, move.leap, move.beta), move)
        n_iter = solution.n_iter + other.n_iter
        if other.free_energy < solution.free_energy - self.tol * self.problem.cost_scale:
            solution = other
        return replace(solution, n_iter=n_iter)

    def _minimise(
        self, Y: torch.Tensor, move: Move, preconditioner: FloatArray | None = None
    ) -> Solution:
        try:
            return self.solver.solve(
                self.timed,
                Y,
                move.beta,
                max_iter=self.max_iter,
                tol=self.tol * move.slack,
                preconditioner=preconditioner,
            )
        except OutOfTime:  # a solver that does not know of deadlines
            return Solution(Y, math.inf, 0, Status.OUT_OF_TIME)

    def _add(self, path: _Path, solution: Solution, move: Move) -> tuple[Record, FloatArray]:
        """Append the solution to the path; return its record and its centres."""
        summary = self.problem.summary(solution.centers, move.beta)
        record = describe(self.problem, solution, move.beta, summary)
        path.criticals.append(self._critical_before(path, record, move))
        centers = solution.centers.cpu().numpy().copy()
        path.add(record, summary, centers, move)
        return record, centers

    def _critical_before(self, path: _Path, record: Record, move: Move) -> float:
        """Return the critical beta of the state before, where it is known or asked for."""
        splits = bool(path.history) and record.n_distinct > path.history[-1].n_distinct
        if self.predict and splits and math.isnan(move.critical):
            with suppress(NoCurvatureError, OutOfTime):
                before = assess_stability(self.timed, path.centers[-1], path.history[-1].beta)
                return before.critical.beta
        return move.critical

    def _next_move(self, path: _Path) -> Move | None:
        assert path.state is not None
        step = self.schedule.next(self.timed, path.state)
        return step if step is None or isinstance(step, Move) else Move(step)
