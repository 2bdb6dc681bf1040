"""What a learner knows about how it is doing: its own distortion, and whether behaviour changed.

Both look only at answers whose selection cannot mislead. The distortion is the mean cost of
prescriptions that were the best known *before* their answer came, weighted by one over the
probability of having chosen them. Changes are looked for among blindly drawn prescriptions: as long
as behaviour does not depend on where the centres stand, their answers have one distribution,
whatever the learner has learned meanwhile.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import hypergeom

from volition.core.validation import FloatArray
from volition.io.files import expect
from volition.io.serialization import registered
from volition.populations.answers import IntArray

#: blindly drawn answers compared with all before them
WINDOWS = (50, 200, 800)
#: a look is taken after this many more
LOOK_EVERY = 25
#: chance of a false alarm that one blindly drawn answer may add: 0.2 % in 100,000
FALSE_ALARM = 2e-8
#: standard deviations below which no p-value can be small enough
FAR = 3.5
Z95 = 1.959963984540054


Recost = Callable[[IntArray, IntArray], FloatArray | None]


@registered
class Estimate(NamedTuple):
    """A value with its 95 % confidence interval, and the number of answers behind it."""

    value: float
    low: float
    high: float
    n_answers: int


@registered
class Change(NamedTuple):
    """A change of behaviour that was noticed.

    ``what`` says where it shows: how often entities obey (all, or those prescribed one cluster), or
    how often one cluster is realised. ``before`` and ``after`` are the two shares. The tables count
    blindly drawn answers by prescribed (row) and realised cluster, before and in the latest window.
    """

    n_interactions: int
    n_answers: int
    what: str
    before: float
    after: float
    p_value: float
    table_before: list[list[int]]
    table_after: list[list[int]]


class Monitor:
    """Running estimate of the distortion, and exact tests for a change of behaviour."""

    def __init__(self, n_clusters: int, window: int = 5000) -> None:
        self.costs = np.zeros((window, 4))  # cost, weight, entity, realised cluster or -1
        self.n_costs = 0
        self.mark = 0  # costs that there were at the last trial
        self.stale = False  # whether the costs so far are to be forgotten when the next ones come
        self.seen = np.zeros((n_clusters, n_clusters), dtype=np.int64)
        self.recent = np.zeros((max(WINDOWS), 2), dtype=np.int64)
        self.n_seen = 0
        self.n_looked = 0

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

    def forget_choices(self) -> None:
        """Compare with nothing that came before: it was another behaviour, or other entities."""
        self.seen[:] = 0
        self.n_seen = self.n_looked = 0

    def add_choices(
        self, prescribed: IntArray, realized: IntArray, when: tuple[int, int]
    ) -> Change | None:
        """Take in blindly drawn prescriptions and what came of them; say if behaviour changed.

        ``when`` is the number of interactions and of answers so far.
        """
        for lo in range(0, len(prescribed), LOOK_EVERY):
            j, k = prescribed[lo : lo + LOOK_EVERY], realized[lo : lo + LOOK_EVERY]
            slots = (self.n_seen + np.arange(len(j))) % len(self.recent)
            self.recent[slots, 0], self.recent[slots, 1] = j, k
            np.add.at(self.seen, (j, k), 1)
            self.n_seen += len(j)
            if self.n_seen - self.n_looked >= LOOK_EVERY:
                self.n_looked = self.n_seen
                change = self._look(when)
                if change is not None:
                    self.forget_choices()
                    return change
        return None

    def _look(self, when: tuple[int, int]) -> Change | None:
        K = len(self.seen)
        usable = [w for w in WINDOWS if self.n_seen >= 2 * w]
        best: Change | None = None
        limit = FALSE_ALARM * LOOK_EVERY / (len(WINDOWS) * (1 + 2 * K))
        for window in usable:
            slots = (self.n_seen - 1 - np.arange(window)) % len(self.recent)
            late = np.zeros_like(self.seen)
            np.add.at(late, (self.recent[slots, 0], self.recent[slots, 1]), 1)
            hits, trials = _shares(late)
            old_hits, old_trials = _shares(self.seen - late)
            all_hits, all_trials = hits + old_hits, trials + old_trials
            # Most looks show nothing: only what is far off is worth an exact test.
            share = all_hits / np.maximum(all_trials, 1)
            spread = np.sqrt(trials * share * (1 - share) * old_trials / np.maximum(all_trials, 1))
            far = np.flatnonzero(np.abs(hits - trials * share) > FAR * np.maximum(spread, 1e-12))
            if len(far) == 0:
                continue
            # Fisher's exact test, both sides.
            law = hypergeom(all_trials[far], all_hits[far], trials[far])
            p = np.ones(len(hits))
            p[far] = np.minimum(1.0, 2 * np.minimum(law.cdf(hits[far]), law.sf(hits[far] - 1)))
            worst = int(p.argmin())
            if p[worst] < limit and (best is None or p[worst] < best.p_value):
                before = old_hits[worst] / max(old_trials[worst], 1)
                after = hits[worst] / max(trials[worst], 1)
                tables = (self.seen - late).tolist(), late.tolist()
                numbers = float(before), float(after), float(p[worst])
                best = Change(*when, _name(worst, K), *numbers, *tables)
        return best

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


def _shares(table: IntArray) -> tuple[IntArray, IntArray]:
    """Return hits and trials: obeying in all, obeying per prescribed, realised per cluster."""
    by_prescribed, by_realized, total = table.sum(1), table.sum(0), table.sum()
    hits = np.concatenate([[np.trace(table)], np.diag(table), by_realized])
    trials = np.concatenate([[total], by_prescribed, np.full(len(table), total)])
    return hits, trials


def _name(number: int, K: int) -> str:
    if number == 0:
        return "how often entities obey"
    if number <= K:
        return f"how often entities prescribed cluster {number - 1} obey"
    return f"how often cluster {number - 1 - K} is realised"
