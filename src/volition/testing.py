"""Checks for parts that you write yourself: a population, an autonomy model, a learner.

Each check raises AssertionError with one sentence that says what is wrong. They are what our own
tests run over everything that volition ships.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from volition.core.autonomy import Autonomy
from volition.core.costs import resolve_cost
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.estimators import Learner
from volition.io.models import load_model, save_model
from volition.populations.answers import Prescriptions, Response

__all__ = ["check_autonomy", "check_learner", "check_population"]


def check_population(population: Any, X: Any, n_clusters: int, random_state: int = 0) -> None:
    """Check that a population answers as learners expect.

    Parameters
    ----------
    population : Population
        Has ``respond(entities, prescribed, centers)``.
    X : array of shape (n, d)
        The entities that it numbers.
    n_clusters : int
        Number of centres to ask with.
    random_state : int
        Of the questions.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import DistanceAutonomy, SimulatedPopulation
    >>> from volition.testing import check_population
    >>> X = np.random.default_rng(0).random((20, 2))
    >>> check_population(SimulatedPopulation(X, DistanceAutonomy(0.3)), X, n_clusters=3)
    """
    X = np.asarray(X, dtype=np.float64)
    rng = np.random.default_rng(random_state)
    m = 60
    who, told = rng.integers(0, len(X), m), rng.integers(0, n_clusters, m)
    one = X[rng.integers(0, len(X), n_clusters)]
    each = X[rng.integers(0, len(X), (m, n_clusters))]
    for centers, what in ((one, "(K, d)"), (each, "(m, K, d)")):
        before = who.copy(), told.copy(), centers.copy()
        try:
            answer = population.respond(who, told, centers)
        except Exception as error:
            raise AssertionError(
                f"respond failed for centers of shape {what}: {type(error).__name__}: {error}"
            ) from error
        kind = type(answer).__name__
        _assert(isinstance(answer, Response), f"respond must return a Response, got a {kind}")
        _assert(
            len(answer) == m,
            f"respond gave {len(answer)} answers to {m} questions, with centers of shape {what}",
        )
        for mine, theirs in zip(before, (who, told, centers), strict=True):
            _assert(np.array_equal(mine, theirs), "respond must not change what it is given")
        used = -1 if answer.realized is None else answer.realized.max(initial=-1)
        _assert(used < n_clusters, f"realised clusters must be numbered 0 to {n_clusters - 1}")
        _assert(bool(answer.answered.any()), "of 60 questions not one was answered")
    empty = population.respond(who[:0], told[:0], one)
    _assert(len(empty) == 0, "no questions must give no answers")


def check_autonomy(model: Autonomy, X: Any, centers: Any, metric: Any = "sqeuclidean") -> None:
    """Check that an autonomy model is a law p(k | j, i), and that all its parts agree.

    Parameters
    ----------
    model : Autonomy
    X : array of shape (n, d)
        Entities.
    centers : array of shape (K, d)
    metric : str, Cost or callable
        Cost of being served.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import DistanceAutonomy
    >>> from volition.testing import check_autonomy
    >>> X = np.random.default_rng(0).random((20, 2))
    >>> check_autonomy(DistanceAutonomy(0.3, gamma=0.5), X, X[:3])
    """
    X, Y = np.asarray(X, dtype=np.float64), np.asarray(centers, dtype=np.float64)
    model.check(len(Y), len(X))
    cost = resolve_cost(metric)
    problem = Problem(X, cost=cost, autonomy=model)
    # p(. | j, i), one prescription at a time
    told = [np.tile(one, (len(X), 1)) for one in np.eye(len(Y))]
    p = np.stack([problem.realized(Y, one) for one in told], axis=1)
    _assert(bool(np.isfinite(p).all()), "p must be finite")
    _assert(bool((p >= -1e-12).all()), "p must not be negative")
    off = float(np.abs(p.sum(2) - 1).max())
    _assert(off < 1e-8, f"p(. | j, i) must sum to 1; it is off by {off:.1g}")
    D = Problem(X, cost=cost).expected_costs(Y)
    expected = np.einsum("ijk,ik->ij", p, D)
    _close(problem.expected_costs(Y), expected, "expected costs must be the mean of costs under p")
    policy = np.random.default_rng(0).dirichlet(np.ones(len(Y)), len(X))
    used = np.einsum("ij,ijk->ik", policy, p)
    _close(problem.realized(Y, policy), used, "realised shares must follow from p and the policy")
    rows = np.arange(0, len(X), 2)
    some = Problem(X[rows], cost=cost, autonomy=model.subset(rows)).expected_costs(Y)
    _close(some, expected[rows], "subset(rows) must be the model of these entities")
    obeying = Problem(X, cost=cost, autonomy=model.with_overrides_scaled(0.0)).expected_costs(Y)
    _close(obeying, D, "with_overrides_scaled(0) must be a model of entities that obey")


def check_learner(
    learner: Learner, X: Any, make_population: Callable[[], Any], n_interactions: int = 600
) -> None:
    """Check that a learner keeps the contract that all learners share.

    Parameters
    ----------
    learner : Learner
        Not fitted; it is cloned.
    X : array of shape (n, d)
        Entities.
    make_population : callable
        Makes a population of these entities, the same each time.
    n_interactions : int
        Questions that a fit may ask.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import ChoiceClustering, DistanceAutonomy, SimulatedPopulation
    >>> from volition.testing import check_learner
    >>> X = np.random.default_rng(0).random((60, 2))
    >>> def people():
    ...     return SimulatedPopulation(X, DistanceAutonomy(0.3), random_state=0)
    >>> check_learner(ChoiceClustering(3), X, people, n_interactions=300)
    """
    X = np.asarray(X, dtype=np.float64)
    new = clone(learner).set_params(n_interactions=n_interactions, random_state=0)
    K = new.n_clusters
    try:
        new.predict(X)
    except NotFittedError:
        pass
    else:
        raise AssertionError("predict before fit must raise NotFittedError")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = clone(new).fit(X, population=make_population())
        again = clone(new).fit(X, population=make_population())
    _assert(fitted.cluster_centers_.shape == (K, X.shape[1]), "centres must have shape (K, d)")
    _assert(fitted.labels_.dtype == np.int64, f"labels_ must be int64, not {fitted.labels_.dtype}")
    _assert(fitted.n_interactions_ <= n_interactions, "a fit must keep to n_interactions")
    same = np.array_equal(fitted.cluster_centers_, again.cluster_centers_)
    _assert(same, "the same seed must give the same centres")
    costs, labels = fitted.transform(X), fitted.predict(X)
    _assert(costs.shape == (len(X), K), "transform must give one cost for each centre")
    _assert(set(labels) <= set(range(K)), "predict must name clusters")
    for name in ("predict_proba", "predict_realized"):
        try:
            shares = getattr(fitted, name)(X)
        except ValueError:
            # A model of expected costs does not know who goes where, and says so.
            _assert(name == "predict_realized", f"{name} has failed")
            continue
        _assert(shares.shape == (len(X), K), f"{name} must give one share for each centre")
        _close(shares.sum(1), np.ones(len(X)), f"{name} must sum to 1")
    mine = costs[np.arange(len(X)), labels]
    _close(fitted.score(X), -mine.mean(), "score must be minus the mean cost of what is predicted")
    _assert(isinstance(fitted.history_, list), "history_ must be a list")
    _assert(
        all({"beta", "distortion"} <= set(line._fields) for line in fitted.history_),
        "lines of history_ must have beta and distortion",
    )
    _check_names(new, X, make_population)
    with tempfile.TemporaryDirectory() as folder:
        file = save_model(fitted, Path(folder) / "learner.safetensors")
        loaded = load_model(file)
    _assert(np.array_equal(loaded.predict(X), labels), "a loaded learner must predict the same")
    _check_questions(new, X, make_population())


def _check_names(new: Learner, X: FloatArray, make_population: Callable[[], Any]) -> None:
    """Check that names of columns are remembered, and that frames come out where wanted."""
    try:
        import pandas as pd
    except ImportError:
        return  # whoever has no frames cannot swap their columns
    names = [f"column {number}" for number in range(X.shape[1])]
    frame = pd.DataFrame(X, columns=names)
    learner = clone(new).set_output(transform="pandas").start(frame)
    _assert(list(learner.feature_names_in_) == names, "names of columns must be remembered")
    found = learner.transform(frame)
    _assert(isinstance(found, pd.DataFrame), "set_output must decide what transform returns")
    if len(names) > 1:
        try:
            learner.predict(frame[names[::-1]])
        except ValueError:
            return
        raise AssertionError("a frame with swapped columns must be refused.")


def _check_questions(new: Learner, X: FloatArray, population: Any) -> None:
    """Check asking and telling."""
    learner = clone(new).start(X)
    asked = learner.ask(entities=[2, 0])
    _assert(asked.entities.tolist() == [2, 0], "ask(entities=) must ask about these entities")
    _assert(asked.propensity is not None, "prescriptions must say how likely they were")
    answer = population.respond(asked.entities, asked.prescribed, asked.centers)
    learner.tell(asked, answer).learn()
    before = learner.n_answers_
    learner.tell(asked, answer).learn()
    _assert(learner.n_answers_ == before, "an answer that comes twice must count once")
    rows = Prescriptions.from_records(asked.to_records())
    _assert(rows == asked, "questions must survive being written to records")
    other = clone(new).start(X).ask(5)
    _assert(not np.isin(other.ids, asked.ids).any(), "numbers of questions must never come again")


def _close(found: Any, expected: Any, what: str) -> None:
    off = float(np.abs(np.asarray(found) - expected).max(initial=0.0))
    size = float(np.abs(expected).max(initial=1.0))
    _assert(off <= 1e-6 * size, f"{what}; they differ by {off:.1g}")


def _assert(right: bool, what: str) -> None:
    if not right:
        raise AssertionError(f"{what}.")
