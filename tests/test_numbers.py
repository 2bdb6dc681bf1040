"""Numbers at the ends of what floating point holds: right, or one sentence."""

import warnings

import numpy as np
import pytest
from oracle import precise_expected
from sklearn.cluster import KMeans

from volition import AutonomyAwareClustering, DistanceAutonomy, suggest_n_clusters
from volition.datasets import make_city
from volition.metrics import distortion
from volition.outliers import OutlierWarning, warn_of_outliers
from volition.problem import Problem

X24 = np.random.default_rng(0).random((24, 2)) * 10


def far_away(value, row=5, dtype=float):
    X = X24.astype(dtype)
    X[row, 0] = value
    return X


# -- outliers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [1e3, 1e5, 1e6, 1e8, -1e8, 1e12])
def test_one_far_value_gets_a_centre_and_the_rest_are_placed_well(far):
    """By definition: the far entity costs nothing, the others what two centres cost them."""
    X = far_away(far)
    rest = np.delete(X, 5, axis=0)
    best = KMeans(2, n_init=50, random_state=0).fit(rest).inertia_ / 24
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = AutonomyAwareClustering(3, random_state=0).fit(X)
    assert model.distortion_ == pytest.approx(best, rel=1e-9)
    again = ((X - model.cluster_centers_[model.labels_]) ** 2).sum(1).mean()
    assert model.distortion_ == pytest.approx(again, rel=1e-9)
    assert distortion(X, model.cluster_centers_) == pytest.approx(best, rel=1e-9)
    if abs(far) > 1e4:
        (said,) = [str(w.message) for w in caught if w.category is OutlierWarning]
        assert said.startswith(f"Column 0 is {far:g} at row 5, ")
        assert "remove the row" in said


def test_beyond_all_digits_the_cost_is_that_of_the_centres_and_said_to_be_unreliable():
    for far in (1e20, 1e40, 1e139):
        X = far_away(far)
        with pytest.warns(OutlierWarning, match="row 5.*the cost is not reliable"):
            model = AutonomyAwareClustering(3, random_state=0).fit(X)
        again = ((X - model.cluster_centers_[model.labels_]) ** 2).sum(1).mean()
        assert model.distortion_ == pytest.approx(again, rel=1e-12)


def test_a_far_value_in_single_precision():
    X = far_away(1e7, dtype=np.float32)
    rest = np.delete(X, 5, axis=0).astype(float)
    best = KMeans(2, n_init=50, random_state=0).fit(rest).inertia_ / 24
    with pytest.warns(OutlierWarning, match="row 5"):
        model = AutonomyAwareClustering(3, random_state=0).fit(X)
    assert model.cluster_centers_.dtype == np.float32
    assert model.distortion_ == pytest.approx(best, rel=1e-5)


def test_a_far_value_among_many_is_in_the_sample_that_is_searched():
    X = make_city(20_000, random_state=0)
    alone = AutonomyAwareClustering(4, random_state=0, n_init=1).fit(X)
    X = np.concatenate([X, [[1e9, 0.0]]])
    with pytest.warns(OutlierWarning, match="row 20000"):
        model = AutonomyAwareClustering(5, random_state=0, n_init=1).fit(X)
    assert model.distortion_ == pytest.approx(alone.distortion_, rel=1e-3)


def test_expected_costs_with_a_far_centre_are_exact():
    X, autonomy = far_away(1e9), DistanceAutonomy(0.3, gamma=0.4, temperature=2.0)
    Y = np.array([[2.0, 3.0], [7.0, 6.0], [1e9, 5.0], [2.5, 3.0]])
    for model in (autonomy, DistanceAutonomy(0.3, temperature=2.0)):
        found = Problem(X, autonomy=model).expected_costs(Y)
        np.testing.assert_allclose(found, precise_expected(X, Y, model), rtol=1e-9)


def test_tight_groups_far_apart_have_their_true_cost(rng):
    """Rounding of expanded squares is a share of the distance between groups, not within."""
    X = np.array([[0.0, 0.0], [1e6, 0.0], [0.0, 1e6]])[rng.integers(0, 3, 60)]
    X = X + 1e-4 * rng.standard_normal(X.shape)
    model = AutonomyAwareClustering(3, random_state=0).fit(X)
    exact = ((X - model.cluster_centers_[model.labels_]) ** 2).sum(1).mean()
    assert model.distortion_ == pytest.approx(exact, rel=1e-6)
    assert model.distortion_ == pytest.approx(2e-8, rel=0.3)


@pytest.mark.parametrize("code", [-999.0, 999.0, 99999.0, -99.0])
def test_codes_for_missing_values_are_pointed_out(code, rng):
    X = 0.5 * rng.standard_normal((200, 3))
    X[[7, 30, 31], 1] = code
    with pytest.warns(OutlierWarning) as caught:
        warn_of_outliers(X, columns=["a", "b", "c"])
    assert len(caught) == 1
    said = str(caught[0].message)
    assert f"Column 'b' holds {code:g} in 3 rows (the first is row 7)" in said
    with pytest.warns(OutlierWarning, match="in 3 rows"):
        suggest_n_clusters(X, n_max=3)


def test_ordinary_data_are_not_suspected(rng):
    for X in (
        make_city(5000, random_state=0),
        rng.standard_cauchy((300, 2)),
        rng.lognormal(0, 2, (5000, 2)),
        np.array([[1.0], [1.0], [1.0], [5.0]]),
        np.repeat([[0.0], [1000.0]], 50, axis=0),
        np.arange(900.0, 1000.0)[:, None],
        rng.integers(0, 2, (500, 3)) * 99.0,
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_outliers(X)
    with warnings.catch_warnings():  # rows without weight decide nothing
        warnings.simplefilter("error")
        warn_of_outliers(far_away(1e9), np.arange(24) != 5)


def test_the_command_names_the_column_of_an_outlier(command, tmp_path):
    rows = "\n".join(f"{x},{y}" for x, y in far_away(99999999.0).tolist())
    (tmp_path / "a.csv").write_text("lon,lat2\n" + rows + "\n")
    code, out, err = command("fit", "a.csv", "-k", 3, "--quiet")
    assert code == 0
    assert "Warning: Column 'lon' holds 99999999 in 1 row (the first is row 5)" in out
    assert "Column 0" not in out + err
    code, out, err = command("phase", "a.csv", "--max-clusters", 4, "--quiet")
    assert code == 0
    assert out.count("Column 'lon' holds 99999999") == 1
    assert "Column 0" not in out + err
