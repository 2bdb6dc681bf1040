"""What all learners have in common with each other and with scikit-learn."""

import inspect
import logging
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    DataWarning,
    FixedAutonomy,
    LoggedPopulation,
    OutlierWarning,
    Recipe,
    SimulatedPopulation,
    TabularClustering,
    UnreliableWarning,
    load_model,
)
from volition.core.autonomy import RowAutonomy
from volition.learning.networks import ADENetwork, NetworkSize
from volition.learning.networks.network import save_network

rng = np.random.default_rng(0)
X = np.concatenate([rng.normal(size=(30, 2)), rng.normal(4.0, size=(30, 2))])
FRAME = pd.DataFrame(X, columns=["east", "north"])
TINY = Recipe(
    hidden_dim=4, ff_dim=4, n_blocks=1, n_heads=1, n_layouts=2, n_samples=16, replicas=1, epochs=1,
    updates=1, center_epochs=1, beta_min=1.0, beta_max=4.0, tau=2.0, head="costs",
)  # fmt: skip
LEARNERS = {
    "counts": TabularClustering(3, n_interactions=300, random_state=0),
    "table of costs": TabularClustering(3, estimate="costs", n_interactions=300, random_state=0),
    "choices": ChoiceClustering(3, family="distance", n_interactions=300, random_state=0),
    "costs": ADENClustering(3, preset=TINY, n_interactions=300, random_state=0),
    "not yet decided": ADENClustering(3, n_interactions=60, random_state=0),
}
each = pytest.mark.parametrize("name", LEARNERS)


def people():
    return SimulatedPopulation(X, FixedAutonomy(0.7 * np.eye(3) + 0.1), random_state=0)


@pytest.fixture(scope="module")
def fitted():
    """Return each learner, fitted to a frame, once."""
    known = {}

    def get(name):
        if name not in known:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # few answers
                known[name] = clone(LEARNERS[name]).fit(FRAME, population=people())
        return known[name]

    return get


@each
def test_before_the_start_there_is_nothing(name, tmp_path):
    model = clone(LEARNERS[name])
    asked = clone(LEARNERS[name]).start(X).ask(3)
    answers = people().respond(asked.entities, asked.prescribed, asked.centers)
    for call in (
        model.ask, model.learn, model.reason_to_stop, model.finalize, model.expected_costs,
        model.distortion_estimate, lambda: model.tell(asked, answers), lambda: model.predict(X),
        lambda: model.predict_proba(X), lambda: model.predict_realized(X),
        lambda: model.transform(X), lambda: model.score(X), lambda: model.add_entities(X),
        lambda: model.remove_entities([0]), lambda: model.save(tmp_path / "m"),
        lambda: model.get_feature_names_out(),
    ):  # fmt: skip
        with pytest.raises(NotFittedError, match=r"has not begun: call start\(X\)|not fitted yet"):
            call()
    for attribute in ("labels_", "cluster_centers_", "distortion_", "history_", "n_answers_"):
        with pytest.raises(NotFittedError):
            getattr(model, attribute)
        assert not hasattr(model, attribute)


@each
def test_results_are_read_and_not_written(name, fitted):
    model = fitted(name)
    for attribute in ("labels_", "cluster_centers_", "distortion_", "n_interactions_", "model_"):
        with pytest.raises(AttributeError):
            setattr(model, attribute, None)


@each
def test_all_results_are_of_one_kind(name, fitted, tmp_path):
    model = fitted(name)
    for one in (
        model,
        load_model(model.save(tmp_path / "m.safetensors")),
        clone(model).start(FRAME),
    ):
        assert one.labels_.dtype == np.int64
        assert one.labels_.shape == (60,)
        assert one.cluster_centers_.dtype == np.float64
        assert one.cluster_centers_.shape == (3, 2)
        assert isinstance(one.distortion_, float)
        assert one.expected_costs().shape == (60, 3)
        assert one.predict(FRAME[:5]).shape == (5,)
        assert one.predict(FRAME[:5]).dtype == np.int64
        np.testing.assert_allclose(one.predict_proba(FRAME[:5]).sum(1), 1)
        assert isinstance(one.history_, list)
        assert one.n_features_in_ == 2
    names = {"interactions", "answers", "beta", "distortion", "observed", "low", "high"}
    assert all(names <= set(line._fields) for line in model.history_)


@each
def test_swapped_columns_are_refused(name, fitted, tmp_path):
    model = fitted(name)
    swapped = FRAME[["north", "east"]]
    for one in (model, load_model(model.save(tmp_path / "m.safetensors"))):
        assert one.feature_names_in_.tolist() == ["east", "north"]
        for call in (one.predict, one.transform, one.predict_proba, one.score, one.add_entities):
            with pytest.raises(ValueError, match="feature names should match"):
                call(swapped)
        assert len(one.labels_) == 60
        np.testing.assert_array_equal(one.transform(FRAME), one.expected_costs(FRAME))


@each
def test_a_start_that_is_refused_changes_nothing(name):
    model = clone(LEARNERS[name]).start(FRAME)
    model.ask(5)
    for wrong in (FRAME[["north"]].assign(west=np.nan), FRAME[:2]):
        with pytest.raises(ValueError, match=r"."):
            model.start(wrong)
    assert model.feature_names_in_.tolist() == ["east", "north"]
    assert model.n_interactions_ == 5
    begun = clone(LEARNERS[name])
    with pytest.raises(ValueError, match=r"."):
        begun.start(FRAME[:2])
    assert not hasattr(begun, "feature_names_in_")


@each
def test_expected_costs_may_be_frames(name, fitted):
    model = fitted(name)
    prefix = type(model).__name__.lower()
    names = [f"{prefix}{k}" for k in range(3)]
    assert model.get_feature_names_out().tolist() == names
    plain = model.transform(FRAME)
    assert isinstance(plain, np.ndarray)
    try:
        model.set_output(transform="pandas")
        found = model.transform(FRAME)
    finally:
        model.set_output(transform="default")
    assert list(found.columns) == names
    np.testing.assert_array_equal(found.to_numpy(), plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = (
            clone(model).set_output(transform="pandas").fit_transform(FRAME, population=people())
        )
    np.testing.assert_array_equal(other.to_numpy(), plain)


@each
def test_scores_are_minus_costs(name, fitted):
    model = fitted(name)
    costs, labels = model.transform(FRAME), model.predict(FRAME)
    mine = costs[np.arange(60), labels]
    assert model.score(FRAME) == pytest.approx(-mine.mean())
    weight = np.linspace(0, 1, 60)
    assert model.score(FRAME, sample_weight=weight) == pytest.approx(
        -np.average(mine, weights=weight)
    )


# -- what all four estimators share, by their signatures and by what they say ---------------------

ALL = (AutonomyAwareClustering, TabularClustering, ChoiceClustering, ADENClustering)
SHARED = ("predict", "predict_proba", "predict_realized", "transform", "score", "set_output")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_the_same_things_have_the_same_names(kind):
    model = kind(3)
    assert all(callable(getattr(model, name)) for name in SHARED)
    params = model.get_params()
    assert {"n_clusters", "metric", "tol", "random_state"} <= set(params)
    if kind is AutonomyAwareClustering:
        return
    assert {"n_interactions", "exploration"} <= set(params)
    for name in (
        "start", "fit", "partial_fit", "predict", "predict_proba", "predict_realized", "transform",
        "fit_transform", "score", "expected_costs", "add_entities",
    ):  # fmt: skip
        assert "covariates" in inspect.signature(getattr(model, name)).parameters, name
    for name in ("start", "fit", "partial_fit", "score", "add_entities"):
        assert "sample_weight" in inspect.signature(getattr(model, name)).parameters, name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_with_known_autonomy_results_are_of_the_same_kind(dtype):
    model = AutonomyAwareClustering(3, n_init=1, random_state=0).fit(FRAME.astype(dtype))
    assert model.labels_.dtype == np.int64
    assert model.predict(FRAME.astype(dtype)).dtype == np.int64
    assert isinstance(model.history_, list)
    assert all({"beta", "distortion"} <= set(line._fields) for line in model.history_)
    swapped = FRAME[["north", "east"]].astype(dtype)
    for name in ("predict", "predict_proba", "predict_realized", "transform", "score"):
        with pytest.raises(ValueError, match="feature names should match"):
            getattr(model, name)(swapped)
        with pytest.raises(NotFittedError):
            getattr(clone(model), name)(FRAME)


def depending_on_covariates():
    """Return entities of which half obey and half do not, and what tells them apart."""
    kind = np.tile([0.0, 1.0], 30)
    p = np.where(kind[:, None, None] > 0, np.full((3, 3), 1 / 3), np.eye(3))
    return pd.DataFrame({"kind": kind}), SimulatedPopulation(X, RowAutonomy(p), random_state=0)


def test_covariates_go_wherever_choices_depend_on_them():
    kinds, crowd = depending_on_covariates()
    model = ChoiceClustering(3, n_interactions=1500, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        costs = model.fit_transform(FRAME, population=crowd, covariates=kinds)
    assert "covariates" in repr(model.model_)
    np.testing.assert_array_equal(costs, model.transform(FRAME, kinds))
    mine = costs[np.arange(60), model.predict(FRAME, kinds)]
    assert model.score(FRAME, covariates=kinds) == pytest.approx(-mine.mean())
    with pytest.raises(ValueError, match="Choices depend on covariates"):
        model.score(FRAME)
    realized = model.predict_realized(FRAME, kinds)
    obeys = realized[np.arange(60), model.predict(FRAME, kinds)]
    assert obeys[::2].mean() > 0.9
    assert obeys[1::2].mean() < 0.6


def test_covariates_that_a_network_does_not_see_are_not_passed_over_in_silence():
    kinds, crowd = depending_on_covariates()
    model = ADENClustering(3, preset=TINY, n_interactions=300, random_state=0)
    with pytest.warns(UnreliableWarning, match="Covariates were given, but what was learned"):
        model.fit(FRAME, population=crowd, covariates=kinds)


@each
def test_callbacks_see_every_batch_and_may_end_a_fit(name):
    class Watcher:
        seen = 0

        def setup(self, estimator, context): ...
        def teardown(self, estimator, context): ...
        def on_fit_task_begin(self, estimator, context): ...
        def on_fit_task_end(self, estimator, context):
            Watcher.seen += 1
            return True

    Watcher.seen = 0
    model = clone(LEARNERS[name]).set_callbacks(Watcher())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(FRAME, population=people())
    assert model.stop_reason_ == "ended by a callback"
    assert Watcher.seen == 2  # one batch, and the fit


def test_warnings_have_kinds_of_their_own():
    assert issubclass(OutlierWarning, DataWarning)
    assert issubclass(DataWarning, UserWarning)
    assert issubclass(UnreliableWarning, UserWarning)
    weight = np.ones(60)
    weight[0] = 1e-300
    with pytest.warns(DataWarning, match="too little to count"):
        AutonomyAwareClustering(2, n_init=1, random_state=0).fit(X, sample_weight=weight)
    log = {"entity": [0, 1, 99], "prescribed": [0, 1, 0], "realized": [0, 1, 0]}
    with pytest.warns(DataWarning, match="left out"):
        LoggedPopulation(log, X, X[:2], skip_unknown=True)


def test_fits_are_logged_and_nothing_is_printed(capsys, caplog, tmp_path):
    model = TabularClustering(3, n_interactions=200, random_state=0)
    with caplog.at_level(logging.DEBUG, logger="volition"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = tmp_path / "m.safetensors"
        model.fit(X, population=people(), checkpoint=file, checkpoint_every=0)
        clone(model).fit(X, population=people(), checkpoint=file, resume=True)
        AutonomyAwareClustering(2, n_init=1, random_state=0).fit(X)
    said = caplog.text
    for words in ("200 answers to 200 questions", "Checkpoint after", "goes on from", "Cost "):
        assert words in said
    assert {record.name for record in caplog.records} == {"volition"}
    assert capsys.readouterr() == ("", "")


def test_exploration_and_device_mean_the_same_in_all_learners():
    for kind in ALL[1:]:
        with pytest.raises(ValueError, match="exploration must be"):
            kind(3, exploration=2.0).start(X)
        asked = kind(3, exploration=1.0, random_state=0).start(X).ask(50)
        np.testing.assert_allclose(asked.propensity, 1 / 3)
    for device in ("auto", "cpu"):
        AutonomyAwareClustering(3, n_init=1, device=device, random_state=0).fit(X)
        ADENClustering(3, device=device, random_state=0).start(X)
    with pytest.raises(ValueError, match="device"):
        AutonomyAwareClustering(3, device="nowhere").fit(X)
    with pytest.raises(ValueError, match="device"):
        ADENClustering(3, device="nowhere").start(X)


def test_a_network_to_start_from_means_the_same_in_all_learners(tmp_path):
    size = NetworkSize(8, 8, 1, 2)
    file = save_network(ADENetwork(2, size, "choices"), tmp_path / "n.safetensors")
    wrong = save_network(ADENetwork(2, size, "costs"), tmp_path / "c.safetensors")
    for kind in (ChoiceClustering, ADENClustering):
        model = kind(3, network=file, random_state=0).start(X)
        saved = model.save(tmp_path / "m.safetensors")
        assert load_model(saved).ask(3).entities.shape == (3,)
        for bad in (3, ["n.safetensors"]):
            with pytest.raises(ValueError, match="network must be a path or an ADENetwork"):
                kind(3, network=bad).start(X)
        with pytest.raises(ValueError, match="knows 2 features, but X has 1"):
            kind(3, network=file).start(X[:, :1])
    with pytest.raises(ValueError, match="network must be one of choices, got one of costs"):
        ChoiceClustering(3, network=wrong).start(X)
    model = ChoiceClustering(3, network=file, random_state=0).start(X)
    saved = model.save(tmp_path / "m.safetensors")
    file.unlink()  # what was learned does not need it any more
    assert ChoiceClustering(3, network=file).resume(saved).ask(3).entities.shape == (3,)
