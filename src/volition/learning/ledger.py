"""Questions that were asked, so that answers may come late, twice, in any order, or never.

Numbers of questions are never used again. They are microseconds of the clock. A learner that begins
or goes on from a file counts on from the present moment, never faster than the clock. So numbers
that were given out after the file was written are not given out once more.
"""

from __future__ import annotations

import copy
import time
from typing import Any, NamedTuple

import numpy as np

from volition.io.serialization import registered
from volition.populations.answers import IntArray


@registered
class Asked(NamedTuple):
    """What a learner remembers of its questions, one row each."""

    ids: Any
    entities: Any
    prescribed: Any
    #: probability with which the prescription was chosen
    propensity: Any
    #: whether it was the best one known
    greedy: Any
    #: whether it was drawn blindly, to explore
    explored: Any
    #: number of the centres that were shown
    version: Any

    def take(self, index: Any) -> Asked:
        """Return some rows."""
        return Asked(*(column[index] for column in self))


class Ledger:
    """The last ``patience`` questions; what is older counts as never asked.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.learning.ledger import Ledger
    >>> ledger, two = Ledger(), np.zeros(2, dtype=int)
    >>> ids = ledger.issue(np.array([5, 6]), two, np.ones(2), two, two, two)
    >>> slots = ledger.slots(ids[[1, 1]])
    >>> ledger.asked(slots).entities.tolist()
    [6, 6]
    """

    def __init__(self, patience: int = 1_000_000) -> None:
        self.patience = patience
        self.n_asked = 0
        self.answered = np.zeros(1024, dtype=bool)
        self._book = _blank(1024)
        #: first number of each run of numbers, and how many questions were asked before it
        self._runs: list[tuple[int, int]] = []
        self.begin_run()

    def begin_run(self) -> None:
        """Count on from the present moment."""
        last = self._number(self.n_asked) if self._runs else 0
        self._runs.append((max(_now(), last), self.n_asked))

    def _number(self, position: int) -> int:
        first, before = self._runs[-1]
        return first + position - before

    def issue(
        self, entities: Any, prescribed: Any, propensity: Any, greedy: Any, explored: Any,
        version: Any,
    ) -> IntArray:  # fmt: skip
        """Write questions down; return their numbers."""
        m = len(entities)
        if m > self.patience:
            raise ValueError(f"At most {self.patience} questions can be asked at a time, got {m}.")
        ids = self._number(self.n_asked) + np.arange(m)
        self._grow(m)
        rows = Asked(ids, entities, prescribed, propensity, greedy, explored, version)
        self._write(self.n_asked + np.arange(m), rows, False)
        self.n_asked += m
        # A number lies in the past, so that whoever begins later cannot give it out again.
        ahead = self._number(self.n_asked) - _now()
        if ahead > 0:
            time.sleep(ahead * 1e-6)
        return ids

    def _grow(self, m: int) -> None:
        """Make room rather than overwrite, up to the patience."""
        size = len(self._book.ids)
        needed = min(self.patience, self.n_asked + m)
        if needed <= size:
            return
        while size < needed:
            size *= 2
        kept = self._kept()
        slots = kept % len(self._book.ids)
        rows, answered = self._book.take(slots), self.answered[slots]
        self._book, self.answered = _blank(size), np.zeros(size, dtype=bool)
        self._write(kept, rows, answered)

    def _write(self, positions: IntArray, rows: Asked, answered: Any) -> None:
        slots = positions % len(self._book.ids)
        for column, values in zip(self._book, rows, strict=True):
            column[slots] = values
        self.answered[slots] = answered

    def _kept(self) -> IntArray:
        """Positions of the questions that are remembered."""
        return np.arange(max(0, self.n_asked - len(self._book.ids)), self.n_asked)

    def slots(self, ids: Any) -> IntArray:
        """Return where questions stand in the book; -1 for those that are not there."""
        ids = np.asarray(ids, dtype=np.int64)
        firsts, before = (np.array(z, dtype=np.int64) for z in zip(*self._runs, strict=True))
        run = np.searchsorted(firsts, ids, "right") - 1
        position = before[run] + ids - firsts[run]
        slots = position % len(self._book.ids)
        known = (run >= 0) & (position < self.n_asked) & (self._book.ids[slots] == ids)
        return np.where(known, slots, -1)

    def asked(self, slots: IntArray) -> Asked:
        """Return what was asked."""
        return self._book.take(slots)

    def with_answered(self, answered: np.ndarray) -> Ledger:
        """Return the same ledger with other ticks; the book is shared."""
        other = copy.copy(self)
        other.answered = answered
        return other

    def outstanding(self) -> Asked:
        """Return the questions without an answer so far."""
        slots = self._kept() % len(self._book.ids)
        return self._book.take(slots[~self.answered[slots]])

    def state(self) -> dict[str, Any]:
        """Return what a file needs."""
        slots = self._kept() % len(self._book.ids)
        return {
            "patience": self.patience,
            "n_asked": self.n_asked,
            "size": len(self._book.ids),
            "runs": [list(run) for run in self._runs],
            "answered": self.answered[slots],
            **self._book.take(slots)._asdict(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Ledger:
        """Return the ledger that `state` describes; its numbers go on from the present moment."""
        ledger, size = cls(state["patience"]), state["size"]
        ledger._book, ledger.answered = _blank(size), np.zeros(size, dtype=bool)
        ledger.n_asked = state["n_asked"]
        rows = Asked(**{name: state[name] for name in Asked._fields})
        ledger._write(ledger._kept(), rows, state["answered"])
        ledger._runs = [(int(first), int(before)) for first, before in state["runs"]]
        ledger.begin_run()
        return ledger


def _now() -> int:
    """Return microseconds of the clock."""
    return time.time_ns() // 1000


def _blank(size: int) -> Asked:
    ids, entities, prescribed, version = np.full((4, size), -1, dtype=np.int64)
    greedy, explored = np.zeros((2, size), dtype=np.int8)
    return Asked(ids, entities, prescribed, np.zeros(size), greedy, explored, version)
