"""Small networks, and populations whose costs are not the known ones, for tests of learning."""

import math
from dataclasses import replace

import numpy as np
import torch

from volition import (
    AutonomyAwareClustering,
    DistanceAutonomy,
    Recipe,
    Response,
    SimulatedPopulation,
)
from volition.core.costs import SquaredEuclidean
from volition.learning.networks import ADENetwork, NetworkSize, Units
from volition.learning.networks.replay import AnswerGroups
from volition.learning.networks.training_data import training_batch
from volition.metrics import distortion

K = 4
SMALL = NetworkSize(16, 32, 2, 4)
HEADS = ("choices", "service", "costs")
#: people who take travel times for what they are
DRIVERS = DistanceAutonomy(0.3, temperature=0.05)
QUICK = Recipe(
    hidden_dim=16, ff_dim=32, n_layouts=16, n_samples=32, epochs=2, updates=5, tau=6.0, replicas=2,
    service_steps=100,
)  # fmt: skip


def quick(**changes):
    """The quick recipe with other values."""
    return replace(QUICK, **changes)


def gap(model, X, truth, metric="sqeuclidean"):
    """Return by how much the prescriptions cost more than the best for known p, in %."""
    best = AutonomyAwareClustering(len(model.cluster_centers_), autonomy=truth, metric=metric)
    best = best.set_params(random_state=0).fit(X).distortion_
    found = distortion(X, model.cluster_centers_, truth, model.labels_, metric=metric)
    return 100 * (found / best - 1)


def squares(A, B):
    return ((A[:, :, None] - B[:, None]) ** 2).sum(-1)


def outputs(network, x, y):
    if network.head == "costs":
        return (network.costs(x, y, squares(x, y)),)
    service = (network.log_service_costs(x, y, squares(x, y)),) if network.head == "service" else ()
    return *network.choices(x, y, squares(x, y), squares(y, y)), *service


def shaken(head, size=SMALL, d=2, seed=0):
    """A network whose last layers are not zero."""
    network = ADENetwork(d, size, head, seed).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.3 * noise
    if head == "service":
        network.attentive.fill_(True)
        network.include_places(torch.tensor([[-0.5] * d, [1.5] * d]))
        network.mean.fill_(1.1)
    return network


def answers(X, truth, n_layouts, width=32, seed=0, k=K):
    """Return a batch of costs drawn at random layouts, and the realised clusters."""
    rng = np.random.default_rng(seed)
    Y = rng.random((n_layouts, k, X.shape[1]))
    i, j = rng.integers(0, len(X), (n_layouts, width)), rng.integers(0, k, (n_layouts, width))
    people = SimulatedPopulation(X, truth, random_state=seed)
    answer = people.respond(i.ravel(), j.ravel(), np.repeat(Y, width, axis=0))
    D = ((X[i][:, :, None] - Y[:, None]) ** 2).sum(-1)
    candidates = np.abs(answer.cost.reshape(i.shape)[..., None] - D) < 1e-9
    groups = AnswerGroups(
        Y, i, j, answer.cost.reshape(i.shape), candidates, np.ones(i.shape, dtype=bool)
    )
    units = Units(np.zeros(X.shape[1]), 1.0, 1.0)
    batch = training_batch(groups, X, SquaredEuclidean(), units, torch.float64, "cpu")
    return batch, answer.realized.reshape(i.shape)


def unknown(batch):
    """The same batch where nobody was seen to use a centre."""
    return batch._replace(candidates=torch.ones_like(batch.candidates))


def streets(A, B):
    """Travel times: street blocks, and a slow bridge in the middle."""
    side = torch.sigmoid(40 * (A[:, None, 0] - 0.5)) - torch.sigmoid(40 * (B[None, :, 0] - 0.5))
    return (A[:, None] - B[None]).abs().sum(-1) + 0.5 * side.abs()


class Noisy(SimulatedPopulation):
    """Answers whose costs are off by a tenth, or lowered by a gain; one may be spoilt."""

    gain, spoilt = 0.0, math.inf

    def respond(self, entities, prescribed, centers):
        cost = super().respond(entities, prescribed, centers).cost
        noise = np.random.default_rng(len(cost)).normal(size=len(cost))
        cost = cost * np.exp(0.1 * noise) - self.gain
        if self.n_interactions > self.spoilt:
            cost[0], self.spoilt = -1e-3, math.inf
        return Response(None, cost)
