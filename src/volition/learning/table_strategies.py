"""Case (C1): behaviour does not depend on the centres, and a table per entity is affordable.

Two strategies. `CountingStrategy` counts realised clusters: a count stays true when the centres
move, so the centres are annealed on what the counts say, at no cost in answers. `QLearning` is the
paper's: a table of expected costs, a Gibbs policy, stochastic gradient steps of the centres.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch

from volition.annealing.anneal import anneal
from volition.annealing.schedules import Geometric
from volition.annealing.stability import first_beta
from volition.core.autonomy import Autonomy, RowAutonomy
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.learning.drift.detector import Change
from volition.learning.entities import Entities
from volition.learning.models.cost_table import CostTable, RobbinsMonro
from volition.learning.models.counts import Counts
from volition.learning.policy import prescribe
from volition.learning.probe import EACH, Assumption, Probe
from volition.learning.strategy import Answers, Questions, Stop, Strategy
from volition.populations.answers import IntArray
from volition.solvers import Gradient

#: questions for each entity and cluster, unless told otherwise
PER_PAIR = 100
#: answers per cluster before a fit may end: doubt about everybody's choices is not in the regret
FEWEST = 500
#: the centres are annealed again when answers have grown by this factor; between, only improved
GROWTH = 1.5
#: largest table of counts, in numbers
MOST_NUMBERS = 200_000_000


class TableStrategy(Strategy):
    """What both tables share: all are asked at the centres of the plan.

    A fit first asks at random placements whether behaviour depends on the centres. If it does,
    ``heir`` makes the strategy that takes over, for the questions that are left.
    """

    saved = (*Strategy.saved, "betas", "assumption", "probe", "total")
    needs_realized = True  # each centre moves towards those that realise it
    own_centers = False
    jump = 0.2

    def __init__(
        self, entities: Entities, n_clusters: int, rng: np.random.Generator, *, exploration: float,
        on_change: str, batch_size: int | str, betas: tuple[float | None, float | None],
        heir: Callable[[Entities, np.random.Generator, int | None], Strategy],
    ) -> None:  # fmt: skip
        super().__init__(entities, n_clusters, exploration, rng)
        self.on_change, self._batch_size = on_change, batch_size
        base = entities.problem()
        low = first_beta(base) if betas[0] is None else betas[0]
        high = 4000 * low * n_clusters ** (2 / entities.n_features)
        high = high if betas[1] is None else betas[1]
        if not 0 < low <= high < math.inf:
            raise ValueError(f"beta_min={low!r} and beta_max={high!r} must be positive, in order.")
        self.betas = (float(low), float(high))
        self.beta = float(low)
        self._heir = heir
        self.probe: Probe | None = None
        self.total: int | None = None  # questions of the whole fit
        self.assumption: Assumption | None = None

    def begin_fit(self, total: int | None) -> None:
        self.total = total
        if self.held:
            return
        n, X = Probe.size(self.limit if total is None else total), self.entities.X
        distinct = np.unique(X[self.entities.here], axis=0)
        if n == 0 or self.n_clusters < 2 or len(distinct) < 2 * self.n_clusters:
            return
        placements = [
            distinct[self.rng.permutation(len(distinct))[: self.n_clusters]]
            for _ in range(n // EACH)
        ]
        self.probe = Probe.at(np.stack(placements), n)

    @property
    def _probing(self) -> bool:
        """Whether the next questions are about random placements."""
        if self.held or self.probe is None:
            return False
        return self.tally.asked < self.probe.n_questions

    @abstractmethod
    def expected(self, rows: Any, D: FloatArray) -> FloatArray:
        """Return the expected costs of some entities, (m, K)."""

    @abstractmethod
    def logits(self, rows: IntArray, D: FloatArray, q: FloatArray) -> FloatArray:
        """Return the logarithms of the policy, up to a constant for each entity."""

    def choose(self, entities: IntArray, blind: np.ndarray) -> Questions:
        n, K = len(entities), self.n_clusters
        if self.probe is not None and self._probing:
            drawn, (Y, _) = self.rng.integers(0, K, n), self.probe.place(self.tally.asked)
            return Questions(drawn, 1 / K, np.zeros(n, bool), Y)
        D = self.entities.distances(self.centers, entities)
        q = self.expected(entities, D)
        best = q.argmin(1)
        pi = np.exp(self.logits(entities, D, q))
        pi /= pi.sum(1, keepdims=True)
        drawn, chance = prescribe(pi, blind, self.exploration, self.rng)
        return Questions(drawn, chance, drawn == best, self.centers.copy())

    @property
    def batch_size(self) -> int:
        auto = self._batch_size == "auto"
        size = max(64, min(4096, len(self.entities))) if auto else int(self._batch_size)
        if self.probe is not None and self._probing:
            return min(size, self.probe.place(self.tally.asked)[1])
        return size

    @property
    def limit(self) -> int:
        if self.budget is None:
            return PER_PAIR * len(self.entities) * self.n_clusters
        return self.budget

    def learn(self, answers: Answers) -> None:
        if self.probe is not None and self.assumption is None:
            asked = answers.asked
            told = asked.entities, asked.prescribed, answers.realized
            self.probe = self.probe.added(self.entities, *told, answers.centers)
            if not self._probing:
                self.assumption = self.probe.result()

    def as_now(self, centers: FloatArray) -> bool:
        return True  # costs are worked out for the centres as they stand

    def successor(self) -> Strategy | None:
        if self.held or self.assumption is None or not self.assumption.failed:
            return None
        left = None if self.total is None else self.total - self.tally.asked
        return self._heir(self.entities, self.rng, left)

    def recost(self, entities: IntArray, realized: IntArray) -> FloatArray:
        return self.entities.distances(self.centers, entities)[np.arange(len(entities)), realized]

    def relabel(self) -> None:
        q = self.expected(slice(None), self.entities.distances(self.centers))
        weight = self.entities.weight
        self.labels = np.where(weight > 0, q.argmin(1), -1)
        self.distortion = float(weight @ q.min(1) / max(weight.sum(), 1e-300))

    def expected_costs(
        self, X: FloatArray, rows: IntArray | None, covariates: Any = None, centers: Any = None
    ) -> FloatArray:
        if rows is None:
            return super().expected_costs(X, None, covariates, centers)
        Y = self.centers if centers is None else centers
        return self.expected(rows, self.entities.distances(Y, rows))


class CountingStrategy(TableStrategy):
    """Count realised clusters, and anneal the centres on what the counts say.

    Parameters
    ----------
    tol : float
        Share of the cost by which prescribing by the counts may be believed to be too dear.
    """

    def __init__(
        self, entities: Entities, n_clusters: int, rng: np.random.Generator, *, tol: float,
        forgetting: float, **common: Any,
    ) -> None:  # fmt: skip
        n, K = len(entities), n_clusters
        if n * K * K > MOST_NUMBERS:
            raise ValueError(
                f"A table of choices for {n} entities and {K} clusters needs {n * K * K} "
                f"numbers, more than {MOST_NUMBERS}; use estimate='costs'."
            )
        super().__init__(entities, n_clusters, rng, **common)
        self.tol = tol
        self.counts = Counts(n, K, forgetting)
        self._solved = 0.0  # answers when the centres were last annealed
        self._next_check = FEWEST * K
        self._since_step = 0
        self.relabel()

    def expected(self, rows: Any, D: FloatArray) -> FloatArray:
        return self.counts.expected(rows, D)

    def logits(self, rows: IntArray, D: FloatArray, q: FloatArray) -> FloatArray:
        # About the chance that j is best after all, flattened: a Gibbs policy in the square of
        # the excess, as sharp as the knowledge of each entity.
        everyone, best = np.arange(len(q)), q.argmin(1)
        excess = q - q[everyone, best][:, None]
        doubt = self.counts.doubt(rows, D, self.counts.pooling) ** 2
        doubt += doubt[everyone, best][:, None]
        return -0.25 * excess**2 / np.maximum(doubt, 1e-300)

    # -- learning ---------------------------------------------------------------------------------

    def learn(self, answers: Answers) -> None:
        super().learn(answers)
        asked = answers.asked
        self.counts.add(asked.entities, asked.prescribed, answers.realized)
        self._since_step += len(answers)
        known = self.counts.total
        # Steps that more answers would hardly change are not worth their time.
        due = self._since_step >= max(50, len(self.entities) // 10, 0.02 * known)
        if due and known >= GROWTH * self._solved:
            self._anneal(known)
        elif due:
            self._improve(5)

    def _believed(self) -> Problem:
        here, entities = self.entities.here, self.entities
        return Problem(
            entities.X[here],
            sample_weight=entities.weight[here],
            cost=entities.cost,
            autonomy=RowAutonomy(self.counts.p(here)),
        )

    def _anneal(self, known: float) -> None:
        """Find centres for what is known now, from a single place on."""
        self._solved, self._since_step = known, 0
        believed = self._believed()
        result = anneal(
            believed, self.n_clusters, solver=Gradient(), schedule=Geometric(tau=1.3), tol=1e-5,
            random_state=0, predict=False,
        )  # fmt: skip
        # Another placement, as good or hardly better, is not worth moving everything.
        self._move_to(believed, result.centers, gain=1e-3)
        self.beta = float(result.beta)
        self._improve(20)

    def _improve(self, n_iter: int) -> None:
        self._since_step = 0
        believed = self._believed()
        beta = max(self.beta, self.betas[0])
        start = believed.centers(self.centers)
        solution = Gradient().solve(believed, start, beta, max_iter=n_iter, tol=1e-6)
        self._move_to(believed, solution.centers.cpu().numpy())
        self.relabel()

    def _move_to(self, believed: Problem, centers: FloatArray, gain: float = 0.0) -> None:
        """Take new centres if they are better for what is known, by more than a share."""
        if self.held:
            return
        if believed.distortion(centers) >= (1 - gain) * believed.distortion(self.centers):
            return
        self.place(centers)

    def proposed(self) -> tuple[FloatArray, IntArray, float]:
        other = self.copied()
        other.held = False
        other._anneal(self.counts.total)
        return other.centers, other.labels, other.distortion

    def changed(self, change: Change) -> None:
        if self.on_change == "report":
            return
        self.counts.faded()
        self._solved = 0.0
        self._next_check = self.tally.answered + FEWEST * self.n_clusters

    def reason_to_stop(self) -> str | Stop | None:
        if (why := super().reason_to_stop()) is not None or self.tally.answered < self._next_check:
            return why
        if self.regret() < self.tol:
            return f"expected regret below tol={self.tol:g}"
        self._next_check = math.ceil(1.05 * self.tally.answered)
        return None

    def regret(self) -> float:
        """Return by what share prescribing by what is known may cost more than knowing all."""
        return self.counts.regret(self.entities.distances(self.centers), self.entities.weight)

    def finalize(self, thoroughly: bool) -> None:
        if self.tally.answered and thoroughly:
            self._anneal(self.counts.total)
        self.relabel()

    def admit(self, entities: Entities, first: int) -> None:
        self.counts.grown(len(entities) - first)
        super().admit(entities, first)

    # -- results ----------------------------------------------------------------------------------

    @property
    def model(self) -> Autonomy:
        return RowAutonomy(self.counts.p(slice(None)))

    def problem(self, X: FloatArray, rows: IntArray | None, covariates: Any = None) -> Problem:
        # Of others, only what everybody does is known.
        p = (
            self.counts.p(rows)
            if rows is not None
            else self.counts.pooled()[None].repeat(len(X), 0)
        )
        return Problem(X, cost=self.entities.cost, autonomy=RowAutonomy(p))

    # -- copies and files -------------------------------------------------------------------------

    def copied(self) -> Self:
        other = super().copied()
        other.counts = self.counts.copied()
        return other

    def undo(self) -> None:
        self.counts.undo()

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "counts": self.counts.state(),
            "solved": self._solved,
            "next_check": self._next_check,
            "since_step": self._since_step,
        }

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        vars(self.counts).update(state["counts"])
        self._solved, self._next_check = state["solved"], state["next_check"]
        self._since_step = state["since_step"]


class QLearning(TableStrategy):
    """The paper's tabular learner: expected costs, a Gibbs policy, centres that follow."""

    def __init__(
        self, entities: Entities, n_clusters: int, rng: np.random.Generator, *, forgetting: float,
        q_step: RobbinsMonro, center_step: RobbinsMonro, **common: Any,
    ) -> None:  # fmt: skip
        super().__init__(entities, n_clusters, rng, **common)
        self.costs = CostTable(len(entities), n_clusters, q_step, forgetting)
        self.center_step = center_step
        self._share = np.full(n_clusters, 1 / n_clusters)
        self._batches_at_beta = 0
        self.relabel()

    def expected(self, rows: Any, D: FloatArray) -> FloatArray:
        return self.costs.expected(rows, D)

    def logits(self, rows: IntArray, D: FloatArray, q: FloatArray) -> FloatArray:
        return -self.beta * (q - q.min(1, keepdims=True))

    def learn(self, answers: Answers) -> None:
        super().learn(answers)
        i, j, k = answers.asked.entities, answers.asked.prescribed, answers.realized
        D, rows = self.entities.distances(self.centers, i), np.arange(len(answers))
        # Costs are those of the centres as they stand now.
        self.costs.add(i, j, D[rows, k] - D[rows, j])
        self._move_centers(i, k, answers.asked.explored == 0)
        progress = min(1.0, self.tally.asked / self.limit)
        low, high = self.betas
        beta = low * (high / low) ** min(1.0, progress / 0.9)
        if beta > 1.02 * self.beta:
            self.beta, self._batches_at_beta = beta, 0
            self.monitor.stale = True  # costs so far are of prescriptions made more blindly
        self.relabel()

    def _move_centers(self, i: IntArray, realized: IntArray, on_policy: np.ndarray) -> None:
        """Step towards those who realised each centre, by its running share of them."""
        i, k = i[on_policy], realized[on_policy]
        if len(i) == 0 or self.held:
            return
        self._batches_at_beta += 1
        alpha = self.center_step(self._batches_at_beta)
        counts = np.bincount(k, minlength=self.n_clusters) / len(i)
        self._share = self._share + 0.1 * (counts - self._share)
        x, y = torch.from_numpy(self.entities.X[i]), torch.from_numpy(self.centers.copy())
        y.requires_grad_()
        cost = self.entities.cost
        total = cost.each(x, y[torch.from_numpy(k)][:, None]).sum() / len(i)
        (gradient,) = torch.autograd.grad(total, y)
        pull = gradient.numpy() / (2 * np.maximum(self._share, 1e-3)[:, None])
        if not cost.mean_is_optimal:
            # Costs that are not squared: a step as long as the pull would be for squared ones.
            pull *= self.scale / max(float(np.abs(pull).max()), 1e-300) * 0.1
        shake = 1e-3 * self.scale * math.sqrt(self.betas[0] / self.beta)
        moved = self.centers - alpha * pull
        self.centers = moved + shake * self.rng.standard_normal(moved.shape)

    def changed(self, change: Change) -> None:
        if self.on_change != "report":
            self.costs.faded()

    def finalize(self, thoroughly: bool) -> None:
        self.relabel()

    def admit(self, entities: Entities, first: int) -> None:
        self.costs.grown(len(entities) - first)
        super().admit(entities, first)

    @property
    def model(self) -> None:
        return None  # a table of costs does not know which clusters are used

    def problem(self, X: FloatArray, rows: IntArray | None, covariates: Any = None) -> Problem:
        return Problem(X, cost=self.entities.cost)

    def copied(self) -> Self:
        other = super().copied()
        other.costs = copy.copy(self.costs)
        return other

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "costs": self.costs.state(),
            "share": self._share,
            "batches_at_beta": self._batches_at_beta,
        }

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        vars(self.costs).update(state["costs"])
        self._share, self._batches_at_beta = state["share"], state["batches_at_beta"]
