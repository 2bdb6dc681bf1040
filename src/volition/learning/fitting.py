"""A fit: ask, be answered, tell, learn, until enough is known; then try the learned plan."""

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
from volition.learning.strategy import ROWS
from volition.learning.study import Study
from volition.learning.trial import (
    AFTER_SHARE,
    FEWEST,
    FEWEST_TO_CHOOSE,
    LEARNED,
    MOST,
    PLAIN,
    PLAIN_SHARE,
    UNASKED,
    Plan,
    TrialResult,
    Tried,
    drawn_twice,
    enough_points,
    estimate,
    plain_is_cheaper,
    plain_plan,
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

    def run(self) -> str:
        """Learn until the strategy knows enough, then try its plan; return why it ended.

        Whoever has called this writes the last checkpoint, which says why.
        """
        study, logged, tried = self.study, hasattr(self.population, "replay"), False
        self._check_size()
        try:
            # A log is read to its end: its answers cost nothing more.
            free = logged and self.total is None
            reason = self._learn(_never if free else None)
            if self.stopped is None and not logged and not study.concluded:
                # Whatever stops the trial, a fit that is resumed concludes and tries from here.
                self._save()
                tried = True
                study.conclude()
                # Centres that stand are not exchanged for others to see what these cost.
                if not study.strategy.held:
                    self._try_plans()
                study.concluded, reason = self.stopped is None, self.stopped or reason
        except BaseException:
            if study.tally.answered and not tried:
                self._save()
            raise
        early = self.stopped is not None
        # A run that ended early can be resumed as if it had not: nothing is concluded before.
        if early and not tried:
            self._save()
        if not study.concluded and not tried:
            study.conclude()
            study.concluded = not early
        tally = study.tally
        log.info("%s: %d answers to %d questions; %s", study.name, tally[1], tally[0], reason)
        return reason

    def _save(self) -> None:
        if self.save is not None:
            self.save()
            log.debug("Checkpoint after %d answers", self.study.tally.answered)

    def run_some(self, n: int) -> None:
        """Ask n more questions and learn from the answers."""
        self._check_size()
        goal = self.study.tally.asked + n

        def enough() -> str | None:
            return "as many questions as asked for" if self.study.tally.asked >= goal else None

        self._loop(enough, lambda: goal)
        self.study.conclude(thoroughly=False)

    def _learn(self, enough: Callable[[], str | None] | None) -> str:
        study = self.study
        limit = None if enough is not None else (lambda: study.strategy.limit)
        while True:
            reason = self._loop(enough or (lambda: study.strategy.enough()), limit)
            if self.stopped is not None:
                return reason
            if study.tally.asked and not study.tally.answered:
                raise SilentPopulationError(
                    f"The population answered none of the {study.tally.asked} questions."
                )
            heir = study.strategy.successor(self.total) if enough is None else None
            if heir is None:
                return reason
            log.info("%s goes on with %s", self.study.name, type(heir).__name__)
            study.hand_over(heir)

    def _loop(self, enough: Callable[[], str | None], limit: Callable[[], int] | None) -> str:
        """Ask, tell and learn until enough is known; return why it ended."""
        study, saved, silent = self.study, monotonic(), 0
        replay = getattr(self.population, "replay", None)
        while True:
            if (reason := enough()) is not None:
                return reason
            n = study.strategy.batch_size
            if limit is not None:
                n = min(n, limit() - study.tally.asked)
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
            study.conclude(thoroughly=False)
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
        strategy = study.strategy
        n = UNASKED
        if self.total is not None:
            n = min(MOST, self.total - study.tally.asked)
        if n < FEWEST:
            return None
        K, seed = strategy.n_clusters, int(strategy.rng.integers(2**31))
        learned = Plan(LEARNED, strategy.centers.copy(), strategy.labels.copy())
        believed = strategy.distortion
        few, after = int(PLAIN_SHARE * n), int(AFTER_SHARE * n)
        answering = study.tally.answered / max(1, study.tally.asked)
        if few * answering < FEWEST_TO_CHOOSE or not enough_points(entities.X, entities.weight, K):
            few = after = 0
        shares = entities.weight / entities.weight.sum()
        who, again = drawn_twice(strategy.draw_entities(n - few), shares)
        first = len(who) - after
        paid = self._asked_about(learned, who[:first])
        kept, tried = (
            LEARNED,
            [self._tried(entities, learned, who[:first], paid, 0 if after else again)],
        )
        if few and self._goes_on(entities):
            plain = plain_plan(entities.X, entities.weight, entities.cost, K, seed)
            some, twice = drawn_twice(strategy.draw_entities(few), shares)
            costs = self._asked_about(plain, some)
            tried.append(self._tried(entities, plain, some, costs, twice))
            if not self._goes_on(entities):
                pass
            elif plain_is_cheaper(believed, tried[0], tried[1], other := self._believed(plain)):
                more, twice = drawn_twice(strategy.draw_entities(after), shares)
                later = self._asked_about(plain, more)
                afresh = self._tried(entities, plain, more, later, twice)
                both = np.concatenate([some, more]), np.concatenate([costs, later])
                all_in_all = self._tried(entities, plain, *both, 0)
                if plain_is_cheaper(believed, tried[0], all_in_all, other):
                    kept = PLAIN
                if not math.isnan(afresh.error):
                    tried[1] = afresh
            else:
                paid = np.concatenate([paid, self._asked_about(learned, who[first:])])
                tried[0] = self._tried(entities, learned, who, paid, again)
        if study.entities is not entities:  # some have come or left: it is another plan
            return None if self.stopped else self._try_plans()
        study.trial = TrialResult(tuple(tried), LEARNED, believed)
        if kept == PLAIN:
            trial = TrialResult(tuple(tried), PLAIN, believed)
            study.adopt_plan(plain, tried[1].estimate.value, trial)
        monitor = study.strategy.monitor
        monitor.mark = monitor.n_costs  # what comes later is compared with the trial
        study.note()
        return None

    def _goes_on(self, entities: Entities) -> bool:
        """Whether nobody has stopped the trial, or come or left."""
        return self.stopped is None and self.study.entities is entities

    def _believed(self, plan: Plan) -> float:
        """Return what the model expects a plan to cost; NaN if it knows only its own centres."""
        strategy, entities = self.study.strategy, self.study.entities
        if strategy.model is None:
            return math.nan
        total = 0.0
        for lo in range(0, len(entities.here), ROWS):
            rows = entities.here[lo : lo + ROWS]
            expected = strategy.expected_costs(entities.X[rows], rows, centers=plan.centers)
            total += float(
                entities.weight[rows] @ expected[np.arange(len(rows)), plan.labels[rows]]
            )
        return total / float(entities.weight.sum())

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
        seen = estimate(
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


def _never() -> None:
    return None
