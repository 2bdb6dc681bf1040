"""Second derivatives of the free energy at one state, as products with directions or as matrices.

With the Gibbs policy pi at beta, the Hessian of F is A - beta B: A is the policy's average of the
expected costs' own second derivatives, B the policy's covariance of their gradients, both summed
over entities. Where p does not depend on the centres, A is twice the paper's P̂ and B four times its
Δ, so that A - beta B is twice the bracket of its Theorem 2; where p does, A and B hold its
derivatives too. Everything is computed in double precision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from volition.core.kernels.blocks import Sums, add_up
from volition.core.problem import CHUNK_NUMBERS, Block, Problem


class Curvature(ABC):
    """The Hessian A - beta B of F at centres Y and the Gibbs policy at beta.

    ``mass`` (K,) is how much of the population realises each centre; ``drift`` (K, d) is minus the
    derivative of F's gradient by beta, with which dY/dbeta = H⁻¹ drift.
    """

    mass: Tensor

    def __init__(self, problem: Problem, Y: Any, beta: float) -> None:
        self.problem = problem
        self.beta = beta
        self.y = (problem.centers(Y) - problem.origin).detach()

    @abstractmethod
    def times_a(self, V: Tensor) -> Tensor:
        """Return A V for a direction V (K, d)."""

    @abstractmethod
    def times_b(self, V: Tensor) -> Tensor:
        """Return B V for a direction V (K, d)."""

    @abstractmethod
    def drift(self) -> Tensor:
        """Return the sum over entities of the policy's covariance of cost and its gradient."""

    def times(self, V: Tensor, beta: float | None = None) -> Tensor:
        """Return A V - beta B V: by default the Hessian times V."""
        return self.times_a(V) - (self.beta if beta is None else beta) * self.times_b(V)

    def matrices(self) -> tuple[Tensor, Tensor]:
        """Return A and B as symmetric (Kd, Kd) matrices."""
        units = torch.eye(self.y.numel(), dtype=torch.float64, device=self.y.device)
        directions = [unit.reshape(self.y.shape) for unit in units]
        A = torch.stack([self.times_a(V).ravel() for V in directions])
        B = torch.stack([self.times_b(V).ravel() for V in directions])
        return (A + A.T) / 2, (B + B.T) / 2

    def _over_chunks(self, fn: Callable[[slice, int], Sums], numbers: int) -> Sums:
        """Return the sum of ``fn(rows, group)`` over chunks with ``numbers`` numbers a row."""
        step = max(1, self.problem.chunk_size or CHUNK_NUMBERS // numbers)

        def timely(rows: slice, group: int) -> Sums:
            self.problem.deadline.check()
            return fn(rows, group)

        def run(block: Block) -> Sums:
            return add_up(timely(rows, block.group) for rows in _rows(block, step))

        return self.problem.add_over_blocks(run)


def _rows(block: Block, step: int) -> Iterator[slice]:
    for lo in range(block.lo, block.hi, step):
        yield slice(lo, min(lo + step, block.hi))


def _covariance(pi: Tensor, values: Tensor) -> Tensor:
    """Return pi times the values' deviation from their mean under pi, row by row."""
    return pi * (values - (pi * values).sum(1, keepdim=True))


class CollapsedCurvature(Curvature):
    """Where autonomy is folded into the centres: D̄ - |x|² = [1, x] T(Y), T of (groups, d+1, K).

    Derivatives of T are of the size of the centres; entities enter by products with the policy.
    """

    def __init__(self, problem: Problem, Y: Any, beta: float) -> None:
        super().__init__(problem, Y, beta)
        with torch.no_grad():
            self._T = self._tables(self.y)
            (self._prescribed,) = self._sums(lambda xi, pi, T: pi)
            P = problem.autonomy.shared(self.y, problem.cost)
            self.mass = (self._prescribed[:, :1] @ P).sum((0, 1))

    def _tables(self, y: Tensor) -> Tensor:
        autonomy, cost = self.problem.autonomy, self.problem.cost
        return self.problem.tables(y, autonomy.shared(y, cost))

    def _chunk(self, rows: slice, group: int) -> tuple[Tensor, Tensor, Tensor]:
        xi, rho = self.problem.features(rows)
        return xi, rho, torch.softmax(-self.beta * (xi @ self._T[group]), dim=1)

    def _sums(self, fn: Callable[[Tensor, Tensor, int], Tensor]) -> Sums:
        """Return per group the (d+1, K) sums of [1, x] weighted by ``fn(xi, pi, group)``."""

        def run(rows: slice, group: int) -> Sums:
            xi, rho, pi = self._chunk(rows, group)
            sums = torch.zeros_like(self._T)
            sums[group] = (xi * rho).T @ fn(xi, pi, group)
            return (sums,)

        with torch.no_grad():
            return self._over_chunks(run, self._T.shape[2])

    def _pull_back(self, sums: Tensor) -> Tensor:
        """Return the derivative of sum(sums * T(y)) by y."""
        y = self.y.clone().requires_grad_(True)
        return torch.autograd.grad(self._tables(y), y, sums)[0]

    def times_a(self, V: Tensor) -> Tensor:
        y = self.y.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(
            (self._tables(y) * self._prescribed).sum(), y, create_graph=True
        )
        return torch.autograd.grad(slope, y, V)[0]

    def times_b(self, V: Tensor) -> Tensor:
        along = _directional(self._tables, self.y, V)
        (sums,) = self._sums(lambda xi, pi, group: _covariance(pi, xi @ along[group]))
        return self._pull_back(sums)

    def drift(self) -> Tensor:
        (sums,) = self._sums(lambda xi, pi, group: _covariance(pi, xi @ self._T[group]))
        return self._pull_back(sums)

    def matrices(self) -> tuple[Tensor, Tensor]:
        # All columns at once: the covariance of (d+1) K features [1, x] x pi, then two products.
        size = self._T[0].numel()

        def run(rows: slice, group: int) -> Sums:
            xi, rho, pi = self._chunk(rows, group)
            both = (xi[:, :, None] * pi[:, None, :]).flatten(1)
            out = torch.zeros(len(self._T), size, size, dtype=torch.float64, device=xi.device)
            out[group] = -(both * rho).T @ both
            same = torch.einsum("na,nb,nk->abk", xi * rho, xi, pi)
            view = out[group].view(*self._T.shape[1:], *self._T.shape[1:])
            view.diagonal(dim1=1, dim2=3).add_(same)
            return (out,)

        with torch.no_grad():
            # Small chunks: the (rows, (d+1) K) features stay in cache.
            (spread,) = self._over_chunks(run, 16 * size)
        tables, y, prescribed = self._tables, self.y, self._prescribed
        J = torch.autograd.functional.jacobian(tables, y, vectorize=True)  # type: ignore[no-untyped-call]
        J = J.reshape(len(self._T), size, self.y.numel())
        B = (J.transpose(1, 2) @ spread @ J).sum(0)
        A = torch.autograd.functional.hessian(  # type: ignore[no-untyped-call]
            lambda y: (tables(y) * prescribed).sum(), y, vectorize=True
        ).reshape(B.shape)
        return (A + A.T) / 2, (B + B.T) / 2


def _directional(fn: Callable[[Tensor], Tensor], y: Tensor, V: Tensor) -> Tensor:
    """Return the derivative of ``fn`` at y along V, by two reverse passes.

    Forward mode would do, but fewer functions of users support it.
    """
    y = y.clone().requires_grad_(True)
    value = fn(y)
    dummy = torch.zeros_like(value, requires_grad=True)
    (slope,) = torch.autograd.grad(value, y, dummy, create_graph=True)
    return torch.autograd.grad(slope, dummy, V)[0]


class GeneralCurvature(Curvature):
    """Any cost and autonomy, by automatic differentiation of expected costs chunk by chunk."""

    def __init__(self, problem: Problem, Y: Any, beta: float) -> None:
        super().__init__(problem, Y, beta)

        def realized(rows: slice, group: int) -> Sums:
            chunk, transition = problem.chunk(rows, group, self.y)
            weight = self._weight(rows, transition.expected(chunk.D))
            return (transition.realized(weight).sum(0),)

        with torch.no_grad():
            (self.mass,) = self._chunks(realized)

    def _chunks(self, fn: Callable[[slice, int], Sums]) -> Sums:
        # Models of users may hold (rows, K, K) numbers.
        return self._over_chunks(fn, max(1, len(self.y) ** 2 // 8))

    def _expected(self, rows: slice, group: int, y: Tensor) -> Tensor:
        chunk, transition = self.problem.chunk(rows, group, y)
        return transition.expected(chunk.D)

    def _policy(self, expected: Tensor) -> Tensor:
        return torch.softmax(-self.beta * expected.detach(), dim=1)

    def _weight(self, rows: slice, expected: Tensor) -> Tensor:
        return self._policy(expected) * self.problem.features(rows)[1]

    def times_a(self, V: Tensor) -> Tensor:
        def run(rows: slice, group: int) -> Sums:
            with torch.enable_grad():
                y = self.y.clone().requires_grad_(True)
                expected = self._expected(rows, group, y)
                weight = self._weight(rows, expected)
                (slope,) = torch.autograd.grad(expected, y, weight, create_graph=True)
                if not slope.requires_grad:  # costs without curvature
                    return (torch.zeros_like(y),)
                return torch.autograd.grad(slope, y, V)

        return self._chunks(run)[0]

    def times_b(self, V: Tensor) -> Tensor:
        return self._covariances(
            lambda rows, group, expected: _directional(
                lambda y: self._expected(rows, group, y), self.y, V
            )
        )

    def drift(self) -> Tensor:
        return self._covariances(lambda rows, group, expected: expected.detach())

    def _covariances(self, values: Callable[[slice, int, Tensor], Tensor]) -> Tensor:
        """Return the sum of the policy's covariance of some values with the costs' gradient."""

        def run(rows: slice, group: int) -> Sums:
            with torch.enable_grad():
                y = self.y.clone().requires_grad_(True)
                expected = self._expected(rows, group, y)
                _, rho = self.problem.features(rows)
                pi = self._policy(expected)
                weight = rho * _covariance(pi, values(rows, group, expected))
                return torch.autograd.grad(expected, y, weight)

        return self._chunks(run)[0]


def curvature(problem: Problem, Y: Any, beta: float) -> Curvature:
    """Return the second derivatives of F at centres Y and the Gibbs policy at beta.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.core.curvature import curvature
    >>> from volition.core.problem import Problem
    >>> problem = Problem(np.array([[-1.0], [1.0]]))
    >>> A, B = curvature(problem, np.zeros((2, 1)), 0.5).matrices()
    >>> A.tolist(), B.tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [[1.0, -1.0], [-1.0, 1.0]])
    """
    kind = CollapsedCurvature if problem.collapses else GeneralCurvature
    return kind(problem, Y, beta)
