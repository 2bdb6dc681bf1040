"""Asking, telling and learning; who comes and goes; going on from a file."""

import copy
import json
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from populace import ESTIMATES, K, answers_of, gap, table_of, uniform

from volition import (
    ADENClustering,
    ChoiceClustering,
    FixedAutonomy,
    Prescriptions,
    Recipe,
    Response,
    SimulatedPopulation,
    TabularClustering,
    load_model,
    save_model,
)
from volition.io.serialization import encode


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
    people = SimulatedPopulation(X, FixedAutonomy(P), missing=0.3, random_state=0)
    model = TabularClustering(K, random_state=0).start(X)
    mail = []
    while model.reason_to_stop() is None:
        asked = model.ask()
        answer = people.respond(asked.entities, asked.prescribed, asked.centers)
        order = rng.permutation(len(asked))
        mail.append((asked.take(order), answer.take(order)))
        again = order[: len(order) // 10]
        mail.append((asked.take(again), answer.take(again)))
        while len(mail) > 6:
            model.tell(*mail.pop(int(rng.integers(len(mail))))).learn()
    model.finalize()
    assert model.n_repeated_ > 0
    assert gap(model, X, P) < 1


# -- asking about those who are here ----------------------------------------------------------


def make(name, K=3, **options):
    """Return a learner of each kind."""
    if name == "aden":
        return ADENClustering(K, random_state=0, **options)
    if name == "as published":
        recipe = Recipe(
            hidden_dim=8, ff_dim=8, n_blocks=1, n_heads=1, n_layouts=2, n_samples=16, n_draws=4,
            replicas=1, updates=1, center_epochs=1, tau=4.0, head="costs",
        )  # fmt: skip
        return ADENClustering(K, preset=recipe, random_state=0, **options)
    if name == "choice":
        return ChoiceClustering(K, family="distance", random_state=0, **options)
    return TabularClustering(K, estimate=name, random_state=0, **options)


LEARNERS = (*ESTIMATES, "choice", "aden", "as published")


@pytest.mark.parametrize("name", LEARNERS)
def test_exactly_those_are_asked_who_are_named(X, name):
    model = make(name).start(X)
    assert model.ask(entities=[17, 4, 17]).entities.tolist() == [17, 4, 17]
    assert model.ask(entities=np.array([3], dtype=np.int32)).entities.tolist() == [3]
    assert model.n_interactions_ == 4
    model.remove_entities([4])
    for wrong, message in (
        ({"entities": [4]}, "Entity 4 has left; it cannot be asked"),
        ({"entities": [3, len(X)]}, "Entity numbers go from 0 to 299"),
        ({"entities": [-1]}, "Entity numbers go from 0"),
        ({"entities": [0.5]}, "Entity numbers go from 0"),
        ({"entities": []}, "Entity numbers go from 0|at least one entity"),
        ({"n": 2, "entities": [1, 2]}, "n or entities, not both"),
        ({"n": 0}, "n must be an integer >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            model.ask(**wrong)
    assert model.n_interactions_ == 4
    new = model.add_entities(X[:1] + 0.1)
    assert model.ask(entities=new).entities.tolist() == [300]


@pytest.mark.parametrize("name", LEARNERS)
def test_whoever_is_named_is_told_what_is_best_for_them(X, name):
    """Each for itself, also where a learner asks several times about one pair."""
    people = SimulatedPopulation(X, random_state=0)
    model = make(name, n_interactions=1200)
    for _ in range(4):
        if not model.__sklearn_is_fitted__():
            model.start(X)
        asked = model.ask(200)
        model.tell(asked, answers_of(people, asked)).learn()
    strategy = model._study.strategy
    strategy.exploration, strategy.beta = 0.0, 1e9
    who = np.arange(0, 300, 30)
    for _ in range(5):
        asked = model.ask(entities=who)
        np.testing.assert_array_equal(asked.entities, who)
        sets = np.broadcast_to(asked.centers, (len(who), 3, 2))
        for row, Y in enumerate(sets):
            costs = model.expected_costs(centers=Y)[who[row]]
            chosen = costs[asked.prescribed[row]]
            if name != "choices":  # which prescribes by doubt
                assert chosen == pytest.approx(costs.min(), rel=1e-3)


@pytest.mark.parametrize("name", LEARNERS)
def test_questions_carry_their_chance_their_centres_number_and_their_own(X, name):
    model = make(name).start(X)
    asked = [model.ask(40) for _ in range(5)]
    ids = np.concatenate([one.ids for one in asked])
    assert len(np.unique(ids)) == 200
    shown = {}
    for one in asked:
        assert (one.propensity > 0).all()
        assert (one.propensity <= 1).all()
        sets = np.broadcast_to(one.centers, (40, 3, 2))
        for version, Y in zip(one.version.tolist(), sets, strict=True):
            np.testing.assert_array_equal(shown.setdefault(version, Y), Y)
    # Before anything is known, everybody is as likely to be told one as another.
    np.testing.assert_allclose(asked[0].propensity, 1 / 3, atol=0.25)


@pytest.mark.parametrize("name", LEARNERS)
def test_questions_go_through_a_database_and_back(X, people, name):
    people = SimulatedPopulation(X, FixedAutonomy(uniform(0.25, 3)), random_state=1)
    model, other = make(name).start(X), make(name).start(X)
    asked = model.ask(30)
    rows = json.loads(json.dumps(asked.to_records()))
    back = Prescriptions.from_records(rows)
    assert back == asked
    np.random.default_rng(0).shuffle(rows)
    shuffled = Prescriptions.from_records(rows[:20])
    model.tell(shuffled, answers_of(people, shuffled)).learn()
    assert model.n_answers_ == 20
    model.tell(asked, answers_of(people, asked)).learn()
    assert (model.n_answers_, model.n_repeated_) == (30, 20)
    assert other.ask(30) != asked  # numbers differ


@pytest.mark.parametrize("name", [*ESTIMATES, "choice", "aden"])
def test_telling_takes_milliseconds(name):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2))
    people = SimulatedPopulation(X, FixedAutonomy(uniform(0.3, 8)), random_state=0)
    model, times = make(name, K=8).start(X), []
    for _ in range(9):
        asked = model.ask(500)
        response = answers_of(people, asked)
        start = time.perf_counter()
        model.tell(asked, response)
        times.append(time.perf_counter() - start)
    assert model.n_answers_ == 0
    assert np.median(times) < 0.05


# -- numbers, threads ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ESTIMATES, "choice"])
def test_no_number_is_used_again_after_a_kill(X, tmp_path, name):
    """Answers to questions that the checkpoint does not know are taken once."""
    people = SimulatedPopulation(X, FixedAutonomy(uniform(0.25, 3)), random_state=1)
    model = make(name, n_interactions=2000).start(X)
    asked = model.ask(50)
    model.tell(asked, answers_of(people, asked)).learn()
    path = model.save(tmp_path / "m.safetensors")
    lost = model.ask(5000)
    response = answers_of(people, lost)
    del model
    model = load_model(path)
    again = model.ask(5000)
    assert len(np.intersect1d(lost.ids, again.ids)) == 0
    some = np.arange(40)
    model.tell(lost.take(some), response.take(some))
    model.tell(lost.take(some), response.take(some)).learn()
    assert (model.n_answers_, model.n_repeated_) == (90, 40)
    model.tell(lost.take(some), response.take(some))
    model = load_model(model.save(path))
    model.tell(lost.take(np.arange(30, 60)), response.take(np.arange(30, 60))).learn()
    assert (model.n_answers_, model.n_repeated_) == (110, 90)
    model.tell(again.take(some), answers_of(people, again.take(some))).learn()
    assert model.n_answers_ == 150
    unsaid = Prescriptions(lost.entities, lost.prescribed, lost.centers, lost.ids)
    with pytest.raises(ValueError, match="was never asked like this"):
        model.tell(unsaid, response)


@pytest.mark.parametrize("name", [*ESTIMATES, "choice", "as published"])
def test_six_threads_ask_and_tell_while_another_learns(X, tmp_path, name):
    model, ids, errors, done = make(name, n_interactions=1800).start(X), [], [], []

    def work(seed):
        people = SimulatedPopulation(X, FixedAutonomy(uniform(0.25, 3)), random_state=seed)
        for _ in range(20):
            asked = model.ask(15)
            ids.append(asked.ids)
            model.tell(asked, answers_of(people, asked))
            model.tell(asked.take([0]), answers_of(people, asked.take([0])))

    def learn():
        while not done:
            model.learn()
            load_model(model.save(tmp_path / "m.safetensors"))

    def caught(task, *given):
        try:
            task(*given)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=caught, args=(work, seed)) for seed in range(6)]
    learner = threading.Thread(target=caught, args=(learn,))
    for thread in (*workers, learner):
        thread.start()
    for thread in workers:
        thread.join()
    done.append(True)
    learner.join()
    assert errors == []
    model.learn()
    assert len(np.unique(np.concatenate(ids))) == 1800
    assert (model.n_interactions_, model.n_answers_, model.n_repeated_) == (1800, 1800, 120)
    if name == "choices":
        assert table_of(model).sum() == 1800
    assert len(model._study.ledger.outstanding().ids) == 0


def test_a_checkpoint_written_while_another_thread_learns_is_whole(X, tmp_path, people):
    """Answers are in the table or wait to be learned, never both."""
    model, done = TabularClustering(K, random_state=0).start(X), []
    asked = model.ask(20_000)
    response = answers_of(people, asked)

    def learn():
        for lo in range(0, 20_000, 1000):
            some = np.arange(lo, lo + 1000)
            model.tell(asked.take(some), response.take(some)).learn()
        done.append(True)

    thread = threading.Thread(target=learn)
    thread.start()
    while not done:
        other = load_model(model.save(tmp_path / "m.safetensors"))
        waiting = sum(len(letter.ids) for letter in other._study.inbox)
        assert table_of(other).sum() == other.n_answers_
        assert other.learn().n_answers_ % 1000 == 0
        assert table_of(other).sum() == other.n_answers_ >= waiting
    thread.join()


def test_questions_asked_while_learning_use_up_their_set_of_centres(X):
    """64 questions are about one set, also if some are asked while another thread learns."""
    due, meanwhile = [], []

    def metric(x, Y):
        if due:  # in the middle of `learn`
            due.clear()
            meanwhile.append(model.ask(20))
        return ((x[:, None] - Y) ** 2).sum(2)

    model = ChoiceClustering(K, metric=metric, random_state=0).start(X)
    first = model.ask(10)
    model.tell(first, Response(first.prescribed, None))
    due.append(True)
    model.learn()
    versions = [asked.version for asked in (first, *meanwhile, model.ask(100))]
    assert len(meanwhile) == 1
    np.testing.assert_array_equal(np.bincount(np.concatenate(versions)), [0, 64, 64, 2])


def test_learning_on_copies_leaves_the_questions_of_the_original_alone(X, people):
    model = ADENClustering(K, random_state=0).start(X)
    asked = model.ask(300)
    cost = 1 + 2 * np.sqrt(answers_of(people, asked).cost)  # not the metric's: a network is made
    model.tell(asked, Response(None, cost))
    expected = copy.deepcopy(model).ask(50)
    for _ in range(3):
        other = copy.deepcopy(model).learn()
        assert (model.head_, other.head_) == ("undecided", "service")
    asked = model.ask(50)
    for name in ("entities", "prescribed", "centers"):
        np.testing.assert_array_equal(getattr(asked, name), getattr(expected, name))


@pytest.mark.parametrize("learner", [TabularClustering, ChoiceClustering, ADENClustering])
def test_after_a_move_all_questions_are_about_the_new_centres(X, learner):
    model = learner(K, random_state=0).start(X, centers=X[:K])
    model.ask(10)
    shown = model.move(X[K : 2 * K]).ask(100).centers
    np.testing.assert_array_equal(shown, np.broadcast_to(X[K : 2 * K], shown.shape))


@pytest.mark.filterwarnings("ignore")
def test_answers_after_a_log_with_repeated_centres_keep_their_own_centres(X, people):
    rng, m = np.random.default_rng(0), 300
    told = rng.integers(0, len(X), m), rng.integers(0, K, m)
    used = people.respond(*told, X[:K]).realized
    log = {"entity": told[0], "prescribed": told[1], "realized": used, "layout": np.arange(m) % 2}
    model = ChoiceClustering(K, family="distance", random_state=0)
    model.fit_log(X, log, np.stack([X[:K], X[:K]])).move(X[K : 2 * K])
    asked = model.ask(10)
    choices = model.tell(asked, answers_of(people, asked)).learn().choices_
    shown = choices.layouts[choices.layout]
    np.testing.assert_array_equal(shown[:m], np.broadcast_to(X[:K], shown[:m].shape))
    np.testing.assert_array_equal(shown[m:], np.broadcast_to(X[K : 2 * K], shown[m:].shape))


# -- what is refused, what stays ----------------------------------------------------------------


def test_what_is_told_may_be_changed_afterwards(X):
    model, Y = make("choice").start(X), X[:3].copy()
    i = np.arange(10)
    model.tell(Prescriptions(i, i % 3, Y), Response(i % 3, np.ones(10)))
    Y[:] = 99
    model.learn()
    np.testing.assert_array_equal(model.choices_.layouts[0], X[:3])


def test_a_choice_of_unknown_cost_is_an_answer(X):
    for name in ("choices", "choice"):
        model = make(name).start(X)
        asked = model.ask(20)
        realized, cost = np.full(20, 1), np.full(20, np.nan)
        realized[:5] = -1
        model.tell(asked, Response(realized, cost)).learn()
        assert model.n_answers_ == 15
        model.tell(asked, Response(np.ones(20, dtype=int), None)).learn()
        assert (model.n_answers_, model.n_repeated_) == (20, 15)


@pytest.mark.parametrize("name", LEARNERS)
def test_refused_entities_change_nothing(X, name):
    model = make(name).start(X)
    before = pickle.dumps(encode(model._study.state()))
    for wrong in (
        {"X": np.ones((2, 3))},
        {"X": [[np.nan, 0.0]]},
        {"X": X[:2], "sample_weight": [-1.0, 1.0]},
        {"X": X[:2], "sample_weight": np.ones(3)},
        {"X": X[:2], "covariates": np.ones((2, 1))},
    ):
        with pytest.raises(ValueError, match=r"."):
            model.add_entities(**wrong)
    with pytest.raises(ValueError, match="Entity numbers go from 0"):
        model.remove_entities([3, 10**6])
    assert pickle.dumps(encode(model._study.state())) == before


@pytest.mark.parametrize("name", [*ESTIMATES, "choice"])
def test_concluding_by_hand_may_be_followed_by_more(X, name):
    people = SimulatedPopulation(X, FixedAutonomy(uniform(0.25, 3)), random_state=1)
    model = make(name, n_interactions=600).start(X)
    for _ in range(3):
        asked = model.ask(100)
        model.tell(asked, answers_of(people, asked))
    model.finalize()  # learns what was told
    assert model.n_answers_ == 300
    centers, lines = model.cluster_centers_, len(model.history_)
    np.testing.assert_array_equal(model.finalize().cluster_centers_, centers)
    assert len(model.history_) == lines
    asked = model.ask(100)
    model.tell(asked, answers_of(people, asked)).learn()
    assert model.n_answers_ == 400


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
people = SimulatedPopulation(X, autonomy_proba=p, missing=0.1, random_state=2)
model = TabularClustering(3, estimate=estimate, n_interactions=6000, tol=0, batch_size=200,
                          random_state=3)
def after(learner):
    print(learner.n_interactions_, flush=True)
    time.sleep(float(pause))
model.fit(X, population=people, checkpoint=checkpoint, checkpoint_every=0, resume=True,
          on_batch=after)
np.savez(out, centers=model.cluster_centers_, table=model.expected_costs(), labels=model.labels_,
         counts=[model.n_interactions_, model.n_answers_],
         history=[line.distortion for line in model.history_])
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
        on_batch=lambda learner: seen.append(path.exists() and not learner.reason_to_stop()),
    )  # fmt: skip
    assert not any(seen)
    assert path.exists()
