import csv
import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from volition import DistanceAutonomy, load_model
from volition.metrics import distortion


@pytest.fixture
def run(command):
    return command


@pytest.fixture
def table(tmp_path, four_groups):
    frame = pd.DataFrame(four_groups[::30], columns=["x", "y"])
    frame.insert(0, "name", [f"s{i}" for i in range(len(frame))])
    frame["load"] = np.arange(len(frame)) % 3 + 1.0
    frame.to_csv(tmp_path / "sensors.csv", index=False)
    return frame


def test_fit_writes_what_it_says(run, table, tmp_path):
    code, out, err = run(
        "fit", "sensors.csv", "-k", 3, "--columns", "x,y", "--weight", "load", "--id", "name",
        "--kappa", 0.3, "--temperature", 100, "--out", "res", "--seed", 1,
    )  # fmt: skip
    assert code == 0, err
    files = {"centers.csv", "assignments.csv", "summary.json", "clusters.png", "model.safetensors"}
    assert set(os.listdir(tmp_path / "res")) == files
    X, weight = table[["x", "y"]].to_numpy(), table["load"].to_numpy()
    centers = pd.read_csv(tmp_path / "res" / "centers.csv")
    assignments = pd.read_csv(tmp_path / "res" / "assignments.csv")
    summary = json.loads((tmp_path / "res" / "summary.json").read_text())
    autonomy = DistanceAutonomy(0.3, temperature=100)
    found = distortion(
        X, centers[["x", "y"]], autonomy, assignments["prescribed"], sample_weight=weight
    )
    assert summary["distortion"] == pytest.approx(found, rel=1e-9)
    assert list(assignments["entity"]) == list(table["name"])
    realized = assignments.filter(like="realized_").to_numpy()
    np.testing.assert_allclose(realized.sum(1), 1, atol=1e-5)
    assert centers["share_prescribed"].sum() == pytest.approx(1)
    np.testing.assert_allclose(
        centers["share_realized"], weight @ realized / weight.sum(), atol=1e-5
    )
    ignored = summary["distortion_if_autonomy_is_ignored"]
    assert ignored > found
    assert f"{100 * (ignored / found - 1):+.2f} %" in out
    model = load_model(tmp_path / "res" / "model.safetensors")
    np.testing.assert_array_equal(model.labels_, assignments["prescribed"])
    assert (tmp_path / "res" / "clusters.png").read_bytes()[:4] == b"\x89PNG"


def test_parquet_and_matrix(run, table, tmp_path):
    table[["x", "y"]].to_parquet(tmp_path / "sensors.parquet")
    (tmp_path / "p.csv").write_text("0.9,0.1\n0.2,0.8\n")
    code, _, err = run("fit", "sensors.parquet", "-k", 2, "--autonomy", "p.csv", "--out", "res")
    assert code == 0, err
    assignments = pd.read_csv(tmp_path / "res" / "assignments.csv")
    p = np.array([[0.9, 0.1], [0.2, 0.8]])
    np.testing.assert_allclose(
        assignments[["realized_0", "realized_1"]], p[assignments["prescribed"]], atol=1e-6
    )


def test_places_on_the_globe(run, tmp_path, rng):
    rows = np.column_stack([rng.normal(51.5, 0.1, 60), rng.normal(-0.1, 0.1, 60)])
    pd.DataFrame(rows, columns=["lat", "lon"]).to_csv(tmp_path / "g.csv", index=False)
    code, out, err = run(
        "fit", "g.csv", "-k", 3, "--metric", "haversine", "--kappa", 0.2, "--temperature", 5,
        "--out", "res",
    )  # fmt: skip
    assert code == 0, err
    assert "(km)" in out


def test_semicolons_and_byte_order_marks(run, tmp_path):
    (tmp_path / "a.csv").write_bytes("﻿x;y\n1;2\n3;4\n5;7\n".encode())
    code, _, err = run("fit", "a.csv", "-k", 2, "--out", "res")
    assert code == 0, err
    with open(tmp_path / "res" / "centers.csv") as stream:
        assert next(csv.reader(stream))[:3] == ["cluster", "x", "y"]


def test_demo(run, tmp_path):
    code, out, err = run("demo", "--out", "d", "--quiet")
    assert code == 0, err
    assert "+44.61 %" in out
    assert "Results in d/" in out
    assert len(os.listdir(tmp_path / "d")) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.csv", "-k", 2], "No such file: none.csv."),
        (["empty.csv", "-k", 2], "empty.csv is empty"),
        (["header.csv", "-k", 2], "has a header but no rows"),
        ([".", "-k", 2], "is a folder"),
        (["sensors.csv", "-k", 2], "line 2, column 'name': 's0' is not a finite number"),
        (["hole.csv", "-k", 2], "line 3, column 'y': an empty cell is not a finite number"),
        (["nan.csv", "-k", 1], "line 2, column 'x': 'nan' is not a finite number"),
        (["ragged.csv", "-k", 1], "line 3: 3 cells, but the header has 2"),
        (["twice.csv", "-k", 1], "the column 'x' more than once"),
        (["binary.csv", "-k", 1], "not a text file in UTF-8"),
        (["bare.csv", "-k", 1], "bare.csv has no header"),
        (["blank.csv", "-k", 1], "line 5, column 'y': 'oops' is not a finite number"),
        (["good.csv", "-k", 2, "--autonomy", "binary.csv"], "binary.csv is not a text file"),
        (["good.csv", "-k", 2, "--out", "taken"], "clusters.png is a folder"),
        (["bad.parquet", "-k", 1], "cannot be read as Parquet"),
        (["sensors.csv", "-k", 2, "--columns", "x,z"], "has no column 'z'; it has name, x, y"),
        (["sensors.csv", "-k", 2, "--columns", "x", "--weight", "w"], "has no column 'w'"),
        (["good.csv", "-k", 0], "n_clusters must be an integer >= 1, got 0"),
        (["good.csv", "-k", 9], "n_clusters=9 must not exceed"),
        (["good.csv", "-k", 2, "--kappa", 1.2], "kappa must be a number in [0, 1], got 1.2"),
        (["good.csv", "-k", 2, "--kappa", 0.2, "--temperature", 0], "temperature must be"),
        (["good.csv", "-k", 2, "--gamma", 0.5], "--gamma needs --kappa"),
        (["good.csv", "-k", 2, "--autonomy", "p3.csv"], "the autonomy matrix is 3 x 3"),
        (["good.csv", "-k", 2, "--autonomy", "sum.csv"], "row 1 sums to 0.9"),
        (["good.csv", "-k", 2, "--autonomy", "word.csv"], "line 1, column 2: 'b' is not a number"),
        (["good.csv", "-k", 2, "--autonomy", "p3.csv", "--kappa", 0.1], "not both"),
        (["good.csv", "-k", 2, "--metric", "taxi"], "metric must be one of"),
        (["good.csv", "-k", 2, "--metric", "haversine"], "latitude 100 at row 2"),
        (["good.csv", "-k", 2, "--solver", "magic"], "solver must be one of"),
        (["lonlat.csv", "-k", 1, "--metric", "haversine"], "takes latitude first"),
        (["good.csv", "-k", 2, "--out", "good.csv"], "good.csv is a file"),
        (["good.csv", "-k", 2, "--weight", "y", "--columns", "x"], "sample_weight is negative"),
        (["good.csv", "-k", 2, "--out", "good.csv/res"], "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(run, table, tmp_path, words, message):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("x,y\n")
    (tmp_path / "hole.csv").write_text("x,y\n1,2\n3,\n")
    (tmp_path / "nan.csv").write_text("x,y\nnan,2\n")
    (tmp_path / "ragged.csv").write_text("x,y\n1,2\n1,2,3\n")
    (tmp_path / "twice.csv").write_text("x,x\n1,2\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "bad.parquet").write_text("no")
    (tmp_path / "bare.csv").write_text("1,2\n3,4\n")
    (tmp_path / "lonlat.csv").write_text("lon,lat\n1,2\n3,4\n")
    (tmp_path / "blank.csv").write_text("x,y\n1,2\n\n3,4\n5,oops\n")
    (tmp_path / "taken" / "clusters.png").mkdir(parents=True)
    (tmp_path / "good.csv").write_text("x,y\n1,2\n3,-1\n100,7\n")
    (tmp_path / "p3.csv").write_text("1,0,0\n0,1,0\n0,0,1\n")
    (tmp_path / "sum.csv").write_text("1,0\n0.5,0.4\n")
    (tmp_path / "word.csv").write_text("1,b\n0,1\n")
    before = sorted(os.listdir(tmp_path))
    code, out, err = run("fit", *words)
    assert code == 2
    assert message in err
    assert err.startswith("volition: ")
    assert err.count("\n") == 1
    assert "Traceback" not in out + err
    assert sorted(os.listdir(tmp_path)) == before
    assert os.listdir(tmp_path / "taken") == ["clusters.png"]


def test_a_failure_while_writing_leaves_the_old_results(run, table, tmp_path, monkeypatch):
    words = ["fit", "sensors.csv", "-k", 2, "--columns", "x,y", "--out", "res"]
    assert run(*words)[0] == 0
    kept = (tmp_path / "res" / "centers.csv").read_bytes()

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("volition.cli.fit.files.save_model", fail)
    code, _, err = run(*words, "--kappa", 0.5, "--overwrite")
    assert code == 2
    assert "No space left" in err
    assert (tmp_path / "res" / "centers.csv").read_bytes() == kept
    assert len(os.listdir(tmp_path / "res")) == 5


def test_installed_command_explains_itself():
    command = os.path.join(os.path.dirname(sys.executable), "volition")
    out = subprocess.run([command, "fit", "--help"], capture_output=True, text=True, check=True)
    for word in ("--clusters", "--kappa", "--autonomy", "--metric", "overrides"):
        assert word in out.stdout
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("volition 0.")


def test_odd_shapes_and_names(run, tmp_path):
    (tmp_path / "one.csv").write_text("a,b,c\n1,2,3\n")
    assert run("fit", "one.csv", "-k", 1, "--out", "deep/er[/a]")[0] == 0
    assert len(os.listdir(tmp_path / "deep" / "er[" / "a]")) == 5
    (tmp_path / "line.csv").write_text("speed\n1\n2\n9\n")
    assert run("fit", "line.csv", "-k", 2, "--kappa", 0.1, "--out", "line")[0] == 0
    (tmp_path / "p.csv").write_text("0.9\t0.1\n0.2\t0.8\n")
    assert run("fit", "line.csv", "-k", 2, "--autonomy", "p.csv", "--out", "line2")[0] == 0


def test_failure_removes_the_folders_it_made(run, table, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("volition.cli.fit.files.save_model", fail)
    code, _, _ = run("fit", "sensors.csv", "-k", 2, "--columns", "x,y", "--out", "p/q/r")
    assert code == 2
    assert not (tmp_path / "p").exists()


def test_notes_a_temperature_that_drowns_distances(run, table):
    words = ["fit", "sensors.csv", "-k", 3, "--columns", "x,y", "--kappa", 0.2, "--overwrite"]
    assert "nearly uniform" in run(*words, "--temperature", 1000)[1]
    assert "nearly uniform" not in run(*words, "--temperature", 0.01)[1]


def test_phase_writes_what_it_says(run, tmp_path, four_groups):
    frame = pd.DataFrame(four_groups[::6], columns=["x", "y"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, out, err = run(
        "phase", "t.csv", "--max-clusters", 6, "--animate", "--out", "res", "--quiet"
    )
    assert code == 0, err
    files = {"persistence.csv", "path.csv", "summary.json", "phase.png", "annealing.gif"}
    assert set(os.listdir(tmp_path / "res")) == files
    summary = json.loads((tmp_path / "res" / "summary.json").read_text())
    ranking = pd.read_csv(tmp_path / "res" / "persistence.csv")
    path = pd.read_csv(tmp_path / "res" / "path.csv")
    assert summary["suggested"] == 4 == ranking["n_clusters"][0]
    assert ranking["persistence"].is_monotonic_decreasing
    assert path["beta"].is_monotonic_increasing
    assert path["n_distinct"].max() > 6
    assert "       4  " in out


def test_phase_with_a_matrix(run, tmp_path, four_groups):
    pd.DataFrame(four_groups[::10], columns=["x", "y"]).to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "p.csv").write_text("0.9,0.1\n0.1,0.9\n")
    code, out, err = run("phase", "t.csv", "--autonomy", "p.csv", "--out", "res")
    assert code == 0, err
    assert "(and beyond)" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nofile.csv"], "No such file"),
        (["sensors.csv", "--columns", "x,z"], "z"),
        (["sensors.csv", "--columns", "x,y", "--max-clusters", 0], "--max-clusters must be"),
        (["sensors.csv", "--columns", "x,y", "--kappa", 2], "kappa"),
        (["sensors.csv", "--columns", "x,y", "--metric", "taxi"], "metric"),
        (["sensors.csv", "--columns", "x,y", "--weight", "none"], "none"),
    ],
)
def test_phase_refuses_bad_input(run, table, tmp_path, words, message):
    code, _, err = run("phase", *words, "--out", "res")
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "res").exists()


def test_a_rushed_fit_is_not_worse_than_ignoring_autonomy(command, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (3000, 2))
    rows = "\n".join(f"{x},{y}" for x, y in X)
    (tmp_path / "a.csv").write_text(f"x,y\n{rows}\n")
    words = ("fit", "a.csv", "-k", 8, "--kappa", 0.3, "--temperature", 0.1, "--quiet")
    for number, budget in enumerate((0.02, 0.2, 0.6)):
        code, _, err = command(*words, "--time-budget", budget, "--out", f"r{number}")
        assert code == 0, err
        summary = json.loads((tmp_path / f"r{number}" / "summary.json").read_text())
        assert summary["excess_cost_percent_if_ignored"] >= -1e-9
