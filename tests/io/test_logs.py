"""Logs with their entities and centres, read from files: order, names, numbers, odd rows."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from volition import load_model
from volition.io.logs import read_centers, read_logged

CENTERS = np.array([[0.0, 0.0], [3.0, 3.0], [6.0, 6.0]])


def write(path, header, rows):
    with open(path, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])


@pytest.fixture
def command(command, tmp_path):
    """Run a command; what it wrote before is gone."""

    def call(*words):
        shutil.rmtree(tmp_path / "r", ignore_errors=True)
        return command(*words)

    return call


@pytest.fixture
def files(tmp_path):
    """60 entities around three centres; each is told the nearest one or another, and overrides."""
    rng = np.random.default_rng(0)
    X = CENTERS[np.arange(60) % 3] + rng.normal(0, 0.7, (60, 2))
    near = np.arange(60) % 3
    entity = rng.integers(0, 60, 400)
    prescribed = np.where(rng.random(400) < 0.3, rng.integers(0, 3, 400), near[entity])
    realized = np.where(rng.random(400) < 0.2, near[entity], prescribed)
    write(tmp_path / "e.csv", ["x", "y"], X.tolist())
    write(tmp_path / "c.csv", ["cluster", "x", "y"], [[k, *y] for k, y in enumerate(CENTERS)])
    log = list(zip(entity, prescribed, realized, strict=True))
    write(tmp_path / "log.csv", ["entity", "prescribed", "realized"], log)
    return tmp_path, X, log


WORDS = ("--log", "log.csv", "--entities", "e.csv", "--centers", "c.csv")
ESTIMATE = ("estimate", *WORDS, "--family", "distance", "--out", "r")
LEARN = ("learn", *WORDS, "--out", "r")


def figures(folder):
    return json.loads((folder / "r" / "summary.json").read_text())["plans"]["today"]["direct"]


# -- the order of centres ---------------------------------------------------------------------


def test_centres_are_ordered_by_their_cluster(command, files):
    """The attack: rows 2, 1, 0 gave another cost of today than rows 0, 1, 2."""
    folder, _, _ = files
    assert command(*ESTIMATE)[0] == 0
    in_order = figures(folder)
    write(folder / "c.csv", ["cluster", "x", "y"], [[k, *CENTERS[k]] for k in (2, 1, 0)])
    code, _, err = command(*ESTIMATE)
    assert code == 0, err
    assert figures(folder) == in_order
    code, _, err = command(*LEARN)
    assert code == 0, err
    learned = load_model(folder / "r" / "state.safetensors")
    assert ((learned.cluster_centers_ - CENTERS) ** 2).sum(1).max() < 1


@pytest.mark.parametrize("command_", ["estimate", "learn"])
@pytest.mark.parametrize(
    ("header", "rows", "says"),
    [
        ("cluster", [0, 1, 1], "c.csv has cluster '1' more than once"),
        ("cluster", [0, 1, 3], "c.csv has no cluster 2"),
        ("cluster", [0, 1, 0.5], "c.csv has no cluster 2"),
        ("cluster", [0, 1, ""], "line 4: the column cluster is empty"),
        ("cluster", ["mall", "port", "mall"], "has cluster 'mall' more than once"),
        ("layout", [0, 0, -1], "layout must number sets of equally many centres 0, 1, ..."),
        ("layout", [0, 0, 0.5], "and line 4 has 0.5"),
        ("layout", [0, 0, 1e12], "and line 4 has 1e+12"),
        ("layout", [0, 0, 2], "there is no 1"),
        ("name", ["a", "a", "b"], "column name: it has the name 'a' more than once"),
    ],
)
def test_what_does_not_order_them_is_one_sentence(command, files, command_, header, rows, says):
    folder, _, _ = files
    write(
        folder / "c.csv", [header, "x", "y"], [[k, *y] for k, y in zip(rows, CENTERS, strict=True)]
    )
    code, _, err = command(command_, *WORDS, "--out", "r")
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
    assert not (folder / "r").exists()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(order=st.permutations(range(6)), names=st.booleans())
def test_the_order_of_rows_means_nothing(tmp_path, order, names):
    """Two sets of three centres, rows in any order."""
    labels = ["b", "c", "a"] if names else [0, 1, 2]
    rows = [[n, labels[k], 10 * n + k] for n in range(2) for k in range(3)]
    write(tmp_path / "c.csv", ["layout", "cluster", "x"], [rows[i] for i in order])
    found = read_centers(tmp_path / "c.csv")
    wanted = [[2, 0, 1], [12, 10, 11]] if names else [[0, 1, 2], [10, 11, 12]]
    assert found.layouts[:, :, 0].tolist() == wanted
    assert found.names == (["a", "b", "c"] if names else None)


def test_sets_of_centres_have_the_same_clusters(tmp_path):
    rows = [[0, "a", 1], [0, "b", 2], [1, "a", 1], [1, "c", 2]]
    write(tmp_path / "c.csv", ["layout", "cluster", "x"], rows)
    with pytest.raises(ValueError, match="has no cluster 'b' in layout 1; every set must"):
        read_centers(tmp_path / "c.csv")


def test_text_columns_of_centres_do_no_harm(command, files):
    folder, _, _ = files
    rows = [[k, *y, "north road"] for k, y in enumerate(CENTERS)]
    write(folder / "c.csv", ["cluster", "x", "y", "address"], rows)
    for words in (ESTIMATE, LEARN):
        code, _, err = command(*words, "--columns", "x,y")
        assert code == 0, err
        code, _, err = command(*words)
        assert code == 2
        assert "column 'address': 'north road' is not a finite number; choose numeric" in err


# -- names ------------------------------------------------------------------------------------

NAMES = ["port", "mall", "airport"]


def name_all(folder, log, column="cluster"):
    write(
        folder / "c.csv", [column, "x", "y"], [[n, *y] for n, y in zip(NAMES, CENTERS, strict=True)]
    )
    named = [[i, NAMES[j], NAMES[k]] for i, j, k in log]
    write(folder / "log.csv", ["entity", "prescribed", "realized"], named)


@pytest.mark.parametrize("column", ["cluster", "site"])
def test_clusters_may_have_names_everywhere(command, files, column):
    folder, _, log = files
    assert command(*ESTIMATE)[0] == 0
    by_number = figures(folder)
    with open(folder / "r" / "assignments.csv", encoding="utf-8") as stream:
        expected = [NAMES[int(row["prescribed"])] for row in csv.DictReader(stream)]
    name_all(folder, log, column)
    code, _, err = command(*ESTIMATE)
    assert code == 0, err
    np.testing.assert_allclose(figures(folder), by_number, rtol=1e-3)
    for name in ("centers.csv", "moves.csv"):
        with open(folder / "r" / name, encoding="utf-8") as stream:
            assert {row["cluster"] for row in csv.DictReader(stream)} == set(NAMES)
    with open(folder / "r" / "assignments.csv", encoding="utf-8") as stream:
        found = [row["prescribed"] for row in csv.DictReader(stream)]
    assert np.mean(np.array(found) == expected) > 0.95
    code, _, err = command(*LEARN)
    assert code == 0, err
    with open(folder / "r" / "centers.csv", encoding="utf-8") as stream:
        rows = {
            row["cluster"]: [float(row["x"]), float(row["y"])] for row in csv.DictReader(stream)
        }
    for name, center in zip(NAMES, CENTERS, strict=True):
        assert np.square(rows[name] - center).sum() < 1


@pytest.mark.parametrize("command_", ["estimate", "learn"])
def test_unknown_names_are_told(command, files, command_):
    folder, _, log = files
    name_all(folder, log)
    with open(folder / "log.csv", "a", encoding="utf-8") as stream:
        stream.write("3,mal,port\n")
    code, _, err = command(command_, *WORDS, "--out", "r")
    assert code == 2
    assert "log.csv: The log has prescribed cluster 'mal' at line 402; " in err
    assert "the centres are named airport, mall, port." in err
    write(folder / "c.csv", ["x", "y"], CENTERS.tolist())
    code, _, err = command(command_, *WORDS, "--out", "r")
    assert code == 2
    assert "the centres have no names: give them some" in err
    # Where the centres have names, numbers mean nothing.
    name_all(folder, log)
    write(folder / "log.csv", ["entity", "prescribed", "realized"], log)
    code, _, err = command(command_, *WORDS, "--out", "r")
    assert code == 2
    assert "the centres are named airport, mall, port." in err


def test_a_cluster_column_may_count_from_one(command, files):
    folder, _, log = files
    assert command(*ESTIMATE)[0] == 0
    expected = figures(folder)
    write(folder / "c.csv", ["cluster", "x", "y"], [[k + 1, *CENTERS[k]] for k in (1, 2, 0)])
    more = [[i, j + 1, k + 1] for i, j, k in log]
    write(folder / "log.csv", ["entity", "prescribed", "realized"], more)
    code, _, err = command(*ESTIMATE)
    assert code == 0, err
    assert figures(folder) == expected
    with open(folder / "r" / "moves.csv", encoding="utf-8") as stream:
        assert [row["cluster"] for row in csv.DictReader(stream)] == ["1", "2", "3"]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(order=st.permutations(range(3)), column=st.sampled_from(["cluster", "name"]))
def test_new_names_permute_what_is_read(files, order, column):
    folder, _, log = files
    new = [["a", "b", "c"][order[k]] for k in range(3)]
    rows = [[n, *y] for n, y in zip(new, CENTERS, strict=True)]
    write(folder / "c.csv", [column, "x", "y"], rows)
    named = [[i, new[j], new[k]] for i, j, k in log]
    write(folder / "log.csv", ["entity", "prescribed", "realized"], named)
    paths = (folder / "log.csv", folder / "e.csv", folder / "c.csv")
    read = read_logged(*paths, None, None, None, "sqeuclidean")
    assert read.centers.names == ["a", "b", "c"]
    for k in range(3):
        np.testing.assert_array_equal(read.centers.layouts[0, order[k]], CENTERS[k])


# -- which number is the first ----------------------------------------------------------------


def count_from_one(folder, log):
    """The planner's log: from 1, and its last cluster happens to be missing."""
    more = [[i, j + 1, k + 1] for i, j, k in log if 2 not in (j, k)]
    write(folder / "log.csv", ["entity", "prescribed", "realized"], more)


def test_a_log_that_counts_from_one_is_asked_about(command, files):
    folder, _, log = files
    kept = [row for row in log if 2 not in row[1:]]
    write(folder / "log.csv", ["entity", "prescribed", "realized"], kept)
    assert command(*ESTIMATE)[0] == 0
    truth = figures(folder)
    count_from_one(folder, log)
    for words in (ESTIMATE, LEARN):
        code, out, err = command(*words)
        assert (code, out) == (2, "")
        assert "The log never has cluster 0, and entities are much nearer to what was" in err
        assert "if clusters are numbered from 1 (median cost " in err
        assert "--numbered-from 1" in err
    code, out, err = command(*ESTIMATE, "--numbered-from", 1)
    assert code == 0, err
    assert figures(folder) == truth
    with open(folder / "r" / "moves.csv", encoding="utf-8") as stream:
        assert [row["cluster"] for row in csv.DictReader(stream)] == ["1", "2", "3"]
    for first in (0, 1):  # whatever the user answers
        code, _, err = command(*LEARN, "--numbered-from", first)
        assert code == 0, err


def test_a_log_with_all_numbers_from_one_is_asked_about(command, files):
    folder, _, log = files
    more = [[i, j + 1, k + 1] for i, j, k in log]
    write(folder / "log.csv", ["entity", "prescribed", "realized"], more)
    code, _, err = command(*ESTIMATE)
    assert code == 2
    assert "The log's clusters go from 1 to 3, never 0, and there are 3 centres" in err
    assert "--numbered-from 1" in err
    assert command(*ESTIMATE, "--numbered-from", 1)[0] == 0


def test_the_first_number_is_nought_or_one(command, files):
    code, _, err = command(*ESTIMATE, "--numbered-from", 2)
    assert code == 2
    assert err == "volition: log.csv: numbered_from must be 0 or 1, got 2.\n"


def test_costs_tell_the_numbering(command, files):
    folder, X, log = files
    cost = [((X[i] - CENTERS[k]) ** 2).sum() for i, _, k in log]
    both = [(i, j, k, c) for (i, j, k), c in zip(log, cost, strict=True) if 2 not in (j, k)]
    # Prescriptions say nothing here; costs do.
    rng = np.random.default_rng(1)
    both = [(i, int(rng.integers(0, 2)), k, c) for i, _, k, c in both]
    head = ["entity", "prescribed", "realized", "cost"]
    write(folder / "log.csv", head, [[i, j + 1, k + 1, c] for i, j, k, c in both])
    code, _, err = command(*ESTIMATE)
    assert code == 2
    assert "costs are those of its realised clusters only if clusters are numbered from 1" in err
    assert command(*ESTIMATE, "--numbered-from", 1)[0] == 0


# -- odd rows ---------------------------------------------------------------------------------


def add(folder, *lines):
    with open(folder / "log.csv", "a", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in lines)


@pytest.mark.parametrize("words", [ESTIMATE, LEARN])
def test_unknown_entities_may_be_skipped(command, files, words):
    folder, _, _ = files
    add(folder, "99,0,0", "77,1,1", "99,2,2")
    code, _, err = command(*words)
    assert code == 2
    assert "names entity '99' at line 402, which is not among the 60 entities" in err
    assert "(3 of 403 rows name 2 such)" in err
    assert "--skip-unknown" in err
    code, out, err = command(*words, "--skip-unknown")
    assert code == 0, err
    assert "3 of 403 rows were left out, because they name 2 unknown entities." in out
    assert "400 choices" in out or "400 answers" in out


@pytest.mark.parametrize("words", [ESTIMATE, LEARN])
def test_rows_without_an_answer_are_counted(command, files, words):
    folder, _, _ = files
    add(folder, "3,0,", "4,1,-1")
    code, out, err = command(*words)
    assert code == 0, err
    assert "2 rows without a realised cluster were left out." in out
    assert "400 choices" in out or "400 answers" in out


@pytest.mark.parametrize("words", [ESTIMATE, LEARN])
def test_copies_are_counted(command, files, words):
    folder, _, log = files
    rows = [[*row, f"2026-01-01 {n:05d}"] for n, row in enumerate(log)]
    head = ["entity", "prescribed", "realized", "timestamp"]
    write(folder / "log.csv", head, rows)
    code, out, err = command(*words)
    assert code == 0, err
    assert "repeat" not in out
    write(folder / "log.csv", head, sorted([*rows, *rows[:60]], key=lambda row: row[3]))
    code, out, err = command(*words)
    assert code == 0, err
    assert "60 rows repeat an earlier row exactly, with the same entity, clusters and" in out
    assert "(the first at line 3)" in out


@pytest.mark.parametrize("command_", ["estimate", "learn"])
@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("layout", -1, "The log's layout at line 2 is -1; sets of centres have one number here, 0"),
        ("layout", 0.5, "layout at line 2 is 0.5"),
        ("layout", 1e12, "layout at line 2 is 1e+12"),
        ("realised", 1, "log.csv has both columns 'realised' and 'realized'; keep one"),
        ("propensity", 1, "propensity is 1 everywhere, but "),
        ("propensity", 0, "propensity at line 2 is 0; what was prescribed had a probability"),
        ("propensity", "x", "line 2, column 'propensity': 'x' is not a finite number"),
        ("cost", "9" * 5000, "...' (5000 characters) is not a finite number"),
    ],
)
def test_odd_columns_are_one_sentence(command, files, command_, column, value, says):
    folder, _, log = files
    rows = [[*row, value] for row in log]
    write(folder / "log.csv", ["entity", "prescribed", "realized", column], rows)
    code, out, err = command(command_, *WORDS, "--out", "r")
    assert (code, out) == (2, "")
    assert says in err
    assert len(err) < 400
    assert err.count("\n") == 1
    assert not (folder / "r").exists()


def test_costs_may_be_a_little_off(command, files):
    folder, X, log = files
    rows = [[i, j, k, 1.01 * ((X[i] - CENTERS[k]) ** 2).sum()] for i, j, k in log]
    write(folder / "log.csv", ["entity", "prescribed", "realized", "cost"], rows)
    code, _, err = command(*ESTIMATE)
    assert code == 2
    assert "or allow more with tolerance (--tolerance; now 0.0001, the worst is off by" in err
    for words in (ESTIMATE, LEARN):
        code, _, err = command(*words, "--tolerance", 0.02)
        assert code == 0, err


def test_learning_takes_one_set_of_centres(command, files):
    folder, _, _ = files
    rows = [[n, k, *y] for n in range(2) for k, y in enumerate(CENTERS)]
    write(folder / "c.csv", ["layout", "cluster", "x", "y"], rows)
    code, _, err = command(*LEARN)
    assert code == 2
    assert "c.csv has 2 sets of centres; learning from a log takes one" in err


@pytest.mark.parametrize("words", [ESTIMATE, LEARN])
@pytest.mark.parametrize("column", ["station", "id", "center", "name"])
def test_a_column_that_numbers_the_centres_otherwise_is_asked_about(command, files, words, column):
    folder, _, _ = files
    head = [column, "x", "y"]
    for first in (0, 1):
        rows = [[first + k, *CENTERS[k]] for k in (1, 0, 2)]
        write(folder / "c.csv", head, rows)
        code, _, err = command(*words, "--columns", "x,y")
        assert code == 2
        assert f"c.csv: the column '{column}' numbers the centres {first} to {first + 2}" in err
        assert "rename it to cluster if the log means these numbers, or drop it" in err
    write(folder / "c.csv", head, [[k, *y] for k, y in enumerate(CENTERS)])
    code, _, err = command(*words, "--columns", "x,y")
    assert code == 0, err
    if column != "name":
        code, _, err = command(*words)
        assert code == 2
        assert f"e.csv has no column '{column}', which c.csv has; if it says which" in err
        assert "rename it there to cluster" in err


def test_a_cluster_column_may_have_a_capital(files):
    folder, _, _ = files
    write(folder / "c.csv", ["Cluster", "x", "y"], [[k, *CENTERS[k]] for k in (2, 0, 1)])
    for columns in (None, "x,y"):
        found = read_centers(folder / "c.csv", columns)
        np.testing.assert_array_equal(found.layouts[0], CENTERS)
        assert found.in_order


@pytest.mark.parametrize("words", [ESTIMATE, LEARN, ("fit", "e.csv", "-k", 2)])
def test_a_column_counts_once(command, files, words):
    code, _, err = command(*words, "--columns", "x,x")
    assert code == 2
    assert "--columns names 'x' more than once." in err
