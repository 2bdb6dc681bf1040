"""Choose the terms of a choice model by choices that were held out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import numpy as np

from volition.choices.data import MOST_PATCHES, Choices, Scene, make_decisions
from volition.choices.logit import fit_logit, log_likelihoods
from volition.choices.terms import TERMS, Term, named
from volition.core.validation import FloatArray
from volition.io.serialization import registered
from volition.populations.answers import IntArray

#: parts into which choices are cut to hold out one after the other
FOLDS = 4
#: by how many standard errors held-out choices must become likelier for a term to be added
CLEARLY = 2.5
#: gain in log-likelihood that does not justify a term, however sure it is
LEAST_GAIN = 2.0
#: rows times clusters by which terms are chosen, at most, unless rows become too few for that;
#: coefficients come from all rows
CHOSEN_BY, FEWEST_CHOSEN_BY = 240_000, 10_000

#: names of terms, in the order in which they were added
Names = tuple[str, ...]


@registered
class Trial(NamedTuple):
    """A model of one part that was tried, and how likely it makes choices it has not seen."""

    part: str
    terms: Names
    held_out: float  # mean log-likelihood
    error: float  # standard error of that mean
    chosen: bool


def clearly_better(new: FloatArray, old: FloatArray, who: IntArray) -> bool:
    """Whether log-likelihoods of the same choices, by ``who``, are larger by more than chance."""
    gain = np.bincount(who, new - old)[np.bincount(who) > 0]  # choices of one entity are one draw
    if len(gain) < 2:
        return False
    return float(gain.sum()) > max(LEAST_GAIN, CLEARLY * float(gain.std()) * math.sqrt(len(gain)))


def choose_terms(
    scene: Scene, choices: Choices, without: Collection[str] = (), random_state: int = 0
) -> tuple[tuple[Names, Names], list[Trial]]:
    """Return the terms of both parts that held-out choices favour, and all that was tried."""
    rng, K = np.random.default_rng(random_state), choices.n_clusters
    rows, most = np.arange(len(choices.entities)), max(FEWEST_CHOSEN_BY, CHOSEN_BY // K)
    if len(rows) > most:
        rows = rng.choice(rows, most, replace=False)
    scene, realized, who = scene.take(rows), choices.realized[rows], choices.entities[rows]
    # All choices of an entity are in one fold: what is found must hold for other entities.
    fold = rng.integers(0, FOLDS, choices.entities.max() + 1)[who]
    stay, trials = _terms_of_part("stay", scene, realized, who, fold, without)
    away: Names = ()
    left = realized != scene.prescribed
    if K > 2 and left.any():
        away, more = _terms_of_part("away", scene, realized, who[left], fold[left], without)
        trials += more
    return (stay, away), trials


class _HeldOut:
    """How likely choices are to models of one part that were fitted without their fold."""

    def __init__(self, part: str, scene: Scene, realized: IntArray, fold: IntArray) -> None:
        self.part, self.scene, self.realized, self.fold = part, scene, realized, fold
        self.known: dict[frozenset[str], tuple[Names, FloatArray]] = {}

    def __call__(self, terms: Names) -> FloatArray:
        """Return the log-likelihood of each choice; each model is fitted once."""
        key = frozenset(terms)
        if key not in self.known:
            self.known[key] = terms, self._fitted(terms)
        return self.known[key][1]

    def _fitted(self, terms: Names) -> FloatArray:
        decisions, ridge, _ = make_decisions(self.part, terms, self.scene, self.realized)
        out = np.zeros(len(self.fold))
        theta: FloatArray = np.zeros(0)
        for number in range(FOLDS):
            mine = self.fold == number
            if not mine.any():
                continue
            if decisions.n_coefficients:
                start = theta if len(theta) else None
                theta = fit_logit(decisions.take(~mine), ridge, start).coefficients
            out[mine] = log_likelihoods(decisions.take(mine), theta)
        return out

    def trials(self, chosen: Names) -> list[Trial]:
        """Return all models that were tried."""
        return [
            Trial(
                self.part, terms, float(held.mean()),
                float(held.std()) / math.sqrt(max(len(held), 1)), set(terms) == set(chosen),
            )
            for terms, held in self.known.values()
        ]  # fmt: skip


def _terms_of_part(
    part: str, scene: Scene, realized: IntArray, who: IntArray, fold: IntArray,
    without: Collection[str],
) -> tuple[Names, list[Trial]]:  # fmt: skip
    K, c = scene.D.shape[1], scene.covariates.shape[1]
    known = {"covariates": c, "patches": scene.place.shape[1]}
    lacking = {what for what, number in known.items() if number == 0}
    held_out = _HeldOut(part, scene, realized, fold)

    def size_of(terms: Names) -> int:
        return sum(term.size(K, c, MOST_PATCHES) for term in named(part, terms))

    chosen, best = None, None
    for base, more in _starts(part):
        names = [
            term.name
            for term in more
            if term.name not in without and not term.needs & lacking and term.fewest_clusters <= K
        ]
        terms, held = add_terms(part, base, names, held_out, size_of, who)
        if best is None or clearly_better(held, best, who):
            chosen, best = terms, held
    assert chosen is not None
    return chosen, held_out.trials(chosen)


def _starts(part: str) -> Iterator[tuple[Names, list[Term]]]:
    """Yield terms to begin with, and those that may be added; joint ones have their own models."""
    kinds = TERMS[part].values()
    for joint in (None, *(term for term in kinds if term.joint)):
        more = [term for term in kinds if not (term.always or term.joint)]
        if joint is not None:
            more = [term for term in more if term.about != "pair"]
        yield tuple(term.name for term in kinds if term.always or term is joint), more


def add_terms(
    part: str, base: Names, names: list[str], likelihood: Callable[[Names], FloatArray],
    size_of: Callable[[Names], int], who: IntArray,
) -> tuple[Names, FloatArray]:  # fmt: skip
    """Add the best term as long as it clearly helps; drop those it makes useless.

    ``likelihood`` gives the log-likelihoods of choices that a model of some terms has not seen, and
    ``size_of`` its number of coefficients. Terms in ``base`` stay.
    """
    terms, best = base, likelihood(base)
    visited: set[frozenset[str]] = set()
    while True:
        options = [
            ((*terms, name), likelihood((*terms, name))) for name in names if name not in terms
        ]
        # What did harm is left alone from now on: tables of many numbers take most of the time.
        harm = {option[0][-1] for option in options if clearly_better(best, option[1], who)}
        names = [name for name in names if name not in harm]
        options = [option for option in options if clearly_better(option[1], best, who)]
        if not options:
            return terms, best
        # The smallest that is not clearly worse than the likeliest carries over best. Of several
        # that are as small, the likeliest.
        top = max(options, key=lambda option: float(option[1].mean()))[1]
        options = [option for option in options if not clearly_better(top, option[1], who)]
        terms, best = min(
            options, key=lambda option: (size_of(option[0]), -float(option[1].mean()))
        )
        if frozenset(terms) in visited:
            return terms, best  # equals take turns
        visited.add(frozenset(terms))
        while True:
            fewer = [tuple(t for t in terms if t != name) for name in terms if name not in base]
            # A curve may have stood in for a term that came later.
            fewer += [
                tuple(plain if t == name else t for t in terms)
                for name in terms
                if (plain := TERMS[part][name].plainer) is not None and plain not in terms
            ]
            tried = [(one, likelihood(one)) for one in fewer]
            idle = [option for option in tried if not clearly_better(best, option[1], who)]
            if not idle:
                break
            terms, best = max(idle, key=lambda option: float(option[1].mean()))
