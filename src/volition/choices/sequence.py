"""Does what an entity does depend on the rows before it: its own, or those of others?

A plan that tells an entity the same every time makes other sequences than a log of mixed
prescriptions, and other crowds. Where choices depend on what came before, costs that were seen in
the log are those of its own sequences, and no weighting makes them those of another plan.

Traits of an entity that never change (a favourite, a strong will) are no memory. Answers of one
entity to one prescription may then be exchanged with each other, whatever the traits are: so what
was seen is compared with what is seen after such exchanges at random. No model is needed for that.
Days are: each answer is taken against the mean of its part of the log, so that a centre that is
closed for a while is not taken for memory.

All tests return a statistic and its p-value. They take ``obeyed`` (m,), whether the entity obeyed
less what was predicted, and choices in the order of time, at least within each set of centres.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import f as fisher
from scipy.stats import norm

from volition.choices.data import PARTS, Choices
from volition.choices.statistics import group_sums, squared_length
from volition.core.validation import FloatArray

#: random exchanges that a statistic is compared with
EXCHANGES = 600
#: numbers that all exchanges may move, at most; beyond, some entities are looked at
MOST_EXCHANGED = 400_000_000
#: rows that a prescribed centre has in a part of the log, on average
ROWS_PER_PART = 20
#: how often entities and parts of the log are taken out in turn
ROUNDS = 30
#: variance that a sum needs, at least, to be about normal
FEWEST_EVENTS = 2.0
#: rows before a row in which the crowd at a centre is counted, and those for the usual crowd
WINDOWS, USUAL_WINDOW = (10, 30, 100), 400
#: rows that a check of crowds needs, and entities beyond the numbers it looks at; also entities
#: with several rows that show how a log is sorted
FEWEST_CROWD_ROWS, FEWEST_ENTITIES = 500, 10
#: the test of a log that shows nothing
NOTHING = (0.0, 1.0)


def memory(
    used: FloatArray, obeyed: FloatArray, choices: Choices, group: Any
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return whether answers go with what an entity was told before, and with what it did.

    ``used`` (m, G) is which group of centres was used, less what was predicted; ``group`` (K,) the
    group of each centre. Right for any traits that do not change, where prescriptions do not depend
    on answers.

    Examples
    --------
    Half of the entities always obey, half never do: that is no memory. If each obeys only what it
    was not told last time, it is.

    >>> import numpy as np
    >>> from volition.choices import Choices
    >>> from volition.choices.sequence import memory
    >>> rng = np.random.default_rng(0)
    >>> who, told = np.tile(np.arange(50), 20), rng.integers(0, 2, 1000)
    >>> log = Choices(who, told, told, np.zeros(1000, int), np.zeros((1, 2, 2)))
    >>> def of(obeys):
    ...     residual = (obeys - 0.5)[:, None] * (1 - 2 * (told[:, None] != [0, 1]))
    ...     return memory(residual, obeys - 0.5, log, np.arange(2))[0][1]
    >>> of(who % 2 == 0) > 0.01, of(np.roll(told, 50) != told) < 1e-6
    (True, True)
    """
    rows = _with_several_rows(choices.entity_and_layout, used.shape[1])
    if len(rows) == 0:
        return NOTHING, NOTHING
    m, K = len(choices.entities), choices.n_clusters
    n_parts = max(1, min(PARTS, m // (ROWS_PER_PART * K)))
    part = (np.arange(m) * n_parts // m) * K + choices.prescribed
    part = np.unique(part[rows], return_inverse=True)[1]
    w, j = choices.entity_and_layout[rows], choices.prescribed[rows]
    r, u = obeyed[rows], used[rows]
    answer_to = np.unique(w * K + j, return_inverse=True)[1]
    first = np.concatenate([[True], w[1:] != w[:-1]])
    now = np.flatnonzero(~first)
    there = group[j[now]]
    # What was told before, as far as neither the entity nor the part of the log explains it.
    told = np.stack([first, ~first & (j == np.roll(j, 1))], axis=1).astype(np.float64)
    for _ in range(ROUNDS):
        told -= _means(told, part)
        told -= _means(told, answer_to)
    # Traits do not change in time, so parts differ only by answers of one entity to the same.
    late_r, late_u = (
        left - _means(left - _means(left, answer_to), part) for left in (r[:, None], u)
    )

    def statistics(order: Any) -> list[float]:
        s, v = late_r[order, 0], late_u[order]
        did = s[now - 1] @ s[now], v[now - 1, there] @ s[now], (v[now - 1] * v[now]).sum()
        return [*(r[order] @ told), *did]

    stable = np.argsort(answer_to, kind="stable")
    rng, order = np.random.default_rng(0), np.empty(len(rows), dtype=np.int64)
    by_chance = []
    for _ in range(EXCHANGES):
        order[stable] = np.argsort(answer_to + rng.random(len(rows)))
        by_chance.append(statistics(order))
    seen, drawn = np.array(statistics(np.arange(len(rows)))), np.array(by_chance)
    return _surprise(seen[:2], drawn[:, :2]), _surprise(seen[2:], drawn[:, 2:])


def _means(left: FloatArray, which: Any) -> FloatArray:
    """Return the mean of each row's group."""
    rows = np.maximum(np.bincount(which), 1)
    return (group_sums(which, left) / rows[:, None])[which]


def _with_several_rows(who: Any, width: int) -> Any:
    """Return rows of entities with several rows, those of an entity one after another."""
    order = np.argsort(who, kind="stable")
    _, number, times = np.unique(who[order], return_inverse=True, return_counts=True)
    several = times > 1
    picked = np.random.default_rng(0).permutation(np.flatnonzero(several))
    room = np.cumsum(times[picked]) <= MOST_EXCHANGED // (EXCHANGES * (width + 1))
    several[picked[~room]] = False
    return order[several[number]]


def _surprise(seen: FloatArray, drawn: FloatArray) -> tuple[float, float]:
    """Return how far statistics are from their law by chance, known from some draws."""
    n, off, scale = len(drawn), seen - drawn.mean(0), drawn.std(0)
    kept = scale > 1e-9
    if not kept.any():
        return NOTHING
    z, standard = off[kept] / scale[kept], (drawn - drawn.mean(0))[:, kept] / scale[kept]
    values, vectors = np.linalg.eigh(standard.T @ standard / (n - 1))
    usable = values > 1e-6
    q, turned = int(usable.sum()), vectors[:, usable] / np.sqrt(values[usable])
    statistic = float(((z @ turned) ** 2).sum())
    # The covariance comes from the draws too: Hotelling.
    ratio = statistic / (1 + 1 / n) * (n - q) / (q * (n - 1))
    chance = float(fisher.sf(ratio, q, n - q))
    # Where few answers vary, the law has other tails: then what the draws themselves say counts.
    beyond = int((((standard @ turned) ** 2).sum(1) >= statistic).sum())
    return statistic, max(chance, (beyond + 1) / (n + 1)) if beyond else chance


def told_again(obeyed: FloatArray, choices: Choices, propensity: FloatArray) -> tuple[float, float]:
    """Return whether obeying goes with being told the same as last time.

    How often that happens by chance is known: it is the ``propensity`` (m,) of the prescription,
    also the time before. So entities are compared with each other too, which tells more than
    `memory` where each has few rows.
    """
    who = choices.entity_and_layout
    order = np.argsort(who, kind="stable")
    now = 1 + np.flatnonzero(who[order][1:] == who[order][:-1])
    last, now = order[now - 1], order[now]
    chance, r = propensity[now], obeyed[now]
    same = choices.prescribed[now] == choices.prescribed[last]
    variance = float(r**2 @ (chance * (1 - chance)))
    if variance < FEWEST_EVENTS:
        return NOTHING
    z = float((same - chance) @ r) / math.sqrt(variance)
    return z, float(2 * norm.sf(abs(z)))


def crowds(obeyed: FloatArray, choices: Choices) -> tuple[float, float]:
    """Return whether obeying goes with how many others were sent to that centre just before."""
    if len(obeyed) < FEWEST_CROWD_ROWS:
        return NOTHING
    # Of those who were sent, not of those who went: a centre that all avoid for a day has no crowd
    # because nobody obeys, not the other way round.
    j, who = choices.prescribed, np.unique(choices.entities, return_inverse=True)[1]
    usual = _crowd(j, who, USUAL_WINDOW)
    crowd = np.stack([_crowd(j, who, window) - usual for window in WINDOWS], axis=1)
    # An entity obeys more or less than others all along, and near the same rows: all its rows are
    # one draw.
    each = group_sums(who, crowd * obeyed[:, None])
    spread, n = each.T @ each, len(each)
    scale = np.sqrt(np.diag(spread))
    if not (scale > 0).all():
        return NOTHING
    statistic, q = squared_length(each.sum(0) / scale, spread / np.outer(scale, scale))
    if n < q + FEWEST_ENTITIES:
        return NOTHING
    # Hotelling: this spread is about zero, not about the mean.
    ratio = statistic / max(n - statistic, 1e-9) * (n - q) / q
    return statistic, float(fisher.sf(ratio, q, n - q))


def _crowd(which: Any, who: Any, window: int) -> FloatArray:
    """Return the share of others' rows, of those just before, that have the centre of each row."""
    there = _before(which, window) - _before(who * (which.max() + 1) + which, window)
    others = np.minimum(np.arange(len(which)), window) - _before(who, window)
    share: FloatArray = there / np.maximum(others, 1)
    return share


def _before(key: Any, window: int) -> Any:
    """Return how many of the rows just before have the key of each row."""
    order = np.argsort(key, kind="stable")
    start = np.unique(key[order], return_inverse=True)[1] * (len(key) + 1)
    place = start + order
    out = np.empty(len(key), dtype=np.int64)
    out[order] = np.arange(len(key)) - np.searchsorted(place, np.maximum(place - window, start))
    return out


def sorted_by_entity(choices: Choices) -> bool:
    """Return whether the rows of each entity stand together: then they are in no order of time."""
    who = choices.entity_and_layout
    runs = 1 + int((who[1:] != who[:-1]).sum()) if len(who) else 0
    times = np.unique(who, return_counts=True)[1]
    return runs == len(times) and int((times > 1).sum()) >= FEWEST_ENTITIES


def sorted_by_prescription(choices: Choices) -> bool:
    """Return whether each entity's rows are sorted by what it was told: no order of time either."""
    who = choices.entity_and_layout
    order = np.argsort(who, kind="stable")
    again = who[order][1:] == who[order][:-1]
    steps = np.diff(choices.prescribed[order])[again]
    return bool((steps >= 0).all()) and int((steps > 0).sum()) >= FEWEST_ENTITIES
