"""All answers of a study: who was told what, at which centres, and what came of it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from volition.choices import Choices
from volition.core.validation import FloatArray
from volition.learning.entities import Entities
from volition.learning.strategy import Answers
from volition.populations.answers import IntArray

#: by how much a cost may differ from a distance and still be it, as a share
EXACT = 1e-6
#: columns that hold one number for each answer
COLUMNS = ("entities", "prescribed", "realized", "cost", "layout", "propensity")


class Memory:
    """Answers in the order in which they came, with the sets of centres they are about.

    A cost usually tells which centre has served: it is the distance to one of them. So an answer
    has, beside the cluster that was told or -1, the clusters that `served` may have been.

    Parameters
    ----------
    n_clusters, n_features : int
    cost_unit : float
        A cost of the usual size; costs closer than a millionth of it are the same.
    """

    def __init__(self, n_clusters: int, n_features: int, cost_unit: float) -> None:
        none = np.zeros(0, dtype=np.int64)
        self.entities = self.prescribed = self.realized = self.layout = none
        self.cost = np.zeros(0)
        #: how likely each prescription was; NaN where that is not known
        self.propensity = np.zeros(0)
        #: whether the answer's cost is that of each centre, by the known metric
        self.matches = np.zeros((0, n_clusters), dtype=bool)
        self.layouts: FloatArray = np.zeros((0, n_clusters, n_features))
        self.cost_unit = cost_unit
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.cost)

    def add(self, answers: Answers, entities: Entities) -> None:
        """Keep answers; arrays are replaced, not changed."""
        Y = np.array(answers.sets)  # a view of it could not be written to
        first = np.concatenate([[True], (Y[1:] != Y[:-1]).any((1, 2))])
        numbers, known, new = np.empty(first.sum(), dtype=np.int64), dict(self._numbers), []
        for place, row in enumerate(np.flatnonzero(first)):
            key = Y[row].tobytes()
            if key not in known:
                known[key] = len(known)
                new.append(Y[row])
            numbers[place] = known[key]
        more = (
            answers.asked.entities,
            answers.asked.prescribed,
            answers.realized,
            answers.cost,
            numbers[np.cumsum(first) - 1],
            answers.asked.propensity,
        )
        for name, values in zip(COLUMNS, more, strict=True):
            setattr(self, name, np.concatenate([getattr(self, name), values]))
        self.matches = np.concatenate([self.matches, self._matches(answers, Y, entities)])
        self._numbers = known
        if new:
            self.layouts = np.concatenate([self.layouts, new])

    def _matches(self, answers: Answers, Y: FloatArray, entities: Entities) -> np.ndarray:
        """Return which centres cost as much, (m, K)."""
        x = torch.from_numpy(entities.X[answers.asked.entities])
        with torch.no_grad():
            D = entities.cost.each(x, torch.from_numpy(Y)).numpy()
        cost = answers.cost[:, None]
        near: np.ndarray = np.abs(cost - D) <= EXACT * (self.cost_unit + np.abs(cost))
        return near

    # -- what answers tell ------------------------------------------------------------------------

    @property
    def served(self) -> np.ndarray:
        """Which clusters may have served, (m, K): the one that was told, or those that match."""
        told = self.realized[:, None] == np.arange(self.matches.shape[1])
        return np.where(self.realized[:, None] >= 0, told, self.matches)

    @property
    def share_explained(self) -> float:
        """Share of costs that are those of a centre by the known metric, of the one told if so."""
        told = np.isfinite(self.cost)
        if not told.any():
            return 1.0
        rows = np.arange(len(self))
        own = self.matches[rows, np.maximum(self.realized, 0)]
        explained = np.where(self.realized >= 0, own, self.matches.any(1))
        return float(explained[told].mean())

    @property
    def share_decoded(self) -> float:
        """Share of answers that tell, or whose cost tells, which clusters may have been used."""
        return float(self.served.any(1).mean()) if len(self) else 1.0

    @property
    def share_negative(self) -> float:
        """Share of costs below zero."""
        told = np.isfinite(self.cost)
        return float((self.cost[told] < 0).mean()) if told.any() else 0.0

    def at(self, centers: FloatArray) -> Memory:
        """Return the answers about these centres alone."""
        found = np.flatnonzero((self.layouts == centers).all((1, 2)))
        number = found[0] if len(found) else -1
        rows = np.flatnonzero(self.layout == number)
        other = self.forgotten()
        for name in (*COLUMNS, "matches"):
            setattr(other, name, getattr(self, name)[rows])
        other.layout, other.layouts = np.zeros(len(rows), dtype=np.int64), centers[None].copy()
        other._numbers = {centers.tobytes(): 0}
        return other

    @property
    def sure(self) -> IntArray:
        """Rows that tell which cluster was used."""
        return np.flatnonzero(self.served.sum(1) == 1)

    def choices(self) -> Choices:
        """Return the answers that tell which cluster was used."""
        sure = self.sure
        used = self.served[sure].argmax(1)
        return Choices(
            self.entities[sure], self.prescribed[sure], used, self.layout[sure], self.layouts
        )

    @classmethod
    def of_choices(cls, choices: Choices, cost_unit: float) -> Memory:
        """Return a memory of recorded choices, whose costs are those of the metric."""
        memory, m = (
            cls(choices.layouts.shape[1], choices.layouts.shape[2], cost_unit),
            len(choices.entities),
        )
        memory.entities, memory.prescribed = choices.entities, choices.prescribed
        memory.realized, memory.layout = choices.realized, choices.layout
        memory.cost, memory.layouts = np.full(m, np.nan), np.asarray(choices.layouts)
        memory.propensity = np.full(m, np.nan)
        memory.matches = np.zeros((m, choices.n_clusters), dtype=bool)
        memory._numbers = {Y.tobytes(): number for number, Y in enumerate(memory.layouts)}
        return memory

    def latest(self, m: int) -> Memory:
        """Return the last answers alone."""
        other, first = self.copied(), max(0, len(self) - m)
        for name in (*COLUMNS, "matches"):
            setattr(other, name, getattr(self, name)[first:])
        return other

    def copied(self) -> Memory:
        """Return a copy: arrays are never changed in place, so they are shared."""
        return copy.copy(self)

    def forgotten(self) -> Memory:
        """Return a memory of nothing, of the same kind."""
        return Memory(self.layouts.shape[1], self.layouts.shape[2], self.cost_unit)

    def state(self) -> dict[str, Any]:
        """Return what a file needs."""
        names = (*COLUMNS, "matches", "layouts", "cost_unit")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Memory:
        """Return the memory that `state` describes."""
        memory = cls(state["layouts"].shape[1], state["layouts"].shape[2], state["cost_unit"])
        vars(memory).update(state)
        memory._numbers = {Y.tobytes(): number for number, Y in enumerate(memory.layouts)}
        return memory
