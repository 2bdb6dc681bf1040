import json
import os

import numpy as np
import pandas as pd
import pytest
import torch
from oracle import half_nearest
from safetensors import safe_open
from safetensors.numpy import save_file

from volition import (
    AutonomyAwareClustering,
    CallableAutonomy,
    DistanceAutonomy,
    FixedAutonomy,
    Passive,
    load_model,
    save_model,
)
from volition.annealing.schedules import Critical, Geometric
from volition.core.costs import Haversine, SquaredEuclidean
from volition.solvers import Armijo, FixedPoint


@pytest.fixture
def X(four_groups):
    return four_groups[::20]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"autonomy": Passive()},
        {"autonomy": DistanceAutonomy(0.2, gamma=0.5, temperature=0.1)},
        {"autonomy": FixedAutonomy(0.7 * np.eye(3) + 0.1)},
        {"solver": FixedPoint(fallback=Armijo(step=3.0)), "schedule": Geometric(tau=2.0)},
        {"solver": "gradient", "schedule": Critical(longest=3.0)},
        {"schedule": [1.0, 5.0], "init": np.eye(3)[:, :2], "solver": "gradient"},
        {"metric": "sqhaversine", "n_init": 1},
        {"init": [[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]], "metric": Haversine(squared=True)},
        {"schedule": range(1, 4), "device": torch.device("cpu")},
    ],
    ids=lambda p: "-".join(p) or "plain",
)
def test_models_come_back_equal(tmp_path, X, params):
    model = AutonomyAwareClustering(3, random_state=0, **params).fit(X)
    again = load_model(save_model(model, tmp_path / "m.safetensors"))
    for name in ("cluster_centers_", "labels_", "policy_", "betas_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    for name in ("distortion_", "beta_", "history_", "transitions_", "candidates_", "winner_"):
        assert getattr(again, name) == getattr(model, name)
    for name in ("n_clusters", "autonomy", "solver", "max_iter", "tol", "random_state"):
        assert again.get_params()[name] == model.get_params()[name]
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    again.fit(X)
    np.testing.assert_allclose(again.cluster_centers_, model.cluster_centers_)


def test_groups_and_names_come_back(tmp_path, X, rng):
    frame = pd.DataFrame(X, columns=["a", "b"])
    groups = rng.choice(["u", "v"], len(X))
    autonomy = FixedAutonomy({"u": np.eye(2), "v": [[0.5, 0.5], [0.1, 0.9]]})
    model = AutonomyAwareClustering(2, autonomy=autonomy, random_state=0)
    model.fit(frame, groups=groups)
    again = load_model(save_model(model, tmp_path / "m.safetensors"))
    assert list(again.feature_names_in_) == ["a", "b"]
    np.testing.assert_array_equal(again.predict(frame, groups=groups), model.labels_)


def test_functions_must_be_given_again(tmp_path, X):
    def cost(X, Y):
        return ((X[:, None] - Y[None]) ** 2).sum(-1)

    model = AutonomyAwareClustering(
        2, metric=cost, autonomy=CallableAutonomy(half_nearest), n_init=1, random_state=0
    ).fit(X)
    path = save_model(model, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="Python function as autonomy"):
        load_model(path, metric=cost)
    again = load_model(path, metric=cost, autonomy=half_nearest)
    np.testing.assert_array_equal(again.predict(X), model.labels_)


def test_file_is_complete_or_absent(tmp_path, X, monkeypatch):
    model = AutonomyAwareClustering(2, n_init=1, random_state=0).fit(X)
    path = save_model(model, tmp_path / "m.safetensors")
    kept = path.read_bytes()

    def fail(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save_model(model, path)
    assert path.read_bytes() == kept
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_header_is_json_and_nothing_is_pickled(tmp_path, X):
    model = AutonomyAwareClustering(2, n_init=1, random_state=0).fit(X)
    path = save_model(model, tmp_path / "m.safetensors")
    with safe_open(str(path), framework="numpy") as file:
        header = json.loads(file.metadata()["volition"])
    assert header["format"] == "volition-model"
    assert header["version"] == 3
    assert b"\x80\x04" not in path.read_bytes()[:2]


def test_other_files_are_refused(tmp_path, X):
    with pytest.raises(FileNotFoundError, match="No such file"):
        load_model(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="not a file saved by volition"):
        load_model(tmp_path / "text")
    save_file({"a": np.zeros(2)}, tmp_path / "other")
    with pytest.raises(ValueError, match="not a file saved by volition"):
        load_model(tmp_path / "other")
    header = json.dumps({"format": "volition-model", "version": 99})
    save_file({"a": np.zeros(2)}, tmp_path / "newer", metadata={"volition": header})
    with pytest.raises(ValueError, match="version 99; 'volition-model'"):
        load_model(tmp_path / "newer")
    with pytest.raises(ValueError, match="Only a fitted model"):
        save_model(AutonomyAwareClustering(), tmp_path / "x")


def test_own_costs_must_be_given_again(tmp_path, X):
    class Doubled(SquaredEuclidean):
        def pairwise(self, X, Y):
            return 2 * super().pairwise(X, Y)

    model = AutonomyAwareClustering(2, metric=Doubled(), n_init=1, random_state=0).fit(X)
    path = save_model(model, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="Python function as metric"):
        load_model(path)
    again = load_model(path, metric=Doubled())
    np.testing.assert_allclose(again.transform(X), model.transform(X))
    plain = AutonomyAwareClustering(2, n_init=1, random_state=0).fit(X)
    path = save_model(plain, tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match="holds its own metric"):
        load_model(path, metric=Doubled())
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        save_model(plain, tmp_path / "none" / "m.safetensors")


def test_row_aligned_models_stay_so(tmp_path, X, rng):
    p = rng.dirichlet(np.ones(2), size=(len(X), 2))
    model = AutonomyAwareClustering(2, n_init=1, random_state=0).fit(X, autonomy_proba=p)
    again = load_model(save_model(model, tmp_path / "m.safetensors"))
    with pytest.raises(ValueError, match="fitted with autonomy_proba"):
        again.predict(X)
    np.testing.assert_array_equal(again.predict(X, autonomy_proba=p), model.labels_)
