"""Override rates as a planner reads them: against counts by hand, and simulated coverage."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit

from volition.choices import Choices, override_rates
from volition.choices.report import log_cautions
from volition.core.costs import SquaredEuclidean

COST = SquaredEuclidean()


def city_log(seed=0, n=300, K=8, m=4000):
    """Return a log in which 35 % of cars and 10 % of vans override, to centres that are near."""
    rng = np.random.default_rng(seed)
    X, Y = rng.random((n, 2)), rng.random((1, K, 2))
    van, age = (rng.random(n) < 0.3).astype(float), rng.normal(45, 12, n)
    D = ((X[:, None] - Y[0]) ** 2).sum(2)
    who = rng.integers(0, n, m)
    prescribed = np.where(rng.random(m) < 0.85, D.argmin(1)[who], rng.integers(0, K, m))
    # Who is sent to another centre than the nearest overrides twice as often.
    twice = np.where(prescribed == D.argmin(1)[who], 1, 2)
    leaves = rng.random(m) < twice * np.where(van[who] > 0, 0.1, 0.35)
    weight = np.exp(-D[who] / 0.03)
    weight[np.arange(m), prescribed] = 0
    share = (weight / weight.sum(1, keepdims=True)).cumsum(1)
    realized = np.where(leaves, (share < rng.random(m)[:, None]).sum(1), prescribed)
    log = Choices(who, prescribed, realized, np.zeros(m, dtype=np.int64), Y)
    return X, log, np.stack([van, age], 1), D


def test_rates_are_counts():
    X, log, Z, D = city_log()
    rates = override_rates(X, log, COST, Z, ["van", "age"])
    rows = list(zip(log.entities, log.prescribed, log.realized, strict=True))

    def share(kept, hit=lambda i, j, k: j != k):
        of = [hit(i, j, k) for i, j, k in rows if kept(i, j, k)]
        return sum(of) / len(of)

    def near(i, j, k):
        return D[i, j] == D[i].min()

    assert rates.overall.share == share(lambda i, j, k: True)
    assert rates.nearest.share == share(near)
    assert rates.other.share == share(lambda *row: not near(*row))
    cars, vans = rates.groups[:2]
    assert (cars.label, vans.label) == ("van = 0", "van = 1")
    assert vans.always.share == share(lambda i, j, k: Z[i, 0] == 1)
    assert cars.nearest.share == share(lambda i, j, k: Z[i, 0] == 0 and near(i, j, k))

    def place(i, j, k):
        return [other for other in D[i].argsort() if other != j].index(k)

    for r in range(3):
        want = share(lambda i, j, k: j != k, lambda *row, r=r: place(*row) == r)
        assert rates.by_rank[r].share == want
    assert rates.by_rank[3].share == share(lambda i, j, k: j != k, lambda *row: place(*row) >= 3)
    for c in range(8):
        want = share(lambda i, j, k: j != k, lambda i, j, k, c=c: k == c)
        assert rates.by_center[c].share == want
    for some in (rates.by_rank, rates.by_center):
        assert_allclose(sum(rate.share for rate in some), 1)
    ages = [group for group in rates.groups if group.covariate == "age"]
    assert sum(group.always.n_rows for group in ages) == len(rows)
    assert [group.always.n_entities for group in ages] == [100, 100, 100]


def test_a_planner_reads_who_overrides_and_where_to():
    X, log, Z, _ = city_log()
    rates = override_rates(X, log, COST, Z, ["van", "age"], [f"mall {k}" for k in range(8)])
    cars, vans = (group.nearest for group in rates.groups[:2])
    assert cars.low < 0.35 < cars.high
    assert vans.low < 0.10 < vans.high
    text = str(rates)
    assert re.search(r"Overrides: \d+ % \(\d+ to \d+\) of 4000 choices by 300 entities", text)
    assert re.search(r"van = 0: .*; nearest centre prescribed: 3\d % \(3\d to 3\d\)", text)
    assert re.search(r"van = 1: .*; nearest centre prescribed: \S+ % ", text)
    assert re.search(r"Of \d+ overrides: \d+ % \(\d+ to \d+\) to the nearest other centre;", text)
    assert re.search(r"By centre: \d+ % \(\d+ to \d+\) to mall \d;", text)
    assert "nan" not in text
    assert re.search(r"another one: [45]\d % ", text)


def test_one_answer_of_each_is_wilsons_interval():
    """20 of 100: 0.1334 to 0.2888, as in textbooks; 100 entities add a little (Student's t)."""
    who = np.arange(100)
    log = Choices(who, np.zeros(100, int), (who < 20).astype(int), np.zeros(100, int), LINE)
    rate = override_rates(np.zeros((100, 1)), log, COST).overall
    assert_allclose([rate.low, rate.high], [0.1334, 0.2888], atol=0.002)


LINE = np.array([[[0.0], [1.0], [3.0]]])


def test_answers_of_one_entity_are_not_as_many_entities():
    """Half of 40 entities always override, half never: 40 answers, not 4,000."""
    who = np.arange(40).repeat(100)
    log = Choices(who, np.zeros(4000, int), (who < 20).astype(int), np.zeros(4000, int), LINE)
    rate = override_rates(np.zeros((40, 1)), log, COST).overall
    assert rate.share == 0.5
    assert 0.28 < rate.high - rate.low < 0.32  # 2 * 1.96 * 0.5 / sqrt(40) is 0.31
    alone = log._replace(entities=np.zeros(4000, dtype=np.int64))
    rate = override_rates(np.zeros((40, 1)), alone, COST).overall
    assert rate.high - rate.low > 0.7


@pytest.mark.parametrize(
    ("G", "n", "mean", "spread"),
    [(300, 10, -1.0, 0.0), (300, 10, -1.0, 1.5), (30, 40, -1.0, 1.5), (300, 10, -5.0, 2.0)],
)
def test_intervals_cover_the_rate_of_the_population(G, n, mean, spread):
    x, w = np.polynomial.hermite_e.hermegauss(60)
    truth = expit(mean + spread * x) @ w / w.sum()
    rng = np.random.default_rng(0)
    who, inside = np.arange(G).repeat(n), []
    none = np.zeros(G * n, dtype=np.int64)
    for _ in range(250):
        chance = expit(mean + spread * rng.standard_normal(G))[who]
        log = Choices(who, none, (rng.random(G * n) < chance).astype(int), none, LINE)
        rate = override_rates(np.zeros((G, 1)), log, COST).overall
        inside.append(rate.low < truth < rate.high)
    assert 0.92 <= np.mean(inside) <= 0.985


def test_nobody_overrides_is_not_never():
    who = np.arange(60)
    log = Choices(who, np.zeros(60, int), np.zeros(60, int), np.zeros(60, int), LINE)
    rates = override_rates(np.zeros((60, 1)), log, COST)
    assert rates.overall.low == 0
    assert 0.03 < rates.overall.high < 0.08  # the rule of three says 0.05
    assert "never seen" in str(rates)  # no other centre than the nearest was prescribed
    assert "Of 0" not in str(rates)


def test_groups_of_few_entities_and_of_few_values():
    rng = np.random.default_rng(0)
    who, none = np.arange(40), np.zeros(40, dtype=np.int64)
    log = Choices(who, none, rng.integers(0, 3, 40), none, LINE)
    size = np.repeat([1.0, 2.0, 3.0, 9.0], 10)
    many = np.concatenate([np.zeros(30), np.arange(1, 11)])
    Z = np.stack([size, rng.random(40), many, np.ones(40)], 1)
    rates = override_rates(np.zeros((40, 1)), log, COST, Z)
    by = {c: [g for g in rates.groups if g.covariate == f"covariate {c}"] for c in range(4)}
    assert [group.label[-1] for group in by[0]] == ["1", "2", "3", "9"]
    assert [group.always.n_entities for group in by[1]] == [20, 20]
    assert [group.always.n_entities for group in by[2]] == [30, 10]
    assert [group.label for group in by[3]] == ["covariate 3 = 1"]
    single = log._replace(realized=none, layouts=LINE[:, :1])
    assert override_rates(np.zeros((40, 1)), single, COST).by_rank == ()


def test_cautions_say_how_many_and_do_not_round_up_to_all():
    rng = np.random.default_rng(0)
    X = rng.random((300, 1)) * 3
    near = np.abs(X - LINE[0, :, 0]).argmin(1)
    who, none = np.arange(300).repeat(2), np.zeros(600, dtype=np.int64)
    prescribed = near[who]
    prescribed[0] = (prescribed[0] + 1) % 3
    realized = prescribed.copy()
    realized[5] = (realized[5] + 1) % 3
    log = Choices(who, prescribed, realized, none, LINE)
    few, same = log_cautions(X, log, COST)
    assert few.startswith("Only 1 of 600 choices was an override:")
    assert same.startswith("In 99.8 % of the choices the nearest centre was prescribed:")
