"""Learn from answers, notice a change, draw what happened.

Run: python examples/learning.py [FOLDER]. Writes learning.png and change.png (default: here).
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from volition import (
    AutonomyAwareClustering,
    FixedAutonomy,
    SimulatedPopulation,
    TabularClustering,
)
from volition.core.problem import Problem
from volition.datasets import load_four_groups
from volition.plotting import plot_change, plot_costs, plot_learning

K = 4
X = load_four_groups().data


def override(kappa: float) -> FixedAutonomy:
    """Overrides go to any of the other clusters."""
    return FixedAutonomy((1 - kappa) * np.eye(K) + kappa / (K - 1) * (1 - np.eye(K)))


def main() -> None:
    """Learn, then draw."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    before, after = override(0.1), override(0.4)
    people = SimulatedPopulation(X, before, changes={20_000: after}, missing=0.1, random_state=0)
    model = TabularClustering(K, forgetting=1e-5, batch_size=500, random_state=0)
    model.partial_fit(X, population=people, n_interactions=40_000)
    print(f"{model.n_interactions_} prescriptions, {model.n_answers_} answers")
    for change in model.changes_:
        print(f"interaction {change.n_interactions}: {change.what}, "
              f"{change.before:.2f} to {change.after:.2f}")  # fmt: skip
    print(f"distortion by the last answers: {model.distortion_estimate()}")

    # Only the simulator knows these.
    best = [
        AutonomyAwareClustering(K, autonomy=p, random_state=0).fit(X).distortion_
        for p in (before, after)
    ]
    true = Problem(X, autonomy=after).expected_costs(model.cluster_centers_)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    plot_learning(model, optimum=[(0, best[0]), (20_000, best[1])], ax=axes[0])
    axes[0].set_title("kappa = 0.1, from interaction 20,000 on 0.4")
    plot_costs(model.expected_costs(), true, ax=axes[1])
    figure.savefig(folder / "learning.png", dpi=130)
    plot_change(model.changes_[0]).savefig(folder / "change.png", dpi=110)
    print(f"Pictures: {folder / 'learning.png'}, {folder / 'change.png'}")


if __name__ == "__main__":
    main()
