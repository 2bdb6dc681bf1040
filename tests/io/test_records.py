"""One reading of logs, from Python: names, numbering, and rows that are odd."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volition import ChoiceClustering, LoggedPopulation, load_model, save_model
from volition.core.costs import SquaredEuclidean
from volition.io.records import LogOptions, read_records
from volition.learning.drift.detector import Change
from volition.plotting import plot_change, plot_relocation


def make_log(seed, policy, gone, n=None, m=None):
    """Return a log, its entities and centres; the cluster ``gone`` never occurs in it."""
    rng = np.random.default_rng(seed)
    K = int(rng.integers(4, 10))
    n, m = n or int(rng.choice([60, 300])), m or int(rng.choice([300, 1500]))
    Y = rng.normal(size=(K, 2)) * 5
    X = Y[rng.integers(0, K, n)] + rng.normal(size=(n, 2)) * rng.choice([0.5, 1.5])
    allowed = np.delete(np.arange(K), gone)
    near = allowed[((X[:, None] - Y[allowed]) ** 2).sum(2).argmin(1)]
    entity, any_ = rng.integers(0, n, m), rng.choice(allowed, m)
    blind = rng.random(m) < (0.2 if policy == "near" else 1.0)
    prescribed = np.where(blind, any_, near[entity])
    away = near[entity] if seed % 2 else rng.choice(allowed, m)
    realized = np.where(rng.random(m) < 0.25, away, prescribed)
    return {"entity": entity, "prescribed": prescribed, "realized": realized}, X, Y


def plus_one(log):
    return {**log, "prescribed": log["prescribed"] + 1, "realized": log["realized"] + 1}


def quietly(*words, **options):
    """Return the population and what was said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        people = LoggedPopulation(*words, **options)
    return people, [str(w.message) for w in caught]


def read_log(X, log, sets, **options):
    return read_records(log, X, np.array(sets), SquaredEuclidean(), LogOptions(**options))


# -- from 0 or from 1 -------------------------------------------------------------------------


def test_logs_from_one_without_their_last_cluster_are_refused():
    refused = 0
    for seed in range(60):
        log, X, Y = make_log(seed, "near", gone=-1)
        try:
            _, said = quietly(plus_one(log), X, Y)
        except ValueError as error:
            refused += "much nearer" in str(error)
        else:  # nothing is ever taken for granted
            assert "if it is numbered from 1, say numbered_from=1" in " ".join(said)
    assert refused >= 55


@pytest.mark.parametrize("policy", ["near", "random"])
@pytest.mark.parametrize(("n", "m"), [(None, None), (4, 6)])
def test_logs_from_zero_without_their_first_cluster_are_not(policy, n, m):
    for seed in range(60):
        log, X, Y = make_log(seed, policy, gone=0, n=n, m=m)
        quietly(log, X, Y)


def test_logs_with_a_zero_are_not_asked_about():
    for seed in range(20):
        log, X, Y = make_log(seed, "random", gone=-1)
        assert not [note for note in quietly(log, X, Y)[1] if "numbered" in note]


def test_a_far_entity_hides_nothing():
    log, X, Y = make_log(2, "near", gone=-1)
    X[0] = 99999999
    with pytest.raises(ValueError, match="if clusters are numbered from 1"):
        LoggedPopulation(plus_one(log), X, Y)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["near", "random"]))
def test_from_one_is_from_zero_by_other_numbers(seed, policy):
    log, X, Y = make_log(seed, policy, gone=-1, n=30, m=60)
    zero, _ = quietly(log, X, Y, numbered_from=0)
    one, said = quietly(plus_one(log), X, Y, numbered_from=1)
    np.testing.assert_array_equal(zero.prescribed, one.prescribed)
    np.testing.assert_array_equal(zero.realized, one.realized)
    assert (zero.center_names, one.center_names) == (None, [str(k + 1) for k in range(len(Y))])
    assert not [note for note in said if "numbered" in note]


def test_costs_that_agree_settle_the_numbering():
    log, X, Y = make_log(0, "random", gone=0)
    log["cost"] = ((X[log["entity"]] - Y[log["realized"]]) ** 2).sum(1)
    assert not quietly(log, X, Y)[1]
    log["prescribed"], log["realized"] = log["prescribed"] - 1, log["realized"] - 1
    with pytest.raises(ValueError, match=r"cost at row 0 is .*; check centers"):
        LoggedPopulation(log, X, Y)


def test_the_answer_must_be_nought_or_one():
    log, X, Y = make_log(0, "near", gone=-1)
    with pytest.raises(ValueError, match="numbered_from must be 0 or 1, got 2"):
        LoggedPopulation(log, X, Y, numbered_from=2)
    with pytest.raises(ValueError, match=r"prescribed cluster 0 at row .*numbered 1 to"):
        LoggedPopulation(log, X, Y, numbered_from=1)


# -- names ------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_names_in_any_order_mean_the_same_centres(seed, random):
    log, X, Y = make_log(seed, "near", gone=-1, n=30, m=60)
    names = [f"site {k}" for k in range(len(Y))]
    order = list(range(len(Y)))
    random.shuffle(order)
    named = log | {what: [names[k] for k in log[what]] for what in ("prescribed", "realized")}
    people, _ = quietly(named, X, Y[order], center_names=[names[k] for k in order])
    assert [names[order[j]] for j in people.prescribed] == named["prescribed"]
    np.testing.assert_array_equal(people.centers[people.realized], Y[log["realized"]])


def test_a_learner_keeps_the_names(tmp_path):
    log, X, Y = make_log(1, "near", gone=-1)
    names = [f"site {k}" for k in range(len(Y))]
    named = log | {what: [names[k] for k in log[what]] for what in ("prescribed", "realized")}

    def fit(log, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = ChoiceClustering(len(Y), family="distance", random_state=0)
            return model.fit_log(X, log, Y, **options)

    by_name, by_number = fit(named, center_names=names), fit(log, numbered_from=0)
    assert by_name.center_names_ == names
    assert by_number.center_names_ is None
    np.testing.assert_array_equal(by_name.labels_, by_number.labels_)
    np.testing.assert_array_equal(by_name.cluster_centers_, by_number.cluster_centers_)
    assert load_model(save_model(by_name, tmp_path / "m.safetensors")).center_names_ == names
    assert ChoiceClustering(2).start(X).center_names_ is None


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a"], "center_names has 1 names, but there are 2 centres"),
        (["a", "a"], "center_names has the name 'a' more than once"),
        (["a", " "], "center_names has no name for centre 1"),
        (["port", "mall"], "prescribed cluster 'b' at row 1; the centres are named port, mall."),
        (["7", "9"], "prescribed cluster 'a' at row 0; the centres are named 7, 9."),
    ],
)
def test_bad_names(names, says):
    log = {"entity": [0, 0], "prescribed": ["a", "b"], "realized": ["a", "a"]}
    log = log if names[0] != "port" else {**log, "prescribed": ["port", "b"]}
    with pytest.raises(ValueError, match=says):
        LoggedPopulation(log, [[0.0]], [[0.0], [1.0]], center_names=names)


def test_names_may_be_numbers():
    log = {"entity": [0, 0], "prescribed": [205, 101], "realized": [101, 101]}
    people = LoggedPopulation(log, [[0.0]], [[0.0], [1.0]], center_names=[101, 205])
    assert people.prescribed.tolist() == [1, 0]


# -- rows -------------------------------------------------------------------------------------

X3, Y2 = np.array([[0.0], [9.0], [4.0]]), np.array([[0.0], [8.0]])


@pytest.mark.parametrize(
    "realized",
    [
        [0, np.nan, 1, 0],
        [0, -1, 1, 0],
        np.array([0, None, 1, 0], dtype=object),
        np.ma.array([0, 7, 1, 0], mask=[0, 1, 0, 0]),
        pd.array([0, None, 1, 0], dtype="Int64"),
        ["0", "", "1", "0"],
    ],
)
def test_no_answer_has_many_faces(realized):
    log = {"entity": [0, 1, 0, 2], "prescribed": [0, 1, 0, 1], "realized": realized}
    with pytest.warns(UserWarning, match="1 row without a realised cluster was left out"):
        people = LoggedPopulation(log, X3, Y2)
    assert people.realized.tolist() == [0, 1, 0]
    assert people.entities.tolist() == [0, 0, 2]


def test_unknown_entities_are_skipped_and_counted():
    log = {"entity": [0, 7, 8, 2], "prescribed": [0, 1, 0, 1], "realized": [0, 1, 1, 1]}
    with pytest.raises(ValueError, match=r"entity 7 at row 1.*\(2 of 4 rows name 2 such\)"):
        LoggedPopulation(log, X3, Y2)
    with pytest.warns(UserWarning, match="2 of 4 rows were left out, because they name 2 unknown"):
        people = LoggedPopulation(log, X3, Y2, skip_unknown=True)
    assert people.entities.tolist() == [0, 2]
    log["propensity"] = [0.5, 0.2, 0.3, 0.6]
    model = ChoiceClustering(2, family="distance", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit_log(X3, log, Y2, skip_unknown=True)
        assert len(model.compare_plans()) == 5  # each row has kept its own propensity
    with pytest.raises(ValueError, match="entity 5 at row 0"):
        LoggedPopulation({**log, "entity": [5, 6, 7, 8]}, X3, Y2, skip_unknown=True)


def test_a_log_says_realised_once():
    log = {"entity": [0], "prescribed": [0], "realised": [1]}
    assert LoggedPopulation(log, X3, Y2).realized.tolist() == [1]
    with pytest.raises(ValueError, match="both columns 'realised' and 'realized'"):
        LoggedPopulation({**log, "realized": [1]}, X3, Y2)


def test_certainty_that_the_log_contradicts():
    log = {"entity": [0, 0, 1], "prescribed": [0, 1, 1], "realized": [0, 1, 1]}
    with pytest.raises(ValueError, match="propensity is 1 everywhere, but entity 0 was"):
        LoggedPopulation({**log, "propensity": [1, 1, 1]}, X3, Y2)
    LoggedPopulation({**log, "propensity": [1, 1, 0.9]}, X3, Y2)
    certain = {"entity": [0, 1, 2], "prescribed": [0, 1, 0], "realized": [0, 1, 1]}
    LoggedPopulation({**certain, "propensity": [1, 1, 1]}, X3, Y2)
    far = {"entity": [0, 1, 2], "prescribed": [0, 0, 0], "realized": [0, 1, 1]}
    with pytest.warns(UserWarning, match="propensity is 1 everywhere, though not all"):
        LoggedPopulation({**far, "propensity": [1, 1, 1]}, X3, Y2)
    # At other centres another prescription is no contradiction.
    moved = {**log, "layout": [0, 1, 0], "propensity": [1, 1, 1]}
    assert read_log(X3, moved, [Y2, Y2[::-1]]).layout.tolist() == [0, 1, 0]


def test_copies_without_times_are_told_only_beyond_chance():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    Y = rng.normal(size=(4, 2))
    j = rng.integers(0, 4, 400)
    k = np.where(rng.random(400) < 0.3, rng.integers(0, 4, 400), j)
    log = {"entity": np.arange(400), "prescribed": j, "realized": k}
    assert not quietly(log, X, Y)[1]
    again = np.r_[np.arange(400), np.arange(60)]
    copied = {name: column[again] for name, column in log.items()}
    said = quietly(copied, X, Y)[1]
    assert "60 rows repeat an earlier row (the first at row 400)" in said[0]
    # Entities that come again and choose as they like are nothing to speak of.
    entity = rng.integers(0, 20, 400)
    assert not quietly({**log, "entity": entity}, X, Y)[1]


def test_another_column_may_tell_rows_apart():
    log = {"entity": [0] * 8, "prescribed": [1, 0] * 4, "realized": [1, 0] * 4}
    log["session"] = ["a", "b", "c", "d", "e", "f", "g", "g"]
    assert not quietly(log, X3, Y2)[1]
    log["session"][6:] = ["a", "b"]
    assert "2 rows repeat an earlier row exactly" in quietly(log, X3, Y2)[1][0]
    log["session"] = ["the same"] * 8
    assert not quietly(log, X3, Y2)[1]


def test_tolerance_of_costs():
    log = {"entity": [0, 1], "prescribed": [0, 1], "realized": [1, 1], "cost": [64.5, 1.0]}
    with pytest.raises(ValueError, match="or allow more with tolerance"):
        read_log(X3, log, [Y2])
    assert read_log(X3, log, [Y2], tolerance=0.01).realized.tolist() == [1, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ChoiceClustering(2, family="distance").fit_log(X3, log, Y2, tolerance=0.01)
    with pytest.raises(ValueError, match="tolerance must be a number"):
        ChoiceClustering(2).fit_log(X3, log, Y2, tolerance=-1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layout": [0, -1]}, "2 layouts, but centers holds one set"),
        ({"layout": [1, 1]}, "layout at row 0 is 1; sets of centres have one number here, 0"),
        ({"propensity": [0.5, 1.5]}, "propensity at row 1 is 1.5"),
        ({"propensity": ["a", "b"]}, "propensity must hold numbers"),
        ({"timestamp": np.array([1, "b"], dtype=object)}, "times of one kind"),
        ({"prescribed": [True, False]}, "column 'prescribed' holds true or false"),
        ({"prescribed": [1e300, 0]}, r"prescribed cluster 1e\+300 at row 0"),
        ({"realized": [-1, -1]}, "no row with a realised cluster"),
        ({"realized": [[0, 1], [1, 0]]}, "must have one dimension"),
    ],
)
def test_odd_columns(change, says):
    log = {"entity": [0, 1], "prescribed": [0, 1], "realized": [1, 1]}
    with pytest.raises(ValueError, match=says):
        LoggedPopulation({**log, **change}, X3, Y2)


def test_pictures_carry_the_names():
    tables = [[90, 10], [10, 90]], [[30, 20], [20, 30]]
    change = Change(5500, 5000, "how often entities obey", 0.9, 0.6, 1e-9, *tables, 100)
    names = ["mall", "$x_{$"]
    figure = plot_change(change, center_names=names)
    assert [label.get_text() for label in figure.axes[2].get_xticklabels()] == names
    figure.canvas.draw()
    X = np.random.default_rng(0).random((20, 2))
    ax = plot_relocation(X, X[:2], X[2:4], np.arange(20) % 2, center_names=names)
    assert {"mall", "$x_{$"} <= {text.get_text() for text in ax.texts}
    ax.figure.canvas.draw()


@pytest.mark.parametrize("name", ["entity", "prescribed", "realized", "layout", "propensity"])
@pytest.mark.parametrize(
    ("values", "what"),
    [([True, False], "true or false"), (np.array(["2026-01-01"] * 2, "datetime64[D]"), "dates")],
)
def test_columns_that_only_numpy_takes_for_numbers_are_refused(name, values, what):
    log = {"entity": [0, 1], "prescribed": [0, 1], "realized": [0, 1]} | {name: values}
    with pytest.raises(ValueError, match=f"column '{name}' holds {what}"):
        ChoiceClustering(2).fit_log(np.array([[0.0], [1.0]]), log, np.array([[0.0], [1.0]]))


def timed(*times):
    log = {"entity": [0, 1, 0, 1][: len(times)], "prescribed": [0, 1, 0, 1][: len(times)]}
    log |= {"realized": [1, 1, 0, 1][: len(times)], "timestamp": list(times)}
    return read_log(X3, log, [Y2]).notes


def test_times_are_compared_as_times():
    for times in (
        ("8", "9", "10", "n/a"),
        ("9", "", "10", "11.5"),
        ("2024-01-31", "2024-02-01 08:00", "2024-02-01T10:00", "2024-10-01"),
        ("2024-02-01T10:00+02:00", "2024-02-01T09:00Z", "nan", "2024-02-01T10:00Z"),
    ):
        assert not any("timestamp" in note for note in timed(*times)), times
    for times, says in (
        (("9", "10", "n/a", "8"), r"row 3 \(8\) is before the one above it \(10\)"),
        (("2024-02-01", "2024-01-31"), r"row 1 \(2024-01-31\) is before"),
    ):
        with pytest.raises(ValueError, match=says):
            timed(*times)


@pytest.mark.parametrize("times", [("8:00", "9:00", "10:00"), ("31/01/2024", "01/02/2024")])
def test_times_that_cannot_be_compared_are_said_so(times):
    (note,) = [note for note in timed(*times) if "timestamp" in note]
    assert f"such as '{times[0]}', are neither numbers nor dates" in note
