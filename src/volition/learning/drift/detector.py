"""Has behaviour changed? Compare late answers with earlier ones to questions of the same kind.

Learners ask at other centres and prescribe differently as they learn, so that shares of answers
change although behaviour does not. What does not change is how answers depend on the question. The
monitor describes each question by numbers (how dear the prescribed centre is, how near the others
are, what the entity did before), regresses answers on them, and asks whether the residuals of late
answers go with their being late, after what the questions say of being late has been taken out as
well. If either regression is about right, nothing shows as long as behaviour stays.

What the numbers miss differs from layout to layout. How much that is shows in the residuals of
answers about one layout; the more it is, the less layouts are compared with others that are not
like them. So a move to other centres is not taken for a change, unless answers at all layouts so
far were predicted well.
"""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from volition.core.validation import FloatArray, check_integer, check_scalar
from volition.io.serialization import registered
from volition.learning.drift.comparison import TINY, Sums, compare, penalty_of
from volition.learning.drift.leavers import INSTEAD, Leavers
from volition.learning.drift.questions import N_GEOMETRY, Past, WatchedAnswers, bent, geometry
from volition.populations.answers import IntArray

#: late answers that are compared with all before them
WINDOWS = (256, 512, 1024, 2048)
#: a look is taken after this many more; within one batch, on which nobody can act before its end
LOOK_EVERY, LOOK_WITHIN = 256, 1024
#: answers that are kept
KEPT = 8192
#: earlier answers, without which nothing is compared
FEWEST = 512
#: answers about one layout that are taken together; at least, where layouts change more often
TOGETHER, TOGETHER_LEAST = 64, 32
#: statistic beyond which behaviour has changed
LIMIT = 4.5
#: squared shift of the centres, in squared spreads of a layout, at which layouts are others
REACH = 0.25
#: answers that the mean of all is worth in what an entity did before: two readings
MEMORY = (2.0, 20.0)
#: numbers that say what an entity did before, in all and with the same prescription
N_MEMORY = 9
#: pairs of an entity and a prescription that are told apart; beyond that some share a place
MOST_PAIRS = 2**15
#: least variance of obeying that is believed in, and how much a surprise may count for
LEAST_VARIANCE, MOST_WEIGHT = 0.04, 4.0
#: strata within which answers are compared, besides each prescribed cluster
STRATA = (
    "",
    ", where the nearest is prescribed",
    ", where another than the nearest is prescribed",
    ", compared with what the same entities did before",
)
OBEYING, PAID = "how often entities obey", "what entities pay"


@registered
class Change(NamedTuple):
    """A change of behaviour that was noticed.

    ``what`` says where it shows. ``before`` is what earlier answers let one expect of the latest
    ``n_after``, ``after`` what was seen in them. ``p_value`` is the chance of so large a difference
    at one look if nothing has changed. The tables count answers by prescribed (row) and realised
    cluster, before and in the latest; they are empty where only costs were told.
    """

    n_interactions: int
    n_answers: int
    what: str
    before: float
    after: float
    p_value: float
    table_before: list[list[int]]
    table_after: list[list[int]]
    n_after: int


class DriftMonitor:
    """Says when entities no longer answer as they did, whatever they are asked.

    It needs no model of the learner's, and is not misled by one: it has small ones of its own, of
    who obeys and of where the others go, or of what is paid, which are fitted to the latest 8,192
    answers. Nothing is compared before 768 answers. Late answers are the latest 256, 512, 1,024 and
    2,048.

    Parameters
    ----------
    n_clusters : int
        Number of centres, at least 2.
    costs : bool, default=False
        Whether answers tell costs, in any unit, and not which cluster was used.
    limit : float, default=4.5
        Statistic beyond which behaviour has changed. In 20,000 answers of entities that did not
        change, the largest was 3.1 on average and 4.2 in the worst of 112 simulated runs; see
        ``benchmarks/drift.py null``.

    Attributes
    ----------
    n_answers : int
        Answers that were taken in since it has last forgotten.
    statistic : float
        The largest at the latest look.

    Examples
    --------
    Entities that obey in nine of ten cases, and from answer 3,000 on in six of ten:

    >>> import numpy as np
    >>> from volition.learning.drift.detector import DriftMonitor
    >>> from volition.learning.drift.questions import WatchedAnswers
    >>> rng = np.random.default_rng(0)
    >>> X, watch = rng.random((50, 2)), DriftMonitor(3)
    >>> for t in range(0, 5000, 50):
    ...     Y = rng.random((3, 2))
    ...     D, apart = (((Z[:, None] - Y) ** 2).sum(2) for Z in (X, Y))
    ...     j = rng.integers(0, 3, 50)
    ...     obeys = rng.random(50) < (0.9 if t < 3000 else 0.6)
    ...     k = np.where(obeys, j, (j + rng.integers(1, 3, 50)) % 3)
    ...     change = watch.add(WatchedAnswers(np.arange(50), j, D, apart[j], Y, k), (t, t))
    ...     if change is not None:
    ...         print(change.n_answers, change.what)
    3250 how often entities obey
    """

    def __init__(self, n_clusters: int, *, costs: bool = False, limit: float = LIMIT) -> None:
        check_integer(n_clusters, "n_clusters", 2)
        self.n_clusters, self.costs = int(n_clusters), bool(costs)
        self.limit = check_scalar(limit, "limit", 0, open_low=True)
        self.forget()

    def forget(self) -> None:
        """Compare with nothing that came before: it was another behaviour."""
        K = self.n_clusters
        self.n_answers, self.statistic, self._since = 0, 0.0, 0
        self._sums, self._leavers = Sums(K + N_GEOMETRY + N_MEMORY, 1), Leavers(K)
        self._entities, self._pairs = Past(), Past()
        self._theta: FloatArray = np.zeros(0)  # of the regression on covariates
        self._unit = np.zeros(0)  # where costs lie, and how far apart
        # Of each block: answers, centres, answers by prescribed and realised cluster.
        self._size = np.zeros(0, dtype=np.int64)
        self._centers: FloatArray = np.zeros((0, K, 0))
        self._table = np.zeros((0, K, K), dtype=np.int64)

    def add(self, answers: WatchedAnswers, when: tuple[int, int] = (0, 0)) -> Change | None:
        """Take in answers; say if behaviour has changed, and forget all if so.

        Parameters
        ----------
        answers : WatchedAnswers
            In the order in which they were told. Those that never came must not be among them.
        when : tuple of int
            Numbers of interactions and of answers so far, for the `Change`.

        Returns
        -------
        Change or None
        """
        if answers.costs.shape[1] != self.n_clusters:
            raise ValueError(
                f"The answers are about {answers.costs.shape[1]} clusters, not {self.n_clusters}."
            )
        if (answers.cost if self.costs else answers.realized) is None:
            raise ValueError(f"The answers need {'cost' if self.costs else 'realized'}.")
        m, change = len(answers), None
        for lo in range(0, m, LOOK_EVERY):
            self._append(answers.take(slice(lo, lo + LOOK_EVERY)))
            self._since += min(LOOK_EVERY, m - lo)
            if self._since >= (LOOK_EVERY if lo + LOOK_EVERY >= m else LOOK_WITHIN):
                self._since, change = 0, self._look(when)
            if change is not None:
                self.forget()
                break
        return change

    # -- taking in --------------------------------------------------------------------------------

    def _append(self, answers: WatchedAnswers) -> None:
        i, j = answers.entities, answers.prescribed
        G, at = geometry(j, answers.costs, answers.apart), self._blocks_of(answers)
        pairs = (i * self.n_clusters + j) % MOST_PAIRS
        y, B = self._outcome(answers), np.concatenate([G, self._remembered(i, pairs, G)], axis=1)
        mean: FloatArray = np.full(len(y), y.mean())
        plain, w = mean, np.ones(len(y))
        if len(self._theta):
            # What is remembered must not depend on what was remembered before.
            mean, plain = B @ self._theta, G @ self._theta[: G.shape[1]]
            if not self.costs:
                p = mean.clip(0.0, 1.0)
                v = np.maximum(p * (1 - p), LEAST_VARIANCE)
                w = np.minimum(v.mean() / v, MOST_WEIGHT)
        self._sums.add(at, B, y[:, None], (y - mean)[:, None] ** 2, w)
        self._entities.add(i, y - plain, y)
        self._pairs.add(pairs, y - plain, y)
        self.n_answers += len(j)
        if answers.realized is not None and not self.costs:
            np.add.at(self._table, (at, j, answers.realized), 1)
            if self.n_clusters > 2:
                self._leavers.add(answers, G, at)

    def _outcome(self, answers: WatchedAnswers) -> FloatArray:
        """Return who obeyed, or what was paid in a unit that never changes, from -1 to 1."""
        if not self.costs:
            return np.asarray(answers.realized == answers.prescribed, dtype=np.float64)
        cost = np.asarray(answers.cost)
        if len(self._unit) == 0:
            middle = float(np.median(cost))
            wide = float(np.median(np.abs(cost - middle)))
            self._unit = np.array([middle, 3 * max(wide, 0.05 * abs(middle), TINY)])
        return bent((cost - self._unit[0]) / self._unit[1], 1.0)

    def _remembered(self, i: IntArray, pairs: IntArray, G: FloatArray) -> FloatArray:
        """Return what each entity did before: more than others did at such questions, and at all.

        Learners prescribe by it, and so it tells late answers from earlier ones.
        """
        count, off, raw = self._entities.at(i)
        answers, _, every = self._entities.table.sum(0)
        seen, same, _ = self._pairs.at(pairs)
        plain = (raw - count * every / max(answers, 1.0)) / (count + MEMORY[0])
        past = [off / (count + worth) for worth in MEMORY]
        past += [plain] + [same / (seen + worth) for worth in MEMORY]
        by = G[:, self.n_clusters + np.array([0, 4])]  # whether it is the nearest, and its cost
        return np.concatenate([np.stack(past, 1), past[0][:, None] * by, plain[:, None] * by], 1)

    def _blocks_of(self, answers: WatchedAnswers) -> IntArray:
        """Return to which block each answer belongs, counted from the first that is kept."""
        m, Y = len(answers), answers.centers
        new: Any = [] if Y.ndim == 2 else np.flatnonzero((Y[1:] != Y[:-1]).any((1, 2))) + 1
        at, size, centers = np.empty(m, dtype=np.int64), self._size.tolist(), list(self._centers)
        for lo, hi in pairwise([0, *new, m]):
            one, done = Y if Y.ndim == 2 else Y[lo], lo
            while done < hi:
                full = not size or size[-1] >= TOGETHER
                enough = not full and size[-1] >= TOGETHER_LEAST
                if full or (enough and not np.array_equal(one, centers[-1])):
                    size.append(0)
                    centers.append(one)
                now = min(hi - done, TOGETHER - size[-1])
                at[done : done + now] = len(size) - 1
                size[-1] += now
                done += now
        self._size, self._centers = np.array(size, dtype=np.int64), np.array(centers)
        more = np.zeros((len(size) - len(self._table), *self._table.shape[1:]), dtype=np.int64)
        self._table = np.concatenate([self._table, more])
        return at

    # -- looking ----------------------------------------------------------------------------------

    def _drop(self) -> None:
        """Forget blocks that are too old."""
        behind = np.cumsum(self._size[::-1])[::-1]
        first = int((behind > KEPT + TOGETHER).sum())
        self._sums.drop(first)
        self._leavers.drop(first, len(self._size))
        for name in ("_size", "_centers", "_table"):
            setattr(self, name, getattr(self, name)[first:])

    def _alike(self) -> FloatArray:
        """Return how alike the layouts of blocks are, from 0 to 1."""
        Y = self._centers
        spread = max(float(Y.var(axis=1).sum(1).mean()), TINY)
        F = (Y - Y.mean((0, 1))).reshape(len(Y), -1)
        square = (F**2).sum(1)
        gaps = np.maximum(square[:, None] + square[None] - 2 * F @ F.T, 0.0) / self.n_clusters
        return np.exp(-gaps / (2 * REACH * spread))

    def _windows(self) -> tuple[list[int], list[int]]:
        """Return the blocks with which late answers begin, and how many late answers there are."""
        behind = np.cumsum(self._size[::-1])[::-1]
        splits, lengths = [], []
        for window in WINDOWS:
            split = int((behind > window).sum())
            if split and behind[0] - behind[split] >= FEWEST:
                splits.append(split)
                lengths.append(int(behind[split]))
        return splits, lengths

    def _look(self, when: tuple[int, int]) -> Change | None:
        self._drop()
        K = self.n_clusters
        penalty = penalty_of(self._sums, K, K + N_GEOMETRY)
        self._theta = self._sums.coefficients(penalty)[:, 0]
        splits, lengths = self._windows()
        if not splits:
            return None
        kernel = self._alike()
        found = compare(self._sums, _strata(K), kernel, splits, penalty)
        away = self._leavers.compare(kernel, splits)
        leaving = away is not None and np.abs(away.statistic).max() > np.abs(found.statistic).max()
        most = away if away is not None and leaving else found
        at = np.unravel_index(np.abs(most.statistic).argmax(), most.statistic.shape)
        self.statistic = float(abs(most.statistic[at]))
        if self.statistic <= self.limit:
            return None
        window, outcome, stratum = (int(number) for number in at)
        split = splits[window]
        after = self._leavers.seen(outcome, split) if leaving else float(most.seen[at])
        before = after - float(most.shift[at])
        if self.costs:  # in the unit in which they were told
            before, after = self._told(before), self._told(after)
        tables = [self._table[part].sum(0).tolist() for part in (slice(split), slice(split, None))]
        what, chance = self._name(leaving, outcome, stratum), math.erfc(self.statistic / 2**0.5)
        return Change(*when, what, before, after, chance, tables[0], tables[1], lengths[window])

    def _told(self, y: float) -> float:
        """Return the cost that an outcome stands for."""
        middle, wide = self._unit.tolist()
        return float(middle + wide * y / max(1 - abs(y), 0.01))

    def _name(self, leaving: bool, outcome: int, stratum: int) -> str:
        """Return in words what was compared."""
        if leaving and outcome < len(INSTEAD):
            return INSTEAD[outcome]
        if leaving:
            return f"how often cluster {outcome - len(INSTEAD)} is used instead of the prescribed"
        what = PAID if self.costs else OBEYING
        if stratum < len(STRATA):
            return what + STRATA[stratum]
        return f"{what}, where cluster {stratum - len(STRATA)} is prescribed"

    # -- saving -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return numbers and arrays to be saved, nested; `from_state` takes them.

        Returns
        -------
        dict
        """
        return _plain(copy.deepcopy(self))

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Return the monitor that had this `state`.

        Parameters
        ----------
        state : dict

        Returns
        -------
        DriftMonitor

        Examples
        --------
        >>> from volition.learning.drift.detector import DriftMonitor
        >>> DriftMonitor.from_state(DriftMonitor(4).state()).n_clusters
        4
        """
        monitor = cls(state["n_clusters"], costs=state["costs"], limit=state["limit"])
        _fill(monitor, copy.deepcopy(state))
        return monitor


def _plain(part: Any) -> dict[str, Any]:
    """Return what an object is made of, its parts likewise."""
    return {k: _plain(v) if hasattr(v, "__dict__") else v for k, v in vars(part).items()}


def _fill(part: Any, state: dict[str, Any]) -> None:
    """Put back what `_plain` has returned."""
    for name, now in vars(part).items():
        if hasattr(now, "__dict__"):
            _fill(now, state[name])
        else:
            setattr(part, name, state[name])


def _strata(K: int) -> FloatArray:
    """Return of which covariates each stratum is the sum."""
    n = len(STRATA)
    E = np.zeros((K + N_GEOMETRY + N_MEMORY, n + K))
    E[:K, 0] = E[:K, 2] = 1.0
    E[K, 1], E[K, 2] = 1.0, -1.0
    E[K + N_GEOMETRY, 3] = 1.0
    E[np.arange(K), n + np.arange(K)] = 1.0
    return E
