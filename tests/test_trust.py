"""Results that cannot mislead: plans from logs that the log supports, fits that know their cost."""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kstest

from volition import (
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    Response,
    SimulatedPopulation,
    TabularClustering,
    load_model,
    save_model,
)
from volition.choices.checks import dependence, lack_of_fit
from volition.choices.decision import BEST, MOVED, NEAREST, TODAY
from volition.datasets import load_four_groups
from volition.learners.trial import estimate, reserve
from volition.problem import Problem

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from behaviours import make_log, make_town, squared, today_of

X = load_four_groups().data


def recommended(kind, seed, n=300, K=5, m=2000, **options):
    """Return the town, its log's policy, today's centres, the model, and its warnings."""
    town = make_town(kind, seed, n=n, K=K)
    today = today_of(town, seed)
    log, policy = make_log(town, today, m, seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = ChoiceClustering(K, random_state=seed)
        model.fit_log(town.X, log, today, covariates=town.covariates, **options)
    return town, policy, today, model, [str(w.message) for w in caught]


@pytest.mark.parametrize("kind", ["river, hidden loyalty", "from work", "two hidden kinds"])
def test_where_the_log_contradicts_the_model_the_centres_stay_and_a_sentence_says_why(kind):
    town, policy, today, model, said = recommended(kind, 3)
    assert any("The log contradicts the model" in sentence for sentence in said)
    assert model.decision_.name in (TODAY, NEAREST, BEST)
    np.testing.assert_array_equal(model.cluster_centers_, today)
    rows = {row.name: row for row in model.worth()}
    moved = rows[MOVED]
    assert moved.basis == "guess"
    assert np.isnan([moved.direct.low, moved.direct.high, moved.saving.low]).all()
    if model.decision_.name != TODAY:
        assert town.true_cost(today, model.labels_) < town.true_cost(today, policy)


def test_a_model_that_holds_moves_the_centres_and_its_interval_holds_the_truth():
    town, policy, today, model, said = recommended("near the entity", 0)
    assert model.decision_.name == MOVED
    assert not any("contradicts" in sentence for sentence in said)
    row = next(row for row in model.worth() if row.name == MOVED)
    then = town.true_cost(model.cluster_centers_, model.labels_)
    now = town.true_cost(today, policy)
    assert row.expected.low < then < row.expected.high
    assert row.saving.low < now - then < row.saving.high


def test_centres_stay_on_the_map():
    """Told to go far, nobody obeys: by the slope alone, a centre off the map would pay."""
    rng = np.random.default_rng(0)
    town = rng.uniform(0, 10, (300, 2))
    today = np.array([[2.0, 2.0], [8.0, 2.0], [5.0, 8.0]])
    D = squared(town, today)
    entity = rng.integers(0, 300, 3000)
    near = D.argmin(1)
    told = np.where(rng.random(3000) < 0.9, near[entity], rng.integers(0, 3, 3000))
    cost = D[entity, told]
    obeys = rng.random(3000) < 1 / (1 + np.exp(-(1.0 - 0.15 * cost)))
    other = np.where(told == near[entity], D[entity].argsort(1)[:, 1], near[entity])
    log = {"entity": entity, "prescribed": told, "realized": np.where(obeys, told, other)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ChoiceClustering(3, random_state=0).fit_log(town, log, today)
    centers, _ = model._moved
    box = np.concatenate([town, today])
    assert (centers >= box.min(0)).all()
    assert (centers <= box.max(0)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = [[3.0, 3.0], [7.0, 7.0]]
        model = ChoiceClustering(3, random_state=0).fit_log(town, log, today, region=given)
    assert (model._moved[0] >= 3).all()
    assert (model._moved[0] <= 7).all()
    with pytest.raises(ValueError, match="region must be two rows of 2 numbers"):
        ChoiceClustering(3).fit_log(town, log, today, region=[1, 2])


def test_terms_hold_still_beyond_costs_that_were_seen():
    _, _, today, model, _ = recommended("near the entity", 1)
    seen = model.fit_.model
    low, high = seen.seen["entity"]
    far = today + 100 * np.sqrt(high * seen.cost_unit)
    p = Problem(model._X, autonomy=seen).conditional(far, np.zeros(300, dtype=int))
    # All are equally far beyond what was seen, so that no slope tells them apart.
    np.testing.assert_allclose(p[:, 1:], p[:, 1:2] * np.ones(4), rtol=1e-9)
    assert low < high


def test_a_saved_decision_is_the_same_after_loading(tmp_path):
    model = recommended("two hidden kinds", 2)[3]
    again = load_model(save_model(model, tmp_path / "m.safetensors"))
    assert again.decision_ == model.decision_
    assert again.checks_ == model.checks_
    assert [row.name for row in again.worth()] == [row.name for row in model.worth()]
    for a, b in zip(again.worth(), model.worth(), strict=True):
        np.testing.assert_allclose(a.expected, b.expected)


def test_checks_of_a_right_model_are_as_rare_as_they_say():
    """P-values under the truth are uniform, or larger where cells are few."""
    rng = np.random.default_rng(0)
    who, cells = np.repeat(np.arange(200), 5), np.tile(np.arange(3), (1000, 1))
    cells = cells + 3 * (who[:, None] % 4)
    fit, together = [], []
    for _ in range(300):
        p = rng.dirichlet([2, 3, 4], 1000)
        used = (p.cumsum(1) < rng.random((1000, 1))).sum(1)
        fit.append(lack_of_fit(p, used, cells)[1])
        together.append(dependence(np.eye(3)[used] - p, p, who)[1])
    assert kstest(fit, "uniform").pvalue > 1e-3
    assert kstest(together, "uniform").pvalue > 1e-3
    # Entities that keep to one alternative are found at once.
    stuck = np.repeat(rng.integers(0, 3, 200), 5)
    assert dependence(np.eye(3)[stuck] - p, p, who)[1] < 1e-9


def test_what_a_plan_costs_is_known_after_a_fit_and_never_nan():
    autonomy = DistanceAutonomy(0.3, temperature=0.01)
    truth, hits = Problem(X, autonomy=autonomy), []
    for seed in range(12):
        people = SimulatedPopulation(X, autonomy, random_state=seed)
        model = ChoiceClustering(4, family="distance", n_interactions=1500, random_state=seed)
        model.fit(X, population=people)
        seen = model.distortion_estimate()
        assert model.n_interactions_ == people.n_interactions == 1500
        true = truth.distortion(model.cluster_centers_, model.labels_)
        hits.append(seen.low <= true <= seen.high)
    assert sum(hits) >= 9  # of 12 at 95 %: fewer in one of 5,000 runs


def test_the_plain_plan_is_kept_where_it_is_seen_to_be_cheaper():
    """Entities obey only the nearest: told anything else, they go to the farthest centre."""

    class Stubborn:
        def respond(self, entities, prescribed, centers):
            Y = np.broadcast_to(centers, (len(entities), *np.shape(centers)[-2:]))
            D = ((X[entities][:, None] - Y) ** 2).sum(2)
            used = np.where(prescribed == D.argmin(1), prescribed, D.argmax(1))
            return Response(used, D[np.arange(len(used)), used])

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = TabularClustering(4, n_interactions=4000, random_state=0)
        model.fit(X, population=Stubborn())
    plain = Problem(X).distortion(model.cluster_centers_)
    seen = model.distortion_estimate()
    assert seen.value < 1.05 * plain
    said = " ".join(str(w.message) for w in caught)
    assert "k-means centres with the nearest prescribed are kept" in said
    assert model.kept_ == "k-means"
    assert [one.name for one in model.tried_] == ["learned", "k-means"]


def test_belief_that_observation_contradicts_is_a_warning():
    people = SimulatedPopulation(X, DistanceAutonomy(0.5, temperature=0.01), random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = TabularClustering(4, n_interactions=8000, random_state=0)
        model.fit(X, population=people)
    said = " ".join(str(w.message) for w in caught)
    assert "depends on where the centres stand" in said
    assert model.assumption_.failed
    seen = model.distortion_estimate()
    truth = Problem(X, autonomy=DistanceAutonomy(0.5, temperature=0.01))
    true = truth.distortion(model.cluster_centers_, model.labels_)
    assert seen.low <= true <= seen.high


def test_behaviour_that_does_not_depend_on_the_centres_passes():
    P = np.full((4, 4), 0.1) + 0.6 * np.eye(4)
    failed = 0
    for seed in range(20):
        people = SimulatedPopulation(X, FixedAutonomy(P), random_state=seed)
        model = TabularClustering(4, n_interactions=5000, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tables of few answers may be wrong about their cost
            model.fit(X, population=people)
        failed += model.assumption_.failed
    assert failed <= 1


def test_a_plan_that_is_what_was_done_saves_nothing():
    rng = np.random.default_rng(0)
    town, today = rng.uniform(0, 10, (200, 2)), np.array([[2.0, 5.0], [8.0, 5.0], [5.0, 1.0]])
    near = squared(town, today).argmin(1)
    entity = rng.integers(0, 200, 1000)
    obeys = rng.random(1000) < 0.8
    used = np.where(obeys, near[entity], squared(town, today).argsort(1)[entity, 1])
    log = {"entity": entity, "prescribed": near[entity], "realized": used}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ChoiceClustering(3, random_state=0)
        model.fit_log(town, log | {"propensity": np.ones(1000)}, today)
        first, row = model.worth({"nearest": (today, near)})
    assert tuple(row.saving) == (0.0, 0.0, 0.0)
    np.testing.assert_allclose(row.expected.value, first.expected.value)


def test_ctrl_c_and_on_batch_end_a_trial_too(tmp_path):
    people = SimulatedPopulation(X, DistanceAutonomy(0.3, temperature=0.01), random_state=0)
    model = ChoiceClustering(4, family="distance", n_interactions=20_000, random_state=0)
    begun = []

    def stop(learner):
        begun.append(learner.n_interactions_)
        return learner.enough() is not None  # only the trial is asked after that

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, population=people, on_batch=stop, checkpoint=tmp_path / "c.safetensors")
    assert model.stop_reason_ == "ended by on_batch"
    assert model.n_interactions_ == begun[-1] < 20_000


def test_options_that_rest_on_extrapolation_have_no_interval():
    _, _, today, model, _ = recommended("near the entity", 0)
    far = today.copy()
    far[0] += 40
    row = model.worth({"far": (far, np.zeros(300, dtype=int))})[-1]
    assert row.basis == "guess"
    assert np.isnan([row.expected.low, row.saving.high]).all()


def test_the_estimate_of_a_trial_covers_with_and_without_help():
    rng, hits = np.random.default_rng(0), 0
    known = rng.exponential(1.0, 5000)
    for _ in range(400):
        some = rng.choice(5000, 300)
        paid = 2 * known[some] + rng.normal(0, 1, 300)
        found, _ = estimate(paid, known[some], float(known.mean()))
        hits += found.low <= 2 * known.mean() <= found.high
    assert 0.92 <= hits / 400 <= 0.98
    assert reserve(50) == 0
    assert reserve(10_000) == 1000


def test_behaviour_that_changes_within_the_log_is_a_doubt():
    """A site is closed on some days: rows of a day go together, whoever they are about."""
    rng = np.random.default_rng(2)
    town, today = rng.uniform(0, 10, (400, 2)), rng.uniform(1, 9, (4, 2))
    D = squared(town, today)
    entity, day = rng.integers(0, 400, 3000), np.arange(3000) // 250
    near = D.argmin(1)
    told = np.where(rng.random(3000) < 0.9, near[entity], rng.integers(0, 4, 3000))
    closed = (day % 3 == 0) & (told == 0)
    leaves = closed | (rng.random(3000) < 0.1)
    order = D.argsort(1)[entity]
    used = np.where(leaves, np.where(order[:, 0] == told, order[:, 1], order[:, 0]), told)
    log = {"entity": entity, "prescribed": told, "realized": used}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ChoiceClustering(4, random_state=0).fit_log(town, log, today)
    by_name = {check.name: check for check in model.checks_}
    assert by_name["the same part of the log"].failed
    shuffled = rng.permutation(3000)
    mixed = {name: column[shuffled] for name, column in log.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ChoiceClustering(4, random_state=0).fit_log(town, mixed, today)
    by_name = {check.name: check for check in model.checks_}
    assert not by_name["the same part of the log"].failed


def test_few_choices_move_nothing():
    _, _, today, model, said = recommended("near the entity", 0, m=60)
    np.testing.assert_array_equal(model.cluster_centers_, today)
    assert any("There are only 60 choices" in sentence for sentence in said)
