"""Conditional logit by Newton's method: one kernel for all choices, with its standard errors.

A row is one decision between alternatives. The utility of an alternative is a sum of few terms,
each a value times one of P coefficients, so features are kept as (which coefficient, value) and a
table of K x K effects costs no more than a slope.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import norm, t

from volition.core.validation import FloatArray
from volition.populations.answers import IntArray

#: rows whose P features are held at a time
ROWS = 8192
#: terms per alternative beyond which features are not few
MANY_TERMS = 6
#: Newton steps at most, and the decrement (in log-likelihood) at which they end
NEWTON_STEPS, FLAT_DECREMENT = 60, 1e-9
#: smallest part of a Newton step that is tried
SHORTEST_STEP = 2.0**-20
#: leverage of clusters is computed up to so many numbers (clusters x P x P), and so many products
#: (rows x alternatives x P x P); beyond, clusters are many or it would take too long
LEVERAGE_NUMBERS, LEVERAGE_PRODUCTS = 5_000_000, 2_000_000_000
#: without the only cluster that determines a coefficient there is none; this keeps numbers finite
LEVERAGE_MARGIN = 1e-10


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


class LogitFit(NamedTuple):
    """Coefficients, the inverse of the penalised information, and whether Newton's method ended."""

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


def _features(decisions: Decisions, alternative: int) -> FloatArray:
    """Return what the coefficients of one alternative are multiplied by, (m, P)."""
    only = np.zeros(decisions.open.shape)
    only[:, alternative] = 1
    return _gathered(decisions, only)


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
    if S > MANY_TERMS:  # all but full: as matrices, one alternative at a time
        for a in range(A):
            if decisions.value[:, a].any():
                full = _features(decisions, a)
                out += (full * weight[:, a, None]).T @ full
        return out
    weighted = weight[:, :, None] * decisions.value
    for s in range(S):
        pairs = decisions.which[:, :, s, None] * P + decisions.which
        values = weighted[:, :, s, None] * decisions.value
        out += np.bincount(pairs.ravel(), values.ravel(), P * P).reshape(P, P)
    return out


def fit_logit(decisions: Decisions, ridge: FloatArray, start: FloatArray | None = None) -> LogitFit:
    """Return the coefficients of the largest likelihood less half ``ridge`` times their squares."""
    theta = np.zeros(decisions.n_coefficients) if start is None else start.astype(np.float64)
    value, gradient, information = _expansion(decisions, theta, ridge)
    converged = False
    for _ in range(NEWTON_STEPS):
        step = _solved(information, gradient)
        decrement = float(gradient @ step)
        if decrement <= FLAT_DECREMENT * max(1.0, abs(value)):
            theta, converged = theta + step, True  # it is all but the last digits
            information = _expansion(decisions, theta, ridge)[2]
            break
        length = 1.0
        while length > SHORTEST_STEP:
            trial = theta + length * step
            new = _value(decisions, trial, ridge)
            if new >= value + 1e-4 * length * decrement:
                break
            length /= 2
        else:
            break
        theta = trial
        value, gradient, information = _expansion(decisions, theta, ridge)
    return LogitFit(theta, _inverse(information), converged)


def robust_covariance(
    decisions: Decisions, fitted: LogitFit, clusters: Any = None, *, leverage: bool = False
) -> FloatArray:
    """Return the sandwich covariance of the coefficients: right if rows of a cluster go together.

    By default all rows are independent. Where the fit was penalised, the penalty's part of the
    bread remains: that is the square of the bias that the penalty allows for. ``leverage`` corrects
    for how much each cluster draws the fit towards itself, as if one after the other were left out
    (one Newton step each; "CR3"): without, errors are too small where few clusters determine a
    coefficient.
    """
    meat, information, _ = _meat(decisions, fitted, clusters, leverage)
    return fitted.bread + fitted.bread @ (meat - information) @ fitted.bread


def cautious_covariance(decisions: Decisions, fitted: LogitFit, clusters: np.ndarray) -> FloatArray:
    """Return the larger of plain and robust covariance, direction by direction.

    The plain one (the bread) is right where all rows are independent, the robust one also where
    those of a cluster go together, but it is itself uncertain where clusters are few. In
    coordinates in which the plain one is the identity and the robust one diagonal, each direction
    takes the larger of the two: no combination of coefficients gets a smaller variance than by
    either, and one on which the two agree keeps it.
    """
    bread = fitted.bread
    meat, information, n_clusters = _meat(decisions, fitted, clusters, True)
    if n_clusters < 2:
        return bread  # how choices of one entity go together cannot be seen
    # Intervals are made with normal quantiles; Student's are wider where clusters are few.
    wider = float(t.ppf(0.975, n_clusters - 1) / norm.ppf(0.975)) ** 2
    size, axes = np.linalg.eigh((bread + bread.T) / 2)
    root = axes * np.sqrt(np.maximum(size, 0.0))  # bread = root @ root.T
    excess, turned = np.linalg.eigh(root.T @ (wider * meat - information) @ root)
    turned = root @ turned
    return bread + (turned * np.maximum(excess, 0.0)) @ turned.T


def _meat(
    decisions: Decisions, fitted: LogitFit, clusters: np.ndarray | None, leverage: bool
) -> tuple[FloatArray, FloatArray, int]:
    """Return the squares of scores summed by cluster, what they are expected to be, and how many.

    What is expected (the information of the rows, without penalty) is what the squares estimate
    where rows are independent and the model is right.
    """
    m, P = len(decisions.chosen), decisions.n_coefficients
    which = np.arange(m) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    n = int(which.max(initial=-1)) + 1
    theta, information = fitted.coefficients, np.zeros((P, P))
    summed: FloatArray = np.zeros((n, P))
    for lo in range(0, m, ROWS):
        rows = np.arange(lo, min(lo + ROWS, m))
        part = decisions.take(rows)
        np.add.at(summed, which[rows], part.weight[:, None] * scores(part, theta))
        information += _expansion(part, theta, np.zeros(P))[2]
    products = m * decisions.which.shape[1] * P * P
    if not leverage or n < 2:
        return summed.T @ summed, information, n
    if n * P * P > LEVERAGE_NUMBERS or products > LEVERAGE_PRODUCTS:
        return n / (n - 1) * summed.T @ summed, information, n
    own = _information_by_cluster(decisions, theta, which, n)
    rest = (1 + LEVERAGE_MARGIN) * np.eye(P) - own @ fitted.bread
    summed = np.linalg.solve(rest, summed[:, :, None])[:, :, 0]
    return (n - 1) / n * summed.T @ summed, information, n


def _information_by_cluster(
    decisions: Decisions, theta: FloatArray, which: IntArray, n: int
) -> FloatArray:
    """Return the information of the rows of each cluster, (n, P, P)."""
    P, A = decisions.n_coefficients, decisions.which.shape[1]
    out = np.zeros((n, P, P))
    order = np.argsort(which, kind="stable")
    step = max(1, 2_000_000 // max(P * max(P, A), 1))
    for lo in range(0, len(order), step):
        rows = order[lo : lo + step]
        part = decisions.take(rows)
        p = np.exp(log_probabilities(part, theta))
        full = np.stack([_features(part, a) for a in range(A)], axis=1)
        full -= np.einsum("ra,rap->rp", p, full)[:, None]
        full *= np.sqrt(p * part.weight[:, None])[:, :, None]
        squares = full.transpose(0, 2, 1) @ full
        here, first = np.unique(which[rows], return_index=True)
        out[here] += np.add.reduceat(squares, first, axis=0)
    return out


def _value(decisions: Decisions, theta: FloatArray, ridge: FloatArray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):  # too long a step is not taken
        fit = float(decisions.weight @ log_likelihoods(decisions, theta))
    return fit - 0.5 * float(ridge @ theta**2)


def _factored(information: FloatArray) -> Any:
    scale = 1e-12 * max(float(np.trace(information)) / max(len(information), 1), 1e-300)
    while True:
        try:
            factor: Any = cho_factor(information + scale * np.eye(len(information)))
            return factor
        except np.linalg.LinAlgError:
            scale *= 100


def _solved(information: FloatArray, gradient: FloatArray) -> FloatArray:
    solution: FloatArray = cho_solve(_factored(information), gradient)
    return solution


def _inverse(information: FloatArray) -> FloatArray:
    return _solved(information, np.eye(len(information)))
