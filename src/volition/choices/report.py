"""What a fitted choice model says, in words and numbers that people know, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from volition.choices.data import Choices, make_decisions, make_scene
from volition.choices.fit import ChoiceFit, refit
from volition.choices.logit import log_probabilities
from volition.choices.overrides import wilson
from volition.choices.terms import Term, named
from volition.choices.worth import RARELY, shares_of_ranks
from volition.costs import Cost
from volition.validation import FloatArray

#: choices and overrides below which a word of caution is due
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
    observed: float
    low: float
    high: float
    n: int


def parameters(fit: ChoiceFit, level: float = 0.95) -> list[Parameter]:
    """Return kappa, zeta/T, gamma/T, gamma and T as far as the model has them.

    The unit of zeta is free (only zeta/T and gamma/T can be seen); gamma and T are for zeta = 1.

    Parameters
    ----------
    fit : ChoiceFit
    level : float, default=0.95
        Of the intervals.

    Examples
    --------
    See ``docs/from-a-log.md``.
    """
    z = float(norm.ppf(0.5 + level / 2))
    found = []
    if fit.stay.terms == ("constant",):
        log_odds, error = fit.stay.coefficients[0], math.sqrt(fit.stay.covariance[0, 0])
        kappa = (float(expit(-(log_odds + shift * error))) for shift in (0.0, z, -z))
        found.append(Parameter("kappa", *kappa))
    away, unit = fit.away, fit.model.cost_unit
    slopes = {}
    straight = set(away.terms) <= {"pair", "entity"}  # else slopes are not those of the family
    for term, name in (("pair", "zeta / T"), ("entity", "gamma / T")):
        if straight and term in away.places:
            at = away.places[term].start
            value, error = -away.coefficients[at] / unit, math.sqrt(away.covariance[at, at]) / unit
            slopes[term] = (value, error, at)
            found.append(Parameter(name, value, value - z * error, value + z * error))
    if "pair" in slopes:
        value, error, at = slopes["pair"]
        if value > 0:
            low, high = 1 / (value + z * error), value - z * error
            found.append(Parameter("T", 1 / value, low, 1 / high if high > 0 else math.inf))
    if len(slopes) == 2:
        a, c = slopes["pair"], slopes["entity"]
        both = float(away.covariance[a[2], c[2]]) / unit**2
        low, high = _quotient(c[0], a[0], c[1] ** 2, a[1] ** 2, both, z)
        found.append(Parameter("gamma", c[0] / a[0] if a[0] else math.nan, low, high))
    return found


def _quotient(
    top: float, bottom: float, var_top: float, var_bottom: float, both: float, z: float
) -> tuple[float, float]:
    """Return Fieller's interval of a quotient; all numbers where the bottom may be nought."""
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

    Parameters
    ----------
    fit : ChoiceFit
    level : float, default=0.95
        Of the intervals.
    covariates : sequence of str
        Names of the covariates; numbers by default.
    """
    z = float(norm.ppf(0.5 + level / 2))
    rows = []
    for name, part in fit.parts.items():
        errors = np.sqrt(np.maximum(np.diag(part.covariance), 0))
        for term in named(name, part.terms):
            where = part.places[term.name]
            for number, at in enumerate(range(where.start, where.stop)):
                value, half = float(part.coefficients[at]), z * float(errors[at])
                size = where.stop - where.start
                label = f"{name}: {term.name}{_which(term, number, size, covariates)}"
                rows.append(Parameter(label, value, value - half, value + half))
    return rows


def _which(term: Term, number: int, size: int, covariates: Sequence[str]) -> str:
    """Return which of a term's coefficients this is."""
    if not ("covariates" in term.per and covariates):
        return f"[{number}]" if size > 1 else ""
    each = size // len(covariates)
    cluster = f", {number % each}" if each > 1 else ""
    return f"[{covariates[number // each]}{cluster}]"


def calibration(
    fit: ChoiceFit, X: FloatArray, choices: Choices, cost: Cost, n_bins: int = 10
) -> list[CalibrationBin]:
    """Return how often predicted choices came true, for obeying and for each way to override.

    The terms of the model are fitted to the choices of three in four entities; what they predict
    for the others is compared with what those did.

    Parameters
    ----------
    fit : ChoiceFit
    X : array of shape (n, d)
    choices : Choices
    cost : Cost
    n_bins : int
        Bins of equal width.
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
        came = np.zeros(p.shape, dtype=bool)
        came[np.arange(len(p)), decisions.chosen] = True
        if name == "stay":
            p, came = p[:, 0], came[:, 0]
        else:
            p, came = p[decisions.open], came[decisions.open]
        number = np.minimum((p * n_bins).astype(np.int64), n_bins - 1)
        for b in np.unique(number):
            rows = np.flatnonzero(number == b)
            n, k = len(rows), int(came[rows].sum())
            ends = wilson(k / n, n)
            bins.append(CalibrationBin(name, float(p[rows].mean()), k / n, *ends, n))
    return bins


def cautions(fit: ChoiceFit, X: FloatArray, choices: Choices, cost: Cost) -> list[str]:
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
    if choices.n_clusters > 1:
        shares = shares_of_ranks(X, choices, cost)
        if shares.max() > 1 - RARELY:
            rank = int(shares.argmax())
            name = "the nearest centre" if rank == 0 else f"the centre of rank {rank + 1}"
            found.append(
                f"In {_almost(float(shares[rank]))} of the choices {name} was prescribed: the log "
                "does not show what entities do when told to use another one, and says nothing of "
                "plans that tell them to. Prescribe a random centre in one case of ten to find out."
            )
    return found


def _almost(share: float) -> str:
    """Return a share near one in per cent, without rounding it up to all."""
    return "100 %" if share == 1 else f"{math.floor(1000 * share) / 10:.1f} %"
