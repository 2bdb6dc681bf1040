"""What a fitted choice model says, in words and numbers that people know, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from volition.choices.data import Choices, make_decisions, make_scene
from volition.choices.fit import FAMILIES, ChoiceFit, refit
from volition.choices.logit import log_probabilities
from volition.choices.seen_costs import RARELY, shares_of_ranks
from volition.choices.statistics import percent, wilson
from volition.choices.terms import Term, named
from volition.core.costs import Cost
from volition.core.validation import FloatArray

#: choices and overrides below which a caution is due
FEW_CHOICES, FEW_OVERRIDES = 200, 20


class Parameter(NamedTuple):
    """A number of the model, and its interval."""

    name: str
    value: float
    low: float
    high: float


class CalibrationBin(NamedTuple):
    """Choices that were predicted with about the same probability, and how many came true."""

    part: str
    predicted: float
    came_true: float
    low: float
    high: float
    n: int


def parameters(fit: ChoiceFit, level: float = 0.95) -> list[Parameter]:
    """Return kappa, zeta/T, gamma/T, gamma and T as far as the model has them.

    The unit of zeta is free (only zeta/T and gamma/T can be seen); gamma and T are for zeta = 1.
    Intervals have the given level. For an example see ``docs/from-a-log.md``.
    """
    z = float(norm.ppf(0.5 + level / 2))
    found, (stay, away) = [], FAMILIES["distance"]
    if fit.stay.terms == stay:
        log_odds, error = fit.stay.coefficients[0], math.sqrt(fit.stay.covariance[0, 0])
        kappa = (float(expit(-(log_odds + shift * error))) for shift in (0.0, z, -z))
        found.append(Parameter("kappa", *kappa))
    if not set(fit.away.terms) <= set(away):
        return found  # slopes are not those of the family
    unit, slopes = fit.model.cost_unit, {}
    for term, name in zip(away, ("zeta / T", "gamma / T"), strict=True):
        if term in fit.away.slices:
            at = fit.away.slices[term].start
            value = -fit.away.coefficients[at] / unit
            error = math.sqrt(fit.away.covariance[at, at]) / unit
            slopes[name] = (value, error)
            found.append(Parameter(name, value, value - z * error, value + z * error))
    zeta, gamma = slopes.get("zeta / T"), slopes.get("gamma / T")
    if zeta and zeta[0] > 0:
        low, high = 1 / (zeta[0] + z * zeta[1]), zeta[0] - z * zeta[1]
        found.append(Parameter("T", 1 / zeta[0], low, 1 / high if high > 0 else math.inf))
    if zeta and gamma:
        both = float(fit.away.covariance[0, 1]) / unit**2
        ends = _quotient(gamma[0], zeta[0], gamma[1] ** 2, zeta[1] ** 2, both, z)
        value = gamma[0] / zeta[0] if zeta[0] else math.nan
        found.append(Parameter("gamma", value, *ends))
    return found


def _quotient(
    top: float, bottom: float, var_top: float, var_bottom: float, both: float, z: float
) -> tuple[float, float]:
    """Return Fieller's interval of a quotient; all numbers where the bottom may be zero."""
    a = bottom**2 - z**2 * var_bottom
    b = top * bottom - z**2 * both
    c = top**2 - z**2 * var_top
    if a <= 0:
        return -math.inf, math.inf
    root = math.sqrt(max(b**2 - a * c, 0.0))
    return (b - root) / a, (b + root) / a


def coefficients(
    fit: ChoiceFit, level: float = 0.95, covariates: Sequence[str] = ()
) -> list[Parameter]:
    """Return every coefficient of both parts, in units of the data's own cost.

    Intervals have the given level. Covariates go by their names, or else by numbers.
    """
    z = float(norm.ppf(0.5 + level / 2))
    rows = []
    for name, part in fit.parts.items():
        theta = part.coefficients
        half = z * np.sqrt(np.maximum(np.diag(part.covariance), 0))
        labels = [
            f"{name}: {term.name}{which}"
            for term in named(name, part.terms)
            for which in _each(term, len(part.by_term()[term.name]), covariates)
        ]
        for label, *ends in zip(labels, theta, theta - half, theta + half, strict=True):
            rows.append(Parameter(label, *map(float, ends)))
    return rows


def _each(term: Term, size: int, covariates: Sequence[str]) -> list[str]:
    """Return what tells a term's coefficients apart."""
    if not ("covariates" in term.per and covariates):
        return [f"[{number}]" for number in range(size)] if size > 1 else [""]
    each = size // len(covariates)
    if each == 1:
        return [f"[{name}]" for name in covariates]
    return [f"[{name}, {cluster}]" for name in covariates for cluster in range(each)]


def calibration(
    fit: ChoiceFit, X: FloatArray, choices: Choices, cost: Cost, n_bins: int = 10
) -> list[CalibrationBin]:
    """Return how often predicted choices came true, for obeying and for each way to override.

    The terms of the model are fitted to the choices of three in four entities; what they predict
    for the others is compared with what those did, in bins of equal width.
    """
    X = np.asarray(X, dtype=np.float64)
    held = choices.entities % 4 == 3
    if held.any() and not held.all():
        fit = refit(fit, X, choices.take(~held), cost, fit.model.covariates)
        choices = choices.take(held)
    model = fit.model
    covariates = np.zeros((len(X), 0)) if model.covariates is None else model.covariates
    scene = make_scene(X, choices, cost, model.cost_unit, covariates, model.basis)
    bins = []
    for name, part in fit.parts.items():
        decisions, _, _ = make_decisions(name, part.terms, scene, choices.realized)
        if len(decisions.chosen) == 0 or (name == "away" and choices.n_clusters < 3):
            continue
        p = np.exp(log_probabilities(decisions, part.coefficients))
        came = np.arange(p.shape[1]) == decisions.chosen[:, None]
        which = decisions.open if name == "away" else (slice(None), 0)
        p, came = p[which], came[which]
        number = np.minimum((p * n_bins).astype(np.int64), n_bins - 1)
        for b in np.unique(number):
            mine = number == b
            n, share = int(mine.sum()), float(came[mine].mean())
            bins.append(CalibrationBin(name, float(p[mine].mean()), share, *wilson(share, n), n))
    return bins


def log_cautions(X: FloatArray, choices: Choices, cost: Cost) -> list[str]:
    """Return, in sentences, why less can be concluded from a log than its numbers suggest."""
    found, m = [], len(choices.entities)
    left = int((choices.realized != choices.prescribed).sum())
    if m < FEW_CHOICES:
        found.append(
            f"There are only {m} choices; with fewer than {FEW_CHOICES}, intervals are rough."
        )
    if left == 0:
        found.append(
            f"Nobody overrode in {m} choices, so the log does not show where entities go when they "
            "do."
        )
    elif left < FEW_OVERRIDES:
        were = "choices was an override" if left == 1 else "choices were overrides"
        found.append(
            f"Only {left} of {m} {were}: too few (below {FEW_OVERRIDES}) to tell well where "
            "entities go."
        )
    shares = shares_of_ranks(X, choices, cost)
    if choices.n_clusters > 1 and shares.max() > 1 - RARELY:
        rank = int(shares.argmax())
        name = "the nearest centre" if rank == 0 else f"the centre of rank {rank + 1}"
        found.append(
            f"In {percent(float(shares[rank]))} of the choices {name} was prescribed: the log does "
            "not show what entities do when told to use another one, and says nothing of plans "
            "that tell them to. Prescribe a random centre in one case of ten to find out."
        )
    return found
