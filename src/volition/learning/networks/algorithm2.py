"""Annealing on a network of expected costs (Algorithm 2): betas, targets, centres, comparisons."""

from __future__ import annotations

import math

import numpy as np

from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.learning.networks.recipe import Recipe
from volition.learning.networks.replay import distinct_sets
from volition.populations.answers import IntArray
from volition.solvers import Gradient

#: answers about each set of centres below which nothing is said of which one is better
FEWEST_JUDGED = 200
#: share by which replicas must differ to be different
DIFFERENT = 2e-3


def beta_ladder(recipe: Recipe, first: float, n_clusters: int, n_features: int) -> list[float]:
    """Return the betas, from the first one that matters unless the recipe says which.

    Examples
    --------
    >>> from volition.learning.networks import Recipe
    >>> from volition.learning.networks.algorithm2 import beta_ladder
    >>> beta_ladder(Recipe(beta_min=1.0, beta_max=5.0, tau=2.0), 0.1, n_clusters=4, n_features=2)
    [1.0, 2.0, 4.0]
    """
    low = first if recipe.beta_min is None else recipe.beta_min
    high = recipe.beta_max
    if high is None:
        # At the last beta a cluster of the usual width is prescribed all but surely.
        high = 284 * low * n_clusters ** (2 / n_features)
    if not low <= high < math.inf:
        raise ValueError(f"beta_min={low!r} and beta_max={high!r} must be in order.")
    steps = math.log(high / low) / math.log(recipe.tau)
    # A given end is not exceeded; one that was chosen from the data is reached.
    steps = math.ceil(steps - 1e-9) if recipe.beta_max is None else math.floor(steps + 1e-9)
    return [low * recipe.tau**k for k in range(steps + 1)]


def average_repeats(
    entities: IntArray, prescribed: IntArray, cost: FloatArray, Y: FloatArray
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Return one row per centres, entity and prescription, with the mean of its costs."""
    _, layout = distinct_sets(Y)
    pair = (layout * (int(entities.max()) + 1) + entities) * Y.shape[1] + prescribed
    _, first, which = np.unique(pair, return_index=True, return_inverse=True)
    mean = np.bincount(which, weights=cost) / np.bincount(which)
    order = np.argsort(first)
    first = first[order]
    return entities[first], prescribed[first], mean[order], Y[first]


def update_running_means(
    table: FloatArray, cells: IntArray, cost: FloatArray, keep: float
) -> FloatArray:
    """Blend costs into a table of running means, cell by cell, as published; return the means."""
    cell, where = np.unique(cells, return_inverse=True)
    mean = np.bincount(where, weights=cost) / np.bincount(where)
    table[cell] = keep * table[cell] + (1 - keep) * mean
    blend: FloatArray = table[cell][where]
    return blend


def move_centers(
    recipe: Recipe, problem: Problem, Y: FloatArray, beta: float, reach: float, shake: FloatArray,
    box: tuple[FloatArray, FloatArray],
) -> FloatArray:  # fmt: skip
    """Return centres further down the free energy of a network, and shaken, unless as published.

    Beyond ``reach``, where nobody was asked, the network only guesses; it may lead astray step by
    step, so that centres stay in the ``box``.
    """
    start = problem.centers(Y)
    if recipe.center_rate is not None:  # as published
        for _ in range(recipe.center_epochs):
            start = start - recipe.center_rate * problem.value_and_gradient(start, beta)[1]
        return start.numpy()
    most = max(1, recipe.center_epochs)
    solution = Gradient().solve(problem, start, beta, max_iter=most, tol=1e-4)
    move = solution.centers.numpy() - Y
    length = np.linalg.norm(move, axis=1, keepdims=True)
    move *= np.minimum(1, reach / np.maximum(length, 1e-300))
    result: FloatArray = np.clip(Y + (move + shake), *box)
    return result


def distinct_replicas(problem: Problem, replicas: FloatArray, common: float = 0.0) -> FloatArray:
    """Return one of each group of replicas that came to the same, the best first.

    What all costs have in ``common`` is not to count in shares of them.
    """
    ranked = sorted((problem.distortion(Y), n) for n, Y in enumerate(replicas))
    kept = [ranked[0]]
    for value, number in ranked[1:]:
        if value > kept[-1][0] + DIFFERENT * abs(kept[-1][0] - common):
            kept.append((value, number))
    return replicas[[number for _, number in kept]].copy()


def cheapest_replica(verdict: FloatArray) -> int:
    """Return the row that cost least, unless the first one, which should have, is as good.

    Each row of the verdict is a number of answers, the sum of their costs, and that of the squares.
    """
    n, total, squares = verdict.T
    mean = total / np.maximum(n, 1)
    error = (squares / np.maximum(n, 1) - mean**2) / np.maximum(n, 1)
    best = int(mean.argmin())
    clear = mean[0] - mean[best] > math.sqrt(max(0.0, error[0] + error[best]))
    return best if clear and (n >= FEWEST_JUDGED).all() else 0
