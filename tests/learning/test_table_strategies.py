"""Tables per entity, against loops and formulas."""

import numpy as np
import pytest
from populace import K, table_of, uniform

from volition import (
    FixedAutonomy,
    Prescriptions,
    Response,
    RobbinsMonro,
    SimulatedPopulation,
    TabularClustering,
)
from volition.core.costs import SquaredEuclidean
from volition.learning.entities import Entities
from volition.learning.ledger import Asked
from volition.learning.models.counts import Counts
from volition.learning.strategy import Answers
from volition.learning.table_strategies import QLearning


@pytest.fixture(scope="module")
def X(four_groups):
    return four_groups[::6]


@pytest.fixture
def people(X):
    return SimulatedPopulation(X, FixedAutonomy(uniform(0.25)), random_state=1)


def held(X, step):
    """Return a learner of costs at centres that stand."""
    model = TabularClustering(
        K, estimate="costs", q_step=step, beta_min=1.0, beta_max=1.0, random_state=0
    )
    return model.start(X, centers=X[:K])


def test_costs_with_steps_one_over_n_are_means(X, rng):
    """Robbins-Monro steps 1/n make q the mean of what was seen: an exact oracle."""
    model = held(X, RobbinsMonro(1.0))
    total, count = np.zeros((len(X), K)), np.zeros((len(X), K))
    for _ in range(3):
        m = 2000
        i, j, k = rng.integers(0, 20, m), rng.integers(0, K, m), rng.integers(0, K, m)
        model.tell(Prescriptions(i, j, model.cluster_centers_), Response(k, np.ones(m))).learn()
        np.add.at(total, (i, j), ((X[i] - X[k]) ** 2).sum(1))
        np.add.at(count, (i, j), 1)
    np.testing.assert_array_equal(model.cluster_centers_, X[:K])
    seen = count > 0
    np.testing.assert_allclose(model.expected_costs()[seen], total[seen] / count[seen], rtol=1e-9)


def test_a_batch_is_the_same_as_one_after_the_other(X, rng):
    """Vectorised updates against a loop over single answers, pairs repeated within the batch."""
    step = RobbinsMonro(0.6, offset=1.0)
    model = held(X, step)
    m = 3000
    i, j, k = rng.integers(0, 10, m), rng.integers(0, K, m), rng.integers(0, K, m)
    model.tell(Prescriptions(i, j, model.cluster_centers_), Response(k, np.ones(m))).learn()
    D = ((X[:, None] - X[None, :K]) ** 2).sum(2)
    q, visits = D.copy(), np.zeros((len(X), K))
    for a, b, c in zip(i, j, k, strict=True):
        visits[a, b] += 1
        q[a, b] += step(visits[a, b]) * (D[a, c] - q[a, b])
    np.testing.assert_allclose(model.expected_costs(), q, rtol=1e-9, atol=1e-12)


def test_the_centre_step_is_the_papers(X, rng):
    """y - alpha sum (y - x) delta / |S|, here divided by each centre's share, as documented."""
    strategy = QLearning(
        Entities.of(X, None, SquaredEuclidean()), K, np.random.default_rng(5), exploration=0.1,
        on_change="report", batch_size="auto", betas=(None, None), heir=None, forgetting=0.0,
        q_step=RobbinsMonro(), center_step=RobbinsMonro(power=0.6),
    )  # fmt: skip
    Y = strategy.centers = X[:K].copy()
    i, k, no = rng.integers(0, len(X), 500), rng.integers(0, K, 500), np.zeros(500, dtype=int)
    asked = Asked(no, i, no, np.ones(500), no, no, no)
    strategy.learn(Answers(asked, k, np.ones(500), Y))
    share = 0.9 / K + 0.1 * np.bincount(k, minlength=K) / 500
    step = np.array([(Y[c] - X[i[k == c]]).sum(0) / 500 / share[c] for c in range(K)])
    noise = 1e-3 * strategy.scale * np.random.default_rng(5).standard_normal(Y.shape)
    np.testing.assert_allclose(strategy.centers, Y - step + noise, rtol=1e-9)


def test_counts_are_blended_with_everybodys(X, rng):
    m, n = 5000, len(X)
    i, j, k = rng.integers(0, n, m), rng.integers(0, K, m), rng.integers(0, K, m)
    known = Counts(n, K)
    known.add(i, j, k)
    counts = np.zeros((n, K, K))
    np.add.at(counts, (i, j, k), 1)
    pooled = counts.sum(0) + 1 / K
    pooled /= pooled.sum(1, keepdims=True)
    s = known.pooling
    p = (counts + s * pooled) / (counts.sum(2, keepdims=True) + s)
    np.testing.assert_allclose(known.p(slice(None)), p, rtol=1e-9)
    model = TabularClustering(K, random_state=0).start(X)
    model.tell(Prescriptions(i, j, model.cluster_centers_), Response(k, np.ones(m))).learn()
    np.testing.assert_allclose(model.model_.p, p, rtol=1e-9)
    D = ((X[:, None] - model.cluster_centers_[None]) ** 2).sum(2)
    expected = (p * D[:, None, :]).sum(2)
    np.testing.assert_allclose(model.expected_costs(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("batch", [500, 40_000])
@pytest.mark.parametrize(("concentration", "low", "high"), [(1.0, 1, 10), (1e6, 1000, 10000)])
def test_likeness_is_found_out_in_small_batches_and_in_a_large_one(concentration, low, high, batch):
    """Entities that all differ (Dirichlet, worth 4 answers) and entities that are all alike."""
    rng, n = np.random.default_rng(0), 300
    p, counts = rng.dirichlet(np.full(K, concentration), size=(n, K)), Counts(n, K)
    for _ in range(40_000 // batch):
        i, j = rng.integers(0, n, batch), rng.integers(0, K, batch)
        k = (p[i, j].cumsum(1) < rng.random((batch, 1))).sum(1).clip(max=K - 1)
        counts.add(i, j, k)
    assert low <= counts.pooling <= high


def test_what_was_counted_can_be_taken_back(rng):
    """Also where counts fade and are rescaled, and batches are cut into slices."""
    counts, kept = Counts(30, 3, forgetting=0.9), None
    for _ in range(6):
        kept = counts.copied()
        before, table = counts.p(slice(None)), counts.table
        i, j, k = rng.integers(0, 30, 300), rng.integers(0, 3, 300), rng.integers(0, 3, 300)
        kept.add(i, j, k)
        after = kept.p(slice(None))
        kept.undo()
        np.testing.assert_array_equal(counts.p(slice(None)), before)
        assert counts.table is table
        counts = counts.copied()
        counts.add(i, j, k)
        np.testing.assert_array_equal(counts.p(slice(None)), after)


@pytest.mark.parametrize("power", [0.5, 1.2])
def test_step_sizes_obey_robbins_and_monro(power):
    with pytest.raises(ValueError, match="power"):
        RobbinsMonro(power)


def test_forgetting_lets_old_answers_fade(X, people):
    model = TabularClustering(K, forgetting=1e-3, random_state=0)
    model.partial_fit(X, population=people, n_interactions=30_000)
    # The weights of answers told long enough sum to 1 / forgetting; each batch counts as one.
    batch = len(model.ask())
    expected = batch / (1 - np.exp(-1e-3 * batch))
    assert model._study.strategy.counts.total == pytest.approx(expected, rel=1e-6)


def test_forgetting_everything_at_once_does_not_overflow(X, people):
    model = TabularClustering(K, forgetting=1.0, batch_size=1000, random_state=0)
    model.partial_fit(X, population=people, n_interactions=3000)
    assert np.isfinite(table_of(model)).all()
    # Of 1000 answers, taken in slices of n K / 4 = 300, the last 100 are left.
    assert model._study.strategy.counts.total == pytest.approx(100)
