"""Where centres that stand should move to, and what that would save."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from volition.choices import PlanName
from volition.choices.decision import instead_of_moving
from volition.core.display import Grid, figure, html_sentences, interval, places, text_sentences
from volition.core.validation import FloatArray
from volition.learning.logged import LoggedPlans
from volition.learning.models.terms import TermsModel
from volition.learning.staged import StagedStrategy
from volition.learning.strategy import Strategy
from volition.populations.answers import IntArray

#: answers about the centres as they stand below which no saving has an interval
FEWEST = 200
UNKNOWN = "How sure the saving is cannot be said: {why}. Try the move on a few before all move."


class Proposal(NamedTuple):
    """Centres to move to, and what that is expected to save."""

    centers: FloatArray
    labels: IntArray
    #: cost at the centres as they stand, and at the proposed ones, as the model sees them
    cost_now: float
    cost_then: float
    #: saving with its 95 % interval; the ends are NaN where nothing can be said of them
    saving: float
    low: float
    high: float
    #: what to doubt, in sentences
    doubts: tuple[str, ...] = ()

    @property
    def sure(self) -> bool:
        """Whether the whole interval of the saving is above zero."""
        return self.low > 0

    def __str__(self) -> str:
        known = "" if math.isnan(self.low) else f" ({self.low:.4g} to {self.high:.4g})"
        text = f"Moving saves {self.saving:.4g}{known} of {self.cost_now:.4g} per entity."
        return " ".join([text, *self.doubts])

    def _grids(self) -> tuple[Grid, Grid]:
        saving = (figure(self.saving), interval(self.low, self.high))
        costs = (("as they stand", figure(self.cost_now), "", ""),
                 ("proposed", figure(self.cost_then), *saving))  # fmt: skip
        counts = np.bincount(self.labels[self.labels >= 0], minlength=len(self.centers))
        where, _ = places(self.centers.tolist(), counts=counts.tolist())
        return Grid(("centres", "cost per entity", "saves", "95 % interval"), costs), where

    def __repr__(self) -> str:
        costs, where = self._grids()
        parts = [costs.as_text(), where.as_text(), text_sentences(self.doubts)]
        return "\n\n".join(part for part in parts if part)

    def _repr_html_(self) -> str:
        costs, where = self._grids()
        return f"<div>{costs.as_html()}{where.as_html()}{html_sentences(self.doubts)}</div>"


def propose(strategy: Strategy, make_log: StagedStrategy | None) -> Proposal:
    """Return better centres for what was learned at the centres as they stand.

    Parameters
    ----------
    strategy : Strategy
        What was learned.
    make_log : StagedStrategy or None
        A new strategy for recorded choices, where answers tell choices: they are then treated as a
        log is, with all its checks.
    """
    if isinstance(strategy, StagedStrategy) and make_log is not None:
        here = strategy.memory.at(strategy.centers)
        if isinstance(strategy.responses, TermsModel) and len(here.sure) >= FEWEST:
            return _as_from_a_log(strategy, make_log)
    centers, labels, then = strategy.proposed()
    now = strategy.distortion
    why = "the model has no error bars, or too few answers are about the centres as they stand"
    none = (math.nan, math.nan)
    return Proposal(centers, labels, now, then, now - then, *none, (UNKNOWN.format(why=why),))


def _as_from_a_log(strategy: StagedStrategy, log: StagedStrategy) -> Proposal:
    """Treat the answers about the centres as they stand as a log."""
    entities, memory = strategy.entities, strategy.memory.at(strategy.centers)
    choices, chance = memory.choices(), memory.propensity[memory.sure]
    known = np.concatenate([entities.X, strategy.centers])
    with log.few_threads():
        log.learn_log(choices, np.stack([known.min(0), known.max(0)]))
        assert isinstance(log.responses, TermsModel)
        assert log.responses.fitted is not None
        propensity = chance if np.isfinite(chance).all() else None
        moved = log.centers, log.labels
        plans = LoggedPlans(entities, choices, log.responses.fitted, propensity, moved)
        plans.decide()
        assert plans.decision is not None
        then = plans.saving_of_moving()
    doubts = plans.decision.doubts
    if plans.decision.name != PlanName.MOVED:
        doubts = (*doubts, instead_of_moving(plans.decision.name))
    saving, cost_then = then.saving, then.expected.value
    return Proposal(
        *moved, cost_then + saving.value, cost_then, saving.value, saving.low, saving.high, doubts
    )
