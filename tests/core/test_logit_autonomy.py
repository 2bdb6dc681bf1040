"""The four-number logit model, by its definition."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import squares

from volition import (
    AutonomyAwareClustering,
    DistanceAutonomy,
    LogitAutonomy,
    load_model,
    save_model,
)
from volition.core.autonomy import SoftmaxTransition
from volition.core.costs import SquaredEuclidean
from volition.core.problem import Problem


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_logits_include_the_papers_family(rng, gamma):
    X, Y = rng.random((30, 2)), rng.random((5, 2))
    paper = DistanceAutonomy(0.3, gamma, 2.0, 0.1)
    logit = LogitAutonomy(math.log(0.7 / 0.3), 0.0, -20.0, -gamma / 0.1)
    a, b = (Problem(X, autonomy=model) for model in (paper, logit))
    assert a.collapses == b.collapses
    np.testing.assert_allclose(a.expected_costs(Y), b.expected_costs(Y), rtol=1e-10)
    for one, other in zip(a.value_and_gradient(Y, 7.0), b.value_and_gradient(Y, 7.0), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-14)
    for t in (0.0, 0.4):
        scaled = [
            p.with_autonomy(p.autonomy.with_overrides_scaled(t)).expected_costs(Y) for p in (a, b)
        ]
        np.testing.assert_allclose(*scaled, rtol=1e-10)


@settings(max_examples=30, deadline=None)
@given(
    st.tuples(*[st.floats(-5, 5)] * 4), st.floats(0, 1), st.integers(1, 5), st.integers(0, 2**31)
)
def test_logits_by_their_definition(coefficients, share, k, seed):
    rng = np.random.default_rng(seed)
    X, Y = torch.tensor(rng.random((4, 2))), torch.tensor(rng.random((k, 2)))
    model = LogitAutonomy(*coefficients, share)
    stay, own, pair, entity = coefficients
    D, apart = squares(X[None], Y[None])[0].numpy(), squares(Y[None], Y[None])[0].numpy()
    p = np.zeros((4, k, k))
    for i, j in np.ndindex(4, k):
        override = share / (1 + math.exp(stay + own * D[i, j])) if k > 1 else 0.0
        weights = np.exp(pair * apart[j] + entity * D[i])
        weights[j] = 0
        p[i, j] = override * weights / max(weights.sum(), 1e-300)
        p[i, j, j] = 1 - override
    problem = Problem(X.numpy(), autonomy=model)
    expected = np.einsum("ijk,ik->ij", p, D)
    np.testing.assert_allclose(problem.expected_costs(Y), expected, rtol=1e-8, atol=1e-12)
    prescribed = rng.integers(0, k, 4)
    mine = p[np.arange(4), prescribed]
    each = model.conditional_each(
        X, torch.tensor(prescribed), Y.expand(4, k, 2), SquaredEuclidean()
    )
    np.testing.assert_allclose(each, mine, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(problem.conditional(Y, prescribed), mine, rtol=1e-8, atol=1e-12)


def test_a_chance_to_stay_for_each_pair(rng):
    """The contraction without an (n, K, K) tensor, also where factors underflow."""
    a = torch.tensor(rng.standard_normal((4, 4))).fill_diagonal_(-torch.inf)
    for scale in (1.0, 3000.0):
        b, kappa = (
            torch.tensor(scale * rng.standard_normal((9, 4))),
            torch.tensor(rng.random((9, 4))),
        )
        transition = SoftmaxTransition(kappa, scale * a, b)
        away = torch.softmax(scale * a[None] + b[:, None], dim=2)
        p = (1 - kappa)[..., None] * torch.eye(4) + kappa[..., None] * away
        D, W = torch.tensor(rng.random((9, 4))), torch.tensor(rng.random((9, 4)))
        torch.testing.assert_close(transition.expected(D), torch.einsum("ijk,ik->ij", p, D))
        torch.testing.assert_close(transition.realized(W), torch.einsum("ijk,ij->ik", p, W))
        j = torch.tensor(rng.integers(0, 4, 9))
        torch.testing.assert_close(transition.conditional(j), p[torch.arange(9), j])


def test_logits_survive_their_file(some_groups, tmp_path):
    truth = LogitAutonomy(1.0, 0.1, -20.0, 0.5)
    model = AutonomyAwareClustering(3, autonomy=truth, random_state=0).fit(some_groups)
    assert load_model(save_model(model, tmp_path / "m.safetensors")).autonomy == truth


def test_probabilities_sum_to_one_in_double_precision(rng):
    X, Y = rng.random((50, 2)), rng.random((4, 2))
    problem = Problem(X, autonomy=DistanceAutonomy(0.3, 0.5))
    total = problem.conditional(Y, rng.integers(0, 4, 50)).sum(1)
    np.testing.assert_allclose(total, 1, rtol=0, atol=1e-14)
