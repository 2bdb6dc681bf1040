"""How entities override prescriptions: models of p(k | j, i) that need no (n, K, K) tensor.

The axis order is (entity i, prescribed j, realised k) everywhere. A model is asked for one of two
things. ``shared`` gives p(k | j) when it does not depend on the entity: the kernel then collapses
it into the centres, at no cost in n. ``transition`` gives p for a chunk of entities, as an object
that averages costs over realised clusters, carries weights forward to them, and can be sampled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from volition.core.costs import Cost, resolve_cost, runs
from volition.core.validation import (
    FloatArray,
    check_entities,
    check_scalar,
    check_stochastic,
    check_weights,
)
from volition.io.checked_files import expect
from volition.io.serialization import registered, user_code


@lru_cache(maxsize=64)
def identity(K: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the identity matrix: everyone obeys."""
    return torch.eye(K, dtype=dtype, device=device)


@lru_cache(maxsize=64)
def exclude_prescribed(K: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return log-weights that exclude the prescribed cluster: -inf on the diagonal, else 0."""
    return torch.zeros(K, K, dtype=dtype, device=device).fill_diagonal_(-torch.inf)


class Chunk(NamedTuple):
    """A run of entities as the models see it."""

    X: Tensor  # (n, d), centred: add `origin` for the user's coordinates, as for the centres
    origin: Tensor  # (d,)
    D: Tensor  # (n, K) costs to every centre
    rows: slice | np.ndarray  # their numbers among all entities, as these were given
    group: int


class Transition(ABC):
    """p(k | j, i) at fixed centres for one chunk of entities."""

    @abstractmethod
    def expected(self, D: Tensor) -> Tensor:
        """Average costs over realised clusters: (n, k) -> (n, j)."""

    @abstractmethod
    def realized(self, W: Tensor) -> Tensor:
        """Carry weights on prescriptions to realised clusters: (n, j) -> (n, k)."""

    @abstractmethod
    def conditional(self, prescribed: Tensor) -> Tensor:
        """Return p(. | j_i, i), shape (n, K), for one prescription per entity."""

    def sample(self, prescribed: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw the cluster that each entity realises."""
        p = self.conditional(prescribed)
        return torch.multinomial(p, 1, generator=generator)[:, 0]


@dataclass
class SharedTransition(Transition):
    """The same (K, K) matrix for every entity of the chunk."""

    P: Tensor

    def expected(self, D: Tensor) -> Tensor:
        return D @ self.P.T

    def realized(self, W: Tensor) -> Tensor:
        return W @ self.P

    def conditional(self, prescribed: Tensor) -> Tensor:
        return self.P[prescribed]


@dataclass
class DenseTransition(Transition):
    """An explicit (n, K, K) tensor: a chunk's worth at a time."""

    p: Tensor

    def expected(self, D: Tensor) -> Tensor:
        return torch.einsum("ijk,ik->ij", self.p, D)

    def realized(self, W: Tensor) -> Tensor:
        return torch.einsum("ijk,ij->ik", self.p, W)

    def conditional(self, prescribed: Tensor) -> Tensor:
        return self.p[torch.arange(len(prescribed), device=prescribed.device), prescribed]


def stay_or_leave(kappa: float | Tensor, away: Tensor, prescribed: Tensor) -> Tensor:
    """Return p(. | j_i, i), (n, K): stay with probability 1 - kappa_i, (n, 1), else by ``away``."""
    return (kappa * away).scatter(1, prescribed[:, None], 1 - kappa)


class SoftmaxTransition(Transition):
    """Stay with probability 1 - kappa, else k != j with weight exp(a_jk + b_ik).

    ``kappa`` is a number, or one per entity and prescription, (n, K). The weights factorise, so
    averages over k are two matrix products in O(nK) memory. A pair (i, j) whose normaliser
    underflows (low temperature) is done again by an exact log-sum-exp.
    """

    def __init__(self, kappa: float | Tensor, a: Tensor, b: Tensor) -> None:
        self.kappa = kappa
        self.a = a  # (K, K), minus infinity on the diagonal
        self.b = b  # (n, K)

    @cached_property
    def _factors(self) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...], Tensor | None]:
        """Factors A and B, normaliser Z, the pairs lost to underflow, and a mask of the others."""
        # Exponents are clamped: denormal numbers make every later product several times slower.
        # Above `floor`, all terms that matter for a sum's last digit are normal numbers.
        lowest, floor = (-690.0, 1e-280) if self.a.dtype == torch.float64 else (-80.0, 1e-20)
        a_shifted = (self.a - self.a.detach().amax(1, keepdim=True)).clamp_min(lowest)
        A = torch.exp(a_shifted) * ~torch.isneginf(self.a)
        B = torch.exp((self.b - self.b.detach().amax(1, keepdim=True)).clamp_min(lowest))
        Z = B @ A.T
        lost = Z.detach() < floor
        pairs = torch.nonzero(lost, as_tuple=True)
        if len(pairs[0]) == 0:
            return A, B, Z, pairs, None
        return A, B, torch.where(lost, 1.0, Z), pairs, ~lost

    def _alternatives(self, i: Tensor, j: Tensor) -> Tensor:
        return torch.softmax(self.a[j] + self.b[i], dim=1)

    def expected(self, D: Tensor) -> Tensor:
        A, B, Z, (i, j), kept = self._factors
        away = ((B * D) @ A.T) / Z
        if kept is not None:
            away = away.index_put((i, j), (self._alternatives(i, j) * D[i]).sum(1))
        return (1 - self.kappa) * D + self.kappa * away

    def realized(self, W: Tensor) -> Tensor:
        A, B, Z, (i, j), kept = self._factors
        moved = self.kappa * W
        away = B * ((moved / Z if kept is None else moved * kept / Z) @ A)
        if kept is not None:
            away = away.index_add(0, i, self._alternatives(i, j) * moved[i, j, None])
        return W - moved + away

    def conditional(self, prescribed: Tensor) -> Tensor:
        i, kappa = torch.arange(len(prescribed), device=prescribed.device), self.kappa
        if isinstance(kappa, Tensor):
            kappa = kappa.gather(1, prescribed[:, None])
        return stay_or_leave(kappa, self._alternatives(i, prescribed), prescribed)


@dataclass
class LoyalTransition(Transition):
    """Go to a centre of one's own with some probability, else follow another law."""

    others: Transition
    loyalty: Tensor  # (n, K)
    share: float = 1.0

    @cached_property
    def _free(self) -> Tensor:
        """Probability of choosing by the other law, (n, 1)."""
        return 1 - self.loyalty.sum(1, keepdim=True)

    def expected(self, D: Tensor) -> Tensor:
        found = self._free * self.others.expected(D) + (self.loyalty * D).sum(1, keepdim=True)
        return (1 - self.share) * D + self.share * found

    def realized(self, W: Tensor) -> Tensor:
        found = self.others.realized(self._free * W) + self.loyalty * W.sum(1, keepdim=True)
        return (1 - self.share) * W + self.share * found

    def conditional(self, prescribed: Tensor) -> Tensor:
        return self.blended(self.others.conditional(prescribed), prescribed)

    def blended(self, p: Tensor, prescribed: Tensor) -> Tensor:
        """Return p(. | j_i, i), (n, K), where the other law gives p."""
        p = self.share * (self._free * p + self.loyalty)
        p[torch.arange(len(p), device=p.device), prescribed] += 1 - self.share
        return p


@user_code
class Autonomy(ABC):
    """Base class of autonomy models."""

    #: p changes when the centres move
    depends_on_centers: bool = False
    #: p differs between entities of one group, so that it cannot be folded into the centres
    by_entity: bool = False
    #: numbers that are held at a time for one entity and one centre
    numbers_per_pair: int = 1
    #: relabelling the clusters changes nothing (no cluster has a fixed role)
    interchangeable: bool = True

    def check(self, n_clusters: int, n_samples: int | None = None) -> None:
        """Raise ValueError if the model cannot serve this many clusters and entities."""

    def shared(self, Y: Tensor, cost: Cost) -> Tensor:
        """Return p(k | j) as (G, K, K), one matrix per group; only if not ``by_entity``."""
        raise TypeError(f"{self!r} has no p(k | j) that all entities share.")

    def transition(self, chunk: Chunk, Y: Tensor, cost: Cost) -> Transition:
        """Return p for one chunk of entities; Y is centred as the chunk is."""
        return SharedTransition(self.shared(Y, cost)[chunk.group])

    def conditional_each(
        self, X: Tensor, prescribed: Tensor, Y: Tensor, cost: Cost, rows: np.ndarray | None = None
    ) -> Tensor:
        """Return p(. | j_i, i), shape (n, K), where every entity has its own centres (n, K, d).

        ``rows`` says where they stand among all entities; by default they are all.
        """
        rows = np.arange(len(X)) if rows is None else rows
        none = torch.zeros(X.shape[1], dtype=X.dtype, device=X.device)
        parts = [X.new_zeros(0, Y.shape[1])]
        for lo, hi in runs(Y):
            chunk = Chunk(X[lo:hi], none, cost.pairwise(X[lo:hi], Y[lo]), rows[lo:hi], 0)
            parts.append(self.transition(chunk, Y[lo], cost).conditional(prescribed[lo:hi]))
        return torch.cat(parts)

    def subset(self, index: np.ndarray) -> Autonomy:
        """Return the model of some of the entities."""
        return self

    @abstractmethod
    def with_overrides_scaled(self, share: float) -> Autonomy:
        """Return the model that overrides only this share of the times that this one does."""

    def group_codes(self, groups: Any, n_samples: int) -> np.ndarray | None:
        """Translate the ``groups`` metadata into matrix numbers; None when there is one matrix."""
        if groups is not None:
            raise ValueError(
                f"groups is given, but {type(self).__name__} has no matrix per group; "
                "use FixedAutonomy with a (G, K, K) array or a dict of matrices."
            )
        return None


@registered
class Passive(Autonomy):
    """Every entity obeys: ordinary clustering.

    Examples
    --------
    >>> from volition import Passive
    >>> Passive()
    Passive()
    """

    def shared(self, Y: Tensor, cost: Cost) -> Tensor:
        return identity(len(Y), Y.dtype, Y.device)[None]

    def with_overrides_scaled(self, share: float) -> Passive:
        return self

    def __repr__(self) -> str:
        return "Passive()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Passive)

    __hash__ = None  # type: ignore[assignment]


@registered
class FixedAutonomy(Autonomy):
    """The same p(k | j) for all entities, or one matrix per group of entities.

    Parameters
    ----------
    matrix : array of shape (K, K) or (G, K, K), or dict of label -> (K, K)
        Row j holds the distribution of the realised cluster when j is prescribed. With several
        matrices, ``groups`` must be given to fit and predict: numbers 0..G-1 for an array, the
        dict's keys for a dict.

    Examples
    --------
    >>> from volition import FixedAutonomy
    >>> FixedAutonomy([[0.9, 0.1], [0.2, 0.8]])
    FixedAutonomy(n_clusters=2)
    """

    interchangeable = False

    def __init__(self, matrix: Any) -> None:
        self.labels: list[Any] | None = None
        tables = matrix
        if isinstance(matrix, Mapping):
            if not matrix:
                raise ValueError("FixedAutonomy: the dict of matrices is empty.")
            self.labels, tables = list(matrix), list(matrix.values())
        try:
            P = np.array(tables, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                "FixedAutonomy needs numbers in square matrices of one shape (K, K)."
            ) from None
        P = P[None] if P.ndim == 2 else P
        if P.ndim != 3 or P.shape[1] != P.shape[2] or 0 in P.shape:
            raise ValueError(
                "FixedAutonomy needs a square matrix (K, K) of p(k|j), or one per group "
                f"(G, K, K), got shape {np.shape(matrix)}."
            )
        for label, rows in zip(self.labels or range(len(P)), P, strict=True):
            several = len(P) > 1 or self.labels is not None
            check_stochastic(rows, f"autonomy matrix{f' of group {label!r}' if several else ''}")
        self.matrix: FloatArray = P / P.sum(axis=2, keepdims=True)

    def state(self) -> dict[str, Any]:
        """Return what is saved of it."""
        return {"matrix": self.matrix, "labels": self.labels}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> FixedAutonomy:
        """Return the model that was saved, to the last digit."""
        matrix, labels = expect(state, "matrix", (None, None, None)), state["labels"]
        model = cls(matrix if labels is None else dict(zip(labels, matrix, strict=True)))
        model.matrix = matrix
        return model

    @property
    def n_clusters(self) -> int:
        """Number of clusters that the matrices speak of."""
        return self.matrix.shape[1]

    def check(self, n_clusters: int, n_samples: int | None = None) -> None:
        if n_clusters != self.n_clusters:
            raise ValueError(
                f"n_clusters={n_clusters}, but the autonomy matrix is "
                f"{self.n_clusters} x {self.n_clusters}; the two must agree."
            )

    def shared(self, Y: Tensor, cost: Cost) -> Tensor:
        return torch.as_tensor(self.matrix, dtype=Y.dtype, device=Y.device)

    def with_overrides_scaled(self, share: float) -> FixedAutonomy:
        P = (1 - share) * np.eye(self.n_clusters) + share * self.matrix
        labels = self.labels
        return FixedAutonomy(P if labels is None else dict(zip(labels, P, strict=True)))

    def group_codes(self, groups: Any, n_samples: int) -> np.ndarray | None:
        if groups is None:
            if len(self.matrix) == 1:
                return None
            raise ValueError(
                f"FixedAutonomy holds {len(self.matrix)} matrices; give groups= with one entry "
                "per row of X to say which entity follows which."
            )
        groups = np.asarray(groups)
        if groups.shape != (n_samples,):
            raise ValueError(
                f"groups must have shape ({n_samples},), one entry per row of X, "
                f"got {groups.shape}."
            )
        labels = list(range(len(self.matrix))) if self.labels is None else self.labels
        codes = {label: code for code, label in enumerate(labels)}
        out = np.empty(n_samples, dtype=np.int64)
        for row, label in enumerate(groups.tolist()):
            if label not in codes:
                raise ValueError(
                    f"groups has {label!r} at row {row}, which has no autonomy matrix; "
                    f"allowed: {labels}."
                )
            out[row] = codes[label]
        return out

    def __repr__(self) -> str:
        groups = f", n_groups={len(self.matrix)}" if len(self.matrix) > 1 else ""
        return f"FixedAutonomy(n_clusters={self.n_clusters}{groups})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FixedAutonomy)
            and self.labels == other.labels
            and np.array_equal(self.matrix, other.matrix)
        )

    __hash__ = None  # type: ignore[assignment]


class StayOrLeave(Autonomy):
    """Stay with probability 1 - kappa, else go to k != j by a softmax of log-weights."""

    @abstractmethod
    def _for_all(self, Y: Tensor, cost: Cost) -> tuple[float | Tensor, Tensor]:
        """Return kappa, a number or (K, 1), and log-weights (K, K); only if not ``by_entity``."""

    @abstractmethod
    def _by_chunk(self, chunk: Chunk, Y: Tensor, cost: Cost) -> Transition:
        """Return p for one chunk of entities that differ."""

    def shared(self, Y: Tensor, cost: Cost) -> Tensor:
        obey = identity(len(Y), Y.dtype, Y.device)
        if len(Y) == 1:  # nowhere else to go
            return obey[None]
        kappa, leave = self._for_all(Y, cost)
        away = leave.softmax(1)
        if isinstance(kappa, Tensor):
            return (obey + kappa * (away - obey))[None]
        return torch.lerp(obey, away, kappa)[None]

    def transition(self, chunk: Chunk, Y: Tensor, cost: Cost) -> Transition:
        if not self.by_entity or len(Y) == 1:
            return SharedTransition(self.shared(Y, cost)[0])
        return self._by_chunk(chunk, Y, cost)


class CostLogits(StayOrLeave):
    """Log-weights that are linear in costs: of alternatives from the prescribed, and the entity."""

    @abstractmethod
    def _kappa(self, D: Tensor | None) -> float | Tensor:
        """Return the probability of leaving where obeying costs D (None: whatever it costs)."""

    @abstractmethod
    def _weights(self, apart: Tensor, D: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return log-weights by the costs from the prescribed centre, and from the entity."""

    def _for_all(self, Y: Tensor, cost: Cost) -> tuple[float | Tensor, Tensor]:
        pair, _ = self._weights(cost.pairwise(Y, Y), None)
        return self._kappa(None), exclude_prescribed(len(Y), Y.dtype, Y.device) + pair

    def _by_chunk(self, chunk: Chunk, Y: Tensor, cost: Cost) -> Transition:
        kappa = self._kappa(chunk.D)
        pair, entity = self._weights(cost.pairwise(Y, Y), chunk.D)
        assert entity is not None
        return SoftmaxTransition(
            kappa, exclude_prescribed(len(Y), Y.dtype, Y.device) + pair, entity
        )

    def conditional_each(
        self, X: Tensor, prescribed: Tensor, Y: Tensor, cost: Cost, rows: np.ndarray | None = None
    ) -> Tensor:
        i, own = torch.arange(len(X), device=X.device), prescribed[:, None]
        if Y.shape[1] == 1:
            return torch.ones_like(Y[:, :, 0])
        D = cost.each(X, Y) if self.by_entity else None
        pair, entity = self._weights(cost.each(Y[i, prescribed], Y), D)
        logits = pair if entity is None else pair + entity
        kappa = self._kappa(None if D is None else D.gather(1, own))
        return stay_or_leave(kappa, logits.scatter(1, own, -torch.inf).softmax(1), prescribed)


#: weight over temperature up to which nothing overflows at allowed costs, and the largest exponent
#: that still makes a difference, given the 16 digits of a cost
SAFE_SHARPNESS, LARGEST_EXPONENT = 1e8, 1e30


def _finite(logits: Tensor) -> Tensor:
    """Return the logits, kept where a sum of two of them does not overflow."""
    most = 0.1 * torch.finfo(logits.dtype).max
    return logits.clamp(-most, most)


@registered
@dataclass(frozen=True)
class DistanceAutonomy(CostLogits):
    """The paper's family: overrides prefer centres near the prescribed one and near the entity.

    With probability 1 - kappa the entity obeys; otherwise it goes to k != j with probability
    proportional to exp(-(zeta d(y_j, y_k) + gamma d(x_i, y_k)) / temperature), where d is the cost
    that is being minimised.

    Parameters
    ----------
    kappa : float
        Probability of overriding, in [0, 1].
    gamma : float, default=0.0
        Weight of the distance from the entity to the alternative.
    zeta : float, default=1.0
        Weight of the distance from the prescribed centre to the alternative.
    temperature : float, default=1.0
        In units of the cost: small is nearly deterministic, large is uniform.

    Examples
    --------
    >>> from volition import DistanceAutonomy
    >>> DistanceAutonomy(0.2, temperature=0.01)
    DistanceAutonomy(kappa=0.2, gamma=0.0, zeta=1.0, temperature=0.01)
    """

    kappa: float
    gamma: float = 0.0
    zeta: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "kappa", check_scalar(self.kappa, "kappa", 0, 1))
        object.__setattr__(self, "gamma", check_scalar(self.gamma, "gamma", 0))
        object.__setattr__(self, "zeta", check_scalar(self.zeta, "zeta", 0))
        temperature = check_scalar(self.temperature, "temperature", 0, open_low=True)
        object.__setattr__(self, "temperature", temperature)

    @property
    def depends_on_centers(self) -> bool:  # type: ignore[override]
        """Whether p changes when the centres move."""
        return self.kappa > 0 and (self.gamma > 0 or self.zeta > 0)

    @property
    def by_entity(self) -> bool:  # type: ignore[override]
        """Whether p differs between entities."""
        return self.kappa > 0 and self.gamma > 0

    def _kappa(self, D: Tensor | None) -> float:
        return self.kappa

    def _weights(self, apart: Tensor, D: Tensor | None) -> tuple[Tensor, Tensor | None]:
        temperature = self._resolved(apart) if D is None else self._resolved(apart, D)
        entity = None if D is None else D * (-self.gamma / temperature)
        return apart * (-self.zeta / temperature), entity

    def _resolved(self, *costs: Tensor) -> float:
        """Return the temperature, or the lowest that makes a difference at these costs.

        Costs differ by at least a rounding error. At temperatures far below it, all overrides go to
        the nearest alternative, and lower temperatures would only make exponents overflow.
        """
        strongest = max(self.zeta, self.gamma)
        if strongest < SAFE_SHARPNESS * self.temperature:
            return self.temperature
        largest = max((float(D.detach().max()) for D in costs if D.numel()), default=0.0)
        # Where all centres coincide, any factor would do that is a number.
        least = max(largest / LARGEST_EXPONENT, 1e8 / torch.finfo(costs[0].dtype).max)
        return max(self.temperature, strongest * least)

    @classmethod
    def from_shares(
        cls,
        elsewhere: float,
        nearest: float,
        centers: Any,
        *,
        metric: Any = "sqeuclidean",
        center_weight: Any = None,
    ) -> DistanceAutonomy:
        """Return the model that goes with two shares a planner knows.

        "20 % go elsewhere than told; of those, 70 % to the nearest alternative" is
        ``from_shares(0.2, 0.7, centers)``. Nearest means nearest to the recommended centre.

        Parameters
        ----------
        elsewhere : float
            Share of recommendations that are not followed: kappa.
        nearest : float
            Of those who go elsewhere, the share that uses the alternative that is nearest to the
            recommended centre. It fixes the temperature. At least 1 / (K - 1), which is what
            entities do that do not care, and less than 1.
        centers : array of shape (K, d)
            The centres at which the shares were seen, or are meant; at least three.
        metric : str, Cost or callable, default="sqeuclidean"
            The cost that is going to be minimised.
        center_weight : array of shape (K,), optional
            How often each centre is recommended; by default all alike.

        Returns
        -------
        DistanceAutonomy
            With gamma = 0 and zeta = 1.

        Examples
        --------
        >>> from volition import DistanceAutonomy
        >>> chargers = [[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [5.0, 5.0]]
        >>> round(DistanceAutonomy.from_shares(0.2, 0.7, chargers).temperature, 3)
        4.065
        """
        cost = resolve_cost(metric)
        nearest = check_scalar(nearest, "nearest", 0, 1)
        Y = check_entities(centers)
        cost.check(Y, "centers")
        K = len(Y)
        if K < 3:
            raise ValueError(
                f"centers must be at least three, got {K}: with fewer there is at most one "
                "alternative, and nearest says nothing."
            )
        weight = check_weights(center_weight, K)
        share = np.full(K, 1 / K) if weight is None else weight / weight.sum()
        temperature = _temperature_of(nearest, cost.pairwise(*[torch.as_tensor(Y)] * 2), share)
        return cls(elsewhere, temperature=temperature)

    def with_overrides_scaled(self, share: float) -> DistanceAutonomy:
        return DistanceAutonomy(self.kappa * share, self.gamma, self.zeta, self.temperature)


def _temperature_of(nearest: float, apart: Tensor, share: np.ndarray) -> float:
    """Return the temperature at which a share of all overrides goes to the nearest alternative."""
    gaps = apart.double().numpy().copy()
    np.fill_diagonal(gaps, np.inf)
    gaps -= gaps.min(axis=1, keepdims=True)
    largest = float(gaps[np.isfinite(gaps)].max())
    # Alternatives that are equally near by rounding are all nearest.
    ties = gaps <= 1e-9 * largest

    def seen(logarithm: float) -> float:
        weights = np.exp(-gaps / np.exp(logarithm))
        return float(share @ ((weights * ties).sum(axis=1) / weights.sum(axis=1)))

    least = float(share @ (ties.sum(axis=1) / (len(gaps) - 1)))
    if not least < nearest < 1:
        raise ValueError(
            f"nearest must be above {least:.4g}, the share of entities that do not care which of "
            f"the other {len(gaps) - 1} centres they use, and below 1, got {nearest:g}."
        )
    low, high = (float(np.log(largest * factor)) for factor in (1e-12, 1e9))
    if not seen(high) < nearest < seen(low):
        raise ValueError(f"nearest={nearest:g} is too close to {least:.4g} or 1 for a temperature.")
    return float(np.exp(brentq(lambda one: seen(one) - nearest, low, high, xtol=1e-13)))


@registered
@dataclass(frozen=True)
class LogitAutonomy(CostLogits):
    """Logits that are linear in costs: what a log of choices can be fitted to.

    Prescribed j, entity i stays with log-odds ``stay + own d(x_i, y_j)``; otherwise it goes to
    k != j with probability proportional to exp(pair d(y_j, y_k) + entity d(x_i, y_k)). Coefficients
    may have any sign. `DistanceAutonomy` is the case ``own=0, pair=-zeta/T, entity=-gamma/T``.

    Parameters
    ----------
    stay : float
        Log-odds of obeying at no distance.
    own : float, default=0.0
        By how much they change with the cost of obeying.
    pair : float, default=0.0
        Weight of the distance from the prescribed centre to the alternative.
    entity : float, default=0.0
        Weight of the distance from the entity to the alternative.
    share : float, default=1.0
        Factor on the probability of overriding, in [0, 1].

    Examples
    --------
    >>> from volition import LogitAutonomy
    >>> LogitAutonomy(2.0, pair=-10.0)
    LogitAutonomy(stay=2.0, own=0.0, pair=-10.0, entity=0.0, share=1.0)
    """

    stay: float
    own: float = 0.0
    pair: float = 0.0
    entity: float = 0.0
    share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("stay", "own", "pair", "entity"):
            value = check_scalar(getattr(self, name), name, -np.inf)
            object.__setattr__(self, name, value)
        object.__setattr__(self, "share", check_scalar(self.share, "share", 0, 1))

    @property
    def depends_on_centers(self) -> bool:  # type: ignore[override]
        """Whether p changes when the centres move."""
        return self.share > 0 and (self.pair != 0 or self.by_entity)

    @property
    def by_entity(self) -> bool:  # type: ignore[override]
        """Whether p differs between entities."""
        return self.share > 0 and (self.own != 0 or self.entity != 0)

    def _kappa(self, D: Tensor | None) -> float | Tensor:
        if D is None:
            odds = torch.tensor(-self.stay, dtype=torch.float64)
            return self.share * float(torch.sigmoid(odds))
        return self.share * torch.sigmoid(-self.stay - self.own * D)

    def _weights(self, apart: Tensor, D: Tensor | None) -> tuple[Tensor, Tensor | None]:
        pair = _finite(self.pair * apart)
        return pair, None if D is None else _finite(self.entity * D)

    def with_overrides_scaled(self, share: float) -> LogitAutonomy:
        return replace(self, share=self.share * share)


class CallableAutonomy(Autonomy):
    """Any p(k | j, i) that can be written in torch.

    Parameters
    ----------
    fn : callable
        ``fn(X, Y) -> p`` with X (n, d), Y (K, d) and p (n, K, K) or (K, K). It is called by chunk
        of entities, so p for one entity must not depend on the others. Gradients flow through it.

    Examples
    --------
    >>> import torch
    >>> from volition import CallableAutonomy
    >>> def nearest_half_of_the_time(X, Y):
    ...     away = torch.softmax(-torch.cdist(X, Y), dim=1)
    ...     return 0.5 * torch.eye(len(Y), dtype=Y.dtype) + 0.5 * away[:, None, :]
    >>> CallableAutonomy(nearest_half_of_the_time)
    CallableAutonomy(nearest_half_of_the_time)
    """

    depends_on_centers = True
    by_entity = True
    # A user's function may give cluster numbers a meaning; we cannot know.
    interchangeable = False

    def __init__(self, fn: Callable[[Tensor, Tensor], Tensor]) -> None:
        if not callable(fn):
            raise ValueError(f"CallableAutonomy needs a function fn(X, Y) -> p, got {fn!r}.")
        self.fn = fn

    def probabilities(self, X: Tensor, Y: Tensor, first_row: int = 0) -> Tensor:
        """Call the function and check what it returns."""
        p = self.fn(X, Y)
        n, K = len(X), len(Y)
        if not isinstance(p, Tensor) or tuple(p.shape) not in {(n, K, K), (K, K)}:
            got = tuple(p.shape) if isinstance(p, Tensor) else type(p).__name__
            raise ValueError(
                "The function given to CallableAutonomy must return a torch tensor of shape "
                f"(n, K, K) = ({n}, {K}, {K}), or (K, K), got {got}."
            )
        p = p.expand(n, K, K).to(dtype=X.dtype, device=X.device)
        check = p.detach()
        tolerance = 1e-6 if X.dtype == torch.float64 else 1e-4
        wrong = ((check.sum(2) - 1).abs() > tolerance) | (check < 0).any(2)
        wrong |= ~check.isfinite().all(2)
        if bool(wrong.any()):
            i = int(torch.nonzero(wrong)[0, 0])
            name = f"CallableAutonomy, entity {first_row + i}"
            check_stochastic(check[i].cpu().double().numpy(), name)
        return p

    def transition(self, chunk: Chunk, Y: Tensor, cost: Cost) -> DenseTransition:
        X = chunk.X + chunk.origin
        first = chunk.rows.start if isinstance(chunk.rows, slice) else int(chunk.rows[0])
        return DenseTransition(self.probabilities(X, Y + chunk.origin, first))

    def with_overrides_scaled(self, share: float) -> CallableAutonomy:
        fn = self.fn

        def blended(X: Tensor, Y: Tensor) -> Tensor:
            return (1 - share) * torch.eye(len(Y), dtype=Y.dtype, device=Y.device) + share * fn(
                X, Y
            )

        return CallableAutonomy(blended)

    def __repr__(self) -> str:
        return f"CallableAutonomy({getattr(self.fn, '__name__', self.fn)!s})"


@registered
class RowAutonomy(Autonomy):
    """One (K, K) matrix per entity: what ``fit(X, autonomy_proba=p)`` builds.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.core.autonomy import RowAutonomy
    >>> RowAutonomy(np.full((5, 2, 2), 0.5))
    RowAutonomy(n_entities=5, n_clusters=2)
    """

    by_entity = True
    interchangeable = False

    def __init__(self, p: Any) -> None:
        p = np.asarray(p)
        p = p if p.dtype in (np.float32, np.float64) else p.astype(np.float64)
        if p.ndim != 3 or p.shape[1] != p.shape[2] or 0 in p.shape:
            raise ValueError(
                "autonomy_proba must have shape (n, K, K): entity, prescribed, realised; "
                f"got {p.shape}."
            )
        check_stochastic(p, "autonomy_proba")
        self.p: FloatArray = p

    def check(self, n_clusters: int, n_samples: int | None = None) -> None:
        n, K = self.p.shape[:2]
        if n_clusters != K or (n_samples is not None and n != n_samples):
            raise ValueError(
                f"autonomy_proba has shape {self.p.shape}, expected "
                f"({n if n_samples is None else n_samples}, {n_clusters}, {n_clusters}): "
                "entity, prescribed, realised."
            )

    def transition(self, chunk: Chunk, Y: Tensor, cost: Cost) -> DenseTransition:
        p = torch.as_tensor(self.p[chunk.rows])
        return DenseTransition(p.to(dtype=chunk.D.dtype, device=chunk.D.device))

    def subset(self, index: np.ndarray) -> RowAutonomy:
        """Return the model of some of the entities."""
        return RowAutonomy(self.p[index])

    def with_overrides_scaled(self, share: float) -> RowAutonomy:
        return RowAutonomy(
            (1 - share) * np.eye(self.p.shape[1], dtype=self.p.dtype) + share * self.p
        )

    def __repr__(self) -> str:
        return f"RowAutonomy(n_entities={self.p.shape[0]}, n_clusters={self.p.shape[1]})"


@registered
class LoyalAutonomy(Autonomy):
    """Entities that use a centre of their own part of the time, whatever is prescribed.

    Parameters
    ----------
    others : Autonomy
        How they choose the rest of the time.
    loyalty : array of shape (n, K)
        Probability that entity i uses centre k without regard to the prescription; each row sums
        to at most one.

    Examples
    --------
    The first entity uses centre 1 three times in four, the second one obeys:

    >>> from volition import LoyalAutonomy, Passive
    >>> from volition.core.problem import Problem
    >>> model = LoyalAutonomy(Passive(), [[0.0, 0.75], [0.0, 0.0]])
    >>> Problem([[0.0], [1.0]], autonomy=model).expected_costs([[0.0], [2.0]]).tolist()
    [[3.0, 4.0], [1.0, 1.0]]
    """

    by_entity = True
    interchangeable = False

    def __init__(self, others: Autonomy, loyalty: Any, *, share: float = 1.0) -> None:
        if not isinstance(others, Autonomy):
            raise ValueError(f"others must be an autonomy model, got {others!r}.")
        loyalty = np.asarray(loyalty, dtype=np.float64)
        if loyalty.ndim != 2 or loyalty.shape[1] == 0:
            raise ValueError(f"loyalty must have shape (n, K), got {loyalty.shape}.")
        wrong = ~((loyalty >= 0).all(1) & (loyalty.sum(1) <= 1 + 1e-9))
        if wrong.any():
            raise ValueError(
                "Each row of loyalty must hold probabilities that sum to at most 1; row "
                f"{int(wrong.argmax())} is {loyalty[wrong.argmax()].tolist()}."
            )
        self.others = others
        self.loyalty: FloatArray = loyalty
        self.share = check_scalar(share, "share", 0, 1)
        self.depends_on_centers = others.depends_on_centers
        self.numbers_per_pair = others.numbers_per_pair + 1

    def check(self, n_clusters: int, n_samples: int | None = None) -> None:
        n, K = self.loyalty.shape
        if n_clusters != K or (n_samples is not None and n != n_samples):
            raise ValueError(
                f"loyalty has shape {self.loyalty.shape}, expected "
                f"({n if n_samples is None else n_samples}, {n_clusters}): it is that of other "
                "entities or clusters."
            )
        self.others.check(n_clusters, n_samples)

    @property
    def labels(self) -> list[Any] | None:
        """Names of the groups of entities, if the other model has any."""
        return getattr(self.others, "labels", None)

    def group_codes(self, groups: Any, n_samples: int) -> Any:
        return self.others.group_codes(groups, n_samples)

    def transition(self, chunk: Chunk, Y: Tensor, cost: Cost) -> LoyalTransition:
        held = torch.as_tensor(self.loyalty[chunk.rows]).to(chunk.D)
        return LoyalTransition(self.others.transition(chunk, Y, cost), held, self.share)

    def conditional_each(
        self, X: Tensor, prescribed: Tensor, Y: Tensor, cost: Cost, rows: np.ndarray | None = None
    ) -> Tensor:
        rows = np.arange(len(X)) if rows is None else rows
        p = self.others.conditional_each(X, prescribed, Y, cost, rows)
        held = torch.as_tensor(self.loyalty[rows]).to(p)
        # All that is asked of the other law is here already.
        law = LoyalTransition(DenseTransition(p[:, None]), held, self.share)
        return law.blended(p, prescribed)

    def subset(self, index: np.ndarray) -> LoyalAutonomy:
        """Return the model of some of the entities."""
        others = self.others.subset(index)
        return LoyalAutonomy(others, self.loyalty[index], share=self.share)

    def with_overrides_scaled(self, share: float) -> LoyalAutonomy:
        return LoyalAutonomy(self.others, self.loyalty, share=self.share * share)

    def __repr__(self) -> str:
        mean = self.share * float(self.loyalty.sum(1).mean()) if len(self.loyalty) else 0.0
        return f"LoyalAutonomy({self.others!r}, loyal choices={mean:.2g})"
