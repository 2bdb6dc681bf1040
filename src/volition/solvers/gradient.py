"""Quasi-Newton descent on the exact gradient, the dependence of p on the centres included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from volition.core.deadline import OutOfTime
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.io.serialization import registered
from volition.solvers.base import Solution, Status


@registered
@dataclass(frozen=True)
class Gradient:
    """L-BFGS on the free energy.

    Parameters
    ----------
    memory : int, default=20
        Number of past steps that shape the next.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import DistanceAutonomy
    >>> from volition.core.problem import Problem
    >>> from volition.solvers import Gradient
    >>> problem = Problem(
    ...     np.array([[0.0], [1.0], [10.0], [11.0]]), autonomy=DistanceAutonomy(0.1)
    ... )
    >>> Y = problem.centers([[3.0], [8.0]])
    >>> Gradient().solve(problem, Y, 1.0, max_iter=99, tol=1e-9).centers.round(decimals=3).tolist()
    [[1.5], [9.5]]
    """

    memory: int = 20

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
        # Unit length and unit cost: tolerances then mean the same at every scale.
        origin = Y.detach().cpu().numpy()
        shape, length, cost = origin.shape, problem.scale, problem.cost_scale
        # With the inverse Hessian's root as unit of length, the landscape is round.
        unit = None if preconditioner is None else preconditioner * (cost**0.5 / length)
        best: tuple[float, np.ndarray] = (np.inf, origin)

        def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal best
            way = u if unit is None else unit @ u
            centers = origin + length * way.reshape(shape)
            F, gradient = problem.value_and_gradient(centers, beta)
            if best[0] > F:
                best = (F, centers)
            slope = gradient.cpu().numpy().ravel() * (length / cost)
            return F / cost, slope if unit is None else unit.T @ slope

        rounding = 1e-8 if problem.dtype == torch.float32 else 1e-15
        options: dict[str, Any] = {
            "maxcor": self.memory,
            "maxiter": max_iter,
            "maxfun": 2 * max_iter + 20,
            "ftol": max(tol * tol, rounding),
            "gtol": tol * 1e-2,
        }
        start = np.zeros(origin.size)
        visited, n_iter = [start, start], 0

        def follow(u: np.ndarray) -> None:
            nonlocal n_iter
            visited[:], n_iter = (visited[1], u.copy()), n_iter + 1

        try:
            out = minimize(
                objective, start, jac=True, method="L-BFGS-B", options=options, callback=follow
            )
        except OutOfTime:
            return Solution(problem.centers(best[1]), best[0], n_iter, Status.OUT_OF_TIME)
        step = visited[1] - visited[0]
        step = float(np.linalg.norm(step if unit is None else unit @ step)) / len(Y) ** 0.5
        status = Status.CONVERGED
        if out.status == 1:
            status = Status.OUT_OF_ITERATIONS
        elif out.status == 2:
            status = Status.STALLED
        return Solution(problem.centers(best[1]), best[0], int(out.nit), status, step)
