"""How many centres pay: the cost of serving plus the cost of the centres, for each number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from volition.core.validation import check_scalar
from volition.estimators.known import AutonomyAwareClustering


@dataclass(frozen=True)
class Number:
    """What one number of centres costs."""

    n_clusters: int
    #: expected cost per entity
    distortion: float
    #: of all entities together, and of the centres
    serving: float
    opening: float

    @property
    def total(self) -> float:
        """Serving and centres together."""
        return self.serving + self.opening


@dataclass(frozen=True)
class NumberOfCenters:
    """The numbers that were tried, the best, and those that are about as good.

    Attributes
    ----------
    numbers : list of Number
        In rising order of centres.
    models : dict of int to AutonomyAwareClustering
        The plan for each number.
    best : int
        The number with the least total cost.
    as_good : list of int
        The numbers whose total is within ``tolerance`` of the least.
    at_the_end : bool
        Whether the best number is the smallest or largest that was tried, so that one outside the
        range may be better.
    """

    numbers: list[Number]
    models: dict[int, AutonomyAwareClustering]
    best: int
    as_good: list[int]
    at_the_end: bool

    def __str__(self) -> str:
        lines = ["centres  cost per entity     serving     centres       total"]
        lines += [
            f"{one.n_clusters:7d}  {one.distortion:15.6g}  {one.serving:10.6g}  "
            f"{one.opening:10.6g}  {one.total:10.6g}"
            for one in self.numbers
        ]
        lines.append(f"best: {self.best}; about as good: {', '.join(map(str, self.as_good))}")
        if self.at_the_end:
            lines.append("The best number is at the end of the range: try a wider one.")
        return "\n".join(lines)


def choose_n_centers(
    model: AutonomyAwareClustering,
    X: Any,
    numbers: Iterable[int],
    *,
    cost_per_center: float,
    cost_per_unit: float = 1.0,
    sample_weight: Any = None,
    tolerance: float = 0.01,
) -> NumberOfCenters:
    """Return which number of centres has the least total cost.

    The total is ``cost_per_unit`` times the expected cost of all entities (each as often as its
    weight says), plus ``cost_per_center`` times the number of centres.

    Parameters
    ----------
    model : AutonomyAwareClustering
        How to plan: autonomy, metric, seed. It is not changed; its n_clusters is not used.
    X : array of shape (n, d)
        Entities.
    numbers : iterable of int
        Numbers of centres to try, such as ``range(4, 13)``.
    cost_per_center : float
        What one centre costs, over the same time as what is served.
    cost_per_unit : float, default=1.0
        What one unit of the metric costs, for an entity of weight one.
    sample_weight : array of shape (n,), optional
        Weights of the entities, such as trips.
    tolerance : float, default=0.01
        Totals that differ by less than this share are about as good: the cost that you can trust.
        With p estimated from a log, give the half width of the interval of its cost, as a share.

    Returns
    -------
    NumberOfCenters

    Examples
    --------
    >>> from volition import AutonomyAwareClustering, choose_n_centers
    >>> from volition.datasets import load_four_groups
    >>> X = load_four_groups().data[::10]
    >>> model = AutonomyAwareClustering(random_state=0)
    >>> choose_n_centers(model, X, range(2, 7), cost_per_center=0.5).best
    4
    """
    per_center = check_scalar(cost_per_center, "cost_per_center", 0)
    per_unit = check_scalar(cost_per_unit, "cost_per_unit", 0, open_low=True)
    tolerance = check_scalar(tolerance, "tolerance", 0)
    tried = sorted({int(number) for number in numbers})
    if not tried or tried[0] < 1:
        raise ValueError(f"numbers must hold at least one number, each 1 or more, got {tried}.")
    mass = float(len(X)) if sample_weight is None else float(np.sum(sample_weight))
    models: dict[int, AutonomyAwareClustering] = {}
    found = []
    for K in tried:
        plan = clone(model).set_params(n_clusters=K).fit(X, sample_weight=sample_weight)
        models[K] = plan
        serving = per_unit * mass * plan.distortion_
        found.append(Number(K, plan.distortion_, serving, per_center * K))
    least = min(found, key=lambda one: one.total)
    limit = least.total * (1 + tolerance)
    as_good = [one.n_clusters for one in found if one.total <= limit]
    ends = (tried[0], tried[-1]) if tried[0] > 1 else (tried[-1],)
    return NumberOfCenters(found, models, least.n_clusters, as_good, least.n_clusters in ends)
