"""Learning in stages: ask at many sets of centres, learn how entities respond, move the centres.

A learner of this kind keeps a model of the responses that holds for any centres. Each stage asks at
centres that are spread over the data or around the best ones known, fits the model to all answers,
and searches for better centres on the model, which costs no answers.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from volition.annealing import anneal
from volition.autonomy import Autonomy, Chunk, LoyalAutonomy
from volition.choices import Choices
from volition.choices.data import predicted
from volition.choices.loyalty import fit_loyalty, loyalty_if_clear, shares_of_others
from volition.learners.base import Learner
from volition.learners.policy import draw, gibbs
from volition.learners.trial import PLAIN
from volition.population import IntArray
from volition.portfolio import Search, canonical_order, thin
from volition.problem import Problem
from volition.schedules import Geometric
from volition.solvers import Gradient
from volition.validation import FloatArray

#: answers of the first stage; each later stage has twice as many
FIRST_STAGE = 2000
#: answers that stages ask for at most, unless told otherwise
MOST_STAGED = 100_000
#: share of layouts that are random over the data, and not around the best centres
ROAMING = 0.3
#: answers about one set of centres
PER_LAYOUT = 64
#: entities by which centres are moved, at most
MOVED_BY = 60_000
#: entities by which centres are searched for on a network
SEARCHED_BY = 1500
#: share of the data's spread by which centres move to become others, of unknown cost
MOVED = 0.05
#: one layout in so many is the centres as they stand, to see what they cost
WATCHED = 8
#: rows that a model is asked about at a time
ROWS = 16_384
#: how often a model and the loyalty of entities are fitted in turns
TURNS = 2


class StagedLearner(Learner):
    """What learners with a model of responses share."""

    _own_centers = True
    model_: Autonomy | None
    tol: float
    n_interactions: int | str

    @abstractmethod
    def _fit_model(self, kept: np.ndarray | None = None) -> None:
        """Fit ``model_`` to all answers, or without those choices that are not ``kept``."""

    @abstractmethod
    def _observed(self) -> Choices | None:
        """Return all choices that were seen; None where answers do not tell them."""

    def _begin_stages(self) -> Problem:
        """Set up the stages; return the problem of entities that obey."""
        base = Problem(self._X, cost=self._cost, sample_weight=self._weight)
        mean = base.mean_center()[0].astype(np.float64)
        self._scale, self._cost_unit = base.scale, base.cost_scale
        self._range = float((self._X.max(0) - self._X.min(0)).max()) or 1.0
        self.cluster_centers_ = np.repeat(mean[None], self.n_clusters, axis=0)
        self._stage, self._told, self._left = 0, 0, 0
        self._shown, self._exact = self.cluster_centers_, False
        self._finished: str | None = None
        self.model_ = None
        self._loyalty: FloatArray | None = None
        return base

    def _admit(self, first: int) -> None:
        if self._loyalty is not None and self._unattached is not None:
            self._loyalty = self._loyalty_of(len(self._X), first)
            self.model_ = LoyalAutonomy(self._unattached, self._loyalty)
        self._range = float(np.ptp(self._X[self._weight > 0], axis=0).max()) or 1.0
        self._relabel()

    def _enough(self) -> str | None:
        if self._finished is not None:
            return self._finished
        limit = self._limit()
        if self.n_interactions_ < limit:
            return None
        return self._spent(limit)

    def _limit_is_default(self) -> bool:
        return self.n_interactions == "auto"

    # -- asking -----------------------------------------------------------------------------------

    @property
    def _draws(self) -> int:
        """How often each question is asked."""
        return 1

    def _spread(self) -> float:
        """Return the standard deviation of the perturbation of the centres."""
        return 0.1 * self._range * float(self._rng.random())

    def _roaming(self) -> FloatArray:
        """Return centres anywhere among the entities, drawn together by a random factor."""
        here = np.flatnonzero(self._weight > 0)
        drawn = self._X[here[self._rng.integers(0, len(here), self.n_clusters)]]
        mean = np.average(self._X, axis=0, weights=self._weight)
        centers = mean + math.sqrt(self._rng.random()) * (drawn - mean)
        return centers + 0.02 * self._scale * self._rng.standard_normal(centers.shape)

    def _next_layout(self) -> None:
        """Choose the centres of the next questions."""
        roam = self._stage == 0 or self._rng.random() < ROAMING
        watched = self._rng.random() < 1 / WATCHED
        self._exact = self._finished is not None or (watched and not roam)
        if self._exact:
            self._shown = self.cluster_centers_.copy()
        elif roam:
            self._shown = self._within(self._roaming())
        else:
            self._shown = self._within(self._near(self.cluster_centers_))
        self._left = PER_LAYOUT

    def _near(self, Y: FloatArray) -> FloatArray:
        return Y + self._spread() * self._rng.standard_normal(Y.shape)

    def _within(self, Y: FloatArray) -> FloatArray:
        """Return centres where costs are defined."""
        if self._cost.translation_invariant:
            return Y
        return np.clip(Y, self._X.min(0), self._X.max(0))

    def _choose(
        self, entities: IntArray, blind: np.ndarray
    ) -> tuple[IntArray, Any, Any, FloatArray]:
        n, K, draws = len(entities), self.n_clusters, self._draws
        parts, begins, exact, done = [], [], np.zeros(n, dtype=bool), 0
        while done < n:
            if self._left == 0:
                self._next_layout()
            now = min(self._left, n - done)
            parts.append(self._shown)
            begins.append(done)
            exact[done : done + now] = self._exact
            self._left -= now
            done += now
        layouts = np.array(parts)
        which = np.searchsorted(begins, np.arange(n), "right") - 1
        # Several draws of one pair are one question asked several times.
        first = np.arange(0, n, draws)
        if self.model_ is None:
            q: FloatArray = np.zeros((len(first), K))
            pi: FloatArray = np.full(q.shape, 1 / K)
        else:
            q = self._costs_at(entities[first], which[first], layouts)
            pi = gibbs(q, self._policy_beta)
        drawn = draw(pi, self._rng)
        drawn = np.where(blind[first], self._rng.integers(0, K, len(first)), drawn)
        chance = (1 - self.exploration) * pi[np.arange(len(first)), drawn] + self.exploration / K
        prescribed, best, chance = (np.repeat(z, draws)[:n] for z in (drawn, q.argmin(1), chance))
        greedy = (self.model_ is not None) & exact & (prescribed == best)
        return prescribed, np.maximum(chance, 1e-12), greedy, layouts[which]

    @property
    def _policy_beta(self) -> float:
        return math.inf

    def _costs_at(self, entities: IntArray, which: IntArray, layouts: FloatArray) -> FloatArray:
        """Return expected costs (n, K) as the model sees them, each question at its layout."""
        model, out = self.model_, np.empty((len(entities), self.n_clusters))
        assert model is not None
        none = torch.zeros(self._X.shape[1], dtype=torch.float64)
        with torch.no_grad():
            for number, Y in enumerate(layouts):
                rows = np.flatnonzero(which == number)
                if len(rows) == 0:
                    continue
                x, y = torch.from_numpy(self._X[entities[rows]]), torch.from_numpy(Y)
                D = self._cost.pairwise(x, y)
                chunk = Chunk(x, none, D, entities[rows], 0)
                out[rows] = model.transition(chunk, y, self._cost).expected(D).numpy()
        return out

    # -- moving -----------------------------------------------------------------------------------

    def _explore(self) -> None:
        """End a stage: fit the model to all answers, and search for centres on it."""
        self._fit_model()
        self._fit_loyalty()
        self._move_to(self._search())

    def _fit_loyalty(self) -> None:
        """Find out which entities use a centre of their own, whatever they are told.

        The model is then of the other choices, and the two are fitted in turns: choices are left
        out as likely as they are ones of loyalty.
        """
        self._loyalty = None
        choices = self._observed()
        if choices is None or self.model_ is None:
            return
        n, rng = len(self._X), np.random.default_rng(0)
        p = self._likelihood(choices)
        found = loyalty_if_clear(choices, p, n)
        if found is None:
            return
        for _ in range(TURNS):
            self._fit_model(rng.random(len(p)) < shares_of_others(choices, p, found))
            p = self._likelihood(choices)
            found = fit_loyalty(choices, p, n)
        self._loyalty = found
        self.model_ = LoyalAutonomy(self.model_, found)

    def _likelihood(self, choices: Choices) -> FloatArray:
        """Return how likely each choice was by the model, (m,)."""
        assert self.model_ is not None
        p = predicted(self.model_, self._X, choices, self._cost)
        return p[np.arange(len(p)), choices.realized]

    def _loyalty_of(self, n: int, known: int = 0) -> FloatArray:
        """Return the loyalty of n entities: those known, and for the others the mean."""
        assert self._loyalty is not None
        mean = self._loyalty.mean() * np.ones((n - known, self.n_clusters))
        return np.concatenate([self._loyalty[:known], mean])

    @property
    def _unattached(self) -> Autonomy | None:
        """The model of choices that are not ones of loyalty."""
        model = self.model_
        return model.others if isinstance(model, LoyalAutonomy) else model

    def _with_loyalty(self, model: Autonomy) -> Autonomy:
        """Return a model of the other choices together with loyalty as it was found."""
        return model if self._loyalty is None else LoyalAutonomy(model, self._loyalty)

    def _search(self) -> FloatArray:
        """Return the best centres for the model."""
        return self._run_portfolio()

    def _run_portfolio(self, **more: Any) -> FloatArray:
        """Return the best centres for the model; ``more`` says how hard to search."""
        assert self.model_ is not None
        seed = np.random.RandomState(int(self._rng.integers(2**31)))
        # The first stage only finds out where to ask next; the second may be the last; later ones
        # begin near the best.
        by_entity = self.model_.by_entity  # each step then takes several times as long
        effort: dict[str, Any] = {"n_init": 2, "n_improved": 2} if by_entity else {"n_init": 3}
        if self._stage == 0:
            effort = {"n_init": 1, "n_improved": 0}
        elif self._stage > 1:
            effort = {"n_init": 1, "n_improved": 1, "given": [self.cluster_centers_]}
        effort |= more
        search = Search(self._problem(self.model_), self.n_clusters, seed, **effort)
        return search.run().centers

    def _search_on_network(self, Y: FloatArray) -> FloatArray:
        """Return the best of several starts, polished on what the network says."""
        assert self.model_ is not None
        whole = self._problem(self.model_)
        problem = thin(whole, canonical_order(whole), SEARCHED_BY)
        seed = int(self._rng.integers(2**31))
        annealed = anneal(
            problem, self.n_clusters, solver=Gradient(), schedule=Geometric(tau=1.8), max_iter=40,
            tol=1e-4, random_state=seed, predict=False,
        )  # fmt: skip
        starts = [Y, annealed.centers]
        if self._stage:
            starts.append(self.cluster_centers_)
        return self._polished(starts)

    def _polished(self, starts: list[FloatArray]) -> FloatArray:
        """Return the best of some centres, each polished on what the network says."""
        assert self.model_ is not None
        whole = self._problem(self.model_)
        problem = thin(whole, canonical_order(whole), SEARCHED_BY)
        search = Search(problem, self.n_clusters, np.random.RandomState(0), max_iter=60, tol=1e-4)
        polished = [search.polish(problem, start) for start in starts]
        return min(polished, key=whole.distortion)

    def _problem(self, model: Autonomy) -> Problem:
        here = np.flatnonzero(self._weight > 0)
        problem = Problem(
            self._X[here],
            sample_weight=self._weight[here],
            cost=self._cost,
            autonomy=model.subset(here),
        )
        return thin(problem, canonical_order(problem), MOVED_BY)

    def _searched(self) -> Autonomy:
        """Return the model by which centres are compared."""
        assert self.model_ is not None
        return self.model_

    def _move_to(self, Y: FloatArray) -> None:
        """Put the centres where they should be, unless those at hand are as good."""
        assert self.model_ is not None
        problem = self._problem(self._searched())
        if self._stage and self.model_.interchangeable:
            # Clusters keep their numbers: a search knows nothing of them.
            Y = Y[linear_sum_assignment(cdist(self.cluster_centers_, Y))[1]]
        old = problem.distortion(self.cluster_centers_) if self._stage else math.inf
        new = problem.distortion(Y)
        if old - new < self.tol * new:
            self._finished = f"centres no longer improve by more than tol={self.tol:g}"
        self._place(Y if new < old else self.cluster_centers_)

    def _as_now(self, shown: FloatArray) -> np.ndarray:
        moved: FloatArray = np.abs(shown - self.cluster_centers_).max((-2, -1))
        return moved <= MOVED * self._scale

    def _place(self, Y: FloatArray) -> None:
        """Put the centres here; what others have cost is not what these do."""
        self._left = 0
        if not np.array_equal(Y, self.cluster_centers_):
            self._forget_trial()
        if np.abs(Y - self.cluster_centers_).max() > MOVED * self._scale:
            self._monitor.forget_costs()
        self.cluster_centers_ = np.array(Y, dtype=np.float64)

    # -- results ----------------------------------------------------------------------------------

    def _figures(self) -> dict[str, float]:
        # As long as there is no model the distortion is not one that was learned.
        return {} if self.model_ is not None else {"distortion": math.nan}

    def _model_problem(self, X: FloatArray, rows: Any = None) -> Problem:
        """Return the problem of some entities; ``rows`` says which, if they are ours."""
        model = self.model_
        if model is not None and rows is not None:
            model = model.subset(rows)
        elif isinstance(model, LoyalAutonomy):
            model = LoyalAutonomy(model.others, self._loyalty_of(len(X)))
        if model is not None:
            model.check(self.n_clusters, len(X))
        return Problem(X, cost=self._cost, autonomy=model)

    def _relabel(self) -> None:
        here = np.flatnonzero(self._weight > 0)
        labels, total = np.full(len(self._X), -1), 0.0
        for lo in range(0, len(here), ROWS):
            rows = here[lo : lo + ROWS]
            expected = self._model_problem(self._X[rows], rows).expected_costs(
                self.cluster_centers_
            )
            labels[rows] = expected.argmin(1)
            total += float(self._weight[rows] @ expected.min(1))
        self.labels_ = labels
        self.distortion_ = total / max(float(self._weight.sum()), 1e-300)

    def expected_costs(self, X: Any = None) -> FloatArray:
        """Return the expected cost of prescribing j to i as learned, shape (n, K).

        Parameters
        ----------
        X : array of shape (m, d), optional
            Entities; those of the fit by default.
        """
        self._check_started()
        rows = np.arange(len(self._X)) if X is None else None
        X = self._X if X is None else self._features(X)
        return self._model_problem(X, rows).expected_costs(self.cluster_centers_)

    def predict(self, X: Any) -> IntArray:
        """Return the best prescription for entities by their features.

        Parameters
        ----------
        X : array of shape (m, d)

        Returns
        -------
        ndarray of shape (m,)
        """
        self._check_started()
        X = self._features(X)
        problem = Problem(X, cost=self._cost) if self.kept_ == PLAIN else self._model_problem(X)
        return problem.labels(self.cluster_centers_)
