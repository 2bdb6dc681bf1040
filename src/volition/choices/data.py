"""Choices that were observed, and what models may explain them by."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans

from volition.autonomy import Autonomy
from volition.choices.logit import Decisions
from volition.choices.model import SMALLEST, Basis, knots, term_size
from volition.choices.ranked import CLASSES, ranks
from volition.costs import Cost
from volition.population import IntArray
from volition.validation import FloatArray

#: patches of the term "place", and entities that they are placed by, at most
PLACES, PLACED_BY = 40, 5000
#: weight of the square of a coefficient: slopes are all but free, effects of clusters, ranks and
#: places are drawn a little towards none
RIDGE = {
    "cluster": 0.25,
    "table": 0.25,
    "rank": 0.05,
    "place": 0.1,
    "covariates x cluster": 0.25,
    "cost curve": 0.02,
    "pair curve": 0.02,
    "entity curve": 0.02,
}
SLOPE = 1e-4


#: share of logged costs up to which a model follows its terms; the few beyond tell too little
FOLLOWED = 0.98


#: parts that a log is cut into, in the order of its rows, to look for changes in time
PARTS = 24


def parts_of(m: int) -> IntArray:
    """Return the part of the log that each of its m rows is in."""
    return np.arange(m) * PARTS // max(1, m)


class Choices(NamedTuple):
    """Answers, one row each: who was asked, to use what, and used what, where the centres were."""

    entities: IntArray  # (m,)
    prescribed: IntArray  # (m,)
    realized: IntArray  # (m,)
    layout: IntArray  # (m,) number of the set of centres
    layouts: FloatArray  # (L, K, d)

    def take(self, rows: Any) -> Choices:
        """Return some rows."""
        entities, prescribed, realized, layout, layouts = self
        return Choices(entities[rows], prescribed[rows], realized[rows], layout[rows], layouts)

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return self.layouts.shape[1]


def predicted(model: Autonomy, X: FloatArray, choices: Choices, cost: Cost) -> FloatArray:
    """Return p(. | j, i) of each logged choice, (m, K), at the centres of its time."""
    out = np.empty((len(choices.entities), choices.n_clusters))
    x = torch.from_numpy(np.asarray(X, dtype=np.float64))
    with torch.no_grad():
        for number, Y in enumerate(torch.from_numpy(choices.layouts)):
            rows = np.flatnonzero(choices.layout == number)
            if len(rows) == 0:
                continue
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
    M = min(PLACES, distinct // 2)
    if M < 2:
        return None
    places = KMeans(M, n_init=1, random_state=random_state).fit(some).cluster_centers_
    nearest = np.sort(cdist(places, places), axis=1)[:, 1]
    return Basis(origin, scale, places, 0.5 * float(np.median(nearest)))


def make_scene(
    X: FloatArray,
    choices: Choices,
    cost: Cost,
    cost_unit: float,
    covariates: FloatArray,
    basis: Basis | None,
) -> Scene:
    """Return the rows as terms see them."""
    m, K = len(choices.entities), choices.n_clusters
    D, apart = np.empty((m, K)), np.empty((m, K))
    # Rows of one layout are done together.
    order = np.argsort(choices.layout, kind="stable")
    edges = np.searchsorted(choices.layout[order], np.arange(len(choices.layouts) + 1))
    with torch.no_grad():
        for number, Y in enumerate(torch.from_numpy(choices.layouts)):
            rows = order[edges[number] : edges[number + 1]]
            if len(rows):
                D[rows] = cost.pairwise(torch.from_numpy(X[choices.entities[rows]]), Y).numpy()
                apart[rows] = cost.pairwise(Y, Y).numpy()[choices.prescribed[rows]]
    D, apart = D / cost_unit, apart / cost_unit
    rank = ranks(torch.from_numpy(D)).numpy()
    Z = covariates[choices.entities]
    place = np.zeros((m, 0))
    if basis is not None:
        U = np.concatenate([X, covariates], axis=1)
        place = basis(torch.from_numpy(U)).numpy()[choices.entities]
    return Scene(D, apart, rank, Z, place, choices.prescribed)


def seen_costs(
    X: FloatArray, choices: Choices, cost: Cost, cost_unit: float
) -> dict[str, tuple[float, float]]:
    """Return between which costs choices were made: of obeying, of others, between centres."""
    scene = make_scene(X, choices, cost, cost_unit, np.zeros((len(X), 0)), None)
    rows = np.arange(len(scene.D))
    obeying = scene.D[rows, scene.prescribed]
    found = {
        "stay": (float(obeying.min()), float(np.quantile(obeying, FOLLOWED))),
        "entity": (float(scene.D.min()), float(np.quantile(scene.D, FOLLOWED))),
    }
    if choices.n_clusters > 1:
        others = scene.apart[np.arange(choices.n_clusters) != scene.prescribed[:, None]]
        found["pair"] = (float(others.min()), float(others.max()))
    return found


def _curve(cost: FloatArray) -> tuple[IntArray, FloatArray]:
    low, part = (z.numpy() for z in knots(torch.from_numpy(cost)))
    return np.stack([low, low + 1], axis=-1), np.stack([1 - part, part], axis=-1)


def _columns(part: str, term: str, scene: Scene) -> tuple[IntArray, FloatArray]:
    """Return which coefficient of a term applies to each alternative, and its value, (m, A, S)."""
    m, K = scene.D.shape
    j, rows = scene.prescribed, np.arange(m)
    Z = scene.covariates
    c, M = Z.shape[1], scene.place.shape[1]
    if part == "stay":
        mine = scene.rank[rows, j].clip(max=CLASSES - 1)
        none, one = np.zeros((m, 1), int), np.ones((m, 1))
        columns = {
            "constant": (none, one),
            "cost": (none, scene.D[rows, j][:, None]),
            "log cost": (none, np.log(scene.D[rows, j] + SMALLEST)[:, None]),
            "cost curve": _curve(scene.D[rows, j]) if term == "cost curve" else (none, one),
            "cluster": (j[:, None], one),
            "rank": (mine[:, None], one),
            "covariates": (np.broadcast_to(np.arange(c), (m, c)), Z),
            "place": (np.broadcast_to(np.arange(M), (m, M)), scene.place),
        }
        index, value = columns[term]
        return index[:, None], value[:, None]
    k = np.broadcast_to(np.arange(K), (m, K))
    none, one = np.zeros((m, K, 1), int), np.ones((m, K, 1))
    if term == "rank":
        mine = scene.rank[rows, j][:, None]
        others = (scene.rank - (scene.rank > mine)).clip(max=CLASSES - 1)
        return (mine.clip(max=CLASSES - 1) * CLASSES + others)[..., None], one
    if term == "covariates x cluster":
        return np.arange(c) * K + k[..., None], np.broadcast_to(Z[:, None], (m, K, c))
    if term == "covariates x entity":
        return np.broadcast_to(np.arange(c), (m, K, c)), scene.D[..., None] * Z[:, None]
    costs = {"pair": scene.apart, "entity": scene.D}
    if term.endswith(" curve"):
        return _curve(costs[term.removesuffix(" curve")])
    if term.removeprefix("log ") in costs:
        cost = costs[term.removeprefix("log ")]
        return none, (np.log(cost + SMALLEST) if term.startswith("log ") else cost)[..., None]
    return (k if term == "cluster" else j[:, None] * K + k)[..., None], one


def make_decisions(
    part: str, terms: tuple[str, ...], scene: Scene, realized: IntArray
) -> tuple[Decisions, FloatArray, dict[str, slice]]:
    """Return the decisions of a part of the model, the ridge, and where each term's numbers are.

    For "stay" a row decides between staying and leaving; for "away" only rows that left count, and
    they decide where to.
    """
    K = scene.D.shape[1]
    if part == "away":
        left = np.flatnonzero(realized != scene.prescribed)
        scene, realized = scene.take(left), realized[left]
    m, c, M = len(realized), scene.covariates.shape[1], scene.place.shape[1]
    indices, values, ridge, places, first = [], [], [], {}, 0
    for term in terms:
        size = term_size(part, term, K, c, M)
        index, value = _columns(part, term, scene)
        indices.append(index + first)
        values.append(value)
        ridge += [RIDGE.get(term, SLOPE)] * size
        places[term] = slice(first, first + size)
        first += size
    A = K if part == "away" else 1
    index = np.concatenate([*indices, np.zeros((m, A, 0), int)], axis=2)
    value = np.concatenate([*values, np.zeros((m, A, 0))], axis=2)
    if part == "stay":
        index = np.concatenate([index, np.zeros_like(index)], axis=1)
        value = np.concatenate([value, np.zeros_like(value)], axis=1)
        open_, chosen = np.ones((m, 2), bool), (realized != scene.prescribed).astype(np.int64)
    else:
        open_ = np.arange(K) != scene.prescribed[:, None]
        chosen = realized
    decisions = Decisions(index, value, open_, chosen, np.ones(m), first)
    return decisions, np.array(ridge), places
