"""From a log to a plan: which plan the log can answer for, and what each costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from volition.choices import (
    ChoiceFit,
    Choices,
    cautions,
    check_costs,
    check_model,
    cross_costs,
)
from volition.choices.checks import DAYS, Check
from volition.choices.decision import (
    BEST,
    BY_NEARNESS,
    MANY_SILENT,
    MOVED,
    NEAREST,
    TODAY,
    Decision,
    decide,
    doubts_about,
    instead_of_moving,
    not_drawn_anew,
    of_other_costs,
    order_matters,
    other_readings,
    says_nothing_of_moves,
    silence,
)
from volition.choices.worth import (
    IGNORED,
    NONE,
    ExpectedCosts,
    Interval,
    Log,
    Reach,
    Worth,
    compare,
    n_places,
    narrow,
    never_moved,
    propensities,
    reach,
)
from volition.core.validation import FloatArray
from volition.learning.entities import Entities
from volition.learning.trial import Plan
from volition.populations.answers import IntArray
from volition.solvers.search import Search

#: entities that may carry so much of the weight before a sentence is due
FEW_HEAVY, MOST_WEIGHT = 10, 0.9

Options = dict[str, tuple[Any, Any]]


class LoggedPlans:
    """A fitted model, the log it is of, and the plans that can be compared by both.

    Parameters
    ----------
    entities : Entities
    choices : Choices
        The log's; its last layout is today's.
    fit : ChoiceFit
        The model.
    propensity : array of shape (m,), optional
        Probability of each logged prescription; judged from the log by default.
    moved : tuple of centres and labels
        What the model would do.
    unanswered : float
        Share of rows that had no answer, and are not among the choices.
    """

    def __init__(
        self, entities: Entities, choices: Choices, fit: ChoiceFit, propensity: FloatArray | None,
        moved: tuple[FloatArray, IntArray], unanswered: float = 0.0,
    ) -> None:  # fmt: skip
        self.entities, self.choices, self.fit = entities, choices, fit
        self.propensity, self.moved, self.unanswered = propensity, moved, unanswered
        self.checks: list[Check] = []
        self.decision: Decision | None = None
        #: what the recommended plan costs; NaN as long as nothing is decided
        self.cost = NONE
        self._said: list[str] | None = None
        self._readings: list[ChoiceFit] | None = None
        self._guesses = False  # whether nothing can be said of centres that move
        self._costs: ExpectedCosts | None = None
        # Why a log without propensities does not tell those, if so.
        self._unjudged: list[str] = []
        if propensity is None:
            self._unjudged = not_drawn_anew(entities.X, choices, entities.cost)

    @property
    def today(self) -> FloatArray:
        """The centres at the end of the log."""
        result: FloatArray = self.choices.layouts[-1]
        return result

    def decide(self) -> tuple[Plan, float | None]:
        """Check the model against the log; return the plan that can be answered for.

        And what it costs, where that is not what the model says.
        """
        entities, choices, fit, log = self.entities, self.choices, self.fit, self.log()
        self._costs = cross_costs(fit, entities.X, choices, entities.cost)
        plans = self._plans_at_today()
        known = None if self._unjudged else log.propensity
        checks = check_model(fit, entities.X, choices, entities.cost, known)
        named = {"the nearest prescribed": plans[NEAREST][1], "the best prescribed": plans[BEST][1]}
        if known is not None:
            checks += check_costs(log, self._costs, named)
        self.checks = sorted(checks, key=lambda check: check.p_value)
        far = reach(fit, log, *self.moved)
        doubts = silence(self.unanswered) if self._silent else []
        doubts += [*self._unjudged, *doubts_about(self.checks, far, len(choices.entities))]
        self._guesses = bool(doubts) or says_nothing_of_moves(fit, choices, entities.cost)
        rows = self._compared(log, {TODAY: (self.today, None), **plans, MOVED: self.moved})
        liked = bool(n_places(fit)) and never_moved(choices, entities.cost)
        decision = decide(rows, doubts, narrow(log), liked)
        self.decision = decision._replace(notes=tuple(self._notes()))
        name = self.decision.name
        self.cost = next(row for row in rows if row.name == name).expected
        if name == MOVED:
            return Plan(name, *self.moved), None
        # The log has tried these.
        labels = self._usual() if name == TODAY else plans[name][1]
        return Plan(name, np.array(self.today, dtype=np.float64), labels), self.cost.value

    @property
    def _silent(self) -> bool:
        """Whether so many rows have no answer that nothing can be judged."""
        return self.unanswered >= MANY_SILENT

    def _notes(self) -> list[str]:
        """Return what the figures take for granted."""
        found = [] if self._silent else silence(self.unanswered)
        told = self.propensity is None and self.choices.n_clusters > 1 and not self._unjudged
        return [*found, BY_NEARNESS] if told else found

    def sentences(self) -> list[str]:
        """Return what a user should know of the plan, and of the log."""
        if self._said is None:
            self._said = self._to_say()
        return self._said

    def _to_say(self) -> list[str]:
        assert self.decision is not None
        found = [*(silence(self.unanswered) if not self._silent else []), *self.decision.doubts]
        if self.decision.doubts:
            found.append(instead_of_moving(self.decision.name))
        weight = self.entities.weight
        heavy = np.sort(weight)[::-1] / weight.sum()
        few = int(np.searchsorted(np.cumsum(heavy), MOST_WEIGHT)) + 1
        if few < FEW_HEAVY and len(heavy) > FEW_HEAVY:
            found.append(
                f"{few} of {len(heavy)} entities carry {MOST_WEIGHT:.0%} of the weight: costs are "
                "theirs, not everybody's."
            )
        log = cautions(self.fit, self.entities.X, self.choices, self.entities.cost)
        return [*log, *found]

    def _usual(self) -> IntArray:
        """Return what each entity was prescribed most often, or else the nearest."""
        choices = self.choices
        now = choices.layout == len(choices.layouts) - 1
        counts = np.zeros((len(self.entities), choices.n_clusters))
        np.add.at(counts, (choices.entities[now], choices.prescribed[now]), 1)
        nearest = self.entities.problem().labels(self.today)
        return np.where(counts.any(1), counts.argmax(1), nearest)

    def log(self, propensity: Any = None) -> Log:
        """Return the log with its propensities, checked."""
        entities, choices = self.entities, self.choices
        if propensity is None:
            propensity = self.propensity
        if propensity is None:
            propensity = propensities(entities.X, choices, entities.cost)
        propensity = np.asarray(propensity, dtype=np.float64)
        if propensity.shape != choices.entities.shape:
            raise ValueError(
                f"propensity must have one number for each of the {len(choices.entities)} rows of "
                f"the log, got shape {propensity.shape}."
            )
        bad = np.flatnonzero(~((propensity > 0) & (propensity <= 1)))
        if len(bad):
            raise ValueError(
                f"propensity is {propensity[bad[0]]:g} at row {bad[0]}; what was prescribed had a "
                "probability above 0, and at most 1."
            )
        return Log(entities.X, entities.cost, entities.weight, choices, propensity)

    def _plans_at_today(self) -> Options:
        """Return the plans that leave the centres where they are."""
        assert self._costs is not None
        nearest = self.entities.problem().labels(self.today)
        return {
            NEAREST: (self.today, nearest),
            BEST: (self.today, self._costs.mean.argmin(1)),
        }

    def _compared(self, log: Log, options: Options, judged: bool = True) -> list[Worth]:
        """Return what options cost; ``judged`` says if propensities are not given by the caller."""
        readings: list[ChoiceFit] = []
        moves = any(not np.array_equal(Y, self.today) for Y, _ in options.values())
        if not self._guesses and moves:
            if self._readings is None:
                entities = self.entities
                given = (entities.X, log.choices, entities.cost, entities.covariates)
                self._readings = other_readings(self.fit, *given) + of_other_costs(self.fit, *given)
            readings = self._readings
        return compare(
            self.fit, log, options, costs=self._costs, readings=readings, doubtful=self._guesses,
            order=bool(order_matters(self.checks)) or (judged and bool(self._unjudged)),
            days=any(check.failed and check.name == DAYS for check in self.checks),
            silent=self._silent,
        )  # fmt: skip

    def worth(self, options: Options | None = None, propensity: Any = None) -> list[Worth]:
        """Return what centres and prescriptions cost and save; the first is today's."""
        log = self.log(propensity)
        options = self._usual_options() if options is None else options
        return self._compared(log, {TODAY: (self.today, None), **options}, propensity is None)

    def saving_of_moving(self) -> Worth:
        """Return what moving saves against the best prescriptions at today's centres.

        What a live system saves by no longer exploring is no merit of the move.
        """
        best = self._plans_at_today()[BEST]
        return self._compared(self.log(), {BEST: best, MOVED: self.moved})[1]

    def _usual_options(self) -> Options:
        obeying, K = self.entities.problem(), self.choices.n_clusters
        ignored = Search(obeying, K, random_state=np.random.RandomState(0)).run().centers
        # Numbered as today's are: where clusters have roles, that matters.
        ignored = ignored[linear_sum_assignment(cdist(self.today, ignored))[1]]
        return {
            **self._plans_at_today(),
            IGNORED: (ignored, obeying.labels(ignored)),
            MOVED: self.moved,
        }

    def reach(self, centers: FloatArray, labels: IntArray) -> Reach:
        """Return how far centres and prescriptions go beyond what was observed."""
        return reach(self.fit, self.log(), centers, labels)

    def state(self) -> dict[str, Any]:
        """Return what a file needs beside the entities, the choices and the fit."""
        return {
            "propensity": self.propensity,
            "moved": list(self.moved),
            "checks": self.checks,
            "decision": self.decision,
            "cost": list(self.cost),
            "guesses": self._guesses,
            "costs": self._costs,
            "unanswered": self.unanswered,
        }

    @classmethod
    def from_state(
        cls, state: dict[str, Any], entities: Entities, choices: Choices, fit: ChoiceFit
    ) -> LoggedPlans:
        """Return the plans that `state` describes."""
        centers, labels = state["moved"]
        given = state["propensity"], (centers, labels), state["unanswered"]
        plans = cls(entities, choices, fit, *given)
        plans.checks, plans.decision = state["checks"], state["decision"]
        plans._guesses, plans._costs = state["guesses"], state["costs"]
        plans.cost = Interval(*state["cost"])
        return plans
