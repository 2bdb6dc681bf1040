"""The terms that choice models are made of, each described once.

A term looks at a `View` and says which of its coefficients apply there, each with a value that it
is multiplied by. Fitting takes these as columns of its design; the model adds up their products.
To add a kind of term, write it here and put it into `KINDS`: nothing else has a list of terms.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from volition.choices.ranked import RANK_CLASSES, RankedTransition, ranks_of_others
from volition.core.autonomy import Transition
from volition.core.validation import FloatArray, check_scalar
from volition.io.checked_files import expect
from volition.io.serialization import constructed, registered

#: costs, in units of their own, below which logarithms no longer fall
LOG_FLOOR = 1e-3
#: curves are straight between so many points, evenly spaced in the logarithm up to the largest cost
KNOTS, LAST_KNOT = 24, 20.0


class View(NamedTuple):
    """What terms look at, by row and cluster, or what broadcasts to that.

    Rows are logged choices (arrays) or the entities of a chunk (tensors). For terms of staying,
    clusters are those that are prescribed: one for each logged choice, all for an entity. For
    others they are the alternatives. Between centres, rows are the prescribed clusters.
    """

    cluster: Any  # (n, A) or (A,) its number
    cost: Any = None  # (n, A) from the entity, or from the prescribed centre
    bent: Any = (
        None  # (n, A) the same for terms that are not straight; see `ChoiceAutonomy.cost_ranges`
    )
    excess: Any = None  # (n, A) how much more it costs the entity than the nearest centre does
    prescribed: Any = None  # (n, 1)
    rank: Any = None  # (n, A) how many centres are nearer to the entity
    prescribed_rank: Any = None  # (n, 1)
    covariates: Any = None  # (n, c)
    patches: Any = None  # (n, M) how much the entity belongs to each patch of a `Basis`


#: which coefficients apply, and what each is multiplied by (None for one)
Columns = list[tuple[Any, Any]]


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


@dataclass(frozen=True)
class Term(ABC):
    """One kind of term.

    It is ``about`` whether the entity stays ("stay"), or where it goes if not: by what that is to
    the "entity", or to the prescribed centre ("pair"). ``words`` say what choices then depend on,
    for people. ``plainer`` names the linear term that this one bends, if it does.
    """

    name: str
    about: str
    words: str
    plainer: str | None = None

    #: what has one coefficient each: clusters, ranks, knots, covariates, patches
    per: ClassVar[tuple[str, ...]] = ()
    #: weight of the square of a coefficient in a fit: others than slopes are drawn towards zero
    ridge: ClassVar[float] = 1e-4
    #: whether every model of this part has it
    always: ClassVar[bool] = False
    #: whether it changes when centres move
    follows_centers: ClassVar[bool] = False
    #: clusters below which it says nothing
    fewest_clusters: ClassVar[int] = 1
    #: whether it depends on entity, prescribed and alternative at once: then only its `transition`
    #: can average over alternatives, and it does not go with terms about pairs
    joint: ClassVar[bool] = False

    @property
    def part(self) -> str:
        """The part of the model that it belongs to: "stay" or "away"."""
        return "stay" if self.about == "stay" else "away"

    @property
    def needs(self) -> set[str]:
        """What it needs of a view beyond costs and numbers of clusters."""
        return {"ranks", "covariates", "patches"} & {*self.per}

    @property
    def by_entity(self) -> bool:
        """Whether it differs between entities."""
        return self.about != "pair" and (self.follows_centers or bool(self.needs))

    @property
    def labelled(self) -> bool:
        """Whether clusters have roles of their own."""
        return "clusters" in self.per

    @property
    def liking(self) -> bool:
        """Whether it is one number for each alternative, which another centre might have."""
        return self.part == "away" and self.per == ("clusters",)

    def size(self, K: int, n_covariates: int, n_patches: int) -> int:
        """Return the number of coefficients."""
        each = {"clusters": K, "ranks": RANK_CLASSES, "knots": KNOTS}
        each |= {"covariates": n_covariates, "patches": n_patches}
        return math.prod(each[what] for what in self.per)

    @abstractmethod
    def columns(self, view: View) -> Columns:
        """Return which coefficients apply where, and what they are multiplied by."""

    def value(self, theta: Tensor, view: View) -> Tensor:
        """Return what the term adds to a logit."""
        columns = self.columns(view)
        return reduce(add, [theta[at] if x is None else theta[at] * x for at, x in columns])

    def transition(self, theta: Tensor, kappa: Tensor, logits: Tensor, view: View) -> Transition:
        """Return p where this joint term is added to the logits of all alternatives, (n, K)."""
        raise TypeError(f"The term {self.name!r} is not joint.")


class Constant(Term):
    """The same always."""

    always = True

    def columns(self, view: View) -> Columns:
        return [(0, None)]


class Slope(Term):
    """A coefficient times the cost."""

    follows_centers = True

    def columns(self, view: View) -> Columns:
        return [(0, view.cost)]


class Logarithm(Slope):
    """A coefficient times the logarithm of the cost."""

    def columns(self, view: View) -> Columns:
        cost = view.bent + LOG_FLOOR
        return [(0, cost.log() if isinstance(cost, Tensor) else np.log(cost))]


class Curve(Slope):
    """A curve of the cost, straight between knots."""

    per, ridge = ("knots",), 0.02

    def columns(self, view: View) -> Columns:
        step = math.log(LAST_KNOT / LOG_FLOOR) / (KNOTS - 1)
        at = ((torch.as_tensor(view.bent) + LOG_FLOOR).log() - math.log(LOG_FLOOR)) / step
        at = at.clamp(0, KNOTS - 1 - 1e-9)
        low = at.detach().floor().long().clamp(max=KNOTS - 2)
        return [(low, 1 - (at - low)), (low + 1, at - low)]


class Excess(Slope):
    """A coefficient times what a centre costs above the nearest one."""

    @property
    def needs(self) -> set[str]:
        return {"excess"}

    def columns(self, view: View) -> Columns:
        return super().columns(view._replace(cost=view.excess, bent=view.excess))


class ExcessCurve(Excess, Curve):
    """A curve of what a centre costs above the nearest one."""


class Cluster(Term):
    """A number for each cluster."""

    per, ridge = ("clusters",), 0.25

    def columns(self, view: View) -> Columns:
        return [(view.cluster, None)]


class Table(Term):
    """A number for each prescribed cluster and alternative."""

    per, ridge = ("clusters", "clusters"), 0.25

    def columns(self, view: View) -> Columns:
        return [(view.prescribed * len(view.cluster) + view.cluster, None)]


class Rank(Term):
    """A number for each rank: nearest, second, third, farther."""

    per: ClassVar[tuple[str, ...]] = ("ranks",)
    ridge = 0.05
    follows_centers, fewest_clusters = True, 3

    def columns(self, view: View) -> Columns:
        return [(view.rank.clip(max=RANK_CLASSES - 1), None)]


class RankTable(Rank):
    """A number for each rank of the prescribed centre and of the alternative among the others."""

    per = ("ranks", "ranks")
    joint = True

    def columns(self, view: View) -> Columns:
        mine = view.prescribed_rank
        others = ranks_of_others(view.rank, mine)
        return [(mine.clip(max=RANK_CLASSES - 1) * RANK_CLASSES + others, None)]

    def transition(self, theta: Tensor, kappa: Tensor, logits: Tensor, view: View) -> Transition:
        return RankedTransition(kappa, logits, view.rank, theta.reshape(RANK_CLASSES, RANK_CLASSES))


class Covariates(Term):
    """A coefficient for each covariate. Matrix products are quicker than sums of columns."""

    per: ClassVar[tuple[str, ...]] = ("covariates",)

    def columns(self, view: View) -> Columns:
        return [(c, column[:, None]) for c, column in enumerate(getattr(view, self.per[0]).T)]

    def value(self, theta: Tensor, view: View) -> Tensor:
        return (getattr(view, self.per[0]) @ theta)[:, None]


class Place(Covariates):
    """A coefficient for each patch of the space of features and covariates."""

    per, ridge = ("patches",), 0.1


class CovariateSlopes(Covariates):
    """A slope of the cost that depends on covariates."""

    follows_centers = True

    def columns(self, view: View) -> Columns:
        return [(c, view.cost * column) for c, column in super().columns(view)]

    def value(self, theta: Tensor, view: View) -> Tensor:
        return super().value(theta, view) * view.cost


class CovariateClusters(Covariates):
    """A number for each cluster that depends on covariates."""

    per, ridge = ("covariates", "clusters"), 0.25

    def columns(self, view: View) -> Columns:
        K = len(view.cluster)
        return [(c * K + view.cluster, column) for c, column in super().columns(view)]

    def value(self, theta: Tensor, view: View) -> Tensor:
        return view.covariates @ theta.reshape(view.covariates.shape[1], -1)


_OBEYING, _EXCESS, _PAIR, _ENTITY = (
    "what obeying costs",
    "how much more obeying costs than the nearest centre",
    "how far the alternative is from the prescribed centre",
    "how far it is from the entity",
)
#: all kinds of terms
KINDS: tuple[Term, ...] = (
    Constant("constant", "stay", "how often it obeys"),
    Slope("cost", "stay", _OBEYING),
    Logarithm("log cost", "stay", f"{_OBEYING}, by its logarithm", "cost"),
    Curve("cost curve", "stay", f"{_OBEYING}, by any curve", "cost"),
    Excess("excess", "stay", _EXCESS),
    ExcessCurve("excess curve", "stay", f"{_EXCESS}, by any curve", "excess"),
    Cluster("cluster", "stay", "which cluster is prescribed"),
    Rank("rank", "stay", "how many centres are nearer than the prescribed one"),
    Covariates("covariates", "stay", "the entity's covariates"),
    Place("place", "stay", "where the entity is (and its covariates), freely"),
    Slope("pair", "pair", _PAIR),
    Slope("entity", "entity", _ENTITY),
    Logarithm("log pair", "pair", f"{_PAIR}, by its logarithm", "pair"),
    Logarithm("log entity", "entity", f"{_ENTITY}, by its logarithm", "entity"),
    Curve("pair curve", "pair", f"{_PAIR}, by any curve", "pair"),
    Curve("entity curve", "entity", f"{_ENTITY}, by any curve", "entity"),
    Cluster("cluster", "entity", "which cluster it is"),
    Table("table", "pair", "which cluster it is, for each prescribed one"),
    RankTable("rank", "entity", "whether it is the nearest other centre, the second, the third"),
    CovariateSlopes("covariates x entity", "entity", f"{_ENTITY}, by covariates"),
    CovariateClusters("covariates x cluster", "entity", "which cluster it is, by covariates"),
)
#: the terms of each part, by name
TERMS = {part: {t.name: t for t in KINDS if t.part == part} for part in ("stay", "away")}
#: what they are about, for people
STAY, AWAY = ({name: term.words for name, term in part.items()} for part in TERMS.values())
#: terms of staying that a log may not tell apart
ALIKE = ("cost", "excess", "cost curve", "excess curve")


def named(part: str, names: Iterable[str]) -> list[Term]:
    """Return the terms of a part that have these names; raise ValueError if they do not fit."""
    known, names = TERMS[part], list(names)
    for name in names:
        if name not in known:
            raise ValueError(f"There is no {part} term {name!r}; there are {list(known)}.")
    found = [known[name] for name in names]
    pairs = sorted(term.name for term in found if term.about == "pair")
    joint = [term.name for term in found if term.joint]
    if joint and pairs:
        raise ValueError(f"The {part} term {pairs[0]!r} does not go with {joint[0]!r}.")
    return found
