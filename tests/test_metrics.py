from itertools import permutations

import numpy as np
import pytest
from oracle import dense

from volition import DistanceAutonomy, FixedAutonomy
from volition.metrics import chamfer_distance, distortion, distortion_gap, matching_distance


def test_distortion_is_the_mean_expected_cost(rng):
    X, Y, weight = rng.random((30, 2)), rng.random((4, 2)), rng.random(30)
    autonomy = DistanceAutonomy(0.3, gamma=0.5)
    expected = dense(X, Y, autonomy, 1.0)[2]
    rho = weight / weight.sum()
    found = distortion(X, Y, autonomy, sample_weight=weight)
    assert found == pytest.approx(rho @ expected.min(1))
    labels = rng.integers(0, 4, 30)
    found = distortion(X, Y, autonomy, labels, sample_weight=weight)
    assert found == pytest.approx(rho @ expected[np.arange(30), labels])
    p = rng.dirichlet(np.ones(4), size=(30, 4))
    cost = ((X[:, None] - Y[None]) ** 2).sum(-1)
    found = distortion(X, Y, autonomy_proba=p)
    assert found == pytest.approx(np.einsum("ijk,ik->ij", p, cost).min(1).mean())


def test_gap_is_in_percent(rng):
    X, Y = rng.random((30, 2)), rng.random((4, 2))
    base = distortion(X, Y)
    assert distortion_gap(X, Y, base) == pytest.approx(0)
    assert distortion_gap(X, Y, base / 2) == pytest.approx(100)
    other = rng.random((4, 2))
    wanted = 100 * (base / distortion(X, other) - 1)
    assert distortion_gap(X, Y, other) == pytest.approx(wanted)
    with pytest.raises(ValueError, match="must be positive"):
        distortion_gap(X, Y, 0.0)


def test_matching_agrees_with_brute_force(rng):
    A, B, X = rng.random((5, 3)), rng.random((5, 3)), rng.random((50, 3)) * 4
    diagonal = np.linalg.norm(X.max(0) - X.min(0))
    best = min(np.linalg.norm(A - B[list(p)], axis=1).mean() for p in permutations(range(5)))
    assert matching_distance(A, B, X) == pytest.approx(best / diagonal)
    assert matching_distance(A, A[::-1]) == pytest.approx(0, abs=1e-12)


def test_chamfer_agrees_with_loops(rng):
    A, B = rng.random((3, 2)), rng.random((5, 2))
    there = np.mean([min(np.linalg.norm(a - b) for b in B) for a in A])
    back = np.mean([min(np.linalg.norm(a - b) for a in A) for b in B])
    both = np.vstack([A, B])
    diagonal = np.linalg.norm(both.max(0) - both.min(0))
    assert chamfer_distance(A, B) == pytest.approx((there + back) / 2 / diagonal)
    assert chamfer_distance(A, B) == pytest.approx(chamfer_distance(B, A))
    assert chamfer_distance(5 * A, 5 * B) == pytest.approx(chamfer_distance(A, B))


def test_bad_input_is_named(rng):
    X = rng.random((6, 2))
    for call, message in (
        (lambda: distortion(X, np.zeros((2, 3))), "centers must have shape"),
        (lambda: distortion(X, X[:2], labels=[0, 1, 2, 0, 0, 0]), r"integer in \[0, 1\]"),
        (lambda: distortion(X, X[:2], labels=[0.0] * 6), r"integer in \[0, 1\]"),
        (lambda: distortion(X, X[:2], FixedAutonomy(np.eye(3))), "3 x 3"),
        (lambda: matching_distance(X[:2], X[:3]), "equally many centres"),
        (lambda: chamfer_distance(X, X, np.zeros((3, 5))), "X has 5 columns"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
