"""Populations and yardsticks for tests of learners."""

import numpy as np

from volition import AutonomyAwareClustering, FixedAutonomy, Response
from volition.metrics import distortion

K = 4
ESTIMATES = ("choices", "costs")


def uniform(kappa, K=K):
    return (1 - kappa) * np.eye(K) + kappa / (K - 1) * (1 - np.eye(K))


def gap(model, X, P):
    """Return by how much the prescriptions cost more than the best for known p, in %."""
    truth = FixedAutonomy(P)
    best = AutonomyAwareClustering(K, autonomy=truth, random_state=0).fit(X).distortion_
    return 100 * (distortion(X, model.cluster_centers_, truth, model.labels_) / best - 1)


def answers_of(people, asked):
    """Return what entities answer to questions."""
    return people.respond(asked.entities, asked.prescribed, asked.centers)


def table_of(model):
    """Return what a tabular learner has counted, or the costs that it has learned."""
    strategy = model._study.strategy
    return (strategy.counts if model.estimate == "choices" else strategy.costs).table


class Table:
    """Answers drawn beforehand: there is no model to look at."""

    __slots__ = ("X", "answers", "used")

    def __init__(self, X, P, per_pair, seed=0):
        rng = np.random.default_rng(seed)
        u = rng.random((len(X), len(P), per_pair))
        self.answers = (np.cumsum(P, axis=1)[None, :, None, :] < u[..., None]).sum(3)
        self.X, self.used = X, np.zeros((len(X), len(P)), dtype=int)

    def respond(self, entities, prescribed, centers):
        realized = np.empty(len(entities), dtype=int)
        for row, (i, j) in enumerate(zip(entities, prescribed, strict=True)):
            realized[row] = self.answers[i, j, self.used[i, j] % self.answers.shape[2]]
            self.used[i, j] += 1
        return Response(realized, ((self.X[entities] - centers[realized]) ** 2).sum(1))
