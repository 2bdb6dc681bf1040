import copy
import math

import numpy as np
import pytest
import torch
from small_networks import SMALL, answers, shaken, unknown

from volition import LogitAutonomy
from volition.learning.networks import ADENetwork
from volition.learning.networks.network import LEAST
from volition.learning.networks.service_numbers import adjust_places, calibrate, fit_numbers


def test_the_form_of_costs_is_found(some_groups):
    """Costs are three times the root of the known ones; nobody says so."""
    batch = unknown(answers(some_groups, LogitAutonomy(1.0, 0.0, -8.0, 0.0), 200)[0])
    batch = batch._replace(target=3 * (batch.target + LEAST).sqrt() - LEAST)
    network = ADENetwork(2, SMALL, "service")
    fit_numbers(network, batch)
    power, factor, scatter = network.cost_law.tolist()
    assert power == pytest.approx(0.5, abs=0.01)
    assert factor == pytest.approx(math.log(3), abs=0.03)
    assert scatter < -4
    assert network.linear[0].item() == pytest.approx(1.0, abs=0.15)
    calibrate(network.double(), lambda some: batch, np.arange(200), 200)
    assert network.mean.item() == pytest.approx(1.0, abs=0.02)


def test_the_mean_of_costs_is_that_of_the_centres_that_were_used(some_groups):
    """Choices that happen to be dear do not make costs dear."""
    batch, _ = answers(some_groups, LogitAutonomy(-3.0), 20)  # most do not obey
    network = ADENetwork(2, SMALL, "service").double()
    with torch.no_grad():
        network.linear[0] = 3.0  # the network believes that they do
    dear = batch._replace(target=1.5 * (batch.target + LEAST) - LEAST)
    calibrate(network, lambda some: dear, np.arange(20), 20)
    assert network.mean.item() == pytest.approx(1.5)


def test_what_fits_already_is_left_alone(some_groups):
    """Few answers do not change what is known."""
    network = ADENetwork(2, SMALL, "service")
    with torch.no_grad():
        network.linear.copy_(torch.tensor([1.0, 0.0, -8.0, 0.0]))
        network.cost_law[2] = -1.0
    batch = unknown(answers(some_groups, LogitAutonomy(1.0, 0.0, -8.0, 0.0), 4, width=8)[0])
    noise = torch.randn(batch.target.shape, generator=torch.Generator().manual_seed(0))
    scattered = batch.target * torch.exp(0.3 * noise)
    before = network.linear[1:].clone(), network.cost_law[:2].clone()
    fit_numbers(network, batch._replace(target=scattered))
    assert torch.equal(network.linear[1:], before[0])
    assert torch.equal(network.cost_law[:2], before[1])


def test_scatter_that_was_none_can_grow(some_groups):
    """Exact costs at first, noisy ones later."""
    batch = unknown(answers(some_groups, LogitAutonomy(1.0, 0.0, -8.0, 0.0), 100)[0])
    network = ADENetwork(2, SMALL, "service")
    fit_numbers(network, batch)
    assert network.cost_law[2].item() < -4
    noise = torch.randn(batch.target.shape, generator=torch.Generator().manual_seed(0))
    fit_numbers(network, batch._replace(target=batch.target * torch.exp(0.3 * noise)))
    assert network.cost_law[2].item() == pytest.approx(math.log(0.3), abs=0.3)


def test_slopes_that_are_not_there_go(some_groups):
    """Steps of training leave a little of every slope behind; those that say nothing vanish."""
    batch = unknown(answers(some_groups, LogitAutonomy(1.0, 0.0, -8.0, 0.0), 100)[0])
    noise = torch.randn(batch.target.shape, generator=torch.Generator().manual_seed(0))
    batch = batch._replace(target=batch.target * torch.exp(0.1 * noise))
    network = ADENetwork(2, SMALL, "service")
    fit_numbers(network, batch)
    with torch.no_grad():  # all else is as good as it gets
        network.linear[1], network.linear[3] = 0.02, 0.05
    fit_numbers(network, batch)
    stay, own, pair, entity = network.linear.tolist()
    assert (own, entity) == (0.0, 0.0)
    assert stay == pytest.approx(1.0, abs=0.2)
    assert pair == pytest.approx(-8.0, abs=1.5)


def test_few_answers_correct_the_places_of_a_given_network(some_groups):
    """The truth is the given network with other weights of its last layer; 100 answers tell."""
    given_one = shaken("service").requires_grad_(False)
    given_one.attentive.fill_(False)
    given_one.linear.copy_(torch.tensor([1.0, 0.0, -2.0, 0.0]))
    given_one.cost_law.copy_(torch.tensor([1.0, 0.0, -3.0]))
    truth = copy.deepcopy(given_one)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(truth.service.last.weight.shape, generator=generator)
    truth.service.last.weight += 0.03 * noise
    batch = unknown(answers(some_groups, LogitAutonomy(1.0, 0.0, -2.0, 0.0), 12, width=8)[0])
    told = torch.distributions.Bernoulli(torch.tensor(0.7)).expand(batch.prescribed.shape)
    torch.manual_seed(0)
    other = torch.randint(batch.Y.shape[1], batch.prescribed.shape)
    realised = torch.where(told.sample() > 0, batch.prescribed, other)

    def log_costs(network):
        return network.log_service_costs(batch.X, batch.Y, batch.D)

    cost = log_costs(truth).exp().gather(2, realised[..., None])[..., 0] - LEAST
    noise = torch.randn(cost.shape, generator=generator)
    batch = batch._replace(target=cost * torch.exp(0.2 * noise))
    network, others = copy.deepcopy(given_one), copy.deepcopy(given_one)
    adjust_places(network, given_one.service.last.weight[0], batch)
    before, after = (
        (log_costs(one) - log_costs(truth)).square().mean() for one in (given_one, network)
    )
    assert after < 0.25 * before
    # It stays near what was given, wherever it stands.
    with torch.no_grad():
        others.service.last.weight += 0.05 * noise.flatten()[: given_one.service.last.in_features]
    adjust_places(others, given_one.service.last.weight[0], batch)
    torch.testing.assert_close(log_costs(others), log_costs(network), rtol=0, atol=0.02)
    # Without answers nothing is known better.
    adjust_places(
        network, given_one.service.last.weight[0], batch._replace(valid=batch.valid & False)
    )
    assert (log_costs(network) - log_costs(truth)).square().mean() == after
