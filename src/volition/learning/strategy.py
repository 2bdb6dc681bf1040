"""What a study holds to learn with: a strategy decides what to ask and what to make of answers."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from volition.core.autonomy import Autonomy
from volition.core.kernels.blocks import threads_for
from volition.core.problem import BLOCK_ROWS, Problem
from volition.core.validation import FloatArray
from volition.io.serialization import registered
from volition.learning.drift.detector import Change
from volition.learning.drift.watch import Watch
from volition.learning.entities import Entities
from volition.learning.ledger import Asked
from volition.learning.monitor import Monitor
from volition.populations.answers import IntArray

#: rows that a model is asked about at a time
ROWS = 16_384


class Stop(Enum):
    """Why a fit ends, where it is not for what was learned."""

    BUDGET = "as many questions were asked as a fit may ask"


class Questions(NamedTuple):
    """Prescriptions to try."""

    prescribed: IntArray
    propensity: Any
    #: whether each is the best one known
    greedy: Any
    #: (K, d), or (m, K, d) where each question has its own
    centers: FloatArray


@registered
class Tally(NamedTuple):
    """Questions and answers so far."""

    asked: int = 0
    answered: int = 0
    repeated: int = 0


@registered
@dataclass(frozen=True)
class Answers:
    """Answers to learn from, each of them once."""

    asked: Asked
    #: cluster that was used; -1 where that was not told
    realized: IntArray
    #: what it cost; NaN where that was not told
    cost: FloatArray
    #: (K, d), or (m, K, d)
    centers: FloatArray

    def __len__(self) -> int:
        return len(self.cost)

    @property
    def sets(self) -> FloatArray:
        """The centres of each answer, (m, K, d)."""
        return np.broadcast_to(self.centers, (len(self), *self.centers.shape[-2:]))

    def take(self, index: Any) -> Answers:
        """Return some of the answers."""
        some = self.centers if self.centers.ndim == 2 else self.centers[index]
        return Answers(self.asked.take(index), self.realized[index], self.cost[index], some)


class Strategy(ABC):
    """Decides where to ask, what to prescribe, what to learn, and when to stop.

    A study works on a copy while it learns and keeps it only if nothing failed. So `learn` may
    replace attributes, but must not change arrays or containers in place unless `copied` copies
    them or `undo` puts them back. What `choose` counts belongs to both: questions that are asked
    meanwhile were asked.

    Attributes
    ----------
    centers, labels, distortion : array, array, float
        The plan as it stands, and what it costs as far as is known. Labels are -1 for entities
        that have left.
    beta : float
        How sharply prescriptions follow costs.
    budget : int or None
        Questions that learning may take; None for as many as it needs.
    begun_at : int
        Questions that others had asked before this one took over.
    held : bool
        Whether the centres stand where they are: nothing else is shown, and nothing moves.
    finished : str or None
        Why there is no more to learn, where that is so.
    scale, cost_unit : float
        The data's spread, and a cost of the usual size.
    """

    #: attributes that a file keeps
    saved: ClassVar[tuple[str, ...]] = (
        "centers", "labels", "distortion", "beta", "budget", "begun_at", "held",
    )  # fmt: skip
    #: whether costs alone are not enough
    needs_realized = False
    #: whether each question comes with its own centres
    own_centers = True
    #: share of the data's spread by which centres move to become others, of unknown cost
    jump = 0.05

    centers: FloatArray
    labels: IntArray
    distortion: float
    beta: float

    def __init__(
        self, entities: Entities, n_clusters: int, exploration: float, rng: np.random.Generator
    ) -> None:
        self.entities, self.n_clusters, self.exploration = entities, n_clusters, exploration
        self.rng = rng
        self.monitor = Monitor()
        self.tally = Tally()
        self.budget: int | None = None
        self.begun_at = 0
        self.held = False
        self.finished: str | None = None
        base = entities.problem()
        self.scale, self.cost_unit = base.scale, base.cost_scale
        self.watch = Watch(n_clusters, self.cost_unit)
        self.centers = np.repeat(base.mean_center().astype(np.float64), n_clusters, axis=0)

    # -- the plan ---------------------------------------------------------------------------------

    def place(self, centers: FloatArray) -> None:
        """Put the centres here; what others have cost is not what these do."""
        if np.abs(centers - self.centers).max() > self.jump * self.scale:
            self.monitor.forget_costs()
        self.centers = np.array(centers, dtype=np.float64)

    def hold(self, centers: FloatArray) -> None:
        """Let the centres stand here until they are moved."""
        if centers.shape != self.centers.shape:
            raise ValueError(
                f"centers has shape {centers.shape}, but {self.centers.shape} is expected."
            )
        self.held = True
        self.place(centers)
        self.monitor.forget_costs()
        self.relabel()

    def proposed(self) -> tuple[FloatArray, IntArray, float]:
        """Return better centres for what is known, with labels and what they are believed to cost.

        Nothing moves.
        """
        raise ValueError("This learner moves its centres step by step; it cannot propose others.")

    def relabel(self) -> None:
        """Set labels and distortion from what is known, at the centres as they stand."""
        weight = self.entities.weight
        labels, total = np.full(len(self.entities), -1), 0.0
        for rows, expected in self.expected_here():
            labels[rows] = expected.argmin(1)
            total += float(weight[rows] @ expected.min(1))
        self.labels = labels
        self.distortion = total / max(float(weight.sum()), 1e-300)

    def expected_here(self, centers: Any = None) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yield numbers of entities that are here, and their expected costs, part by part."""
        here = self.entities.here
        for lo in range(0, len(here), ROWS):
            rows = here[lo : lo + ROWS]
            yield rows, self.expected_costs(self.entities.X[rows], rows, centers=centers)

    def expected_costs(
        self, X: FloatArray, rows: IntArray | None, covariates: Any = None, centers: Any = None
    ) -> FloatArray:
        """Return the expected cost of prescribing each centre, (m, K)."""
        Y = self.centers if centers is None else centers
        return self.problem(X, rows, covariates).expected_costs(Y)

    @property
    @abstractmethod
    def model(self) -> Autonomy | None:
        """What is known of how entities choose; None as long as nothing is."""

    @abstractmethod
    def problem(self, X: FloatArray, rows: IntArray | None, covariates: Any = None) -> Problem:
        """Return the problem of some entities; ``rows`` says which, if they are ours."""

    # -- asking -----------------------------------------------------------------------------------

    @abstractmethod
    def choose(self, entities: IntArray, blind: np.ndarray) -> Questions:
        """Return what to prescribe to entities; where ``blind``, drawn uniformly."""

    def draw_entities(self, n: int) -> IntArray:
        """Return whom to ask."""
        return self.entities.draw(n, self.rng)

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """How many questions a fit asks at a time."""

    @property
    @abstractmethod
    def limit(self) -> int:
        """How many questions a fit may ask at most, the trial at its end not included."""

    def begin_fit(self, total: int | None) -> None:
        """Prepare what only a fit does; ``total`` is what it may ask in all, if that is given."""

    def reason_to_stop(self) -> str | Stop | None:
        """Return why a fit should ask no more, or None if it should go on."""
        if self.finished is not None:
            return self.finished
        return Stop.BUDGET if self.tally.asked >= self.limit else None

    # -- learning ---------------------------------------------------------------------------------

    def take(self, answers: Answers) -> None:
        """Keep answers, before anything is made of them."""

    def noticed(self, answers: Answers) -> Change | None:
        """Return whether behaviour has changed: answers are compared with those to like questions.

        Shares of clusters change while centres move and prescriptions get better; how answers
        depend on questions does not.
        """
        when = self.tally.asked, self.tally.answered
        told = answers.asked, answers.realized, answers.cost, answers.sets
        return self.watch.add(*told, self.entities, when)

    def changed(self, change: Change) -> None:
        """Act on a change of behaviour."""

    @abstractmethod
    def learn(self, answers: Answers) -> None:
        """Take in answers."""

    @abstractmethod
    def finalize(self, thoroughly: bool) -> None:
        """Set the plan from what is known now; ``thoroughly`` at the end of a fit."""

    def admit(self, entities: Entities, first: int) -> None:
        """Take in that there are more entities, from number ``first`` on."""
        self.entities = entities
        self.relabel()

    def dismiss(self, entities: Entities) -> None:
        """Take in that some entities have left."""
        self.entities = entities
        self.relabel()

    def successor(self) -> Strategy | None:
        """Return who goes on from here, where answers show that this is the wrong strategy."""
        return None

    # -- results ----------------------------------------------------------------------------------

    @property
    def metric_holds(self) -> bool:
        """Whether being served costs what the metric says."""
        return True

    def as_now(self, centers: FloatArray) -> Any:
        """Return which centres, (K, d) or (m, K, d), count as those of the plan."""
        return np.abs(centers - self.centers).max((-2, -1)) <= self.jump * self.scale

    def recost(self, entities: IntArray, realized: IntArray) -> FloatArray | None:
        """Return costs of past answers at the centres as they stand, if that can be known."""
        return None

    def figures(self) -> dict[str, Any]:
        """Return what else belongs into a line of the history."""
        return {}

    def doubts(self) -> list[str]:
        """Return, in sentences, what a user should know of a fit that has ended."""
        return []

    def few_threads(self) -> Any:
        """Limit threads: steps on few entities are small, and threads wait for each other."""
        return threads_for(-(-len(self.entities) // BLOCK_ROWS))

    # -- copies and files -------------------------------------------------------------------------

    def copied(self) -> Self:
        """Return a copy on which `learn` can work while this one stays as it is."""
        other = copy.copy(self)
        other.monitor, other.watch = self.monitor.copied(), self.watch.copied()
        return other

    def undo(self) -> None:
        """Put back what `learn` has changed in place; called on a copy that is given up."""

    def state(self) -> dict[str, Any]:
        """Return all that a file needs to go on from here: plain values and arrays, nested."""
        # Questions that are asked later must not change it.
        kept = {name: copy.copy(getattr(self, name)) for name in self.saved}
        return kept | {"monitor": self.monitor.state(), "watch": self.watch.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a saved `state`."""
        for name in self.saved:
            setattr(self, name, state[name])
        self.monitor.restore(state["monitor"])
        self.watch.restore(state["watch"])
