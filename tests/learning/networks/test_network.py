import numpy as np
import pytest
import torch
from small_networks import HEADS, outputs, shaken, squares
from torch import nn

from volition import Recipe, load_model
from volition.learning.networks import (
    PRESETS,
    ADENetwork,
    NetworkSize,
    load_network,
    save_network,
)
from volition.learning.networks.network import LEAST, dropped


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
        ({"service_steps": -1}, "service_steps must be an integer >= 0"),
        ({"head": "foo"}, r"head must be 'auto' or one of .*, got 'foo'"),
        ({"compile": 1}, "compile must be True or False, got 1"),
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


def test_beyond_the_places_that_it_knows_costs_grow_as_known_ones():
    network = shaken("service").requires_grad_(False)
    x = torch.zeros(1, 1, 2).double()
    edge, beyond = torch.tensor([[[1.5, 0.0]]]).double(), torch.tensor([[[40.0, 0.0]]]).double()
    power = network.cost_law[0]
    grown = network.log_service_costs(x, beyond, squares(x, beyond))
    there = network.log_service_costs(x, edge, squares(x, edge))
    known = torch.log(squares(x, beyond) + LEAST) - torch.log(squares(x, edge) + LEAST)
    torch.testing.assert_close(grown - there, power * known)


def test_places_are_means_over_shifted_centres(rng):
    network = shaken("service").requires_grad_(False)
    x, y, shifts = (torch.from_numpy(rng.random(shape)) for shape in ((1, 6, 2), (1, 3, 2), (4, 2)))
    D = squares(x, y)
    each = torch.stack([network.log_service_costs(x, y + shift, D).exp() for shift in shifts])
    torch.testing.assert_close(network.log_service_costs(x, y, D, shifts).exp(), each.mean(0))
