"""`TabularClustering`: what it learns, from whom, and how a fit ends."""

import json
import os
import signal
import socket
import threading

import numpy as np
import pytest
from populace import K, Table, gap, uniform

from volition import (
    AutonomyAwareClustering,
    FixedAutonomy,
    LoggedPopulation,
    Response,
    SimulatedPopulation,
    TabularClustering,
)
from volition.learning.fitting import SilentPopulationError
from volition.metrics import distortion


@pytest.fixture(scope="module")
def X(four_groups):
    return four_groups[::6]


@pytest.fixture
def people(X):
    return SimulatedPopulation(X, FixedAutonomy(uniform(0.25)), random_state=1)


@pytest.mark.parametrize(("estimate", "most"), [("choices", 1.0), ("costs", 5.0)])
def test_a_table_of_answers_serves_every_learner(X, estimate, most):
    """No model, no attribute but respond: a learner that peeked would have nothing to look at."""
    P = uniform(0.25)
    model = TabularClustering(K, estimate=estimate, random_state=0)
    model.fit(X, population=Table(X, P, 400))
    assert gap(model, X, P) < most


def test_answers_from_behind_a_socket(X):
    """The answering process knows p; the learner gets lines of JSON."""
    table = Table(X, uniform(0.25), 50)
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        connection, _ = server.accept()
        with connection, connection.makefile("rw") as stream:
            for line in stream:
                asked = {name: np.array(value) for name, value in json.loads(line).items()}
                answer = table.respond(**asked)
                stream.write(json.dumps([answer.realized.tolist(), answer.cost.tolist()]) + "\n")
                stream.flush()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    class Remote:
        def __init__(self, stream):
            self.stream = stream

        def respond(self, entities, prescribed, centers):
            asked = {"entities": entities, "prescribed": prescribed, "centers": centers}
            self.stream.write(json.dumps({k: v.tolist() for k, v in asked.items()}) + "\n")
            self.stream.flush()
            realized, cost = json.loads(self.stream.readline())
            return Response(np.array(realized), np.array(cost))

    with socket.create_connection(server.getsockname()) as line, line.makefile("rw") as stream:
        model = TabularClustering(K, random_state=0).fit(X, population=Remote(stream))
    thread.join(5)
    server.close()
    assert gap(model, X, uniform(0.25)) < 1


@pytest.mark.parametrize("kappa", [0.1, 0.5])
def test_few_answers_suffice_when_entities_are_alike(X, kappa):
    people = SimulatedPopulation(X, FixedAutonomy(uniform(kappa)), random_state=0)
    model = TabularClustering(K, random_state=0).fit(X, population=people)
    assert gap(model, X, uniform(kappa)) < 1
    assert people.n_interactions == model.n_interactions_ < 20_000


def test_entities_that_differ_get_their_own_prescriptions(X):
    p = np.random.default_rng(3).dirichlet(np.ones(K), size=(len(X), K))
    people = SimulatedPopulation(X, autonomy_proba=p, random_state=0)
    model = TabularClustering(K, random_state=0).fit(X, population=people)
    known = AutonomyAwareClustering(K, random_state=0).fit(X, autonomy_proba=p)
    found = distortion(X, model.cluster_centers_, labels=model.labels_, autonomy_proba=p)
    assert found < 1.02 * known.distortion_
    assert model.regret() < 0.02


def test_regret_falls_with_answers(X, people):
    model = TabularClustering(K, random_state=0)
    model.partial_fit(X, population=people, n_interactions=500)
    before = model.regret()
    model.partial_fit(population=people, n_interactions=20_000)
    assert model.regret() < 0.5 * before


def test_weights_count(X):
    """Entities of weight zero are never asked and do not attract centres."""
    weight = np.r_[np.ones(len(X) - 60), np.zeros(60)]
    people = SimulatedPopulation(X, random_state=0)
    model = TabularClustering(3, random_state=0).start(X, weight)
    asked = model.ask(2000)
    assert asked.entities.max() < len(X) - 60
    model.fit(X, population=people, sample_weight=weight)
    alone = AutonomyAwareClustering(3, random_state=0).fit(X[:-60])
    found = distortion(X[:-60], model.cluster_centers_)
    assert found == pytest.approx(alone.distortion_, rel=0.02)


@pytest.mark.filterwarnings("ignore:The model expects a cost of")  # 3,000 answers are few here
def test_other_metrics(rng):
    X = rng.uniform(40, 50, size=(120, 2))
    people = SimulatedPopulation(
        X, FixedAutonomy(uniform(0.2, 3)), metric="haversine", random_state=0
    )
    model = TabularClustering(3, metric="haversine", n_interactions=3000, random_state=0)
    model.fit(X, population=people)
    truth = FixedAutonomy(uniform(0.2, 3))
    best = AutonomyAwareClustering(3, autonomy=truth, metric="haversine", random_state=0).fit(X)
    found = distortion(X, model.cluster_centers_, truth, model.labels_, metric="haversine")
    assert found < 1.03 * best.distortion_


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_clusters": 0}, "n_clusters must be an integer >= 1"),
        ({"n_clusters": 10**6}, "is more than the"),
        ({"estimate": "guess"}, "estimate must be one of"),
        ({"on_change": "panic"}, "on_change must be one of"),
        ({"exploration": 2}, r"exploration must be a number in \[0, 1\]"),
        ({"forgetting": -1}, r"forgetting must be a number in \[0, 1\]"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1 or 'auto'"),
        ({"n_interactions": 1.5}, "n_interactions must be an integer >= 1 or 'auto'"),
        ({"beta_min": 5.0, "beta_max": 1.0}, "must be positive, in order"),
    ],
)
def test_bad_parameters(X, arguments, message):
    with pytest.raises(ValueError, match=message):
        TabularClustering(**{"n_clusters": K, **arguments}).start(X)


class Failing:
    """Answers three times, then raises."""

    def __init__(self, people):
        self.people, self.calls = people, 0

    def respond(self, *asked):
        self.calls += 1
        if self.calls > 3:
            raise TimeoutError("no reply within 5 s")
        return self.people.respond(*asked)


def test_a_population_that_fails_leaves_the_state(X, people):
    model = TabularClustering(K, n_interactions=3000, batch_size=200, tol=0, random_state=0)
    with pytest.raises(RuntimeError, match=r"failed after 600 answers \(TimeoutError: no reply"):
        model.fit(X, population=Failing(people))
    assert model.n_answers_ == 600
    assert model.labels_.shape == (len(X),)
    model.partial_fit(population=people, n_interactions=200)
    assert model.n_answers_ == 800


def test_a_silent_population_is_given_up(X):
    silent = SimulatedPopulation(X, missing=1.0, random_state=0)
    with pytest.raises(RuntimeError, match="answered none of the last"):
        TabularClustering(K, random_state=0).fit(X, population=silent)


def test_a_fit_without_a_single_answer_is_an_error(X):
    people = SimulatedPopulation(X, FixedAutonomy(uniform(0.3)), missing=1.0, random_state=0)
    with pytest.raises(SilentPopulationError, match="answered none of the 90 questions"):
        TabularClustering(K, n_interactions=100, random_state=0).fit(X, population=people)


@pytest.mark.parametrize("population", [None, "people", print])
def test_somebody_must_answer(X, people, population):
    model = TabularClustering(K, n_interactions=500, random_state=0).fit(X, population=people)
    for ask in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=r"population must have a method respond"):
            ask(X, population=population)
    assert model.n_answers_ == 500  # nothing is lost


def test_endless_costs_are_no_answers_that_got_lost():
    with pytest.raises(ValueError, match=r"within 1e\+100, or NaN .*; row 1 is inf"):
        Response(None, [1.0, np.inf])
    with pytest.raises(ValueError, match=r"row 0 is -1e\+300"):
        Response(None, [-1e300, 1.0])
    assert Response(None, [1.0, np.nan]).answered.tolist() == [True, False]


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (np.ones((3, 2)), r"one number for each answer, got an array of shape \(3, 2\)"),
        (None, "one number for each answer, got None"),
        (3.0, "one number for each answer, got a single one"),
        (["a"] * 99, r"NaN where no answer came; got \[.{70,78}\.\.\.\.$"),
        (["a"], r"cost must be numbers, or NaN where no answer came; got \['a'\]"),
    ],
)
def test_costs_are_numbers_one_for_each_answer(cost, message):
    with pytest.raises(ValueError, match=message):
        Response(None, cost)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"checkpoint": "."}, "it is a folder, not a file"),
        ({"checkpoint": 3}, "checkpoint must be a path, got 3"),
        ({"checkpoint": "a.st", "checkpoint_every": "often"}, "checkpoint_every must be"),
        ({"on_batch": 3}, "on_batch must be a function of the learner, got 3"),
        ({"population": SimulatedPopulation}, "got the class SimulatedPopulation itself"),
    ],
)
def test_a_fit_says_what_is_wrong_before_it_asks(X, people, params, message):
    model = TabularClustering(K, n_interactions=500, random_state=0)
    with pytest.raises((ValueError, OSError), match=message):
        model.fit(X, **({"population": people} | params))
    assert not hasattr(model, "n_interactions_")


@pytest.mark.parametrize("seed", ["x", -1, 1.5])
def test_seeds_are_whole_numbers(X, people, seed):
    with pytest.raises(ValueError, match="random_state must be None, a whole number"):
        TabularClustering(K, random_state=seed).fit(X, population=people)


def test_a_loop_by_hand_ends_where_a_fit_does(X):
    def people():
        return SimulatedPopulation(X, FixedAutonomy(uniform(0.3)), random_state=0)

    fitted = TabularClustering(K, n_interactions=2000, random_state=0).fit(X, population=people())
    # A tenth of a fit's budget is for the trial at its end.
    model, answering = TabularClustering(K, n_interactions=1800, random_state=0), people()
    with pytest.raises(ValueError, match="has not begun"):
        model.reason_to_stop()
    model.start(X)
    while model.reason_to_stop() is None:
        asked = model.ask()
        model.tell(asked, answering.respond(asked.entities, asked.prescribed, asked.centers))
        model.learn()
    assert model.reason_to_stop() == "n_interactions=1800 reached"
    assert fitted.stop_reason_ == "n_interactions=2000 reached"
    assert model.n_interactions_ == fitted.n_interactions_ - 200
    model.finalize()
    assert fitted.kept_ == "learned"
    np.testing.assert_array_equal(model.cluster_centers_, fitted.cluster_centers_)
    np.testing.assert_array_equal(model.labels_, fitted.labels_)
    assert model.history_[:-1] == fitted.history_[: len(model.history_) - 1]


def test_the_end_of_a_fit_is_in_its_history(X, people):
    model = TabularClustering(K, n_interactions=3000, random_state=0)
    assert model.start(X).stop_reason_ is None
    model.fit(X, population=people)
    assert model.history_[-1].distortion == model.distortion_
    when = [line.interactions for line in model.history_]
    assert when == sorted(set(when))


def test_the_end_is_in_the_history_even_if_nobody_answered_last(X):
    class Tired(SimulatedPopulation):
        def respond(self, entities, prescribed, centers):
            response = super().respond(entities, prescribed, centers)
            if self.n_interactions > 1500:
                response.cost[:], response.realized[:] = np.nan, -1
            return response

    people = Tired(X, FixedAutonomy(uniform(0.3)), random_state=0)
    model = TabularClustering(K, n_interactions=2000, batch_size=500, random_state=0)
    model.fit(X, population=people)
    assert model.n_answers_ == 1500
    last = model.history_[-1]
    assert (last.interactions, last.answers) == (2000, 1500)
    assert last.distortion == model.distortion_


@pytest.mark.parametrize("batches", [20, 21, 22])
def test_a_long_history_keeps_its_ends(X, people, monkeypatch, batches):
    monkeypatch.setattr("volition.learning.study.LONGEST_HISTORY", 20)
    model = TabularClustering(K, n_interactions=50 * batches, batch_size=50, random_state=0)
    model.fit(X, population=people)
    assert len(model.history_) <= 20
    when = [line.interactions for line in model.history_]
    assert (when[0], when[-1]) == (50, 50 * batches)
    assert model.history_[-1].distortion == model.distortion_


def test_ctrl_c_ends_a_fit_and_keeps_what_was_learned(X, people, tmp_path):
    def press(learner):
        if learner.n_interactions_ >= 900:
            os.kill(os.getpid(), signal.SIGINT)

    path = tmp_path / "m.safetensors"
    model = TabularClustering(K, batch_size=300, tol=0, n_interactions=3500, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, population=people, on_batch=press, checkpoint=path)
    assert model.n_interactions_ == model.n_answers_ == 900
    assert len(np.unique(model.labels_)) == K
    again = TabularClustering(K, batch_size=300, tol=0, n_interactions=3500, random_state=0)
    again.fit(X, population=people, checkpoint=path, resume=True)
    assert again.n_interactions_ == 3500


def test_a_callback_says_why_a_fit_ends(X, people):
    model = TabularClustering(K, batch_size=300, tol=0, n_interactions=3500, random_state=0)
    for said, reason in ((True, "ended by on_batch"), ("enough seen", "enough seen")):
        model.fit(X, population=people, on_batch=lambda learner, said=said: said)
        assert model.stop_reason_ == reason
        assert model.n_interactions_ == 300


def test_a_log_teaches(X):
    """Prescriptions of the past, by someone else's policy, replayed."""
    rng = np.random.default_rng(0)
    P, Y = uniform(0.3), X[:K]
    people = SimulatedPopulation(X, FixedAutonomy(P), random_state=0)
    i, j = rng.integers(0, len(X), 20_000), rng.integers(0, K, 20_000)
    log = {"entity": i, "prescribed": j, "realized": people.respond(i, j, Y).realized}
    model = TabularClustering(K, random_state=0).fit(X, population=LoggedPopulation(log, X, Y))
    assert gap(model, X, P) < 1
    assert model.n_answers_ == 20_000  # all of it, each once
    assert model.stop_reason_ == "the log is at its end"
    assert model.changes_ == []
