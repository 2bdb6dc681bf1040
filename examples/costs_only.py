"""Learn from travel times that only the drivers know, and draw what the networks learned.

Run: python examples/costs_only.py [FOLDER]. Writes costs.png (what was learned by default), and
training.png and attention.png (of the published head) to the folder (default: here). Takes some
three minutes.
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
from volition.core.costs import resolve_cost
from volition.core.problem import Problem
from volition.datasets import load_four_groups
from volition.plotting import plot_attention, plot_costs, plot_training

K = 4
X = load_four_groups().data


def travel_time(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Street blocks, and a slow bridge in the middle of the map."""
    side = torch.sigmoid(40 * (A[:, None, 0] - 0.5)) - torch.sigmoid(40 * (B[None, :, 0] - 0.5))
    return (A[:, None] - B[None]).abs().sum(-1) + 0.5 * side.abs()


AUTONOMY = DistanceAutonomy(0.3, temperature=0.05)
#: only the simulator knows this
TRUTH = Problem(X, autonomy=AUTONOMY, cost=resolve_cost(travel_time))


def learn(title: str, most: int, **params: object) -> ADENClustering:
    """Learn with squared distances for all that is known of costs."""
    drivers = SimulatedPopulation(X, AUTONOMY, metric=travel_time, reveal="cost", random_state=0)
    model = ADENClustering(K, random_state=0, **params)
    with Progress() as progress:
        task = progress.add_task(title, total=most)
        model.fit(
            X, population=drivers,
            on_batch=lambda learner: progress.update(task, completed=learner.n_answers_),
        )  # fmt: skip
        progress.update(task, completed=most)
    return model


def main() -> None:
    """Learn in both ways, then draw."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    known = AutonomyAwareClustering(K, autonomy=AUTONOMY, metric=travel_time, random_state=0)
    best = known.fit(X).distortion_
    print(f"mean travel time {best:.4f} if behaviour and travel times were known")
    served = learn("costs of being served", 14_000)
    published = learn("expected costs, as published", 800_000, head="costs")
    for model in (served, published):
        reached = TRUTH.distortion(model.cluster_centers_, model.labels_)
        more = 100 * (reached / best - 1)
        print(f"{model.head_}: {model.n_interactions_} answers, {reached:.4f}, {more:.2f} % more")
    plot_training(published, optimum=best).savefig(folder / "training.png", dpi=130)
    plot_attention(published).savefig(folder / "attention.png", dpi=110)
    figure, ax = plt.subplots(figsize=(5, 4.6), layout="constrained")
    plot_costs(served.expected_costs(), TRUTH.expected_costs(served.cluster_centers_), ax=ax)
    figure.savefig(folder / "costs.png", dpi=110)
    print(f"Pictures: costs.png, training.png, attention.png in {folder}")


if __name__ == "__main__":
    main()
