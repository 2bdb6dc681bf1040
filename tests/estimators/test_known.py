import math
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from oracle import half_nearest
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.callback import ProgressBar, ScoringMonitor
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from volition import (
    AutonomyAwareClustering,
    CallableAutonomy,
    DistanceAutonomy,
    FixedAutonomy,
    Passive,
)
from volition.annealing.schedules import Geometric
from volition.core.problem import Problem
from volition.metrics import distortion
from volition.solvers import Armijo
from volition.solvers.candidates import Found, Reporter
from volition.solvers.descent import Descent
from volition.solvers.shaking import Shaking


@pytest.mark.filterwarnings("default")
@parametrize_with_checks([AutonomyAwareClustering()])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("default")
@parametrize_with_checks(
    [AutonomyAwareClustering(solver=s) for s in ("fixed_point", "armijo", "gradient")]
)
def test_scikit_learn_contract_of_single_solvers(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def fitted(four_groups):
    autonomy = DistanceAutonomy(0.2, temperature=100)
    return AutonomyAwareClustering(4, autonomy=autonomy, random_state=0).fit(four_groups)


def test_fitted_attributes_hang_together(fitted, four_groups):
    X, Y = four_groups, fitted.cluster_centers_
    assert Y.shape == (4, 2)
    assert isinstance(Y, np.ndarray)
    np.testing.assert_array_equal(fitted.labels_, fitted.predict(X))
    np.testing.assert_array_equal(fitted.policy_, fitted.predict_proba(X))
    np.testing.assert_array_equal(fitted.labels_, fitted.policy_.argmax(1))
    expected = fitted.transform(X)
    np.testing.assert_array_equal(expected.argmin(1), fitted.labels_)
    assert fitted.distortion_ == pytest.approx(expected.min(1).mean(), rel=1e-12)
    assert fitted.score(X) == pytest.approx(-fitted.distortion_, rel=1e-12)
    assert fitted.distortion_ == pytest.approx(distortion(X, Y, fitted.autonomy), rel=1e-12)
    F = -logsumexp(-fitted.beta_ * expected, axis=1).mean() / fitted.beta_
    assert fitted.free_energy_ == pytest.approx(F, rel=1e-9)
    realized = fitted.predict_realized(X)
    np.testing.assert_allclose(realized.sum(1), 1)
    np.testing.assert_allclose(realized[np.arange(len(X)), fitted.labels_], 0.8)
    np.testing.assert_allclose(fitted.predict_realized(X, soft=True).sum(1), 1)
    assert fitted.betas_[-1] == fitted.history_[-1].beta
    assert fitted.policy_.max(1).mean() > 0.999
    assert fitted.converged_
    assert fitted.n_iter_ > 0


def test_report_names_the_best_of_what_was_tried(fitted):
    assert {"annealed", "k-means with 4 distinct #0"} <= {c.name for c in fitted.candidates_}
    best = min(fitted.candidates_, key=lambda c: c.distortion)
    assert fitted.distortion_ <= best.distortion * (1 + 1e-9)
    winner = fitted.winner_.removesuffix(", reallocated")
    assert any(c.name.startswith(winner) for c in fitted.candidates_)


def test_cluster_numbers_follow_position_not_luck(four_groups):
    models = [AutonomyAwareClustering(4, random_state=s).fit(four_groups) for s in (0, 1)]
    np.testing.assert_allclose(models[0].cluster_centers_, models[1].cluster_centers_, rtol=1e-7)
    np.testing.assert_array_equal(models[0].labels_, models[1].labels_)


@pytest.mark.parametrize("factor", [1e-8, 1e5])
def test_rescaling_changes_nothing_but_the_scale(four_groups, factor):
    X = four_groups[::5]
    P = np.array([[0.8, 0.2, 0, 0], [0.1, 0.9, 0, 0], [0, 0, 1, 0], [0.1, 0.1, 0.1, 0.7]])
    a, b = (
        AutonomyAwareClustering(4, autonomy=FixedAutonomy(P), random_state=0).fit(x)
        for x in (X, X * factor + 3 * factor)
    )
    np.testing.assert_allclose(b.cluster_centers_ / factor - 3, a.cluster_centers_, rtol=1e-6)
    assert b.distortion_ / factor**2 == pytest.approx(a.distortion_, rel=1e-8)
    np.testing.assert_array_equal(a.labels_, b.labels_)


def test_no_worse_than_k_means(rng):
    X = rng.normal(size=(300, 3))
    ours = AutonomyAwareClustering(10, random_state=0).fit(X).distortion_
    theirs = min(KMeans(10, n_init=1, random_state=s).fit(X).inertia_ for s in range(20)) / 300
    assert ours <= theirs * 1.001


@pytest.mark.parametrize("solver", ["auto", "fixed_point", "armijo", "gradient"])
@pytest.mark.parametrize(
    "autonomy",
    [
        None,
        DistanceAutonomy(0.3, gamma=0.5, temperature=0.1),
        CallableAutonomy(half_nearest),
        FixedAutonomy(0.7 * np.eye(3) + 0.1),
    ],
    ids=repr,
)
def test_every_solver_with_every_model_ends_at_rest(solver, autonomy, four_groups):
    """Exact solvers end where the gradient vanishes, Algorithm 1 at its own fixed point."""
    X = four_groups[::20]
    model = AutonomyAwareClustering(
        3, autonomy=autonomy, solver=solver, schedule=Geometric(tau=2.0), random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X)
    best = AutonomyAwareClustering(3, autonomy=autonomy, random_state=0).fit(X).distortion_
    assert best * (1 - 1e-3) <= model.distortion_ <= best * 1.35
    problem, Y = Problem(X, autonomy=autonomy), model.cluster_centers_
    beta = math.inf if solver == "auto" else model.beta_
    if solver == "fixed_point":
        sums = problem.moments(Y, beta)
        np.testing.assert_allclose(sums.moment / sums.mass[:, None], Y, atol=1e-3)
    else:
        assert problem.value_and_gradient(Y, beta)[1].abs().max() < 2e-3


def test_groups_as_metadata(four_groups, rng):
    X = four_groups[::4]
    groups = rng.choice(["day", "night"], len(X))
    autonomy = FixedAutonomy({"day": np.eye(4), "night": np.full((4, 4), 0.25)})
    model = AutonomyAwareClustering(4, autonomy=autonomy, random_state=0).fit(X, groups=groups)
    realized = model.predict_realized(X, groups=groups)
    assert (realized[groups == "day"].max(1) == 1).all()
    np.testing.assert_allclose(realized[groups == "night"], 0.25)
    with pytest.raises(ValueError, match="give groups="):
        model.predict(X)


def test_row_aligned_p_as_metadata(four_groups, rng):
    X = four_groups[::6]
    P = FixedAutonomy(0.6 * np.eye(4) + 0.1)
    p = np.repeat(P.matrix, len(X), axis=0)
    by_row = AutonomyAwareClustering(4, random_state=0).fit(X, autonomy_proba=p)
    by_model = AutonomyAwareClustering(4, autonomy=P, random_state=0).fit(X)
    assert by_row.distortion_ == pytest.approx(by_model.distortion_, rel=1e-6)
    np.testing.assert_array_equal(by_row.predict(X, autonomy_proba=p), by_row.labels_)
    with pytest.raises(ValueError, match="not both"):
        by_model.fit(X, autonomy_proba=p)
    with pytest.raises(ValueError, match=r"expected \(300, 3, 3\)"):
        AutonomyAwareClustering(3).fit(X, autonomy_proba=p)
    with pytest.raises(ValueError, match="entity, prescribed, realised"):
        AutonomyAwareClustering(4).fit(X, autonomy_proba=p[:5])


def test_given_centres_are_the_only_start(four_groups):
    init = four_groups[[0, 450, 1000, 1500]]
    model = AutonomyAwareClustering(4, init=init, random_state=0).fit(four_groups)
    assert [c.name for c in model.candidates_] == ["init"]
    nearest = np.linalg.norm(init[:, None] - model.cluster_centers_[None], axis=2).argmin(1)
    np.testing.assert_array_equal(nearest, np.arange(4))
    np.testing.assert_array_equal(init, four_groups[[0, 450, 1000, 1500]])


def test_one_beta_from_given_centres(four_groups):
    init = four_groups[[0, 450, 1000, 1500]]
    model = AutonomyAwareClustering(
        4, init=init, solver="fixed_point", schedule=[20.0], max_iter=7, tol=0
    ).fit(four_groups)
    assert model.n_iter_ == 7
    assert model.beta_ == 20.0
    assert not model.converged_


def test_auto_minimises_the_free_energy_of_an_explicit_last_beta(four_groups):
    model = AutonomyAwareClustering(4, schedule=[2.0, 8.0], random_state=0).fit(four_groups)
    assert model.beta_ == 8.0
    gradient = Problem(four_groups).value_and_gradient(model.cluster_centers_, 8.0)[1]
    assert gradient.abs().max() < 1e-5


def test_frames_in_and_out(four_groups):
    frame = pd.DataFrame(four_groups[::10], columns=["east", "north"])
    model = AutonomyAwareClustering(3, random_state=0).set_output(transform="pandas")
    out = model.fit(frame).transform(frame)
    assert list(out.columns) == [f"autonomyawareclustering{k}" for k in range(3)]
    assert list(model.feature_names_in_) == ["east", "north"]
    frame.iloc[3, 1] = np.nan
    with pytest.raises(ValueError, match="X contains NaN at row 3, column 'north'"):
        model.fit(frame)


def test_pipeline_and_clone(four_groups):
    pipe = make_pipeline(StandardScaler(), AutonomyAwareClustering(4, random_state=0))
    labels = pipe.fit(four_groups).predict(four_groups)
    truth = np.repeat(np.arange(4), (400, 500, 300, 600))
    assert adjusted_rand_score(truth, labels) > 0.98
    model = AutonomyAwareClustering(3, autonomy=DistanceAutonomy(0.2), solver=Armijo(step=2.0))
    copy = clone(model)
    assert copy.get_params()["autonomy"] == model.autonomy
    assert copy.solver.step == 2.0
    again = pickle.loads(pickle.dumps(pipe[-1]))
    np.testing.assert_array_equal(again.labels_, labels)


def test_float32_in_float32_out(four_groups):
    X = four_groups.astype(np.float32)
    autonomy = DistanceAutonomy(0.3, temperature=0.01)
    a = AutonomyAwareClustering(4, autonomy=autonomy, random_state=0).fit(X)
    b = AutonomyAwareClustering(4, autonomy=autonomy, random_state=0).fit(four_groups)
    assert a.cluster_centers_.dtype == a.policy_.dtype == np.float32
    assert a.transform(X).dtype == np.float32
    assert a.distortion_ == pytest.approx(b.distortion_, rel=1e-4)


def test_large_data_are_searched_on_a_sample_and_polished_on_all(monkeypatch, four_groups):
    import volition.solvers.search

    monkeypatch.setattr(volition.solvers.search, "SEARCH_SIZE", 300)
    monkeypatch.setattr(volition.solvers.search, "SEARCH_SIZE_BY_ENTITY", 300)
    for gamma in (0.0, 0.5):
        autonomy = DistanceAutonomy(0.3, gamma=gamma, temperature=100)
        model = AutonomyAwareClustering(4, autonomy=autonomy, random_state=0).fit(four_groups)
        assert model.distortion_ == pytest.approx(0.119034, rel=3e-4)


class Recorder:
    def __init__(self, stop_at=None):
        self.names, self.stop_at, self.scores = [], stop_at, []

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        self.names.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context, *, X, fitted_estimator):
        self.names.append(context.task_name)
        if fitted_estimator is not None:
            self.scores.append(fitted_estimator.score(X))
        return self.stop_at is not None and context.task_name.startswith(self.stop_at)


def test_callbacks_see_starts_and_betas(four_groups):
    recorder = Recorder()
    model = AutonomyAwareClustering(4, random_state=0, n_init=1).set_callbacks(recorder)
    model.fit(four_groups)
    assert recorder.names[-2:] == ["fit", "teardown"]
    assert sum(name.startswith("beta=") for name in recorder.names) == len(model.history_)
    assert {c.name for c in model.candidates_} <= set(recorder.names)
    assert -min(recorder.scores) > -max(recorder.scores) > 0


def test_callbacks_can_stop(four_groups):
    model = AutonomyAwareClustering(4, random_state=0).set_callbacks(Recorder("annealed"))
    model.fit(four_groups)
    assert [c.name for c in model.candidates_] == ["annealed"]
    assert model.status_ == "stopped by a callback"
    single = AutonomyAwareClustering(4, solver="fixed_point", random_state=0)
    single.set_callbacks(Recorder("beta=")).fit(four_groups)
    assert len(single.history_) == 1
    assert single.predict(four_groups).shape == (1800,)


def test_callbacks_can_stop_inside_annealing(four_groups):
    model = AutonomyAwareClustering(4, random_state=0).set_callbacks(Recorder("beta="))
    model.fit(four_groups)
    assert [c.name for c in model.candidates_] == ["annealed"]
    assert len(model.history_) == 1
    assert model.status_ == "stopped by a callback"


def test_callbacks_see_a_given_start(four_groups):
    recorder = Recorder()
    model = AutonomyAwareClustering(2, init=four_groups[:2]).set_callbacks(recorder)
    model.fit(four_groups)
    assert recorder.names == ["init", "fit", "teardown"]
    assert -recorder.scores[0] == pytest.approx(model.distortion_)


class Balance(Recorder):
    """Counts tasks that were begun and not ended."""

    open = 0

    def on_fit_task_begin(self, estimator, context):
        self.open += 1

    def on_fit_task_end(self, estimator, context):
        self.open -= 1


def test_every_task_that_begins_ends(rng):
    X = rng.random((800, 2))
    autonomy = DistanceAutonomy(0.4, temperature=0.01)
    for budget in (0.3, 1.0, 2.0, None):
        balance = Balance()
        model = AutonomyAwareClustering(
            8, autonomy=autonomy, time_budget=budget, n_init=1, random_state=0
        )
        model.set_callbacks(balance).fit(X)
        assert balance.open == 0


def test_auto_says_when_it_did_not_converge(four_groups):
    autonomy = DistanceAutonomy(0.3, temperature=50)
    for init in ("auto", four_groups[:4]):
        model = AutonomyAwareClustering(4, autonomy=autonomy, max_iter=1, init=init)
        with pytest.warns(ConvergenceWarning, match="max_iter=1"):
            model.fit(four_groups)
        assert not model.converged_


def test_policy_belongs_to_the_returned_centres(rng):
    """Tight blobs split long after far ones; the policy must be hard for the finest."""
    X = np.r_[rng.normal(-5, 0.3, (60, 2)), rng.normal(5, 0.3, (60, 2))]
    model = AutonomyAwareClustering(4, random_state=0).fit(X)
    assert model.policy_.max(1).mean() > 0.99
    soft = AutonomyAwareClustering(2, schedule=Geometric(beta_max=0.1, tau=1.7), random_state=0)
    assert soft.fit(X).beta_ == 0.1


def test_single_precision_distortion_of_tight_clusters(rng):
    X = np.r_[rng.normal(0, 1e-4, (200, 2)), rng.normal(1, 1e-4, (200, 2))].astype(np.float32)
    model = AutonomyAwareClustering(2, random_state=0).fit(X)
    Y = model.cluster_centers_.astype(np.float64)
    exact = ((X[:, None].astype(np.float64) - Y[None]) ** 2).sum(-1).min(1).mean()
    assert model.distortion_ == pytest.approx(exact, rel=2e-2)
    assert -model.score(X) == pytest.approx(model.distortion_, rel=1e-6)


def test_fit_transform_passes_metadata_on(four_groups, rng):
    X = four_groups[::20]
    p = rng.dirichlet(np.ones(2), size=(len(X), 2))
    model = AutonomyAwareClustering(2, n_init=1, random_state=0)
    out = model.fit_transform(X, autonomy_proba=p)
    np.testing.assert_array_equal(out, model.transform(X, autonomy_proba=p))
    for call in (model.predict, model.transform, model.score, model.predict_proba):
        with pytest.raises(ValueError, match="fitted with autonomy_proba"):
            call(X)


def test_progress_bar_and_scoring_monitor(four_groups, capsys):
    monitor = ScoringMonitor(scoring=lambda est, X, y=None: est.score(X))
    model = AutonomyAwareClustering(4, solver="fixed_point", random_state=0)
    model.set_callbacks(ProgressBar(), monitor).fit(four_groups)
    assert "AutonomyAwareClustering - fit" in capsys.readouterr().out


def test_time_budget_keeps_the_best_so_far(rng):
    X = rng.random((3000, 2))
    model = AutonomyAwareClustering(
        20, autonomy=DistanceAutonomy(0.4, temperature=0.01), time_budget=1e-3, random_state=0
    ).fit(X)
    assert [c.name for c in model.candidates_] == ["annealed", "entities drawn"]
    assert model.status_ == "stopped by the time budget"
    assert model.policy_.max(1).mean() > 0.99
    assert model.distortion_ == pytest.approx(
        distortion(X, model.cluster_centers_, model.autonomy), rel=1e-9
    )


def test_warns_when_iterations_run_out(four_groups):
    model = AutonomyAwareClustering(4, solver="armijo", schedule=[50.0], max_iter=2)
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        model.fit(four_groups)


def test_weights_and_input_are_left_alone(four_groups, rng):
    X, weight = four_groups[::10].copy(), rng.random(180)
    kept = X.copy(), weight.copy()
    AutonomyAwareClustering(3, random_state=0).fit(X, sample_weight=weight)
    np.testing.assert_array_equal(X, kept[0])
    np.testing.assert_array_equal(weight, kept[1])


@pytest.mark.parametrize("autonomy", [Passive(), DistanceAutonomy(0.3, temperature=0.05)], ids=repr)
def test_weights_are_repetition_through_the_whole_search(autonomy, four_groups, rng):
    X = four_groups[::9]
    times = rng.integers(0, 4, len(X))
    again = rng.permutation(np.repeat(np.arange(len(X)), times))
    model = AutonomyAwareClustering(4, autonomy=autonomy, random_state=0)
    a = clone(model).fit(X, sample_weight=times)
    b = clone(model).fit(X[again])
    np.testing.assert_allclose(a.cluster_centers_, b.cluster_centers_, atol=1e-5)
    assert a.distortion_ == pytest.approx(b.distortion_, rel=1e-9)
    scaled = clone(model).fit(X, sample_weight=times * 1e-200)
    np.testing.assert_allclose(scaled.cluster_centers_, a.cluster_centers_, atol=1e-5)


def test_degenerate_data_are_fine():
    same = np.ones((5, 2))
    model = AutonomyAwareClustering(3, random_state=0).fit(same)
    np.testing.assert_allclose(model.cluster_centers_, 1)
    assert model.distortion_ == pytest.approx(0, abs=1e-20)
    every = AutonomyAwareClustering(4, random_state=0).fit(np.arange(4.0)[:, None])
    assert every.distortion_ == pytest.approx(0, abs=1e-12)
    one = AutonomyAwareClustering(1, autonomy=DistanceAutonomy(0.5)).fit([[0.0], [2.0]])
    assert one.cluster_centers_[0, 0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_clusters": 0}, "n_clusters must be an integer >= 1, got 0"),
        ({"n_clusters": 2.5}, "n_clusters must be an integer >= 1"),
        ({"n_clusters": 11}, "n_clusters=11 must not exceed .* n_samples=10"),
        ({"max_iter": 0}, "max_iter must be an integer >= 1"),
        ({"tol": -1}, "tol must be a finite number >= 0"),
        ({"n_init": 0}, "n_init must be an integer >= 1 or 'auto'"),
        ({"chunk_size": 0}, "chunk_size must be an integer >= 1 or None"),
        ({"time_budget": 0}, "time_budget must be a positive number"),
        ({"solver": "lloyd"}, "solver must be one of"),
        ({"solver": Armijo}, "solver must be one of"),
        ({"schedule": "critical-ish"}, "schedule must be"),
        ({"autonomy": 0.3}, "autonomy must be an autonomy model"),
        ({"metric": "manhattan"}, "metric must be one of"),
        ({"init": "k-means++"}, "init must be 'auto' or an array"),
        ({"init": np.zeros((3, 2))}, "init has 3 centres, but n_clusters=2"),
        ({"init": np.zeros((2, 5))}, r"init must have shape \(n_clusters, 2\)"),
        ({"init": np.full((2, 2), np.nan)}, "init contains NaN at row 0, column 0"),
        ({"device": "abacus"}, "device must be 'auto' or a torch device"),
        ({"autonomy": FixedAutonomy(np.eye(3))}, "the autonomy matrix is 3 x 3"),
    ],
)
def test_bad_parameters_are_named(params, message, rng):
    model = AutonomyAwareClustering(**{"n_clusters": 2, **params})
    with pytest.raises(ValueError, match=message):
        model.fit(rng.random((10, 2)))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([1, -1, 1], r"sample_weight is negative at row 1 \(-1\)"),
        ([0, 0, 0], "zero for every row"),
        ([1, np.nan, 1], "non-finite value at row 1"),
        ([1, 1], r"must have shape \(3,\)"),
    ],
)
def test_bad_weights_are_named(weight, message):
    with pytest.raises(ValueError, match=message):
        AutonomyAwareClustering(1).fit(np.eye(3), sample_weight=weight)


def test_bad_values_are_named():
    for value, name in ((np.nan, "NaN"), (np.inf, "infinity")):
        X = np.zeros((4, 3))
        X[2, 1] = value
        with pytest.raises(ValueError, match=f"X contains {name} at row 2, column 1"):
            AutonomyAwareClustering(2).fit(X)


def test_user_thread_setting_is_restored(four_groups):
    before = torch.get_num_threads()
    AutonomyAwareClustering(2, n_init=1, random_state=0).fit(four_groups[::50])
    assert torch.get_num_threads() == before


def test_hard_beta_never_reaches_the_user(fitted):
    assert math.isfinite(fitted.beta_)


@pytest.mark.parametrize("solver", ["gradient", "fixed_point", "auto"])
def test_critical_schedule(four_groups, solver):
    X = four_groups[::5]
    autonomy = DistanceAutonomy(0.2, temperature=0.1)
    model = AutonomyAwareClustering(
        4, autonomy=autonomy, solver=solver, schedule="critical", random_state=0
    ).fit(X)
    best = AutonomyAwareClustering(4, autonomy=autonomy, random_state=0).fit(X)
    assert model.distortion_ <= best.distortion_ * (1.001 if solver != "fixed_point" else 1.05)
    if solver == "gradient":
        splits = [t for t in model.transitions_ if t.n_after > t.n_before]
        assert splits[-1].n_after == 4
        assert all(abs(t.beta / t.predicted - 1) < 0.03 for t in splits)


def test_a_small_fit_does_not_wait_for_a_compiler():
    code = (
        "import sys; from volition import AutonomyAwareClustering, DistanceAutonomy;"
        "from volition.datasets import load_four_groups;"
        "model = AutonomyAwareClustering(4, autonomy=DistanceAutonomy(0.2), random_state=0);"
        "model.fit(load_four_groups().data); print('numba' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_shaking_leaves_a_poor_minimum(four_groups):
    """Two centres in one group and one for two groups: no single move of Lloyd's mends that."""
    problem, descent = Problem(four_groups), Descent()
    reporter = Reporter(problem, descent)
    groups = [(0.2, 0.7), (0.2, 0.75), (0.2, 0.17), (0.82, 0.45)]
    stuck = descent.polish(problem, np.array(groups))
    value = descent.value(problem, stuck)
    shaking = Shaking(problem, problem, descent, reporter, n_shakes=60)
    found, stopped = shaking.improve(Found(value, stuck, "stuck"), np.random.RandomState(0))
    best = KMeans(4, n_init=10, random_state=0).fit(four_groups).inertia_ / len(four_groups)
    assert stopped is None
    assert value > 1.5 * best
    assert found.value == pytest.approx(best, rel=1e-3)
    assert [one.name for one in reporter.candidates] == ["stuck, shaken"]
