"""What a strict reader found in fits that stop, go on, grow, or have few points."""

import numpy as np
import pytest

from volition import (
    ChoiceAutonomy,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    SimulatedPopulation,
    TabularClustering,
)
from volition.learners.base import KIND
from volition.storage import read_file, write_file

X = np.random.default_rng(0).uniform(0, 10, (100, 2))
NEAR = DistanceAutonomy(0.4, gamma=1.0, zeta=0.0, temperature=0.1)
TABLE = FixedAutonomy(np.full((3, 3), 0.1) + 0.7 * np.eye(3))

pytestmark = pytest.mark.filterwarnings("ignore")


def people(law, points=X):
    return SimulatedPopulation(points, law, random_state=0)


def test_a_table_of_an_older_version_is_read(tmp_path):
    model = TabularClustering(3, n_interactions=600, random_state=0)
    model.fit(X, population=people(TABLE))
    tensors, header = read_file(model.save(tmp_path / "new"), KIND)
    for name in ("successor", "assumption", "probe_left"):
        del header["learner"][name]
    del header["tried"], header["kept"]
    old = write_file(tmp_path / "old", tensors, KIND, header)
    again = TabularClustering.from_file(old)
    assert np.array_equal(again.labels_, model.labels_)
    assert again.successor_ is None


class Down:
    """Somebody who is gone after so many questions."""

    def __init__(self, law, most):
        self.inner, self.left = people(law), most

    def respond(self, entities, prescribed, centers):
        self.left -= len(entities)
        if self.left < 0:
            raise ConnectionError("down")
        return self.inner.respond(entities, prescribed, centers)

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        self.inner.load_state_dict(state)


CHOICE = (ChoiceClustering, NEAR, {"family": "distance", "n_interactions": 1500})
BY_TABLE = (TabularClustering, TABLE, {"n_interactions": 1500})
HANDS_OVER = (TabularClustering, NEAR, {"n_interactions": 4000})


@pytest.mark.parametrize(
    ("learner", "law", "params", "how"),
    [
        (*CHOICE, "fails"),
        (*CHOICE, "stopped"),
        (*BY_TABLE, "fails"),
        (*BY_TABLE, "stopped"),
        (*HANDS_OVER, "stopped"),
    ],
)
def test_a_trial_that_did_not_end_is_repeated(tmp_path, learner, law, params, how):
    def make():
        return learner(3, random_state=0, **params)

    batches = []
    whole = make()
    whole.fit(X, population=people(law), on_batch=lambda m: batches.append(m.n_interactions_))
    assert len(whole.tried_) == 2
    file, late = tmp_path / "c", whole.n_interactions_ - 5
    if how == "fails":
        with pytest.raises(RuntimeError, match="The population failed"):
            make().fit(X, population=Down(law, late), checkpoint=file)
    else:
        last = batches[-2]  # in the trial: its two plans are the last batches
        part = make()
        part.fit(
            X, population=people(law), checkpoint=file, on_batch=lambda m: m.n_interactions_ >= last
        )
        assert part.stop_reason_ == "ended by on_batch"
    again = make().fit(X, population=Down(law, 10**6), checkpoint=file, resume=True)
    assert again.n_interactions_ == whole.n_interactions_
    assert again.tried_ == whole.tried_
    assert again.kept_ == whole.kept_
    assert np.array_equal(again.cluster_centers_, whole.cluster_centers_)


def test_newer_answers_can_contradict_a_trial():
    model = ChoiceClustering(3, family="distance", n_interactions=1500, random_state=0)
    model.fit(X, population=people(NEAR))
    tried = model.distortion_estimate()
    elsewhere = FixedAutonomy((1 - np.eye(3)) / 2)
    for law, stays in ((NEAR, True), (elsewhere, False)):
        asked = model.ask(60)
        model.tell(asked, people(law).respond(asked.entities, asked.prescribed, asked.centers))
        now = model.distortion_estimate()
        assert (now == tried) == stays
    assert now.low > tried.high


@pytest.mark.parametrize(
    ("law", "when"), [(TABLE, 50), (TABLE, 1000), (TABLE, 3700), (NEAR, 50), (NEAR, 3700)]
)
def test_a_table_takes_in_entities_within_a_fit(law, when, tmp_path):
    """In its first questions, later, and in the trial; and after it has handed over."""
    crowd, new = people(law), X[:20] + 0.5
    done = []

    def grow(model):
        if model.n_interactions_ >= when and not done:
            done.append(model.add_entities(new))
            crowd.add_entities(new)

    model = TabularClustering(3, n_interactions=4000, tol=0, random_state=0)
    model.fit(X, population=crowd, on_batch=grow)
    assert [one.name for one in model.tried_] == ["learned", "k-means"]
    assert model.n_interactions_ == 4000
    assert np.isfinite(model.distortion_estimate().value)
    assert done[0].tolist() == list(range(100, 120))
    assert model.labels_.shape == (120,)
    assert model.expected_costs().shape == (120, 3)
    again = TabularClustering.from_file(model.save(tmp_path / "c"))
    assert np.array_equal(again.labels_, model.labels_)
    if model.successor_ is not None:
        model.remove_entities([3, 110])
        assert (model.labels_[[3, 110]] == -1).all()


@pytest.mark.parametrize("law", [FixedAutonomy(np.full((4, 4), 0.1) + 0.6 * np.eye(4)), NEAR])
def test_a_larger_budget_is_used_by_whoever_goes_on(law, tmp_path):
    def fitted(budget):
        model = TabularClustering(4, n_interactions=budget, tol=0, random_state=0)
        return model.fit(X, population=people(law), checkpoint=tmp_path / "c", resume=True)

    first, then = fitted(4000), fitted(5000)
    assert (first.n_interactions_, then.n_interactions_) == (4000, 5000)
    assert then.stop_reason_ == "n_interactions=5000 reached"
    assert len(then.tried_) == 2
    assert (then.successor_ is not None) == (law is NEAR)


def test_entities_that_are_refused_change_nothing():
    Z = (np.random.default_rng(1).random((100, 1)) < 0.5).astype(float)
    law = ChoiceAutonomy({"constant": [3.0], "covariates": [-4.0]}, {"pair": [-9.0]}, covariates=Z)
    model = ChoiceClustering(3, n_interactions=1500, random_state=0)
    model.fit(X, population=people(law), covariates=Z)
    before, found = model.expected_costs(), model.model_
    with pytest.raises(ValueError, match="sample_weight of new entities"):
        model.add_entities(X[:2], sample_weight=[1, np.nan], covariates=1 - Z[:2])
    assert model.model_ is found
    assert np.array_equal(model.expected_costs(), before)
    new = model.add_entities(X[:2], covariates=Z[:2])
    assert new.tolist() == [100, 101]
    after = model.expected_costs()
    assert np.allclose(after[new], after[:2])
    assert not np.allclose(model.expected_costs(X[:2], 1 - Z[:2]), after[:2])  # they do matter


@pytest.mark.parametrize("learner", [ChoiceClustering, TabularClustering])
def test_the_learned_plan_is_tried_where_points_are_fewer_than_centres(learner):
    points = np.repeat([[0.0, 0.0], [10.0, 0.0]], 30, axis=0)
    model = learner(3, n_interactions=1500, tol=0, random_state=0)
    model.fit(points, population=people(NEAR, points))
    assert [one.name for one in model.tried_] == ["learned"]
    assert model.distortion_estimate().n_answers > 100
    assert model.n_interactions_ == 1500
    assert model.stop_reason_ == "n_interactions=1500 reached"
