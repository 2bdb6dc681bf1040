"""Questions that were asked, so that answers may come late, twice, in any order, or never."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volition.io.files import expect
from volition.io.serialization import registered
from volition.population import IntArray
from volition.validation import check_integer


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
    answered: Any

    def take(self, index: IntArray) -> Asked:
        """Return some rows."""
        return Asked(*(column[index] for column in self))


@registered
class Ledger:
    """The last ``patience`` questions; what is older counts as never asked.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.learners.ledger import Ledger
    >>> ledger = Ledger()
    >>> ids = ledger.issue(np.array([5, 6]), np.array([0, 1]), np.ones(2), np.ones(2), np.zeros(2))
    >>> rows, asked = ledger.settle(ids[[1, 1]])
    >>> rows.tolist(), asked.entities.tolist()  # the second of two equal answers does not count
    ([0], [6])
    """

    def __init__(self, patience: int = 1_000_000) -> None:
        self.patience = patience
        self.n_asked = 0
        self._book = _blank(1024)

    def issue(
        self, entities: Any, prescribed: Any, propensity: Any, greedy: Any, explored: Any
    ) -> IntArray:
        """Write questions down; return their numbers."""
        m = len(entities)
        if m > self.patience:
            raise ValueError(f"At most {self.patience} questions can be asked at a time, got {m}.")
        ids = self.n_asked + np.arange(m)
        self._grow(m)
        slots = ids % len(self._book.ids)
        rows: tuple[Any, ...] = (ids, entities, prescribed, propensity, greedy, explored, 0)
        for column, values in zip(self._book, rows, strict=True):
            column[slots] = values
        self.n_asked += m
        return ids

    def _grow(self, m: int) -> None:
        """Make room rather than overwrite, up to the patience."""
        size = len(self._book.ids)
        needed = min(self.patience, self.n_asked + m)
        if needed <= size:
            return
        while size < needed:
            size *= 2
        kept = self.outstanding(everything=True)
        self._book = _blank(size)
        for column, values in zip(self._book, kept, strict=True):
            column[kept.ids % size] = values

    def settle(
        self, ids: IntArray, entities: Any = None, prescribed: Any = None
    ) -> tuple[IntArray, Asked]:
        """Tick off answers; return which rows are new, and what was asked in them.

        Where entities and prescribed clusters are given, they must be those of the questions.
        """
        slots = ids % len(self._book.ids)
        unknown = (self._book.ids[slots] != ids) | (ids < 0)
        if entities is not None:
            unknown |= self._book.entities[slots] != entities
            unknown |= self._book.prescribed[slots] != prescribed
        strange = np.flatnonzero(unknown)
        if len(strange):
            raise ValueError(
                f"Question {ids[strange[0]]} (row {strange[0]}) was never asked like this by this "
                f"learner, or more than {self.patience} questions ago; nothing was learned from "
                "the batch."
            )
        first = np.arange(len(ids))
        if (np.diff(ids) <= 0).any():  # some may come twice
            first = np.sort(np.unique(ids, return_index=True)[1])
        new = first[self._book.answered[slots[first]] == 0]
        self._book.answered[slots[new]] = 1
        return new, self._book.take(slots[new])

    def outstanding(self, everything: bool = False) -> Asked:
        """Return the questions without an answer so far (or all that are remembered)."""
        keep = self._book.ids >= 0
        if not everything:
            keep &= self._book.answered == 0
        return self._book.take(np.flatnonzero(keep))

    def state(self) -> dict[str, Any]:
        """Return what is to be saved."""
        book = self.outstanding(everything=True)._asdict()
        size = len(self._book.ids)
        return {"n_asked": self.n_asked, "size": size, "patience": self.patience, "book": book}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Ledger:
        """Return the ledger whose :meth:`state` this is."""
        ledger, size, book = cls(state["patience"]), state["size"], state["book"]
        for name, least in (("n_asked", 0), ("size", 1), ("patience", 1)):
            check_integer(state[name], name, least)
        ledger.n_asked, ledger._book = state["n_asked"], _blank(size)
        slots = expect(book, "ids", (None,), "i") % size
        for name, column in ledger._book._asdict().items():
            column[slots] = expect(book, name, slots.shape, column.dtype.kind)
        return ledger


def _blank(size: int) -> Asked:
    ids, entities, prescribed = np.full((3, size), -1, dtype=np.int64)
    greedy, explored, answered = np.zeros((3, size), dtype=np.int8)
    return Asked(ids, entities, prescribed, np.zeros(size), greedy, explored, answered)
