"""Options side by side: what each costs and saves, and what that rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, overload

from volition.choices.plan_costs import Evidence, PlanCost
from volition.choices.statistics import Interval
from volition.core.display import Grid, figure, interval
from volition.core.messages import printable

#: what a cost rests on, for people
RESTS_ON = {Evidence.SEEN: "what was seen", Evidence.MODEL: "the model", Evidence.GUESS: "a guess"}
HEADS = ("option", "rests on", "cost", "95 % interval", "saves", "95 % interval", "in %")


class Comparison(Sequence[PlanCost]):
    """What options cost, the first of which is today's; it prints as a table.

    Parameters
    ----------
    rows : sequence of PlanCost
    recommended : str, optional
        Name of the option that is recommended; it gets a star.
    unit : str
        Unit of costs.

    Examples
    --------
    >>> import math
    >>> from volition.choices import Comparison, Interval, PlanCost
    >>> none = Interval(math.nan, math.nan, math.nan)
    >>> def row(name, cost, saving):
    ...     return PlanCost(name, Interval.around(cost, 1), none, none, saving, none)
    >>> rows = [row("today", 20.0, Interval(0, 0, 0)), row("moved", 15.0, Interval.around(5, 2))]
    >>> Comparison(rows, "moved", "km")
    option   rests on   cost  95 % interval  saves  95 % interval            in %
    today    the model    20       19 to 21
    moved *  the model    15       14 to 16      5         3 to 7  25 (15 to 35)
    Costs per entity in km. * Recommended.
    """

    def __init__(
        self, rows: Sequence[PlanCost], recommended: str | None = None, unit: str = ""
    ) -> None:
        self.rows, self.recommended, self.unit = list(rows), recommended, unit

    @overload
    def __getitem__(self, index: int) -> PlanCost: ...
    @overload
    def __getitem__(self, index: slice) -> list[PlanCost]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[PlanCost]:
        return iter(self.rows)

    def base(self, row: PlanCost) -> float:
        """Return today's cost that a saving is measured against.

        Savings of plans that were seen are against what was seen of today, all others against what
        the model expects of today: the errors of one and the same source cancel.
        """
        today = self.rows[0]
        return (today.expected if row.basis == Evidence.SEEN else today.direct).value

    def base_note(self) -> str:
        """Return a sentence on the base of modelled savings, if it is another than today's cost."""
        if not self.rows or all(row.basis == Evidence.SEEN for row in self.rows[1:]):
            return ""
        seen, expected = self.rows[0].expected.value, self.rows[0].direct.value
        if math.isnan(expected) or figure(seen) == figure(expected):
            return ""
        base = figure(expected)
        return f"Savings that were not seen are against {base}, the model's cost of today."

    def grid(self) -> Grid:
        """Return the table: a row for each option."""
        rows = []
        for number, row in enumerate(self.rows):
            star = " *" if row.name == self.recommended else ""
            cost, saving = row.expected, row.saving
            saved = ("", "", "")
            if number:
                ends = interval(saving.low, saving.high)
                saved = (figure(saving.value), ends, _percent(saving, self.base(row)))
            rows.append(
                (row.name + star, RESTS_ON[row.basis], figure(cost.value),
                 interval(cost.low, cost.high), *saved)
            )  # fmt: skip
        return Grid(HEADS, tuple(rows), n_words=2)

    def _legend(self) -> str:
        unit = f" in {self.unit}" if self.unit else ""
        starred = any(row.name == self.recommended for row in self.rows)
        said = [f"Costs per entity{unit}.", "* Recommended." if starred else "", self.base_note()]
        return " ".join(one for one in said if one)

    def __repr__(self) -> str:
        return f"{self.grid().as_text()}\n{printable(self._legend(), '')}"

    def _repr_html_(self) -> str:
        return self.grid().as_html(self._legend())


def _percent(saving: Interval, of: float) -> str:
    """Return a saving as a share of what today's option costs."""
    if not of > 0 or math.isnan(saving.value):
        return "-"
    value, low, high = (100 * one / of for one in saving)
    ends = "" if math.isnan(low) else f" ({low:.3g} to {high:.3g})"
    return f"{value:.3g}{ends}"
