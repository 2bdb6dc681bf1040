"""Towns whose entities behave as no model here assumes, with their true costs.

Each behaviour draws hidden traits of its entities once. Learners and logs see answers only; the
benchmarks ask for the true cost of a plan. Behaviours by which an entity remembers something are
played out step by step, the others have p(k | j, i) in closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.cluster import KMeans

from volition import Response

Array = np.ndarray


def squared(X: Array, Y: Array) -> Array:
    """Return squared distances (n, K)."""
    return ((X[:, None] - Y[None]) ** 2).sum(-1)


def stay_or_go(kappa: Any, utility: Array) -> Array:
    """Return p (n, K, K): stay with 1 - kappa, else another by the softmax of its utility.

    ``utility`` is (n, K), or (n, K, K) by prescribed and alternative.
    """
    n, K = utility.shape[0], utility.shape[-1]
    u = np.broadcast_to(utility[:, None] if utility.ndim == 2 else utility, (n, K, K)).copy()
    u[:, np.arange(K), np.arange(K)] = -np.inf
    away = softmax(u, axis=2)
    kappa = np.broadcast_to(np.asarray(kappa, dtype=float).reshape(-1, 1, 1), (n, 1, 1))
    return (1 - kappa) * np.eye(K) + kappa * away


@dataclass
class Town:
    """Entities, what is hidden about them, and how they answer."""

    X: Array
    n_clusters: int
    kind: str
    rng: np.random.Generator
    traits: dict[str, Any] = field(default_factory=dict)
    covariates: Array | None = None
    #: what each entity used last, and was told last; -1 before its first answer
    last: Array = field(init=False)
    told: Array = field(init=False)

    def __post_init__(self) -> None:
        self.last, self.told = np.full((2, len(self.X)), -1)
        self.unit = float(self.X.var(0).sum()) / self.n_clusters
        DRAW[self.kind](self)

    def p(self, Y: Array) -> Array:
        """Return p(k | j, i) at these centres, (n, K, K), averaged over what no log holds."""
        return CHOOSE[self.kind](self, np.asarray(Y, dtype=float))

    @property
    def remembers(self) -> bool:
        """Whether answers depend on earlier ones."""
        return self.kind == "habit" or self.kind in REMEMBERING

    def respond(self, entities: Any, prescribed: Any, centers: Any) -> Response:
        """Answer, as a population does; ``centers`` (K, d) or (m, K, d)."""
        entities, prescribed = np.asarray(entities), np.asarray(prescribed)
        Y = np.asarray(centers, dtype=float)
        m, used = len(entities), np.empty(len(entities), dtype=np.int64)
        each = np.broadcast_to(Y, (m, *Y.shape[-2:]))
        first = np.concatenate([[True], (each[1:] != each[:-1]).any((1, 2))])
        begins = [*np.flatnonzero(first), m]
        for lo, hi in pairwise(begins):
            p = self.p(each[lo])
            rows = slice(lo, hi)
            if self.remembers:
                used[rows] = self._step_by_step(p, entities[rows], prescribed[rows])
            else:
                used[rows] = draw(p[entities[rows], prescribed[rows]], self.rng)
        x = self.X[entities]
        cost = ((x - each[np.arange(m), used]) ** 2).sum(1)
        return Response(used, cost)

    def _step_by_step(self, p: Array, entities: Array, prescribed: Array) -> Array:
        if self.kind in REMEMBERING:
            return self._after_the_last(p, entities, prescribed)
        used = draw(p[entities, prescribed], self.rng)
        again = self.rng.random(len(used)) < self.traits["habit"]
        for row, i in enumerate(entities):
            if again[row] and self.last[i] >= 0:
                used[row] = self.last[i]
            self.last[i] = used[row]
        return used

    def _after_the_last(self, p: Array, entities: Array, prescribed: Array) -> Array:
        """Obey or not by what was told and used the time before; ``p`` is where to, if not."""
        away = draw(p[entities, prescribed], self.rng)
        dice, used = self.rng.random(len(away)), np.empty(len(away), dtype=np.int64)
        kappa = self.traits["kappa after"]
        for row, (i, j) in enumerate(zip(entities, prescribed, strict=True)):
            leaves = dice[row] < kappa[j, self.told[i], self.last[i]]
            used[row] = away[row] if leaves else j
            self.told[i], self.last[i] = j, used[row]
        return used

    def _in_the_long_run(self, pi: Array, away: Array) -> Array:
        """Return the share of each centre in what each entity uses, (n, K), if it goes on so."""
        n, K = pi.shape
        kappa = self.traits["kappa after"][:, :K, :K]  # nobody is at the first answer for ever
        state = pi[:, :, None] * np.eye(K)  # what was told, and used
        total = np.zeros((n, K))
        for step in range(400):
            leaves = np.einsum("itu,jtu->ij", state, kappa)
            state = (pi * (1 - leaves))[:, :, None] * np.eye(K)
            state = state + (pi * leaves)[:, :, None] * away
            total += state.sum(1) if step >= 200 else 0.0
        return total / 200

    def true_cost(self, Y: Array, policy: Any) -> float:
        """Return the mean cost of centres and prescriptions (labels, or probabilities (n, K))."""
        Y, K = np.asarray(Y, dtype=float), self.n_clusters
        policy = np.asarray(policy)
        pi = np.eye(K)[policy] if policy.ndim == 1 else policy
        D, p = squared(self.X, Y), self.p(Y)
        if self.kind in REMEMBERING:
            return float((self._in_the_long_run(pi, p) * D).sum(1).mean())
        if self.kind == "full":
            p = _refused(self, p, pi, D)
        # Of habits, the long run: what is used again was once drawn by p, so its law is that of p.
        return float(np.einsum("ij,ijk,ik->i", pi, p, D).mean())


def draw(p: Array, rng: np.random.Generator) -> Array:
    """Return one choice a row."""
    total = np.cumsum(p, axis=1)
    return (total <= rng.random(len(p))[:, None] * total[:, -1:]).sum(1).clip(max=p.shape[1] - 1)


def _refused(town: Town, p: Array, pi: Array, D: Array) -> Array:
    """Return p where full centres turn entities away; loads and refusals agree with each other."""
    cap, K = town.traits["capacity"], town.n_clusters
    u = -D / town.unit
    second = np.empty((len(D), K, K))  # where those go whom k has turned away
    for k in range(K):
        v = u.copy()
        v[:, k] = -np.inf
        second[:, k] = softmax(v, axis=1)
    wish = np.einsum("ij,ijk->ik", pi, p)
    refuse = np.maximum(0.0, 1 - cap / np.maximum(wish.mean(0), 1e-9))
    kept = p * (1 - refuse)
    return kept + np.einsum("ijk,ikl->ijl", p * refuse, second)


# -- what is hidden, and how they choose ----------------------------------------------------------


def _nothing(town: Town) -> None:
    pass


def _favourites(town: Town) -> None:
    n, K, rng = len(town.X), town.n_clusters, town.rng
    town.traits["loyal"] = rng.random(n) < 0.3
    town.traits["favourite"] = rng.integers(0, K, n)


def _river(town: Town) -> None:
    town.traits["river"] = float(np.median(town.X[:, 0]))


def _river_and_favourites(town: Town) -> None:
    _river(town)
    _favourites(town)


def _site_liking(town: Town) -> None:
    town.traits["liking"] = 2 * town.rng.standard_normal(town.n_clusters)


def _place_liking(town: Town) -> None:
    """Draw places that attract: centres near them are liked, whoever stands there."""
    town.traits["spots"] = town.X[town.rng.integers(0, len(town.X), 2)]


def _work(town: Town) -> None:
    """Draw where they work: somewhere else in town."""
    town.traits["work"] = town.X[town.rng.permutation(len(town.X))]


def _two_kinds(town: Town) -> None:
    town.traits["kappa"] = np.where(town.rng.random(len(town.X)) < 0.5, 0.03, 0.7)


def _radius(town: Town) -> None:
    town.traits["radius"] = town.unit * np.exp(0.8 * town.rng.standard_normal(len(town.X)) + 0.7)


def _capacity(town: Town) -> None:
    town.traits["capacity"] = np.full(town.n_clusters, 1.0 / town.n_clusters)


def _habit(town: Town) -> None:
    town.traits["habit"] = 0.5


def _told_again(town: Town) -> None:
    """Draw how they obey: told the same twice in a row, they override more."""
    K = town.n_clusters
    town.traits["kappa after"] = np.full((K, K + 1, K + 1), 0.1)
    town.traits["kappa after"][np.arange(K), np.arange(K)] = 0.45


def _sulk(town: Town) -> None:
    """Draw how they obey: told another centre than they used last, they override more."""
    K = town.n_clusters
    town.traits["kappa after"] = np.full((K, K + 1, K + 1), 0.6)
    town.traits["kappa after"][np.arange(K), :, np.arange(K)] = 0.15
    town.traits["kappa after"][:, K, K] = 0.15


def _streets(town: Town) -> None:
    """Draw a bent map: what a trip takes is not what it costs on the plain map."""
    town.traits["bend"] = town.rng.normal(0, 1.0, (2, 2))


def _van(town: Town) -> None:
    town.covariates = (town.rng.random((len(town.X), 1)) < 0.4).astype(float)


def _loyal(town: Town, Y: Array) -> Array:
    D = squared(town.X, Y)
    return _stuck(town, stay_or_go(0.2, -D / town.unit))


def _stuck(town: Town, p: Array) -> Array:
    loyal, favourite = town.traits["loyal"], town.traits["favourite"]
    stuck = np.broadcast_to(np.eye(town.n_clusters)[favourite][:, None], p.shape)
    share = np.where(loyal, 0.8, 0.0)[:, None, None]
    return (1 - share) * p + share * stuck


def _banks(town: Town, Y: Array) -> Array:
    """Overriders do not cross the river, unless nothing else is on their side."""
    D, middle = squared(town.X, Y), town.traits["river"]
    across = (town.X[:, :1] < middle) != (Y[:, 0] < middle)[None]
    return stay_or_go(0.35, -D / town.unit - 12.0 * across)


def _banks_and_loyal(town: Town, Y: Array) -> Array:
    return _stuck(town, _banks(town, Y))


def _liked_sites(town: Town, Y: Array) -> Array:
    return stay_or_go(0.35, -squared(town.X, Y) / town.unit + town.traits["liking"])


def _liked_places(town: Town, Y: Array) -> Array:
    near = np.exp(-squared(Y, town.traits["spots"]) / town.unit).max(1)
    return stay_or_go(0.35, -squared(town.X, Y) / town.unit + 4 * near)


def _from_work(town: Town, Y: Array) -> Array:
    return stay_or_go(0.35, -squared(town.traits["work"], Y) / town.unit)


def _kinds(town: Town, Y: Array) -> Array:
    return stay_or_go(town.traits["kappa"], -2 * squared(town.X, Y) / town.unit)


def _within_radius(town: Town, Y: Array) -> Array:
    """Obey what is near enough for them, else go to the nearest."""
    D, K = squared(town.X, Y), town.n_clusters
    nearest = np.eye(K)[D.argmin(1)][:, None]
    far = (town.traits["radius"][:, None] < D)[..., None]
    go = np.where(far, 0.95, 0.1)
    return (1 - go) * np.eye(K) + go * nearest


def _three_random(town: Town, Y: Array) -> Array:
    """Overriders think of three others at random and take the nearest of them."""
    D, n, K = squared(town.X, Y), len(town.X), town.n_clusters
    away = np.zeros((n, K, K))
    rows = np.arange(n)
    for j in range(K):
        others = np.array([k for k in range(K) if k != j])
        order = others[np.argsort(D[:, others], axis=1)]
        left = K - 1
        # The nearest of three out of `left`: rank r wins if it is drawn and no nearer one is.
        for r in range(left):
            worse = left - 1 - r
            total = left * (left - 1) * (left - 2) / 6
            away[rows, j, order[:, r]] = worse * (worse - 1) / 2 / total if left >= 3 else r == 0
    return 0.6 * np.eye(K) + 0.4 * away


def _time_of_day(town: Town, Y: Array) -> Array:
    D = squared(town.X, Y) / town.unit
    return 0.6 * stay_or_go(0.1, -4 * D) + 0.4 * stay_or_go(0.7, -0.3 * D)


def _full(town: Town, Y: Array) -> Array:
    return stay_or_go(0.2, -squared(town.X, Y) / town.unit)


def _by_minutes(town: Town, Y: Array) -> Array:
    scale = np.sqrt(town.X.var(0))

    def bent(Z: Array) -> Array:
        u = (Z - town.X.mean(0)) / scale
        return scale * (u + 0.9 * np.sin(u[:, ::-1] @ town.traits["bend"]))

    return stay_or_go(0.4, -2 * squared(bent(town.X), bent(Y)) / town.unit)


def _plain_habit(town: Town, Y: Array) -> Array:
    return stay_or_go(0.25, -squared(town.X, Y) / town.unit)


def _elsewhere(town: Town, Y: Array) -> Array:
    """Return where those go who override, whatever makes them."""
    return stay_or_go(1.0, -squared(town.X, Y) / town.unit)


def _pair(town: Town, Y: Array) -> Array:
    apart = np.broadcast_to(-squared(Y, Y) / town.unit, (len(town.X), len(Y), len(Y)))
    return stay_or_go(0.3, apart)


def _entity(town: Town, Y: Array) -> Array:
    return stay_or_go(0.35, -squared(town.X, Y) / town.unit)


def _by_van(town: Town, Y: Array) -> Array:
    kappa = np.where(town.covariates[:, 0] > 0, 0.1, 0.4)
    return stay_or_go(kappa, -squared(town.X, Y) / town.unit)


def _two_nearest(town: Town, Y: Array) -> Array:
    D, n, K = squared(town.X, Y), len(town.X), len(Y)
    u = np.broadcast_to(D[:, None], (n, K, K)).copy()
    u[:, np.arange(K), np.arange(K)] = np.inf
    rank = u.argsort(2).argsort(2)
    return 0.7 * np.eye(K) + 0.3 * np.where(rank < min(2, K - 1), 1 / min(2, K - 1), 0.0)


#: kinds that no set of terms describes
OUTSIDE = {
    "hidden loyalty": (_favourites, _loyal),
    "river": (_river, _banks),
    "river, hidden loyalty": (_river_and_favourites, _banks_and_loyal),
    "habit": (_habit, _plain_habit),
    "nearest of three random": (_nothing, _three_random),
    "time of day": (_nothing, _time_of_day),
    "full": (_capacity, _full),
    "liked places": (_place_liking, _liked_places),
    "from work": (_work, _from_work),
    "two hidden kinds": (_two_kinds, _kinds),
    "own radius": (_radius, _within_radius),
    "by minutes": (_streets, _by_minutes),
}
#: kinds that are
INSIDE = {
    "near the prescribed": (_nothing, _pair),
    "near the entity": (_nothing, _entity),
    "covariate": (_van, _by_van),
    "two nearest": (_nothing, _two_nearest),
    "liked sites": (_site_liking, _liked_sites),
}
#: kinds in which obeying depends on what was told and used the time before
REMEMBERING = {
    "told again": (_told_again, _elsewhere),
    "sulks": (_sulk, _elsewhere),
}
# The order decides over seeds: new kinds go last.
ALL = OUTSIDE | INSIDE | REMEMBERING
DRAW: dict[str, Callable[[Town], None]] = {k: v[0] for k, v in ALL.items()}
CHOOSE: dict[str, Callable[[Town, Array], Array]] = {k: v[1] for k, v in ALL.items()}
OUTSIDE |= REMEMBERING
#: rounds that are played before a log begins: entities have a past
BEFORE = 5


def make_town(kind: str, seed: int, n: int | None = None, K: int | None = None) -> Town:
    """Draw a town: some to many entities in a few quarters, 4 to 8 centres."""
    rng = np.random.default_rng([seed, [*DRAW].index(kind)])
    n = int(rng.choice([300, 600, 1200])) if n is None else n
    K = int(rng.integers(4, 9)) if K is None else K
    quarters = int(rng.integers(3, 8))
    middles = rng.uniform(0, 10, (quarters, 2))
    spread = rng.uniform(0.5, 1.8, (quarters, 1))
    mine = rng.integers(0, quarters, n)
    X = middles[mine] + spread[mine] * rng.standard_normal((n, 2))
    return Town(X, K, kind, rng)


def today_of(town: Town, seed: int) -> Array:
    """Return the centres of today: k-means, as somebody who ignores overrides places them."""
    return KMeans(town.n_clusters, n_init=3, random_state=seed).fit(town.X).cluster_centers_


def make_log(
    town: Town, today: Array, m: int, seed: int, blind: float = 0.1
) -> tuple[dict[str, Array], Array]:
    """Return a log (nearest prescribed, a share of anything), and the policy that made it."""
    rng, K = np.random.default_rng([seed, [*DRAW].index(town.kind), 1]), town.n_clusters
    near = squared(town.X, today).argmin(1)
    entity = rng.integers(0, len(town.X), m)
    prescribed = np.where(rng.random(m) < 1 - blind, near[entity], rng.integers(0, K, m))
    policy = (1 - blind) * np.eye(K)[near] + blind / K
    if town.kind == "full":
        D = squared(town.X, today)
        p = _refused(town, town.p(today), policy, D)
        realized = draw(p[entity, prescribed], town.rng)
    else:
        if town.kind in REMEMBERING:
            everybody = np.tile(np.arange(len(town.X)), BEFORE)
            town.respond(everybody, draw(policy[everybody], rng), today)
        realized = town.respond(entity, prescribed, today).realized
    log = {"entity": entity, "prescribed": prescribed, "realized": realized}
    return log | {"propensity": policy[entity, prescribed]}, policy
