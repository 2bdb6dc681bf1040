"""What a search has tried: solutions, which of them are the same, and the report to the user."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.io.serialization import registered
from volition.solvers.descent import Descent

#: values nearer than this share of the data's cost belong to one solution found twice
SAME_VALUE = 1e-9


@registered
class Candidate(NamedTuple):
    """One thing that was tried and what it reached (on the entities of the search)."""

    name: str
    distortion: float
    n_iter: int
    seconds: float


class Found(NamedTuple):
    """A solution, its value on the entities of the search, and where it came from."""

    value: float
    centers: FloatArray
    name: str
    #: whether moving a centre has improved it
    reallocated: bool = False


#: called when a candidate begins, with its name and whether it will report betas
OnBegin = Callable[[str, bool], Any]
#: called when a candidate is done; a true answer stops the search
OnEnd = Callable[[Candidate, FloatArray, float], Any]


def ranked(found: Sequence[Found], problem: Problem) -> list[Found]:
    """Sort by value; of equal values (the same solution found again) the first stands for all."""
    same = SAME_VALUE * problem.cost_scale
    kept: list[Found] = []
    for one in found:
        if not any(abs(one.value - other.value) <= same for other in kept):
            kept.append(one)
    return sorted(kept, key=lambda one: one.value)


@dataclass
class Task:
    """A candidate in the making; ``stopped`` becomes true where the user asks for the end."""

    found: Found | None = None
    name: str = ""
    stopped: bool = False


@dataclass
class Reporter:
    """Times candidates, and reports them to the callbacks."""

    problem: Problem
    descent: Descent
    on_begin: OnBegin = lambda name, has_betas: None
    on_end: OnEnd = lambda candidate, centers, beta: False
    candidates: list[Candidate] = field(default_factory=list)

    @contextmanager
    def task(self, name: str, has_betas: bool = False) -> Iterator[Task]:
        """Open a candidate; the block must set ``found``."""
        began, before = perf_counter(), self.descent.n_iter
        self.on_begin(name, has_betas)
        task = Task(name=name)
        yield task
        assert task.found is not None
        Y = task.found.centers
        n_iter, seconds = self.descent.n_iter - before, perf_counter() - began
        cost = self.problem.free_energy(Y, math.inf)
        candidate = Candidate(task.name, cost, n_iter, seconds)
        self.candidates.append(candidate)
        task.stopped = bool(self.on_end(candidate, Y, self.descent.hard_beta(self.problem, Y)))
