"""`ChoiceAutonomy`: p(k | j, i) made of terms, each with coefficients that were fitted to choices.

Prescribed j, entity i stays with log-odds that are a sum of *stay* terms; otherwise it goes to
k != j with a probability proportional to the exponential of a sum of *away* terms. Terms need at
most one number per entity and centre or per pair of centres, so nothing of size (n, K, K) is made.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from volition.choices.ranked import RANK_CLASSES, ranks
from volition.choices.terms import TERMS, Basis, Term, View, named
from volition.core.autonomy import (
    Chunk,
    SoftmaxTransition,
    StayOrLeave,
    Transition,
    exclude_prescribed,
)
from volition.core.costs import Cost
from volition.core.validation import check_scalar
from volition.io.checked_files import expect
from volition.io.serialization import constructed, registered


@registered
class ChoiceAutonomy(StayOrLeave):
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
    cost_ranges : dict of {"stay", "excess", "entity", "pair"} to (low, high), optional
        Costs that the choices were made at, in cost units: of obeying, of obeying above the nearest
        centre, of alternatives from the entity, and from the prescribed centre. Beyond these, terms
        keep their last value: a slope says nothing about costs that nobody ever had. (Linear terms
        go on below the low end, which is near zero.)

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
        cost_ranges: dict[str, tuple[float, float]] | None = None,
    ) -> None:
        self.stay = {name: np.asarray(value, dtype=np.float64) for name, value in stay.items()}
        self.away = {name: np.asarray(value, dtype=np.float64) for name, value in away.items()}
        self.cost_unit, self.n_clusters = cost_unit, n_clusters
        self.covariates = None if covariates is None else np.asarray(covariates, dtype=np.float64)
        self.basis, self.share, self.cost_ranges = basis, share, cost_ranges
        staying, leaving = self._terms = named("stay", self.stay), named("away", self.away)
        terms = [*staying, *leaving]
        self._about = {
            "stay": staying,
            "entity": [term for term in leaving if term.about == "entity"],
            "pair": [t for t in TERMS["away"].values() if t in leaving and t.about == "pair"],
        }
        self._needs = set().union(*(term.needs for term in terms))
        self._covariates_asked = "covariates" in self._needs or (
            basis is not None and self.covariates is not None
        )
        self.by_entity = any(term.by_entity for term in terms)
        self.depends_on_centers = any(term.follows_centers for term in terms)
        self.interchangeable = not any(term.labelled for term in terms)
        self._joint = next((term for term in leaving if term.joint), None)
        self.numbers_per_pair = 1 if self._joint is None else RANK_CLASSES
        if not self.interchangeable and n_clusters is None:
            raise ValueError("n_clusters is needed where clusters have roles of their own.")

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

    def _with(self, **changes: Any) -> ChoiceAutonomy:
        other = copy.copy(self)
        vars(other).update(changes)
        return other

    def for_entities(self, covariates: Any) -> ChoiceAutonomy:
        """Return the model for other entities, one row of covariates each."""
        asked = self._covariates_asked or self.basis is not None
        covariates = np.asarray(covariates, dtype=np.float64)
        return self._with(covariates=covariates, _covariates_asked=asked)

    def subset(self, index: np.ndarray) -> ChoiceAutonomy:
        """Return the model of some of the entities."""
        return self if self.covariates is None else self.for_entities(self.covariates[index])

    def with_overrides_scaled(self, share: float) -> ChoiceAutonomy:
        return self._with(share=self.share * share)

    def within(self, cost_ranges: dict[str, tuple[float, float]] | None) -> ChoiceAutonomy:
        """Return the model with terms that keep their last value beyond these costs."""
        return self._with(cost_ranges=cost_ranges)

    def with_coefficients(self, stay: dict[str, Any], away: dict[str, Any]) -> ChoiceAutonomy:
        """Return the model with other coefficients of the same terms, tensors for gradients."""
        return self._with(stay=stay, away=away)

    def without_labels(self) -> ChoiceAutonomy:
        """Return the model in which no cluster has a role of its own."""
        stay, away = (
            {term.name: values[term.name] for term in terms if not term.labelled}
            for terms, values in zip(self._terms, (self.stay, self.away), strict=True)
        )
        kept = ("cost_unit", "n_clusters", "covariates", "basis", "share", "cost_ranges")
        return ChoiceAutonomy(stay, away, **{name: getattr(self, name) for name in kept})

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> ChoiceAutonomy:
        """Return the model that was saved, with as many coefficients as its terms have."""
        model: ChoiceAutonomy = constructed(cls, state)
        check_scalar(model.cost_unit, "cost_unit", 0, open_low=True)
        check_scalar(model.share, "share", 0, 1)
        for low, high in (model.cost_ranges or {}).values():
            if not low <= high:
                raise ValueError(f"'cost_ranges' has a range from {low!r} to {high!r}")
        known = model.covariates
        K, c = model.n_clusters or 0, 0 if known is None else known.shape[1]
        n_places = 0 if model.basis is None else len(model.basis.places)
        for term in (*model._terms[0], *model._terms[1]):
            value = (model.stay if term.part == "stay" else model.away)[term.name]
            unknown = known is None and term.name.startswith("covariates")
            size = None if unknown else term.size(K, c, n_places)
            expect({term.name: value.ravel()}, term.name, (size,))
        return model

    def _for_all(self, Y: Tensor, cost: Cost) -> tuple[Tensor, Tensor]:
        view = View(torch.arange(len(Y), device=Y.device))
        leave = self._added(self._leave(view, Y, cost), self._about["entity"], view)
        return (self.share * torch.sigmoid(-self._stay_shared(view, Y)))[:, None], leave

    def _by_chunk(self, chunk: Chunk, Y: Tensor, cost: Cost) -> Transition:
        view = self._view(chunk)
        staying = [term for term in self._about["stay"] if term.by_entity]
        stay = self._stay_shared(view, Y) + torch.zeros_like(view.cost)
        stay = self._added(stay, staying, self._held(view, "stay"))
        leaving = [term for term in self._about["entity"] if not term.joint]
        drawn = torch.zeros_like(view.cost)
        drawn = self._added(drawn, leaving, self._held(view, "entity"))
        kappa: Any = self.share * torch.sigmoid(-stay)
        if self._joint is not None:
            return self._joint.transition(self._theta(self._joint, drawn), kappa, drawn, view)
        if all(term.always for term in self._about["stay"]) and not stay.requires_grad:
            kappa = float(kappa[0, 0])  # one number is quicker than a table of it
        return SoftmaxTransition(kappa, self._leave(view, Y, cost), drawn)

    def _theta(self, term: Term, like: Tensor) -> Tensor:
        value = (self.stay if term.part == "stay" else self.away)[term.name]
        return torch.as_tensor(value, dtype=like.dtype, device=like.device)

    def _added(self, total: Tensor, terms: Iterable[Term], view: View) -> Tensor:
        """Return log-odds or log-weights with those of some terms added."""
        for term in terms:
            total = total + term.value(self._theta(term, total), view)
        return total

    def _stay_shared(self, view: View, Y: Tensor) -> Tensor:
        """Return the log-odds of staying that all entities share, (K,)."""
        terms = [term for term in self._about["stay"] if not term.by_entity]
        return self._added(torch.zeros(len(Y), dtype=Y.dtype, device=Y.device), terms, view)

    def _leave(self, view: View, Y: Tensor, cost: Cost) -> Tensor:
        """Return log-weights by prescribed and alternative centre, (K, K)."""
        terms = self._about["pair"]
        if any(term.follows_centers for term in terms):
            view = view._replace(cost=cost.pairwise(Y, Y) / self.cost_unit)
            view = self._held(view, "pair")
        view = view._replace(prescribed=view.cluster[:, None])
        return self._added(exclude_prescribed(len(Y), Y.dtype, Y.device), terms, view)

    def _view(self, chunk: Chunk) -> View:
        """Return what terms look at in a chunk of entities."""
        D, rows = chunk.D / self.cost_unit, chunk.rows
        Z = np.zeros((len(D), 0)) if self.covariates is None else self.covariates[rows]
        covariates = torch.as_tensor(Z, dtype=D.dtype, device=D.device)
        rank = ranks(D) if "ranks" in self._needs else None
        cluster = torch.arange(D.shape[1], device=D.device)
        patches = excess = None
        if "patches" in self._needs:
            assert self.basis is not None
            patches = self.basis(torch.cat([chunk.X + chunk.origin, covariates], 1))
        if "excess" in self._needs:
            excess = D - D.amin(1, keepdim=True)
            if self.cost_ranges is not None and "excess" in self.cost_ranges:
                excess = excess.clamp(max=self.cost_ranges["excess"][1])
        return View(cluster, D, excess=excess, rank=rank, covariates=covariates, patches=patches)

    def _held(self, view: View, about: str) -> View:
        """Return the view with costs that end where `cost_ranges` does."""
        if self.cost_ranges is None or about not in self.cost_ranges:
            return view._replace(bent=view.cost)
        low, high = self.cost_ranges[about]
        straight = view.cost.clamp(max=high)
        return view._replace(cost=straight, bent=straight.clamp(min=low))

    def __repr__(self) -> str:
        share = "" if self.share == 1 else f", share={self.share:g}"
        return f"ChoiceAutonomy(stay={list(self.stay)}, away={list(self.away)}{share})"
