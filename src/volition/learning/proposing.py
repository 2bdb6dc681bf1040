"""Where centres that stand should move to, and what that would save."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from volition.choices import Choices, PlanName
from volition.choices.decision import instead_of_moving
from volition.core.deadline import NEVER, Deadline
from volition.core.display import Grid, figure, html_sentences, interval, places, text_sentences
from volition.core.validation import FloatArray
from volition.learning.logged_plans import LoggedPlans
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
        if isinstance(strategy.responses, TermsModel) and len(here.certain) >= FEWEST:
            return _as_from_a_log(strategy, make_log)
    centers, labels, then = strategy.proposed()
    now = strategy.distortion
    why = "the model has no error bars, or too few answers are about the centres as they stand"
    none = (math.nan, math.nan)
    return Proposal(centers, labels, now, then, now - then, *none, (UNKNOWN.format(why=why),))


def plans_from_log(
    strategy: StagedStrategy, choices: Choices, propensity: FloatArray | None, region: FloatArray,
    unanswered: float = 0.0, deadline: Deadline = NEVER,
) -> LoggedPlans:  # fmt: skip
    """Learn from recorded choices, and put in place the plan that the log can answer for."""
    with strategy.few_threads():
        strategy.learn_log(choices, region, deadline)
        assert isinstance(strategy.responses, TermsModel)
        fitted, moved = strategy.responses.fitted, (strategy.centers, strategy.labels)
        assert fitted is not None
        plans = LoggedPlans(strategy.entities, choices, fitted, propensity, moved, unanswered)
        plan, cost = plans.decide()
        if cost is not None:
            strategy.place(plan.centers)
            strategy.labels, strategy.distortion = plan.labels, cost
    return plans


def _as_from_a_log(strategy: StagedStrategy, log: StagedStrategy) -> Proposal:
    """Treat the answers about the centres as they stand as a log."""
    memory = strategy.memory.at(strategy.centers)
    chance = memory.propensity[memory.certain]
    known = np.concatenate([strategy.entities.X, strategy.centers])
    plans = plans_from_log(
        log, memory.choices(), chance if np.isfinite(chance).all() else None,
        np.stack([known.min(0), known.max(0)]),
    )  # fmt: skip
    assert plans.decision is not None
    with log.few_threads():
        then = plans.saving_of_moving()
    doubts = plans.decision.doubts
    if plans.decision.name != PlanName.MOVED:
        doubts = (*doubts, instead_of_moving(plans.decision.name))
    saving, cost_then = then.saving, then.expected.value
    return Proposal(*plans.moved, cost_then + saving.value, cost_then, *saving[:3], doubts)
