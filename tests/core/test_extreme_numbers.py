"""Numbers at the ends of what floating point holds: right, or one sentence."""

import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import precise_expected
from sklearn.cluster import KMeans

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    DistanceAutonomy,
    TabularClustering,
    suggest_n_clusters,
)
from volition.core.outliers import OutlierWarning, warn_of_outliers
from volition.core.problem import Problem
from volition.datasets import make_city
from volition.metrics import distortion

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


# -- ends of the range --------------------------------------------------------------------------


exponents = st.floats(-307.6, 308.2).map(lambda e: 10.0**e)


@settings(max_examples=60, deadline=None)
@given(exponents, exponents, exponents, st.booleans())
def test_expected_costs_at_any_temperature_and_weights(temperature, zeta, gamma, collapses):
    X = X24[:6]
    Y = X24[6:10]
    model = DistanceAutonomy(0.4, 0.0 if collapses else gamma, zeta, temperature)
    found = Problem(X, autonomy=model).expected_costs(Y)
    np.testing.assert_allclose(found, precise_expected(X, Y, model, digits=700), rtol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(-138, 138), st.booleans())
def test_units_do_not_matter(exponent, collapses):
    """Lengths in other units, temperatures in their squares: the same policy, costs to scale."""
    unit = 10.0**exponent
    Y, beta = X24[:4], 0.3
    one = Problem(X24, autonomy=DistanceAutonomy(0.3, 0.0 if collapses else 0.5))
    scaled = DistanceAutonomy(0.3, 0.0 if collapses else 0.5, temperature=unit**2)
    other = Problem(X24 * unit, autonomy=scaled)
    for beta in (0.3, np.inf):
        a, b = one.summary(Y, beta), other.summary(Y * unit, beta / unit**2)
        assert b.free_energy == pytest.approx(a.free_energy * unit**2, rel=1e-9)
        np.testing.assert_allclose(b.mass, a.mass, rtol=1e-9)
        (F, slope), (G, other_slope) = (
            one.value_and_gradient(Y, beta),
            other.value_and_gradient(Y * unit, beta / unit**2),
        )
        assert pytest.approx(F * unit**2, rel=1e-9) == G
        np.testing.assert_allclose(other_slope / unit, slope, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_fits_at_the_lowest_temperatures_are_the_limit(gamma):
    def cost(temperature, zeta=1.0):
        model = DistanceAutonomy(0.4, gamma * zeta, zeta, temperature)
        fitted = AutonomyAwareClustering(3, autonomy=model, n_init=1, random_state=0).fit(X24)
        return fitted.distortion_

    limit = cost(1e-4)
    for temperature, zeta in ((1e-300, 1.0), (1e-308, 1.0), (5e-324, 1.0), (1e-300, 1e10)):
        assert cost(temperature, zeta) == pytest.approx(limit, rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("temperature", [1e-42, 5e-324, 1e-308, 1e308])
def test_coincident_centres_at_any_temperature(dtype, temperature):
    X = X24.astype(dtype)
    for gamma in (0.0, 0.5):
        problem = Problem(X, autonomy=DistanceAutonomy(0.4, gamma, temperature=temperature))
        for Y in (np.repeat(X[:1], 3, axis=0), X[[0, 0, 1]]):
            F, gradient = problem.value_and_gradient(Y, 1.0)
            assert np.isfinite(F)
            assert np.isfinite(gradient.numpy()).all()


@pytest.mark.parametrize("exponent", [-300, -170, -160, -150, 145, 154, 160, 307])
def test_units_that_cannot_be_squared_are_one_sentence(exponent):
    X = X24 / 10 * 10.0**exponent
    for call in (AutonomyAwareClustering(3).fit, suggest_n_clusters):
        with pytest.raises(ValueError, match=r"in float64: use (larger|smaller) units") as error:
            call(X)
        assert str(error.value).count(". ") == 0
    with pytest.raises(ValueError, match="in float32: use"):
        AutonomyAwareClustering(3).fit((X24 * 1e20).astype(np.float32))


def test_denormal_crumbs_beside_ordinary_values_are_no_error():
    X = X24.copy()
    X[0] = 1e-310
    model = AutonomyAwareClustering(3, random_state=0).fit(X)
    assert model.predict([[0.0, 0.0], [1e-310, 1e-200]]).tolist() == [model.labels_[0]] * 2


@pytest.mark.parametrize("scale", [5e-324, 1e-308, 1e308])
def test_weights_of_any_size_are_relative(scale):
    plain = AutonomyAwareClustering(3, random_state=0).fit(X24)
    model = AutonomyAwareClustering(3, random_state=0).fit(X24, sample_weight=np.full(24, scale))
    assert model.distortion_ == pytest.approx(plain.distortion_, rel=1e-9)


def test_one_weight_that_leaves_nothing_to_the_others():
    weight = np.ones(24)
    weight[3] = 1e308
    began = time.perf_counter()
    with pytest.warns(UserWarning, match="of 23 rows .*1e\\+308, at row 3.* too little to count"):
        model = AutonomyAwareClustering(3, random_state=0).fit(X24, sample_weight=weight)
    assert time.perf_counter() - began < 10
    np.testing.assert_allclose(model.cluster_centers_[model.labels_[3]], X24[3])


def test_the_command_with_the_largest_weights(command, tmp_path):
    rows = "\n".join(f"{x},{y},1e308" for x, y in X24.tolist())
    (tmp_path / "a.csv").write_text("x,y,w\n" + rows + "\n")
    words = ("fit", "a.csv", "-k", 3, "--columns", "x,y", "--weight", "w", "--out", "out")
    code, _, _ = command(*words)
    assert code == 0
    shares = np.genfromtxt(tmp_path / "out" / "centers.csv", delimiter=",", names=True)
    assert shares["share_prescribed"].sum() == pytest.approx(1)
    assert shares["share_realized"].sum() == pytest.approx(1)


# -- many columns -------------------------------------------------------------------------------


def test_more_columns_than_rows():
    X = np.random.default_rng(0).standard_normal((5, 20_000))
    began = time.perf_counter()
    AutonomyAwareClustering(3, random_state=0).fit(X)
    suggest_n_clusters(X, n_max=3)
    X, autonomy = X[:, :3000], DistanceAutonomy(0.2, temperature=1e4)
    model = AutonomyAwareClustering(3, autonomy=autonomy, random_state=0).fit(X)
    assert time.perf_counter() - began < 20
    assert model.distortion_ == pytest.approx(
        distortion(X, model.cluster_centers_, model.autonomy), rel=1e-9
    )


def test_the_largest_variance_from_either_side(rng):
    for shape in ((40, 3), (3, 400), (100, 100), (60, 90)):
        X, weight = rng.standard_normal(shape) + 7, rng.random(shape[0])
        expected = np.linalg.eigvalsh(np.cov(X.T, aweights=weight, bias=True))[-1]
        assert Problem(X, sample_weight=weight).largest_variance == pytest.approx(
            expected, rel=1e-9
        )


# -- outliers, whichever way they come in ---------------------------------------------------------


def town(far=None):
    X = np.random.default_rng(3).normal(5, 2, (60, 2))
    if far is not None:
        X[7] = far
    return X


def outliers_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert not any(w.category is RuntimeWarning for w in caught), [str(w.message) for w in caught]
    mine = [w for w in caught if w.category is OutlierWarning]
    assert all(w.filename == __file__ for w in mine)
    return [str(w.message) for w in mine]


def log_of(X, Y):
    rng = np.random.default_rng(0)
    near = ((X[:, None] - Y) ** 2).sum(-1).argmin(1)
    entity = rng.integers(0, len(X), 300)
    realized = np.where(rng.random(300) < 0.3, rng.integers(0, len(Y), 300), near[entity])
    return {"entity": entity, "prescribed": near[entity], "realized": realized}


@pytest.mark.parametrize("learner", [ADENClustering, ChoiceClustering, TabularClustering])
@pytest.mark.parametrize("far", [999.0, -9999.0, 1e7, 99999999.0])
def test_learners_name_an_outlier(learner, far):
    told = outliers_of(lambda: learner(3).start(town(far)))
    assert [said[:9] for said in told] == ["Column 0 ", "Column 1 "]
    assert all("row 7" in said for said in told)
    assert not outliers_of(lambda: learner(3).start(town()))
    weight = np.ones(60)
    weight[7] = 0
    assert not outliers_of(lambda: learner(3).start(town(far), weight))


def test_columns_of_frames_and_entities_that_come_later_are_named():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(town(), columns=["East", "North"])
    model = TabularClustering(3)
    assert not outliers_of(lambda: model.start(frame))
    more = pandas.DataFrame([[5.0, 5.0], [4.0, -9999.0]], columns=["East", "North"])
    (said,) = outliers_of(lambda: model.add_entities(more))
    assert said.startswith("Column 'North' holds -9999 in 1 row (the first is row 61)")
    assert not outliers_of(lambda: model.add_entities(more[:1]))


@pytest.mark.parametrize("far", [999.0, 1e7, 99999999.0])
def test_logs_with_an_outlier_are_warned_of_and_numpy_says_nothing(far):
    X, Y = town(far), np.array([[3.0, 5.0], [7.0, 5.0], [5.0, 8.0]])
    told = outliers_of(lambda: ChoiceClustering(3, random_state=0).fit_log(X, log_of(X, Y), Y))
    assert len(told) == 2


@pytest.mark.parametrize("words", [("estimate",), ("learn", "--interactions", "300")])
def test_commands_that_take_a_log_name_the_column_of_an_outlier(command, tmp_path, words):
    X, Y = town(), np.array([[3.0, 5.0], [7.0, 5.0], [5.0, 8.0]])
    X[7, 1] = 99999999.0
    log = log_of(X, Y)
    rows = zip(*(values.tolist() for values in log.values()), strict=True)
    write = lambda name, lines: (tmp_path / name).write_text("\n".join(lines) + "\n")  # noqa: E731
    write("e.csv", ["East,North", *(f"{x},{y}" for x, y in X.tolist())])
    write("c.csv", ["East,North", *(f"{x},{y}" for x, y in Y.tolist())])
    write("l.csv", [",".join(log), *(f"{i},{j},{k}" for i, j, k in rows)])
    files = ("--log", "l.csv", "--entities", "e.csv", "--centers", "c.csv", "--out", "out")
    code, out, err = command(*words, *files, "--quiet")
    assert code == 0, err
    assert out.count("Note: Column 'North' holds 99999999 in 1 row (the first is row 7)") == 1
    assert "Column 1" not in out + err
    assert "invalid value" not in out + err


def test_far_values_that_repeat_are_likely_codes(rng):
    X = rng.uniform(-8, 8, (180, 2))
    X[[3, 90]] = 99
    told = outliers_of(lambda: warn_of_outliers(X))
    assert "Column 0 holds 99 in 2 rows (the first is row 3)" in told[0]
    X = rng.normal(100, 5, (200, 2))
    X[::25] = 0
    told = outliers_of(lambda: warn_of_outliers(X))
    assert "Column 1 holds 0 in 8 rows (the first is row 0)" in told[1]
    ordinary = (
        np.round(rng.lognormal(0, 2, (5000, 2))),
        rng.poisson(3, (500, 2)).astype(float),
        np.concatenate([rng.normal(100, 1, 150), rng.normal(0, 1, 50)])[:, None],
    )
    for X in ordinary:
        assert not outliers_of(lambda X=X: warn_of_outliers(X))


def test_weights_of_zero_are_one_sentence(command, tmp_path):
    rows = "\n".join(f"{x},{y},0" for x, y in X24.tolist())
    (tmp_path / "a.csv").write_text("x,y,w\n" + rows + "\n")
    for words in (("fit", "-k", 3), ("phase",)):
        code, _, err = command(words[0], "a.csv", *words[1:], "--columns", "x,y", "--weight", "w")
        assert code == 2
        assert "sample_weight is zero for every row; at least one must be positive." in err
