"""How many centres pay."""

import numpy as np
import pytest

from volition import AutonomyAwareClustering, DistanceAutonomy, choose_n_centers


def test_the_total_is_by_hand_what_it_says(four_groups):
    X = four_groups[::40]
    weight = 1.0 + np.arange(len(X)) % 3
    model = AutonomyAwareClustering(autonomy=DistanceAutonomy(0.2), random_state=0)
    found = choose_n_centers(
        model, X, range(1, 6), cost_per_center=2.0, cost_per_unit=3.0, sample_weight=weight
    )
    totals = {}
    for K, plan in found.models.items():
        costs = plan.transform(X).min(axis=1)
        totals[K] = 3.0 * float(weight @ costs) + 2.0 * K
    assert [one.total for one in found.numbers] == pytest.approx(list(totals.values()))
    assert found.best == min(totals, key=totals.get)
    least = min(totals.values())
    assert found.as_good == [K for K, total in totals.items() if total <= 1.01 * least]


def test_free_centres_end_the_range_and_dear_ones_make_it_one(four_groups):
    X, model = four_groups[::60], AutonomyAwareClustering(random_state=0)
    free = choose_n_centers(model, X, range(2, 5), cost_per_center=0)
    assert (free.best, free.at_the_end) == (4, True)
    assert "wider" in str(free)
    dear = choose_n_centers(model, X, range(1, 4), cost_per_center=1e6)
    assert (dear.best, dear.at_the_end) == (1, False)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"numbers": [], "cost_per_center": 1}, "at least one number"),
        ({"numbers": [0, 2], "cost_per_center": 1}, "each 1 or more"),
        ({"numbers": [2], "cost_per_center": -1}, "cost_per_center"),
        ({"numbers": [2], "cost_per_center": 1, "cost_per_unit": 0}, "cost_per_unit"),
    ],
)
def test_bad_input_is_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        choose_n_centers(AutonomyAwareClustering(), [[0.0], [1.0]], **options)
