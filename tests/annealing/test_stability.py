import math

import numpy as np
import pytest
import torch
from oracle import MODELS, all_models, dense
from scipy.stats import ortho_group

import volition.annealing.stability
from volition import DistanceAutonomy, FixedAutonomy, Passive, anneal, critical_beta
from volition.annealing.schedules import Critical, Geometric
from volition.annealing.stability import (
    assess_stability,
    coincident,
    count_distinct,
    even_split,
    hessian,
    sensitivity,
    sensitivity_bound,
)
from volition.core.costs import resolve_cost
from volition.core.curvature import curvature
from volition.core.problem import Problem
from volition.solvers import Gradient


def uniform(kappa, K):
    away = kappa / (K - 1)
    return (1 - kappa - away) * np.eye(K) + away


def symmetric_doubly_stochastic(rng, K):
    """A mixture of P and P' over permutations P, with the identity so that it has an order."""
    out = np.zeros((K, K))
    for weight in rng.dirichlet(np.ones(6)):
        P = np.eye(K)[rng.permutation(K)]
        out += weight * (P + P.T) / 2
    return out


@pytest.fixture(params=["dense", "lanczos"])
def method(request, monkeypatch):
    if request.param == "lanczos":
        monkeypatch.setattr(volition.annealing.stability, "DENSE_COORDINATES", 0)
    return request.param


def closed_form(X, weight, P):
    """Section 4.5 of the design: 1 / (2 λmax(C) σ2(P)²)."""
    C = np.atleast_2d(np.cov(X.T, aweights=weight, bias=True))
    sigma = np.sort(np.abs(np.linalg.eigvalsh(P)))[-2]
    return 1 / (2 * np.linalg.eigvalsh(C)[-1] * sigma**2)


@pytest.mark.parametrize("d", [1, 2, 10])
@pytest.mark.parametrize("K", [2, 4, 9])
@pytest.mark.parametrize("share", [0, 0.3, 0.7, 0.99])
def test_first_split_has_a_closed_form(rng, d, K, share):
    kappa = share * (K - 1) / K
    X = rng.normal(size=(200, d)) * (1 + rng.random(d)) + 5
    weight = rng.random(200) + 0.1
    Y = np.repeat(np.average(X, axis=0, weights=weight)[None], K, axis=0)
    expected = closed_form(X, weight, uniform(kappa, K))
    for autonomy in (
        FixedAutonomy(uniform(kappa, K)),
        DistanceAutonomy(kappa, zeta=0.0),
        DistanceAutonomy(kappa, temperature=3.0),  # at one place all alternatives are equal
    ):
        for beta in (0.1 * expected, 0.9 * expected):
            found = critical_beta(X, Y, autonomy=autonomy, beta=beta, sample_weight=weight)
            assert found.beta == pytest.approx(expected, rel=1e-6)
            assert np.linalg.norm(found.direction) == pytest.approx(1)


@pytest.mark.parametrize("d", [1, 2, 10])
def test_first_split_of_random_doubly_stochastic_matrices(rng, method, d):
    for _ in range(5):
        K = int(rng.integers(4, 9))
        P = symmetric_doubly_stochastic(rng, K)
        X, weight = rng.normal(size=(150, d)), rng.random(150) + 0.1
        Y = np.repeat(np.average(X, axis=0, weights=weight)[None], K, axis=0)
        found = critical_beta(X, Y, autonomy=FixedAutonomy(P), beta=0.1, sample_weight=weight)
        assert found.beta == pytest.approx(closed_form(X, weight, P), rel=1e-6)


def test_full_autonomy_never_splits(rng):
    X = rng.normal(size=(50, 2))
    Y = np.repeat(X.mean(0)[None], 4, axis=0)
    autonomy = FixedAutonomy(np.full((4, 4), 0.25))
    assert critical_beta(X, Y, autonomy=autonomy, beta=1.0).beta == math.inf
    assert critical_beta(X, Y[:1], beta=1.0).beta == math.inf


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_scale_of_the_data_scales_the_critical_beta(rng, factor):
    X = rng.normal(size=(50, 2))
    Y = np.repeat(X.mean(0)[None], 3, axis=0)
    one = critical_beta(X, Y, beta=0.1).beta
    other = critical_beta(X * factor, Y * factor, beta=0.1 / factor**2).beta
    assert other * factor**2 == pytest.approx(one, rel=1e-9)


def dense_hessian(X, Y, autonomy, beta, weight, groups):
    """The Hessian of the dense form, by finite differences of its autograd gradient."""
    step, flat = 1e-5, Y.ravel()
    columns = []
    for i in range(flat.size):
        up, down = flat.copy(), flat.copy()
        up[i] += step
        down[i] -= step
        ahead, behind = (
            dense(X, y.reshape(Y.shape), autonomy, beta, weight, groups)[1] for y in (up, down)
        )
        columns.append((ahead - behind).ravel() / (2 * step))
    return np.stack(columns)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("beta", [0.3, 3.0])
def test_hessian_of_every_model(rng, name, beta):
    n, K, d = 40, 4, 2
    X, Y, weight = rng.normal(size=(n, d)), rng.normal(size=(K, d)), rng.random(n) + 0.1
    autonomy, groups = all_models(n, K)[name]
    problem = Problem(X, sample_weight=weight, autonomy=autonomy, groups=groups)
    expected = dense_hessian(X, Y, autonomy, beta, weight, groups)
    at = curvature(problem, Y, beta)
    A, B = at.matrices()
    np.testing.assert_allclose(A - beta * B, expected, atol=3e-6)
    for _ in range(3):
        V = torch.as_tensor(rng.normal(size=(K, d)))
        product = at.times(V).numpy().ravel()
        np.testing.assert_allclose(product, (A - beta * B).numpy() @ V.numpy().ravel(), atol=1e-10)


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_hessian_equals_dense_autograd(rng, gamma):
    n, K, d, beta = 60, 3, 2, 2.0
    X, Y = rng.normal(size=(n, d)), rng.normal(size=(K, d))
    a = DistanceAutonomy(0.3, gamma=gamma, temperature=0.7)
    x = torch.as_tensor(X)

    def F(y):
        D = ((x[:, None] - y[None]) ** 2).sum(-1)
        between = ((y[:, None] - y[None]) ** 2).sum(-1)
        cost = a.zeta * between[None] + a.gamma * D[:, None]
        away = torch.softmax((-cost / a.temperature).masked_fill(torch.eye(K) > 0, -torch.inf), 2)
        p = (1 - a.kappa) * torch.eye(K, dtype=y.dtype) + a.kappa * away
        return -torch.logsumexp(-beta * torch.einsum("ijk,ik->ij", p, D), 1).mean() / beta

    expected = torch.autograd.functional.hessian(F, torch.as_tensor(Y)).numpy()
    found = hessian(X, Y, beta=beta, autonomy=a)
    np.testing.assert_allclose(found, expected, atol=1e-8)
    at = curvature(Problem(X, autonomy=a), Y, beta)
    V = torch.as_tensor(rng.normal(size=(K, d)))
    np.testing.assert_allclose(
        at.times(V), np.einsum("kcld,ld->kc", expected, V.numpy()), atol=1e-8
    )


def test_hessian_is_twice_the_papers_bracket(rng):
    n, K, d, beta = 30, 3, 2, 1.5
    X, Y = rng.normal(size=(n, d)), rng.normal(size=(K, d))
    P = rng.dirichlet(np.ones(K), size=K)
    autonomy = FixedAutonomy(P)
    pi = Problem(X, autonomy=autonomy).policy(Y, beta)
    bracket = np.zeros((K * d, K * d))
    for i in range(n):
        z = (Y - X[i]).ravel()
        mean = np.zeros_like(z)
        for j in range(K):
            Pij = np.repeat(P[j], d)
            bracket += pi[i, j] / n * (np.diag(Pij) - 2 * beta * np.outer(Pij * z, Pij * z))
            mean += pi[i, j] * Pij * z
        bracket += 2 * beta / n * np.outer(mean, mean)
    found = hessian(X, Y, beta=beta, autonomy=autonomy).reshape(K * d, K * d)
    np.testing.assert_allclose(found, 2 * bracket, atol=1e-12)


@pytest.mark.parametrize(
    "autonomy", [Passive(), DistanceAutonomy(0.2, temperature=2.0)], ids=["passive", "distance"]
)
def test_a_state_is_a_minimum_up_to_its_critical_beta(rng, autonomy):
    """At its critical beta (with its policy) the Hessian is singular along the direction."""
    X = np.concatenate([rng.normal(size=(40, 2)) + c for c in ((0, 0), (6, 0), (0, 6))])
    problem = Problem(X, autonomy=autonomy)
    Y = np.repeat([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]], 2, axis=0)
    Y = Gradient().solve(problem, problem.centers(Y), 0.3, max_iter=500, tol=1e-10).centers
    found = assess_stability(problem, Y, 0.3)
    A, B = found.matrices
    critical, direction = found.critical
    assert critical > 0.3
    assert (
        np.linalg.eigvalsh(A - 0.999 * critical * B)[0]
        > 0
        > np.linalg.eigvalsh(A - 1.001 * critical * B)[0]
    )
    np.testing.assert_allclose((A - critical * B) @ direction.ravel(), 0, atol=1e-9)


def test_lanczos_agrees_with_dense(rng, monkeypatch):
    X, Y = rng.normal(size=(80, 3)), rng.normal(size=(6, 3)) * 0.1
    for autonomy in (Passive(), DistanceAutonomy(0.2, gamma=0.3, temperature=2.0)):
        problem = Problem(X, autonomy=autonomy)
        monkeypatch.setattr(volition.annealing.stability, "DENSE_COORDINATES", 256)
        one = assess_stability(problem, Y, 0.4).critical
        monkeypatch.setattr(volition.annealing.stability, "DENSE_COORDINATES", 0)
        other = assess_stability(problem, Y, 0.4).critical
        assert other.beta == pytest.approx(one.beta, rel=1e-6)
        assert abs(np.vdot(one.direction, other.direction)) == pytest.approx(1, abs=1e-3)


def test_a_state_that_is_no_minimum_at_any_beta(rng):
    """Far from a minimum, the curvature of p alone can be negative."""
    X = rng.random((50, 2))
    Y = rng.random((6, 2))
    autonomy = DistanceAutonomy(0.9, temperature=0.01)
    assert critical_beta(X, Y, autonomy=autonomy, beta=1.0).beta == 0.0


def followed(problem, Y, beta):
    return Gradient().solve(problem, problem.centers(Y), beta, max_iter=2000, tol=1e-12).centers


@pytest.mark.parametrize(
    "autonomy",
    [Passive(), DistanceAutonomy(0.3, temperature=5.0), DistanceAutonomy(0.3, gamma=0.4)],
    ids=["passive", "shared", "by entity"],
)
@pytest.mark.parametrize("size", ["dense", "iterative"])
def test_sensitivity_against_finite_differences(rng, monkeypatch, autonomy, size):
    if size == "iterative":
        monkeypatch.setattr(volition.annealing.stability, "DENSE_COORDINATES", 0)
    X = np.concatenate([rng.normal(size=(60, 2)) + c for c in ((0, 0), (7, 0), (0, 7))])
    problem = Problem(X, autonomy=autonomy)
    start = np.array([[0.0, 0.0], [7.0, 0.0], [0.0, 7.0]])
    beta, step = 0.08, 1e-4
    middle, ahead, behind = (followed(problem, start, beta + s) for s in (0, step, -step))
    expected = ((ahead - behind) / (2 * step)).numpy()
    middle = middle.numpy()
    found = sensitivity(X, middle, beta=beta, autonomy=autonomy)
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2 * np.abs(expected).max())
    assert np.linalg.norm(found) < sensitivity_bound(X, middle, beta=beta, autonomy=autonomy)


def test_bound_is_infinite_where_the_state_is_unstable(rng):
    X = rng.normal(size=(50, 1))
    Y = np.zeros((2, 1)) + X.mean()
    point = critical_beta(X, Y, beta=0.1)
    assert math.isinf(sensitivity_bound(X, Y, beta=2 * point.beta))
    # delta is 1 - beta / beta_cr here
    expected = 50 * math.sqrt(2) * np.ptp(X) / (math.e * point.beta / 2 * 0.5)
    assert sensitivity_bound(X, Y, beta=point.beta / 2) == pytest.approx(expected)


def test_bound_by_lanczos(rng, monkeypatch):
    X, Y = rng.normal(size=(50, 2)), np.zeros((5, 2))
    one = sensitivity_bound(X, Y, beta=0.1)
    monkeypatch.setattr(volition.annealing.stability, "DENSE_COORDINATES", 0)
    assert sensitivity_bound(X, Y, beta=0.1) == pytest.approx(one, rel=1e-6)


def test_distinct_centres(rng):
    problem = Problem(rng.normal(size=(100, 2)))
    Y = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1e-4]])
    assert count_distinct(problem, Y, 1.0) == 2
    assert coincident(problem, Y, 1.0)[0] == coincident(problem, Y, 1.0)[2]
    assert count_distinct(problem, Y, 1e8) == 3  # a finer policy tells them apart
    assert count_distinct(problem, Y[:1], 1.0) == 1


@pytest.mark.parametrize("m", [2, 4, 5, 8, 16])
def test_even_split_gives_equal_parts(rng, m):
    lines = ortho_group.rvs(2, random_state=0)
    directions = [np.outer(rng.standard_normal(m), line) for line in lines]
    directions = [d - d.mean(0) for d in directions]
    out = even_split(np.zeros(m, dtype=int), directions)
    quadrant = 2 * (out @ lines[0] > 0) + (out @ lines[1] > 0)
    counts = np.bincount(quadrant, minlength=4)
    assert np.linalg.norm(out) == pytest.approx(1)
    if m >= 4:
        assert counts.max() - counts.min() <= 1


def test_float32_data_are_examined_in_double(rng):
    X = rng.normal(size=(100, 2))
    Y = np.zeros((4, 2))
    one = critical_beta(X, Y, beta=0.1).beta
    assert critical_beta(X.astype(np.float32), Y, beta=0.1).beta == pytest.approx(one, rel=1e-5)


def test_haversine_and_own_costs(rng):
    X = np.column_stack([rng.uniform(50, 52, 60), rng.uniform(-1, 1, 60)])
    Y = np.repeat(X.mean(0)[None], 3, axis=0)
    found = critical_beta(X, Y, beta=1e-6, metric="sqhaversine")
    assert 0 < found.beta < math.inf
    own = critical_beta(X, Y, beta=1e-6, metric=lambda a, b: ((a[:, None] - b) ** 2).sum(-1))
    assert own.beta == pytest.approx(critical_beta(X, Y, beta=1e-6).beta, rel=1e-6)


@pytest.mark.parametrize("beta", [0, -1, math.inf, "x"])
def test_beta_is_checked(beta):
    with pytest.raises(ValueError, match="beta must be a number in"):
        critical_beta([[0.0], [1.0]], [[0.0]], beta=beta)


def test_matrix_of_another_size_is_refused():
    with pytest.raises(ValueError, match="n_clusters=1"):
        critical_beta([[0.0], [1.0]], [[0.0]], beta=1.0, autonomy=FixedAutonomy(np.eye(2)))


def test_solver_uses_the_preconditioner_it_is_given(rng):
    """Preconditioned by the Hessian, the quasi-Newton solver needs fewer iterations."""
    X = np.concatenate([rng.normal(size=(60, 2)) + c for c in ((0, 0), (30, 0), (0, 3))])
    problem = Problem(X)
    Y = np.array([[1.0, 0.5], [27.0, 1.0], [0.5, 2.0], [31.0, -1.0]])
    W = assess_stability(problem, Y, 0.2).preconditioner(0.2)
    plain = Gradient().solve(problem, problem.centers(Y), 0.2, max_iter=500, tol=1e-9)
    shaped = Gradient().solve(
        problem, problem.centers(Y), 0.2, max_iter=500, tol=1e-9, preconditioner=W
    )
    assert shaped.free_energy == pytest.approx(plain.free_energy, rel=1e-9)
    assert shaped.n_iter < plain.n_iter


def test_sensitivity_bound_holds_along_a_path(rng):
    X = np.concatenate([rng.normal(size=(50, 2)) + c for c in ((0, 0), (5, 0), (0, 9))])
    problem = Problem(X)
    result = anneal(problem, 3, schedule=Critical(), tol=1e-9)
    checked = 0
    for record, Y in zip(result.history, result.path, strict=True):
        Y = followed(problem, Y, record.beta).numpy()
        bound = sensitivity_bound(X, Y, beta=record.beta)
        if math.isfinite(bound):
            checked += 1
            assert np.linalg.norm(sensitivity(X, Y, beta=record.beta)) <= bound
    assert checked > 5


def test_a_centre_that_nobody_realises_has_no_say(rng):
    X = np.concatenate([rng.normal(size=(40, 2)) + c for c in ((0, 0), (9, 0), (0, 9))])
    problem = Problem(X)
    Y = followed(problem, [[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], 0.3).numpy()
    with_dead = np.vstack([Y, [[500.0, 500.0]]])
    one, other = critical_beta(X, Y, beta=0.3), critical_beta(X, with_dead, beta=0.3)
    assert other.beta == pytest.approx(one.beta, rel=1e-6)
    assert np.abs(other.direction[3]).max() == 0
    ratio = sensitivity_bound(X, with_dead, beta=0.3) / sensitivity_bound(X, Y, beta=0.3)
    assert ratio == pytest.approx(math.sqrt(4 / 3), rel=1e-6)
    never = FixedAutonomy([[1.0, 0.0], [1.0, 0.0]])
    assert critical_beta([[0.0], [1.0]], [[0.5], [0.5]], beta=0.1, autonomy=never).beta == math.inf


def test_one_centre_in_many_dimensions(rng):
    assert critical_beta(rng.normal(size=(50, 300)), np.zeros((1, 300)), beta=0.1).beta == math.inf


def test_costs_without_curvature_are_refused_but_annealed(rng):
    X = rng.normal(size=(40, 2))

    def manhattan(a, b):
        return (a[:, None] - b).abs().sum(-1)

    with pytest.raises(ValueError, match="no second derivatives"):
        critical_beta(X, X[:2], beta=1.0, metric=manhattan)
    problem = Problem(X, cost=resolve_cost(manhattan))
    result = anneal(problem, 2, schedule=Geometric(tau=2.0), random_state=0)
    assert all(t.predicted is None for t in result.transitions)
