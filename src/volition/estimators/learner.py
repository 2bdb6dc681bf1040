"""What all learners share: the scikit-learn contract, asking and telling, files."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import _check_feature_names

from volition.core.autonomy import Autonomy, Passive
from volition.core.costs import Cost, resolve_cost
from volition.core.problem import Problem
from volition.core.validation import FloatArray, check_centers, check_integer, check_scalar
from volition.estimators.display import Summary, SummaryMixin, cost_in_words, cost_unit, summarize
from volition.estimators.files import resume_learner, save_learner
from volition.io.checked_files import check_file
from volition.learning.drift.detector import Change
from volition.learning.entities import Entities
from volition.learning.fitting import Fit
from volition.learning.monitor import Estimate
from volition.learning.proposing import Proposal, propose
from volition.learning.staged import StagedStrategy, choice_strategy
from volition.learning.strategy import Stop, Strategy
from volition.learning.study import Progress, Study
from volition.learning.trial import PLAIN, Tried
from volition.populations.answers import IntArray, Population, Prescriptions, Response


class UnreliableWarning(UserWarning):
    """What was learned may be wrong; the sentence says why."""


class Learner(
    SummaryMixin,
    CallbackSupportMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    ClusterMixin,
    BaseEstimator,
):
    """Base class: a study, held by an estimator.

    A subclass says what its parameters mean (`_check_params`) and makes a strategy (`_strategy`).
    """

    n_clusters: int
    metric: Any
    n_interactions: int | str
    tol: float
    random_state: Any
    _study: Study

    @abstractmethod
    def _strategy(self, entities: Entities, rng: np.random.Generator) -> Strategy:
        """Return a strategy for these entities."""

    def _strategy_named(self, name: str, entities: Entities, rng: np.random.Generator) -> Strategy:
        """Return the strategy of a saved state, which will be restored."""
        return self._strategy(entities, rng)

    def _identity(self) -> dict[str, Any]:
        """Return what a saved state must agree with."""
        return {}

    def _extra_state(self) -> dict[str, Any]:
        """Return what a file needs beside the study."""
        return {}

    def _restore_extra(self, state: dict[str, Any]) -> None:
        """Go back to what `_extra_state` has returned."""

    def _check_params(self) -> None:
        """Raise one sentence unless all parameters are allowed."""
        check_integer(self.n_clusters, "n_clusters", 1)
        check_scalar(self.tol, "tol", 0)
        if self.n_interactions != "auto":
            check_integer(self.n_interactions, "n_interactions", 1, " or 'auto'")

    # -- the life of a learner --------------------------------------------------------------------

    def start(
        self, X: Any, sample_weight: Any = None, covariates: Any = None, centers: Any = None
    ) -> Self:
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
        centers : array of shape (K, d), optional
            Centres that stand: all questions are about these, and nothing moves until `move`.
        """
        self._check_params()
        entities = Entities.of(X, sample_weight, self._cost(), covariates)
        if self.n_clusters > len(entities):
            raise ValueError(
                f"n_clusters={self.n_clusters} is more than the {len(entities)} entities."
            )
        rng = np.random.default_rng(_seed(self.random_state))
        strategy = self._strategy(entities, rng)
        if self.n_interactions != "auto":
            strategy.budget = int(self.n_interactions)
        if centers is not None:
            strategy.hold(check_centers(centers, entities.n_features))
        _check_feature_names(self, X, reset=True)
        self._begin(Study(strategy, type(self).__name__))
        return self

    def _begin(self, study: Study, stop_reason: str | None = None) -> None:
        """Take up a study, a new one or one from a file."""
        self.n_features_in_ = study.entities.n_features
        self._n_features_out = self.n_clusters
        self._study, self.stop_reason_ = study, stop_reason

    def _cost(self) -> Cost:
        return resolve_cost(self.metric)

    @with_callbacks
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        population: Population,
        sample_weight: Any = None,
        covariates: Any = None,
        centers: Any = None,
        checkpoint: Any = None,
        checkpoint_every: float = 10.0,
        resume: bool = False,
        on_batch: Callable[[Learner], Any] | None = None,
    ) -> Self:
        """Ask, be answered, learn, until there is no more to learn; then try the plan.

        At the end the plan that was learned is tried, and so is the plain one (k-means centres,
        the nearest prescribed). A tenth of a given budget is kept for that. If the plain plan has
        clearly cost less, it is kept; ``tried_`` holds what both have cost, ``kept_`` which one it
        is, `distortion_estimate` what it costs. A warning says so where what was learned and what
        was seen differ.

        Parameters
        ----------
        X : array of shape (n, d)
            Entities, numbered as the population numbers them.
        population : Population
            Whoever answers.
        sample_weight, covariates, centers : array, optional
            As in `start`. At centres that stand, no other plan is tried at the end; see `propose`.
        checkpoint : path, optional
            File that always holds a state to go on from.
        checkpoint_every : float, default=10
            Seconds between checkpoints; 0 for one after every batch.
        resume : bool, default=False
            Go on from ``checkpoint`` if the file is there.
        on_batch : callable, optional
            Called with the learner after each batch; a true result ends the fit, and a text is its
            ``stop_reason_``.
        """
        _check_answers(population)
        _check_fit_options(checkpoint, checkpoint_every, resume, on_batch)
        if resume and Path(checkpoint).is_file():
            self.resume(checkpoint, population)
            self._check_same(X, checkpoint)
        else:
            self.start(X, sample_weight, covariates, centers)
        study = self._study
        total = None if self.n_interactions == "auto" else int(self.n_interactions)
        save = None if checkpoint is None else (lambda: self.save(checkpoint, population))
        root = self._init_callback_context(max_subtasks=None)
        root.call_on_fit_task_begin(estimator=self, X=study.entities.X)
        after = self._after_batch(root, on_batch)
        fit = Fit(study, population, total, save, checkpoint_every, after)
        reason = fit.run()
        root.call_on_fit_task_end(estimator=self, X=study.entities.X)
        self.stop_reason_ = self._in_full(reason)
        if save is not None and study.finalized:
            save()  # it says why the fit has ended
        if fit.stopped is None:
            for doubt in self._doubts():
                warnings.warn(doubt, UnreliableWarning, stacklevel=2)
        return self

    def _doubts(self) -> list[str]:
        """Return, in sentences, why what was learned may be wrong."""
        study = self._study
        return [*self._notes(), *study.strategy.doubts(), *study.trial.doubts()]

    def _summary(self) -> Summary | None:
        """Return what a glance at the learner shows; None before the start."""
        if not self.__sklearn_is_fitted__():
            return None
        study, strategy = self._study, self._study.strategy
        unit = cost_unit(self) if strategy.metric_holds else ""
        facts = [
            ("learned from", f"{study.tally.answered} answers to {study.tally.asked} questions")
        ]
        seen = study.distortion_estimate()
        if not math.isnan(seen.value):
            cost = cost_in_words(seen.value, unit, seen.low, seen.high)
            facts.append(("cost per entity", f"{cost}, by {seen.n_answers} answers"))
        believed = strategy.figures().get("distortion", strategy.distortion)
        if study.tally.answered and not math.isnan(believed):
            facts.append(("cost by the model", cost_in_words(believed, unit)))
        if strategy.model is not None:
            facts.append(("model", repr(strategy.model)))
        if study.trial.tried:
            facts.append(("plan that is kept", study.trial.kept))
        if self.stop_reason_ is not None:
            facts.append(("ended", self.stop_reason_))
        doubts = [] if study.tally.answered == 0 else self._doubts()
        doubts += [
            f"Behaviour has changed: {change.what} (noticed after {change.n_interactions} "
            "questions)."
            for change in study.changes
        ]
        names = getattr(self, "center_names_", None)
        return summarize(self, strategy.centers, strategy.labels, facts, doubts, names)

    def _after_batch(
        self, root: Any, on_batch: Callable[[Learner], Any] | None
    ) -> Callable[[], Any]:
        """Return what is called after each batch: scikit-learn's callbacks, and the user's."""

        def after() -> Any:
            X = self._study.entities.X
            task = root.subcontext(task_name=f"{self.n_interactions_} questions")
            task.call_on_fit_task_begin(estimator=self, X=X)
            stop = task.call_on_fit_task_end(
                estimator=self, X=X, reconstruction_attributes=lambda: dict(vars(self))
            )
            if on_batch is not None and (why := on_batch(self)):
                return why
            return "ended by a callback" if stop else None

        return after

    def _notes(self) -> list[str]:
        """Return what else a user should know of a fit that has ended."""
        return []

    def _in_full(self, reason: str | Stop) -> str:
        """Return a reason to stop in words; where it is the budget, with numbers."""
        if not isinstance(reason, Stop):
            return reason
        if self.n_interactions == "auto":
            return f"n_interactions={self.most_interactions_} reached"
        asked, total = self.n_interactions_, int(self.n_interactions)
        if asked > total:
            return f"n_interactions={total}, and {asked} were asked before"
        return f"n_interactions={total} reached"

    def fit_predict(
        self, X: Any, y: Any = None, *, population: Population, **params: Any
    ) -> IntArray:
        """Fit, and return ``labels_``."""
        self.fit(X, population=population, **params)
        return self.labels_

    def fit_transform(
        self,
        X: Any,
        y: Any = None,
        *,
        population: Population,
        covariates: Any = None,
        **params: Any,
    ) -> FloatArray:
        """Fit, and return the expected cost of each prescription, (n, K)."""
        self.fit(X, population=population, covariates=covariates, **params)
        return self.transform(X, covariates)

    def partial_fit(
        self,
        X: Any = None,
        y: Any = None,
        *,
        population: Population,
        n_interactions: int | None = None,
        sample_weight: Any = None,
        covariates: Any = None,
    ) -> Self:
        """Go on learning for some more questions, from wherever the learner stands.

        Parameters
        ----------
        X : array of shape (n, d), optional
            Needed in the first call; later calls ignore it (see :meth:`add_entities`).
        population : Population
            Whoever answers.
        n_interactions : int, optional
            Questions to ask; one batch by default.
        sample_weight, covariates : array, optional
            As in `fit`, in the first call.
        """
        _check_answers(population)
        if not self.__sklearn_is_fitted__():
            if X is None:
                raise ValueError("The first partial_fit needs X, the entities.")
            self.start(X, sample_weight, covariates)
        if n_interactions is not None:
            check_integer(n_interactions, "n_interactions", 1)
        study = self._study
        Fit(study, population).run_some(int(n_interactions or study.strategy.batch_size))
        return self

    # -- ask, tell, learn -------------------------------------------------------------------------

    def ask(self, n: int | None = None, entities: Any = None) -> Prescriptions:
        """Return prescriptions to try.

        Parameters
        ----------
        n : int, optional
            How many, about entities that are drawn; by default one batch.
        entities : array of int, optional
            Numbers of the entities to ask, who are here now; instead of n.

        Returns
        -------
        Prescriptions
            With the probability of each, the number of the centres, and a number of its own that
            is never used again. Answers may be told late, in any order, in parts, or never.
        """
        return self._begun().ask(n, entities)

    def tell(self, prescriptions: Prescriptions, response: Response) -> Self:
        """Write answers down. It takes milliseconds; `learn` makes something of them.

        Parameters
        ----------
        prescriptions : Prescriptions
            From :meth:`ask`, all or some, in any order; or, without ``ids``, made by someone else.
        response : Response
            One row per prescription. Rows without an answer are passed over.
        """
        self._begun().tell(prescriptions, response)
        return self

    def learn(self) -> Self:
        """Learn from all answers that were told; it may take seconds.

        It may run in another thread while others ask and tell. If it fails, everything is as
        before, and the answers are still there.
        """
        self._begun().learn()
        return self

    def propose(self) -> Proposal:
        """Return better centres than those that stand, and what moving there would save.

        Nothing moves. Where answers tell choices, they are treated as a log is (`fit_log`): the
        saving has a 95 % interval, and there are doubts where the answers contradict the model.
        """
        study = self._begun()
        study.learn()
        return propose(study.strategy, self._for_log(study.entities))

    def move(self, centers: Any) -> Self:
        """Let the centres stand at a `Proposal`, or at these (K, d), and learn there from now on.

        What was learned stays learned.
        """
        study = self._begun()
        Y = centers.centers if isinstance(centers, Proposal) else centers
        study.hold(check_centers(Y, study.entities.n_features))
        return self

    def _for_log(self, entities: Entities) -> StagedStrategy | None:
        """Return a strategy for recorded choices of these entities; None if costs are all."""
        return choice_strategy(entities, self.n_clusters, np.random.default_rng(0), from_log=True)

    def reason_to_stop(self) -> str | None:
        """Return why a fit would end here, or None if it would go on."""
        reason = self._begun().strategy.reason_to_stop()
        return None if reason is None else self._in_full(reason)

    def finalize(self) -> Self:
        """Make of all answers so far what a fit makes of them at its end.

        It is for loops of `ask`, `tell` and `learn`, which may go on afterwards.
        """
        study = self._begun()
        study.learn()
        if not study.finalized:
            study.finalize()
            study.finalized = True
        return self

    def add_entities(self, X: Any, sample_weight: Any = None, covariates: Any = None) -> IntArray:
        """Take in new entities, prescribed from their features until they have answered.

        Weights are on the scale on which the mean weight of the first entities is one. Covariates
        are needed where the others have them. The new entities' numbers are returned, (m,).
        """
        study = self._begun()
        _check_feature_names(self, X, reset=False)
        return study.add_entities(X, sample_weight, covariates)

    def remove_entities(self, entities: Any) -> Self:
        """Let entities of these numbers go: they are not asked again and no longer count."""
        self._begun().remove_entities(entities)
        return self

    # -- results ----------------------------------------------------------------------------------

    def distortion_estimate(self) -> Estimate:
        """Return what the plan costs by answers alone, with a 95 % interval.

        After a fit these are the answers of the trial at its end. Otherwise they are recent answers
        about the centres as they stand and about prescriptions that were the best ones known. It is
        NaN as long as there are no such answers: before and without a fit, where centres have just
        moved, or after a fit of fewer than 100 questions.
        """
        return self._begun().distortion_estimate()

    @property
    def entities_(self) -> Entities:
        """The entities: features ``X``, ``weight`` (0 for those that left), ``covariates``."""
        return self._begun().entities

    @property
    def cluster_centers_(self) -> FloatArray:
        """Centres, (K, d)."""
        return self._begun().strategy.centers

    @property
    def labels_(self) -> IntArray:
        """Best prescription for each entity, -1 for those that left."""
        return self._begun().strategy.labels

    @property
    def distortion_(self) -> float:
        """Cost of the plan as the model sees it; see `distortion_estimate` for what was seen."""
        return self._begun().strategy.distortion

    @property
    def beta_(self) -> float:
        """How sharply prescriptions follow costs."""
        return self._begun().strategy.beta

    @property
    def model_(self) -> Autonomy | None:
        """What was learned, as an autonomy model: usable wherever one is. None before that.

        A `LoyalAutonomy` where single entities were seen to use centres of their own, whatever was
        prescribed.
        """
        return self._begun().strategy.model

    @property
    def n_interactions_(self) -> int:
        """Questions asked."""
        return self._begun().tally.asked

    @property
    def most_interactions_(self) -> int:
        """Questions that a fit may ask at most, as far as is known now."""
        return self._begun().strategy.limit

    @property
    def n_answers_(self) -> int:
        """Answers learned from."""
        return self._begun().tally.answered

    @property
    def n_repeated_(self) -> int:
        """Answers that came again, and were passed over."""
        return self._begun().tally.repeated

    @property
    def history_(self) -> list[Progress]:
        """One line for each batch: interactions, answers, beta, distortion by model and answers.

        Of a very long run, every other line is dropped now and then.
        """
        return self._begun().history

    @property
    def changes_(self) -> list[Change]:
        """When behaviour is believed to have changed, and what shows it."""
        return self._begun().changes

    @property
    def tried_(self) -> list[Tried]:
        """What the learned plan and the plain one have cost at the end of a fit."""
        return list(self._begun().trial.tried)

    @property
    def kept_(self) -> str:
        """Which of the two is kept: "learned" or "k-means"."""
        return self._begun().trial.kept

    @property
    def believed_(self) -> float:
        """What the learned plan was believed to cost when it was tried."""
        return self._begun().trial.believed

    def transform(self, X: Any, covariates: Any = None) -> FloatArray:
        """Return the expected cost of prescribing j to i as learned, shape (m, K).

        Of entities, only the features (and covariates) are used. For those of the fit, each as its
        own answers tell, see `expected_costs`.
        """
        return self.expected_costs(X, covariates)

    def expected_costs(
        self, X: Any = None, covariates: Any = None, centers: Any = None
    ) -> FloatArray:
        """Return the expected cost of prescribing j to i, at the plan's centres or others, (m, K).

        Parameters
        ----------
        X : array of shape (m, d), optional
            Entities; those of the fit by default.
        covariates : array of shape (m, c), optional
            Theirs, where choices depend on them.
        centers : array of shape (K, d), optional
            Other centres than the plan's.
        """
        strategy = self._begun().strategy
        Y = None
        if centers is not None:
            Y = check_centers(centers, strategy.entities.n_features)
            if len(Y) != self.n_clusters:
                raise ValueError(f"{len(Y)} centres, but n_clusters={self.n_clusters}.")
        if X is None:
            rows = np.arange(len(strategy.entities))
            return strategy.expected_costs(strategy.entities.X, rows, centers=Y)
        return strategy.expected_costs(self._features(X), None, covariates, Y)

    def predict(self, X: Any, covariates: Any = None) -> IntArray:
        """Return the best prescription for entities of which only the features are known, (m,).

        Where choices depend on covariates, those are needed too.
        """
        problem = self._problem_of(X, covariates)
        if self._prescribes_nearest():
            problem = problem.with_autonomy(Passive())
        return problem.labels(self.cluster_centers_)

    def _prescribes_nearest(self) -> bool:
        """Whether the plan is to prescribe the nearest centre."""
        return self.kept_ == PLAIN

    def predict_proba(self, X: Any, covariates: Any = None) -> FloatArray:
        """Return the policy, (m, K): one for the best prescription, zero for the others."""
        return np.eye(self.n_clusters)[self.predict(X, covariates)]

    def predict_realized(self, X: Any, covariates: Any = None) -> FloatArray:
        """Return the probabilities of the clusters that entities will really use, (m, K).

        If they are told what `predict` says.
        """
        told = self.predict_proba(X, covariates)
        return self._problem_of(X, covariates).realized(self.cluster_centers_, told)

    def score(
        self, X: Any, y: Any = None, sample_weight: Any = None, covariates: Any = None
    ) -> float:
        """Return minus the mean expected cost of entities under the learned plan.

        Parameters
        ----------
        X : array of shape (m, d)
        y : ignored
            Present by convention.
        sample_weight : array of shape (m,), optional
            Relative weights.
        covariates : array of shape (m, c), optional
            Needed where choices depend on them.

        Returns
        -------
        float
        """
        costs = self.expected_costs(X, covariates)
        weight = np.ones(len(costs)) if sample_weight is None else np.asarray(sample_weight)
        mine = costs[np.arange(len(costs)), self.predict(X, covariates)]
        return -float(np.average(mine, weights=weight))

    def _features(self, X: Any) -> FloatArray:
        _check_feature_names(self, X, reset=False)
        return self.entities_.features(X)

    def _problem_of(self, X: Any, covariates: Any) -> Problem:
        return self._begun().strategy.problem(self._features(X), None, covariates)

    # -- files ------------------------------------------------------------------------------------

    def save(self, path: Any, population: Any = None) -> Path:
        """Write everything needed to go on from here, complete or not at all.

        Parameters
        ----------
        path : path
            Where to; an older file is replaced.
        population : Population, optional
            If it has ``state_dict``, its state goes into the same file.
        """
        self._begun()
        return save_learner(self, Path(path), population)

    def resume(self, path: Any, population: Any = None) -> Self:
        """Go on from a file that :meth:`save` wrote, in this process or another.

        Parameters
        ----------
        path : path
            The file.
        population : Population, optional
            If it has ``load_state_dict`` and its state was saved, it goes back to it.
        """
        resume_learner(self, Path(path), population)
        return self

    def _check_same(self, X: Any, checkpoint: Any) -> None:
        """Raise unless the entities are those of the checkpoint, which may hold later ones too."""
        mine, given = self._study.entities, np.asarray(X, dtype=np.float64)
        if not np.array_equal(mine.X[: len(given)], given):
            raise ValueError(
                f"{checkpoint} was made with other entities ({len(mine)} x {mine.n_features}) than "
                f"X ({len(given)} x {given.shape[-1]})."
            )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_study")

    def _begun(self) -> Study:
        """Return the study, or raise one sentence."""
        if not hasattr(self, "_study"):
            raise NotFittedError(
                f"{type(self).__name__} has not begun: call start(X) or fit first."
            )
        return self._study


def _check_answers(population: Any) -> None:
    """Raise unless the population can answer, before anything learned is given up."""
    able = hasattr(population, "respond") or hasattr(population, "replay")
    if able and isinstance(population, type):
        raise ValueError(
            f"population must be an object, got the class {population.__name__} itself."
        )
    if not able:
        raise ValueError(
            "population must have a method respond(entities, prescribed, centers) that returns a "
            f"Response, such as SimulatedPopulation or your own; got {population!r}."
        )


def _check_fit_options(checkpoint: Any, every: Any, resume: bool, on_batch: Any) -> None:
    if resume and checkpoint is None:
        raise ValueError("resume=True needs checkpoint=, the file to go on from.")
    if checkpoint is not None:
        if not isinstance(checkpoint, str | PathLike):
            raise ValueError(f"checkpoint must be a path, got {checkpoint!r}.")
        check_file(Path(checkpoint))
    if not isinstance(every, int | float) or not every >= 0:
        raise ValueError(f"checkpoint_every must be seconds, got {every!r}.")
    if on_batch is not None and not callable(on_batch):
        raise ValueError(f"on_batch must be a function of the learner, got {on_batch!r}.")


def _seed(random_state: Any) -> Any:
    """Return a seed; a generator gives one, so that our own state is always of one kind."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63))
    try:
        np.random.default_rng(random_state)
    except (TypeError, ValueError):
        raise ValueError(
            "random_state must be None, a whole number that is not negative, or a generator; got "
            f"{random_state!r}."
        ) from None
    return random_state
