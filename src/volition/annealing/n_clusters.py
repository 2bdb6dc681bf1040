"""How many clusters there are: which numbers of distinct centres persist as beta grows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from volition.annealing.anneal import AnnealingResult, OnBeta, anneal
from volition.annealing.schedules import Critical, Growing
from volition.annealing.stability import assess_stability, first_beta
from volition.core.autonomy import Autonomy, Passive
from volition.core.costs import Haversine
from volition.core.outliers import warn_of_outliers
from volition.core.problem import Problem, build_problem
from volition.core.validation import check_integer

#: the path starts at a third of the beta at which obedient entities first split, where the blur is
#: half the width of an even spread; a single cluster exists at any smaller beta too
BETA_START = 1 / 3
#: the path ends where groups a hundred times smaller than the whole split: at 100² times the beta
BETA_RANGE = 1e4


class Persistence(NamedTuple):
    """How long one number of distinct centres lasts.

    Attributes
    ----------
    n_clusters : int
        The number of distinct centres.
    persistence : float
        Total length in log beta over which it was seen.
    beta_from, beta_to : float
        Its longest stretch without interruption.
    open_ended : bool
        Whether the path ended while it lasted: its persistence is then a lower bound.
    """

    n_clusters: int
    persistence: float
    beta_from: float
    beta_to: float
    open_ended: bool


def persistence_ranking(result: AnnealingResult) -> list[Persistence]:
    """Return how long each number of distinct centres lasts along a path, the longest first.

    Examples
    --------
    >>> from volition import anneal
    >>> from volition.datasets import load_four_groups
    >>> from volition.core.problem import Problem
    >>> from volition.annealing.n_clusters import persistence_ranking
    >>> result = anneal(Problem(load_four_groups().data), 4, random_state=0)
    >>> [p.n_clusters for p in persistence_ranking(result)][0]
    4
    """
    betas = [record.beta for record in result.history]
    numbers = [record.n_distinct for record in result.history]
    total: dict[int, float] = {}
    stretches: dict[int, tuple[float, float]] = {}
    start = 0
    for i in range(1, len(numbers)):
        total[numbers[i - 1]] = total.get(numbers[i - 1], 0.0) + math.log(betas[i] / betas[i - 1])
        if numbers[i] != numbers[i - 1] or i == len(numbers) - 1:
            low, high = stretches.get(numbers[i - 1], (1.0, 1.0))
            if betas[i] / betas[start] >= high / low:
                stretches[numbers[i - 1]] = betas[start], betas[i]
            start = i
    found = [Persistence(n, length, *stretches[n], n == numbers[-1]) for n, length in total.items()]
    return sorted(found, key=lambda p: (-p.persistence, p.n_clusters))


@dataclass(frozen=True)
class Suggestion:
    """What `suggest_n_clusters` found.

    Attributes
    ----------
    ranking : list of Persistence
        Numbers of clusters, the most persistent first.
    path : AnnealingResult
        The annealing that shows them.
    autonomy : Autonomy
        The model it was made with.
    """

    ranking: list[Persistence]
    path: AnnealingResult
    autonomy: Autonomy

    @property
    def n_clusters(self) -> int:
        """The number that persists longest."""
        return self.ranking[0].n_clusters

    def __str__(self) -> str:
        lines = ["clusters  persistence (log beta)  longest from beta    to beta"]
        lines += [
            f"{p.n_clusters:8d}  {p.persistence:22.2f}  {p.beta_from:17.4g}  {p.beta_to:9.4g}"
            + ("  (and beyond)" if p.open_ended else "")
            for p in self.ranking[:8]
        ]
        return "\n".join(lines)


def suggest_n_clusters(
    X: Any,
    *,
    autonomy: Autonomy | None = None,
    metric: Any = "sqeuclidean",
    sample_weight: Any = None,
    groups: Any = None,
    n_max: int = 32,
    max_samples: int | None = None,
    random_state: Any = None,
    on_beta: OnBeta | None = None,
) -> Suggestion:
    """Suggest numbers of clusters by how long, in log beta, each number of centres persists.

    Annealing splits the entities where they differ most, then where they differ less. A number of
    distinct centres that survives a long range of beta is a scale at which the entities form
    groups. Where entities obey, centres are added as the entities ask for them (`Growing`). With
    autonomy, how entities override depends on how many centres there are: ``n_max`` centres (those
    of the matrix, for a `FixedAutonomy`) are annealed, and the distinct ones counted.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities.
    autonomy : Autonomy, optional
        How entities override; by default they obey. A `FixedAutonomy` fixes the number of centres.
    metric, sample_weight, groups : optional
        As in :class:`volition.AutonomyAwareClustering`.
    n_max : int, default=32
        Largest number of clusters to consider; with autonomy the number of centres.
    max_samples : int, optional
        Size of the random sample of entities that is used. By default 3000, or 500 where autonomy
        cannot be folded into the centres, which is much slower.
    random_state : int, RandomState or None
        Seed of the sample, and of the small perturbations between betas.
    on_beta : callable, optional
        As in :func:`volition.anneal`.

    Returns
    -------
    Suggestion
        The ranking with its persistence, and the path.

    Examples
    --------
    >>> from volition import suggest_n_clusters
    >>> from volition.datasets import load_four_groups
    >>> suggest_n_clusters(load_four_groups().data).n_clusters
    4
    """
    check_integer(n_max, "n_max", 1)
    if max_samples is not None:
        check_integer(max_samples, "max_samples", 2)
    rng = check_random_state(random_state)
    fixed = getattr(autonomy, "n_clusters", None)
    problem, _ = build_problem(
        X,
        np.zeros((fixed or 1, np.shape(X)[1] if np.ndim(X) == 2 else 1)),
        autonomy=autonomy,
        metric=metric,
        sample_weight=sample_weight,
        groups=groups,
    )
    problem.check_spread()
    warn_of_outliers(problem.X, problem.weight, getattr(X, "columns", None))
    if isinstance(problem.cost, Haversine) and not problem.cost.squared:
        # Its centres are medians, which stay with one entity over any range of beta.
        raise ValueError("suggest_n_clusters needs a smooth cost: use metric='sqhaversine'.")
    problem = _sample(problem, max_samples or (3000 if problem.collapses else 500), rng)
    n_max = fixed or min(n_max, problem.n)
    path = _path(problem, fixed, n_max, rng, on_beta)
    return Suggestion(_usable(path, problem, fixed, n_max), path, problem.autonomy)


def _sample(problem: Problem, size: int, rng: np.random.RandomState) -> Problem:
    """Return the problem itself, or that of a random sample of its entities."""
    if problem.n <= size:
        return problem
    weight = problem.weight.astype(np.float64)
    drawn = rng.choice(problem.n, size, p=weight / weight.sum())
    index, count = np.unique(drawn, return_counts=True)
    return problem.subset(index, count.astype(np.float64))


def _usable(
    path: AnnealingResult, problem: Problem, fixed: int | None, n_max: int
) -> list[Persistence]:
    """Return the numbers that are findings, the most persistent first; never none."""
    ranking = [p for p in persistence_ranking(path) if p.n_clusters <= n_max]
    if isinstance(problem.autonomy, Passive) or fixed is not None:
        usable = ranking
    else:  # all centres in use is the end of what was looked at, not a finding
        usable = [p for p in ranking if p.n_clusters < n_max]
    if usable or ranking:
        return usable or ranking
    # A single entity, or all in one place.
    ends = path.history[0].beta, path.history[-1].beta
    return [Persistence(path.history[-1].n_distinct, 0.0, *ends, True)]


def _path(
    problem: Problem,
    fixed: int | None,
    n_max: int,
    rng: np.random.RandomState,
    on_beta: OnBeta | None,
) -> AnnealingResult:
    obeying = problem.with_autonomy(Passive())
    pair = np.repeat(problem.mean_center(), 2, axis=0)
    first = assess_stability(obeying, pair, first_beta(problem)).critical.beta
    first = first if math.isfinite(first) else first_beta(problem)
    ends = BETA_START * first, BETA_RANGE * first
    how: dict[str, Any] = {"on_beta": on_beta, "predict": False, "random_state": rng}
    if fixed is not None:
        return anneal(problem, fixed, schedule=Critical(*ends), **how)
    # Coarser than `Critical`: persistence is wanted to a few hundredths of log beta.
    coarse: dict[str, Any] = {"shortest": 1.05, "slack": 30.0}
    if isinstance(problem.autonomy, Passive):
        schedule: Critical = Growing(*ends, **coarse, n_max=n_max)
        return anneal(problem, 1, schedule=schedule, max_iter=60, **how)
    return anneal(problem, n_max, schedule=Critical(*ends, **coarse), max_iter=60, **how)
