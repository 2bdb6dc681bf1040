"""Samples of a problem's entities that depend on the data only, not on the order of their rows."""

from __future__ import annotations

import numpy as np

from volition.core.outliers import bulk_of
from volition.core.problem import Problem
from volition.core.validation import FloatArray


def canonical_order(problem: Problem) -> np.ndarray:
    """Order entities of positive weight by coordinates.

    Draws along this order see the data as a weighted set. They depend neither on the order of the
    rows, nor on whether an entity of weight two is one row or two.
    """
    order = lexical_order(problem.X)
    return order[problem.weight[order] > 0]


def lexical_order(X: FloatArray) -> np.ndarray:
    """Return what ``np.lexsort(X.T[::-1])`` does, sorting by later columns only where needed.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.solvers.sampling import lexical_order
    >>> lexical_order(np.array([[1.0, 2.0], [0.0, 5.0], [1.0, 1.0]])).tolist()
    [1, 2, 0]
    """
    order = np.argsort(X[:, 0], kind="stable")
    first = X[order, 0]
    same = first[1:] == first[:-1]
    if X.shape[1] == 1 or not same.any():
        return order
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    rows = order[tied]
    order[tied] = rows[np.lexsort(X[rows].T[::-1])]
    return order


def thin(problem: Problem, order: np.ndarray, size: int) -> Problem:
    """Return the problem itself, or a systematic sample of about ``size`` of its entities.

    Where a few far entities hold nearly all variance, the farthest are in every sample.
    """
    if len(order) <= size:
        return problem
    if problem.dominated_by_few:
        X, weight = problem.X[order].astype(np.float64), problem.weight[order].astype(np.float64)
        away = weight * ((X - bulk_of(X).center) ** 2).sum(1)
        far = np.sort(np.argsort(-away, kind="stable")[: size // 10])
        near = np.delete(np.arange(len(order)), far)
        picked, counts = _systematic(weight[near], size)
        share = counts / counts.sum() * weight[near].sum()
        index = np.concatenate([order[far], order[near[picked]]])
        return problem.subset(index, np.concatenate([weight[far], share]))
    picked, counts = _systematic(problem.weight[order].astype(np.float64), size)
    return problem.subset(order[picked], counts.astype(np.float64))


def _systematic(weight: FloatArray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which entities a systematic sample of ``size`` picks, and how often."""
    edges = np.cumsum(weight)
    marks = (np.arange(size) + 0.5) / size * edges[-1]
    return np.unique(np.searchsorted(edges, marks), return_counts=True)
