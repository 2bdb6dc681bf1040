"""Search for centres among given places, by exchanging one place at a time.

Costs that only the population knows make a rough landscape: descent from a few starts ends in poor
valleys of it. Among a few hundred places all costs can be known beforehand, so that trying a place
is nearly free.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from volition.core.costs import Cost
from volition.core.validation import FloatArray
from volition.learning.networks.autonomy import CautiousAutonomy

#: rounds over all centres, at most
ROUNDS = 20
#: centres of all random sets to begin with
EXCHANGES = 40
#: numbers per block of trials
BLOCK = 4_000_000


def exchange(
    C: Tensor, apart: Tensor, linear: FloatArray, start: Tensor, tol: float = 1e-6
) -> tuple[Tensor, float]:
    """Exchange centres for other places, each time for the best, while that helps.

    Parameters
    ----------
    C : tensor of shape (n, m)
        What entities pay for being served at each place.
    apart : tensor of shape (m, m)
        The same between places.
    linear : array of 4 numbers
        Logits: of staying with the prescription and its slope by cost; slopes of being drawn to
        another centre by its cost from the prescribed one, and by its cost to the entity.
    start : tensor of K ints
        Places to begin with.
    tol : float
        Relative gain below which nothing is exchanged.

    Returns
    -------
    places : tensor of K ints
    value : float
        Mean cost that is expected under the best prescriptions.

    Examples
    --------
    >>> import torch
    >>> from volition.learning.networks.exchange_search import exchange
    >>> x = torch.tensor([0.0, 0.1, 0.2, 5.0, 5.2, 5.3], dtype=torch.float64)
    >>> C = (x[:, None] - x).square()
    >>> places, value = exchange(C, C, [30.0, 0.0, 0.0, 0.0], torch.tensor([0, 1]))
    >>> sorted(x[places].tolist()), round(value, 3)
    ([0.1, 5.2], 0.012)
    """
    places, m, K = start.clone(), C.shape[1], len(start)
    value = float(expected(C, apart, linear, places[None])[0])
    size = max(1, BLOCK // (len(C) * K))
    for _ in range(ROUNDS):
        before = value
        for slot in range(K):
            trials = places.repeat(m, 1)
            trials[:, slot] = torch.arange(m)
            values = torch.cat([expected(C, apart, linear, t) for t in torch.split(trials, size)])
            best = int(values.argmin())
            if float(values[best]) < (1 - tol) * value:
                places, value = trials[best], float(values[best])
        if value == before:
            break
    return places, value


def exchange_starts(
    model: CautiousAutonomy,
    cost: Cost,
    entities: Tensor,
    places: Tensor,
    n_clusters: int,
    rng: np.random.Generator,
) -> list[FloatArray]:
    """Return centres to start a search from: the best two of some sets that exchange has found.

    Attention, where a network pays any, is left to the search.
    """
    C, apart = (model.costs(x, places, cost) for x in (entities, places))
    linear = model.network.linear.numpy()
    sets = []
    for _ in range(max(2, EXCHANGES // n_clusters)):
        # Often it is best that centres coincide, and exchanging one does not lead there.
        different = rng.integers(0, len(places), rng.integers(1, n_clusters + 1))
        start = torch.from_numpy(different[rng.integers(0, len(different), n_clusters)])
        sets.append(exchange(C, apart, linear, start))
    return [places[chosen].numpy() for chosen, _ in sorted(sets, key=lambda s: s[1])[:2]]


def expected(C: Tensor, apart: Tensor, linear: FloatArray, sets: Tensor) -> Tensor:
    """Return the mean cost under the best prescriptions for sets of places, (b, K)."""
    stay, own, pair, entity = (float(number) for number in linear)
    costs = C[:, sets].transpose(0, 1)  # (b, n, K)
    if sets.shape[1] == 1:
        return costs[..., 0].mean(1)
    # As in `SoftmaxTransition`: weights of pairs and of entities factorise.
    A = pair * apart[sets[:, :, None], sets[:, None, :]]
    A = A + torch.zeros(A.shape[1:], dtype=A.dtype).fill_diagonal_(-torch.inf)
    A = (A - A.amax(2, keepdim=True)).clamp(min=-300).exp() * ~A.isneginf()
    B = entity * costs
    B = (B - B.amax(2, keepdim=True)).clamp(min=-300).exp()
    away = (B * costs) @ A.transpose(1, 2) / (B @ A.transpose(1, 2))
    kappa = torch.sigmoid(-(stay + own * costs))
    return ((1 - kappa) * costs + kappa * away).amin(2).mean(1)
