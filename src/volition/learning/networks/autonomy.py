"""What a trained network says, in the form of autonomy models, so that all solvers work with it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from volition.core.autonomy import (
    Autonomy,
    Chunk,
    SoftmaxTransition,
    Transition,
    exclude_prescribed,
)
from volition.core.costs import Cost
from volition.core.validation import check_scalar
from volition.io.serialization import constructed, registered
from volition.learning.networks.network import LEAST, ADENetwork
from volition.learning.networks.tilt import Tilt
from volition.learning.networks.units import Units
from volition.populations.answers import IntArray

#: quantile of distances between places that were asked about, within which others are as known
USUAL = 0.9
#: what prescriptions cost that are not in a plan, in the network's units
NEVER = 1e6


@dataclass
class CostTransition(Transition):
    """Expected costs as a network estimates them; it knows nothing of p."""

    E: Tensor

    def expected(self, D: Tensor) -> Tensor:
        return self.E

    def realized(self, W: Tensor) -> Tensor:
        raise ValueError("A network of costs does not know which clusters are realised.")

    def conditional(self, prescribed: Tensor) -> Tensor:
        raise ValueError("A network of costs does not know which clusters are realised.")


@dataclass
class ServiceTransition(Transition):
    """Choices, and costs of being served that are not the known ones."""

    choices: SoftmaxTransition
    C: Tensor

    def expected(self, D: Tensor) -> Tensor:
        return self.choices.expected(self.C)

    def realized(self, W: Tensor) -> Tensor:
        return self.choices.realized(W)

    def conditional(self, prescribed: Tensor) -> Tensor:
        return self.choices.conditional(prescribed)


@registered
class NetworkAutonomy(Autonomy):
    """A frozen copy of a network, in double precision; single precision uses a copy of its own.

    Parameters
    ----------
    network : ADENetwork
    units : Units
        The units in which the network sees the problem.
    share : float
        Part of the autonomy that is there; the rest of the entities obey.
    tilt : Tilt, optional
        A correction of expected costs, for a network of these and as many centres.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.learning.networks import ADENetwork, NetworkAutonomy, NetworkSize, Units
    >>> from volition.core.problem import Problem
    >>> network = ADENetwork(1, NetworkSize(8, 8, 1, 2), head="choices", seed=0)
    >>> model = NetworkAutonomy(network, Units(np.zeros(1), 1.0, 1.0))
    >>> Problem(np.array([[0.0], [2.0]]), autonomy=model).expected_costs([[0.0], [2.0]]).tolist()
    [[2.0, 2.0], [2.0, 2.0]]
    """

    depends_on_centers = True
    by_entity = True

    def __init__(
        self, network: ADENetwork, units: Units, share: float = 1.0, tilt: Tilt | None = None
    ) -> None:
        self.network = copy.deepcopy(network).double().eval().requires_grad_(False)
        self.units, self.share, self.tilt = units, share, tilt
        own = self.network.project_points.weight
        self._copies = {(own.device, own.dtype): self.network}
        self.numbers_per_pair = network.size.ff_dim

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> NetworkAutonomy:
        """Return the model that was saved."""
        model: NetworkAutonomy = constructed(cls, state)
        model.units.check(model.network.n_features)
        check_scalar(model.share, "share", 0, 1)
        if model.tilt is not None:
            model.tilt.check(model.network.n_features)
        return model

    def transition(self, chunk: Chunk, Y: Tensor, cost: Cost) -> Transition:
        units, network = self.units, self._network(Y)
        if Y.shape[1] != network.n_features:
            raise ValueError(
                f"The network knows {network.n_features} features, but there are {Y.shape[1]}."
            )
        x, y = units.points(chunk.X + chunk.origin)[None], units.points(Y + chunk.origin)[None]
        D = chunk.D[None] / units.cost
        if network.head == "costs":
            E = network.costs(x, y, D)[0] * units.cost
            if self.tilt is not None and len(self.tilt.anchor) == len(Y):
                E = E + self.tilt(Y + chunk.origin)
            return CostTransition(chunk.D + self.share * (E - chunk.D))
        apart = cost.pairwise(Y + chunk.origin, Y + chunk.origin)[None] / units.cost
        service = network.head == "service"
        if service:
            D, apart = (
                self._service_costs(network, x, y, D),
                self._service_costs(network, y, y, apart),
            )
            C = (network.mean * D[0] - LEAST).clamp(min=0.0) * (network.unit * units.cost)
            if len(Y) == 1:
                return CostTransition(C)
        stay, leave, drawn = (z[0] for z in network.choices(x, y, D, apart))
        kappa = self.share * torch.sigmoid(-stay) * (len(Y) > 1)
        choices = SoftmaxTransition(
            kappa, leave + exclude_prescribed(len(Y), Y.dtype, Y.device), drawn
        )
        if not service:
            return choices
        return ServiceTransition(choices, C)

    def _network(self, Y: Tensor) -> ADENetwork:
        """Return the network as it is where these centres are, and in their precision."""
        key = (Y.device, Y.dtype)
        found = self._copies.get(key)
        # Of two threads that both make a copy, both use the first one.
        return self._copies.setdefault(key, self._copy(*key)) if found is None else found

    def _copy(self, device: torch.device, dtype: torch.dtype) -> ADENetwork:
        return copy.deepcopy(self.network).to(device, dtype)

    def _service_costs(self, network: ADENetwork, x: Tensor, y: Tensor, D: Tensor) -> Tensor:
        """Return what being served at y costs, in the network's unit."""
        return network.log_service_costs(x, y, D).exp()

    def with_overrides_scaled(self, share: float) -> NetworkAutonomy:
        return NetworkAutonomy(self.network, self.units, self.share * share, self.tilt)

    def __repr__(self) -> str:
        return f"NetworkAutonomy(head={self.network.head!r})"


class PlannedAutonomy(Autonomy):
    """Expected costs of a plan: whatever is not prescribed costs too much.

    A model is wrong here and there, and the least of several costs is often one that is wrong. The
    cost of a plan whose prescriptions stand has no such bias.

    Parameters
    ----------
    model : NetworkAutonomy
        Of expected costs.
    labels : array of shape (n,)
        What is prescribed to each entity.
    """

    depends_on_centers = True
    by_entity = True
    interchangeable = False

    def __init__(self, model: NetworkAutonomy, labels: IntArray) -> None:
        self.model, self.labels = model, labels
        self.numbers_per_pair = model.numbers_per_pair

    def transition(self, chunk: Chunk, Y: Tensor, cost: Cost) -> Transition:
        known = self.model.transition(chunk, Y, cost)
        assert isinstance(known, CostTransition)
        planned = torch.as_tensor(self.labels[chunk.rows], device=Y.device)
        others = torch.arange(len(Y), device=Y.device) != planned[:, None]
        # Not infinite: nothing times infinity would not be nothing.
        return CostTransition(known.E + NEVER * self.model.units.cost * others)

    def subset(self, index: np.ndarray) -> PlannedAutonomy:
        return PlannedAutonomy(self.model, self.labels[index])

    def with_overrides_scaled(self, share: float) -> PlannedAutonomy:
        return PlannedAutonomy(self.model.with_overrides_scaled(share), self.labels)


class CautiousAutonomy(NetworkAutonomy):
    """The same for a search, which would find places that the network takes for cheap.

    Costs are the dearer, the further a centre is from any asked about: nobody was served from
    there. And they are means over places as far from each other as those that were asked about:
    where costs jump, as at the banks of a river, a network is smooth, and takes a centre between
    the two for near to both.

    Parameters
    ----------
    network, units
        As in `NetworkAutonomy`.
    asked : tensor of shape (m, d)
        Places of centres that were asked about, in the network's units.
    """

    def __init__(self, network: ADENetwork, units: Units, asked: Tensor, share: float = 1.0):
        super().__init__(network, units, share)
        self._copies = {}  # a search has all of its own
        self.asked = asked
        exact = "donot_use_mm_for_euclid_dist"
        others = torch.cdist(asked, asked, compute_mode=exact).fill_diagonal_(torch.inf).amin(1)
        others = others[others.isfinite()]
        #: how far from the others most of them are
        self.usual = max(float(others.quantile(USUAL)), 1e-6) if len(others) else torch.inf
        self.shifts = _around(asked.shape[1]) * (self.usual if self.usual < torch.inf else 0.0)
        self.numbers_per_pair *= len(self.shifts)

    def costs(self, x: Tensor, y: Tensor, cost: Cost) -> Tensor:
        """Return what being served at places y costs those at x, in the network's unit."""
        with torch.no_grad():
            D = cost.pairwise(x, y)[None] / self.units.cost
            x, y = self.units.points(x)[None], self.units.points(y)[None]
            return self._service_costs(self._network(y), x, y, D)[0]

    def _copy(self, device: torch.device, dtype: torch.dtype) -> ADENetwork:
        network = super()._copy(device, dtype)
        network.service.float()  # a search needs no more, and takes half as long
        return network

    def _service_costs(self, network: ADENetwork, x: Tensor, y: Tensor, D: Tensor) -> Tensor:
        far = torch.cdist(y[0], self.asked.to(y)).amin(1) / self.usual
        costs = network.log_service_costs(x, y, D, self.shifts.to(y)).exp()
        return costs * (1 + (far - 1).clamp(min=0.0).square())

    def with_overrides_scaled(self, share: float) -> CautiousAutonomy:
        return CautiousAutonomy(self.network, self.units, self.asked, self.share * share)


def _around(n_features: int) -> Tensor:
    """Return steps of unit length to and fro, along two directions at right angles if possible."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(n_features, min(2, n_features), generator=generator, dtype=torch.float64)
    steps = torch.linalg.qr(drawn)[0].T
    return torch.cat([steps, -steps])
