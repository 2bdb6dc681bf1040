"""A fit: ask, be answered, tell, learn, until enough is known; then try the learned plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
import torch

from volition.learning.study import Study
from volition.learning.trial import (
    FEWEST,
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
from volition.population import IntArray, Population, Prescriptions, Response
from volition.validation import FloatArray

#: batches in a row without a single answer after which a population counts as silent
SILENCE = 20
#: questions of the trial at the end that are asked at a time
TRIED_AT_ONCE = 512
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
        return reason

    def _save(self) -> None:
        if self.save is not None:
            self.save()

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
        """Ask what the learned plan costs, and the plain one; keep the cheaper."""
        study, entities = self.study, self.study.entities
        strategy = study.strategy
        n = UNASKED
        if self.total is not None:
            n = min(MOST, self.total - study.tally.asked)
        if n < FEWEST:
            return None
        K, seed, few = strategy.n_clusters, int(strategy.rng.integers(2**31)), int(PLAIN_SHARE * n)
        plans = [(Plan(LEARNED, strategy.centers.copy(), strategy.labels.copy()), n)]
        if few >= FEWEST and enough_points(entities.X, entities.weight, K):
            plain = plain_plan(entities.X, entities.weight, entities.cost, K, seed)
            plans = [(plans[0][0], n - few), (plain, few)]
        believed, tried = strategy.distortion, []
        for plan, m in plans:
            if self.stopped is None and study.entities is entities:
                tried.append(self._tried(plan, m))
        if study.entities is not entities:  # some have come or left: it is another plan
            return None if self.stopped else self._try_plans()
        study.trial = TrialResult(tuple(tried), LEARNED, believed)
        if len(tried) > 1 and plain_is_cheaper(believed, *tried):
            kept = TrialResult(tuple(tried), PLAIN, believed)
            study.adopt_plan(plain, tried[1].estimate.value, kept)
        study.strategy.monitor.stale = True  # what comes later is compared with the trial
        study.note()
        return None

    def _tried(self, plan: Plan, n: int) -> Tried:
        """Ask about a plan; return what it has cost."""
        study, entities = self.study, self.study.entities
        shares = entities.weight / entities.weight.sum()
        who, again = drawn_twice(study.strategy.draw_entities(n), shares)
        paid = np.full(n, math.nan)
        for lo in range(0, n, TRIED_AT_ONCE):
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
        x, y = torch.from_numpy(entities.X), torch.from_numpy(plan.centers)
        with torch.no_grad():
            obeying = entities.cost.each(x, y[torch.from_numpy(plan.labels.clip(0))][:, None])
        control = obeying[:, 0].numpy()
        seen = estimate(paid, control[who], float(shares @ control), who, shares, again)
        return Tried(plan.name, *seen)

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
