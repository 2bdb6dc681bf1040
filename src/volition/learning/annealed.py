"""Algorithm 2 as published: a network of expected costs, annealed over beta.

Nothing needs to be known about costs, which may be negative. The network learns by squared errors
at perturbed centres; the centres follow its free energy down while beta rises. Several sets
of centres can be annealed side by side on one network; in the end the one that cost least is taken.
"""

from __future__ import annotations

import copy
import math
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Any, Self

import numpy as np
import torch

from volition.annealing.stability import first_beta
from volition.core.autonomy import Autonomy
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.learning.drift.detector import Change
from volition.learning.entities import Entities
from volition.learning.layouts import WATCHED, Showing, within
from volition.learning.memory import Memory
from volition.learning.networks.algorithm2 import (
    average_repeats,
    beta_ladder,
    cheapest_replica,
    distinct_replicas,
    move_centers,
    update_running_means,
)
from volition.learning.networks.autonomy import NetworkAutonomy, PlannedAutonomy
from volition.learning.networks.network import ADENetwork
from volition.learning.networks.recipe import Recipe
from volition.learning.networks.replay import AnswerGroups, Replay, distinct_sets
from volition.learning.networks.tilt import ErrorSums, Tilt
from volition.learning.networks.training import Trainer
from volition.learning.networks.training_data import TrainingData, training_batch
from volition.learning.networks.units import Units
from volition.learning.policy import gibbs, prescribe
from volition.learning.searching import Finder
from volition.learning.strategy import ROWS, Answers, Questions, Strategy
from volition.populations.answers import IntArray
from volition.solvers.sampling import canonical_order, thin

#: entities by which centres are moved, at most
MOVED_BY = 3000
#: share of the data's range by which centres may be outside of it, unless as published
BOX = 0.1
#: by how many units all costs are off the known ones to be so in common
MUCH = 1.0
#: hidden numbers of a step from which more than one thread pays
LARGE_STEP = 1_000_000
#: answers by which replicas that differ are compared, each; share of a given budget for that
JUDGED, JUDGING = 20_000, 0.1
#: share of a given budget for all refinements
REFINING = 0.15
#: perturbation of the centres in refinements, as a share of the distance between centres that fill
#: the data's range: costs bend, and a wider one tells the slope of somewhere else
REFINED_BY = 0.04
#: how far a correction is believed, in perturbations
BELIEVED = 10.0
#: questions beyond what the betas need, unless a budget says otherwise
SPARE = 100_000
#: answers below which expected costs are hardly more than guessed
FEWEST_EXPECTED = 50_000


class Phase(Enum):
    """What answers are for."""

    ANNEAL = "to train the network, beta by beta"
    JUDGE = "to compare the sets of centres"
    REFINE = "to correct the slope by which the centres move"
    SETTLE = "to refine the centres at the last beta"


class AnnealedStrategy(Strategy):
    """Expected costs by a network, and centres that follow its free energy down.

    Parameters
    ----------
    recipe : Recipe
        All hyperparameters of Algorithm 2.
    given : ADENetwork, optional
        A network of expected costs to start from.
    device : str
    unasked : bool
        Whether nobody has asked for this: costs turned out to be negative.
    """

    head = "costs"
    saved = (
        *Strategy.saved, "stage", "told", "loss", "finished", "replicas", "unasked", "showing",
    )  # fmt: skip

    def __init__(
        self, entities: Entities, n_clusters: int, rng: np.random.Generator, *, recipe: Recipe,
        given: ADENetwork | None = None, device: Any = "cpu", unasked: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(entities, n_clusters, recipe.exploration, rng)
        self.recipe, self.device, self.unasked = recipe, torch.device(device), unasked
        base = entities.problem()
        mean = self.centers[0]
        self.units = Units(mean, base.scale, base.cost_scale)
        if not recipe.standardize:
            self.units = Units(np.zeros(entities.n_features), 1.0, 1.0)
        self.betas = beta_ladder(recipe, first_beta(base), n_clusters, entities.n_features)
        self.beta = self.betas[0]
        noise = recipe.spread or 0.05 * self.scale
        shape = (recipe.replicas, n_clusters, entities.n_features)
        self.replicas = mean + noise * rng.standard_normal(shape)
        self.replay = self._empty_replay()
        self._means = np.zeros((len(entities), n_clusters)) if recipe.ema > 0 else None
        self.phase = Phase.ANNEAL
        self.stage = self.told = self._turn = 0
        self._debt, self.loss = 0.0, math.nan
        self._verdict = np.zeros((recipe.replicas, 3))
        self.tilt: Tilt | None = None
        self._round, self._errors = 0, ErrorSums.none(n_clusters * entities.n_features)
        self.showing = Showing()
        size = recipe.size() if given is None else given.size
        network = ADENetwork(entities.n_features, size, "costs", int(rng.integers(2**31)))
        if given is not None:
            network.load_state_dict(given.state_dict())
        network.units = self.units
        self.trainer = self._new_trainer(network)
        self._freeze()
        self.relabel()

    def _empty_replay(self) -> Replay:
        recipe, (K, d) = self.recipe, self.centers.shape
        return Replay(K, d, recipe.n_samples, recipe.replay * recipe.n_layouts)

    def _new_trainer(self, network: ADENetwork) -> Trainer:
        recipe, network = self.recipe, network.to(self.device).eval()
        return Trainer(
            network, recipe.learning_rate, recipe.weight_decay, recipe.clip, recipe.compile
        )

    def _freeze(self) -> None:
        network = copy.deepcopy(self.trainer.network).cpu()
        self.frozen = NetworkAutonomy(network, self.units, tilt=self.tilt)

    @property
    def network(self) -> ADENetwork:
        """The network as trained so far."""
        return self.trainer.network

    @property
    def model(self) -> Autonomy:
        return self.frozen

    def few_threads(self) -> AbstractContextManager[None]:
        recipe = self.recipe
        numbers = recipe.n_layouts * recipe.n_samples * recipe.hidden_dim * recipe.n_blocks
        return nullcontext() if numbers >= LARGE_STEP else super().few_threads()

    def hold(self, centers: FloatArray) -> None:
        raise ValueError(
            "The published algorithm (head='costs') learns by moving the centres; it cannot learn "
            "at centres that stand. Use head='choices' or 'service', or ChoiceClustering."
        )

    # -- asking -----------------------------------------------------------------------------------

    def draw_entities(self, n: int) -> IntArray:
        draws = self.recipe.n_draws
        return np.repeat(super().draw_entities(-(-n // draws)), draws)[:n]

    def choose(self, entities: IntArray, blind: np.ndarray) -> Questions:
        n, draws = len(entities), self.recipe.n_draws
        each = self.recipe.n_samples * draws
        sets, which, exact = self.showing.take(n, each, self._next_set)
        if self.phase is Phase.REFINE:  # what the plan costs nearby
            return Questions(self.labels[entities], 1.0, exact, sets[which])
        # Several draws of one pair are one question asked several times.
        first = np.arange(0, n, draws)
        if not np.array_equal(entities, np.repeat(entities[first], draws)[:n]):
            draws, first = 1, np.arange(n)  # somebody has named the entities
        q = self._costs_at(entities[first], which[first], sets)
        # Replicas are compared by the best that each can do, not by what exploring costs.
        judging = self.phase is Phase.JUDGE
        pi = gibbs(q, math.inf if judging else self.beta)
        blind = np.zeros_like(blind) if judging else blind
        drawn, chance = prescribe(pi, blind[first], self.exploration, self.rng)
        prescribed, best, chance = (np.repeat(z, draws)[:n] for z in (drawn, q.argmin(1), chance))
        greedy = exact & (prescribed == best)
        return Questions(prescribed, chance, greedy, sets[which])

    def _next_set(self) -> tuple[FloatArray, bool]:
        number = int(self.rng.integers(len(self.replicas)))
        watched = self.recipe.spread is None and self.rng.random() < 1 / WATCHED
        if self.phase is Phase.JUDGE:
            self._turn += 1
            return self.replicas[self._turn % len(self.replicas)].copy(), True
        if watched:
            return self.centers.copy(), True
        if self.phase is Phase.REFINE:
            shift = self._refining_spread * self.rng.standard_normal(self.centers.shape)
            return within(self.centers + shift, self.entities), False
        Y = self.replicas[number]
        return within(Y + self._spread() * self.rng.standard_normal(Y.shape), self.entities), False

    def _spread(self) -> float:
        """Return the standard deviation of the perturbation of the centres."""
        if self.recipe.spread is not None:
            return self.recipe.spread
        width = 1.5 / math.sqrt(2 * self.beta)
        if not self.entities.cost.mean_is_optimal:
            # Beta is per unit of cost; a length is wanted.
            width *= self.scale / math.sqrt(self.cost_unit)
        extent = self.entities.range
        return min(max(width, 0.05 * extent), 0.15 * extent)

    @property
    def _refining_spread(self) -> float:
        """Standard deviation of the perturbation in refinements."""
        apart = self.entities.range / self.n_clusters ** (1 / self.entities.n_features)
        return REFINED_BY * apart

    def _costs_at(self, entities: IntArray, which: IntArray, sets: FloatArray) -> FloatArray:
        """Return expected costs (n, K), all sets of centres at once; ``which`` is in order."""
        counts = np.bincount(which, minlength=len(sets))
        place = np.arange(len(which)) - (np.cumsum(counts) - counts)[which]
        shape = (len(sets), int(counts.max()))
        padded = np.zeros(shape, dtype=np.int64)
        padded[which, place] = entities
        blank = np.zeros((*shape, self.n_clusters), dtype=bool)
        out = np.empty((len(entities), self.n_clusters))
        step = max(1, ROWS // shape[1])
        for lo in range(0, len(sets), step):
            some = slice(lo, lo + step)
            groups = AnswerGroups(
                sets[some], padded[some], padded[some] * 0, np.zeros(padded[some].shape),
                blank[some], blank[some, :, 0],
            )  # fmt: skip
            X, cost = self.entities.X, self.entities.cost
            batch = training_batch(groups, X, cost, self.units, torch.float32, self.device)
            with torch.no_grad():
                E = self.network.costs(batch.X, batch.Y, batch.D).cpu().numpy()
            mine = (which >= lo) & (which < lo + step)
            out[mine] = E[which[mine] - lo, place[mine]] * self.units.cost
        return out

    # -- budget -----------------------------------------------------------------------------------

    @property
    def _answer_rate(self) -> float:
        asked, answered, _ = self.tally
        return min(1.0, max(0.05, answered / max(1, asked))) if answered else 1.0

    @property
    def goal(self) -> int:
        """Answers that the present stage waits for."""
        budget = None
        if self.budget is not None:
            # A budget is of questions; some of them are never answered.
            budget = max(1, math.ceil(self.budget * self._answer_rate))
        if self.phase is Phase.JUDGE:
            most = JUDGED * len(self.replicas)
            return most if budget is None else max(1, min(most, int(JUDGING * budget)))
        if budget is None:
            return self.recipe.epochs * self.recipe.n_questions
        refining = REFINING if self.recipe.refinements else 0.0
        if self.phase is Phase.REFINE:
            return max(1, int(refining * budget) // self.recipe.refinements)
        judging = JUDGING if self.recipe.replicas > 1 else 0.0
        return max(1, int((1 - judging - refining) * budget) // len(self.betas))

    @property
    def batch_size(self) -> int:
        return min(self.recipe.n_questions, max(64, self.goal - self.told))

    @property
    def limit(self) -> int:
        if self.budget is not None:
            return self.begun_at + self.budget
        # A little more than the plan needs, and as much more as answers are lost.
        per_beta = self.recipe.epochs * self.recipe.n_questions
        stages = len(self.betas) + self.recipe.refinements
        plan = SPARE + per_beta * stages + JUDGED * self.recipe.replicas
        return self.begun_at + math.ceil(plan / self._answer_rate)

    # -- learning ---------------------------------------------------------------------------------

    def remember(self, memory: Memory) -> None:
        """Take in answers that another strategy was told."""
        told = np.isfinite(memory.cost)
        self.replay.add(
            memory.layouts[memory.layout[told]], memory.entities[told], memory.prescribed[told],
            memory.cost[told], np.ones_like(memory.matches[told]),
        )  # fmt: skip

    def learn(self, answers: Answers) -> None:
        if not np.isfinite(answers.cost).all():
            answers = answers.take(np.flatnonzero(np.isfinite(answers.cost)))
        m, recipe = len(answers), self.recipe
        if m == 0:
            return
        Y, cost = np.array(answers.sets), answers.cost
        if self.phase is Phase.JUDGE:
            self._judge(answers, Y)
        elif self.phase is Phase.REFINE:
            self._add_errors(answers, Y)
        entities, prescribed = answers.asked.entities, answers.asked.prescribed
        if recipe.n_draws > 1:
            entities, prescribed, cost, Y = average_repeats(entities, prescribed, cost, Y)
        if self._means is not None:
            cells = entities * self.n_clusters + prescribed
            self._means = self._means.copy()
            cost = update_running_means(self._means.reshape(-1), cells, cost, recipe.ema)
        if cost.min() < 0:
            self.network.allow_negative()
        unknown = np.ones((len(cost), self.n_clusters), dtype=bool)
        touched = self.replay.add(Y, entities, prescribed, cost, unknown)
        self.told += m
        if self.phase in (Phase.ANNEAL, Phase.SETTLE):
            usual = recipe.updates * m / recipe.n_questions
            most = recipe.epochs * recipe.updates
            planned = most * min(1.0, m / self.goal)
            self._train(touched, planned if self.phase is Phase.ANNEAL else min(usual, most))
        while self.told >= self.goal:
            self._advance()

    def _train(self, touched: IntArray, steps: float) -> None:
        """Take steps on the newest answers, every other one on all that are remembered."""
        recipe, self._debt = self.recipe, self._debt + steps
        if self._debt >= 1 and self.trainer.n_steps == 0:
            self._begin_where_costs_are()
        while self._debt >= 1 and len(touched):
            self._debt -= 1
            n, pool = recipe.n_layouts, self.replay.n_groups
            if recipe.replay == 1:
                groups = touched
            elif self.trainer.n_steps % 2 == 0:
                groups = touched[self.rng.integers(0, len(touched), n)]
            else:
                groups = self.rng.integers(0, pool, n)
            batch = self._data(groups)
            seed = int(self.rng.integers(2**31))
            self.loss = self.trainer.step(batch, self._rate_factor(), seed)

    @property
    def _data(self) -> TrainingData:
        X, cost = self.entities.X, self.entities.cost
        return TrainingData(self.replay, X, cost, self.units, self.device)

    def _begin_where_costs_are(self) -> None:
        """Take out what all costs have in common; steps would have to go all the way there.

        Only if some are negative or it is much: else the published network begins as it should.
        """
        n_groups = self.replay.n_groups
        groups = np.unique(np.linspace(0, n_groups - 1, self.recipe.n_layouts).astype(int))
        batch = self._data(groups)
        told = self.replay.take(np.arange(n_groups))
        if (told.target[told.valid] < 0).any():
            self.network.allow_negative()
        with torch.no_grad():
            estimate = self.network.costs(batch.X, batch.Y, batch.D)
        known = estimate.gather(2, batch.prescribed[..., None])[..., 0]
        off = float((batch.target - known)[batch.valid].median())
        much = self.recipe.standardize and abs(off) > MUCH
        if self.network.floor < 0 or much:
            self.network.shift += off
            self._freeze()
            self.relabel()

    def _rate_factor(self) -> float:
        """Return the factor on the learning rate: warm-up, then a cosine over the annealing."""
        if not self.recipe.warm_up:
            return 1.0
        part = min(1.0, (self.stage + self.told / self.goal) / len(self.betas))
        cosine = 0.5 * (1 + math.cos(math.pi * part))
        return max(0.02, min(1.0, (self.trainer.n_steps + 1) / 100) * cosine)

    def _advance(self) -> None:
        """End a stage: move the centres, and go on to the next one."""
        if self.phase is Phase.JUDGE:
            self._choose_replica()
            self._settle("the centres with the least observed cost were chosen")
        elif self.phase is Phase.REFINE:
            self._refine()
        else:
            self._descend()
            if self.phase is Phase.ANNEAL:
                self._next_beta()
            self.told = 0
        self.relabel()

    def _next_beta(self) -> None:
        self.stage += 1
        if self.stage < len(self.betas):
            self.beta = self.betas[self.stage]
            return
        common = float(self.network.shift) * self.units.cost
        self.replicas = distinct_replicas(self._believed(), self.replicas, common)
        if len(self.replicas) == 1:
            self._settle(f"beta_max={self.betas[-1]:g} reached")
            return
        self.phase, self._verdict = Phase.JUDGE, np.zeros((len(self.replicas), 3))

    def _settle(self, reason: str) -> None:
        """End the annealing, and refine the centres at the last beta.

        Answers that come after the fit go on with that.
        """
        self.told = 0
        if self.recipe.refinements == 0:
            self.finished, self.phase = reason, Phase.SETTLE
            return
        self.phase, self.replicas = Phase.REFINE, self.centers[None].copy()
        reach = BELIEVED * self._refining_spread
        self.tilt = Tilt(self.centers, np.zeros_like(self.centers), 0.0, reach)

    def _add_errors(self, answers: Answers, Y: FloatArray) -> None:
        """Take in by how much the network is wrong about what the plan costs nearby."""
        assert self.tilt is not None
        asked = answers.asked
        moves = Y - self.centers
        # Answers to earlier questions may come late; they are about other plans.
        near = np.abs(moves).max((1, 2)) <= BELIEVED * self._refining_spread
        rows = np.flatnonzero(near & (asked.prescribed == self.labels[asked.entities]))
        if len(rows) == 0:
            return
        first, which = distinct_sets(Y[rows])
        sets, order = Y[rows[first]], np.argsort(which, kind="stable")
        rows, which = rows[order], which[order]
        believed = self._costs_at(asked.entities[rows], which, sets)
        believed = believed[np.arange(len(rows)), asked.prescribed[rows]]
        believed += self.tilt(torch.from_numpy(sets)).numpy()[which]
        self._errors = self._errors.plus(moves[rows], answers.cost[rows] - believed)

    def _refine(self) -> None:
        """Correct the slope by the errors that were seen, and move the centres by it."""
        assert self.tilt is not None
        offset, slope = self._errors.line()
        self.tilt = self.tilt.plus(self.centers, slope.reshape(self.centers.shape), offset)
        self._errors = ErrorSums.none(self.centers.size)
        self._round, self.told = self._round + 1, 0
        self._freeze()
        # The plan was tried, and not what the network takes for the best nearby.
        whole = self._believed(PlannedAutonomy(self.frozen, self.labels))
        problem = thin(whole, canonical_order(whole), MOVED_BY)
        reach, still = 2 * self._refining_spread, np.zeros_like(self.centers)
        self.place(self._moved(problem, self.centers, reach, still))
        self.replicas = self.centers[None].copy()
        if self._round >= self.recipe.refinements and self.finished is None:
            self.finished = f"beta_max={self.betas[-1]:g} reached, and the centres refined"

    def _believed(self, model: Autonomy | None = None) -> Problem:
        """Return the problem as the network, or another model, sees it."""
        finder = Finder(self.entities, self.n_clusters, self.rng, 0, None)
        return finder.problem(model or self.frozen)

    def _descend(self) -> None:
        """Move all replicas down the network's free energy at the present beta."""
        self._freeze()
        last = self.stage >= len(self.betas) - 1 or self.recipe.center_rate is not None
        whole, moved = self._believed(), []
        thinned = thin(whole, canonical_order(whole), MOVED_BY)
        problem = thinned if self.recipe.center_rate is None else whole  # as published
        for Y in self.replicas:
            shake = 0.0 * Y if last else 1e-3 * self.scale * self.rng.standard_normal(Y.shape)
            moved.append(self._moved(problem, Y, 2 * self._spread(), shake))
        self.replicas = np.stack(moved)
        self.place(min(self.replicas, key=problem.distortion))

    def _moved(
        self, problem: Problem, Y: FloatArray, reach: float, shake: FloatArray
    ) -> FloatArray:
        here, room = self.entities.X[self.entities.here], BOX * self.entities.range
        box = here.min(0) - room, here.max(0) + room
        return move_centers(self.recipe, problem, Y, self.beta, reach, shake, box)

    def place(self, centers: FloatArray) -> None:
        super().place(centers)
        self.showing = Showing()

    def _judge(self, answers: Answers, Y: FloatArray) -> None:
        verdict = self._verdict.copy()
        for number, replica in enumerate(self.replicas):
            seen = answers.cost[(replica == Y).all((1, 2)) & (answers.asked.greedy > 0)]
            verdict[number] += len(seen), seen.sum(), (seen**2).sum()
        self._verdict = verdict

    def _choose_replica(self) -> None:
        """Take the replica that cost least, unless the one that should have is as good."""
        best = cheapest_replica(self._verdict)
        self.monitor.forget_costs()  # of all replicas
        self.place(self.replicas[best])
        self.replicas = self.centers[None].copy()

    @property
    def metric_holds(self) -> bool:
        return False

    def changed(self, change: Change) -> None:
        """Learn from new answers alone: the network is a start, old answers would mislead."""
        self.replay = self._empty_replay()
        if self._means is not None:
            self._means = np.zeros_like(self._means)
        if self.phase is Phase.REFINE:  # what was refined belongs to the old behaviour
            self.phase, self.tilt = Phase.SETTLE, None
            self._errors = ErrorSums.none(self.centers.size)
            self._freeze()

    def finalize(self, thoroughly: bool) -> None:
        if self.told and self.finished is None and thoroughly:
            if self.phase is Phase.ANNEAL:
                self._descend()
            elif self.phase is Phase.JUDGE:
                self._choose_replica()
            elif self.phase is Phase.REFINE:
                self._refine()
        self.relabel()

    def doubts(self) -> list[str]:
        answered = self.tally.answered
        if not self.unasked or answered >= FEWEST_EXPECTED:
            return []
        return [
            "Costs are negative, so that expected costs are learned, for which "
            f"{answered} answers are few: give {FEWEST_EXPECTED} or more, or, if costs have a "
            "lower end, add a constant that makes them positive: then thousands suffice."
        ]

    # -- results ----------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        return {"loss": self.loss, "stage": self.stage}

    def problem(self, X: FloatArray, rows: IntArray | None, covariates: Any = None) -> Problem:
        return Problem(X, cost=self.entities.cost, autonomy=self.frozen)

    def admit(self, entities: Entities, first: int) -> None:
        if self._means is not None:
            more = np.zeros((len(entities) - first, self.n_clusters))
            self._means = np.concatenate([self._means, more])
        super().admit(entities, first)

    # -- copies and files -------------------------------------------------------------------------

    def copied(self) -> Self:
        other = super().copied()
        other.trainer, other.replay = copy.deepcopy(self.trainer), copy.deepcopy(self.replay)
        return other

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "turn": self._turn,
            "debt": self._debt,
            "phase": self.phase.name,
            "betas": list(self.betas),
            "verdict": self._verdict,
            "round": self._round,
            "errors": self._errors.sums,
            "tilt": self.tilt,
            "means": self._means,
            "replay": self.replay.state(),
            "trainer": self.trainer.state(),
            "frozen": self.frozen,
        }

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        for name in ("turn", "debt", "verdict", "means", "round"):
            setattr(self, f"_{name}", state[name])
        self.phase, self.betas = Phase[state["phase"]], state["betas"]
        self._errors, self.tilt = ErrorSums(state["errors"]), state["tilt"]
        self.replay.restore(state["replay"])
        network = state["trainer"]["network"]
        assert network.units is not None
        self.units, self.frozen = network.units, state["frozen"]
        self.trainer = self._new_trainer(network)
        self.trainer.restore(state["trainer"])
