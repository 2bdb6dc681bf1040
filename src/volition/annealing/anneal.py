"""The one loop over beta."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import check_random_state

from volition.annealing.schedules import Critical, Geometric, Move, Schedule, State
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
#: places to which all centres jump from a single one, at least, for chance to decide which way
JUMP = 5


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

    ``beta`` is where it was seen, the first beta with the new number; ``predicted`` the critical
    beta (Theorem 2) of the last minimum before it; None where it was not computed, and where
    centres merge again, of which the theorem does not speak.
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
    """

    centers: FloatArray
    beta: float
    history: list[Record]
    path: list[FloatArray]
    transitions: list[PhaseTransition]
    status: Status

    @property
    def n_iter(self) -> int:
        """Inner iterations, all betas together."""
        return sum(record.n_iter for record in self.history)


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


def _solve(solver: Solver, problem: Problem, Y: torch.Tensor, beta: float, **how: Any) -> Solution:
    """Let the solver work; one that does not know of deadlines gives the centres it began with."""
    try:
        return solver.solve(problem, Y, beta, **how)
    except OutOfTime:
        return Solution(Y, math.inf, 0, Status.OUT_OF_TIME)


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
    >>> from volition.core.problem import Problem, Summary
    >>> problem = Problem(load_four_groups().data, autonomy=DistanceAutonomy(0.2, temperature=100))
    >>> result = anneal(problem, 4, random_state=0)
    >>> result.status.value, round(problem.distortion(result.centers), 4)
    ('converged', 0.0879)
    """
    for name, value, method in (("solver", solver, "solve"), ("schedule", schedule, "next")):
        if value is not None and (isinstance(value, type) or not hasattr(value, method)):
            raise ValueError(
                f"{name} must be a {name} object such as those in volition.{name}s, got {value!r}."
            )
    check_integer(max_iter, "max_iter", 1)
    schedule = Geometric() if schedule is None else schedule
    if solver is None:
        frozen = problem.cost.mean_is_optimal and not problem.autonomy.depends_on_centers
        plain = frozen and not isinstance(schedule, Critical)
        solver = FixedPoint() if plain else Gradient()
    rng = check_random_state(random_state)
    # At the mean all centres coincide, a saddle point at any beta above the first split.
    at_mean = isinstance(init, int | np.integer)
    if at_mean:
        check_integer(init, "init (as a number of clusters)", 1)
        start = np.repeat(problem.mean_center(), int(init), axis=0)
    else:
        start = check_centers(init, problem.d, "init")
    problem.autonomy.check(len(start), problem.n)
    timed = problem.with_deadline(deadline) if isinstance(deadline, Deadline) else problem

    def scattered(Y: torch.Tensor, share: float, beta: float) -> torch.Tensor:
        """Return the centres, all moved blindly by this share of the blur."""
        size = share * blur_length(problem, beta)
        return Y + problem.centers(
            rng.standard_normal(tuple(Y.shape)) * size / math.sqrt(problem.d)
        )

    with threads_for(problem.n_blocks):
        Y = problem.centers(start)
        history: list[Record] = []
        path: list[FloatArray] = []
        status = Status.CONVERGED
        state: State | None = None
        discarded = 0
        criticals: list[float] = []
        move: Move | None = Move(schedule.start(problem))
        while move is not None:
            if history and deadline is not None and deadline():
                status = Status.OUT_OF_TIME
                break
            if move.retreat:
                assert state is not None
                state = state.previous
                assert state is not None
                discarded += history.pop().n_iter
                path.pop(), criticals.pop()
                Y = problem.centers(state.centers)
            beta = move.beta
            origin = Y if move.origin is None else problem.centers(move.origin)
            if perturb and move.origin is None and (history or at_mean):
                origin = scattered(Y, PERTURBATION, beta)
            limits: dict[str, Any] = {"max_iter": max_iter, "tol": tol * move.slack}
            solution = _solve(
                solver, timed, origin, beta, preconditioner=move.preconditioner, **limits
            )
            if perturb and move.leap > 0:
                scattered_start = scattered(origin, move.leap, beta)
                other = _solve(solver, timed, scattered_start, beta, **limits)
                n_iter = solution.n_iter + other.n_iter
                if other.free_energy < solution.free_energy - tol * problem.cost_scale:
                    solution = other
                solution = replace(solution, n_iter=n_iter)
            Y = solution.centers
            summary = problem.summary(Y, beta)
            centers = Y.cpu().numpy().copy()
            # What was thrown away was work all the same.
            record = describe(problem, solution, beta, summary)
            record = record._replace(n_iter=record.n_iter + discarded)
            discarded = 0
            critical = move.critical
            splits = bool(history) and record.n_distinct > history[-1].n_distinct
            if predict and splits and math.isnan(critical):
                with suppress(NoCurvatureError, OutOfTime):
                    critical = assess_stability(timed, path[-1], history[-1].beta).critical.beta
            history.append(record)
            path.append(centers)
            criticals.append(critical)
            status = solution.status
            if on_beta is not None and on_beta(record, centers):
                status = Status.STOPPED
                break
            if status is Status.OUT_OF_TIME:
                break
            state = State(beta, summary, record.n_distinct, centers, state, move)
            # A chain of all states would keep all their moves.
            state = state._replace(
                previous=state.previous and state.previous._replace(previous=None)
            )
            try:
                step = schedule.next(timed, state)
            except OutOfTime:
                status = Status.OUT_OF_TIME
                break
            move = step if step is None or isinstance(step, Move) else Move(step)
    transitions = [
        PhaseTransition(
            b.beta,
            a.n_distinct,
            b.n_distinct,
            critical if b.n_distinct > a.n_distinct and not math.isnan(critical) else None,
        )
        for a, b, critical in zip(history, history[1:], criticals[1:], strict=False)
        if a.n_distinct != b.n_distinct
    ]
    result = AnnealingResult(path[-1].copy(), history[-1].beta, history, path, transitions, status)
    # Groups of equal shape split at once too, but not because centres pull each other along.
    jumped = problem.autonomy.depends_on_centers and any(
        t.n_before == 1 and t.n_after > JUMP for t in transitions
    )
    if not (isinstance(schedule, Critical) and schedule.passes > 1 and perturb and at_mean):
        return result
    if not jumped or status is not Status.CONVERGED:
        return result
    # Chance has decided which way the centres jumped: let it decide again.
    retry = anneal(
        problem, init, solver=solver, schedule=replace(schedule, passes=schedule.passes - 1),
        max_iter=max_iter, tol=tol, random_state=rng, on_beta=on_beta, deadline=deadline,
        predict=predict,
    )  # fmt: skip
    best, rest = result, retry
    lower = retry.history[-1].free_energy < result.history[-1].free_energy
    if lower and retry.status is Status.CONVERGED:  # else it did not get to the same beta
        best, rest = retry, result
    first = best.history[0]  # what was thrown away was work all the same
    best.history[0] = first._replace(n_iter=first.n_iter + rest.n_iter)
    return best
