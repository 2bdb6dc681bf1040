"""The few numbers of a network of service: how costs follow the known ones, and choices costs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor

from volition.learning.networks.network import LEAST, ADENetwork
from volition.learning.networks.training import (
    CLIP,
    LEAST_SCATTER,
    log_choices,
    of_candidates,
    service_costs_and_choices,
    service_losses,
)
from volition.learning.networks.training_data import TrainingBatch, TrainingData
from volition.populations.answers import IntArray

#: numbers of the form: the chance to stay is 0, its slope by cost 1, the pull of other centres by
#: their cost from the prescribed one 2, by their cost to the entity 3; how costs follow the known
#: ones 4 to 6. Slopes that may be there, the others being zero
SLOPES = ((), (2,), (3,), (2, 3), (1, 2, 3))
#: how much features of places must vary to be told apart
SAME = 1e-6
#: how far off the costs of a network that was trained elsewhere are thought to be, as a share
DOUBT = 0.05


def fit_numbers(network: ADENetwork, batch: TrainingBatch) -> None:
    """Fit the numbers of a network of service: how costs follow the known ones, and choices costs.

    By maximum likelihood, with the function of places as it is. There are as few slopes, and as
    little changes of how costs follow the known ones, as the Bayesian information criterion allows.
    The batch is in double precision.
    """
    n = max(2, int(batch.valid.sum()))
    surprise, start = _by_numbers(network, batch)
    with torch.no_grad():
        double = copy.deepcopy(network).double().requires_grad_(False)
        places = double.service(*double.known_places(batch.X, batch.Y))
        between = double.service(*double.known_places(batch.Y, batch.Y))

    def loss(theta: Tensor) -> Tensor:
        return (surprise(theta, places, between) + 1e-6 * theta.square().sum()) / n

    # Slopes cost something, and so does what is not left as it is.
    fits = [(2 * n * float(loss(start)) + math.log(n) * int(start[1:4].count_nonzero()), start)]
    number = torch.arange(7, device=start.device)
    for form in ((), (4, 5, 6)):
        theta = start
        for slopes in SLOPES:
            free = torch.isin(number, torch.tensor((0, *slopes, *form), device=start.device))
            fixed = torch.where((number > 3) | free, start, 0.0)
            fits.append(_descended(loss, theta, fixed, free, n))
            theta = fits[-1][1]
    _keep_numbers(network, min(fits, key=lambda fit: fit[0])[1])


def adjust_places(network: ADENetwork, given: Tensor, batch: TrainingBatch) -> None:
    """Adapt the function of places to few answers, and the numbers with it.

    The last layer alone moves. A priori costs by the weights that were given are right to within
    ``DOUBT``; the most likely ones are taken. The batch is in double precision.
    """
    n = max(2, int(batch.valid.sum()))
    surprise, start = _by_numbers(network, batch)
    with torch.no_grad():
        double = copy.deepcopy(network).double().requires_grad_(False)
        Z, between = (
            double.service.features(*double.known_places(one, batch.Y))
            for one in (batch.X, batch.Y)
        )
        now, bias = double.service.last.weight[0], double.service.last.bias
        given = given.to(now)
        about = Z[batch.valid].flatten(0, 1)
        varied = float((about - about.mean(0)).square().sum(1).mean().sqrt())
    if not varied > SAME:  # nobody was asked, or only where it knows nothing
        return
    unit = DOUBT / varied
    mask = torch.ones(len(start) + len(given), dtype=torch.bool, device=start.device)
    mask[1:4] = start[1:4] != 0  # slopes that are not there stay away

    def loss(numbers: Tensor) -> Tensor:
        theta, moved = numbers[:7], numbers[7:]
        weights = given + unit * moved
        told = surprise(theta, Z @ weights + bias, between @ weights + bias)
        return (told + 0.5 * moved.square().sum() + 1e-6 * theta.square().sum()) / n

    first = torch.cat([start, (now - given) / unit])
    value, found = _descended(loss, first, first, mask, n)
    if math.isfinite(value):
        _keep_numbers(network, found[:7])
        with torch.no_grad():
            network.service.last.weight.copy_((given + unit * found[7:])[None])


def _by_numbers(
    network: ADENetwork, batch: TrainingBatch
) -> tuple[Callable[[Tensor, Tensor, Tensor], Tensor], Tensor]:
    """Return the surprise of all answers as a function of the seven numbers, and these.

    The function takes what places add to the logarithms of costs as well: of centres to entities,
    and to centres.
    """
    double = copy.deepcopy(network).double().requires_grad_(False)
    start = torch.cat([double.linear, double.cost_law])
    # At its floor the scatter has no slope to leave it by.
    start[6] = start[6].clamp(min=math.log(LEAST_SCATTER) + 0.1)
    double.linear.zero_()
    extras = double.choices(
        batch.X, batch.Y, torch.zeros_like(batch.D), torch.zeros_like(batch.apart)
    )
    known, apart = torch.log(batch.D + LEAST), torch.log(batch.apart + LEAST)

    def surprise(theta: Tensor, places: Tensor, between: Tensor) -> Tensor:
        stay, own, pair, entity, power, factor, scatter = theta
        service = power * known + factor + places
        C = service.exp()
        log_p = log_choices(
            (stay + own * C + extras[0]).clamp(-CLIP, CLIP),
            pair * (power * apart + factor + between).exp() + extras[1],
            entity * C + extras[2],
            batch.prescribed,
        )
        return service_losses(service, log_p, scatter, double.unit, batch).sum()

    return surprise, start


def _keep_numbers(network: ADENetwork, theta: Tensor) -> None:
    with torch.no_grad():
        network.linear.copy_(theta[:4])
        network.cost_law.copy_(theta[4:])


def _descended(
    loss: Callable[[Tensor], Tensor], first: Tensor, fixed: Tensor, mask: Tensor, n: int
) -> tuple[float, Tensor]:
    """Return the criterion where the masked numbers are best, the others fixed; and all numbers."""
    theta = torch.where(mask, first, fixed).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [theta], max_iter=100, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(torch.where(mask, theta, fixed))
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    found = torch.where(mask, theta, fixed).detach()
    value = float(loss(found))
    if not math.isfinite(value):
        return math.inf, fixed
    return 2 * n * value + math.log(n) * int(mask.sum()), found


def calibrate(network: ADENetwork, data: TrainingData, groups: IntArray, n_groups: int) -> None:
    """Set the mean of costs: likelihood is about the middle of their scatter."""
    seen = expected = 0.0
    for lo in range(0, len(groups), n_groups):
        batch = data(groups[lo : lo + n_groups])
        with torch.no_grad():
            service, log_p = service_costs_and_choices(network, batch)
            told = batch.valid & batch.target.isfinite()
            # Who was seen to use a centre pays for that one.
            used = of_candidates(log_p, batch).log_softmax(2)
            expected += float(((service + used).exp().sum(2) * told).sum())
        target = torch.where(told, batch.target, 0.0)
        seen += float(((target / network.unit + LEAST) * told).sum())
    network.mean.fill_(seen / expected if expected > 0 and seen > 0 else 1.0)
