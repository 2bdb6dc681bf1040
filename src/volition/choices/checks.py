"""Does the fitted choice model hold in the log that it was fitted to?

A model that is wrong can still be confident. So what it predicts for the logged choices is compared
with what was chosen, in several views of the same rows: by the place of the entity, by prescribed
and used centre, by nearness, by cost. Choices of one entity are compared with each other too: if
they go together more than the model says, entities have habits or likings that it does not know.
Each comparison is a test that a right model fails once in five hundred logs.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import chi2, norm
from sklearn.cluster import KMeans

from volition.choices.data import Choices, nearness_ranks, parts_of, predicted
from volition.choices.fit import ChoiceFit, refit
from volition.choices.ranked import RANK_CLASSES, ranks_of_others
from volition.choices.seen_costs import ExpectedCosts, Log, expected_costs, policy_matrix, seen_cost
from volition.choices.selection import FOLDS
from volition.choices.sequence import (
    crowds,
    memory,
    sorted_by_entity,
    sorted_by_prescription,
    told_again,
)
from volition.choices.statistics import Z95, squared_length
from volition.core.validation import FloatArray
from volition.io.serialization import registered

#: chance that a right model fails a check; there are about twelve checks
FALSE_ALARM = 0.002
#: expected choices that a cell needs, at least
FEWEST_EXPECTED = 5.0
#: places that entities are grouped into, and rows that each has on average, at least
MOST_PLACES, ROWS_PER_PLACE = 12, 60
#: groups of costs
COST_GROUPS = 8
#: numbers in a table of a check, at most; beyond, some entities are looked at
MOST_NUMBERS = 30_000_000
#: groups of centres, at most; with fewer centres, each is a group
MOST_GROUPS = 32


class Question(Enum):
    """What a check asks: its name, and what it means if it fails."""

    CENTER = "prescribed and used centre", "some centres are used more or less than the model says"
    NEARNESS = "nearness", "how near a centre is matters in another way than the model says"
    COST = "cost", "what a centre costs an entity matters in another way than the model says"
    PLACE = "place", "entities in some places choose otherwise than the model says"
    OWN_CENTER = "the same entity, used centre", "some entities keep to centres of their own"
    OWN_WILL = "the same entity, obeying", "some entities override much more often than others"
    DAYS = "the same part of the log", "behaviour changes within the log, as between days"
    TOLD_BEFORE = "what the entity was told before", "obeying depends on what was told before"
    DID_BEFORE = "what the entity did before", "what an entity does depends on what it did before"
    CROWD = "how many were sent there before", "obeying depends on how many were sent there before"
    TOLD_AGAIN = "told the same again", "obeying depends on whether the same was told before"


#: questions by which rows depend on the rows before them
ABOUT_ORDER = {Question.TOLD_BEFORE, Question.DID_BEFORE, Question.CROWD, Question.TOLD_AGAIN}


@registered
class Check(NamedTuple):
    """One comparison of the model with the log."""

    name: str
    statistic: float
    p_value: float
    finding: str  # what it means if the check fails
    order: bool = False  # whether rows then depend on those before: on the plan that was followed
    days: bool = False  # whether parts of the log then differ

    @property
    def failed(self) -> bool:
        """Whether chance does not explain it."""
        return self.p_value < FALSE_ALARM


def check_model(
    fit: ChoiceFit, X: FloatArray, choices: Choices, cost: Any, propensity: Any = None
) -> list[Check]:
    """Compare a fitted model with the log, in several views; the most surprising comes first.

    With the ``propensity`` of each logged prescription, one more check is made.
    """
    if choices.n_clusters == 1:
        return []
    some = _some_entities(choices)
    choices = choices.take(some)
    X = np.asarray(X, dtype=np.float64)
    p = predicted(fit.model, X, choices, cost)
    # Each centre has a group of its own, or shares one where there are very many.
    K = choices.n_clusters
    group = np.random.default_rng(0).permutation(np.arange(K) % min(K, MOST_GROUPS))
    found = {
        question: lack_of_fit(p, choices.realized, cells)
        for question, cells in _views(X, choices, cost, group).items()
    }
    rows, member = np.arange(len(p)), np.eye(int(group.max()) + 1)[group]
    grouped, who = p @ member, choices.entities
    used = member[choices.realized] - grouped
    stays = p[rows, choices.prescribed]
    obeyed = (choices.realized == choices.prescribed) - stays
    both, obeyed_or_not = np.stack([stays, 1 - stays], 1), np.stack([obeyed, -obeyed], 1)
    found[Question.OWN_CENTER] = dependence(used, grouped, who)
    found[Question.OWN_WILL] = dependence(obeyed_or_not, both, who)
    # Rows in the order of entities say nothing of what others did about the same time; if each
    # entity's are in the order of prescriptions too, not even of what it did itself.
    by_entity = sorted_by_entity(choices)
    if not by_entity:
        found[Question.DAYS] = dependence(used, grouped, parts_of(len(rows)))
        found[Question.CROWD] = crowds(obeyed, choices)
    if not (by_entity and sorted_by_prescription(choices)):
        tests = memory(used, obeyed, choices, group)
        found[Question.TOLD_BEFORE], found[Question.DID_BEFORE] = tests
        if propensity is not None:
            again = told_again(obeyed, choices, np.asarray(propensity)[some])
            found[Question.TOLD_AGAIN] = again
    checks = [
        Check(
            question.value[0], *test, question.value[1], question in ABOUT_ORDER,
            question is Question.DAYS,
        )
        for question, test in found.items()
    ]  # fmt: skip
    return sorted(checks, key=lambda check: check.p_value)


def _some_entities(choices: Choices) -> Any:
    """Return rows of as many entities as tables have room for."""
    G = min(choices.n_clusters, MOST_GROUPS)
    most = MOST_NUMBERS // max(G * G, MOST_PLACES * G, 8 * choices.n_clusters)
    if len(choices.entities) <= most:
        return slice(None)
    order = np.random.default_rng(0).permutation(int(choices.entities.max()) + 1)
    rows = np.bincount(choices.entities, minlength=len(order))[order]
    picked = np.zeros(len(order), dtype=bool)
    picked[order[np.cumsum(rows) <= most]] = True
    return picked[choices.entities] if picked.any() else slice(0, most)


def _views(X: FloatArray, choices: Choices, cost: Any, group: Any) -> dict[Question, Any]:
    """Return the cells that alternatives fall into, (m, K), in each view."""
    n_groups, rows = int(group.max()) + 1, np.arange(len(choices.entities))
    j, K = choices.prescribed, choices.n_clusters
    D = choices.costs(X, cost)
    rank = nearness_ranks(D)
    mine = rank[rows, j][:, None]
    others = ranks_of_others(rank, mine) + 1
    others[rows, j] = 0
    edges = np.unique(np.quantile(D, np.linspace(0, 1, COST_GROUPS + 1)[1:-1]))
    views = {
        Question.CENTER: group[j][:, None] * n_groups + group,
        Question.NEARNESS: mine.clip(max=RANK_CLASSES - 1) * (RANK_CLASSES + 1) + others,
        Question.COST: np.searchsorted(edges, D) * 2 + (np.arange(K) == j[:, None]),
    }
    n_places = min(MOST_PLACES, len(rows) // ROWS_PER_PLACE, len(np.unique(X, axis=0)))
    if n_places > 1:
        place = KMeans(n_places, n_init=1, random_state=0).fit(X).labels_[choices.entities]
        views[Question.PLACE] = place[:, None] * n_groups + group
    return views


def lack_of_fit(p: FloatArray, used: Any, cells: Any) -> tuple[float, float]:
    """Return Pearson's statistic of predicted (m, K) against used (m,), and its p-value.

    They are compared by the cell that each alternative falls into, (m, K). If the model is right,
    the statistic has at most a chi-squared law: fitting makes it smaller.
    """
    m = len(p)
    C, rows = int(cells.max()) + 1, np.arange(m)
    flat = cells + rows[:, None] * C
    q = np.bincount(flat.ravel(), p.ravel(), m * C).reshape(m, C)
    came = np.zeros((m, C))
    came[rows, cells[rows, used]] = 1
    enough = (q.sum(0) >= FEWEST_EXPECTED) & ((q * (1 - q)).sum(0) >= FEWEST_EXPECTED / 2)
    q, came = q[:, enough], came[:, enough]
    if q.shape[1] == 0:
        return 0.0, 1.0
    statistic, degrees = squared_length((came - q).sum(0), np.diag(q.sum(0)) - q.T @ q)
    return statistic, float(chi2.sf(statistic, degrees))


def dependence(left: FloatArray, p: FloatArray, who: Any) -> tuple[float, float]:
    """Return by how many standard errors residuals of one entity go together, and the p-value.

    ``left`` (m, K) is what was used less what was predicted, ``p`` (m, K).
    """
    _, who = np.unique(who, return_inverse=True)
    n, K = int(who.max()) + 1, p.shape[1]
    sums, squares = np.zeros((n, K)), np.bincount(who, (left**2).sum(1), n)
    np.add.at(sums, who, left)
    together = float(((sums**2).sum(1) - squares).sum())
    # Variance of the products under independence: covariances diag(p) - p p' of all pairs.
    V = -p[:, :, None] * p[:, None]
    V[:, np.arange(K), np.arange(K)] += p
    total = np.zeros((n, K, K))
    np.add.at(total, who, V)
    variance = 2 * float((total**2).sum() - (V**2).sum())
    if variance <= 1e-12:
        return 0.0, 1.0
    z = together / math.sqrt(variance)
    return z, float(norm.sf(z))


def cross_costs(fit: ChoiceFit, X: FloatArray, choices: Choices, cost: Any) -> ExpectedCosts:
    """Return expected costs at the last centres of each entity, by what others chose.

    The terms are those of the model; their coefficients are fitted without the entity's own
    choices. So what an entity did can be compared with what was expected of it, and prescriptions
    that are best by these costs owe nothing to chance in its own answers.
    """
    fold = np.random.default_rng(0).permutation(np.arange(len(X)) % FOLDS)
    mean, variance = np.empty((2, len(X), choices.n_clusters))
    for number in range(min(FOLDS, len(X))):
        others, mine = fold[choices.entities] != number, np.flatnonzero(fold == number)
        one = fit
        if others.any() and not others.all():
            one = refit(fit, X, choices.take(others), cost, fit.model.covariates)
        model = one.model.subset(mine)
        mean[mine], variance[mine] = expected_costs(model, X[mine], cost, choices.layouts[-1])
    return ExpectedCosts(mean, variance)


def check_costs(log: Log, costs: ExpectedCosts, plans: dict[str, Any]) -> list[Check]:
    """Compare what prescriptions (n,) at today's centres cost by the model and by what was seen.

    The expected costs are those of `cross_costs`.
    """
    found = []
    for name, labels in plans.items():
        seen = seen_cost(log, costs, labels)
        if not seen.usable or not np.isfinite(seen.robust).all():
            continue
        policy = policy_matrix(labels, costs.mean.shape[1])
        expected = float(log.shares @ (policy * costs.mean).sum(1))
        off = seen.robust.value - expected
        z = off / max(seen.robust.half / Z95, 1e-300)
        share, more = abs(off) / max(abs(expected), 1e-300), "more" if z > 0 else "less"
        finding = f"with {name}, costs were seen to be {share:.0%} {more} than the model expects"
        found.append(Check(f"costs with {name}", z, float(2 * norm.sf(abs(z))), finding))
    return found
