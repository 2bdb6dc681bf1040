"""Does the fitted choice model hold in the log that it was fitted to?

A model that is wrong can still be confident. So what it predicts for the logged choices is compared
with what was chosen, in several views of the same rows: by the place of the entity, by prescribed
and used centre, by nearness, by cost. Choices of one entity are compared with each other too: if
they go together more than the model says, entities have habits or likings that it does not know.
Each comparison is a test that a right model fails once in five hundred logs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import chi2, norm
from sklearn.cluster import KMeans

from volition.choices.data import Choices, parts_of, predicted
from volition.choices.fit import FOLDS, ChoiceFit, refit
from volition.choices.ranked import CLASSES, ranks, ranks_of_others
from volition.choices.sequence import (
    crowds,
    memory,
    sorted_by_entity,
    sorted_by_prescription,
    told_again,
)
from volition.choices.worth import ExpectedCosts, Log, as_policy, expected_costs, seen_cost
from volition.core.validation import FloatArray
from volition.io.serialization import registered

#: chance that a right model fails a check; there are about twelve checks
FALSE_ALARM = 0.002
#: expected choices that a cell needs, at least
FEWEST = 5.0
#: places that entities are grouped into, and rows that each has on average, at least
PLACES, ROWS_PER_PLACE = 12, 60
#: groups of costs that are told apart
BINS = 8
#: numbers in a table of a check, at most; beyond, some entities are looked at
MOST_NUMBERS = 30_000_000
#: centres that are told apart; more are looked at in so many groups
MOST_GROUPS = 32
Z95 = float(norm.ppf(0.975))
#: name of the check by which behaviour changes in time
DAYS = "the same part of the log"
#: the checks, and what it means if one fails
FINDINGS = {
    "prescribed and used centre": "some centres are used more or less than the model says",
    "nearness": "how near a centre is matters in another way than the model says",
    "cost": "what a centre costs an entity matters in another way than the model says",
    "place": "entities in some places choose otherwise than the model says",
    "the same entity, used centre": "single entities keep to centres of their own, which the model "
    "does not know",
    "the same entity, obeying": "some entities override much more often than others, and the model "
    "does not know which",
    DAYS: "behaviour changes from one part of the log to another, as between days",
}
#: those by which rows depend on the rows before them
ORDER_FINDINGS = {
    "what the entity was told before": "whether an entity obeys depends on what it was told the "
    "time before",
    "what the entity did before": "what an entity does depends on what it did the time before",
    "how many were sent there before": "whether an entity obeys depends on how many others were "
    "sent to that centre shortly before",
    "told the same again": "whether an entity obeys depends on whether it was told the same the "
    "time before",
}


@registered
class Check(NamedTuple):
    """One comparison of the model with the log."""

    name: str
    statistic: float
    p_value: float
    finding: str  # what it means if the check fails
    order: bool = False  # whether rows then depend on those before: on the plan that was followed

    @property
    def failed(self) -> bool:
        """Whether chance does not explain it."""
        return self.p_value < FALSE_ALARM


def check_model(
    fit: ChoiceFit, X: FloatArray, choices: Choices, cost: Any, propensity: Any = None
) -> list[Check]:
    """Compare a fitted model with the log, in several views.

    Parameters
    ----------
    fit : ChoiceFit
    X : array of shape (n, d)
        Entities.
    choices : Choices
        The log.
    cost : Cost
    propensity : array of shape (m,), optional
        Probability of each logged prescription; with it, one more check is made.

    Returns
    -------
    list of Check
        The most surprising first.
    """
    if choices.n_clusters == 1:
        return []
    some = _some_entities(choices)
    choices = choices.take(some)
    propensity = None if propensity is None else np.asarray(propensity)[some]
    X = np.asarray(X, dtype=np.float64)
    p = predicted(fit.model, X, choices, cost)
    group = _groups(choices.n_clusters)
    found = {
        name: lack_of_fit(p, choices.realized, cells)
        for name, cells in _views(X, choices, cost, group).items()
    }
    rows, member = np.arange(len(p)), np.eye(int(group.max()) + 1)[group]
    grouped, who = p @ member, choices.entities
    used = member[choices.realized] - grouped
    stays = p[rows, choices.prescribed]
    obeyed = (choices.realized == choices.prescribed) - stays
    both, obeyed_or_not = np.stack([stays, 1 - stays], 1), np.stack([obeyed, -obeyed], 1)
    found["the same entity, used centre"] = dependence(used, grouped, who)
    found["the same entity, obeying"] = dependence(obeyed_or_not, both, who)
    # Rows in the order of entities say nothing of what others did about the same time; if each
    # entity's are in the order of prescriptions too, not even of what it did itself.
    by_entity = sorted_by_entity(choices)
    if not by_entity:
        found[DAYS] = dependence(used, grouped, parts_of(len(rows)))
        found["how many were sent there before"] = crowds(obeyed, choices)
    if not (by_entity and sorted_by_prescription(choices)):
        told, did = memory(used, obeyed, choices, group)
        found["what the entity was told before"] = told
        found["what the entity did before"] = did
        if propensity is not None:
            found["told the same again"] = told_again(obeyed, choices, propensity)
    checks = [
        Check(name, *test, (FINDINGS | ORDER_FINDINGS)[name], name in ORDER_FINDINGS)
        for name, test in found.items()
    ]
    return sorted(checks, key=lambda check: check.p_value)


def _groups(K: int) -> Any:
    """Return the group of each centre: its own, or with very many centres that of several."""
    return np.random.default_rng(0).permutation(np.arange(K) % min(K, MOST_GROUPS))


def _some_entities(choices: Choices) -> Any:
    """Return rows of as many entities as tables have room for."""
    G = min(choices.n_clusters, MOST_GROUPS)
    most = MOST_NUMBERS // max(G * G, PLACES * G, 8 * choices.n_clusters)
    m = len(choices.entities)
    if m <= most:
        return slice(None)
    order = np.random.default_rng(0).permutation(int(choices.entities.max()) + 1)
    rows = np.bincount(choices.entities, minlength=len(order))[order]
    picked = np.zeros(len(order), dtype=bool)
    picked[order[np.cumsum(rows) <= most]] = True
    return picked[choices.entities] if picked.any() else slice(0, most)


def cross_costs(fit: ChoiceFit, X: FloatArray, choices: Choices, cost: Any) -> ExpectedCosts:
    """Return expected costs at the last centres of each entity, by what others chose.

    The terms are those of the model; their coefficients are fitted without the entity's own
    choices. So what an entity did can be compared with what was expected of it, and prescriptions
    that are best by these costs owe nothing to chance in its own answers.
    """
    rng = np.random.default_rng(0)
    fold = rng.permutation(np.arange(len(X)) % FOLDS)
    mean, variance = np.empty((2, len(X), choices.n_clusters))
    for number in range(FOLDS):
        others = fold[choices.entities] != number
        one = fit
        if others.any() and not others.all():
            one = refit(fit, X, choices.take(others), cost, fit.model.covariates)
        mine = np.flatnonzero(fold == number)
        if len(mine):
            model = one.model.subset(mine)
            found = expected_costs(model, X[mine], cost, choices.layouts[-1])
            mean[mine], variance[mine] = found
    return ExpectedCosts(mean, variance)


def check_costs(log: Log, costs: ExpectedCosts, plans: dict[str, Any]) -> list[Check]:
    """Compare what plans at today's centres cost by the model and by what was seen.

    Parameters
    ----------
    log : Log
    costs : ExpectedCosts
        From `cross_costs`.
    plans : dict of name to prescriptions
        Prescriptions (n,) at the last centres of the log.
    """
    found = []
    for name, labels in plans.items():
        seen = seen_cost(log, costs, labels)
        if not seen.usable or not np.isfinite(seen.robust).all():
            continue
        policy = as_policy(labels, costs.mean.shape[1])
        expected = float(log.shares @ (policy * costs.mean).sum(1))
        error = (seen.robust.high - seen.robust.low) / 2 / Z95
        z = (seen.robust.value - expected) / max(error, 1e-300)
        more = "more" if z > 0 else "less"
        off = abs(seen.robust.value - expected) / max(abs(expected), 1e-300)
        finding = f"with {name}, costs were seen to be {off:.0%} {more} than the model expects"
        found.append(Check(f"costs with {name}", z, float(2 * norm.sf(abs(z))), finding))
    return found


def lack_of_fit(p: FloatArray, used: Any, cells: Any) -> tuple[float, float]:
    """Return Pearson's statistic of predicted against used, by cell, and its p-value.

    Parameters
    ----------
    p : array of shape (m, K)
        Predicted probabilities.
    used : array of shape (m,)
        What was used.
    cells : array of shape (m, K)
        Cell that each alternative of each row falls into.

    Returns
    -------
    tuple of float
        The statistic has at most a chi-squared law if the model is right: fitting makes it smaller.

    Examples
    --------
    Three in four were predicted, half came:

    >>> import numpy as np
    >>> from volition.choices.checks import lack_of_fit
    >>> p = np.tile([0.75, 0.25], (100, 1))
    >>> statistic, chance = lack_of_fit(p, np.arange(100) % 2, np.tile([0, 1], (100, 1)))
    >>> round(statistic, 1), chance < 1e-6
    (33.3, True)
    """
    m = len(p)
    C, rows = int(cells.max()) + 1, np.arange(m)
    flat = cells + rows[:, None] * C
    q = np.bincount(flat.ravel(), p.ravel(), m * C).reshape(m, C)
    came = np.zeros((m, C))
    came[rows, cells[rows, used]] = 1
    expected = q.sum(0)
    kept = (expected >= FEWEST) & ((q * (1 - q)).sum(0) >= FEWEST / 2)
    q, came = q[:, kept], came[:, kept]
    if q.shape[1] == 0:
        return 0.0, 1.0
    off = (came - q).sum(0)
    spread = np.diag(q.sum(0)) - q.T @ q
    values, vectors = np.linalg.eigh(spread)
    usable = values > 1e-6 * max(float(values.max()), 1e-300)
    statistic = float(((vectors[:, usable].T @ off) ** 2 / values[usable]).sum())
    return statistic, float(chi2.sf(statistic, int(usable.sum())))


def dependence(left: FloatArray, p: FloatArray, who: Any) -> tuple[float, float]:
    """Return by how many standard errors residuals of one entity go together, and the p-value.

    Parameters
    ----------
    left : array of shape (m, K)
        What was used less what was predicted.
    p : array of shape (m, K)
        Predicted probabilities.
    who : array of shape (m,)
        Entities.
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


def _views(X: FloatArray, choices: Choices, cost: Any, group: Any) -> dict[str, Any]:
    """Return the cells that alternatives fall into, (m, K), in each view."""
    n_groups = int(group.max()) + 1
    i, j, K = choices.entities, choices.prescribed, choices.n_clusters
    m, rows = len(i), np.arange(len(i))
    D = choices.costs(X, cost)
    rank = ranks(torch.from_numpy(D)).numpy()
    mine = rank[rows, j][:, None]
    others = ranks_of_others(rank, mine) + 1
    others[rows, j] = 0
    edges = np.unique(np.quantile(D, np.linspace(0, 1, BINS + 1)[1:-1]))
    own = (np.arange(K) == j[:, None]).astype(np.int64)
    views = {
        "prescribed and used centre": group[j][:, None] * n_groups + group,
        "nearness": mine.clip(max=CLASSES - 1) * (CLASSES + 1) + others,
        "cost": np.searchsorted(edges, D) * 2 + own,
    }
    G = min(PLACES, m // ROWS_PER_PLACE, len(np.unique(X, axis=0)))
    if G > 1:
        place = KMeans(G, n_init=1, random_state=0).fit(X).labels_[i]
        views["place"] = place[:, None] * n_groups + group
    return views
