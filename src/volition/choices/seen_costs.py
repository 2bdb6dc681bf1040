"""What a log shows of plans that leave the centres where they are.

A plan is judged twice: *weighted* (logged costs, each weighted by how much likelier the plan makes
its prescription) and *doubly robust* (what the model expects, corrected by its weighted mistakes:
right if either the model or the propensities are).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import binom, t

from volition.choices.data import Choices, nearness_ranks, parts_of
from volition.choices.off_policy import Diagnostics, estimate_off_policy
from volition.choices.statistics import NO_CHANGE, UNKNOWN, Z95, Interval
from volition.core.autonomy import Autonomy
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.io.serialization import registered
from volition.populations.answers import IntArray

#: effective rows that a cost needs to count as seen, and how far the mean weight may be from one,
#: beyond three standard errors
FEWEST_EFFECTIVE, WEIGHT_TOLERANCE = 30.0, 0.05
#: parts of the log at its last centres below which it is not known how much parts differ
FEWEST_PARTS = 5
#: share of prescriptions to other ranks below which a log has tried one rank only
RARELY = 0.005
#: entities that are looked at together
CHUNK_ROWS = 16_384


class Log(NamedTuple):
    """A log with all that is needed to judge plans by it."""

    X: FloatArray
    cost: Any
    weight: FloatArray | None
    choices: Choices
    propensity: FloatArray  # (m,) probability of each logged prescription

    @property
    def shares(self) -> FloatArray:
        """Weights of the entities that sum to one."""
        n = len(self.X)
        return np.full(n, 1 / n) if self.weight is None else self.weight / self.weight.sum()

    def paid(self) -> FloatArray:
        """Return what each choice cost, (m,), at the centres that stood then."""
        choices = self.choices
        X = torch.from_numpy(np.asarray(self.X, dtype=np.float64)[choices.entities])
        Y = torch.from_numpy(choices.layouts[choices.layout, choices.realized][:, None])
        with torch.no_grad():
            paid: FloatArray = self.cost.each(X, Y)[:, 0].numpy()
        return paid

    def only_rank(self) -> int | None:
        """Return the rank (0 for the nearest) that was all but always prescribed, if one was."""
        shares = shares_of_ranks(self.X, self.choices, self.cost)
        one = len(shares) > 1 and float(shares.max()) > 1 - RARELY
        return int(shares.argmax()) if one else None

    def untried_share(self, centers: FloatArray, policy: Any) -> float:
        """Return the share of entities that a plan tells what a log of one rank never tried."""
        rank = self.only_rank()
        if rank is None:
            return 0.0
        X, Y = (torch.from_numpy(np.asarray(one, dtype=np.float64)) for one in (self.X, centers))
        other = nearness_ranks(self.cost.pairwise(X, Y).numpy()) != rank
        return float(self.shares @ (policy_matrix(policy, len(Y)) * other).sum(1))


def policy_matrix(policy: Any, K: int) -> FloatArray:
    """Return probabilities of prescriptions, (n, K), from these or from labels."""
    policy = np.asarray(policy)
    return np.eye(K)[policy] if policy.ndim == 1 else policy.astype(np.float64)


def even_weights(entities: IntArray, shares: FloatArray) -> FloatArray:
    """Return weights of rows by which entities count by their shares, however often logged."""
    weights: FloatArray = shares[entities] / np.bincount(entities, minlength=len(shares))[entities]
    return weights


@registered
class ExpectedCosts(NamedTuple):
    """Mean and variance of the cost of prescribing j to i, (n, K) each."""

    mean: FloatArray
    variance: FloatArray


def expected_costs(model: Autonomy, X: FloatArray, cost: Any, centers: FloatArray) -> ExpectedCosts:
    """Return what a model expects prescriptions to cost, and how much that varies by chance."""
    problem = Problem(X, cost=cost, autonomy=model)
    y = problem.centers(centers) - problem.origin
    mean, square = np.empty((2, problem.n, len(centers)))
    with torch.no_grad():
        for rows in chunks(problem.n):
            chunk, transition = problem.chunk(rows, 0, y)
            mean[rows] = transition.expected(chunk.D).numpy()
            square[rows] = transition.expected(chunk.D**2).numpy()
    return ExpectedCosts(mean, np.maximum(square - mean**2, 0.0))


def chunks(n: int) -> list[slice]:
    """Return slices of rows that fit into memory."""
    return [slice(lo, min(lo + CHUNK_ROWS, n)) for lo in range(0, n, CHUNK_ROWS)]


class SeenCost(NamedTuple):
    """What a log shows of a plan at the last centres of the log."""

    weighted: Interval = UNKNOWN
    robust: Interval = UNKNOWN
    saving: Interval = UNKNOWN  # against the prescriptions of the log
    diagnostics: Diagnostics | None = None

    @property
    def usable(self) -> bool:
        """Whether the log has tried what the plan prescribes often enough."""
        found = self.diagnostics
        if found is None or math.isnan(self.robust.value):
            return False
        off = abs(found.mean_weight - 1) - 3 * found.mean_weight_error
        return found.effective_rows >= FEWEST_EFFECTIVE and off < WEIGHT_TOLERANCE

    def without_ends(self) -> SeenCost:
        """Return the costs alone."""
        return self._replace(
            weighted=self.weighted.without_ends(), robust=self.robust.without_ends()
        )


def seen_cost(
    log: Log, costs: ExpectedCosts, policy: Any, noise: float = 0.0, days: bool = False
) -> SeenCost:
    """Return what the log shows of prescriptions at its last centres.

    These are labels (n,), probabilities (n, K), or None for those of the log. The expected costs
    should come from a model that has not seen the choices of the same entity: see `cross_costs`.
    ``noise`` is the variance of today's expected cost, from prescriptions that were drawn. With
    ``days``, rows of one part of the log go together, as well as those of one entity; there is no
    interval where the last centres stood in too few parts.
    """
    here = np.flatnonzero(log.choices.at_last_layout)
    if len(here) == 0:
        return SeenCost()
    i, j = log.choices.entities[here], log.choices.prescribed[here]
    share, paid = even_weights(i, log.shares), log.paid()[here]
    together, z = [i], Z95
    if days:
        part = np.unique(parts_of(len(log.choices.entities))[here], return_inverse=True)[1]
        together, n_parts = [i, part], int(part.max()) + 1
        # Few parts show little of how much parts differ: Student's quantile.
        z = float(t.ppf(0.975, n_parts - 1)) if n_parts >= FEWEST_PARTS else math.nan
    w, left, chance = share / share.sum(), paid - costs.mean[i, j], costs.variance[i, j]

    def error(by_row: FloatArray, by_chance: float) -> float:
        """Return the standard error of a sum of rows: the largest of several."""
        sums = [np.bincount(which, by_row) for which in together]
        spread = max(float(one @ one) * len(one) / max(1, len(one) - 1) for one in sums)
        return math.sqrt(max(spread, by_chance) + noise)

    if policy is None:
        # What was paid, known but for chance in the answers and in who was prescribed what.
        found = estimate_off_policy(np.ones(len(i)), paid, i, share=share)
        half = z * error(w * (left - w @ left), float(w**2 @ chance))
        today = Interval.around(float(w @ paid), half)
        return SeenCost(today, today, NO_CHANGE, found.diagnostics)
    pi = policy_matrix(policy, log.choices.n_clusters)
    ratio = pi[i, j] / log.propensity[here]
    if not (ratio > 0).any():
        return SeenCost()
    weighted = estimate_off_policy(ratio, paid, i, share=share)
    each = [estimate_off_policy(ratio, left, one, share=share) for one in together]
    mistakes = max((one.self_normalized for one in each), key=lambda one: one.high - one.low)
    v = share * ratio / (share @ ratio)
    # What is rare and costs much may not have happened in the few rows that count: the model knows
    # how much costs vary when it does. The larger error is taken.
    half = max((mistakes.high - mistakes.low) / 2, z * math.sqrt(float(v**2 @ chance)))
    value = float(log.shares @ (pi * costs.mean).sum(1)) + mistakes.value
    # Against today: mistakes of the same rows, once weighted and once not, partly cancel.
    by_row = w * (left - w @ left) - v * (left - v @ left)
    half_saving = z * error(by_row, float((w - v) ** 2 @ chance))
    saving = Interval.around(float(w @ paid) - value, half_saving)
    if np.allclose(v, w, rtol=1e-9) and np.allclose(pi[i, j], 1):
        saving = NO_CHANGE  # it is what was done
    plain, _, low, high = weighted.self_normalized
    robust = Interval.around(value, half)
    seen = SeenCost(Interval(plain, low, high), robust, saving, weighted.diagnostics)
    return seen.without_ends() if math.isnan(z) else seen


def shares_of_ranks(X: FloatArray, choices: Choices, cost: Any) -> Any:
    """Return how often the nearest centre was prescribed, the second nearest, and so on."""
    ranks = choices.prescribed_ranks(X, cost)
    return np.bincount(ranks, minlength=choices.n_clusters) / len(ranks)


def propensities(X: FloatArray, choices: Choices, cost: Any) -> FloatArray:
    """Return how likely each logged prescription was, judging by how near its centre is.

    The share of prescriptions that went to the nearest centre, the second nearest and so on is
    counted over the whole log: right for logs in which prescriptions depend on distance alone.
    """
    ranks, K = choices.prescribed_ranks(X, cost), choices.n_clusters
    # Nothing is impossible: as if each rank had been prescribed once in K times more.
    share = (np.bincount(ranks, minlength=K) + 1 / K) / (len(ranks) + 1)
    return share[ranks]


def fixed_prescriptions(X: FloatArray, choices: Choices, cost: Any) -> tuple[float, float, float]:
    """Return how often prescriptions differ, how often they should, and the chance of so few.

    Rows of an entity at the same centres are paired at random. If each prescription is drawn by how
    near centres are, two of a pair differ as often as two that are drawn from all.
    """
    ranks = choices.prescribed_ranks(X, cost)
    mixed = np.random.default_rng(0).permutation(len(ranks))
    order = mixed[np.argsort(choices.entity_and_layout[mixed], kind="stable")]
    who, told = choices.entity_and_layout[order], choices.prescribed[order]
    _, first, number = np.unique(who, return_index=True, return_inverse=True)
    second = np.flatnonzero((np.arange(len(who)) - first[number]) % 2 == 1)
    pairs, differ = len(second), int((told[second] != told[second - 1]).sum())
    times, m = np.bincount(ranks), len(ranks)
    # Two rows that are drawn from all without putting the first back.
    should = 1 - float((times * (times - 1.0)).sum()) / max(1.0, m * (m - 1.0))
    chance = float(binom.cdf(differ, pairs, should)) if pairs else 1.0
    return differ / max(pairs, 1), should, chance
