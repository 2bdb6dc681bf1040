"""`TabularClustering`: a table per entity, where behaviour does not depend on the centres."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volition.core.validation import check_integer, check_scalar
from volition.estimators.learner import Learner
from volition.learning.entities import Entities
from volition.learning.models.cost_table import RobbinsMonro
from volition.learning.probe import Assumption
from volition.learning.staged import StagedStrategy, choice_strategy
from volition.learning.strategy import Strategy
from volition.learning.table_strategies import CountingStrategy, QLearning
from volition.learning.trial import reserve


class TabularClustering(Learner):
    """Learn centres and prescriptions from answers, with a table per entity.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of centres.
    metric : str, Cost or callable, default="sqeuclidean"
        Cost of being served.
    estimate : {"choices", "costs"}, default="choices"
        What is kept per entity and prescription: how often each cluster was realised, or the
        expected cost (the paper's Q-learning). Choices need far fewer answers.
    n_interactions : int or "auto", default="auto"
        Questions that a fit may ask. Default: 100 per entity and cluster.
    tol : float, default=0.003
        With ``estimate="choices"`` a fit ends early once prescribing by what is known is believed
        to cost less than this share more than knowing all.
    exploration : float, default=0.1
        Share of prescriptions that are drawn blindly.
    forgetting : float, default=0.0
        Rate at which answers lose weight: after ``1 / forgetting`` further answers a weight has
        fallen to 1/e.
    on_change : {"forget", "report"}, default="forget"
        What to do when behaviour seems to have changed: begin the tables again, or only say so.
    batch_size : int or "auto", default="auto"
        Questions asked at a time by `fit`.
    beta_min, beta_max : float, optional
        Ends of the annealing for ``estimate="costs"``; chosen from the data by default.
    q_step : RobbinsMonro, optional
        Step size of q(i, j) at its n-th visit, for ``estimate="costs"``. Default: power 0.7.
    center_step : RobbinsMonro, optional
        Step size of the centres at the n-th batch at one beta, for ``estimate="costs"``. Default:
        power 0.6.
    random_state : int, Generator or None
        Seed.

    Attributes
    ----------
    stop_reason_ : str or None
        Why the last fit ended; None before. All other results are properties, described below.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import FixedAutonomy, SimulatedPopulation, TabularClustering
    >>> from volition.datasets import load_four_groups
    >>> X = load_four_groups().data
    >>> P = np.full((4, 4), 0.1) + 0.6 * np.eye(4)
    >>> people = SimulatedPopulation(X, FixedAutonomy(P), random_state=0)
    >>> model = TabularClustering(4, random_state=0).fit(X, population=people)
    >>> model.cluster_centers_.shape, model.n_interactions_ < 20_000
    ((4, 2), True)
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        metric: Any = "sqeuclidean",
        estimate: str = "choices",
        n_interactions: int | str = "auto",
        tol: float = 0.003,
        exploration: float = 0.1,
        forgetting: float = 0.0,
        on_change: str = "forget",
        batch_size: int | str = "auto",
        beta_min: float | None = None,
        beta_max: float | None = None,
        q_step: RobbinsMonro | None = None,
        center_step: RobbinsMonro | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.metric = metric
        self.estimate = estimate
        self.n_interactions = n_interactions
        self.tol = tol
        self.exploration = exploration
        self.forgetting = forgetting
        self.on_change = on_change
        self.batch_size = batch_size
        self.beta_min = beta_min
        self.beta_max = beta_max
        self.q_step = q_step
        self.center_step = center_step
        self.random_state = random_state

    def _check_params(self) -> None:
        super()._check_params()
        check_scalar(self.exploration, "exploration", 0, 1)
        check_scalar(self.forgetting, "forgetting", 0, 1)
        if self.batch_size != "auto":
            check_integer(self.batch_size, "batch_size", 1, " or 'auto'")
        for name, allowed in (
            ("estimate", ("choices", "costs")),
            ("on_change", ("forget", "report")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}.")

    def _strategy(self, entities: Entities, rng: np.random.Generator) -> Strategy:
        common: dict[str, Any] = {
            "heir": self._heir,
            "exploration": self.exploration,
            "on_change": self.on_change,
            "batch_size": self.batch_size,
            "betas": (self.beta_min, self.beta_max),
            "forgetting": self.forgetting,
        }
        if self.estimate == "costs":
            return QLearning(
                entities, self.n_clusters, rng,
                q_step=self.q_step or RobbinsMonro(),
                center_step=self.center_step or RobbinsMonro(power=0.6), **common,
            )  # fmt: skip

        return CountingStrategy(entities, self.n_clusters, rng, tol=self.tol, **common)

    def _strategy_named(self, name: str, entities: Entities, rng: np.random.Generator) -> Strategy:
        if name == StagedStrategy.__name__:
            return choice_strategy(entities, self.n_clusters, rng)
        return self._strategy(entities, rng)

    def _identity(self) -> dict[str, Any]:
        return {"estimate": self.estimate}

    def _heir(self, entities: Entities, rng: np.random.Generator, left: int | None) -> Strategy:
        """Return the strategy that learns how choices depend on the centres."""
        seed = int(rng.integers(2**31))
        strategy = choice_strategy(entities, self.n_clusters, np.random.default_rng(seed))
        strategy.budget = None if left is None else left - reserve(left)
        return strategy

    @property
    def assumption_(self) -> Assumption | None:
        """Whether behaviour depends on where the centres stand, by answers at random placements.

        A fit with 4,000 questions or more asks for these first; None if nobody was asked.
        """
        study = self._begun()
        own = getattr(study.strategy, "assumption", None)
        return own if own is not None else study.assumption

    @property
    def handed_over_(self) -> bool:
        """Whether a model of choices has taken over, because a table would be wrong."""
        return isinstance(self._begun().strategy, StagedStrategy)

    def regret(self) -> float:
        """Return by what share prescribing by what is known may cost more than knowing all.

        It is an expectation over what the truth may be, given the answers so far. NaN with
        ``estimate="costs"``, and where a model of choices has taken over.
        """
        strategy = self._begun().strategy
        return strategy.regret() if isinstance(strategy, CountingStrategy) else math.nan

    def _notes(self) -> list[str]:
        found = self.assumption_
        if not self.handed_over_ or found is None:
            return []
        return [
            "Behaviour depends on where the centres stand: at random placements it went with how "
            f"near the centres were (chance {found.p_value:.1g}, {found.n_answers} answers). A "
            "table per entity cannot learn that, so a model of choices has learned instead, as "
            "ChoiceClustering does."
        ]
