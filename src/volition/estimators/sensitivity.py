"""Which plan is good whatever the behaviour: each plan judged under each behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from volition.core.autonomy import Autonomy
from volition.core.validation import FloatArray
from volition.estimators.known import AutonomyAwareClustering
from volition.metrics import distortion


@dataclass(frozen=True)
class Sensitivity:
    """Plans made for several behaviours, each judged under all of them.

    Attributes
    ----------
    behaviours : list of Autonomy
        What entities may do.
    plans : list of AutonomyAwareClustering
        The plan that was made for each.
    costs : ndarray of shape (B, B)
        ``costs[a, b]``: what plan a costs if behaviour b is true. Its recommendations stay those
        that were made for behaviour a, since who plans does not know b.
    regret : ndarray of shape (B, B)
        How much more that is than the cheapest plan costs under behaviour b, in units of the cost.
        Not a percentage: where entities obey, costs are small, and shares of them would make a
        difference that hardly matters look worst.
    best : int
        The plan whose worst regret is least.
    """

    behaviours: list[Autonomy]
    plans: list[AutonomyAwareClustering]
    costs: FloatArray
    regret: FloatArray
    best: int

    def __str__(self) -> str:
        lines = ["plan made for: cost if that is true, regret if another behaviour is, at worst"]
        for number, behaviour in enumerate(self.behaviours):
            own, worst = self.costs[number, number], self.regret[number].max()
            mark = "  <- least regret" if number == self.best else ""
            lines.append(f"{behaviour!r}: {own:.4g}, {worst:.3g}{mark}")
        return "\n".join(lines)


def sensitivity(
    model: AutonomyAwareClustering,
    X: Any,
    behaviours: Sequence[Autonomy],
    *,
    sample_weight: Any = None,
) -> Sensitivity:
    """Fit one plan for each behaviour, and judge each plan under all behaviours.

    Use it where kappa and temperature are not known well: a plan that is good under all that may
    be true needs no exact numbers.

    Parameters
    ----------
    model : AutonomyAwareClustering
        How to plan: number of centres, metric, seed. It is not changed; its autonomy is not used.
    X : array of shape (n, d)
        Entities.
    behaviours : sequence of Autonomy
        At least two models of what entities may do, such as
        ``[DistanceAutonomy(k, temperature=t) for k in (0.1, 0.3) for t in (0.01, 0.1)]``.
    sample_weight : array of shape (n,), optional
        Weights of the entities.

    Returns
    -------
    Sensitivity

    Examples
    --------
    >>> from volition import AutonomyAwareClustering, DistanceAutonomy, sensitivity
    >>> from volition.datasets import load_four_groups
    >>> X = load_four_groups().data[::20]
    >>> behaviours = [DistanceAutonomy(kappa, temperature=0.01) for kappa in (0.0, 0.2, 0.4)]
    >>> found = sensitivity(AutonomyAwareClustering(4, random_state=0), X, behaviours)
    >>> found.behaviours[found.best].kappa
    0.2
    """
    behaviours = list(behaviours)
    if len(behaviours) < 2:
        raise ValueError(f"behaviours must be at least two, got {len(behaviours)}.")
    for behaviour in behaviours:
        if not isinstance(behaviour, Autonomy):
            raise ValueError(f"behaviours must be autonomy models, got {behaviour!r}.")
    plans = [
        clone(model).set_params(autonomy=behaviour).fit(X, sample_weight=sample_weight)
        for behaviour in behaviours
    ]
    costs = np.array(
        [
            [
                distortion(
                    X,
                    plan.cluster_centers_,
                    behaviour,
                    plan.labels_,
                    metric=model.metric,
                    sample_weight=sample_weight,
                )
                for behaviour in behaviours
            ]
            for plan in plans
        ]
    )
    regret = costs - costs.min(axis=0)
    return Sensitivity(behaviours, plans, costs, regret, int(regret.max(axis=1).argmin()))
