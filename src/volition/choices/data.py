"""Choices that were recorded, and what terms may explain them by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.stats import rankdata
from sklearn.cluster import KMeans
from torch import Tensor

from volition.choices.logit import Decisions
from volition.choices.terms import Basis, View, named
from volition.core.autonomy import Autonomy
from volition.core.costs import Cost
from volition.core.validation import FloatArray
from volition.populations.answers import IntArray

#: patches of the term "place", and entities that they are placed by, at most
MOST_PATCHES, PLACED_BY = 40, 5000
#: share of logged costs up to which a model follows its terms; the few above show too little
FOLLOWED = 0.98
#: parts that a log is cut into, in the order of its rows, to look for changes in time
PARTS = 24


def parts_of(m: int) -> IntArray:
    """Return the part of the log that each of its m rows is in."""
    return np.arange(m) * PARTS // max(1, m)


class Choices(NamedTuple):
    """Answers, one row each: who was asked to use what, what was used, and where centres stood."""

    entities: IntArray  # (m,)
    prescribed: IntArray  # (m,)
    realized: IntArray  # (m,)
    layout: IntArray  # (m,) number of the set of centres
    layouts: FloatArray  # (L, K, d) sets of centres; the last is today's

    def take(self, rows: Any) -> Choices:
        """Return some rows."""
        entities, prescribed, realized, layout, layouts = self
        return Choices(entities[rows], prescribed[rows], realized[rows], layout[rows], layouts)

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return self.layouts.shape[1]

    @property
    def at_last_layout(self) -> Any:
        """Which rows were answered at the last set of centres, (m,)."""
        return self.layout == len(self.layouts) - 1

    @property
    def entity_and_layout(self) -> IntArray:
        """A number for each row, (m,), the same for rows of one entity at the same centres."""
        return self.entities * len(self.layouts) + self.layout

    def by_layout(self) -> Iterator[tuple[IntArray, Tensor]]:
        """Yield the rows of each set of centres that has any, and these centres."""
        order = np.argsort(self.layout, kind="stable")
        edges = np.searchsorted(self.layout[order], np.arange(len(self.layouts) + 1))
        for number, Y in enumerate(torch.from_numpy(self.layouts)):
            rows = order[edges[number] : edges[number + 1]]
            if len(rows):
                yield rows, Y

    def costs(self, X: Any, cost: Cost) -> FloatArray:
        """Return what each centre then cost the entity of each row, (m, K)."""
        x, D = np.asarray(X, dtype=np.float64), np.empty((len(self.entities), self.n_clusters))
        with torch.no_grad():
            for rows, Y in self.by_layout():
                D[rows] = cost.pairwise(torch.from_numpy(x[self.entities[rows]]), Y).numpy()
        return D

    def prescribed_ranks(self, X: Any, cost: Cost) -> IntArray:
        """Return how many centres were nearer than the prescribed one, (m,)."""
        return nearness_ranks(self.costs(X, cost))[np.arange(len(self.entities)), self.prescribed]


def nearness_ranks(D: FloatArray) -> IntArray:
    """Return how many centres are nearer, (n, K); of equal ones the first is nearer."""
    ranks: IntArray = rankdata(D, "ordinal", axis=1) - 1
    return ranks


def predicted(model: Autonomy, X: FloatArray, choices: Choices, cost: Cost) -> FloatArray:
    """Return p(. | j, i) of each logged choice, (m, K), at the centres that stood then."""
    out = np.empty((len(choices.entities), choices.n_clusters))
    x = torch.from_numpy(np.asarray(X, dtype=np.float64))
    with torch.no_grad():
        for rows, Y in choices.by_layout():
            who, j = choices.entities[rows], torch.from_numpy(choices.prescribed[rows])
            each = Y.expand(len(rows), -1, -1)
            out[rows] = model.conditional_each(x[who], j, each, cost, who).numpy()
    return out


class Scene(NamedTuple):
    """What terms are made of, a row for each choice; costs in units of the data's own."""

    D: FloatArray  # (m, K) from the entity
    apart: FloatArray  # (m, K) from the prescribed centre
    rank: IntArray  # (m, K)
    covariates: FloatArray  # (m, c)
    place: FloatArray  # (m, M)
    prescribed: IntArray  # (m,)

    def take(self, rows: Any) -> Scene:
        """Return some rows."""
        return Scene(*(column[rows] for column in self))


def make_basis(X: FloatArray, covariates: FloatArray, random_state: int = 0) -> Basis | None:
    """Return patches where entities are; None where all stand at one point."""
    U = np.concatenate([X, covariates], axis=1)
    origin, scale = U.mean(0), U.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    rng = np.random.default_rng(random_state)
    some = (U - origin) / scale
    if len(some) > PLACED_BY:
        some = some[rng.choice(len(some), PLACED_BY, replace=False)]
    distinct = len(np.unique(some, axis=0))
    M = min(MOST_PATCHES, distinct // 2)
    if M < 2:
        return None
    places = KMeans(M, n_init=1, random_state=random_state).fit(some).cluster_centers_
    nearest = np.sort(cdist(places, places), axis=1)[:, 1]
    return Basis(origin, scale, places, 0.5 * float(np.median(nearest)))


def make_scene(
    X: FloatArray, choices: Choices, cost: Cost, cost_unit: float, covariates: FloatArray,
    basis: Basis | None,
) -> Scene:  # fmt: skip
    """Return the rows as terms see them."""
    D = choices.costs(X, cost) / cost_unit
    apart = np.empty_like(D)
    with torch.no_grad():
        for rows, Y in choices.by_layout():
            apart[rows] = cost.pairwise(Y, Y).numpy()[choices.prescribed[rows]] / cost_unit
    Z = covariates[choices.entities]
    place = np.zeros((len(D), 0))
    if basis is not None:
        U = np.concatenate([X, covariates], axis=1)
        place = basis(torch.from_numpy(U)).numpy()[choices.entities]
    return Scene(D, apart, nearness_ranks(D), Z, place, choices.prescribed)


def cost_ranges(
    X: FloatArray, choices: Choices, cost: Cost, cost_unit: float
) -> dict[str, tuple[float, float]]:
    """Return the lowest and highest costs that choices were made at; see `ChoiceAutonomy`."""
    scene = make_scene(X, choices, cost, cost_unit, np.zeros((len(X), 0)), None)
    obeying = np.take_along_axis(scene.D, scene.prescribed[:, None], 1)[:, 0]
    costs = {"stay": obeying, "excess": obeying - scene.D.min(1), "entity": scene.D}
    found = {
        about: (float(each.min()), float(np.quantile(each, FOLLOWED)))
        for about, each in costs.items()
    }
    if choices.n_clusters > 1:
        others = scene.apart[np.arange(choices.n_clusters) != scene.prescribed[:, None]]
        found["pair"] = (float(others.min()), float(others.max()))
    return found


def _view(about: str, scene: Scene) -> View:
    """Return what terms look at in logged choices."""
    j = scene.prescribed[:, None]
    mine = np.take_along_axis(scene.rank, j, 1)
    view = View(j, None, None, None, j, mine, mine, scene.covariates, scene.place)
    if about == "stay":
        cost = np.take_along_axis(scene.D, j, 1)
        view = view._replace(excess=cost - scene.D.min(1, keepdims=True))
    else:
        cost = scene.apart if about == "pair" else scene.D
        view = view._replace(cluster=np.arange(cost.shape[1]), rank=scene.rank)
    return view._replace(cost=cost, bent=cost)


def coefficient_slices(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Return where the coefficients of each term are, one term after the other."""
    ends = np.cumsum([0, *sizes.values()]).tolist()
    return {term: slice(lo, hi) for term, lo, hi in zip(sizes, ends[:-1], ends[1:], strict=True)}


def make_decisions(
    part: str, terms: Sequence[str], scene: Scene, realized: IntArray
) -> tuple[Decisions, FloatArray, dict[str, slice]]:
    """Return decisions, the ridge, and where the coefficients of each term are.

    Rows decide between staying and leaving or, of part "away", those that left decide where to.
    """
    K = scene.D.shape[1]
    if part == "away":
        rows = np.flatnonzero(realized != scene.prescribed)
        scene, realized = scene.take(rows), realized[rows]
    m, kinds, left = len(realized), named(part, terms), realized != scene.prescribed
    c, M = scene.covariates.shape[1], scene.place.shape[1]
    sizes = {term.name: term.size(K, c, M) for term in kinds}
    slices = coefficient_slices(sizes)
    columns = [
        (np.asarray(index) + slices[term.name].start, 1.0 if value is None else value)
        for term in kinds
        for index, value in term.columns(_view(term.about, scene))
    ]
    # Leaving has no terms: its utility is zero.
    A, counted = (2, 1) if part == "stay" else (K, K)
    which, values = np.zeros((m, A, len(columns)), np.int64), np.zeros((m, A, len(columns)))
    for s, (index, value) in enumerate(columns):
        which[:, :counted, s], values[:, :counted, s] = index, value
    open_, chosen = np.ones((m, A), bool), left.astype(np.int64)
    if part == "away":
        open_, chosen = np.arange(K) != scene.prescribed[:, None], realized
    ridge = np.repeat([term.ridge for term in kinds], list(sizes.values()))
    return Decisions(which, values, open_, chosen, np.ones(m), len(ridge)), ridge, slices
