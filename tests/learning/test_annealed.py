import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_networks import K, Noisy, quick

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    DistanceAutonomy,
    Recipe,
    Response,
    SimulatedPopulation,
)
from volition.core.costs import SquaredEuclidean
from volition.core.problem import Problem
from volition.learning.annealed import AnnealedStrategy, Phase
from volition.learning.entities import Entities
from volition.learning.networks import PRESETS
from volition.learning.networks.algorithm2 import cheapest_replica, distinct_replicas, move_centers
from volition.learning.study import Study

# Networks are trained for seconds here, and are wrong about their own plans: a fit says so.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The model expects a cost of"),
    pytest.mark.filterwarnings("ignore:k-means centres with the nearest prescribed are kept"),
]
TRUTH = DistanceAutonomy(0.3, temperature=0.01)


@pytest.fixture(scope="module")
def X(some_groups):
    return some_groups


def begun(X, recipe, seed=0):
    """Return a study of the published algorithm."""
    entities = Entities.of(X, None, SquaredEuclidean(), None)
    rng = np.random.default_rng(seed)
    return Study(AnnealedStrategy(entities, K, rng, recipe=recipe))


def answered(study, people, n=None):
    """Ask, be answered, tell and learn once; return what was asked, and the answer."""
    asked = study.ask(n)
    answer = people.respond(asked.entities, asked.prescribed, asked.centers)
    study.tell(asked, answer)
    study.learn()
    return asked, answer


def off_by(model, X, gain):
    """Return by how much learned costs are off, in standard deviations of the true ones."""
    true = Problem(X, autonomy=TRUTH).expected_costs(model.cluster_centers_) - gain
    return np.abs(model.expected_costs() - true).mean() / true.std()


@pytest.mark.parametrize(
    ("gain", "head"), [(0.0, "costs"), (0.2, "auto"), (100.0, "costs"), (-100.0, "costs")]
)
def test_expected_costs_may_be_any_numbers(X, tmp_path, gain, head):
    people = Noisy(X, TRUTH, random_state=1)
    people.gain = gain
    recipe = quick(epochs=5, updates=15)
    model = ADENClustering(K, preset=recipe, head=head, n_interactions=16_000, random_state=0)
    few = pytest.warns(UserWarning, match="Costs are negative.* answers are few")
    with few if head == "auto" else nullcontext():
        model.fit(X, population=people)
    assert model.head_ == "costs"
    assert model.n_interactions_ == 16_000
    assert off_by(model, X, gain) < 0.3  # at first 0.44
    # Started from a network of other costs it does not have to learn what they have in common.
    path = model.save_network(tmp_path / "network.safetensors")
    people.gain = 50.0 if gain < 50 else 0.0
    other = ADENClustering(K, preset=quick(), network=path, n_interactions=1000, random_state=0)
    other.fit(X, population=people)
    assert off_by(other, X, people.gain) < 0.3


def test_centres_that_are_led_astray_stay_in_the_box(X):
    Y = np.tile(X.mean(0), (K, 1)) - 0.5
    box = Y[0] - 1e-3, Y[0] + 1e-3
    for recipe, inside in ((Recipe(), True), (PRESETS["paper"], False)):
        moved = move_centers(recipe, Problem(X), Y, 1.0, 10.0, 0 * Y, box)
        assert (moved > Y).all()
        assert (moved <= box[1]).all() == inside


def test_one_negative_cost_lifts_the_floor_and_nothing_else(X):
    people = Noisy(X, TRUTH, random_state=1)
    study = begun(X, quick())
    while study.strategy.trainer.n_steps < 20:
        answered(study, people)
    network = study.strategy.network
    assert (network.floor, network.shift) == (0, 0)
    people.spoilt = 0
    answered(study, people)
    network = study.strategy.network
    assert (network.floor, network.shift) == (-math.inf, 0)


@pytest.mark.parametrize("common", [0.0, -100.0, 100.0])
def test_replicas_differ_whatever_costs_have_in_common(X, common):
    class Offset(Problem):
        def distortion(self, *args):
            return super().distortion(*args) + common

    best = AutonomyAwareClustering(K, random_state=0).fit(X).cluster_centers_
    replicas = np.stack([best + 0.1, best, best + 1e-9])
    found = distinct_replicas(Offset(X), replicas, common)
    assert len(found) == 2
    np.testing.assert_allclose(found[0], best, atol=1e-8)
    np.testing.assert_array_equal(found[1], best + 0.1)


def test_algorithm_2_as_published(X):
    """The questions, the running means and the one step of AdamW of the published recipe."""
    recipe = replace(PRESETS["paper"], n_layouts=4, n_samples=8, epochs=3)
    people = SimulatedPopulation(X, TRUTH, reveal="cost", random_state=0)
    study = begun(X, recipe)
    means = np.zeros((len(X), K))
    for epoch in range(3):
        centers = study.strategy.centers
        asked, answer = answered(study, people)
        assert len(asked.entities) == 4 * 8 * 16
        pairs = np.column_stack([asked.entities, asked.prescribed]).reshape(32, 16, 2)
        assert (pairs == pairs[:, :1]).all()  # sixteen draws of each
        sets = asked.centers.reshape(4, 128, K, 2)
        assert (sets == sets[:, :1]).all()  # of one perturbed set of centres per mini-batch
        around = sets[:, 0] - (centers if epoch else sets[:, 0].mean((0, 1)))
        assert 0.004 < around.std() < 0.05
        cost = answer.cost.reshape(32, 16).mean(1)
        for pair in np.unique(pairs[:, 0], axis=0):
            mine = (pairs[:, 0] == pair).all(1)
            means[tuple(pair)] = 0.95 * means[tuple(pair)] + 0.05 * cost[mine].mean()
        np.testing.assert_allclose(study.strategy.state()["means"], means, rtol=1e-12)
        assert study.strategy.trainer.n_steps == epoch + 1
    assert study.strategy.stage == 1
    assert study.strategy.beta == pytest.approx(11.0)


def test_plain_descent_of_the_centres(X):
    recipe = Recipe(
        hidden_dim=16, ff_dim=32, head="costs", epochs=1, center_epochs=3, center_rate=0.05,
        replicas=1, spread=0.05, n_layouts=4, n_samples=16,
    )  # fmt: skip
    people = SimulatedPopulation(X, DistanceAutonomy(0.3), reveal="cost", random_state=0)
    study = begun(X, recipe)
    beta, Y = study.strategy.beta, study.strategy.replicas[0].copy()
    answered(study, people, 64)
    problem = Problem(X, autonomy=study.strategy.model)
    for _ in range(3):
        Y = Y - 0.05 * problem.value_and_gradient(Y, beta)[1].numpy()
    np.testing.assert_allclose(study.strategy.centers, Y, rtol=1e-9)


def test_lost_answers_do_not_cut_the_annealing_short(X):
    people = SimulatedPopulation(X, TRUTH, reveal="cost", missing=0.5, random_state=0)
    recipe = quick(head="costs", replicas=1)
    model = ADENClustering(K, preset=recipe, n_interactions=8000, random_state=0)
    last = begun(X, recipe).strategy.betas[-1]
    assert model.fit(X, population=people).beta_ == last


@pytest.mark.parametrize(
    ("verdict", "best"),
    [
        ([[5, 0.5, 0.1], [5, 0.1, 0.1]], 0),  # too few to say anything
        ([[1000, 100, 20], [1000, 99, 20]], 0),  # no difference
        ([[1000, 100, 20], [1000, 50, 10]], 1),
    ],
)
def test_replicas_are_compared_by_enough_answers(verdict, best):
    assert cheapest_replica(np.array(verdict, dtype=float)) == best


def test_of_several_replicas_one_is_kept(X):
    people = SimulatedPopulation(X, TRUTH, reveal="cost", random_state=0)
    study = begun(X, quick(epochs=1, replicas=3))
    study.strategy.budget, phases = 6000, []
    while study.strategy.reason_to_stop() is None:
        answered(study, people)
        phases.append(study.strategy.phase)
    study.finalize()
    strategy = study.strategy
    assert phases[0] is Phase.ANNEAL
    if Phase.JUDGE in phases:
        assert len(strategy.replicas) == 1
    assert any(np.array_equal(strategy.centers, replica) for replica in strategy.replicas)


@pytest.mark.parametrize(("recipe", "several"), [(PRESETS["paper"], True), (Recipe(), False)])
def test_large_steps_take_several_threads(X, recipe, several):
    strategy = begun(X, recipe).strategy
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with strategy.few_threads():
            assert (torch.get_num_threads() == 2) == several
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_betas_of_the_published_schedule(X):
    betas = begun(X, PRESETS["paper"]).strategy.betas
    assert len(betas) == 90
    assert betas[0] == 10
    assert 50_000 / 1.1 < betas[-1] <= 50_000


def test_costs_that_become_negative_are_learned_from_the_beginning(X):
    people = Noisy(X, TRUTH, random_state=1)
    model = ADENClustering(K, preset=quick(), n_interactions=9000, random_state=0).start(X)
    while model.n_interactions_ < 2500:
        model.partial_fit(population=people)
    assert (model.head_, model.history_[-1].stage) == ("service", 1)
    people.gain = 0.2
    while model.head_ == "service":
        model.partial_fit(population=people)
    assert model.beta_ == begun(X, quick()).strategy.betas[0]
    assert 2500 < model.n_interactions_ < model.most_interactions_ == 9000


def test_few_negative_costs_are_no_error(X):
    people = Noisy(X, TRUTH, random_state=1)
    people.gain = 0.2
    model = ADENClustering(K, preset=quick(), n_interactions=150, random_state=0)
    with pytest.warns(UserWarning, match="Costs are negative.* 150 answers are few"):
        model.fit(X, population=people)
    assert np.isfinite(model.cluster_centers_).all()
    # Nor are so few that it is not decided what they are.
    model = ADENClustering(K, preset=quick(), random_state=0)
    model.partial_fit(X, population=people, n_interactions=100)
    model.finalize()
    assert model.head_ == "undecided"


def test_negative_costs_are_none_of_being_served(X):
    people = Noisy(X, TRUTH, random_state=1)
    people.gain = 0.2
    with pytest.raises(ValueError, match="are negative; head='costs' learns such costs"):
        ADENClustering(K, head="service", n_interactions=500).fit(X, population=people)


class Sloped(SimulatedPopulation):
    """Costs that grow as the first centre goes east, which a network of these would have to see."""

    slope = 0.0

    def respond(self, entities, prescribed, centers):
        cost = super().respond(entities, prescribed, centers).cost
        return Response(
            None, cost + self.slope * np.broadcast_to(centers, (len(cost), K, 2))[:, 0, 0]
        )


def test_refinements_correct_the_slope_that_the_network_does_not_see(X):
    """A slope that appears after the network was trained is found by its errors."""
    recipe = quick(head="costs", replicas=1, refinements=2)
    people = Sloped(X, TRUTH, reveal="cost", random_state=0)
    study = begun(X, recipe)
    study.strategy.budget = 30_000
    while study.strategy.phase is Phase.ANNEAL:
        answered(study, people)
    assert study.strategy.reason_to_stop() is None
    before, people.slope = study.strategy.centers, 0.5
    while study.strategy.reason_to_stop() is None:
        asked, _ = answered(study, people)
        if study.strategy.reason_to_stop() is None:
            mine = study.strategy.labels[asked.entities]
            assert (asked.prescribed == mine).mean() > 0.9  # what the plan costs
    strategy = study.strategy
    assert strategy.tilt.slope[0, 0] == pytest.approx(0.5, abs=0.25)
    assert strategy.centers[0, 0] < before[0, 0]
    expected = Problem(X, autonomy=TRUTH).distortion(strategy.centers, strategy.labels)
    expected += 0.5 * strategy.centers[0, 0]
    added = float(strategy.tilt(torch.from_numpy(strategy.centers)))
    off, alone = strategy.distortion - expected, strategy.distortion - added - expected
    assert abs(off) < 0.3 * abs(alone)  # the network alone knows nothing of the slope
    # Answers that come later go on refining.
    answered(study, people)
    assert study.strategy.phase is Phase.REFINE


def test_the_published_recipe_is_not_refined(X):
    study = begun(X, replace(PRESETS["paper"], n_layouts=4, n_samples=8, epochs=1, beta_max=10.0))
    answered(study, SimulatedPopulation(X, TRUTH, reveal="cost", random_state=0))
    assert study.strategy.phase is Phase.SETTLE
    assert study.strategy.tilt is None
    assert study.strategy.reason_to_stop() == "beta_max=10 reached"
