import itertools
import math

import numpy as np
import pytest

from volition import DistanceAutonomy, FixedAutonomy, Passive, anneal
from volition.annealing.schedules import (
    Critical,
    Explicit,
    Geometric,
    State,
    first_beta,
    resolve_schedule,
)
from volition.core.problem import Problem
from volition.datasets import load_four_groups, make_nested_groups
from volition.solvers import Armijo, FixedPoint, Gradient, Status


@pytest.mark.parametrize("solver", [FixedPoint(), Armijo(), Gradient()])
def test_obedient_groups_get_their_centroids(four_groups, solver):
    """Figure 1(b)."""
    result = anneal(
        Problem(four_groups), 4, solver=solver, schedule=Geometric(tau=2.0), random_state=0
    )
    sizes = np.cumsum([0, 400, 500, 300, 600])
    means = [four_groups[a:b].mean(0) for a, b in itertools.pairwise(sizes)]
    for mean in means:
        assert np.linalg.norm(result.centers - mean, axis=1).min() < 2e-3
    assert result.history[0].n_distinct == 1
    assert result.history[-1].n_distinct == 4


def test_full_autonomy_puts_every_centre_on_the_centroid(four_groups):
    """Figure 1(c)."""
    problem = Problem(four_groups, autonomy=FixedAutonomy(np.full((4, 4), 0.25)))
    result = anneal(problem, 4, schedule=Geometric(beta_max=1e4, tau=3.0), random_state=0)
    centroid = np.tile(four_groups.mean(0), (4, 1))
    np.testing.assert_allclose(result.centers, centroid, atol=1e-9)
    assert {record.n_distinct for record in result.history} == {1}


def test_partial_autonomy_shifts_centres_towards_the_centroid(four_groups):
    """Figure 1(d): by the closed form y_k = (Pᵀ S)_k / (Pᵀ m)_k of hard groups."""
    P = 0.75 * np.eye(4) + (0.25 / 3) * (1 - np.eye(4))
    result = anneal(Problem(four_groups, autonomy=FixedAutonomy(P)), 4, random_state=0)
    sizes = np.cumsum([0, 400, 500, 300, 600])
    S = np.array([four_groups[a:b].sum(0) for a, b in itertools.pairwise(sizes)])
    m = np.diff(sizes)
    wanted = (P.T @ S) / (P.T @ m)[:, None]
    for center in wanted:
        assert np.linalg.norm(result.centers - center, axis=1).min() < 2e-3


def test_identity_autonomy_is_plain_annealing(four_groups):
    schedule = Geometric(tau=1.5)
    a = anneal(Problem(four_groups), 4, schedule=schedule, random_state=0)
    b = anneal(
        Problem(four_groups, autonomy=FixedAutonomy(np.eye(4))),
        4,
        schedule=schedule,
        random_state=0,
    )
    np.testing.assert_array_equal(a.centers, b.centers)


@pytest.mark.parametrize("factor", [1e-6, 0.37, 1.0, 1e7])
@pytest.mark.parametrize("solver", [FixedPoint(), Armijo(), Gradient()])
def test_scale_changes_nothing_but_the_scale(four_groups, factor, solver):
    X = four_groups[::6]
    P = 0.9 * np.eye(4) + 0.025
    results = [
        anneal(
            Problem(x, autonomy=FixedAutonomy(P)),
            4,
            solver=solver,
            schedule=Geometric(tau=2.0),
            random_state=0,
        )
        for x in (X, X * factor)
    ]
    a, b = results
    np.testing.assert_allclose(b.centers / factor, a.centers, rtol=1e-4, atol=1e-5)
    assert len(a.history) == len(b.history)
    np.testing.assert_allclose(
        [r.beta * factor**2 for r in b.history], [r.beta for r in a.history], rtol=1e-9
    )
    assert [r.n_distinct for r in a.history] == [r.n_distinct for r in b.history]


def test_first_beta_is_below_the_first_split(rng):
    """Obedient entities split first at 1 / (2 lambda_max)."""
    X = rng.normal(size=(500, 3)) * [3, 1, 0.1]
    problem = Problem(X)
    critical = 1 / (2 * np.linalg.eigvalsh(np.cov(X.T, bias=True))[-1])
    assert first_beta(problem) == pytest.approx(critical / 2)
    below = anneal(problem, 3, schedule=Explicit((critical * 0.97,)), random_state=0)
    above = anneal(problem, 3, schedule=Explicit((critical * 0.97, critical * 1.1)), random_state=0)
    assert below.history[-1].n_distinct == 1
    assert above.history[-1].n_distinct > 1


def test_history_tells_what_happened(four_groups):
    problem = Problem(four_groups)
    result = anneal(problem, 4, schedule=Geometric(tau=1.6), random_state=0)
    for record, centers in zip(result.history, result.path, strict=True):
        summary = problem.summary(centers, record.beta)
        assert record.free_energy == pytest.approx(summary.free_energy)
        assert record.distortion == pytest.approx(summary.distortion)
        assert record.entropy == pytest.approx(summary.entropy, abs=1e-9)
        assert record.free_energy == pytest.approx(
            record.distortion - record.entropy / record.beta, abs=1e-9
        )
        assert record.n_iter >= 1
    betas = [record.beta for record in result.history]
    assert betas == sorted(betas)
    assert result.n_iter == sum(record.n_iter for record in result.history)
    assert [t.n_after for t in result.transitions][-1] == 4
    assert result.status is Status.CONVERGED


def test_history_is_not_aliased_with_the_result(four_groups):
    result = anneal(Problem(four_groups), 4, schedule=Geometric(tau=2.0), random_state=0)
    kept = result.path[-1].copy()
    result.centers[:] = 0
    np.testing.assert_array_equal(result.path[-1], kept)


def test_no_perturbation_is_left_in_the_centres(four_groups):
    """The returned centres are a fixed point of the last beta to solver precision."""
    problem = Problem(four_groups)
    result = anneal(problem, 4, schedule=Geometric(tau=2.0), tol=1e-10, random_state=0)
    sums = problem.moments(result.centers, result.beta)
    np.testing.assert_allclose(sums.moment / sums.mass[:, None], result.centers, atol=1e-9)
    one = anneal(problem, four_groups[:4], schedule=Explicit((10.0,)), max_iter=1, tol=0)
    sums = problem.moments(four_groups[:4], 10.0)
    np.testing.assert_allclose(one.centers, sums.moment / sums.mass[:, None], rtol=1e-12)


def test_seed_decides_everything(four_groups):
    runs = [
        anneal(Problem(four_groups), 4, schedule=Geometric(tau=2.0), random_state=7).centers
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*runs)


def test_stopping_from_outside(four_groups):
    seen = []
    result = anneal(
        Problem(four_groups),
        4,
        random_state=0,
        on_beta=lambda record, centers: seen.append(record) or len(seen) == 3,
    )
    assert len(result.history) == 3
    assert result.status is Status.STOPPED
    late = anneal(Problem(four_groups), 4, random_state=0, deadline=lambda: True)
    assert len(late.history) == 1
    assert late.status is Status.OUT_OF_TIME


def test_default_solver_suits_the_problem(four_groups):
    X = four_groups[::10]
    for autonomy in (Passive(), DistanceAutonomy(0.3, temperature=0.1)):
        problem = Problem(X, autonomy=autonomy)
        result = anneal(problem, 4, schedule=Geometric(tau=2.0), random_state=0)
        gradient = problem.value_and_gradient(result.centers, result.beta)[1]
        assert gradient.abs().max() < 1e-4


def test_geometric_schedule_as_published():
    schedule = Geometric(10, 1e4, 1.1)
    problem = Problem(np.arange(4.0)[:, None])
    summary = problem.summary(np.zeros((1, 1)), 1.0)
    betas = [schedule.start(problem)]
    while (
        ahead := schedule.next(problem, State(betas[-1], summary, 1, np.zeros((1, 1))))
    ) is not None:
        betas.append(ahead)
    n = math.floor(math.log(1e3) / math.log(1.1)) + 1
    np.testing.assert_allclose(betas, 10 * 1.1 ** np.arange(n), rtol=1e-9)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("linear", "schedule must be 'auto'"),
        ([], "non-empty rising list"),
        ([3.0, 1.0], "non-empty rising list"),
        ([-1.0], "non-empty rising list"),
        ([math.inf], "non-empty rising list"),
        (3, "schedule must be 'auto'"),
    ],
)
def test_bad_schedules_are_named(bad, message):
    with pytest.raises(ValueError, match=message):
        resolve_schedule(bad)


def test_bad_geometric_parameters_are_named():
    for given, message in (
        ({"tau": 1.0}, "tau must be"),
        ({"beta_min": -1}, "beta_min must be"),
        ({"beta_min": 10, "beta_max": 1}, "must not be below"),
    ):
        with pytest.raises(ValueError, match=message):
            Geometric(**given)


def test_wrong_number_of_clusters_for_the_matrix(four_groups):
    with pytest.raises(ValueError, match="n_clusters=3, but the autonomy matrix is 2 x 2"):
        anneal(Problem(four_groups, autonomy=FixedAutonomy(np.eye(2))), 3)


def test_annealing_waits_for_pending_splits():
    """Plateaus between splits look hard; annealing must go on until all centres are apart."""
    nested = make_nested_groups()
    P = (15 / 16) * np.eye(16) + (1 / 240) * (1 - np.eye(16))
    problem = Problem(nested.data[::8], autonomy=FixedAutonomy(P))
    result = anneal(problem, 16, schedule=Geometric(tau=1.1), random_state=0)
    assert {1, 4, 8, 16} <= {record.n_distinct for record in result.history}
    assert result.history[-1].n_distinct == 16
    far = np.array([0.0, 20.0, 1000.0, 1020.0])
    X = np.repeat(far, 20)[:, None] + np.tile(np.linspace(-1, 1, 20), 4)[:, None]
    result = anneal(Problem(X), 4, random_state=0)
    np.testing.assert_allclose(np.sort(result.centers[:, 0]), far, atol=0.05)


def test_heavy_override_only_delays_the_split(rng):
    X = np.r_[rng.normal(-5, 0.3, (60, 2)), rng.normal(5, 0.3, (60, 2))]
    P = np.array([[0.55, 0.45], [0.45, 0.55]])
    result = anneal(Problem(X, autonomy=FixedAutonomy(P)), 2, random_state=0)
    assert result.history[-1].n_distinct == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"init": 0}, "must be an integer >= 1, got 0"),
        ({"init": 2, "solver": "gradient"}, "solver must be a solver object"),
        ({"init": 2, "schedule": [1.0]}, "schedule must be a schedule object"),
        ({"init": 2, "max_iter": 0}, "max_iter must be an integer >= 1"),
    ],
)
def test_bad_arguments_of_anneal_are_named(four_groups, given, message):
    with pytest.raises(ValueError, match=message):
        anneal(Problem(four_groups), **given)


def test_a_second_pass_that_is_cut_off_does_not_count(monkeypatch):
    monkeypatch.setattr("volition.annealing.anneal.CHANCE_PLACES", 0)
    problem = Problem(load_four_groups().data, autonomy=DistanceAutonomy(0.3, temperature=0.01))
    times = 0

    def late_after(most):
        nonlocal times
        times += 1
        return times > most

    whole = anneal(
        problem, 4, schedule=Critical(passes=1), random_state=0, deadline=lambda: late_after(10**6)
    )
    most, times = times + 2, 0
    late = anneal(
        problem, 4, schedule=Critical(passes=2), random_state=0, deadline=lambda: late_after(most)
    )
    assert times == most + 1  # the second pass was cut off
    assert late.beta == pytest.approx(whole.beta, rel=1e-9)
    reached = problem.distortion(late.centers)
    assert reached == pytest.approx(problem.distortion(whole.centers), rel=1e-6)
    assert late.n_iter > whole.n_iter
