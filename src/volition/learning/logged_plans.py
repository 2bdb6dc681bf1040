"""From a log to a plan: which plan the log can answer for, and what each costs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from volition.choices import ChoiceFit, Choices, Extrapolation, Log, PlanCost, PlanName
from volition.choices.checks import Check, check_costs, check_model, cross_costs
from volition.choices.decision import (
    BY_NEARNESS,
    MANY_UNANSWERED,
    Decision,
    bound_to_centers,
    decide,
    doubts_about,
    fixed_prescription_doubts,
    instead_of_moving,
    order_doubts,
    other_readings,
    unanswered_doubts,
)
from volition.choices.extrapolation import measure_extrapolation, never_moved
from volition.choices.plan_costs import compare_plans
from volition.choices.report import log_cautions
from volition.choices.seen_costs import ExpectedCosts, expected_costs, propensities
from volition.choices.statistics import UNKNOWN, Interval
from volition.core.deadline import NEVER, Deadline
from volition.core.validation import FloatArray, check_centers
from volition.learning.entities import Entities
from volition.learning.trial import Plan
from volition.populations.answers import IntArray
from volition.solvers import Status
from volition.solvers.search import Search

#: a sentence is due where fewer entities than this carry so much of the weight
FEW_HEAVY, MOST_WEIGHT = 10, 0.9
IGNORED_OUT_OF_TIME = (
    "The time budget ended the search for centres that ignore autonomy, so what ignoring it costs "
    "may be overstated."
)

#: centres and prescriptions, by name
Plans = dict[str, tuple[Any, Any]]


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
        self.cost = UNKNOWN
        self._said: list[str] | None = None
        self._readings: list[ChoiceFit] | None = None
        self._guesses = False  # whether nothing can be said of centres that move
        self._costs: ExpectedCosts | None = None
        # Why a log without propensities does not tell those, if so.
        self._unjudged: list[str] = []
        if propensity is None:
            self._unjudged = fixed_prescription_doubts(entities.X, choices, entities.cost)

    @property
    def today(self) -> FloatArray:
        """The centres at the end of the log."""
        result: FloatArray = self.choices.layouts[-1]
        return result

    @property
    def _silent(self) -> bool:
        """Whether so many rows have no answer that nothing can be judged."""
        return self.unanswered >= MANY_UNANSWERED

    def decide(self) -> tuple[Plan, float | None]:
        """Check the model against the log; return the plan that can be answered for.

        And what it costs, where that is not what the model says.
        """
        entities, choices, fit, log = self.entities, self.choices, self.fit, self.log()
        self._costs = cross_costs(fit, entities.X, choices, entities.cost)
        plans = self._plans_at_today()
        known = None if self._unjudged else log.propensity
        self.checks = check_model(fit, entities.X, choices, entities.cost, known)
        if known is not None:
            named = {"nearest": PlanName.NEAREST, "best": PlanName.BEST}
            labels = {f"the {word} prescribed": plans[name][1] for word, name in named.items()}
            self.checks += check_costs(log, self._costs, labels)
        self.checks.sort(key=lambda check: check.p_value)
        beyond = measure_extrapolation(fit, log, *self.moved)
        unanswered = unanswered_doubts(self.unanswered)
        doubts = [*unanswered * self._silent, *self._unjudged]
        doubts += doubts_about(self.checks, beyond, len(choices.entities))
        self._guesses = bool(doubts) or bound_to_centers(fit, choices, entities.cost)
        today: Plans = {PlanName.TODAY: (self.today, None)}
        rows = self._compared(log, {**today, **plans, PlanName.MOVED: self.moved})
        liked = bool(fit.likings) and never_moved(choices, entities.cost)
        notes = unanswered * (not self._silent)
        if self.propensity is None and choices.n_clusters > 1 and not self._unjudged:
            notes = [*notes, BY_NEARNESS]
        decision = decide(rows, doubts, log.only_rank(), liked)
        self.decision = decision._replace(notes=tuple(notes))
        name = self.decision.name
        self.cost = next(row for row in rows if row.name == name).expected
        if name == PlanName.MOVED:
            return Plan(name, *self.moved), None
        # The log has tried these.
        labels_then = self._usual() if name == PlanName.TODAY else plans[name][1]
        return Plan(name, np.array(self.today, dtype=np.float64), labels_then), self.cost.value

    def sentences(self) -> list[str]:
        """Return what a user should know of the plan, and of the log."""
        if self._said is None:
            self._said = self._to_say()
        return self._said

    def _to_say(self) -> list[str]:
        assert self.decision is not None
        found = log_cautions(self.entities.X, self.choices, self.entities.cost)
        found += unanswered_doubts(self.unanswered) * (not self._silent)
        found += self.decision.doubts
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
        return found

    def _usual(self) -> IntArray:
        """Return what each entity was prescribed most often, or else the nearest."""
        now = self.choices.take(self.choices.at_last_layout)
        counts = np.zeros((len(self.entities), now.n_clusters))
        np.add.at(counts, (now.entities, now.prescribed), 1)
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

    def _plans_at_today(self) -> Plans:
        """Return the plans that leave the centres where they are."""
        assert self._costs is not None
        nearest = self.entities.problem().labels(self.today)
        return {
            PlanName.NEAREST: (self.today, nearest),
            PlanName.BEST: (self.today, self._costs.mean.argmin(1)),
        }

    def _compared(self, log: Log, plans: Plans, judged: bool = True) -> list[PlanCost]:
        """Return what plans cost; ``judged`` says if propensities are not given by the caller."""
        moves = any(not np.array_equal(Y, self.today) for Y, _ in plans.values())
        asks = not self._guesses and moves
        if asks and self._readings is None:
            given = self.entities.X, log.choices, self.entities.cost, self.entities.covariates
            self._readings = other_readings(self.fit, *given)
        return compare_plans(
            self.fit, log, plans, costs=self._costs, doubtful=self._guesses, silent=self._silent,
            readings=self._readings or () if asks else (),
            order=bool(order_doubts(self.checks)) or (judged and bool(self._unjudged)),
            days=any(check.failed and check.days for check in self.checks),
        )  # fmt: skip

    def compare(
        self, plans: Plans | None = None, propensity: Any = None, deadline: Deadline = NEVER
    ) -> list[PlanCost]:
        """Return what plans cost and save; the first is today's.

        The deadline ends the search for centres that ignore autonomy, with the best so far.
        """
        log = self.log(propensity)
        if plans is None:
            plans = self._usual_plans(deadline)
        else:
            plans = {name: self._checked(str(name), plan) for name, plan in plans.items()}
        return self._compared(
            log, {PlanName.TODAY: (self.today, None), **plans}, propensity is None
        )

    def _checked(self, name: str, plan: Any) -> tuple[Any, Any]:
        """Return centres and prescriptions that somebody gave, or raise.

        Without prescriptions the best ones are meant, and at today's centres those of the log.
        """
        entities, K = self.entities, self.choices.n_clusters
        try:
            centers, labels = plan
        except (TypeError, ValueError):
            raise ValueError(f"plan '{name}' must be a pair of centers and labels.") from None
        centers = check_centers(centers, entities.n_features, f"centers of plan '{name}'")
        if len(centers) != K:
            raise ValueError(f"plan '{name}' has {len(centers)} centres, but the log has {K}.")
        if labels is None:
            if np.array_equal(centers, self.today):
                return centers, None
            expected = expected_costs(self.fit.model, entities.X, entities.cost, centers)
            return centers, expected.mean.argmin(1)
        labels, n = np.asarray(labels), len(entities)
        if labels.shape == (n,) and labels.dtype.kind in "iu":
            right = bool(((labels >= 0) & (labels < K)).all())
        elif labels.shape == (n, K) and labels.dtype.kind in "fiu":
            right = bool((labels >= 0).all() and np.allclose(labels.sum(1), 1))
        else:
            right = False
        if not right:
            raise ValueError(
                f"labels of plan '{name}' must be {n} whole numbers from 0 to {K - 1}, or "
                f"probabilities of shape ({n}, {K}) whose rows sum to 1."
            )
        return centers, labels

    def saving_of_moving(self) -> PlanCost:
        """Return what moving saves against the best prescriptions at today's centres.

        What a live system saves by no longer exploring is no merit of the move.
        """
        best = self._plans_at_today()[PlanName.BEST]
        return self._compared(self.log(), {PlanName.BEST: best, PlanName.MOVED: self.moved})[1]

    def _usual_plans(self, deadline: Deadline) -> Plans:
        obeying, K = self.entities.problem(), self.choices.n_clusters
        search = Search(obeying, K, random_state=np.random.RandomState(0), deadline=deadline)
        result = search.run()
        if result.status is Status.OUT_OF_TIME:
            warnings.warn(IGNORED_OUT_OF_TIME, UserWarning, stacklevel=4)
        ignored = result.centers
        # Numbered as today's are: where clusters have roles, that matters.
        ignored = ignored[linear_sum_assignment(cdist(self.today, ignored))[1]]
        return {
            **self._plans_at_today(),
            PlanName.IGNORED: (ignored, obeying.labels(ignored)),
            PlanName.MOVED: self.moved,
        }

    def extrapolation(self, centers: FloatArray, labels: IntArray) -> Extrapolation:
        """Return how far centres and prescriptions go beyond the log."""
        return measure_extrapolation(self.fit, self.log(), centers, labels)

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
