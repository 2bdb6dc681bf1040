"""What a plan would cost, from the log of another: published figures, closed forms, coverage."""

from __future__ import annotations

import csv
import gzip

import numpy as np
import pytest
from numpy.testing import assert_allclose

from volition.choices.off_policy import estimate_off_policy, weight_cautions


@pytest.fixture(scope="module")
def bandit(shared):
    """Rows of the Open Bandit data that were shown at random, and by Thompson sampling."""

    def read(name):
        with gzip.open(shared / "data" / "offpolicy" / f"{name}.csv.gz", "rt") as lines:
            rows = list(csv.DictReader(lines))
        names = ("click", "propensity", "bts_probability")
        return {name: np.array([float(row[name]) for row in rows]) for name in names}

    return read("random"), read("bts")


def test_the_thompson_policy_from_the_random_log_is_as_published(bandit):
    random, thompson = bandit
    weight = random["bts_probability"] / random["propensity"]
    found = estimate_off_policy(weight, random["click"], bounds=(0, 1))
    assert_allclose(found.inverse_propensity.value, 0.004553, rtol=0.01)
    assert_allclose(found.self_normalized.value, 0.00478, atol=5e-6)
    d = found.diagnostics
    assert_allclose(d.effective_rows, 1640, atol=5)
    assert_allclose(d.largest_weight, 19.7, atol=0.05)
    assert_allclose(d.mean_weight, 0.953, atol=5e-4)
    assert weight_cautions(d) == []
    own = thompson["click"].mean()
    for estimate in found[:2]:
        assert 0 <= estimate.low < own < estimate.high


def test_the_random_policy_from_the_thompson_log_is_to_be_doubted(bandit):
    random, thompson = bandit
    found = estimate_off_policy(1 / 80 / thompson["propensity"], thompson["click"])
    assert_allclose(found.inverse_propensity.value, 0.00236, atol=5e-6)
    d = found.diagnostics
    assert_allclose(d.effective_rows, 340, atol=1)
    assert_allclose(d.largest_weight, 278, atol=0.5)
    said = " ".join(weight_cautions(d))
    assert "only 340 (3.4 %) are effective" in said
    assert "up to 278" in said
    # Cutting weights moves it towards what the random log itself has, 0.0038.
    values = [one.value for one in d.clipped]
    assert (np.diff(values) < 0).all()
    assert random["click"].mean() == pytest.approx(0.0038)
    assert values[0] == pytest.approx(0.0038, rel=0.05)
    assert found.self_normalized.low < 0.0038 < found.self_normalized.high


def test_wrong_propensities_show_in_the_mean_weight(bandit):
    random, _ = bandit
    wrong = 1 / 60  # as if there were 60 items, not 80
    found = estimate_off_policy(random["bts_probability"] / wrong, random["click"])
    assert "mean weight is 0.715" in " ".join(weight_cautions(found.diagnostics))


def test_weights_of_one_are_a_plain_mean():
    rng = np.random.default_rng(0)
    value = rng.random(200)
    found = estimate_off_policy(np.ones(200), value)
    error = value.std(ddof=1) / np.sqrt(200)
    for estimate in found[:2]:
        assert_allclose(estimate[:2], [value.mean(), error])
        assert_allclose((estimate.high - estimate.low) / (2 * 1.96 * error), 1, atol=0.02)
    d = found.diagnostics
    assert_allclose(d[:4], [200, 200, 200, 200])
    assert d.mean_weight_error < 1e-12
    assert d.clipped == ()
    assert weight_cautions(d) == []


def test_one_of_two_groups_is_the_mean_of_that_group():
    rng = np.random.default_rng(1)
    tried, value = rng.random(400) < 0.25, rng.random(400)
    found = estimate_off_policy(tried / 0.25, value)
    mine = value[tried]
    assert_allclose(found.self_normalized.value, mine.mean())
    error = mine.std(ddof=1) / np.sqrt(len(mine))
    assert_allclose(found.self_normalized.error, error, rtol=0.01)
    assert_allclose(found.inverse_propensity.value, mine.sum() / 0.25 / 400)
    d = found.diagnostics
    assert_allclose(d.effective_rows, len(mine))
    assert d.zero_share == 1 - len(mine) / 400


def test_rows_of_one_entity_count_as_one():
    rng = np.random.default_rng(2)
    weight, value = rng.random(60) + 0.5, rng.random(60)
    once = estimate_off_policy(weight, value)
    often = estimate_off_policy(weight.repeat(5), value.repeat(5), np.arange(60).repeat(5))
    assert_allclose(often.self_normalized, once.self_normalized)
    assert_allclose(often.inverse_propensity, once.inverse_propensity)
    assert often.diagnostics.n_clusters == 60
    rows = [0] * 5 + list(range(1, 60))
    even = np.where(np.array(rows) == 0, 0.2, 1.0)
    shared_out = estimate_off_policy(weight[rows], value[rows], rows, share=even)
    assert_allclose(shared_out.self_normalized, once.self_normalized)


def test_clipping_is_what_it_says():
    rng = np.random.default_rng(3)
    weight, value = np.exp(1.5 * rng.standard_normal(500)), rng.random(500)
    d = estimate_off_policy(weight, value).diagnostics
    assert len(d.clipped) > 2
    for one in (d.cut, *d.clipped):
        less = np.minimum(weight, one.level)
        assert_allclose(one.value, less @ value / less.sum())
        assert one.share == (weight > one.level).mean()
    assert_allclose(d.cut.level, np.sqrt(500) * weight.mean())
    assert "cut at" in str(d)


def benign(rng, n):
    """Return weights and values of a log that tries each of four, and one with gentle weights."""
    z, tried = rng.standard_normal((2, n))
    yield np.where(tried > 0.6745, 4.0, 0.0), z + tried + rng.standard_normal(n), None
    yield np.exp(0.5 * z - 0.125), np.exp(0.3 * z) + tried, np.exp(0.15 + 0.045)
    yield np.exp(z - 0.5), np.exp(0.3 * z) + tried, np.exp(0.3 + 0.045)


def test_benign_weights_are_covered_and_hardly_ever_doubted():
    rng = np.random.default_rng(0)
    inside, doubted = [], []
    for _ in range(150):
        for weight, value, truth in benign(rng, 1000):
            found = estimate_off_policy(weight, value)
            doubted.append(bool(weight_cautions(found.diagnostics)))
            if truth is not None:
                inside.append(found.self_normalized.low < truth < found.self_normalized.high)
    assert np.mean(doubted) < 0.05
    assert 0.92 < np.mean(inside) < 0.98


@pytest.mark.parametrize("sigma", [2.0, 2.5])
def test_weights_with_long_tails_are_doubted_and_get_wider_intervals(sigma):
    """With a normal interval of the weighted mean, 77 and 61 % would be covered."""
    rng = np.random.default_rng(0)
    doubted, inside, normal = [], [], []
    truth = np.exp(0.3 * sigma + 0.045)
    for _ in range(100):
        z = rng.standard_normal(3000)
        value = np.exp(0.3 * z) + 0.5 * rng.standard_normal(3000)
        found = estimate_off_policy(np.exp(sigma * z - sigma**2 / 2), value)
        estimate = found.self_normalized
        doubted.append(bool(weight_cautions(found.diagnostics)))
        inside.append(estimate.low < truth < estimate.high)
        normal.append(abs(estimate.value - truth) < 1.96 * estimate.error)
    assert np.mean(doubted) > 0.95
    assert np.mean(inside) > np.mean(normal) + 0.05


def test_a_log_that_never_tried_the_plan_says_nothing():
    found = estimate_off_policy(np.zeros(50), np.ones(50))
    assert np.isnan(found.inverse_propensity).all()
    assert np.isnan(found.self_normalized).all()
    assert "never tried" in weight_cautions(found.diagnostics)[0]


def test_values_that_are_all_alike_are_not_certain():
    """No click in 200 rows is not a click rate of exactly zero."""
    found = estimate_off_policy(np.ones(200), np.zeros(200))
    assert np.isnan(found.self_normalized.high)
    assert "cannot be said" in " ".join(weight_cautions(found.diagnostics))
    alone = estimate_off_policy(np.ones(200), np.arange(200.0), np.zeros(200))
    assert np.isnan(alone.self_normalized.high)
    assert "cannot be said" in " ".join(weight_cautions(alone.diagnostics))


def test_one_entity_with_most_of_the_weight_is_named():
    who = np.concatenate([np.zeros(200), np.arange(1, 801)])
    weight = np.where(who == 0, 2.5, 0.625)
    found = estimate_off_policy(weight, np.arange(1000.0), who)
    assert "of one entity, make up 100 %" in " ".join(weight_cautions(found.diagnostics))


def test_bad_input_gets_one_sentence():
    for wrong, says in (
        (([1.0, -1.0], [1.0, 1.0]), "weight at row 1 is -1.0; it must be a finite number and not"),
        (([1.0, 1.0], [1.0, np.nan]), "value at row 1 is nan; it must be a finite number"),
        (([1.0, 1.0], [1.0]), r"value has shape \(1,\), but weight has \(2,\)"),
        (([], []), "one number for each row"),
        (([1.0, 1.0], [1.0, 1.0], [0]), "cluster has 1 rows, but weight has 2"),
    ):
        with pytest.raises(ValueError, match=says):
            estimate_off_policy(*wrong)
    with pytest.raises(ValueError, match="share is 0 in every row"):
        estimate_off_policy([1.0], [1.0], share=[0.0])


@pytest.mark.parametrize("size", [1e150, 1e-150])
def test_the_size_of_values_does_not_matter(size):
    rng = np.random.default_rng(0)
    weight, value, who = rng.random(200), rng.random(200), rng.integers(0, 50, 200)
    plain = estimate_off_policy(weight, value, who)
    scaled = estimate_off_policy(weight, value * size, who)
    for a, b in ((plain[0], scaled[0]), (plain[1], scaled[1])):
        np.testing.assert_allclose(np.array(b) / size, a, rtol=1e-12)
