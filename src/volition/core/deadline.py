"""A moment by which long computations must end, and the exception that ends them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from time import perf_counter
from typing import Any


def check_time_budget(seconds: Any, name: str = "time_budget") -> None:
    """Raise ValueError unless a time budget is a positive number of seconds, or None.

    Examples
    --------
    >>> from volition.core.deadline import check_time_budget
    >>> check_time_budget(0)
    Traceback (most recent call last):
    ...
    ValueError: time_budget must be a positive number of seconds or None, got 0.
    """
    if seconds is not None and not (isinstance(seconds, Real) and float(seconds) > 0):
        raise ValueError(f"{name} must be a positive number of seconds or None, got {seconds!r}.")


class OutOfTime(Exception):
    """The deadline of a computation has passed."""


@dataclass(frozen=True)
class Deadline:
    """A moment on the clock of `time.perf_counter`; infinity is never.

    A :class:`~volition.core.problem.Problem` holds it and checks it before each block of a sum over
    entities. That covers every long step: a solver's iteration, a product inside an eigenvalue
    routine, the screening of moves.

    Parameters
    ----------
    end : float, default=inf
        The moment.

    Examples
    --------
    >>> from volition.core.deadline import Deadline
    >>> Deadline.after(None).passed, Deadline.after(0.0).passed
    (False, True)
    """

    end: float = math.inf

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """Return the moment that is ``seconds`` from now; None means never."""
        return cls() if seconds is None else cls(perf_counter() + seconds)

    @property
    def left(self) -> float:
        """Seconds until then; negative afterwards."""
        return self.end - perf_counter()

    @property
    def finite(self) -> bool:
        """Whether there is any limit."""
        return math.isfinite(self.end)

    @property
    def passed(self) -> bool:
        """Whether it is too late."""
        return perf_counter() >= self.end

    def __call__(self) -> bool:
        """Whether it is too late, for code that takes a function."""
        return self.passed

    def check(self) -> None:
        """Raise `OutOfTime` if it is too late."""
        if self.passed:
            raise OutOfTime

    def sooner(self, seconds: float) -> Deadline:
        """Return an earlier deadline that leaves ``seconds`` for what comes after."""
        return Deadline(self.end - seconds)

    def share(self, part: float) -> Deadline:
        """Return a deadline after this part of the time that is left."""
        return Deadline(perf_counter() + part * self.left) if self.finite else self


NEVER = Deadline()
