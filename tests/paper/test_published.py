"""Published figures, read from ../shared; skipped where that is absent."""

import csv

import numpy as np
import pytest

from volition import AutonomyAwareClustering, DistanceAutonomy
from volition.datasets import load_utd19_london
from volition.paper.methods import gap, place
from volition.paper.published import SCHEDULE


def rows(path):
    with open(path) as stream:
        return [
            {k: float(v) if k != "in_paper" else v for k, v in row.items()}
            for row in csv.DictReader(stream)
        ]


@pytest.mark.parametrize("number", range(20))
def test_four_groups_reach_the_ground_truth(shared, four_groups, number):
    row = rows(shared / "published" / "table1.csv")[number]
    autonomy = DistanceAutonomy(row["kappa"], row["gamma"], row["zeta"], row["temperature"])
    model = AutonomyAwareClustering(4, autonomy=autonomy, random_state=number).fit(four_groups)
    assert model.distortion_ <= row["distortion_ground_truth"] * 1.0001


@pytest.mark.parametrize("number", range(20))
def test_ignoring_autonomy_costs_what_was_published(shared, four_groups, number):
    row = rows(shared / "published" / "table1.csv")[number]
    autonomy = DistanceAutonomy(row["kappa"], row["gamma"], row["zeta"], row["temperature"])
    found = place("ignored", four_groups, 4, autonomy, 0, SCHEDULE)
    published = row["ignored_gap_percent"]
    assert gap(found, row["distortion_ground_truth"]) == pytest.approx(published, abs=0.05)


def test_london_file(shared):
    X = load_utd19_london(shared / "data" / "utd19_london.mat")
    assert X.shape == (5719, 2)
    np.testing.assert_allclose([X.min(0), X.max(0)], [[0, 0], [1, 1]])
