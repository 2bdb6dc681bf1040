import numpy as np
import pytest
import torch
from small_networks import HEADS, SMALL, shaken, squares

from volition.core.problem import Problem
from volition.learning.networks import ADENetwork, NetworkAutonomy, Units
from volition.learning.networks.autonomy import CautiousAutonomy
from volition.learning.networks.network import LEAST


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
    half = problem.with_autonomy(model.with_overrides_scaled(0.5)).expected_costs(Y)
    np.testing.assert_allclose(half, 0.5 * expected + 0.5 * D.numpy(), rtol=1e-10)


def test_service_as_an_autonomy_model(rng):
    """Choices by learned costs, and learned costs averaged over them."""
    X, Y = torch.tensor(rng.random((6, 2))), torch.tensor(rng.random((3, 2)))
    units, network = Units(np.array([0.3, 0.4]), 0.7, 0.2), shaken("service")
    x, y = units.points(X)[None], units.points(Y)[None]
    C, between = (
        network.log_service_costs(a, y, squares(A[None], Y[None]) / units.cost).exp()
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


def test_a_search_is_wary_of_places_that_nobody_was_served_from(rng):
    network, units = ADENetwork(2, SMALL, "service"), Units(np.zeros(2), 1.0, 1.0)
    asked = torch.from_numpy(rng.random((50, 2)))
    wary, plain = CautiousAutonomy(network, units, asked), NetworkAutonomy(network, units)
    X = rng.random((20, 2))

    def costs(model, Y):
        return Problem(X, autonomy=model).expected_costs(Y)

    near, far = asked[:2].numpy(), np.array([[3.0, 3.0], [4.0, 4.0]])
    np.testing.assert_allclose(costs(wary, near), costs(plain, near), rtol=1e-4)
    assert (costs(wary, far) > 10 * costs(plain, far)).all()


@pytest.mark.parametrize("d", [1, 2, 5])
def test_a_search_passes_over_narrow_holes(rng, d):
    """A network is smooth where costs jump, and so takes places in between for cheap."""

    class Hole(torch.nn.Module):
        def forward(self, a, b):
            deep = -3.0 * (b - 0.5).norm(dim=-1).lt(0.02).to(a.dtype)
            return deep[..., None, :].expand(*a.shape[:-1], b.shape[-2])

    network, units = ADENetwork(d, SMALL, "service"), Units(np.zeros(d), 1.0, 1.0)
    network.service = Hole()
    network.include_places(torch.tensor([[0.0] * d, [1.0] * d]))
    asked = torch.from_numpy(np.concatenate([rng.random((50, d)), np.full((1, d), 0.5)]))
    wary, plain = CautiousAutonomy(network, units, asked), NetworkAutonomy(network, units)
    X, Y = rng.random((20, d)), np.full((1, d), 0.5)
    blank = NetworkAutonomy(ADENetwork(d, SMALL, "service"), units)
    cost, believed, true = (
        Problem(X, autonomy=model).distortion(Y) for model in (wary, plain, blank)
    )
    assert believed < 0.1 * true
    assert cost == pytest.approx(true, rel=1e-4)
    # Where nobody was asked but at one place there is nothing to go by.
    assert CautiousAutonomy(network, units, asked[-1:]).shifts.isfinite().all()
