"""What a plan would have cost, from a log of another plan: weighted means, and when to doubt them.

A row of a log counts by its weight: how much likelier the new plan makes what was done there than
the plan that made the log. The weighted mean is right if these weights are; how precise it is
depends on how they are spread. So means come with diagnostics, and diagnostics with cautions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import norm  # other than NumPy's, it does not overflow
from scipy.stats import t

from volition.core.validation import FloatArray
from volition.populations.answers import IntArray

#: levels at which weights are cut, as multiples of the mean weight
CLIP_LEVELS = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
#: values that differ by less, relatively, do not differ
NO_SPREAD = 1e-13
#: Student's t in intervals has at least so many degrees of freedom: with fewer, intervals get much
#: longer and cover little more (rare events, 300 rows: one 92 %, two 90 %, four 88 %, normal 81 %)
FEWEST_DEGREES = 2.0

# Thresholds of caution, from simulated logs: 300 of each of 21 kinds (weights of plans that try one
# of K, lognormal with sigma 0.5 to 2.5, Pareto with exponent 1.2 to 3; values that grow with the
# weights, do not depend on them, or are rare), with 300, 1,000 and 3,000 rows. Where weights are
# benign (sigma at most 1, or one of K), a caution comes in at most 3 % of logs of 1,000 rows or
# more, and 95 % intervals cover in 92 to 97 %. With sigma of 1.5, where they cover in 86 to 97 %,
# it comes in 25 to 100 %; with sigma of 2 (65 to 95 %) in 97 to 100 %. What no diagnostic sees are
# weights so rare that the log has none: with Pareto weights of exponent 1.5 intervals cover in 73
# to 78 %, and a caution comes in 60 to 79 % of logs.
#: effective rows: intervals with sigma of 1.5 cover in 86 % at 50, in 90 to 93 % at 140 and 390
FEW_EFFECTIVE = 100.0
#: effective rows as a share of those with a weight: sigma of 1.5 has 0.13, sigma of 2 has 0.04
SMALL_SHARE = 0.1
#: by how many standard errors, and by how much, the mean weight may differ from 1
FAR_FROM_ONE, NEAR_ONE = 3.0, 0.02
#: share of one cluster in the sum of squares, on which all error bars rest: above a third in 2 % of
#: logs of 1,000 rows with sigma of 1, in half of those with sigma of 2
ONE_ALONE = 1 / 3


class WeightedMean(NamedTuple):
    """A mean, its standard error, and its interval."""

    value: float
    error: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


class Clipped(NamedTuple):
    """The self-normalised mean with larger weights cut down to a level."""

    level: float  # the largest weight that remains
    value: float
    share: float  # of the rows that were cut


class Diagnostics(NamedTuple):
    """How weights are spread, and what a mean owes to the largest of them."""

    n_rows: int
    n_weighted: int  # rows with a weight above zero
    n_clusters: int  # of rows that depend on each other
    effective_rows: float  # as many rows of equal weight would be as good
    mean_weight: float  # near 1 if the weights are right
    mean_weight_error: float
    largest_weight: float
    largest_share: float  # of the total weight, by a single row
    largest_square_share: float  # of the sum of squares of the clusters' weights, by one cluster
    zero_share: float  # of rows with weight zero
    value: float  # the self-normalised mean
    error: float
    cut: Clipped  # with weights cut at the root of the number of clusters, times their mean
    clipped: tuple[Clipped, ...]  # with weights cut at several levels, smallest first

    def __str__(self) -> str:
        lines = [
            f"{self.effective_rows:.0f} effective rows of {self.n_rows}; mean weight "
            f"{self.mean_weight:.3f} ± {self.mean_weight_error:.3f} (should be 1); "
            f"largest weight {self.largest_weight:.3g}, {100 * self.largest_share:.2g} % of the "
            f"total; {100 * self.zero_share:.0f} % of rows have no weight."
        ]
        lines += [
            f"  weights cut at {one.level:.3g} ({100 * one.share:.2g} % of rows): {one.value:.4g}"
            for one in self.clipped
        ]
        return "\n".join([*lines, f"  not cut: {self.value:.4g} ± {self.error:.2g}"])


class OffPolicyEstimate(NamedTuple):
    """The mean of a plan, from the log of another one."""

    inverse_propensity: WeightedMean  # the mean of weight times value
    self_normalized: WeightedMean  # the same, divided by the mean weight: usually nearer
    diagnostics: Diagnostics


def estimate_off_policy(
    weight: Any,
    value: Any,
    cluster: Any = None,
    *,
    share: Any = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    level: float = 0.95,
) -> OffPolicyEstimate:
    """Return the mean value that another plan would have had.

    Parameters
    ----------
    weight : array of shape (m,)
        Of each row of the log: the probability of its prescription under the new plan, divided by
        that under the plan that made the log.
    value : array of shape (m,)
        What was seen in that row, for example its cost.
    cluster : array of shape (m,), optional
        Rows of a cluster may depend on each other, for example all rows of an entity. By default
        each row is a cluster of its own.
    share : array of shape (m,), optional
        How much each row counts whatever its weight, for example because its entity is logged
        less often than others. Equal by default.
    bounds : (float, float)
        Between which all values lie, for example above zero; intervals end there.
    level : float, default=0.95
        Of the intervals. They are Student's, with degrees of freedom by how many clusters the
        variance comes from: where a few large weights make most of it, they are wider.

    Examples
    --------
    Of two prescriptions the log made each half of the time; the plan always makes the first.

    >>> import numpy as np
    >>> from volition.choices.off_policy import estimate_off_policy
    >>> first, cost = np.array([True, False] * 50), np.array([1.0, 3.0, 2.0, 3.0] * 25)
    >>> found = estimate_off_policy(first / 0.5, cost)
    >>> print(found.self_normalized)
    1.5 (1.357 to 1.643)
    >>> round(found.diagnostics.effective_rows)
    50
    """
    w, v, q = _checked(weight, value, share)
    which = np.arange(len(w)) if cluster is None else np.unique(cluster, return_inverse=True)[1]
    if len(which) != len(w):
        raise ValueError(f"cluster has {len(which)} rows, but weight has {len(w)}.")
    q = q / q.sum()
    mean_weight = float(q @ w)
    # If nothing in the log is like the plan, there is no mean; zero would be wrong.
    weighted = normalized = WeightedMean(math.nan, math.nan, math.nan, math.nan)
    if mean_weight > 0:
        plain = float(q @ (w * v))
        weighted = _mean(plain, np.bincount(which, q * (w * v - plain)), level, bounds)
        mean = plain / mean_weight
        parts = np.bincount(which, q * w * (v - mean)) / mean_weight
        normalized = _mean(mean, parts, level, bounds)
    diagnostics = _diagnostics(w, v, q, which, normalized)
    return OffPolicyEstimate(weighted, normalized, diagnostics)


def _checked(weight: Any, value: Any, share: Any) -> tuple[FloatArray, FloatArray, FloatArray]:
    w, v = np.asarray(weight, dtype=np.float64), np.asarray(value, dtype=np.float64)
    q = np.ones(w.shape) if share is None else np.asarray(share, dtype=np.float64)
    if w.ndim != 1 or len(w) == 0:
        raise ValueError(f"weight must have one number for each row of a log, got {w.shape}.")
    for name, column, least in (("weight", w, 0.0), ("value", v, -math.inf), ("share", q, 0.0)):
        if column.shape != w.shape:
            raise ValueError(f"{name} has shape {column.shape}, but weight has {w.shape}.")
        wrong = np.flatnonzero(~(np.isfinite(column) & (column >= least)))
        if len(wrong):
            allowed = "a finite number" if least < 0 else "a finite number and not negative"
            raise ValueError(
                f"{name} at row {wrong[0]} is {column[wrong[0]]}; it must be {allowed}."
            )
    if q.sum() == 0:
        raise ValueError("share is 0 in every row; at least one row must count.")
    return w, v, q


def _error(parts: Any) -> float:
    """Return the standard error of a sum of independent parts that are known up to their mean."""
    n = len(parts)
    return math.sqrt(n / (n - 1)) * float(norm(parts)) if n > 1 else math.nan


def _mean(value: float, parts: Any, level: float, bounds: tuple[float, float]) -> WeightedMean:
    """Return a mean with its interval, from what independent clusters add to it."""
    size = float(norm(parts))
    # Alike, or one: how they differ is not known.
    if not size > abs(NO_SPREAD * value):
        return WeightedMean(value, math.nan, math.nan, math.nan)
    # So many clusters of equal squares would estimate the variance as well (Satterthwaite).
    squares = (parts / size) ** 2
    degrees = max(FEWEST_DEGREES, 1 / float(squares @ squares))
    error = _error(parts)
    half = float(t.ppf(0.5 + level / 2, degrees)) * error
    return WeightedMean(value, error, max(value - half, bounds[0]), min(value + half, bounds[1]))


def _diagnostics(
    w: FloatArray, v: FloatArray, q: FloatArray, which: IntArray, normalized: WeightedMean
) -> Diagnostics:
    mean, parts = float(q @ w), q * w
    by_cluster = np.bincount(which, parts)
    total, squares = float(parts.sum()), float(by_cluster @ by_cluster)
    levels = [level * mean for level in CLIP_LEVELS if 0 < level * mean < w.max()]
    return Diagnostics(
        n_rows=len(w),
        n_weighted=int((w > 0).sum()),
        n_clusters=len(by_cluster),
        effective_rows=total**2 / float(parts @ parts) if total else 0.0,
        mean_weight=mean,
        mean_weight_error=_error(np.bincount(which, q * (w - mean))),
        largest_weight=float(w.max()),
        largest_share=float(parts.max()) / total if total else 0.0,
        largest_square_share=float(by_cluster.max()) ** 2 / squares if squares else 0.0,
        zero_share=float((w == 0).mean()),
        value=normalized.value,
        error=normalized.error,
        cut=_cut(w, v, q, mean * math.sqrt(len(by_cluster))),
        clipped=tuple(_cut(w, v, q, level) for level in levels),
    )


def _cut(w: FloatArray, v: FloatArray, q: FloatArray, level: float) -> Clipped:
    less = q * np.minimum(w, level)
    value = float(less @ v / less.sum()) if less.sum() else math.nan
    return Clipped(level, value, float((w > level).mean()))


def weight_cautions(diagnostics: Diagnostics) -> list[str]:
    """Return, in sentences, why a mean from another plan's log may be worse than it looks.

    Nothing to say is no proof: prescriptions that the plan makes and the log never made leave no
    trace in weights, except in a mean weight below 1.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.choices.off_policy import estimate_off_policy, weight_cautions
    >>> weight, cost = np.tile([0.5, 1.5], 500), np.arange(1000.0)
    >>> weight_cautions(estimate_off_policy(weight, cost).diagnostics)
    []
    >>> weight[0] = 400.0
    >>> print(weight_cautions(estimate_off_policy(weight, cost).diagnostics)[0])
    Of 1000 rows, 12 effective ones are left: below 100, intervals are rough.
    """
    d = diagnostics
    if d.n_weighted == 0:
        return [
            f"None of {d.n_rows} rows has a weight: the log never tried what the plan prescribes, "
            "so it says nothing about the plan."
        ]
    found, effective = [], d.effective_rows
    if effective < FEW_EFFECTIVE:
        found.append(
            f"Of {d.n_rows} rows, {effective:.0f} effective ones are left: below "
            f"{FEW_EFFECTIVE:.0f}, intervals are rough."
        )
    elif effective < SMALL_SHARE * d.n_weighted:
        found.append(
            f"Of {d.n_weighted} rows with a weight, only {effective:.0f} "
            f"({100 * effective / d.n_weighted:.1f} %) are effective: a few rows with large "
            f"weights (up to {d.largest_weight:.3g}) decide, and the interval may miss the truth."
        )
    if abs(d.mean_weight - 1) > max(FAR_FROM_ONE * d.mean_weight_error, NEAR_ONE):
        found.append(
            f"The mean weight is {d.mean_weight:.3f} (standard error {d.mean_weight_error:.3f}) "
            "and should be 1: the logged propensities are wrong, or the log never tried some of "
            "what the plan prescribes."
        )
    if d.largest_square_share > ONE_ALONE:
        found.append(
            "One row, or the rows of one entity, make up "
            f"{100 * d.largest_square_share:.0f} % of the squares of all weights: the error bar "
            "rests on them alone."
        )
    if abs(d.cut.value - d.value) > d.error:
        found.append(
            f"Cutting weights at {d.cut.level:.3g} ({100 * d.cut.share:.2g} % of rows) changes the "
            f"estimate from {d.value:.4g} to {d.cut.value:.4g}, more than its standard error "
            f"({d.error:.2g}): it rests on those rows."
        )
    if math.isnan(d.error):
        found.append(
            "All rows that count have the same value, or they are of one entity: how sure the "
            "estimate is cannot be said."
        )
    return found
