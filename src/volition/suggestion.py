"""How many clusters there are: which numbers of distinct centres persist as beta grows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from volition.annealing import AnnealingResult, OnBeta, anneal
from volition.autonomy import Autonomy
from volition.phase import first_beta
from volition.problem import Problem, pose
from volition.schedules import Critical, Growing
from volition.validation import check_integer

#: one centre is counted from 1 / (6 λmax), at which the blur is the half-width of an even spread
#: with the same variance: there is no beta too small for a single cluster
START = 2 / 3
#: groups a hundred times smaller than the whole are looked for, hence ten thousand times the beta
RANGE = 1e4


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


def persistence(result: AnnealingResult) -> list[Persistence]:
    """Return how long each number of distinct centres lasts along a path, the longest first.

    Examples
    --------
    >>> from volition import anneal
    >>> from volition.datasets import load_four_groups
    >>> from volition.problem import Problem
    >>> from volition.suggestion import persistence
    >>> result = anneal(Problem(load_four_groups().data), 4, random_state=0)
    >>> [p.n_clusters for p in persistence(result)][0]
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
        lines = ["clusters  persistence (log beta)  from beta    to beta"]
        lines += [
            f"{p.n_clusters:8d}  {p.persistence:22.2f}  {p.beta_from:9.4g}  {p.beta_to:9.4g}"
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
    groups. Centres are added as the entities ask for them (`Growing`), unless the autonomy model
    fixes their number.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities.
    autonomy : Autonomy, optional
        How entities override; by default they obey. A `FixedAutonomy` fixes the number of centres.
    metric, sample_weight, groups : optional
        As in :class:`volition.AutonomyAwareClustering`.
    n_max : int, default=32
        Largest number of clusters that is looked at.
    max_samples : int, optional
        A random sample of so many entities is looked at; by default 3000, or 500 where autonomy
        cannot be folded into the centres, which is much slower.
    random_state : int, RandomState or None
        Seed of the sample.
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
    fixed = getattr(autonomy, "n_clusters", None)
    problem, _ = pose(
        X,
        np.zeros((fixed or 1, np.shape(X)[1] if np.ndim(X) == 2 else 1)),
        autonomy=autonomy,
        metric=metric,
        sample_weight=sample_weight,
        groups=groups,
    )
    limit = max_samples or (3000 if problem.collapses else 500)
    if problem.n > limit:
        rng = check_random_state(random_state)
        index = np.sort(rng.choice(problem.n, limit, replace=False, p=problem.weight))
        problem = problem.subset(index, np.ones(limit))
    path = _path(problem, fixed, n_max, on_beta)
    ranking = [p for p in persistence(path) if p.n_clusters <= (fixed or n_max)]
    if not ranking:  # a single entity, or all in one place
        last = path.history[-1].beta
        ranking = [Persistence(1, math.inf, path.history[0].beta, last, True)]
    return Suggestion(ranking, path, problem.autonomy)


def _path(
    problem: Problem, fixed: int | None, n_max: int, on_beta: OnBeta | None
) -> AnnealingResult:
    ends = START * first_beta(problem), RANGE * first_beta(problem)
    if fixed is not None:
        return anneal(problem, fixed, schedule=Critical(*ends), on_beta=on_beta, predict=False)
    # Coarser than `Critical`: persistence is wanted to a few hundredths of log beta.
    schedule = Growing(*ends, shortest=1.05, slack=30.0, patient=False, n_max=min(n_max, problem.n))
    return anneal(problem, 1, schedule=schedule, max_iter=60, on_beta=on_beta, predict=False)
