import numpy as np
import pytest
import torch
from oracle import MODELS, all_models, dense_p
from scipy.stats import chisquare

from volition import CallableAutonomy, DistanceAutonomy, FixedAutonomy, Passive
from volition.core.autonomy import RowAutonomy
from volition.core.costs import SquaredEuclidean
from volition.core.problem import Problem


@pytest.mark.parametrize("name", MODELS)
def test_samples_follow_p(name, rng):
    n, K = 5, 4
    X, Y = rng.normal(size=(n, 2)), rng.normal(size=(K, 2))
    autonomy, groups = all_models(n, K)[name]
    p = dense_p(torch.tensor(X), torch.tensor(Y), autonomy, groups).numpy()
    problem = Problem(X, autonomy=autonomy, groups=groups)
    block = problem.blocks[0]
    chunk, transition = problem.chunk(
        slice(block.lo, block.hi), block.group, problem._local(problem.centers(Y))
    )
    order = np.arange(n) if problem._order is None else problem._order
    generator = torch.Generator().manual_seed(0)
    prescribed = torch.zeros(len(chunk.X), dtype=torch.int64)
    draws = torch.stack([transition.sample(prescribed, generator) for _ in range(3000)]).numpy()
    for row in range(len(chunk.X)):
        probability = p[order[block.lo + row], 0]
        counts = np.bincount(draws[:, row], minlength=K)
        assert (counts[probability == 0] == 0).all()
        likely = probability * 3000 > 5
        if likely.sum() > 1:
            observed = counts[likely]
            wanted = probability[likely] / probability[likely].sum() * observed.sum()
            assert chisquare(observed, wanted).pvalue > 1e-4


def test_scaled_blends_with_obedience(rng):
    n, K = 6, 3
    X, Y = rng.normal(size=(n, 2)), rng.normal(size=(K, 2))
    for name, (autonomy, groups) in all_models(n, K).items():
        whole = Problem(X, autonomy=autonomy, groups=groups).expected_costs(Y)
        obedient = Problem(X).expected_costs(Y)
        part = Problem(
            X, autonomy=autonomy.with_overrides_scaled(0.3), groups=groups
        ).expected_costs(Y)
        np.testing.assert_allclose(part, 0.7 * obedient + 0.3 * whole, err_msg=name, rtol=1e-10)


def test_one_cluster_leaves_nowhere_to_go(rng):
    X = rng.normal(size=(5, 2))
    for gamma in (0.0, 0.5):
        problem = Problem(X, autonomy=DistanceAutonomy(0.7, gamma=gamma))
        expected = ((X - X[:1]) ** 2).sum(1, keepdims=True)
        np.testing.assert_allclose(problem.expected_costs(X[:1]), expected, atol=1e-12)
        assert problem.value_and_gradient(X[:1], 1.0)[1].isfinite().all()


def test_coincident_centres_are_harmless(rng):
    X = rng.normal(size=(5, 2))
    Y = np.zeros((3, 2))
    for autonomy, groups in all_models(5, 3).values():
        F, gradient = Problem(X, autonomy=autonomy, groups=groups).value_and_gradient(Y, 2.0)
        assert np.isfinite(F)
        assert gradient.isfinite().all()


def test_named_groups_match_numbered_ones(rng):
    P = rng.dirichlet(np.ones(3), size=(2, 3))
    X, Y = rng.normal(size=(8, 2)), rng.normal(size=(3, 2))
    codes = np.array([0, 1, 1, 0, 1, 0, 0, 1])
    named = FixedAutonomy({"obedient": P[0], "wild": P[1]})
    labels = np.array(["obedient", "wild"])[codes]
    np.testing.assert_array_equal(
        Problem(X, autonomy=named, groups=labels).expected_costs(Y),
        Problem(X, autonomy=FixedAutonomy(P), groups=codes).expected_costs(Y),
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DistanceAutonomy(1.5), r"kappa must be a number in \[0, 1\], got 1.5"),
        (lambda: DistanceAutonomy(-0.1), r"kappa must be a number in \[0, 1\], got -0.1"),
        (lambda: DistanceAutonomy(float("nan")), "kappa must be a number"),
        (lambda: DistanceAutonomy("a"), "kappa must be a number"),
        (lambda: DistanceAutonomy(0.5, temperature=0), r"temperature must be a number in \(0"),
        (lambda: DistanceAutonomy(0.5, gamma=-1), "gamma must be a number in"),
        (lambda: DistanceAutonomy(0.5, zeta=float("inf")), "zeta must be a number in"),
        (lambda: FixedAutonomy([[0.5, 0.5], [0.2, 0.7]]), "row 1 sums to 0.9"),
        (lambda: FixedAutonomy([[1.5, -0.5], [0, 1]]), "row 0, realised cluster 1 is negative"),
        (lambda: FixedAutonomy([[0.5, 0.5]]), "square matrix"),
        (lambda: FixedAutonomy({}), "is empty"),
        (lambda: FixedAutonomy({"a": np.eye(2), "b": np.eye(3)}), "one shape"),
        (lambda: FixedAutonomy([[0.5, 0.5], [1.0]]), "one shape"),
        (lambda: FixedAutonomy(0.5), "square matrix"),
        (lambda: FixedAutonomy([np.eye(2), [[1, 0], [0, 2]]]), "group 1: row 1 sums to 2"),
        (lambda: RowAutonomy(np.full((3, 2, 2), 0.4)), "entity 0, row 0 sums to 0.8"),
        (lambda: RowAutonomy(np.eye(2)), r"shape \(n, K, K\)"),
        (lambda: RowAutonomy(np.full((1, 2, 2), np.nan)), "not a finite number"),
        (lambda: CallableAutonomy(3), "needs a function"),
    ],
)
def test_bad_models_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bad_functions_are_named(rng):
    X, Y = rng.normal(size=(5, 2)), rng.normal(size=(3, 2))
    for fn, message in (
        (lambda X, Y: torch.ones(2, 2), "must return a torch tensor of shape"),
        (lambda X, Y: np.ones(3), "must return a torch tensor of shape"),
        (lambda X, Y: torch.ones(len(X), len(Y), len(Y)), "entity 0: row 0 sums to 3"),
        (lambda X, Y: torch.full((len(X), len(Y), len(Y)), torch.nan), "not a finite number"),
        (lambda X, Y: torch.eye(3).double() * 1.00009, "entity 0: row 0 sums to 1.00009"),
    ):
        with pytest.raises(ValueError, match=message):
            Problem(X, autonomy=CallableAutonomy(fn)).expected_costs(Y)


def test_groups_are_checked(rng):
    X = rng.normal(size=(4, 2))
    several = FixedAutonomy(np.stack([np.eye(2)] * 2))
    for groups, message in (
        (None, "holds 2 matrices"),
        ([0, 1], "one entry per row"),
        ([0, 1, 2, 0], "groups has 2 at row 2"),
        ([0, 1, np.nan, 0], "groups has nan at row 2"),
        (np.array([0, None, 1, 0], dtype=object), "groups has None at row 1"),
    ):
        with pytest.raises(ValueError, match=message):
            Problem(X, autonomy=several, groups=groups)
    with pytest.raises(ValueError, match="groups is given, but Passive"):
        Problem(X, groups=[0, 0, 0, 0])


def test_p_for_entities_alone_is_not_shared():
    with pytest.raises(TypeError, match="all entities share"):
        RowAutonomy(np.full((1, 2, 2), 0.5)).shared(torch.zeros(2, 2), SquaredEuclidean())


def test_models_compare_by_content():
    assert Passive() == Passive()
    assert FixedAutonomy(np.eye(2)) == FixedAutonomy(np.eye(2))
    assert FixedAutonomy(np.eye(2)) != FixedAutonomy([[0.5, 0.5], [0, 1]])
    assert DistanceAutonomy(0.2) == DistanceAutonomy(0.2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_may_ignore_precision(dtype, rng):
    """A user's torch.eye is float32 whatever the data are."""
    X, Y = rng.normal(size=(5, 2)).astype(dtype), rng.normal(size=(3, 2))
    for constant in (torch.float32, torch.float64):
        model = CallableAutonomy(lambda X, Y, c=constant: 0.7 * torch.eye(3, dtype=c) + 0.1)
        fixed = FixedAutonomy(0.7 * np.eye(3) + 0.1)
        np.testing.assert_allclose(
            Problem(X, autonomy=model).expected_costs(Y),
            Problem(X, autonomy=fixed).expected_costs(Y),
            rtol=1e-5,
        )
