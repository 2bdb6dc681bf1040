import numpy as np
import pytest
import torch
from small_networks import SMALL

from volition.core.problem import Problem
from volition.io.serialization import decode, encode
from volition.learning.networks import ADENetwork, NetworkAutonomy, Units
from volition.learning.networks.tilt import ErrorSums, Tilt

UNITS = Units(np.zeros(2), 1.0, 1.0)


def drawn(n, slope, noise, seed=0):
    """Moves of three centres, and errors on a line with noise."""
    rng = np.random.default_rng(seed)
    moves = 0.1 * rng.standard_normal((n, 3, 2))
    return moves, 0.3 + (moves * slope).sum((1, 2)) + noise * rng.standard_normal(n)


def test_the_line_is_that_of_least_squares():
    moves, errors = drawn(4000, np.arange(6.0).reshape(3, 2), 1e-6)
    sums = ErrorSums.none(6)
    for some in (slice(0, 1000), slice(1000, None)):
        sums = sums.plus(moves[some], errors[some])
    offset, slope = sums.line()
    rows = np.column_stack([np.ones(4000), moves.reshape(4000, -1)])
    fitted = np.linalg.lstsq(rows, errors, rcond=None)[0]
    assert offset == pytest.approx(fitted[0])
    np.testing.assert_allclose(slope, fitted[1:], rtol=1e-6)


def test_noise_moves_no_centres():
    """Of 200 networks that are right about one in 80 is corrected; one that is wrong always is."""
    clear = 0
    for seed in range(200):
        offset, slope = ErrorSums.none(6).plus(*drawn(500, np.zeros((3, 2)), 1.0, seed)).line()
        clear += bool(slope.any())
        assert offset == pytest.approx(0.3, abs=0.25)
    assert clear <= 8  # chi-squared, 6 degrees of freedom, above 16.4: 1.2 %
    wrong = [
        ErrorSums.none(6).plus(*drawn(500, np.full((3, 2), 2.0), 1.0, seed)).line()[1]
        for seed in range(20)
    ]
    assert all(slope.any() for slope in wrong)
    assert np.mean(wrong) == pytest.approx(2.0, abs=0.25)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_few_answers_correct_nothing(n):
    offset, slope = ErrorSums.none(6).plus(*drawn(n, np.ones((3, 2)), 0.1)).line()
    assert (offset, slope.tolist()) == (0.0, [0.0] * 6)


def test_lines_add_up():
    rng = np.random.default_rng(0)
    anchor, here, Y, first, second = rng.random((5, 3, 2))
    tilt = Tilt(anchor, first, 0.5, 10.0).plus(here, second, 0.25)
    expected = 0.75 + ((Y - anchor) * first).sum() + ((Y - here) * second).sum()
    assert float(tilt(torch.from_numpy(Y))) == pytest.approx(expected)


def test_a_tilt_is_added_to_expected_costs_of_as_many_centres(rng):
    X, Y = rng.random((7, 2)), rng.random((3, 2))
    network = ADENetwork(2, SMALL, "costs")
    tilt = Tilt(Y, np.ones((3, 2)), 0.5, 0.1)
    plain, tilted = NetworkAutonomy(network, UNITS), NetworkAutonomy(network, UNITS, tilt=tilt)

    def added(centers):
        both = (Problem(X, autonomy=model).expected_costs(centers) for model in (tilted, plain))
        return np.subtract(*both)

    np.testing.assert_allclose(added(Y), 0.5)
    np.testing.assert_allclose(added(Y + 0.05), 0.5 + 6 * 0.05)
    np.testing.assert_allclose(added(Y + 3.0), 0.5 + 6 * 0.1)  # it is not believed far away
    np.testing.assert_array_equal(added(Y[:2]), 0.0)
    again = decode(encode(tilted))
    np.testing.assert_array_equal(again.tilt.slope, tilt.slope)
    wrong = encode(tilted)
    wrong["state"]["tilt"]["state"]["slope"] = np.ones((2, 2))
    with pytest.raises(ValueError, match="slope"):
        decode(wrong)
