"""The Adaptive Distance Estimation Network (paper, appendix "ADEN Architecture"), with three heads.

Points and centres are projected linearly; L adaptive distance blocks let every point attend to all
centres; a head then speaks about pairs. The published head estimates the expected cost of
prescribing j to i as ``ReLU(scale * MLP([e_i, y_j]) + D0_ij)``; where costs are negative the ReLU's
floor is lifted, and what all costs have in common is added. Another head estimates the choice
p(k | j, i) itself, of which the expected cost is the average of known distances: logits of leaving
j for k are a pair term (j, k) plus attention from i to k, and there is a chance to stay. A third
head is for costs that only the population knows: it estimates what being served costs, as the known
cost to some power times a function of both places, and choices by these costs.

Everything is in the data's own units: points and centres centred and divided by the data's spread,
costs divided by the cost of a single centre. Any number of points and centres goes in, and
their order does not matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from volition.core.messages import a_few
from volition.core.validation import check_integer, check_scalar
from volition.io.checked_files import expect, reading
from volition.io.serialization import decode, encode, read, registered, write
from volition.learning.networks.units import Units

HEADS = ("choices", "service", "costs")
KIND = "volition-network"
#: cost below which costs are as good as none, as a share of the usual ones
LEAST = 1e-3
#: places of centres that a network remembers, at most
MOST_PLACES = 1000
#: how much a function of places bends within the data's spread, before it is trained
BENDS = 1.5


@registered
@dataclass(frozen=True)
class NetworkSize:
    """Dimensions of a network: as published by default.

    Examples
    --------
    >>> from volition.learning.networks import NetworkSize
    >>> NetworkSize(hidden_dim=32)
    NetworkSize(hidden_dim=32, ff_dim=128, n_blocks=4, n_heads=8, dropout=0.0)
    """

    hidden_dim: int = 64
    ff_dim: int = 128
    n_blocks: int = 4
    n_heads: int = 8
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("hidden_dim", "ff_dim", "n_blocks", "n_heads"):
            check_integer(getattr(self, name), name, 1)
        check_scalar(self.dropout, "dropout", 0, 1)
        if self.hidden_dim % self.n_heads:
            raise ValueError(
                f"hidden_dim={self.hidden_dim} must be a multiple of n_heads={self.n_heads}."
            )


def dropped(z: Tensor, share: float) -> Tensor:
    """Return the numbers with a share of them set to zero, the others scaled up (dropout).

    On CPUs torch draws a number for each, which takes a third of a training step: here one random
    number decides on four of them, to within 1 / 65,536 of the share.
    """
    cut = round(share * 2**16)
    if not 0 < cut < 2**16 or z.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(z, share)
    n = z.numel()
    bits = torch.empty(-(-n // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = bits[:n].view(z.shape) >= cut - 2**15
    return z * kept.to(z.dtype).mul_(1 / (1 - share))


def _weights(queries: Tensor, keys: Tensor) -> Tensor:
    """Return how much each query attends to each key, (G, H, S, K)."""
    return (queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5).softmax(-1)


class AdaptiveDistanceBlock(nn.Module):
    """Points attend to centres; LayerNorm; GELU feed-forward; LayerNorm."""

    def __init__(self, size: NetworkSize) -> None:
        super().__init__()
        h = size.hidden_dim
        self.n_heads, self.dropout = size.n_heads, size.dropout
        self.query, self.key_value, self.out = (
            nn.Linear(h, h),
            nn.Linear(h, 2 * h),
            nn.Linear(h, h),
        )
        self.widen, self.narrow = nn.Linear(h, size.ff_dim), nn.Linear(size.ff_dim, h)
        self.norms = nn.ModuleList([nn.LayerNorm(h), nn.LayerNorm(h)])

    def heads(self, points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (G, H, S, h), keys and values (G, H, K, h)."""
        keys, values = self.key_value(centers).chunk(2, dim=-1)
        q, k, v = (
            z.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for z in (self.query(points), keys, values)
        )
        return q, k, v

    def forward(self, points: Tensor, centers: Tensor) -> Tensor:
        lost = self.dropout if self.training else 0.0
        q, k, v = self.heads(points, centers)
        if lost:
            mixed = dropped(_weights(q, k), lost) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        u = self.norms[0](points + dropped(self.out(mixed.transpose(1, 2).flatten(-2)), lost))
        wide = dropped(F.gelu(self.widen(u)), lost)
        result: Tensor = self.norms[1](u + dropped(self.narrow(wide), lost))
        return result


class PairTerm(nn.Module):
    """A function of pairs: an MLP on [a, b], computed without stacking them."""

    def __init__(self, hidden: int, width: int, dropout: float) -> None:
        super().__init__()
        # One linear map of the stacked pair is the sum of two maps.
        self.first, self.second = nn.Linear(hidden, width), nn.Linear(hidden, width, bias=False)
        self.last = nn.Linear(width, 1)
        self.dropout = dropout

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        z = F.gelu(self.first(a)[..., :, None, :] + self.second(b)[..., None, :, :])
        result: Tensor = self.last(dropped(z, self.dropout if self.training else 0.0))[..., 0]
        return result


class ServiceTerm(nn.Module):
    """A function of two places: an MLP of three hidden layers that says nothing at first."""

    def __init__(self, n_features: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(n_features, width)
        self.second = nn.Linear(n_features, width, bias=False)
        self.middle = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.last = nn.Linear(width, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        result: Tensor = self.last(self.features(a, b))[..., 0]
        return result

    def features(self, a: Tensor, b: Tensor) -> Tensor:
        """Return what the last layer weighs, (..., n, m, width)."""
        a, b = a.to(self.last.weight.dtype), b.to(self.last.weight.dtype)
        # SiLU takes half the time of GELU, and learns as well.
        z = F.silu(self.first(a)[..., :, None, :] + self.second(b)[..., None, :, :])
        for layer in self.middle:
            z = F.silu(layer(z))
        return z

    def initialise(self, generator: torch.Generator) -> None:
        """Begin with bends all over the map: Xavier's weights would all but be linear there."""
        n_features = self.first.in_features
        for layer in (self.first, self.second):
            nn.init.normal_(layer.weight, std=BENDS / n_features**0.5, generator=generator)
        nn.init.uniform_(self.first.bias, -2.0, 2.0, generator=generator)
        nn.init.zeros_(self.last.weight)


@registered
class ADENetwork(nn.Module):
    """Adaptive distance estimation network.

    Parameters
    ----------
    n_features : int
        Dimension of points and centres.
    size : NetworkSize
        Hidden sizes.
    head : {"choices", "service", "costs"}
        What is estimated: p(k | j, i); that and the costs of being served; or expected costs, as
        published.
    seed : int
        Of the initial weights (Xavier).

    Examples
    --------
    >>> import torch
    >>> from volition.learning.networks import ADENetwork, NetworkSize
    >>> network = ADENetwork(2, NetworkSize(16, 32, 1, 4), head="costs", seed=0)
    >>> X, Y = torch.rand(1, 5, 2), torch.rand(1, 3, 2)
    >>> network.costs(X, Y, torch.cdist(X, Y) ** 2).shape
    torch.Size([1, 5, 3])
    """

    floor: Tensor
    shift: Tensor
    unit: Tensor
    mean: Tensor
    attentive: Tensor
    ends: Tensor
    asked: Tensor

    def __init__(
        self, n_features: int, size: NetworkSize, head: str = "choices", seed: int = 0
    ) -> None:
        super().__init__()
        if head not in HEADS:
            raise ValueError(f"head must be one of {HEADS}, got {head!r}.")
        self.n_features, self.size, self.head = n_features, size, head
        self.units: Units | None = None  # of the problem that it was trained on
        h = size.hidden_dim
        self.project_points = nn.Linear(n_features, h)
        self.project_centers = nn.Linear(n_features, h)
        self.blocks = nn.ModuleList(AdaptiveDistanceBlock(size) for _ in range(size.n_blocks))
        if head == "costs":
            self.pair = PairTerm(h, size.ff_dim, size.dropout)
            self.scale = nn.Parameter(torch.tensor(0.1))
            # Where costs end, and what all of them have in common besides the known ones.
            self.register_buffer("floor", torch.zeros(()))
            self.register_buffer("shift", torch.zeros(()))
        else:
            self.pair = PairTerm(h, size.ff_dim // 2, size.dropout)
            self.drawn, self.staying = nn.Linear(h, h), nn.Linear(h, h)
            self.linear = nn.Parameter(torch.zeros(4))  # stay, by d_ij; leave, by d_jk and d_ik
        if head == "service":
            self.service = ServiceTerm(n_features, 3 * size.ff_dim // 4)
            # Power of the known cost, logarithm of its factor, logarithm of the scatter.
            self.cost_law = nn.Parameter(torch.tensor([1.0, 0.0, 0.0]))
            # Unit of the costs that are told, the mean of their scatter in units of its middle,
            # and whether choices take attention.
            self.register_buffer("unit", torch.ones(()))
            self.register_buffer("mean", torch.ones(()))
            self.register_buffer("attentive", torch.zeros((), dtype=torch.bool))
            # Corners of the places that it has been trained on: at first the origin.
            self.register_buffer("ends", torch.zeros(2, n_features))
            # Places of centres that were asked about, few of them several times over.
            self.register_buffer("asked", torch.zeros(MOST_PLACES, n_features))
        self._initialise(seed)

    def state(self) -> dict[str, Any]:
        """Return what is saved of it."""
        return {
            "n_features": self.n_features,
            "size": self.size,
            "head": self.head,
            "units": self.units,
            "weights": {name: value.cpu().numpy() for name, value in self.state_dict().items()},
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> ADENetwork:
        """Return the network that was saved, in the precision in which it was."""
        check_integer(state["n_features"], "n_features", 1)
        weights, network = state["weights"], cls(state["n_features"], state["size"], state["head"])
        if missing := network.state_dict().keys() ^ weights.keys():
            raise ValueError(f"it has other parts than a network here ({a_few(sorted(missing))})")
        network.to(torch.from_numpy(expect(weights, "project_points.bias", (None,))).dtype)
        for name, value in network.state_dict().items():
            if not (name == "floor" and np.array_equal(weights[name], -math.inf)):  # there is none
                expect(weights, name, tuple(value.shape), "f" if value.is_floating_point() else "b")
            if weights[name].dtype != value.numpy().dtype:
                raise ValueError(f"'{name}' holds {weights[name].dtype}, which it cannot")
        network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
        network.units = state["units"]
        if network.units is not None:
            network.units.check(network.n_features)
        return network

    def _initialise(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.head != "costs":
            # A network that knows nothing says nothing: choices begin as those of the linear part.
            for last in (self.pair.last, self.drawn, self.staying):
                nn.init.zeros_(last.weight)
        if self.head == "service":
            self.service.initialise(generator)
            with torch.no_grad():
                self.linear[0] = 1.0  # most obey, or there would be no sense in prescribing

    def embed(self, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        """Return points that have seen the centres (G, S, h), and centres (G, K, h)."""
        points, centers = self.project_points(X), self.project_centers(Y)
        for block in self.blocks:
            points = block(points, centers)
        return points, centers

    def costs(self, X: Tensor, Y: Tensor, D0: Tensor) -> Tensor:
        """Return estimated expected costs (G, S, K); D0 holds the costs of being served."""
        points, centers = self.embed(X, Y)
        # As published, a ReLU, unless costs are told that go below its floor.
        return torch.maximum(self.scale * self.pair(points, centers) + D0 + self.shift, self.floor)

    def allow_negative(self) -> None:
        """Let expected costs be any numbers."""
        self.floor.fill_(-math.inf)

    def choices(self, X: Tensor, Y: Tensor, D0: Tensor, apart: Tensor) -> tuple[Tensor, ...]:
        """Return logits: stay (G, S, K), leave j for k (G, K, K), be drawn to k (G, S, K).

        ``apart`` holds the costs between centres, (G, K, K).
        """
        stay = self.linear[0] + self.linear[1] * D0
        leave, drawn = self.linear[2] * apart, self.linear[3] * D0
        if self.head == "service" and not self.attentive:
            return stay, leave, drawn
        points, centers = self.embed(X, Y)
        shrink = self.size.hidden_dim**-0.5
        stay = stay + shrink * (self.staying(points) @ centers.transpose(1, 2))
        leave = leave + self.pair(centers, centers)
        drawn = drawn + shrink * (self.drawn(points) @ centers.transpose(1, 2))
        return stay, leave, drawn

    def log_service_costs(
        self, X: Tensor, Y: Tensor, D0: Tensor, shifts: Tensor | None = None
    ) -> Tensor:
        """Return the logarithm of what being served costs, in its unit and plus ``LEAST``.

        With ``shifts`` (m, d) what depends on places is the mean of what it is at centres that are
        shifted by each of them.
        """
        power, factor, _ = self.cost_law
        known = power * torch.log(D0 + LEAST) + factor
        if shifts is None:
            return known + self.service(*self.known_places(X, Y))
        moved = (Y[:, None] + shifts[:, None]).flatten(1, 2)
        places = self.service(*self.known_places(X, moved)).unflatten(-1, (len(shifts), -1))
        return known + places.logsumexp(-2) - math.log(len(shifts))

    def known_places(self, *places: Tensor) -> list[Tensor]:
        """Return the same places, or, of those beyond what it knows, the nearest known."""
        low, high = self.ends
        return [z.clamp(low, high) for z in places]

    def train_attention_only(self) -> None:
        """Let choices take attention, and train nothing else: what is gained is attention's."""
        self.attentive.fill_(True)
        self.requires_grad_(False)
        attending = (self.project_points, self.project_centers, self.blocks)
        for part in (*attending, self.pair, self.drawn, self.staying):
            part.requires_grad_(True)

    def include_places(self, X: Tensor) -> None:
        """Take in that it is trained on these places, too."""
        low, high = X.amin(0).to(self.ends), X.amax(0).to(self.ends)
        self.ends = torch.stack([self.ends[0].minimum(low), self.ends[1].maximum(high)])

    def attention(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return how much each point attends to each centre, (L, G, S, K), averaged over heads."""
        points, centers = self.project_points(X), self.project_centers(Y)
        layers = []
        for block in self.blocks:
            assert isinstance(block, AdaptiveDistanceBlock)
            q, k, _ = block.heads(points, centers)
            layers.append(_weights(q, k).mean(1))
            points = block(points, centers)
        return torch.stack(layers)


def save_network(network: ADENetwork, path: Any) -> Path:
    """Write a network to a file, complete or not at all.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from volition.learning.networks import ADENetwork, NetworkSize, load_network, save_network
    >>> network = ADENetwork(2, NetworkSize(8, 8, 1, 2), seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     same = load_network(save_network(network, Path(folder) / "network.safetensors"))
    >>> bool((same.project_points.weight == network.project_points.weight).all())
    True
    """
    return write(path, KIND, encode(network))


def load_network(path: Any) -> ADENetwork:
    """Read a network that :func:`save_network` wrote."""
    tree = read(path, KIND)
    with reading(Path(path)):
        network = decode(tree)
        if not isinstance(network, ADENetwork):
            raise ValueError("it holds no network")
    return network
