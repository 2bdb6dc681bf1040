import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import haversine_distances

from volition import AutonomyAwareClustering, DistanceAutonomy
from volition.core.costs import (
    EARTH_RADIUS_KM,
    CallableCost,
    Haversine,
    SquaredEuclidean,
    resolve_cost,
)
from volition.core.problem import Problem
from volition.metrics import distortion


def test_squared_euclidean_agrees_with_scipy(rng):
    X, Y = rng.normal(size=(7, 3)), rng.normal(size=(4, 3))
    found = SquaredEuclidean().pairwise(torch.tensor(X), torch.tensor(Y))
    np.testing.assert_allclose(found, cdist(X, Y, "sqeuclidean"), rtol=1e-12)


def places(rng, n):
    return np.column_stack([rng.uniform(-90, 90, n), rng.uniform(-180, 180, n)])


def test_haversine_agrees_with_scikit_learn(rng):
    X, Y = places(rng, 30), places(rng, 9)
    wanted = EARTH_RADIUS_KM * haversine_distances(np.deg2rad(X), np.deg2rad(Y))
    found = Haversine().pairwise(torch.tensor(X), torch.tensor(Y))
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    squared = Haversine(squared=True).pairwise(torch.tensor(X), torch.tensor(Y))
    np.testing.assert_allclose(squared, wanted**2, rtol=1e-9)


@pytest.mark.parametrize("squared", [False, True])
def test_haversine_gradient_is_finite_everywhere(squared):
    Y = torch.tensor([[10.0, 20.0], [-10.0, -160.0], [90.0, 0.0]], requires_grad=True)
    X = torch.tensor([[10.0, 20.0], [90.0, 50.0]])
    (gradient,) = torch.autograd.grad(Haversine(squared).pairwise(X, Y).sum(), Y)
    assert gradient.isfinite().all()


def test_haversine_embeds_and_returns(rng):
    X = places(rng, 20)
    np.testing.assert_allclose(Haversine().unembed(Haversine().embed(X)), X, atol=1e-9)
    turned = Haversine().canonical(np.array([[95.0, 10.0], [0.0, 190.0], [5.0, 5.0]]))
    np.testing.assert_allclose(turned, [[85.0, -170.0], [0.0, -170.0], [5.0, 5.0]], atol=1e-9)


@pytest.mark.parametrize("metric", ["haversine", "sqhaversine"])
def test_clusters_across_the_date_line(metric, rng):
    """Entities on both sides of the 180th meridian belong together."""
    fiji = np.column_stack([rng.normal(-17, 1, 40), rng.normal(179.9, 1, 40)])
    fiji[:, 1] = (fiji[:, 1] + 180) % 360 - 180
    peru = np.column_stack([rng.normal(-12, 1, 40), rng.normal(-77, 1, 40)])
    X = np.vstack([fiji, peru])
    model = AutonomyAwareClustering(2, metric=metric, random_state=0).fit(X)
    assert len(set(model.labels_[:40])) == 1
    assert model.labels_[0] != model.labels_[-1]
    assert (np.abs(model.cluster_centers_) <= [90, 180]).all()
    far = model.transform(X).min(1)
    assert far.max() < (600 if metric == "haversine" else 600**2)


def test_weber_point_beats_the_mean(rng):
    """Kilometres, not squared, are minimised by the geometric median."""
    X = np.vstack([rng.normal(0, 0.1, (30, 2)), [[20.0, 20.0]]])
    model = AutonomyAwareClustering(1, metric="haversine", random_state=0).fit(X)
    assert model.distortion_ < distortion(X, X.mean(0, keepdims=True), metric="haversine")
    h = 1e-3
    for step in ([h, 0], [-h, 0], [0, h], [0, -h]):
        moved = model.cluster_centers_ + step
        assert distortion(X, moved, metric="haversine") >= model.distortion_ - 1e-9


def test_own_cost_finds_the_median():
    X = np.array([[0.0], [1.0], [2.0], [10.0], [100.0]])

    def absolute(X, Y):
        return ((X[:, None] - Y[None]) ** 2 + 1e-12).sqrt().sum(-1)

    model = AutonomyAwareClustering(1, metric=absolute, random_state=0, max_iter=1000).fit(X)
    assert model.cluster_centers_[0, 0] == pytest.approx(2.0, abs=1e-2)


def test_own_cost_with_autonomy_agrees_with_the_built_in(rng):
    X, Y = rng.normal(size=(20, 2)), rng.normal(size=(3, 2))
    own = CallableCost(lambda X, Y: ((X[:, None] - Y[None]) ** 2).sum(-1))
    for autonomy in (DistanceAutonomy(0.3), DistanceAutonomy(0.3, gamma=0.5)):
        a = Problem(X, autonomy=autonomy).value_and_gradient(Y, 2.0)
        b = Problem(X, cost=own, autonomy=autonomy).value_and_gradient(Y, 2.0)
        assert a[0] == pytest.approx(b[0], rel=1e-12)
        np.testing.assert_allclose(a[1], b[1], rtol=1e-9, atol=1e-12)


def test_algorithm_1_needs_a_closed_form(rng):
    X = rng.uniform(-10, 10, size=(20, 2))
    with pytest.raises(ValueError, match="no closed-form centre update: use 'gradient' or 'auto'"):
        AutonomyAwareClustering(2, metric="haversine", solver="fixed_point").fit(X)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([[91.0, 0.0]], r"latitude 91 at row 0; .* within \[-90, 90\]"),
        ([[0.0, 0.0], [0.0, -181.0]], r"longitude -181 at row 1"),
        ([[0.0, 0.0, 0.0]], "two columns"),
    ],
)
def test_places_off_the_globe_are_named(X, message):
    with pytest.raises(ValueError, match=message):
        AutonomyAwareClustering(1, metric="haversine").fit(X)


def test_unknown_metrics_are_named(rng):
    for metric in ("euclidian", 3, SquaredEuclidean):
        with pytest.raises(ValueError, match="metric must be one of"):
            resolve_cost(metric)
    numpy_only = CallableCost(lambda X, Y: torch.tensor((X @ Y.T).numpy()))
    with pytest.raises(ValueError, match="torch operations only"):
        Problem(rng.random((3, 2)), cost=numpy_only).value_and_gradient(np.zeros((2, 2)), 1.0)
    with pytest.raises(ValueError, match=r"shape \(n, K\)"):
        Problem(rng.random((3, 2)), cost=CallableCost(lambda X, Y: X)).distortion(np.zeros((2, 2)))
