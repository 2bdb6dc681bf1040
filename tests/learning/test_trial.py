import pytest

from volition.learning.monitor import Estimate
from volition.learning.trial import TrialResult, Tried


@pytest.mark.parametrize(
    ("cost", "n", "says"),
    [(3.0, 150, True), (1.05, 150, False), (0.3, 150, True), (3.0, 50, False)],
)
def test_a_trial_says_so_if_centres_cost_otherwise_than_believed(cost, n, says):
    seen, dear = Estimate(cost, cost - 0.1, cost + 0.1, n), Estimate(9.0, 8.0, 10.0, n)
    tried = Tried("learned", seen, 0.05), Tried("k-means", dear, 0.05)
    doubts = TrialResult(tried, "learned", 1.0).doubts()
    assert any("The model expects a cost of 1" in doubt for doubt in doubts) == says
