"""Phase transitions: when a state stops being a minimum, in which direction, and how fast it moves.

Theorems 2 and 3 of the paper, for every cost and autonomy model. ``critical_beta``, ``hessian``,
``sensitivity`` and ``sensitivity_bound`` take plain arrays. ``assess_stability`` and the functions
below it take a :class:`Problem` and serve annealing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, minres
from torch import Tensor

from volition.core.autonomy import Autonomy
from volition.core.costs import SquaredEuclidean
from volition.core.curvature import Curvature, curvature
from volition.core.problem import FEW_COLUMNS, Problem, build_problem
from volition.core.validation import FloatArray, check_scalar

#: up to this many coordinates of centres, second derivatives are held as matrices
DENSE_COORDINATES = 256
#: how near two centres count as one, as a share of the length at which the policy is blurred
COINCIDENT_BLUR = 2e-2
#: Newton steps towards a critical beta whose Hessian is only known by its products
NEWTON_STEPS = 30
LANCZOS_TOL = 1e-9
#: a centre with less mass counts as unused
DEAD_MASS = 1e-12
#: eigenvalues below this share of their scale are zero
ZERO_EIGENVALUE = 1e-13


class NoCurvatureError(ValueError):
    """The cost has no second derivatives: Theorem 2 does not apply."""


class CriticalPoint(NamedTuple):
    """Where a state stops being a minimum of the free energy.

    Attributes
    ----------
    beta : float
        The critical beta. Above the state's own beta: the state is a minimum up to there (were
        its policy to stay as it is). Below it: the state is a saddle point, and was a minimum until
        there. Infinity if no beta splits it, 0 if it is not a minimum at any.
    direction : ndarray of shape (K, d)
        How the centres leave, of unit length; its opposite is as good.
    """

    beta: float
    direction: FloatArray


def critical_beta(
    X: Any,
    centers: Any,
    *,
    autonomy: Autonomy | None = None,
    beta: float,
    sample_weight: Any = None,
    metric: Any = "sqeuclidean",
    groups: Any = None,
    autonomy_proba: Any = None,
) -> CriticalPoint:
    """Return the beta at which a state stops being a minimum, and the direction in which it splits.

    Theorem 2 of the paper at the state that the centres and the Gibbs policy at ``beta`` define.
    Where p depends on the centres, its derivatives are part of the Hessian.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities.
    centers : array of shape (K, d)
        Centres; the theorem speaks of centres that minimise the free energy at ``beta``.
    autonomy : Autonomy, optional
        How entities override; by default they obey.
    beta : float
        Where the policy is taken.
    sample_weight : array of shape (n,), optional
        Relative weights.
    metric : str, Cost or callable, default="sqeuclidean"
        The cost.
    groups, autonomy_proba : optional
        As in :meth:`volition.AutonomyAwareClustering.fit`.

    Returns
    -------
    CriticalPoint
        ``beta`` and ``direction`` (K, d).

    Examples
    --------
    Two centres at the mean of entities with variance 1 part at beta = 1/2:

    >>> from volition import critical_beta
    >>> point = critical_beta([[-1.0], [1.0]], [[0.0], [0.0]], beta=0.1)
    >>> round(point.beta, 12), point.direction.round(3).tolist()
    (0.5, [[0.707], [-0.707]])
    """
    check_scalar(beta, "beta", low=0, open_low=True)
    problem, Y = build_problem(
        X,
        centers,
        autonomy=autonomy,
        metric=metric,
        sample_weight=sample_weight,
        groups=groups,
        autonomy_proba=autonomy_proba,
    )
    return assess_stability(problem, Y, beta).critical


def hessian(X: Any, centers: Any, *, beta: float, **how: Any) -> FloatArray:
    """Return the second derivatives of the free energy, (K, d, K, d); for small K d.

    Twice the bracket of the paper's appendix, whose gradient lacks a factor 2, plus what flows
    through p where p depends on the centres.

    Parameters
    ----------
    X, centers, beta, **how
        As in :func:`critical_beta`.

    Returns
    -------
    ndarray of shape (K, d, K, d)

    Examples
    --------
    >>> from volition.annealing.stability import hessian
    >>> hessian([[-1.0], [1.0]], [[0.0], [0.0]], beta=0.5)[:, 0, :, 0].tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    check_scalar(beta, "beta", low=0, open_low=True)
    problem, Y = build_problem(X, centers, **how)
    A, B = curvature(problem, Y, beta).matrices()
    return (A - beta * B).reshape(*Y.shape, *Y.shape).cpu().numpy()


def sensitivity(X: Any, centers: Any, *, beta: float, **how: Any) -> FloatArray:
    """Return dY/dbeta at a minimum of the free energy, (K, d), by the implicit function theorem.

    Parameters
    ----------
    X, centers, beta, **how
        As in :func:`critical_beta`; the centres must minimise the free energy at ``beta``.

    Returns
    -------
    ndarray of shape (K, d)

    Examples
    --------
    A single centre stays at the mean, whatever beta is:

    >>> from volition.annealing.stability import sensitivity
    >>> sensitivity([[0.0], [1.0]], [[0.5]], beta=1.0).tolist()
    [[0.0]]
    """
    check_scalar(beta, "beta", low=0, open_low=True)
    problem, Y = build_problem(X, centers, **how)
    at = curvature(problem, Y, beta)
    drift = at.drift().cpu().numpy().ravel()
    if drift.size <= DENSE_COORDINATES:
        A, B = at.matrices()
        H = (A - beta * B).cpu().numpy()
        # Coincident centres leave flat directions, along which nothing pulls.
        return np.linalg.lstsq(H, drift, rcond=1e-12)[0].reshape(Y.shape)
    found, info = minres(_operator(at, at.times, torch.ones_like(at.mass)), drift, rtol=1e-10)
    if info != 0:
        raise RuntimeError("dY/dbeta did not converge: the state is too close to a critical beta.")
    return found.reshape(Y.shape)


def sensitivity_bound(X: Any, centers: Any, *, beta: float, **how: Any) -> float:
    """Return Theorem 3's bound on the norm of dY/dbeta: N sqrt(K) R / (e beta delta).

    delta is the lowest eigenvalue of the Hessian in the units of Theorem 2, in which it is at most
    one; R is the diagonal of the box that holds the entities, which no diameter exceeds.

    Parameters
    ----------
    X, centers, beta, **how
        As in :func:`critical_beta`; the centres must minimise the free energy at ``beta``.

    Returns
    -------
    float
        Infinity where the state is not a minimum: the theorem does not apply.

    Examples
    --------
    >>> from volition.annealing.stability import sensitivity_bound
    >>> round(sensitivity_bound([[0.0], [1.0]], [[0.5]], beta=1.0), 3)  # 2 / e
    0.736
    """
    check_scalar(beta, "beta", low=0, open_low=True)
    problem, Y = build_problem(X, centers, **how)
    at = curvature(problem, Y, beta)
    scale = _unit_masses(at)
    if at.y.numel() <= DENSE_COORDINATES:
        A, B = at.matrices()
        s = scale.repeat_interleave(problem.d)
        alive = (at.mass > DEAD_MASS).repeat_interleave(problem.d)
        H = (s[:, None] * (A - beta * B) * s)[alive][:, alive]
        delta = float(torch.linalg.eigvalsh(H)[0])
    else:
        shifted = _operator(at, at.times, scale, -1.0)
        delta = 1 + _extreme(shifted, "SA", np.random.default_rng(0).standard_normal(Y.size))[0]
    if delta <= 0:
        return math.inf
    diameter = float(np.linalg.norm(np.ptp(problem.X.astype(np.float64), axis=0)))
    return problem.n * math.sqrt(len(Y)) * diameter / (math.e * beta * delta)


def _unit_masses(at: Curvature) -> Tensor:
    """Return the scaling in which A is the identity when p does not depend on the centres."""
    return (at.mass.clamp_min(DEAD_MASS) * 2) ** -0.5


def _operator(
    at: Curvature, times: Callable[[Tensor], Tensor], scale: Tensor, shift: float = 0.0
) -> LinearOperator:
    """Return V -> scale times(scale V) + shift V as SciPy wants it."""
    s = scale[:, None]

    def product(v: FloatArray) -> FloatArray:
        V = torch.as_tensor(v, dtype=torch.float64, device=at.y.device).reshape(at.y.shape)
        return (s * times(s * V) + shift * V).cpu().numpy().ravel()

    return LinearOperator((at.y.numel(),) * 2, matvec=product, dtype=np.float64)


class Stability(NamedTuple):
    """How firmly a state is a minimum.

    ``modes`` are critical points in rising order, all of them where A and B are small enough to be
    held as ``matrices``, else the first.
    """

    modes: list[CriticalPoint]
    matrices: tuple[FloatArray, FloatArray] | None

    @property
    def critical(self) -> CriticalPoint:
        """The beta and direction that Theorem 2 speaks of."""
        return self.modes[0]

    def splitting_direction(self, beta: float, places: np.ndarray) -> FloatArray:
        """Return a direction, unstable at beta, in which centres leave the places they share.

        Evenly (see `even_split`) if that is unstable too, as it is where centres that share a place
        are interchangeable; else as the first mode says.
        """
        even = even_split(places, [m.direction for m in self.modes if m.beta < beta])
        if self.matrices is not None:
            A, B = self.matrices
            v = even.ravel()
            if not v @ A @ v < beta * (v @ B @ v):
                return self.critical.direction
        return even

    def preconditioner(self, beta: float) -> FloatArray | None:
        """Return W with W W' near the inverse Hessian at beta, to precondition a solver with."""
        if self.matrices is None:
            return None
        A, B = self.matrices
        values, vectors = np.linalg.eigh(A - beta * B)
        size = np.abs(values)
        # Directions about to become unstable are flat: a full Newton step would leap along them.
        floor = max(0.02 * np.median(size), 1e-9 * size.max()) or 1.0
        return vectors / np.sqrt(np.maximum(size, floor))


def assess_stability(problem: Problem, Y: Any, beta: float) -> Stability:
    """Return the critical beta of the state (Y, Gibbs policy at beta), and the way it splits.

    With A - beta B the Hessian at the state, the critical beta is 1 / λmax(A⁻¹ B). This is
    Theorem 2, extended to p that depends on the centres. Up to `DENSE_COORDINATES` coordinates the
    eigenvalues come from dense matrices, above that from Lanczos' method.
    """
    at = curvature(problem, Y, beta)
    scale = _unit_masses(at)
    if at.y.numel() > DENSE_COORDINATES:
        return Stability([_sparse_pencil(at, scale)], None)
    A, B = (M.cpu().numpy() for M in at.matrices())
    return Stability(_dense_pencil(at, A, B, scale), (A, B))


def _critical_point(beta: float, v: FloatArray, scale: Tensor) -> CriticalPoint:
    """Return a mode found in scaled units as it is in the user's."""
    s = scale.cpu().numpy()[:, None]
    direction = s * v.reshape(len(s), -1)
    direction /= np.linalg.norm(direction)
    # Either sign is right; this one is reproducible.
    sign = np.sign(direction.ravel()[np.argmax(np.abs(direction))])
    return CriticalPoint(beta, sign * direction)


def _dense_pencil(
    at: Curvature, A: FloatArray, B: FloatArray, scale: Tensor
) -> list[CriticalPoint]:
    d = at.y.shape[1]
    s = scale.repeat_interleave(d).cpu().numpy()
    # Nothing depends on where an unused centre is, so it does not count here.
    alive = (at.mass > DEAD_MASS).repeat_interleave(d).cpu().numpy()
    A, B = ((s[:, None] * M * s)[alive][:, alive] for M in (A, B))

    def whole(v: FloatArray) -> FloatArray:
        out = np.zeros(len(s))
        out[alive] = v
        return out

    if not np.abs(A).max() > ZERO_EIGENVALUE * np.abs(B).max() * at.beta:
        raise NoCurvatureError(
            f"{at.problem.cost!r} has no second derivatives, so that there is no critical beta; "
            "use schedule='geometric'."
        )
    try:
        values, vectors = scipy.linalg.eigh(B, A)
    except scipy.linalg.LinAlgError:  # A is not positive definite: no beta makes this a minimum
        lowest = scipy.linalg.eigh(A, subset_by_index=[0, 0])[1][:, 0]
        return [_critical_point(0.0, whole(lowest), scale)]
    return [
        _critical_point(_inverse(value, at), whole(v), scale)
        for value, v in zip(values[::-1], vectors.T[::-1], strict=True)
    ]


def _sparse_pencil(at: Curvature, scale: Tensor) -> CriticalPoint:
    B = _operator(at, at.times_b, scale)
    v: FloatArray = np.random.default_rng(0).standard_normal(at.y.numel())
    if np.linalg.norm(B.matvec(v)) <= ZERO_EIGENVALUE * at.problem.cost_scale * np.linalg.norm(v):
        return _critical_point(math.inf, v, scale)  # all entities agree: nothing to split
    top, v = _extreme(B, "LA", v)
    critical = _inverse(top, at)
    if not at.problem.autonomy.depends_on_centers and at.problem.cost.mean_is_optimal:
        return _critical_point(critical, v, scale)  # A is the identity
    # The lowest eigenvalue of A - beta B is a concave function of beta, so that Newton's steps
    # towards its root, to v'Av / v'Bv at the eigenvector v, never pass it coming from above.
    A, critical = _operator(at, at.times_a, scale), math.inf
    for _ in range(NEWTON_STEPS):
        upward, spread = float(v @ A.matvec(v)), float(v @ B.matvec(v))
        if upward <= 0:
            return _critical_point(0.0, v, scale)
        ahead = _inverse(spread / upward, at)
        settled = ahead > critical * (1 - 1e-7)  # the steps converge quadratically
        critical = min(critical, ahead)
        if settled or critical == math.inf:
            break
        # Shifted by one: convergence is judged relative to the eigenvalue, which tends to zero.
        shifted = _operator(at, partial(at.times, beta=critical), scale, -1.0)
        _, v = _extreme(shifted, "SA", v)
    return _critical_point(critical, v, scale)


def _extreme(M: LinearOperator, which: str, v: FloatArray) -> tuple[float, FloatArray]:
    """Return the highest ("LA") or lowest ("SA") eigenvalue and its vector."""
    try:
        values, vectors = eigsh(M, 1, which=which, v0=v, tol=LANCZOS_TOL)
    except ArpackNoConvergence:  # eigenvalues that are too close together: a coarser answer will do
        values, vectors = eigsh(M, 1, which=which, v0=v, tol=1e-4, maxiter=100 * M.shape[0])
    return float(values[0]), vectors[:, 0]


def _inverse(top: float, at: Curvature) -> float:
    """Return 1 / λ, infinity where λ is zero up to rounding."""
    return 1.0 / float(top) if top > ZERO_EIGENVALUE * at.problem.cost_scale else math.inf


def first_beta(problem: Problem) -> float:
    """Return a beta safely below the first split, whatever the autonomy.

    With squared Euclidean cost, obedient entities split first at 1 / (2 λmax(covariance)), and
    autonomy only delays that. Other costs get the same rule with the cost of a single centre.
    """
    if isinstance(problem.cost, SquaredEuclidean):
        spread = problem.largest_variance
    else:
        spread = problem.cost_scale
    return 0.25 / spread if spread > 0 else 1.0


def blur_length(problem: Problem, beta: float) -> float:
    """Return the length below which the policy at this beta cannot tell two centres apart."""
    return problem.scale * math.sqrt(first_beta(problem) / beta)


def coincident(problem: Problem, Y: FloatArray, beta: float) -> np.ndarray:
    """Return for each centre the number, from 0, of the place that it shares with others."""
    if len(Y) == 1:
        return np.zeros(1, dtype=np.int64)
    near = COINCIDENT_BLUR * blur_length(problem, beta)
    return fcluster(linkage(Y, "single"), near, "distance").astype(np.int64) - 1


def count_distinct(problem: Problem, Y: FloatArray, beta: float) -> int:
    """Count distinct centres: those closer than a 50th of the blur count as one."""
    return int(coincident(problem, Y, beta).max()) + 1


def even_split(places: np.ndarray, directions: list[FloatArray]) -> FloatArray:
    """Return a direction in which centres that share a place leave it in equal parts.

    Where centres are interchangeable, the unstable directions of centres in one place are all
    patterns of signs along some lines. A solver that starts from an uneven pattern may stay uneven:
    a minimum, but a worse one, since the free energy counts centres. So the first line gets a
    pattern + - + - ..., the second + + - - ..., and so on, which gives equal parts in all of them.
    """
    out = np.zeros_like(directions[0])
    for place in range(int(places.max()) + 1):
        here = np.flatnonzero(places == place)
        moves = np.stack([direction[here] for direction in directions])
        mean = moves.mean(axis=1, keepdims=True)
        away = (moves - mean).reshape(-1, out.shape[1])
        # The place as a whole moves as the most unstable direction says.
        out[here] += mean[0]
        if len(away) < away.shape[1] and away.shape[1] > FEW_COLUMNS:
            _, root, lines_down = np.linalg.svd(away, full_matrices=False)
            size, lines = root[::-1] ** 2, lines_down[::-1].T
        else:
            size, lines = np.linalg.eigh(away.T @ away)
        for rank, (length, line) in enumerate(zip(size[::-1], lines.T[::-1], strict=True)):
            sign = 1.0 - 2.0 * (np.arange(len(here)) >> rank & 1)
            if length > 0.01 * size[-1] and length > 1e-18:
                out[here] += np.outer((sign - sign.mean()) * math.sqrt(length), line)
    return out / np.linalg.norm(out)
