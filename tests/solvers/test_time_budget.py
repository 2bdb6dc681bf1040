"""A time budget bounds the whole fit and the whole command, and what is kept then is sound."""

import csv
import json
import time

import numpy as np
import pandas as pd
import pytest

from volition import (
    AutonomyAwareClustering,
    CallableAutonomy,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    Passive,
)
from volition.annealing.stability import assess_stability
from volition.cli.fit import run as fit_run
from volition.core.deadline import Deadline, OutOfTime
from volition.core.problem import Problem
from volition.datasets import make_city
from volition.metrics import distortion
from volition.solvers import Armijo, FixedPoint, Gradient, Status
from volition.solvers.sampling import lexical_order
from volition.solvers.search import Search

#: machines that run tests are busy: this much may go wrong in the last steps
NOISE = 1.5


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    """Compile first: that takes some seconds, once per machine."""
    for autonomy in (Passive(), DistanceAutonomy(0.2)):
        AutonomyAwareClustering(2, autonomy=autonomy, n_init=1).fit(make_city(50, random_state=0))


def is_sound(model, X):
    """The reported cost is that of the reported centres, by differences; labels are the best."""
    Y = model.cluster_centers_
    assert np.isfinite(Y).all()
    D = np.stack([((X - y) ** 2).sum(1) for y in Y], axis=1)
    autonomy = model.autonomy
    if autonomy is None or isinstance(autonomy, Passive):
        expected = D
    else:
        assert autonomy.gamma == 0
        logits = -autonomy.zeta / autonomy.temperature * ((Y[:, None] - Y) ** 2).sum(2)
        np.fill_diagonal(logits, -np.inf)
        away = np.exp(logits - logits.max(1, keepdims=True))
        away /= away.sum(1, keepdims=True)
        expected = D @ ((1 - autonomy.kappa) * np.eye(len(Y)) + autonomy.kappa * away).T
    chosen = expected[np.arange(len(X)), model.labels_]
    assert model.distortion_ == pytest.approx(chosen.mean(), rel=1e-6)
    assert chosen == pytest.approx(expected.min(1), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("n", "K", "budget"), [(20_000, 300, 2.0), (6_000, 1_000, 2.0), (300_000, 20, 1.0)]
)
def test_a_fit_ends_in_time(n, K, budget):
    X = make_city(n, random_state=0)
    autonomy = DistanceAutonomy(0.2, temperature=1.0)
    model = AutonomyAwareClustering(K, autonomy=autonomy, time_budget=budget, random_state=0)
    began = time.perf_counter()
    model.fit(X)
    assert time.perf_counter() - began < 1.1 * budget + NOISE
    assert model.status_ == "stopped by the time budget"
    assert not model.converged_
    is_sound(model, X)


def test_what_is_kept_in_time_is_useful():
    """Not worse than k-means++ seeds would be, and most centres are used."""
    X = make_city(20_000, random_state=0)
    model = AutonomyAwareClustering(300, time_budget=2.0, random_state=0).fit(X)
    rng = np.random.default_rng(0)
    drawn = X[rng.choice(len(X), 300, replace=False)]
    assert model.distortion_ < 0.7 * distortion(X, drawn)
    assert len(np.unique(model.labels_)) > 290


@pytest.mark.parametrize("budget", [1e-9, 1e-3, 0.05, 0.3])
@pytest.mark.parametrize("solver", ["auto", "fixed_point", "armijo", "gradient"])
def test_however_short_the_budget_the_result_is_sound(solver, budget):
    X = make_city(3000, random_state=0)
    autonomy = DistanceAutonomy(0.2)
    for schedule in ("auto", "critical"):
        model = AutonomyAwareClustering(
            12, autonomy=autonomy, solver=solver, schedule=schedule, time_budget=budget
        )
        began = time.perf_counter()
        model.fit(X)
        assert time.perf_counter() - began < 1.1 * budget + NOISE
        is_sound(model, X)


def test_a_budget_holds_for_given_centres_groups_and_models_of_users(rng):
    X = make_city(40_000, random_state=0)
    init = X[:60]
    groups = rng.integers(0, 2, len(X))

    def near(X, Y):
        import torch

        away = torch.softmax(-torch.cdist(X, Y), dim=1)
        return 0.5 * torch.eye(len(Y), dtype=Y.dtype) + 0.5 * away[:, None, :]

    cases = (
        ({"init": init}, {}),
        ({"autonomy": FixedAutonomy(rng.dirichlet(np.ones(60), (2, 60)))}, {"groups": groups}),
        ({"autonomy": CallableAutonomy(near)}, {}),
        ({"autonomy": DistanceAutonomy(0.3, gamma=0.5)}, {}),
    )
    for params, given in cases:
        rows = slice(None) if "groups" in given or "init" in params else slice(3000)
        model = AutonomyAwareClustering(60, time_budget=0.5, random_state=0, **params)
        began = time.perf_counter()
        model.fit(X[rows], **given)
        assert time.perf_counter() - began < 0.55 + 2 * NOISE, params
        cost = distortion(X[rows], model.cluster_centers_, model.autonomy, model.labels_, **given)
        assert model.distortion_ == pytest.approx(cost, rel=1e-9)


def test_ample_time_changes_nothing(four_groups):
    autonomy = DistanceAutonomy(0.3, temperature=0.01)
    plain = AutonomyAwareClustering(4, autonomy=autonomy, random_state=0).fit(four_groups)
    timed = AutonomyAwareClustering(4, autonomy=autonomy, random_state=0, time_budget=1e6)
    timed.fit(four_groups)
    np.testing.assert_array_equal(plain.cluster_centers_, timed.cluster_centers_)
    assert plain.distortion_ == timed.distortion_
    assert timed.status_ == plain.status_


@pytest.mark.parametrize("solver", [Gradient(), FixedPoint(), Armijo()])
def test_solvers_keep_their_best_when_time_runs_out(solver, monkeypatch):
    """The clock is turned by hand: so many looks at it, then it is late."""
    X = make_city(300, random_state=0)
    problem = Problem(X, autonomy=FixedAutonomy(np.full((5, 5), 0.02) + 0.9 * np.eye(5)))
    start = problem.centers(X[:5])
    values = [problem.free_energy(start, 1.0)]
    for looks in (0, 1, 3, 10):
        count = iter(range(10**6))
        monkeypatch.setattr(
            "volition.core.deadline.perf_counter", lambda n=looks, c=count: float(next(c) >= n)
        )
        timed = problem.with_deadline(Deadline(1.0))
        found = solver.solve(timed, start, 1.0, max_iter=300, tol=1e-9)
        monkeypatch.undo()
        assert found.status is Status.OUT_OF_TIME
        reached = problem.free_energy(found.centers, 1.0)
        assert found.free_energy in (np.inf, pytest.approx(reached, rel=1e-12))
        values.append(reached)
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0]


def _examine_without_end(problem, Y):
    while True:  # each takes a while; one of them must be cut off
        assess_stability(problem, Y, 1.0)


def test_eigenvalues_stop_at_the_deadline():
    """Lanczos' method is a single call of SciPy: products inside it look at the clock."""
    X = make_city(2000, random_state=0)
    problem = Problem(X, autonomy=DistanceAutonomy(0.2)).with_deadline(Deadline.after(0.3))
    began = time.perf_counter()
    with pytest.raises(OutOfTime):
        _examine_without_end(problem, X[:400])
    assert time.perf_counter() - began < 0.3 + NOISE


def test_the_command_ends_in_time(command, tmp_path, monkeypatch):
    X = make_city(20_000, random_state=0)
    with open(tmp_path / "city.csv", "w", newline="") as stream:
        csv.writer(stream).writerows([["x", "y"], *X.tolist()])
    spent = []
    write = fit_run.write_results

    def watched(*args):
        spent.append(time.perf_counter() - began)
        args = list(args)
        write(*args)

    monkeypatch.setattr(fit_run, "write_results", watched)
    began = time.perf_counter()
    code, out, _ = command("fit", "city.csv", "-k", 40, "--kappa", 0.2, "--time-budget", 2)
    assert code == 0
    assert spent[0] < 2.2 + NOISE
    assert "stopped by the time budget" in out


@pytest.mark.parametrize("budget", [0, -1, "nan"])
def test_the_command_refuses_budgets_that_are_none(command, tmp_path, budget):
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    code, _, err = command("fit", "a.csv", "-k", 1, "--time-budget", budget)
    assert code == 2
    assert "--time-budget must be a positive number of seconds" in err


def test_the_order_of_entities_is_the_lexical_one(rng):
    for d in (1, 2, 5):
        X = rng.integers(0, 4, (200, d)).astype(float)
        np.testing.assert_array_equal(lexical_order(X), np.lexsort(X.T[::-1]))
        X = rng.standard_normal((200, d))
        np.testing.assert_array_equal(lexical_order(X), np.lexsort(X.T[::-1]))


@pytest.fixture
def logged(tmp_path, rng):
    """Files of a log with 3 centres."""
    X, Y = make_city(300, random_state=0), make_city(3, random_state=1)
    near = ((X[:, None] - Y) ** 2).sum(2).argmin(1)
    entity = rng.integers(0, len(X), 600)
    prescribed = np.where(rng.random(600) < 0.3, rng.integers(0, 3, 600), near[entity])
    realized = np.where(rng.random(600) < 0.2, rng.integers(0, 3, 600), prescribed)
    log = np.stack([entity, prescribed, realized], axis=1)
    for name, header, rows in (
        ("e.csv", ["x", "y"], X), ("c.csv", ["x", "y"], Y),
        ("l.csv", ["entity", "prescribed", "realized"], log),
    ):  # fmt: skip
        with open(tmp_path / name, "w", newline="") as stream:
            csv.writer(stream).writerows([header, *rows.tolist()])
    return "estimate", "--log", "l.csv", "--entities", "e.csv", "--centers", "c.csv"


def test_a_budget_ends_the_searches_of_an_estimate(command, logged, tmp_path, monkeypatch):
    """Searches get no time at all: they end at once, and it is said that they did."""
    spent = []
    run = Search.run

    def watched(search):
        began = time.process_time()
        result = run(search)
        assert search.deadline.finite
        spent.append(time.process_time() - began)
        return result

    monkeypatch.setattr(Search, "run", watched)
    code, out, err = command(*logged, "--time-budget", 0.01, "--out", "r")
    assert (code, err) == (0, "")
    assert len(spent) == 3  # two for the new centres, one for those that ignore autonomy
    assert max(spent) < NOISE
    assert "Note: The time budget ended the search for centres: better ones may exist." in out
    assert "Note: The time budget ended the search for centres that ignore autonomy" in out
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["stop_reason"] == "the time budget is spent"


def test_a_fit_of_a_log_with_time_enough_is_the_same_as_without_a_budget(logged, tmp_path):
    X, Y, log = (pd.read_csv(tmp_path / name) for name in ("e.csv", "c.csv", "l.csv"))
    free, bounded = (ChoiceClustering(3, family="distance", random_state=0) for _ in "12")
    free.fit_log(X.to_numpy(), log, Y.to_numpy())
    bounded.fit_log(X.to_numpy(), log, Y.to_numpy(), time_budget=600)
    assert bounded.stop_reason_ == free.stop_reason_ == "the log is at its end"
    assert str(bounded.compare_plans(time_budget=600)) == str(free.compare_plans())
    assert np.array_equal(bounded.cluster_centers_, free.cluster_centers_)
    assert np.array_equal(bounded.labels_, free.labels_)


@pytest.mark.parametrize("budget", [0, -1, "nan"])
def test_an_estimate_refuses_budgets_that_are_none(command, logged, budget):
    code, _, err = command(*logged, "--time-budget", budget)
    assert code == 2
    assert "--time-budget must be a positive number of seconds" in err


@pytest.mark.parametrize("budget", [0, -1.0, float("nan"), "1"])
def test_a_fit_of_a_log_refuses_budgets_that_are_none(budget):
    X, log = make_city(10, random_state=0), {"entity": [0], "prescribed": [0], "realized": [1]}
    with pytest.raises(ValueError, match="time_budget must be a positive number of seconds or No"):
        ChoiceClustering(2).fit_log(X, log, X[:2], time_budget=budget)
