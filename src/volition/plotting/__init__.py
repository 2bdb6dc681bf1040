"""Pictures, in scikit-learn's Display convention: ``SomeDisplay.from_estimator(...)``."""

from volition.plotting.clustering import ClusteringDisplay, plot_comparison
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
    "plot_comparison",
    "plot_moves",
    "plot_numbers",
    "plot_persistence",
    "plot_phase",
    "plot_tree",
]
