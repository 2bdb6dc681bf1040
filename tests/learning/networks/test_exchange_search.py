import itertools

import pytest
import torch
from scipy.spatial.distance import cdist

from volition import LogitAutonomy
from volition.core.problem import Problem
from volition.learning.networks.exchange_search import exchange


def test_exchanging_places_finds_the_best_ones(rng):
    places, K = rng.random((7, 2)), 3
    X = rng.random((12, 2))
    C, apart = (torch.from_numpy(cdist(z, places) ** 2) for z in (X, places))
    linear = [1.0, 0.5, -3.0, -2.0]
    model = LogitAutonomy(*linear)
    best = min(
        Problem(X, autonomy=model).distortion(places[list(chosen)])
        for chosen in itertools.combinations_with_replacement(range(7), K)
    )
    starts = [torch.tensor(start) for start in ([0, 0, 0], [0, 1, 2], [3, 4, 5], [4, 5, 6])]
    values = [exchange(C, apart, linear, start)[1] for start in starts]
    assert min(values) == pytest.approx(best, rel=1e-9)
