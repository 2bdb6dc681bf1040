"""`ChoiceAutonomy`: p(k | j, i) made of terms, each with coefficients that were fitted to choices.

Prescribed j, entity i stays with log-odds that are a sum of *stay* terms; otherwise it goes to
k != j with a probability proportional to the exponential of a sum of *away* terms. Terms need at
most one number per entity and centre or per pair of centres, so nothing of size (n, K, K) is made.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from volition.autonomy import (
    Autonomy,
    Chunk,
    SharedTransition,
    SoftmaxTransition,
    Transition,
    barred,
    identity,
)
from volition.choices.ranked import CLASSES, RankedTransition, ranks
from volition.costs import Cost
from volition.io.files import expect
from volition.io.serialization import constructed, registered
from volition.validation import FloatArray, check_scalar

#: what a term is about, for people
STAY = {
    "constant": "how often it obeys",
    "cost": "what obeying costs",
    "log cost": "what obeying costs, by its logarithm",
    "cost curve": "what obeying costs, by any curve",
    "cluster": "which cluster is prescribed",
    "rank": "how many centres are nearer than the prescribed one",
    "covariates": "the entity's covariates",
    "place": "where the entity is (and its covariates), freely",
}
AWAY = {
    "pair": "how far the alternative is from the prescribed centre",
    "entity": "how far it is from the entity",
    "log pair": "how far the alternative is from the prescribed centre, by its logarithm",
    "log entity": "how far it is from the entity, by its logarithm",
    "pair curve": "how far the alternative is from the prescribed centre, by any curve",
    "entity curve": "how far it is from the entity, by any curve",
    "cluster": "which cluster it is",
    "table": "which cluster it is, for each prescribed one",
    "rank": "whether it is the nearest other centre, the second, the third",
    "covariates x entity": "how far it is from the entity, by covariates",
    "covariates x cluster": "which cluster it is, by covariates",
}
#: terms in which clusters have roles of their own
LABELLED = {"cluster", "table", "covariates x cluster"}
#: terms that follow the centres when they move
GEOMETRIC = {
    "cost",
    "log cost",
    "cost curve",
    "rank",
    "pair",
    "log pair",
    "pair curve",
    "entity",
    "log entity",
    "entity curve",
    "covariates x entity",
}
#: terms by which entities choose differently when they override
_BY_ENTITY = {
    "entity",
    "log entity",
    "entity curve",
    "rank",
    "covariates x entity",
    "covariates x cluster",
}
#: terms that depend on the prescribed centre and the alternative
PAIRED = {"pair", "log pair", "pair curve", "table"}
#: costs, in units of their own, below which logarithms no longer fall
SMALLEST = 1e-3
#: curves are straight between so many points, evenly spaced in the logarithm up to the largest cost
KNOTS, LARGEST = 24, 20.0


@registered
class Basis(NamedTuple):
    """Soft patches of the space of features and covariates; their values sum to one."""

    origin: FloatArray  # (d + c,)
    scale: FloatArray  # (d + c,)
    places: FloatArray  # (M, d + c), in those units
    width: float

    def __call__(self, U: Tensor) -> Tensor:
        """Return how much each row belongs to each patch, (n, M)."""
        origin, scale, places = (torch.as_tensor(z, dtype=U.dtype) for z in self[:3])
        far = torch.cdist((U - origin) / scale, places).square()
        return (-far / (2 * self.width**2)).softmax(1)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Basis:
        """Return the patches that were saved."""
        basis: Basis = constructed(cls, state)
        (size,) = expect(state, "origin", (None,)).shape
        expect(state, "scale", (size,))
        expect(state, "places", (None, size))
        check_scalar(basis.width, "width", 0, open_low=True)
        return basis


def knots(D: Tensor) -> tuple[Tensor, Tensor]:
    """Return between which knots costs lie (the lower one's number), and how far to the next."""
    step = math.log(LARGEST / SMALLEST) / (KNOTS - 1)
    at = ((D + SMALLEST).log() - math.log(SMALLEST)) / step
    at = at.clamp(0, KNOTS - 1 - 1e-9)
    low = at.detach().floor().long().clamp(max=KNOTS - 2)
    return low, at - low


def _curve(theta: Tensor, D: Tensor) -> Tensor:
    low, part = knots(D)
    return theta[low] * (1 - part) + theta[low + 1] * part


def term_size(part: str, term: str, K: int, n_covariates: int, n_places: int) -> int:
    """Return how many coefficients a term has."""
    sizes = {
        "cost curve": KNOTS,
        "pair curve": KNOTS,
        "entity curve": KNOTS,
        "cluster": K,
        "table": K * K,
        "rank": CLASSES if part == "stay" else CLASSES * CLASSES,
        "covariates": n_covariates,
        "covariates x entity": n_covariates,
        "covariates x cluster": n_covariates * K,
        "place": n_places,
    }
    return sizes.get(term, 1)


@registered
class ChoiceAutonomy(Autonomy):
    """A choice model as an autonomy model: usable wherever one is.

    Usually made by `fit_choices` or `ChoiceClustering`, not by hand.

    Parameters
    ----------
    stay, away : dict of term name to coefficients
        See ``volition.choices.STAY`` and ``AWAY`` for the terms.
    cost_unit : float, default=1.0
        Distances are divided by this before coefficients apply.
    n_clusters : int, optional
        Needed where clusters have roles of their own.
    covariates : array of shape (n, c), optional
        One row per entity, where a term asks for it; see `for_entities`.
    basis : Basis, optional
        Patches of the term "place".
    share : float, default=1.0
        Factor on the probability of overriding.
    seen : dict of {"stay", "entity", "pair"} to (low, high), optional
        Costs that the choices were made at, in cost units: of obeying, of alternatives from the
        entity, and from the prescribed centre. Beyond these, terms stay as they are at the end:
        nothing is concluded from a slope about costs that nobody ever had. (Straight terms go on
        below the low end, which is at most its own length away.)

    Examples
    --------
    >>> import numpy as np
    >>> from volition import ChoiceAutonomy
    >>> model = ChoiceAutonomy({"constant": [2.0]}, {"pair": [-10.0]})
    >>> model
    ChoiceAutonomy(stay=['constant'], away=['pair'])
    """

    def __init__(
        self,
        stay: dict[str, Any],
        away: dict[str, Any],
        *,
        cost_unit: float = 1.0,
        n_clusters: int | None = None,
        covariates: Any = None,
        basis: Basis | None = None,
        share: float = 1.0,
        seen: dict[str, tuple[float, float]] | None = None,
    ) -> None:
        self.stay = {name: np.asarray(value, dtype=np.float64) for name, value in stay.items()}
        self.away = {name: np.asarray(value, dtype=np.float64) for name, value in away.items()}
        for part, known in ((self.stay, STAY), (self.away, AWAY)):
            for name in part:
                if name not in known:
                    raise ValueError(f"There is no term {name!r}; terms are {list(known)}.")
        if "rank" in self.away and (both := PAIRED & set(self.away)):
            raise ValueError(f"The away term {min(both)!r} does not go with 'rank'.")
        self.cost_unit, self.n_clusters = cost_unit, n_clusters
        self.covariates = None if covariates is None else np.asarray(covariates, dtype=np.float64)
        self.basis, self.share, self.seen = basis, share, seen
        names = {*self.stay, *self.away}
        self._covariates_asked = any(name.startswith("covariates") for name in names) or (
            basis is not None and self.covariates is not None
        )
        self.interchangeable = not names & LABELLED
        self.numbers_per_pair = CLASSES if "rank" in self.away else 1
        if names & LABELLED and n_clusters is None:
            raise ValueError("n_clusters is needed where clusters have roles of their own.")

    @property
    def depends_on_centers(self) -> bool:  # type: ignore[override]
        """Whether p changes when the centres move."""
        return bool({*self.stay, *self.away} & GEOMETRIC)

    @property
    def by_entity(self) -> bool:  # type: ignore[override]
        """Whether p differs between entities."""
        return bool({*self.stay} - {"constant", "cluster"} or {*self.away} & _BY_ENTITY)

    def check(self, n_clusters: int, n_samples: int | None = None) -> None:
        if not self.interchangeable and n_clusters != self.n_clusters:
            raise ValueError(
                f"n_clusters={n_clusters}, but the choice model knows {self.n_clusters} clusters "
                "by their numbers; the two must agree."
            )
        if self._covariates_asked and n_samples is not None:
            n = 0 if self.covariates is None else len(self.covariates)
            if n != n_samples:
                raise ValueError(
                    f"The choice model has covariates of {n} entities, but there are {n_samples}; "
                    "give theirs by for_entities."
                )

    def for_entities(self, covariates: Any) -> ChoiceAutonomy:
        """Return the model for other entities, one row of covariates each."""
        return self._like(covariates=np.asarray(covariates, dtype=np.float64))

    def subset(self, index: np.ndarray) -> ChoiceAutonomy:
        """Return the model of some of the entities."""
        return self if self.covariates is None else self.for_entities(self.covariates[index])

    def scaled(self, t: float) -> ChoiceAutonomy:
        return self._like(share=self.share * t)

    def _like(self, **changes: Any) -> ChoiceAutonomy:
        kept = {
            "cost_unit": self.cost_unit,
            "n_clusters": self.n_clusters,
            "covariates": self.covariates,
            "basis": self.basis,
            "share": self.share,
            "seen": self.seen,
        }
        return ChoiceAutonomy(self.stay, self.away, **(kept | changes))

    def within(self, seen: dict[str, tuple[float, float]] | None) -> ChoiceAutonomy:
        """Return the model with terms that hold still beyond these costs; see ``seen``."""
        return self._like(seen=seen)

    def without_labels(self) -> ChoiceAutonomy:
        """Return the model in which no cluster has a role of its own."""
        other = self._like()
        other.stay = {name: value for name, value in self.stay.items() if name not in LABELLED}
        other.away = {name: value for name, value in self.away.items() if name not in LABELLED}
        other.interchangeable = True
        return other

    def with_coefficients(self, stay: dict[str, Any], away: dict[str, Any]) -> ChoiceAutonomy:
        """Return the model with other coefficients of the same terms, tensors for gradients."""
        other = copy.copy(self)
        other.stay, other.away = stay, away
        return other

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> ChoiceAutonomy:
        """Return the model that was saved, with as many coefficients as its terms have."""
        model: ChoiceAutonomy = constructed(cls, state)
        check_scalar(model.cost_unit, "cost_unit", 0, open_low=True)
        check_scalar(model.share, "share", 0, 1)
        for low, high in (model.seen or {}).values():
            if not low <= high:
                raise ValueError(f"costs were seen from {low!r} to {high!r}")
        known = model.covariates
        K, c = model.n_clusters or 0, 0 if known is None else known.shape[1]
        n_places = 0 if model.basis is None else len(model.basis.places)
        for part, terms in (("stay", model.stay), ("away", model.away)):
            for term, value in terms.items():
                size = term_size(part, term, K, c, n_places)
                unknown = known is None and term.startswith("covariates")
                expect({term: value.ravel()}, term, (None if unknown else size,))
        return model

    def shared(self, Y: Tensor, cost: Cost) -> Tensor:
        obey = identity(len(Y), Y.dtype, Y.device)
        if len(Y) == 1 or self.share == 0:
            return obey[None]
        stay = self._stay_shared(Y)
        kappa = (self.share * torch.sigmoid(-stay))[:, None]
        leave = self._leave(Y, cost)
        if "cluster" in self.away:
            leave = leave + self._tensor(self.away["cluster"], Y)
        return (obey + kappa * (leave.softmax(1) - obey))[None]

    def transition(self, chunk: Chunk, Y: Tensor, cost: Cost) -> Transition:
        if not self.by_entity or len(Y) == 1:
            return SharedTransition(self.shared(Y, cost)[0])
        D, Z = chunk.D / self.cost_unit, self._covariates_of(chunk)
        ranked = "rank" in self.stay or "rank" in self.away
        rank = ranks(D) if ranked else torch.empty(0)
        stay = self._stay_shared(Y) + torch.zeros_like(D)
        mine, bent = self._held(D, "stay")
        for name, value in self.stay.items():
            theta = self._tensor(value, D)
            if name == "cost":
                stay = stay + theta * mine
            elif name == "log cost":
                stay = stay + theta * (bent + SMALLEST).log()
            elif name == "cost curve":
                stay = stay + _curve(theta, bent)
            elif name == "rank":
                stay = stay + theta[rank.clamp(max=CLASSES - 1)]
            elif name == "covariates":
                stay = stay + (Z @ theta)[:, None]
            elif name == "place":
                assert self.basis is not None
                patches = self.basis(torch.cat([chunk.X + chunk.origin, Z], 1))
                stay = stay + (patches @ theta)[:, None]
        drawn = torch.zeros_like(D)
        mine, bent = self._held(D, "entity")
        for name, value in self.away.items():
            theta = self._tensor(value, D)
            if name == "entity":
                drawn = drawn + theta * mine
            elif name == "log entity":
                drawn = drawn + theta * (bent + SMALLEST).log()
            elif name == "entity curve":
                drawn = drawn + _curve(theta, bent)
            elif name == "cluster":
                drawn = drawn + theta
            elif name == "covariates x entity":
                drawn = drawn + (Z @ theta)[:, None] * mine
            elif name == "covariates x cluster":
                drawn = drawn + Z @ theta.reshape(Z.shape[1], -1)
        kappa: Any = self.share * torch.sigmoid(-stay)
        if "rank" in self.away:
            table = self._tensor(self.away["rank"], D).reshape(CLASSES, CLASSES)
            return RankedTransition(kappa, drawn, rank, table)
        if set(self.stay) == {"constant"} and not stay.requires_grad:
            kappa = float(kappa[0, 0])  # one number is quicker than a table of it
        return SoftmaxTransition(kappa, self._leave(Y, cost), drawn)

    def _held(self, D: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """Return costs for straight and for bent terms, held at the ends of what was seen."""
        if self.seen is None or kind not in self.seen:
            return D, D
        low, high = self.seen[kind]
        straight = D.clamp(max=high)
        return straight, straight.clamp(min=low)

    def _tensor(self, value: FloatArray, like: Tensor) -> Tensor:
        return torch.as_tensor(value, dtype=like.dtype, device=like.device)

    def _stay_shared(self, Y: Tensor) -> Tensor:
        """Return the log-odds of staying that all entities share, (K,)."""
        stay = torch.zeros(len(Y), dtype=Y.dtype, device=Y.device)
        for name in ("constant", "cluster"):
            if name in self.stay:
                stay = stay + self._tensor(self.stay[name], Y)
        return stay

    def _leave(self, Y: Tensor, cost: Cost) -> Tensor:
        """Return log-weights by prescribed and alternative centre, (K, K)."""
        leave = barred(len(Y), Y.dtype, Y.device)
        if {"pair", "log pair", "pair curve"} & set(self.away):
            apart, bent = self._held(cost.pairwise(Y, Y) / self.cost_unit, "pair")
        if "pair" in self.away:
            leave = leave + self._tensor(self.away["pair"], Y) * apart
        if "log pair" in self.away:
            leave = leave + self._tensor(self.away["log pair"], Y) * (bent + SMALLEST).log()
        if "pair curve" in self.away:
            leave = leave + _curve(self._tensor(self.away["pair curve"], Y), bent)
        if "table" in self.away:
            leave = leave + self._tensor(self.away["table"], Y).reshape(len(Y), len(Y))
        return leave

    def _covariates_of(self, chunk: Chunk) -> Tensor:
        if self.covariates is None:
            return chunk.X.new_zeros(len(chunk.X), 0)
        return self._tensor(self.covariates[chunk.rows], chunk.X)

    def __repr__(self) -> str:
        share = "" if self.share == 1 else f", share={self.share:g}"
        return f"ChoiceAutonomy(stay={list(self.stay)}, away={list(self.away)}{share})"
