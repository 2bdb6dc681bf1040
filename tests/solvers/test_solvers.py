import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from volition import DistanceAutonomy, FixedAutonomy
from volition.core.problem import Problem
from volition.solvers import Armijo, FixedPoint, Gradient, Status

SOLVERS = [FixedPoint(), Armijo(), Gradient()]


@pytest.fixture
def fixed(rng):
    X = rng.normal(size=(80, 2))
    P = 0.7 * np.eye(3) + 0.1
    return Problem(X, autonomy=FixedAutonomy(P), sample_weight=rng.random(80)), X[:3]


@pytest.mark.parametrize("beta", [0.5, 3.0, 50.0])
def test_algorithm_1_is_a_gradient_step(fixed, beta):
    """Theorem 1: y(t+1) = y(t) - 1/2 P̂⁻¹ ∇F, with the true gradient's factor 2."""
    problem, Y = fixed
    step = FixedPoint().solve(problem, problem.centers(Y), beta, max_iter=1, tol=0)
    assert step.handovers == 0
    mass = problem.moments(Y, beta).mass[:, None].numpy()
    gradient = problem.value_and_gradient(Y, beta)[1].numpy()
    np.testing.assert_allclose(step.centers, Y - 0.5 * gradient / mass, rtol=1e-10)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("beta", [0.2, 5.0])
def test_solvers_end_at_stationary_points(fixed, solver, beta):
    problem, Y = fixed
    start = problem.moments(Y, beta).free_energy
    found = solver.solve(problem, problem.centers(Y), beta, max_iter=5000, tol=1e-9)
    assert found.status in (Status.CONVERGED, Status.STALLED)
    assert found.free_energy <= start
    assert problem.value_and_gradient(found.centers, beta)[1].abs().max() < 1e-6


def test_only_the_exact_gradient_is_stationary_when_p_moves(rng):
    """Algorithm 1 freezes p: its fixed point is not a stationary point of F."""
    problem = Problem(rng.random((300, 2)), autonomy=DistanceAutonomy(0.5, temperature=0.1))
    Y = problem.centers(rng.random((5, 2)))
    exact = Gradient().solve(problem, Y, 50.0, max_iter=2000, tol=1e-10)
    frozen = FixedPoint().solve(problem, Y, 50.0, max_iter=5000, tol=1e-10)
    size = [problem.value_and_gradient(s.centers, 50.0)[1].norm() for s in (exact, frozen)]
    assert size[0] < 1e-6 < size[1]
    sums = problem.moments(frozen.centers, 50.0)
    assert torch.allclose(sums.moment / sums.mass[:, None], frozen.centers, atol=1e-7)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), beta=st.floats(0.01, 1e4), kappa=st.floats(0, 1))
def test_free_energy_never_rises_when_p_is_fixed(seed, beta, kappa):
    rng = np.random.default_rng(seed)
    P = (1 - kappa) * np.eye(4) + kappa * rng.dirichlet(np.ones(4), size=4)
    problem = Problem(rng.random((40, 2)), autonomy=FixedAutonomy(P))
    Y = problem.centers(rng.random((4, 2)))
    last = problem.moments(Y, beta).free_energy
    for _ in range(8):
        found = FixedPoint().solve(problem, Y, beta, max_iter=1, tol=0)
        assert found.free_energy <= last + 1e-12
        Y, last = found.centers, found.free_energy


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), beta=st.floats(0.1, 1e3))
def test_free_energy_at_frozen_p_never_rises_either(seed, beta):
    """Why FixedPoint does not watch F where p depends on the centres."""
    rng = np.random.default_rng(seed)
    X = rng.random((40, 2))
    moving = Problem(X, autonomy=DistanceAutonomy(0.5, temperature=0.05))
    Y = moving.centers(rng.random((4, 2)))
    frozen = FixedAutonomy(moving.autonomy.shared(Y, moving.cost)[0].numpy())
    sums = moving.moments(Y, beta)
    new = sums.moment / sums.mass[:, None]
    problem = Problem(X, autonomy=frozen)
    before, after = (problem.moments(y, beta).free_energy for y in (Y, new))
    assert after <= before + 1e-12


def test_hand_over_when_a_mass_grows_fourfold():
    """One centre starts with almost no mass and is about to win half of the entities."""
    X = np.vstack([np.zeros((50, 1)), np.full((50, 1), 1.0)])
    problem = Problem(X)
    Y = problem.centers([[0.4], [2.5]])
    beta = 4.0
    sums = problem.moments(Y, beta)
    ahead = problem.moments(sums.moment / sums.mass[:, None], beta)
    assert (ahead.mass > 4 * sums.mass).any()
    found = FixedPoint().solve(problem, Y, beta, max_iter=500, tol=1e-8)
    assert found.handovers > 0
    assert found.status is Status.CONVERGED
    step = FixedPoint().solve(problem, Y, beta, max_iter=1, tol=0)
    rule = Armijo().descend(problem, Y, *problem.value_and_gradient(Y, beta), beta)
    assert step.step_size == rule[1]
    assert torch.allclose(step.centers, rule[0])
    never = FixedPoint(growth=1e9).solve(problem, Y, beta, max_iter=500, tol=1e-8)
    assert never.handovers == 0


def test_armijo_takes_the_first_step_that_descends_enough(fixed):
    problem, Y = fixed
    Y, beta = problem.centers(Y), 5.0
    F, g = problem.value_and_gradient(Y, beta)
    rule = Armijo(step=1000.0, decrease=0.3, shrink=0.25)
    new, sigma, _ = rule.descend(problem, Y, F, g, beta)
    square = float((g * g).sum())

    def enough(s):
        return problem.moments(Y - s * g, beta).free_energy - F <= -0.3 * s * square

    m = round(math.log(sigma / 1000.0, 0.25))
    assert sigma == pytest.approx(1000.0 * 0.25**m)
    assert enough(sigma)
    assert not any(enough(1000.0 * 0.25**k) for k in range(m))
    assert torch.allclose(new, Y - sigma * g)


def test_hard_fixed_points_are_those_of_lloyd(rng):
    X = rng.normal(size=(200, 3))
    model = KMeans(5, init=X[:5], n_init=1, max_iter=300, tol=0).fit(X)
    problem = Problem(X)
    found = FixedPoint().solve(problem, problem.centers(X[:5]), math.inf, max_iter=300, tol=0)
    np.testing.assert_allclose(found.centers, model.cluster_centers_, rtol=1e-9)


def test_empty_clusters_stay_where_they_are():
    problem = Problem(np.array([[0.0], [1.0]]))
    Y = problem.centers([[0.5], [1e4]])
    found = FixedPoint().solve(problem, Y, math.inf, max_iter=10, tol=0)
    assert found.centers[1, 0] == 1e4


@pytest.mark.parametrize(
    "make",
    [lambda: Armijo(step=0.0), lambda: Armijo(decrease=1.0), lambda: Armijo(shrink=0.0)],
)
def test_bad_armijo_parameters_are_named(make):
    with pytest.raises(ValueError, match="Armijo's"):
        make()
