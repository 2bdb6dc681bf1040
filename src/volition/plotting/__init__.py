"""Pictures, in scikit-learn's Display convention: ``SomeDisplay.from_estimator(...)``."""

from volition.plotting.clustering import ClusteringDisplay, plot_comparison

__all__ = ["ClusteringDisplay", "plot_comparison"]
