"""What the fitted model expects of any centres and prescriptions, with error bars."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from volition.choices.extrapolation import lengths, usual_gap
from volition.choices.fit import ChoiceFit
from volition.choices.seen_costs import Log, chunks, even_weights, policy_matrix
from volition.choices.statistics import Z95, Interval
from volition.core.problem import Problem
from volition.core.validation import FloatArray

#: share of the usual gap between centres up to which one stands at the place of another
SAME_PLACE = 0.5


class ModelledCost(NamedTuple):
    """An expected cost, and how it changes with the coefficients of the model."""

    value: float
    gradient: FloatArray  # of stay and away coefficients, one after the other
    noise: float = 0.0  # variance from not knowing the prescriptions exactly

    def minus(self, other: ModelledCost) -> ModelledCost:
        """Return the difference."""
        noise = 0.0 if other is self else self.noise + other.noise
        return ModelledCost(self.value - other.value, self.gradient - other.gradient, noise)

    def interval(self, fit: ChoiceFit) -> Interval:
        """Return the value with what is not known of the coefficients (delta method)."""
        split = len(fit.stay.coefficients)
        g, h = self.gradient[:split], self.gradient[split:]
        variance = float(g @ fit.stay.covariance @ g + h @ fit.away.covariance @ h) + self.noise
        return Interval.around(self.value, Z95 * math.sqrt(max(variance, 0.0)))


def modelled_cost(fit: ChoiceFit, log: Log, centers: FloatArray, policy: Any) -> ModelledCost:
    """Return what the model expects of centres (K, d) and prescriptions (n,), or theirs (n, K)."""
    split, both = len(fit.stay.coefficients), [part.coefficients for part in fit.parts.values()]
    theta = torch.tensor(np.concatenate(both), requires_grad=True)
    stay = {term: theta[:split][where] for term, where in fit.stay.slices.items()}
    away = {term: theta[split:][where] for term, where in fit.away.slices.items()}
    model = fit.model.with_coefficients(stay, away)
    X = np.asarray(log.X, dtype=np.float64)
    problem = Problem(X, sample_weight=log.weight, cost=log.cost, autonomy=model)
    y = problem.centers(centers) - problem.origin
    pi, rho = torch.from_numpy(policy_matrix(policy, len(y))), torch.from_numpy(problem.weight)
    total, gradient = 0.0, np.zeros(len(theta))
    for rows in chunks(problem.n):
        chunk, transition = problem.chunk(rows, 0, y)
        expected = (pi[rows] * transition.expected(chunk.D)).sum(1)
        part = (rho[rows] * expected).sum()
        total += float(part.detach())
        if part.requires_grad:
            gradient += torch.autograd.grad(part, theta)[0].numpy()
    return ModelledCost(total, gradient)


def modelled_cost_of_log(fit: ChoiceFit, log: Log) -> ModelledCost:
    """Return what the model expects of the last centres and of what was prescribed there.

    Which prescriptions an entity happened to get, and which entities are in the log, goes into the
    error.
    """
    last, rho = log.choices.take(log.choices.at_last_layout), log.shares
    n, K, Y = len(log.X), last.n_clusters, last.layouts[-1]
    i, j = last.entities, last.prescribed
    w = even_weights(i, rho)
    logged = float(w.sum())  # share of the entities that are in the log
    if logged == 0:
        size = len(fit.stay.coefficients) + len(fit.away.coefficients)
        return ModelledCost(math.nan, np.zeros(size))
    mass = np.bincount(i * K + j, w / logged, n * K).reshape(n, K)
    share = np.divide(mass, rho[:, None], out=np.zeros_like(mass), where=rho[:, None] > 0)
    found = modelled_cost(fit, log, Y, share)
    E = Problem(log.X, cost=log.cost, autonomy=fit.model).expected_costs(Y)[i, j]
    rows = np.bincount(i, minlength=n)
    mean = np.bincount(i, E, n) / np.maximum(rows, 1)
    here = rows > 0
    within = float(((E - mean[i]) ** 2).sum()) / max(1, len(E) - int(here.sum()))
    between = float(np.average((mean[here] - found.value) ** 2, weights=rho[here]))
    noise = within * float((rho[here] ** 2 / rows[here]).sum()) / logged**2
    noise += max(0.0, 1 - logged) * between * float((rho[here] ** 2).sum()) / logged**2
    return found._replace(noise=noise)


def liked_by_place(
    fit: ChoiceFit, log: Log, centers: FloatArray, policy: Any
) -> list[ModelledCost]:
    """Return what a plan costs if likings stay at the places where centres stood.

    A centre that has moved is then liked as the one that stood nearest to its new place; several
    may be liked as the same one. Where none stood near, it may also be liked as the most liked of
    all, or as the least. So there are three costs for each kind of liking.
    """
    today, numbers = log.choices.layouts[-1], np.arange(len(fit.away.coefficients))
    far = lengths(log.cost, centers, today)
    nearest = far.argmin(1)
    unknown = far.min(1) > SAME_PLACE * usual_gap(log.cost, today)
    found = []
    for where in fit.likings:
        liked = fit.away.coefficients[where]
        for one in (nearest, liked.argmax(), liked.argmin()):
            order = numbers.copy()
            order[where] = numbers[where][np.where(unknown, one, nearest)]
            found.append(_reordered(fit, order, log, centers, policy))
    return found


def _reordered(
    fit: ChoiceFit, order: Any, log: Log, centers: FloatArray, policy: Any
) -> ModelledCost:
    """Return what a plan costs by the coefficients in another order, differentiated by them."""
    split = len(fit.stay.coefficients)
    part = fit.away._replace(coefficients=fit.away.coefficients[order])
    model = fit.model.with_coefficients(fit.model.stay, part.by_term())
    found = modelled_cost(fit._replace(model=model, away=part), log, centers, policy)
    back = np.bincount(order, found.gradient[split:], len(order))
    return found._replace(gradient=np.concatenate([found.gradient[:split], back]))
