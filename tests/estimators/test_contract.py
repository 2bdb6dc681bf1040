"""What all learners have in common with each other and with scikit-learn."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from volition import (
    ADENClustering,
    ChoiceClustering,
    FixedAutonomy,
    Recipe,
    SimulatedPopulation,
    TabularClustering,
    load_model,
)

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
        model.ask, model.learn, model.enough, model.conclude, model.expected_costs,
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
