"""The ways to place centres that are compared, all judged by the true autonomy."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from sklearn.cluster import KMeans

from volition.annealing.schedules import Geometric
from volition.core.autonomy import Autonomy, DistanceAutonomy, FixedAutonomy
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.datasets import load_four_groups
from volition.estimators import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    TabularClustering,
)
from volition.metrics import distortion
from volition.paper.published import SCHEDULE, Scenario
from volition.paper.study import Row
from volition.plotting import ClusteringDisplay
from volition.plotting.clustering import clustering_info
from volition.populations import SimulatedPopulation

#: what each is called in tables
NAMES = {
    "algorithm1": "Algorithm 1",
    "exact": "exact gradient",
    "ignored": "autonomy ignored",
    "kmeans": "k-means",
    "tabular": "tabular",
    "aden": "ADEN",
    "choice": "choice model",
}
#: those that ask a population, and what they are shown
LEARNERS: dict[str, tuple[Any, str]] = {
    "tabular": (TabularClustering, "realized"),
    "aden": (ADENClustering, "cost"),
    "choice": (ChoiceClustering, "realized"),
}


def place(
    method: str,
    X: FloatArray,
    K: int,
    autonomy: Autonomy,
    seed: int,
    schedule: tuple[float, float, float],
    **params: Any,
) -> Row:
    """Place K centres; return them, what they cost in truth, and what finding them took.

    ``schedule`` is the published one (least beta, greatest, factor), for Algorithm 1 and for the
    centres that ignore autonomy; other ways choose their own. ``params`` go to learners.
    """
    began, answers = perf_counter(), None
    model: Any
    if method in LEARNERS:
        kind, reveal = LEARNERS[method]
        people = SimulatedPopulation(X, autonomy, reveal=reveal, random_state=1000 + seed)
        model = kind(K, random_state=seed, **params).fit(X, population=people)
        answers = int(model.n_interactions_)
    elif method == "kmeans":
        model = KMeans(K, n_init=50, random_state=seed).fit(X)
    elif method == "exact":
        model = AutonomyAwareClustering(K, autonomy=autonomy, random_state=seed).fit(X)
    else:
        model = AutonomyAwareClustering(
            K,
            autonomy=autonomy if method == "algorithm1" else None,
            solver="fixed_point",
            schedule=Geometric(*schedule),
            tol=1e-5,
            random_state=seed,
        ).fit(X)
    seconds = perf_counter() - began
    return {
        "distortion": distortion(X, model.cluster_centers_, autonomy, model.labels_),
        "centers": np.asarray(model.cluster_centers_).tolist(),
        "answers": answers,
        "seconds": round(seconds, 2),
    }


def uniform(kappa: float, K: int) -> FixedAutonomy:
    """Return the model in which those who override take any other centre."""
    away = kappa / (K - 1)
    return FixedAutonomy((1 - kappa - away) * np.eye(K) + away)


def place_four(params: dict[str, Any], scenario: Scenario) -> Row:
    """Place four centres among the four groups by one method, with the published schedule."""
    X = load_four_groups().data
    autonomy = DistanceAutonomy(*scenario[:4])
    return place(params["method"], X, 4, autonomy, params["seed"], SCHEDULE)


def gap(row: Row, best: float) -> float:
    """Return by how many per cent a placement costs more than the best."""
    return 100 * (row["distortion"] / best - 1)


def draw(
    ax: Any, X: FloatArray, centers: Any, autonomy: Autonomy, title: str, beta: float = 1e4
) -> None:
    """Draw entities in the mixed colours of what is prescribed to them, as the paper does."""
    policy = Problem(X, autonomy=autonomy).policy(np.asarray(centers), beta)
    info = clustering_info(X, centers, policy, names=("x", "y"), title=title)
    # Where many centres come in twos and threes, numbers would cover each other.
    ClusteringDisplay(info).plot(ax, numbers=len(centers) <= 12)
