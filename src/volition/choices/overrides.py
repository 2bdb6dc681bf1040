"""How often entities override, who does, and where they go: counted in the log, not modelled.

Rates in a log depend on what was prescribed: who is sent to a far centre overrides more. So every
rate also comes for those rows only in which the nearest centre was prescribed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t

from volition.choices.coding import holds_text, named_columns
from volition.choices.data import Choices, nearness_ranks
from volition.choices.ranked import ranks_of_others
from volition.choices.statistics import Z95, percent, wilson
from volition.core.costs import Cost
from volition.populations.answers import IntArray

#: values of a covariate up to which each is a group of its own
FEW_VALUES = 4
#: entities from which on a covariate is cut into thirds; fewer are cut at the median
ENOUGH_FOR_THIRDS = 60
#: names of ranks, and centres that are printed
RANKS, PRINTED = ("nearest other centre", "second nearest", "third nearest", "farther centres"), 6


class Rate(NamedTuple):
    """A share of rows, with its 95 % interval; rows of one entity may go together."""

    label: str
    n_hits: int
    n_rows: int
    n_entities: int
    share: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.n_rows == 0:
            return "never seen"
        low, high = (percent(end).removesuffix(" %") for end in (self.low, self.high))
        return f"{percent(self.share)} ({low} to {high})"


class Group(NamedTuple):
    """Entities with like values of a covariate, and how often they override."""

    covariate: str
    label: str
    always: Rate
    nearest: Rate  # where the nearest centre was prescribed


class OverrideRates(NamedTuple):
    """How often entities override, who does, and where they go."""

    overall: Rate
    nearest: Rate  # where the nearest centre was prescribed
    other: Rate  # where another one was
    groups: tuple[Group, ...]
    by_rank: tuple[Rate, ...]  # shares of overrides, by how near the realised centre is
    by_center: tuple[Rate, ...]  # shares of overrides, by the realised centre

    def __str__(self) -> str:
        whole = self.overall
        lines = [
            f"Overrides: {whole} of {whole.n_rows} choices by {whole.n_entities} entities "
            "(95 % intervals in brackets).",
            f"  nearest centre prescribed: {self.nearest}; another one: {self.other}",
        ]
        lines += [
            f"  {group.label}: {group.always}; nearest centre prescribed: {group.nearest}"
            for group in self.groups
        ]
        if whole.n_hits:
            ways = [f"{rate} to the {rate.label}" for rate in self.by_rank if rate.n_hits]
            lines.append(f"Of {whole.n_hits} overrides: {'; '.join(ways)}.")
            used = sorted(self.by_center, key=lambda rate: -rate.n_hits)
            rest = sum(rate.n_hits for rate in used[PRINTED:])
            ways = [f"{rate} to {rate.label}" for rate in used[:PRINTED] if rate.n_hits]
            ways += [f"{percent(rest / whole.n_hits)} to others"] if rest else []
            lines.append(f"By centre: {'; '.join(ways)}.")
        return "\n".join(lines)


def override_rates(
    X: Any,
    choices: Choices,
    cost: Cost,
    covariates: Any = None,
    names: Sequence[str] = (),
    centers: Sequence[str] = (),
) -> OverrideRates:
    """Return how often entities override, overall and by covariates, and where they go.

    Printed, the result reads as a short paragraph.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities.
    choices : Choices
        The log.
    cost : Cost
        By which a centre is near.
    covariates : array of shape (n, c), DataFrame or mapping of name to values, optional
        What else is known of entities. One with few values, or of text, gives a group for each,
        others are cut into thirds, or at the median where entities are few.
    names : sequence of str
        Names of the covariates; by default their own, or "covariate 0" and so on.
    centers : sequence of str
        Names of the centres; "centre 0" and so on by default.

    Examples
    --------
    Four entities, two of them vans; only the cars override.

    >>> import numpy as np
    >>> from volition.choices import Choices, override_rates
    >>> from volition.core.costs import SquaredEuclidean
    >>> X, Y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([[[0.0], [3.0]]])
    >>> who = np.tile(np.arange(4), 50)
    >>> told = np.array([0, 0, 1, 1])[who]
    >>> used = np.where((who < 2) & (np.arange(200) % 3 == 0), 1 - told, told)
    >>> log = Choices(who, told, used, np.zeros(200, int), Y)
    >>> rates = override_rates(X, log, SquaredEuclidean(), [[0], [0], [1], [1]], ["van"])
    >>> [(group.label, round(group.always.share, 2)) for group in rates.groups]
    [('van = 0', 0.33), ('van = 1', 0.0)]
    """
    who, K = choices.entities, choices.n_clusters
    rows = np.arange(len(who))
    rank = nearness_ranks(choices.costs(X, cost))
    mine = rank[rows, choices.prescribed]
    left, near = choices.realized != choices.prescribed, mine == 0
    groups = []
    columns = {} if covariates is None else named_columns(covariates, len(X))
    for c, (given, cells) in enumerate(columns.items()):
        name = names[c] if c < len(names) else given
        values = np.array([str(cell) for cell in cells] if holds_text(cells) else cells)
        values = values if values.dtype.kind == "U" else values.astype(np.float64)
        for label, among in _groups(name, values, np.unique(who)):
            here = among[who]
            always = _rate(label, left, who, here)
            groups.append(Group(name, label, always, _rate(label, left, who, here & near)))
    others = ranks_of_others(rank[rows, choices.realized], mine)
    named = [centers[k] if k < len(centers) else f"centre {k}" for k in range(K)]
    return OverrideRates(
        _rate("overall", left, who, rows >= 0),
        _rate("nearest centre prescribed", left, who, near),
        _rate("another centre prescribed", left, who, ~near),
        tuple(groups),
        tuple(_rate(label, others == r, who, left) for r, label in enumerate(RANKS[: K - 1])),
        tuple(_rate(label, choices.realized == k, who, left) for k, label in enumerate(named)),
    )


def _groups(name: str, values: Any, logged: IntArray) -> list[tuple[str, np.ndarray]]:
    """Return groups of entities by a covariate, each with a label."""
    seen = values[logged]
    distinct = np.unique(seen)
    if values.dtype.kind == "U":
        return [(f"{name}={value}", values == value) for value in distinct]
    if len(distinct) <= FEW_VALUES:
        return [(f"{name} = {value:g}", values == value) for value in distinct]
    cuts = [1 / 3, 2 / 3] if len(seen) >= ENOUGH_FOR_THIRDS else [0.5]
    edges = np.unique(np.quantile(seen, cuts, method="lower"))
    edges = edges[edges < distinct[-1]]
    found = [(f"{name} up to {edges[0]:.4g}", values <= edges[0])]
    for low, high in pairwise(edges):
        found.append((f"{name} {low:.4g} to {high:.4g}", (values > low) & (values <= high)))
    return [*found, (f"{name} above {edges[-1]:.4g}", values > edges[-1])]


def _rate(label: str, hit: np.ndarray, who: IntArray, among: np.ndarray) -> Rate:
    """Return the share of hits among some rows."""
    hit, who = hit[among], np.unique(who[among], return_inverse=True)[1]
    n, n_entities, count = len(hit), int(who.max(initial=-1)) + 1, int(hit.sum())
    if n == 0:
        return Rate(label, 0, 0, 0, math.nan, math.nan, math.nan)
    share = count / n
    low, high = wilson(share, _effective(hit, share, who, n_entities))
    return Rate(label, count, n, n_entities, share, low, high)


def _effective(hit: np.ndarray, share: float, who: IntArray, n_entities: int) -> float:
    """Return how many independent rows would tell a share as well, entities being independent."""
    if n_entities == 1:
        return 1.0  # however often one entity was asked, it is one entity
    if share in {0.0, 1.0}:
        # Whether rows of an entity go together cannot be seen where all are alike: perhaps they do.
        return float(n_entities)
    sums = np.bincount(who, hit - share)
    variance = float(sums @ sums) / len(hit) ** 2 * n_entities / (n_entities - 1)
    rows = min(float(len(hit)), share * (1 - share) / variance)
    # The interval is made with the normal quantile; few entities need Student's.
    return rows * float(Z95 / t.ppf(0.975, n_entities - 1)) ** 2
