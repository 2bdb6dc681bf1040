"""What ``volition estimate`` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from volition.choices import Comparison, Evidence, PlanName, parameters
from volition.choices.comparison import RESTS_ON
from volition.choices.off_policy import weight_cautions
from volition.cli.estimate.files import Estimated
from volition.cli.outputs import ESTIMATE_FILES
from volition.io.records import unanswered_note

#: what an estimate rests on, for people


def print_summary(
    console: Console, estimated: Estimated, summary: dict[str, Any], out: Path
) -> None:
    """Print what choices depend on, what plans cost and save, and where results are."""
    console.print(
        f"{summary['n_choices']} choices of {summary['n_entities']} entities between "
        f"{summary['n_clusters']} centres; {summary['seconds']:.1f} s."
    )
    if summary["unanswered"]:
        console.print(unanswered_note(summary["unanswered"]))
    _print_choices(console, estimated, summary["overrides"])
    console.print(f"Costs are in {summary['cost_unit']}.")
    _print_plans(console, estimated)
    console.print(str(estimated.model.extrapolation()))
    console.print(f"Results in {out}/: {', '.join(ESTIMATE_FILES)}")
    if estimated.contradicted:
        console.print(
            "The log contradicts the model, so expected_cost in assignments.csv and share_realized "
            "in moves.csv are empty."
        )
    if summary["next"] is not None:
        console.print(f"Go on with: {summary['next']}")


def _print_choices(console: Console, estimated: Estimated, overrides: str) -> None:
    """Print what choices depend on, and how often entities override."""
    fit = estimated.fit
    stay = [term.words for term in fit.kinds if term.part == "stay" and not term.always]
    console.print(f"Whether they obey depends on: {'; '.join(stay) or 'nothing that was offered'}.")
    away = [term.words for term in fit.kinds if term.part == "away"]
    console.print(f"Where they go if not depends on: {'; '.join(away) or 'nothing, any will do'}.")
    console.print(overrides)
    for p in parameters(fit):
        console.print(f"  {p.name} = {p.value:.4g}, between {p.low:.4g} and {p.high:.4g} (95 %)")


def _print_plans(console: Console, estimated: Estimated) -> None:
    """Print what each plan costs and saves, what that rests on, and which one is recommended."""
    decision, plans = estimated.model.decision_, estimated.plans
    assert decision is not None
    console.print(_table_of_plans(plans, decision.name))
    console.print(f"* Recommended: {decision.name}. Why: {decision.reason}.")
    if note := plans.base_note():
        console.print(note)
    for doubt in decision.doubts:
        console.print(f"Caution: {doubt}")
    for note in decision.notes:
        console.print(f"Note: {note}")
    named = {row.name: row for row in plans}
    chosen = named[decision.name]
    ignored, nearest = named[PlanName.IGNORED], named[PlanName.NEAREST]
    if chosen.basis == ignored.basis == Evidence.MODEL:
        against = _saved(chosen.saving_if_ignored, ignored.direct.value)
        console.print(f"Against ignoring autonomy it saves {against}.")
    good = nearest.basis == Evidence.SEEN and nearest.saving.value > 0
    if chosen is not nearest and chosen is not plans[0] and good:
        console.print(
            "Always prescribing the nearest of today's centres would save "
            f"{_saved(nearest.saving, plans[0].expected.value)} already."
        )
    if chosen.diagnostics is not None and chosen is not plans[0]:
        console.print(f"Weights: {str(chosen.diagnostics).splitlines()[0]}")
        for sentence in weight_cautions(chosen.diagnostics):
            console.print(f"Caution: {sentence}")


def _table_of_plans(plans: Comparison, recommended: str) -> RichTable:
    table = RichTable(box=None, pad_edge=False)
    heads = ("plan", "cost per entity", "rests on", "rows that count", "saves against today")
    for name in heads:
        table.add_column(name, justify="left" if name == "plan" else "right", no_wrap=True)
    for row in plans:
        saved = "" if row is plans[0] else _saved(row.saving, plans.base(row))
        rows = f"{row.effective_rows:.0f}" if row.basis == Evidence.SEEN else "-"
        mark = " *" if row.name == recommended else ""
        table.add_row(row.name + mark, _interval(row.expected), RESTS_ON[row.basis], rows, saved)
    return table


def _interval(estimate: Any) -> str:
    if np.isnan(estimate.value):
        return "-"
    if np.isnan(estimate.low):
        return f"{estimate.value:.3g}, no interval"
    return f"{estimate.value:.4g} ({estimate.low:.4g} to {estimate.high:.4g})"


def _saved(saving: Any, of: float) -> str:
    if not of > 0 or np.isnan(saving.value):
        return "-"
    value, low, high = (100 * v / of for v in saving)
    if np.isnan(low):
        return "not known"
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"
