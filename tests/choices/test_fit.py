"""Choice models: the fit against statsmodels' closed forms, scipy and brute force; error bars."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import expit, logsumexp
from sklearn.linear_model import LogisticRegression

from volition import (
    AutonomyAwareClustering,
    CallableAutonomy,
    ChoiceAutonomy,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    LogitAutonomy,
    SimulatedPopulation,
    critical_beta,
    load_autonomy,
    load_model,
    save_autonomy,
    save_model,
)
from volition.choices import (
    AWAY,
    STAY,
    Choices,
    Log,
    PlanName,
    calibration,
    compare_plans,
    distance_autonomy,
    fit_choices,
    parameters,
)
from volition.choices.coding import make_coding
from volition.choices.data import make_basis, make_decisions, make_scene
from volition.choices.logit import Decisions, fit_logit, log_likelihoods, scores
from volition.choices.modelled_costs import modelled_cost
from volition.choices.ranked import RankedTransition, ranks
from volition.choices.seen_costs import expected_costs, propensities, seen_cost
from volition.choices.selection import add_terms
from volition.choices.terms import KNOTS
from volition.choices.terms import TERMS as KINDS
from volition.core.autonomy import Chunk
from volition.core.costs import SquaredEuclidean
from volition.core.problem import Problem
from volition.datasets import load_four_groups
from volition.learning.staged import StagedStrategy

COST = SquaredEuclidean()
X4 = load_four_groups().data
UNIT = Problem(X4).cost_scale


def observe(X, K, autonomy, m, seed=0, n_layouts=40):
    """Choices of random entities, prescribed anything, at random centres."""
    rng = np.random.default_rng(seed)
    layouts = X[rng.integers(0, len(X), (n_layouts, K))] + 0.01 * rng.standard_normal(
        (n_layouts, K, X.shape[1])
    )
    layout = np.sort(rng.integers(0, n_layouts, m))
    entities, prescribed = rng.integers(0, len(X), m), rng.integers(0, K, m)
    people = SimulatedPopulation(X, autonomy, random_state=seed)
    realized = people.respond(entities, prescribed, layouts[layout]).realized
    return Choices(entities, prescribed, realized, layout, layouts)


def logged(X, autonomy, Y, m, seed=0):
    """Return a log: the nearest centre prescribed, or in one of ten cases any."""
    rng = np.random.default_rng(seed)
    near, K = Problem(X).labels(Y), len(Y)
    entities = rng.integers(0, len(X), m)
    prescribed = np.where(rng.random(m) < 0.9, near[entities], rng.integers(0, K, m))
    people = SimulatedPopulation(X, autonomy, random_state=seed)
    realized = people.respond(entities, prescribed, Y).realized
    chance = np.where(prescribed == near[entities], 0.9 + 0.1 / K, 0.1 / K)
    none = np.zeros(m, dtype=np.int64)
    return Choices(entities, prescribed, realized, none, Y[None]), chance, near


# -- the kernel -----------------------------------------------------------------------------------


def random_decisions(seed, m=60, A=4, S=2, P=5):
    rng = np.random.default_rng(seed)
    open_ = rng.random((m, A)) < 0.8
    open_[:, 0] = True
    chosen = np.array([rng.choice(np.flatnonzero(row)) for row in open_])
    which, value = rng.integers(0, P, (m, A, S)), rng.standard_normal((m, A, S))
    return Decisions(which, value, open_, chosen, rng.random(m) + 0.5, P)


def dense(decisions):
    m, A, _ = decisions.which.shape
    F = np.zeros((m, A, decisions.n_coefficients))
    for i, a, s in itertools.product(*map(range, decisions.which.shape)):
        F[i, a, decisions.which[i, a, s]] += decisions.value[i, a, s]
    return F


def loss(theta, decisions, F, ridge):
    utility = np.where(decisions.open, F @ theta, -np.inf)
    log_p = utility - logsumexp(utility, axis=1, keepdims=True)
    rows = np.arange(len(log_p))
    return -decisions.weight @ log_p[rows, decisions.chosen] + 0.5 * ridge @ theta**2


@pytest.mark.parametrize("S", [2, 7])
def test_newton_finds_the_maximum_that_scipy_finds(S):
    decisions = random_decisions(0, S=S)
    ridge = np.array([0.1, 0.2, 0.0, 0.3, 0.5])
    estimate = fit_logit(decisions, ridge)
    F = dense(decisions)
    slow = minimize(loss, np.zeros(5), (decisions, F, ridge), method="BFGS", tol=1e-9)
    assert estimate.converged
    assert_allclose(estimate.coefficients, slow.x, atol=2e-5)
    assert loss(estimate.coefficients, decisions, F, ridge) <= slow.fun + 1e-10


def test_the_bread_is_the_inverse_of_the_hessian_by_autograd():
    decisions, ridge = random_decisions(1), np.full(5, 0.3)
    estimate = fit_logit(decisions, ridge)
    F = torch.from_numpy(dense(decisions))

    def value(theta):
        utility = (F @ theta).masked_fill(~torch.from_numpy(decisions.open), -torch.inf)
        log_p = utility.log_softmax(1)[torch.arange(len(F)), torch.from_numpy(decisions.chosen)]
        penalty = 0.5 * (torch.from_numpy(ridge) * theta**2).sum()
        return penalty - (torch.from_numpy(decisions.weight) * log_p).sum()

    H = torch.autograd.functional.hessian(value, torch.from_numpy(estimate.coefficients))
    assert_allclose(estimate.bread @ H.numpy(), np.eye(5), atol=1e-8)


def test_scores_are_gradients_of_log_likelihoods():
    decisions, theta = random_decisions(2), np.linspace(-1, 1, 5)
    analytic, step = scores(decisions, theta), 1e-6
    for p in range(5):
        up, down = theta.copy(), theta.copy()
        up[p] += step
        down[p] -= step
        numeric = (log_likelihoods(decisions, up) - log_likelihoods(decisions, down)) / (2 * step)
        assert_allclose(analytic[:, p], numeric, atol=1e-8)


def test_staying_is_the_logistic_regression_of_scikit_learn():
    rng = np.random.default_rng(0)
    cost = rng.random(500)
    stays = rng.random(500) < expit(1.0 - 2.0 * cost)
    decisions = Decisions(
        np.broadcast_to([[0, 1], [0, 1]], (500, 2, 2)),
        np.stack([np.stack([np.ones(500), cost], 1), np.zeros((500, 2))], 1),
        np.ones((500, 2), bool),
        (~stays).astype(int),
        np.ones(500),
        2,
    )
    theirs = LogisticRegression(C=1e8, tol=1e-12, solver="newton-cholesky").fit(
        cost[:, None], stays
    )
    ours = fit_logit(decisions, np.full(2, 1e-8)).coefficients
    assert_allclose(ours, [theirs.intercept_[0], theirs.coef_[0, 0]], atol=1e-5)


def test_choices_that_are_certain_do_not_blow_up():
    decisions = random_decisions(3)._replace(chosen=np.zeros(60, dtype=int))
    value = np.abs(decisions.value)
    value[:, 1:] = 0
    estimate = fit_logit(decisions._replace(value=value), np.full(5, 1e-4))
    assert np.isfinite(estimate.coefficients).all()


# -- models ---------------------------------------------------------------------------------------


def random_model(rng, stay, away, K, covariates, basis):
    c, M = covariates.shape[1], len(basis.places)
    return ChoiceAutonomy(
        {term: rng.standard_normal(KINDS["stay"][term].size(K, c, M)) for term in stay},
        {term: 2 * rng.standard_normal(KINDS["away"][term].size(K, c, M)) for term in away},
        cost_unit=0.3,
        n_clusters=K,
        covariates=covariates,
        basis=basis,
    )


TERMS = [
    (("constant",), ("pair",)),
    (("constant", "cost"), ("pair", "entity")),
    (("constant", "cluster"), ("cluster",)),
    (("constant", "cluster"), ("table", "pair")),
    (("constant", "rank"), ("rank",)),
    (("constant", "rank"), ("rank", "entity", "cluster")),
    (("constant", "covariates"), ("pair", "covariates x entity")),
    (("constant", "place"), ("covariates x cluster",)),
    (("log cost",), ("log pair", "log entity")),
    (("cost curve",), ("pair curve", "entity curve")),
]


@pytest.mark.parametrize(("stay", "away"), TERMS)
@pytest.mark.parametrize("K", [2, 3, 6])
def test_model_and_log_agree_on_every_term(stay, away, K):
    """The model's p, in torch for all pairs, is that of the rows it is fitted to, in NumPy."""
    rng = np.random.default_rng(K)
    X, Z = rng.random((50, 2)), rng.standard_normal((50, 2))
    basis = make_basis(X, Z)
    model = random_model(rng, stay, away, K, Z, basis)
    m, layouts = 200, rng.random((5, K, 2))
    layout, entities = np.sort(rng.integers(0, 5, m)), rng.integers(0, 50, m)
    prescribed, realized = rng.integers(0, K, (2, m))
    choices = Choices(entities, prescribed, realized, layout, layouts)
    with torch.no_grad():
        p = model.conditional_each(
            torch.from_numpy(X[entities]),
            torch.from_numpy(prescribed),
            torch.from_numpy(layouts[layout]),
            COST,
            entities,
        ).numpy()
    assert_allclose(p.sum(1), 1)
    scene = make_scene(X, choices, COST, 0.3, Z, basis)
    rows = np.arange(m)
    decisions, _, _ = make_decisions("stay", stay, scene, realized)
    theta = np.concatenate([model.stay[term] for term in stay])
    chance = np.exp(log_likelihoods(decisions, theta))
    stays = np.where(realized == prescribed, chance, 1 - chance)
    assert_allclose(p[rows, prescribed], stays, atol=1e-10)
    left = realized != prescribed
    decisions, _, _ = make_decisions("away", away, scene, realized)
    theta = np.concatenate([np.zeros(0), *(model.away[term] for term in away)])
    away_p = p[rows, realized][left] / (1 - stays[left])
    assert_allclose(away_p, np.exp(log_likelihoods(decisions, theta)), atol=1e-9)


@pytest.mark.parametrize(("stay", "away"), TERMS)
def test_averages_without_the_cube_are_those_with_it(stay, away):
    rng = np.random.default_rng(5)
    K, X = 5, rng.random((30, 2))
    Z = rng.standard_normal((30, 2))
    model = random_model(rng, stay, away, K, Z, make_basis(X, Z))
    y, x = torch.from_numpy(rng.random((K, 2))), torch.from_numpy(X)
    D = COST.pairwise(x, y)
    chunk = Chunk(x, torch.zeros(2, dtype=torch.float64), D, slice(0, 30), 0)
    transition = model.transition(chunk, y, COST)
    cube = torch.stack(
        [transition.conditional(torch.full((30,), j, dtype=torch.long)) for j in range(K)], dim=1
    )
    assert_allclose(cube.sum(2), 1)
    assert_allclose(transition.expected(D), torch.einsum("ijk,ik->ij", cube, D), atol=1e-10)
    W = torch.from_numpy(rng.random((30, K)))
    assert_allclose(transition.realized(W), torch.einsum("ijk,ij->ik", cube, W), atol=1e-10)


@pytest.mark.parametrize(("stay", "away"), TERMS)
def test_gradients_of_the_free_energy_are_those_of_finite_differences(stay, away):
    rng = np.random.default_rng(6)
    K, X = 4, rng.random((40, 2))
    Z = rng.standard_normal((40, 2))
    problem = Problem(X, autonomy=random_model(rng, stay, away, K, Z, make_basis(X, Z)))
    Y, beta = rng.random((K, 2)), 5.0
    gradient = problem.value_and_gradient(Y, beta)[1].numpy()
    for k, axis in itertools.product(range(K), range(2)):
        step = np.zeros_like(Y)
        step[k, axis] = 1e-7
        up, down = problem.free_energy(Y + step, beta), problem.free_energy(Y - step, beta)
        if {"rank"} & {*stay, *away} and abs(up - down) > 1e-5:
            continue  # a rank changed in between
        assert_allclose(gradient[k, axis], (up - down) / 2e-7, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), K=st.integers(2, 7), r=st.integers(0, 3))
def test_two_nearest_others_is_a_table_of_ranks(seed, K, r):
    """Uniform among the two nearest others, for each prescribed one, as weights by rank."""
    rng = np.random.default_rng(seed)
    D = torch.from_numpy(rng.random((9, K)))
    table = torch.full((4, 4), -50.0, dtype=torch.float64)
    table[:, :2] = 0
    kappa = torch.full((9, K), 0.3, dtype=torch.float64)
    transition = RankedTransition(kappa, torch.zeros_like(D), ranks(D), table)
    j = min(r, K - 1)
    p = transition.conditional(torch.full((9,), j))
    for i in range(9):
        others = [k for k in np.argsort(D[i].numpy(), kind="stable") if k != j][:2]
        truth = np.zeros(K)
        truth[others] = 0.3 / len(others)
        truth[j] = 0.7
        assert_allclose(p[i], truth, atol=1e-12)


def test_known_models_are_cases_of_choice_models():
    rng = np.random.default_rng(0)
    X, Y = rng.random((20, 2)), rng.random((4, 2))
    logit = Problem(X, autonomy=LogitAutonomy(0.8, -0.5, -3.0, -2.0)).expected_costs(Y)
    ours = ChoiceAutonomy({"constant": [0.8], "cost": [-0.5]}, {"pair": [-3.0], "entity": [-2.0]})
    assert_allclose(Problem(X, autonomy=ours).expected_costs(Y), logit, rtol=1e-12)
    shared = ChoiceAutonomy({"constant": [np.log(0.7 / 0.3)]}, {"pair": [-100.0]})
    known = DistanceAutonomy(0.3, temperature=0.01)
    assert not shared.by_entity
    assert_allclose(
        Problem(X, autonomy=shared).expected_costs(Y), Problem(X, autonomy=known).expected_costs(Y)
    )
    half = ours.with_overrides_scaled(0.5)
    blend = 0.5 * Problem(X).expected_costs(Y) + 0.5 * logit
    assert_allclose(Problem(X, autonomy=half).expected_costs(Y), blend, rtol=1e-12)


def test_critical_beta_and_solvers_take_a_choice_model():
    model = ChoiceAutonomy({"constant": [np.log(0.7 / 0.3)]}, {"pair": [-100.0]})
    known = DistanceAutonomy(0.3, temperature=0.01)
    Y = np.repeat(X4.mean(0)[None], 4, axis=0)
    ours, theirs = (critical_beta(X4, Y, autonomy=a, beta=1.0).beta for a in (model, known))
    assert_allclose(ours, theirs, rtol=1e-8)
    fits = [AutonomyAwareClustering(4, autonomy=a, random_state=0).fit(X4) for a in (model, known)]
    assert_allclose(fits[0].distortion_, fits[1].distortion_, rtol=1e-6)


@pytest.mark.parametrize(("stay", "away"), TERMS)
def test_models_are_saved_and_loaded(tmp_path, stay, away):
    rng = np.random.default_rng(0)
    X, Z = rng.random((20, 2)), rng.standard_normal((20, 2))
    model = random_model(rng, stay, away, 3, Z, make_basis(X, Z))
    Y = rng.random((3, 2))
    expected = Problem(X, autonomy=model).expected_costs(Y)
    again = load_autonomy(save_autonomy(model, tmp_path / "a.safetensors"))
    assert isinstance(again, ChoiceAutonomy)
    assert_allclose(Problem(X, autonomy=again.for_entities(Z)).expected_costs(Y), expected)
    fitted = AutonomyAwareClustering(3, autonomy=model, random_state=0, time_budget=1).fit(X)
    loaded = load_model(save_model(fitted, tmp_path / "m.safetensors"))
    assert_allclose(loaded.autonomy.covariates, Z)


def test_a_model_says_what_it_cannot_serve():
    with pytest.raises(ValueError, match="no stay term 'distance'"):
        ChoiceAutonomy({"distance": [1.0]}, {})
    with pytest.raises(ValueError, match="'pair' does not go with 'rank'"):
        ChoiceAutonomy({}, {"rank": np.zeros(16), "pair": [1.0]})
    with pytest.raises(ValueError, match="n_clusters is needed"):
        ChoiceAutonomy({}, {"cluster": np.zeros(3)})
    labelled = ChoiceAutonomy({"constant": [1.0]}, {"cluster": np.zeros(3)}, n_clusters=3)
    with pytest.raises(ValueError, match="knows 3 clusters by their numbers"):
        AutonomyAwareClustering(4, autonomy=labelled).fit(X4[:50])
    model = ChoiceAutonomy({"covariates": [1.0]}, {}, covariates=np.zeros((5, 1)))
    with pytest.raises(ValueError, match="covariates of 5 entities, but there are 50"):
        AutonomyAwareClustering(4, autonomy=model).fit(X4[:50])


# -- choosing among models ------------------------------------------------------------------------


def halves(X, Y):
    kappa = torch.where(X[:, 0] < 0.5, 0.05, 0.5).to(Y.dtype)[:, None, None]
    eye = torch.eye(len(Y), dtype=Y.dtype)
    return (1 - kappa) * eye + kappa * (1 - eye) / (len(Y) - 1)


def two_nearest(X, Y):
    K = len(Y)
    D = torch.cdist(X, Y).square()[:, None].expand(-1, K, -1)
    D = D + torch.diag(torch.full((K,), torch.inf, dtype=Y.dtype))
    away = torch.zeros_like(D).scatter_(2, D.argsort(2)[:, :, :2], 0.5)
    return 0.7 * torch.eye(K, dtype=Y.dtype) + 0.3 * away


def gravity(X, Y):
    K = len(Y)
    logits = -1.5 * torch.log(torch.cdist(X, Y).square() + 1e-3 * UNIT)
    logits = logits[:, None].expand(-1, K, -1).clone()
    logits[:, torch.arange(K), torch.arange(K)] = -torch.inf
    return 0.7 * torch.eye(K, dtype=Y.dtype) + 0.3 * logits.softmax(2)


CYCLE = 0.7 * np.eye(5) + 0.3 * np.roll(np.eye(5), 1, axis=1)


@pytest.mark.parametrize(
    ("autonomy", "stay", "away"),
    [
        (DistanceAutonomy(0.3, temperature=0.01), {"constant"}, {"pair"}),
        (DistanceAutonomy(0.3, 0.5, temperature=0.1), {"constant"}, {"pair", "entity"}),
        (DistanceAutonomy(0.3, temperature=100.0), {"constant"}, set()),
        (LogitAutonomy(2.0, own=-5.0, entity=-10.0), {"constant", "cost"}, {"entity"}),
        (FixedAutonomy(CYCLE), {"constant"}, {"table"}),
        (CallableAutonomy(halves), {"constant", "place"}, set()),
        (CallableAutonomy(two_nearest), {"constant"}, {"rank"}),
        (CallableAutonomy(gravity), {"constant"}, {"log entity"}),
    ],
)
def test_held_out_choices_find_the_terms_that_matter(autonomy, stay, away):
    choices = observe(X4, 5, autonomy, 6000, seed=3)
    fit = fit_choices(X4, choices, COST, UNIT)
    assert set(fit.stay.terms) == stay
    assert set(fit.away.terms) == away
    chosen = {trial.part for trial in fit.trials if trial.chosen}
    assert chosen == {"stay", "away"}


def test_a_covariate_is_found_where_it_matters_and_only_there():
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((len(X4), 2))
    truth = ChoiceAutonomy(
        {"constant": [1.0], "covariates": [1.5, 0.0]}, {"pair": [-20.0]}, covariates=Z
    )
    fit = fit_choices(X4, observe(X4, 4, truth, 6000), COST, UNIT, covariates=Z)
    assert set(fit.stay.terms) == {"constant", "covariates"}
    assert set(fit.away.terms) == {"pair"}
    assert_allclose(fit.model.stay["covariates"], [1.5, 0.0], atol=0.25)
    blind = fit_choices(X4, observe(X4, 4, DistanceAutonomy(0.3), 6000), COST, UNIT, covariates=Z)
    assert "covariates" not in blind.stay.terms


@pytest.mark.parametrize("K", [1, 2])
def test_few_clusters_leave_little_to_learn(K):
    autonomy = DistanceAutonomy(0.25, temperature=0.1)
    fit = fit_choices(X4, observe(X4, K, autonomy, 3000), COST, UNIT)
    assert fit.away.terms == ()
    if K == 2:
        assert_allclose(parameters(fit)[0].value, 0.25, atol=0.03)


def test_entities_that_always_obey_are_no_trouble():
    fit = fit_choices(X4, observe(X4, 4, DistanceAutonomy(0.0), 2000), COST, UNIT)
    kappa = parameters(fit)[0]
    assert kappa.value < 0.005
    assert kappa.high < 0.1
    everyone = fit_choices(X4, observe(X4, 4, DistanceAutonomy(1.0), 2000), COST, UNIT)
    assert parameters(everyone)[0].value > 0.995


def test_the_family_can_be_told():
    choices = observe(X4, 4, DistanceAutonomy(0.3, 0.5, temperature=0.05), 8000)
    fit = fit_choices(X4, choices, COST, UNIT, family="distance")
    known = distance_autonomy(fit)
    assert_allclose(
        [known.kappa, known.gamma, known.zeta, known.temperature], [0.3, 0.5, 1, 0.05], rtol=0.1
    )
    own = fit_choices(X4, choices, COST, UNIT, family=(("constant", "cluster"), ("cluster",)))
    assert own.model.n_clusters == 4
    with pytest.raises(ValueError, match="not of the family 'distance'"):
        distance_autonomy(own)
    assert set(STAY) >= {"constant"}
    assert set(AWAY) >= {"pair", "entity"}
    assert KNOTS > 2


# -- error bars -----------------------------------------------------------------------------------


def test_intervals_cover_about_as_often_as_they_say():
    """40 logs; between 33 and 40 of them cover (a share of 0.95 leaves this in 1 of 500 runs)."""
    autonomy = DistanceAutonomy(0.3, 0.5, temperature=0.05)
    today = AutonomyAwareClustering(4, random_state=0).fit(X4).cluster_centers_
    better = AutonomyAwareClustering(4, autonomy=autonomy, random_state=0).fit(X4)
    truth = Problem(X4, autonomy=autonomy)
    true = {"kappa": 0.3, "zeta / T": 20.0, "gamma / T": 10.0, "T": 0.05, "gamma": 0.5}
    covered: dict[str, list[bool]] = {}
    for seed in range(40):
        choices, chance, near = logged(X4, autonomy, today, 2000, seed)
        fit = fit_choices(X4, choices, COST, UNIT, family="distance")
        for p in parameters(fit):
            covered.setdefault(p.name, []).append(p.low <= true[p.name] <= p.high)
        log = Log(X4, COST, None, choices, chance)
        now = modelled_cost(fit, log, today, near)
        then = modelled_cost(fit, log, better.cluster_centers_, better.labels_)
        saving = now.minus(then).interval(fit)
        saved = truth.distortion(today, near) - better.distortion_
        covered.setdefault("saving", []).append(saving.low <= saved <= saving.high)
        both = seen_cost(log, expected_costs(fit.model, X4, COST, today), near)
        for name in ("weighted", "robust"):
            interval = getattr(both, name)
            inside = interval.low <= truth.distortion(today, near) <= interval.high
            covered.setdefault(name, []).append(inside)
    counts = {name: sum(values) for name, values in covered.items()}
    assert set(counts) == {*true, "saving", "weighted", "robust"}
    assert all(33 <= count <= 40 for count in counts.values()), counts


def test_the_gradient_of_a_direct_estimate_is_that_of_finite_differences():
    autonomy = DistanceAutonomy(0.3, 0.5, temperature=0.05)
    choices = observe(X4, 4, autonomy, 2000)
    fit = fit_choices(X4, choices, COST, UNIT, family=(("constant", "cost"), ("pair", "entity")))
    Y = choices.layouts[0]
    policy = np.full((len(X4), 4), 0.25)
    log = Log(X4, COST, None, choices, np.ones(2000))
    found = modelled_cost(fit, log, Y, policy)
    assert_allclose(found.value, Problem(X4, autonomy=fit.model).expected_costs(Y).mean())
    for n in range(2):
        shifted = fit.stay.coefficients.copy()
        shifted[n] += 1e-6
        stay = {t: shifted[where] for t, where in fit.stay.slices.items()}
        other = fit.model.with_coefficients(stay, fit.model.away)
        value = Problem(X4, autonomy=other).expected_costs(Y).mean()
        assert_allclose((value - found.value) / 1e-6, found.gradient[n], rtol=1e-4)


def test_weighting_is_refused_where_the_log_has_not_seen_enough():
    autonomy = DistanceAutonomy(0.4, temperature=0.005)
    today = AutonomyAwareClustering(4, random_state=0).fit(X4).cluster_centers_
    choices, chance, near = logged(X4, autonomy, today, 3000)
    fit = fit_choices(X4, choices, COST, UNIT, family="distance")
    far = today[[1, 2, 3, 0]]
    options = {"today": (today, near), "swapped": (far, Problem(X4).labels(far))}
    rows = compare_plans(fit, Log(X4, COST, None, choices, chance), options)
    assert not np.isnan(rows[0].robust.value)
    assert np.isnan(rows[1].robust.value)
    assert not np.isnan(rows[1].direct.value)
    assert (rows[0].basis, rows[1].basis) == ("seen", "model")


def test_propensities_are_counted_by_rank():
    today = AutonomyAwareClustering(4, random_state=0).fit(X4).cluster_centers_
    choices, chance, _ = logged(X4, DistanceAutonomy(0.3), today, 20_000)
    assert_allclose(propensities(X4, choices, COST), chance, rtol=0.15)


def test_calibration_is_of_choices_that_were_not_fitted():
    autonomy = LogitAutonomy(2.0, own=-8.0, entity=-10.0)
    choices = observe(X4, 4, autonomy, 12_000)
    fit = fit_choices(X4, choices, COST, UNIT)
    bins = calibration(fit, X4, choices, COST)
    inside = [one.low <= one.predicted <= one.high for one in bins]
    assert np.mean(inside) > 0.7
    wrong = fit_choices(X4, choices, COST, UNIT, family=(("constant",), ()))
    outside = [
        not one.low <= one.predicted <= one.high for one in calibration(wrong, X4, choices, COST, 5)
    ]
    # A constant predicts the mean of all: right on the whole, so bins of it cannot be wrong.
    assert not all(outside)


# -- the learner ----------------------------------------------------------------------------------


def gap(model, autonomy, best):
    truth = Problem(X4, autonomy=autonomy)
    return 100 * (truth.distortion(model.cluster_centers_, model.labels_) / best - 1)


@pytest.mark.parametrize(
    ("kappa", "gamma", "T", "best"), [(0.3, 0.0, 0.01, 0.06965), (0.4, 0.5, 0.01, None)]
)
def test_a_few_thousand_answers_suffice(kappa, gamma, T, best):
    autonomy = DistanceAutonomy(kappa, gamma, temperature=T)
    if best is None:
        best = AutonomyAwareClustering(4, autonomy=autonomy, random_state=0).fit(X4).distortion_
    people = SimulatedPopulation(X4, autonomy, random_state=7)
    model = ChoiceClustering(4, random_state=0).fit(X4, population=people)
    assert model.n_interactions_ <= 20_000
    assert gap(model, autonomy, best) < 0.5
    assert_allclose(model.expected_costs().min(1).mean(), model.distortion_)
    assert (model.predict(X4) == model.labels_).all()


def test_the_learner_resumes_exactly(tmp_path):
    autonomy = DistanceAutonomy(0.3, temperature=0.01)

    def people():
        return SimulatedPopulation(X4, autonomy, random_state=1)

    whole = ChoiceClustering(4, n_interactions=3000, random_state=0)
    whole.fit(X4, population=people())
    path, stopped = (
        tmp_path / "state.safetensors",
        ChoiceClustering(4, n_interactions=3000, random_state=0),
    )
    stopped.fit(X4, population=people(), checkpoint=path, on_batch=lambda m: m.n_answers_ > 1500)
    again = ChoiceClustering(4, n_interactions=3000, random_state=0)
    again.fit(X4, population=people(), checkpoint=path, resume=True)
    assert_allclose(again.cluster_centers_, whole.cluster_centers_, atol=1e-12)
    loaded = load_model(save_model(again, tmp_path / "model.safetensors"))
    assert_allclose(loaded.expected_costs(), again.expected_costs())
    assert loaded.fit_.trials == again.fit_.trials
    with pytest.raises(ValueError, match="family='auto', not 'distance'"):
        ChoiceClustering(4, family="distance").resume(path)


def test_a_log_leads_to_centres_and_their_costs():
    autonomy = DistanceAutonomy(0.3, temperature=0.01)
    today = AutonomyAwareClustering(4, random_state=0).fit(X4).cluster_centers_
    choices, chance, _ = logged(X4, autonomy, today, 8000)
    log = {name: getattr(choices, name) for name in ("prescribed", "realized")}
    log["entity"] = choices.entities
    model = ChoiceClustering(4, random_state=0).fit_log(X4, log, today)
    assert gap(model, autonomy, 0.06965) < 0.2
    rows = {row.name: row for row in model.compare_plans(propensity=chance)}
    truth = Problem(X4, autonomy=autonomy)
    assert model.decision_.name == PlanName.MOVED
    assert not model.decision_.doubts
    found = rows[PlanName.MOVED].expected
    reached = truth.distortion(model.cluster_centers_, model.labels_)
    assert found.low < reached < found.high
    assert rows[PlanName.MOVED].saving_if_ignored.low > 0
    for wrong, says in ((chance[:5], "one number for each"), (0 * chance, "propensity is 0 at")):
        with pytest.raises(ValueError, match=says):
            model.compare_plans(propensity=wrong)
    assert "never moved" in str(model.extrapolation())
    assert model.extrapolation().n_layouts == 1


def test_a_log_may_have_several_sets_of_centres():
    autonomy = DistanceAutonomy(0.3, temperature=0.01)
    choices = observe(X4, 4, autonomy, 3000, n_layouts=3)
    log = {
        "entity": choices.entities,
        "prescribed": choices.prescribed,
        "realized": choices.realized,
        "layout": choices.layout,
    }
    model = ChoiceClustering(4, random_state=0).fit_log(X4, log, choices.layouts)
    assert model.extrapolation().n_layouts == 3
    assert_allclose(model.choices_.layout, choices.layout)


def test_bad_input_gets_a_clear_sentence():
    people = SimulatedPopulation(X4, DistanceAutonomy(0.3), random_state=0)
    costs = SimulatedPopulation(X4, DistanceAutonomy(0.3), reveal="cost", random_state=0)
    with pytest.raises(ValueError, match="needs the realised clusters"):
        ChoiceClustering(4).fit(X4, population=costs)
    with pytest.raises(ValueError, match="family must be one of 'auto', 'distance'"):
        ChoiceClustering(4, family="logit").fit(X4, population=people)
    with pytest.raises(ValueError, match="no away term 'cost'"):
        ChoiceClustering(4, family=(["constant"], ["cost"])).fit(X4, population=people)
    with pytest.raises(ValueError, match="one row for each of"):
        ChoiceClustering(4).fit(X4, population=people, covariates=np.zeros((3, 1)))
    with pytest.raises(ValueError, match="is 'van' for every entity"):
        ChoiceClustering(4).start(X4, covariates=np.array(["van"] * len(X4)))
    with pytest.raises(ValueError, match="call fit_log first"):
        ChoiceClustering(4).start(X4).compare_plans()
    log = {"entity": [0], "prescribed": [0], "realized": [1]}
    with pytest.raises(ValueError, match="n_clusters=3, but the log was recorded with 4"):
        ChoiceClustering(3).fit_log(X4, log, X4[:4])
    with pytest.raises(ValueError, match="no column 'layout'"):
        ChoiceClustering(4).fit_log(X4, log, X4[:8].reshape(2, 4, 2))
    with pytest.raises(ValueError, match="layout at row 0 is 5"):
        ChoiceClustering(4).fit_log(X4, log | {"layout": [5]}, X4[:8].reshape(2, 4, 2))


def as_log(choices):
    names = {"entity": "entities", "prescribed": "prescribed", "realized": "realized"}
    return {name: getattr(choices, column) for name, column in names.items()}


TODAY = np.array([[0.2, 0.2], [0.8, 0.2], [0.2, 0.7], [0.8, 0.7]])
NEAR = DistanceAutonomy(0.3, temperature=0.01)


def test_today_is_what_was_logged_whoever_prescribed_it():
    """The second nearest for half of the entities: no share of ranks tells for whom."""
    rng = np.random.default_rng(0)
    D = ((X4[:, None] - TODAY) ** 2).sum(2)
    order = D.argsort(1)
    policy = np.where(D[np.arange(len(D)), order[:, 1]] < 0.3, order[:, 1], order[:, 0])
    entity = rng.integers(0, len(X4), 6000)
    prescribed = np.where(rng.random(6000) < 0.1, rng.integers(0, 4, 6000), policy[entity])
    people = SimulatedPopulation(X4, NEAR, random_state=0)
    realized = people.respond(entity, prescribed, TODAY).realized
    log = {"entity": entity, "prescribed": prescribed, "realized": realized}
    log["propensity"] = np.where(prescribed == policy[entity], 0.925, 0.025)
    model = ChoiceClustering(4, family="distance", random_state=0).fit_log(X4, log, TODAY)
    pi = 0.9 * np.eye(4)[policy] + 0.025
    truth = float((pi * Problem(X4, autonomy=NEAR).expected_costs(TODAY)).sum(1).mean())
    today = model.compare_plans({})[0]
    assert today.direct.low < truth < today.direct.high
    assert today.weighted.low < truth < today.weighted.high


def test_today_is_the_last_set_of_centres():
    first, _, _ = logged(X4, NEAR, TODAY[::-1] + 0.2, 2000)
    second, _, near = logged(X4, NEAR, TODAY, 2000, seed=1)
    log = {k: np.concatenate([v, as_log(second)[k]]) for k, v in as_log(first).items()}
    log["layout"] = np.repeat([0, 1], 2000)
    sets = np.array([TODAY[::-1] + 0.2, TODAY])
    model = ChoiceClustering(4, family="distance", random_state=0).fit_log(X4, log, sets)
    policy = 0.9 * np.eye(4)[near] + 0.025
    truth = float((policy * Problem(X4, autonomy=NEAR).expected_costs(TODAY)).sum(1).mean())
    today = model.compare_plans({})[0]
    assert today.weighted.low < truth < today.weighted.high
    assert today.direct.low < truth < today.direct.high
    with pytest.raises(ValueError, match="2 layouts, but centers holds one set"):
        ChoiceClustering(4).fit_log(X4, log, TODAY)
    people = SimulatedPopulation(X4, NEAR, random_state=0)
    model.partial_fit(population=people, n_interactions=128)
    with pytest.raises(ValueError, match="call fit_log first"):
        model.compare_plans()


def test_a_log_that_tells_little_says_so():
    rng = np.random.default_rng(0)
    near = Problem(X4).labels(TODAY)
    entity = rng.integers(0, len(X4), 150)
    log = {"entity": entity, "prescribed": near[entity], "realized": near[entity]}
    model = ChoiceClustering(4, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit_log(X4, log, TODAY)
    said = " ".join(str(w.message) for w in caught)
    assert "only 150 choices" in said
    assert "Nobody overrode in 150" in said
    assert "the nearest centre was prescribed" in said
    kappa = parameters(model.fit_)[0]
    assert kappa.value < 0.01
    assert 3 / 150 < kappa.high < 0.2  # the rule of three, and not much more


def test_one_entity_is_not_certain_of_anything():
    choices, _, _ = logged(X4, NEAR, TODAY, 1000)
    alone = choices._replace(entities=np.zeros(1000, dtype=np.int64))
    kappa = parameters(fit_choices(X4, alone, COST, UNIT, family="distance"))[0]
    assert kappa.high - kappa.low > 0.04


def test_covariates_belong_to_their_entities(tmp_path):
    Z = np.zeros((len(X4), 1))
    Z[: len(X4) // 2] = 1
    truth = ChoiceAutonomy(
        {"constant": [3.0], "covariates": [-4.0]}, {"pair": [-100.0]}, covariates=Z
    )
    model = ChoiceClustering(4, n_interactions=4000, random_state=0)
    model.fit(X4, population=SimulatedPopulation(X4, truth, random_state=0), covariates=Z)
    assert (model.predict(X4[::-1], covariates=Z[::-1])[::-1] == model.labels_).all()
    with pytest.raises(ValueError, match="depend on covariates"):
        model.predict(X4)
    with pytest.raises(ValueError, match="2 columns, but 1 are expected"):
        model.expected_costs(X4, covariates=np.hstack([Z, Z]))
    with pytest.raises(ValueError, match="need covariates if the others have them"):
        model.add_entities(X4[:2])
    assert len(model.expected_costs()) == len(X4)
    new = model.add_entities(X4[:2], covariates=Z[:2])
    assert (model.labels_[new] == model.labels_[:2]).all()
    unused = fit_choices(X4, observe(X4, 4, NEAR, 3000), COST, UNIT, covariates=Z).model
    assert unused.covariates is None
    again = load_autonomy(save_autonomy(unused, tmp_path / "a.safetensors"))
    SimulatedPopulation(X4, again, random_state=0).respond([0], [1], TODAY)


def test_a_family_of_ones_own_is_saved(tmp_path):
    people = SimulatedPopulation(X4, NEAR, random_state=0)
    family = (("constant",), ("entity",))
    model = ChoiceClustering(4, family=family, n_interactions=500, random_state=0)
    model.fit(X4, population=people)
    again = load_model(save_model(model, tmp_path / "m.safetensors"))
    assert again.family == family
    assert_allclose(again.cluster_centers_, model.cluster_centers_)


def test_a_change_of_behaviour_begins_anew():
    before, after = DistanceAutonomy(0.1, temperature=0.01), DistanceAutonomy(0.5, temperature=0.1)
    people = SimulatedPopulation(X4, before, changes={20_000: after}, random_state=0)
    model = ChoiceClustering(4, random_state=0).fit(X4, population=people)
    assert model.n_interactions_ < 20_000
    model.partial_fit(population=people, n_interactions=40_000 - model.n_interactions_)
    assert len(model.changes_) == 1
    best = AutonomyAwareClustering(4, autonomy=after, random_state=0).fit(X4).distortion_
    assert gap(model, after, best) < 1.0


def test_a_curve_that_stood_in_for_another_term_is_straightened():
    worth = {
        (): 0.0, ("pair",): 1.0, ("pair curve",): 2.0, ("entity",): 0.5, ("table",): -1.0,
        ("entity", "pair curve"): 3.0, ("entity", "pair"): 3.0, ("pair", "pair curve"): 2.0,
        ("entity", "pair", "pair curve"): 3.0,
    }  # fmt: skip
    asked = []

    def likelihood(terms):
        asked.append(tuple(sorted(terms)))
        return np.full(50, worth[asked[-1]])

    sizes = {"pair": 1, "entity": 1, "pair curve": 24, "table": 36}
    terms, _ = add_terms(
        "away", (), list(sizes), likelihood, lambda terms: sum(sizes[t] for t in terms),
        np.arange(50),
    )  # fmt: skip
    assert set(terms) == {"pair", "entity"}
    # What did harm is not tried with every other term again.
    assert [one for one in asked if "table" in one] == [("table",)]


def test_a_network_of_no_use_is_not_tried_at_every_stage(monkeypatch):
    X, tried = load_four_groups().data, []

    def fit_choice_network(X, choices, *others):
        tried.append(len(choices.entities))

    people = SimulatedPopulation(X, DistanceAutonomy(0.3, temperature=0.01), random_state=0)
    told = ChoiceClustering(4, family="distance", n_interactions=500, random_state=0)
    fit = told.fit(X, population=people).fit_  # what is fitted does not matter here
    model = "volition.learning.models.terms"
    monkeypatch.setattr(f"{model}.fit_choices", lambda *given, **named: fit)
    monkeypatch.setattr(f"{model}.fit_choice_network", fit_choice_network)
    monkeypatch.setattr(StagedStrategy, "_search", lambda self, *given: self.place(X[:4].copy()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # centres that nobody searched for cost more than k-means
        ChoiceClustering(4, tol=0, n_interactions=30_000, random_state=0).fit(X, population=people)
    assert tried == [6_000, 27_000]


def test_rows_of_a_log_without_an_answer_are_left_out():
    X, rng = load_four_groups().data, np.random.default_rng(0)
    today, m = X[[0, 500, 1000, 1500]], 400
    entity, prescribed = rng.integers(0, len(X), m), rng.integers(0, 4, m)
    people = SimulatedPopulation(X, DistanceAutonomy(0.4, temperature=0.1), random_state=0)
    realized = people.respond(entity, prescribed, today).realized.astype(float)
    realized[[3, 7]] = np.nan
    log = {"entity": entity, "prescribed": prescribed, "realized": realized}
    model = ChoiceClustering(4, family="distance", random_state=0)
    with pytest.warns(UserWarning, match="2 rows without a realised cluster were left out"):
        model.fit_log(X, log, today)
    assert model.n_answers_ == m - 2
    log["realized"] = np.where(np.arange(m) == 20, 9.0, realized)
    with pytest.raises(ValueError, match="realized cluster 9 at row 20"):
        model.fit_log(X, log, today)


def test_covariates_of_a_frame_may_be_text(tmp_path):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    kind = np.array(["bus", "car", "van"])[rng.integers(0, 3, len(X4))]
    age = rng.random(len(X4))
    frame = pandas.DataFrame({"kind": kind, "age": age})
    coded = np.stack([kind == "car", kind == "van", age], axis=1).astype(float)
    truth = ChoiceAutonomy(
        {"constant": [0.0], "covariates": [1.0, 3.0, 0.0]}, {"pair": [-100.0]}, covariates=coded
    )
    models = []
    for Z in (frame, coded):
        people = SimulatedPopulation(X4, truth, random_state=0)
        model = ChoiceClustering(4, n_interactions=3000, random_state=0)
        models.append(model.fit(X4, population=people, covariates=Z))
    by_text, by_number = models
    assert by_text.covariate_names_ == ["kind=car", "kind=van", "age"]
    assert by_number.covariate_names_ is None
    assert_allclose(by_text.cluster_centers_, by_number.cluster_centers_)
    again = load_model(save_model(by_text, tmp_path / "m.safetensors"))
    expected = by_number.predict(X4[:50], covariates=coded[:50])
    assert (again.predict(X4[:50], covariates=frame[:50]) == expected).all()
    with pytest.raises(ValueError, match="'kind' is 'tram' for some entity"):
        again.predict(X4[:1], covariates=pandas.DataFrame({"kind": ["tram"], "age": [1.0]}))
    odd = pandas.DataFrame({"age": [*age[:-1], "old"]})
    with pytest.raises(ValueError, match="numbers and 'old'; it must be all numbers or all text"):
        ChoiceClustering(4).start(X4, covariates=odd)


def test_named_covariates_are_taken_by_name():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    numbers = {"age": rng.uniform(20, 60, 4), "income": rng.uniform(1e4, 1e5, 4)}
    for extra in ({}, {"kind": ["car", "van", "car", "bus"], "fuel": ["gas", "oil", "oil", "gas"]}):
        frame = pandas.DataFrame(numbers | extra)
        coding = make_coding(frame, 4)
        right = coding.apply(frame, 4)
        turned = frame[list(frame.columns)[::-1]]
        assert_allclose(coding.apply(turned, 4), right)
        assert_allclose(coding.apply(turned.to_dict("list"), 4), right)
        with pytest.raises(ValueError, match="but 'age' is missing"):
            coding.apply(frame.drop(columns="age"), 4)
        with pytest.raises(ValueError, match="but 'age' is missing"):
            coding.apply(frame.rename(columns={"age": "years"}), 4)
        with pytest.raises(ValueError, match="but 'years' is unknown"):
            coding.apply(frame.assign(years=1.0), 4)
        assert_allclose(coding.apply(frame.to_numpy(), 4), right)  # no names, so by place


def test_covariates_of_later_entities_are_taken_by_name():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.integers(0, 2, (len(X4), 2)), columns=["electric", "member"])
    truth = ChoiceAutonomy(
        {"constant": [3.0], "covariates": [0.0, -4.0]},
        {"pair": [-100.0]},
        covariates=frame.to_numpy(float),
    )
    model = ChoiceClustering(4, n_interactions=1500, random_state=0)
    model.fit(X4, population=SimulatedPopulation(X4, truth, random_state=0), covariates=frame)
    assert model.covariate_names_ == ["electric", "member"]
    turned = frame[["member", "electric"]]
    assert_allclose(
        model.expected_costs(X4, covariates=turned), model.expected_costs(X4, covariates=frame)
    )
    new = model.add_entities(X4, covariates=turned)
    costs = model.expected_costs()
    assert_allclose(costs[new], costs[: len(X4)])
