"""The end of a fit: what do its centres really cost, and does the plain alternative cost less?

A learner believes in its model, and a model can be wrong. So part of the budget is kept. With it
the plan that was learned is tried, and beside it the plain one: k-means centres, the nearest
prescribed. The costs of these answers owe nothing to any model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm, t
from sklearn.cluster import KMeans

from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.io.serialization import registered
from volition.learning.monitor import Estimate
from volition.populations.answers import IntArray

#: share of a given budget that is kept for the trial, and questions at most
SHARE, MOST = 0.1, 4000
#: questions of the trial where no budget is given
UNASKED = 2000
#: budgets below which nothing is kept, and answers below which there is no interval
SMALLEST, FEWEST = 100, 5
#: shares of the trial that go to the plain plan, and, after the choice between the two, to the one
#: that is kept: answers by which a plan was chosen make it look cheaper than it is
PLAIN_SHARE, AFTER_SHARE = 0.3, 0.2
#: answers about each plan below which nothing is said of which one is cheaper
FEWEST_TO_CHOOSE = 30
#: answers at either end of what costs can be that are added to few, as those seen may lack rare
#: ones; and answers from which on fewer are added
ADDED, ADDED_TO = 1.0, 50
#: how far into the 95 % intervals of both plans the plain one must have cost less to be kept, if
#: the model was right about its own: 1 is their ends
CLEARLY = float(norm.ppf(0.95) / norm.ppf(0.975))
#: standard errors, and share of the spread of costs, by which belief and observation may differ
FAR_OFF, FAR_OFF_SHARE = 2.6, 0.01
#: answers below which rare expensive ones may be missing by chance, so that nothing is doubted
FEWEST_TO_DOUBT = 100
#: later answers that it takes to contradict a trial
FEWEST_LATER = 30
#: answers for each entity from which on all are asked more than once, if all count alike, and
#: entities for each answer from which on it does not matter that their number is finite
OFTEN, MANY = 2.0, 4.0
#: share of questions that are about an entity which another one is about too, and how many are
#: needed to tell chance within entities from the rest
TWICE, FEWEST_TWICE = 1 / 6, 30
#: share by which costs may differ and still be the same for all purposes
EQUAL = 1e-3
LEARNED, PLAIN = "learned", "k-means"


class Plan(NamedTuple):
    """Centres, and which one is prescribed to each entity."""

    name: str
    centers: FloatArray
    labels: IntArray


@registered
class Tried(NamedTuple):
    """What a plan has cost in the trial."""

    name: str
    estimate: Estimate
    error: float  # standard error
    spread: float = math.nan  # standard deviation of what answers cost


@registered
@dataclass(frozen=True)
class TrialResult:
    """What the plans have cost, which one is kept, and what the model believed of its own."""

    tried: tuple[Tried, ...] = ()
    kept: str = LEARNED
    believed: float = math.nan

    @property
    def estimate(self) -> Estimate | None:
        """What the plan that is kept has cost; None if nothing was tried."""
        return self.tried[self.kept == PLAIN].estimate if self.tried else None

    def doubts(self) -> list[str]:
        """Return, in sentences, what a user should know."""
        if not self.tried:
            return []
        found = []
        if self.kept == PLAIN:
            learned, plain = (one.estimate for one in self.tried)
            found.append(
                "k-means centres with the nearest prescribed are kept: they were the cheaper ones "
                "when both were tried; in answers they cost "
                f"{plain.value:.4g} ({plain.low:.4g} to {plain.high:.4g}), what was learned "
                f"{learned.value:.4g} ({learned.low:.4g} to {learned.high:.4g})."
            )
        off = disagreement(self.believed, self.tried[0])
        return found if off is None else [*found, off]


def reserve(budget: int) -> int:
    """Return how many questions of a budget are kept for the trial."""
    return min(MOST, int(SHARE * budget)) if budget >= SMALLEST else 0


def plain_plan(X: FloatArray, weight: FloatArray, cost: Any, K: int, seed: int) -> Plan:
    """Return the plan that ignores overrides: k-means centres, the nearest prescribed."""
    here = np.flatnonzero(weight > 0)
    some = here
    if len(here) > 20_000:
        some = np.random.default_rng(seed).choice(here, 20_000, replace=False)
    Z = cost.embed(X[some]).astype(np.float64)
    found = KMeans(K, n_init=10, random_state=seed).fit(Z, sample_weight=weight[some])
    centers = cost.unembed(found.cluster_centers_)
    return Plan(PLAIN, centers, Problem(X, cost=cost).labels(centers))


def enough_points(X: FloatArray, weight: FloatArray, K: int) -> bool:
    """Whether there are as many different points as centres: k-means needs them."""
    return len(np.unique(X[weight > 0], axis=0)) >= K


def drawn_twice(entities: IntArray, shares: FloatArray) -> tuple[IntArray, int]:
    """Return questions of which the last ones are about the same entities as the first ones.

    Only repeats tell how much an entity's answers differ by chance. That helps where a good
    part of all entities is asked: the rest of the spread then matters less. Where entities count
    unevenly, those that are asked often anyway are not like the others, so some are repeated too.

    Parameters
    ----------
    entities : array of shape (m,)
        Drawn in proportion to the shares, in random order.
    shares : array of shape (n,)
        Shares of all entities in the mean.

    Returns
    -------
    tuple of array of shape (m,), and int
        Entities, and how many of the first questions come again at the end.
    """
    n, several = len(entities), round(1 / float(shares @ shares), 6)
    if n <= several / MANY or (n >= OFTEN * several and _even(shares)):
        return entities, 0
    again = int(TWICE * n)
    return np.concatenate([entities[: n - again], entities[:again]]), again


def _even(shares: FloatArray) -> bool:
    """Whether all who count at all count alike."""
    here = shares[shares > 0]
    return bool(np.ptp(here) <= 1e-9 * here.max())


def mean_cost(
    paid: FloatArray,
    control: FloatArray,
    mean_control: float,
    who: Any = None,
    shares: FloatArray | None = None,
    again: int = 0,
    bounds: tuple[float, float] | None = None,
) -> tuple[Estimate, float]:
    """Return the mean cost, and its standard error, helped by something that goes with cost.

    Parameters
    ----------
    paid : array of shape (m,)
        What answers cost, NaN where none came; entities were drawn in proportion to their weights.
    control : array of shape (m,)
        Something known of the same entities, such as what obeying costs.
    mean_control : float
        Its mean over all entities. Who happens to be asked then matters less.
    who : array of shape (m,), optional
        Entities. If enough were asked about more than once, chance within an entity is told from
        differences between entities, which matter only as far as not all were asked alike.
    shares : array of shape (n,), optional
        Shares of all entities in the mean; needed with ``who``.
    again : int
        How many of the first questions came again at the end: see `drawn_twice`.
    bounds : tuple of float, optional
        Means over all entities of the least and the most that an answer can cost. Few answers may
        lack the rare expensive ones: the interval is that of these answers and a few more at both
        ends.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.learning.trial import mean_cost
    >>> known = np.arange(10.0).repeat(100)
    >>> found, error = mean_cost(2 * known + [0.1, -0.1] * 500, known, 5.0)
    >>> round(found.value, 1), error < 0.01
    (10.0, True)
    """
    here = np.isfinite(paid)
    left = np.full(len(paid), np.nan)
    paid, control = paid[here], control[here]
    m = len(paid)
    if m < FEWEST:
        return Estimate(math.nan, math.nan, math.nan, m), math.nan
    off = control - control.mean()
    spread = float(off @ off)
    slope = float(off @ paid) / spread if spread > 0 else 0.0
    left[here] = gap = paid - paid.mean() - slope * off
    value = float(paid.mean()) + slope * (mean_control - float(control.mean()))
    # An answer that has not come yet may be as far off as costs are apart: no spread among the
    # answers is no proof that there is none.
    unseen = float(np.var(paid))
    squares, repeats, uneven = 0.0, 0, 0.0
    if who is not None and shares is not None:
        squares, repeats = _repeats(left, who, again, _even(shares))
        apart = np.bincount(who[here], minlength=len(shares)) / m - shares
        uneven = float(apart @ apart)

    def error_with(more: float, number: float) -> float:
        total = (float(gap @ gap) + unseen + more) / max(1.0, m + number - 2)
        if repeats < FEWEST_TWICE:
            return math.sqrt(total / (m + number))
        within = min(total, (squares + unseen + more) / (repeats + number))
        return math.sqrt(within / (m + number) + (total - within) * uneven)

    error, middle, wider = error_with(0.0, 0.0), value, 0.0
    low, high = (-math.inf, math.inf) if bounds is None else bounds
    if paid.min() >= 0:
        low = max(low, 0.0)
    if bounds is not None:
        ends = np.array(bounds)
        added = ADDED * min(1.0, ADDED_TO / m)
        middle = (m * value + added * float(ends.sum())) / (m + 2 * added)
        more = added * float(((ends - middle) ** 2).sum()) + m * (value - middle) ** 2
        wider = error_with(more, 2 * added)
    half = float(t.ppf(0.975, max(1, m - 2))) * max(error, wider)
    low, high = max(middle - half, min(low, value)), min(middle + half, max(high, value))
    return Estimate(value, min(low, value), max(high, value), m), error


def _repeats(left: FloatArray, who: Any, again: int, even: bool) -> tuple[float, int]:
    """Return squares of what differs between answers of one entity, and from how many repeats.

    Where all entities count alike, all repeats help. Otherwise the heavy ones, asked more
    often, would have most of them: only questions that were picked to come again stand for all.
    """
    if even:
        here = np.isfinite(left)
        _, each, often = np.unique(who[here], return_inverse=True, return_counts=True)
        apart = left[here] - (np.bincount(each, left[here]) / often)[each]
        return float(apart @ apart), len(each) - len(often)
    apart = left[:again] - left[len(left) - again :]
    apart = apart[np.isfinite(apart)]
    return float(apart @ apart) / 2, len(apart)


def plain_is_cheaper(
    believed: float, learned: Tried, plain: Tried, believed_of_plain: float = math.nan
) -> bool:
    """Whether to keep the plain plan, by what both have cost.

    As long as the plans differ by what the model believes, it takes a clear difference. A model
    that was wrong about that has no such credit. Costs that are all off by the same do not matter.

    Examples
    --------
    >>> from volition.learning.monitor import Estimate
    >>> from volition.learning.trial import Tried, plain_is_cheaper
    >>> learned = Tried("learned", Estimate(-94.0, -95.0, -93.0, 500), 0.5, 10.0)
    >>> plain = Tried("k-means", Estimate(-94.1, -95.1, -93.1, 500), 0.5, 10.0)
    >>> plain_is_cheaper(6.0, learned, plain, believed_of_plain=6.5)
    False
    """
    if math.isnan(learned.error) or math.isnan(plain.error):
        return False
    if min(learned.estimate.n_answers, plain.estimate.n_answers) < FEWEST_TO_CHOOSE:
        return False
    seen, other = learned.estimate, plain.estimate
    apart = seen.value - other.value
    error = math.hypot(learned.error, plain.error)
    # Few answers may lack the rare expensive ones: the intervals show that, errors do not.
    unsure = math.hypot(seen.value - seen.low, other.high - other.value)
    wrong = disagreement(believed, learned) is not None
    if not math.isnan(believed_of_plain):
        few = learned.estimate.n_answers < FEWEST_TO_DOUBT
        wrong = not few and abs(apart - (believed - believed_of_plain)) > FAR_OFF * error
    # Where nothing is left to chance, plans that come to the same differ by rounding.
    least = EQUAL * max(abs(learned.estimate.value), abs(plain.estimate.value))
    return apart > max(least, 0.0 if wrong else CLEARLY * unsure)


def contradicts(later: Estimate, seen: Estimate) -> bool:
    """Whether answers that came later say that a plan does not cost what it did in the trial."""
    apart = later.low > seen.high or later.high < seen.low
    return later.n_answers >= FEWEST_LATER and apart


def disagreement(believed: float, tried: Tried) -> str | None:
    """Return a sentence if what was learned and what was seen differ by more than chance."""
    seen, error = tried.estimate, tried.error
    if math.isnan(error) or seen.n_answers < FEWEST_TO_DOUBT:
        return None
    off = abs(believed - seen.value)
    spread = abs(seen.value) if math.isnan(tried.spread) else tried.spread
    # Costs that hardly vary are not off by much if they are off by a share of that.
    little = max(FAR_OFF_SHARE * spread, EQUAL * abs(seen.value))
    if off <= FAR_OFF * error or off <= little:
        return None
    return (
        f"The model expects a cost of {believed:.4g}, but {seen.n_answers} answers about the final "
        f"centres cost {seen.value:.4g} on average ({seen.low:.4g} to {seen.high:.4g}): behaviour "
        "is not what the model assumes. Go by distortion_estimate(), not by distortion_."
    )
