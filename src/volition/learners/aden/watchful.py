"""Searching on a network of unknown costs, and believing answers rather than the network."""

from __future__ import annotations

import copy

import numpy as np
import torch

from volition.learners.aden.budget import BudgetedLearner
from volition.learners.aden.models import CautiousAutonomy
from volition.learners.aden.network import MOST_PLACES
from volition.learners.aden.observed import FEWEST_SEEN, Cheapest
from volition.learners.aden.replay import Replay
from volition.learners.aden.swapping import exchanged
from volition.learners.aden.training import Trainer
from volition.learners.aden.units import Units
from volition.learners.monitor import Estimate
from volition.learners.staged import MOVED
from volition.validation import FloatArray

#: answers below which expected costs are hardly more than guessed
FEWEST_EXPECTED = 50_000
#: places among which a search begins, and entities that judge them
PLACES, EXCHANGED_BY = 300, 300


class WatchfulLearner(BudgetedLearner):
    """A learner that knows what its centres have cost, and goes back to the cheapest."""

    _replay: Replay
    _trainer: Trainer | None
    _units: Units
    _device: torch.device
    _cheapest: Cheapest
    _wary: CautiousAutonomy
    #: what the network was to estimate, as far as somebody has said so
    _wanted: str

    # -- searching --------------------------------------------------------------------------------

    def _search_warily(self) -> FloatArray:
        """Return the best centres where the network is trusted no finer than it was asked."""
        asked, found = self._asked_places(), self.model_
        self._wary = model = self._cautious(asked)
        starts = self._starts(model, asked)
        if self._stage:
            starts.append(self.cluster_centers_)
        self.model_ = model
        Y = self._polished(starts)
        self.model_ = found
        return Y

    def _asked_places(self) -> torch.Tensor:
        """Return places of centres that were asked about, not too many, in the network's units.

        Those by which a given network was trained are among them, as it knows them too.
        """
        assert self._trainer is not None
        network = self._trainer.network
        centers = torch.from_numpy(self._replay.take(np.arange(self._replay.n_groups)).centers)
        places = self._units.points(centers.flatten(0, 1)).float()
        if network.asked.any():
            places = torch.cat([places, network.asked.cpu()])
        places = torch.unique(places, dim=0)
        places = places[torch.from_numpy(self._rng.permutation(len(places))[:MOST_PLACES])]
        network.asked = places[torch.arange(MOST_PLACES) % len(places)].to(self._device)
        return places

    def _cautious(self, asked: torch.Tensor) -> CautiousAutonomy:
        """Return what was learned for a search."""
        assert self._trainer is not None
        # Betas and tolerances go by known costs: the search is in their unit.
        plain = copy.deepcopy(self._trainer.network).cpu()
        plain.unit.fill_(1.0)
        return CautiousAutonomy(plain, self._units, asked)

    def _starts(self, model: CautiousAutonomy, asked: torch.Tensor) -> list[FloatArray]:
        """Return centres to start from: places of entities, or that were asked about."""
        entities = torch.from_numpy(self._X[self._draw_entities(EXCHANGED_BY)])
        # Centres may be best where no entities are.
        inhabited = self._X[np.unique(self._draw_entities(PLACES // 2))]
        others = self._units.back(asked[: PLACES // 2].double())
        places = torch.cat([torch.from_numpy(inhabited), others])
        return exchanged(model, self._cost, entities, places, self.n_clusters, self._rng)

    # -- believing answers ------------------------------------------------------------------------

    def _forget_costs(self) -> None:
        """What centres have cost others says nothing of what they cost now."""
        if self.head_ == "served":
            self._cheapest = Cheapest()
            self._monitor.forget_costs()

    def _back_to_cheapest(self) -> None:
        """Give up centres that have clearly cost more than others."""
        near, seen = MOVED * self._scale, self.distortion_estimate()
        self._place(self._cheapest.compared(self.cluster_centers_, seen, near))
        self._replicas = self.cluster_centers_[None].copy()

    def _confirmed(self) -> bool:
        """Whether the centres have cost no more than the network believes."""
        assert self.model_ is not None
        seen = self.distortion_estimate()
        believed = self._problem(self.model_).distortion(self.cluster_centers_)
        return seen.n_answers >= FEWEST_SEEN and seen.low <= believed

    def distortion_estimate(self) -> Estimate:
        """Return what the centres have cost, 95 % sure; see `Learner.distortion_estimate`."""
        seen, best = super().distortion_estimate(), self._cheapest
        if self.tried_:
            return seen
        if seen.n_answers < 2 and best.seen is not None and best.centers is not None:
            # Perhaps it has gone back to these.
            return best.seen if np.array_equal(best.centers, self.cluster_centers_) else seen
        return seen

    def _doubts(self) -> list[str]:
        found = super()._doubts()
        unasked = self._wanted == "auto" and not self._began_trained
        if self.head_ == "costs" and unasked and self.n_answers_ < FEWEST_EXPECTED:
            found.append(
                "Costs are negative, so that expected costs are learned, for which "
                f"{self.n_answers_} answers are few: give {FEWEST_EXPECTED} or more, or, if costs "
                "have a lower end, add a constant that makes them positive: then thousands suffice."
            )
        return found
