import itertools
import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from volition import (
    CallableAutonomy,
    DistanceAutonomy,
    FixedAutonomy,
    LoggedPopulation,
    Passive,
    Prescriptions,
    Response,
    SimulatedPopulation,
)
from volition.core.autonomy import RowAutonomy
from volition.core.costs import Haversine, SquaredEuclidean
from volition.core.problem import Problem
from volition.populations.logged import _repeats
from volition.populations.simulated import _draw_shared


def softly_away(X, Y):
    away = torch.softmax(-torch.cdist(X, Y), dim=1)
    return 0.4 * torch.eye(len(Y), dtype=Y.dtype) + 0.6 * away[:, None, :]


@pytest.fixture
def X(rng):
    return rng.normal(size=(6, 2))


@pytest.fixture
def Y(rng):
    return rng.normal(size=(3, 2))


MODELS = {
    "passive": Passive(),
    "fixed": FixedAutonomy([[0.8, 0.2, 0.0], [0.1, 0.6, 0.3], [0.0, 0.5, 0.5]]),
    "uniform": DistanceAutonomy(0.4, zeta=0),
    "distance": DistanceAutonomy(0.4, temperature=2.0),
    "by entity": DistanceAutonomy(0.5, gamma=0.7, temperature=2.0),
    "function": CallableAutonomy(softly_away),
    "table": RowAutonomy(np.random.default_rng(1).dirichlet(np.ones(3), size=(6, 3))),
}


def frequencies(people, i, j, Y, n=4000):
    answer = people.respond(np.full(n, i), np.full(n, j), Y)
    return np.bincount(answer.realized, minlength=Y.shape[-2]) / n


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("own_centers", [False, True])
def test_answers_follow_the_model(X, Y, name, own_centers):
    """Frequencies against p of the dense kernel, within five standard errors."""
    model = MODELS[name]
    people = SimulatedPopulation(X, model, random_state=0)
    problem = Problem(X, autonomy=model)
    for i, j in ((0, 0), (3, 1), (5, 2)):
        p = problem.conditional(Y, np.full(len(X), j))[i]
        n = 300 if own_centers and name == "function" else 4000
        shown = np.broadcast_to(Y, (n, *Y.shape)) if own_centers else Y
        seen = frequencies(people, i, j, shown, n)
        assert np.all(np.abs(seen - p) <= 5 * np.sqrt(p * (1 - p) / n) + 1e-12)


def test_own_centers_are_each_questions_own(X, rng):
    """With one set of centres per question, p is that of a problem with these centres alone."""
    model = DistanceAutonomy(0.6, gamma=0.5, temperature=1.5)
    sets = rng.normal(size=(6, 4, 2))
    j = np.array([0, 1, 2, 3, 0, 1])
    p = model.conditional_each(
        torch.from_numpy(X), torch.from_numpy(j), torch.from_numpy(sets), SquaredEuclidean()
    ).numpy()
    for i in range(6):
        expected = Problem(X, autonomy=model).conditional(sets[i], np.full(6, j[i]))[i]
        np.testing.assert_allclose(p[i], expected, atol=1e-12)


def test_costs_of_own_centers(rng):
    x = torch.from_numpy(rng.uniform(-60, 60, size=(5, 2)))
    y = torch.from_numpy(rng.uniform(-60, 60, size=(5, 3, 2)))
    for cost in (SquaredEuclidean(), Haversine()):
        each = cost.each(x, y)
        for i in range(5):
            expected = cost.pairwise(x[i : i + 1], y[i])[0]
            np.testing.assert_allclose(each[i].numpy(), expected.numpy(), rtol=1e-9, atol=1e-9)


def test_groups_answer_by_their_own_matrix(X, Y):
    always = {"a": np.eye(3), "b": np.eye(3)[[1, 2, 0]]}
    people = SimulatedPopulation(X, FixedAutonomy(always), groups=list("ababab"), random_state=0)
    answer = people.respond(np.arange(6), np.zeros(6, dtype=int), Y)
    assert answer.realized.tolist() == [0, 1, 0, 1, 0, 1]


def test_cost_is_that_of_the_realised_cluster(X, Y):
    people = SimulatedPopulation(X, DistanceAutonomy(0.5), random_state=0)
    i, j = np.arange(6).repeat(50), np.arange(300) % 3
    answer = people.respond(i, j, Y)
    np.testing.assert_allclose(answer.cost, ((X[i] - Y[answer.realized]) ** 2).sum(1))
    hidden = SimulatedPopulation(X, DistanceAutonomy(0.5), reveal="cost", random_state=0)
    again = hidden.respond(i, j, Y)
    assert again.realized is None
    np.testing.assert_array_equal(again.cost, answer.cost)


def test_counts_losses_and_seed(X, Y):
    people = SimulatedPopulation(X, missing=0.3, random_state=3)
    i, j = np.zeros(5000, dtype=int), np.zeros(5000, dtype=int)
    answer = people.respond(i, j, Y)
    assert people.n_interactions == 5000
    assert abs((~answer.answered).mean() - 0.3) < 0.04
    assert set(answer.realized[~answer.answered]) == {-1}
    same = SimulatedPopulation(X, missing=0.3, random_state=3).respond(i, j, Y)
    np.testing.assert_array_equal(same.cost, answer.cost)


def test_the_model_changes_in_the_middle_of_a_batch(X, Y):
    people = SimulatedPopulation(
        X, Passive(), changes={7: FixedAutonomy(np.eye(3)[[1, 2, 0]])}, random_state=0
    )
    zero = np.zeros(5, dtype=int)
    first, second = people.respond(zero, zero, Y), people.respond(zero, zero, Y)
    assert first.realized.tolist() == [0] * 5
    assert second.realized.tolist() == [0, 0, 1, 1, 1]


def test_a_state_can_be_returned_to(X, Y):
    people = SimulatedPopulation(X, DistanceAutonomy(0.5), random_state=0)
    i, j = np.zeros(20, dtype=int), np.zeros(20, dtype=int)
    people.respond(i, j, Y)
    state = people.state_dict()
    expected = people.respond(i, j, Y)
    other = SimulatedPopulation(X, DistanceAutonomy(0.5), random_state=99)
    other.load_state_dict(state)
    np.testing.assert_array_equal(other.respond(i, j, Y).realized, expected.realized)
    assert other.n_interactions == 40


def test_entities_may_join(X, Y):
    people = SimulatedPopulation(X, DistanceAutonomy(0.5), random_state=0)
    assert people.add_entities([[5.0, 5.0]]).tolist() == [6]
    assert people.n_entities == 7
    answer = people.respond([6], [0], Y)
    np.testing.assert_allclose(answer.cost, ((Y[answer.realized] - 5) ** 2).sum(1))
    with pytest.raises(ValueError, match="says nothing about how new entities"):
        SimulatedPopulation(X, MODELS["table"]).add_entities([[0.0, 0.0]])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (([6], [0], np.zeros((3, 2))), "no entity 6"),
        (([0], [3], np.zeros((3, 2))), "no cluster 3"),
        (([0, 1], [0], np.zeros((3, 2))), "of one length"),
        (([0.5], [0], np.zeros((3, 2))), "whole numbers"),
        (([0], [0], np.zeros((3, 5))), r"centers must have shape \(K, 2\)"),
        (([0], [0], np.zeros((4, 3, 2))), "one set per question"),
        (([0], [0], np.full((3, 2), np.nan)), "centers contains NaN at row 0"),
    ],
)
def test_bad_questions(X, asked, message):
    people = SimulatedPopulation(X, random_state=0)
    with pytest.raises(ValueError, match=message):
        people.respond(*asked)
    assert people.n_interactions == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reveal": "all"}, "reveal must be"),
        ({"missing": 1.5}, r"missing must be a number in \[0, 1\]"),
        ({"changes": {0: Passive()}}, "must be an integer >= 1"),
        ({"autonomy": Passive(), "autonomy_proba": np.ones((6, 1, 1))}, "not both"),
    ],
)
def test_bad_populations(X, arguments, message):
    with pytest.raises(ValueError, match=message):
        SimulatedPopulation(X, **arguments)


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_nothing_impossible_is_drawn(seed, K):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(K, 0.3), size=K) * (rng.random((K, K)) < 0.5)
    P += np.eye(K) * 1e-9
    P /= P.sum(1, keepdims=True)
    j = rng.integers(0, K, 500)
    k = _draw_shared(P, j, np.r_[0.0, 1 - 1e-16, rng.random(498)])
    assert (P[j, k] > 0).all()


@given(npst.arrays(np.int64, st.integers(0, 30), elements=st.integers(0, 4)))
def test_repeats_are_counted(values):
    expected = [list(values[:n]).count(v) for n, v in enumerate(values)]
    assert _repeats(values).tolist() == expected


# -- logs -----------------------------------------------------------------------------------------

CENTERS = np.array([[0.0], [8.0]])
PLACES = np.array([[0.0], [9.0], [4.0]])
LOG = {
    "entity": [0, 1, 0, 2],
    "prescribed": [0, 1, 0, 1],
    "realized": [0, 0, 1, 1],
    "cost": [0.0, 81.0, 64.0, 16.0],
    "timestamp": [1, 2, 2, 5],
}


def test_a_log_answers_each_pair_in_turn():
    people = LoggedPopulation(LOG, PLACES, CENTERS)
    answer = people.respond([0, 2, 0, 0], [0, 1, 0, 0], CENTERS)
    assert answer.realized.tolist() == [0, 1, 1, -1]
    assert answer.cost.tolist()[:3] == [0.0, 16.0, 64.0]
    assert np.isnan(answer.cost[3])
    moved = LoggedPopulation(LOG, PLACES, CENTERS).respond([0, 0], [0, 0], CENTERS + 1)
    assert moved.cost.tolist() == [1.0, 81.0]


def test_a_log_is_replayed_once():
    people = LoggedPopulation(pd.DataFrame(LOG), PLACES, CENTERS)
    asked, answer = people.replay(3)
    assert asked.entities.tolist() == [0, 1, 0]
    assert asked.ids is None
    assert answer.realized.tolist() == [0, 0, 1]
    state = people.state_dict()
    assert people.replay(3)[0].entities.tolist() == [2]
    assert len(people.replay(3)[0]) == 0
    people.load_state_dict(state)
    assert people.replay(3)[0].entities.tolist() == [2]
    assert "n_records=4" in repr(people)


def test_a_log_knows_its_number_of_centres():
    with pytest.raises(ValueError, match="3 centres, but the log was recorded with 2"):
        LoggedPopulation(LOG, PLACES, CENTERS).respond([0], [2], np.zeros((3, 1)))
    with pytest.raises(ValueError, match="names 'a' more than once"):
        LoggedPopulation({**LOG, "entity": list("abab")}, PLACES, CENTERS, entity_ids=list("aba"))


def test_series_and_lists_are_taken_by_position():
    frame = pd.DataFrame({"entity": [0, 1, 2], "prescribed": [0, 1, 1]})[::-1]
    asked = Prescriptions(frame["entity"], frame["prescribed"], CENTERS)
    assert asked.take([0]).entities.tolist() == [2]
    assert len(asked.take([])) == 0
    answer = Response([1, np.nan, 0], [0.5, np.nan, 1.0])
    assert answer.realized.tolist() == [1, -1, 0]
    with pytest.raises(ValueError, match=r"realized must hold whole numbers, got .*0\.5"):
        Response([0.5], [1.0])


def test_a_logs_state_covers_used_answers():
    people = LoggedPopulation(LOG, PLACES, CENTERS)
    people.respond([0], [0], CENTERS)
    state = people.state_dict()
    fresh = LoggedPopulation(LOG, PLACES, CENTERS)
    fresh.load_state_dict(state)
    assert fresh.respond([0, 0], [0, 0], CENTERS).realized.tolist() == [1, -1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entity": [0, 7, 0, 2]}, "names entity 7 at row 1"),
        ({"prescribed": [0, 2, 0, 1]}, "prescribed cluster 2 at row 1; clusters are numbered 0 to"),
        ({"realized": [0, 0, -2, 1]}, "realized cluster -2 at row 2"),
        ({"prescribed": [0, 1, -1, 1]}, "prescribed cluster -1 at row 2"),
        ({"realized": [0, 0.5, 1, 1]}, "realized cluster 0.5 at row 1"),
        ({"cost": [0.0, 81.0, 60.0, 16.0]}, "cost at row 2 is 60, but entity 0 is 64 from"),
        ({"cost": [0.0, np.nan, 64.0, 16.0]}, "cost at row 1 is NaN"),
        ({"timestamp": [1, 3, 2, 5]}, r"timestamp at row 2 \(2\) is before"),
        ({"entity": [0, 1]}, "differ in length"),
    ],
)
def test_bad_logs(change, message):
    with pytest.raises(ValueError, match=message):
        LoggedPopulation({**LOG, **change}, PLACES, CENTERS)


@pytest.mark.parametrize("missing", ["entity", "prescribed", "realized"])
def test_missing_columns_are_named(missing):
    log = {name: values for name, values in LOG.items() if name != missing}
    with pytest.raises(ValueError, match=f"no column '{missing}'"):
        LoggedPopulation(log, PLACES, CENTERS)


def test_an_empty_log_is_refused():
    with pytest.raises(ValueError, match="log is empty"):
        LoggedPopulation({name: [] for name in LOG}, PLACES, CENTERS)


def test_entities_by_name():
    log = {**LOG, "entity": ["a", "b", "a", "c"]}
    people = LoggedPopulation(log, PLACES, CENTERS, entity_ids=list("abc"))
    assert people.replay(4)[0].entities.tolist() == [0, 1, 0, 2]


def test_parts_of_questions_and_answers():
    centers = np.arange(6.0).reshape(3, 2, 1)
    asked = Prescriptions(np.arange(3), np.arange(3), centers, np.arange(3) + 10)
    part = asked.take([2, 0])
    assert part.ids.tolist() == [12, 10]
    np.testing.assert_array_equal(part.centers, centers[[2, 0]])
    assert Response(None, np.array([1.0, 2.0])).take([1]).cost.tolist() == [2.0]
    assert list(itertools.chain(part.entities)) == [2, 0]


# -- questions as rows ------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("columns", [(), ("ids",), ("ids", "propensity", "version")])
def test_questions_come_back_from_records(rng, own, columns):
    m = 7
    given = {
        "ids": 10**15 + rng.permutation(m),
        "propensity": rng.random(m),
        "version": rng.integers(0, 5, m),
    }
    centers = rng.normal(size=(m, 3, 2) if own else (3, 2))
    asked = Prescriptions(
        rng.integers(0, 50, m), rng.integers(0, 3, m), centers, **{c: given[c] for c in columns}
    )
    rows = json.loads(json.dumps(asked.to_records()))
    back = Prescriptions.from_records(rows)
    assert back == asked
    assert back.entities.dtype == np.int64
    for name in given:
        assert (getattr(back, name) is None) == (name not in columns)
    order = rng.permutation(m)[:4]
    some = Prescriptions.from_records([rows[n] for n in order])
    assert some == asked.take(order)


def test_questions_are_equal_where_they_ask_the_same(Y):
    def questions(**other):
        given = {
            "entities": [1, 2], "prescribed": [0, 1], "centers": Y, "ids": [5, 6],
            "propensity": [0.5, 0.25], "version": [1, 1],
        }  # fmt: skip
        return Prescriptions(**(given | other))

    assert questions() == questions()
    assert questions() == questions(centers=np.stack([Y, Y]))  # one set for all, or for each
    for other in (
        {"entities": [1, 3]}, {"prescribed": [1, 1]}, {"centers": Y + 1}, {"centers": Y[:2]},
        {"centers": np.stack([Y, Y + 1])}, {"ids": [5, 7]}, {"ids": None}, {"version": [1, 2]},
        {"propensity": [0.5, 0.5]},
    ):  # fmt: skip
        assert questions() != questions(**other)
    assert questions() != "questions"
    with pytest.raises(TypeError, match="unhashable"):
        hash(questions())


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "There are no records"),
        ([{"entity": 1, "centers": [[0.0]]}], "Some records have no 'prescribed'"),
        ([{"entity": 1, "prescribed": 0}], "must have 'centers'"),
        (
            [
                {"entity": 1, "prescribed": 0, "centers": [[0.0]], "id": 3},
                {"entity": 1, "prescribed": 0, "centers": [[0.0]]},
            ],
            "Some records have no 'id'",
        ),
        ([{"entity": "a", "prescribed": 0, "centers": [[0.0]]}], "entities must hold whole"),
    ],
)
def test_records_that_are_no_questions(records, message):
    with pytest.raises(ValueError, match=message):
        Prescriptions.from_records(records)
