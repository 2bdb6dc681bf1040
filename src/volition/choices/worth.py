"""What is it worth? Expected cost of any centres and prescriptions, with error bars.

At the centres of the log, a plan is judged by what was seen: *weighted* (logged costs, each
weighted by how much likelier the plan makes its prescription) and *doubly robust* (what the model
expects, corrected by its weighted mistakes: right if either the model or the propensities are).
Where centres move, nothing was seen, and only the *direct* estimate is left: what the fitted model
expects. It is worth as much as the model. So the model is checked (`volition.choices.checks`), and
where the log can be read in more than one way, the interval holds all readings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import binom, norm, t

from volition.choices.data import Choices, parts_of, seen_costs
from volition.choices.fit import ChoiceFit
from volition.choices.off_policy import Diagnostics, estimate_off_policy
from volition.choices.ranked import ranks
from volition.core.autonomy import Autonomy
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.io.serialization import registered

#: what an estimate rests on: choices that were seen, a model that holds in the log, or a model that
#: does not or that is stretched too far
SEEN, MODEL, GUESS = "seen", "model", "guess"
#: effective rows that an estimate from what was seen needs, and how far the mean weight may be from
#: one, beyond three standard errors
FEWEST_ROWS, OFF_BY = 30.0, 0.05
#: parts of the log at its last centres below which nobody knows how much parts differ
FEWEST_PARTS = 5
#: share of choices at costs that were hardly seen above which a plan rests on extrapolation
TOO_FAR = 0.1
#: share of the smallest gap between logged centres below which centres are closer than was seen
TOO_CLOSE = 0.9
#: share of the usual gap between centres below which one that has moved stands as it did, and up to
#: which it stands at the place of another
HARDLY, NEAR = 0.1, 0.5
#: share of prescriptions to other ranks below which a log has tried one rank only
RARELY = 0.005
#: rows of a log that are looked at together
ROWS = 16_384


class Interval(NamedTuple):
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, half: float) -> Interval:
        """Return the interval that reaches as far to both sides."""
        return cls(value, value - half, value + half)

    def without_ends(self) -> Interval:
        """Return the estimate alone."""
        return Interval(self.value, math.nan, math.nan)

    def not_negative(self) -> Interval:
        """Return the interval of what cannot be negative."""
        return self._replace(low=max(self.low, min(0.0, self.value)))


NONE = Interval(math.nan, math.nan, math.nan)
#: what centres and prescriptions for entities that obey are called
IGNORED = "autonomy ignored"


class Direct(NamedTuple):
    """An expected distortion, and how it changes with the coefficients of the model."""

    value: float
    gradient: FloatArray  # of stay and away coefficients, one after the other
    noise: float = 0.0  # variance from not knowing the prescriptions exactly

    def minus(self, other: Direct) -> Direct:
        """Return the difference."""
        noise = 0.0 if other is self else self.noise + other.noise
        return Direct(self.value - other.value, self.gradient - other.gradient, noise)

    def interval(self, fit: ChoiceFit, level: float = 0.95) -> Interval:
        """Return the value with what is not known of the coefficients (delta method)."""
        split = len(fit.stay.coefficients)
        g, h = self.gradient[:split], self.gradient[split:]
        variance = float(g @ fit.stay.covariance @ g + h @ fit.away.covariance @ h) + self.noise
        z = float(norm.ppf(0.5 + level / 2))
        return Interval.around(self.value, z * math.sqrt(max(variance, 0.0)))


def direct(
    fit: ChoiceFit, X: Any, cost: Any, weight: Any, centers: FloatArray, policy: Any
) -> Direct:
    """Return what the model expects of these centres and prescriptions.

    Parameters
    ----------
    fit : ChoiceFit
    X : array of shape (n, d)
    cost : Cost
    weight : array of shape (n,) or None
    centers : array of shape (K, d)
    policy : array of shape (n,) or (n, K)
        Prescriptions, or their probabilities.

    Returns
    -------
    Direct
    """
    split, both = len(fit.stay.coefficients), [part.coefficients for part in fit.parts.values()]
    theta = torch.tensor(np.concatenate(both), requires_grad=True)
    stay = {term: theta[:split][where] for term, where in fit.stay.places.items()}
    away = {term: theta[split:][where] for term, where in fit.away.places.items()}
    model = fit.model.with_coefficients(stay, away)
    problem = Problem(
        np.asarray(X, dtype=np.float64), sample_weight=weight, cost=cost, autonomy=model
    )
    y = problem.centers(centers) - problem.origin
    pi, rho = torch.from_numpy(as_policy(policy, len(y))), torch.from_numpy(problem.weight)
    total, gradient = 0.0, np.zeros(len(theta))
    for rows in _runs(problem.n):
        chunk, transition = problem.chunk(rows, 0, y)
        expected = (pi[rows] * transition.expected(chunk.D)).sum(1)
        part = (rho[rows] * expected).sum()
        total += float(part.detach())
        if part.requires_grad:
            gradient += torch.autograd.grad(part, theta)[0].numpy()
    return Direct(total, gradient)


def _runs(n: int) -> list[slice]:
    return [slice(lo, min(lo + ROWS, n)) for lo in range(0, n, ROWS)]


def as_policy(policy: Any, K: int) -> FloatArray:
    """Return probabilities (n, K) from them or from labels."""
    policy = np.asarray(policy)
    if policy.ndim == 1:
        return np.eye(K)[policy]
    return policy.astype(np.float64)


class Seen(NamedTuple):
    """What a log shows of a plan at the centres of the log."""

    weighted: Interval
    robust: Interval
    saving: Interval  # against the prescriptions of the log
    diagnostics: Diagnostics | None

    @property
    def usable(self) -> bool:
        """Whether the log has tried what the plan prescribes often enough."""
        if self.diagnostics is None or math.isnan(self.robust.value):
            return False
        found = self.diagnostics
        off = abs(found.mean_weight - 1) - 3 * found.mean_weight_error
        return found.effective_rows >= FEWEST_ROWS and off < OFF_BY


NOTHING_SEEN = Seen(NONE, NONE, NONE, None)


class Log(NamedTuple):
    """What estimates from a log need besides the model."""

    X: FloatArray
    cost: Any
    weight: FloatArray | None
    choices: Choices
    propensity: FloatArray  # (m,) probability of each logged prescription

    @property
    def shares(self) -> FloatArray:
        """Weights of the entities that sum to one."""
        n = len(self.X)
        return np.full(n, 1 / n) if self.weight is None else self.weight / self.weight.sum()


@registered
class ExpectedCosts(NamedTuple):
    """Mean and variance of the cost of prescribing j to i, (n, K) each."""

    mean: FloatArray
    variance: FloatArray


def expected_costs(model: Autonomy, X: FloatArray, cost: Any, centers: FloatArray) -> ExpectedCosts:
    """Return what a model expects prescriptions to cost, and how much that varies by chance."""
    problem = Problem(X, cost=cost, autonomy=model)
    y = problem.centers(centers) - problem.origin
    mean, square = np.empty((2, problem.n, len(centers)))
    with torch.no_grad():
        for rows in _runs(problem.n):
            chunk, transition = problem.chunk(rows, 0, y)
            mean[rows] = transition.expected(chunk.D).numpy()
            square[rows] = transition.expected(chunk.D**2).numpy()
    return ExpectedCosts(mean, np.maximum(square - mean**2, 0.0))


def seen_cost(
    log: Log,
    costs: ExpectedCosts,
    policy: Any,
    noise: float = 0.0,
    level: float = 0.95,
    days: bool = False,
) -> Seen:
    """Return what the log shows of prescriptions at its last centres.

    Parameters
    ----------
    log : Log
    costs : ExpectedCosts
        Of prescribing j to i at the last centres, by a model. Better by one that has not seen the
        choices of i: see `volition.choices.checks.cross_costs`.
    policy : array of shape (n,) or (n, K), or None
        Prescriptions, or their probabilities; None for those of the log.
    noise : float
        Variance of today's expected cost, from prescriptions that were drawn.
    level : float
        Of the intervals.
    days : bool
        Whether rows of one part of the log go together, as well as those of one entity. There is
        no interval where the last centres stood in too few parts.

    Returns
    -------
    Seen
    """
    number = len(log.choices.layouts) - 1
    here = np.flatnonzero(log.choices.layout == number)
    if len(here) == 0:
        return NOTHING_SEEN
    now, rho = log.choices.take(here), log.shares
    i, j = now.entities, now.prescribed
    share = _even(now, rho)
    paid = _paid(log, now)
    z, part = float(norm.ppf(0.5 + level / 2)), np.zeros(len(here), dtype=np.int64)
    if days:
        # Few parts tell little of how much parts differ: Student's quantile.
        part = np.unique(parts_of(len(log.choices.entities))[here], return_inverse=True)[1]
        others = int(part.max())
        z = float(t.ppf(0.5 + level / 2, others)) if others + 1 >= FEWEST_PARTS else math.nan
    w, left, chance = share / share.sum(), paid - costs.mean[i, j], costs.variance[i, j]
    together = [i, part] if days else [i]

    def empirical(by_row: FloatArray) -> float:
        """Return the variance of a sum of rows, by whatever makes it larger."""
        each = [np.bincount(which, by_row) for which in together]
        return max(float(one @ one) * len(one) / max(1, len(one) - 1) for one in each)

    if policy is None:
        # What was paid, known but for chance in the answers and in who was prescribed what.
        found = estimate_off_policy(np.ones(len(i)), paid, i, share=share, level=level)
        spread = empirical(w * (left - w @ left))
        half = z * math.sqrt(max(spread, float(w**2 @ chance)) + noise)
        plain = Interval.around(float(w @ paid), half)
        return Seen(plain, plain, Interval(0.0, 0.0, 0.0), found.diagnostics)
    pi = as_policy(policy, log.choices.n_clusters)
    ratio = pi[i, j] / log.propensity[here]
    if not (ratio > 0).any():
        return NOTHING_SEEN
    weighted = estimate_off_policy(ratio, paid, i, share=share, level=level)
    each = [estimate_off_policy(ratio, left, one, share=share, level=level) for one in together]
    mistakes = max((one.self_normalized for one in each), key=lambda one: one.high - one.low)
    v = share * ratio / (share @ ratio)
    # What is rare and dear may not have happened in the few rows that count: the model knows how
    # much costs vary when it does. The larger error is taken.
    half = max((mistakes.high - mistakes.low) / 2, z * math.sqrt(float(v**2 @ chance)))
    value = float(rho @ (pi * costs.mean).sum(1)) + mistakes.value
    robust = Interval.around(value, half)
    # Against today: mistakes of the same rows, once weighted and once not, partly cancel.
    spread = empirical(w * (left - w @ left) - v * (left - v @ left))
    error = math.sqrt(max(spread, float((w - v) ** 2 @ chance)) + noise)
    saving = Interval.around(float(w @ paid) - value, z * error)
    if np.allclose(v, w, rtol=1e-9) and np.allclose(pi[i, j], 1):
        saving = Interval(0.0, 0.0, 0.0)  # it is what was done
    mean = weighted.self_normalized
    plain = Interval(mean.value, mean.low, mean.high)
    if math.isnan(z):
        plain, robust = plain.without_ends(), robust.without_ends()
    return Seen(plain, robust, saving, weighted.diagnostics)


def _paid(log: Log, choices: Choices) -> FloatArray:
    """Return what each logged choice cost, at the centres of its time."""
    X = torch.from_numpy(np.asarray(log.X, dtype=np.float64)[choices.entities])
    Y = torch.from_numpy(choices.layouts[choices.layout, choices.realized][:, None])
    with torch.no_grad():
        paid: FloatArray = log.cost.each(X, Y)[:, 0].numpy()
    return paid


class Worth(NamedTuple):
    """What some centres and prescriptions cost per entity, and save against today's."""

    name: str
    direct: Interval  # what the model expects
    weighted: Interval  # from logged costs alone; only at today's centres
    robust: Interval  # from both; only at today's centres
    effective_rows: float
    saving: Interval  # against the first option
    saving_if_ignored: Interval  # against the one called "autonomy ignored", if there is one
    basis: str = MODEL  # what `expected` rests on: SEEN, MODEL or GUESS
    diagnostics: Diagnostics | None = None

    @property
    def expected(self) -> Interval:
        """The estimate to go by: from what was seen, where the log has seen it."""
        return self.robust if self.basis == SEEN else self.direct

    def as_dict(self) -> dict[str, Any]:
        """Return a flat row: ``pandas.DataFrame(row.as_dict() for row in model.worth())``."""
        flat: dict[str, Any] = {"option": self.name, "basis": self.basis}
        kinds = ("expected", "saving", "saving_if_ignored", "direct", "weighted", "robust")
        for kind in kinds:
            for end, value in zip(("", "_low", "_high"), getattr(self, kind), strict=True):
                flat[f"{kind}{end}"] = value
        flat["effective_rows"] = self.effective_rows
        found = self.diagnostics
        for name in ("mean_weight", "largest_weight", "largest_share"):
            flat[name] = math.nan if found is None else getattr(found, name)
        return flat


def compare(
    fit: ChoiceFit,
    log: Log,
    options: dict[str, tuple[FloatArray, Any]],
    *,
    costs: ExpectedCosts | None = None,
    readings: Sequence[ChoiceFit] = (),
    doubtful: bool = False,
    order: bool = False,
    days: bool = False,
    silent: bool = False,
) -> list[Worth]:
    """Return all estimates for centres and prescriptions, the first of which are today's.

    Parameters
    ----------
    fit : ChoiceFit
    log : Log
    options : dict of name to (centers, policy)
        What is compared; a policy that is None is that of the log, at its last centres.
    costs : ExpectedCosts, optional
        Expected costs at the last centres, for the doubly robust estimate. Default: the model's.
    readings : sequence of ChoiceFit
        Other models that the log allows. Intervals at other centres than today's hold theirs too,
        and what comes of likings that stay at their places: see `liked_by_place`.
    doubtful : bool
        Whether the log contradicts the model. Estimates at other centres then have no intervals.
    order : bool
        Whether rows of the log depend on those before them. What was seen is then what comes of the
        log's own sequence of prescriptions, and no estimate of another plan has an interval.
    days : bool
        Whether rows of one part of the log go together; intervals of what was seen are then wider.
    silent : bool
        Whether many rows of the log have no answer. There are no intervals then, not even today's.

    Returns
    -------
    list of Worth
    """
    today = log.choices.layouts[-1]
    if costs is None:
        costs = expected_costs(fit.model, log.X, log.cost, today)
    direct_of = {
        name: [
            _as_logged(one, log) if policy is None else direct(one, *log[:3], centers, policy)
            for one in (fit, *readings)
        ]
        for name, (centers, policy) in options.items()
    }
    fits = [fit, *readings]
    if not doubtful and never_moved(log.choices, log.cost):
        for name, (centers, policy) in options.items():
            if policy is None or np.array_equal(centers, today):
                direct_of[name] += direct_of[name][:1] * n_places(fit)
            else:
                direct_of[name] += liked_by_place(fit, log, centers, policy)
        fits += [fit] * n_places(fit)
    first = next(iter(direct_of.values()))
    paying = bool((_paid(log, log.choices) >= 0).all())
    rows = []
    for name, (centers, policy) in options.items():
        stands, told = np.array_equal(centers, today), policy is not None
        far = told and not stands and reach(fit, log, centers, policy).too_far
        seen = NOTHING_SEEN
        if stands:
            seen = seen_cost(log, costs, policy, first[0].noise, days=days)
            seen = seen._replace(robust=seen.robust.not_negative()) if paying else seen
        done = stands and tuple(seen.saving) == (0.0, 0.0, 0.0)
        unsure = not math.isnan(seen.robust.value) and math.isnan(seen.robust.low)
        misled = (order or unsure or silent) and not done
        guessed = doubtful or far or misled or (told and untried(log, centers, policy) > TOO_FAR)
        if misled or silent:
            weighted, robust = seen.weighted.without_ends(), seen.robust.without_ends()
            seen = seen._replace(weighted=weighted, robust=robust)
        basis = GUESS if misled else SEEN if seen.usable else GUESS if guessed else MODEL
        expected = _hull(fits, direct_of[name])
        expected = expected.not_negative() if paying else expected
        saving, against = (
            _hull(fits, [a.minus(b) for a, b in zip(other, direct_of[name], strict=True)])
            if other is not None
            else NONE
            for other in (first, direct_of.get(IGNORED))
        )
        if guessed or silent:
            expected, saving, against = (one.without_ends() for one in (expected, saving, against))
        found = seen.diagnostics
        rows.append(
            Worth(
                name, expected, seen.weighted, seen.robust,
                0.0 if found is None else found.effective_rows,
                seen.saving if basis == SEEN else saving, against, basis, found,
            )
        )  # fmt: skip
    return rows


def _hull(fits: Sequence[ChoiceFit], estimates: Sequence[Direct]) -> Interval:
    """Return the first estimate, and an interval that holds those of all."""
    each = [one.interval(fit) for fit, one in zip(fits, estimates, strict=True)]
    return Interval(each[0].value, min(e.low for e in each), max(e.high for e in each))


def never_moved(choices: Choices, cost: Any) -> bool:
    """Whether the centres of a log stood still, or as good as."""
    *before, last = choices.layouts
    moves = [float(lengths(cost, one, last).diagonal().max()) for one in before]
    return max(moves, default=0.0) <= HARDLY * _gap(cost, last)


def lengths(cost: Any, A: FloatArray, B: FloatArray) -> FloatArray:
    """Return costs between places as lengths: the root of costs that are squares of these."""
    apart = cost.pairwise(*(torch.from_numpy(np.asarray(one, dtype=np.float64)) for one in (A, B)))
    found: FloatArray = apart.clamp(min=0).numpy()
    return np.sqrt(found) if cost.name.startswith("sq") else found


def _gap(cost: Any, centers: FloatArray) -> float:
    """Return how far centres are from the nearest other one, usually."""
    if len(centers) == 1:
        return 0.0
    apart = lengths(cost, centers, centers) + np.diag(np.full(len(centers), np.inf))
    return float(np.median(apart.min(1)))


def liked_by_place(fit: ChoiceFit, log: Log, centers: FloatArray, policy: Any) -> list[Direct]:
    """Return what a plan costs if likings stay at the places where centres stood.

    A centre that has moved is then liked as the one that stood nearest to its new place; several
    may be liked as the same one. Where none stood near, it may also be liked as the most liked of
    all, or as the least.
    """
    today, numbers = log.choices.layouts[-1], np.arange(len(fit.away.coefficients))
    far = lengths(log.cost, centers, today)
    nearest = far.argmin(1)
    unknown = far.min(1) > NEAR * _gap(log.cost, today)
    found = []
    for where in _likings(fit):
        liked = fit.away.coefficients[where]
        for one in (nearest, liked.argmax(), liked.argmin()):
            order = numbers.copy()
            order[where] = numbers[where][np.where(unknown, one, nearest)]
            found.append(_reordered(fit, order, log, centers, policy))
    return found


def n_places(fit: ChoiceFit) -> int:
    """Return the number of estimates that `liked_by_place` makes."""
    return 3 * len(_likings(fit))


def _likings(fit: ChoiceFit) -> list[slice]:
    return [fit.away.places[term.name] for term in fit.kinds if term.liking]


def _reordered(fit: ChoiceFit, order: Any, log: Log, centers: FloatArray, policy: Any) -> Direct:
    """Return what a plan costs by the coefficients in another order, differentiated by them."""
    split = len(fit.stay.coefficients)
    part = fit.away._replace(coefficients=fit.away.coefficients[order])
    model = fit.model.with_coefficients(fit.model.stay, part.by_term())
    found = direct(fit._replace(model=model, away=part), *log[:3], centers, policy)
    back = np.bincount(order, found.gradient[split:], len(order))
    return found._replace(gradient=np.concatenate([found.gradient[:split], back]))


class Reach(NamedTuple):
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
        if self.n_layouts == 1:
            seen = (
                "The centres never moved in this log: how choices change when they move is "
                "concluded from differences between centres and entities, not seen."
            )
        else:
            seen = f"The log has {self.n_layouts} sets of centres."
        close = ""
        if self.closest < TOO_CLOSE:
            close = (
                f" Two centres would stand at {100 * self.closest:.0f} % of the smallest gap in "
                "the log: what entities do where centres are that close was not seen, and no "
                "interval holds it."
            )
        return (
            f"{seen} The farthest centre moves by {100 * self.farthest_move:.0f} % of the usual "
            f"distance between centres; {100 * self.outside:.1f} % of the choices expected there "
            f"are at costs that the log has hardly seen.{close}"
        )


def reach(fit: ChoiceFit, log: Log, centers: FloatArray, labels: Any) -> Reach:
    """Return how far centres and prescriptions go beyond the log.

    Parameters
    ----------
    fit : ChoiceFit
    log : Log
    centers : array of shape (K, d)
    labels : array of shape (n,)
        Prescriptions.
    """
    X, cost, weight, choices, _ = log
    layouts = torch.from_numpy(choices.layouts)
    Y, last, K = torch.from_numpy(np.asarray(centers, dtype=np.float64)), layouts[-1], len(centers)
    others = ~torch.eye(K, dtype=torch.bool)
    usual = float(cost.pairwise(last, last)[others].mean()) if K > 1 else 0.0
    moved = float(cost.pairwise(Y, last).diagonal().max())
    if cost.name.startswith("sq"):  # costs are squares of lengths
        moved, usual = math.sqrt(moved), math.sqrt(usual)
    # In floating point, a point may be a little away from itself.
    stands = np.array_equal(centers, choices.layouts[-1])
    far = moved / usual if usual and not stands else 0.0
    unit = fit.model.cost_unit
    seen = fit.model.seen or seen_costs(X, choices, cost, unit)
    D = cost.pairwise(torch.from_numpy(np.asarray(X, dtype=np.float64)), Y).numpy() / unit
    labels = np.asarray(labels)
    j = np.maximum(labels if labels.ndim == 1 else labels.argmax(1), 0)
    rows = np.arange(len(X))
    obeying = np.arange(K) == j[:, None]
    # Told to go farther than anyone was: whatever they then do is not known from the log.
    too_far = D[rows, j] > seen["stay"][1]
    outside = too_far[:, None] | (~obeying & (seen["entity"][1] < D))
    problem = Problem(X, sample_weight=weight, cost=cost, autonomy=fit.model)
    p = problem.conditional(centers, j)
    share = float(problem.weight @ (p * outside).sum(1))
    closest = 1.0
    if K > 1:
        gap = min(float(cost.pairwise(one, one)[others].min()) for one in layouts)
        closest = float(cost.pairwise(Y, Y)[others].min()) / gap if gap > 0 else 1.0
        closest = math.sqrt(closest) if cost.name.startswith("sq") else closest
    told = untried(log, centers, labels)
    return Reach(len(layouts), far, share, min(1.0, closest), told)


def narrow(log: Log) -> int | None:
    """Return the rank (0 for the nearest) that was all but always prescribed, if one was."""
    shares = shares_of_ranks(log.X, log.choices, log.cost)
    one = len(shares) > 1 and float(shares.max()) > 1 - RARELY
    return int(shares.argmax()) if one else None


def untried(log: Log, centers: FloatArray, policy: Any) -> float:
    """Return the share of entities that a plan tells what a log of one rank has never tried."""
    rank = narrow(log)
    if rank is None:
        return 0.0
    X, Y = (torch.from_numpy(np.asarray(one, dtype=np.float64)) for one in (log.X, centers))
    other = ranks(log.cost.pairwise(X, Y)).numpy() != rank
    return float(log.shares @ (as_policy(policy, len(Y)) * other).sum(1))


def _even(choices: Choices, rho: FloatArray) -> FloatArray:
    """Return weights of rows by which entities count as they should, however often logged."""
    i = choices.entities
    weights: FloatArray = rho[i] / np.bincount(i, minlength=len(rho))[i]
    return weights


def _as_logged(fit: ChoiceFit, log: Log) -> Direct:
    """Return what the model expects of the last centres and of what was prescribed there.

    Which prescriptions an entity happened to get, and which entities are in the log, goes into the
    error.
    """
    X, cost, weight, choices, _ = log
    last = choices.take(choices.layout == len(choices.layouts) - 1)
    n, K, Y = len(X), choices.n_clusters, choices.layouts[-1]
    rho = log.shares
    i, j = last.entities, last.prescribed
    w = _even(last, rho)
    seen = float(w.sum())
    if seen == 0:
        return Direct(math.nan, np.zeros(len(fit.stay.coefficients) + len(fit.away.coefficients)))
    mass = np.bincount(i * K + j, w / seen, n * K).reshape(n, K)
    share = np.divide(mass, rho[:, None], out=np.zeros_like(mass), where=rho[:, None] > 0)
    found = direct(fit, X, cost, weight, Y, share)
    E = Problem(X, cost=cost, autonomy=fit.model).expected_costs(Y)[i, j]
    rows = np.bincount(i, minlength=n)
    mean = np.bincount(i, E, n) / np.maximum(rows, 1)
    here = rows > 0
    within = float(((E - mean[i]) ** 2).sum()) / max(1, len(E) - int(here.sum()))
    between = float(np.average((mean[here] - found.value) ** 2, weights=rho[here]))
    noise = within * float((rho[here] ** 2 / rows[here]).sum()) / seen**2
    noise += max(0.0, 1 - seen) * between * float((rho[here] ** 2).sum()) / seen**2
    return found._replace(noise=noise)


def propensities(X: FloatArray, choices: Choices, cost: Any) -> FloatArray:
    """Return how likely each logged prescription was, judging by how near its centre is.

    The share of prescriptions that went to the nearest centre, the second nearest and so on is
    counted over the whole log: right for logs in which prescriptions depend on distance alone.
    """
    rank, K = _prescribed_ranks(X, choices, cost), choices.n_clusters
    # Nothing is impossible: as if each rank had been prescribed once in K times more.
    share = (np.bincount(rank, minlength=K) + 1 / K) / (len(rank) + 1)
    return share[rank]


def fixed_prescriptions(X: FloatArray, choices: Choices, cost: Any) -> tuple[float, float, float]:
    """Return whether entities are told the same again and again, more than `propensities` say.

    Rows of an entity at the same centres are paired at random. If prescriptions are drawn anew each
    time by how near centres are, two of a pair differ as often as two that are drawn from all.

    Parameters
    ----------
    X : array of shape (n, d)
    choices : Choices
    cost : Cost

    Returns
    -------
    tuple of float
        Share of pairs that differ, the share that should, and the probability of so few by chance.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.choices import Choices
    >>> from volition.choices.worth import fixed_prescriptions
    >>> from volition.core.costs import SquaredEuclidean
    >>> X, who = np.arange(100.0)[:, None], np.repeat(np.arange(100), 4)
    >>> own = np.random.default_rng(0).integers(0, 2, 100)[who]
    >>> log = Choices(who, own, own, 0 * who, np.array([[[0.0], [99.0]]]))
    >>> fixed_prescriptions(X, log, SquaredEuclidean())[2] < 1e-6
    True
    """
    rank = _prescribed_ranks(np.asarray(X, dtype=np.float64), choices, cost)
    mixed = np.random.default_rng(0).permutation(len(rank))
    who = (choices.entities * len(choices.layouts) + choices.layout)[mixed]
    order = np.argsort(who, kind="stable")
    who, told = who[order], choices.prescribed[mixed][order]
    _, first, number = np.unique(who, return_index=True, return_inverse=True)
    second = np.flatnonzero((np.arange(len(who)) - first[number]) % 2 == 1)
    pairs, differ = len(second), int((told[second] != told[second - 1]).sum())
    times = np.bincount(rank)
    m = len(rank)
    # Two rows that are drawn from all without putting the first back.
    should = 1 - float((times * (times - 1.0)).sum()) / max(1.0, m * (m - 1.0))
    chance = float(binom.cdf(differ, pairs, should)) if pairs else 1.0
    return differ / max(pairs, 1), should, chance


def shares_of_ranks(X: FloatArray, choices: Choices, cost: Any) -> FloatArray:
    """Return how often the nearest centre was prescribed, the second nearest, and so on."""
    rank = _prescribed_ranks(X, choices, cost)
    shares: FloatArray = np.bincount(rank, minlength=choices.n_clusters) / len(rank)
    return shares


def _prescribed_ranks(X: FloatArray, choices: Choices, cost: Any) -> Any:
    D = choices.costs(np.asarray(X, dtype=np.float64), cost)
    return ranks(torch.from_numpy(D)).numpy()[np.arange(len(D)), choices.prescribed]
