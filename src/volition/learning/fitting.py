"""A fit: ask, be answered, tell, learn, until there is no more to learn; then try the plan."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
import torch

from volition.core.validation import FloatArray
from volition.learning.entities import Entities
from volition.learning.strategy import Stop
from volition.learning.study import Study
from volition.learning.trial import (
    AFTER_SHARE,
    FEWEST,
    FEWEST_TO_CHOOSE,
    LEARNED,
    MOST,
    PLAIN_SHARE,
    UNASKED,
    Plan,
    TrialResult,
    Tried,
    drawn_twice,
    enough_points,
    mean_cost,
    plain_is_cheaper,
    plain_plan,
    reserve,
)
from volition.populations.answers import IntArray, Population, Prescriptions, Response

log = logging.getLogger("volition")
#: batches in a row without a single answer after which a population counts as silent
SILENCE = 20
#: questions of the trial at the end that are asked at a time
TRIED_AT_ONCE = 512
#: share of the largest cost by which costs may be off those of the metric
SLACK = 1e-6
CALLBACK = "ended by on_batch"


class SilentPopulationError(RuntimeError):
    """A population that answers nothing."""


@dataclass
class Fit:
    """A loop of ask, respond, tell and learn.

    Parameters
    ----------
    study : Study
    population : Population
    total : int or None
        Questions in all, the trial at the end included; None for as many as it takes.
    save : callable, optional
        Writes a checkpoint.
    every : float
        Seconds between checkpoints.
    on_batch : callable, optional
        Called after each batch; a true result ends the fit, and a text says why.
    """

    study: Study
    population: Population
    total: int | None = None
    save: Callable[[], Any] | None = None
    every: float = 10.0
    on_batch: Callable[[], Any] | None = None
    #: why the callback has ended the fit
    stopped: str | None = None

    @property
    def _replay(self) -> Callable[[int], tuple[Prescriptions, Response]] | None:
        """A log's way to give its next records; None where questions can be asked."""
        return getattr(self.population, "replay", None)

    def run(self) -> str | Stop:
        """Learn until there is a reason to stop, then try the plan; return the reason.

        Whoever has called this writes the last checkpoint, which says why.
        """
        study, tried = self.study, False
        self._check_size()
        self._share_budget()
        try:
            reason = self._learn()
            if self.stopped is None and self._replay is None and not study.finalized:
                # Whatever stops the trial, a fit that is resumed finalizes and tries from here.
                self._save()
                tried = True
                study.finalize()
                # Centres that stand are not exchanged for others to see what these cost.
                if not study.strategy.held:
                    self._try_plans()
                study.finalized, reason = self.stopped is None, self.stopped or reason
        except BaseException:
            if study.tally.answered and not tried:
                self._save()
            raise
        if not tried:
            early = self.stopped is not None
            # A run that ended early can be resumed as if it had not: nothing is final before.
            if early:
                self._save()
            if not study.finalized:
                study.finalize()
                study.finalized = not early
        tally, why = study.tally, reason.value if isinstance(reason, Stop) else reason
        log.info("%s: %d answers to %d questions; %s", study.name, tally[1], tally[0], why)
        return reason

    def run_some(self, n: int) -> None:
        """Ask n more questions and learn from the answers."""
        self._check_size()
        goal = self.study.tally.asked + n

        def left() -> int:
            return goal - self.study.tally.asked

        self._loop(lambda: None if left() > 0 else Stop.BUDGET, left)
        self.study.finalize(thoroughly=False)

    def _share_budget(self) -> None:
        """Leave a part of the budget for the trial, and prepare the strategy."""
        strategy, asks = self.study.strategy, self._replay is None
        if self.total is not None:
            left = self.total - strategy.begun_at  # another one may have asked before it
            strategy.budget = left - (reserve(left) if asks and not strategy.held else 0)
        if asks and self.study.tally.asked == 0:
            strategy.begin_fit(self.total)

    def _save(self) -> None:
        if self.save is not None:
            self.save()
            log.debug("Checkpoint after %d answers", self.study.tally.answered)

    def _learn(self) -> str | Stop:
        """Ask, tell and learn until the strategy, or the log, has no more to offer."""
        study = self.study
        if self._replay is not None and self.total is None:
            # A log is read to its end: its answers cost nothing more.
            reason = self._loop(lambda: None, lambda: math.inf)
        else:
            reason = self._loop(
                lambda: study.strategy.reason_to_stop(),
                lambda: study.strategy.limit - study.tally.asked,
            )
        asked, answered, _ = study.tally
        if asked and not answered and self.stopped is None:
            raise SilentPopulationError(f"The population answered none of the {asked} questions.")
        return reason

    def _loop(self, stop: Callable[[], str | Stop | None], left: Callable[[], float]) -> str | Stop:
        """Ask, tell and learn until there is a reason to stop; ask no more than are left."""
        study, saved, silent = self.study, monotonic(), 0
        replay = self._replay
        while True:
            if (reason := stop()) is not None:
                return reason
            n = int(min(study.strategy.batch_size, left()))
            if replay is None:
                asked = study.ask(n)
                response = self._answers(asked)
            else:
                asked, response = replay(n)
                if len(asked) == 0:
                    return "the log is at its end"
                study.count_foreign(len(asked))
            silent = 0 if study.tell(asked, response) else silent + 1
            study.learn()
            if silent >= SILENCE:
                raise SilentPopulationError(
                    f"The population answered none of the last {silent * n} questions; what was "
                    "learned before is kept."
                )
            if self.save is not None and monotonic() - saved >= self.every:
                self._save()
                saved = monotonic()
            if self._ended():
                assert self.stopped is not None
                return self.stopped

    def _ended(self) -> bool:
        if self.on_batch is not None and (why := self.on_batch()):
            self.stopped = why if isinstance(why, str) else CALLBACK
        return self.stopped is not None

    def _answers(self, asked: Prescriptions) -> Response:
        study = self.study
        try:
            response = self.population.respond(asked.entities, asked.prescribed, asked.centers)
            if not isinstance(response, Response):
                raise TypeError(f"respond returned {type(response).__name__}, not a Response")
        except Exception as error:
            study.finalize(thoroughly=False)
            raise RuntimeError(
                f"The population failed after {study.tally.answered} answers "
                f"({type(error).__name__}: {error}); what was learned before is kept."
            ) from error
        return response

    def _check_size(self) -> None:
        """Raise if the population says that it has another number of entities."""
        mine = len(self.study.entities)
        theirs = getattr(self.population, "n_entities", mine)
        if theirs != mine:
            raise ValueError(
                f"The population has {theirs} entities, the learner {mine}; both must number the "
                "same ones (add_entities exists on both)."
            )

    # -- the trial at the end ---------------------------------------------------------------------

    def _try_plans(self) -> None:
        """Ask what the learned plan costs, and the plain one; keep the cheaper.

        What the plain plan costs is asked again once it is chosen: the answers by which it was
        chosen are those in which it happened to be cheap. It is dropped if all its answers together
        do not show that it is the cheaper one.
        """
        study, entities = self.study, self.study.entities
        strategy, K = study.strategy, study.strategy.n_clusters
        n = UNASKED if self.total is None else min(MOST, self.total - study.tally.asked)
        if n < FEWEST:
            return
        seed, believed = int(strategy.rng.integers(2**31)), strategy.distortion
        learned = Plan(LEARNED, strategy.centers.copy(), strategy.labels.copy())
        few, after = int(PLAIN_SHARE * n), int(AFTER_SHARE * n)
        answering = study.tally.answered / max(1, study.tally.asked)
        if few * answering < FEWEST_TO_CHOOSE or not enough_points(entities.X, entities.weight, K):
            few = after = 0
        who, again = self._drawn(n - few)
        first = len(who) - after
        paid = self._asked_about(learned, who[:first])
        tried = [self._tried(entities, learned, who[:first], paid, 0 if after else again)]
        kept = learned
        if few and self._goes_on(entities):
            plain = plain_plan(entities.X, entities.weight, entities.cost, K, seed)
            seen, some, costs = self._try(plain, few)
            tried.append(seen)
            if not self._goes_on(entities):
                pass
            elif plain_is_cheaper(believed, tried[0], seen, other := self._believed(plain)):
                seen, more, later = self._try(plain, after)
                both = np.concatenate([some, more]), np.concatenate([costs, later])
                all_in_all = self._tried(entities, plain, *both, 0)
                if plain_is_cheaper(believed, tried[0], all_in_all, other):
                    kept = plain
                if not math.isnan(seen.error):
                    tried[1] = seen
            else:
                paid = np.concatenate([paid, self._asked_about(learned, who[first:])])
                tried[0] = self._tried(entities, learned, who, paid, again)
        if study.entities is not entities:  # some have come or left: it is another plan
            if self.stopped is None:
                self._try_plans()
            return
        trial = TrialResult(tuple(tried), kept.name, believed)
        if kept is learned:
            study.trial = trial
        else:
            study.adopt_plan(kept, tried[1].estimate.value, trial)
        monitor = study.strategy.monitor
        monitor.mark = monitor.n_costs  # what comes later is compared with the trial
        study.note()

    def _drawn(self, n: int) -> tuple[IntArray, int]:
        """Return whom to ask in the trial, and how many come again at the end."""
        weight = self.study.entities.weight
        return drawn_twice(self.study.strategy.draw_entities(n), weight / weight.sum())

    def _try(self, plan: Plan, n: int) -> tuple[Tried, IntArray, FloatArray]:
        """Ask n questions about a plan; return what it has cost, who was asked, and each cost."""
        entities, (who, again) = self.study.entities, self._drawn(n)
        paid = self._asked_about(plan, who)
        return self._tried(entities, plan, who, paid, again), who, paid

    def _goes_on(self, entities: Entities) -> bool:
        """Whether the trial was not stopped, and the entities are still the same."""
        return self.stopped is None and self.study.entities is entities

    def _believed(self, plan: Plan) -> float:
        """Return what the model expects a plan to cost; NaN if it knows only its own centres."""
        strategy, weight = self.study.strategy, self.study.entities.weight
        if strategy.model is None:
            return math.nan
        total = 0.0
        for rows, expected in strategy.expected_here(plan.centers):
            total += float(weight[rows] @ expected[np.arange(len(rows)), plan.labels[rows]])
        return total / float(weight.sum())

    def _asked_about(self, plan: Plan, who: IntArray) -> FloatArray:
        """Ask about a plan; return what answers cost, NaN where none came."""
        study, entities = self.study, self.study.entities
        paid = np.full(len(who), math.nan)
        for lo in range(0, len(who), TRIED_AT_ONCE):
            some = who[lo : lo + TRIED_AT_ONCE]
            each = (len(some), *plan.centers.shape)
            shape = each if study.strategy.own_centers else plan.centers.shape
            shown = np.broadcast_to(plan.centers, shape).copy()
            answer = self._answers(Prescriptions(some, plan.labels[some], shown))
            paid[lo : lo + len(some)] = self._paid(some, answer, plan)
            study.count_foreign(len(some))
            if self._ended() or study.entities is not entities:
                break
        study.count_foreign(0, int(np.isfinite(paid).sum()))
        return paid

    def _tried(
        self, entities: Entities, plan: Plan, who: IntArray, paid: FloatArray, again: int
    ) -> Tried:
        """Return what a plan has cost."""
        shares = entities.weight / entities.weight.sum()
        x, y = torch.from_numpy(entities.X), torch.from_numpy(plan.centers)
        with torch.no_grad():
            obeying = entities.cost.each(x, y[torch.from_numpy(plan.labels.clip(0))][:, None])
        control = obeying[:, 0].numpy()
        seen = mean_cost(
            paid, control[who], float(shares @ control), who, shares, again,
            self._bounds(plan, who, paid),
        )  # fmt: skip
        here = np.isfinite(paid)
        return Tried(plan.name, *seen, float(paid[here].std()) if here.any() else math.nan)

    def _bounds(self, plan: Plan, who: IntArray, paid: FloatArray) -> tuple[float, float] | None:
        """Return the least and the most that answers can cost, on average; None if not known."""
        D = self.study.entities.distances(plan.centers, who)
        low, high, here = D.min(1), D.max(1), np.isfinite(paid)
        slack = SLACK * float(high.max())
        if (paid[here] < low[here] - slack).any() or (paid[here] > high[here] + slack).any():
            return None  # costs are not those of the metric
        return float(low.mean()), float(high.mean())

    def _paid(self, who: IntArray, answer: Response, plan: Plan) -> FloatArray:
        """Return what answers cost; by the metric where only the choice was told."""
        cost, used = answer.cost.copy(), answer.realized
        if used is None or not self.study.strategy.metric_holds:
            return cost
        rows = np.flatnonzero(np.isnan(cost) & (used >= 0))
        if len(rows):
            cost[rows] = self.study.entities.distances(plan.centers, who[rows])[
                np.arange(len(rows)), used[rows]
            ]
        return cost
