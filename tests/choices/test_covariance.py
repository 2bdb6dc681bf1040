"""Errors of fitted choices, against bootstraps, leaving out, closed forms and simulations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import expit, logit

from volition.choices import Choices, Log, fit_choices
from volition.choices.logit import (
    Decisions,
    cautious_covariance,
    fit_logit,
    robust_covariance,
)
from volition.choices.modelled_costs import modelled_cost
from volition.core.costs import SquaredEuclidean
from volition.core.problem import Problem
from volition.datasets import load_four_groups

COST = SquaredEuclidean()
X4 = load_four_groups().data
UNIT = Problem(X4).cost_scale
TODAY = np.array([[0.2, 0.2], [0.8, 0.2], [0.2, 0.7], [0.8, 0.7], [0.5, 0.5]])
RANKED = (("constant", "rank"), ("rank",))


def loyal_log(m, n, seed, spread=1.5):
    """Return a log in which some obey more than others, and overriders go to nearby centres."""
    rng = np.random.default_rng(seed)
    X = X4[rng.choice(len(X4), n, replace=False)]
    D = ((X[:, None] - TODAY) ** 2).sum(2)
    K, near = len(TODAY), D.argmin(1)
    who = rng.integers(0, n, m)
    prescribed = np.where(rng.random(m) < 0.85, near[who], rng.integers(0, K, m))
    log_odds = (1.0 + spread * rng.standard_normal(n))[who] - 3.0 * D[who, prescribed]
    weight = np.exp(-D[who] / 0.05)
    weight[np.arange(m), prescribed] = 0
    other = (weight / weight.sum(1, keepdims=True)).cumsum(1) < rng.random(m)[:, None]
    realized = np.where(rng.random(m) < expit(log_odds), prescribed, other.sum(1))
    return X, Choices(who, prescribed, realized, np.zeros(m, dtype=np.int64), TODAY[None]), near


@pytest.mark.parametrize("seed", [0, 1])
def test_the_error_of_an_expected_cost_with_ranks_is_that_of_a_bootstrap_of_entities(seed):
    """Constant and ranks go against each other: their errors cancel in any cost."""
    X, choices, near = loyal_log(2500, 300, seed)
    fit = fit_choices(X, choices, COST, UNIT, family=RANKED)
    log = Log(X, COST, None, choices, np.ones(2500))
    expected = modelled_cost(fit, log, TODAY, near)
    interval = expected.interval(fit)
    error = (interval.high - interval.low) / (2 * 1.96)
    rng = np.random.default_rng(seed)
    rows = [np.flatnonzero(choices.entities == i) for i in range(len(X))]
    again = []
    for _ in range(80):
        some = np.concatenate([rows[i] for i in rng.integers(0, len(X), len(X))])
        other = fit_choices(X, choices.take(some), COST, UNIT, family=RANKED)
        again.append(modelled_cost(other, log, TODAY, near).value)
    # 80 resamples know the error to 8 %.
    assert_allclose(error, np.std(again), rtol=0.25)


def test_one_answer_of_each_and_nothing_but_ranks_is_a_share_per_rank():
    """With a free number for each rank, errors are those of shares: 1 / (n p (1 - p))."""
    rng = np.random.default_rng(0)
    m = len(X4)
    D = ((X4[:, None] - TODAY) ** 2).sum(2)
    prescribed = rng.integers(0, 5, m)
    rank = (D[np.arange(m), prescribed][:, None] > D).sum(1).clip(max=3)
    stays = rng.random(m) < np.array([0.8, 0.6, 0.5, 0.3])[rank]
    realized = np.where(stays, prescribed, (prescribed + 1) % 5)
    log = Choices(np.arange(m), prescribed, realized, np.zeros(m, dtype=np.int64), TODAY[None])
    stay = fit_choices(X4, log, COST, UNIT, family=(("constant", "rank"), ())).stay
    for r in range(4):
        n, share = (rank == r).sum(), stays[rank == r].mean()
        g = np.zeros(5)
        g[stay.slices["constant"]], g[stay.slices["rank"].start + r] = 1, 1
        assert_allclose(g @ stay.coefficients, logit(share), atol=0.02)
        # Few go by chance against the plain error: a few per cent above, never below.
        ratio = np.sqrt(g @ stay.covariance @ g * n * share * (1 - share))
        assert 0.99 < ratio < 1.03


def clustered(seed, G, n, spread, P=3):
    """Return decisions of G clusters, n rows each, that share what is not in the model."""
    rng = np.random.default_rng(seed)
    which = np.repeat(np.arange(G), n)
    value = rng.standard_normal((G * n, 4, P)) + 0.5 * rng.standard_normal((G, 4, P))[which]
    liking = spread * rng.standard_normal((G, 4))[which]
    utility = value @ np.linspace(-1, 1, P) + liking + rng.gumbel(size=(G * n, 4))
    index = np.broadcast_to(np.arange(P), value.shape)
    open_ = np.ones((G * n, 4), bool)
    return Decisions(index, value, open_, utility.argmax(1), np.ones(G * n), P), which


def test_leverage_is_that_of_leaving_out_one_cluster_after_the_other():
    decisions, which = clustered(0, 25, 12, 1.0)
    ridge = np.array([0.0, 0.1, 2.0])
    estimate = fit_logit(decisions, ridge)
    without = np.array(
        [fit_logit(decisions.take(which != g), ridge).coefficients for g in range(25)]
    )
    moved = without - estimate.coefficients
    jackknife = 24 / 25 * moved.T @ moved
    ours = robust_covariance(decisions, estimate, which, leverage=True)
    # The penalty's part, which no data can show, comes on top.
    penalty = estimate.bread @ np.diag(ridge) @ estimate.bread
    assert_allclose(ours - penalty, jackknife, rtol=0.1, atol=0.02 * np.diag(jackknife).max())
    free = robust_covariance(decisions, fit_logit(decisions, np.zeros(3)), which)
    assert (np.diag(free) < np.diag(ours) * 1.5).all()


def test_independent_rows_of_one_cluster_each_need_no_clusters():
    decisions, _ = clustered(1, 300, 1, 0.0)
    estimate = fit_logit(decisions, np.zeros(3))
    assert_allclose(
        robust_covariance(decisions, estimate),
        robust_covariance(decisions, estimate, np.arange(300)[::-1]),
    )
    weighted = decisions._replace(weight=np.full(300, 2.0))
    twice = Decisions(
        *(np.concatenate([one, one]) for one in decisions[:5]), decisions.n_coefficients
    )
    both = np.concatenate([np.arange(300)] * 2)
    for leverage in (False, True):
        assert_allclose(
            robust_covariance(weighted, fit_logit(weighted, np.zeros(3)), leverage=leverage),
            robust_covariance(twice, fit_logit(twice, np.zeros(3)), both, leverage=leverage),
            rtol=1e-6,
        )


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    G=st.integers(2, 30),
    spread=st.floats(0, 2),
    ridge=st.floats(1e-4, 5),
)
def test_no_combination_is_surer_than_by_either_covariance(seed, G, spread, ridge):
    decisions, which = clustered(seed, G, 4, spread)
    estimate = fit_logit(decisions, np.full(3, ridge))
    cautious = cautious_covariance(decisions, estimate, which)
    assert_allclose(cautious, cautious.T, atol=1e-9 * np.abs(cautious).max())
    for other in (estimate.bread, robust_covariance(decisions, estimate, which, leverage=True)):
        least = np.linalg.eigvalsh(cautious - other).min()
        assert least > -1e-6 * np.abs(cautious).max()


def test_one_entity_tells_nothing_about_others():
    decisions, which = clustered(0, 1, 50, 0.0)
    estimate = fit_logit(decisions, np.full(3, 1e-4))
    assert_allclose(cautious_covariance(decisions, estimate, which), estimate.bread)


def test_a_coefficient_that_one_cluster_alone_tells_stays_finite():
    decisions, which = clustered(0, 6, 30, 0.0)
    value = decisions.value.copy()
    value[which != 2, :, 1] = 0
    decisions = decisions._replace(value=value)
    for ridge in (0.0, 1e-4, 0.1):
        estimate = fit_logit(decisions, np.full(3, ridge))
        assert np.isfinite(robust_covariance(decisions, estimate, which, leverage=True)).all()
        errors = np.sqrt(np.diag(cautious_covariance(decisions, estimate, which)))
        assert (errors >= np.sqrt(np.diag(estimate.bread))).all()


@pytest.mark.parametrize(("G", "n", "spread"), [(300, 5, 0.0), (300, 5, 1.0), (30, 40, 1.0)])
def test_sums_of_coefficients_are_covered_as_often_as_they_should_be(G, n, spread):
    """Constant + rank, 250 logs, some entities more obedient than others: 92 to 98.5 %.

    250 logs find a share of 0.95 within 0.92 and 0.98 in 19 of 20 cases; few entities are to be
    covered rather too often.
    """
    base = np.array([1.5, 0.8, 0.5, 0.3])
    x, w = np.polynomial.hermite_e.hermegauss(60)
    truth = logit(expit(base[:, None] + spread * x) @ w / w.sum())
    g = np.concatenate([np.ones((4, 1)), np.eye(4)], axis=1)
    inside = []
    for seed in range(250):
        rng = np.random.default_rng(seed)
        who = np.repeat(np.arange(G), n)
        rank = np.where(rng.random(G * n) < 0.85, 0, rng.integers(1, 4, G * n))
        stays = rng.random(G * n) < expit(base[rank] + spread * rng.standard_normal(G)[who])
        which = np.stack([np.zeros(G * n, int), 1 + rank], 1)[:, None].repeat(2, axis=1)
        value = np.ones((G * n, 2, 2)) * np.array([1.0, 0.0])[:, None]
        open_ = np.ones((G * n, 2), bool)
        decisions = Decisions(which, value, open_, (~stays).astype(int), np.ones(G * n), 5)
        estimate = fit_logit(decisions, np.array([1e-4, 0.05, 0.05, 0.05, 0.05]))
        covariance = cautious_covariance(decisions, estimate, who)
        error = np.sqrt(np.einsum("cp,pq,cq->c", g, covariance, g))
        inside.append(np.abs(g @ estimate.coefficients - truth) < 1.96 * error)
    shares = np.mean(inside, axis=0)
    assert (shares >= 0.92).all(), shares
    assert (shares <= 0.985).all(), shares
    assert 0.93 <= shares.mean() <= 0.98, shares
