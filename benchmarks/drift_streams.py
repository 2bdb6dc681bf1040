"""Streams of answers as learners get them: layouts in stages, and behaviour that may change.

`stream` asks as `ChoiceClustering` and `ADENClustering` do, without their cost of learning.
`People` answer whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from behaviours import make_town, squared, stay_or_go
from sklearn.cluster import KMeans

from volition import Response

Array = np.ndarray
#: answers about one set of centres
PER_LAYOUT = 64
#: stages: answers of each; the last goes on for ever, at held centres
STAGES = (2000, 4000, 8000)
ROAMING, WATCHED, BLIND = 0.3, 1 / 8, 0.1

#: p (n, K, K) of everybody at given centres
Law = Callable[[Array], Array]


class Place(NamedTuple):
    """Entities, and units of their costs."""

    X: Array
    K: int
    unit: float  # cost of a single centre
    seed: int

    @property
    def each(self) -> float:
        """Cost that K centres leave over, roughly."""
        return self.unit / self.K


def make_place(seed: int, K: int, n: int = 400) -> Place:
    """Draw entities in a few quarters."""
    X = make_town("near the entity", seed, n, K).X
    return Place(X, K, float(X.var(0).sum()), seed)


# -- behaviours -----------------------------------------------------------------------------------


def uniform(kappa: float) -> Callable[[Place], Law]:
    """Stay, or go anywhere."""

    def make(place: Place) -> Law:
        P = (1 - kappa) * np.eye(place.K) + kappa * (1 - np.eye(place.K)) / (place.K - 1)
        return lambda Y: np.broadcast_to(P, (len(place.X), place.K, place.K))

    return make


def distance(
    kappa: float, temperature: float, zeta: float = 1.0, gamma: float = 0.0
) -> Callable[[Place], Law]:
    """Stay, or go by the paper's family; the temperature is in units of what K centres cost."""

    def make(place: Place) -> Law:
        T = temperature * place.each

        def law(Y: Array) -> Array:
            apart, D = squared(Y, Y), squared(place.X, Y)
            return stay_or_go(kappa, -(zeta * apart[None] + gamma * D[:, None]) / T)

        return law

    return make


def obeying_by_cost(scale: float, low: float = 0.05, high: float = 0.8) -> Callable[[Place], Law]:
    """Obey less, the more it costs; else go to what is near."""

    def make(place: Place) -> Law:
        def law(Y: Array) -> Array:
            D = squared(place.X, Y) / place.each
            p = stay_or_go(1.0, -D)
            kappa = low + (high - low) * (D / (D + scale))
            return kappa[..., None] * p + (1 - kappa)[..., None] * np.eye(place.K)

        return law

    return make


def town(kind: str) -> Callable[[Place], Law]:
    """Return a behaviour of `behaviours.py`, with the entities of the place."""

    def make(place: Place) -> Law:
        from behaviours import DRAW

        one = make_town(kind, place.seed, len(place.X), place.K)
        one.X = place.X
        one.unit = place.each
        DRAW[kind](one)
        return one.p

    return make


def shunned(first: Callable[[Place], Law], centre: int, share: float) -> Callable[[Place], Law]:
    """Return a behaviour in which a share of what used one centre goes to the others."""

    def make(place: Place) -> Law:
        law = first(place)

        def other(Y: Array) -> Array:
            p = np.array(law(Y))
            lost = share * p[..., centre]
            p[..., centre] -= lost
            others = np.arange(place.K) != centre
            return p + lost[..., None] * others / (place.K - 1)

        return other

    return make


def own_table(place: Place) -> Law:
    """Every entity has a table of its own, which does not depend on the centres."""
    K, rng = place.K, np.random.default_rng([place.seed, 9])
    p = rng.dirichlet(np.ones(K), (len(place.X), K))
    return lambda Y: p


def half(first: Callable[[Place], Law], second: Callable[[Place], Law]) -> Callable[[Place], Law]:
    """Return a behaviour in which every other entity does the second."""

    def make(place: Place) -> Law:
        a, b = first(place), second(place)
        odd = (np.arange(len(place.X)) % 2 == 1)[:, None, None]
        return lambda Y: np.where(odd, b(Y), a(Y))

    return make


# -- streams --------------------------------------------------------------------------------------


class Asking:
    """Layouts and prescriptions of a learner that knows how entities behave from stage 1 on."""

    def __init__(self, place: Place, rng: np.random.Generator) -> None:
        self.place, self.rng = place, rng
        self.left, self.asked = np.zeros((2, len(place.X)))
        X, self.range = place.X, float(np.ptp(place.X, axis=0).max())
        self.bests = []
        for wobble in (1.0, 0.3, 0.1):
            seed = int(rng.integers(2**31))
            Y = KMeans(place.K, n_init=1, random_state=seed).fit(X).cluster_centers_
            self.bests.append(Y + wobble * np.sqrt(place.each) * rng.standard_normal(Y.shape))
        self.mean, self.scale = X.mean(0), np.sqrt(place.unit)

    def layout(self, t: int) -> Array:
        """Return centres for the answers from number t on."""
        rng, X = self.rng, self.place.X
        stage = int(np.searchsorted(np.cumsum(STAGES), t, "right"))
        best = self.bests[max(stage - 1, 0)] if stage < len(STAGES) else self.bests[-1]
        if stage == len(STAGES):
            return best
        if stage == 0 or rng.random() < ROAMING:
            drawn = X[rng.integers(0, len(X), self.place.K)]
            Y = self.mean + np.sqrt(rng.random()) * (drawn - self.mean)
            return Y + 0.02 * self.scale * rng.standard_normal(Y.shape)
        if rng.random() < WATCHED:
            return best
        return best + 0.1 * self.range * rng.random() * rng.standard_normal(best.shape)

    def prescribe(self, t: int, i: Array, D: Array) -> Array:
        """Return what is told: anything first, then mostly the best."""
        m, K = len(i), self.place.K
        blind = self.rng.integers(0, K, m)
        if t < STAGES[0]:
            return blind
        left = (self.left[i] + 4 * self.left.sum() / max(self.asked.sum(), 1)) / (self.asked[i] + 4)
        D = D / self.place.each
        weight = np.exp(-(D - D.min(1, keepdims=True)))
        others = weight.sum(1, keepdims=True) - weight + 1e-12
        away = ((weight * D).sum(1, keepdims=True) - weight * D) / others
        best = ((1 - left)[:, None] * D + left[:, None] * away).argmin(1)
        return np.where(self.rng.random(m) < BLIND, blind, best)


class Told(NamedTuple):
    """Answers about one layout."""

    entities: Array
    prescribed: Array
    realized: Array
    centers: Array
    #: p of each answer, by all laws
    p: list[Array]


def drawn(p: Array, rng: np.random.Generator) -> Array:
    """Return a column of each row, drawn by its probabilities."""
    total = np.cumsum(p, axis=1)
    k: Array = (total <= rng.random(len(p))[:, None] * total[:, -1:]).sum(1)
    return k.clip(max=p.shape[1] - 1)


def stream(place: Place, laws: list[tuple[int, Law]], n: int, seed: int) -> Iterator[Told]:
    """Yield answers layout by layout; ``laws`` hold from given moments on."""
    rng = np.random.default_rng([seed, 77])
    asking = Asking(place, rng)
    for t in range(0, n, PER_LAYOUT):
        Y = asking.layout(t)
        i = rng.integers(0, len(place.X), PER_LAYOUT)
        j = asking.prescribe(t, i, squared(place.X[i], Y))
        each = [law(Y)[i, j] for _, law in laws]
        p, now = each[0], t + np.arange(PER_LAYOUT)
        for (begin, _), other in zip(laws[1:], each[1:], strict=True):
            p = np.where((now >= begin)[:, None], other, p)
        k = drawn(p, rng)
        np.add.at(asking.left, i, k != j)
        np.add.at(asking.asked, i, 1)
        yield Told(i, j, k, Y, each)


class People:
    """Entities that answer by a law, which changes at given moments."""

    def __init__(
        self, place: Place, laws: list[tuple[int, Law]], seed: int, tells: str = "choices"
    ) -> None:
        self.place, self.laws, self.tells = place, laws, tells
        self.rng, self.n = np.random.default_rng([seed, 78]), 0

    def respond(self, entities: Array, prescribed: Array, centers: Array) -> Response:
        m, now = len(entities), self.n + np.arange(len(entities))
        sets = np.broadcast_to(centers, (m, *centers.shape[-2:]))
        begins = np.flatnonzero(np.append(True, (sets[1:] != sets[:-1]).any((1, 2))))
        p = np.empty((m, self.place.K))
        for lo, hi in zip(begins, [*begins[1:], m], strict=True):
            for begin, law in self.laws:
                rows = np.arange(lo, hi)[now[lo:hi] >= begin]
                if len(rows):
                    p[rows] = law(sets[lo])[entities[rows], prescribed[rows]]
        self.n += m
        k = drawn(p, self.rng)
        cost = ((self.place.X[entities] - sets[np.arange(m), k]) ** 2).sum(1)
        if self.tells == "minutes":
            cost = minutes(cost, self.rng)
        return Response(k if self.tells == "choices" else None, cost)


def minutes(cost: Array, rng: np.random.Generator) -> Array:
    """Return travel minutes, measured: those of squared distances, and a tenth of noise."""
    found: Array = 2 * np.sqrt(cost) * np.exp(0.1 * rng.standard_normal(len(cost)))
    return found


def difference(place: Place, a: Law, b: Law, seed: int = 0) -> float:
    """Return the mean total variation between the answers of two behaviours, all stages alike."""
    rng = np.random.default_rng(seed)
    asking, found = Asking(place, rng), []
    for t in (0, 3000, 8000) * 20:
        Y = asking.layout(t)
        i = rng.integers(0, len(place.X), PER_LAYOUT)
        j = asking.prescribe(t, i, squared(place.X[i], Y))
        found.append(0.5 * np.abs(a(Y)[i, j] - b(Y)[i, j]).sum(1).mean())
    return float(np.mean(found))
