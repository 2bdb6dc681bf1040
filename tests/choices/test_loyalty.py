"""Entities that are loyal to a centre of their own: the model, and how learners find them."""

import tracemalloc
import warnings

import numpy as np
import pytest
from scipy.special import logsumexp

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    LoyalAutonomy,
    Passive,
    SimulatedPopulation,
    load_autonomy,
    load_model,
    save_autonomy,
    save_model,
)
from volition.choices import Choices
from volition.choices.loyalty import EM_STEPS, LEVELS, fit_loyalty, loyalty_if_clear
from volition.core.autonomy import RowAutonomy
from volition.core.problem import Problem

rng = np.random.default_rng(0)
X = rng.uniform(0, 10, (200, 2))
Y = rng.uniform(0, 10, (4, 2))
LOYALTY = np.where(rng.random((200, 1)) < 0.4, 0.8, 0.0) * np.eye(4)[rng.integers(0, 4, 200)]
LAW = DistanceAutonomy(0.3, gamma=1.0, zeta=0.0, temperature=0.1)


P = np.array([[0.7, 0.1, 0.1, 0.1], [0.2, 0.6, 0.1, 0.1], [0, 0, 1, 0], [0.3, 0.3, 0.2, 0.2]])


def table(share=1.0):
    """Return p (n, K, K) of loyal entities that otherwise choose by P."""
    p = (1 - LOYALTY.sum(1))[:, None, None] * P + LOYALTY[:, None]
    return (1 - share) * np.eye(4) + share * p


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_it_is_the_mixture_that_it_says(share):
    loyal = Problem(
        X, autonomy=LoyalAutonomy(FixedAutonomy(P), LOYALTY).with_overrides_scaled(share)
    )
    rows = Problem(X, autonomy=RowAutonomy(table(share)))
    np.testing.assert_allclose(loyal.expected_costs(Y), rows.expected_costs(Y), rtol=1e-12)
    assert loyal.distortion(Y) == pytest.approx(rows.distortion(Y), rel=1e-12)
    np.testing.assert_array_equal(loyal.labels(Y), rows.labels(Y))


def test_it_is_optimised_as_a_table_is():
    loyal = LoyalAutonomy(FixedAutonomy(P), LOYALTY)
    mine = AutonomyAwareClustering(4, autonomy=loyal, random_state=0).fit(X)
    rows = AutonomyAwareClustering(4, random_state=0).fit(X, autonomy_proba=table())
    assert mine.distortion_ == pytest.approx(rows.distortion_, rel=1e-3)


def test_a_population_answers_by_it():
    people = SimulatedPopulation(X, LoyalAutonomy(FixedAutonomy(P), LOYALTY), random_state=0)
    who, told = np.repeat(np.arange(200), 4), np.tile(np.arange(4), 200)
    seen = np.zeros((800, 4))
    for _ in range(400):
        seen[np.arange(800), people.respond(who, told, Y).realized] += 1 / 400
    assert np.abs(seen - table()[who, told]).max() < 6 * np.sqrt(0.25 / 400)


@pytest.mark.parametrize("named", [False, True])
def test_groups_of_entities_keep_their_own_loyalties(named):
    """Entities of a group are computed together; each must still have its own row of loyalty."""
    rng, n, K = np.random.default_rng(0), 120, 3
    X, Y = rng.uniform(0, 10, (n, 2)), rng.uniform(0, 10, (K, 2))
    group, weight = rng.integers(0, 2, n), rng.random(n)
    P = rng.dirichlet(np.ones(K), (2, K))
    held = 0.5 * np.eye(K)[rng.integers(0, K, n)]
    names = np.array(["day", "night"])
    others = FixedAutonomy(dict(zip(names.tolist(), P, strict=True)) if named else P)
    model, groups = LoyalAutonomy(others, held), names[group] if named else group
    table = RowAutonomy(0.5 * P[group] + held[:, None])
    problem = Problem(X, autonomy=model, groups=groups, sample_weight=weight)
    same = Problem(X, autonomy=table, sample_weight=weight)
    assert np.allclose(problem.expected_costs(Y), same.expected_costs(Y))
    assert np.isclose(problem.distortion(Y), same.distortion(Y))
    j = rng.integers(0, K, n)
    assert np.allclose(problem.conditional(Y, j), table.p[np.arange(n), j])
    some = rng.permutation(n)[:50]
    few, few_same = (one.subset(some, weight[some]) for one in (problem, same))
    assert np.allclose(few.expected_costs(Y), few_same.expected_costs(Y))
    fitted = AutonomyAwareClustering(K, autonomy=model, random_state=0)
    fitted.fit(X, groups=groups, sample_weight=weight)
    costs = same.expected_costs(fitted.cluster_centers_)
    assert np.array_equal(fitted.labels_, costs.argmin(1))
    assert np.isclose(fitted.distortion_, weight @ costs.min(1) / weight.sum())


@pytest.mark.parametrize(
    ("loyalty", "said"),
    [
        ([[0.5, 0.6]], "sum to at most 1; row 0"),
        ([[0.5, -0.1]], "sum to at most 1; row 0"),
        ([[np.nan, 0.1]], "sum to at most 1; row 0"),
        ([0.5, 0.1], r"shape \(n, K\), got \(2,\)"),
    ],
)
def test_bad_loyalties_are_refused(loyalty, said):
    with pytest.raises(ValueError, match=said):
        LoyalAutonomy(Passive(), loyalty)


def test_loyalties_of_other_entities_are_refused():
    with pytest.raises(ValueError, match="other entities or clusters"):
        AutonomyAwareClustering(4, autonomy=LoyalAutonomy(Passive(), LOYALTY[:50])).fit(X)


def test_it_is_saved(tmp_path):
    model = LoyalAutonomy(LAW, LOYALTY)
    again = load_autonomy(save_autonomy(model, tmp_path / "a.safetensors"))
    D = Problem(X, autonomy=model).expected_costs(Y)
    np.testing.assert_array_equal(Problem(X, autonomy=again).expected_costs(Y), D)
    fitted = AutonomyAwareClustering(4, autonomy=model, random_state=0).fit(X)
    back = load_model(save_model(fitted, tmp_path / "m.safetensors"))
    np.testing.assert_array_equal(back.labels_, fitted.labels_)


def test_loyalty_is_found_and_none_where_there_is_none():
    def told(loyalty, seed):
        law = np.random.default_rng(seed)
        who, j = law.integers(0, 200, 4000), law.integers(0, 4, 4000)
        p = (1 - loyalty.sum(1))[who, None] * P[j] + loyalty[who]
        used = (p.cumsum(1) < law.random((4000, 1))).sum(1).clip(max=3)
        layout = np.zeros(4000, dtype=np.int64)
        return Choices(who, j, used, layout, Y[None]), P[j, used]

    choices, p = told(LOYALTY, 0)
    found = fit_loyalty(choices, p, 200)
    loyal = LOYALTY.sum(1) > 0
    assert loyalty_if_clear(choices, p, 200) is not None
    assert np.mean((found.sum(1) > 0.4) == loyal) > 0.95
    assert np.mean(found[loyal].argmax(1) == LOYALTY[loyal].argmax(1)) > 0.95
    assert np.abs(found - LOYALTY).mean() < 0.03
    false = [loyalty_if_clear(*told(0 * LOYALTY, seed), 200) is not None for seed in range(20)]
    assert sum(false) <= 1


@pytest.mark.parametrize("learner", [ChoiceClustering, ADENClustering])
def test_learners_place_centres_for_the_loyal(learner, tmp_path):
    truth = LoyalAutonomy(LAW, LOYALTY)
    reveal = "cost" if learner is ADENClustering else "realized"
    people = SimulatedPopulation(X, truth, reveal=reveal, random_state=0)
    model = learner(4, n_interactions=6000, random_state=0).fit(X, population=people)
    assert isinstance(model.model_, LoyalAutonomy)
    best = AutonomyAwareClustering(4, autonomy=truth, random_state=0).fit(X).distortion_
    reached = Problem(X, autonomy=truth).distortion(model.cluster_centers_, model.labels_)
    assert reached < 1.05 * best
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load_model(model.save(tmp_path / "state"))
    np.testing.assert_array_equal(again.expected_costs(), model.expected_costs())
    new = model.add_entities(X[:3] + 0.1)
    assert set(model.labels_[new]) <= {0, 1, 2, 3}
    assert len(model.expected_costs()) == 203


def in_full(choices, p, n):
    """Return what `fit_loyalty` does, with a table of all entities, centres and levels."""
    K, free = choices.n_clusters, np.log((1 - LEVELS) * p[:, None])
    likely = np.zeros((n, K, len(LEVELS)))
    gain = np.log((1 - LEVELS) * p[:, None] + LEVELS) - free
    for row, (i, k) in enumerate(zip(choices.entities, choices.realized, strict=True)):
        likely[i] += free[row]
        likely[i, k] += gain[row]
    shares, seen = (
        np.full(len(LEVELS), 1 / len(LEVELS)),
        np.unique(choices.entities),
    )
    for _ in range(EM_STEPS):
        posterior = likely[seen] + np.log(np.maximum(shares, 1e-300) / K)
        posterior = np.exp(posterior - logsumexp(posterior, axis=(1, 2), keepdims=True))
        shares = posterior.sum((0, 1)) / len(seen)
    loyalty = np.full((n, K), shares @ LEVELS / K)
    loyalty[seen] = posterior @ LEVELS
    return loyalty


def test_loyalty_is_fitted_as_in_full_with_little_memory():
    rng = np.random.default_rng(0)

    def log(n, K, m):
        who, favourite = rng.integers(0, n, m), rng.integers(0, K, n)
        loyal = rng.random(m) < 0.8 * (rng.random(n) < 0.4)[who]
        used = np.where(loyal, favourite[who], rng.integers(0, K, m))
        return Choices(who, used, used, 0 * who, np.zeros((1, K, 1))), rng.random(m) ** 2

    for n, K, m in ((40, 4, 600), (60, 9, 90)):
        choices, p = log(n, K, m)
        assert np.allclose(fit_loyalty(choices, p, n), in_full(choices, p, n), atol=1e-12)
    choices, p = log(2000, 100, 8000)
    tracemalloc.start()
    fit_loyalty(choices, p, 2000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 30e6  # the table alone would have 19 MB, and several like it were made
