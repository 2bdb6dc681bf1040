import json

import numpy as np
import pytest
import torch
from small_networks import QUICK, SMALL, K, gap, quick, shaken

from volition import (
    ADENClustering,
    CallableAutonomy,
    DistanceAutonomy,
    Response,
    SimulatedPopulation,
    load_model,
    save_model,
)
from volition.choices import ChoiceAutonomy
from volition.core.problem import Problem
from volition.learning.networks import ADENetwork, NetworkAutonomy, save_network
from volition.metrics import distortion

# Networks are trained for seconds here, and are wrong about their own plans: a fit says so.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The model expects a cost of"),
    pytest.mark.filterwarnings("ignore:k-means centres with the nearest prescribed are kept"),
]


@pytest.fixture(scope="module")
def X(some_groups):
    return some_groups


@pytest.fixture
def truth():
    return DistanceAutonomy(0.3, temperature=0.01)


@pytest.fixture
def people(X, truth):
    return SimulatedPopulation(X, truth, reveal="cost", random_state=1)


class Table:
    """Answers by a rule that nobody can look into: only costs come out."""

    __slots__ = ("_rng", "_rule", "asked")

    def __init__(self, X, kappa, seed=0):
        rng = np.random.default_rng(seed)

        def rule(entities, prescribed, centers):
            k = len(centers[0])
            others = (prescribed + rng.integers(1, k, len(entities))) % k
            realized = np.where(rng.random(len(entities)) < kappa, others, prescribed)
            return ((X[entities] - centers[np.arange(len(entities)), realized]) ** 2).sum(1)

        self._rule, self.asked = rule, 0

    def respond(self, entities, prescribed, centers):
        assert centers.ndim == 3
        self.asked += len(entities)
        return Response(None, self._rule(entities, prescribed, centers))


def test_costs_alone_from_a_population_without_a_model(X):
    model = ADENClustering(K, random_state=0)
    table = Table(X, 0.3)
    model.fit(X, population=table)
    away = 0.3 / (K - 1)
    truth = CallableAutonomy(lambda X, Y: (1 - 0.3 - away) * torch.eye(len(Y)).double() + away)
    assert model.head_ == "choices"
    assert gap(model, X, truth) < 0.5
    assert table.asked == model.n_interactions_ <= 30_000


@pytest.mark.parametrize(
    "truth", [DistanceAutonomy(0.4, temperature=0.01), DistanceAutonomy(0.5, 0.5, 1.0, 100.0)]
)
def test_choices_from_costs(X, truth):
    people = SimulatedPopulation(X, truth, reveal="cost", random_state=3)
    model = ADENClustering(K, random_state=0).fit(X, population=people)
    assert gap(model, X, truth) < 0.5
    assert model.stop_reason_.startswith("centres no longer improve")
    assert model.n_interactions_ == people.n_interactions < 20_000
    true = Problem(X, autonomy=truth).expected_costs(model.cluster_centers_)
    error = np.sqrt(((model.expected_costs() - true) ** 2).mean()) / true.mean()
    assert error < 0.05


def by_place(X, Y):
    """Those who do not obey like the places of some centres, and no distance says which."""
    eye = torch.eye(len(Y), dtype=Y.dtype)
    liked = 3 * torch.sin(9 * Y[:, 0]) - 1e9 * eye
    p = 0.6 * eye + 0.4 * liked.softmax(1)
    return p.expand(len(X), *p.shape)


def test_the_network_learns_what_distances_do_not_say(X, tmp_path):
    truth = CallableAutonomy(by_place)
    people = SimulatedPopulation(X, truth, reveal="cost", random_state=1)
    model = ADENClustering(K, n_interactions=7000, random_state=0)
    model.fit(X, population=people)
    assert isinstance(model.model_, NetworkAutonomy)
    assert gap(model, X, truth) < 5
    # What it has learned starts another problem.
    path = model.save_network(tmp_path / "n.safetensors")
    other = ADENClustering(3, network=path, random_state=0).start(X)
    assert (other.head_, other.network_) == ("choices", None)


def test_a_network_of_choices_that_does_not_help_is_not_used(X, people):
    given = shaken("choices", QUICK.size()).float()
    model = ADENClustering(K, preset=QUICK, network=given, n_interactions=7000, tol=0.0)
    assert not hasattr(model, "transferred_")
    model.set_params(random_state=0).fit(X, population=people)
    assert model.network_ is None
    assert not model.transferred_
    assert isinstance(model.model_, ChoiceAutonomy)


def test_the_scale_of_the_data_does_not_matter(X):
    found = []
    for scale, shift in ((1.0, 0.0), (1024.0, 2.0**20)):
        data = X * scale + shift
        truth = DistanceAutonomy(0.3, temperature=0.01 * scale**2)
        people = SimulatedPopulation(data, truth, reveal="cost", random_state=1)
        model = ADENClustering(K, n_interactions=3000, random_state=0).fit(data, population=people)
        found.append((model.cluster_centers_ - shift) / scale)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_answers_may_be_lost_late_twice_and_shuffled(X, truth, rng):
    people = SimulatedPopulation(X, truth, reveal="cost", random_state=2)
    model = ADENClustering(K, random_state=0).start(X)
    waiting = []
    while model.reason_to_stop() is None:
        asked = model.ask(500)
        answer = people.respond(asked.entities, asked.prescribed, asked.centers)
        arriving = np.flatnonzero(rng.random(500) > 0.3)
        arriving = rng.permutation(np.concatenate([arriving, arriving[:40]]))
        waiting.append((asked.take(arriving), answer.take(arriving)))
        if len(waiting) > 2:
            model.tell(*waiting.pop(0)).learn()
    model.finalize()
    assert gap(model, X, truth) < 1
    assert model.n_repeated_ > 0


def test_entities_come_and_go(X, people):
    model = ADENClustering(K, n_interactions=3000, random_state=0).fit(X, population=people)
    new = model.add_entities(X[:5] + 0.01)
    assert new.tolist() == [300, 301, 302, 303, 304]
    np.testing.assert_array_equal(model.labels_[300:], model.predict(X[:5] + 0.01))
    model.remove_entities([0, 1])
    assert model.labels_[:2].tolist() == [-1, -1]
    assert not {0, 1} & set(model.ask(2000).entities)


def test_weights_count(X, truth):
    heavy = np.where(X[:, 0] < 0.5, 1.0, 0.0)
    people = SimulatedPopulation(X, truth, reveal="cost", random_state=2)
    model = ADENClustering(2, n_interactions=3000, random_state=0)
    model.fit(X, population=people, sample_weight=heavy)
    assert (model.cluster_centers_[:, 0] < 0.5).all()


def test_a_single_cluster(X):
    people = SimulatedPopulation(X, DistanceAutonomy(0.3), reveal="cost", random_state=2)
    model = ADENClustering(1, random_state=0).fit(X, population=people)
    np.testing.assert_allclose(model.cluster_centers_[0], X.mean(0), atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "gpu"}, "preset must be one of 'cpu', 'paper' or a Recipe, got 'gpu'"),
        ({"head": "both"}, "head must be 'auto' or one of"),
        ({"n_interactions": 0}, "n_interactions must be an integer >= 1 or 'auto'"),
        ({"device": "abacus"}, "device='abacus' cannot be used"),
        ({"device": None}, "device must be a name such as 'cpu', got None"),
        ({"tol": -1}, "tol must be a number in"),
        ({"network": "nowhere.safetensors"}, "No such file: nowhere.safetensors"),
        ({"network": 3}, "network must be a path or an ADENetwork, got 3"),
        ({"network": ADENetwork(3, SMALL)}, "knows 3 features, but X has 2"),
        ({"network": ADENetwork(2, SMALL), "head": "costs"}, "head='costs', but the network is"),
    ],
)
def test_bad_parameters(X, people, arguments, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ADENClustering(K, **arguments).fit(X, population=people)


def test_before_the_first_answers(X):
    model = ADENClustering(K, random_state=0).start(X)
    assert model.head_ == "undecided"
    assert model.network_ is None
    with pytest.raises(ValueError, match="There is no network"):
        model.save_network("n.safetensors")
    with pytest.raises(ValueError, match="There is no network"):
        model.attention()


@pytest.mark.parametrize("head", ["service", "costs"])
def test_started_from_another_network(X, people, tmp_path, head):
    recipe = quick(head=head)
    first = ADENClustering(K, preset=recipe, n_interactions=4000, random_state=0)
    first.fit(X, population=people)
    path = first.save_network(tmp_path / "n.safetensors")
    params = {"preset": recipe, "network": path, "n_interactions": 400}
    other = ADENClustering(3, **params, random_state=0).start(X[:100])
    for a, b in zip(first.network_.parameters(), other.network_.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert other.head_ == head
    few = SimulatedPopulation(X[:100], DistanceAutonomy(0.2), reveal="cost", random_state=0)
    other.fit(X[:100], population=few)
    assert np.isfinite(other.cluster_centers_).all()


def run(X, path, recipe, head, resume=False, stop=None, network=None):
    truth = DistanceAutonomy(0.3, temperature=0.01)
    people = SimulatedPopulation(X, truth, reveal="cost", random_state=1)
    most = 1500 if head == "service" else 6000
    if network is not None:
        most = 300
    model = ADENClustering(
        K, preset=recipe, head=head, network=network, n_interactions=most, random_state=4
    )
    return model.fit(
        X, population=people, checkpoint=path, checkpoint_every=0, resume=resume,
        on_batch=lambda learner: stop is not None and learner.n_interactions_ >= stop,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("head", "stops"),
    [
        ("auto", (200, 1500, 3000)),
        ("costs", (700, 3300)),
        ("service", (300, 600, 1000)),
        ("service, given", (64,)),
    ],
)
def test_stopped_and_resumed_equals_uninterrupted(X, tmp_path, head, stops):
    recipe, network = quick(dropout=0.1), None
    if head == "service, given":
        head, network = "service", shaken("service", recipe.size()).float()
        network.attentive.fill_(False)
        with torch.no_grad():
            network.service.last.weight.mul_(0.01)
    whole = run(X, tmp_path / "whole.safetensors", recipe, head, network=network)
    path = tmp_path / "part.safetensors"
    for number, stop in enumerate(stops):
        part = run(X, path, recipe, head, resume=number > 0, stop=stop, network=network)
        assert part.n_interactions_ < whole.n_interactions_
    resumed = run(X, path, recipe, head, resume=True, network=network)
    assert whole.n_interactions_ == resumed.n_interactions_
    np.testing.assert_array_equal(whole.cluster_centers_, resumed.cluster_centers_)
    np.testing.assert_array_equal(whole.labels_, resumed.labels_)
    np.testing.assert_array_equal(whole.expected_costs(), resumed.expected_costs())
    assert (whole.network_ is None) == (head == "auto")
    if head != "auto":
        for name, value in whole.network_.state_dict().items():
            assert torch.equal(value, resumed.network_.state_dict()[name]), name
        np.testing.assert_array_equal(whole.network_.units.origin, resumed.network_.units.origin)
    assert json.dumps(whole.history_) == json.dumps(resumed.history_)


def test_saved_with_questions_open(X, people, tmp_path):
    model = ADENClustering(K, preset=QUICK, head="costs", random_state=0)
    model.partial_fit(X, population=people, n_interactions=1500)
    asked = model.ask(100)
    other = load_model(save_model(model, tmp_path / "m.safetensors"))
    assert isinstance(other, ADENClustering)
    answer = people.respond(asked.entities, asked.prescribed, asked.centers)
    for learner in (model, other):
        learner.tell(asked, answer)
        learner.tell(asked, answer).learn()
    assert other.n_repeated_ == model.n_repeated_ == 100
    one, two = model.ask(50), other.ask(50)
    np.testing.assert_array_equal(one.prescribed, two.prescribed)
    np.testing.assert_array_equal(one.centers, two.centers)


def test_a_checkpoint_must_fit(X, people, tmp_path):
    path = tmp_path / "m.safetensors"
    ADENClustering(K, preset=QUICK, n_interactions=600, random_state=0).fit(
        X, population=people, checkpoint=path
    )
    with pytest.raises(ValueError, match="made with preset="):
        ADENClustering(K).resume(path)


def test_the_running_distortion_is_right(X, truth):
    people = SimulatedPopulation(X, truth, reveal="cost", random_state=7)
    model = ADENClustering(K, tol=0, n_interactions=6000, random_state=1)
    model.fit(X, population=people)
    model.partial_fit(population=people, n_interactions=6000)
    estimate = model.distortion_estimate()
    true = distortion(X, model.cluster_centers_, truth, model.labels_)
    width = (estimate.high - estimate.low) / 2
    assert abs(estimate.value - true) < 2 * width
    assert estimate.n_answers > 300


def test_attention_of_entities_to_centres(X, people):
    model = ADENClustering(K, preset=QUICK, head="costs", n_interactions=1500, random_state=0)
    model.fit(X, population=people)
    attention = model.attention()
    assert attention.shape == (2, len(X), K)
    np.testing.assert_allclose(attention.sum(2), 1, rtol=1e-5)
    np.testing.assert_allclose(model.attention(X[:3]), attention[:, :3], rtol=1e-4)


def test_a_state_needs_no_file_of_a_network(X, people, tmp_path):
    path = save_network(ADENetwork(2, QUICK.size(), "costs"), tmp_path / "n.safetensors")
    params = {"preset": QUICK, "network": path, "n_interactions": 3000, "random_state": 0}
    state = tmp_path / "state.safetensors"
    first = ADENClustering(K, **params).fit(
        X, population=people, checkpoint=state, on_batch=lambda m: m.n_interactions_ > 500
    )
    path.unlink()
    again = ADENClustering(K, **params)
    again.fit(X, population=people, checkpoint=state, resume=True)
    assert again.n_interactions_ > first.n_interactions_
    assert load_model(state).stop_reason_ == again.stop_reason_
    with pytest.raises(ValueError, match="made with head=None, not 'choices'"):
        ADENClustering(K, preset=QUICK, head="choices").resume(state)


def test_clusters_keep_their_numbers(X, people):
    model = ADENClustering(K, tol=0, random_state=0)
    model.partial_fit(X, population=people, n_interactions=2000)
    before = model.cluster_centers_
    model.partial_fit(population=people, n_interactions=4000)
    moves = np.linalg.norm(model.cluster_centers_[:, None] - before[None], axis=2)
    assert moves.argmin(1).tolist() == list(range(K))
    assert not np.array_equal(before, model.cluster_centers_)
