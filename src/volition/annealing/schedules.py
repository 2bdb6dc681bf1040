"""Which beta comes next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from volition.annealing.stability import assess_stability, blur_length, coincident, first_beta
from volition.core.problem import Problem, Summary
from volition.core.validation import FloatArray, check_integer
from volition.io.serialization import registered


class State(NamedTuple):
    """What a schedule sees: the state that annealing has reached, and the one before."""

    beta: float
    summary: Summary
    n_distinct: int
    centers: FloatArray
    previous: State | None = None
    #: the move that led here
    move: Move | None = None


class Move(NamedTuple):
    """What to solve next.

    Attributes
    ----------
    beta : float
        At which beta.
    origin : ndarray of shape (K, d), optional
        From where; by default from the last solution, slightly perturbed.
    preconditioner : ndarray of shape (Kd, Kd), optional
        W with W W' near the inverse Hessian, for solvers that can use it.
    slack : float
        Factor on the tolerance of the solver.
    critical : float
        Critical beta of the state that is left, or, if it is unstable already, the last minimum's.
    leap : float
        If positive, a second run starts from centres that were moved at random by this multiple of
        the blur, and the run of lower free energy counts.
    """

    beta: float
    origin: FloatArray | None = None
    preconditioner: FloatArray | None = None
    slack: float = 1.0
    critical: float = math.nan
    leap: float = 0.0


class Schedule(Protocol):
    """Chooses the first beta, and each next one from what the last one gave."""

    def start(self, problem: Problem) -> float:
        """Return the first beta."""

    def next(self, problem: Problem, state: State) -> float | Move | None:
        """Return the beta after that of ``state``, more on how to go there, or None at the end."""


def check_betas(low: float | None, high: float | None) -> None:
    """Raise ValueError unless these can be the ends of a schedule."""
    for name, value in (("beta_min", low), ("beta_max", high)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive finite number, got {value!r}.")
    if low is not None and high is not None and high < low:
        raise ValueError(f"beta_max={high!r} must not be below beta_min={low!r}.")


def first_of(problem: Problem, low: float | None, high: float | None) -> float:
    """Return the first beta of a schedule with these ends, where they are given."""
    first = first_beta(problem) if low is None else low
    return first if high is None else min(first, high)


def is_done(problem: Problem, state: State, softness_tol: float) -> bool:
    """Whether nothing more can happen: all centres distinct and the policy hard."""
    cost, floor = state.summary.hard_distortion, 1e-9 * problem.cost_scale
    softness = state.summary.distortion - cost
    hard = softness <= max(softness_tol * cost, floor)
    return hard and (state.n_distinct == len(state.centers) or cost <= floor)


#: while centres coincide, a split at a smaller scale may follow; annealing waits for it up to this
#: many times the first beta
LATEST_SPLIT = 1e8


@registered
@dataclass(frozen=True)
class Geometric:
    """beta, tau beta, tau² beta, ... as published, with ends that fit the data by default.

    Parameters
    ----------
    beta_min : float, optional
        By default half the first critical beta of obedient entities.
    beta_max : float, optional
        The last beta is the largest that does not exceed it. By default annealing ends once all
        centres are distinct and the policy is hard: softness adds less than ``softness_tol`` of the
        distortion. While some centres still coincide, a split at a smaller scale may follow, and
        annealing goes on up to 10⁸ times the first beta.
    tau : float, default=1.1
        Factor between betas.
    softness_tol : float, default=1e-4
        See ``beta_max``.

    Examples
    --------
    >>> from volition.annealing.schedules import Geometric
    >>> Geometric(beta_min=10, beta_max=1e4, tau=1.1)
    Geometric(beta_min=10, beta_max=10000.0, tau=1.1, softness_tol=0.0001)
    """

    beta_min: float | None = None
    beta_max: float | None = None
    tau: float = 1.1
    softness_tol: float = 1e-4

    def __post_init__(self) -> None:
        check_betas(self.beta_min, self.beta_max)
        if not 1 < self.tau < math.inf:
            raise ValueError(f"tau must be a finite number above 1, got {self.tau!r}.")

    def start(self, problem: Problem) -> float:
        return first_of(problem, self.beta_min, self.beta_max)

    def next(self, problem: Problem, state: State) -> float | None:
        ahead = state.beta * self.tau
        if self.beta_max is not None:
            return ahead if ahead <= self.beta_max * (1 + 1e-12) else None
        if is_done(problem, state, self.softness_tol):
            return None
        return ahead if ahead <= LATEST_SPLIT * first_beta(problem) else None


@registered
@dataclass(frozen=True)
class Critical:
    """From one critical beta to the next, leaving each state in its unstable direction.

    At each state Theorem 2 says up to which beta it is a minimum. Below, centres that share a place
    stay together and betas take long steps; at a critical beta the centres are moved apart in the
    direction in which the state becomes unstable.

    Parameters
    ----------
    beta_min, beta_max : float, optional
        Ends, by default chosen as by :class:`Geometric`. ``beta_max`` is the last beta.
    margin : float, default=0.008
        A state is left at (1 + margin) times its critical beta, where the split is wide enough to
        be seen.
    shortest, longest : float, default=1.01 and 4.0
        Bounds on the factor between betas. Predictions from a state far from its critical beta are
        cautious, so that without a shortest step progress would be slow.
    push : float, default=0.015
        How far centres are moved apart, as a share of the length at which the policy is blurred.
    slack : float, default=100.0
        Between transitions, how many times looser than at the end the states are solved.
    softness_tol : float, default=1e-4
        See :class:`Geometric`.
    leap : float, default=2.0
        Where p depends on the centres, a split may be a jump, which no single direction leads to.
        Where a jump is possible, a second run starts from centres that were moved at random by this
        multiple of the blur, and the run of lower free energy counts. 0 turns this off.
    passes : int, default=3
        Where p depends on the centres and all of them jump apart at once, from one place to more
        than five, chance decides the direction. Annealing then runs this many times with other
        perturbations, and the lowest end counts.

    Examples
    --------
    >>> from volition import anneal
    >>> from volition.datasets import load_four_groups
    >>> from volition.core.problem import Problem
    >>> from volition.annealing.schedules import Critical
    >>> result = anneal(Problem(load_four_groups().data), 4, schedule=Critical())
    >>> [(t.n_before, t.n_after) for t in result.transitions]
    [(1, 2), (2, 3), (3, 4)]
    """

    beta_min: float | None = None
    beta_max: float | None = None
    margin: float = 0.008
    shortest: float = 1.01
    longest: float = 4.0
    push: float = 0.015
    slack: float = 100.0
    softness_tol: float = 1e-4
    leap: float = 2.0
    passes: int = 3

    #: its moves carry preconditioners, which only the exact gradient can use
    preconditions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer(self.passes, "passes", 1)
        check_betas(self.beta_min, self.beta_max)
        if not 0 < self.margin < 1:
            raise ValueError(f"margin must be between 0 and 1, got {self.margin!r}.")
        if not 1 < self.shortest <= self.longest < math.inf:
            raise ValueError(
                "shortest and longest must be factors above 1 in this order, "
                f"got {self.shortest!r} and {self.longest!r}."
            )
        if not (self.push > 0 and self.slack >= 1 and self.leap >= 0):
            raise ValueError(
                "push must be positive, slack at least 1 and leap not negative, "
                f"got {self.push!r}, {self.slack!r} and {self.leap!r}."
            )

    def start(self, problem: Problem) -> float:
        return first_of(problem, self.beta_min, self.beta_max)

    def next(self, problem: Problem, state: State) -> Move | None:
        last = state.move
        end = LATEST_SPLIT * first_beta(problem) if self.beta_max is None else self.beta_max
        if self._is_done(problem, state) or state.beta >= end * (1 - 1e-12):
            if last is None or last.slack == 1:
                return None
            return Move(state.beta, state.centers)
        return self._leave(problem, state, end)

    def _is_done(self, problem: Problem, state: State) -> bool:
        return self.beta_max is None and is_done(problem, state, self.softness_tol)

    def _leave(self, problem: Problem, state: State, end: float) -> Move:
        """Return the move to as far as the state's critical beta allows, ``end`` at most."""
        found = assess_stability(problem, state.centers, state.beta)
        critical = found.critical.beta
        everywhere = state.n_distinct == len(state.centers)
        beta = min(self._target(state, critical, everywhere), end)
        origin = state.centers
        if critical < beta:
            places = coincident(problem, origin, state.beta)
            origin = origin + self.push * blur_length(problem, beta) * found.splitting_direction(
                beta, places
            )
        # Where the state is unstable already, the last minimum had predicted that.
        if critical <= state.beta and state.move is not None:
            critical = max(critical, state.move.critical)
        slack = 1.0 if everywhere or beta == end else self.slack
        leap = self.leap if critical < beta and self._may_jump(problem, state) else 0.0
        return Move(beta, origin, found.preconditioner(beta), slack, critical=critical, leap=leap)

    def _may_jump(self, problem: Problem, state: State) -> bool:
        """Whether the next split may be a jump, to which no single direction leads.

        Splits are continuous as long as p does not depend on the centres. Otherwise jumps come in
        company: all centres leave their common place, or many places change at once.
        """
        before = state.previous
        jumped = before is not None and abs(state.n_distinct - before.n_distinct) > 2
        return problem.autonomy.depends_on_centers and (state.n_distinct == 1 or jumped)

    def _target(self, state: State, critical: float, everywhere: bool) -> float:
        before = state.previous
        moved = before is None or before.n_distinct < state.n_distinct
        if critical <= state.beta and moved:
            return state.beta  # another place is to split at this very beta
        shortest = max(self.shortest, 1.5) if everywhere else self.shortest
        factor = max(critical * (1 + self.margin) / state.beta, shortest)
        return state.beta * min(factor, max(self.longest, shortest))


@dataclass(frozen=True)
class Growing(Critical):
    """`Critical`, with two centres in every place, so that no place lacks a centre to split off.

    With a given number of centres, a place with a single centre cannot split, even if its entities
    differ much. Here every place gets a second centre after each beta. The number of distinct
    centres then follows from the entities, up to ``n_max``.

    Parameters
    ----------
    n_max : int, default=32
        Annealing ends when there are more distinct centres.
    **others
        As for :class:`Critical`.
    """

    n_max: int = 32

    def _is_done(self, problem: Problem, state: State) -> bool:
        nothing_left = state.summary.hard_distortion <= 1e-9 * problem.cost_scale
        return nothing_left or state.n_distinct > self.n_max

    def _leave(self, problem: Problem, state: State, end: float) -> Move:
        places = coincident(problem, state.centers, state.beta)
        count = np.bincount(places)[:, None]
        sums = np.zeros((len(count), state.centers.shape[1]))
        np.add.at(sums, places, state.centers)
        pairs = np.repeat(sums / count, 2, axis=0)
        return super()._leave(problem, state._replace(centers=pairs), end)


@registered
@dataclass(frozen=True)
class Explicit:
    """A list of betas.

    Examples
    --------
    >>> from volition.annealing.schedules import Explicit
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

    @property
    def beta_max(self) -> float:
        """The last beta."""
        return self.betas[-1]

    def start(self, problem: Problem) -> float:
        return self.betas[0]

    def next(self, problem: Problem, state: State) -> float | None:
        later = [b for b in self.betas if b > state.beta]
        return later[0] if later else None


def resolve_schedule(schedule: Any) -> Schedule:
    """Turn what a user gives as ``schedule`` into a :class:`Schedule`.

    Examples
    --------
    >>> from volition.annealing.schedules import resolve_schedule
    >>> resolve_schedule([1, 10])
    Explicit(betas=(1.0, 10.0))
    """
    if isinstance(schedule, str):
        if schedule in ("auto", "geometric"):
            return Geometric()
        if schedule == "critical":
            return Critical()
    elif isinstance(schedule, Sequence | np.ndarray):
        betas = _numbers(schedule)
        if betas is not None:
            return Explicit(betas)
    elif (
        not isinstance(schedule, type) and hasattr(schedule, "start") and hasattr(schedule, "next")
    ):
        chosen: Schedule = schedule
        return chosen
    raise ValueError(
        "schedule must be 'auto', 'geometric', 'critical', a rising list of betas or a schedule "
        "object such as volition.annealing.schedules.Geometric(10, 1e4, tau=1.1), got "
        f"{schedule!r}."
    )


def _numbers(values: Any) -> tuple[float, ...] | None:
    try:
        return tuple(float(value) for value in values)
    except (TypeError, ValueError):
        return None
