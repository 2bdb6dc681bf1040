import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import MODELS, all_models, dense, precise_expected
from sklearn.cluster import KMeans

import volition.core.problem
from volition import DistanceAutonomy, FixedAutonomy, Passive
from volition.core.problem import Problem

N, K, D = 60, 4, 2


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def kernel(request, monkeypatch):
    """Everything holds with numba and without it."""
    if request.param == "torch":
        monkeypatch.setattr(volition.core.problem, "_compiled_passes", lambda: None)
    else:
        pytest.importorskip("numba")
        monkeypatch.setattr(volition.core.problem, "COMPILED_PAIRS", 0)


@pytest.fixture
def case(rng):
    return rng.normal(size=(N, D)) + 3, rng.normal(size=(K, D)) + 3, rng.random(N) + 0.1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("beta", [0.3, 5.0, 80.0])
def test_everything_agrees_with_the_dense_form(case, name, beta):
    X, Y, weight = case
    autonomy, groups = all_models(N, K)[name]
    problem = Problem(X, sample_weight=weight, autonomy=autonomy, groups=groups)
    F, gradient, expected, pi = dense(X, Y, autonomy, beta, weight, groups)
    rho = weight / weight.sum()
    np.testing.assert_allclose(problem.expected_costs(Y), expected, rtol=1e-11)
    np.testing.assert_allclose(problem.policy(Y, beta), pi, rtol=1e-9, atol=1e-13)
    assert problem.moments(Y, beta).free_energy == pytest.approx(F, rel=1e-11)
    value, found = problem.value_and_gradient(Y, beta)
    assert value == pytest.approx(F, rel=1e-11)
    np.testing.assert_allclose(found, gradient, rtol=1e-9, atol=1e-12)
    summary = problem.summary(Y, beta)
    soft = rho @ (pi * expected).sum(1)
    assert summary.free_energy == pytest.approx(F, rel=1e-11)
    assert summary.distortion == pytest.approx(soft, rel=1e-11)
    assert summary.hard_distortion == pytest.approx(rho @ expected.min(1), rel=1e-11)
    assert problem.distortion(Y) == pytest.approx(rho @ expected.min(1), rel=1e-11)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -(rho @ np.where(pi > 0, pi * np.log(pi), 0).sum(1))
    assert summary.entropy == pytest.approx(entropy, rel=1e-8, abs=1e-10)
    np.testing.assert_allclose(summary.mass, rho @ pi, rtol=1e-9)
    np.testing.assert_array_equal(problem.labels(Y), expected.argmin(1))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("beta", [2.0, math.inf])
def test_gradient_agrees_with_finite_differences(case, name, beta):
    X, Y, weight = case
    autonomy, groups = all_models(N, K)[name]
    problem = Problem(X, sample_weight=weight, autonomy=autonomy, groups=groups)
    gradient = problem.value_and_gradient(Y, beta)[1]
    h = 1e-6
    for index in np.ndindex(Y.shape):
        step = np.zeros_like(Y)
        step[index] = h
        up, down = (problem.moments(Y + s * step, beta).free_energy for s in (1, -1))
        assert float(gradient[index]) == pytest.approx((up - down) / (2 * h), abs=1e-7)


@pytest.mark.parametrize("name", MODELS)
def test_moments_give_equation_4(case, name):
    """Mass and moment of realised clusters, as published."""
    X, Y, weight = case
    autonomy, groups = all_models(N, K)[name]
    problem = Problem(X, sample_weight=weight, autonomy=autonomy, groups=groups)
    from oracle import dense_p

    pi = dense(X, Y, autonomy, 2.0, weight, groups)[3]
    p = dense_p(torch.tensor(X), torch.tensor(Y), autonomy, groups).numpy()
    R = np.einsum("i,ij,ijk->ik", weight / weight.sum(), pi, p)
    sums = problem.moments(Y, 2.0)
    np.testing.assert_allclose(sums.mass, R.sum(0), rtol=1e-10)
    np.testing.assert_allclose(sums.moment, R.T @ X, rtol=1e-10)
    policy = problem.policy(Y, 2.0)
    np.testing.assert_allclose(problem.realized(Y, policy), np.einsum("ij,ijk->ik", pi, p))
    labels = problem.labels(Y)
    np.testing.assert_allclose(problem.conditional(Y, labels), p[np.arange(N), labels], atol=1e-15)


@pytest.mark.parametrize("temperature", [1e-4, 1e-3, 1e-2, 1.0, 100.0, 1e6])
@pytest.mark.parametrize("kappa", [0.0, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 3.0])
def test_extreme_temperatures_agree_with_many_digits(rng, temperature, kappa, gamma):
    X, Y = rng.random((5, 2)), rng.random((4, 2))
    autonomy = DistanceAutonomy(kappa, gamma=gamma, temperature=temperature)
    exact = precise_expected(X, Y, autonomy)
    for dtype, rtol in ((np.float64, 1e-9), (np.float32, 2e-2 if temperature < 0.01 else 1e-4)):
        problem = Problem(X.astype(dtype), autonomy=autonomy)
        np.testing.assert_allclose(problem.expected_costs(Y), exact, rtol=rtol, atol=1e-6 * rtol)
        for beta in (1e-3, 10.0, 1e8):
            F, gradient = problem.value_and_gradient(Y, beta)
            sums = problem.moments(Y, beta)
            assert np.isfinite([F, sums.free_energy]).all()
            assert np.isfinite(gradient.numpy()).all()
            assert sums.mass.sum() == pytest.approx(1, rel=1e-5)


def test_gradient_is_right_where_the_fast_product_underflows(rng):
    X, Y = rng.random((30, 2)), rng.random((5, 2))
    autonomy = DistanceAutonomy(0.6, gamma=0.5, temperature=3e-4)
    F, gradient, *_ = dense(X, Y, autonomy, 10.0)
    value, found = Problem(X, autonomy=autonomy).value_and_gradient(Y, 10.0)
    assert value == pytest.approx(F, rel=1e-10)
    np.testing.assert_allclose(found, gradient, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_chunk_and_block_size_change_nothing(case, name, monkeypatch):
    X, Y, weight = case
    autonomy, groups = all_models(N, K)[name]
    given = {"sample_weight": weight, "autonomy": autonomy, "groups": groups}
    whole = Problem(X, **given)
    monkeypatch.setattr(volition.core.problem, "BLOCK_ROWS", 13)
    for size in (1, 7, 1000):
        parts = Problem(X, **given, chunk_size=size)
        assert parts.n_blocks > 1
        for beta in (3.0, math.inf):
            a, b = whole.moments(Y, beta), parts.moments(Y, beta)
            assert b.free_energy == pytest.approx(a.free_energy, rel=1e-12)
            np.testing.assert_allclose(b.moment, a.moment, rtol=1e-11, atol=1e-13)
            (f, g), (f2, g2) = (p.value_and_gradient(Y, beta) for p in (whole, parts))
            assert f2 == pytest.approx(f, rel=1e-12)
            np.testing.assert_allclose(g2, g, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(parts.policy(Y, beta), whole.policy(Y, beta), atol=1e-12)
            np.testing.assert_allclose(
                parts.summary(Y, beta)[:4], whole.summary(Y, beta)[:4], atol=1e-10
            )


def test_number_of_threads_changes_nothing(case, monkeypatch):
    X, Y, weight = case
    monkeypatch.setattr(volition.core.problem, "BLOCK_ROWS", 13)
    before = torch.get_num_threads()
    results = []
    try:
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            problem = Problem(X, sample_weight=weight)
            results.append(problem.moments(Y, 5.0))
            assert torch.get_num_threads() == n_threads
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert other.free_energy == results[0].free_energy
        assert torch.equal(other.moment, results[0].moment)


@pytest.mark.parametrize("name", MODELS)
def test_integer_weights_are_repetition(case, name):
    X, Y, _ = case
    autonomy, groups = all_models(N, K)[name]
    times = np.random.default_rng(1).integers(0, 4, N)
    again = np.repeat(np.arange(N), times)
    weighted = Problem(X, sample_weight=times, autonomy=autonomy, groups=groups)
    repeated_autonomy = autonomy.subset(again) if name == "rows" else autonomy
    repeated = Problem(
        X[again], autonomy=repeated_autonomy, groups=None if groups is None else groups[again]
    )
    a, b = weighted.value_and_gradient(Y, 4.0), repeated.value_and_gradient(Y, 4.0)
    assert a[0] == pytest.approx(b[0], rel=1e-12)
    np.testing.assert_allclose(a[1], b[1], rtol=1e-9, atol=1e-13)


def test_float32_agrees_with_float64(case):
    X, Y, weight = case
    for name in MODELS:
        if name == "callable":
            continue  # a user's function decides its own precision
        autonomy, groups = all_models(N, K)[name]
        given = {"sample_weight": weight, "autonomy": autonomy, "groups": groups}
        a, b = Problem(X, **given), Problem(X.astype(np.float32), **given)
        assert b.expected_costs(Y).dtype == np.float32
        fa, ga = a.value_and_gradient(Y, 3.0)
        fb, gb = b.value_and_gradient(Y, 3.0)
        assert fb == pytest.approx(fa, rel=1e-4)
        np.testing.assert_allclose(gb, ga, atol=1e-4)


def test_shift_of_the_last_pass_never_shows(case):
    """The kernel reuses log-partitions of the pass before; any jump of beta or Y must be safe."""
    X, Y, _ = case
    problem = Problem(X, autonomy=DistanceAutonomy(0.2))
    for beta, shift in ((1e-3, 0), (1e6, 0), (1.0, 50), (1e8, 0), (1e-6, 1e3), (2.0, 0)):
        fresh = Problem(X, autonomy=DistanceAutonomy(0.2))
        a, b = problem.moments(Y + shift, beta), fresh.moments(Y + shift, beta)
        assert a.free_energy == pytest.approx(b.free_energy, rel=1e-12)
        np.testing.assert_allclose(a.moment, b.moment, rtol=1e-10)


def test_hard_policy_without_autonomy_is_k_means(case):
    X, Y, weight = case
    model = KMeans(K, init=Y, n_init=1, max_iter=1, tol=0).fit(X, sample_weight=weight)
    problem = Problem(X, sample_weight=weight)
    sums = problem.moments(Y, math.inf)
    np.testing.assert_allclose(
        (sums.moment / sums.mass[:, None]).numpy(), model.cluster_centers_, rtol=1e-10
    )
    inertia = problem.distortion(model.cluster_centers_) * weight.sum()
    assert inertia == pytest.approx(model.inertia_, rel=1e-10)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    scale=st.floats(1e-3, 1e3),
    shift=st.floats(-1e3, 1e3),
    beta=st.floats(1e-2, 1e3),
    kappa=st.floats(0, 1),
)
def test_rotation_translation_and_scale_move_everything_along(seed, scale, shift, beta, kappa):
    rng = np.random.default_rng(seed)
    X, Y = rng.random((20, 3)), rng.random((4, 3))
    Q = np.linalg.qr(rng.normal(size=(3, 3)))[0] * scale
    a = Problem(X, autonomy=DistanceAutonomy(kappa, gamma=0.3, temperature=0.5))
    b = Problem(
        X @ Q + shift,
        autonomy=DistanceAutonomy(kappa, gamma=0.3, temperature=0.5 * scale**2),
    )
    Fa, ga = a.value_and_gradient(Y, beta)
    Fb, gb = b.value_and_gradient(Y @ Q + shift, beta / scale**2)
    # The shift costs digits: it may be a million times the data's own size.
    atol = 1e-9 * max(1, abs(shift) / scale) ** 1
    assert Fb / scale**2 == pytest.approx(Fa, rel=1e-7, abs=atol)
    np.testing.assert_allclose(gb.numpy() @ Q.T / scale**3 * scale, ga, atol=1e3 * atol, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), beta=st.floats(1e-2, 1e4), n_clusters=st.integers(1, 6))
def test_permuting_clusters_permutes_everything(seed, beta, n_clusters):
    rng = np.random.default_rng(seed)
    X, Y = rng.random((15, 2)), rng.random((n_clusters, 2))
    P = rng.dirichlet(np.ones(n_clusters), size=n_clusters)
    order = rng.permutation(n_clusters)
    a = Problem(X, autonomy=FixedAutonomy(P))
    b = Problem(X, autonomy=FixedAutonomy(P[np.ix_(order, order)]))
    np.testing.assert_allclose(b.policy(Y[order], beta), a.policy(Y, beta)[:, order], atol=1e-12)
    np.testing.assert_allclose(a.policy(Y, beta).sum(1), 1)
    np.testing.assert_allclose(a.realized(Y, a.policy(Y, beta)).sum(1), 1)


def test_distortion_of_given_labels(case):
    X, Y, weight = case
    autonomy = DistanceAutonomy(0.4)
    problem = Problem(X, sample_weight=weight, autonomy=autonomy)
    labels = np.arange(N) % K
    expected = dense(X, Y, autonomy, 1.0)[2]
    wanted = weight / weight.sum() @ expected[np.arange(N), labels]
    assert problem.distortion(Y, labels) == pytest.approx(wanted)


def test_subset_keeps_groups_and_rows(case):
    X, Y, _ = case
    index = np.array([5, 50, 7, 31])
    for name in ("groups", "rows", "distance with gamma"):
        autonomy, groups = all_models(N, K)[name]
        problem = Problem(X, autonomy=autonomy, groups=groups)
        part = problem.subset(index, np.ones(4))
        np.testing.assert_allclose(part.expected_costs(Y), problem.expected_costs(Y)[index])


def test_data_far_from_the_origin_keep_their_precision(rng):
    X = rng.normal(size=(50, 2))
    near, far = Problem(X), Problem(X + 1e6)
    Y = X[:3]
    assert far.moments(Y + 1e6, 2.0).free_energy == pytest.approx(
        near.moments(Y, 2.0).free_energy, rel=1e-8
    )


def test_single_precision_far_from_the_origin(rng):
    """Entities and centres must be moved by the same rounded origin."""
    X = (rng.normal(size=(50, 2)) + 1000).astype(np.float32)
    Y = X[:3].astype(np.float64)
    exact = ((X[:, None].astype(np.float64) - Y[None]) ** 2).sum(-1)
    np.testing.assert_allclose(Problem(X).expected_costs(Y), exact, rtol=1e-4, atol=1e-5)
    assert Problem(X).distortion(Y) == pytest.approx(exact.min(1).mean(), rel=1e-5)


def test_passive_is_the_default(case):
    X, Y, _ = case
    assert Problem(X).distortion(Y) == Problem(X, autonomy=Passive()).distortion(Y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 511, 513, 2000])
@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 9])
def test_every_shape_of_the_kernel_agrees_with_the_dense_form(rng, dtype, n, d):
    for K in (1, 2, 3, 5, 8):
        X = rng.normal(size=(n, d)).astype(dtype)
        Y = rng.normal(size=(K, d))
        weight = rng.random(n) + 0.1
        problem = Problem(X, sample_weight=weight)
        for beta in (2.0, 0.5):  # the second pass starts from the first one's shift
            F, gradient, _, _ = dense(X.astype(np.float64), Y, Passive(), beta, weight)
            value, found = problem.value_and_gradient(Y, beta)
            eps = 1e-12 if dtype == np.float64 else 2e-5
            assert value == pytest.approx(F, rel=eps)
            np.testing.assert_allclose(found, gradient, atol=100 * eps)


def test_a_shift_that_no_longer_fits_is_replaced(case):
    X, Y, _ = case
    problem = Problem(X)
    for beta in (1e-3, 1e5, 1e-3, 1e9):
        found = problem.moments(Y, beta).free_energy
        assert found == pytest.approx(Problem(X).summary(Y, beta).free_energy, rel=1e-12)


def test_copies_do_not_share_the_shifts_of_their_sums(case):
    X, Y, _ = case
    problem = Problem(X)
    problem.moments(Y, 1.0)
    alone, beside = (problem.with_autonomy(Passive()) for _ in range(2))
    first = alone.value_and_gradient(Y, 20.0)
    problem.moments(Y + 1, 300.0)
    second = beside.value_and_gradient(Y, 20.0)
    assert first[0] == second[0]
    np.testing.assert_array_equal(first[1], second[1])


def test_compiled_powers_of_two(rng):
    """Against NumPy, over the whole range that is not clamped."""
    numba = pytest.importorskip("numba")
    from volition.core.kernels.compiled import VECTOR_BYTES, exp2, load, store

    @numba.njit
    def powers(x, out):
        for i in range(0, len(x), VECTOR_BYTES // x.itemsize):
            store(out, i, exp2(load(x, i)))

    for dtype, low, high in ((np.float32, -125, 100), (np.float64, -1021, 900)):
        x = np.concatenate([rng.uniform(low, high, 5000), np.arange(low, high)]).astype(dtype)
        x = x[: len(x) // 8 * 8]
        out = np.empty_like(x)
        powers(x, out)
        np.testing.assert_allclose(out, np.exp2(x), rtol=2.5 * np.finfo(dtype).eps)


def test_compiled_logarithms(rng):
    numba = pytest.importorskip("numba")
    from volition.core.kernels.compiled import VECTOR_BYTES, load, log2, store

    @numba.njit
    def logarithms(x, out):
        for i in range(0, len(x), VECTOR_BYTES // x.itemsize):
            store(out, i, log2(load(x, i)))

    for dtype in (np.float32, np.float64):
        exact = np.exp2(np.arange(-120, 120))
        near_one = rng.uniform(0.5, 2, 5000)
        x = np.concatenate([exact, near_one, np.exp2(rng.uniform(-120, 120, 5000))]).astype(dtype)
        out = np.empty_like(x)
        logarithms(x, out)
        eps = np.finfo(dtype).eps
        np.testing.assert_allclose(out, np.log2(x.astype(float)), rtol=4 * eps, atol=eps)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_work_on_their_own_data(case, copied):
    X, Y, _ = case
    problem = copied(Problem(X))
    for beta in (0.1, 2.0, 1e3):
        expected = Problem(X).moments(Y, beta).free_energy
        assert problem.moments(Y, beta).free_energy == pytest.approx(expected, rel=1e-12)


def test_overflow_is_not_an_exception(case):
    X, Y, _ = case
    assert not Problem(X.astype(np.float32)).moments(Y * 1e20, 1.0).free_energy < 1e30
