"""How fitted models look: scikit-learn's parameters first, then what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volition.core.costs import cost_unit_name
from volition.core.display import (
    Grid,
    figure,
    html_sentences,
    interval,
    places,
    text_sentences,
)
from volition.core.messages import printable


class Summary(NamedTuple):
    """What is worth knowing of a fitted model at a glance."""

    facts: tuple[tuple[str, str], ...]
    centers: Grid
    #: centres and coordinates that are not shown, in a sentence; empty if all are
    left_out: str = ""
    doubts: tuple[str, ...] = ()

    def as_text(self) -> str:
        """Return it as lines of text."""
        centers = "\n".join(filter(None, [self.centers.as_text(), self.left_out]))
        parts = [Grid((), self.facts, 2).as_text(), centers, text_sentences(self.doubts)]
        return "\n\n".join(filter(None, parts))

    def as_html(self) -> str:
        """Return it as HTML."""
        facts = Grid((), self.facts, 2).as_html()
        centers = self.centers.as_html(self.left_out)
        return f"<div>{facts}{centers}{html_sentences(self.doubts)}</div>"


class SummaryMixin:
    """What an estimator shows of itself; it says what in `_summary`."""

    def _summary(self) -> Summary | None:
        """Return what was found; None as long as nothing was."""
        raise NotImplementedError

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        parameters = super().__repr__(N_CHAR_MAX)  # type: ignore[call-arg]
        found = self._summary()
        return parameters if found is None else f"{parameters}\n{found.as_text()}"

    def _html_repr(self) -> str:
        # scikit-learn shows names of features as they are, control characters included.
        diagram = printable(super()._html_repr())  # type: ignore[misc]
        found = self._summary()
        return diagram if found is None else diagram + found.as_html()


def summarize(
    model: Any,
    centers: Any,
    labels: Any,
    facts: Sequence[tuple[str, str]],
    doubts: Sequence[str] = (),
    names: Sequence[str] | None = None,
) -> Summary:
    """Return the summary of a model: how many centres and entities, what is given, the centres.

    Parameters
    ----------
    model : estimator
        Its ``feature_names_in_`` name the coordinates.
    centers : array of shape (K, d)
    labels : array of shape (n,)
        What is prescribed; -1 for those that have left.
    facts : sequence of (str, str)
        What else is known.
    doubts : sequence of str
        Sentences.
    names : sequence of str, optional
        Of the centres.
    """
    here = labels[labels >= 0]
    counts = np.bincount(here, minlength=len(centers)).tolist()
    grid, left_out = places(centers.tolist(), feature_names(model), names, counts)
    gone = len(labels) - len(here)
    entities = f"{len(here)}" + (f", {gone} have left" if gone else "")
    sizes = (("centres", str(len(centers))), ("entities", entities))
    return Summary((*sizes, *facts), grid, left_out, tuple(doubts))


def feature_names(model: Any) -> list[str] | None:
    """Return the names of the coordinates, if a model knows them."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def cost_unit(model: Any) -> str:
    """Return the unit of a model's costs, as far as its metric has one."""
    return cost_unit_name(model.metric, feature_names(model) or ())


def cost_in_words(value: float, unit: str = "", low: float = np.nan, high: float = np.nan) -> str:
    """Return a cost with its unit and its interval, as far as they are known.

    Examples
    --------
    >>> from volition.estimators.display import cost_in_words
    >>> cost_in_words(2.5, "km", 2.0, 3.0)
    '2.5 km (95 %: 2 to 3)'
    """
    ends = interval(low, high)
    known = "" if ends == "-" else f" (95 %: {ends})"
    return f"{figure(value)}{' ' * bool(unit)}{unit}{known}"
