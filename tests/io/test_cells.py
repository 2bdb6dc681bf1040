"""Cells of files (CSV, Parquet, GeoJSON), and what messages and the terminal show of them."""

from __future__ import annotations

import json
import time
from datetime import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    SimulatedPopulation,
    TabularClustering,
    suggest_n_clusters,
)
from volition.core.costs import cost_unit_name, geographic_hint
from volition.core.messages import a_few, printable, shortened
from volition.io.cells import read_cells
from volition.io.tables import read_log, read_table

# -- files of other kinds ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("e.xlsx", "e.xlsx is an Excel file; save the sheet as CSV."),
        ("e.XLS", "is an Excel file; save the sheet as CSV."),
        ("e.ods", "is a spreadsheet; save the sheet as CSV."),
        ("e.json", "is a JSON file; save it as CSV, or call it .geojson if it holds GeoJSON"),
        ("e.zip", "is a packed file; unpack it"),
        ("packed.csv", "packed.csv is a packed file; unpack it"),
        ("folder.csv", "folder.csv is a folder"),
    ],
)
def test_other_files_say_what_to_do(command, tmp_path, name, says):
    (tmp_path / "folder.csv").mkdir()
    if name != "folder.csv":
        (tmp_path / name).write_bytes(b"PK\x03\x04 and so on" if name == "packed.csv" else b"{}")
    for words in (("fit", name, "-k", 2), ("phase", name)):
        code, _, err = command(*words, "--out", "r")
        assert code == 2
        assert says in err
        assert err.count("\n") == 1


def points(places, properties=None):
    properties = properties or [{} for _ in places]
    return {
        "type": "FeatureCollection",
        "features": [
            {"type": "Feature", "geometry": {"type": "Point", "coordinates": p}, "properties": q}
            for p, q in zip(places, properties, strict=True)
        ],
    }


def test_points_of_geojson_are_read(command, tmp_path):
    rng = np.random.default_rng(0)
    places = np.c_[rng.uniform(8, 9, 30), rng.uniform(50, 51, 30)]
    more = [{"name": f"s{n}", "load": n % 3 + 1} for n in range(30)]
    (tmp_path / "e.geojson").write_text(json.dumps(points(places.tolist(), more)))
    words = (
        "fit",
        "e.geojson",
        "-k",
        2,
        "--columns",
        "latitude,longitude",
        "--metric",
        "haversine",
    )
    code, out, err = command(*words, "--id", "name", "--weight", "load", "--out", "r", "--quiet")
    assert code == 0, err
    assert "30 entities (latitude, longitude)" in out
    table = read_table(tmp_path / "e.geojson", ["latitude", "longitude"], "load", "name")
    np.testing.assert_array_equal(table.values, places[:, ::-1])
    assert table.ids[3] == "s3"
    assert read_cells(tmp_path / "e.geojson").header == ["latitude", "longitude", "name", "load"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "cannot be read as GeoJSON"),
        ("[" * 100_000, "cannot be read as GeoJSON"),
        ("[]", "must hold a GeoJSON FeatureCollection of points"),
        ({"type": "FeatureCollection"}, "FeatureCollection with a list 'features'"),
        ({"type": "FeatureCollection", "features": [3]}, "feature 1 is no geometry; only points"),
        (points([[1, 2]], [{"latitude": 3}]), "has a property 'latitude', which is also"),
        (points([[1, 2], ["a", 3]]), "feature 2: a point's coordinates must be [longitude"),
        (points([[1, 2], [True, 3]]), "feature 2: a point's coordinates must be [longitude"),
        (points([[1, 2]], [{"x": [1, 2]}]), "column 'x' holds lists, not numbers"),
        (points([[1, 2], [3, 4]], [{"x": 1}, {}]), "feature 2, column 'x': an empty cell is not"),
        (points([[1, 2]], [[3]]), "feature 1: 'properties' must be an object"),
        (points([]), "has a header but no rows"),
    ],
)
def test_other_geojson_is_one_sentence(tmp_path, content, says):
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "e.geojson").write_text(text)
    with pytest.raises(ValueError) as error:
        read_table(tmp_path / "e.geojson")
    assert says in str(error.value)


def test_lines_and_areas_are_no_points(tmp_path):
    content = points([[1, 2]])
    content["features"][0]["geometry"] = {"type": "LineString", "coordinates": [[1, 2], [3, 4]]}
    (tmp_path / "e.geojson").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="feature 1 is a 'LineString'; only points are read"):
        read_table(tmp_path / "e.geojson")


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([[1.0, 2.0], [3.0, 4.0]]), "holds lists"),
        (pa.array([[1.0], [3.0]], pa.list_(pa.float64(), 1)), "holds lists"),
        (pa.array([True, False]), "holds true or false"),
        (pa.array([b"1", b"2"]), "holds bytes"),
        (pa.array([{"a": 1}, {"a": 2}]), "holds nested values"),
        (pa.array([datetime(2026, 1, 1)] * 2), "holds dates or times"),
        (pa.array(["1", "x"]).dictionary_encode(), "row 2, column 'z': 'x' is not a finite number"),
    ],
)
def test_parquet_columns_that_are_no_numbers(tmp_path, column, says):
    path = tmp_path / "e.parquet"
    pq.write_table(pa.table({"x": [0.0, 1.0], "z": column}), path)
    with pytest.raises(ValueError, match=says):
        read_table(path)
    with pytest.raises(ValueError, match=says):
        read_table(path, ["x"], weight="z")
    np.testing.assert_array_equal(read_table(path, ["x"]).values, [[0.0], [1.0]])


def test_parquet_with_a_column_twice(tmp_path):
    path = tmp_path / "e.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], ["x", "x"]), path)
    with pytest.raises(ValueError, match="has the column 'x' more than once"):
        read_table(path)


def test_a_log_in_parquet(tmp_path):
    columns = {"entity": [1, 2, 3], "prescribed": [0, 1, 0], "realized": [1, None, 0]}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    log = read_log(tmp_path / "log.parquet")
    assert log.columns["entity"].tolist() == ["1", "3"]
    assert (log.lines, log.unanswered) == ([1, 3], 1)
    pq.write_table(pa.table({**columns, "realized": [[0], [1], [0]]}), tmp_path / "log.parquet")
    with pytest.raises(ValueError, match="column 'realized' holds lists"):
        read_log(tmp_path / "log.parquet")


# -- arrays -----------------------------------------------------------------------------------

ODD = {
    "masked": (
        np.ma.array(np.ones((4, 2)), mask=np.eye(4, 2)),
        "X is a masked array, and 2 of its",
    ),
    "dates": (np.full((4, 2), np.datetime64("2026-01-01")), "X holds dates or times"),
    "spans": (np.full((4, 2), np.timedelta64(3, "s")), "X holds dates or times"),
    "frame": (
        pd.DataFrame({"x": np.ones(4), "when": pd.date_range("2026-01-01", periods=4)}),
        "column 'when' of X holds dates or times",
    ),
    "complex": (np.ones((4, 2)) * 1j, "Complex data not supported"),
}


@pytest.mark.parametrize("kind", ODD)
def test_arrays_that_are_no_numbers(kind):
    X, says = ODD[kind]
    people = SimulatedPopulation(np.ones((4, 2)))
    calls = [
        lambda: AutonomyAwareClustering(2).fit(X),
        lambda: suggest_n_clusters(X),
        lambda: SimulatedPopulation(X),
        *(
            (lambda learner=learner: learner(2).fit(X, population=people))
            for learner in (TabularClustering, ChoiceClustering, ADENClustering)
        ),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=says):
            call()


def test_masks_that_hide_nothing_do_no_harm():
    X = np.ma.array(np.random.default_rng(0).random((20, 2)))
    plain = AutonomyAwareClustering(2, random_state=0).fit(X.data)
    masked = AutonomyAwareClustering(2, random_state=0).fit(X)
    np.testing.assert_array_equal(plain.cluster_centers_, masked.cluster_centers_)


# -- messages ---------------------------------------------------------------------------------


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_shown(text):
    for shown in (printable(text), shortened(text), a_few([text] * 20)):
        assert all(c.isprintable() or c in "\n\t" for c in shown)
    assert len(shortened(text)) < 900
    assert printable("plain ä 中") == "plain ä 中"


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(code=st.sampled_from(["\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\x08", "\x7f", "\u202e"]))
def test_escape_sequences_never_reach_the_terminal(command, tmp_path, code):
    (tmp_path / "cell.csv").write_text(f"x,y\n1,{code}2\n", encoding="utf-8")
    (tmp_path / "name.csv").write_text(f"x,y{code}\n1,oops\n", encoding="utf-8")
    for name in ("cell.csv", "name.csv", f"no{code}file.csv"):
        result, out, err = command("fit", name, "-k", 1, "--out", "r")
        assert result == 2
        assert code not in out + err
        assert err.isprintable() or err.count("\n") == 1


def test_escape_sequences_in_names_of_columns_are_written_out(command, tmp_path):
    bad = "x\x1b[31m"
    (tmp_path / "e.csv").write_text(f"{bad},y\n0,1\n1,0\n5,5\n", encoding="utf-8")
    code, out, err = command("phase", "e.csv", "--max-clusters", 2, "--out", "r", "--quiet")
    assert code == 0, err
    assert "\x1b" not in out + err
    assert "3 entities (x\\x1b[31m, y)" in out


def test_long_cells_are_cut(command, tmp_path):
    (tmp_path / "e.csv").write_text("x,y\n1," + "9" * 5000 + "\n")
    code, _, err = command("fit", "e.csv", "-k", 1, "--out", "r")
    assert code == 2
    assert "(5000 characters) is not a finite number" in err
    assert len(err) < 250
    (tmp_path / "m.csv").write_text("1," + "z" * 5000 + "\n0,1\n")
    code, _, err = command("fit", "e.csv", "-k", 2, "--autonomy", "m.csv", "--out", "r")
    assert code == 2
    assert len(err) < 300


def test_wide_tables_are_read_in_linear_time(tmp_path):
    names = [f"column {n}" for n in range(40_000)]
    (tmp_path / "wide.csv").write_text(",".join([*names, names[-1]]) + "\n")
    began = time.process_time()
    with pytest.raises(ValueError, match="has the column 'column 39999' more than once"):
        read_table(tmp_path / "wide.csv")
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n" + ",".join(["1"] * 40_000) + "\n")
    with pytest.raises(ValueError, match=r"no column 'z'; it has column 0, .* \(40000 in all\)"):
        read_table(tmp_path / "wide.csv", ["z"])
    assert time.process_time() - began < 3


# -- units ------------------------------------------------------------------------------------


def test_units_of_costs():
    assert cost_unit_name("haversine", ["lat", "lon"]) == "km"
    assert cost_unit_name("sqeuclidean", [f"c{n}" for n in range(9)]) == (
        "squared units of the columns"
    )
    assert cost_unit_name(lambda X, Y: X @ Y.T) == ""


@pytest.mark.parametrize(
    ("metric", "columns", "largest", "hints"),
    [
        ("sqeuclidean", ["lat", "lon"], 50, True),
        ("sqeuclidean", ["Longitude", "Latitude"], 50, True),
        ("sqeuclidean", ["stop_lat", "load", "stop_lng"], 50, True),
        ("sqeuclidean", ["lat", "lon"], 500_000, False),
        ("haversine", ["lat", "lon"], 50, False),
        ("sqeuclidean", ["flat", "along"], 50, False),
        ("sqeuclidean", ["x", "y"], 50, False),
    ],
)
def test_degrees_get_a_hint(metric, columns, largest, hints):
    X = np.full((3, len(columns)), float(largest))
    hint = geographic_hint(metric, columns, X)
    assert (hint is not None) == hints


def test_commands_hint_and_name_units(command, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.uniform(50, 51, (20, 2)), columns=["lat", "lon"])
    frame.to_csv(tmp_path / "e.csv", index=False)
    frame[:2].to_csv(tmp_path / "c.csv", index=False)
    rows = {"entity": np.arange(20), "prescribed": np.arange(20) % 2, "realized": np.arange(20) % 2}
    pd.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
    logged = ("--log", "log.csv", "--entities", "e.csv", "--centers", "c.csv")
    for words in (
        ("fit", "e.csv", "-k", 2),
        ("phase", "e.csv", "--max-clusters", 3),
        ("learn", *logged),
        ("estimate", *logged, "--family", "distance"),
    ):
        code, out, err = command(*words, "--quiet", "--out", words[0])
        assert code == 0, err
        assert "columns lat and lon look like degrees" in out
        assert "--metric haversine --columns lat,lon" in out
        assert "squared units of lat, lon" in out
    code, out, err = command("fit", "e.csv", "-k", 2, "--metric", "haversine", "--out", "r")
    assert code == 0, err
    assert "look like degrees" not in out
    assert "cost per entity (km)" in out
