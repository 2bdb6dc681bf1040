"""Fit a network of service to all answers: its few numbers, what places cost, and attention."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from volition.learning.networks.network import ADENetwork
from volition.learning.networks.recipe import Recipe
from volition.learning.networks.service_numbers import adjust_places, calibrate, fit_numbers
from volition.learning.networks.training import (
    Trainer,
    clearly_better,
    evaluate,
    train_while_better,
)
from volition.learning.networks.training_data import TrainingBatch, TrainingData
from volition.populations.answers import IntArray

#: answers held out below which a network that was trained elsewhere is not trained on
FEWEST_HELD = 200
#: answers times centres by which the form of costs is fitted, at most
FORM_BY = 200_000


@dataclass
class ServiceFit:
    """A fit to all answers, some groups of which are held out to judge.

    Parameters
    ----------
    data : TrainingData
        All answers.
    held : array of bool
        Which groups are held out.
    recipe : Recipe
        How a network is trained.
    places : Tensor
        Where entities are, in the network's units.
    n_clusters : int
        Number of centres.
    given : Tensor or None
        Weights of places of a network that was trained elsewhere; None for one that was not. It
        becomes None if what that network knows of places does not hold here.
    rng : Generator
    """

    data: TrainingData
    held: np.ndarray
    recipe: Recipe
    places: Tensor
    n_clusters: int
    given: Tensor | None
    rng: np.random.Generator

    def fit(self, network: ADENetwork) -> ADENetwork:
        """Return the network, fitted, or another one that explains the answers better."""
        groups = np.arange(len(self.held))
        if self.held.sum() < 2:
            network.attentive.fill_(bool(network.attentive) and self.given is None)
            self._fit_numbers(network, groups)
        else:
            judges, pool = self.data(groups[self.held]), groups[~self.held]
            network = self._fitted_numbers(network, pool, judges)
            # What many answers elsewhere have taught, few here do not improve.
            few = self.given is not None and int(judges.valid.sum()) < FEWEST_HELD
            if few:
                self._adjust_places(network, pool)
            else:
                network = self._improved(network, pool, judges, surely=self.given is not None)
            if self.given is not None:
                network = self._unless_fresh_is_better(network, pool, judges, few)
            if self.n_clusters > 1 and self.held.sum() >= 4 and not (few or network.attentive):
                wider = copy.deepcopy(network)
                wider.train_attention_only()
                network = self._improved(network, pool, judges, surely=True, candidate=wider)
            self._fit_numbers(network, groups)
            if few:
                self._adjust_places(network, groups)
        network.requires_grad_(True)
        calibrate(network, self.data, groups, self.recipe.n_layouts)
        return network

    def _adjust_places(self, network: ADENetwork, groups: IntArray) -> None:
        if self.given is not None:
            adjust_places(network, self.given, self.data(groups, torch.float64))

    def _fitted_numbers(
        self, network: ADENetwork, pool: IntArray, judges: TrainingBatch
    ) -> ADENetwork:
        """Return the network with its numbers fitted.

        Attention speaks of how entities choose. Others choose otherwise: what a given network has
        learned of that is kept only if it helps here.
        """
        self._fit_numbers(network, pool)
        if self.given is None or not network.attentive:
            return network
        without = copy.deepcopy(network)
        without.attentive.fill_(False)
        self._fit_numbers(without, pool)
        some, none = (evaluate(one, judges)[judges.valid] for one in (network, without))
        return network if clearly_better(some, none) else without

    def _fit_numbers(self, network: ADENetwork, groups: IntArray) -> None:
        """Fit a few numbers, for which not all answers are needed."""
        answers = self.data.replay.take(groups)
        if not network.ends.any():  # it has not been trained yet
            told = answers.target[answers.valid & (np.nan_to_num(answers.target) > 0)]
            if len(told):
                network.unit.fill_(float(np.median(told)) / self.data.units.cost)
        step = max(1, -(-int(answers.valid.sum()) * self.n_clusters // FORM_BY))
        fit_numbers(network, self.data(groups[::step], torch.float64))

    def _improved(
        self, network: ADENetwork, pool: IntArray, judges: TrainingBatch, surely: bool,
        candidate: ADENetwork | None = None,
    ) -> ADENetwork:  # fmt: skip
        """Return the candidate (a copy), trained, if the judges' answers say so."""
        candidate = copy.deepcopy(network) if candidate is None else candidate
        candidate.include_places(self.places)
        before = evaluate(network, judges)[judges.valid]
        after = self._trained(candidate, pool, judges)
        better = clearly_better(after, before) if surely else after.mean() < before.mean()
        return candidate if better else network

    def _trained(self, network: ADENetwork, pool: IntArray, judges: TrainingBatch) -> Tensor:
        """Train while it helps with the judges' answers; return what they cost then."""
        recipe = self.recipe
        trainer = Trainer(network, recipe.learning_rate, recipe.weight_decay, recipe.clip)
        return train_while_better(trainer, self.data, pool, judges, recipe, self.rng)

    def _unless_fresh_is_better(
        self, network: ADENetwork, pool: IntArray, judges: TrainingBatch, few: bool
    ) -> ADENetwork:
        """Return a new network if what the given one knows of the places does not hold here.

        From few answers a new one would learn nothing of places: its numbers are enough.
        """
        seed = int(self.rng.integers(2**31))
        fresh = ADENetwork(network.n_features, network.size, "service", seed)
        fresh = fresh.to(network.linear.device)
        fresh.units = self.data.units
        self._fit_numbers(fresh, pool)
        if not few:
            fresh = self._improved(fresh, pool, judges, surely=False)
        new, old = (evaluate(one, judges)[judges.valid] for one in (fresh, network))
        if not clearly_better(new, old):
            return network
        self.given = None
        return fresh
