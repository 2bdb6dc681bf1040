"""Tables and sentences as text and as HTML; no word in them can command a terminal or a page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from rich.cells import cell_len

from volition.core.messages import SHOWN_CHARACTERS, cut, printable

#: characters of a line of text
WIDTH = 88
#: centres and coordinates that a summary shows
MOST_CENTERS, MOST_COLUMNS = 10, 8
#: how tables look on a page that has no style of its own
CELL = "padding:2px 12px 2px 0;border:0;white-space:nowrap;text-align:"


class Grid(NamedTuple):
    """A table: the heads of its columns, its rows, and how many columns hold words."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_words: int = 1

    def as_text(self) -> str:
        r"""Return aligned lines: words to the left, figures to the right.

        Returns
        -------
        str

        Examples
        --------
        >>> from volition.core.display import Grid
        >>> print(Grid(("plan", "cost"), (("today", "12.5"), ("a\x1b[31m", "9"))).as_text())
        plan      cost
        today     12.5
        a\x1b[31m    9
        """
        lines = [_clean(row) for row in ((self.heads, *self.rows) if self.heads else self.rows)]
        widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(self._line(line, widths) for line in lines)

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        parts = []
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            gap = " " * (width - cell_len(cell))
            parts.append(cell + gap if number < self.n_words else gap + cell)
        return "  ".join(parts).rstrip()

    def as_html(self, caption: str = "") -> str:
        """Return an HTML table in which nothing is markup but the table itself.

        Parameters
        ----------
        caption : str
            Said above the table.

        Returns
        -------
        str

        Examples
        --------
        >>> from volition.core.display import Grid
        >>> "<b>" in Grid(("plan",), (("<b>",),)).as_html()
        False
        """
        above = f"<caption style='text-align:left'>{_safe(caption)}</caption>" if caption else ""
        head = f"<thead>{self._html_row('th', self.heads)}</thead>" if self.heads else ""
        rows = "".join(self._html_row("td", row) for row in self.rows)
        return f"<table>{above}{head}<tbody>{rows}</tbody></table>"

    def _html_row(self, tag: str, cells: Sequence[str]) -> str:
        sides = ["left"] * self.n_words + ["right"] * len(cells)
        row = (
            f'<{tag} style="{CELL}{side}">{_safe(cell)}</{tag}>'
            for cell, side in zip(_clean(cells), sides, strict=False)
        )
        return f"<tr>{''.join(row)}</tr>"


def _clean(cells: Iterable[str]) -> list[str]:
    return [cut(cell, 2 * SHOWN_CHARACTERS) for cell in cells]


def _safe(text: str) -> str:
    return escape(printable(text))


def text_sentences(sentences: Iterable[str]) -> str:
    """Return sentences, one below the other, broken into lines.

    Parameters
    ----------
    sentences : iterable of str

    Returns
    -------
    str

    Examples
    --------
    >>> from volition.core.display import text_sentences
    >>> print(text_sentences(["Few answers."]))
    - Few answers.
    """
    return "\n".join(
        textwrap.fill(printable(one, ""), WIDTH, initial_indent="- ", subsequent_indent="  ")
        for one in sentences
    )


def html_sentences(sentences: Iterable[str]) -> str:
    """Return sentences as an HTML list; nothing in them is markup.

    Parameters
    ----------
    sentences : iterable of str

    Returns
    -------
    str

    Examples
    --------
    >>> from volition.core.display import html_sentences
    >>> html_sentences(["a < b"])
    '<ul><li>a &lt; b</li></ul>'
    """
    items = "".join(f"<li>{_safe(one)}</li>" for one in sentences)
    return f"<ul>{items}</ul>" if items else ""


def figure(value: float) -> str:
    """Return a number with four digits, "-" if it is not known.

    Examples
    --------
    >>> from volition.core.display import figure
    >>> figure(0.123456), figure(float("nan"))
    ('0.1235', '-')
    """
    return "-" if math.isnan(value) else f"{value:.4g}"


def interval(low: float, high: float) -> str:
    """Return both ends of an interval, "-" if it is not known.

    Examples
    --------
    >>> from volition.core.display import interval
    >>> interval(1.0, 2.5)
    '1 to 2.5'
    """
    return "-" if math.isnan(low) or math.isnan(high) else f"{low:.4g} to {high:.4g}"


def places(
    centers: Sequence[Sequence[float]],
    columns: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    counts: Sequence[int] | None = None,
) -> tuple[Grid, str]:
    """Return where centres stand, the first ones and the first coordinates, and what is left out.

    Parameters
    ----------
    centers : array of shape (K, d)
    columns : sequence of str, optional
        Names of the coordinates.
    names : sequence of str, optional
        Names of the centres; numbers from 0 by default.
    counts : sequence of int, optional
        Entities that each is prescribed to.

    Returns
    -------
    tuple of Grid and str
        The text is empty if nothing is left out.

    Examples
    --------
    >>> from volition.core.display import places
    >>> grid, left_out = places([[0.0, 1.0], [2.0, 3.0]], ["x", "y"], ["port", "mall"])
    >>> print(grid.as_text())
    centre  x  y
    port    0  1
    mall    2  3
    """
    K, d = len(centers), len(centers[0])
    n, m = min(K, MOST_CENTERS), min(d, MOST_COLUMNS)
    shown = [f"x{number}" for number in range(d)] if columns is None else list(columns)
    heads = ["centre", *shown[:m], *([] if counts is None else ["prescribed to"])]
    rows = []
    for k in range(n):
        name = str(k) if names is None else str(names[k])
        more = [] if counts is None else [str(counts[k])]
        rows.append((name, *(figure(float(value)) for value in centers[k][:m]), *more))
    left = []
    if n < K:
        left.append(f"{n} of {K} centres")
    if d > m:
        left.append(f"{m} of {d} coordinates")
    return Grid(tuple(heads), tuple(rows)), f"First {' and '.join(left)}." if left else ""
