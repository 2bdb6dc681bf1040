"""`ChoiceClustering`: learn from the clusters that entities realise, asked or logged."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from volition.choices import (
    ChoiceFit,
    Choices,
    Extrapolation,
    PlanName,
    check_family,
)
from volition.choices.checks import Check
from volition.choices.comparison import Comparison
from volition.choices.decision import Decision
from volition.core.deadline import Deadline, check_time_budget
from volition.core.messages import DataWarning
from volition.core.validation import FloatArray, check_centers, check_scalar
from volition.estimators.display import Summary, cost_in_words, cost_unit
from volition.estimators.given_network import resolve_network
from volition.estimators.learner import Learner, UnreliableWarning
from volition.io.records import LogOptions, read_records
from volition.learning.entities import Entities
from volition.learning.logged_plans import LoggedPlans
from volition.learning.models.terms import TermsModel
from volition.learning.networks.network import ADENetwork
from volition.learning.proposing import plans_from_log
from volition.learning.staged import StagedStrategy, choice_strategy
from volition.learning.study import Study

#: costs in a log lie below this, and the largest above its inverse: variances of squares are needed
LARGEST_COST = 1e60


class ChoiceClustering(Learner):
    """Learn how entities choose, and place centres by what was learned.

    Choices at past centres stay useful after the centres move, because the model says how choices
    depend on them. A few thousand answers usually suffice. Costs that the metric does not explain
    are learned as well.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of centres.
    metric : str, Cost or callable, default="sqeuclidean"
        Cost of being served.
    family : {"auto", "distance"} or (stay terms, away terms), default="auto"
        What choices may depend on; see `volition.choices.fit_choices`. By default terms are added
        as long as choices that were held out become clearly more likely.
    network : bool, path or ADENetwork, default=True
        Whether a network may take over where terms do not suffice, or a network of choices to start
        from, as in `ADENClustering`. It takes over with ``family="auto"`` and no
        covariates, and only if choices that were held out become clearly more likely. A log that is
        given to `fit_log` is explained by terms alone, because error bars need them.
    n_interactions : int or "auto", default="auto"
        Questions that a fit may ask. By default until the centres no longer improve by more than
        ``tol``, at most 50,000.
    tol : float, default=0.001
        See there.
    exploration : float, default=0.3
        Share of prescriptions drawn blindly while learning.
    random_state : int, Generator or None
        Seed.

    Attributes
    ----------
    stop_reason_ : str or None
        Why the last fit ended; None before.
    center_names_ : list of str or None
        Names of the centres, where a log was given with names or numbered from 1. All other
        results are properties, described below.

    Examples
    --------
    >>> from volition import ChoiceClustering, DistanceAutonomy, SimulatedPopulation
    >>> from volition.datasets import load_four_groups
    >>> X = load_four_groups().data
    >>> people = SimulatedPopulation(X, DistanceAutonomy(0.3, temperature=0.01), random_state=0)
    >>> model = ChoiceClustering(4, n_interactions=2000, random_state=0).fit(X, population=people)
    >>> model.model_
    ChoiceAutonomy(stay=['constant'], away=['pair'])
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        metric: Any = "sqeuclidean",
        family: Any = "auto",
        network: Any = True,
        n_interactions: int | str = "auto",
        tol: float = 1e-3,
        exploration: float = 0.3,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.metric = metric
        self.family = family
        self.network = network
        self.n_interactions = n_interactions
        self.tol = tol
        self.exploration = exploration
        self.random_state = random_state

    def _check_params(self) -> None:
        super()._check_params()
        check_scalar(self.exploration, "exploration", 0, 1)
        check_family(self.family)

    def _strategy(
        self, entities: Entities, rng: np.random.Generator, from_log: bool = False
    ) -> StagedStrategy:
        allowed, given = self._network(entities.n_features)
        return choice_strategy(
            entities, self.n_clusters, rng, family=self.family, network=allowed, given=given,
            tol=self.tol, exploration=self.exploration, from_log=from_log,
        )  # fmt: skip

    def _strategy_named(
        self, name: str, entities: Entities, rng: np.random.Generator
    ) -> StagedStrategy:
        # A state that is being restored has a network of its own.
        return choice_strategy(
            entities, self.n_clusters, rng, family=self.family, network=self.network is not False,
            tol=self.tol, exploration=self.exploration,
        )  # fmt: skip

    def _network(self, n_features: int) -> tuple[bool, ADENetwork | None]:
        """Return whether a network may take over, and the one to start from."""
        if isinstance(self.network, bool):
            return self.network, None
        given = resolve_network(self.network, n_features)
        if given.head != "choices":
            raise ValueError(f"network must be one of choices, got one of {given.head}.")
        return True, given

    def _for_log(self, entities: Entities) -> StagedStrategy:
        return self._strategy(entities, np.random.default_rng(0), from_log=True)

    def _identity(self) -> dict[str, Any]:
        return {"family": self.family}

    def _begin(self, study: Study, stop_reason: str | None = None) -> None:
        super()._begin(study, stop_reason)
        self._of_log: LoggedPlans | None = None
        self.center_names_: list[str] | None = None

    def _extra_state(self) -> dict[str, Any]:
        plans = None if self._plans is None else self._plans.state()
        return {"center_names": self.center_names_, "plans": plans}

    def _restore_extra(self, state: dict[str, Any]) -> None:
        self.center_names_ = state["center_names"]
        if state["plans"] is not None and self.fit_ is not None:
            given = self._study.entities, self.choices_, self.fit_
            self._of_log = LoggedPlans.from_state(state["plans"], *given)

    @property
    def _terms(self) -> TermsModel | None:
        strategy = self._begun().strategy
        responses = strategy.responses if isinstance(strategy, StagedStrategy) else None
        return responses if isinstance(responses, TermsModel) else None

    @property
    def _plans(self) -> LoggedPlans | None:
        """What the log supports, as long as nothing else was learned from."""
        terms = self._terms
        return self._of_log if terms is not None and terms.from_log else None

    @property
    def fit_(self) -> ChoiceFit | None:
        """The fitted terms with their covariances, and all that were tried."""
        terms = self._terms
        return None if terms is None else terms.fitted

    @property
    def choices_(self) -> Choices:
        """All choices that were observed."""
        strategy = self._begun().strategy
        assert isinstance(strategy, StagedStrategy)
        return strategy.memory.choices()

    @property
    def covariate_names_(self) -> list[str] | None:
        """Names of the columns of covariates, ``kind=van`` for text; None without names."""
        coding = self._begun().entities.coding
        return None if coding is None else coding.names

    @property
    def decision_(self) -> Decision | None:
        """After `fit_log`: which plan this is, why, what to doubt, what is taken for granted."""
        return None if self._plans is None else self._plans.decision

    @property
    def checks_(self) -> list[Check]:
        """After `fit_log`: how the model compares with the log, the most surprising first."""
        return [] if self._plans is None else self._plans.checks

    def _doubts(self) -> list[str]:
        plans = self._plans
        return super()._doubts() if plans is None else plans.sentences()

    def _summary(self) -> Summary | None:
        found = super()._summary()
        plans = self._plans if found is not None else None
        if found is None or plans is None or plans.decision is None:
            return found
        more = (
            ("recommended", plans.decision.name),
            ("cost per entity", cost_in_words(plans.cost[0], cost_unit(self), *plans.cost[1:])),
        )
        return found._replace(facts=(*found.facts, *more))

    def _prescribes_nearest(self) -> bool:
        usual = (PlanName.TODAY, PlanName.NEAREST)
        decision = self.decision_
        return (decision is not None and decision.name in usual) or super()._prescribes_nearest()

    # -- from a log -------------------------------------------------------------------------------

    def fit_log(
        self,
        X: Any,
        log: Any,
        centers: Any,
        *,
        sample_weight: Any = None,
        covariates: Any = None,
        entity_ids: Any = None,
        region: Any = None,
        lines: Any = None,
        center_names: Any = None,
        numbered_from: int | None = None,
        skip_unknown: bool = False,
        tolerance: float = 1e-4,
        unanswered: int = 0,
        time_budget: float | None = None,
    ) -> ChoiceClustering:
        """Learn from choices that were recorded, and recommend a plan.

        The centres move only if the log does not contradict the fitted model, and if the plan
        clearly saves and does not rest on costs that the log has hardly seen. Otherwise they are
        today's, with the prescriptions that were seen to save, if any. ``decision_`` says which
        plan it is and why; `compare_plans` also shows the plan without these doubts.

        Parameters
        ----------
        X : array of shape (n, d)
            Entities.
        log : DataFrame or mapping of column name to values
            ``entity``, ``prescribed``, ``realized`` (empty, NaN or -1 where no answer came);
            optionally ``cost``, ``timestamp``, ``propensity`` (how likely the prescription was),
            and ``layout``, the number of the set of centres.
        centers : array of shape (K, d) or (L, K, d)
            Centres while the log was recorded, or L sets of them.
        sample_weight, covariates : array, optional
            As in `start`.
        region : array of shape (2, d), optional
            Lowest and highest coordinates of centres. Default: those in X and of logged centres.
        entity_ids, center_names, numbered_from, skip_unknown, tolerance, lines : optional
            How to read the log: see `LoggedPopulation`.
        unanswered : int, default=0
            Rows without an answer that are no longer in the log. From 5 % of all rows on there is
            a warning, from 20 % on there are no intervals, and no plan but today's.
        time_budget : float, optional
            Seconds after which the search for centres ends with the best so far, and a warning.
            The fit of the model before it, and the checks after it, are not cut short.

        Warns
        -----
        DataWarning
            What is odd about the rows: some left out, some repeated, numbering unclear.
        UnreliableWarning
            Where a log tells less than it seems to, and what to doubt about the plan.
        """
        self.start(X, sample_weight, covariates)
        study, entities = self._study, self._study.entities
        layouts = _sets_of_centers(centers, entities.n_features, self.n_clusters)
        check_scalar(tolerance, "tolerance", 0)
        check_time_budget(time_budget)
        deadline = Deadline.after(time_budget)
        options = LogOptions(
            entity_ids, center_names, numbered_from, skip_unknown, tolerance, lines, unanswered
        )
        records = read_records(log, entities.X, layouts, entities.cost, options)
        choices = Choices(*records[:4], layouts=layouts)
        _check_size(choices.costs(entities.X, entities.cost))
        for note in records.notes:
            warnings.warn(note, DataWarning, stacklevel=2)
        strategy = self._strategy(entities, study.strategy.rng, from_log=True)
        region = _checked_region(region, entities, layouts)
        plans = plans_from_log(
            strategy, choices, records.propensity, region, records.unanswered, deadline
        )
        study.take_over(strategy, len(choices.entities))
        self._of_log, self.center_names_ = plans, records.center_names
        self.stop_reason_ = strategy.finished
        for sentence in self._doubts():
            warnings.warn(sentence, UnreliableWarning, stacklevel=2)
        return self

    def compare_plans(
        self,
        plans: dict[str, tuple[Any, Any]] | None = None,
        propensity: Any = None,
        time_budget: float | None = None,
    ) -> Comparison:
        """Return what centres and prescriptions cost and save, with 95 % intervals.

        Plans at today's centres are judged by what the log shows, others by the model: see
        ``volition.choices.compare_plans``. Where the log contradicts the model, there are no
        intervals for the latter.

        Parameters
        ----------
        plans : dict of name to (centers, prescriptions), optional
            What to compare with today's. Default: today's centres with the nearest and with the
            best prescribed, centres and prescriptions that ignore autonomy, and those to which the
            model would move.
        propensity : array of shape (m,), optional
            Probability of each logged prescription. Default: the log's column ``propensity``; if
            it has none, judged by how often the nearest centre is prescribed, the second nearest,
            and so on.
        time_budget : float, optional
            Seconds after which the search for centres that ignore autonomy ends with the best so
            far, and a warning.

        Returns
        -------
        Comparison
            One `PlanCost` for each plan; it prints as a table. The first is today's: the last
            centres in the log, prescribed as in the log.

        Raises
        ------
        ValueError
            Where there is no log.
        """
        if self._plans is None:
            raise ValueError(
                "compare_plans() compares with what a log shows: call fit_log first. A learner "
                "that asks has no prescriptions of today; see distortion_ and "
                "distortion_estimate()."
            )
        check_time_budget(time_budget)
        rows = self._plans.compare(plans, propensity, Deadline.after(time_budget))
        decision = self._plans.decision
        recommended = None if decision is None else decision.name
        return Comparison(rows, recommended, cost_unit(self))

    def extrapolation(self) -> Extrapolation:
        """Return how far the centres and prescriptions go beyond what was seen."""
        fit = self.fit_
        if fit is None:
            raise ValueError("Nothing was learned yet: fit first.")
        plans = self._plans
        if plans is None:
            moved = self.cluster_centers_, self.labels_
            plans = LoggedPlans(self._study.entities, self.choices_, fit, None, moved)
        return plans.extrapolation(self.cluster_centers_, self.labels_)


def _check_size(costs: FloatArray) -> None:
    """Raise ValueError if costs are so large, or so small, that their squares' squares are not."""
    largest = float(np.abs(costs).max())
    if largest > LARGEST_COST or 0 < largest < 1 / LARGEST_COST:
        size, units = ("large", "larger") if largest > 1 else ("small", "smaller")
        ends = f"1e{-round(math.log10(LARGEST_COST))} to 1e{round(math.log10(LARGEST_COST))}"
        raise ValueError(
            f"The largest cost in the log is {largest:.3g}, too {size} to compute with ({ends}): "
            f"give coordinates in {units} units."
        )


def _checked_region(region: Any, entities: Entities, layouts: FloatArray) -> FloatArray:
    """Return the box in which centres may stand."""
    d = entities.n_features
    if region is None:
        known = np.concatenate([entities.X, layouts.reshape(-1, d)])
        return np.stack([known.min(0), known.max(0)])
    ends = np.asarray(region, dtype=np.float64)
    if ends.shape != (2, d) or not np.isfinite(ends).all() or not (ends[0] <= ends[1]).all():
        raise ValueError(
            f"region must be two rows of {d} numbers, the lowest and the highest coordinates "
            f"that centres may have, got {region!r}."
        )
    return ends


def _sets_of_centers(centers: Any, n_features: int, n_clusters: int) -> FloatArray:
    Y = np.asarray(centers, dtype=np.float64)
    if Y.ndim not in (2, 3):
        raise ValueError(f"centers must have shape (K, d) or (L, K, d), got {Y.shape}.")
    Y = Y[None] if Y.ndim == 2 else Y
    if 0 in Y.shape:
        raise ValueError(f"centers must hold at least one centre, got shape {Y.shape}.")
    found = np.stack([check_centers(one, n_features) for one in Y])
    if found.shape[1] != n_clusters:
        raise ValueError(
            f"n_clusters={n_clusters}, but the log was recorded with {found.shape[1]} centres."
        )
    return found
