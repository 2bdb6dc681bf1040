"""Learn from travel times that only the drivers know, and draw what the network learned.

Run: python examples/costs_only.py [FOLDER]. Writes training.png, attention.png and costs.png
(default: here). Takes about two minutes.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.progress import Progress

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    DistanceAutonomy,
    SimulatedPopulation,
)
from volition.costs import resolve_cost
from volition.datasets import load_four_groups
from volition.plotting import plot_attention, plot_costs, plot_training
from volition.problem import Problem

K = 4
X = load_four_groups().data


def travel_time(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Street blocks, and a slow bridge in the middle of the map."""
    side = torch.sigmoid(40 * (A[:, None, 0] - 0.5)) - torch.sigmoid(40 * (B[None, :, 0] - 0.5))
    return (A[:, None] - B[None]).abs().sum(-1) + 0.5 * side.abs()


def main() -> None:
    """Learn, then draw."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    autonomy = DistanceAutonomy(0.3, temperature=0.05)
    drivers = SimulatedPopulation(X, autonomy, metric=travel_time, reveal="cost", random_state=0)
    model = ADENClustering(K, random_state=0)  # it believes in squared distances
    with Progress() as progress:
        task = progress.add_task("asking", total=None)
        model.fit(
            X, population=drivers,
            on_batch=lambda learner: progress.update(
                task, completed=learner.n_answers_, total=800_000
            ),
        )  # fmt: skip

    # Only the simulator knows these.
    known = AutonomyAwareClustering(K, autonomy=autonomy, metric=travel_time, random_state=0)
    best = known.fit(X).distortion_
    truth = Problem(X, autonomy=autonomy, cost=resolve_cost(travel_time))
    reached = truth.distortion(model.cluster_centers_, model.labels_)
    more = 100 * (reached / best - 1)
    print(f"{model.n_interactions_} answers; mean travel time {reached:.4f}")
    print(f"{best:.4f} if behaviour and travel times were known: {more:.2f} % less")
    plot_training(model, optimum=best).savefig(folder / "training.png", dpi=130)
    plot_attention(model).savefig(folder / "attention.png", dpi=110)
    figure, ax = plt.subplots(figsize=(5, 4.6), layout="constrained")
    plot_costs(model.expected_costs(), truth.expected_costs(model.cluster_centers_), ax=ax)
    figure.savefig(folder / "costs.png", dpi=110)
    print(f"Pictures: training.png, attention.png, costs.png in {folder}")


if __name__ == "__main__":
    main()
