"""Pictures, in scikit-learn's Display convention: ``SomeDisplay.from_estimator(...)``."""

from volition.plotting.choices import plot_calibration, plot_plan_costs, plot_relocation
from volition.plotting.clustering import ClusteringDisplay, plot_comparison
from volition.plotting.learning import plot_change, plot_costs, plot_learning
from volition.plotting.network import plot_attention, plot_training
from volition.plotting.phase import (
    animate,
    plot_moves,
    plot_numbers,
    plot_persistence,
    plot_phase,
    plot_tree,
)

__all__ = [
    "ClusteringDisplay",
    "animate",
    "plot_attention",
    "plot_calibration",
    "plot_change",
    "plot_comparison",
    "plot_costs",
    "plot_learning",
    "plot_moves",
    "plot_numbers",
    "plot_persistence",
    "plot_phase",
    "plot_plan_costs",
    "plot_relocation",
    "plot_training",
    "plot_tree",
]
