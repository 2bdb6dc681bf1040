import copy
import itertools
import json
import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import cdist
from sklearn.linear_model import LogisticRegression
from torch import nn

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    CallableAutonomy,
    DistanceAutonomy,
    LogitAutonomy,
    Recipe,
    Response,
    SimulatedPopulation,
    load_model,
    save_model,
)
from volition.autonomy import SoftmaxTransition
from volition.costs import SquaredEuclidean, resolve_cost
from volition.learning.networks import (
    PRESETS,
    ADENetwork,
    NetworkAutonomy,
    NetworkSize,
    Units,
    load_network,
    save_network,
)
from volition.learning.networks.annealed import descended, distinct
from volition.learning.networks.form import adjust_places, calibrate, fit_form
from volition.learning.networks.lessons import prepare
from volition.learning.networks.models import CautiousAutonomy
from volition.learning.networks.network import LEAST, dropped
from volition.learning.networks.observed import Cheapest
from volition.learning.networks.replay import Batch, Replay
from volition.learning.networks.service import ServiceFit
from volition.learning.networks.swapping import exchange
from volition.learning.networks.training import (
    Trainer,
    fit_logits,
    judged,
    log_choices,
    losses,
    train_while_better,
)
from volition.learning.monitor import Estimate
from volition.learning.trial import Tried
from volition.metrics import distortion
from volition.problem import Problem

K = 4
SMALL = NetworkSize(16, 32, 2, 4)
HEADS = ("choices", "served", "costs")
# Networks are trained for seconds here, and are wrong about their own plans: a fit says so.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The model expects a cost of"),
    pytest.mark.filterwarnings("ignore:k-means centres with the nearest prescribed are kept"),
]

QUICK = Recipe(
    hidden_dim=16, ff_dim=32, n_layouts=16, n_samples=32, epochs=2, updates=5, tau=6.0, replicas=2
)


def fewer_steps(monkeypatch):
    """Learning costs of being served is not to take long."""
    monkeypatch.setattr("volition.learning.networks.training.SERVICE_STEPS", 100)
    monkeypatch.setattr("volition.learning.networks.service.FORM_BY", 4000)


@pytest.fixture(autouse=True)
def _fewer_steps(monkeypatch):
    fewer_steps(monkeypatch)


@pytest.fixture(scope="module")
def X(four_groups):
    return four_groups[::6]


@pytest.fixture
def truth():
    return DistanceAutonomy(0.3, temperature=0.01)


@pytest.fixture
def people(X, truth):
    return SimulatedPopulation(X, truth, reveal="cost", random_state=1)


def gap(model, X, truth, metric="sqeuclidean"):
    """Return by how much the prescriptions cost more than the best for known p, in %."""
    best = AutonomyAwareClustering(len(model.cluster_centers_), autonomy=truth, metric=metric)
    best = best.set_params(random_state=0).fit(X).distortion_
    found = distortion(X, model.cluster_centers_, truth, model.labels_, metric=metric)
    return 100 * (found / best - 1)


# -- the network ----------------------------------------------------------------------------------


def squares(A, B):
    return ((A[:, :, None] - B[:, None]) ** 2).sum(-1)


def outputs(network, x, y):
    if network.head == "costs":
        return (network.costs(x, y, squares(x, y)),)
    served = (network.log_served(x, y, squares(x, y)),) if network.head == "served" else ()
    return *network.choices(x, y, squares(x, y), squares(y, y)), *served


def shaken(head, size=SMALL, d=2, seed=0):
    """A network whose last layers are not zero."""
    network = ADENetwork(d, size, head, seed).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.3 * noise
    if head == "served":
        network.attentive.fill_(True)
        network.reach(torch.tensor([[-0.5] * d, [1.5] * d]))
        network.mean.fill_(1.1)
    return network


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("n", "k"), [(1, 2), (7, 3), (20, 9)])
def test_the_order_of_points_and_centres_does_not_matter(head, n, k):
    network = shaken(head)
    x, y = torch.randn(2, n, 2).double(), torch.randn(2, k, 2).double()
    rows, columns = torch.randperm(n), torch.randperm(k)
    plain = outputs(network, x, y)
    turned = outputs(network, x[:, rows], y[:, columns])
    for a, b in zip(plain, turned, strict=True):
        index = rows if a.shape[1] == n and (n != k or a is not plain[1]) else columns
        if head != "costs" and a is plain[1]:
            index = columns
        torch.testing.assert_close(a[:, index][:, :, columns], b)


def test_points_do_not_see_each_other():
    network = shaken("costs")
    x, y = torch.randn(1, 6, 2).double(), torch.randn(1, 3, 2).double()
    whole = network.costs(x, y, squares(x, y))
    alone = network.costs(x[:, 4:5], y, squares(x[:, 4:5], y))
    torch.testing.assert_close(whole[:, 4:5], alone)


def test_the_network_is_the_papers():
    """The published equations with torch's own attention and stacked pairs."""
    size = NetworkSize(16, 32, 3, 4)
    network = shaken("costs", size)
    x, y = torch.randn(2, 5, 2).double(), torch.randn(2, 3, 2).double()
    e, centers = network.project_points(x), network.project_centers(y)
    for block in network.blocks:
        mha = nn.MultiheadAttention(16, 4, batch_first=True).double()
        with torch.no_grad():
            mha.in_proj_weight.copy_(torch.cat([block.query.weight, block.key_value.weight]))
            mha.in_proj_bias.copy_(torch.cat([block.query.bias, block.key_value.bias]))
            mha.out_proj.load_state_dict(block.out.state_dict())
        mixed, weights = mha(e, centers, centers)
        u = block.norms[0](mixed + e)
        e = block.norms[1](block.narrow(nn.functional.gelu(block.widen(u))) + u)
    torch.testing.assert_close(network.attention(x, y)[-1], weights)
    pairs = torch.cat(
        [e[:, :, None].expand(2, 5, 3, 16), centers[:, None].expand(2, 5, 3, 16)], dim=-1
    )
    head = network.pair
    stacked = nn.Linear(32, 32).double()
    with torch.no_grad():
        stacked.weight.copy_(torch.cat([head.first.weight, head.second.weight], dim=1))
        stacked.bias.copy_(head.first.bias)
    deviation = head.last(nn.functional.gelu(stacked(pairs)))[..., 0]
    D0 = squares(x, y)
    expected = torch.relu(network.scale * deviation + D0)
    torch.testing.assert_close(network.costs(x, y, D0), expected)


def test_dropout_is_for_training_only():
    network = ADENetwork(2, NetworkSize(16, 32, 1, 4, dropout=0.5), "costs").double()
    x, y = torch.randn(1, 5, 2).double(), torch.randn(1, 3, 2).double()
    network.eval()
    torch.testing.assert_close(*(network.costs(x, y, squares(x, y)) for _ in range(2)))
    network.train()
    assert not torch.equal(*(network.costs(x, y, squares(x, y)) for _ in range(2)))


def test_published_sizes():
    recipe = PRESETS["paper"]
    assert recipe.size() == NetworkSize(64, 128, 4, 8, recipe.dropout)
    assert (recipe.n_layouts, recipe.n_samples, recipe.n_draws) == (32, 128, 16)
    assert (recipe.epochs, recipe.center_epochs, recipe.tau) == (1000, 100, 1.1)
    assert (recipe.learning_rate, recipe.center_rate, recipe.weight_decay) == (1e-4, 1e-4, 1e-5)
    assert (recipe.spread, recipe.ema) == (0.01, 0.95)
    assert (recipe.beta_min, recipe.beta_max, recipe.head) == (10, 50_000, "costs")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden_dim": 30, "n_heads": 4}, "hidden_dim=30 must be a multiple of n_heads=4"),
        ({"n_blocks": 0}, "n_blocks must be an integer >= 1"),
        ({"dropout": 1.5}, "dropout must be a number in"),
        ({"tau": 1}, "tau must be a number in"),
        ({"spread": -1}, "spread must be a number in"),
        ({"ema": 2}, "ema must be a number in"),
        ({"epochs": 0}, "epochs must be an integer >= 1"),
    ],
)
def test_bad_recipes(arguments, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**arguments)


@pytest.mark.parametrize("head", HEADS)
def test_a_network_survives_its_file(tmp_path, head):
    network = shaken(head).float()
    same = load_network(save_network(network, tmp_path / "n.safetensors"))
    for name, value in network.state_dict().items():
        torch.testing.assert_close(same.state_dict()[name], value, rtol=0, atol=0)
    with pytest.raises(ValueError, match="volition"):
        load_model(tmp_path / "n.safetensors")


# -- what is learned, as an autonomy model --------------------------------------------------------


def dense_choices(network, X, Y, units):
    """p[i, j, k] of a network of choices, from its logits one by one."""
    x, y = units.points(X)[None], units.points(Y)[None]
    stay, leave, drawn = (
        z[0] for z in network.choices(x, y, squares(X[None], Y[None]) / units.cost,
                                      squares(Y[None], Y[None]) / units.cost)
    )  # fmt: skip
    n, K = stay.shape
    p = torch.zeros(n, K, K, dtype=torch.float64)
    for i in range(n):
        for j in range(K):
            others = [k for k in range(K) if k != j]
            weights = torch.softmax(leave[j, others] + drawn[i, others], dim=0)
            obey = torch.sigmoid(stay[i, j])
            p[i, j, j] = obey
            p[i, j, others] = (1 - obey) * weights
    return p


def test_choices_as_an_autonomy_model(rng):
    X, Y = torch.tensor(rng.random((6, 2))), torch.tensor(rng.random((3, 2)))
    units = Units(np.array([0.3, 0.4]), 0.7, 0.2)
    network = shaken("choices")
    model = NetworkAutonomy(network, units)
    problem = Problem(X.numpy(), autonomy=model)
    p = dense_choices(network, X, Y, units)
    D = squares(X[None], Y[None])[0]
    expected = torch.einsum("ijk,ik->ij", p, D).detach().numpy()
    np.testing.assert_allclose(problem.expected_costs(Y), expected, rtol=1e-10)
    prescribed = np.array([0, 1, 2, 0, 1, 2])
    rows = p[torch.arange(6), prescribed].detach().numpy()
    np.testing.assert_allclose(problem.conditional(Y, prescribed), rows, rtol=1e-10)
    W = rng.dirichlet(np.ones(3), 6)
    carried = np.einsum("ijk,ij->ik", p.detach().numpy(), W)
    np.testing.assert_allclose(problem.realized(Y, W), carried, rtol=1e-10)
    half = problem.with_autonomy(model.scaled(0.5)).expected_costs(Y)
    np.testing.assert_allclose(half, 0.5 * expected + 0.5 * D.numpy(), rtol=1e-10)


def test_service_as_an_autonomy_model(rng):
    """Choices by learned costs, and learned costs averaged over them."""
    X, Y = torch.tensor(rng.random((6, 2))), torch.tensor(rng.random((3, 2)))
    units, network = Units(np.array([0.3, 0.4]), 0.7, 0.2), shaken("served")
    x, y = units.points(X)[None], units.points(Y)[None]
    C, between = (
        network.log_served(a, y, squares(A[None], Y[None]) / units.cost).exp()
        for a, A in ((x, X), (y, Y))
    )
    stay, leave, drawn = (z[0] for z in network.choices(x, y, C, between))
    logits = leave[None] + drawn[:, None] + torch.diag(torch.full((3,), -torch.inf).double())
    obey = torch.sigmoid(stay)
    p = torch.diag_embed(obey) + (1 - obey)[..., None] * logits.softmax(2)
    expected = torch.einsum("ijk,ik->ij", p, (1.1 * C[0] - LEAST) * units.cost).detach().numpy()
    problem = Problem(X.numpy(), autonomy=NetworkAutonomy(network, units))
    np.testing.assert_allclose(problem.expected_costs(Y), expected, rtol=1e-6)
    prescribed = np.array([0, 1, 2, 0, 1, 2])
    rows = p[torch.arange(6), prescribed].detach().numpy()
    np.testing.assert_allclose(problem.conditional(Y, prescribed), rows, rtol=1e-6)
    W = rng.dirichlet(np.ones(3), 6)
    carried = np.einsum("ijk,ij->ik", p.detach().numpy(), W)
    np.testing.assert_allclose(problem.realized(Y, W), carried, rtol=1e-6)


def test_beyond_the_places_that_it_knows_costs_grow_as_known_ones():
    network = shaken("served").requires_grad_(False)
    x = torch.zeros(1, 1, 2).double()
    edge, beyond = torch.tensor([[[1.5, 0.0]]]).double(), torch.tensor([[[40.0, 0.0]]]).double()
    power = network.form[0]
    grown = network.log_served(x, beyond, squares(x, beyond))
    there = network.log_served(x, edge, squares(x, edge))
    known = torch.log(squares(x, beyond) + LEAST) - torch.log(squares(x, edge) + LEAST)
    torch.testing.assert_close(grown - there, power * known)


@pytest.mark.parametrize("head", HEADS)
def test_the_gradient_goes_through_the_network(rng, head):
    X, Y = rng.random((8, 2)), rng.random((3, 2))
    problem = Problem(X, autonomy=NetworkAutonomy(shaken(head), Units(np.zeros(2), 1.0, 1.0)))
    value, gradient = problem.value_and_gradient(Y, 5.0)
    assert value == pytest.approx(problem.free_energy(Y, 5.0))
    for index in np.ndindex(Y.shape):
        step = np.zeros_like(Y)
        step[index] = 1e-6
        slope = (problem.free_energy(Y + step, 5.0) - problem.free_energy(Y - step, 5.0)) / 2e-6
        assert gradient[index].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_a_network_of_costs_knows_no_choices(rng):
    problem = Problem(
        rng.random((4, 2)), autonomy=NetworkAutonomy(shaken("costs"), Units(np.zeros(2), 1.0, 1.0))
    )
    with pytest.raises(ValueError, match="does not know which clusters are realised"):
        problem.moments(rng.random((3, 2)), 1.0)


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_logits_include_the_papers_family(rng, gamma):
    X, Y = rng.random((30, 2)), rng.random((5, 2))
    paper = DistanceAutonomy(0.3, gamma, 2.0, 0.1)
    logit = LogitAutonomy(math.log(0.7 / 0.3), 0.0, -20.0, -gamma / 0.1)
    a, b = (Problem(X, autonomy=model) for model in (paper, logit))
    assert a.collapses == b.collapses
    np.testing.assert_allclose(a.expected_costs(Y), b.expected_costs(Y), rtol=1e-10)
    for one, other in zip(a.value_and_gradient(Y, 7.0), b.value_and_gradient(Y, 7.0), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-14)
    for t in (0.0, 0.4):
        scaled = [p.with_autonomy(p.autonomy.scaled(t)).expected_costs(Y) for p in (a, b)]
        np.testing.assert_allclose(*scaled, rtol=1e-10)


@settings(max_examples=30, deadline=None)
@given(
    st.tuples(*[st.floats(-5, 5)] * 4), st.floats(0, 1), st.integers(1, 5), st.integers(0, 2**31)
)
def test_logits_by_their_definition(coefficients, share, k, seed):
    rng = np.random.default_rng(seed)
    X, Y = torch.tensor(rng.random((4, 2))), torch.tensor(rng.random((k, 2)))
    model = LogitAutonomy(*coefficients, share)
    stay, own, pair, entity = coefficients
    D, apart = squares(X[None], Y[None])[0].numpy(), squares(Y[None], Y[None])[0].numpy()
    p = np.zeros((4, k, k))
    for i, j in np.ndindex(4, k):
        override = share / (1 + math.exp(stay + own * D[i, j])) if k > 1 else 0.0
        weights = np.exp(pair * apart[j] + entity * D[i])
        weights[j] = 0
        p[i, j] = override * weights / max(weights.sum(), 1e-300)
        p[i, j, j] = 1 - override
    problem = Problem(X.numpy(), autonomy=model)
    expected = np.einsum("ijk,ik->ij", p, D)
    np.testing.assert_allclose(problem.expected_costs(Y), expected, rtol=1e-8, atol=1e-12)
    prescribed = rng.integers(0, k, 4)
    mine = p[np.arange(4), prescribed]
    each = model.conditional_each(
        X, torch.tensor(prescribed), Y.expand(4, k, 2), SquaredEuclidean()
    )
    np.testing.assert_allclose(each, mine, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(problem.conditional(Y, prescribed), mine, rtol=1e-8, atol=1e-12)


def test_a_chance_to_stay_for_each_pair(rng):
    """The contraction without an (n, K, K) tensor, also where factors underflow."""
    a = torch.tensor(rng.standard_normal((4, 4))).fill_diagonal_(-torch.inf)
    for scale in (1.0, 3000.0):
        b, kappa = (
            torch.tensor(scale * rng.standard_normal((9, 4))),
            torch.tensor(rng.random((9, 4))),
        )
        transition = SoftmaxTransition(kappa, scale * a, b)
        away = torch.softmax(scale * a[None] + b[:, None], dim=2)
        p = (1 - kappa)[..., None] * torch.eye(4) + kappa[..., None] * away
        D, W = torch.tensor(rng.random((9, 4))), torch.tensor(rng.random((9, 4)))
        torch.testing.assert_close(transition.expected(D), torch.einsum("ijk,ik->ij", p, D))
        torch.testing.assert_close(transition.realized(W), torch.einsum("ijk,ij->ik", p, W))
        j = torch.tensor(rng.integers(0, 4, 9))
        torch.testing.assert_close(transition.conditional(j), p[torch.arange(9), j])


# -- fitting --------------------------------------------------------------------------------------


def answers(X, truth, n_layouts, width=32, seed=0, k=K):
    """Return a lesson of costs drawn at random layouts, and the realised clusters."""
    rng = np.random.default_rng(seed)
    Y = rng.random((n_layouts, k, X.shape[1]))
    i, j = rng.integers(0, len(X), (n_layouts, width)), rng.integers(0, k, (n_layouts, width))
    people = SimulatedPopulation(X, truth, random_state=seed)
    answer = people.respond(i.ravel(), j.ravel(), np.repeat(Y, width, axis=0))
    D = ((X[i][:, :, None] - Y[:, None]) ** 2).sum(-1)
    matches = np.abs(answer.cost.reshape(i.shape)[..., None] - D) < 1e-9
    batch = Batch(Y, i, j, answer.cost.reshape(i.shape), matches, np.ones(i.shape, dtype=bool))
    units = Units(np.zeros(X.shape[1]), 1.0, 1.0)
    lesson = prepare(batch, X, SquaredEuclidean(), units, torch.float64, "cpu")
    return lesson, answer.realized.reshape(i.shape)


def test_logits_are_found_again(X):
    """Maximum likelihood from costs alone, with the terms that matter and no others."""
    lesson, _ = answers(X, LogitAutonomy(1.0, 0.0, -8.0, 0.0), 600)
    stay, own, pair, entity = fit_logits(lesson).linear
    assert (own, entity) == (0, 0)
    assert stay == pytest.approx(1.0, abs=0.08)
    assert pair == pytest.approx(-8.0, abs=0.6)
    lesson, _ = answers(X, LogitAutonomy(1.0, 3.0, -8.0, -4.0), 600)
    np.testing.assert_allclose(fit_logits(lesson).linear, [1.0, 3.0, -8.0, -4.0], rtol=0.15)


def test_the_chance_to_stay_is_logistic_regression(X):
    lesson, realized = answers(X, LogitAutonomy(0.5, 2.0), 200)
    fit = fit_logits(lesson)
    D = lesson.D.gather(2, lesson.prescribed[..., None])[..., 0].numpy().reshape(-1, 1)
    obeyed = realized.ravel() == lesson.prescribed.numpy().ravel()
    other = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(D, obeyed)
    np.testing.assert_allclose(fit.linear[:2], [other.intercept_[0], other.coef_[0, 0]], rtol=1e-3)


def test_likelihood_of_a_cost_that_two_centres_share(X):
    """Coincident centres cannot be told apart: the chance of either counts."""
    lesson, _ = answers(X, LogitAutonomy(1.0), 4, width=8)
    lesson = lesson._replace(matches=torch.ones_like(lesson.matches))
    network = shaken("choices").requires_grad_(False)
    assert float(losses(network, lesson).abs().max()) < 1e-10
    log_p = log_choices(*network.choices(*lesson[:4]), lesson.prescribed)
    torch.testing.assert_close(log_p.exp().sum(2), torch.ones(4, 8).double())
    none = lesson._replace(valid=torch.zeros_like(lesson.valid))
    assert float(losses(network, none).sum()) == 0


def test_everybody_obeys(X):
    lesson, _ = answers(X, LogitAutonomy(60.0), 40)
    fit = fit_logits(lesson)
    assert np.isfinite(fit.linear).all()
    assert 1 / (1 + math.exp(fit.linear[0])) < 1e-3


@pytest.mark.parametrize("head", HEADS)
def test_training_lowers_the_loss_and_can_be_saved(X, head):
    lesson, _ = answers(X, DistanceAutonomy(0.4, temperature=0.05), 16)
    lesson = type(lesson)(*(z.float() if z.is_floating_point() else z for z in lesson))
    size = NetworkSize(16, 32, 1, 4, dropout=0.1)
    trainer = Trainer(ADENetwork(2, size, head, seed=1), 3e-3, 1e-4)
    first = np.mean([trainer.step(lesson, seed=s) for s in range(5)])
    last = np.mean([trainer.step(lesson, seed=s) for s in range(60)][-5:])
    assert last < first
    other = Trainer(ADENetwork(2, size, head, seed=2), 3e-3, 1e-4)
    other.restore(copy.deepcopy(trainer.state()))
    assert trainer.step(lesson, seed=7) == other.step(lesson, seed=7)
    for a, b in zip(trainer.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(a, b)


def test_likelihood_of_a_cost_near_that_of_a_centre(X):
    """A mixture of Student's t in the logarithm of costs, from SciPy, with p one by one."""
    lesson, _ = answers(X, DistanceAutonomy(0.4, temperature=0.05), 3, width=5)
    network = shaken("served").requires_grad_(False)
    C = network.log_served(lesson.X, lesson.Y, lesson.D)
    between = network.log_served(lesson.Y, lesson.Y, lesson.apart).exp()
    log_p = log_choices(*network.choices(lesson.X, lesson.Y, C.exp(), between), lesson.prescribed)
    scatter = math.exp(network.form[2])
    density = stats.t(4, loc=C.numpy(), scale=scatter).pdf(
        np.log(lesson.target.numpy() + LEAST)[..., None]
    )
    # The constant of the density does not matter.
    off = math.log(stats.t(4).pdf(0))
    expected = -np.log((log_p.exp().numpy() * density).sum(2)) + off
    np.testing.assert_allclose(losses(network, lesson), expected, rtol=1e-6)


def test_the_form_of_costs_is_found(X):
    """Costs are three times the root of the known ones; nobody says so."""
    lesson, _ = answers(X, LogitAutonomy(1.0, 0.0, -8.0, 0.0), 200)
    lesson = lesson._replace(target=3 * (lesson.target + LEAST).sqrt() - LEAST)
    network = ADENetwork(2, SMALL, "served")
    fit_form(network, lesson)
    power, factor, scatter = network.form.tolist()
    assert power == pytest.approx(0.5, abs=0.01)
    assert factor == pytest.approx(math.log(3), abs=0.03)
    assert scatter < -4
    assert network.linear[0].item() == pytest.approx(1.0, abs=0.15)
    calibrate(network.double(), lambda some: lesson, np.arange(200), 200)
    assert network.mean.item() == pytest.approx(1.0, abs=0.02)


def test_what_fits_already_is_left_alone(X):
    """Few answers do not change what is known."""
    network = ADENetwork(2, SMALL, "served")
    with torch.no_grad():
        network.linear.copy_(torch.tensor([1.0, 0.0, -8.0, 0.0]))
        network.form[2] = -1.0
    lesson, _ = answers(X, LogitAutonomy(1.0, 0.0, -8.0, 0.0), 4, width=8)
    noise = torch.randn(lesson.target.shape, generator=torch.Generator().manual_seed(0))
    scattered = lesson.target * torch.exp(0.3 * noise)
    before = network.linear[1:].clone(), network.form[:2].clone()
    fit_form(network, lesson._replace(target=scattered))
    assert torch.equal(network.linear[1:], before[0])
    assert torch.equal(network.form[:2], before[1])


def test_scatter_that_was_none_can_grow(X):
    """Exact costs at first, noisy ones later."""
    lesson, _ = answers(X, LogitAutonomy(1.0, 0.0, -8.0, 0.0), 100)
    network = ADENetwork(2, SMALL, "served")
    fit_form(network, lesson)
    assert network.form[2].item() < -4
    noise = torch.randn(lesson.target.shape, generator=torch.Generator().manual_seed(0))
    fit_form(network, lesson._replace(target=lesson.target * torch.exp(0.3 * noise)))
    assert network.form[2].item() == pytest.approx(math.log(0.3), abs=0.3)


def test_slopes_that_are_not_there_go(X):
    """Steps of training leave a little of every slope behind; those that say nothing vanish."""
    lesson, _ = answers(X, LogitAutonomy(1.0, 0.0, -8.0, 0.0), 100)
    noise = torch.randn(lesson.target.shape, generator=torch.Generator().manual_seed(0))
    lesson = lesson._replace(target=lesson.target * torch.exp(0.1 * noise))
    network = ADENetwork(2, SMALL, "served")
    fit_form(network, lesson)
    with torch.no_grad():  # all else is as good as it gets
        network.linear[1], network.linear[3] = 0.02, 0.05
    fit_form(network, lesson)
    stay, own, pair, entity = network.linear.tolist()
    assert (own, entity) == (0.0, 0.0)
    assert stay == pytest.approx(1.0, abs=0.2)
    assert pair == pytest.approx(-8.0, abs=1.5)


def test_few_answers_correct_the_places_of_a_given_network(X):
    """The truth is the given network with other weights of its last layer; 100 answers tell."""
    given_one = shaken("served").requires_grad_(False)
    given_one.attentive.fill_(False)
    given_one.linear.copy_(torch.tensor([1.0, 0.0, -2.0, 0.0]))
    given_one.form.copy_(torch.tensor([1.0, 0.0, -3.0]))
    truth = copy.deepcopy(given_one)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(truth.service.last.weight.shape, generator=generator)
    truth.service.last.weight += 0.03 * noise
    lesson, _ = answers(X, LogitAutonomy(1.0, 0.0, -2.0, 0.0), 12, width=8)
    told = torch.distributions.Bernoulli(torch.tensor(0.7)).expand(lesson.prescribed.shape)
    torch.manual_seed(0)
    other = torch.randint(lesson.Y.shape[1], lesson.prescribed.shape)
    realised = torch.where(told.sample() > 0, lesson.prescribed, other)

    def served(network):
        return network.log_served(lesson.X, lesson.Y, lesson.D)

    cost = served(truth).exp().gather(2, realised[..., None])[..., 0] - LEAST
    noise = torch.randn(cost.shape, generator=generator)
    lesson = lesson._replace(target=cost * torch.exp(0.2 * noise))
    network, others = copy.deepcopy(given_one), copy.deepcopy(given_one)
    adjust_places(network, given_one.service.last.weight[0], lesson)
    before, after = ((served(one) - served(truth)).square().mean() for one in (given_one, network))
    assert after < 0.25 * before
    # It stays near what was given, wherever it stands.
    with torch.no_grad():
        others.service.last.weight += 0.05 * noise.flatten()[: given_one.service.last.in_features]
    adjust_places(others, given_one.service.last.weight[0], lesson)
    torch.testing.assert_close(served(others), served(network), rtol=0, atol=0.02)
    # Without answers nothing is known better.
    adjust_places(
        network, given_one.service.last.weight[0], lesson._replace(valid=lesson.valid & False)
    )
    assert (served(network) - served(truth)).square().mean() == after


def test_compiled_steps_are_the_same_steps(X, monkeypatch):
    """Without a C++ compiler: what is compiled is traced, and run as it is."""
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda fn: plain(fn, backend="eager"))
    lesson, _ = answers(X, DistanceAutonomy(0.4, temperature=0.05), 8)
    lesson = type(lesson)(*(z.float() if z.is_floating_point() else z for z in lesson))
    found = [
        Trainer(ADENetwork(2, SMALL, "costs", seed=1), 3e-3, 1e-4, compiled=compiled)
        for compiled in (False, True)
    ]
    steps = [[trainer.step(lesson) for _ in range(3)] for trainer in found]
    np.testing.assert_allclose(*steps, rtol=1e-5)
    recipe = Recipe(**{**vars(QUICK), "compile": True, "head": "costs"})
    model = ADENClustering(K, preset=recipe, random_state=0).start(X)
    assert model._trainer._losses is not losses
    choices = ADENClustering(K, preset=Recipe(compile=True, head="choices"), random_state=0)
    assert choices.start(X)._trainer._losses is losses

    def broken(fn):
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(ValueError, match=r"works: no compiler here\.$"):
        ADENClustering(K, preset=recipe, random_state=0).start(X)
    with pytest.raises(ValueError, match="compile must be True or False, got 1"):
        Recipe(compile=1)


def test_a_recipe_knows_its_heads(X):
    with pytest.raises(ValueError, match=r"head must be 'auto' or one of .*, got 'foo'"):
        Recipe(head="foo")
    with pytest.raises(ValueError, match="network must be a path or an ADENetwork, got 3"):
        ADENClustering(K, network=3).start(X)


def test_few_answers_are_about_many_places(X, truth):
    """Before it is decided what is learned, too."""
    model = ADENClustering(K, n_interactions=1000, random_state=0).start(X)
    asked = model.ask(256)
    assert len(np.unique(asked.centers.reshape(256, -1), axis=0)) == 16


# -- remembering answers --------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(3, 30))
def test_every_answer_is_kept_once_with_its_centres(seed, width, n_parts):
    rng = np.random.default_rng(seed)
    layouts = rng.random((4, 2, 1))
    replay, told = Replay(2, 1, width, capacity=1000), []
    for number in range(n_parts):
        m = int(rng.integers(1, 9))
        which = rng.integers(0, 4, m)
        i, j, c = rng.integers(0, 50, m), rng.integers(0, 2, m), rng.random(m)
        matches = rng.random((m, 2)) < 0.5
        touched = replay.add(layouts[which], i, j, c, matches)
        assert set(c) <= set(replay.take(touched).target[replay.take(touched).valid])
        told += [(*layouts[w].ravel(), a, b, t, *f) for w, a, b, t, f in zip(
            which, i, j, c, matches.tolist(), strict=True)]  # fmt: skip
        if number == n_parts // 2:
            fresh = Replay(2, 1, width, capacity=1000)
            fresh.restore({name: value.copy() for name, value in replay.state().items()})
            replay = fresh
    everything = replay.take(np.arange(replay.n_groups))
    kept = []
    for g, s in zip(*np.nonzero(everything.valid), strict=True):
        row = (*everything.centers[g].ravel(), everything.entities[g, s],
               everything.prescribed[g, s], everything.target[g, s],
               *everything.matches[g, s].tolist())  # fmt: skip
        kept.append(tuple(float(value) for value in row))
    assert sorted(kept) == sorted(tuple(float(value) for value in row) for row in told)
    # Nothing is wasted: at most one group of each layout has room.
    assert replay.n_groups <= len(told) // width + 4
    assert len(replay) == len(told)


def test_old_answers_are_forgotten(rng):
    replay = Replay(2, 1, 4, capacity=10)
    for number in range(100):
        Y = np.full((4, 2, 1), float(number))
        replay.add(Y, np.arange(4), np.zeros(4, int), np.full(4, number), np.ones((4, 2), bool))
    assert 10 <= replay.n_groups <= 15
    assert replay.take(np.arange(replay.n_groups)).target[-1, 0] == 99


# -- the learner ----------------------------------------------------------------------------------


class Table:
    """Answers by a rule that nobody can look into: only costs come out."""

    __slots__ = ("_rng", "_rule", "asked")

    def __init__(self, X, kappa, seed=0):
        rng = np.random.default_rng(seed)

        def rule(entities, prescribed, centers):
            k = len(centers[0])
            others = (prescribed + rng.integers(1, k, len(entities))) % k
            realized = np.where(rng.random(len(entities)) < kappa, others, prescribed)
            return ((X[entities] - centers[np.arange(len(entities)), realized]) ** 2).sum(1)

        self._rule, self.asked = rule, 0

    def respond(self, entities, prescribed, centers):
        assert centers.ndim == 3
        self.asked += len(entities)
        return Response(None, self._rule(entities, prescribed, centers))


def test_costs_alone_from_a_population_without_a_model(X):
    model = ADENClustering(K, random_state=0)
    table = Table(X, 0.3)
    model.fit(X, population=table)
    away = 0.3 / (K - 1)
    truth = CallableAutonomy(lambda X, Y: (1 - 0.3 - away) * torch.eye(len(Y)).double() + away)
    assert model.head_ == "choices"
    assert gap(model, X, truth) < 0.5
    assert table.asked == model.n_interactions_ <= 30_000


@pytest.mark.parametrize(
    "truth", [DistanceAutonomy(0.4, temperature=0.01), DistanceAutonomy(0.5, 0.5, 1.0, 100.0)]
)
def test_choices_from_costs(X, truth):
    people = SimulatedPopulation(X, truth, reveal="cost", random_state=3)
    model = ADENClustering(K, random_state=0).fit(X, population=people)
    assert gap(model, X, truth) < 0.5
    assert model.stop_reason_.startswith("centres no longer improve")
    assert model.n_interactions_ == people.n_interactions < 20_000
    true = Problem(X, autonomy=truth).expected_costs(model.cluster_centers_)
    error = np.sqrt(((model.expected_costs() - true) ** 2).mean()) / true.mean()
    assert error < 0.05


def test_what_is_revealed_beside_costs_is_not_looked_at(X, truth):
    class Liar(SimulatedPopulation):
        def respond(self, entities, prescribed, centers):
            answer = super().respond(entities, prescribed, centers)
            return Response(np.zeros(len(answer), dtype=int), answer.cost)

    results = [
        ADENClustering(K, n_interactions=3000, random_state=0).fit(X, population=who)
        for who in (
            Liar(X, truth, random_state=1),
            SimulatedPopulation(X, truth, reveal="cost", random_state=1),
        )
    ]
    np.testing.assert_array_equal(results[0].cluster_centers_, results[1].cluster_centers_)
    assert results[0].changes_ == []


def by_place(X, Y):
    eye = torch.eye(len(Y), dtype=Y.dtype)
    kappa = torch.where(X[:, 0] < 0.5, 0.05, 0.6)[:, None, None]
    return (1 - kappa) * eye + kappa * (1 - eye) / (len(Y) - 1)


def test_the_network_learns_what_distances_do_not_say(X):
    truth = CallableAutonomy(by_place)
    people = SimulatedPopulation(X, truth, reveal="cost", random_state=1)
    model = ADENClustering(K, n_interactions=14_000, random_state=0).fit(X, population=people)
    assert isinstance(model.model_, NetworkAutonomy)
    assert gap(model, X, truth) < 1.5


def streets(A, B):
    """Travel times: street blocks, and a slow bridge in the middle."""
    side = torch.sigmoid(40 * (A[:, None, 0] - 0.5)) - torch.sigmoid(40 * (B[None, :, 0] - 0.5))
    return (A[:, None] - B[None]).abs().sum(-1) + 0.5 * side.abs()


DRIVERS = DistanceAutonomy(0.3, temperature=0.05)


@pytest.fixture(scope="module")
def street_gap(X):
    """Return a function that says by how many % centres and labels are off there."""
    known = AutonomyAwareClustering(K, autonomy=DRIVERS, metric=streets, random_state=0)
    best = known.fit(X).distortion_
    truth = Problem(X, autonomy=DRIVERS, cost=resolve_cost(streets))
    return lambda model: 100 * (truth.distortion(model.cluster_centers_, model.labels_) / best - 1)


@pytest.fixture
def people_on_streets(X):
    return SimulatedPopulation(X, DRIVERS, metric=streets, reveal="cost", random_state=1)


@pytest.fixture(scope="module")
def fitted_on_streets(X):
    people = SimulatedPopulation(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(K, preset=QUICK, head="served", n_interactions=600, random_state=0)
    with pytest.MonkeyPatch.context() as quickly:
        fewer_steps(quickly)
        return model.fit(X, population=people)


@pytest.fixture
def model(fitted_on_streets):
    """A fit that each test may change."""
    return copy.deepcopy(fitted_on_streets)


class Watching(SimulatedPopulation):
    """Remembers which centres it was shown."""

    def respond(self, entities, prescribed, centers):
        shown = np.unique(centers.reshape(-1, centers.shape[-1]), axis=0)
        self.shown = [*getattr(self, "shown", []), shown]
        return super().respond(entities, prescribed, centers)


def test_costs_that_only_the_population_knows(X, tmp_path, street_gap):
    """It believes in squared distances; what it learned starts another problem there."""
    people = Watching(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(K, preset=QUICK, n_interactions=4000, random_state=0)
    model.fit(X, population=people)
    assert model.head_ == "served"
    assert street_gap(model) < 2
    path = model.save_network(tmp_path / "n.safetensors")
    # It remembers places of centres that it was asked about, and no others.
    shown = model._units.points(torch.from_numpy(np.concatenate(people.shown))).float()
    assert torch.cdist(load_network(path).asked.double(), shown.double()).amin(1).max() < 1e-6
    near = ADENClustering(3, network=path, random_state=0).start(X[::2] + 0.05)
    np.testing.assert_array_equal(near._units.origin, model._units.origin)
    far = ADENClustering(3, network=path, random_state=0).start(100 * X)
    np.testing.assert_allclose(far._units.origin, 100 * X.mean(0))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_dropout_is_torchs_own(share):
    z = torch.full((300, 7, 101), 2.0, requires_grad=True)  # 212,100: not a multiple of four
    torch.manual_seed(3)
    dropped_z = dropped(z, share)
    torch.manual_seed(3)
    assert torch.equal(dropped_z, dropped(z, share))
    zero = dropped_z == 0
    error = np.sqrt(share * (1 - share) / z.numel())
    assert float(zero.double().mean()) == pytest.approx(share, abs=5 * error)
    for axis in range(3):  # nor are some places dropped more often
        others = tuple(n for n in range(3) if n != axis)
        rows = z.numel() / z.shape[axis]
        off = zero.double().mean(others) - share
        assert float(off.abs().max()) < 6 * np.sqrt(share * (1 - share) / rows)
    kept = float(torch.nn.functional.dropout(z.detach(), share).max())  # torch's scale
    torch.testing.assert_close(dropped_z[~zero], torch.full_like(dropped_z[~zero], kept))
    dropped_z.sum().backward()
    torch.testing.assert_close(z.grad, dropped_z.detach() / 2)
    assert dropped(z, 0.0) is z
    assert not dropped(z, 1 - 1e-6)[:10].any()  # too many for sixteen bits to tell


def test_a_network_that_does_not_hold_here_is_given_up(X, street_gap):
    wrong = shaken("served").float()
    wrong.units = Units(X.mean(0), 0.3, 0.1)
    wrong.reach(wrong.units.points(torch.from_numpy(X)))
    with torch.no_grad():
        wrong.service.last.weight.mul_(30.0)
    people = SimulatedPopulation(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(K, preset=QUICK, network=wrong, n_interactions=1000, random_state=0)
    model.fit(X, population=people)
    assert not model.transferred_
    assert street_gap(model) < 10


def test_a_network_of_choices_that_was_given_up_stays_so(X, people, monkeypatch):
    verdicts = iter([False, True, True])
    monkeypatch.setattr(
        "volition.learning.networks.learner.clearly_better", lambda some, others: next(verdicts)
    )
    given = shaken("choices", QUICK.size()).float()
    model = ADENClustering(K, preset=QUICK, network=given, n_interactions=7000, tol=0.0)
    assert not hasattr(model, "transferred_")
    assert model.start(X).transferred_
    seen = []
    model.fit(X, population=people, on_batch=lambda m: seen.append((m._stage, m.transferred_)))
    assert {stage for stage, _ in seen} >= {0, 1, 2}
    assert all(held == (stage == 0) for stage, held in seen)
    assert isinstance(model.model_, NetworkAutonomy)  # one that was learned here


@pytest.mark.parametrize(
    ("value", "n", "ends"), [(1.0, 50, True), (0.5, 50, True), (3.0, 50, False), (1.0, 0, False)]
)
def test_a_fit_does_not_end_at_centres_that_cost_something_else(model, monkeypatch, value, n, ends):
    """Belief alone is not enough: a search goes where the network is wrong."""
    believed = model._problem(model.model_).distortion(model.cluster_centers_)
    low, high = (0.9 * value * believed, 1.1 * value * believed) if n else (np.nan, np.nan)
    seen = Estimate(value * believed, low, high, n)
    monkeypatch.setattr(model, "distortion_estimate", lambda: seen)
    model._stage = 1
    model._move_to(model.cluster_centers_)  # no better ones were found
    assert (model._finished is not None) == ends


@pytest.mark.parametrize("dearer", [True, False])
def test_centres_that_have_cost_more_than_others_are_given_up(model, monkeypatch, dearer):
    model._cheapest = Cheapest()
    before, there = model.cluster_centers_.copy(), model.cluster_centers_ + 0.3
    costs = iter([Estimate(1.0, 0.9, 1.1, 50), Estimate(3.0, 2.0 if dearer else 1.0, 4.0, 30)])
    monkeypatch.setattr(model, "distortion_estimate", lambda: next(costs))
    model._back_to_cheapest()
    np.testing.assert_array_equal(model.cluster_centers_, before)
    model._place(there)
    model._back_to_cheapest()
    np.testing.assert_array_equal(model.cluster_centers_, before if dearer else there)


def test_a_fit_says_so_if_its_centres_cost_otherwise_than_believed(model, people_on_streets):
    believed = model.distortion_
    for cost, n, says in ((3.0, 150, True), (1.05, 150, False), (0.3, 150, True), (3.0, 50, False)):
        value = cost * believed
        seen = Estimate(value, value - 0.1 * believed, value + 0.1 * believed, n)
        dear = Estimate(9 * believed, 8 * believed, 10 * believed, n)
        error = 0.05 * believed
        model.tried_ = [Tried("learned", seen, error), Tried("k-means", dear, error)]
        assert any("model expects" in doubt for doubt in model._doubts()) == says
    model.tried_ = [model.tried_[0]._replace(estimate=seen._replace(n_answers=150))] * 2
    with pytest.warns(UserWarning, match="The model expects"):
        model._run(people_on_streets, lambda: "enough")


def test_the_cheapest_centres_are_those_that_surely_are():
    cheapest, one, other = Cheapest(), np.zeros((2, 1)), np.ones((2, 1))
    unknown = Estimate(np.nan, np.nan, np.nan, 0)
    assert cheapest.compared(one, unknown) is one
    assert cheapest.centers is None
    cheapest.compared(one, Estimate(1.0, 0.8, 1.2, 100))
    # Few answers say nothing, whatever they say, nor does a lower mean that is not sure.
    for seen in (Estimate(0.1, 0.1, 0.1, 3), Estimate(0.9, 0.1, 1.7, 30), Estimate(9, 9, 9, 3)):
        assert cheapest.compared(other, seen) is other
        np.testing.assert_array_equal(cheapest.centers, one)
    assert cheapest.compared(other, Estimate(0.7, 0.6, 0.8, 90)) is other
    np.testing.assert_array_equal(cheapest.centers, other)
    np.testing.assert_array_equal(cheapest.compared(one, Estimate(1, 0.81, 1.2, 30)), other)
    assert cheapest.compared(one, unknown) is one
    # What was seen of the same centres is corrected by what was seen later.
    moved, later = other + 0.01, Estimate(2.0, 1.9, 2.1, 500)
    assert cheapest.compared(moved, later, near=0.02) is moved
    assert cheapest.seen == later
    assert cheapest.compared(one, Estimate(1.5, 1.4, 1.6, 30), near=0.02) is one
    np.testing.assert_array_equal(cheapest.centers, one)


@pytest.mark.parametrize(
    "change",
    [
        lambda model, X: model.add_entities(X[:5] + 3),
        lambda model, X: model.remove_entities([0, 1]),
    ],
)
def test_what_centres_have_cost_others_is_forgotten(model, X, change):
    assert model.distortion_estimate().n_answers >= 20
    assert model._cheapest.seen is not None
    change(model, X)
    assert model._cheapest.seen is None
    assert model.distortion_estimate().n_answers == 0


def test_a_run_that_goes_back_knows_what_the_centres_have_cost(model):
    seen, before = Estimate(1e-3, 5e-4, 2e-3, 77), model.cluster_centers_ + 0.3
    model._cheapest = Cheapest(before.copy(), seen)
    rows = np.zeros(60, dtype=np.int64)
    noise = 0.01 * np.arange(60)
    model._monitor.add_costs(1.0 + noise, np.ones(60), rows, None)
    model._back_to_cheapest()
    np.testing.assert_array_equal(model.cluster_centers_, before)
    assert model.distortion_estimate() == seen


def test_late_answers_about_other_centres_say_nothing_of_these(model, people_on_streets):
    model._forget_trial()  # which would stand as long as the plan does
    for moved in (0.0, 0.5):
        model._unseen, model._left = True, 0
        asked = model.ask(20)
        np.testing.assert_array_equal(asked.centers[0], model.cluster_centers_)
        model._place(model.cluster_centers_ + moved * model._scale)
        before = model.distortion_estimate().n_answers
        model.tell(
            asked, people_on_streets.respond(asked.entities, asked.prescribed, asked.centers)
        )
        assert (model.distortion_estimate().n_answers > before) == (moved == 0.0)


@pytest.mark.parametrize("loss", [0.0, 0.4])
def test_a_budget_is_spent_on_the_same_stages_whatever_is_lost(X, loss):
    """Neither lost answers nor late ones make the last part of a budget a row of short stages."""
    people = SimulatedPopulation(
        X, DRIVERS, metric=streets, reveal="cost", loss=loss, random_state=1
    )
    model = ADENClustering(
        K, preset=QUICK, head="served", n_interactions=900, tol=0.0, random_state=0
    )
    model.start(X)
    open_questions, ends = [], []
    while open_questions or model.enough() is None:
        if model.enough() is None:
            open_questions.append(model.ask())
        if len(open_questions) > (2 if model.enough() is None else 0):
            asked, stage = open_questions.pop(0), model._stage
            model.tell(asked, people.respond(asked.entities, asked.prescribed, asked.centers))
            ends += [model.n_answers_] * (model._stage - stage)
    assert model.n_interactions_ == 900
    assert len(ends) <= 3
    before = model.n_answers_
    model.conclude()
    assert model.history_[-1]["answers"] == before
    assert model.labels_.min() >= 0


def test_the_last_answers_of_a_budget_say_what_the_centres_cost(X):
    asked = []

    class Recorded(SimulatedPopulation):
        def respond(self, entities, prescribed, centers):
            asked.append(np.broadcast_to(centers, (len(entities), K, 2)))
            return super().respond(entities, prescribed, centers)

    people = Recorded(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(
        K, preset=QUICK, head="served", n_interactions=600, tol=0.0, random_state=0
    )
    model.fit(X, population=people)
    assert model.n_interactions_ == 600
    # The last of all are about plain k-means centres.
    last = np.concatenate(asked)[-60:-20]
    np.testing.assert_array_equal(last, np.broadcast_to(model.cluster_centers_, last.shape))
    seen = model.distortion_estimate()
    assert seen.n_answers >= 40
    true = distortion(X, model.cluster_centers_, DRIVERS, model.labels_, metric=streets)
    assert abs(seen.value - true) < 2 * (seen.high - seen.low)
    # Later answers are learned from again.
    stage = model._stage
    model.partial_fit(population=people, n_interactions=1000)
    assert model._stage > stage


@pytest.mark.parametrize("spoiled", [True, False])
def test_what_the_usual_rate_spoils_is_trained_gently(X, spoiled):
    """A network that fits already is only made worse by large steps at first."""
    lesson, _ = answers(X, DistanceAutonomy(0.3, temperature=0.05), 8)
    network, rates = shaken("served").double(), []

    def train(candidate, pool, judges, rate):
        rates.append(rate)
        with torch.no_grad():
            candidate.linear[0] += 1.0
        before = judged(network, judges)[judges.valid]
        return before if spoiled and rate == 1.0 else before - 1.0

    fit = ServiceFit(None, None, train, lesson.X[0], K, 4, None, np.random.default_rng(0))
    assert fit._improved(network, np.arange(4), lesson, surely=True) is not network
    assert rates == ([1.0, 0.1] if spoiled else [1.0])


@pytest.mark.parametrize("gently", [1.0, 0.1])
def test_gentle_training_takes_smaller_steps(X, gently):
    lesson, _ = answers(X, DistanceAutonomy(0.3, temperature=0.05), 8)
    rates = []

    class Watched(Trainer):
        def step(self, lesson, factor=1.0, seed=0):
            rates.append(factor)
            return super().step(lesson, factor, seed)

    trainer = Watched(ADENetwork(2, SMALL, "served").double(), 1e-3, 0.0)
    rng = np.random.default_rng(0)
    train_while_better(trainer, lambda groups: lesson, np.arange(4), lesson, 4, rng, gently)
    assert max(rates) == pytest.approx(2.98 * gently, rel=0.01)


def test_how_others_choose_is_not_taken_over(X, truth):
    """A given network attends to centres as it was taught elsewhere; here that explains nothing."""
    taught = shaken("served", QUICK.size()).float()
    with torch.no_grad():
        taught.service.last.weight.mul_(0.01)
    assert taught.attentive
    people = Noisy(X, truth, random_state=1)
    model = ADENClustering(K, preset=QUICK, network=taught, n_interactions=200, random_state=0)
    model.fit(X, population=people)
    assert model.transferred_
    assert not model.network_.attentive


def test_the_unit_of_unknown_costs_does_not_matter(X, street_gap):
    factor = 1e-6

    def scaled(A, B):
        return factor * streets(A, B)

    truth = DistanceAutonomy(0.3, temperature=0.05 * factor)
    people = SimulatedPopulation(X, truth, metric=scaled, reveal="cost", random_state=1)
    model = ADENClustering(K, preset=QUICK, n_interactions=1500, random_state=0)
    model.fit(X, population=people)
    assert street_gap(model) < 5


def test_a_single_centre_with_unknown_costs(X, monkeypatch):
    monkeypatch.setattr("volition.learning.networks.training.SERVICE_STEPS", 1000)
    people = SimulatedPopulation(X, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(1, preset=QUICK, n_interactions=1500, random_state=0)
    model.fit(X, population=people)
    assert model.head_ == "served"
    best = AutonomyAwareClustering(1, metric=streets).fit(X).distortion_
    reached = Problem(X, cost=resolve_cost(streets)).distortion(model.cluster_centers_)
    assert reached < 1.03 * best


def test_a_few_negative_costs_are_noise(X, truth):
    people = Noisy(X, truth, random_state=1)
    people.spoilt = 1000
    model = ADENClustering(K, preset=QUICK, n_interactions=1300, random_state=0)
    model.fit(X, population=people)
    assert model.head_ == "served"
    assert gap(model, X, truth) < 3


def test_running_means_are_for_expected_costs_only(X, truth):
    people = Noisy(X, truth, random_state=1)
    recipe = Recipe(**{**vars(QUICK), "ema": 0.95, "head": "served"})
    model = ADENClustering(K, preset=recipe, n_interactions=1500, random_state=0)
    model.fit(X, population=people)
    assert gap(model, X, truth) < 5


def test_costs_that_become_negative_are_learned_from_the_beginning(X, truth):
    people = Noisy(X, truth, random_state=1)
    model = ADENClustering(K, preset=QUICK, n_interactions=9000, random_state=0).start(X)
    while model.n_interactions_ < 2500:
        model.partial_fit(population=people)
    assert (model.head_, model._stage) == ("served", 1)
    people.gain = 0.2
    while model.head_ == "served":
        model.partial_fit(population=people)
    assert (model._stage, model.beta_) == (0, model._betas[0])
    assert len(model._replicas) == QUICK.replicas


class Noisy(SimulatedPopulation):
    """Answers whose costs are off by a tenth, or lowered by a gain; one may be spoilt."""

    gain, spoilt = 0.0, math.inf

    def respond(self, entities, prescribed, centers):
        cost = super().respond(entities, prescribed, centers).cost
        noise = np.random.default_rng(len(cost)).normal(size=len(cost))
        cost = cost * np.exp(0.1 * noise) - self.gain
        if self.n_interactions > self.spoilt:
            cost[0], self.spoilt = -1e-3, math.inf
        return Response(None, cost)


def test_costs_that_match_no_centre_are_learned_as_such(X, truth):
    people = Noisy(X, truth, random_state=1)
    model = ADENClustering(K, preset=QUICK, n_interactions=6000, random_state=0)
    model.fit(X, population=people)
    assert model.head_ == "served"
    assert gap(model, X, truth) < 1
    with pytest.raises(ValueError, match="Of the costs told so far"):
        ADENClustering(K, head="choices", random_state=0).fit(X, population=people)


def test_negative_costs_are_none_of_being_served(X, truth):
    people = Noisy(X, truth, random_state=1)
    people.gain = 0.2
    with pytest.raises(ValueError, match="are negative; head='costs' learns such costs"):
        ADENClustering(K, head="served", n_interactions=500).fit(X, population=people)


def off_by(model, X, truth, gain):
    """Return by how much learned costs are off, in standard deviations of the true ones."""
    true = Problem(X, autonomy=truth).expected_costs(model.cluster_centers_) - gain
    return np.abs(model.expected_costs() - true).mean() / true.std()


@pytest.mark.parametrize(
    ("gain", "head"), [(0.0, "costs"), (0.2, "auto"), (100.0, "costs"), (-100.0, "costs")]
)
def test_expected_costs_may_be_any_numbers(X, truth, tmp_path, gain, head):
    people = Noisy(X, truth, random_state=1)
    people.gain = gain
    recipe = Recipe(**{**vars(QUICK), "epochs": 5, "updates": 15})
    model = ADENClustering(K, preset=recipe, head=head, n_interactions=16_000, random_state=0)
    few = pytest.warns(UserWarning, match="Costs are negative.* answers are few")
    with few if head == "auto" else nullcontext():
        model.fit(X, population=people)
    assert model.head_ == "costs"
    assert off_by(model, X, truth, gain) < 0.3  # at first 0.44
    # Started from a network of other costs it does not have to learn what they have in common.
    path = model.save_network(tmp_path / "network.safetensors")
    people.gain = 50.0 if gain < 50 else 0.0
    other = ADENClustering(K, preset=QUICK, network=path, n_interactions=1000, random_state=0)
    other.fit(X, population=people)
    assert off_by(other, X, truth, people.gain) < 0.3


def test_centres_that_are_led_astray_stay_in_the_box(X):
    Y = np.tile(X.mean(0), (K, 1)) - 0.5
    box = Y[0] - 1e-3, Y[0] + 1e-3
    for recipe, inside in ((Recipe(), True), (PRESETS["paper"], False)):
        moved = descended(recipe, Problem(X), Y, 1.0, 10.0, 0 * Y, box)
        assert (moved > Y).all()
        assert (moved <= box[1]).all() == inside


def test_one_negative_cost_lifts_the_floor_and_nothing_else(X, truth):
    people = Noisy(X, truth, random_state=1)
    recipe = Recipe(**{**vars(QUICK), "head": "costs"})
    model = ADENClustering(K, preset=recipe, n_interactions=9000, random_state=0).start(X)
    while model._trainer.n_steps < 20:
        model.partial_fit(population=people)
    assert (model.network_.floor, model.network_.shift) == (0, 0)
    people.spoilt = 0
    model.partial_fit(population=people)
    assert (model.network_.floor, model.network_.shift) == (-math.inf, 0)


@pytest.mark.parametrize("common", [0.0, -100.0, 100.0])
def test_replicas_differ_whatever_costs_have_in_common(X, common):
    class Offset(Problem):
        def distortion(self, *args):
            return super().distortion(*args) + common

    best = AutonomyAwareClustering(K, random_state=0).fit(X).cluster_centers_
    replicas = np.stack([best + 0.1, best, best + 1e-9])
    found = distinct(Offset(X), replicas, common)
    assert len(found) == 2
    np.testing.assert_allclose(found[0], best, atol=1e-8)
    np.testing.assert_array_equal(found[1], best + 0.1)


def test_the_scale_of_the_data_does_not_matter(X):
    found = []
    for scale, shift in ((1.0, 0.0), (1024.0, 2.0**20)):
        data = X * scale + shift
        truth = DistanceAutonomy(0.3, temperature=0.01 * scale**2)
        people = SimulatedPopulation(data, truth, reveal="cost", random_state=1)
        model = ADENClustering(K, n_interactions=3000, random_state=0).fit(data, population=people)
        found.append((model.cluster_centers_ - shift) / scale)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_algorithm_2_as_published(X):
    """The questions, the running means and the one step of AdamW of the published recipe."""
    asked_of = []

    class Spy(SimulatedPopulation):
        def respond(self, entities, prescribed, centers):
            asked_of.append((entities, prescribed, centers))
            self.last = super().respond(entities, prescribed, centers)
            return self.last

    recipe = Recipe(**{**vars(PRESETS["paper"]), "n_layouts": 4, "n_samples": 8, "epochs": 3})
    people = Spy(X, DistanceAutonomy(0.3, temperature=0.01), reveal="cost", random_state=0)
    model = ADENClustering(K, preset=recipe, random_state=0)
    means = np.zeros((len(X), K))
    for epoch in range(3):
        model.partial_fit(X, population=people)
        entities, prescribed, centers = asked_of[-1]
        assert len(entities) == 4 * 8 * 16
        pairs = np.column_stack([entities, prescribed]).reshape(32, 16, 2)
        assert (pairs == pairs[:, :1]).all()  # sixteen draws of each
        sets = centers.reshape(4, 128, K, 2)
        assert (sets == sets[:, :1]).all()  # of one perturbed set of centres per mini-batch
        around = sets[:, 0] - (model.cluster_centers_ if epoch else sets[:, 0].mean((0, 1)))
        assert 0.004 < around.std() < 0.05
        cost = people.last.cost.reshape(32, 16).mean(1)
        for pair in np.unique(pairs[:, 0], axis=0):
            mine = (pairs[:, 0] == pair).all(1)
            means[tuple(pair)] = 0.95 * means[tuple(pair)] + 0.05 * cost[mine].mean()
        np.testing.assert_allclose(model._means, means, rtol=1e-12)
        assert model._trainer.n_steps == epoch + 1
    assert model._stage == 1
    assert model.beta_ == pytest.approx(11.0)


def test_plain_descent_of_the_centres(X):
    recipe = Recipe(
        hidden_dim=16, ff_dim=32, head="costs", epochs=1, center_epochs=3, center_rate=0.05,
        replicas=1, spread=0.05, n_layouts=4, n_samples=16,
    )  # fmt: skip
    people = SimulatedPopulation(X, DistanceAutonomy(0.3), reveal="cost", random_state=0)
    model = ADENClustering(K, preset=recipe, random_state=0).start(X)
    beta, Y = model.beta_, model._replicas[0].copy()
    model.partial_fit(population=people, n_interactions=64)
    problem = Problem(X, autonomy=model.model_)
    for _ in range(3):
        Y = Y - 0.05 * problem.value_and_gradient(Y, beta)[1].numpy()
    np.testing.assert_allclose(model.cluster_centers_, Y, rtol=1e-9)


def test_answers_may_be_lost_late_twice_and_shuffled(X, truth, rng):
    people = SimulatedPopulation(X, truth, reveal="cost", random_state=2)
    model = ADENClustering(K, random_state=0).start(X)
    waiting = []
    while model._enough() is None:
        asked = model.ask(500)
        answer = people.respond(asked.entities, asked.prescribed, asked.centers)
        arriving = np.flatnonzero(rng.random(500) > 0.3)
        arriving = rng.permutation(np.concatenate([arriving, arriving[:40]]))
        waiting.append((asked.take(arriving), answer.take(arriving)))
        if len(waiting) > 2:
            model.tell(*waiting.pop(0))
    model._conclude(thoroughly=True)
    assert gap(model, X, truth) < 1
    assert model.n_repeated_ > 0


def test_entities_come_and_go(X, people):
    model = ADENClustering(K, n_interactions=3000, random_state=0).fit(X, population=people)
    new = model.add_entities(X[:5] + 0.01)
    assert new.tolist() == [300, 301, 302, 303, 304]
    np.testing.assert_array_equal(model.labels_[300:], model.predict(X[:5] + 0.01))
    model.remove_entities([0, 1])
    assert model.labels_[:2].tolist() == [-1, -1]
    assert not {0, 1} & set(model.ask(2000).entities)


def test_weights_count(X, truth):
    heavy = np.where(X[:, 0] < 0.5, 1.0, 0.0)
    people = SimulatedPopulation(X, truth, reveal="cost", random_state=2)
    model = ADENClustering(2, n_interactions=3000, random_state=0)
    model.fit(X, population=people, sample_weight=heavy)
    assert (model.cluster_centers_[:, 0] < 0.5).all()


def test_a_single_cluster(X):
    people = SimulatedPopulation(X, DistanceAutonomy(0.3), reveal="cost", random_state=2)
    model = ADENClustering(1, random_state=0).fit(X, population=people)
    np.testing.assert_allclose(model.cluster_centers_[0], X.mean(0), atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "gpu"}, "preset must be one of 'cpu', 'paper' or a Recipe, got 'gpu'"),
        ({"head": "both"}, "head must be 'auto' or one of"),
        ({"n_interactions": 0}, "n_interactions must be an integer >= 1 or 'auto'"),
        ({"device": "abacus"}, "device='abacus' cannot be used"),
        ({"device": None}, "device must be a name such as 'cpu', got None"),
        ({"tol": -1}, "tol must be a number in"),
        ({"network": "nowhere.safetensors"}, "No such file: nowhere.safetensors"),
        ({"network": ADENetwork(3, SMALL)}, "knows 3 features, but X has 2"),
        ({"network": ADENetwork(2, SMALL), "head": "costs"}, "head='costs', but the network is"),
    ],
)
def test_bad_parameters(X, people, arguments, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ADENClustering(K, **arguments).fit(X, population=people)


def test_before_the_first_answers(X):
    model = ADENClustering(K, random_state=0).start(X)
    assert model.head_ == "undecided"
    assert model.network_ is None
    with pytest.raises(ValueError, match="There is no network yet"):
        model.save_network("n.safetensors")
    with pytest.raises(ValueError, match="There is no network yet"):
        model.attention()


@pytest.mark.parametrize("head", HEADS)
def test_started_from_another_network(X, people, tmp_path, head):
    recipe = Recipe(**{**vars(QUICK), "head": head})
    first = ADENClustering(K, preset=recipe, n_interactions=4000, random_state=0)
    first.fit(X, population=people)
    path = first.save_network(tmp_path / "n.safetensors")
    params = {"preset": recipe, "network": path, "n_interactions": 400}
    other = ADENClustering(3, **params, random_state=0).start(X[:100])
    for a, b in zip(first.network_.parameters(), other.network_.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert other.head_ == head
    few = SimulatedPopulation(X[:100], DistanceAutonomy(0.2), reveal="cost", random_state=0)
    other.fit(X[:100], population=few)
    assert np.isfinite(other.cluster_centers_).all()


def run(X, path, recipe, head, resume=False, stop=None, network=None):
    truth = DistanceAutonomy(0.3, temperature=0.01)
    people = SimulatedPopulation(X, truth, reveal="cost", random_state=1)
    most = 1500 if head == "served" else 6000
    if network is not None:
        most = 300
    model = ADENClustering(
        K, preset=recipe, head=head, network=network, n_interactions=most, random_state=4
    )
    return model.fit(
        X, population=people, checkpoint=path, checkpoint_every=0, resume=resume,
        on_batch=lambda learner: stop is not None and learner.n_interactions_ >= stop,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("head", "stops"),
    [
        ("auto", (200, 1500, 3000)),
        ("costs", (700, 3300)),
        ("served", (300, 600, 1215)),
        ("served, given", (64,)),
    ],
)
def test_stopped_and_resumed_equals_uninterrupted(X, tmp_path, head, stops):
    recipe, network = Recipe(**{**vars(QUICK), "dropout": 0.1}), None
    if head == "served, given":
        head, network = "served", shaken("served", recipe.size()).float()
        network.attentive.fill_(False)
        with torch.no_grad():
            network.service.last.weight.mul_(0.01)
    whole = run(X, tmp_path / "whole.safetensors", recipe, head, network=network)
    assert whole._began_trained == (network is not None)
    path = tmp_path / "part.safetensors"
    for number, stop in enumerate(stops):
        part = run(X, path, recipe, head, resume=number > 0, stop=stop, network=network)
        assert part.n_interactions_ < whole.n_interactions_
    if stops[-1] == 1215:  # what the last part goes by is remembered by then
        assert part._watched_from == 1215
        assert part._cheapest.seen is not None
    resumed = run(X, path, recipe, head, resume=True, network=network)
    assert whole.n_interactions_ == resumed.n_interactions_
    np.testing.assert_array_equal(whole.cluster_centers_, resumed.cluster_centers_)
    np.testing.assert_array_equal(whole.labels_, resumed.labels_)
    for name, value in whole.network_.state_dict().items():
        assert torch.equal(value, resumed.network_.state_dict()[name]), name
    np.testing.assert_array_equal(whole.network_.units.origin, resumed.network_.units.origin)
    assert json.dumps(whole.history_) == json.dumps(resumed.history_)
    assert whole._cheapest.seen == resumed._cheapest.seen


def test_saved_with_questions_open(X, people, tmp_path):
    model = ADENClustering(K, preset=QUICK, head="costs", random_state=0)
    model.partial_fit(X, population=people, n_interactions=1500)
    asked = model.ask(100)
    other = load_model(save_model(model, tmp_path / "m.safetensors"))
    assert isinstance(other, ADENClustering)
    answer = people.respond(asked.entities, asked.prescribed, asked.centers)
    for learner in (model, other):
        learner.tell(asked, answer)
        learner.tell(asked, answer)
    assert other.n_repeated_ == model.n_repeated_ == 100
    one, two = model.ask(50), other.ask(50)
    np.testing.assert_array_equal(one.prescribed, two.prescribed)
    np.testing.assert_array_equal(one.centers, two.centers)


def test_a_checkpoint_must_fit(X, people, tmp_path):
    path = tmp_path / "m.safetensors"
    ADENClustering(K, preset=QUICK, n_interactions=600, random_state=0).fit(
        X, population=people, checkpoint=path
    )
    with pytest.raises(ValueError, match="another preset or recipe"):
        ADENClustering(K).resume(path)


def test_the_running_distortion_is_right(X, truth):
    people = SimulatedPopulation(X, truth, reveal="cost", random_state=7)
    model = ADENClustering(K, tol=0, n_interactions=6000, random_state=1)
    model.fit(X, population=people)
    model.partial_fit(population=people, n_interactions=6000)
    estimate = model.distortion_estimate()
    true = distortion(X, model.cluster_centers_, truth, model.labels_)
    width = (estimate.high - estimate.low) / 2
    assert abs(estimate.value - true) < 2 * width
    assert estimate.n_answers > 300


def test_attention_of_entities_to_centres(X, people):
    model = ADENClustering(K, preset=QUICK, head="costs", n_interactions=1500, random_state=0)
    model.fit(X, population=people)
    attention = model.attention()
    assert attention.shape == (2, len(X), K)
    np.testing.assert_allclose(attention.sum(2), 1, rtol=1e-5)
    np.testing.assert_allclose(model.attention(X[:3]), attention[:, :3], rtol=1e-4)


# -- what a reviewer found ------------------------------------------------------------------------


def test_costs_that_cease_to_match_are_learned_as_such(X, truth):
    class Rounding(SimulatedPopulation):
        def respond(self, entities, prescribed, centers):
            cost = super().respond(entities, prescribed, centers).cost
            return Response(None, cost if self.n_interactions < 500 else np.round(cost, 2))

    model = ADENClustering(K, preset=QUICK, n_interactions=6000, random_state=0)
    model.fit(X, population=Rounding(X, truth, random_state=0))
    assert model.head_ == "served"
    assert np.isfinite(model.cluster_centers_).all()


def test_the_network_holds_what_was_learned(X, people, tmp_path):
    model = ADENClustering(K, n_interactions=2500, random_state=0).fit(X, population=people)
    assert isinstance(model.model_, LogitAutonomy)
    linear = load_network(model.save_network(tmp_path / "n.safetensors")).linear
    unit = model._units.cost
    expected = [model.model_.stay, model.model_.own * unit, model.model_.pair * unit]
    np.testing.assert_allclose(linear[:3].detach(), expected, rtol=1e-5)


def test_lost_answers_do_not_cut_the_annealing_short(X, truth):
    people = SimulatedPopulation(X, truth, reveal="cost", loss=0.5, random_state=0)
    recipe = Recipe(**{**vars(QUICK), "head": "costs", "replicas": 1})
    model = ADENClustering(K, preset=recipe, n_interactions=8000, random_state=0)
    model.fit(X, population=people)
    assert model.beta_ == model._betas[-1]


def test_replicas_are_compared_by_enough_answers(X, truth):
    recipe = Recipe(**{**vars(QUICK), "head": "costs"})
    model = ADENClustering(K, preset=recipe, random_state=0).start(X)
    model._replicas = np.stack([X[:K], X[K : 2 * K]])
    for verdict, best in (
        ([[5, 0.5, 0.1], [5, 0.1, 0.1]], 0),  # too few to say anything
        ([[1000, 100, 20], [1000, 99, 20]], 0),  # no difference
        ([[1000, 100, 20], [1000, 50, 10]], 1),
    ):
        other = copy.deepcopy(model)
        other._verdict = np.array(verdict, dtype=float)
        other._choose_replica()
        np.testing.assert_array_equal(other.cluster_centers_, model._replicas[best])


@pytest.mark.parametrize(("preset", "several"), [("paper", True), (Recipe(head="costs"), False)])
def test_large_steps_take_several_threads(X, preset, several):
    model = ADENClustering(K, preset=preset).start(X)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with model._few_threads():
            assert (torch.get_num_threads() == 2) == several
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_betas_of_the_published_schedule(X):
    betas = ADENClustering(K, preset="paper").start(X)._betas
    assert len(betas) == 90
    assert betas[0] == 10
    assert 50_000 / 1.1 < betas[-1] <= 50_000


def test_a_state_needs_no_file_of_a_network(X, people, tmp_path):
    path = save_network(ADENetwork(2, QUICK.size(), "costs"), tmp_path / "n.safetensors")
    params = {"preset": QUICK, "network": path, "n_interactions": 3000, "random_state": 0}
    state = tmp_path / "state.safetensors"
    first = ADENClustering(K, **params).fit(
        X, population=people, checkpoint=state, on_batch=lambda m: m.n_interactions_ > 500
    )
    path.unlink()
    again = ADENClustering(K, **params)
    again.fit(X, population=people, checkpoint=state, resume=True)
    assert again.n_interactions_ > first.n_interactions_
    assert load_model(state).stop_reason_ == again.stop_reason_
    with pytest.raises(ValueError, match="head='costs', not 'choices'"):
        ADENClustering(K, preset=QUICK, head="choices").resume(state)


def test_probabilities_sum_to_one_in_double_precision(rng):
    X, Y = rng.random((50, 2)), rng.random((4, 2))
    problem = Problem(X, autonomy=DistanceAutonomy(0.3, 0.5))
    total = problem.conditional(Y, rng.integers(0, 4, 50)).sum(1)
    np.testing.assert_allclose(total, 1, rtol=0, atol=1e-14)


def test_logits_survive_their_file(X, tmp_path):
    truth = LogitAutonomy(1.0, 0.1, -20.0, 0.5)
    model = AutonomyAwareClustering(3, autonomy=truth, random_state=0).fit(X)
    assert load_model(save_model(model, tmp_path / "m.safetensors")).autonomy == truth


def test_answers_about_many_centres_are_all_kept(rng):
    replay = Replay(2, 1, 64, capacity=100)
    for _ in range(5):
        Y = rng.random((100, 2, 1))
        replay.add(Y, np.arange(100), np.zeros(100, int), rng.random(100), np.ones((100, 2), bool))
    assert len(replay) == 500


def test_clusters_keep_their_numbers(X, people):
    model = ADENClustering(K, tol=0, random_state=0)
    model.partial_fit(X, population=people, n_interactions=2000)
    before = model.cluster_centers_
    model.partial_fit(population=people, n_interactions=4000)
    moves = np.linalg.norm(model.cluster_centers_[:, None] - before[None], axis=2)
    assert moves.argmin(1).tolist() == list(range(K))
    assert not np.array_equal(before, model.cluster_centers_)


def test_exchanging_places_finds_the_best_ones(rng):
    places, K = rng.random((7, 2)), 3
    X = rng.random((12, 2))
    C, apart = (torch.from_numpy(cdist(z, places) ** 2) for z in (X, places))
    linear = [1.0, 0.5, -3.0, -2.0]
    model = LogitAutonomy(*linear)
    best = min(
        Problem(X, autonomy=model).distortion(places[list(chosen)])
        for chosen in itertools.combinations_with_replacement(range(7), K)
    )
    starts = [torch.tensor(start) for start in ([0, 0, 0], [0, 1, 2], [3, 4, 5], [4, 5, 6])]
    values = [exchange(C, apart, linear, start)[1] for start in starts]
    assert min(values) == pytest.approx(best, rel=1e-9)


def test_a_search_is_wary_of_places_that_nobody_was_served_from(rng):
    network, units = ADENetwork(2, SMALL, "served"), Units(np.zeros(2), 1.0, 1.0)
    asked = torch.from_numpy(rng.random((50, 2)))
    wary, plain = CautiousAutonomy(network, units, asked), NetworkAutonomy(network, units)
    X = rng.random((20, 2))

    def costs(model, Y):
        return Problem(X, autonomy=model).expected_costs(Y)

    near, far = asked[:2].numpy(), np.array([[3.0, 3.0], [4.0, 4.0]])
    np.testing.assert_allclose(costs(wary, near), costs(plain, near), rtol=1e-4)
    assert (costs(wary, far) > 10 * costs(plain, far)).all()


def test_places_are_means_over_shifted_centres(rng):
    network = shaken("served").requires_grad_(False)
    x, y, shifts = (torch.from_numpy(rng.random(shape)) for shape in ((1, 6, 2), (1, 3, 2), (4, 2)))
    D = squares(x, y)
    each = torch.stack([network.log_served(x, y + shift, D).exp() for shift in shifts])
    torch.testing.assert_close(network.log_served(x, y, D, shifts).exp(), each.mean(0))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_a_search_passes_over_narrow_holes(rng, d):
    """A network is smooth where costs jump, and so takes places in between for cheap."""

    class Hole(torch.nn.Module):
        def forward(self, a, b):
            deep = -3.0 * (b - 0.5).norm(dim=-1).lt(0.02).to(a.dtype)
            return deep[..., None, :].expand(*a.shape[:-1], b.shape[-2])

    network, units = ADENetwork(d, SMALL, "served"), Units(np.zeros(d), 1.0, 1.0)
    network.service = Hole()
    network.reach(torch.tensor([[0.0] * d, [1.0] * d]))
    asked = torch.from_numpy(np.concatenate([rng.random((50, d)), np.full((1, d), 0.5)]))
    wary, plain = CautiousAutonomy(network, units, asked), NetworkAutonomy(network, units)
    X, Y = rng.random((20, d)), np.full((1, d), 0.5)
    blank = NetworkAutonomy(ADENetwork(d, SMALL, "served"), units)
    cost, believed, true = (
        Problem(X, autonomy=model).distortion(Y) for model in (wary, plain, blank)
    )
    assert believed < 0.1 * true
    assert cost == pytest.approx(true, rel=1e-4)
    # Where nobody was asked but at one place there is nothing to go by.
    assert CautiousAutonomy(network, units, asked[-1:]).shifts.isfinite().all()
