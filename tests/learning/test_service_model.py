import copy
import warnings

import numpy as np
import pytest
import torch
from small_networks import DRIVERS, QUICK, K, Noisy, gap, quick, shaken, streets

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    DistanceAutonomy,
    Prescriptions,
    Response,
    SimulatedPopulation,
)
from volition.core.costs import SquaredEuclidean, resolve_cost
from volition.core.problem import Problem
from volition.learning.entities import Entities
from volition.learning.models.service import ServiceModel
from volition.learning.networks import NetworkAutonomy, Units, load_network
from volition.learning.staged import StagedStrategy
from volition.learning.study import Study
from volition.metrics import distortion

# Networks are trained for seconds here, and are wrong about their own plans: a fit says so.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The model expects a cost of"),
    pytest.mark.filterwarnings("ignore:k-means centres with the nearest prescribed are kept"),
]
TRUTH = DistanceAutonomy(0.3, temperature=0.01)


@pytest.fixture(scope="module")
def X(some_groups):
    return some_groups


def told(learner, people, n=None):
    """Ask, be answered, tell and learn once."""
    asked = learner.ask(n)
    learner.tell(asked, people.respond(asked.entities, asked.prescribed, asked.centers))
    learner.learn()


@pytest.fixture(scope="module")
def street_gap(X):
    """Return a function that says by how many % centres and labels are off there."""
    known = AutonomyAwareClustering(K, autonomy=DRIVERS, metric=streets, random_state=0)
    best = known.fit(X).distortion_
    truth = Problem(X, autonomy=DRIVERS, cost=resolve_cost(streets))
    return lambda model: 100 * (truth.distortion(model.cluster_centers_, model.labels_) / best - 1)


@pytest.fixture(scope="module")
def fitted_on_streets(X):
    people = SimulatedPopulation(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(K, preset=QUICK, head="service", n_interactions=600, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, population=people)


@pytest.fixture
def model(fitted_on_streets):
    """A fit that each test may change."""
    return copy.deepcopy(fitted_on_streets)


class Watching(SimulatedPopulation):
    """Remembers which centres it was shown."""

    def respond(self, entities, prescribed, centers):
        shown = np.unique(centers.reshape(-1, centers.shape[-1]), axis=0)
        self.shown = [*getattr(self, "shown", []), shown]
        return super().respond(entities, prescribed, centers)


def test_costs_that_only_the_population_knows(X, tmp_path, street_gap):
    """It believes in squared distances; what it learned starts another problem there."""
    people = Watching(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(K, preset=QUICK, n_interactions=4000, random_state=0)
    model.fit(X, population=people)
    assert model.head_ == "service"
    assert street_gap(model) < 2
    path = model.save_network(tmp_path / "n.safetensors")
    # It remembers places of centres that it was asked about, and no others.
    shown = model.network_.units.points(torch.from_numpy(np.concatenate(people.shown))).float()
    assert torch.cdist(load_network(path).asked.double(), shown.double()).amin(1).max() < 1e-6
    near = ADENClustering(3, network=path, random_state=0).start(X[::2] + 0.05)
    np.testing.assert_array_equal(near.network_.units.origin, model.network_.units.origin)
    far = ADENClustering(3, network=path, random_state=0).start(100 * X)
    np.testing.assert_allclose(far.network_.units.origin, 100 * X.mean(0))


def test_a_network_that_does_not_hold_here_is_given_up(X, street_gap):
    wrong = shaken("service").float()
    wrong.units = Units(X.mean(0), 0.3, 0.1)
    wrong.include_places(wrong.units.points(torch.from_numpy(X)))
    with torch.no_grad():
        wrong.service.last.weight.mul_(30.0)
    people = SimulatedPopulation(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(K, preset=QUICK, network=wrong, n_interactions=1000, random_state=0)
    model.fit(X, population=people)
    assert not model.transferred_
    assert street_gap(model) < 10


@pytest.mark.parametrize(
    ("dearer", "n", "ends"), [(1.0, 50, True), (0.5, 50, True), (3.0, 50, False), (1.0, 0, False)]
)
def test_a_fit_does_not_end_at_centres_that_cost_something_else(X, dearer, n, ends):
    """Belief alone is not enough: a search goes where the network is wrong."""

    class Same(ServiceModel):
        """Learns nothing, and finds no better centres."""

        def fit(self, memory, entities, stage, rng):
            self.frozen = NetworkAutonomy(self.network, self.units)

        def search(self, finder):
            return finder.known

    entities, rng = Entities.of(X, None, SquaredEuclidean(), None), np.random.default_rng(0)
    strategy = StagedStrategy(
        entities, K, rng, exploration=0.3, tol=1e-3, most=10_000, terms=None,
        service=lambda entities, rng: Same(QUICK, entities, K, 0), wanted="service",
    )  # fmt: skip
    study = Study(strategy)
    people = SimulatedPopulation(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    while study.strategy.stage == 0:
        told(study, people)
    strategy = study.strategy
    cost = dearer * strategy.distortion * (1 + 0.01 * rng.standard_normal(n))
    strategy.monitor.forget_costs()
    strategy.monitor.add_costs(cost, np.ones(n), rng.integers(0, len(X), n), None)
    strategy.told = strategy.goal - 1
    asked = Prescriptions(np.zeros(1, int), np.zeros(1, int), X[:K])  # of other centres
    study.tell(asked, Response(None, np.ones(1)))
    study.learn()
    assert study.strategy.stage == 2
    assert (study.strategy.finished is not None) == ends


@pytest.mark.parametrize(
    "change",
    [
        lambda model, X: model.add_entities(X[:5] + 3),
        lambda model, X: model.remove_entities([0, 1]),
    ],
)
def test_what_centres_have_cost_others_is_forgotten(model, X, change):
    """What the trial has shown is of the entities that were there."""
    assert model.tried_
    change(model, X)
    assert not model.tried_


@pytest.mark.parametrize("moved", [0.0, 0.5])
def test_late_answers_about_other_centres_say_nothing_of_these(X, moved):
    people = SimulatedPopulation(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(K, preset=QUICK, head="service", random_state=0)
    model.start(X, centers=X[:K])
    told(model, people, 2000)
    before = model.distortion_estimate().n_answers
    asked = model.ask(200)
    late = Prescriptions(
        asked.entities, asked.prescribed, asked.centers + moved, asked.ids, asked.propensity
    )
    model.tell(late, people.respond(asked.entities, asked.prescribed, asked.centers)).learn()
    assert (model.distortion_estimate().n_answers > before) == (moved == 0.0)


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_a_budget_is_spent_on_the_same_stages_whatever_is_lost(X, missing):
    """Neither lost answers nor late ones make the last part of a budget a row of short stages."""
    people = SimulatedPopulation(
        X, DRIVERS, metric=streets, reveal="cost", missing=missing, random_state=1
    )
    model = ADENClustering(
        K, preset=QUICK, head="service", n_interactions=900, tol=0.0, random_state=0
    )
    model.start(X)
    open_questions, stages = [], []
    while open_questions or model.reason_to_stop() is None:
        if model.reason_to_stop() is None:
            open_questions.append(model.ask())
        if len(open_questions) > (2 if model.reason_to_stop() is None else 0):
            asked = open_questions.pop(0)
            model.tell(asked, people.respond(asked.entities, asked.prescribed, asked.centers))
            model.learn()
            stages.append(model.history_[-1].stage)
    assert model.n_interactions_ == 900
    assert stages[-1] <= 3
    before = model.n_answers_
    model.finalize()
    assert model.history_[-1].answers == before
    assert model.labels_.min() >= 0


def test_the_last_answers_of_a_budget_say_what_the_centres_cost(X):
    asked = []

    class Recorded(SimulatedPopulation):
        def respond(self, entities, prescribed, centers):
            asked.append(np.broadcast_to(centers, (len(entities), K, 2)))
            return super().respond(entities, prescribed, centers)

    people = Recorded(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(
        K, preset=QUICK, head="service", n_interactions=600, tol=0.0, random_state=0
    )
    model.fit(X, population=people)
    assert model.n_interactions_ == 600
    # The last of all are about plain k-means centres.
    last = np.concatenate(asked)[-60:-20]
    np.testing.assert_array_equal(last, np.broadcast_to(model.cluster_centers_, last.shape))
    seen = model.distortion_estimate()
    assert seen.n_answers >= 40
    true = distortion(X, model.cluster_centers_, DRIVERS, model.labels_, metric=streets)
    assert abs(seen.value - true) < 2 * (seen.high - seen.low)
    # Later answers are learned from again.
    stage = model.history_[-1].stage
    model.partial_fit(population=people, n_interactions=1000)
    assert model.history_[-1].stage > stage


def test_how_others_choose_is_not_taken_over(X):
    """A given network attends to centres as it was taught elsewhere; here that explains nothing."""
    taught = shaken("service", QUICK.size()).float()
    with torch.no_grad():
        taught.service.last.weight.mul_(0.01)
    assert taught.attentive
    people = Noisy(X, TRUTH, random_state=1)
    model = ADENClustering(K, preset=QUICK, network=taught, n_interactions=200, random_state=0)
    model.fit(X, population=people)
    assert model.transferred_
    assert not model.network_.attentive


def test_the_unit_of_unknown_costs_does_not_matter(X, street_gap):
    factor = 1e-6

    def scaled(A, B):
        return factor * streets(A, B)

    truth = DistanceAutonomy(0.3, temperature=0.05 * factor)
    people = SimulatedPopulation(X, truth, metric=scaled, reveal="cost", random_state=1)
    model = ADENClustering(K, preset=QUICK, n_interactions=1500, random_state=0)
    model.fit(X, population=people)
    assert street_gap(model) < 5


def test_a_single_centre_with_unknown_costs(X):
    people = SimulatedPopulation(X, metric=streets, reveal="cost", random_state=1)
    recipe = quick(service_steps=1000)
    model = ADENClustering(1, preset=recipe, n_interactions=1500, random_state=0)
    model.fit(X, population=people)
    assert model.head_ == "service"
    best = AutonomyAwareClustering(1, metric=streets).fit(X).distortion_
    reached = Problem(X, cost=resolve_cost(streets)).distortion(model.cluster_centers_)
    assert reached < 1.03 * best


def test_a_few_negative_costs_are_noise(X):
    people = Noisy(X, TRUTH, random_state=1)
    people.spoilt = 1000
    model = ADENClustering(K, preset=QUICK, n_interactions=1300, random_state=0)
    model.fit(X, population=people)
    assert model.head_ == "service"
    assert gap(model, X, TRUTH) < 3


def test_running_means_are_for_expected_costs_only(X):
    people = Noisy(X, TRUTH, random_state=1)
    recipe = quick(ema=0.95, head="service")
    model = ADENClustering(K, preset=recipe, n_interactions=1500, random_state=0)
    model.fit(X, population=people)
    assert gap(model, X, TRUTH) < 5


def test_costs_that_match_no_centre_are_learned_as_such(X):
    people = Noisy(X, TRUTH, random_state=1)
    model = ADENClustering(K, preset=QUICK, n_interactions=6000, random_state=0)
    model.fit(X, population=people)
    assert model.head_ == "service"
    assert gap(model, X, TRUTH) < 1
    with pytest.raises(ValueError, match="Of the costs told so far"):
        ADENClustering(K, head="choices", random_state=0).fit(X, population=people)


def test_costs_that_cease_to_match_are_learned_as_such(X):
    class Rounding(SimulatedPopulation):
        def respond(self, entities, prescribed, centers):
            cost = super().respond(entities, prescribed, centers).cost
            return Response(None, cost if self.n_interactions < 500 else np.round(cost, 2))

    model = ADENClustering(K, preset=QUICK, n_interactions=6000, random_state=0)
    model.fit(X, population=Rounding(X, TRUTH, random_state=0))
    assert model.head_ == "service"
    assert np.isfinite(model.cluster_centers_).all()


def test_few_answers_are_about_many_places(X):
    """Before it is decided what is learned, too."""
    model = ADENClustering(K, n_interactions=1000, random_state=0).start(X)
    asked = model.ask(256)
    assert len(np.unique(asked.centers.reshape(256, -1), axis=0)) >= 10


# -- costs and choices together -------------------------------------------------------------------


def minutes(A, B):
    """Travel time is twice the way; the learner believes in squared distances."""
    return 2 * torch.cdist(A, B)


class Timed(SimulatedPopulation):
    """Says which centre was used, and how many minutes it took; not always the latter."""

    silent, gain = 0.0, 0.0

    def respond(self, entities, prescribed, centers):
        answer = super().respond(entities, prescribed, centers)
        lost = np.random.default_rng(len(entities)).random(len(entities)) < self.silent
        return Response(answer.realized, np.where(lost, np.nan, answer.cost - self.gain))


@pytest.mark.parametrize("silent", [0.0, 0.5])
def test_costs_and_choices_are_learned_together(X, silent):
    people = Timed(X, DRIVERS, metric=minutes, random_state=1)
    people.silent = silent
    model = ChoiceClustering(K, n_interactions=1500, random_state=0).fit(X, population=people)
    assert model.model_.network.head == "service"
    assert model.fit_ is None
    assert model.n_answers_ == 1500 if silent == 0 else model.n_answers_ > 1400
    assert gap(model, X, DRIVERS, minutes) < 1
    true = distortion(X, model.cluster_centers_, DRIVERS, model.labels_, metric=minutes)
    assert model.distortion_ == pytest.approx(true, rel=0.05)
    seen = model.distortion_estimate()
    assert abs(seen.value - true) < 2 * (seen.high - seen.low)


def test_choices_without_any_cost_count(X):
    people = Timed(X, TRUTH, random_state=1)
    people.silent = 1.0
    model = ChoiceClustering(K, random_state=0).start(X)
    told(model, people, 2000)
    assert model.n_answers_ == 2000
    assert model.fit_ is not None
    assert gap(model, X, TRUTH) < 1


def test_negative_costs_beside_choices_are_spoken_of(X):
    people = Timed(X, DRIVERS, metric=minutes, random_state=1)
    people.gain = 5.0
    model = ChoiceClustering(K, n_interactions=600, random_state=0)
    with pytest.warns(UserWarning, match=r"Of the costs told 100\.0 % are negative"):
        model.fit(X, population=people)
    assert model.fit_ is not None  # choices were learned all the same
    assert model.distortion_estimate().value < 0


def test_costs_of_the_metric_are_spoken_of_no_further(X):
    model = ChoiceClustering(K, n_interactions=600, random_state=0)
    people = SimulatedPopulation(X, TRUTH, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, population=people)
