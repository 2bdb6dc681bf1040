"""Plans judged under behaviours that they were not made for."""

import numpy as np
import pytest

from volition import AutonomyAwareClustering, DistanceAutonomy, sensitivity
from volition.metrics import distortion

BEHAVIOURS = [DistanceAutonomy(kappa, temperature=0.01) for kappa in (0.0, 0.2, 0.4)]


@pytest.fixture(scope="module")
def found(four_groups):
    X = four_groups[::30]
    weight = 1.0 + np.arange(len(X)) % 2
    model = AutonomyAwareClustering(4, random_state=0)
    return X, weight, sensitivity(model, X, BEHAVIOURS, sample_weight=weight)


def test_each_plan_is_judged_with_its_own_recommendations(found):
    X, weight, table = found
    for a, plan in enumerate(table.plans):
        for b, behaviour in enumerate(BEHAVIOURS):
            cost = distortion(
                X, plan.cluster_centers_, behaviour, plan.labels_, sample_weight=weight
            )
            assert table.costs[a, b] == pytest.approx(cost)
    np.testing.assert_allclose(table.costs.diagonal(), [one.distortion_ for one in table.plans])


def test_the_plan_for_a_behaviour_is_best_under_it_and_the_middle_one_regrets_least(found):
    table = found[2]
    np.testing.assert_allclose(table.regret.diagonal(), 0, atol=1e-9)
    assert (table.regret >= 0).all()
    assert table.best == 1
    assert "least regret" in str(table)


def test_one_behaviour_is_not_enough(four_groups):
    with pytest.raises(ValueError, match="at least two"):
        sensitivity(AutonomyAwareClustering(2), four_groups[::50], BEHAVIOURS[:1])
    with pytest.raises(ValueError, match="must be autonomy models"):
        sensitivity(AutonomyAwareClustering(2), four_groups[::50], [0.1, 0.2])
