"""Saved placements: recommended to other entities, judged, compared."""

import json

import numpy as np
import pandas as pd
import pytest

from volition import AutonomyAwareClustering, DistanceAutonomy, FixedAutonomy, save_model
from volition.metrics import distortion

NEAR = DistanceAutonomy(0.3, gamma=0.5, temperature=0.1)


@pytest.fixture
def table(tmp_path, four_groups):
    frame = pd.DataFrame(four_groups[::40], columns=["x", "y"])
    frame.insert(0, "name", [f"s{i}" for i in range(len(frame))])
    frame["load"] = np.arange(len(frame)) % 3 + 0.5
    frame["told"] = np.arange(len(frame)) % 3
    frame.to_csv(tmp_path / "entities.csv", index=False)
    return frame


def place(frame, path, K=3, autonomy=NEAR, columns=("x", "y"), metric="sqeuclidean", **options):
    model = AutonomyAwareClustering(K, autonomy=autonomy, metric=metric, random_state=0, **options)
    save_model(model.fit(frame[list(columns)]), path)
    return model


def by_hand(model, X, autonomy):
    """Return direct costs and p[i, j, k] entry by entry, by the definition."""
    Y = model.cluster_centers_
    D = ((X[:, None] - Y[None]) ** 2).sum(2)
    apart = ((Y[:, None] - Y[None]) ** 2).sum(2)
    p = np.zeros((len(X), len(Y), len(Y)))
    for j in range(len(Y)):
        others = [k for k in range(len(Y)) if k != j]
        logits = -(autonomy.zeta * apart[j] + autonomy.gamma * D) / autonomy.temperature
        away = np.exp(logits[:, others])
        p[:, j, others] = autonomy.kappa * away / away.sum(1, keepdims=True)
        p[:, j, j] = 1 - autonomy.kappa
    return D, p


def test_predictions_are_the_best_by_brute_force(command, table, tmp_path):
    model = place(table, tmp_path / "model.safetensors")
    new = table[["name", "y", "x"]].iloc[::-2]  # other rows, and columns in another order
    new.to_csv(tmp_path / "new.csv", index=False)
    code, said, err = command("predict", "model.safetensors", "new.csv", "--id", "name")
    assert code == 0, err
    found = pd.read_csv(tmp_path / "volition-predictions" / "assignments.csv")
    D, p = by_hand(model, new[["x", "y"]].to_numpy(), NEAR)
    expected = np.einsum("ijk,ik->ij", p, D)
    assert list(found["entity"]) == list(new["name"])
    np.testing.assert_array_equal(found["prescribed"], expected.argmin(1))
    np.testing.assert_allclose(found["expected_cost"], expected.min(1), rtol=1e-5)
    np.testing.assert_allclose(found["follows"], 0.7, rtol=1e-5)
    assert "70.0 % are expected to follow" in said


@pytest.mark.parametrize("today", [False, True])
def test_an_evaluation_agrees_with_brute_force(today, command, table, tmp_path):
    model = place(table, tmp_path / "model.safetensors")
    words = ["--prescribed", "told"] if today else []
    code, said, err = command(
        "evaluate", "model.safetensors", "entities.csv", "--weight", "load", "--within", 0.05,
        "--out", "judged", *words,
    )  # fmt: skip
    assert code == 0, err
    found = json.loads((tmp_path / "judged" / "summary.json").read_text())
    D, p = by_hand(model, table[["x", "y"]].to_numpy(), NEAR)
    each = np.einsum("ijk,ik->ij", p, D)
    rows = np.arange(len(table))
    labels = table["told"].to_numpy() if today else each.argmin(1)
    share = (table["load"] / table["load"].sum()).to_numpy()
    expected, used = each[rows, labels], p[rows, labels]
    assert found["expected_cost"] == pytest.approx(share @ expected, rel=1e-9)
    assert found["expected_cost_if_best_is_recommended"] == pytest.approx(share @ each.min(1))
    assert found["share_within"] == pytest.approx(share @ (used * (D <= 0.05)).sum(1))
    np.testing.assert_allclose(found["share_used"], share @ used, rtol=1e-9)
    np.testing.assert_allclose(found["share_recommended"], np.bincount(labels, share, 3))
    assert share[expected <= found["95_percent_of_entities_at_most"]].sum() >= 0.95 - 1e-9
    assert share[expected < found["95_percent_of_entities_at_most"]].sum() < 0.95
    assert found["most_expensive_entity"] == pytest.approx(expected.max())
    loads = pd.read_csv(tmp_path / "judged" / "loads.csv")
    np.testing.assert_allclose(loads["share_used"], found["share_used"])
    assert ("With the best recommendation" in said) == today


def test_a_comparison_prices_both_on_the_same_entities(command, table, tmp_path):
    old = place(table.iloc[:20], tmp_path / "may.safetensors")
    new = place(table, tmp_path / "june.safetensors")
    code, said, err = command(
        "compare", "may.safetensors", "june.safetensors", "--data", "entities.csv", "--weight",
        "load", "--out", "apart",
    )  # fmt: skip
    assert code == 0, err
    found = json.loads((tmp_path / "apart" / "summary.json").read_text())
    X = table[["x", "y"]].to_numpy()
    for name, model in (("first", old), ("second", new)):
        cost = distortion(X, model.cluster_centers_, NEAR, sample_weight=table["load"])
        assert found["costs"][0][name] == pytest.approx(cost, rel=1e-9)
    more = 100 * (found["costs"][0]["first"] / found["costs"][0]["second"] - 1)
    assert more > 0
    assert f"Keeping may.safetensors is {more:.2g} % worse." in said
    assert len(found["costs"]) == 1  # both assume the same behaviour
    moves = pd.read_csv(tmp_path / "apart" / "moves.csv")
    A, B = old.cluster_centers_[moves["first"]], new.cluster_centers_[moves["second"]]
    np.testing.assert_allclose(moves["distance"], np.linalg.norm(A - B, axis=1), atol=1e-12)


def test_a_matrix_of_probabilities_follows_the_matching(command, table, tmp_path):
    matrix = FixedAutonomy([[0.6, 0.4, 0.0], [0.0, 0.8, 0.2], [0.1, 0.0, 0.9]])
    model = place(table, tmp_path / "a.safetensors", autonomy=matrix)
    # The same places in another order: matched, they must cost the same.
    init = model.cluster_centers_[[2, 0, 1]]
    other = place(table, tmp_path / "b.safetensors", autonomy=DistanceAutonomy(0.2))
    other.cluster_centers_ = init
    save_model(other, tmp_path / "b.safetensors")
    for pair in (("a", "b"), ("b", "a")):
        names = [f"{one}.safetensors" for one in pair]
        code, _, err = command("compare", *names, "--data", "entities.csv", "--out", pair[0])
        assert code == 0, err
        costs = json.loads((tmp_path / pair[0] / "summary.json").read_text())["costs"]
        assert [one["behaviour_of"] for one in costs] == ["second", "first"]
        for one in costs:
            assert one["first"] == pytest.approx(one["second"], rel=1e-9)


def test_moves_on_the_globe_are_in_kilometres_and_extra_centres_have_no_partner(
    command, table, tmp_path
):
    globe = pd.DataFrame({"lat": 51.5 + 0.1 * table["x"], "lon": 0.1 * table["y"]})
    options = {"columns": ("lat", "lon"), "metric": "sqhaversine"}
    one = place(globe, tmp_path / "a.safetensors", K=2, **options)
    place(globe, tmp_path / "b.safetensors", K=3, **options)
    code, said, err = command("compare", "a.safetensors", "b.safetensors", "--out", "apart")
    assert code == 0, err
    assert "distance (km)" in said
    moves = pd.read_csv(tmp_path / "apart" / "moves.csv")
    assert moves["first"].isna().sum() == 1
    assert "no partner" in said
    assert moves["distance"].max() < 20
    assert len(one.cluster_centers_) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("predict nothing.safetensors entities.csv", "nothing.safetensors is not a model"),
        ("predict entities.csv entities.csv", "entities.csv"),
        ("predict model.safetensors other.csv", "has no column"),
        ("predict model.safetensors entities.csv --columns x", "needs 2 columns"),
        ("evaluate model.safetensors entities.csv --within -1", "--within must be a cost"),
        ("evaluate model.safetensors entities.csv --prescribed load", "is no centre"),
        ("evaluate rows.safetensors entities.csv", "each single entity"),
        ("compare model.safetensors model.safetensors --weight load", "belong to --data"),
        ("compare model.safetensors globe.safetensors", "cannot be compared"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    words, sentence, command, table, tmp_path
):
    place(table, tmp_path / "model.safetensors")
    globe = table.rename(columns={"x": "lat", "y": "lon"})
    place(globe, tmp_path / "globe.safetensors", columns=("lat", "lon"), metric="sqhaversine")
    p = np.full((len(table), 3, 3), 1 / 3)
    rows = AutonomyAwareClustering(3, random_state=0)
    save_model(rows.fit(table[["x", "y"]], autonomy_proba=p), tmp_path / "rows.safetensors")
    pd.DataFrame({"a": [1.0], "b": [2.0]}).to_csv(tmp_path / "other.csv", index=False)
    before = sorted(path.name for path in tmp_path.iterdir())
    code, said, err = command(*words.split())
    assert (code, said) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before
