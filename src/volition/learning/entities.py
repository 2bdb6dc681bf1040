"""The entities of a study: where they are, how much they count, and what else is known of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from volition.choices.coding import Coding, are_numbers, check_covariates, make_coding
from volition.core.costs import Cost
from volition.core.outliers import warn_of_outliers
from volition.core.problem import Problem, check_spread
from volition.core.validation import FloatArray, check_entities, check_weights
from volition.io.checked_files import expect
from volition.populations.answers import IntArray


def column_names(X: Any) -> list[str] | None:
    """Return the names of a frame's columns; None for what has none."""
    columns = getattr(X, "columns", None)
    return None if columns is None else [str(name) for name in columns]


@dataclass(frozen=True)
class Entities:
    """Features, weights and covariates; an entity that has left has weight 0.

    Nothing is changed in place: `added` and `without` return other objects.

    Parameters
    ----------
    X : array of shape (n, d)
        Features.
    weight : array of shape (n,)
        Weights; their mean over the first entities is one.
    cost : Cost
        Cost of being served, as far as it is known.
    covariates : array of shape (n, c), optional
        What else is known and may matter for choices, as numbers.
    coding : Coding, optional
        How text became numbers.
    """

    X: FloatArray
    weight: FloatArray
    cost: Cost
    covariates: FloatArray | None = None
    coding: Coding | None = None

    @classmethod
    def of(cls, X: Any, sample_weight: Any, cost: Cost, covariates: Any = None) -> Entities:
        """Return entities from what a user gives, checked; outliers are warned of."""
        names = column_names(X)
        X = check_entities(X).astype(np.float64)
        cost.check(X)
        check_spread(X, cost)
        given = check_weights(sample_weight, len(X))
        warn_of_outliers(X, given, names)
        weight = np.full(len(X), 1.0) if given is None else given * len(X)
        coding, numbers = None, None
        if covariates is not None:
            coding = None if are_numbers(covariates) else make_coding(covariates, len(X))
            coded = covariates if coding is None else coding.apply(covariates, len(X))
            numbers = check_covariates(coded, len(X))
        return cls(X, weight, cost, numbers, coding)

    def __len__(self) -> int:
        return len(self.X)

    @property
    def n_features(self) -> int:
        """Number of columns of X."""
        return self.X.shape[1]

    @property
    def here(self) -> IntArray:
        """Numbers of those that have not left."""
        return np.flatnonzero(self.weight > 0)

    @property
    def range(self) -> float:
        """Longest side of the box around those that are here."""
        return float(np.ptp(self.X[self.weight > 0], axis=0).max()) or 1.0

    def features(self, X: Any) -> FloatArray:
        """Return other entities' features, with as many columns as these have."""
        X = check_entities(X).astype(np.float64)
        if X.shape[1] != self.n_features:
            raise ValueError(f"X has {X.shape[1]} columns, but {self.n_features} are expected.")
        return X

    def covariates_of(self, covariates: Any, n: int) -> FloatArray:
        """Return others' covariates as numbers, coded as those of these entities."""
        if self.coding is not None and not are_numbers(covariates):
            return self.coding.apply(covariates, n)
        width = None if self.covariates is None else self.covariates.shape[1]
        return check_covariates(covariates, n, width)

    def added(self, X: Any, sample_weight: Any = None, covariates: Any = None) -> Entities:
        """Return these entities and some more."""
        if (covariates is None) != (self.covariates is None):
            raise ValueError("New entities need covariates if the others have them, and only then.")
        names = column_names(X)
        X = self.features(X)
        self.cost.check(X)
        weight = np.ones(len(X))
        if sample_weight is not None:
            weight = np.broadcast_to(np.asarray(sample_weight, dtype=np.float64), (len(X),))
        if not (np.isfinite(weight) & (weight >= 0)).all():
            raise ValueError("sample_weight of new entities must be finite and not negative.")
        numbers = self.covariates
        if numbers is not None:
            numbers = np.concatenate([numbers, self.covariates_of(covariates, len(X))])
        X, weight = np.concatenate([self.X, X]), np.concatenate([self.weight, weight])
        warn_of_outliers(X, weight, names, since=len(self))
        return replace(self, X=X, weight=weight, covariates=numbers)

    def without(self, entities: Any) -> Entities:
        """Return the entities after some have left."""
        weight = self.weight.copy()
        weight[self.check_numbers(entities)] = 0
        return replace(self, weight=weight)

    def check_numbers(self, entities: Any) -> IntArray:
        """Return numbers of entities, or raise one sentence."""
        numbers = np.atleast_1d(np.asarray(entities))
        if numbers.dtype.kind not in "iu" or (numbers < 0).any() or (numbers >= len(self)).any():
            raise ValueError(f"Entity numbers go from 0 to {len(self) - 1}, got {entities!r}.")
        return numbers.astype(np.int64)

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        """Draw entities in proportion to their weights, spread evenly over a random order."""
        order = rng.permutation(len(self.X))
        total = np.cumsum(self.weight[order])
        if not total[-1] > 0:
            raise ValueError("There are no entities left to ask; add some.")
        places = (np.arange(n) + rng.random()) / n * total[-1]
        drawn = order[np.searchsorted(total, places, "right").clip(max=len(order) - 1)]
        return rng.permutation(drawn)

    def distances(self, Y: FloatArray, rows: Any = slice(None)) -> FloatArray:
        """Return the costs of being served at centres Y, (m, K)."""
        x = torch.from_numpy(np.ascontiguousarray(self.X[rows]))
        with torch.no_grad():
            D: FloatArray = self.cost.pairwise(x, torch.from_numpy(np.asarray(Y))).numpy()
        return D

    def problem(self) -> Problem:
        """Return the problem of these entities if all obeyed."""
        return Problem(self.X, cost=self.cost, sample_weight=self.weight)

    def state(self) -> dict[str, Any]:
        """Return what a file needs; the cost is a parameter of its own."""
        names = ("X", "weight", "covariates", "coding")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_state(cls, state: dict[str, Any], cost: Cost) -> Entities:
        """Return the entities that `state` describes."""
        n, _ = expect(state, "X", (None, None)).shape
        expect(state, "weight", (n,))
        if state["covariates"] is not None:
            expect(state, "covariates", (n, None))
        return cls(**state, cost=cost)
