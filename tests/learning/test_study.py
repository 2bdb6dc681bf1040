"""Asking, telling and learning; who comes and goes; going on from a file."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from populace import ESTIMATES, K, answers_of, gap, table_of, uniform

from volition import (
    FixedAutonomy,
    Prescriptions,
    Response,
    SimulatedPopulation,
    TabularClustering,
    load_model,
    save_model,
)


@pytest.fixture(scope="module")
def X(four_groups):
    return four_groups[::6]


@pytest.fixture
def people(X):
    return SimulatedPopulation(X, FixedAutonomy(uniform(0.25)), random_state=1)


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
        answer.cost[lost], answer.realized[lost] = np.nan, -1
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
        if n % 40 == 0:
            model.learn()
    model.learn()
    np.testing.assert_allclose(table_of(model), expected)
    assert model.n_answers_ == expected.sum()
    assert model.n_interactions_ == 120


def test_strange_answers_are_refused_and_nothing_is_learned(X, people):
    model = TabularClustering(K, random_state=0).start(X)
    asked = model.ask(10)
    answer = people.respond(asked.entities, asked.prescribed, asked.centers)
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
    assert model.learn().n_answers_ == 0
    assert table_of(model).sum() == 0
    assert model.tell(asked, answer).learn().n_answers_ == 10


def test_costs_alone_do_not_suffice(X):
    people = SimulatedPopulation(X, reveal="cost", random_state=0)
    model = TabularClustering(K, random_state=0)
    with pytest.raises(ValueError, match="needs the realised clusters"):
        model.fit(X, population=people)
    assert len(model._study.ledger.outstanding().ids) == model.n_interactions_


def test_a_learner_must_begin(X, people):
    with pytest.raises(ValueError, match="has not begun"):
        TabularClustering(K).ask(3)
    with pytest.raises(ValueError, match="first partial_fit needs X"):
        TabularClustering(K).partial_fit(population=people)


def test_what_is_told_must_be_answers_to_questions(X):
    model = TabularClustering(K, random_state=0).start(X)
    asked = model.ask(3)
    for told in ((3, Response(None, np.ones(3))), (asked, np.ones(3))):
        with pytest.raises(ValueError, match="tell needs Prescriptions"):
            model.tell(*told)


def test_lost_repeated_late_answers_cost_little(X):
    """30 % lost, 10 % told again later, three batches late and out of turn."""
    rng = np.random.default_rng(0)
    P = uniform(0.25)
    people = SimulatedPopulation(X, FixedAutonomy(P), loss=0.3, random_state=0)
    model = TabularClustering(K, random_state=0).start(X)
    mail = []
    while model.enough() is None:
        asked = model.ask()
        answer = people.respond(asked.entities, asked.prescribed, asked.centers)
        order = rng.permutation(len(asked))
        mail.append((asked.take(order), answer.take(order)))
        again = order[: len(order) // 10]
        mail.append((asked.take(again), answer.take(again)))
        while len(mail) > 6:
            model.tell(*mail.pop(int(rng.integers(len(mail))))).learn()
    model.conclude()
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
    model.tell(asked, answer).learn()
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
np.savez(out, centers=model.cluster_centers_, table=model.expected_costs(), labels=model.labels_,
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
        model.tell(asked, answers_of(people, asked)).learn()
    other = load_model(model.save(tmp_path / "m.safetensors"))
    np.testing.assert_array_equal(other.labels_, model.labels_)
    assert other.distortion_ == model.distortion_
    for learner in (model, other):
        for seed in range(10):
            asked = learner.ask(7)
            rng = np.random.default_rng(seed)
            learner.tell(asked, Response(rng.integers(0, K, 7), np.ones(7))).learn()
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
    class Failing(SimulatedPopulation):
        def respond(self, *asked):
            if self.n_interactions >= 600:
                raise TimeoutError("no reply within 5 s")
            return super().respond(*asked)

    failing = Failing(X, FixedAutonomy(uniform(0.25)), random_state=1)
    path = tmp_path / "m.safetensors"
    model = TabularClustering(K, n_interactions=3000, batch_size=200, tol=0, random_state=0)
    with pytest.raises(RuntimeError, match="failed after 600"):
        model.fit(X, population=failing, checkpoint=path)
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
        learner.tell(asked, answer).learn()
    np.testing.assert_array_equal(table_of(model), table_of(other))
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


def test_time_between_checkpoints_is_respected(X, people, tmp_path):
    path = tmp_path / "m.safetensors"
    seen = []
    TabularClustering(K, batch_size=100, n_interactions=1000, tol=0, random_state=0).fit(
        X, population=people, checkpoint=path, checkpoint_every=60,
        on_batch=lambda learner: seen.append(path.exists() and not learner.enough()),
    )  # fmt: skip
    assert not any(seen)
    assert path.exists()
