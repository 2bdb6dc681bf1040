"""What a learner knows about how it is doing."""

import numpy as np
import pytest
from populace import ESTIMATES, K, gap, table_of, uniform
from small_networks import quick

from volition import (
    ADENClustering,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    Response,
    SimulatedPopulation,
    TabularClustering,
)
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
    assert 10_000 < change.n_interactions <= 12_000
    assert change.before == pytest.approx(0.9, abs=0.03)
    assert change.after < 0.85
    assert np.sum(change.table_after) == change.n_after
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


def test_behaviour_that_depends_on_distance_is_no_change(X):
    """The table is wrong about centres that have moved; entities are as they were."""
    people = SimulatedPopulation(X, DistanceAutonomy(0.4, temperature=0.01), random_state=0)
    model = TabularClustering(K, batch_size=250, n_interactions=8000, random_state=0)
    model.partial_fit(X, population=people, n_interactions=8000)
    assert model.changes_ == []


def test_a_change_is_noticed_without_exploration(X):
    people = SimulatedPopulation(
        X, FixedAutonomy(uniform(0.1)), changes={4000: FixedAutonomy(uniform(0.5))},
        random_state=0,
    )  # fmt: skip
    model = TabularClustering(K, exploration=0.0, batch_size=250, random_state=0)
    model.partial_fit(X, population=people, n_interactions=6000)
    assert 4000 < model.changes_[0].n_interactions <= 6000


class Travellers:
    """Drivers who pay in minutes, which only they know, and do not say where they went."""

    def __init__(self, people):
        self.people, self.rng = people, np.random.default_rng(0)

    def respond(self, *question):
        cost = self.people.respond(*question).cost
        return Response(
            None, 2 * np.sqrt(cost) * np.exp(0.05 * self.rng.standard_normal(len(cost)))
        )


@pytest.mark.parametrize(
    ("make", "minutes"),
    [
        (lambda: ChoiceClustering(K, network=False, random_state=0), False),
        (lambda: ADENClustering(K, preset=quick(), head="service", random_state=0), True),
        (lambda: ADENClustering(K, preset=quick(), head="costs", random_state=0), False),
        (lambda: ADENClustering(K, preset=quick(), head="costs", random_state=0), True),
    ],
)
def test_every_learner_notices_while_centres_move(X, make, minutes):
    near, often = (DistanceAutonomy(kappa, temperature=0.05) for kappa in (0.1, 0.6))
    people = SimulatedPopulation(X, near, changes={3072: often}, random_state=0)
    answering = Travellers(people) if minutes else people
    model = make().start(X)
    while not model.changes_:
        asked = model.ask(256)
        response = answering.respond(asked.entities, asked.prescribed, asked.centers)
        model.tell(asked, response).learn()
        assert people.n_interactions <= 3072 + 2048
    assert people.n_interactions > 3072
    (change,) = model.changes_
    assert ("pay" in change.what) == minutes
    # It goes on with what came since.
    asked = model.ask(256)
    model.tell(asked, answering.respond(asked.entities, asked.prescribed, asked.centers)).learn()
    assert len(model.changes_) == 1


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
