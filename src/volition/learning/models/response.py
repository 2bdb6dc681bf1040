"""What every model of responses can do for a strategy that asks in stages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from volition.core.autonomy import Autonomy
from volition.core.validation import FloatArray
from volition.learning.entities import Entities
from volition.learning.memory import Memory
from volition.learning.searching import Finder

#: answers of the first stage
FIRST = 2000


class ResponseModel(ABC):
    """How entities respond, at any centres, as far as it was learned.

    `fit` learns from all answers; `autonomy` is what is believed then; `search` finds centres on
    it. Arrays are replaced, never changed in place.
    """

    #: questions about one set of centres
    per_layout = 64
    #: what is learned, as users name it
    head: str
    #: whether it learns what being served costs, instead of trusting the metric
    learns_costs = False
    #: whether it was learned from a log, and from nothing else
    from_log = False
    #: mean loss of the answers, for the history
    loss = float("nan")

    @abstractmethod
    def fit(self, memory: Memory, entities: Entities, stage: int, rng: np.random.Generator) -> None:
        """Learn from all answers."""

    @property
    @abstractmethod
    def autonomy(self) -> Autonomy | None:
        """What is believed of these entities; None before the first fit."""

    @abstractmethod
    def search(self, finder: Finder) -> FloatArray:
        """Return the best centres."""

    @property
    def trained(self) -> Any:
        """The network as trained so far, where there is one."""
        return None

    @property
    def judge(self) -> Autonomy | None:
        """The model by which centres are compared."""
        return self.autonomy

    @abstractmethod
    def for_others(self, n: int, covariates: FloatArray | None) -> Autonomy | None:
        """Return what is believed of n entities that never answered."""

    def admit(self, entities: Entities, first: int) -> None:
        """Take in that there are more entities, from number ``first`` on."""

    def goal(self, stage: int, budget: int | None) -> int:
        """Return how many answers a stage waits for."""
        return first_goal(budget) if stage == 0 else FIRST * 2**stage

    def forget(self) -> None:
        """Behaviour has changed: what was learned no longer holds."""

    @abstractmethod
    def copied(self) -> Self:
        """Return a copy on which `fit` can work while this one stays as it is."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what a file needs."""

    @abstractmethod
    def restore(self, state: dict[str, Any], entities: Entities) -> None:
        """Go back to a saved `state`."""


def first_goal(budget: int | None) -> int:
    """Return how many answers the first stage waits for."""
    return FIRST if budget is None else min(FIRST, max(1, int(0.4 * budget)))


def others_like(known: FloatArray, n: int, first: int = 0) -> FloatArray:
    """Return loyalties of n entities: those known, and the mean of all for the others."""
    mean = known.mean() * np.ones((n - first, known.shape[1]))
    return np.concatenate([known[:first], mean])
