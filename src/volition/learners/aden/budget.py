"""How many answers each stage of ADEN waits for, and how many questions a fit asks."""

from __future__ import annotations

import math

from volition.learners.aden.recipe import Recipe
from volition.learners.staged import FIRST_STAGE, MOST_STAGED, StagedLearner
from volition.validation import FloatArray

#: answers at random layouts after which it is decided whether costs tell the realised cluster
PROBE = 256
#: answers by which replicas that differ are compared, each
JUDGED = 20_000
#: share of a given budget that goes into that
JUDGING = 0.1
#: last answers of a fit of unknown costs, which say what its centres cost: at most, and at least
#: or none
MOST_WATCHED, FEWEST_WATCHED = 1000, 40
#: answers of the first stage with a network of service that was trained elsewhere, and layouts
#: that they are about at least
FIRST_GIVEN, FEWEST_LAYOUTS = 128, 16


class BudgetedLearner(StagedLearner):
    """A learner whose stages depend on what the network estimates, and on what may be asked."""

    head_: str
    _phase: str
    _recipe: Recipe
    _replicas: FloatArray
    _betas: list[float]
    _began_trained: bool
    #: questions after which nothing was asked but what the centres cost
    _watched_from: int | None

    @property
    def _goal(self) -> int:
        """Answers that the present stage waits for."""
        budget = self._budget
        if self._phase == "probe":
            return min(PROBE, budget or PROBE)
        if self._phase == "explore":
            first = FIRST_STAGE
            if self.head_ == "served":
                first = FIRST_GIVEN if self._began_trained else first
                first = min(first, -(-(budget or 3 * first) // 3))
            goal = first * 2**self._stage
            # The last stage takes what would be left for a small one.
            room = self._told + self._until_watched * self._answer_rate
            return math.ceil(room) + 1 if self._told < room < 1.25 * goal else goal
        if self._phase == "judge":
            most = JUDGED * len(self._replicas)
            return most if budget is None else max(1, min(most, int(JUDGING * budget)))
        if budget is None:
            return self._recipe.epochs * self._recipe.n_questions
        judging = JUDGING if self._recipe.replicas > 1 else 0.0
        return max(1, int((1 - judging) * budget) // len(self._betas))

    @property
    def _per_layout(self) -> int:
        """Questions about one set of centres."""
        each = self._recipe.n_samples
        # Few answers are to be about many places.
        small = self.n_interactions != "auto" and int(self.n_interactions) < FIRST_STAGE
        if self.head_ == "served" or (self._phase == "probe" and small):
            each = max(1, min(each, self._goal // FEWEST_LAYOUTS))
        return each

    @property
    def _budget(self) -> int | None:
        """Answers that are asked for in all, if somebody has said so."""
        if self.n_interactions == "auto":
            return None
        # A budget is of questions; some of them are never answered.
        return max(1, math.ceil(int(self._allowed) * self._answer_rate))

    @property
    def _last_questions(self) -> int:
        """Questions at the end of a budget that are about what the centres cost."""
        most = min(MOST_WATCHED, int(JUDGING * self._limit()))
        return most if self.head_ == "served" and most >= FEWEST_WATCHED else 0

    @property
    def _until_watched(self) -> float:
        """Questions until then."""
        last = self._last_questions
        return self._limit() - last - self.n_interactions_ if last else math.inf

    @property
    def _watch_begun(self) -> bool:
        """Whether it has come to that, and not in a run that was resumed with more to ask."""
        began, last = self._watched_from, self._last_questions
        return last > 0 and began is not None and began >= self._limit() - last

    @property
    def _watching(self) -> bool:
        """Whether that is what is to be asked next."""
        left = self.n_interactions_ < self._limit()
        return self._phase == "explore" and self._watch_begun and left

    @property
    def _answer_rate(self) -> float:
        asked = max(1, self.n_interactions_)
        return min(1.0, max(0.05, self.n_answers_ / asked)) if self.n_answers_ else 1.0

    def _batch(self) -> int:
        wanted = max(64, self._goal - self._told)
        if 0 < self._until_watched < wanted:
            wanted = int(self._until_watched)
        return min(self._recipe.n_questions, wanted)

    def _limit(self) -> int:
        if self.n_interactions != "auto":
            return int(self._allowed)
        if self._phase in ("probe", "explore"):
            return MOST_STAGED
        # A little more than the plan needs, and as much more as answers are lost.
        per_beta = self._recipe.epochs * self._recipe.n_questions
        plan = MOST_STAGED + per_beta * len(self._betas) + JUDGED * self._recipe.replicas
        return math.ceil(plan / self._answer_rate)
