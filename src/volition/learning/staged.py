"""Learning in stages: ask at many sets of centres, learn how entities respond, move the centres.

The model of responses holds for any centres. Each stage asks at centres that are spread over the
data or around the best ones known, fits the model to all answers, and searches for better centres
on the model, which costs no answers. What the model is depends on what answers tell.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from volition.choices import Choices
from volition.core.autonomy import Autonomy, Chunk
from volition.core.deadline import NEVER, Deadline
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.learning.drift.detector import Change
from volition.learning.entities import Entities
from volition.learning.layouts import Showing, next_layout
from volition.learning.memory import Memory
from volition.learning.models.response import ResponseModel, first_goal
from volition.learning.models.service import FEWEST_LAYOUTS, ServiceModel
from volition.learning.models.terms import TermsModel
from volition.learning.networks.network import ADENetwork
from volition.learning.networks.recipe import PRESETS
from volition.learning.policy import gibbs, prescribe
from volition.learning.searching import Finder
from volition.learning.strategy import Answers, Questions, Strategy
from volition.populations.answers import IntArray

#: questions at a time
BATCH = 512
#: beta that means a hard policy, times the cost of a single centre
HARD = 1e4
#: questions that choices ask for at most, and the share that is prescribed blindly
MOST, BLIND = 50_000, 0.3
#: answers after which it is decided what they tell
DECIDED_BY = 256
#: share of costs that must be those of a centre for the metric to be the right one
EXPLAINED = 0.99
#: answers about the plan below which nothing is said of whether it costs what is believed
FEWEST_SEEN = 20
OUT_OF_TIME = "The time budget ended the search for centres: better ones may exist."


class StagedStrategy(Strategy):
    """Ask, fit a model of responses, search for centres on it, ask again.

    Parameters
    ----------
    entities : Entities
    n_clusters : int
    rng : Generator
    exploration : float
        Share of prescriptions drawn blindly.
    tol : float
        Share by which centres must improve from one stage to the next.
    most : int
        Questions that are asked at most, unless a budget says otherwise.
    terms : callable
        Makes the model for answers that tell which cluster was used.
    service : callable of entities and generator
        Makes the model for costs that the metric does not explain.
    expected : callable of this strategy, optional
        Makes the strategy for costs of which nothing is known but their means; None if costs
        cannot be negative.
    wanted : {"auto", "choices", "service"}
        Which model it is to be; "auto" looks at the first answers.
    needs_realized : bool
        Whether costs alone are not enough.
    """

    saved = (
        *Strategy.saved, "stage", "told", "finished", "scale", "cost_unit", "region", "wanted",
        "memory", "showing",
    )  # fmt: skip

    def __init__(
        self, entities: Entities, n_clusters: int, rng: np.random.Generator, *, exploration: float,
        tol: float, most: int, terms: Callable[[], TermsModel],
        service: Callable[[Entities, np.random.Generator], ServiceModel],
        expected: Callable[[StagedStrategy], Strategy] | None = None, wanted: str = "auto",
        needs_realized: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(entities, n_clusters, exploration, rng)
        self.tol, self.most, self.wanted = tol, most, wanted
        self._terms, self._service, self._expected = terms, service, expected
        self.needs_realized = needs_realized
        self.showing = Showing()
        self.memory = Memory.empty(n_clusters, entities.n_features, self.cost_unit)
        self.beta = HARD / self.cost_unit
        self.stage, self.told = 0, 0
        self.region: FloatArray | None = None
        self.responses: ResponseModel | None = None
        self._outgrown = False  # costs are of another kind
        if wanted != "auto":
            self.responses = self._new_model(learns_costs=wanted == "service")
        self.relabel()

    def _new_model(self, learns_costs: bool) -> ResponseModel:
        return self._service(self.entities, self.rng) if learns_costs else self._terms()

    @property
    def model(self) -> Autonomy | None:
        return None if self.responses is None else self.responses.autonomy

    @property
    def head(self) -> str:
        """What is learned, as users name it."""
        return "undecided" if self.responses is None else self.responses.head

    @property
    def network(self) -> Any:
        """The network as trained so far; None where terms suffice."""
        return None if self.responses is None else self.responses.trained

    # -- asking -----------------------------------------------------------------------------------

    def choose(self, entities: IntArray, blind: np.ndarray) -> Questions:
        sets, which, exact = self.showing.take(len(entities), self._per_layout, self._next_set)
        q: FloatArray = np.zeros((len(entities), self.n_clusters))
        pi: FloatArray = np.full(q.shape, 1 / self.n_clusters)
        if self.model is not None:
            q = self._costs_at(entities, which, sets)
            pi = gibbs(q, math.inf)
        drawn, chance = prescribe(pi, blind, self.exploration, self.rng)
        greedy = (self.model is not None) & exact & (drawn == q.argmin(1))
        return Questions(drawn, chance, greedy, sets[which])

    def _next_set(self) -> tuple[FloatArray, bool]:
        if self.held:
            return self.centers.copy(), True
        return next_layout(
            self.centers, self.entities, self.scale, self.rng,
            roam=self.stage == 0, settled=self.finished is not None,
        )  # fmt: skip

    @property
    def _per_layout(self) -> int:
        """Questions about one set of centres."""
        responses = self.responses
        each = 64 if responses is None else responses.per_layout
        # Few answers are to be about many places, also before it is known what they tell.
        many = not self.needs_realized if responses is None else responses.learns_costs
        return max(1, min(each, self.goal // FEWEST_LAYOUTS)) if many else each

    def _costs_at(self, entities: IntArray, which: IntArray, sets: FloatArray) -> FloatArray:
        """Return expected costs (n, K) as the model sees them, each question at its centres."""
        model, out = self.model, np.empty((len(entities), self.n_clusters))
        assert model is not None
        none = torch.zeros(self.entities.n_features, dtype=torch.float64)
        with torch.no_grad():
            for number, Y in enumerate(sets):
                rows = np.flatnonzero(which == number)
                if len(rows) == 0:
                    continue
                x, y = torch.from_numpy(self.entities.X[entities[rows]]), torch.from_numpy(Y)
                D = self.entities.cost.pairwise(x, y)
                chunk = Chunk(x, none, D, entities[rows], 0)
                law = model.transition(chunk, y, self.entities.cost)
                out[rows] = law.expected(D).numpy()
        return out

    @property
    def goal(self) -> int:
        """Answers that the present stage waits for."""
        if self.responses is None:
            return first_goal(self.budget)
        return self.responses.goal(self.stage, self.budget)

    @property
    def batch_size(self) -> int:
        wanted = max(64, self.goal - self.told)
        if self.responses is None and not self.needs_realized:
            wanted = min(wanted, max(64, DECIDED_BY - len(self.memory)))
        return min(BATCH, wanted)

    @property
    def limit(self) -> int:
        return self.begun_at + (self.most if self.budget is None else self.budget)

    # -- learning ---------------------------------------------------------------------------------

    def take(self, answers: Answers) -> None:
        self.memory = self.memory.added(answers, self.entities)
        self.told += len(answers)

    def learn(self, answers: Answers) -> None:
        if self.responses is not None and self.responses.from_log:
            self.responses = self.responses.copied()
            self.responses.from_log = False  # from now on there is more than the log
        if len(self.memory) >= min(DECIDED_BY, self.goal) or self.needs_realized:
            self._check_wanted()
            if self.responses is None:
                self._decide()
        while self.responses is not None and not self._outgrown and self.told >= self.goal:
            goal = self.goal  # another model may have another one
            if self.wanted == "auto":
                self._decide()
                if self._outgrown:
                    return
            self.told -= goal
            self._explore()
            self.stage += 1
            self.relabel()

    def _check_wanted(self) -> None:
        """Raise one sentence if answers do not tell what is wanted."""
        decoded, negative = self.memory.share_decoded, self.memory.share_negative
        if self.wanted == "choices" and decoded < EXPLAINED:
            raise ValueError(
                f"Of the costs told so far {100 * (1 - decoded):.1f} % are not those of any "
                "centre, so that they do not tell choices; use head='service', or give the "
                "metric in which costs are measured."
            )
        if self.wanted == "service" and negative > 1 - EXPLAINED:
            raise ValueError(
                f"Of the costs told so far {100 * negative:.1f} % are negative; head='costs' "
                "learns such costs."
            )

    def _decide(self, ending: bool = False) -> None:
        """Decide what to learn, by what the answers so far tell."""
        memory = self.memory
        learns_costs = False
        if memory.share_explained < EXPLAINED:
            if memory.share_negative <= 1 - EXPLAINED:
                learns_costs = True
            elif self._expected is not None and not self.held:
                # Expected costs take so many answers that nothing is changed to them at the end.
                self._outgrown = not ending
                return
        if self.responses is None or self.responses.learns_costs != learns_costs:
            self.responses = self._new_model(learns_costs)
            self.stage = 0 if self.model is None else self.stage

    def successor(self) -> Strategy | None:
        if not self._outgrown or self._expected is None:
            return None
        heir = self._expected(self)
        if self.budget is not None:
            heir.budget = max(1, self.limit - self.tally.asked)
        return heir

    def _explore(self) -> None:
        """End a stage: fit the model to all answers, and move the centres to where it says."""
        assert self.responses is not None
        self.responses = self.responses.copied()
        self.responses.fit(self.memory, self.entities, self.stage, self.rng)
        if not self.held:
            self._search()

    def learn_log(self, choices: Choices, region: FloatArray, deadline: Deadline = NEVER) -> None:
        """Learn from recorded choices, and take the centres that the model says.

        The deadline ends the search for centres, with the best so far.
        """
        self.memory = Memory.of_choices(choices, self.cost_unit)
        self.centers, self.stage, self.region = choices.layouts[-1].copy(), 1, region
        self.responses = self._terms()
        self.responses.fit(self.memory, self.entities, self.stage, self.rng)
        finder = self._finder(long=True, deadline=deadline)
        self._search(finder)
        self.finished = "the log is at its end"
        if finder.out_of_time:
            self.finished = "the time budget is spent"
            warnings.warn(OUT_OF_TIME, UserWarning, stacklevel=4)
        self.relabel()

    def proposed(self) -> tuple[FloatArray, IntArray, float]:
        if self.model is None or self.responses is None:
            raise ValueError(
                f"{len(self.memory)} answers are too few to propose a move, which takes a few "
                "hundred. Tell more, and learn from them."
            )
        other = self.copied()
        other.held, other.stage = False, max(1, self.stage)
        other.responses = self.responses.copied()
        other._search(other._finder(long=True))
        other.relabel()
        return other.centers, other.labels, other.distortion

    def _finder(self, long: bool = False, deadline: Deadline = NEVER) -> Finder:
        return Finder(
            self.entities, self.n_clusters, self.rng, self.stage, self.centers, long, self.region,
            deadline,
        )  # fmt: skip

    def _search(self, finder: Finder | None = None) -> None:
        """Put the centres where the model says, unless those at hand are as good."""
        responses = self.responses
        assert responses is not None
        Y = responses.search(finder or self._finder())
        assert responses.judge is not None
        assert self.model is not None
        problem = self._finder().problem(responses.judge)
        if self.stage and self.model.interchangeable:
            # Clusters keep their numbers: a search knows nothing of them.
            Y = Y[linear_sum_assignment(cdist(self.centers, Y))[1]]
        old = problem.distortion(self.centers) if self.stage else math.inf
        new = problem.distortion(Y)
        if old - new < self.tol * new and self._confirmed():
            self.finished = f"centres no longer improve by more than tol={self.tol:g}"
        self.place(Y if new < old else self.centers)

    def _confirmed(self) -> bool:
        """Whether the centres have cost no more than believed: a search goes where a network errs.

        Terms need no such proof.
        """
        if self.metric_holds:
            return True
        assert self.model is not None
        seen = self.monitor.distortion(self.recost)
        believed = self._finder().problem(self.model).distortion(self.centers)
        return seen.n_answers >= FEWEST_SEEN and seen.low <= believed

    def place(self, centers: FloatArray) -> None:
        super().place(centers)
        self.showing = Showing()

    @property
    def metric_holds(self) -> bool:
        return self.responses is None or not self.responses.learns_costs

    def changed(self, change: Change) -> None:
        """Begin again at the present centres: what was chosen before no longer tells."""
        self.memory = self.memory.latest(change.n_after)
        self.stage, self.told, self.finished = 0, len(self.memory), None
        if self.responses is not None:
            self.responses = self.responses.copied()
            self.responses.forget()

    def finalize(self, thoroughly: bool) -> None:
        if thoroughly and self.told and self.finished is None and len(self.memory):
            self._check_wanted()
            if self.wanted == "auto":
                self._decide(ending=True)
            self.stage = max(1, self.stage) if self.model is not None else self.stage
            if self.responses is not None:
                self._explore()
        self.relabel()

    def doubts(self) -> list[str]:
        memory = self.memory
        if not self.metric_holds or memory.share_explained >= EXPLAINED:
            return []
        negative = 100 * memory.share_negative
        what = f"{negative:.1f} % are negative" if negative else "many are not those of any centre"
        return [
            f"Of the costs told {what}, so that nothing was learned from them: distortion_ is what "
            "choices cost by the metric. Go by distortion_estimate(), or, if costs have a lower "
            "end, add a constant that makes them positive: then they are learned as well."
        ]

    # -- results ----------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        # As long as there is no model the distortion is not one that was learned.
        known = {} if self.model is not None else {"distortion": math.nan}
        loss = math.nan if self.responses is None else self.responses.loss
        return {**known, "loss": loss, "stage": self.stage}

    def problem(self, X: FloatArray, rows: IntArray | None, covariates: Any = None) -> Problem:
        model = self.model
        if model is not None and rows is not None:
            model = model.subset(rows)
        elif model is not None:
            assert self.responses is not None
            given = None if covariates is None else self.entities.covariates_of(covariates, len(X))
            model = self.responses.for_others(len(X), given)
        if model is not None:
            model.check(self.n_clusters, len(X))
        return Problem(X, cost=self.entities.cost, autonomy=model)

    def admit(self, entities: Entities, first: int) -> None:
        if self.responses is not None:
            self.responses = self.responses.copied()
            self.responses.admit(entities, first)
        super().admit(entities, first)

    # -- copies and files -------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        responses = self.responses
        return super().state() | {
            "learns_costs": None if responses is None else responses.learns_costs,
            "responses": None if responses is None else responses.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        if state["responses"] is not None:
            self.responses = self._new_model(state["learns_costs"])
            self.responses.restore(state["responses"], self.entities)


def choice_strategy(
    entities: Entities, n_clusters: int, rng: np.random.Generator, *, family: Any = "auto",
    network: bool = True, given: ADENetwork | None = None, tol: float = 1e-3,
    exploration: float = BLIND, from_log: bool = False,
) -> StagedStrategy:  # fmt: skip
    """Return the strategy of `ChoiceClustering`."""
    recipe = PRESETS["cpu"]
    return StagedStrategy(
        entities,
        n_clusters,
        rng,
        exploration=exploration,
        tol=tol,
        most=MOST,
        terms=lambda: TermsModel(family, network, recipe, given, from_log),
        service=lambda now, rng: ServiceModel(recipe, now, n_clusters, int(rng.integers(2**31))),
        needs_realized=True,
    )
