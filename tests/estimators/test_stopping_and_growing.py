"""What a strict reader found in fits that stop, go on, grow, or have few points."""

import numpy as np
import pytest

from volition import (
    ADENClustering,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    Response,
    SimulatedPopulation,
    TabularClustering,
    load_model,
)

X = np.random.default_rng(0).uniform(0, 10, (100, 2))
NEAR = DistanceAutonomy(0.4, gamma=1.0, zeta=0.0, temperature=0.1)
TABLE = FixedAutonomy(np.full((3, 3), 0.1) + 0.7 * np.eye(3))

pytestmark = pytest.mark.filterwarnings("ignore")


def people(law, points=X):
    return SimulatedPopulation(points, law, random_state=0)


def test_newer_answers_can_contradict_a_trial():
    model = ChoiceClustering(3, family="distance", n_interactions=1500, random_state=0)
    model.fit(X, population=people(NEAR))
    tried = model.distortion_estimate()
    elsewhere = FixedAutonomy((1 - np.eye(3)) / 2)
    for law, stays in ((NEAR, True), (elsewhere, False)):
        asked = model.ask(60)
        model.tell(
            asked, people(law).respond(asked.entities, asked.prescribed, asked.centers)
        ).learn()
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
    again = load_model(model.save(tmp_path / "c"))
    assert np.array_equal(again.labels_, model.labels_)
    if model.handed_over_:
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
    assert then.handed_over_ == (law is NEAR)


def test_entities_that_are_refused_change_nothing():
    Z = (np.random.default_rng(1).random((100, 1)) < 0.5).astype(float)
    model = ChoiceClustering(3, n_interactions=1500, random_state=0)
    model.fit(X, population=people(NEAR), covariates=Z)
    before, law = model.expected_costs(), repr(model.model_)
    with pytest.raises(ValueError, match="sample_weight of new entities"):
        model.add_entities(X[:2], sample_weight=[1, np.nan], covariates=1 - Z[:2])
    assert repr(model.model_) == law
    assert np.array_equal(model.expected_costs(), before)
    new = model.add_entities(X[:2], covariates=Z[:2])
    assert new.tolist() == [100, 101]
    assert model.expected_costs().shape == (102, 3)


@pytest.mark.parametrize("learner", [ChoiceClustering, TabularClustering])
def test_the_learned_plan_is_tried_where_points_are_fewer_than_centres(learner):
    points = np.repeat([[0.0, 0.0], [10.0, 0.0]], 30, axis=0)
    model = learner(3, n_interactions=1500, tol=0, random_state=0)
    model.fit(points, population=people(NEAR, points))
    assert [one.name for one in model.tried_] == ["learned"]
    assert model.distortion_estimate().n_answers > 100
    assert model.n_interactions_ == 1500
    assert model.stop_reason_ == "n_interactions=1500 reached"


def test_the_published_head_takes_device_and_exploration():
    X = np.random.default_rng(0).random((60, 2))
    model = ADENClustering(3, head="costs", device="auto", exploration=0.7, random_state=0).start(X)
    asked = model.ask(400)
    assert (asked.propensity >= 0.7 / 3 - 1e-12).all()  # each cluster at least by exploring


def test_centres_that_stand_stay_where_they_are_if_costs_turn_out_negative():
    X = np.random.default_rng(0).random((80, 2))
    model = ADENClustering(3, random_state=0).start(X, centers=X[:3])
    for _ in range(6):
        asked = model.ask(100)
        model.tell(asked, Response(None, np.linspace(-2, -1, len(asked))))
        model.learn()
    assert (model.ask(5).centers == X[:3]).all()
    assert np.array_equal(model.cluster_centers_, X[:3])


def test_after_a_move_in_the_probe_every_question_is_about_the_new_centres():
    X = np.random.default_rng(0).random((200, 2))
    people = SimulatedPopulation(X, DistanceAutonomy(0.3, temperature=0.1), random_state=0)
    model = TabularClustering(3, n_interactions=4000, random_state=0)
    model.fit(X, population=people, on_batch=lambda learner: "enough seen")
    assert model.n_interactions_ < 2000
    model.move(X[:3])
    assert np.array_equal(model.ask(5).centers, X[:3])
