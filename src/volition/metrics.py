"""How good a placement is, and how far two are apart. (``metric=`` is in ``core.costs``.)"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from volition.core.autonomy import Autonomy
from volition.core.problem import build_problem
from volition.core.validation import FloatArray, check_centers, check_entities


def distortion(
    X: Any,
    centers: Any,
    autonomy: Autonomy | None = None,
    labels: Any = None,
    *,
    metric: Any = "sqeuclidean",
    sample_weight: Any = None,
    groups: Any = None,
    autonomy_proba: Any = None,
) -> float:
    """Return the expected cost per entity of a placement.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities.
    centers : array of shape (K, d)
        Centres.
    autonomy : Autonomy, optional
        How entities override; by default they obey.
    labels : array of shape (n,), optional
        Prescriptions; by default the best one for each entity.
    metric : str, Cost or callable, default="sqeuclidean"
        The cost.
    sample_weight : array of shape (n,), optional
        Relative weights.
    groups, autonomy_proba : optional
        As in :meth:`volition.AutonomyAwareClustering.fit`.

    Returns
    -------
    float

    Examples
    --------
    >>> from volition import DistanceAutonomy
    >>> from volition.metrics import distortion
    >>> distortion([[0.0], [4.0]], [[0.0], [4.0]], DistanceAutonomy(0.25))
    4.0
    """
    problem, Y = build_problem(
        X,
        centers,
        autonomy=autonomy,
        metric=metric,
        sample_weight=sample_weight,
        groups=groups,
        autonomy_proba=autonomy_proba,
    )
    if labels is not None:
        labels = np.asarray(labels)
        inside = labels.shape == (problem.n,) and labels.min() >= 0 and labels.max() < len(Y)
        if not inside or not np.issubdtype(labels.dtype, np.integer):
            raise ValueError(
                f"labels must hold one integer in [0, {len(Y) - 1}] for each of the {len(X)} "
                f"entities, got dtype {labels.dtype} and shape {labels.shape}."
            )
    return problem.distortion(Y, labels)


def distortion_gap(
    X: Any, centers: Any, reference: Any, autonomy: Autonomy | None = None, **kwargs: Any
) -> float:
    """Return by how many percent the distortion of ``centers`` exceeds that of a reference.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities.
    centers : array of shape (K, d)
        Centres to judge.
    reference : float or array of shape (K, d)
        A distortion, or the centres whose distortion is the yardstick.
    autonomy : Autonomy, optional
        How entities override.
    **kwargs
        Passed to :func:`distortion`; ``labels`` belongs to ``centers``.

    Returns
    -------
    float
        In percent, negative if ``centers`` are better.

    Examples
    --------
    >>> from volition.metrics import distortion_gap
    >>> distortion_gap([[0.0], [4.0]], [[1.0]], 4.0)
    25.0
    """
    found = distortion(X, centers, autonomy, **kwargs)
    if np.ndim(reference) > 0:
        kwargs.pop("labels", None)
        reference = distortion(X, reference, autonomy, **kwargs)
    if not reference > 0:
        raise ValueError(f"The reference distortion must be positive, got {reference!r}.")
    return 100 * (found / float(reference) - 1)


def chamfer_distance(A: Any, B: Any, X: Any = None) -> float:
    """Return the mean distance from each centre to the nearest of the other set.

    Parameters
    ----------
    A, B : arrays of shape (K, d) and (L, d)
        Two sets of centres.
    X : array of shape (n, d), optional
        Data whose bounding box is the yardstick; by default that of A and B together.

    Returns
    -------
    float
        As a share of the bounding box's diagonal, averaged over both directions.

    Examples
    --------
    >>> from volition.metrics import chamfer_distance
    >>> chamfer_distance([[0.0, 0.0]], [[3.0, 4.0]], X=[[0.0, 0.0], [6.0, 8.0]])
    0.5
    """
    A, B, diagonal = _pair(A, B, X)
    d = cdist(A, B)
    return float((d.min(axis=1).mean() + d.min(axis=0).mean()) / 2 / diagonal)


def matching_distance(A: Any, B: Any, X: Any = None) -> float:
    """Return the mean distance between centres matched one to one as well as possible.

    Parameters
    ----------
    A, B : arrays of shape (K, d)
        Two sets of equally many centres.
    X : array of shape (n, d), optional
        Data whose bounding box is the yardstick; by default that of A and B together.

    Returns
    -------
    float
        As a share of the bounding box's diagonal.

    Examples
    --------
    >>> from volition.metrics import matching_distance
    >>> matching_distance([[0.0], [1.0]], [[1.0], [0.0]])
    0.0
    """
    A, B, diagonal = _pair(A, B, X)
    if len(A) != len(B):
        raise ValueError(
            f"matching_distance needs equally many centres, got {len(A)} and {len(B)}; "
            "chamfer_distance compares sets of different size."
        )
    d = cdist(A, B)
    return float(d[linear_sum_assignment(d)].mean() / diagonal)


def _pair(A: Any, B: Any, X: Any) -> tuple[FloatArray, FloatArray, float]:
    A = check_entities(A)
    B = check_centers(B, A.shape[1], "B")
    box = np.vstack([A, B]) if X is None else check_entities(X)
    if box.shape[1] != A.shape[1]:
        raise ValueError(f"X has {box.shape[1]} columns, the centres have {A.shape[1]}.")
    diagonal = float(np.linalg.norm(box.max(axis=0) - box.min(axis=0)))
    return A, B, diagonal or 1.0
