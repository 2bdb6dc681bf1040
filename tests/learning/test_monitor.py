"""What a learner knows about how it is doing."""

import numpy as np
import pytest
from populace import ESTIMATES, K, gap, table_of, uniform

from volition import FixedAutonomy, SimulatedPopulation, TabularClustering
from volition.learning.monitor import Monitor
from volition.metrics import distortion


@pytest.fixture(scope="module")
def X(four_groups):
    return four_groups[::6]


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_a_change_is_noticed(X, estimate):
    people = SimulatedPopulation(
        X, FixedAutonomy(uniform(0.1)), changes={10_000: FixedAutonomy(uniform(0.4))},
        random_state=0,
    )  # fmt: skip
    model = TabularClustering(K, estimate=estimate, batch_size=250, n_interactions=8000)
    model.partial_fit(X, population=people, n_interactions=10_000)
    assert model.changes_ == []
    model.partial_fit(population=people, n_interactions=5000)
    (change,) = model.changes_
    assert 10_000 < change.n_interactions <= 13_000
    assert change.before == pytest.approx(0.9, abs=0.03)
    assert change.after < 0.8
    assert np.sum(change.table_after) in (50, 200, 800)
    if estimate == "choices":
        assert gap(model, X, uniform(0.4)) < 3


def test_reporting_only(X):
    people = SimulatedPopulation(
        X, FixedAutonomy(uniform(0.05)), changes={5000: FixedAutonomy(uniform(0.6))},
        random_state=0,
    )  # fmt: skip
    model = TabularClustering(K, on_change="report", batch_size=250, random_state=0)
    model.partial_fit(X, population=people, n_interactions=8000)
    assert model.changes_
    assert table_of(model).sum() == model.n_answers_


def test_false_alarms_are_rare():
    """60 runs of 10,000 blind answers (100,000 interactions each): none, at 0.2 % per run."""
    rng = np.random.default_rng(0)
    for run in range(60):
        P = rng.dirichlet(np.ones(K), size=K)
        monitor = Monitor(K)
        j = rng.integers(0, K, 10_000)
        k = (np.cumsum(P, axis=1)[j] < rng.random((10_000, 1))).sum(1).clip(max=K - 1)
        assert monitor.add_choices(j, k, (0, 0)) is None, run


def test_a_change_of_destination_is_noticed_too():
    """As many obey as before, but the others go elsewhere."""
    rng = np.random.default_rng(0)
    before, after = np.full((3, 3), 0.0), np.full((3, 3), 0.0)
    for j in range(3):
        before[j, j] = after[j, j] = 0.6
        before[j, (j + 1) % 3], after[j, (j + 2) % 3] = 0.4, 0.4
    before[0], after[0] = [0.6, 0.4, 0.0], [0.6, 0.0, 0.4]
    before[1], after[1] = [0.4, 0.6, 0.0], [0.0, 0.6, 0.4]
    monitor = Monitor(3)
    found = []
    for P in (before, after):
        j = rng.integers(0, 3, 3000)
        k = (np.cumsum(P, axis=1)[j] < rng.random((3000, 1))).sum(1).clip(max=2)
        found.append(monitor.add_choices(j, k, (0, 0)))
    assert found[0] is None
    assert "is realised" in found[1].what


@pytest.mark.parametrize(("estimate", "asked"), [("choices", 6000), ("costs", 20_000)])
def test_the_running_distortion_is_right(X, estimate, asked):
    """Its confidence interval holds the truth about 95 times in 100; here in at least 21 of 25."""
    P, hits = uniform(0.3), 0
    for seed in range(25):
        people = SimulatedPopulation(X, FixedAutonomy(P), random_state=seed)
        model = TabularClustering(
            K, estimate=estimate, n_interactions=asked, batch_size=1500, random_state=seed
        )
        model.partial_fit(X, population=people, n_interactions=asked)
        found = model.distortion_estimate()
        truth = distortion(X, model.cluster_centers_, FixedAutonomy(P), model.labels_)
        assert found.n_answers > 500
        hits += found.low < truth < found.high
    assert hits >= 21


def test_no_answers_no_estimate(X):
    model = TabularClustering(K, random_state=0).start(X)
    estimate = model.distortion_estimate()
    assert np.isnan(estimate.value)
    assert estimate.n_answers == 0
