"""Which plan to recommend on the strength of a log, and what to doubt about it.

Plans that move centres rest on a model. They are recommended only if the log does not contradict
the model, if they do not rest on costs that the log has hardly seen, and if they clearly save.
Otherwise the plan is one that the log itself has tried: other prescriptions at today's centres, if
these are seen to save, or else what is done today.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volition.choices.checks import FALSE_ALARM, Check
from volition.choices.data import Choices, predicted
from volition.choices.extrapolation import TOO_FAR, Extrapolation, never_moved
from volition.choices.fit import ChoiceFit, Part, fit_choices
from volition.choices.plan_costs import Evidence, PlanCost, PlanName
from volition.choices.seen_costs import fixed_prescriptions
from volition.choices.selection import clearly_better
from volition.choices.statistics import percent
from volition.choices.terms import ALIKE, KINDS, TERMS
from volition.core.display import Grid, html_sentences, text_sentences
from volition.core.validation import FloatArray
from volition.io.serialization import registered

#: choices below which no model is trusted with moving centres
FEWEST_CHOICES = 200
#: how often likings of centres are exchanged at random, to see what that would change
LIKING_EXCHANGES = 4
#: shares of rows without an answer from which a sentence is due, and from which nothing is judged
SOME_UNANSWERED, MANY_UNANSWERED = 0.05, 0.2
#: what is assumed of a log without propensities
BY_NEARNESS = (
    "The log has no propensities, so these are counted by how near the prescribed centre is. The "
    "figures hold only if prescriptions had no other reason: if entities were told what they "
    "had asked for, say, or what suits them, other plans may cost more."
)


@registered
class Decision(NamedTuple):
    """The plan that is recommended, and why no other."""

    name: str
    doubts: tuple[str, ...]  # what speaks against the model, in sentences
    reason: str
    notes: tuple[str, ...] = ()  # what the figures take for granted, in sentences

    def _sentences(self) -> list[str]:
        told = [f"Caution: {doubt}" for doubt in self.doubts]
        return [f"Why: {self.reason}.", *told, *(f"Note: {note}" for note in self.notes)]

    def __repr__(self) -> str:
        return f"Recommended: {self.name}\n{text_sentences(self._sentences())}"

    def _repr_html_(self) -> str:
        head = Grid((), (("Recommended:", self.name),), 2)
        return f"<div>{head.as_html()}{html_sentences(self._sentences())}</div>"


def doubts_about(checks: Sequence[Check], beyond: Extrapolation, n_choices: int) -> list[str]:
    """Return, in sentences, why what the model says of moved centres is not to be trusted."""
    found = []
    if n_choices < FEWEST_CHOICES:
        found.append(
            f"There are only {n_choices} choices: what moved centres would cost cannot be told "
            f"from fewer than {FEWEST_CHOICES}."
        )
    failed = [check for check in checks if check.failed and not check.order]
    if failed:
        more = len(failed) - 1
        others = f", and {more} more check{'s' * (more > 1)} fail{'s' * (more == 1)}" * (more > 0)
        found.append(
            f"The log contradicts the model: {failed[0].finding} (by chance, in "
            f"{_how_often(failed[0])}{others})."
        )
    found += order_doubts(checks)
    if beyond.untried > TOO_FAR:
        found.append(
            f"The model advises to tell {100 * beyond.untried:.0f} % of the entities what the log "
            "has hardly ever told anybody, so what they would do is not known."
        )
    if beyond.outside > TOO_FAR:
        found.append(
            f"Moving the centres as the model advises rests on extrapolation: "
            f"{100 * beyond.outside:.0f} % of the choices expected there are at costs that the log "
            "has hardly seen."
        )
    return found


def order_doubts(checks: Sequence[Check]) -> list[str]:
    """Return a sentence if rows of the log depend on those before them, else nothing."""
    failed = [check for check in checks if check.order and check.failed]
    if not failed:
        return []
    worst = min(failed, key=lambda check: check.p_value)
    return [
        f"The order of the log matters: {worst.finding} (by chance, in {_how_often(worst)}). "
        "Another plan makes other sequences than the log has, so what it would cost cannot be told "
        "from the log, not even at today's centres."
    ]


def _how_often(check: Check) -> str:
    often = f"one log in {1 / max(check.p_value, 1e-6):,.0f}"
    return f"fewer than {often}" if check.p_value < 1e-6 else often


def fixed_prescription_doubts(X: FloatArray, choices: Choices, cost: Any) -> list[str]:
    """Return a sentence if propensities cannot be judged from the log, else nothing.

    Where each entity is told its own centre every time, how often the nearest is prescribed, or the
    second, is no probability of anything.
    """
    if choices.n_clusters == 1:
        return []
    share, should, chance = fixed_prescriptions(X, choices, cost)
    if chance >= FALSE_ALARM:
        return []
    return [
        f"Entities are told the same every time: two rows of one entity differ in {percent(share)} "
        f"of cases, but in {percent(should)} if each prescription were drawn by how near centres "
        "are. So how likely each was cannot be judged from the log, nor what other plans cost; a "
        "column 'propensity' is needed for that."
    ]


def unanswered_doubts(share: float) -> list[str]:
    """Return a sentence if a large share of rows has no answer, else nothing."""
    if share < SOME_UNANSWERED:
        return []
    most = " That is too many: no cost has an interval, and no plan but today's is recommended."
    return [
        f"{percent(share)} of the rows have no answer: if those who override answer less often, "
        "there are more overrides than the figures say, and costs are higher."
        + most
        * (share >= MANY_UNANSWERED)
    ]


def instead_of_moving(name: str) -> str:
    """Return the sentence that names the plan which is recommended in spite of doubts."""
    return f"Recommended instead of moving the centres: {name}."


def decide(
    rows: Sequence[PlanCost], doubts: Sequence[str], rank: int | None = None, liked: bool = False
) -> Decision:
    """Choose among today, the plans at today's centres, and the moved centres.

    ``rank`` is the only one that the log has tried, if so (0 for the nearest centre); ``liked``
    says whether some centres, or their places, are liked more than others.
    """
    by_name = {row.name: row for row in rows}
    moved, here = by_name[PlanName.MOVED], [by_name[PlanName.NEAREST], by_name[PlanName.BEST]]
    seen = [row for row in here if row.basis == Evidence.SEEN and row.saving.low > 0]
    surest = max((row.saving.low for row in seen), default=0.0)
    clear = moved.saving.low > 0 and moved.saving.value > surest
    if not doubts and moved.basis == Evidence.MODEL and clear:
        where = "" if rank is None else " for the prescriptions that it has tried"
        reason = f"the model holds in the log{where}, and the saving is clear"
        return Decision(PlanName.MOVED.value, (), reason)
    why = "moved centres do not clearly save"
    if doubts:
        why = "what moved centres would cost cannot be trusted"
    elif moved.basis == Evidence.GUESS:
        why = (
            "choices depend on which centre it is, and how they would change if it moved cannot be "
            "known from a log in which the centres never moved"
        )
    elif liked and moved.saving.value > surest:
        why = (
            "choices depend on which centre it is; whether that goes with the centre or stays at "
            "its place cannot be known from a log in which the centres never moved, and moved "
            "centres do not clearly save either way"
        )
    if seen:
        best = max(seen, key=lambda row: row.saving.low)  # of equals the first, which is simpler
        reason = f"{why}; this plan was seen to save in the log"
        return Decision(str(best.name), tuple(doubts), reason)
    unknown = all(row.basis == Evidence.GUESS for row in here)
    others = "the log cannot tell what other plans cost" if unknown else "no other was seen to save"
    return Decision(PlanName.TODAY.value, tuple(doubts), f"{why}, and {others}")


def bound_to_centers(fit: ChoiceFit, choices: Choices, cost: Any) -> bool:
    """Whether what the model knows belongs to single centres, where the log has them standing.

    How each prescribed centre is obeyed, or who goes from which to which, cannot be carried over to
    centres elsewhere by a log in which they never moved. (A liking for some centres can, in two
    ways: see `other_readings`.)
    """
    bound = any(term.labelled and not term.liking for term in fit.kinds)
    return bound and never_moved(choices, cost)


def other_readings(
    fit: ChoiceFit, X: FloatArray, choices: Choices, cost: Any, covariates: FloatArray | None
) -> list[ChoiceFit]:
    """Return other models that the log allows; moved centres may cost something else by them."""

    def fitted(**terms: Any) -> ChoiceFit:
        hold = fit.model.cost_ranges is not None
        unit = fit.model.cost_unit
        return fit_choices(X, choices, cost, unit, covariates=covariates, hold=hold, **terms)

    found = []
    if any(term.labelled for term in fit.kinds) and never_moved(choices, cost):
        # A liking for one centre may belong to the centre, or to the place where it stands. The
        # model takes the first; these take the second: what looked like a liking is explained by
        # costs as far as that goes, or a centre that has moved is liked as any other, or as another
        # one. (A fourth way depends on where the centres go: see `liked_by_place`.)
        labelled, rng = {term.name for term in KINDS if term.labelled}, np.random.default_rng(0)
        found = [fitted(without=labelled), _without_labels(fit)]
        found += [
            _exchanged(fit, where, rng) for where in fit.likings for _ in range(LIKING_EXCHANGES)
        ]
    # Obeying may depend on what it costs, or on how much more it costs than the nearest centre,
    # linearly or not. Where prescriptions hardly vary, a log shows little of the difference.
    mine = [term for term in fit.stay.terms if term in ALIKE]
    if len(mine) != 1:
        return found
    rows = np.arange(len(choices.entities)), choices.realized

    def likelihoods(one: ChoiceFit) -> FloatArray:
        return np.log(np.maximum(predicted(one.model, X, choices, cost)[rows], 1e-300))

    old = likelihoods(fit)
    for name in ALIKE:
        if name not in mine and name != TERMS["stay"][mine[0]].plainer:
            stay = tuple(name if term in mine else term for term in fit.stay.terms)
            other = fitted(family=(stay, fit.away.terms))
            if not clearly_better(old, likelihoods(other), choices.entities):
                found.append(other)
    return found


def _exchanged(fit: ChoiceFit, where: slice, rng: np.random.Generator) -> ChoiceFit:
    """Return the fit in which centres are liked as others are: elsewhere they may be."""
    away, order = fit.away, np.arange(len(fit.away.coefficients))
    order[where] = rng.permutation(order[where])
    part = away._replace(
        coefficients=away.coefficients[order], covariance=away.covariance[np.ix_(order, order)]
    )
    model = fit.model.with_coefficients(fit.model.stay, part.by_term())
    return fit._replace(model=model, away=part)


def _without_labels(fit: ChoiceFit) -> ChoiceFit:
    """Return the fit in which no centre has a role of its own, all else being the same."""
    model, parts = fit.model.without_labels(), []
    for part, values in zip((fit.stay, fit.away), (model.stay, model.away), strict=True):
        numbers = np.arange(len(part.coefficients))
        rows = np.concatenate([np.zeros(0, int), *(numbers[part.slices[term]] for term in values)])
        parts.append(Part.of(values, part.covariance[np.ix_(rows, rows)], part.n_rows))
    return fit._replace(model=model, stay=parts[0], away=parts[1])
