"""`ChoiceClustering`: learn from the clusters that entities realise, asked or logged."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from volition.autonomy import LoyalAutonomy, Passive
from volition.choices import (
    ChoiceAutonomy,
    ChoiceFit,
    Choices,
    cautions,
    check_costs,
    check_covariates,
    check_family,
    check_model,
    cross_costs,
    fit_choices,
)
from volition.choices.checks import DAYS, Check
from volition.choices.coding import Coding, are_numbers, make_coding
from volition.choices.decision import (
    BEST,
    MOVED,
    NEAREST,
    TODAY,
    Decision,
    decide,
    doubts_about,
    instead_of_moving,
    order_matters,
    other_readings,
    says_nothing_of_moves,
)
from volition.choices.worth import (
    IGNORED,
    ExpectedCosts,
    Log,
    Reach,
    Worth,
    compare,
    narrow,
    propensities,
    reach,
)
from volition.costs import resolve_cost
from volition.learners.aden.models import NetworkAutonomy
from volition.learners.aden.network import ADENetwork, NetworkSize
from volition.learners.aden.units import Units
from volition.learners.ledger import Asked
from volition.learners.monitor import Change
from volition.learners.neural import fit_network
from volition.learners.staged import FIRST_STAGE, StagedLearner
from volition.learners.trial import PLAIN
from volition.population import IntArray, Population
from volition.portfolio import Search
from volition.problem import Problem
from volition.records import LogOptions, read_records
from volition.validation import FloatArray, check_centers, check_integer, check_scalar

#: answers that are asked for at most, unless told otherwise
MOST = 50_000
#: questions at a time
BATCH = 512
#: share of a small budget that goes into the first stage
FIRST_SHARE = 0.4
#: beta that means a hard policy, times the cost of a single centre
HARD = 1e4
#: entities that may carry so much of the weight before a sentence is due
FEW_HEAVY, MOST_WEIGHT = 10, 0.9
#: starts that a search for the centres of a log improves by moving centres about
IMPROVED = 8
#: by how much answers must grow until a network that was of no use is tried again
AGAIN = 3


#: what a saved state holds besides arrays
NAMES = (
    "stage",
    "told",
    "left",
    "exact",
    "finished",
    "from_log",
    "range",
    "scale",
    "cost_unit",
    "network_at",
    "guesses",
)


class ChoiceClustering(StagedLearner):
    """Learn how entities choose, and place centres by what was learned.

    Choices at past centres stay useful after the centres move, because the model says how choices
    depend on them. A few thousand answers usually suffice.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of centres.
    metric : str, Cost or callable, default="sqeuclidean"
        Cost of being served.
    family : {"auto", "distance"} or (stay terms, away terms), default="auto"
        What choices may depend on; see `volition.choices.fit_choices`. By default terms are added
        as long as choices that were held out become clearly likelier.
    network : bool, default=True
        Whether a network may take over where terms do not suffice: with ``family="auto"`` and no
        covariates, and only if choices that were held out become clearly likelier. A log that is
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
    cluster_centers_ : ndarray of shape (K, d)
    labels_ : ndarray of shape (n,)
        Best prescription for each entity, -1 for those that left.
    distortion_ : float
        As the model sees it. See `distortion_estimate` for one from answers alone.
    model_ : ChoiceAutonomy, NetworkAutonomy, LoyalAutonomy or None
        What was learned, as an autonomy model: usable wherever one is. A `LoyalAutonomy` where
        single entities were seen to use centres of their own, whatever was prescribed.
    fit_ : ChoiceFit or None
        The fitted terms with their covariances, and all that were tried.
    center_names_ : list of str or None
        Names of the centres, where a log was given with names or numbered from 1.
    n_interactions_, n_answers_, n_repeated_ : int
    history_ : list of dict
    tried_, kept_ : list of Tried, str
    stop_reason_ : str or None
    interrupted_ : bool
        As in `TabularClustering`.
    decision_ : Decision or None
        After `fit_log`: which plan the centres and labels are, why, and what to doubt.
    checks_ : list of Check
        After `fit_log`: how the model compares with the log, the most surprising first.

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

    needs_realized = True

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        metric: Any = "sqeuclidean",
        family: Any = "auto",
        network: bool = True,
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

    # -- beginning --------------------------------------------------------------------------------

    def start(self, X: Any, sample_weight: Any = None, covariates: Any = None) -> ChoiceClustering:
        """Begin with these entities and no knowledge; needed before the first `ask`.

        Parameters
        ----------
        X : array of shape (n, d)
            Entities.
        sample_weight : array of shape (n,), optional
            Relative weights.
        covariates : array of shape (n, c) or DataFrame, optional
            What else is known of entities and may matter for their choices: numbers, or text with
            at most 20 levels, which becomes a column of 0 and 1 for each level but the first.

        Returns
        -------
        self
        """
        self._covariates: FloatArray | None = None
        self._coding: Coding | None = None
        if covariates is not None:
            self._take_covariates(covariates, len(X))
        super().start(X, sample_weight)
        return self

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        population: Population,
        covariates: Any = None,
        **params: Any,
    ) -> ChoiceClustering:
        """Ask, be answered, learn, until enough is known; see `Learner.fit`.

        Parameters
        ----------
        X : array of shape (n, d)
            Entities, numbered as the population numbers them.
        y : ignored
            Present by convention.
        population : Population
            Whoever answers; it must reveal the realised clusters.
        covariates : array of shape (n, c) or DataFrame, optional
            What else is known of entities and may matter for their choices; see `start`.
        **params
            As in `Learner.fit`: ``sample_weight``, ``checkpoint``, ``resume``, ``on_batch``.

        Returns
        -------
        self
        """
        self._next_covariates = covariates
        try:
            super().fit(X, population=population, **params)
        finally:
            self._next_covariates = None
        return self

    def _begin(self) -> None:
        check_scalar(self.tol, "tol", 0)
        check_family(self.family)
        if self.n_interactions != "auto":
            check_integer(self.n_interactions, "n_interactions", 1, " or 'auto'")
        given = getattr(self, "_next_covariates", None)
        if given is not None:
            self._take_covariates(given, len(self._X))
        self._begin_stages()
        self.beta_ = HARD / self._cost_unit
        none = np.zeros(0, dtype=np.int64)
        self._rows: dict[str, IntArray] = dict.fromkeys(
            ("entities", "prescribed", "realized", "layout"), none
        )
        self._layouts: list[FloatArray] = []
        self._numbers: dict[bytes, int] = {}
        self.fit_: ChoiceFit | None = None
        self._from_log, self._network_at = False, 0
        self._propensity: FloatArray | None = None
        self._region: FloatArray | None = None
        self._moved: tuple[FloatArray, IntArray] | None = None
        self._cross_costs: ExpectedCosts | None = None
        self._readings: list[ChoiceFit] | None = None
        self._guesses = False  # whether nothing can be said of centres that move
        self.checks_: list[Check] = []
        self.decision_: Decision | None = None
        self.center_names_: list[str] | None = None
        self._relabel()

    def _take_covariates(self, covariates: Any, n: int) -> None:
        """Keep covariates as numbers, and how they became numbers."""
        self._coding = None if are_numbers(covariates) else make_coding(covariates, n)
        self._covariates = self._as_numbers(covariates, n)

    def _as_numbers(self, covariates: Any, n: int) -> FloatArray:
        """Return covariates of some entities as those of the fit were taken."""
        known = getattr(self, "_covariates", None)
        if self._coding is not None and not are_numbers(covariates):
            return self._coding.apply(covariates, n)
        return check_covariates(covariates, n, None if known is None else known.shape[1])

    @property
    def covariate_names_(self) -> list[str] | None:
        """Names of the columns of covariates, ``kind=van`` for text; None without names."""
        return None if self._coding is None else self._coding.names

    @classmethod
    def _params_from(cls, params: dict[str, Any]) -> dict[str, Any]:
        family = params["family"]
        return params | {"family": family if isinstance(family, str) else tuple(map(tuple, family))}

    def add_entities(self, X: Any, sample_weight: Any = None, covariates: Any = None) -> IntArray:
        """Take in new entities; see `Learner.add_entities`.

        Parameters
        ----------
        X : array of shape (m, d)
            Their features.
        sample_weight : array of shape (m,) or number, optional
            Weights on the scale on which the mean weight of the first entities is one.
        covariates : array of shape (m, c) or DataFrame
            Needed where the others have them.

        Returns
        -------
        ndarray of shape (m,)
            Their numbers.
        """
        self._check_started()
        if (covariates is None) != (self._covariates is None):
            raise ValueError("New entities need covariates if the others have them, and only then.")
        if self._covariates is not None:
            X, sample_weight = self._check_new(X, sample_weight)
            more = self._as_numbers(covariates, len(X))
            self._covariates = np.concatenate([self._covariates, more])
            model = self._unattached
            if isinstance(model, ChoiceAutonomy) and model.covariates is not None:
                # Loyalty follows when the others are taken in.
                self.model_ = model.for_entities(self._covariates)
        return super().add_entities(X, sample_weight)

    # -- asking and learning ----------------------------------------------------------------------

    @property
    def _budget(self) -> int | None:
        return None if self._allowed == "auto" else int(self._allowed)

    @property
    def _goal(self) -> int:
        """Answers that the present stage waits for."""
        goal = FIRST_STAGE * 2**self._stage
        if self._budget is not None and self._stage == 0:
            goal = min(goal, max(1, int(FIRST_SHARE * self._budget)))
        return goal

    def _batch(self) -> int:
        return min(BATCH, max(64, self._goal - self._told))

    @property
    def _watches_choices(self) -> bool:  # type: ignore[override]
        # While centres are tried out, shares of clusters change with them.
        return self._finished is not None

    def _learn(
        self, asked: Asked, realized: IntArray | None, cost: FloatArray, centers: FloatArray
    ) -> None:
        assert realized is not None
        self._from_log = False  # from now on there is more than the log
        m = len(cost)
        Y = np.ascontiguousarray(np.broadcast_to(centers, (m, *self.cluster_centers_.shape)))
        new = np.concatenate([[True], (Y[1:] != Y[:-1]).any((1, 2))])
        numbers = np.empty(m, dtype=np.int64)
        for row in np.flatnonzero(new):
            numbers[row] = self._number_of(Y[row])
        numbers = numbers[np.flatnonzero(new)][np.cumsum(new) - 1]
        added = (asked.entities, asked.prescribed, realized, numbers)
        self._rows = {
            name: np.concatenate([old, more])
            for (name, old), more in zip(self._rows.items(), added, strict=True)
        }
        self._told += m
        while self._told >= self._goal:
            self._advance()

    def _number_of(self, Y: FloatArray) -> int:
        key = Y.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._layouts)
            self._layouts.append(Y.copy())
        return self._numbers[key]

    @property
    def choices_(self) -> Choices:
        """All choices that were observed."""
        return Choices(**self._rows, layouts=np.array(self._layouts))

    def _advance(self) -> None:
        self._told -= self._goal
        self._explore()
        self._stage += 1
        if self._finished is not None:
            self._monitor.forget_choices()
        self._relabel()

    def _observed(self) -> Choices | None:
        # A log has its own checks, and the centres there may stand for places.
        return None if self._from_log or self.family != "auto" else self.choices_

    def _fit_model(self, kept: np.ndarray | None = None) -> None:
        choices = self.choices_ if kept is None else self.choices_.take(kept)
        self.fit_ = fit_choices(
            self._X,
            choices,
            self._cost,
            self._cost_unit,
            covariates=self._covariates,
            family=self.family,
            hold=self._from_log,
            random_state=int(self._rng.integers(2**31)),
        )
        self.model_ = self.fit_.model
        usable = self.network and self.family == "auto" and self._covariates is None
        m = len(choices.entities)
        if usable and self._stage and not self._from_log and m >= self._network_at:
            base = Problem(self._X, cost=self._cost, sample_weight=self._weight)
            origin = base.mean_center()[0].astype(np.float64)
            units = Units(origin, self._scale, self._cost_unit)
            with threadpool_limits(1, "blas"):
                found = fit_network(self._X, choices, self._cost, units, self.fit_, self._rng)
            self.model_ = found or self.model_
            # One that was of no use is tried again when there is much more to learn from.
            self._network_at = 0 if found else AGAIN * m

    def _search(self) -> FloatArray:
        found = self.model_
        assert self.fit_ is not None
        # The portfolio is too much for a network: it runs on the terms.
        self.model_ = self._with_loyalty(self.fit_.model)
        # Models by entity take several times as long, so they get no more than usual.
        long = self._from_log and not self.model_.by_entity
        Y = self._search_thoroughly() if long else super()._search()
        if self._region is not None:
            Y = self._in_region(Y)
        self.model_ = found
        return self._search_on_network(Y) if isinstance(self._unattached, NetworkAutonomy) else Y

    def _search_thoroughly(self) -> FloatArray:
        """Return the best of two long searches: a log is given once, there is no later stage.

        Short ones end in local optima too often (London, 25 centres: 1.4 % too dear in two of
        five).
        """
        assert self.model_ is not None
        problem = self._problem(self.model_)
        found = [self._run_portfolio(n_improved=IMPROVED) for _ in range(2)]
        return min(found, key=problem.distortion)

    def _in_region(self, Y: FloatArray) -> FloatArray:
        """Return the best centres near these that stand in the region."""
        assert self._region is not None
        assert self.model_ is not None
        low, high = self._region
        problem = self._problem(self.model_)
        search = Search(problem, self.n_clusters, np.random.RandomState(0), max_iter=60, tol=1e-4)
        for _ in range(3):
            inside = np.clip(Y, low, high)
            if np.array_equal(inside, Y):
                return Y
            Y = search.polish(problem, inside)
        return np.clip(Y, low, high)

    def _behaviour_changed(self, change: Change) -> None:
        """Begin anew at the present centres: what was chosen before no longer tells."""
        self._rows = {name: rows[:0] for name, rows in self._rows.items()}
        self._layouts, self._numbers = [], {}
        self._stage, self._told, self._finished, self._network_at = 0, 0, None, 0

    def _limit(self) -> int:
        return MOST if self._budget is None else self._budget

    def _conclude(self, thoroughly: bool) -> None:
        if thoroughly and self._told and self._finished is None and len(self._rows["entities"]):
            self._stage = max(1, self._stage) if self.fit_ is not None else self._stage
            self._explore()
        self._relabel()

    def expected_costs(self, X: Any = None, covariates: Any = None) -> FloatArray:
        """Return the expected cost of prescribing j to i as learned, shape (n, K).

        Parameters
        ----------
        X : array of shape (m, d), optional
            Entities; those of the fit by default.
        covariates : array of shape (m, c) or DataFrame, optional
            Theirs, where choices depend on them.
        """
        if X is None:
            return super().expected_costs()
        return self._of_others(X, covariates).expected_costs(self.cluster_centers_)

    def predict(self, X: Any, covariates: Any = None) -> IntArray:
        """Return the best prescription for entities by their features.

        Parameters
        ----------
        X : array of shape (m, d)
        covariates : array of shape (m, c) or DataFrame, optional
            Needed where choices depend on them.

        Returns
        -------
        ndarray of shape (m,)
        """
        problem = self._of_others(X, covariates)
        as_usual = self.decision_ is not None and self.decision_.name in (TODAY, NEAREST)
        if self.kept_ == PLAIN or as_usual:
            problem = problem.with_autonomy(Passive())
        return problem.labels(self.cluster_centers_)

    def _of_others(self, X: Any, covariates: Any) -> Problem:
        self._check_started()
        X, model = self._features(X), self._unattached
        if isinstance(model, ChoiceAutonomy) and model.covariates is not None:
            if covariates is None:
                raise ValueError("Choices depend on covariates; give those of X as covariates=.")
            model = model.for_entities(self._as_numbers(covariates, len(X)))
        if model is not None and self._loyalty is not None:
            model = LoyalAutonomy(model, self._loyalty_of(len(X)))
        return Problem(X, cost=self._cost, autonomy=model)

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
    ) -> ChoiceClustering:
        """Learn from choices that were recorded, and recommend a plan.

        The centres move only if the log does not contradict the fitted model, and if the plan
        clearly saves and does not rest on costs that the log has hardly seen. Otherwise
        ``cluster_centers_`` are today's, with the prescriptions that were seen to save in the log,
        if any; ``decision_`` says which plan it is and why. What the model would do without these
        doubts is the option "moved centres" of `worth`.

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
            As in `fit`.
        entity_ids : sequence, optional
            How the log names the rows of X. Default: their numbers.
        region : array of shape (2, d), optional
            Lowest and highest coordinates that centres may have. Default: those of the entities
            and of the centres in the log.
        lines : sequence of int, optional
            Line of the file that each record comes from, for error messages.
        center_names : sequence of str, optional
            Names of the centres; the log may then have names in place of numbers, and
            ``center_names_`` holds them.
        numbered_from : {0, 1}, optional
            First number of the log's clusters. Default: 0; a log that looks as if it were numbered
            from 1 is refused until this is given.
        skip_unknown : bool, default=False
            Whether rows of entities that are not in X are left out (and counted) rather than
            refused.
        tolerance : float, default=1e-4
            By how much a logged cost may differ from the geometry's, as a share of itself or of
            the mean, whichever is larger.

        Returns
        -------
        self

        Warns
        -----
        UserWarning
            Where a log tells less than it seems to: few choices, no overrides, no variety; where
            rows are left out, where rows repeat earlier ones, and where nothing shows whether
            clusters are numbered from 0 or from 1.
        """
        self.start(X, sample_weight, covariates)
        layouts = _sets_of_centers(centers, self._X.shape[1])
        check_scalar(tolerance, "tolerance", 0)
        options = LogOptions(
            entity_ids, center_names, numbered_from, skip_unknown, tolerance, lines
        )
        records = read_records(log, self._X, layouts, self._cost, options)
        choices = Choices(*records[:4], layouts=layouts)
        if choices.n_clusters != self.n_clusters:
            raise ValueError(
                f"n_clusters={self.n_clusters}, but the log was recorded with "
                f"{choices.n_clusters} centres."
            )
        self._rows = {name: getattr(choices, name) for name in self._rows}
        self._layouts = list(choices.layouts)
        self._numbers = {Y.tobytes(): n for n, Y in enumerate(self._layouts)}
        self.n_interactions_ = self.n_answers_ = len(choices.entities)
        self.cluster_centers_ = np.array(choices.layouts[-1], dtype=np.float64)
        self._stage, self._from_log = 1, True
        self._region = self._checked_region(region, choices.layouts)
        self._propensity, self.center_names_ = records.propensity, records.center_names
        for note in records.notes:
            warnings.warn(note, UserWarning, stacklevel=2)
        with self._few_threads():
            self._explore()
            self._relabel()
            self._choose_plan()
        assert self.fit_ is not None
        assert self.decision_ is not None
        sentences = [*self.decision_.doubts]
        if self.decision_.doubts:
            sentences.append(instead_of_moving(self.decision_.name))
        heavy = np.sort(self._weight)[::-1] / self._weight.sum()
        few = int(np.searchsorted(np.cumsum(heavy), MOST_WEIGHT)) + 1
        if few < FEW_HEAVY and len(heavy) > FEW_HEAVY:
            sentences.append(
                f"{few} of {len(heavy)} entities carry {MOST_WEIGHT:.0%} of the weight: costs are "
                "theirs, not everybody's."
            )
        for sentence in [*cautions(self.fit_, self._X, choices, self._cost), *sentences]:
            warnings.warn(sentence, UserWarning, stacklevel=2)
        self._finished = self.stop_reason_ = "the log is at its end"
        self.interrupted_, self._concluded = False, True
        self._note()
        return self

    def _checked_region(self, region: Any, layouts: FloatArray) -> FloatArray:
        if region is None:
            known = np.concatenate([self._X, layouts.reshape(-1, self._X.shape[1])])
            return np.stack([known.min(0), known.max(0)])
        ends = np.asarray(region, dtype=np.float64)
        d = self._X.shape[1]
        if ends.shape != (2, d) or not np.isfinite(ends).all() or not (ends[0] <= ends[1]).all():
            raise ValueError(
                f"region must be two rows of {d} numbers, the lowest and the highest coordinates "
                f"that centres may have, got {region!r}."
            )
        return ends

    def _choose_plan(self) -> None:
        """Check the model against the log, and take the plan that can be answered for."""
        fit, log = self.fit_, self._log()
        assert fit is not None
        today = log.choices.layouts[-1]
        self._moved = self.cluster_centers_, self.labels_
        self._cross_costs = cross_costs(fit, self._X, log.choices, self._cost)
        plans = self._plans_at(today)
        self.checks_ = check_model(fit, self._X, log.choices, self._cost, log.propensity)
        named = {"the nearest prescribed": plans[NEAREST][1], "the best prescribed": plans[BEST][1]}
        self.checks_ += check_costs(log, self._cross_costs, named)
        self.checks_.sort(key=lambda check: check.p_value)
        far = reach(fit, log, *self._moved)
        doubts = doubts_about(self.checks_, far, len(log.choices.entities))
        options = {TODAY: (today, None), **plans, MOVED: self._moved}
        self._guesses = bool(doubts) or says_nothing_of_moves(fit, log.choices)
        rows = self._compared(log, options)
        self.decision_ = decide(rows, doubts, narrow(log))
        if self.decision_.name != MOVED:
            # The log has tried these.
            self._place(today)
            self._relabel()
            stays = self.decision_.name == TODAY
            self.labels_ = self._usual() if stays else plans[self.decision_.name][1]
            chosen = next(row for row in rows if row.name == self.decision_.name)
            self.distortion_ = chosen.expected.value

    def _usual(self) -> IntArray:
        """Return what each entity was prescribed most often, or else the nearest."""
        choices, n, K = self.choices_, len(self._X), self.n_clusters
        now = choices.layout == len(choices.layouts) - 1
        counts = np.zeros((n, K))
        np.add.at(counts, (choices.entities[now], choices.prescribed[now]), 1)
        nearest = Problem(self._X, cost=self._cost).labels(choices.layouts[-1])
        return np.where(counts.any(1), counts.argmax(1), nearest)

    def _log(self, propensity: Any = None) -> Log:
        choices = self.choices_
        if propensity is None:
            propensity = self._propensity
        if propensity is None:
            propensity = propensities(self._X, choices, self._cost)
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
        return Log(self._X, self._cost, self._weight, choices, propensity)

    def _plans_at(self, today: FloatArray) -> dict[str, tuple[Any, Any]]:
        """Return the plans that leave the centres where they are."""
        assert self._cross_costs is not None
        obeying = Problem(self._X, cost=self._cost, sample_weight=self._weight)
        return {
            NEAREST: (today, obeying.labels(today)),
            BEST: (today, self._cross_costs.mean.argmin(1)),
        }

    def _compared(self, log: Log, options: dict[str, tuple[Any, Any]]) -> list[Worth]:
        assert self.fit_ is not None
        fit, moved = self.fit_, [Y for Y, _ in options.values()]
        readings: list[ChoiceFit] = []
        if not self._guesses and any(not np.array_equal(Y, log.choices.layouts[-1]) for Y in moved):
            if self._readings is None:
                self._readings = other_readings(
                    fit, self._X, log.choices, self._cost, self._covariates
                )
            readings = self._readings
        costs = self._cross_costs
        return compare(
            fit, log, options, costs=costs, readings=readings, doubtful=self._guesses,
            order=bool(order_matters(self.checks_)),
            days=any(check.failed and check.name == DAYS for check in self.checks_),
        )  # fmt: skip

    def worth(
        self, options: dict[str, tuple[Any, Any]] | None = None, propensity: Any = None
    ) -> list[Worth]:
        """Return what centres and prescriptions cost and save, with 95 % intervals.

        Plans at today's centres are judged by what the log shows, others by the model: see
        ``volition.choices.worth``. Where the log contradicts the model, there are no intervals for
        the latter.

        Parameters
        ----------
        options : dict of name to (centers, prescriptions), optional
            What to compare with today's. Default: today's centres with the nearest and with the
            best prescribed, centres and prescriptions that ignore autonomy, and those to which the
            model would move.
        propensity : array of shape (m,), optional
            Probability of each logged prescription. Default: the log's column ``propensity``; if
            it has none, judged by how often the nearest centre is prescribed, the second nearest,
            and so on.

        Returns
        -------
        list of Worth
            The first is today's: the last centres in the log, prescribed as in the log.

        Raises
        ------
        ValueError
            Where there is no log.
        """
        self._check_started()
        if self.fit_ is None or not self._from_log or self.decision_ is None:
            raise ValueError(
                "worth() compares with what a log shows: call fit_log first. A learner that asks "
                "has no prescriptions of today; see distortion_ and distortion_estimate()."
            )
        log = self._log(propensity)
        if options is None:
            options = self._usual_options()
        options = {TODAY: (log.choices.layouts[-1], None), **options}
        return self._compared(log, options)

    def _usual_options(self) -> dict[str, tuple[Any, Any]]:
        assert self._moved is not None
        today = self.choices_.layouts[-1]
        obeying = Problem(self._X, cost=self._cost, sample_weight=self._weight)
        seed = np.random.RandomState(0)
        ignored = Search(obeying, self.n_clusters, random_state=seed).run().centers
        # Numbered as today's are: where clusters have roles, that matters.
        ignored = ignored[linear_sum_assignment(cdist(today, ignored))[1]]
        return {
            **self._plans_at(today),
            IGNORED: (ignored, obeying.labels(ignored)),
            MOVED: self._moved,
        }

    def reach(self) -> Reach:
        """Return how far the centres and prescriptions go beyond what was observed."""
        self._check_started()
        if self.fit_ is None:
            raise ValueError("Nothing was learned yet: fit first.")
        return reach(self.fit_, self._log(), self.cluster_centers_, self.labels_)

    # -- interruption -----------------------------------------------------------------------------

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        numbers: dict[str, Any] = {name: getattr(self, f"_{name}") for name in NAMES}
        shape = (0, *self.cluster_centers_.shape)
        arrays: dict[str, np.ndarray] = {
            **self._rows,
            "layouts": np.array(self._layouts) if self._layouts else np.zeros(shape),
            "shown": self._shown,
        }
        if self._covariates is not None:
            arrays["covariates"] = self._covariates
        if self._propensity is not None:
            arrays["propensity"] = self._propensity
        if self._region is not None:
            arrays["region"] = self._region
        numbers["decision"] = self.decision_ and list(self.decision_)
        numbers["checks"] = [list(check) for check in self.checks_]
        if self._moved is not None and self._cross_costs is not None:
            arrays["moved.centers"], arrays["moved.labels"] = self._moved
            arrays["cross.mean"], arrays["cross.variance"] = self._cross_costs
        numbers["family"] = _listed(self.family)
        numbers["center_names"] = self.center_names_
        numbers["coding"] = self._coding and self._coding._asdict()
        numbers["fit"] = None
        if self.fit_ is not None:
            numbers["fit"], fitted = self.fit_.state()
            arrays |= {f"fit.{name}": value for name, value in fitted.items()}
        numbers["network"] = None
        if self._loyalty is not None:
            arrays["loyalty"] = self._loyalty
        model = self._unattached
        if isinstance(model, NetworkAutonomy):
            units = model.units
            numbers["network"] = [units.length, units.cost, vars(model.network.size)]
            arrays["net.origin"] = units.origin
            frozen = model.network.state_dict()
            arrays |= {f"net.weight.{name}": value.numpy() for name, value in frozen.items()}
        return numbers, arrays

    def _accept(self, numbers: dict[str, Any]) -> None:
        if numbers["family"] != _listed(self.family):
            raise ValueError("The file was made with another family of choice models.")

    def _restore(self, numbers: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        for name in NAMES:
            setattr(self, f"_{name}", numbers[name])
        self.center_names_ = numbers.get("center_names")
        self._covariates = arrays.get("covariates")
        coding = numbers.get("coding")
        self._coding = coding and Coding(tuple(coding["columns"]), coding["levels"])
        self._propensity = arrays.get("propensity")
        self._region = arrays.get("region")
        self.checks_ = [Check(*values) for values in numbers["checks"]]
        if numbers["decision"] is not None:
            name, doubts, reason = numbers["decision"]
            self.decision_ = Decision(name, tuple(doubts), reason)
            self._moved = arrays["moved.centers"], arrays["moved.labels"]
            self._cross_costs = ExpectedCosts(arrays["cross.mean"], arrays["cross.variance"])
        self._rows = {name: arrays[name] for name in self._rows}
        self._layouts = list(arrays["layouts"])
        self._numbers = {Y.tobytes(): n for n, Y in enumerate(self._layouts)}
        self._shown = arrays["shown"]
        if numbers["fit"] is not None:
            fitted = {k.removeprefix("fit."): v for k, v in arrays.items() if k.startswith("fit.")}
            self.fit_ = ChoiceFit.from_state(numbers["fit"], fitted, self._covariates)
            self.model_ = self.fit_.model
        if numbers["network"] is not None:
            length, unit, size = numbers["network"]
            frozen = ADENetwork(self._X.shape[1], NetworkSize(**size), "choices").double()
            weights = {k: v for k, v in arrays.items() if k.startswith("net.weight.")}
            frozen.load_state_dict(
                {k.removeprefix("net.weight."): torch.from_numpy(v) for k, v in weights.items()}
            )
            self.model_ = NetworkAutonomy(frozen, Units(arrays["net.origin"], length, unit))
        self._loyalty = arrays.get("loyalty")
        if self.model_ is not None:
            self.model_ = self._with_loyalty(self.model_)


def _listed(family: Any) -> Any:
    return family if isinstance(family, str) else [list(terms) for terms in family]


def read_log(
    X: FloatArray, log: Any, centers: Any, metric: Any = "sqeuclidean", **options: Any
) -> Choices:
    """Return a log's choices, checked as `LoggedPopulation` does.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities.
    log : DataFrame or mapping of column name to values
        As in `ChoiceClustering.fit_log`.
    centers : array of shape (K, d) or (L, K, d)
        One set of centres, or several.
    metric : str, Cost or callable, default="sqeuclidean"
        Cost of being served.
    **options
        As in `volition.records.LogOptions`.

    Returns
    -------
    Choices

    Examples
    --------
    >>> from volition.learners.choice import read_log
    >>> import numpy as np
    >>> log = {"entity": [0, 1], "prescribed": [0, 1], "realized": [0, 0], "layout": [0, 1]}
    >>> X = np.array([[0.0], [9.0]])
    >>> read_log(X, log, [[[0.0], [8.0]], [[0.0], [9.0]]]).layout.tolist()
    [0, 1]
    """
    layouts = _sets_of_centers(centers, X.shape[1])
    records = read_records(log, X, layouts, resolve_cost(metric), LogOptions(**options))
    return Choices(*records[:4], layouts=layouts)


def _sets_of_centers(centers: Any, n_features: int) -> FloatArray:
    Y = np.asarray(centers, dtype=np.float64)
    if Y.ndim not in (2, 3):
        raise ValueError(f"centers must have shape (K, d) or (L, K, d), got {Y.shape}.")
    Y = Y[None] if Y.ndim == 2 else Y
    if 0 in Y.shape:
        raise ValueError(f"centers must hold at least one centre, got shape {Y.shape}.")
    return np.stack([check_centers(one, n_features) for one in Y])
