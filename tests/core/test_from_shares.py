"""From the shares that a planner knows to a model."""

import numpy as np
import pytest

from volition import DistanceAutonomy

CENTERS = np.array([[51.5, 0.0], [51.6, 0.1], [51.4, -0.2], [51.55, 0.3], [51.3, 0.1]])


@pytest.mark.parametrize("nearest", [0.3, 0.5, 0.7, 0.95, 0.9999])
@pytest.mark.parametrize("metric", ["sqeuclidean", "haversine"])
def test_the_shares_come_out_again_by_brute_force(nearest, metric):
    weight = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    model = DistanceAutonomy.from_shares(0.2, nearest, CENTERS, metric=metric, center_weight=weight)
    a, b = np.radians(CENTERS[:, None]), np.radians(CENTERS[None])
    if metric == "haversine":
        cosine = np.sin(a[..., 0]) * np.sin(b[..., 0])
        cosine = cosine + np.cos(a[..., 0]) * np.cos(b[..., 0]) * np.cos(a[..., 1] - b[..., 1])
        apart = 6371.0088 * np.arccos(np.clip(cosine, -1, 1))
    else:
        apart = ((CENTERS[:, None] - CENTERS[None]) ** 2).sum(2)
    seen = 0.0
    for j, share in enumerate(weight / weight.sum()):
        others = [k for k in range(5) if k != j]
        odds = np.exp(-(apart[j, others] - apart[j, others].min()) / model.temperature)
        seen += share * odds.max() / odds.sum()
    assert model.kappa == 0.2
    assert seen == pytest.approx(nearest, abs=1e-5)


def test_equally_near_alternatives_are_all_nearest():
    square = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    model = DistanceAutonomy.from_shares(0.1, 0.9, square)
    odds = np.exp(-1 / model.temperature)
    assert 2 / (2 + odds) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("elsewhere", "nearest", "centers", "sentence"),
    [
        (0.2, 0.1, CENTERS, "nearest must be above 0.25"),
        (0.2, 1.0, CENTERS, "below 1"),
        (0.2, 0.7, CENTERS[:2], "at least three"),
        (1.2, 0.7, CENTERS, "kappa"),
        (0.2, np.nan, CENTERS, "nearest"),
        (0.2, 0.7, np.zeros((4, 2)), "nearest must be above 1"),
    ],
)
def test_what_cannot_be_is_one_sentence(elsewhere, nearest, centers, sentence):
    with pytest.raises(ValueError, match=sentence):
        DistanceAutonomy.from_shares(elsewhere, nearest, centers)
