"""Entities that follow an autonomy model, which they keep to themselves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from volition.core.autonomy import Autonomy, Chunk, Passive, RowAutonomy
from volition.core.costs import SquaredEuclidean, resolve_cost
from volition.core.validation import (
    FloatArray,
    check_centers,
    check_entities,
    check_integer,
    check_scalar,
)
from volition.populations.answers import IntArray, Response, check_questions

#: answers worked out at a time
CHUNK = 8192


class SimulatedPopulation:
    """Entities that follow an autonomy model, which they keep to themselves.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities.
    autonomy : Autonomy, default=Passive()
        How they override.
    metric : str, Cost or callable, default="sqeuclidean"
        Cost of being served.
    reveal : {"realized", "cost"}, default="realized"
        Whether answers tell the realised cluster and its cost, or the cost only.
    missing : float, default=0.0
        Share of answers that never arrive.
    changes : dict of int to Autonomy, optional
        Models that replace the first one from the given interaction on.
    groups, autonomy_proba : array, optional
        As in `AutonomyAwareClustering.fit`.
    random_state : int, Generator or None
        Seed.

    Attributes
    ----------
    n_interactions : int
        Prescriptions received so far, lost answers included.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import DistanceAutonomy, SimulatedPopulation
    >>> X = np.array([[0.0], [1.0], [9.0]])
    >>> people = SimulatedPopulation(X, DistanceAutonomy(0.5), random_state=0)
    >>> answer = people.respond([0, 0, 2], [0, 0, 1], [[0.0], [9.0]])
    >>> answer.realized.tolist(), answer.cost.tolist()
    ([1, 0, 0], [81.0, 0.0, 81.0])
    >>> people.n_interactions
    3
    """

    def __init__(
        self,
        X: Any,
        autonomy: Autonomy | None = None,
        *,
        metric: Any = "sqeuclidean",
        reveal: str = "realized",
        missing: float = 0.0,
        changes: Mapping[int, Autonomy] | None = None,
        groups: Any = None,
        autonomy_proba: Any = None,
        random_state: Any = None,
    ) -> None:
        self._X = check_entities(X).astype(np.float64)
        self._cost = resolve_cost(metric)
        self._cost.check(self._X)
        if reveal not in ("realized", "cost"):
            raise ValueError(f"reveal must be 'realized' or 'cost', got {reveal!r}.")
        if autonomy_proba is not None:
            if autonomy is not None:
                raise ValueError("Give autonomy or autonomy_proba, not both.")
            autonomy = RowAutonomy(autonomy_proba)
        self.reveal = reveal
        self.missing = check_scalar(missing, "missing", 0, 1)
        self._models = {0: Passive() if autonomy is None else autonomy}
        for at, model in (changes or {}).items():
            check_integer(at, "the interaction at which the model changes", 1)
            self._models[int(at)] = model
        self._codes = {
            at: model.group_codes(groups, len(self._X)) for at, model in self._models.items()
        }
        self._rng = np.random.default_rng(random_state)
        self.n_interactions = 0

    @property
    def n_entities(self) -> int:
        """Number of entities."""
        return len(self._X)

    def add_entities(self, X: Any) -> IntArray:
        """Let more entities in; return their numbers."""
        X = check_centers(X, self._X.shape[1], "X")
        for model, codes in zip(self._models.values(), self._codes.values(), strict=True):
            if codes is not None or isinstance(model, RowAutonomy):
                raise ValueError(f"{model!r} says nothing about how new entities behave.")
        self._cost.check(X)
        before = len(self._X)
        self._X = np.concatenate([self._X, X])
        return np.arange(before, len(self._X))

    def respond(self, entities: Any, prescribed: Any, centers: Any) -> Response:
        """Return what each entity does; a million answers take about a second."""
        entities, prescribed, Y = check_questions(
            entities, prescribed, centers, len(self._X), self._X.shape[1]
        )
        K, m = Y.shape[-2], len(entities)
        realized, cost = np.full(m, -1, dtype=np.int64), np.full(m, np.nan)
        starts = np.array(sorted(self._models))
        for lo, hi in self._spans(starts, m):
            at = int(starts[np.searchsorted(starts, self.n_interactions + lo, "right") - 1])
            model, codes = self._models[at], self._codes[at]
            model.check(K, len(self._X))
            rows = slice(lo, hi)
            y = torch.from_numpy(Y if Y.ndim == 2 else Y[rows])
            told = entities[rows], prescribed[rows]
            realized[rows], cost[rows] = self._answers(model, codes, *told, y)
        self.n_interactions += m
        if self.missing > 0:
            lost = self._rng.random(m) < self.missing
            realized[lost], cost[lost] = -1, np.nan
        return Response(realized if self.reveal == "realized" else None, cost)

    def _spans(self, starts: IntArray, m: int) -> list[tuple[int, int]]:
        """Cut a batch where the model changes, and into chunks."""
        inside = starts - self.n_interactions
        cuts = [0, *inside[(inside > 0) & (inside < m)].tolist(), m]
        return [
            (lo, min(lo + CHUNK, hi))
            for first, hi in itertools.pairwise(cuts)
            for lo in range(first, hi, CHUNK)
        ]

    def _answers(
        self, model: Autonomy, codes: IntArray | None, entities: IntArray, prescribed: IntArray,
        Y: Tensor,
    ) -> tuple[IntArray, FloatArray]:  # fmt: skip
        X, u = torch.from_numpy(self._X[entities]), self._rng.random(len(entities))
        with torch.no_grad():
            if Y.ndim == 2 and codes is None and not model.by_entity:
                realized = _draw_shared(model.shared(Y, self._cost)[0].numpy(), prescribed, u)
                # A named function's cost to all centres is one call; else only what is needed.
                if isinstance(self._cost, SquaredEuclidean):
                    return realized, self._cost.each(X, Y[realized][:, None])[:, 0].numpy()
                D = self._cost.pairwise(X, Y)
            else:
                D = self._cost.pairwise(X, Y) if Y.ndim == 2 else self._cost.each(X, Y)
                p = self._probabilities(model, codes, entities, prescribed, X, Y, D)
                cumulative = np.cumsum(p, axis=1)
                below = cumulative <= u[:, None] * cumulative[:, -1:]
                realized = below.sum(1).clip(max=p.shape[1] - 1)
        return realized, D.numpy()[np.arange(len(u)), realized]

    def _probabilities(
        self, model: Autonomy, codes: IntArray | None, entities: IntArray, prescribed: IntArray,
        X: Tensor, Y: Tensor, D: Tensor,
    ) -> FloatArray:  # fmt: skip
        """Return p(. | j_i, i), shape (m, K)."""
        j = torch.from_numpy(prescribed)
        if Y.ndim == 3 and model.depends_on_centers:
            return model.conditional_each(X, j, Y, self._cost, entities).numpy()
        y, none = Y if Y.ndim == 2 else Y[0], torch.zeros(X.shape[1], dtype=X.dtype)
        group = np.zeros(len(X), dtype=np.int64) if codes is None else codes[entities]
        p = np.empty(D.shape)
        for g in np.unique(group):
            mine = np.flatnonzero(group == g)
            chunk = Chunk(X[mine], none, D[mine], entities[mine], int(g))
            p[mine] = model.transition(chunk, y, self._cost).conditional(j[mine]).numpy()
        return p

    def reseed(self, seed: int) -> None:
        """Draw as a new population with this ``random_state`` would; keep the count."""
        self._rng = np.random.default_rng(seed)

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on from here, as JSON can hold it."""
        return {"n_interactions": self.n_interactions, "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where :meth:`state_dict` was taken."""
        self.n_interactions = int(state["n_interactions"])
        self._rng.bit_generator.state = state["rng"]

    def __repr__(self) -> str:
        return (
            f"SimulatedPopulation(n_entities={len(self._X)}, reveal={self.reveal!r}, "
            f"n_interactions={self.n_interactions})"
        )


def _draw_shared(P: FloatArray, prescribed: IntArray, u: FloatArray) -> IntArray:
    """Draw from row j of P by one search in all rows laid end to end."""
    K = len(P)
    cumulative = np.cumsum(P, axis=1)
    cumulative /= cumulative[:, -1:]
    ends = (cumulative + np.arange(K)[:, None]).ravel()
    found = np.searchsorted(ends, prescribed + u, "right") - prescribed * K
    # What no probability reaches is not drawn, whatever the rounding.
    return np.minimum(found, K - 1 - (P[:, ::-1] > 0).argmax(1)[prescribed])
