"""What all solvers at one beta share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from volition.core.problem import Problem
from volition.core.validation import FloatArray


class Status(Enum):
    """How a solver or an annealing ended; the value is the sentence for the user."""

    CONVERGED = "converged"
    OUT_OF_ITERATIONS = "stopped at max_iter before reaching tol"
    STALLED = "no further descent possible at this precision"
    STOPPED = "stopped by a callback"
    OUT_OF_TIME = "stopped by the time budget"


@dataclass(frozen=True)
class Solution:
    """Centres found at one beta.

    ``step_size`` is the last step's: 1 for a full step of Algorithm 1, Armijo's sigma, or for the
    quasi-Newton solver the move of the centres as a share of the data's spread.
    """

    centers: Tensor
    free_energy: float
    n_iter: int
    status: Status
    step_size: float = 1.0
    handovers: int = 0


class Solver(Protocol):
    """Minimises the free energy at one beta."""

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
        """Return better centres than Y.

        ``preconditioner`` is a (Kd, Kd) matrix W with W W' near the inverse Hessian, for solvers
        that can use it. Where the problem has a deadline, its sums raise `OutOfTime`. The solver
        then returns the best centres so far with the status `OUT_OF_TIME`, and a free energy of
        infinity if it has computed none.
        """


def relative_move(problem: Problem, new: Tensor, old: Tensor) -> float:
    """Root mean square move of the centres, as a share of the data's spread."""
    return float(torch.linalg.norm(new - old)) / (problem.scale * len(new) ** 0.5)
