"""Exact-gradient descents from given centres to a minimum at the beta that counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from volition.core.deadline import NEVER, Deadline
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.solvers.base import Solution, Status
from volition.solvers.fixed_point import FixedPoint
from volition.solvers.gradient import Gradient

#: betas of a polish, as multiples of one over the distortion: from blurred to hard
POLISH_BETAS = (3.0, 15.0, 150.0, 2000.0)


@dataclass
class Descent:
    """Descends, and counts its iterations.

    Parameters
    ----------
    beta : float, default=inf
        The beta whose free energy counts. At infinity the free energy is the distortion.
    max_iter, tol : int, float
        Limits of each run of the solver.
    deadline : Deadline, optional
        When a descent ends with the best centres so far.
    n_iter : int
        Iterations so far.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.core.problem import Problem
    >>> from volition.solvers.descent import Descent
    >>> problem = Problem(np.array([[0.0], [1.0], [10.0], [11.0]]))
    >>> Descent().polish(problem, np.array([[2.0], [8.0]])).round(3).tolist()
    [[0.5], [10.5]]
    """

    beta: float = math.inf
    max_iter: int = 300
    tol: float = 1e-6
    deadline: Deadline = NEVER
    n_iter: int = 0

    def value(self, problem: Problem, Y: FloatArray) -> float:
        """Return the free energy that counts."""
        return problem.free_energy(Y, self.beta)

    def hard_beta(self, problem: Problem, Y: FloatArray) -> float:
        """Return the beta that counts, or, if it is infinite, one at which the policy is hard."""
        if math.isfinite(self.beta):
            return self.beta
        return POLISH_BETAS[-1] / floored_distortion(problem, Y)

    def descend(
        self,
        problem: Problem,
        Y: FloatArray,
        beta: float,
        max_iter: int,
        tol: float,
        deadline: Deadline | None = None,
    ) -> Solution:
        """Return what the exact gradient reaches at one beta."""
        timed = problem.with_deadline(self.deadline if deadline is None else deadline)
        start = problem.centers(Y)
        solution = Gradient().solve(timed, start, beta, max_iter=max_iter, tol=tol)
        self.n_iter += solution.n_iter
        return solution

    def polish(
        self, problem: Problem, Y: FloatArray, betas: tuple[float, ...] = POLISH_BETAS
    ) -> FloatArray:
        """Descend at rising betas, up to the one that counts."""
        start, max_iter, tol = Y, min(self.max_iter, 100), max(self.tol, 1e-4)
        for factor in betas:
            if self.deadline.passed:
                break
            beta = factor / floored_distortion(problem, Y)
            if beta < self.beta:
                Y = self.descend(problem, Y, beta, max_iter, tol).centers.cpu().numpy()
        solution = self.descend(problem, Y, self.beta, max_iter, tol)
        Y = solution.centers.cpu().numpy()
        if solution.status is Status.OUT_OF_TIME and not np.array_equal(Y, start):
            # Cut off at a lower beta, where centres are drawn together: it may have been better.
            return min(start, Y, key=lambda centers: self.value(problem, centers))
        return Y

    def finish(self, problem: Problem, Y: FloatArray) -> tuple[FloatArray, Status]:
        """Converge; return the centres, and how the descent ended."""
        solution = self.descend(problem, Y, self.beta, self.max_iter, self.tol)
        status = solution.status
        if problem.cost.mean_is_optimal and not problem.autonomy.depends_on_centers:
            # Weighted means are exact where a quasi-Newton step is only close.
            timed = problem.with_deadline(self.deadline)
            solution = FixedPoint().solve(
                timed, solution.centers, self.beta, max_iter=self.max_iter, tol=1e-14
            )
            self.n_iter += solution.n_iter
        return solution.centers.cpu().numpy(), status


def floored_distortion(problem: Problem, Y: FloatArray) -> float:
    """Return the distortion, kept away from zero: the cost that sets the scale of beta."""
    return max(problem.free_energy(Y, math.inf), 1e-9 * problem.cost_scale)
