"""What is it worth? Expected distortion of any centres and prescriptions, with error bars.

Three estimates stand side by side. *Direct*: what the fitted model expects. *Weighted*: the costs
that logged choices would have had, each weighted by how much likelier the new prescriptions (and,
where centres move, the model) make it. *Doubly robust*: the direct estimate corrected by the
weighted mistakes of the model: at the centres of the log it is right if either the model or the
propensities are. Where centres move, weights come from the model too, and the latter two exist only
where the log has seen what would be chosen: centres that move far are beyond any weighting.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import norm

from volition.choices.data import Choices
from volition.choices.fit import ChoiceFit
from volition.choices.ranked import ranks
from volition.problem import Problem
from volition.validation import FloatArray

#: weights are cut here, as a multiple of their mean, so that no single row decides
LARGEST = 50.0
#: a choice counts as seen in the log if moving the centres makes it at most so many times likelier,
#: and weights are used where this share of all choices at the new centres is seen
LIKELIER, SEEN = 20.0, 0.98
#: rows of a log that are looked at together
ROWS = 16_384


class Interval(NamedTuple):
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, error: float, level: float = 0.95) -> Interval:
        """Return the normal interval."""
        half = float(norm.ppf(0.5 + level / 2)) * error
        return cls(value, value - half, value + half)


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
        return Interval.around(self.value, math.sqrt(max(variance, 0.0)), level)


def direct(
    fit: ChoiceFit,
    X: Any,
    cost: Any,
    weight: Any,
    centers: FloatArray,
    policy: Any,
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
    theta = torch.tensor(
        np.concatenate([fit.stay.coefficients, fit.away.coefficients]), requires_grad=True
    )
    split = len(fit.stay.coefficients)
    stay = {term: theta[:split][where] for term, where in fit.stay.places.items()}
    away = {term: theta[split:][where] for term, where in fit.away.places.items()}
    model = fit.model.with_coefficients(stay, away)
    problem = Problem(
        np.asarray(X, dtype=np.float64), sample_weight=weight, cost=cost, autonomy=model
    )
    y = problem.centers(centers) - problem.origin
    pi, rho = torch.from_numpy(as_policy(policy, len(y))), torch.from_numpy(problem.weight)
    total, gradient = 0.0, np.zeros(len(theta))
    for lo in range(0, problem.n, ROWS):
        rows = slice(lo, min(lo + ROWS, problem.n))
        chunk, transition = problem.chunk(rows, 0, y)
        expected = (pi[rows] * transition.expected(chunk.D)).sum(1)
        part = (rho[rows] * expected).sum()
        total += float(part.detach())
        if part.requires_grad:
            gradient += torch.autograd.grad(part, theta)[0].numpy()
    return Direct(total, gradient)


def as_policy(policy: Any, K: int) -> FloatArray:
    """Return probabilities (n, K) from them or from labels."""
    policy = np.asarray(policy)
    if policy.ndim == 1:
        return np.eye(K)[policy]
    return policy.astype(np.float64)


class OffPolicy(NamedTuple):
    """Estimates from logged choices."""

    weighted: Interval
    robust: Interval
    effective_rows: float


def off_policy(
    fit: ChoiceFit,
    X: FloatArray,
    cost: Any,
    weight: FloatArray | None,
    choices: Choices,
    propensity: FloatArray,
    centers: FloatArray,
    policy: Any,
    level: float = 0.95,
) -> OffPolicy:
    """Return the weighted and the doubly robust estimate of centres and prescriptions.

    Parameters
    ----------
    fit, X, cost, weight, centers
        As in `direct`.
    choices : Choices
        The log.
    propensity : array of shape (m,)
        Probability with which each logged prescription was made.
    policy
        None for prescriptions as in the log.
    level : float
        Of the intervals.
    """
    i, j, k = choices.entities, choices.prescribed, choices.realized
    rho = np.full(len(X), 1 / len(X)) if weight is None else weight / weight.sum()
    w = _even(choices, rho)
    if policy is None:
        # As it was: nothing to weight, and nothing for a model to correct.
        last = choices.take(choices.layout == len(choices.layouts) - 1)
        if len(last.entities) == 0:
            return OffPolicy(NONE, NONE, 0.0)
        i, w = last.entities, _even(last, rho)
        y = torch.from_numpy(np.asarray(centers, dtype=np.float64)[last.realized][:, None])
        logged = cost.each(torch.from_numpy(np.asarray(X, dtype=np.float64)[i]), y)[:, 0].numpy()
        plain = _ratio_estimate(w, logged, i, 0.0, level)
        return OffPolicy(plain, plain, float(w.sum() ** 2 / (w**2).sum()))
    pi = as_policy(policy, len(centers))
    kept = pi[i, j] > 0
    moved = any(not np.array_equal(Y, centers) for Y in choices.layouts)
    if moved:
        ratio, seen_share = _ratio(fit, X, cost, choices, centers, kept, w)
        if seen_share < SEEN:
            return OffPolicy(NONE, NONE, 0.0)
        w = w * ratio
    w = w * pi[i, j] / propensity
    problem = Problem(X, sample_weight=weight, cost=cost, autonomy=fit.model)
    expected = problem.expected_costs(centers)
    with torch.no_grad():
        y = torch.from_numpy(np.asarray(centers, dtype=np.float64)[k][:, None])
        realised = cost.each(torch.from_numpy(np.asarray(X, dtype=np.float64)[i]), y)[:, 0].numpy()
    positive = w[w > 0]
    if len(positive) == 0:
        return OffPolicy(NONE, NONE, 0.0)
    w = np.minimum(w, LARGEST * positive.mean())
    weighted = _ratio_estimate(w, realised, i, 0.0, level)
    model_value = float(rho @ (pi * expected).sum(1))
    mistakes = realised - expected[i, j]
    robust = _ratio_estimate(w, mistakes, i, model_value, level)
    return OffPolicy(weighted, robust, float(w.sum() ** 2 / (w**2).sum()))


def _ratio_estimate(
    w: FloatArray, value: FloatArray, who: Any, shift: float, level: float
) -> Interval:
    """Return the weighted mean, its error from entities that are independent of each other."""
    mean = float(w @ value / w.sum())
    left = np.bincount(who, weights=w * (value - mean))
    error = math.sqrt(float((left**2).sum())) / float(w.sum())
    return Interval.around(shift + mean, error, level)


def _ratio(
    fit: ChoiceFit,
    X: FloatArray,
    cost: Any,
    choices: Choices,
    centers: FloatArray,
    kept: Any,
    share: FloatArray,
) -> tuple[FloatArray, float]:
    """Return how much likelier the model holds each logged choice at other centres.

    Also the share of all choices there that the log may have seen.
    """
    out = np.zeros(len(kept))
    rows = np.flatnonzero(kept)
    if len(rows) == 0:
        return out, 0.0
    x = torch.from_numpy(np.asarray(X, dtype=np.float64)[choices.entities[rows]])
    j, k = torch.from_numpy(choices.prescribed[rows]), choices.realized[rows]
    Y = torch.from_numpy(np.asarray(centers, dtype=np.float64))
    who, here = choices.entities[rows], np.arange(len(rows))
    with torch.no_grad():
        old = np.empty((len(rows), choices.n_clusters))
        for number, before in enumerate(torch.from_numpy(choices.layouts)):
            mine = np.flatnonzero(choices.layout[rows] == number)
            if len(mine) == 0:
                continue
            some = (x[mine], j[mine], before.expand(len(mine), -1, -1))
            old[mine] = fit.model.conditional_each(*some, cost, who[mine]).numpy()
        new = fit.model.conditional_each(x, j, Y.expand(len(rows), -1, -1), cost, who).numpy()
    covered = (new * (new <= LIKELIER * old)).sum(1)
    out[rows] = new[here, k] / np.maximum(old[here, k], 1e-12)
    return out, float(share[rows] @ covered / share[rows].sum())


class Worth(NamedTuple):
    """What some centres and prescriptions cost per entity, and save against today's."""

    name: str
    direct: Interval
    weighted: Interval
    robust: Interval
    effective_rows: float
    saving: Interval  # against the first option
    saving_if_ignored: Interval  # against the one called "autonomy ignored", if there is one

    def as_dict(self) -> dict[str, Any]:
        """Return a flat row: ``pandas.DataFrame(row.as_dict() for row in model.worth())``."""
        flat: dict[str, Any] = {"option": self.name}
        for kind in ("direct", "weighted", "robust", "saving", "saving_if_ignored"):
            for end, value in zip(("", "_low", "_high"), getattr(self, kind), strict=True):
                flat[f"{kind}{end}"] = value
        return flat | {"effective_rows": self.effective_rows}


def compare(
    fit: ChoiceFit,
    X: FloatArray,
    cost: Any,
    weight: FloatArray | None,
    choices: Choices,
    propensity: FloatArray,
    options: dict[str, tuple[FloatArray, Any]],
) -> list[Worth]:
    """Return all estimates for centres and prescriptions, the first of which are today's.

    Parameters
    ----------
    fit, X, cost, weight, choices, propensity
        As in `off_policy`.
    options : dict of name to (centers, policy)
        What is compared; a policy that is None is that of the log, at its last centres.

    Returns
    -------
    list of Worth
    """
    found = {
        name: direct(fit, X, cost, weight, centers, policy)
        if policy is not None
        else _as_logged(fit, X, cost, weight, choices)
        for name, (centers, policy) in options.items()
    }
    today = next(iter(found.values()))
    ignored = found.get(IGNORED)
    rows = []
    for name, here in found.items():
        logged = off_policy(fit, X, cost, weight, choices, propensity, *options[name])
        saving = today.minus(here).interval(fit)
        against = NONE if ignored is None else ignored.minus(here).interval(fit)
        rows.append(Worth(name, here.interval(fit), *logged, saving, against))
    return rows


class Reach(NamedTuple):
    """How far a decision goes beyond what the log shows."""

    n_layouts: int
    farthest_move: float  # of a centre, as a share of the mean distance between centres
    outside: float  # share of expected choices at costs that the log has never seen

    def __str__(self) -> str:
        if self.n_layouts == 1:
            seen = (
                "The centres never moved in this log: how choices change when they do is "
                "concluded from differences between centres and entities, not seen."
            )
        else:
            seen = f"The log has {self.n_layouts} sets of centres."
        return (
            f"{seen} The farthest centre moves by {100 * self.farthest_move:.0f} % of the usual "
            f"distance between centres; {100 * self.outside:.1f} % of the choices expected there "
            "are at costs, from the entity or from the prescribed centre, that are outside the "
            "range of the log."
        )


def reach(
    fit: ChoiceFit,
    X: FloatArray,
    cost: Any,
    weight: FloatArray | None,
    choices: Choices,
    centers: FloatArray,
    labels: Any,
) -> Reach:
    """Return how far centres and prescriptions go beyond the log."""
    x = torch.from_numpy(np.asarray(X, dtype=np.float64))
    layouts = torch.from_numpy(choices.layouts)
    Y, last, K = torch.from_numpy(np.asarray(centers, dtype=np.float64)), layouts[-1], len(centers)
    others = ~torch.eye(K, dtype=torch.bool)
    between = [cost.pairwise(before, before)[others] for before in layouts]
    usual = float(between[-1].mean()) if K > 1 else 0.0
    moved = float(cost.pairwise(Y, last).diagonal().max())
    if cost.name.startswith("sq"):  # costs are squares of lengths
        moved, usual = math.sqrt(moved), math.sqrt(usual)
    far = moved / usual if usual else 0.0
    here = torch.from_numpy(np.unique(choices.entities))
    logged = torch.cat([cost.pairwise(x[here], before).ravel() for before in layouts])
    D, j = cost.pairwise(x, Y), torch.from_numpy(np.maximum(np.asarray(labels), 0))
    outside = (logged.min() > D) | (logged.max() < D)
    if K > 1:
        pairs, apart = torch.cat(between), cost.pairwise(Y, Y)
        beyond = ((apart < pairs.min()) | (apart > pairs.max())) & others
        outside |= beyond[j]
    problem = Problem(X, sample_weight=weight, cost=cost, autonomy=fit.model)
    p = problem.conditional(centers, j.numpy())
    share = float(problem.weight @ (p * outside.numpy()).sum(1))
    return Reach(len(layouts), far, share)


def _even(choices: Choices, rho: FloatArray) -> FloatArray:
    """Return weights of rows by which entities count as they should, however often logged."""
    i = choices.entities
    weights: FloatArray = rho[i] / np.bincount(i, minlength=len(rho))[i]
    return weights


def _as_logged(
    fit: ChoiceFit, X: FloatArray, cost: Any, weight: FloatArray | None, choices: Choices
) -> Direct:
    """Return what the model expects of the last centres and of what was prescribed there.

    Which prescriptions an entity happened to get, and which entities are in the log, goes into the
    error.
    """
    last = choices.take(choices.layout == len(choices.layouts) - 1)
    n, K, Y = len(X), choices.n_clusters, choices.layouts[-1]
    rho = np.full(n, 1 / n) if weight is None else weight / weight.sum()
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
    rank, share = _share_of_ranks(X, choices, cost)
    return share[rank]


def shares_of_ranks(X: FloatArray, choices: Choices, cost: Any) -> FloatArray:
    """Return how often the nearest centre was prescribed, the second nearest, and so on."""
    rank, _ = _share_of_ranks(X, choices, cost)
    shares: FloatArray = np.bincount(rank, minlength=choices.n_clusters) / len(rank)
    return shares


def _share_of_ranks(X: FloatArray, choices: Choices, cost: Any) -> tuple[Any, FloatArray]:
    """Return the rank of each prescribed centre, and how often each rank is prescribed."""
    K = choices.n_clusters
    rank = np.empty(len(choices.entities), dtype=np.int64)
    for number, Y in enumerate(torch.from_numpy(choices.layouts)):
        rows = np.flatnonzero(choices.layout == number)
        D = cost.pairwise(torch.from_numpy(np.asarray(X, dtype=np.float64)), Y)
        order = ranks(D).numpy()
        rank[rows] = order[choices.entities[rows], choices.prescribed[rows]]
    # Nothing is impossible: as if each rank had been prescribed once in K times more.
    share = (np.bincount(rank, minlength=K) + 1 / K) / (len(rank) + 1)
    return rank, share
