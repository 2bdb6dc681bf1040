"""All answers of a study: who was told what, at which centres, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from volition.choices import Choices
from volition.core.validation import FloatArray
from volition.io.serialization import registered
from volition.learning.entities import Entities
from volition.learning.strategy import Answers
from volition.populations.answers import IntArray

#: by how much a cost may differ from a distance and still be it, as a share
EXACT = 1e-6


@registered
@dataclass(frozen=True)
class Memory:
    """Answers in the order in which they came, with the sets of centres they are about.

    A cost usually tells which cluster was used: it is the distance to one of the centres. So an
    answer has, beside the cluster that was told or -1, the `candidates`. Nothing is changed in
    place: `added` returns another object.
    """

    entities: IntArray
    prescribed: IntArray
    #: cluster that was used; -1 where that was not told
    realized: IntArray
    #: NaN where that was not told
    cost: FloatArray
    #: number of the set of centres
    layout: IntArray
    #: how likely each prescription was; NaN where that is not known
    propensity: FloatArray
    #: whether the cost is that of each centre by the known metric, (m, K)
    matches: np.ndarray
    #: sets of centres, (L, K, d)
    layouts: FloatArray
    #: a cost of the usual size; costs closer than a millionth of it are the same
    cost_unit: float

    @classmethod
    def of_choices(cls, choices: Choices, cost_unit: float) -> Memory:
        """Return a memory of recorded choices, whose costs are those of the metric."""
        who, told, used, layout, layouts = choices
        m, unknown = len(who), np.full(len(who), np.nan)
        matches = np.zeros((m, choices.n_clusters), dtype=bool)
        given = np.asarray(layouts)
        return cls(who, told, used, unknown, layout, unknown, matches, given, cost_unit)

    @classmethod
    def empty(cls, n_clusters: int, n_features: int, cost_unit: float) -> Memory:
        """Return a memory of nothing."""
        none = np.zeros(0, dtype=np.int64)
        layouts = np.zeros((0, n_clusters, n_features))
        return cls.of_choices(Choices(none, none, none, none, layouts), cost_unit)

    def __len__(self) -> int:
        return len(self.cost)

    @cached_property
    def _numbers(self) -> dict[bytes, int]:
        return {Y.tobytes(): number for number, Y in enumerate(self.layouts)}

    def added(self, answers: Answers, entities: Entities) -> Memory:
        """Return these answers and some more."""
        Y = np.array(answers.sets)  # a view of it could not be written to
        first = np.concatenate([[True], (Y[1:] != Y[:-1]).any((1, 2))])
        numbers, new = dict(self._numbers), list[FloatArray]()
        for one in Y[first]:
            if one.tobytes() not in numbers:
                numbers[one.tobytes()] = len(self.layouts) + len(new)
                new.append(one)
        layout = np.array([numbers[one.tobytes()] for one in Y[first]])
        x = torch.from_numpy(entities.X[answers.asked.entities])
        with torch.no_grad():
            D = entities.cost.each(x, torch.from_numpy(Y)).numpy()
        cost = answers.cost[:, None]
        more = {
            "entities": answers.asked.entities,
            "prescribed": answers.asked.prescribed,
            "realized": answers.realized,
            "cost": answers.cost,
            "layout": layout[np.cumsum(first) - 1],
            "propensity": answers.asked.propensity,
            "matches": np.abs(cost - D) <= EXACT * (self.cost_unit + np.abs(cost)),
            "layouts": np.array(new).reshape(-1, *self.layouts.shape[1:]),
        }
        joined = {name: np.concatenate([getattr(self, name), more[name]]) for name in more}
        return Memory(**joined, cost_unit=self.cost_unit)

    def take(self, rows: Any) -> Memory:
        """Return some of the answers."""
        names = ("entities", "prescribed", "realized", "cost", "layout", "propensity", "matches")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def latest(self, m: int) -> Memory:
        """Return the last answers alone."""
        return self.take(slice(max(0, len(self) - m), None))

    def at(self, centers: FloatArray) -> Memory:
        """Return the answers about these centres alone."""
        number = self._numbers.get(centers.tobytes(), -1)
        found = self.take(self.layout == number)
        return replace(found, layout=np.zeros_like(found.layout), layouts=centers[None].copy())

    # -- what answers tell ------------------------------------------------------------------------

    @property
    def candidates(self) -> np.ndarray:
        """Which clusters may have been used, (m, K): the one that was told, or those that match."""
        told = self.realized[:, None] == np.arange(self.matches.shape[1])
        return np.where(self.realized[:, None] >= 0, told, self.matches)

    @property
    def certain(self) -> IntArray:
        """Rows that tell which cluster was used."""
        return np.flatnonzero(self.candidates.sum(1) == 1)

    def choices(self) -> Choices:
        """Return the answers that tell which cluster was used."""
        rows = self.certain
        used = self.candidates[rows].argmax(1)
        return Choices(
            self.entities[rows], self.prescribed[rows], used, self.layout[rows], self.layouts
        )

    @property
    def share_explained(self) -> float:
        """Share of costs that are those of a centre by the known metric, of the one told if so."""
        told = np.isfinite(self.cost)
        if not told.any():
            return 1.0
        explained = (self.matches & self.candidates).any(1)
        return float(explained[told].mean())

    @property
    def share_decoded(self) -> float:
        """Share of answers that tell, or whose cost tells, which clusters may have been used."""
        return float(self.candidates.any(1).mean()) if len(self) else 1.0

    @property
    def share_negative(self) -> float:
        """Share of costs below zero."""
        told = np.isfinite(self.cost)
        return float((self.cost[told] < 0).mean()) if told.any() else 0.0
