"""Results that cannot mislead: plans from logs that the log supports, fits that know their cost."""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import kstest

from volition import (
    AutonomyAwareClustering,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    Response,
    SimulatedPopulation,
    TabularClustering,
    load_model,
    save_model,
)
from volition.choices import Choices, Log, PlanName, compare_plans, fit_choices
from volition.choices.checks import check_model, dependence, lack_of_fit
from volition.choices.modelled_costs import liked_by_place, modelled_cost
from volition.choices.seen_costs import (
    ExpectedCosts,
    expected_costs,
    fixed_prescriptions,
    seen_cost,
)
from volition.choices.sequence import crowds, memory, told_again
from volition.core.costs import SquaredEuclidean
from volition.core.problem import Problem
from volition.datasets import load_four_groups
from volition.learning.monitor import Estimate
from volition.learning.trial import (
    TrialResult,
    Tried,
    drawn_twice,
    mean_cost,
    plain_is_cheaper,
    reserve,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
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
    assert model.decision_.name in (PlanName.TODAY, PlanName.NEAREST, PlanName.BEST)
    np.testing.assert_array_equal(model.cluster_centers_, today)
    rows = {row.name: row for row in model.compare_plans()}
    moved = rows[PlanName.MOVED]
    assert moved.basis == "guess"
    assert np.isnan([moved.direct.low, moved.direct.high, moved.saving.low]).all()
    if model.decision_.name != PlanName.TODAY:
        assert town.true_cost(today, model.labels_) < town.true_cost(today, policy)


def test_a_model_that_holds_moves_the_centres_and_its_interval_holds_the_truth():
    town, policy, today, model, said = recommended("near the entity", 0)
    assert model.decision_.name == PlanName.MOVED
    assert not any("contradicts" in sentence for sentence in said)
    row = next(row for row in model.compare_plans() if row.name == PlanName.MOVED)
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
    centers, _ = model._plans.moved
    box = np.concatenate([town, today])
    assert (centers >= box.min(0)).all()
    assert (centers <= box.max(0)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = [[3.0, 3.0], [7.0, 7.0]]
        model = ChoiceClustering(3, random_state=0).fit_log(town, log, today, region=given)
    centers, _ = model._plans.moved
    assert (centers >= 3).all()
    assert (centers <= 7).all()
    with pytest.raises(ValueError, match="region must be two rows of 2 numbers"):
        ChoiceClustering(3).fit_log(town, log, today, region=[1, 2])


def test_terms_hold_still_beyond_costs_that_were_seen():
    _, _, today, model, _ = recommended("near the entity", 1)
    seen = model.fit_.model
    low, high = seen.cost_ranges["entity"]
    far = today + 100 * np.sqrt(high * seen.cost_unit)
    p = Problem(model.entities_.X, autonomy=seen).conditional(far, np.zeros(300, dtype=int))
    # All are equally far beyond what was seen, so that no slope tells them apart.
    np.testing.assert_allclose(p[:, 1:], p[:, 1:2] * np.ones(4), rtol=1e-9)
    assert low < high


def test_a_saved_decision_is_the_same_after_loading(tmp_path):
    model = recommended("two hidden kinds", 2)[3]
    again = load_model(save_model(model, tmp_path / "m.safetensors"))
    assert again.decision_ == model.decision_
    assert again.checks_ == model.checks_
    assert [row.name for row in again.compare_plans()] == [
        row.name for row in model.compare_plans()
    ]
    for a, b in zip(again.compare_plans(), model.compare_plans(), strict=True):
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
        model = TabularClustering(4, n_interactions=3000, random_state=0)  # too few for a probe
        model.fit(X, population=Stubborn())
    plain = Problem(X).distortion(model.cluster_centers_)
    seen = model.distortion_estimate()
    assert seen.value < 1.05 * plain
    said = " ".join(str(w.message) for w in caught)
    assert "k-means centres with the nearest prescribed are kept" in said
    assert model.kept_ == "k-means"
    assert [one.name for one in model.tried_] == ["learned", "k-means"]


def test_a_table_that_cannot_be_right_hands_over():
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
    best = AutonomyAwareClustering(4, autonomy=truth.autonomy, random_state=0).fit(X).distortion_
    assert true < 1.01 * best
    assert model.n_interactions_ == people.n_interactions <= 8000
    assert model.handed_over_
    assert np.isnan(model.regret())
    # The one that took over goes on.
    asked = model.ask(5)
    model.tell(asked, people.respond(asked.entities, asked.prescribed, asked.centers)).learn()


def test_a_fit_that_handed_over_is_saved_and_resumed(tmp_path):
    def people():
        return SimulatedPopulation(X, DistanceAutonomy(0.5, temperature=0.01), random_state=0)

    file = tmp_path / "state.safetensors"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = TabularClustering(4, n_interactions=5000, random_state=0)
        whole.fit(X, population=people())
        parts = TabularClustering(4, n_interactions=5000, random_state=0)
        parts.fit(
            X, population=people(), checkpoint=file, on_batch=lambda m: m.n_interactions_ > 1500
        )
        assert 1500 < parts.n_interactions_ < 5000
        again = TabularClustering(4, n_interactions=5000, random_state=0)
        again.fit(X, population=people(), checkpoint=file, resume=True)
    assert again.n_interactions_ == whole.n_interactions_
    np.testing.assert_array_equal(again.cluster_centers_, whole.cluster_centers_)
    np.testing.assert_array_equal(again.labels_, whole.labels_)
    assert again.handed_over_
    assert again.assumption_ == whole.assumption_
    loaded = load_model(file)
    np.testing.assert_array_equal(loaded.predict(X), again.predict(X))
    assert loaded.distortion_estimate() == again.distortion_estimate()


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
        first, row = model.compare_plans({"nearest": (today, near)})
    assert tuple(row.saving) == (0.0, 0.0, 0.0)
    np.testing.assert_allclose(row.expected.value, first.expected.value)


def test_on_batch_ends_a_trial_too(tmp_path):
    people = SimulatedPopulation(X, DistanceAutonomy(0.3, temperature=0.01), random_state=0)
    model = ChoiceClustering(4, family="distance", n_interactions=20_000, random_state=0)
    begun = []

    def stop(learner):
        begun.append(learner.n_interactions_)
        return learner.reason_to_stop() is not None  # only the trial is asked after that

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, population=people, on_batch=stop, checkpoint=tmp_path / "c.safetensors")
    assert model.stop_reason_ == "ended by on_batch"
    assert model.n_interactions_ == begun[-1] < 20_000


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_a_trial_that_did_not_end_is_repeated(tmp_path, how):
    """And a fit that was resumed for that ends as if nothing had happened."""
    autonomy, path = FixedAutonomy(np.full((4, 4), 0.1) + 0.6 * np.eye(4)), tmp_path / "c"

    class Failing(SimulatedPopulation):
        def respond(self, *asked):
            if self.n_interactions >= 2800:
                raise TimeoutError("no reply")
            return super().respond(*asked)

    def begun():
        return TabularClustering(4, tol=0, n_interactions=3000, random_state=0)

    def fit(model, kind=SimulatedPopulation, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model.fit(X, population=kind(X, autonomy, random_state=0), **options)

    whole, part = fit(begun()), begun()
    if how == "stopped":
        fit(part, checkpoint=path, on_batch=lambda model: model.n_interactions_ > 2700)
        assert part.stop_reason_ == "ended by on_batch"
    else:
        with pytest.raises(RuntimeError, match="no reply"):
            fit(part, Failing, checkpoint=path)
        assert part.tried_ == []
    assert part.n_interactions_ >= 2700
    again = fit(begun(), checkpoint=path, resume=True)
    assert again.stop_reason_ == "n_interactions=3000 reached"
    assert again.tried_ == whole.tried_
    assert [one.estimate.n_answers for one in again.tried_] == [210, 90]
    np.testing.assert_array_equal(again.cluster_centers_, whole.cluster_centers_)
    assert again.history_[-1] == whole.history_[-1]


@pytest.mark.parametrize("learner", [TabularClustering, ChoiceClustering])
def test_where_there_are_fewer_places_than_clusters_the_learned_plan_is_tried(learner):
    few = np.repeat([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], 20, axis=0)
    people = SimulatedPopulation(few, FixedAutonomy(np.full((4, 4), 0.1) + 0.6 * np.eye(4)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = learner(4, n_interactions=600, random_state=0).fit(few, population=people)
    (tried,) = model.tried_
    assert tried.estimate.n_answers == 60
    assert model.kept_ == "learned"
    assert model.distortion_estimate() == tried.estimate


def test_options_that_rest_on_extrapolation_have_no_interval():
    _, _, today, model, _ = recommended("near the entity", 0)
    far = today.copy()
    far[0] += 40
    row = model.compare_plans({"far": (far, np.zeros(300, dtype=int))})[-1]
    assert row.basis == "guess"
    assert np.isnan([row.expected.low, row.saving.high]).all()


def test_the_estimate_of_a_trial_covers_with_and_without_help():
    rng, hits = np.random.default_rng(0), 0
    known = rng.exponential(1.0, 5000)
    for _ in range(400):
        some = rng.choice(5000, 300)
        paid = 2 * known[some] + rng.normal(0, 1, 300)
        found, _ = mean_cost(paid, known[some], float(known.mean()))
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


def residuals(town, log, today):
    """Return the log as choices, and residuals of used centres and of obeying, by true p."""
    rows, K = np.arange(len(log["entity"])), town.n_clusters
    choices = Choices(log["entity"], log["prescribed"], log["realized"], 0 * rows, today[None])
    p = town.p(today).mean(0)[log["prescribed"]]  # whoever it is: traits are left in
    used = np.eye(K)[log["realized"]] - p
    return choices, used, used[rows, log["prescribed"]]


def test_entities_that_remember_keep_a_log_from_judging_other_plans():
    """Told the same twice in a row, they override: always prescribing the nearest is dear."""
    town = make_town("told again", 0, n=200, K=2)
    town.traits["kappa after"][[0, 1], [0, 1]] = 0.8
    today = today_of(town, 0)
    log, policy = make_log(town, today, 2000, 0, blind=0.5)
    near = squared(town.X, today).argmin(1)
    now, then = town.true_cost(today, policy), town.true_cost(today, near)
    assert then > 1.02 * now
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = ChoiceClustering(2, random_state=0).fit_log(town.X, log, today)
        rows = {row.name: row for row in model.compare_plans()}
    assert model.decision_.name == PlanName.TODAY
    assert any("The order of the log matters" in str(w.message) for w in caught)
    assert rows[PlanName.TODAY].expected.low < now < rows[PlanName.TODAY].expected.high
    for name in (PlanName.NEAREST, PlanName.BEST, PlanName.MOVED):
        row = rows[name]
        assert row.basis == "guess"
        assert np.isnan([row.expected.low, row.robust.low, row.saving.high]).all()


def test_true_costs_of_entities_that_remember_are_those_of_the_long_run():
    for kind in ("told again", "sulks"):
        town = make_town(kind, 1, n=40, K=3)
        today = today_of(town, 1)
        D = squared(town.X, today)
        mixed = np.full((40, 3), 1 / 3)
        for policy in (D.argmin(1), mixed):
            everybody, rng = np.arange(40), np.random.default_rng(0)
            paid = []
            for round_ in range(1500):
                told = policy if policy.ndim == 1 else rng.integers(0, 3, 40)
                answer = town.respond(everybody, told, today)
                paid.append(answer.cost.mean() if round_ >= 20 else np.nan)
            error = np.nanstd(paid) / np.sqrt(1480) * 2  # rounds go together a little
            assert abs(np.nanmean(paid) - town.true_cost(today, policy)) < 4 * error


@pytest.mark.parametrize("kind", ["hidden loyalty", "two hidden kinds"])
def test_traits_that_do_not_change_are_no_memory(kind):
    p_values = []
    for seed in range(40):
        town = make_town(kind, seed, n=150, K=4)
        today = today_of(town, seed)
        log, _ = make_log(town, today, 1500, seed)
        choices, used, obeyed = residuals(town, log, today)
        told, did = memory(used, obeyed, choices, np.arange(4))
        again = told_again(obeyed, choices, log["propensity"])
        p_values.append([told[1], did[1], again[1], crowds(obeyed, choices)[1]])
    assert np.min(p_values) > 1e-4  # of 160 at random, one is smaller in 60 runs
    for column in np.transpose(p_values):
        assert kstest(column, "uniform").pvalue > 1e-3


def test_memory_is_found_where_each_entity_has_two_rows():
    found = 0
    for seed in range(10):
        town = make_town("told again", seed, n=1000, K=4)
        today = today_of(town, seed)
        log, _ = make_log(town, today, 2000, seed)
        choices, _, _ = residuals(town, log, today)
        obeyed = (log["realized"] == log["prescribed"]).astype(float)
        found += told_again(obeyed - obeyed.mean(), choices, log["propensity"])[1] < 0.002
    assert found == 10


@pytest.mark.parametrize("window", [10, 100])
def test_crowds_are_found_where_obeying_depends_on_them(window):
    rng = np.random.default_rng(0)
    told = rng.integers(0, 4, 4000)
    share = np.array([(told[max(0, t - window) : t] == told[t]).mean() if t else 0.25
                      for t in range(4000)])  # fmt: skip
    obeys = rng.random(4000) < np.clip(1.2 - 2 * share, 0, 1)
    zero = np.zeros(4000, dtype=int)
    log = Choices(np.arange(4000) % 500, told, np.where(obeys, told, 0), zero, np.zeros((1, 4, 2)))
    assert crowds(obeys - obeys.mean(), log)[1] < 1e-4
    assert crowds(rng.permutation(obeys) - obeys.mean(), log)[1] > 0.002


def log_of_habits(seed, by_entity):
    """Return a log of entities that are mostly told the same, and obey more or less often."""
    rng = np.random.default_rng(seed)
    home, overrides = rng.integers(0, 4, 150), 0.6 * rng.random(150)
    who = rng.integers(0, 150, 3000)
    who = np.sort(who) if by_entity else who
    told = np.where(rng.random(3000) < 0.8, home[who], rng.integers(0, 4, 3000))
    used = np.where(rng.random(3000) < overrides[who], (told + 1) % 4, told)
    log = Choices(who, told, used, 0 * who, np.arange(8.0).reshape(1, 4, 2))
    return log, (used == told) - (1 - overrides.mean())


@pytest.mark.parametrize("by_entity", [False, True])
def test_an_entity_is_no_crowd_of_its_own(by_entity):
    p_values = [
        crowds(obeyed, log)[1] for log, obeyed in (log_of_habits(s, by_entity) for s in range(150))
    ]
    assert np.mean(np.array(p_values) < 0.05) < 0.11  # with own rows: 0.3
    assert kstest(p_values, "uniform").pvalue > 1e-3


def test_a_log_that_is_sorted_by_entity_has_no_order_of_time():
    X = np.random.default_rng(0).uniform(0, 8, (150, 2))
    names = []
    for order in ("time", "entity", "prescribed"):
        log, _ = log_of_habits(0, False)
        if order != "time":
            keys = (log.prescribed, log.entities) if order == "prescribed" else (log.entities,)
            log = log.take(np.lexsort(keys))
        fit = fit_choices(X, log, SquaredEuclidean(), 10.0, family=(("constant",), ("cluster",)))
        found = check_model(fit, X, log, SquaredEuclidean(), np.full(3000, 0.25))
        names.append({check.name for check in found})
    time, entity, prescribed = names
    assert time - entity == {"the same part of the log", "how many were sent there before"}
    assert entity - prescribed == {
        "what the entity was told before",
        "what the entity did before",
        "told the same again",
    }


def test_days_widen_what_was_seen():
    """On three days in ten nearly everybody leaves: rows of a day are one draw, not a hundred."""
    rng = np.random.default_rng(0)
    town, today = rng.uniform(0, 10, (300, 2)), rng.uniform(1, 9, (4, 2))
    D = squared(town, today)
    near, order = D.argmin(1), D.argsort(1)
    cost = SquaredEuclidean()
    costs = expected_costs(DistanceAutonomy(0.3, temperature=5.0), town, cost, today)
    policy = 0.9 * np.eye(4)[near] + 0.025
    leaves = 0.3 * 0.8 + 0.7 * 0.1
    first, second = (D[np.arange(300), order[:, n]] for n in (0, 1))
    truth = float(((1 - leaves) * first + leaves * second).mean())
    hits = {False: 0, True: 0}
    for _ in range(100):
        entity = rng.integers(0, 300, 2400)
        told = np.where(rng.random(2400) < 0.9, near[entity], rng.integers(0, 4, 2400))
        bad = (rng.random(24) < 0.3)[np.arange(2400) // 100]
        gone = rng.random(2400) < np.where(bad, 0.8, 0.1)
        other = np.where(order[entity, 0] == told, order[entity, 1], order[entity, 0])
        used = np.where(gone, other, told)
        choices = Choices(entity, told, used, np.zeros(2400, dtype=int), today[None])
        log = Log(town, cost, None, choices, policy[entity, told])
        for days in hits:
            seen = seen_cost(log, costs, near, days=days).robust
            hits[days] += seen.low <= truth <= seen.high
    assert hits[True] >= 88
    assert hits[False] < 80


@pytest.mark.parametrize(("moves", "parts"), [(1, 24), (3, 8), (4, 6), (6, 4), (12, 2)])
def test_days_count_where_the_last_centres_stood_for_few_of_them(moves, parts):
    """24 days, on which 1 or 7 in 10 leave; the centres move a little now and then."""
    places, m, hits = np.array([[2.0, 5.0], [8.0, 5.0]]), 2400, 0
    row = np.arange(m)
    layouts = np.stack([places + 0.01 * (moves - 1 - number) for number in range(moves)])
    for seed in range(60):
        rng = np.random.default_rng(seed)
        town = rng.uniform(0, 10, (300, 2))
        entity, told = rng.integers(0, 300, m), rng.integers(0, 2, m)
        leaves = rng.random(m) < rng.choice([0.1, 0.7], 24)[row * 24 // m]
        used = np.where(leaves, 1 - told, told)
        D = squared(town, places)
        costs = ExpectedCosts(0.6 * D + 0.4 * D[:, ::-1], 0.24 * (D - D[:, ::-1]) ** 2)
        choices = Choices(entity, told, used, row * moves // m, layouts)
        log = Log(town, SquaredEuclidean(), None, choices, np.full(m, 0.5))
        near = D.argmin(1)
        seen = seen_cost(log, costs, near, days=True)
        truth = float((costs.mean.mean(1) - costs.mean[np.arange(300), near]).mean())
        if parts < 5:
            assert np.isnan([seen.saving.low, seen.robust.low, seen.weighted.low]).all()
            fit = fit_choices(town, choices, SquaredEuclidean(), 10.0, family=(("constant",), ()))
            options = {PlanName.TODAY: (layouts[-1], None), PlanName.NEAREST: (layouts[-1], near)}
            today, nearest = compare_plans(fit, log, options, costs=costs, days=True)
            assert (today.basis, nearest.basis) == ("seen", "guess")
            assert np.isnan([today.expected.low, nearest.expected.low, nearest.saving.low]).all()
            return
        hits += seen.saving.low <= truth <= seen.saving.high
    assert hits >= 54


@pytest.mark.parametrize("m", [150, 400, 900])
def test_a_trial_of_many_of_all_entities_is_as_sure_as_it_says(m):
    """300 entities that differ much: who is asked matters, and the less, the more are asked."""
    rng, hits, widths = np.random.default_rng(m), [], []
    mean = rng.gamma(2, size=300)
    shares = np.full(300, 1 / 300)
    for _ in range(400):
        order = np.concatenate([rng.permutation(300) for _ in range(4)])[:m]
        who, again = drawn_twice(order, shares)
        paid = mean[who] + 0.5 * rng.standard_normal(len(who))
        found, error = mean_cost(paid, np.ones(len(who)), 1.0, who, shares, again)
        hits.append(found.low <= mean.mean() <= found.high)
        widths.append(error)
    assert 0.91 <= np.mean(hits) <= 0.985
    if m == 900:  # all were asked alike: only chance within entities is left
        assert np.mean(widths) == pytest.approx(0.5 / 30, rel=0.1)


def evenly(rng, shares, m):
    """Draw as a learner does: in proportion to shares, spread over a random order."""
    order = rng.permutation(len(shares))
    places = (np.arange(m) + rng.random()) / m
    at = np.searchsorted(np.cumsum(shares[order]), places, "right").clip(max=len(shares) - 1)
    return rng.permutation(order[at])


@pytest.mark.parametrize(
    ("light", "heavy", "share", "m"),
    [(650, 10, 0.5, 1333), (490, 10, 0.5, 1333), (200, 20, 0.8, 400), (100, 5, 0.5, 266)],
)
def test_a_trial_is_as_sure_as_it_says_where_few_heavy_entities_obey(light, heavy, share, m):
    """Half of the questions are about heavy entities, whose answers never differ by chance."""
    rng, hits = np.random.default_rng(0), []
    n = light + heavy
    shares = np.concatenate([np.full(light, (1 - share) / light), np.full(heavy, share / heavy)])
    cost = squared(rng.uniform(0, 10, (n, 2)), np.array([[2.0, 5.0], [8.0, 5.0]]))
    near, far = cost.min(1), cost.max(1)
    overrides = np.where(np.arange(n) < light, 0.5, 0.0)
    truth = shares @ (near + overrides * (far - near))
    for _ in range(300):
        who, again = drawn_twice(evenly(rng, shares, m), shares)
        paid = np.where(rng.random(m) < overrides[who], far[who], near[who])
        paid[rng.random(m) < 0.05] = np.nan  # some do not answer
        found, _ = mean_cost(paid, near[who], float(shares @ near), who, shares, again)
        hits.append(found.low <= truth <= found.high)
    assert 0.9 <= np.mean(hits) <= 0.98  # from answers of whoever was asked twice: 0.4 to 0.87


def test_answers_that_are_all_as_expected_are_no_proof_that_others_never_come():
    """One entity in 300 costs 3 more than known, and is missed by most trials of 100 answers."""
    rng, hits = np.random.default_rng(0), []
    known = rng.gamma(2, size=300)
    paid = known.copy()
    paid[7] += 3.0
    for _ in range(200):
        who = rng.permutation(300)[:100]
        found, error = mean_cost(paid[who], known[who], known.mean(), who, np.full(300, 1 / 300))
        assert error > 0
        hits.append(found.low <= paid.mean() <= found.high)
    assert np.mean(hits) > 0.9  # without the answer that nobody has given: a third


def liked_far_from_the_middle(seed, m=3000):
    """Return a town in which those who override go to the centre farthest from the middle."""
    rng = np.random.default_rng(seed)
    middles, spread = rng.uniform(0, 10, (5, 2)), rng.uniform(0.5, 1.8, (5, 1))
    mine = rng.integers(0, 5, 300)
    town = middles[mine] + spread[mine] * rng.standard_normal((300, 2))
    unit = town.var(0).sum() / 5

    def p(Y):
        u = np.tile(2 * squared(town.mean(0)[None], Y)[0] / unit, (5, 1))
        np.fill_diagonal(u, -np.inf)
        return 0.85 * np.eye(5) + 0.15 * softmax(u, axis=1)

    def cost(Y, policy):
        return float(np.einsum("ij,jk,ik->i", policy, p(Y), squared(town, Y)).mean())

    today = np.array([[4.04, 3.66], [4.73, 9.14], [6.85, 4.65], [1.5, 5.38], [3.17, 8.79]])
    best = np.einsum("jk,ik->ij", p(today), squared(town, today)).argmin(1)
    policy = 0.95 * np.eye(5)[best] + 0.05 / 5
    entity = rng.integers(0, 300, m)
    told = np.array([rng.choice(5, p=policy[i]) for i in entity])
    used = np.array([rng.choice(5, p=one) for one in p(today)[told]])
    chance = policy[entity, told]
    log = {"entity": entity, "prescribed": told, "realized": used, "propensity": chance}
    return town, today, log, policy, cost


@pytest.mark.parametrize("twice", [False, True])
def test_a_liking_may_stay_at_its_place(twice):
    """By cluster numbers alone, moving the liked centre into the middle would save 40 %."""
    town, today, log, policy, cost = liked_far_from_the_middle(8)
    centers = today
    if twice:  # two sets that are the same: they never moved either
        centers = np.stack([today, today])
        log["layout"] = np.arange(len(log["entity"])) * 2 // len(log["entity"])
    model = ChoiceClustering(5, family=(("constant",), ("cluster",)), random_state=0)
    model.fit_log(town, log, centers)
    rows = {row.name: row for row in model.compare_plans()}
    moved, plan = rows[PlanName.MOVED], model._plans.moved
    saved = cost(today, policy) - cost(plan[0], np.eye(5)[plan[1]])
    assert saved < 0 < moved.saving.value
    assert moved.saving.low < 0
    assert moved.saving.low < rows["autonomy ignored"].saving.high
    assert model.decision_.name in (PlanName.TODAY, PlanName.NEAREST, PlanName.BEST)
    assert "its place cannot be known" in model.decision_.reason


def test_a_centre_that_hardly_moves_keeps_its_liking():
    town, today, log, *_ = liked_far_from_the_middle(8)
    model = ChoiceClustering(5, family=(("constant",), ("cluster",)), random_state=0)
    model.fit_log(town, log, today)
    near, labels = today + 0.01, squared(town, today).argmin(1)
    placed = liked_by_place(model.fit_, model._plans.log(), near, labels)
    plain = modelled_cost(model.fit_, model._plans.log(), near, labels)
    for one in placed:
        assert one.value == pytest.approx(plain.value)
        np.testing.assert_allclose(one.gradient, plain.gradient)
    # Two at the place of one are both liked as that one is.
    both = today[[0, 1, 2, 1, 4]]
    liked = liked_by_place(model.fit_, model._plans.log(), both, labels)[0]
    away = model.fit_.away
    away = away._replace(coefficients=away.coefficients[[0, 1, 2, 1, 4]])
    same = model.fit_.model.with_coefficients(model.fit_.model.stay, away.by_term())
    expected = Problem(town, autonomy=same).distortion(both, labels)
    assert liked.value == pytest.approx(expected)


def told_their_own(seed, m=2000):
    """Return a log in which each is always told the site it signed up for, and wants no other."""
    rng = np.random.default_rng(seed)
    town = rng.uniform(0, 10, (200, 2))
    today = np.array([[2.0, 2.0], [8.0, 2.0], [5.0, 8.0], [5.0, 5.0]])
    near = squared(town, today).argmin(1)
    own = np.where(rng.random(200) < 0.3, rng.integers(0, 4, 200), near)
    entity = rng.integers(0, 200, m)
    used = np.where(rng.random(m) < 0.9, own[entity], near[entity])
    log = {"entity": entity, "prescribed": own[entity], "realized": used}
    return town, today, log | {"timestamp": np.arange(m)}


def test_where_each_is_told_the_same_for_ever_no_other_plan_is_judged(tmp_path):
    town, today, log = told_their_own(0)
    model = ChoiceClustering(4, family="distance", random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit_log(town, log, today)
    assert any("a column 'propensity' is needed" in str(w.message) for w in caught)
    assert model.decision_.name == PlanName.TODAY
    first, *others = model.compare_plans()
    assert np.isfinite(first.expected).all()
    for row in others:
        assert row.basis == "guess"
        assert np.isnan([row.expected.low, row.saving.low, row.robust.low, row.direct.low]).all()
    again = load_model(save_model(model, tmp_path / "m.safetensors"))
    assert all(row.basis == "guess" for row in again.compare_plans()[1:])
    # Propensities that are known are another matter.
    known = {row.name: row for row in model.compare_plans(propensity=np.full(2000, 0.775))}
    assert known[PlanName.NEAREST].basis == "seen"


def test_prescriptions_that_are_drawn_anew_are_rarely_taken_for_fixed():
    rng, low = np.random.default_rng(0), []
    town, today = rng.uniform(0, 10, (100, 2)), rng.uniform(0, 10, (1, 4, 2))
    rank = squared(town, today[0]).argsort(1)
    for _ in range(400):
        entity = rng.integers(0, 100, 600)
        told = rank[entity, rng.choice(4, 600, p=[0.85, 0.05, 0.05, 0.05])]
        choices = Choices(entity, told, told, 0 * told, today)
        low.append(fixed_prescriptions(town, choices, SquaredEuclidean())[2])
    assert np.mean(np.array(low) < 0.05) < 0.09
    assert np.mean(np.array(low) < 0.002) < 0.01


def plain_log(seed, m=2000, kappa=0.4):
    """Return a town, today's centres, and a log of those who go to the nearest if they override."""
    rng = np.random.default_rng(seed)
    town, today = rng.uniform(0, 10, (200, 2)), np.array([[2.0, 2.0], [8.0, 3.0], [4.0, 8.0]])
    near, entity = squared(town, today).argmin(1), rng.integers(0, 200, m)
    told = np.where(rng.random(m) < 0.8, near[entity], rng.integers(0, 3, m))
    used = np.where(rng.random(m) < kappa, (told + rng.integers(1, 3, m)) % 3, told)
    log = {"entity": entity, "prescribed": told, "realized": used, "timestamp": np.arange(m)}
    return town, today, log


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(("share", "said", "judged"), [(0.03, 0, 1), (0.1, 1, 1), (0.3, 1, 0)])
def test_many_rows_without_an_answer_are_a_caution_and_more_are_no_basis(
    before, share, said, judged, tmp_path
):
    """Whether the rows are in the log, or were left out before and counted."""
    town, today, log = plain_log(1)
    silent = np.random.default_rng(0).random(2000) < share
    if before:
        log = {name: column[~silent] for name, column in log.items()}
    else:
        log["realized"] = np.where(silent, -1, log["realized"])
    model = ChoiceClustering(3, family="distance", random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit_log(town, log, today, unanswered=int(silent.sum()) if before else 0)
    words = "of the rows have no answer: if those who override answer less often"
    assert sum(words in str(w.message) for w in caught) == said
    beside = [*model.decision_.notes, *model.decision_.doubts]
    assert sum(words in sentence for sentence in beside) == said
    assert bool(model.decision_.doubts) == (not judged)
    again = load_model(save_model(model, tmp_path / "m.safetensors"))
    for rows in (model.compare_plans(), again.compare_plans()):
        assert np.isfinite(rows[0].expected.low) == judged
        assert np.isfinite([row.saving.low for row in rows[1:3]]).all() == judged
    assert judged or model.decision_.name == PlanName.TODAY


def test_what_is_assumed_where_there_are_no_propensities_is_said_and_is_no_warning():
    town, today, log = plain_log(2)
    model = ChoiceClustering(3, family="distance", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit_log(town, log, today)
    (note,) = model.decision_.notes
    assert note.startswith("The log has no propensities, so these are counted by how near")
    assert not model.decision_.doubts
    near = squared(town, today).argmin(1)[log["entity"]]
    log["propensity"] = np.where(log["prescribed"] == near, 0.8 + 0.2 / 3, 0.2 / 3)
    model.fit_log(town, log, today)
    assert model.decision_.notes == ()


@pytest.mark.parametrize(("unit", "said"), [(1e40, "too large"), (1e-60, "too small"), (1e100, "")])
def test_units_that_cannot_be_computed_with_are_refused_in_one_sentence(unit, said):
    town, today, log = plain_log(3)
    with pytest.raises(ValueError, match=rf"{said}.*give coordinates in \w+ units\.$"):
        ChoiceClustering(3).fit_log(town * unit, log, today * unit)


@pytest.mark.parametrize("unit", [1e25, 1e-25])
def test_large_and_small_units_change_nothing(unit):
    town, today, log = plain_log(3)
    rows = []
    for size in (1.0, unit):
        model = ChoiceClustering(3, family="distance", random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.fit_log(town * size, log, today * size)
        rows.append([row.expected for row in model.compare_plans()])
    np.testing.assert_allclose(np.array(rows[1]) / unit**2, rows[0], rtol=1e-6)


@pytest.mark.parametrize("size", [1e160, 1e300])
def test_covariates_that_cannot_be_squared_are_refused_in_one_sentence(size):
    town, today, log = plain_log(3)
    with pytest.raises(ValueError, match=r"at row 7, column 0; use larger units, up to 1e\+100\.$"):
        ChoiceClustering(3).fit_log(town, log, today, covariates=size * (np.arange(200) == 7))


def test_centres_of_today_that_are_not_in_the_log_are_refused():
    town, today, log = plain_log(3)
    log["layout"] = np.arange(2000) // 1000
    sets = np.stack([today, today + 1, today + 2])
    with pytest.raises(ValueError, match=r"no answer at today's centres.*layout, 2; its last is 1"):
        ChoiceClustering(3).fit_log(town, log, sets)


def test_few_answers_choose_nothing_and_their_interval_holds_the_truth():
    """15 answers, a third of them dear: before, k-means was kept by chance in 8 of 30 fits."""
    rng, hits = np.random.default_rng(0), 0
    places = np.repeat([[0.0, 0.0], [6.0, 6.0], [0.0, 6.0]], 66, axis=0)
    places = places + rng.normal(0, 1, places.shape)
    P = np.full((3, 3), 0.15) + 0.55 * np.eye(3)
    for seed in range(30):
        people = SimulatedPopulation(places, FixedAutonomy(P), random_state=seed)
        model = TabularClustering(3, n_interactions=150, random_state=seed)
        model.fit(places, population=people)
        assert model.kept_ == "learned"
        D = squared(places, model.cluster_centers_)
        true = (D @ P.T)[np.arange(len(D)), model.labels_].mean()
        seen = model.distortion_estimate()
        hits += seen.low <= true <= seen.high
    assert hits >= 27


@pytest.mark.parametrize("m", [15, 30, 100])
def test_the_interval_of_few_skewed_costs_holds_the_truth(m):
    """One answer in ten costs 40 times as much: many trials of 15 see none of them."""
    rng, hits = np.random.default_rng(m), 0
    for _ in range(400):
        paid = np.where(rng.random(m) < 0.1, 40.0, 1.0)
        found, _ = mean_cost(paid, np.ones(m), 1.0, bounds=(1.0, 40.0))
        assert 1 <= found.low <= found.value <= found.high <= 40
        hits += found.low <= 4.9 <= found.high
    assert hits >= 360


def test_the_plain_plan_is_judged_by_answers_that_did_not_choose_it():
    """Both plans cost the same: chosen by its answers, one looks cheaper than it is."""
    places = np.repeat(np.eye(4)[:, :2] * 6, 25, axis=0)

    class Dice:
        def __init__(self, seed):
            self.rng = np.random.default_rng(seed)

        def respond(self, entities, prescribed, centers):
            return Response(prescribed, self.rng.exponential(1.0, len(entities)) - 100)

    kept = []
    for seed in range(12):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = TabularClustering(3, estimate="costs", n_interactions=1500, random_state=seed)
            model.fit(places, population=Dice(seed))
        told = any("are kept" in str(w.message) for w in caught)
        assert told == (model.kept_ == "k-means")  # also where costs are far from nought
        if model.kept_ == "k-means":
            kept.append(model.distortion_estimate())
    assert all(seen.low <= -99 <= seen.high for seen in kept)
    assert len(kept) <= 5


def test_a_model_that_is_wrong_about_all_plans_alike_keeps_its_credit():
    def tried(name, value):
        return Tried(name, Estimate(value, value - 1, value + 1, 400), 0.5, 10.0)

    learned, plain = tried("learned", -94.0), tried("k-means", -94.2)
    assert not plain_is_cheaper(6.0, learned, plain, 6.3)  # off by 100, for both
    assert plain_is_cheaper(6.0, learned, plain, 9.3)  # it believed in 3.3 more
    assert plain_is_cheaper(6.0, learned, tried("k-means", -97.0), 6.3)
    few = [one._replace(estimate=one.estimate._replace(n_answers=20)) for one in (learned, plain)]
    assert not plain_is_cheaper(6.0, few[0], few[1]._replace(error=1e-3), 9.3)
    said = TrialResult((learned, plain), "k-means", -94.0).doubts()
    assert any("k-means centres with the nearest prescribed are kept" in one for one in said)
    assert any("The model expects" in one for one in TrialResult((learned,), believed=-90).doubts())


@pytest.mark.parametrize("seed", [0, 1])
def test_few_answers_that_lack_the_rare_dear_ones_do_not_drop_a_good_plan(seed):
    """One in ten overrides: 60 answers about k-means may hold hardly any of them."""
    X, near = load_four_groups().data, DistanceAutonomy(0.1, temperature=0.01)
    people = SimulatedPopulation(X, near, random_state=1000 + seed)
    model = ChoiceClustering(4, family="distance", n_interactions=2000, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model.fit(X, population=people)
    truth = Problem(X, autonomy=near)
    best = AutonomyAwareClustering(4, autonomy=near, random_state=0).fit(X).distortion_
    assert model.kept_ == "learned"
    assert truth.distortion(model.cluster_centers_, model.labels_) < 1.005 * best


@pytest.fixture(scope="module")
def logged():
    X, rng, m = load_four_groups().data[::5], np.random.default_rng(0), 3000
    today, near = X[[0, 40, 80, 120]], DistanceAutonomy(0.3, temperature=0.1)
    entity = rng.integers(0, len(X), m)
    nearest = Problem(X).labels(today)
    prescribed = np.where(rng.random(m) < 0.8, nearest[entity], rng.integers(0, 4, m))
    people = SimulatedPopulation(X, near, random_state=1)
    used = people.respond(entity, prescribed, today).realized
    log = {"entity": entity, "prescribed": prescribed, "realized": used}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return ChoiceClustering(4, random_state=0).fit_log(X, log, today), X, today


def test_a_plan_without_labels_is_priced_at_its_own_centres(logged):
    model, X, today = logged
    between = (today + model.cluster_centers_) / 2
    row = model.compare_plans({"between": (between, None)})[-1]
    best = Problem(X, autonomy=model.model_).labels(between)
    assert row.direct.value == pytest.approx(
        Problem(X, autonomy=model.model_).distortion(between, best)
    )
    assert abs(row.saving.value) > 0.01


@pytest.mark.parametrize(
    "spoil", [lambda Y, y: (Y, y + 9), lambda Y, y: (Y, y[:10]), lambda Y, y: (Y[:3], y),
              lambda Y, y: Y, lambda Y, y: (Y, y.astype(str)), lambda Y, y: (Y * np.nan, y)],
)  # fmt: skip
def test_a_plan_that_cannot_be_is_refused_by_its_name(logged, spoil):
    model, _, _ = logged
    with pytest.raises(ValueError, match="plan 'mine'"):
        model.compare_plans({"mine": spoil(model.cluster_centers_, model.labels_)})


def test_savings_in_percent_are_of_the_cost_that_they_are_measured_against(logged):
    plans = logged[0].compare_plans()
    for row in plans[1:]:
        saved = plans.base(row) - row.expected.value
        assert saved == pytest.approx(row.saving.value, rel=0.02)
    assert f"{plans[0].direct.value:.4g}"[:4] in plans.base_note()
