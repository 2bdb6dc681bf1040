"""Choices by terms that held-out choices speak for; a network where terms do not suffice.

Beside that, single entities may keep to a centre of their own, whatever they are told.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np
from threadpoolctl import threadpool_limits

from volition.choices import ChoiceAutonomy, ChoiceFit, Choices, fit_choices
from volition.choices.data import predicted
from volition.choices.loyalty import fit_loyalty, loyalty_if_clear, shares_of_others
from volition.core.autonomy import Autonomy, LoyalAutonomy
from volition.core.validation import FloatArray
from volition.learning.entities import Entities
from volition.learning.memory import Memory
from volition.learning.models.response import ResponseModel, others_like
from volition.learning.networks.autonomy import NetworkAutonomy
from volition.learning.networks.choice_fit import fit_choice_network
from volition.learning.networks.network import ADENetwork
from volition.learning.networks.recipe import Recipe
from volition.learning.networks.units import Units
from volition.learning.searching import Finder

#: by how much answers must grow until a network that was of no use is tried again
AGAIN = 3
#: how often a model and the loyalty of entities are fitted in turns
TURNS = 2


class TermsModel(ResponseModel):
    """Choice terms, a network if it helps, and loyalty of single entities.

    Parameters
    ----------
    family : "auto", "distance", or (stay terms, away terms)
        What choices may depend on; see `volition.choices.fit_choices`.
    network : bool
        Whether a network may take over.
    recipe : Recipe
        How it is trained.
    given : ADENetwork, optional
        A network of choices that was trained elsewhere, to start from.
    from_log : bool
        Whether answers are a log: it has its own checks, so that no loyalty is looked for, no
        network takes over, and terms hold still beyond the costs that were seen.
    """

    head = "choices"

    def __init__(
        self, family: Any, network: bool, recipe: Recipe, given: ADENetwork | None = None,
        from_log: bool = False,
    ) -> None:  # fmt: skip
        self.family, self.network, self.recipe, self.given = family, network, recipe, given
        self.from_log = from_log
        self.fitted: ChoiceFit | None = None
        self.others: Autonomy | None = None  # of choices that are not ones of loyalty
        self.loyalty: FloatArray | None = None
        self._network_at = 0  # answers from which on a network is tried

    @property
    def autonomy(self) -> Autonomy | None:
        return None if self.others is None else self._with_loyalty(self.others)

    @property
    def trained(self) -> ADENetwork | None:
        return self.others.network if isinstance(self.others, NetworkAutonomy) else None

    def _with_loyalty(self, model: Autonomy) -> Autonomy:
        return model if self.loyalty is None else LoyalAutonomy(model, self.loyalty)

    def fit(self, memory: Memory, entities: Entities, stage: int, rng: np.random.Generator) -> None:
        choices = memory.choices()
        self.loyalty = None
        self._fit(choices, entities, stage, rng, memory.cost_unit)
        if self.from_log or len(choices.entities) == 0:
            return
        p = self._likelihood(choices, entities)
        if self.family == "auto":
            p = self._find_loyalty(choices, p, entities, stage, rng, memory.cost_unit)
        self.loss = float(-np.log(np.maximum(p, 1e-300)).mean())

    def _find_loyalty(
        self, choices: Choices, p: FloatArray, entities: Entities, stage: int,
        rng: np.random.Generator, cost_unit: float,
    ) -> FloatArray:  # fmt: skip
        """Look for entities that keep to centres of their own; return how likely choices are."""
        n, dice = len(entities), np.random.default_rng(0)
        found = loyalty_if_clear(choices, p, n)
        if found is None:
            return p
        # The model is then of the other choices, and the two are fitted in turns: choices are left
        # out as likely as they are ones of loyalty.
        for _ in range(TURNS):
            kept = dice.random(len(p)) < shares_of_others(choices, p, found)
            self._fit(choices.take(kept), entities, stage, rng, cost_unit)
            p = self._likelihood(choices, entities)
            found = fit_loyalty(choices, p, n)
        self.loyalty = found
        own = found[choices.entities]
        rest: FloatArray = own[np.arange(len(p)), choices.realized] + (1 - own.sum(1)) * p
        return rest

    def _fit(
        self, choices: Choices, entities: Entities, stage: int, rng: np.random.Generator,
        cost_unit: float,
    ) -> None:  # fmt: skip
        self.fitted = fit_choices(
            entities.X,
            choices,
            entities.cost,
            cost_unit,
            covariates=entities.covariates,
            family=self.family,
            hold=self.from_log,
            random_state=int(rng.integers(2**31)),
        )
        self.others = self.fitted.model
        usable = self.network and self.family == "auto" and entities.covariates is None
        m = len(choices.entities)
        if usable and stage and not self.from_log and m >= self._network_at:
            base = entities.problem()
            units = Units(base.mean_center()[0].astype(np.float64), base.scale, cost_unit)
            with threadpool_limits(1, "blas"):
                found = fit_choice_network(
                    entities.X, choices, entities.cost, units, self.fitted, rng, self.recipe,
                    self.given,
                )  # fmt: skip
            self.others = found or self.others
            # One that was of no use is tried again when there is much more to learn from.
            self._network_at = 0 if found else AGAIN * m

    def _likelihood(self, choices: Choices, entities: Entities) -> FloatArray:
        """Return how likely each choice was to those who are not loyal to anything, (m,)."""
        assert self.others is not None
        p = predicted(self.others, entities.X, choices, entities.cost)
        return p[np.arange(len(p)), choices.realized]

    def search(self, finder: Finder) -> FloatArray:
        assert self.fitted is not None
        # The portfolio is too much for a network: it runs on the terms.
        Y = finder.portfolio(self._with_loyalty(self.fitted.model))
        if isinstance(self.others, NetworkAutonomy):
            return finder.on_network(self._with_loyalty(self.others), Y)
        return Y

    def for_others(self, n: int, covariates: FloatArray | None) -> Autonomy | None:
        model = self.others
        if isinstance(model, ChoiceAutonomy) and model.covariates is not None:
            if covariates is None:
                raise ValueError("Choices depend on covariates; give those of X as covariates=.")
            model = model.for_entities(covariates)
        if model is not None and self.loyalty is not None:
            model = LoyalAutonomy(model, others_like(self.loyalty, n))
        return model

    def admit(self, entities: Entities, first: int) -> None:
        if isinstance(self.others, ChoiceAutonomy) and self.others.covariates is not None:
            self.others = self.others.for_entities(entities.covariates)
        if self.loyalty is not None:
            self.loyalty = others_like(self.loyalty, len(entities), first)

    def forget(self) -> None:
        self._network_at = 0

    def copied(self) -> Self:
        return copy.copy(self)

    def state(self) -> dict[str, Any]:
        return {
            "from_log": self.from_log,
            "network_at": self._network_at,
            "loss": self.loss,
            "loyalty": self.loyalty,
            "fit": None if self.fitted is None else self.fitted,
            "network": self.others if isinstance(self.others, NetworkAutonomy) else None,
        }

    def restore(self, state: dict[str, Any], entities: Entities) -> None:
        self.from_log, self._network_at = state["from_log"], state["network_at"]
        self.loyalty, self.loss = state["loyalty"], state["loss"]
        if state["fit"] is not None:
            fitted: ChoiceFit = state["fit"]
            self.fitted = fitted.for_entities(entities.covariates)
            self.others = self.fitted.model
        if state["network"] is not None:
            self.others = state["network"]
