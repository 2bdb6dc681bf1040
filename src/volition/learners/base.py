"""What all learners share: asking, being told, and going on after an interruption."""

from __future__ import annotations

import math
import signal
import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, is_dataclass
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClusterMixin

from volition.blocks import threads_for
from volition.costs import Cost, resolve_cost
from volition.learners.ledger import Asked, Ledger
from volition.learners.monitor import Change, Estimate, Monitor
from volition.learners.trial import (
    FAR_OFF_SHARE,
    LEARNED,
    PLAIN,
    PLAIN_SHARE,
    UNASKED,
    Plan,
    Tried,
    contradicts,
    disagreement,
    drawn_twice,
    enough_points,
    estimate,
    plain_is_cheaper,
    plain_plan,
    reserve,
)
from volition.learners.trial import (
    FEWEST as FEWEST_TRIED,
)
from volition.learners.trial import (
    MOST as MOST_TRIED,
)
from volition.population import IntArray, Population, Prescriptions, Response
from volition.problem import BLOCK_ROWS
from volition.storage import check_file, expect, read_file, reading, write_file
from volition.validation import (
    FloatArray,
    check_entities,
    check_integer,
    check_scalar,
    check_weights,
)

#: batches in a row without a single answer after which a population counts as silent
SILENCE = 20
#: lines of history beyond which every other one is dropped
LONGEST_HISTORY = 20_000
#: questions of the trial at the end that are asked at a time
TRIED_AT_ONCE = 512
#: kind of file
KIND = "volition-learner"
CTRL_C, CALLBACK = "ended by Ctrl-C", "ended by on_batch"
EARLY = (CTRL_C, CALLBACK)


class SilentPopulationError(RuntimeError):
    """A population that answers nothing."""


class Learner(ClusterMixin, BaseEstimator):
    """Base class: entities, questions, answers, checkpoints.

    A learner decides what to ask (`_choose`), what to make of answers (`_learn`), and when it has
    learned enough (`_enough`); everything else is here.
    """

    #: whether costs alone are not enough
    needs_realized = False

    #: whether each question comes with its own centres, (m, K, d), or all with the same, (K, d)
    _own_centers = False

    #: whether a change in the shares of realised clusters is a change of behaviour
    _watches_choices = True

    #: whether what `start` sets up is about to be replaced by a saved state
    _restoring = False

    cluster_centers_: Any
    labels_: Any
    distortion_: float
    beta_: float
    n_clusters: int
    metric: Any
    exploration: float
    n_interactions: int | str
    random_state: Any

    # -- for subclasses ---------------------------------------------------------------------------

    @abstractmethod
    def _begin(self) -> None:
        """Set up the state for the entities in ``self._X``."""

    @abstractmethod
    def _admit(self, first: int) -> None:
        """Make room for the entities from number ``first`` on."""

    @abstractmethod
    def _choose(
        self, entities: IntArray, blind: np.ndarray
    ) -> tuple[IntArray, Any, Any, FloatArray]:
        """Return prescriptions, their probabilities, whether each is the best known, and centres.

        Where ``blind``, the prescription is drawn uniformly. Centres are (K, d), or (n, K, d) where
        each question has its own.
        """

    @abstractmethod
    def _learn(
        self, asked: Asked, realized: IntArray | None, cost: FloatArray, centers: FloatArray
    ) -> None:
        """Take in answers, none of which comes twice, and the centres at which they were given."""

    @abstractmethod
    def _enough(self) -> str | None:
        """Return why a fit has learned what it set out to, or None if it has not."""

    @abstractmethod
    def _limit(self) -> int:
        """Return how many questions a fit may ask at most."""

    @abstractmethod
    def _limit_is_default(self) -> bool:
        """Whether nobody has said how many."""

    @abstractmethod
    def _conclude(self, thoroughly: bool) -> None:
        """Set centres and labels from what is known now; ``thoroughly`` at the end of a fit."""

    @abstractmethod
    def _relabel(self) -> None:
        """Set labels from what is known, at the centres as they stand."""

    def _begin_fit(self) -> None:
        """Prepare what only a fit does, not a loop of ask and tell."""

    def _as_now(self, shown: FloatArray) -> Any:
        """Return which centres, (K, d) or (m, K, d), are those whose cost is being watched."""
        return True

    def _doubts(self) -> list[str]:
        """Return, in sentences, what a user should know of a fit that has ended."""
        if not self.tried_:
            return []
        found = []
        if self.kept_ == PLAIN:
            learned, plain = (one.estimate for one in self.tried_)
            if learned.value - plain.value > FAR_OFF_SHARE * abs(plain.value):
                found.append(
                    "k-means centres with the nearest prescribed are kept: in answers they cost "
                    f"{plain.value:.4g} ({plain.low:.4g} to {plain.high:.4g}), what was learned "
                    f"{learned.value:.4g} ({learned.low:.4g} to {learned.high:.4g})."
                )
        off = disagreement(self.believed_, self.tried_[0])
        return found if off is None else [*found, off]

    def _figures(self) -> dict[str, float]:
        """Return what else belongs into a line of the history."""
        return {}

    @abstractmethod
    def _accept(self, numbers: dict[str, Any]) -> None:
        """Raise ValueError unless a saved state is of the kind that this learner keeps."""

    @abstractmethod
    def _behaviour_changed(self, change: Change) -> None:
        """Act on a change of behaviour."""

    @abstractmethod
    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the subclass's numbers and arrays, for saving."""

    @abstractmethod
    def _restore(self, numbers: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Return to a saved state."""

    # -- the life of a learner --------------------------------------------------------------------

    @classmethod
    def _params_from(cls, params: dict[str, Any]) -> dict[str, Any]:
        """Return constructor parameters from what JSON could hold of them."""
        return params

    @classmethod
    def from_file(cls, path: Any, *, metric: Any = None) -> Self:
        """Return the learner that `save` wrote, ready to go on.

        Parameters
        ----------
        path : path
            The file.
        metric : callable or Cost, optional
            Needed if the metric is a Python function, which is not stored.

        Returns
        -------
        Learner
        """
        header = read_file(Path(path), KIND)[1]
        with reading(Path(path)):
            params = cls._params_from(header["params"])
            saved = params["metric"]
            if saved is not None and metric is not None:
                raise ValueError(
                    f"{path} holds its own metric; metric= is only for Python functions."
                )
            if saved is None and metric is None:
                raise ValueError(
                    f"{path} was made with a Python function as metric, which is not stored in "
                    "the file; give it as metric=."
                )
            learner = cls(**(params | {"metric": saved or metric}))
        learner.resume(path)
        return learner

    def start(self, X: Any, sample_weight: Any = None) -> Learner:
        """Begin with these entities and no knowledge; needed before the first :meth:`ask`.

        Parameters
        ----------
        X : array of shape (n, d)
            Entities.
        sample_weight : array of shape (n,), optional
            Relative weights.

        Returns
        -------
        self
        """
        check_integer(self.n_clusters, "n_clusters", 1)
        check_scalar(self.exploration, "exploration", 0, 1)
        X = check_entities(X).astype(np.float64)
        self._cost: Cost = resolve_cost(self.metric)
        self._cost.check(X)
        if self.n_clusters > len(X):
            raise ValueError(f"n_clusters={self.n_clusters} is more than the {len(X)} entities.")
        weight = check_weights(sample_weight, len(X))
        self._X = X
        self._weight = np.full(len(X), 1.0) if weight is None else weight * len(X)
        self._rng = np.random.default_rng(_seed(self.random_state))
        self._ledger = Ledger()
        self._monitor = Monitor(self.n_clusters)
        self.n_features_in_ = X.shape[1]
        self.n_interactions_ = 0
        self.n_answers_ = 0
        self.n_repeated_ = 0
        self.history_: list[dict[str, float]] = []
        self.changes_: list[Change] = []
        self._concluded = False
        self._reserved = 0
        self.tried_: list[Tried] = []
        self.kept_, self.believed_ = LEARNED, math.nan
        self.stop_reason_: str | None = None
        self.interrupted_ = False
        self._begin()
        return self

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        population: Population,
        sample_weight: Any = None,
        checkpoint: Any = None,
        checkpoint_every: float = 10.0,
        resume: bool = False,
        on_batch: Callable[[Learner], Any] | None = None,
    ) -> Learner:
        """Ask, be answered, learn, until enough is known: a loop of `ask` and `tell`, and a trial.

        At the end the plan that was learned is tried, and so is the plain one (k-means centres,
        the nearest prescribed). A tenth of a given budget is kept for that. If the plain plan has
        clearly cost less, it is kept; ``tried_`` holds what both have cost, ``kept_`` which one it
        is, `distortion_estimate` what it costs. A warning says so where what was learned and what
        was seen differ.

        Parameters
        ----------
        X : array of shape (n, d)
            Entities, numbered as the population numbers them.
        y : ignored
            Present by convention.
        population : Population
            Whoever answers.
        sample_weight : array of shape (n,), optional
            Relative weights.
        checkpoint : path, optional
            File that always holds a state to go on from.
        checkpoint_every : float, default=10
            Seconds between checkpoints; 0 for one after every batch. There is always one before the
            trial, which begins anew if it is stopped.
        resume : bool, default=False
            Go on from ``checkpoint`` if the file is there.
        on_batch : callable, optional
            Called with the learner after each batch; a true result ends the fit.

        Returns
        -------
        self
        """
        _check_answers(population)
        if resume and checkpoint is None:
            raise ValueError("resume=True needs checkpoint=, the file to go on from.")
        if checkpoint is not None:
            if not isinstance(checkpoint, str | PathLike):
                raise ValueError(f"checkpoint must be a path, got {checkpoint!r}.")
            check_file(Path(checkpoint))
        if not isinstance(checkpoint_every, int | float) or not checkpoint_every >= 0:
            raise ValueError(f"checkpoint_every must be seconds, got {checkpoint_every!r}.")
        if on_batch is not None and not callable(on_batch):
            raise ValueError(f"on_batch must be a function of the learner, got {on_batch!r}.")
        if resume and Path(checkpoint).is_file():
            self._load(Path(checkpoint), population)
            self._check_same(check_entities(X), checkpoint)
        else:
            self.start(X, sample_weight)

        def save() -> None:
            self.save(checkpoint, population)

        kept = None if checkpoint is None else save
        self._run_fit(population, kept, checkpoint_every, on_batch)
        return self

    def _run_fit(
        self,
        population: Population,
        save: Callable[[], Any] | None = None,
        every: float = 10.0,
        on_batch: Callable[[Learner], Any] | None = None,
    ) -> str | None:
        """Learn and try what was learned, from wherever the fit stands; return why it ended."""
        logged = hasattr(population, "replay")
        if not logged:
            self._reserve()
        if not logged and self.n_interactions_ == 0:
            self._begin_fit()
        # A log is read to its end: its answers cost nothing more.
        free = logged and self._limit_is_default()
        enough = (lambda: None) if free else self._enough
        limit = None if free else self._limit
        self._run(population, enough, save, every, on_batch, limit, tries=not logged)
        return self.stop_reason_

    def _reserve(self) -> None:
        """Keep part of a given budget for the trial at the end."""
        if self.n_interactions != "auto":
            self._reserved = reserve(int(self.n_interactions))

    @property
    def _allowed(self) -> int | str:
        """Questions that learning may take, or "auto"."""
        if self.n_interactions == "auto":
            return "auto"
        return int(self.n_interactions) - self._reserved

    def _spent(self, limit: int) -> str:
        """Return why a fit ends that has asked as much as it may."""
        limit += self._reserved
        if self.n_interactions_ > limit:
            return f"n_interactions={limit}, and {self.n_interactions_} were asked before"
        return f"n_interactions={limit} reached"

    def _check_size(self, population: Any) -> None:
        """Raise if the population says that it has another number of entities."""
        theirs = getattr(population, "n_entities", len(self._X))
        if theirs != len(self._X):
            raise ValueError(
                f"The population has {theirs} entities, the learner {len(self._X)}; both must "
                "number the same ones (add_entities exists on both)."
            )

    def _check_same(self, X: FloatArray, checkpoint: Any) -> None:
        """Raise unless the entities are those of the checkpoint, which may hold later ones too."""
        known = self._X[: len(X)]
        # Entities that were added since the fit began are no others.
        if known.shape != X.shape or not np.array_equal(known, X.astype(np.float64)):
            raise ValueError(
                f"{checkpoint} was made with other entities ({len(self._X)} x "
                f"{self.n_features_in_}) than X ({len(X)} x {X.shape[1]})."
            )

    def fit_predict(
        self, X: Any, y: Any = None, *, population: Population, **params: Any
    ) -> IntArray:
        """Fit, and return ``labels_``."""
        self.fit(X, population=population, **params)
        return self.labels_

    def _features(self, X: Any) -> FloatArray:
        """Return entities as numbers, with as many columns as those of the fit."""
        X = check_entities(X).astype(np.float64)
        if X.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {X.shape[1]} columns, but {self.n_features_in_} are expected.")
        return X

    def partial_fit(
        self,
        X: Any = None,
        y: Any = None,
        *,
        population: Population,
        n_interactions: int | None = None,
        sample_weight: Any = None,
    ) -> Learner:
        """Go on learning for some more questions, from wherever the learner stands.

        Parameters
        ----------
        X : array of shape (n, d), optional
            Needed in the first call; later calls ignore it (see :meth:`add_entities`).
        y : ignored
            Present by convention.
        population : Population
            Whoever answers.
        n_interactions : int, optional
            Questions to ask; one batch by default.
        sample_weight : array of shape (n,), optional
            Relative weights, in the first call.

        Returns
        -------
        self
        """
        _check_answers(population)
        if not hasattr(self, "_X"):
            if X is None:
                raise ValueError("The first partial_fit needs X, the entities.")
            self.start(X, sample_weight)
        if n_interactions is not None:
            check_integer(n_interactions, "n_interactions", 1)
        goal = self.n_interactions_ + int(n_interactions or self._batch())

        def enough() -> str | None:
            return "as many questions as asked for" if self.n_interactions_ >= goal else None

        self._run(population, enough, limit=lambda: goal, thoroughly=False)
        return self

    def _run(
        self,
        population: Population,
        enough: Callable[[], str | None],
        save: Callable[[], Any] | None = None,
        every: float = 10.0,
        on_batch: Callable[[Learner], Any] | None = None,
        limit: Callable[[], int] | None = None,
        thoroughly: bool = True,
        tries: bool = False,
    ) -> None:
        self._check_size(population)
        self.interrupted_, self.stop_reason_, trying = False, None, False
        try:
            with _interruptible() as interrupted:
                reason = self._loop(population, enough, interrupted, save, every, on_batch, limit)
                early = reason in EARLY
                if self.n_interactions_ and not self.n_answers_ and thoroughly and not early:
                    raise SilentPopulationError(
                        f"The population answered none of the {self.n_interactions_} questions."
                    )
                if tries and not early and not self._concluded:
                    # A trial that is stopped, or fails, begins anew from here.
                    if save is not None:
                        save()
                    trying = True
                    self._finish(thoroughly)
                    more = self._try_plans(population, interrupted, on_batch, save, every)
                    reason, early = more or reason, more in EARLY
                    self._concluded = not early
        except BaseException:
            if save is not None and self.n_answers_ and not trying:
                save()
            raise
        self.interrupted_ = reason == CTRL_C
        self.stop_reason_ = reason
        # A run that ended early can be resumed as if it had not: nothing is concluded before.
        if save is not None and early and not trying:
            save()
        if not self._concluded and not trying:
            self._finish(thoroughly)
            self._concluded = thoroughly and not early
        if save is not None and not early:
            save()
        if thoroughly and not early:
            for doubt in self._doubts():
                warnings.warn(doubt, stacklevel=3)

    def _try_plans(
        self,
        population: Population,
        interrupted: list[bool],
        on_batch: Callable[[Learner], Any] | None,
        save: Callable[[], Any] | None,
        every: float,
    ) -> str | None:
        """Ask what the learned plan costs, and the plain one; keep the cheaper.

        Return why it ended before its time, if it did.
        """
        n = UNASKED
        if self.n_interactions != "auto":
            n = min(MOST_TRIED, int(self.n_interactions) - self.n_interactions_)
        return self._try_within(n, population, interrupted, on_batch)

    def _try_within(
        self,
        n: int,
        population: Population,
        interrupted: list[bool],
        on_batch: Callable[[Learner], Any] | None,
    ) -> str | None:
        """Try plans by so many questions."""
        if n < FEWEST_TRIED:
            return None
        entities, before, few = self._X, self.n_interactions_, int(PLAIN_SHARE * n)
        plans = [(Plan(LEARNED, self.cluster_centers_.copy(), self.labels_.copy()), n)]
        if enough_points(entities, self._weight, self.n_clusters):
            seed = int(self._rng.integers(2**31))
            plain = plain_plan(entities, self._weight, self._cost, self.n_clusters, seed)
            if few >= FEWEST_TRIED:
                plans = [(plans[0][0], n - few), (plain, few)]
        stopped, self.believed_ = None, self.distortion_
        tried = []
        for plan, m in plans:
            if stopped is None and self._X is entities:
                one, stopped = self._tried(population, plan, m, interrupted, on_batch)
                tried.append(one)
        if self._X is not entities:  # some have come since: it is another plan
            n -= self.n_interactions_ - before
            return stopped or self._try_within(n, population, interrupted, on_batch)
        self.tried_ = tried
        self._monitor.mark = self._monitor.n_costs  # what comes later is compared with the trial
        if len(tried) > 1 and plain_is_cheaper(self.believed_, *tried):
            self.kept_ = PLAIN
            self.cluster_centers_ = plain.centers
            self.labels_ = np.where(self._weight > 0, plain.labels, -1)
            self.distortion_ = tried[1].estimate.value
        self._note()
        return stopped

    def _forget_trial(self) -> None:
        """What was tried was another plan, or was about other entities."""
        self.tried_, self.kept_ = [], LEARNED

    def _tried(
        self,
        population: Population,
        plan: Plan,
        n: int,
        interrupted: list[bool],
        on_batch: Callable[[Learner], Any] | None,
    ) -> tuple[Tried, str | None]:
        """Ask about a plan; return what it has cost, and what has stopped it, if anything has."""
        shares = self._weight / self._weight.sum()
        entities, again = drawn_twice(self._draw_entities(n), shares)
        X, stopped = self._X, None
        paid = np.full(n, np.nan)
        for lo in range(0, n, TRIED_AT_ONCE):
            some = entities[lo : lo + TRIED_AT_ONCE]
            shape = (len(some), *plan.centers.shape) if self._own_centers else plan.centers.shape
            shown = np.broadcast_to(plan.centers, shape).copy()
            asked = Prescriptions(some, plan.labels[some], shown)
            paid[lo : lo + len(some)] = self._answers(population, asked).cost
            self.n_interactions_ += len(some)
            if on_batch is not None and on_batch(self):
                stopped = CALLBACK
            if interrupted:
                stopped = CTRL_C
            if stopped is not None or self._X is not X:
                break
        self.n_answers_ += int(np.isfinite(paid).sum())
        x, y = torch.from_numpy(X), torch.from_numpy(plan.centers)
        with torch.no_grad():
            obeying = self._cost.each(x, y[torch.from_numpy(plan.labels.clip(0))][:, None])
        control = obeying[:, 0].numpy()
        mean = float(shares @ control)
        seen = estimate(paid, control[entities], mean, entities, shares, again)
        return Tried(plan.name, *seen), stopped

    def _finish(self, thoroughly: bool) -> None:
        with self._few_threads():
            self._conclude(thoroughly)
        if self.history_ and self.history_[-1]["interactions"] == self.n_interactions_:
            del self.history_[-1]  # it is of before
        if self.n_answers_:
            self._note()

    def _loop(
        self,
        population: Population,
        enough: Callable[[], str | None],
        interrupted: list[bool],
        save: Callable[[], Any] | None,
        every: float,
        on_batch: Callable[[Learner], Any] | None,
        limit: Callable[[], int] | None,
    ) -> str:
        """Ask and tell until enough is known; return why it ended."""
        saved, silent = monotonic(), 0
        replay = getattr(population, "replay", None)
        while True:
            if (reason := enough()) is not None:
                return reason
            if interrupted:
                return CTRL_C
            n = self._batch()
            if limit is not None:
                n = min(n, limit() - self.n_interactions_)
            if replay is None:
                asked = self.ask(n)
                response = self._answers(population, asked)
            else:
                asked, response = replay(n)
                if len(asked) == 0:
                    return "the log is at its end"
                self.n_interactions_ += len(asked)
            before = self.n_answers_
            self.tell(asked, response)
            silent = 0 if self.n_answers_ > before else silent + 1
            if silent >= SILENCE:
                raise SilentPopulationError(
                    f"The population answered none of the last {silent * n} questions; what was "
                    "learned before is kept."
                )
            if save is not None and monotonic() - saved >= every:
                save()
                saved = monotonic()
            if on_batch is not None and on_batch(self):
                return CALLBACK

    def _answers(self, population: Population, asked: Prescriptions) -> Response:
        try:
            response = population.respond(asked.entities, asked.prescribed, asked.centers)
            if not isinstance(response, Response):
                raise TypeError(f"respond returned {type(response).__name__}, not a Response")
        except Exception as error:
            self._conclude(thoroughly=False)
            raise RuntimeError(
                f"The population failed after {self.n_answers_} answers "
                f"({type(error).__name__}: {error}); what was learned before is kept."
            ) from error
        return response

    @abstractmethod
    def _batch(self) -> int:
        """Return how many questions are asked at a time."""

    # -- ask and tell -----------------------------------------------------------------------------

    def enough(self) -> str | None:
        """Return why a fit would end here, or None if it would go on.

        It is for loops of `ask` and `tell`.

        Returns
        -------
        str or None
        """
        self._check_started()
        return self._enough()

    def conclude(self) -> Learner:
        """Make of all answers so far what a fit makes of them at its end.

        It is for loops of `ask` and `tell`, which may go on afterwards.

        Returns
        -------
        self
        """
        self._check_started()
        if not self._concluded:
            self._finish(thoroughly=True)
            self._concluded = True
        return self

    def ask(self, n: int | None = None) -> Prescriptions:
        """Return prescriptions to try.

        Parameters
        ----------
        n : int, optional
            How many; by default one batch, within what a fit may ask.

        Returns
        -------
        Prescriptions
            Their answers may be told late, in any order, in parts, or never.
        """
        self._check_asks()
        if n is None:
            left = self._limit() - self.n_interactions_
            n = min(self._batch(), left) if left > 0 else self._batch()
        check_integer(n, "n", 1)
        entities = self._draw_entities(n)
        blind = self._rng.random(n) < self.exploration
        with self._few_threads():
            prescribed, propensity, greedy, centers = self._choose(entities, blind)
        ids = self._ledger.issue(entities, prescribed, propensity, greedy, blind)
        self.n_interactions_ += n
        return Prescriptions(entities, prescribed, centers, ids)

    def _draw_entities(self, n: int) -> IntArray:
        """Draw entities in proportion to their weights, spread evenly over a random order."""
        order = self._rng.permutation(len(self._X))
        total = np.cumsum(self._weight[order])
        if not total[-1] > 0:
            raise ValueError("There are no entities left to ask; add some.")
        places = (np.arange(n) + self._rng.random()) / n * total[-1]
        drawn = order[np.searchsorted(total, places, "right").clip(max=len(order) - 1)]
        return self._rng.permutation(drawn)

    def tell(self, prescriptions: Prescriptions, response: Response) -> Learner:
        """Learn from answers.

        Parameters
        ----------
        prescriptions : Prescriptions
            From :meth:`ask`, all or some, in any order; or, without ``ids``, made by someone else.
        response : Response
            One row per prescription. Rows without an answer are passed over.

        Returns
        -------
        self
        """
        self._check_asks()
        if not isinstance(prescriptions, Prescriptions) or not isinstance(response, Response):
            raise ValueError(
                "tell needs Prescriptions, as ask returns them, and a Response; got "
                f"{type(prescriptions).__name__} and {type(response).__name__}."
            )
        cost, realized = response.cost, response.realized
        if cost.shape != (len(prescriptions),) or (
            realized is not None and realized.shape != cost.shape
        ):
            raise ValueError(
                f"{len(prescriptions)} prescriptions, but {len(response)} answers; there must be "
                "one row for each (cost NaN where no answer came)."
            )
        if prescriptions.centers.shape[-2:] != self.cluster_centers_.shape:
            raise ValueError(
                f"The prescriptions' centres have shape {prescriptions.centers.shape}, but "
                f"{self.cluster_centers_.shape} is expected."
            )
        rows = np.flatnonzero(np.isfinite(cost))
        if realized is None and self.needs_realized:
            raise ValueError(
                f"{type(self).__name__} needs the realised clusters, not only costs: the "
                "population must reveal them."
            )
        if realized is not None:
            bad = rows[(realized[rows] < 0) | (realized[rows] >= self.n_clusters)]
            if len(bad):
                raise ValueError(
                    f"Answer {bad[0]} names cluster {realized[bad[0]]}; clusters are numbered 0 to "
                    f"{self.n_clusters - 1}."
                )
        if prescriptions.ids is None:
            asked = self._from_elsewhere(prescriptions, rows)
        else:
            new, asked = self._ledger.settle(
                prescriptions.ids[rows],
                prescriptions.entities[rows],
                prescriptions.prescribed[rows],
            )
            self.n_repeated_ += len(rows) - len(new)
            rows = rows[new]
        # Those who left since they were asked are of no concern any more.
        here = self._weight[asked.entities] > 0
        rows, asked = rows[here], asked.take(np.flatnonzero(here))
        if len(rows) == 0:
            return self
        cost, realized = cost[rows], None if realized is None else realized[rows]
        self._concluded = False
        plan = self.cluster_centers_, self.labels_
        self.n_answers_ += len(rows)
        shown = prescriptions.centers
        good = (asked.greedy > 0) & self._as_now(shown if shown.ndim == 2 else shown[rows])
        seen = None if realized is None else realized[good]
        self._monitor.add_costs(cost[good], 1 / asked.propensity[good], asked.entities[good], seen)
        change = None
        if realized is not None and self._watches_choices:
            blind = asked.explored > 0
            change = self._monitor.add_choices(
                asked.prescribed[blind], realized[blind], (self.n_interactions_, self.n_answers_)
            )
        if change is not None:
            self.changes_.append(change)
            self._monitor.forget_costs()
            self._behaviour_changed(change)
        with self._few_threads():
            self._learn(asked, realized, cost, shown if shown.ndim == 2 else shown[rows])
        now = self.cluster_centers_, self.labels_
        if not all(np.array_equal(a, b) for a, b in zip(plan, now, strict=True)):
            self._forget_trial()
        elif self.tried_ and (change is not None or self._outdated()):
            self.tried_ = []  # of a plan that still stands
        self._note()
        return self

    def _outdated(self) -> bool:
        """Whether answers since the trial contradict it."""
        seen = self.tried_[self.kept_ == PLAIN].estimate
        recost = getattr(self, "_recost", None)
        return contradicts(self._monitor.distortion(recost, since_mark=True), seen)

    def _note(self) -> None:
        """Add a line to the history."""
        answers = self.distortion_estimate()
        self.history_.append(
            {
                "interactions": self.n_interactions_,
                "answers": self.n_answers_,
                "beta": self.beta_,
                "distortion": self.distortion_,
                "observed": answers.value,
                "low": answers.low,
                "high": answers.high,
                **self._figures(),
            }
        )
        if len(self.history_) > LONGEST_HISTORY:
            self.history_ = self.history_[::2]  # the newest is among them

    def _few_threads(self) -> AbstractContextManager[None]:
        """Steps on few entities are small: threads would only wait for each other."""
        return threads_for(-(-len(self._X) // BLOCK_ROWS))

    def _from_elsewhere(self, prescriptions: Prescriptions, rows: IntArray) -> Asked:
        entities, prescribed = prescriptions.entities[rows], prescriptions.prescribed[rows]
        for values, name, limit in (
            (entities, "entity", len(self._X)),
            (prescribed, "cluster", self.n_clusters),
        ):
            bad = np.flatnonzero((values < 0) | (values >= limit))
            if len(bad):
                raise ValueError(
                    f"There is no {name} {values[bad[0]]} (row {rows[bad[0]]}); {name} numbers go "
                    f"from 0 to {limit - 1}."
                )
        ones = np.ones(len(rows), dtype=np.int8)
        # How these were chosen is not known: they say nothing of our own cost, nor of changes.
        none = 0 * ones
        return Asked(-ones.astype(np.int64), entities, prescribed, ones * 1.0, none, none, ones)

    def distortion_estimate(self) -> Estimate:
        """Return what the plan costs by answers alone, with a 95 % interval.

        After a fit these are the answers of the trial at its end, as long as newer ones do not
        contradict them. Otherwise they are recent answers about the centres as they stand and about
        prescriptions that were the best ones known.

        Returns
        -------
        Estimate
            NaN as long as there are no such answers: before and without a fit, where centres have
            just moved, or after a fit of fewer than 100 questions.
        """
        self._check_started()
        seen = self.tried_[self.kept_ == PLAIN].estimate if self.tried_ else None
        if seen is not None and not np.isnan(seen.value):
            return seen
        return self._monitor.distortion(getattr(self, "_recost", None))

    # -- who comes and goes -----------------------------------------------------------------------

    def add_entities(self, X: Any, sample_weight: Any = None) -> IntArray:
        """Take in new entities, prescribed from their features until they have answered.

        Parameters
        ----------
        X : array of shape (m, d)
            Their features.
        sample_weight : array of shape (m,) or number, optional
            Weights on the scale on which the mean weight of the first entities is one.

        Returns
        -------
        ndarray of shape (m,)
            Their numbers.
        """
        self._check_asks()
        X, weight = self._check_new(X, sample_weight)
        first = len(self._X)
        self._X = np.concatenate([self._X, X])
        self._weight = np.concatenate([self._weight, weight])
        self._forget_trial()
        self._admit(first)
        self._monitor.forget_choices()
        return np.arange(first, len(self._X))

    def _check_new(self, X: Any, sample_weight: Any) -> tuple[FloatArray, FloatArray]:
        """Return new entities and their weights, or raise before anything has changed."""
        X = self._features(X)
        self._cost.check(X)
        weight = (
            np.ones(len(X))
            if sample_weight is None
            else np.broadcast_to(np.asarray(sample_weight, dtype=np.float64), (len(X),))
        )
        if not (np.isfinite(weight) & (weight >= 0)).all():
            raise ValueError("sample_weight of new entities must be finite and not negative.")
        return X, weight

    def remove_entities(self, entities: Any) -> Learner:
        """Let entities go: they are not asked again and no longer count.

        Parameters
        ----------
        entities : array of int
            Their numbers.

        Returns
        -------
        self
        """
        self._check_asks()
        numbers = np.atleast_1d(np.asarray(entities))
        if numbers.dtype.kind not in "iu" or (numbers < 0).any() or (numbers >= len(self._X)).any():
            raise ValueError(f"Entity numbers go from 0 to {len(self._X) - 1}, got {entities!r}.")
        self._weight[numbers] = 0
        self._forget_trial()
        self._monitor.forget_choices()
        self._relabel()
        return self

    # -- interruption -----------------------------------------------------------------------------

    def save(self, path: Any, population: Any = None) -> Path:
        """Write everything needed to go on from here, complete or not at all.

        Parameters
        ----------
        path : path
            Where to; an older file is replaced.
        population : Population, optional
            If it has ``state_dict``, its state goes into the same file.

        Returns
        -------
        Path
        """
        self._check_started()
        header, tensors = self._document()
        header["population"] = (
            population.state_dict() if hasattr(population, "state_dict") else None
        )
        return write_file(Path(path), tensors, KIND, header)

    def _document(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return all of a learner's state, as a file holds it."""
        numbers, arrays = self._state()
        ledger, book = self._ledger.state()
        monitor, watched = self._monitor.state()
        header = {
            "class": type(self).__name__,
            "n_clusters": self.n_clusters,
            "params": {name: _plain(value) for name, value in self.get_params(False).items()},
            "learner": numbers,
            "ledger": ledger,
            "monitor": monitor,
            "rng": self._rng.bit_generator.state,
            "concluded": self._concluded,
            "distortion": self.distortion_,
            "counts": [self.n_interactions_, self.n_answers_, self.n_repeated_],
            "history": self.history_,
            "ended": [self.stop_reason_, self.interrupted_],
            "tried": [[one.name, list(one.estimate), one.error] for one in self.tried_],
            "kept": [self.kept_, self.believed_],
            "changes": [list(change) for change in self.changes_],
        }
        tensors = {"X": self._X, "weight": self._weight, "centers": self.cluster_centers_}
        tensors["labels"] = self.labels_
        for prefix, group in (("learner", arrays), ("ledger", book), ("monitor", watched)):
            tensors |= {f"{prefix}.{name}": value for name, value in group.items()}
        return header, tensors

    def resume(self, path: Any, population: Any = None) -> Learner:
        """Go on from a file that :meth:`save` wrote, in this process or another.

        Parameters
        ----------
        path : path
            The file.
        population : Population, optional
            If it has ``load_state_dict`` and its state was saved, it goes back to it.

        Returns
        -------
        self
        """
        self._load(Path(path), population)
        return self

    def _load(self, path: Path, population: Any = None) -> None:
        """Go on from a file, or, where it is of no use, stay as if nothing had been tried."""
        tensors, header = read_file(path, KIND)
        before = self.__dict__.copy()
        try:
            with reading(path):
                header["population"]  # must be there; the population takes it up later
                self._take(tensors, header, path)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        if header["population"] is not None and hasattr(population, "load_state_dict"):
            try:
                population.load_state_dict(header["population"])
            except (KeyError, TypeError, ValueError):
                raise ValueError(
                    f"{path} was made with another kind of population than {population!r}."
                ) from None

    def _take(self, tensors: dict[str, np.ndarray], header: dict[str, Any], path: Path) -> None:
        if header["class"] != type(self).__name__ or header["n_clusters"] != self.n_clusters:
            raise ValueError(
                f"{path} is of {header['class']} with n_clusters={header['n_clusters']}, not of "
                f"{type(self).__name__} with n_clusters={self.n_clusters}."
            )
        self._accept(header["learner"])
        n, d = expect(tensors, "X", (None, None)).shape
        expect(tensors, "weight", (n,))
        expect(tensors, "centers", (self.n_clusters, d))
        labels = expect(tensors, "labels", (n,), "i")
        if labels.min() < -1 or labels.max() >= self.n_clusters:
            raise ValueError("'labels' holds a cluster that does not exist")
        groups: dict[str, dict[str, np.ndarray]] = {"learner": {}, "ledger": {}, "monitor": {}}
        for name, value in tensors.items():
            prefix, _, rest = name.partition(".")
            if rest:
                groups[prefix][rest] = value.copy()
        self._restoring = True
        try:
            self.start(tensors["X"])
        finally:
            self._restoring = False
        self._weight = tensors["weight"].copy()
        self.cluster_centers_ = tensors["centers"].copy()
        self._ledger = Ledger.restored(header["ledger"], groups["ledger"])
        self._monitor.restore(header["monitor"], groups["monitor"])
        self._rng.bit_generator.state = header["rng"]
        self.n_interactions_, self.n_answers_, self.n_repeated_ = header["counts"]
        self.history_ = header["history"]
        self.changes_ = [Change(*values) for values in header["changes"]]
        self._restore(header["learner"], groups["learner"])
        self.labels_, self.distortion_ = tensors["labels"].copy(), header["distortion"]
        self._concluded = header["concluded"]
        self.stop_reason_, self.interrupted_ = header["ended"]
        self.tried_ = [
            Tried(name, Estimate(*e), error) for name, e, error in header.get("tried", ())
        ]
        self.kept_, self.believed_ = header.get("kept", (LEARNED, math.nan))

    def _check_asks(self) -> None:
        """Raise unless there is something to ask, tell or change."""
        self._check_started()

    def _check_started(self) -> None:
        if not hasattr(self, "_X"):
            raise ValueError(f"{type(self).__name__} has not begun: call start(X) or fit first.")


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


def _plain(value: Any) -> Any:
    """Return a parameter as JSON can hold it; None for what belongs to the run, not the model."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, int | float | str) else None


@contextmanager
def _interruptible() -> Iterator[list[bool]]:
    """Let Ctrl-C end the loop after the batch in hand; a second one ends it at once."""
    interrupted: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def stop(number: int, frame: Any) -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append(True)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
