"""Solvers at one beta: Algorithm 1, Algorithm 3 and the exact gradient."""

from volition.solvers.armijo import Armijo
from volition.solvers.base import Solution, Solver, Status
from volition.solvers.fixed_point import FixedPoint
from volition.solvers.gradient import Gradient

__all__ = ["Armijo", "FixedPoint", "Gradient", "Solution", "Solver", "Status"]
