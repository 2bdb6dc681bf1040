"""``volition estimate`` as a user meets it: a log in, a model, centres and their costs out."""

from __future__ import annotations

import csv
import json
from collections import Counter

import numpy as np
import pytest

from volition import AutonomyAwareClustering, ChoiceAutonomy, SimulatedPopulation, load_autonomy
from volition.core.problem import Problem
from volition.datasets import load_four_groups


def write(path, header, rows):
    with open(path, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four groups with a covariate, and a log of 4,000 choices."""
    folder = tmp_path_factory.mktemp("log")
    X, rng = load_four_groups().data, np.random.default_rng(0)
    van = (rng.random((len(X), 1)) < 0.4).astype(float)
    truth = ChoiceAutonomy(
        {"constant": [2.0], "covariates": [-2.0]}, {"pair": [-50.0]}, covariates=van
    )
    today = AutonomyAwareClustering(4, random_state=0).fit(X)
    entity = rng.integers(0, len(X), 4000)
    near = today.labels_[entity]
    prescribed = np.where(rng.random(4000) < 0.2, rng.integers(0, 4, 4000), near)
    chance = np.where(prescribed == near, 0.85, 0.05)
    people = SimulatedPopulation(X, truth, random_state=1)
    realized = people.respond(entity, prescribed, today.cluster_centers_).realized
    names = [f"s{i}" for i in range(len(X))]
    write(folder / "s.csv", ["name", "x", "y", "van"], zip(names, *X.T, van[:, 0], strict=True))
    write(folder / "c.csv", ["x", "y"], today.cluster_centers_.tolist())
    rows = [
        [names[i], j, k, c] for i, j, k, c in zip(entity, prescribed, realized, chance, strict=True)
    ]
    write(folder / "log.csv", ["entity", "prescribed", "realized", "propensity"], rows)
    return folder


@pytest.fixture
def run(command, monkeypatch, folder):
    monkeypatch.chdir(folder)
    return command


LOG = ("estimate", "--log", "log.csv", "--entities", "s.csv", "--centers", "c.csv", "--id", "name")


def test_a_log_leads_to_a_decision(run, folder):
    code, out, err = run(*LOG, "--covariates", "van", "--out", "r")
    assert (code, err) == (0, "")
    assert "Whether they obey depends on: the entity's covariates." in out
    assert "The centres never moved in this log" in out
    written = {path.name for path in (folder / "r").iterdir()}
    assert written == {
        "autonomy.safetensors", "estimates.csv", "parameters.csv", "models.csv", "centers.csv",
        "moves.csv", "assignments.csv", "summary.json", "calibration.png", "plan-costs.png",
        "map.png",
    }  # fmt: skip
    summary = json.loads((folder / "r" / "summary.json").read_text())
    assert summary["n_choices"] == 4000
    plans = summary["plans"]
    assert summary["recommended"]["name"] == "moved centres"
    assert plans["moved centres"]["expected"] < plans["autonomy ignored"]["expected"]
    assert "* Recommended: moved centres." in out
    assert "Overrides: " in out
    assert "van = 1" in out
    with open(folder / "r" / "estimates.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0]["option"] == "today"
    assert float(rows[-1]["saving_low"]) > 0
    named = {row.split(",")[0] for row in (folder / "r" / "parameters.csv").read_text().split("\n")}
    assert "stay: covariates[van]" in named
    with open(folder / "r" / "moves.csv", encoding="utf-8") as stream:
        moves = list(csv.DictReader(stream))
    with open(folder / "log.csv", encoding="utf-8") as stream:
        log = [(row["entity"], int(row["realized"])) for row in csv.DictReader(stream)]
    often = Counter(entity for entity, _ in log)
    shares = np.zeros(4)
    for entity, k in log:
        shares[k] += 1 / often[entity] / len(often)
    seen = [float(row["share_realized_today"]) for row in moves]
    np.testing.assert_allclose(seen, shares, atol=1e-6)
    for name in ("share_prescribed", "share_realized"):
        assert sum(float(row[name]) for row in moves) == pytest.approx(1, abs=1e-5)
    today = np.loadtxt(folder / "c.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose([float(row["x_today"]) for row in moves], today[:, 0])
    model = load_autonomy(folder / "r" / "autonomy.safetensors")
    assert set(model.stay) == {"constant", "covariates"}


def test_fit_takes_the_model_that_was_learned(run, folder):
    if not (folder / "r").exists():
        run(*LOG, "--covariates", "van", "--out", "r")
    words = ("fit", "s.csv", "-k", 4, "--id", "name", "--autonomy", "r/autonomy.safetensors")
    code, out, err = run(*words, "--out", "f", "--quiet")
    assert (code, err) == (0, "")
    assert "1800 entities (x, y)" in out  # the covariate is no coordinate
    found = json.loads((folder / "f" / "summary.json").read_text())["distortion"]
    expected = json.loads((folder / "r" / "summary.json").read_text())["plans"]["moved centres"]
    assert found == pytest.approx(expected["expected"], rel=1e-3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--metric", "haversine"), "was learned with metric 'sqeuclidean'"),
        (("--columns", "x,van"), "was learned with columns x,y, not x,van"),
    ],
)
def test_fit_takes_a_model_only_where_it_holds(run, folder, options, says):
    from volition import save_autonomy

    model = ChoiceAutonomy({"constant": [1.0]}, {"pair": [-50.0]})
    facts = {"columns": ["x", "y"], "covariates": [], "metric": "sqeuclidean"}
    save_autonomy(model, folder / "m.safetensors", **facts)
    words = ("fit", "s.csv", "-k", 4, "--autonomy", "m.safetensors", "--out", "none")
    code, _, err = run(*words, *options)
    assert code == 2
    assert says in err


def test_the_family_and_the_metric_can_be_told(run, folder):
    words = (*LOG, "--family", "distance", "--columns", "x,y", "--out", "d")
    code, out, _ = run(*words)
    assert code == 0
    assert "kappa = 0.2" in out
    assert "gamma = " in out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--log": "none.csv"}, "No such file: none.csv."),
        ({"--covariates": "lorry"}, "s.csv has no column 'lorry'"),
        ({"--columns": "x,z"}, "c.csv has no column 'z'"),
        ({"--family": "deep"}, "family must be one of 'auto', 'distance'"),
        ({"--metric": "taxi"}, "metric"),
        ({"--id": "x"}, "The log names entity 's"),
        ({"--centers": "two.csv"}, "clusters are numbered 0 to 1"),
        ({"--centers": "uneven.csv"}, "must number sets of equally many centres"),
    ],
)
def test_bad_input_is_one_sentence(run, folder, change, says):
    write(folder / "two.csv", ["x", "y"], [[0.1, 0.1], [0.9, 0.9]])
    write(folder / "uneven.csv", ["layout", "x", "y"], [[0, 0.1, 0.1], [0, 1, 1], [1, 0.9, 0.9]])
    words = list(LOG)
    for name, value in change.items():
        if name in words:
            words[words.index(name) + 1] = value
        else:
            words += [name, value]
    code, out, err = run(*words, "--out", "bad")
    assert code == 2
    assert says in err
    assert err.startswith("volition: ")
    assert err.count("\n") == 1
    assert out == ""
    assert not (folder / "bad").exists()


def test_several_sets_of_centres(run, folder):
    X, rng = load_four_groups().data, np.random.default_rng(1)
    sets = X[rng.integers(0, len(X), (3, 4))]
    layout = np.sort(rng.integers(0, 3, 3000))
    entity, prescribed = rng.integers(0, len(X), 3000), rng.integers(0, 4, 3000)
    truth = ChoiceAutonomy({"constant": [1.0]}, {"pair": [-50.0]})
    people = SimulatedPopulation(X, truth, random_state=1)
    realized = people.respond(entity, prescribed, sets[layout]).realized
    write(folder / "e.csv", ["x", "y"], X.tolist())
    rows = [[n, *center] for n, Y in enumerate(sets.tolist()) for center in Y]
    write(folder / "sets.csv", ["layout", "x", "y"], rows)
    rows = zip(entity, prescribed, realized, layout, strict=True)
    write(folder / "l3.csv", ["entity", "prescribed", "realized", "layout"], rows)
    words = ("estimate", "--log", "l3.csv", "--entities", "e.csv", "--centers", "sets.csv")
    code, out, err = run(*words, "--out", "r3")
    assert (code, err) == (0, "")
    assert "The log has 3 sets of centres." in out
    reached = json.loads((folder / "r3" / "summary.json").read_text())
    known = AutonomyAwareClustering(4, autonomy=truth, random_state=0).fit(X).distortion_
    centers = np.loadtxt(folder / "r3" / "centers.csv", delimiter=",", skiprows=1)[:, 1:]
    assert Problem(X, autonomy=truth).distortion(centers) < 1.01 * known
    assert reached["extrapolation"]["n_layouts"] == 3


def test_rows_without_an_answer_are_counted(run, folder):
    lines = (folder / "log.csv").read_text().splitlines()
    silent = [line.split(",") for line in lines[1:4]]
    lines[1:4] = [",".join([*cells[:2], "", cells[3]]) for cells in silent]
    (folder / "gaps.csv").write_text("\n".join(lines))
    words = ["gaps.csv" if word == "log.csv" else word for word in LOG]
    code, out, _ = run(*words, "--family", "distance", "--out", "g")
    assert code == 0
    assert "3997 choices of 1800 entities" in out
    assert "3 rows without a realised cluster were left out." in out


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """Cars override in 35 % of rows, vans in 10 %; in a second log the nearest is always told."""
    folder, rng = tmp_path_factory.mktemp("town"), np.random.default_rng(0)
    X, Y = rng.uniform(0, 10, (300, 2)), np.array([[2.0, 2.0], [8.0, 2.0], [5.0, 8.0]])
    kind = np.where(rng.random(300) < 0.5, "car", "van")
    order = ((X[:, None] - Y) ** 2).sum(-1).argsort(1)
    plates = [f"p{i}" for i in range(300)]
    rows = zip(range(300), *X.T, kind, plates, strict=True)
    write(folder / "s.csv", ["name", "x", "y", "kind", "plate"], rows)
    write(folder / "c.csv", ["x", "y"], Y.tolist())
    entity = rng.integers(0, 300, 3000)
    for name, share in (("log.csv", 0.1), ("nearest.csv", 0.0)):
        blind = rng.random(3000) < share
        told = np.where(blind, rng.integers(0, 3, 3000), order[entity, 0])
        leaves = rng.random(3000) < np.where(kind[entity] == "car", 0.35, 0.1)
        other = np.where(order[entity, 0] == told, order[entity, 1], order[entity, 0])
        log = zip(entity, told, np.where(leaves, other, told), strict=True)
        write(folder / name, ["entity", "prescribed", "realized"], log)
    seen = {k: kind[entity] == k for k in ("car", "van")}
    return folder, {k: 100 * leaves[rows].mean() for k, rows in seen.items()}


TOWN = ("estimate", "--entities", "s.csv", "--centers", "c.csv", "--id", "name", "--quiet")


def test_covariates_may_be_text(command, monkeypatch, town):
    folder, shares = town
    monkeypatch.chdir(folder)
    words = (*TOWN, "--log", "nearest.csv", "--covariates", "kind", "--out", "k")
    code, out, err = command(*words, "--numbered-from", 0)
    assert (code, err) == (0, "")
    for kind, share in shares.items():
        text = f"{share:.0f}" if share >= 10 else f"{share:.1f}"
        assert f"  kind={kind}: {text} % (" in out
    named = (folder / "k" / "parameters.csv").read_text()
    assert "stay: covariates[kind=van]," in named
    assert "kind=car" not in named
    words = ("fit", "s.csv", "-k", 3, "--id", "name", "--quiet")
    code, _, err = command(*words, "--autonomy", "k/autonomy.safetensors", "--out", "f")
    assert (code, err) == (0, "")
    found = json.loads((folder / "f" / "summary.json").read_text())["distortion"]
    expected = json.loads((folder / "k" / "summary.json").read_text())["plans"]["moved centres"]
    assert found == pytest.approx(expected["expected"], rel=1e-3)
    changed = (folder / "s.csv").read_text().replace(",van,", ",tram,")
    (folder / "t.csv").write_text(changed)
    words = ("fit", "t.csv", "-k", 3, "--id", "name", "--autonomy", "k/autonomy.safetensors")
    code, _, err = command(*words, "--out", "none")
    assert code == 2
    assert "'kind' is 'tram' for some entity, which the model has never seen" in err
    words = (*TOWN, "--log", "log.csv", "--covariates", "plate", "--out", "none")
    code, _, err = command(*words, "--numbered-from", 0)
    assert code == 2
    assert "covariate 'plate' holds 300 different texts; at most 20 are allowed" in err
    (folder / "t.csv").write_text(changed.replace(",tram,", ",7,"))
    words = (*TOWN, "--log", "log.csv", "--covariates", "kind", "--out", "none")
    code, _, err = command(*words, "--numbered-from", 0, "--entities", "t.csv")
    assert code == 2
    assert "is not a finite number" in err


def test_a_log_of_one_prescription_does_not_contradict_itself(command, monkeypatch, town):
    monkeypatch.chdir(town[0])
    words = (*TOWN, "--log", "nearest.csv", "--covariates", "kind", "--out", "n")
    _, out, _ = command(*words, "--numbered-from", 0)
    assert "the model holds in the log for the prescriptions that it has tried" in out
    assert "says nothing of plans that tell them to" in out
    assert "guess" not in out


def test_costs_of_a_model_that_the_log_contradicts_are_not_written(command, monkeypatch, town):
    folder, _ = town
    monkeypatch.chdir(folder)
    # Without the covariate, some entities override more than the model knows.
    _, out, _ = command(*TOWN, "--log", "log.csv", "--out", "m", "--numbered-from", 0)
    assert "The log contradicts the model" in out
    assert "expected_cost in assignments.csv and share_realized in moves.csv are empty" in out
    for name, column in (("assignments.csv", "expected_cost"), ("moves.csv", "share_realized")):
        with open(folder / "m" / name, encoding="utf-8") as stream:
            assert {row[column] for row in csv.DictReader(stream)} == {""}


@pytest.mark.parametrize(("every", "share", "judged"), [(10, "10 %", True), (3, "33 %", False)])
def test_rows_without_an_answer_are_a_caution_beside_the_figures(run, folder, every, share, judged):
    lines = (folder / "log.csv").read_text().split()
    for number in range(1, len(lines), every):
        entity, told, _, chance = lines[number].split(",")
        lines[number] = f"{entity},{told},,{chance}"
    (folder / "some.csv").write_text("\n".join(lines) + "\n")
    words = [word if word != "log.csv" else "some.csv" for word in LOG]
    code, out, err = run(*words, "--family", "distance", "--out", f"some{every}")
    assert (code, err) == (0, "")
    out = " ".join(out.split())
    assert out.count(f"{share} of the rows have no answer: if those who override answer less") == 1
    assert judged == ("no cost has an interval" not in out)
    summary = json.loads((folder / f"some{every}" / "summary.json").read_text())
    assert (summary["plans"]["today"]["expected_low"] is not None) == judged


def test_what_is_assumed_without_propensities_is_said_beside_the_figures(run, folder):
    lines = (folder / "log.csv").read_text().split()
    (folder / "bare.csv").write_text("\n".join(line.rsplit(",", 1)[0] for line in lines) + "\n")
    words = [word if word != "log.csv" else "bare.csv" for word in LOG]
    code, out, err = run(*words, "--covariates", "van", "--family", "distance", "--out", "bare")
    assert (code, err) == (0, "")
    out = " ".join(out.split())
    assert out.count("Note: The log has no propensities, so these are counted") == 1
    notes = json.loads((folder / "bare" / "summary.json").read_text())["recommended"]["notes"]
    assert len(notes) == 1
