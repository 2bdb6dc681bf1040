"""Algorithm 3: steepest descent on the exact gradient with Armijo's rule."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from volition.core.deadline import OutOfTime
from volition.core.problem import Moments, Problem
from volition.core.validation import FloatArray
from volition.io.serialization import registered
from volition.solvers.base import Solution, Status, relative_move


@registered
@dataclass(frozen=True)
class Armijo:
    """Gradient descent with backtracking.

    Parameters
    ----------
    step : float, optional
        First step tried, the paper's s. By default K / 2, the step of Algorithm 1 when all centres
        have equal mass (in units of length squared per cost, so that scale does not matter).
    decrease : float, default=1e-4
        Share of the predicted decrease that must be reached, the paper's ϱ in (0, 1).
    shrink : float, default=0.5
        Factor for the next step tried, the paper's ξ in (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from volition.core.problem import Moments, Problem
    >>> from volition.solvers import Armijo
    >>> problem = Problem(np.array([[0.0], [1.0], [10.0], [11.0]]))
    >>> Y = problem.centers([[3.0], [8.0]])
    >>> Armijo().solve(problem, Y, 1.0, max_iter=100, tol=1e-9).centers.round(decimals=3).tolist()
    [[0.5], [10.5]]
    """

    step: float | None = None
    decrease: float = 1e-4
    shrink: float = 0.5

    def __post_init__(self) -> None:
        if self.step is not None and not self.step > 0:
            raise ValueError(f"Armijo's step must be positive, got {self.step!r}.")
        for name in ("decrease", "shrink"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(
                    f"Armijo's {name} must lie in (0, 1), got {getattr(self, name)!r}."
                )

    def solve(
        self,
        problem: Problem,
        Y: Tensor,
        beta: float,
        *,
        max_iter: int,
        tol: float,
        preconditioner: FloatArray | None = None,
    ) -> Solution:
        F, sigma, n_iter = math.inf, 0.0, 0
        try:
            F, gradient = problem.value_and_gradient(Y, beta)
            for n_iter in range(1, max_iter + 1):
                found = self.descend(problem, Y, F, gradient, beta)
                if found is None:
                    return Solution(Y, F, n_iter, Status.STALLED, sigma)
                new, sigma, sums = found
                move = relative_move(problem, new, Y)
                Y, F = new, sums.free_energy
                gradient = problem.gradient(new, beta, sums)
                if move <= tol:
                    return Solution(Y, F, n_iter, Status.CONVERGED, sigma)
        except OutOfTime:
            return Solution(Y, F, n_iter, Status.OUT_OF_TIME, sigma)
        return Solution(Y, F, max_iter, Status.OUT_OF_ITERATIONS, sigma)

    def descend(
        self, problem: Problem, Y: Tensor, F: float, gradient: Tensor, beta: float
    ) -> tuple[Tensor, float, Moments] | None:
        """Take one step by Armijo's rule: centres, step and sums; None if no step descends."""
        square = float((gradient * gradient).sum())
        sigma = self.step
        if sigma is None:
            sigma = len(Y) / 2 * problem.scale**2 / problem.cost_scale
        for _ in range(60):
            new = Y - sigma * gradient
            sums = problem.moments(new, beta)
            if sums.free_energy - F <= -self.decrease * sigma * square:
                return (new, sigma, sums) if square > 0 else None
            sigma *= self.shrink
        return None
