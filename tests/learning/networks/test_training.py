import copy
import math

import numpy as np
import pytest
import torch
from scipy import stats
from small_networks import HEADS, SMALL, K, answers, quick, shaken, unknown

from volition import ADENClustering, DistanceAutonomy, LogitAutonomy
from volition.learning.networks import ADENetwork, NetworkSize
from volition.learning.networks.network import LEAST
from volition.learning.networks.training import (
    Trainer,
    answer_losses,
    log_choices,
    train_while_better,
)


def test_likelihood_of_a_cost_that_two_centres_share(some_groups):
    """Coincident centres cannot be told apart: the chance of either counts."""
    batch, _ = answers(some_groups, LogitAutonomy(1.0), 4, width=8)
    batch = batch._replace(candidates=torch.ones_like(batch.candidates))
    network = shaken("choices").requires_grad_(False)
    assert float(answer_losses(network, batch).abs().max()) < 1e-10
    log_p = log_choices(*network.choices(*batch[:4]), batch.prescribed)
    torch.testing.assert_close(log_p.exp().sum(2), torch.ones(4, 8).double())
    none = batch._replace(valid=torch.zeros_like(batch.valid))
    assert float(answer_losses(network, none).sum()) == 0


@pytest.mark.parametrize("head", HEADS)
def test_training_lowers_the_loss_and_can_be_saved(some_groups, head):
    batch, _ = answers(some_groups, DistanceAutonomy(0.4, temperature=0.05), 16)
    batch = type(batch)(*(z.float() if z.is_floating_point() else z for z in batch))
    size = NetworkSize(16, 32, 1, 4, dropout=0.1)
    trainer = Trainer(ADENetwork(2, size, head, seed=1), 3e-3, 1e-4)
    first = np.mean([trainer.step(batch, seed=s) for s in range(5)])
    last = np.mean([trainer.step(batch, seed=s) for s in range(60)][-5:])
    assert last < first
    other = Trainer(ADENetwork(2, size, head, seed=2), 3e-3, 1e-4)
    other.restore(copy.deepcopy(trainer.state()))
    assert trainer.step(batch, seed=7) == other.step(batch, seed=7)
    for a, b in zip(trainer.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(a, b)


def test_likelihood_of_a_cost_near_that_of_a_centre(some_groups):
    """A mixture of Student's t in the logarithm of costs, from SciPy, with p one by one."""
    batch, _ = answers(some_groups, DistanceAutonomy(0.4, temperature=0.05), 3, width=5)
    batch, told = unknown(batch), batch
    network = shaken("service").requires_grad_(False)
    C = network.log_service_costs(batch.X, batch.Y, batch.D)
    between = network.log_service_costs(batch.Y, batch.Y, batch.apart).exp()
    log_p = log_choices(*network.choices(batch.X, batch.Y, C.exp(), between), batch.prescribed)
    scatter = math.exp(network.cost_law[2])
    density = stats.t(4, loc=C.numpy(), scale=scatter).pdf(
        np.log(batch.target.numpy() + LEAST)[..., None]
    )
    # The constant of the density does not matter.
    off = math.log(stats.t(4).pdf(0))
    expected = -np.log((log_p.exp().numpy() * density).sum(2)) + off
    np.testing.assert_allclose(answer_losses(network, batch), expected, rtol=1e-6)
    # Who was seen to use a centre has used that one.
    used = told.candidates.double().argmax(2, keepdim=True)
    assert (told.candidates.sum(2) == 1).all()
    mine = log_p.gather(2, used)[..., 0].numpy()
    near = np.take_along_axis(density, used.numpy(), 2)[..., 0]
    np.testing.assert_allclose(answer_losses(network, told), off - mine - np.log(near), rtol=1e-6)
    # A choice without a cost is one all the same.
    silent = told._replace(target=torch.full_like(told.target, torch.nan))
    np.testing.assert_allclose(answer_losses(network, silent), -mine, rtol=1e-6)


def test_compiled_steps_are_the_same_steps(some_groups, monkeypatch):
    """Without a C++ compiler: what is compiled is traced, and run as it is."""
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda fn: plain(fn, backend="eager"))
    batch, _ = answers(some_groups, DistanceAutonomy(0.4, temperature=0.05), 8)
    batch = type(batch)(*(z.float() if z.is_floating_point() else z for z in batch))
    found = [
        Trainer(ADENetwork(2, SMALL, "costs", seed=1), 3e-3, 1e-4, compiled=compiled)
        for compiled in (False, True)
    ]
    steps = [[trainer.step(batch) for _ in range(3)] for trainer in found]
    np.testing.assert_allclose(*steps, rtol=1e-5)
    recipe, made = quick(compile=True, head="costs"), []
    monkeypatch.setattr(torch, "compile", lambda fn: made.append(fn) or plain(fn, backend="eager"))
    ADENClustering(K, preset=recipe, random_state=0).start(some_groups)
    assert answer_losses in made
    made.clear()
    ADENClustering(K, preset=quick(compile=True, head="choices"), random_state=0).start(some_groups)
    assert answer_losses not in made

    def broken(fn):
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(ValueError, match=r"works: no compiler here\.$"):
        ADENClustering(K, preset=recipe, random_state=0).start(some_groups)


@pytest.mark.parametrize("steps", [0, 7, 100])
def test_a_recipe_says_how_long_costs_of_being_served_are_learned(some_groups, steps):
    batch, _ = answers(some_groups, DistanceAutonomy(0.3, temperature=0.05), 8)
    rates = []

    class Watched(Trainer):
        def step(self, batch, factor=1.0, seed=0):
            rates.append(factor)
            return super().step(batch, factor, seed)

    trainer = Watched(ADENetwork(2, SMALL, "service").double(), 1e-3, 0.0)
    before = answer_losses(trainer.network, batch).mean()
    recipe, rng = quick(service_steps=steps), np.random.default_rng(0)
    train_while_better(trainer, lambda groups: batch, np.arange(4), batch, recipe, rng)
    assert len(rates) <= steps
    assert (answer_losses(trainer.network, batch).mean() < before) == (steps > 0)
    if steps == 100:
        assert max(rates) == pytest.approx(2.98, rel=0.01)
