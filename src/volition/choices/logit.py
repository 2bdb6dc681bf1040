"""Conditional logit by Newton's method: one kernel for all choices, with its standard errors.

A row is one decision between alternatives. The utility of an alternative is a sum of few terms,
each a value times one of P coefficients, so features are kept as (which coefficient, value) and a
table of K x K effects costs no more than a slope.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from volition.population import IntArray
from volition.validation import FloatArray

#: rows whose P features are held at a time
ROWS = 8192
#: terms per alternative beyond which features are not few
MANY = 6
#: Newton steps at most, and the decrement (in log-likelihood) at which they end
STEPS, FLAT = 60, 1e-9
#: smallest part of a Newton step that is tried
SHORTEST = 2.0**-20


class Decisions(NamedTuple):
    """Choices between alternatives, m rows; unused coefficients have value zero."""

    which: IntArray  # (m, A, S) coefficient
    value: FloatArray  # (m, A, S) what it is multiplied by
    open: np.ndarray  # (m, A) whether the alternative could be chosen
    chosen: IntArray  # (m,)
    weight: FloatArray  # (m,)
    n_coefficients: int

    def take(self, rows: np.ndarray) -> Decisions:
        """Return some rows."""
        which, value, open_, chosen, weight, n = self
        return Decisions(which[rows], value[rows], open_[rows], chosen[rows], weight[rows], n)


class LogitEstimate(NamedTuple):
    """Coefficients, the inverse of the penalised information, and the scores of all rows."""

    coefficients: FloatArray
    bread: FloatArray
    converged: bool


def log_probabilities(decisions: Decisions, theta: FloatArray) -> FloatArray:
    """Return log p of all alternatives, (m, A); -inf for those that were not open."""
    utility = (theta[decisions.which] * decisions.value).sum(2)
    utility[~decisions.open] = -np.inf
    utility -= utility.max(1, keepdims=True)
    return utility - np.log(np.exp(utility).sum(1, keepdims=True))


def log_likelihoods(decisions: Decisions, theta: FloatArray) -> FloatArray:
    """Return the log-likelihood of each row."""
    log_p = log_probabilities(decisions, theta)
    return log_p[np.arange(len(log_p)), decisions.chosen]


def scores(decisions: Decisions, theta: FloatArray) -> FloatArray:
    """Return the gradient of each row's log-likelihood, (m, P), unweighted."""
    p = np.exp(log_probabilities(decisions, theta))
    left = -p
    left[np.arange(len(p)), decisions.chosen] += 1
    return _gathered(decisions, left)


def _gathered(decisions: Decisions, weight: FloatArray) -> FloatArray:
    """Return the sum over alternatives of weights times features, (m, P)."""
    m, P = len(weight), decisions.n_coefficients
    flat = decisions.which + (np.arange(m) * P)[:, None, None]
    values = decisions.value * weight[:, :, None]
    sums: FloatArray = np.bincount(flat.ravel(), values.ravel(), m * P).astype(np.float64)
    return sums.reshape(m, P)


def _expansion(
    decisions: Decisions, theta: FloatArray, ridge: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Return the penalised log-likelihood, its gradient, and minus its Hessian."""
    total = -0.5 * float(ridge @ theta**2)
    gradient, information = -ridge * theta, np.diag(ridge)
    for lo in range(0, len(decisions.chosen), ROWS):
        part = decisions.take(np.arange(lo, min(lo + ROWS, len(decisions.chosen))))
        log_p, w = log_probabilities(part, theta), part.weight
        rows, p = np.arange(len(log_p)), np.exp(log_p)
        total += float(w @ log_p[rows, part.chosen])
        mean = _gathered(part, p)
        pick = np.zeros_like(p)
        pick[rows, part.chosen] = 1
        gradient = gradient + w @ (_gathered(part, pick) - mean)
        information = information + _squares(part, p * w[:, None])
        information = information - (mean * w[:, None]).T @ mean
    return total, gradient, information


def _squares(decisions: Decisions, weight: FloatArray) -> FloatArray:
    """Return the weighted sum over rows and alternatives of features times features, (P, P)."""
    P, (_, A, S) = decisions.n_coefficients, decisions.which.shape
    out = np.zeros((P, P))
    if S > MANY:  # all but full: as matrices, one alternative at a time
        for a in range(A):
            if not decisions.value[:, a].any():
                continue
            only = np.zeros_like(weight)
            only[:, a] = 1
            full = _gathered(decisions, only)
            out += (full * weight[:, a, None]).T @ full
        return out
    weighted = weight[:, :, None] * decisions.value
    for s in range(S):
        pairs = decisions.which[:, :, s, None] * P + decisions.which
        values = weighted[:, :, s, None] * decisions.value
        out += np.bincount(pairs.ravel(), values.ravel(), P * P).reshape(P, P)
    return out


def fit_logit(
    decisions: Decisions, ridge: FloatArray, start: FloatArray | None = None
) -> LogitEstimate:
    """Return the coefficients of the largest likelihood less half ``ridge`` times their squares.

    Examples
    --------
    Three of four stay: the log-odds are log 3.

    >>> import numpy as np
    >>> from volition.choices.logit import Decisions, fit_logit
    >>> stays = Decisions(
    ...     which=np.zeros((4, 2, 1), int), value=np.array([[[1.0], [0.0]]] * 4),
    ...     open=np.ones((4, 2), bool), chosen=np.array([0, 0, 0, 1]), weight=np.ones(4),
    ...     n_coefficients=1,
    ... )
    >>> bool(np.isclose(fit_logit(stays, np.zeros(1)).coefficients[0], np.log(3)))
    True
    """
    theta = np.zeros(decisions.n_coefficients) if start is None else start.astype(np.float64)
    value, gradient, information = _expansion(decisions, theta, ridge)
    converged = False
    for _ in range(STEPS):
        step = _solved(information, gradient)
        decrement = float(gradient @ step)
        if decrement <= FLAT * max(1.0, abs(value)):
            theta, converged = theta + step, True  # it is all but the last digits
            information = _expansion(decisions, theta, ridge)[2]
            break
        length = 1.0
        while length > SHORTEST:
            trial = theta + length * step
            new = _value(decisions, trial, ridge)
            if new >= value + 1e-4 * length * decrement:
                break
            length /= 2
        else:
            break
        theta = trial
        value, gradient, information = _expansion(decisions, theta, ridge)
    return LogitEstimate(theta, _inverse(information), converged)


def _value(decisions: Decisions, theta: FloatArray, ridge: FloatArray) -> float:
    fit = float(decisions.weight @ log_likelihoods(decisions, theta))
    return fit - 0.5 * float(ridge @ theta**2)


def _factored(information: FloatArray) -> tuple[FloatArray, bool]:
    scale = 1e-12 * max(float(np.trace(information)) / max(len(information), 1), 1e-300)
    while True:
        try:
            factor: tuple[FloatArray, bool] = cho_factor(
                information + scale * np.eye(len(information))
            )
            return factor
        except np.linalg.LinAlgError:
            scale *= 100


def _solved(information: FloatArray, gradient: FloatArray) -> FloatArray:
    solution: FloatArray = cho_solve(_factored(information), gradient)
    return solution


def _inverse(information: FloatArray) -> FloatArray:
    return _solved(information, np.eye(len(information)))
