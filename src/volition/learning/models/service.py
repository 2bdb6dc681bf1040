"""Costs that only the population knows: what being served costs, and choices by these costs."""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np
import torch

from volition.core.autonomy import Autonomy
from volition.core.validation import FloatArray
from volition.learning.entities import Entities
from volition.learning.memory import Memory
from volition.learning.models.response import FIRST, ResponseModel
from volition.learning.networks.autonomy import CautiousAutonomy, NetworkAutonomy
from volition.learning.networks.exchange_search import exchange_starts
from volition.learning.networks.network import MOST_PLACES, ADENetwork
from volition.learning.networks.recipe import Recipe
from volition.learning.networks.replay import Replay
from volition.learning.networks.service_fit import ServiceFit
from volition.learning.networks.training import mean_loss
from volition.learning.networks.training_data import TrainingData
from volition.learning.networks.units import Units
from volition.learning.searching import Finder

#: one group of answers in so many is held out to judge the network
HELD_OUT = 6
#: answers of the first stage with a network that was trained elsewhere
FIRST_GIVEN = 128
#: sets of centres that the answers of the first stage are about, at least
FEWEST_LAYOUTS = 16
#: places among which a search begins, and entities that judge them
PLACES, EXCHANGED_BY = 300, 300
#: a network keeps its units if the data lie within so many times their length, and are no smaller
NEARBY, SMALLEST = 3.0, 0.1


class ServiceModel(ResponseModel):
    """A network of the costs of being served, and choices by these costs.

    The cluster that served may have been told, or not. A cost is then likely if it is near that of
    a centre that was likely to serve.

    Parameters
    ----------
    recipe : Recipe
        Size of the network, and how it is trained.
    entities : Entities
    seed : int
        Of the network's first weights.
    given : ADENetwork, optional
        A network that was trained elsewhere, to start from.
    device : torch.device
    """

    head = "service"
    learns_costs = True

    def __init__(
        self, recipe: Recipe, entities: Entities, n_clusters: int, seed: int,
        given: ADENetwork | None = None, device: Any = "cpu",
    ) -> None:  # fmt: skip
        self.recipe, self.n_clusters, self.device = recipe, n_clusters, torch.device(device)
        self.units = units_of(entities, given)
        size = recipe.size() if given is None else given.size
        self.network = ADENetwork(entities.n_features, size, "service", seed)
        #: weights of places as they were given, to which few answers add
        self.given_places: torch.Tensor | None = None
        self.frozen: NetworkAutonomy | None = None
        if given is not None:
            self.network.load_state_dict(given.state_dict())
            places = given.service.last.weight[0]
            self.given_places = places.detach().cpu().double().clone()
        self.network.units = self.units
        self.network = self.network.to(self.device).eval()
        if given is not None:
            self._freeze()
        self._wary: CautiousAutonomy | None = None

    def _freeze(self) -> None:
        self.frozen = NetworkAutonomy(copy.deepcopy(self.network).cpu(), self.units)

    @property
    def autonomy(self) -> Autonomy | None:
        return self.frozen

    @property
    def trained(self) -> ADENetwork:
        return self.network

    @property
    def judge(self) -> Autonomy | None:
        return self._wary or self.frozen

    def goal(self, stage: int, budget: int | None) -> int:
        first = FIRST if self.given_places is None else FIRST_GIVEN
        return min(first, -(-(budget or 3 * first) // 3)) * 2**stage

    def fit(self, memory: Memory, entities: Entities, stage: int, rng: np.random.Generator) -> None:
        replay = self._replay(memory)
        groups = np.arange(replay.n_groups)
        held = groups % HELD_OUT == HELD_OUT - 1
        data = TrainingData(replay, entities.X, entities.cost, self.units, self.device)
        here = self.units.points(torch.from_numpy(entities.X[entities.here]))
        service = ServiceFit(data, held, self.recipe, here, self.n_clusters, self.given_places, rng)
        network = service.fit(copy.deepcopy(self.network))
        self.given_places = service.given
        self._remember_places(network, memory, rng)
        self.network = network
        self.loss = mean_loss(network, data, groups, self.recipe.n_layouts)
        self._freeze()

    def _replay(self, memory: Memory) -> Replay:
        """Return all answers in groups about the same centres."""
        K, d = memory.layouts.shape[1:]
        replay = Replay(K, d, self.recipe.n_samples, len(memory) + 1)
        told = memory.realized[:, None] >= 0
        candidates = np.where(told, memory.candidates, True)
        step = self.recipe.n_questions
        for lo in range(0, len(memory), step):
            some = slice(lo, lo + step)
            replay.add(
                memory.layouts[memory.layout[some]], memory.entities[some],
                memory.prescribed[some], memory.cost[some], candidates[some],
            )  # fmt: skip
        return replay

    def _remember_places(
        self, network: ADENetwork, memory: Memory, rng: np.random.Generator
    ) -> None:
        """Let the network keep some of the places that were asked about, in its units.

        Those by which a given network was trained are among them, as it knows them too.
        """
        centers = torch.from_numpy(memory.layouts)
        places = self.units.points(centers.flatten(0, 1)).float()
        if network.asked.any():
            places = torch.cat([places, network.asked.cpu()])
        places = torch.unique(places, dim=0)
        places = places[torch.from_numpy(rng.permutation(len(places))[:MOST_PLACES])]
        network.asked = places[torch.arange(MOST_PLACES) % len(places)].to(self.device)

    def search(self, finder: Finder) -> FloatArray:
        # Betas and tolerances go by known costs: the search is in their unit.
        plain = copy.deepcopy(self.network).cpu()
        plain.unit.fill_(1.0)
        asked = torch.unique(plain.asked, dim=0)
        self._wary = CautiousAutonomy(plain, self.units, asked)
        starts = self._starts(self._wary, asked, finder)
        if finder.stage and finder.known is not None:
            starts.append(finder.known)
        return finder.polished(self._wary, starts)

    def _starts(
        self, model: CautiousAutonomy, asked: torch.Tensor, finder: Finder
    ) -> list[FloatArray]:
        """Return centres to start from: places of entities, or that were asked about."""
        entities, rng = finder.entities, finder.rng
        judges = torch.from_numpy(entities.X[entities.draw(EXCHANGED_BY, rng)])
        # Centres may be best where no entities are.
        inhabited = entities.X[np.unique(entities.draw(PLACES // 2, rng))]
        some = torch.from_numpy(rng.permutation(len(asked))[: PLACES // 2])
        others = self.units.back(asked[some].double())
        places = torch.cat([torch.from_numpy(inhabited), others])
        return exchange_starts(model, entities.cost, judges, places, self.n_clusters, rng)

    def for_others(self, n: int, covariates: FloatArray | None) -> Autonomy | None:
        return self.frozen

    def copied(self) -> Self:
        return copy.copy(self)

    @property
    def transferred(self) -> bool:
        """Whether what is known rests on a network that was given."""
        return self.given_places is not None

    def state(self) -> dict[str, Any]:
        places = self.given_places
        return {
            "network": self.network,
            "given_places": None if places is None else places.numpy(),
            "fitted": self.frozen is not None,
            "loss": self.loss,
        }

    def restore(self, state: dict[str, Any], entities: Entities) -> None:
        self.network = state["network"].to(self.device).eval()
        assert self.network.units is not None
        self.units = self.network.units
        places = state["given_places"]
        self.given_places = None if places is None else torch.from_numpy(places)
        self.loss = state["loss"]
        if state["fitted"]:
            self._freeze()


def units_of(entities: Entities, given: ADENetwork | None = None) -> Units:
    """Return the units in which a network sees these entities.

    What being served costs depends on where one is. So a network that was trained on places here
    keeps its units.
    """
    base = entities.problem()
    mean = base.mean_center()[0].astype(np.float64)
    units = Units(mean, base.scale, base.cost_scale)
    if given is None or given.units is None:
        return units
    origin, length, _ = given.units
    here = entities.X[entities.here]
    nearby = np.linalg.norm(here - origin, axis=1).mean() <= NEARBY * length
    return given.units if nearby and base.scale >= SMALLEST * length else units
