"""How to end a fit of the published head: ways that were tried, from the same annealed centres.

Expected costs by squared errors, as published. Each scenario is annealed once without refinements.
Then each way goes on from there with at most 123,000 more answers, with other answers for each
repetition. Scenarios are numbers of rows of the paper's table; by default those that were looked at
while the ways were developed.

    python benchmarks/aden_endings.py 18 16 8 12 --seed 0 --repeat 3
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from common import THREADS, published, report

from volition import DistanceAutonomy, Recipe, SimulatedPopulation
from volition.core.autonomy import Autonomy
from volition.core.costs import SquaredEuclidean
from volition.core.problem import Problem
from volition.datasets import load_four_groups
from volition.learning.annealed import AnnealedStrategy, Phase
from volition.learning.entities import Entities
from volition.learning.networks import NetworkAutonomy
from volition.learning.networks.autonomy import CostTransition
from volition.learning.networks.replay import Replay
from volition.learning.networks.training import Trainer
from volition.learning.networks.training_data import TrainingData
from volition.learning.study import Study
from volition.solvers import Gradient

X = load_four_groups().data
K = 4
#: answers that a way may take
MORE = 122_880
#: steps of training, and factor by which weights are averaged from step to step
STEPS, KEPT = 400, 0.98
PLAIN = Recipe(head="costs", refinements=0)


def run(study: Study, people: Any) -> None:
    """Ask and learn until the strategy has enough."""
    while study.strategy.reason_to_stop() is None:
        asked = study.ask()
        study.tell(asked, people.respond(asked.entities, asked.prescribed, asked.centers))
        study.learn()


def moved(strategy: AnnealedStrategy, model: Autonomy) -> tuple[np.ndarray, np.ndarray]:
    """Return centres where a model's free energy is least, and the labels that it gives."""
    problem = Problem(X, autonomy=model)
    start = problem.centers(strategy.centers)
    solution = Gradient().solve(problem, start, strategy.beta, max_iter=60, tol=1e-6)
    Y = solution.centers.numpy()
    return Y, problem.expected_costs(Y).argmin(1)


def trained(strategy: AnnealedStrategy, replay: Replay, rng: Any) -> Any:
    """Train the network some more, the rate falling along a cosine; return centres and labels."""
    network = copy.deepcopy(strategy.network)
    data = TrainingData(replay, X, SquaredEuclidean(), strategy.units, torch.device("cpu"))
    trainer, mean = Trainer(network, 1e-3, 1e-4), copy.deepcopy(network)
    for step in range(STEPS):
        rate = min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        trainer.step(data(rng.integers(0, replay.n_groups, 64)), max(rate, 0.02))
        keep = KEPT if step > STEPS // 3 else 0.0
        with torch.no_grad():
            for kept, new in zip(mean.parameters(), network.parameters(), strict=True):
                kept.mul_(keep).add_(new, alpha=1 - keep)
    return moved(strategy, NetworkAutonomy(mean, strategy.units))


def asked_nearby(strategy: AnnealedStrategy, people: Any, spread: float, rng: Any) -> Replay:
    """Return answers about centres nearby, a third of the prescriptions drawn blindly."""
    n_sets = MORE // 64
    sets = strategy.centers + spread * rng.standard_normal((n_sets, K, 2))
    centers, who = np.repeat(sets, 64, axis=0), rng.integers(0, len(X), MORE)
    best = strategy._costs_at(who, np.repeat(np.arange(n_sets), 64), sets).argmin(1)
    j = np.where(rng.random(MORE) < 0.3, rng.integers(0, K, MORE), best)
    replay = Replay(K, 2, 64, 10**6)
    replay.add(centers, who, j, people.respond(who, j, centers).cost, np.ones((MORE, K), bool))
    return replay


class ByDistances(Autonomy):
    """A network's expected costs plus a linear function of distances, for each prescription."""

    depends_on_centers = by_entity = True

    def __init__(self, network: NetworkAutonomy, weights: torch.Tensor) -> None:
        self.network, self.weights = network, weights
        self.numbers_per_pair = network.numbers_per_pair

    def transition(self, chunk: Any, Y: torch.Tensor, cost: Any) -> CostTransition:
        known: Any = self.network.transition(chunk, Y, cost)
        return CostTransition(known.E + self.weights[:, 0] + chunk.D @ self.weights[:, 1:].T)

    def with_overrides_scaled(self, share: float) -> Autonomy:
        network = self.network.with_overrides_scaled(share)
        return ByDistances(network, share * self.weights)


def by_distances(strategy: AnnealedStrategy, replay: Replay) -> Any:
    """Regress the network's errors on all distances; return centres and labels."""
    told = replay.take(np.arange(replay.n_groups))
    n_sets, width = told.entities.shape
    q = strategy._costs_at(
        told.entities.ravel(), np.repeat(np.arange(n_sets), width), told.centers
    ).reshape(n_sets, width, K)
    j = told.prescribed[..., None]
    error = (told.target - np.take_along_axis(q, j, 2)[..., 0])[told.valid]
    D = ((X[told.entities][:, :, None] - told.centers[:, None]) ** 2).sum(-1)[told.valid]
    weights = np.zeros((K, K + 1))
    for number in range(K):
        mine = told.prescribed[told.valid] == number
        rows = np.column_stack([np.ones(mine.sum()), D[mine]])
        ridge = 1e-4 * mine.sum() * np.diag((rows**2).mean(0))
        weights[number] = np.linalg.solve(rows.T @ rows + ridge, rows.T @ error[mine])
    return moved(strategy, ByDistances(strategy.frozen, torch.from_numpy(weights)))


def refined(study: Study, people: Any, rng: Any, clearly: float = 3.0) -> Any:
    """Refine as the default recipe does; return centres and labels."""
    other = Study(study.strategy.copied())
    other.tally = study.tally
    strategy: Any = other.strategy
    strategy.rng, strategy.recipe = rng, replace(PLAIN, refinements=2)
    strategy.finished = None
    strategy._settle("")
    strategy.tally = study.tally
    with patch("volition.learning.networks.tilt.CLEARLY", clearly):
        run(other, people)
    assert other.strategy.phase is Phase.REFINE
    return other.strategy.centers, other.strategy.labels


def ways(study: Study, people: Any, rng: Any) -> dict[str, Callable[[], Any]]:
    strategy: Any = study.strategy
    old = strategy.replay
    return {
        "nothing more": lambda: (strategy.centers, strategy.labels),
        "400 steps more on the old answers, averaged weights": lambda: trained(strategy, old, rng),
        "400 steps on new answers nearby, averaged weights": lambda: trained(
            strategy, asked_nearby(strategy, people, 0.05, rng), rng
        ),
        "errors by distances": lambda: by_distances(
            strategy, asked_nearby(strategy, people, 0.04, rng)
        ),
        "slope by errors, clear or not": lambda: refined(study, people, rng, -math.inf),
        "slope by errors, if clear (default)": lambda: refined(study, people, rng),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", type=int, default=[18, 16, 8, 12])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    gaps: dict[str, dict[str, float]] = {}
    for number in options.rows:
        case = published("table1.csv")[number]
        p = [case[name] for name in ("kappa", "gamma", "zeta", "temperature")]
        autonomy = DistanceAutonomy(*p)
        label = f"kappa={p[0]:g}, gamma={p[1]:g}, T={p[3]:g}"
        truth, best = Problem(X, autonomy=autonomy), case["distortion_ground_truth"]
        people = SimulatedPopulation(X, autonomy, reveal="cost", random_state=1000 + options.seed)
        entities = Entities.of(X, None, SquaredEuclidean(), None)
        rng = np.random.default_rng(options.seed)
        study = Study(AnnealedStrategy(entities, K, rng, recipe=PLAIN))
        run(study, people)
        for repetition in range(options.repeat):
            dice = np.random.default_rng(100 + repetition)
            others = SimulatedPopulation(X, autonomy, reveal="cost", random_state=5000 + repetition)
            for way, end in ways(study, others, dice).items():
                gap = 100 * (truth.distortion(*end()) / best - 1)
                mine = gaps.setdefault(way, {})
                mine[label] = mine.get(label, 0.0) + gap / options.repeat
                print(label, repetition, way, round(gap, 3), flush=True)
    report("aden_endings", [{"way": way} | mine for way, mine in gaps.items()], vars(options))


if __name__ == "__main__":
    main()
