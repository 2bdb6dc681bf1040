"""`ADENClustering`: learn from costs alone (Algorithm 2, and a recipe that needs far less)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from volition.core.validation import FloatArray, check_scalar
from volition.estimators.given_network import resolve_network
from volition.estimators.learner import Learner
from volition.learning.annealed import AnnealedStrategy
from volition.learning.entities import Entities
from volition.learning.models.service import ServiceModel
from volition.learning.models.terms import TermsModel
from volition.learning.networks.network import ADENetwork, save_network
from volition.learning.networks.recipe import Recipe, check_head, resolve_recipe
from volition.learning.networks.training import check_compiler
from volition.learning.staged import StagedStrategy
from volition.learning.strategy import ROWS, Strategy

#: questions that are asked at most, unless told otherwise
MOST = 100_000


class ADENClustering(Learner):
    """Learn centres and prescriptions from costs alone, with models that see the centres.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of centres.
    metric : str, Cost or callable, default="sqeuclidean"
        Cost of being served, as far as it is known. Costs that the population reports may be
        others.
    preset : {"cpu", "paper"} or Recipe, default="cpu"
        Size of the network and how it is trained; see `Recipe`.
    head : {"auto", "choices", "service", "costs"} or None
        What is learned: p(k | j, i), as `ChoiceClustering` does, which needs costs that tell which
        centre has served; that and the costs of being served; or expected costs, as published.
        "auto" looks at the first answers. None: as the preset says.
    network : path or ADENetwork, optional
        A network to start from, trained on this problem or another one of as many features. One
        that knows costs of being served keeps its places if the entities are among them.
    n_interactions : int or "auto", default="auto"
        Questions that a fit may ask. By default they are asked until the centres no longer improve
        by more than ``tol``, at most 100,000; a network of expected costs asks about a million, in
        equal parts for each beta.
    tol : float, default=0.001
        Share by which centres must improve from one stage to the next, or the fit ends.
    exploration : float, optional
        Share of prescriptions drawn blindly while learning. None: as the preset says (0.3).
    device : str, default="cpu"
        Where the network is trained; "auto" is CUDA where available, else the CPU.
    random_state : int, Generator or None
        Seed.

    Attributes
    ----------
    stop_reason_ : str or None
        Why the last fit ended; None before. All other results are properties, described below.

    Examples
    --------
    >>> from volition import ADENClustering, DistanceAutonomy, SimulatedPopulation
    >>> from volition.datasets import load_four_groups
    >>> X = load_four_groups().data
    >>> truth = DistanceAutonomy(0.3, temperature=0.01)
    >>> people = SimulatedPopulation(X, truth, reveal="cost", random_state=0)
    >>> model = ADENClustering(4, n_interactions=4000, random_state=0).fit(X, population=people)
    >>> model.cluster_centers_.shape, model.head_
    ((4, 2), 'choices')
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        metric: Any = "sqeuclidean",
        preset: str | Recipe = "cpu",
        head: str | None = None,
        network: Any = None,
        n_interactions: int | str = "auto",
        tol: float = 1e-3,
        exploration: float | None = None,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.metric = metric
        self.preset = preset
        self.head = head
        self.network = network
        self.n_interactions = n_interactions
        self.tol = tol
        self.exploration = exploration
        self.device = device
        self.random_state = random_state

    def _check_params(self) -> None:
        super()._check_params()
        if self.exploration is not None:
            check_scalar(self.exploration, "exploration", 0, 1)
        if self._recipe.compile:
            check_compiler()  # before anybody is asked
        check_head(self._wanted)
        if not isinstance(self.device, str | torch.device):
            raise ValueError(f"device must be a name such as 'cpu', got {self.device!r}.")
        try:
            torch.zeros(1, device=torch.device(self._device))
        except (RuntimeError, AssertionError, TypeError) as error:
            why = str(error).splitlines()[0].split(". ")[0].rstrip(".")
            raise ValueError(f"device={self.device!r} cannot be used: {why}.") from None

    @property
    def _recipe(self) -> Recipe:
        recipe = resolve_recipe(self.preset)
        return recipe if self.exploration is None else replace(recipe, exploration=self.exploration)

    @property
    def _device(self) -> Any:
        found = "cuda" if torch.cuda.is_available() else "cpu"
        return found if self.device == "auto" else self.device

    @property
    def _wanted(self) -> str:
        return resolve_recipe(self.preset).head if self.head is None else self.head

    def _identity(self) -> dict[str, Any]:
        # Whether steps are compiled is a matter of the machine.
        return {"preset": replace(resolve_recipe(self.preset), compile=False), "head": self.head}

    def _strategy_named(self, name: str, entities: Entities, rng: np.random.Generator) -> Strategy:
        # A state that is being restored has a network of its own.
        if name == AnnealedStrategy.__name__:
            return self._annealed(entities, rng)
        return self._staged(entities, rng, self._wanted, None)

    def _strategy(self, entities: Entities, rng: np.random.Generator) -> Strategy:
        given = None
        if self.network is not None:
            given = resolve_network(self.network, entities.n_features)
        head = self._wanted
        if given is not None and head not in ("auto", given.head):
            whose = "" if self.head is not None else "the preset's "
            raise ValueError(f"{whose}head={head!r}, but the network is one of {given.head}.")
        head = head if given is None else given.head
        if head == "costs":
            return self._annealed(entities, rng, given=given)
        return self._staged(entities, rng, head, given)

    def _annealed(
        self, entities: Entities, rng: np.random.Generator, **more: Any
    ) -> AnnealedStrategy:
        return AnnealedStrategy(
            entities, self.n_clusters, rng, recipe=self._recipe, device=self._device, **more
        )

    def _staged(
        self, entities: Entities, rng: np.random.Generator, head: str, given: ADENetwork | None
    ) -> StagedStrategy:
        recipe, K, device = self._recipe, self.n_clusters, self._device

        def expected(staged: StagedStrategy) -> Strategy:
            heir = self._annealed(staged.entities, staged.rng, unasked=True)
            heir.remember(staged.memory)
            return heir

        def service(now: Entities, rng: np.random.Generator) -> ServiceModel:
            return ServiceModel(recipe, now, K, int(rng.integers(2**31)), given, device)

        return StagedStrategy(
            entities, K, rng, exploration=recipe.exploration, tol=self.tol, most=MOST,
            terms=lambda: TermsModel("auto", True, recipe, given), service=service,
            expected=expected if head == "auto" else None, wanted=head,
        )  # fmt: skip

    def _notes(self) -> list[str]:
        if self.entities_.covariates is None or self.head_ not in ("service", "costs"):
            return []
        return [
            f"Covariates were given, but what was learned (head={self.head_!r}) does not depend on "
            "them: a network sees only the features. Give them as columns of X, or, where costs "
            "tell which centre has served, use head='choices'."
        ]

    # -- results ----------------------------------------------------------------------------------

    @property
    def _learned_by(self) -> StagedStrategy | AnnealedStrategy:
        strategy = self._begun().strategy
        assert isinstance(strategy, StagedStrategy | AnnealedStrategy)
        return strategy

    @property
    def head_(self) -> str:
        """What is learned: "choices", "service" or "costs"; "undecided" before that is known."""
        return self._learned_by.head

    @property
    def network_(self) -> ADENetwork | None:
        """The network as trained so far; None where terms suffice."""
        return self._learned_by.network

    @property
    def transferred_(self) -> bool:
        """Whether what is known rests on a network that was given.

        False if there was none, if it was given up for one that was learned here, or if something
        simpler explains the answers as well.
        """
        strategy = self._learned_by
        if isinstance(strategy, StagedStrategy) and isinstance(strategy.responses, ServiceModel):
            return strategy.responses.transferred
        return self.network is not None and self.network_ is not None

    def attention(self, X: Any = None) -> FloatArray:
        """Return how much entities attend to the centres in each block, shape (L, n, K)."""
        network = self._trained_network()
        if network.head == "service" and not network.attentive:
            raise ValueError(
                "This network (head='service') pays no attention: its choices follow what being "
                "served costs; draw `plot_costs` instead, or fit with head='costs'."
            )
        X = self.entities_.X if X is None else self._features(X)
        units, weight = network.units, network.project_points.weight
        assert units is not None
        x, y = (
            units.points(torch.from_numpy(z)).to(weight)[None] for z in (X, self.cluster_centers_)
        )
        with torch.no_grad():
            parts = [network.attention(some, y)[:, 0].cpu() for some in torch.split(x, ROWS, dim=1)]
        return torch.cat(parts, dim=1).double().numpy()

    def save_network(self, path: Any) -> Any:
        """Write the network alone, to start other problems from (``network=``)."""
        return save_network(self._trained_network(), path)

    def _trained_network(self) -> ADENetwork:
        if self.network_ is None:
            raise ValueError(
                "There is no network: terms explain the answers as well, or none were told yet."
            )
        return self.network_
