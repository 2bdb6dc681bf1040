"""How far a plan goes beyond what a log shows."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from volition.choices.data import Choices, cost_ranges
from volition.choices.fit import ChoiceFit
from volition.choices.seen_costs import Log
from volition.core.problem import Problem
from volition.core.validation import FloatArray

#: share of choices at costs that were hardly seen above which a plan rests on extrapolation
TOO_FAR = 0.1
#: share of the smallest gap between logged centres below which centres are closer than was seen
TOO_CLOSE = 0.9
#: share of the usual gap between centres below which one that has moved stands as it did
STANDS_STILL = 0.1


class Extrapolation(NamedTuple):
    """How far a plan goes beyond what the log shows."""

    n_layouts: int
    farthest_move: float  # of a centre, as a share of the mean distance between centres
    outside: float  # share of expected choices at costs that the log has hardly seen
    closest: float = 1.0  # smallest gap between centres, as a share of the smallest in the log
    untried: float = 0.0  # share of entities told what nobody was: not the nearest, say

    @property
    def too_far(self) -> bool:
        """Whether the plan rests on costs, or prescriptions, that the log has hardly seen."""
        return self.outside > TOO_FAR or self.untried > TOO_FAR

    def __str__(self) -> str:
        if self.farthest_move == 0:
            return "The plan leaves the centres where they were in the log."
        sentences = [
            f"The log has {self.n_layouts} sets of centres."
            if self.n_layouts > 1
            else "The centres never moved in this log: how choices change when they move is "
            "concluded from differences between centres and entities, not seen.",
            f"The farthest centre moves by {100 * self.farthest_move:.0f} % of the usual distance "
            f"between centres; {100 * self.outside:.1f} % of the choices expected there are at "
            "costs that the log has hardly seen.",
        ]
        if self.closest < TOO_CLOSE:
            sentences.append(
                f"Two centres would stand at {100 * self.closest:.0f} % of the smallest gap in the "
                "log: what entities do where centres are that close was not seen, and no interval "
                "holds it."
            )
        return " ".join(sentences)


def measure_extrapolation(
    fit: ChoiceFit, log: Log, centers: FloatArray, labels: Any
) -> Extrapolation:
    """Return how far centres (K, d) and prescriptions (n,) go beyond the log."""
    X, cost, weight, choices, _ = log
    layouts = torch.from_numpy(choices.layouts)
    Y, last, K = torch.from_numpy(np.asarray(centers, dtype=np.float64)), layouts[-1], len(centers)
    others = ~torch.eye(K, dtype=torch.bool)
    length = math.sqrt if cost.squares_lengths else float
    usual = length(float(cost.pairwise(last, last)[others].mean())) if K > 1 else 0.0
    moved = length(float(cost.pairwise(Y, last).diagonal().max()))
    # In floating point, a point may be a little away from itself.
    stands = np.array_equal(centers, choices.layouts[-1])
    far = moved / usual if usual and not stands else 0.0
    unit = fit.model.cost_unit
    seen = fit.model.cost_ranges or cost_ranges(X, choices, cost, unit)
    D = cost.pairwise(torch.from_numpy(np.asarray(X, dtype=np.float64)), Y).numpy() / unit
    labels = np.asarray(labels)
    j = np.maximum(labels if labels.ndim == 1 else labels.argmax(1), 0)
    # Told to go farther than anyone was: the log does not show what they then do.
    too_far = np.take_along_axis(D, j[:, None], 1) > seen["stay"][1]
    outside = too_far | ((np.arange(K) != j[:, None]) & (seen["entity"][1] < D))
    problem = Problem(X, sample_weight=weight, cost=cost, autonomy=fit.model)
    share = float(problem.weight @ (problem.conditional(centers, j) * outside).sum(1))
    closest = 1.0
    if K > 1:
        gap = min(float(cost.pairwise(one, one)[others].min()) for one in layouts)
        closest = length(float(cost.pairwise(Y, Y)[others].min()) / gap) if gap > 0 else 1.0
    untried = log.untried_share(centers, labels)
    return Extrapolation(len(layouts), far, share, min(1.0, closest), untried)


def never_moved(choices: Choices, cost: Any) -> bool:
    """Whether the centres of a log did not move, or hardly."""
    *before, last = choices.layouts
    moves = [float(lengths(cost, one, last).diagonal().max()) for one in before]
    return max(moves, default=0.0) <= STANDS_STILL * usual_gap(cost, last)


def lengths(cost: Any, A: FloatArray, B: FloatArray) -> FloatArray:
    """Return costs between places as lengths: the root of costs that are squares of these."""
    apart = cost.pairwise(*(torch.from_numpy(np.asarray(one, dtype=np.float64)) for one in (A, B)))
    found: FloatArray = apart.clamp(min=0).numpy()
    return np.sqrt(found) if cost.squares_lengths else found


def usual_gap(cost: Any, centers: FloatArray) -> float:
    """Return how far centres are from the nearest other one, usually."""
    if len(centers) == 1:
        return 0.0
    apart = lengths(cost, centers, centers) + np.diag(np.full(len(centers), np.inf))
    return float(np.median(apart.min(1)))
