"""Algorithm 1 at one beta: Gibbs policy, then weighted means, with p frozen within an iteration."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from volition.core.deadline import OutOfTime
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.io.serialization import registered
from volition.solvers.armijo import Armijo
from volition.solvers.base import Solution, Status, relative_move


@registered
@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point iteration, watched by the condition of Theorem 1.

    A step after which some centre's mass has grown ``growth``-fold, or the free energy has risen,
    is taken back and replaced by one step of Armijo's rule on the exact gradient (Algorithm 3); the
    solution counts such hand-overs. The free energy is watched where p does not depend on the
    centres. Where it does, Theorem 1 speaks of p frozen at the step's start, and for that function
    a step never ascends, being an exact minimisation over policy and centres in turn.

    Parameters
    ----------
    growth : float, default=4.0
        Largest growth of a centre's mass in one step.
    fallback : Armijo, optional
        The rule that takes over.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.core.problem import Problem
    >>> from volition.solvers import FixedPoint
    >>> problem = Problem(np.array([[0.0], [1.0], [10.0], [11.0]]))
    >>> Y = problem.centers([[3.0], [8.0]])
    >>> solution = FixedPoint().solve(problem, Y, 1.0, max_iter=100, tol=1e-9)
    >>> solution.centers.round(decimals=3).tolist(), solution.status.value
    ([[0.5], [10.5]], 'converged')
    """

    growth: float = 4.0
    fallback: Armijo = field(default_factory=Armijo)

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
        if not problem.cost.mean_is_optimal:
            raise ValueError(
                f"solver='fixed_point' needs a cost whose best centre is the mean; "
                f"{problem.cost!r} has no closed-form centre update: use 'gradient' or 'auto'."
            )
        reached = [Solution(Y, math.inf, 0, Status.OUT_OF_TIME)]
        try:
            return self._iterate(problem, Y, beta, max_iter, tol, reached)
        except OutOfTime:
            return reached[-1]

    def _iterate(
        self,
        problem: Problem,
        Y: Tensor,
        beta: float,
        max_iter: int,
        tol: float,
        reached: list[Solution],
    ) -> Solution:
        """Iterate; ``reached`` always ends with what to return when time runs out."""
        sums = problem.moments(Y, beta)
        handovers, step = 0, 1.0
        for n_iter in range(1, max_iter + 1):
            mass = sums.mass[:, None]
            # An unused centre has no mean: it stays.
            new = torch.where(mass > 0, sums.moment / mass.clamp_min(1e-300), Y)
            step = 1.0
            ahead = problem.moments(new, beta)
            if self._breaks_theorem(sums.mass, ahead.mass) or self._rises(
                problem, sums.free_energy, ahead.free_energy, beta
            ):
                gradient = problem.gradient(Y, beta, sums)
                found = self.fallback.descend(problem, Y, sums.free_energy, gradient, beta)
                if found is None:
                    return Solution(Y, sums.free_energy, n_iter, Status.STALLED, step, handovers)
                new, step, ahead = found
                handovers += 1
            move = relative_move(problem, new, Y)
            Y, sums = new, ahead
            reached[:] = [
                Solution(Y, sums.free_energy, n_iter, Status.OUT_OF_TIME, step, handovers)
            ]
            if move <= tol:
                return Solution(Y, sums.free_energy, n_iter, Status.CONVERGED, step, handovers)
        return Solution(Y, sums.free_energy, max_iter, Status.OUT_OF_ITERATIONS, step, handovers)

    def _breaks_theorem(self, before: Tensor, after: Tensor) -> bool:
        return bool((after >= self.growth * before).logical_and(before > 0).any())

    def _rises(self, problem: Problem, before: float, after: float, beta: float) -> bool:
        if problem.autonomy.depends_on_centers or math.isinf(beta):
            return False
        precision = 1e-4 if problem.dtype == torch.float32 else 1e-9
        return after - before > precision * problem.cost_scale
