"""Fit choice models by maximum likelihood, and choose among them by choices that were held out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from volition.choices.data import (
    PLACES,
    Choices,
    Scene,
    make_basis,
    make_decisions,
    make_scene,
    places_of,
    seen_costs,
)
from volition.choices.logit import Decisions, cautious_covariance, fit_logit, log_likelihoods
from volition.choices.model import ChoiceAutonomy
from volition.choices.terms import TERMS, Term, named
from volition.core.autonomy import DistanceAutonomy
from volition.core.costs import Cost
from volition.core.validation import FloatArray, check_finite
from volition.io.files import expect
from volition.io.serialization import constructed, registered
from volition.populations.answers import IntArray

#: parts into which choices are cut to hold out one after the other
FOLDS = 4
#: by how many standard errors held-out choices must become likelier for a term to be added
CLEARLY = 2.5
#: gain in log-likelihood that is not worth a term, however sure
LEAST = 2.0
#: rows times clusters by which terms are chosen, at most, unless rows become too few for that;
#: coefficients come from all rows
CHOSEN_BY, FEWEST_ROWS = 240_000, 10_000
#: covariates are squared
LARGEST_COVARIATE = 1e100

#: terms that a name stands for: (stay, away)
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "distance": (("constant",), ("pair", "entity"))
}


@registered
class Trial(NamedTuple):
    """A model of one part that was tried, and how likely it makes choices it has not seen."""

    part: str
    terms: tuple[str, ...]
    held_out: float  # mean log-likelihood
    error: float  # standard error of that mean
    chosen: bool


@registered
class Part(NamedTuple):
    """One fitted part: staying, or where to if not."""

    terms: tuple[str, ...]
    places: dict[str, slice]
    coefficients: FloatArray
    covariance: FloatArray  # holds where choices of one entity go together
    n_rows: int

    @classmethod
    def of(cls, values: Mapping[str, FloatArray], covariance: FloatArray, n_rows: int) -> Part:
        """Return the part with these coefficients of each term."""
        places = places_of({term: len(value) for term, value in values.items()})
        theta = np.concatenate([np.zeros(0), *values.values()])
        return cls(tuple(values), places, theta, covariance, n_rows)

    def by_term(self) -> dict[str, FloatArray]:
        """Return the coefficients of each term."""
        return {term: self.coefficients[where] for term, where in self.places.items()}


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
        Whether terms hold still beyond the costs that choices were made at, instead of going on.
    random_state : int
        Of the folds.

    Returns
    -------
    ChoiceFit
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
            terms = _choose(scene, choices, without, random_state, trials)
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
        seen=seen_costs(X, choices, cost, cost_unit) if hold else None,
    )
    return ChoiceFit(model, stay, away, trials, len(choices.entities))


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


def check_covariates(covariates: Any, n: int, width: int | None = None) -> FloatArray:
    """Return covariates as numbers, one row per entity, and as many columns as there should be."""
    Z = np.asarray(covariates)
    Z = Z[:, None] if Z.ndim == 1 else Z
    if Z.ndim != 2 or len(Z) != n:
        raise ValueError(f"covariates must have one row for each of {n} entities, got {Z.shape}.")
    if Z.dtype.kind not in "fiub":
        raise ValueError("covariates must be numbers; code categories as columns of 0 and 1.")
    Z = Z.astype(np.float64)
    check_finite(Z, "covariates")
    if Z.size and np.abs(Z).max() > LARGEST_COVARIATE:
        row, column = np.unravel_index(int(np.abs(Z).argmax()), Z.shape)
        raise ValueError(
            f"covariates has {Z[row, column]:g} at row {row}, column {column}; use larger units, "
            f"up to {LARGEST_COVARIATE:g}."
        )
    if width is not None and Z.shape[1] != width:
        raise ValueError(f"covariates has {Z.shape[1]} columns, but {width} are expected.")
    return Z


def _fit_part(part: str, terms: Sequence[str], scene: Scene, choices: Choices) -> Part:
    decisions, ridge, places = make_decisions(part, terms, scene, choices.realized)
    estimate = fit_logit(_hedged(decisions, places) if part == "stay" else decisions, ridge)
    left = choices.realized != choices.prescribed
    who = choices.entities[left] if part == "away" else choices.entities
    covariance = cautious_covariance(decisions, estimate, who)
    return Part(tuple(terms), places, estimate.coefficients, covariance, len(who))


def _hedged(decisions: Decisions, places: dict[str, slice]) -> Decisions:
    """Add half a choice each to stay and to leave: where nobody left, nobody is sure to stay."""
    always = [places[term.name].start for term in named("stay", places) if term.always]
    if not always or len(decisions.chosen) == 0:
        return decisions
    two = decisions.take(np.zeros(2, dtype=np.int64))
    constant = np.isin(two.which[:, :1], always)
    value = np.concatenate([constant.astype(float), np.zeros_like(two.value[:, 1:])], axis=1)
    more = (two.which, value, two.open, np.array([0, 1]), np.full(2, 0.5))
    columns = [np.concatenate(pair) for pair in zip(decisions[:5], more, strict=True)]
    which, values, open_, chosen, weight = columns
    return Decisions(which, values, open_, chosen, weight, decisions.n_coefficients)


def _choose(
    scene: Scene, choices: Choices, without: Collection[str], random_state: int, trials: list[Trial]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the terms of both parts that held-out choices speak for."""
    rng, K, c = np.random.default_rng(random_state), choices.n_clusters, scene.covariates.shape[1]
    rows = np.arange(len(choices.entities))
    most = max(FEWEST_ROWS, CHOSEN_BY // K)
    if len(rows) > most:
        rows = rng.choice(rows, most, replace=False)
    known = {"covariates": c, "patches": scene.place.shape[1]}
    lacking = {what for what, number in known.items() if number == 0}
    scene, realized, everyone = scene.take(rows), choices.realized[rows], choices.entities[rows]
    # All choices of an entity are in one fold: what holds is to hold for others.
    fold = rng.integers(0, FOLDS, choices.entities.max() + 1)[everyone]
    left = realized != scene.prescribed
    picked: dict[str, tuple[str, ...]] = {"stay": (), "away": ()}
    for part in picked:
        if part == "away" and (K < 3 or not left.any()):
            continue
        who = everyone if part == "stay" else everyone[left]

        def likelihood(terms: tuple[str, ...], part: str = part) -> FloatArray:
            return _held_out(part, terms, scene, realized, fold)

        def size_of(terms: tuple[str, ...], part: str = part) -> int:
            return sum(term.size(K, c, PLACES) for term in named(part, terms))

        chains = []
        for base, more in _starts(part):
            names = [
                term.name
                for term in more
                if term.name not in without
                and not term.needs & lacking
                and term.fewest_clusters <= K
            ]
            chains.append(_forward(part, base, names, likelihood, size_of, who, trials))
        picked[part], best = chains[0]
        for terms, held in chains[1:]:
            if clearly_better(held, best, who):
                picked[part], best = terms, held
    trials[:] = [t._replace(chosen=set(t.terms) == set(picked[t.part])) for t in trials]
    return picked["stay"], picked["away"]


def _starts(part: str) -> Iterator[tuple[tuple[str, ...], list[Term]]]:
    """Yield terms to begin with, and those that may be added; joint ones have their own models."""
    kinds = TERMS[part].values()
    for joint in (None, *(term for term in kinds if term.joint)):
        more = [term for term in kinds if not (term.always or term.joint)]
        if joint is not None:
            more = [term for term in more if term.about != "pair"]
        yield tuple(term.name for term in kinds if term.always or term is joint), more


def _forward(
    part: str,
    base: tuple[str, ...],
    names: list[str],
    likelihood: Callable[[tuple[str, ...]], FloatArray],
    size_of: Callable[[tuple[str, ...]], int],
    who: IntArray,
    trials: list[Trial],
) -> tuple[tuple[str, ...], FloatArray]:
    """Add the best term again and again, as long as it clearly helps; drop what it makes idle."""
    known: dict[frozenset[str], FloatArray] = {}

    def tried(terms: tuple[str, ...]) -> FloatArray:
        if frozenset(terms) not in known:
            held = known[frozenset(terms)] = likelihood(terms)
            error = float(held.std()) / math.sqrt(max(len(held), 1))
            trials.append(Trial(part, terms, float(held.mean()), error, False))
        return known[frozenset(terms)]

    terms, best = base, tried(base)
    visited: set[frozenset[str]] = set()
    while True:
        options = [((*terms, name), tried((*terms, name))) for name in names if name not in terms]
        # What did harm is left alone from now on: tables of many numbers take most of the time.
        harm = {option[0][-1] for option in options if clearly_better(best, option[1], who)}
        names = [name for name in names if name not in harm]
        options = [option for option in options if clearly_better(option[1], best, who)]
        if not options:
            return terms, best
        # The simplest that is not clearly worse than the likeliest: it reaches farther. Of several
        # that are as simple, the likeliest.
        top = max(options, key=lambda option: float(option[1].mean()))[1]
        options = [option for option in options if not clearly_better(top, option[1], who)]
        terms, best = min(
            options, key=lambda option: (size_of(option[0]), -float(option[1].mean()))
        )
        if frozenset(terms) in visited:
            return terms, best  # round in a circle of equals
        visited.add(frozenset(terms))
        while True:
            fewer = [tuple(t for t in terms if t != name) for name in terms if name not in base]
            # A curve may have stood in for a term that came later.
            fewer += [
                tuple(plain if t == name else t for t in terms)
                for name in terms
                if (plain := TERMS[part][name].plainer) is not None and plain not in terms
            ]
            idle = [(one, tried(one)) for one in fewer if not clearly_better(best, tried(one), who)]
            if not idle:
                break
            terms, best = max(idle, key=lambda option: float(option[1].mean()))


def clearly_better(new: FloatArray, old: FloatArray, who: IntArray) -> bool:
    """Whether log-likelihoods of the same choices, by ``who``, are larger by more than chance."""
    gain = np.bincount(who, new - old)[np.bincount(who) > 0]  # an entity's go together
    if len(gain) < 2:
        return False
    return float(gain.sum()) > max(LEAST, CLEARLY * float(gain.std()) * math.sqrt(len(gain)))


def _held_out(
    part: str, terms: tuple[str, ...], scene: Scene, realized: IntArray, fold: IntArray
) -> FloatArray:
    """Return how likely each choice is to a model fitted without its fold."""
    decisions, ridge, _ = make_decisions(part, terms, scene, realized)
    if part == "away":
        fold = fold[realized != scene.prescribed]
    out, theta = np.zeros(len(fold)), None
    for number in range(FOLDS):
        mine = fold == number
        if not mine.any():
            continue
        if decisions.n_coefficients:
            theta = fit_logit(decisions.take(~mine), ridge, theta).coefficients
        out[mine] = log_likelihoods(decisions.take(mine), np.zeros(0) if theta is None else theta)
    return out


def refit(
    fit: ChoiceFit, X: FloatArray, choices: Choices, cost: Cost, covariates: Any = None
) -> ChoiceFit:
    """Return the same terms fitted to other choices."""
    family = fit.stay.terms, fit.away.terms
    found = fit_choices(X, choices, cost, fit.model.cost_unit, covariates=covariates, family=family)
    return found._replace(model=found.model.within(fit.model.seen))


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
