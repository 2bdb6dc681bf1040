import math

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from volition import DistanceAutonomy, FixedAutonomy, Passive, anneal, suggest_n_clusters
from volition.annealing.anneal import AnnealingResult, Record
from volition.annealing.n_clusters import persistence_ranking
from volition.annealing.schedules import Critical, Geometric, Growing
from volition.core.problem import Problem
from volition.datasets import load_four_groups, make_nested_groups
from volition.solvers import Gradient, Status


def result_with(betas, numbers):
    pairs = zip(betas, numbers, strict=True)
    history = [Record(b, 1, 0, 0, 0, 0, n, 1, 0, "converged") for b, n in pairs]
    Y = np.zeros((max(numbers), 1))
    return AnnealingResult(Y, betas[-1], history, [Y] * len(betas), [], Status.CONVERGED)


def test_persistence_adds_up_stretches():
    betas = [1, math.e, math.e**2, math.e**4, math.e**5, math.e**8]
    found = persistence_ranking(result_with(betas, [1, 1, 2, 1, 2, 3]))
    assert [(p.n_clusters, pytest.approx(p.persistence)) for p in found] == [(2, 5), (1, 3)]
    two = found[0]
    assert (two.beta_from, two.beta_to) == (pytest.approx(math.e**5), pytest.approx(math.e**8))
    assert not two.open_ended


def test_the_number_at_the_end_is_open_ended():
    found = persistence_ranking(result_with([1, 2, 4, 8], [1, 2, 2, 2]))
    assert [(p.n_clusters, p.open_ended) for p in found] == [(2, True), (1, False)]
    assert persistence_ranking(result_with([1.0], [1])) == []


def test_four_groups():
    found = suggest_n_clusters(load_four_groups().data)
    assert found.n_clusters == 4
    assert found.ranking[0].persistence > 2 * found.ranking[1].persistence
    assert "4" in str(found).splitlines()[1]


def test_nested_groups():
    found = suggest_n_clusters(make_nested_groups(3).data)
    assert found.n_clusters == 16
    assert {p.n_clusters for p in found.ranking[:4]} == {16, 8, 4, 1}


@pytest.mark.parametrize("d", [1, 2, 5])
def test_a_single_gaussian_is_one_cluster(d):
    X = np.random.RandomState(1).normal(size=(400, d))
    assert suggest_n_clusters(X, n_max=12).n_clusters == 1


@pytest.mark.parametrize("K", [3, 7])
def test_blobs_in_many_dimensions(K):
    X, _ = make_blobs(400, n_features=8, centers=K, random_state=K)
    assert suggest_n_clusters(X, n_max=16).n_clusters == K


def test_scale_and_place_change_nothing():
    X = load_four_groups().data
    one = suggest_n_clusters(X, n_max=8).ranking[0]
    other = suggest_n_clusters(X * 1e4 + 1e3, n_max=8).ranking[0]
    assert other.n_clusters == one.n_clusters
    assert other.persistence == pytest.approx(one.persistence, abs=0.05)
    assert other.beta_from * 1e8 == pytest.approx(one.beta_from, rel=0.05)


def test_weights_are_repetition():
    X, _ = make_blobs(120, centers=3, random_state=2)
    weight = np.random.RandomState(0).randint(1, 4, 120)
    one = suggest_n_clusters(X, sample_weight=weight, n_max=6).ranking[0]
    other = suggest_n_clusters(np.repeat(X, weight, axis=0), n_max=6).ranking[0]
    assert one.n_clusters == other.n_clusters
    assert one.persistence == pytest.approx(other.persistence, rel=1e-3)


def test_a_matrix_fixes_the_number_of_centres():
    X = load_four_groups().data
    P = 0.85 * np.eye(4) + 0.15 / 4
    found = suggest_n_clusters(X, autonomy=FixedAutonomy(P))
    assert found.n_clusters == 4
    assert found.ranking[0].open_ended
    assert len(found.path.centers) == 4


@pytest.mark.parametrize("kappa", [0.2, 0.5])
def test_autonomy_keeps_entities_together_for_longer(kappa):
    X = load_four_groups().data
    obeying = suggest_n_clusters(X, n_max=6).path.transitions[0].beta
    willing = suggest_n_clusters(X, n_max=6, autonomy=DistanceAutonomy(kappa, zeta=0.0))
    # Six centres: sigma2 = 1 - 6/5 kappa
    ratio = willing.path.transitions[0].beta / obeying
    assert ratio == pytest.approx(1 / (1 - 1.2 * kappa) ** 2, rel=0.05)
    assert willing.ranking[0].n_clusters < 6


def test_samples_of_weighted_entities_keep_the_weights():
    """Ten heavy entities among five thousand decide where the first split is."""
    rng = np.random.RandomState(0)
    X = rng.normal(size=(5000, 2))
    X[:10] += 8
    weight = np.ones(5000)
    weight[:10] = 1000
    weight[-500:] = 0
    full = suggest_n_clusters(X, sample_weight=weight, max_samples=5000, n_max=2)
    part = suggest_n_clusters(X, sample_weight=weight, max_samples=800, n_max=2, random_state=0)
    first, again = (found.path.transitions[0].beta for found in (full, part))
    assert again == pytest.approx(first, rel=0.1)


def test_large_tables_are_sampled():
    X, _ = make_blobs(5000, centers=4, cluster_std=0.4, random_state=0)
    found = suggest_n_clusters(X, max_samples=300, n_max=8, random_state=0)
    again = suggest_n_clusters(X, max_samples=300, n_max=8, random_state=0)
    assert found.n_clusters == 4
    assert found.ranking[0].persistence == pytest.approx(again.ranking[0].persistence)


def test_general_costs_and_models():
    X, _ = make_blobs(90, centers=3, cluster_std=0.5, random_state=5)
    model = DistanceAutonomy(0.05, gamma=0.5, temperature=50.0)
    assert suggest_n_clusters(X, autonomy=model, n_max=4).path.transitions


@pytest.mark.parametrize("X", [[[1.0, 2.0]], [[1.0], [1.0], [1.0]]])
def test_entities_in_one_place_are_one_cluster(X):
    assert suggest_n_clusters(X).n_clusters == 1


def test_there_are_no_more_clusters_than_entities():
    found = suggest_n_clusters([[0.0], [1.0], [5.0]])
    assert max(p.n_clusters for p in found.ranking) <= 3


def test_cities():
    rng = np.random.RandomState(0)
    cities = [[51.5, -0.1], [48.9, 2.4], [52.5, 13.4], [40.4, -3.7]]
    X = np.repeat(cities, 25, axis=0) + rng.normal(scale=0.05, size=(100, 2))
    assert suggest_n_clusters(X, metric="sqhaversine", n_max=5).n_clusters == 4
    with pytest.raises(ValueError, match="sqhaversine"):
        suggest_n_clusters(X, metric="haversine")


def test_costs_without_curvature_are_refused():
    X = np.random.RandomState(0).normal(size=(30, 2))
    with pytest.raises(ValueError, match="no second derivatives"):
        suggest_n_clusters(X, metric=lambda a, b: (a[:, None] - b).abs().sum(-1))


@pytest.mark.parametrize("kwargs", [{"n_max": 0}, {"n_max": 2.5}, {"max_samples": 1}])
def test_bad_numbers_are_refused(kwargs):
    with pytest.raises(ValueError, match=f"{next(iter(kwargs))} must be an integer"):
        suggest_n_clusters([[0.0], [1.0]], **kwargs)


def test_bad_tables_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        suggest_n_clusters([[0.0], [np.nan]])
    with pytest.raises(ValueError):
        suggest_n_clusters([0.0, 1.0])


# -- the schedule -------------------------------------------------------------------------------


def uniform(kappa, K):
    away = kappa / (K - 1)
    return FixedAutonomy((1 - kappa - away) * np.eye(K) + away)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nested_groups_split_in_stages(seed):
    """1, 4, 8, 16 and nothing else that persists; each split within 2 % of its prediction."""
    problem = Problem(make_nested_groups(seed).data, autonomy=uniform(1 / 16, 16))
    result = anneal(problem, 16, schedule=Critical(1e-3, 1e3))
    lasting = [p.n_clusters for p in persistence_ranking(result) if p.persistence > 0.1]
    assert sorted(lasting) == [1, 4, 8, 16]
    splits = [t for t in result.transitions if t.n_after > t.n_before]
    assert len(splits) >= 3
    assert max(abs(t.beta / t.predicted - 1) for t in splits) < 0.02
    merges = [t for t in result.transitions if t.n_after < t.n_before]
    assert all(t.predicted is None for t in merges)


@pytest.mark.parametrize("autonomy", [Passive(), DistanceAutonomy(0.3, temperature=0.01)])
def test_critical_schedule_reaches_a_slow_anneal(autonomy):
    problem = Problem(load_four_groups().data, autonomy=autonomy)
    slow = anneal(problem, 4, solver=Gradient(), schedule=Geometric(tau=1 / 0.99), random_state=0)
    fast = anneal(problem, 4, solver=Gradient(), schedule=Critical())
    assert problem.distortion(fast.centers) <= problem.distortion(slow.centers) * 1.001
    assert 5 * fast.n_iter <= slow.n_iter
    assert [t.n_after for t in fast.transitions] == [2, 3, 4]


def test_critical_schedule_is_scale_free():
    X = load_four_groups().data
    one = anneal(Problem(X), 4, schedule=Critical())
    other = anneal(Problem(X * 1e5), 4, schedule=Critical())
    np.testing.assert_allclose(other.centers / 1e5, one.centers, rtol=1e-4)
    assert other.beta * 1e10 == pytest.approx(one.beta, rel=1e-3)


def test_critical_schedule_ends_at_beta_max():
    problem = Problem(load_four_groups().data)
    result = anneal(problem, 4, schedule=Critical(1.0, 50.0))
    assert result.history[0].beta == 1.0
    assert result.beta == pytest.approx(50.0)


def test_geometric_schedule_predicts_too():
    problem = Problem(load_four_groups().data)
    result = anneal(problem, 4, solver=Gradient(), schedule=Geometric(tau=1.01), random_state=0)
    splits = [t for t in result.transitions if t.n_after > t.n_before]
    assert [t.n_after for t in splits] == [2, 3, 4]
    assert all(-0.01 < t.beta / t.predicted - 1 < 0.03 for t in splits)
    without = anneal(problem, 4, schedule=Geometric(tau=1.3), random_state=0, predict=False)
    assert all(t.predicted is None for t in without.transitions)


def test_growing_ends_when_there_are_enough():
    problem = Problem(make_nested_groups().data)
    result = anneal(problem, 1, schedule=Growing(n_max=5, shortest=1.1))
    assert result.history[-1].n_distinct > 5
    assert all(record.n_distinct <= 5 for record in result.history[:-2])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"margin": 0}, "margin must be between 0 and 1"),
        ({"shortest": 1.0}, "shortest and longest must be factors above 1"),
        ({"shortest": 3.0, "longest": 2.0}, "shortest and longest must be factors above 1"),
        ({"push": 0}, "push must be positive"),
        ({"slack": 0.5}, "slack at least 1"),
        ({"beta_min": -1.0}, "beta_min must be a positive finite number"),
        ({"beta_min": 2.0, "beta_max": 1.0}, "beta_max=1.0 must not be below beta_min=2.0"),
    ],
)
def test_bad_schedules_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        Critical(**kwargs)
