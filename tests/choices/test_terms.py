"""Every kind of choice term: design, model and flags against formulas written out densely."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist
from scipy.special import expit, softmax

from volition import ChoiceAutonomy
from volition.choices import AWAY, STAY, Choices, check_family, fit_choices
from volition.choices import terms as kinds
from volition.choices.data import make_basis, make_decisions, make_scene
from volition.choices.decision import other_readings
from volition.choices.terms import KINDS, KNOTS, LAST_KNOT, LOG_FLOOR, TERMS, Slope, named
from volition.core.autonomy import Chunk
from volition.core.costs import SquaredEuclidean
from volition.core.problem import Problem

COST, UNIT = SquaredEuclidean(), 0.3
N, C = 25, 2
IDS = [f"{term.part}: {term.name}" for term in KINDS]


class Town:
    """Entities and centres, and what terms may look at, in NumPy."""

    def __init__(self, K, seed=0):
        rng = np.random.default_rng(seed)
        self.X, self.Y, self.Z = rng.random((N, 2)), rng.random((K, 2)), rng.standard_normal((N, C))
        self.K, self.basis = K, make_basis(self.X, self.Z)
        self.M = len(self.basis.places)

    @property
    def D(self):
        return cdist(self.X, self.Y, "sqeuclidean") / UNIT

    @property
    def apart(self):
        return cdist(self.Y, self.Y, "sqeuclidean") / UNIT

    @property
    def patches(self):
        origin, scale, places, width = self.basis
        U = (np.concatenate([self.X, self.Z], axis=1) - origin) / scale
        return softmax(-cdist(U, places, "sqeuclidean") / (2 * width**2), axis=1)

    def theta(self, term, seed=1):
        rng = np.random.default_rng(seed)
        return rng.standard_normal(term.size(self.K, C, self.M))

    def model(self, term, theta, constant=0.4, **more):
        parts = {"stay": {"constant": [constant]}, "away": {}}
        parts[term.part] |= {term.name: theta}
        return ChoiceAutonomy(
            parts["stay"], parts["away"], cost_unit=UNIT, n_clusters=self.K, covariates=self.Z,
            basis=self.basis, **more,
        )  # fmt: skip

    def cube(self, model):
        """Return p(k | j, i) by the model, (n, K, K)."""
        x, y = torch.from_numpy(self.X), torch.from_numpy(self.Y)
        chunk = Chunk(x, torch.zeros(2, dtype=torch.float64), COST.pairwise(x, y), slice(0, N), 0)
        transition = model.transition(chunk, y, COST)
        told = [torch.full((N,), j, dtype=torch.long) for j in range(self.K)]
        return torch.stack([transition.conditional(j) for j in told], dim=1).numpy()


def curve(theta, cost):
    knots = np.linspace(math.log(LOG_FLOOR), math.log(LAST_KNOT), KNOTS)
    return np.interp(np.log(cost + LOG_FLOOR), knots, theta)


def order_of(costs):
    """Return how many are nearer; of equal ones the first is nearer."""
    return [
        sum((other, o) < (mine, k) for o, other in enumerate(costs)) for k, mine in enumerate(costs)
    ]


def stay_formula(name, theta, t, i, j):
    d, rank = t.D[i, j], order_of(t.D[i].tolist())[j]
    return {
        "constant": lambda: theta[0],
        "cost": lambda: theta[0] * d,
        "log cost": lambda: theta[0] * math.log(d + LOG_FLOOR),
        "cost curve": lambda: curve(theta, d),
        "excess": lambda: theta[0] * (d - min(t.D[i])),
        "excess curve": lambda: curve(theta, d - min(t.D[i])),
        "cluster": lambda: theta[j],
        "rank": lambda: theta[min(rank, 3)],
        "covariates": lambda: theta @ t.Z[i],
        "place": lambda: theta @ t.patches[i],
    }[name]()


def away_formula(name, theta, t, i, j, k):
    d, a = t.D[i, k], t.apart[j, k]
    without = [*t.D[i, :j], math.inf, *t.D[i, j + 1 :]]
    ranks = min(order_of(t.D[i].tolist())[j], 3), min(order_of(without)[k], 3)
    return {
        "pair": lambda: theta[0] * a,
        "entity": lambda: theta[0] * d,
        "log pair": lambda: theta[0] * math.log(a + LOG_FLOOR),
        "log entity": lambda: theta[0] * math.log(d + LOG_FLOOR),
        "pair curve": lambda: curve(theta, a),
        "entity curve": lambda: curve(theta, d),
        "cluster": lambda: theta[k],
        "table": lambda: theta.reshape(t.K, t.K)[j, k],
        "rank": lambda: theta.reshape(4, 4)[ranks],
        "covariates x entity": lambda: theta @ t.Z[i] * d,
        "covariates x cluster": lambda: t.Z[i] @ theta.reshape(C, t.K)[:, k],
    }[name]()


def dense(term, theta, town, constant=0.4):
    """Return log-odds of staying (n, K), log-weights (n, K, K) and p, by the formulas alone."""
    K, extra = town.K, 0.0 if term.name == "constant" else constant
    stay, leave = np.full((N, K), extra), np.zeros((N, K, K))
    if term.part == "stay":
        stay += [[stay_formula(term.name, theta, town, i, j) for j in range(K)] for i in range(N)]
    else:
        leave += [
            [[away_formula(term.name, theta, town, i, j, k) for k in range(K)] for j in range(K)]
            for i in range(N)
        ]
    barred = np.where(np.eye(K, dtype=bool), -np.inf, leave)
    obeys = expit(stay)[:, :, None]
    return stay - extra, leave, obeys * np.eye(K) + (1 - obeys) * softmax(barred, axis=2)


def everything_asked(town):
    """Return choices in which every entity is told everything and does everything."""
    i, j, k = (z.ravel() for z in np.indices((N, town.K, town.K)))
    return Choices(i, j, k, np.zeros(len(i), dtype=np.int64), town.Y[None])


@pytest.mark.parametrize("K", [2, 3, 6])
@pytest.mark.parametrize("term", KINDS, ids=IDS)
def test_the_design_times_coefficients_is_the_formula(term, K):
    town = Town(K)
    theta, asked = town.theta(term), everything_asked(town)
    scene = make_scene(town.X, asked, COST, UNIT, town.Z, town.basis)
    decisions, ridge, places = make_decisions(term.part, [term.name], scene, asked.realized)
    assert len(ridge) == decisions.n_coefficients == len(theta)
    assert places == {term.name: slice(0, len(theta))}
    assert set(ridge) == {term.ridge}
    utility = (theta[decisions.which] * decisions.value).sum(2)
    stay, leave, _ = dense(term, theta, town)
    if term.part == "stay":
        assert_allclose(utility[:, 0], stay[asked.entities, asked.prescribed], atol=1e-10)
        assert not utility[:, 1].any()
    else:
        left = asked.realized != asked.prescribed
        rows = leave[asked.entities[left], asked.prescribed[left]]
        assert_allclose(utility[decisions.open], rows[decisions.open], atol=1e-10)


@pytest.mark.parametrize("K", [2, 3, 6])
@pytest.mark.parametrize("term", KINDS, ids=IDS)
def test_the_transition_is_the_formula(term, K):
    town = Town(K)
    theta = town.theta(term)
    _, _, p = dense(term, theta, town)
    model = town.model(term, theta)
    assert_allclose(town.cube(model), p, atol=1e-10)
    assert_allclose(
        town.cube(model.with_overrides_scaled(0.3)), 0.7 * np.eye(K) + 0.3 * p, atol=1e-10
    )


@pytest.mark.parametrize("term", KINDS, ids=IDS)
def test_a_term_is_what_it_says(term):
    """Entities differ, centres matter and clusters have roles exactly where a term says so."""
    town = Town(5)
    model = town.model(term, town.theta(term))
    p = town.cube(model)
    assert model.by_entity == term.by_entity == (not np.allclose(p, p[:1]))
    moved = Town(5)
    moved.Y = Town(5, seed=9).Y
    assert model.depends_on_centers == term.follows_centers
    assert term.follows_centers == (not np.allclose(moved.cube(model), p))
    order = np.array([3, 0, 4, 1, 2])
    moved.Y = town.Y[order]
    renamed = np.allclose(moved.cube(model), p[:, order][:, :, order])
    assert model.interchangeable == (not term.labelled) == renamed


@pytest.mark.parametrize("term", [t for t in KINDS if t.part == "away"], ids=lambda t: t.name)
def test_beyond_what_was_seen_terms_hold_still(term):
    town = Town(4)
    theta, seen = town.theta(term), {"entity": (0.5, 1.0), "pair": (0.5, 1.0)}
    p = town.cube(town.model(term, theta, cost_ranges=seen))
    straight = isinstance(term, kinds.Slope | kinds.CovariateSlopes) and term.plainer is None

    class Held(Town):
        D = property(lambda self: np.clip(super().D, None if straight else 0.5, 1.0))
        apart = property(lambda self: np.clip(super().apart, None if straight else 0.5, 1.0))

    held = Held(4)
    _, _, expected = dense(term, theta, held if "ranks" not in term.per else town)
    assert_allclose(p, expected, atol=1e-10)


def test_all_terms_have_words_and_plainer_relatives_exist():
    assert [*STAY, *AWAY] == [term.name for term in KINDS]
    for term in KINDS:
        assert term.words == (STAY if term.part == "stay" else AWAY)[term.name]
        assert term.plainer is None or term.plainer in TERMS[term.part]


def test_names_that_do_not_go_are_refused():
    with pytest.raises(ValueError, match="There is no away term 'constant'"):
        named("away", ["constant"])
    for term in TERMS["away"].values():
        if term.about == "pair":
            with pytest.raises(ValueError, match=f"'{term.name}' does not go with 'rank'"):
                check_family(((), ("rank", term.name)))


class Square(Slope):
    """A coefficient times the square of the cost."""

    def columns(self, view):
        return [(0, view.cost**2)]


def test_a_new_kind_of_term_is_added_in_one_place(monkeypatch):
    """Fit, choose, evaluate: nothing but the table of terms has to know of it."""
    square = Square("square", "entity", "the square of how far it is")
    monkeypatch.setitem(TERMS["away"], "square", square)
    town = Town(4)
    rng = np.random.default_rng(3)
    town.X = rng.random((800, 2))
    i, j = np.repeat(np.arange(800), 5), rng.integers(0, 4, 4000)
    leave = -0.8 * town.D[i] ** 2
    leave[np.arange(4000), j] = -np.inf
    p = 0.5 * np.eye(4)[j] + 0.5 * softmax(leave, axis=1)
    k = (rng.random(4000)[:, None] > p.cumsum(1)).sum(1)
    asked = Choices(i, j, k, np.zeros(4000, dtype=np.int64), town.Y[None])
    fit = fit_choices(town.X, asked, COST, UNIT)
    assert fit.away.terms == ("square",)
    assert_allclose(fit.away.coefficients, -0.8, rtol=0.15)
    assert fit.model.by_entity
    assert fit.model.depends_on_centers


def obeying_by_excess(seed, blind):
    """Return a town whose entities obey by how much more it costs than the nearest centre."""
    rng = np.random.default_rng(seed)
    town, today = rng.uniform(0, 10, (300, 2)), rng.uniform(0, 10, (1, 4, 2))
    D = ((town[:, None] - today[0]) ** 2).sum(2)
    excess, near, entity = D - D.min(1, keepdims=True), D.argmin(1), rng.integers(0, 300, 3000)
    told = np.where(rng.random(3000) < blind, rng.integers(0, 4, 3000), near[entity])
    stays = rng.random(3000) < 1 / (1 + np.exp(0.15 * excess[entity, told] - 1.5))
    other = (told + rng.integers(1, 4, 3000)) % 4
    choices = Choices(entity, told, np.where(stays, told, other), 0 * told, today)
    return town, choices, excess


def test_obeying_by_what_it_costs_above_the_nearest_is_found():
    town, choices, excess = obeying_by_excess(0, 0.5)
    fit = fit_choices(town, choices, SquaredEuclidean(), 10.0)
    assert fit.stay.terms == ("constant", "excess")
    np.testing.assert_allclose(fit.stay.coefficients, [1.5, -1.5], atol=0.3)
    # The model is what was fitted, wherever the centres are, with a gradient.
    p = Problem(town, autonomy=fit.model).conditional(choices.layouts[0], np.full(300, 2))
    odds = fit.stay.coefficients @ [np.ones(300), excess[:, 2] / 10]
    np.testing.assert_allclose(p[:, 2], 1 / (1 + np.exp(-odds)))
    # Beyond what was seen it holds still.
    seen = {"excess": (0.0, 0.5)}
    held = Problem(town, autonomy=fit.model.within(seen)).conditional(
        choices.layouts[0], np.full(300, 2)
    )
    odds = fit.stay.coefficients @ [np.ones(300), np.minimum(excess[:, 2] / 10, 0.5)]
    np.testing.assert_allclose(held[:, 2], 1 / (1 + np.exp(-odds)))


@pytest.mark.parametrize(("rows", "told_apart"), [(3000, True), (50, False)])
def test_costs_that_a_log_cannot_tell_apart_are_other_readings(rows, told_apart):
    town, choices, _ = obeying_by_excess(1, 0.9)
    cost, choices = SquaredEuclidean(), choices.take(slice(rows))
    fit = fit_choices(town, choices, cost, 10.0, family=(("constant", "excess"), ("entity",)))
    others = [one.stay.terms[1] for one in other_readings(fit, town, choices, cost, None)]
    assert ("cost" not in others) == told_apart
    assert "excess curve" in others  # a straight line is a curve too
    plain = fit_choices(town, choices, cost, 10.0, family="distance")
    assert other_readings(plain, town, choices, cost, None) == []
