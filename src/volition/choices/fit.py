"""Fit choice models by maximum likelihood, with terms that are told or chosen."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from volition.choices.data import (
    Choices,
    Scene,
    coefficient_slices,
    cost_ranges,
    make_basis,
    make_decisions,
    make_scene,
)
from volition.choices.logit import Decisions, cautious_covariance, fit_logit
from volition.choices.model import ChoiceAutonomy
from volition.choices.selection import Trial, choose_terms
from volition.choices.terms import Term, named
from volition.core.autonomy import DistanceAutonomy
from volition.core.costs import Cost
from volition.core.validation import FloatArray
from volition.io.checked_files import expect
from volition.io.serialization import constructed, registered

#: terms that a name stands for: (stay, away)
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "distance": (("constant",), ("pair", "entity"))
}


@registered
class Part(NamedTuple):
    """One fitted part: staying, or where to if not."""

    terms: tuple[str, ...]
    slices: dict[str, slice]  # where the coefficients of each term are
    coefficients: FloatArray
    covariance: FloatArray  # also right where choices of one entity go together
    n_rows: int

    @classmethod
    def of(cls, values: Mapping[str, FloatArray], covariance: FloatArray, n_rows: int) -> Part:
        """Return the part with these coefficients of each term."""
        slices = coefficient_slices({term: len(value) for term, value in values.items()})
        theta = np.concatenate([np.zeros(0), *values.values()])
        return cls(tuple(values), slices, theta, covariance, n_rows)

    def by_term(self) -> dict[str, FloatArray]:
        """Return the coefficients of each term."""
        return {term: self.coefficients[where] for term, where in self.slices.items()}


@registered
class ChoiceFit(NamedTuple):
    """A fitted choice model, with what is needed for error bars."""

    model: ChoiceAutonomy
    stay: Part
    away: Part
    trials: list[Trial]
    n_choices: int

    @property
    def parts(self) -> dict[str, Part]:
        """Both parts, by name."""
        return {"stay": self.stay, "away": self.away}

    @property
    def kinds(self) -> list[Term]:
        """The terms of both parts."""
        return [term for name, part in self.parts.items() for term in named(name, part.terms)]

    @property
    def likings(self) -> list[slice]:
        """Which coefficients of the part "away" are likings, one for each cluster."""
        return [self.away.slices[term.name] for term in self.kinds if term.liking]

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> ChoiceFit:
        """Return the fit that was saved, if its parts are those of its model."""
        fit: ChoiceFit = constructed(cls, state)
        for part, terms in ((fit.stay, fit.model.stay), (fit.away, fit.model.away)):
            size = sum(value.size for value in terms.values())
            expect(part._asdict(), "coefficients", (size,))
            if part.covariance.shape != (size, size):
                raise ValueError(f"'covariance' has shape {part.covariance.shape}")
        return fit

    def for_entities(self, covariates: FloatArray | None) -> ChoiceFit:
        """Return the fit with the model for other entities, if it has any covariates."""
        if covariates is None or self.model.covariates is None:
            return self
        return self._replace(model=self.model.for_entities(covariates))


def fit_choices(
    X: FloatArray,
    choices: Choices,
    cost: Cost,
    cost_unit: float,
    *,
    covariates: FloatArray | None = None,
    family: Any = "auto",
    without: Collection[str] = (),
    hold: bool = False,
    random_state: int = 0,
) -> ChoiceFit:
    """Fit a choice model.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities.
    choices : Choices
    cost : Cost
    cost_unit : float
        A cost of the usual size, for example that of a single centre.
    covariates : array of shape (n, c), optional
        What else is known of entities.
    family : "auto", "distance", or (stay terms, away terms)
        Which terms. "auto" adds them one by one as long as held-out choices become clearly
        likelier; "distance" is the family of `DistanceAutonomy`.
    without : collection of str
        Terms that "auto" must not take.
    hold : bool
        Whether terms keep their last value beyond the costs that choices were made at.
    random_state : int
        Of the folds.

    Examples
    --------
    Everybody obeys three times out of four:

    >>> import numpy as np
    >>> from volition.choices import Choices, fit_choices, parameters
    >>> from volition.core.costs import SquaredEuclidean
    >>> X, who, zero = np.arange(8.0)[:, None], np.arange(800) % 8, np.zeros(800, int)
    >>> left = (np.arange(800) // 8 % 4 == 0).astype(int)
    >>> log = Choices(who, zero, left, zero, np.array([[[1.0], [6.0]]]))
    >>> fit = fit_choices(X, log, SquaredEuclidean(), 1.0, family=(("constant",), ()))
    >>> round(parameters(fit)[0].value, 2)
    0.25
    """
    check_family(family)
    Z = np.zeros((len(X), 0)) if covariates is None else covariates
    terms = FAMILIES.get(family) if isinstance(family, str) else family
    trials: list[Trial] = []
    # Matrices are small here: more threads would only wait for each other.
    with threadpool_limits(1, "blas"):
        basis = make_basis(X, Z) if terms is None or "patches" in _needs(*terms) else None
        scene = make_scene(X, choices, cost, cost_unit, Z, basis)
        if terms is None:
            terms, trials = choose_terms(scene, choices, without, random_state)
        needs = _needs(*terms)
        if basis is None and "patches" in needs:
            raise ValueError("The term 'place' needs entities at four different places at least.")
        if Z.shape[1] == 0 and "covariates" in needs:
            raise ValueError("A term asks for covariates, but none are given.")
        stay = _fit_part("stay", terms[0], scene, choices)
        # With fewer than three clusters there is one other, or none.
        away = _fit_part("away", terms[1] if choices.n_clusters > 2 else (), scene, choices)
    model = ChoiceAutonomy(
        stay.by_term(),
        away.by_term(),
        cost_unit=cost_unit,
        n_clusters=choices.n_clusters,
        covariates=covariates if needs & {"covariates", "patches"} else None,
        basis=basis if "patches" in needs else None,
        cost_ranges=cost_ranges(X, choices, cost, cost_unit) if hold else None,
    )
    return ChoiceFit(model, stay, away, trials, len(choices.entities))


def refit(
    fit: ChoiceFit, X: FloatArray, choices: Choices, cost: Cost, covariates: Any = None
) -> ChoiceFit:
    """Return the same terms fitted to other choices."""
    family = fit.stay.terms, fit.away.terms
    found = fit_choices(X, choices, cost, fit.model.cost_unit, covariates=covariates, family=family)
    return found._replace(model=found.model.within(fit.model.cost_ranges))


def _needs(stay: Sequence[str], away: Sequence[str]) -> set[str]:
    terms = (*named("stay", stay), *named("away", away))
    return set().union(*(term.needs for term in terms))


def check_family(family: Any) -> None:
    """Raise ValueError unless this is the name of a family, or terms of both parts."""
    names = ", ".join(repr(name) for name in ("auto", *FAMILIES))
    wrong = f"family must be one of {names}, or two lists of terms, got {family!r}."
    if isinstance(family, str):
        if family != "auto" and family not in FAMILIES:
            raise ValueError(wrong)
        return
    try:
        stay, away = (tuple(part) for part in family)
    except (TypeError, ValueError):
        raise ValueError(wrong) from None
    _needs(stay, away)


def _fit_part(part: str, terms: Sequence[str], scene: Scene, choices: Choices) -> Part:
    decisions, ridge, slices = make_decisions(part, terms, scene, choices.realized)
    fitted = fit_logit(_hedged(decisions, slices) if part == "stay" else decisions, ridge)
    left = choices.realized != choices.prescribed
    who = choices.entities[left] if part == "away" else choices.entities
    covariance = cautious_covariance(decisions, fitted, who)
    return Part(tuple(terms), slices, fitted.coefficients, covariance, len(who))


def _hedged(decisions: Decisions, slices: dict[str, slice]) -> Decisions:
    """Add half a choice each to stay and to leave: where nobody left, nobody is sure to stay."""
    always = [slices[term.name].start for term in named("stay", slices) if term.always]
    if not always or len(decisions.chosen) == 0:
        return decisions
    two = decisions.take(np.zeros(2, dtype=np.int64))
    constant = np.isin(two.which[:, :1], always)
    value = np.concatenate([constant.astype(float), np.zeros_like(two.value[:, 1:])], axis=1)
    more = (two.which, value, two.open, np.array([0, 1]), np.full(2, 0.5))
    which, value, open_, chosen, weight = map(np.concatenate, zip(decisions[:5], more, strict=True))
    return Decisions(which, value, open_, chosen, weight, decisions.n_coefficients)


def distance_autonomy(fit: ChoiceFit) -> DistanceAutonomy:
    """Return the model of the family "distance" by its own name, with zeta = 1.

    A negative slope of the distance has no place in the family and counts as none.
    """
    stay, away = FAMILIES["distance"]
    if fit.stay.terms != stay or not set(fit.away.terms) <= set(away):
        raise ValueError(f"{fit.model!r} is not of the family 'distance'.")
    slopes = {term: float(value[0]) for term, value in fit.model.away.items()}
    pair, entity = (max(0.0, -slopes.get(term, 0.0)) / fit.model.cost_unit for term in away)
    kappa = 1 / (1 + math.exp(float(fit.stay.coefficients[0])))
    if pair == 0:
        return DistanceAutonomy(kappa, float(entity > 0), 0.0, 1 / entity if entity else 1.0)
    return DistanceAutonomy(kappa, entity / pair, 1.0, 1 / pair)
