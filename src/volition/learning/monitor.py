"""What a learner knows about how it is doing: its own distortion, by answers alone.

It looks only at answers whose selection cannot mislead: the distortion is the mean cost of
prescriptions that were the best known *before* their answer came, weighted by one over the
probability of having chosen them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volition.core.validation import FloatArray
from volition.io.checked_files import expect
from volition.io.serialization import registered
from volition.populations.answers import IntArray

Z95 = 1.959963984540054


Recost = Callable[[IntArray, IntArray], FloatArray | None]


@registered
class Estimate(NamedTuple):
    """A value with its 95 % confidence interval, and the number of answers behind it."""

    value: float
    low: float
    high: float
    n_answers: int


class Monitor:
    """Running estimate of the distortion."""

    def __init__(self, window: int = 5000) -> None:
        self.costs = np.zeros((window, 4))  # cost, weight, entity, realised cluster or -1
        self.n_costs = 0
        self.mark = 0  # costs that there were at the last trial
        self.stale = False  # whether the costs so far are to be forgotten when the next ones come

    def add_costs(
        self, cost: FloatArray, weight: FloatArray, entities: IntArray, realized: IntArray | None
    ) -> None:
        """Take in costs of prescriptions that were the best known when made."""
        if self.stale and len(cost):
            self.forget_costs()
        rows = np.column_stack([cost, weight, entities, -np.ones(len(cost))])
        if realized is not None:
            rows[:, 3] = realized
        rows = rows[-len(self.costs) :]
        self.costs[(self.n_costs + np.arange(len(rows))) % len(self.costs)] = rows
        self.n_costs += len(rows)

    def distortion(self, recost: Recost | None = None, *, since_mark: bool = False) -> Estimate:
        """Return the mean cost of late, or only since the mark, with its confidence interval.

        ``recost(entities, realized)`` gives costs at the centres as they stand now.
        """
        n = min(self.n_costs - self.mark * since_mark, len(self.costs))
        if n < 2:
            return Estimate(math.nan, math.nan, math.nan, n)
        newest = (self.n_costs - 1 - np.arange(n)) % len(self.costs)
        cost, weight, entities, realized = self.costs[newest if since_mark else slice(n)].T
        if recost is not None and realized.min() >= 0:
            now = recost(entities.astype(np.int64), realized.astype(np.int64))
            cost = cost if now is None else now
        share = weight / weight.sum()
        mean = float(share @ cost)
        error = Z95 * math.sqrt(float(share**2 @ (cost - mean) ** 2) * n / (n - 1))
        return Estimate(mean, mean - error, mean + error, n)

    def forget_costs(self) -> None:
        """Begin the running mean anew."""
        self.n_costs = self.mark = 0
        self.stale = False

    def forget_before_mark(self) -> None:
        """Keep what came since the mark: it contradicts what came before."""
        n = min(self.n_costs - self.mark, len(self.costs))
        newest = (self.n_costs - n + np.arange(n)) % len(self.costs)
        self.costs[:n] = self.costs[newest].copy()
        self.n_costs, self.mark = n, 0

    def copied(self) -> Monitor:
        """Return a copy that shares nothing with this one."""
        return copy.deepcopy(self)

    def state(self) -> dict[str, Any]:
        """Return what is to be saved."""
        return dict(vars(self))

    def restore(self, state: dict[str, Any]) -> None:
        """Return to a saved :meth:`state`."""
        for name, now in vars(self).items():
            value = state[name]
            if isinstance(now, np.ndarray):
                expect(state, name, now.shape, now.dtype.kind)
            elif type(value) is not type(now):
                raise ValueError(f"'{name}' is {value!r}")
            setattr(self, name, value)
