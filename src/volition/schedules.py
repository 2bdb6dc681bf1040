"""Which beta comes next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from volition.costs import SquaredEuclidean
from volition.problem import Problem, Summary


class State(NamedTuple):
    """What a schedule may look at: where annealing has got to."""

    beta: float
    summary: Summary
    n_distinct: int
    n_clusters: int


class Schedule(Protocol):
    """Chooses the first beta, and each next one from what the last one gave."""

    def start(self, problem: Problem) -> float:
        """Return the first beta."""

    def next(self, problem: Problem, state: State) -> float | None:
        """Return the beta after that of ``state``, or None at the end."""


def first_beta(problem: Problem) -> float:
    """Return a beta safely below the first split, whatever the autonomy.

    With squared Euclidean cost, obedient entities split first at 1 / (2 λmax(covariance)), and
    autonomy only delays that. Other costs get the same rule with the cost of a single centre.
    """
    if isinstance(problem.cost, SquaredEuclidean):
        spread = problem.largest_variance
    else:
        spread = problem.cost_scale
    return 0.25 / spread if spread > 0 else 1.0


@dataclass(frozen=True)
class Geometric:
    """beta, tau beta, tau² beta, ... as published, with ends that fit the data by default.

    Parameters
    ----------
    beta_min : float, optional
        By default half the first critical beta of obedient entities.
    beta_max : float, optional
        The last beta is the largest that does not exceed it. By default annealing ends once all
        centres are distinct and the policy is hard: softness adds less than ``hardness`` of the
        distortion. While some centres still coincide a split may be pending, at however small a
        scale; annealing then goes on to 10⁸ times the first beta.
    tau : float, default=1.1
        Factor between betas.
    hardness : float, default=1e-4
        See ``beta_max``.

    Examples
    --------
    >>> from volition.schedules import Geometric
    >>> Geometric(beta_min=10, beta_max=1e4, tau=1.1)
    Geometric(beta_min=10, beta_max=10000.0, tau=1.1, hardness=0.0001)
    """

    beta_min: float | None = None
    beta_max: float | None = None
    tau: float = 1.1
    hardness: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("beta_min", "beta_max"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive finite number, got {value!r}.")
        if not 1 < self.tau < math.inf:
            raise ValueError(f"tau must be a finite number above 1, got {self.tau!r}.")
        low, high = self.beta_min, self.beta_max
        if low is not None and high is not None and high < low:
            raise ValueError(f"beta_max={high!r} must not be below beta_min={low!r}.")

    def start(self, problem: Problem) -> float:
        first = first_beta(problem) if self.beta_min is None else self.beta_min
        return first if self.beta_max is None else min(first, self.beta_max)

    def next(self, problem: Problem, state: State) -> float | None:
        ahead = state.beta * self.tau
        if self.beta_max is not None:
            return ahead if ahead <= self.beta_max * (1 + 1e-12) else None
        cost, floor = state.summary.hard_distortion, 1e-9 * problem.cost_scale
        softness = state.summary.distortion - cost
        hard = softness <= max(self.hardness * cost, floor)
        if hard and (state.n_distinct == state.n_clusters or cost <= floor):
            return None
        return ahead if ahead <= 1e8 * first_beta(problem) else None


@dataclass(frozen=True)
class Explicit:
    """A list of betas.

    Examples
    --------
    >>> from volition.schedules import Explicit
    >>> Explicit((1.0, 10.0)).betas
    (1.0, 10.0)
    """

    betas: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.betas, self.betas[1:], strict=False))
        if not self.betas or not all(0 < b < math.inf for b in self.betas) or not rising:
            raise ValueError(
                "schedule must be a non-empty rising list of positive finite betas, "
                f"got {list(self.betas)!r}."
            )

    def start(self, problem: Problem) -> float:
        return self.betas[0]

    def next(self, problem: Problem, state: State) -> float | None:
        later = [b for b in self.betas if b > state.beta]
        return later[0] if later else None


def resolve_schedule(schedule: Any) -> Schedule:
    """Turn what a user gives as ``schedule`` into a :class:`Schedule`.

    Examples
    --------
    >>> from volition.schedules import resolve_schedule
    >>> resolve_schedule([1, 10])
    Explicit(betas=(1.0, 10.0))
    """
    if isinstance(schedule, str):
        if schedule in ("auto", "geometric"):
            return Geometric()
    elif isinstance(schedule, Sequence | np.ndarray) and not isinstance(schedule, type):
        try:
            return Explicit(tuple(float(b) for b in schedule))
        except TypeError:
            pass
    elif hasattr(schedule, "start") and hasattr(schedule, "next"):
        chosen: Schedule = schedule
        return chosen
    raise ValueError(
        "schedule must be 'auto', 'geometric', a rising list of betas or a schedule object such as "
        f"volition.schedules.Geometric(10, 1e4, tau=1.1), got {schedule!r}."
    )
