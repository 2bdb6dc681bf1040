"""What plans cost and save: from what was seen where the log has seen it, else from the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from volition.choices.extrapolation import TOO_FAR, measure_extrapolation, never_moved
from volition.choices.fit import ChoiceFit
from volition.choices.modelled_costs import (
    ModelledCost,
    liked_by_place,
    modelled_cost,
    modelled_cost_of_log,
)
from volition.choices.off_policy import Diagnostics
from volition.choices.seen_costs import ExpectedCosts, Log, SeenCost, expected_costs, seen_cost
from volition.choices.statistics import NO_CHANGE, UNKNOWN, Interval
from volition.core.validation import FloatArray


class PlanName(StrEnum):
    """The plans that every log is asked about."""

    TODAY = "today"
    NEAREST = "today's centres, nearest prescribed"
    BEST = "today's centres, best prescriptions"
    IGNORED = "autonomy ignored"
    MOVED = "moved centres"


class Evidence(StrEnum):
    """What a cost rests on."""

    SEEN = "seen"  # choices at the same centres
    MODEL = "model"  # a model that holds in the log
    GUESS = "guess"  # a model that does not, or that is stretched too far


class PlanCost(NamedTuple):
    """What some centres and prescriptions cost per entity, and save against today's."""

    name: str
    direct: Interval  # what the model expects
    weighted: Interval  # from logged costs alone; only at today's centres
    robust: Interval  # from both; only at today's centres
    saving: Interval  # against the first plan
    saving_if_ignored: Interval  # against the plan that ignores autonomy, if there is one
    basis: Evidence = Evidence.MODEL  # what `expected` rests on
    diagnostics: Diagnostics | None = None

    @property
    def effective_rows(self) -> float:
        """How many rows of equal weight would show as much as the log does."""
        return 0.0 if self.diagnostics is None else self.diagnostics.effective_rows

    @property
    def expected(self) -> Interval:
        """The cost to go by: from what was seen, where the log has seen it."""
        return self.robust if self.basis == Evidence.SEEN else self.direct

    def as_dict(self) -> dict[str, Any]:
        """Return a flat row, as for ``pandas.DataFrame(row.as_dict() for row in rows)``."""
        flat: dict[str, Any] = {"option": str(self.name), "basis": str(self.basis)}
        for kind in ("expected", "saving", "saving_if_ignored", "direct", "weighted", "robust"):
            for end, value in zip(("", "_low", "_high"), getattr(self, kind), strict=True):
                flat[f"{kind}{end}"] = value
        flat["effective_rows"] = self.effective_rows
        for name in ("mean_weight", "largest_weight", "largest_share"):
            flat[name] = getattr(self.diagnostics, name, math.nan)
        return flat


def compare_plans(
    fit: ChoiceFit,
    log: Log,
    plans: dict[str, tuple[FloatArray, Any]],
    *,
    costs: ExpectedCosts | None = None,
    readings: Sequence[ChoiceFit] = (),
    doubtful: bool = False,
    order: bool = False,
    days: bool = False,
    silent: bool = False,
) -> list[PlanCost]:
    """Return what plans cost and save; the first is today's.

    Parameters
    ----------
    fit : ChoiceFit
    log : Log
    plans : dict of name to (centers, policy)
        What is compared; a policy that is None is that of the log, at its last centres.
    costs : ExpectedCosts, optional
        Expected costs at the last centres, for the doubly robust cost. Default: the model's.
    readings : sequence of ChoiceFit
        Other models that the log allows. Intervals at other centres than today's hold theirs too,
        and what comes of likings that stay at their places: see `liked_by_place`.
    doubtful : bool
        Whether the log contradicts the model. Costs at other centres then have no intervals.
    order : bool
        Whether rows of the log depend on those before them. What was seen is then what comes of the
        log's own sequence of prescriptions, and no cost of another plan has an interval.
    days : bool
        Whether rows of one part of the log go together; intervals of what was seen are then wider.
    silent : bool
        Whether many rows of the log have no answer. There are no intervals then, not even today's.
    """
    today = log.choices.layouts[-1]
    if costs is None:
        costs = expected_costs(fit.model, log.X, log.cost, today)
    by_place = not doubtful and never_moved(log.choices, log.cost)
    fits = [fit, *readings] + [fit] * (3 * len(fit.likings) * by_place)
    modelled: dict[str, list[ModelledCost]] = {}
    for name, (centers, policy) in plans.items():
        if policy is None:
            found = [modelled_cost_of_log(one, log) for one in (fit, *readings)]
        else:
            found = [modelled_cost(one, log, centers, policy) for one in (fit, *readings)]
            if by_place and not np.array_equal(centers, today):
                found += liked_by_place(fit, log, centers, policy)
        modelled[name] = found + found[:1] * (len(fits) - len(found))
    first, ignored = next(iter(modelled.values())), modelled.get(PlanName.IGNORED)
    paying = bool((log.paid() >= 0).all())
    rows = []
    for name, (centers, policy) in plans.items():
        seen = SeenCost()
        stands = np.array_equal(centers, today)
        if stands:
            seen = seen_cost(log, costs, policy, first[0].noise, days=days)
            seen = seen._replace(robust=seen.robust.not_negative()) if paying else seen
        unsure = not math.isnan(seen.robust.value) and math.isnan(seen.robust.low)
        misled = (order or unsure or silent) and not (stands and seen.saving == NO_CHANGE)
        guessed = doubtful or misled or _stretched(fit, log, centers, policy)
        seen = seen.without_ends() if misled or silent else seen
        basis = Evidence.GUESS if guessed else Evidence.MODEL
        basis = Evidence.SEEN if seen.usable and not misled else basis
        expected = _hull(fits, modelled[name])
        expected = expected.not_negative() if paying else expected
        saving, if_ignored = (_saving(fits, other, modelled[name]) for other in (first, ignored))
        if guessed or silent:
            expected, saving, if_ignored = (
                one.without_ends() for one in (expected, saving, if_ignored)
            )
        saving = seen.saving if basis == Evidence.SEEN else saving
        rows.append(
            PlanCost(
                name, expected, seen.weighted, seen.robust, saving, if_ignored, basis,
                seen.diagnostics,
            )
        )  # fmt: skip
    return rows


def _stretched(fit: ChoiceFit, log: Log, centers: FloatArray, policy: Any) -> bool:
    """Whether a plan rests on costs or prescriptions that the log has hardly seen."""
    if policy is None:
        return False
    if np.array_equal(centers, log.choices.layouts[-1]):
        return log.untried_share(centers, policy) > TOO_FAR
    return measure_extrapolation(fit, log, centers, policy).too_far


def _hull(fits: Sequence[ChoiceFit], costs: Sequence[ModelledCost]) -> Interval:
    """Return the first cost, and an interval that holds those of all."""
    each = [one.interval(fit) for fit, one in zip(fits, costs, strict=True)]
    return Interval(each[0].value, min(e.low for e in each), max(e.high for e in each))


def _saving(
    fits: Sequence[ChoiceFit], old: Sequence[ModelledCost] | None, new: Sequence[ModelledCost]
) -> Interval:
    """Return what a plan saves against another, if there is one."""
    if old is None:
        return UNKNOWN
    return _hull(fits, [a.minus(b) for a, b in zip(old, new, strict=True)])
