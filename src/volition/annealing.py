"""The one loop over beta."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.utils import check_random_state

from volition.blocks import threads_for
from volition.problem import Problem, Summary
from volition.schedules import Geometric, Schedule, State, first_beta
from volition.solvers import FixedPoint, Gradient, Solution, Solver, Status
from volition.validation import FloatArray, check_centers, check_integer

#: size of the perturbation between betas, and how near two centres count as one, both as shares
#: of the length at which the policy is blurred
PERTURBATION = 1e-3
COINCIDENCE = 2e-2


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


class PhaseTransition(NamedTuple):
    """A beta at which the number of distinct centres changed."""

    beta: float
    n_before: int
    n_after: int


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
    status : Status
        How the last beta ended, or what stopped the annealing.
    """

    centers: FloatArray
    beta: float
    history: list[Record]
    path: list[FloatArray]
    status: Status

    @property
    def n_iter(self) -> int:
        """Inner iterations, all betas together."""
        return sum(record.n_iter for record in self.history)

    @property
    def transitions(self) -> list[PhaseTransition]:
        """The betas at which the number of distinct centres changed."""
        pairs = zip(self.history, self.history[1:], strict=False)
        return [
            PhaseTransition(b.beta, a.n_distinct, b.n_distinct)
            for a, b in pairs
            if a.n_distinct != b.n_distinct
        ]


def blur_length(problem: Problem, beta: float) -> float:
    """Return the length below which the policy at this beta cannot tell two centres apart."""
    return problem.scale * math.sqrt(first_beta(problem) / beta)


def count_distinct(Y: FloatArray, length: float) -> int:
    """Return how many centres are left when those nearer than ``length`` count as one."""
    if len(Y) == 1:
        return 1
    return int(fcluster(linkage(Y, "single"), length, "distance").max())


def describe(problem: Problem, solution: Solution, beta: float, summary: Summary) -> Record:
    """Return the line of history for what a solver reached at one beta."""
    return Record(
        beta,
        solution.n_iter,
        summary.free_energy,
        summary.distortion,
        summary.hard_distortion,
        summary.entropy,
        count_distinct(solution.centers.cpu().numpy(), COINCIDENCE * blur_length(problem, beta)),
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
    deadline: Callable[[], bool] | None = None,
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
        on the centres, the exact gradient otherwise.
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
    deadline : callable, optional
        Asked before each beta; a true answer stops.

    Returns
    -------
    AnnealingResult

    Examples
    --------
    >>> from volition import DistanceAutonomy, anneal
    >>> from volition.datasets import load_four_groups
    >>> from volition.problem import Problem, Summary
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
    if solver is None:
        frozen = problem.cost.mean_is_optimal and not problem.autonomy.depends_on_centers
        solver = FixedPoint() if frozen else Gradient()
    schedule = Geometric() if schedule is None else schedule
    rng = check_random_state(random_state)
    # At the mean all centres coincide, a saddle point at any beta above the first split.
    at_mean = isinstance(init, int | np.integer)
    if at_mean:
        check_integer(init, "init (as a number of clusters)", 1)
        start = np.repeat(problem.mean_center(), int(init), axis=0)
    else:
        start = check_centers(init, problem.d, "init")
    problem.autonomy.check(len(start), problem.n)

    with threads_for(problem.n_blocks):
        Y = problem.centers(start)
        history: list[Record] = []
        path: list[FloatArray] = []
        status = Status.CONVERGED
        last = schedule.start(problem)
        beta: float | None = last
        while beta is not None:
            if history and deadline is not None and deadline():
                status = Status.OUT_OF_TIME
                break
            origin = Y
            if perturb and (history or at_mean):
                size = PERTURBATION * blur_length(problem, beta)
                noise = rng.standard_normal(tuple(Y.shape)) * size / math.sqrt(problem.d)
                origin = Y + torch.as_tensor(noise, device=Y.device)
            solution = solver.solve(problem, origin, beta, max_iter=max_iter, tol=tol)
            Y = solution.centers
            summary = problem.summary(Y, beta)
            centers = Y.cpu().numpy().copy()
            record = describe(problem, solution, beta, summary)
            history.append(record)
            path.append(centers)
            status = solution.status
            last = beta
            if on_beta is not None and on_beta(record, centers):
                status = Status.STOPPED
                break
            beta = schedule.next(problem, State(beta, summary, record.n_distinct, len(Y)))
    return AnnealingResult(path[-1].copy(), last, history, path, status)
