import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volition import (
    AutonomyAwareClustering,
    FixedAutonomy,
    LoggedPopulation,
    Prescriptions,
    Response,
    RobbinsMonro,
    SimulatedPopulation,
    TabularClustering,
    load_model,
    save_model,
)
from volition.learners.base import SilentPopulationError
from volition.learners.ledger import Ledger
from volition.learners.monitor import Monitor
from volition.metrics import distortion

K = 4
ESTIMATES = ("choices", "costs")


def uniform(kappa, K=K):
    return (1 - kappa) * np.eye(K) + kappa / (K - 1) * (1 - np.eye(K))


@pytest.fixture(scope="module")
def X(four_groups):
    return four_groups[::6]


@pytest.fixture
def people(X):
    return SimulatedPopulation(X, FixedAutonomy(uniform(0.25)), random_state=1)


def gap(model, X, P):
    """Return by how much the prescriptions cost more than the best for known p, in %."""
    truth = FixedAutonomy(P)
    best = AutonomyAwareClustering(K, autonomy=truth, random_state=0).fit(X).distortion_
    return 100 * (distortion(X, model.cluster_centers_, truth, model.labels_) / best - 1)


# -- who answers cannot be looked into ------------------------------------------------------------


class Table:
    """Answers drawn beforehand: there is no model to look at."""

    __slots__ = ("X", "answers", "used")

    def __init__(self, X, P, per_pair, seed=0):
        rng = np.random.default_rng(seed)
        u = rng.random((len(X), len(P), per_pair))
        self.answers = (np.cumsum(P, axis=1)[None, :, None, :] < u[..., None]).sum(3)
        self.X, self.used = X, np.zeros((len(X), len(P)), dtype=int)

    def respond(self, entities, prescribed, centers):
        realized = np.empty(len(entities), dtype=int)
        for row, (i, j) in enumerate(zip(entities, prescribed, strict=True)):
            realized[row] = self.answers[i, j, self.used[i, j] % self.answers.shape[2]]
            self.used[i, j] += 1
        return Response(realized, ((self.X[entities] - centers[realized]) ** 2).sum(1))


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


# -- the tables -----------------------------------------------------------------------------------


def test_costs_with_steps_one_over_n_are_means(X, rng):
    """Robbins-Monro steps 1/n make q the mean of what was seen: an exact oracle."""
    model = TabularClustering(
        K, estimate="costs", q_step=RobbinsMonro(1.0), beta_min=1.0, beta_max=1.0, random_state=0
    ).start(X)
    model.cluster_centers_ = X[:K].copy()
    model._move_centers = lambda *args: None
    total, count = np.zeros((len(X), K)), np.zeros((len(X), K))
    for _ in range(3):
        m = 2000
        i, j, k = rng.integers(0, 20, m), rng.integers(0, K, m), rng.integers(0, K, m)
        model.tell(Prescriptions(i, j, model.cluster_centers_), Response(k, np.ones(m)))
        np.add.at(total, (i, j), ((X[i] - X[k]) ** 2).sum(1))
        np.add.at(count, (i, j), 1)
    seen = count > 0
    np.testing.assert_allclose(model.expected_costs()[seen], total[seen] / count[seen], rtol=1e-9)


def test_a_batch_is_the_same_as_one_after_the_other(X, rng):
    """Vectorised updates against a loop over single answers, pairs repeated within the batch."""
    step = RobbinsMonro(0.6, offset=1.0)
    model = TabularClustering(
        K, estimate="costs", q_step=step, beta_min=1.0, beta_max=1.0, random_state=0
    ).start(X)
    model.cluster_centers_ = X[:K].copy()
    model._move_centers = lambda *args: None
    m = 3000
    i, j, k = rng.integers(0, 10, m), rng.integers(0, K, m), rng.integers(0, K, m)
    model.tell(Prescriptions(i, j, model.cluster_centers_), Response(k, np.ones(m)))
    D = ((X[:, None] - X[None, :K]) ** 2).sum(2)
    q, visits = D.copy(), np.zeros((len(X), K))
    for a, b, c in zip(i, j, k, strict=True):
        visits[a, b] += 1
        q[a, b] += step(visits[a, b]) * (D[a, c] - q[a, b])
    np.testing.assert_allclose(model.expected_costs(), q, rtol=1e-9, atol=1e-12)


def test_the_centre_step_is_the_papers(X, rng):
    """y - alpha sum (y - x) delta / |S|, here divided by each centre's share, as documented."""
    model = TabularClustering(K, estimate="costs", random_state=0).start(X)
    Y = model.cluster_centers_ = X[:K].copy()
    i, k = rng.integers(0, len(X), 500), rng.integers(0, K, 500)
    share = model._share + 0.1 * (np.bincount(k, minlength=K) / 500 - model._share)
    model._rng = np.random.default_rng(5)
    noise = np.random.default_rng(5).standard_normal(Y.shape)
    model._move_centers(i, k, np.ones(500, dtype=bool))
    step = np.array([(Y[c] - X[i[k == c]]).sum(0) / 500 / share[c] for c in range(K)])
    shake = 1e-3 * model._scale * np.sqrt(model._betas[0] / model.beta_)
    np.testing.assert_allclose(model.cluster_centers_, Y - step + shake * noise, rtol=1e-9)


def test_counts_are_blended_with_everybodys(X, rng):
    model = TabularClustering(K, random_state=0).start(X)
    m = 5000
    i, j, k = rng.integers(0, len(X), m), rng.integers(0, K, m), rng.integers(0, K, m)
    model.tell(Prescriptions(i, j, model.cluster_centers_), Response(k, np.ones(m)))
    counts = np.zeros((len(X), K, K))
    np.add.at(counts, (i, j, k), 1)
    pooled = counts.sum(0) + 1 / K
    pooled /= pooled.sum(1, keepdims=True)
    s = model.likeness_
    p = (counts + s * pooled) / (counts.sum(2, keepdims=True) + s)
    D = ((X[:, None] - model.cluster_centers_[None]) ** 2).sum(2)
    expected = (p * D[:, None, :]).sum(2)
    np.testing.assert_allclose(model.expected_costs(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("concentration", "low", "high"), [(1.0, 1, 10), (1e6, 1000, 10000)])
def test_likeness_is_found_out(X, concentration, low, high):
    """Entities that all differ (Dirichlet, worth 4 answers) and entities that are all alike."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(K, concentration), size=(len(X), K))
    people = SimulatedPopulation(X, autonomy_proba=p, random_state=0)
    model = TabularClustering(K, exploration=1.0, random_state=0)
    model.partial_fit(X, population=people, n_interactions=20_000)
    assert low <= model.likeness_ <= high


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


# -- ask and tell ---------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31))
def test_late_repeated_and_shuffled_answers_count_once(seed):
    """The counts are the same as if every answer had come at once, in order, once."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(12, 2))
    people = SimulatedPopulation(X, FixedAutonomy(uniform(0.4, 3)), random_state=seed)
    model = TabularClustering(3, random_state=0, exploration=1.0).start(X)
    expected, mail = np.zeros((12, 3, 3)), []
    for _ in range(4):
        asked = model.ask(30)
        answer = people.respond(asked.entities, asked.prescribed, asked.centers)
        lost = rng.random(30) < 0.3
        answer.cost[lost] = np.nan
        told = ~lost
        np.add.at(
            expected,
            (asked.entities[told], asked.prescribed[told], answer.realized[told]),
            1,
        )
        mail += [(asked, answer, row) for row in range(30)]
    mail += [mail[int(n)] for n in rng.integers(0, len(mail), 12)]
    for n in rng.permutation(len(mail)):
        asked, answer, row = mail[n]
        model.tell(asked.take([row]), answer.take([row]))
    np.testing.assert_allclose(model._table, expected)
    assert model.n_answers_ == expected.sum()
    assert model.n_interactions_ == 120


def test_strange_answers_are_refused_and_nothing_is_learned(X, people):
    model = TabularClustering(K, random_state=0).start(X)
    asked = model.ask(10)
    answer = people.respond(asked.entities, asked.prescribed, asked.centers)
    before = model._table.copy()
    stranger = Prescriptions(asked.entities, asked.prescribed, asked.centers, asked.ids + 5)
    with pytest.raises(ValueError, match=r"Question \d+ .* was never asked"):
        model.tell(stranger, answer)
    with pytest.raises(ValueError, match="10 prescriptions, but 9 answers"):
        model.tell(asked, answer.take(np.arange(9)))
    wrong = answer.realized.copy()
    wrong[3] = 9
    with pytest.raises(ValueError, match="Answer 3 names cluster 9; clusters are numbered 0 to 3"):
        model.tell(asked, Response(wrong, answer.cost))
    mixed_up = Prescriptions(asked.entities[::-1], asked.prescribed, asked.centers, asked.ids)
    with pytest.raises(ValueError, match="was never asked like this"):
        model.tell(mixed_up, answer)
    elsewhere = Prescriptions(asked.entities + 10**6, asked.prescribed, asked.centers)
    with pytest.raises(ValueError, match="There is no entity"):
        model.tell(elsewhere, answer)
    np.testing.assert_array_equal(model._table, before)
    model.tell(asked, answer)
    assert model.n_answers_ == 10


def test_costs_alone_do_not_suffice(X):
    people = SimulatedPopulation(X, reveal="cost", random_state=0)
    model = TabularClustering(K, random_state=0)
    with pytest.raises(ValueError, match="needs the realised clusters"):
        model.fit(X, population=people)
    assert len(model._ledger.outstanding().ids) == model.n_interactions_  # nothing was ticked off


def test_a_learner_must_begin(X, people):
    with pytest.raises(ValueError, match="has not begun"):
        TabularClustering(K).ask(3)
    with pytest.raises(ValueError, match="first partial_fit needs X"):
        TabularClustering(K).partial_fit(population=people)


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


@pytest.mark.parametrize("power", [0.5, 1.2])
def test_step_sizes_obey_robbins_and_monro(power):
    with pytest.raises(ValueError, match="power"):
        RobbinsMonro(power)


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
    silent = SimulatedPopulation(X, loss=1.0, random_state=0)
    with pytest.raises(RuntimeError, match="answered none of the last"):
        TabularClustering(K, random_state=0).fit(X, population=silent)


def test_a_fit_without_a_single_answer_is_an_error(X):
    people = SimulatedPopulation(X, FixedAutonomy(uniform(0.3)), loss=1.0, random_state=0)
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


def test_what_is_told_must_be_answers_to_questions(X):
    model = TabularClustering(K, random_state=0).start(X)
    asked = model.ask(3)
    for told in ((3, Response(None, np.ones(3))), (asked, np.ones(3))):
        with pytest.raises(ValueError, match="tell needs Prescriptions"):
            model.tell(*told)


def test_a_loop_by_hand_ends_where_a_fit_does(X):
    def people():
        return SimulatedPopulation(X, FixedAutonomy(uniform(0.3)), random_state=0)

    fitted = TabularClustering(K, n_interactions=2000, random_state=0).fit(X, population=people())
    # A tenth of a fit's budget is for the trial at its end.
    model, answering = TabularClustering(K, n_interactions=1800, random_state=0), people()
    with pytest.raises(ValueError, match="has not begun"):
        model.enough()
    model.start(X)
    while model.enough() is None:
        asked = model.ask()
        model.tell(asked, answering.respond(asked.entities, asked.prescribed, asked.centers))
    assert model.enough() == "n_interactions=1800 reached"
    assert fitted.stop_reason_ == "n_interactions=2000 reached"
    assert model.n_interactions_ == fitted.n_interactions_ - 200
    model.conclude()
    assert fitted.kept_ == "learned"
    np.testing.assert_array_equal(model.cluster_centers_, fitted.cluster_centers_)
    np.testing.assert_array_equal(model.labels_, fitted.labels_)
    assert model.history_[:-1] == fitted.history_[: len(model.history_) - 1]


def test_the_end_of_a_fit_is_in_its_history(X, people):
    model = TabularClustering(K, n_interactions=3000, random_state=0)
    assert model.start(X).stop_reason_ is None
    model.fit(X, population=people)
    assert model.history_[-1]["distortion"] == model.distortion_
    when = [line["interactions"] for line in model.history_]
    assert when == sorted(set(when))


def test_the_end_is_in_the_history_even_if_nobody_answered_last(X):
    class Tired(SimulatedPopulation):
        def respond(self, entities, prescribed, centers):
            response = super().respond(entities, prescribed, centers)
            if self.n_interactions > 1500:
                response.cost[:] = np.nan
            return response

    people = Tired(X, FixedAutonomy(uniform(0.3)), random_state=0)
    model = TabularClustering(K, n_interactions=2000, batch_size=500, random_state=0)
    model.fit(X, population=people)
    assert model.n_answers_ == 1500
    last = model.history_[-1]
    assert (last["interactions"], last["answers"]) == (2000, 1500)
    assert last["distortion"] == model.distortion_


@pytest.mark.parametrize("batches", [20, 21, 22])
def test_a_long_history_keeps_its_ends(X, people, monkeypatch, batches):
    monkeypatch.setattr("volition.learners.base.LONGEST_HISTORY", 20)
    model = TabularClustering(K, n_interactions=50 * batches, batch_size=50, random_state=0)
    model.fit(X, population=people)
    assert len(model.history_) <= 20
    when = [line["interactions"] for line in model.history_]
    assert (when[0], when[-1]) == (50, 50 * batches)
    assert model.history_[-1]["distortion"] == model.distortion_


def test_ctrl_c_keeps_what_was_learned(X, people):
    def press(learner):
        if learner.n_interactions_ >= 900:
            os.kill(os.getpid(), signal.SIGINT)

    model = TabularClustering(K, batch_size=300, tol=0, n_interactions=3500, random_state=0)
    model.fit(X, population=people, on_batch=press)
    assert model.interrupted_
    assert model.n_interactions_ == 900
    assert len(np.unique(model.labels_)) == K


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


def test_one_large_batch_teaches_as_much_as_many_small_ones(X):
    p = np.random.default_rng(3).dirichlet(np.ones(K), size=(len(X), K))
    people = SimulatedPopulation(X, autonomy_proba=p, random_state=0)
    model = TabularClustering(K, exploration=1.0, random_state=0).start(X)
    asked = model.ask(40_000)
    model.tell(asked, people.respond(asked.entities, asked.prescribed, asked.centers))
    assert 1 <= model.likeness_ <= 10


def test_lost_repeated_late_answers_cost_little(X):
    """30 % lost, 10 % told again later, three batches late and out of turn."""
    rng = np.random.default_rng(0)
    P = uniform(0.25)
    people = SimulatedPopulation(X, FixedAutonomy(P), loss=0.3, random_state=0)
    model = TabularClustering(K, random_state=0).start(X)
    mail = []
    while model._enough() is None:
        asked = model.ask()
        answer = people.respond(asked.entities, asked.prescribed, asked.centers)
        order = rng.permutation(len(asked))
        mail.append((asked.take(order), answer.take(order)))
        again = order[: len(order) // 10]
        mail.append((asked.take(again), answer.take(again)))
        while len(mail) > 6:
            model.tell(*mail.pop(int(rng.integers(len(mail)))))
    model._conclude(thoroughly=True)
    assert model.n_repeated_ > 0
    assert gap(model, X, P) < 1


# -- coming and going -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:k-means centres with the nearest")
@pytest.mark.parametrize("estimate", ESTIMATES)
def test_entities_come_and_go(X, people, estimate):
    model = TabularClustering(K, estimate=estimate, n_interactions=5000, random_state=0)
    model.fit(X, population=people)
    new = X[:3] + 0.01
    numbers = model.add_entities(new)
    assert numbers.tolist() == [len(X), len(X) + 1, len(X) + 2]
    # Nothing is known about them but their features.
    np.testing.assert_array_equal(model.labels_[numbers], model.predict(new))
    asked = model.ask(400)
    model.remove_entities(numbers[:2])
    people.add_entities(new)
    answer = people.respond(asked.entities, asked.prescribed, asked.centers)
    before = model.n_answers_
    model.tell(asked, answer)
    gone = np.isin(asked.entities, numbers[:2])
    assert model.n_answers_ - before == 400 - gone.sum()
    assert not np.isin(model.ask(2000).entities, numbers[:2]).any()
    assert model.labels_[numbers[:2]].tolist() == [-1, -1]
    with pytest.raises(ValueError, match="Entity numbers go from 0"):
        model.remove_entities([10**6])


# -- interruption ---------------------------------------------------------------------------------

SCRIPT = """
import sys, time
import numpy as np
from volition import SimulatedPopulation, TabularClustering
estimate, checkpoint, out, pause = sys.argv[1:]
X = np.random.default_rng(0).normal(size=(150, 2))
p = np.random.default_rng(1).dirichlet(np.ones(3), size=(150, 3))
people = SimulatedPopulation(X, autonomy_proba=p, loss=0.1, random_state=2)
model = TabularClustering(3, estimate=estimate, n_interactions=6000, tol=0, batch_size=200,
                          random_state=3)
def after(learner):
    print(learner.n_interactions_, flush=True)
    time.sleep(float(pause))
model.fit(X, population=people, checkpoint=checkpoint, checkpoint_every=0, resume=True,
          on_batch=after)
np.savez(out, centers=model.cluster_centers_, table=model._table, labels=model.labels_,
         counts=[model.n_interactions_, model.n_answers_],
         history=[line["distortion"] for line in model.history_])
"""


def test_a_population_of_another_size_is_refused(X, people):
    with pytest.raises(ValueError, match="population has 300 entities, the learner 299"):
        TabularClustering(K).fit(X[:-1], population=people)


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_what_is_loaded_is_what_was_saved(X, people, tmp_path, estimate):
    weight = np.linspace(0.1, 2, len(X))
    model = TabularClustering(np.int64(K), estimate=estimate, n_interactions=np.int64(3000))
    model.start(X, weight)
    for _ in range(30):
        asked = model.ask(7)
        model.tell(asked, people.respond(asked.entities, asked.prescribed, asked.centers))
    other = load_model(model.save(tmp_path / "m.safetensors"))
    np.testing.assert_array_equal(other.labels_, model.labels_)
    assert other.distortion_ == model.distortion_
    assert other._scale == model._scale
    for learner in (model, other):
        for seed in range(10):
            asked = learner.ask(7)
            rng = np.random.default_rng(seed)
            learner.tell(asked, Response(rng.integers(0, K, 7), np.ones(7)))
    np.testing.assert_array_equal(other.cluster_centers_, model.cluster_centers_)
    assert json.dumps(other.history_) == json.dumps(model.history_)


def test_a_finished_run_stays_finished(X, people, tmp_path):
    path = tmp_path / "m.safetensors"
    model = TabularClustering(K, random_state=0).fit(X, population=people, checkpoint=path)
    again = TabularClustering(K, random_state=0)
    again.fit(X, population=people, checkpoint=path, resume=True)
    assert again.n_interactions_ == model.n_interactions_
    np.testing.assert_array_equal(again.cluster_centers_, model.cluster_centers_)


def test_stopped_and_resumed_equals_uninterrupted(X, tmp_path):
    def run(path, resume=False, stop=None):
        people = SimulatedPopulation(X, FixedAutonomy(uniform(0.25)), random_state=1)
        model = TabularClustering(
            K, tol=0, n_interactions=3000, random_state=np.random.RandomState(4)
        )
        return model.fit(
            X, population=people, checkpoint=path, resume=resume,
            on_batch=lambda learner: stop is not None and learner.n_interactions_ >= stop,
        )  # fmt: skip

    whole = run(tmp_path / "a.safetensors")
    assert run(tmp_path / "b.safetensors", stop=1200).n_interactions_ == 1200
    resumed = run(tmp_path / "b.safetensors", resume=True)
    assert whole.n_interactions_ == resumed.n_interactions_ == 3000
    np.testing.assert_array_equal(whole.cluster_centers_, resumed.cluster_centers_)


def test_a_failed_run_leaves_its_checkpoint(X, people, tmp_path):
    path = tmp_path / "m.safetensors"
    model = TabularClustering(K, n_interactions=3000, batch_size=200, tol=0, random_state=0)
    with pytest.raises(RuntimeError, match="failed after 600"):
        model.fit(X, population=Failing(people), checkpoint=path)
    assert load_model(path).n_answers_ == 600
    costs = TabularClustering(K, estimate="costs", n_interactions=500, random_state=0)
    costs.fit(X, population=people)
    with pytest.raises(ValueError, match="estimate='choices', not 'costs'"):
        costs.resume(path)
    assert costs.n_answers_ == 500  # as if nothing had been tried


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_killed_and_resumed_equals_uninterrupted(tmp_path, estimate):
    """kill -9 in mid-run, another process goes on: the same to the last bit."""
    (tmp_path / "run.py").write_text(SCRIPT)

    def start(checkpoint, out, pause):
        words = [sys.executable, "run.py", estimate, checkpoint, out, str(pause)]
        return subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    whole = start("whole.safetensors", "whole.npz", 0)
    killed = start("part.safetensors", "part.npz", 0.05)
    for line in killed.stdout:
        if int(line) >= 2000:
            break
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "part.npz").exists()
    resumed = start("part.safetensors", "part.npz", 0)
    first = int(resumed.stdout.readline())
    assert 2000 <= first <= 4000  # it did not begin anew
    for process in (whole, resumed):
        process.communicate(timeout=120)
        assert process.returncode == 0
    a, b = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "part.npz")
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_saved_with_questions_open(X, people, tmp_path, estimate):
    """A learner loaded elsewhere takes the answers to questions asked before it was saved."""
    model = TabularClustering(K, estimate=estimate, n_interactions=4000, random_state=0)
    model.partial_fit(X, population=people, n_interactions=1000)
    asked = model.ask(100)
    other = load_model(save_model(model, tmp_path / "m.safetensors"))
    assert isinstance(other, TabularClustering)
    answer = people.respond(asked.entities, asked.prescribed, asked.centers)
    for learner in (model, other):
        learner.tell(asked, answer)
    np.testing.assert_array_equal(model._table, other._table)
    np.testing.assert_array_equal(model.cluster_centers_, other.cluster_centers_)
    np.testing.assert_array_equal(model.ask(50).prescribed, other.ask(50).prescribed)
    assert other.n_repeated_ == 0
    other.tell(asked, answer)
    assert other.n_repeated_ == 100


def test_a_checkpoint_must_fit(X, people, tmp_path):
    path = tmp_path / "m.safetensors"
    TabularClustering(K, n_interactions=500, random_state=0).fit(
        X, population=people, checkpoint=path
    )
    with pytest.raises(ValueError, match="with n_clusters=4, not of"):
        TabularClustering(3).fit(X, population=people, checkpoint=path, resume=True)
    with pytest.raises(ValueError, match="estimate='choices', not 'costs'"):
        TabularClustering(K, estimate="costs").resume(path)
    with pytest.raises(ValueError, match="made with other entities"):
        TabularClustering(K).fit(X + 1, population=people, checkpoint=path, resume=True)
    with pytest.raises(ValueError, match="needs checkpoint="):
        TabularClustering(K).fit(X, population=people, resume=True)


def test_a_function_as_metric_is_given_again(tmp_path, rng):
    X = rng.normal(size=(40, 2))

    def manhattan(A, B):
        return (A[:, None] - B[None]).abs().sum(-1)

    people = SimulatedPopulation(X, metric=manhattan, random_state=0)
    model = TabularClustering(2, metric=manhattan, n_interactions=400, random_state=0)
    path = save_model(model.fit(X, population=people), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="give it as metric="):
        load_model(path)
    other = load_model(path, metric=manhattan)
    np.testing.assert_array_equal(other.labels_, model.labels_)


# -- drift ----------------------------------------------------------------------------------------


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
    assert model._table.sum() == model.n_answers_


def test_forgetting_lets_old_answers_fade(X, people):
    model = TabularClustering(K, forgetting=1e-3, random_state=0)
    model.partial_fit(X, population=people, n_interactions=30_000)
    # The weights of answers told long enough sum to 1 / forgetting; each batch counts as one.
    batch = model._batch()
    expected = batch / (1 - np.exp(-1e-3 * batch))
    assert model._table.sum() / model._unit == pytest.approx(expected, rel=1e-6)


def test_forgetting_everything_at_once_does_not_overflow(X, people):
    model = TabularClustering(K, forgetting=1.0, batch_size=1000, random_state=0)
    model.partial_fit(X, population=people, n_interactions=3000)
    assert np.isfinite(model._table).all()
    # Of 1000 answers, taken in slices of n K / 4 = 300, the last 100 are left.
    assert model._table.sum() / model._unit == pytest.approx(100)


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


# -- the ledger -----------------------------------------------------------------------------------


def test_the_ledger_grows_and_forgets():
    ledger = Ledger(patience=4096)
    one = np.ones(1500)
    ids = [ledger.issue(one, one, one, one, one) for _ in range(5)]
    with pytest.raises(ValueError, match="more than 4096 questions ago"):
        ledger.settle(ids[0][:1])
    rows, _ = ledger.settle(ids[4])
    assert len(rows) == 1500
    assert len(ledger.outstanding().ids) == 4096 - 1500
    again = Ledger.restored(*ledger.state())
    assert len(again.settle(ids[4])[0]) == 0
    assert len(again.settle(ids[3])[0]) == 1500
    with pytest.raises(ValueError, match="At most 4096"):
        ledger.issue(*[np.ones(5000)] * 5)


def test_time_between_checkpoints_is_respected(X, people, tmp_path):
    path = tmp_path / "m.safetensors"
    seen = []
    TabularClustering(K, batch_size=100, n_interactions=1000, tol=0, random_state=0).fit(
        X, population=people, checkpoint=path, checkpoint_every=60,
        on_batch=lambda learner: seen.append(path.exists()) or time.sleep(0),
    )  # fmt: skip
    assert not any(seen[:9])  # after that comes the trial, and there is one before it
    assert path.exists()
