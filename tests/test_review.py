"""What a strict reader found in fits that stop, go on, grow, or have few points."""

import numpy as np
import pytest

from volition import (
    DistanceAutonomy,
    FixedAutonomy,
    SimulatedPopulation,
    TabularClustering,
)
from volition.learners.base import KIND
from volition.storage import read_file, write_file

X = np.random.default_rng(0).uniform(0, 10, (100, 2))
NEAR = DistanceAutonomy(0.4, gamma=1.0, zeta=0.0, temperature=0.1)
TABLE = FixedAutonomy(np.full((3, 3), 0.1) + 0.7 * np.eye(3))

pytestmark = pytest.mark.filterwarnings("ignore")


def people(law, points=X):
    return SimulatedPopulation(points, law, random_state=0)


def test_a_table_of_an_older_version_is_read(tmp_path):
    model = TabularClustering(3, n_interactions=600, random_state=0)
    model.fit(X, population=people(TABLE))
    tensors, header = read_file(model.save(tmp_path / "new"), KIND)
    for name in ("successor", "assumption", "probe_left"):
        del header["learner"][name]
    del header["tried"], header["kept"]
    old = write_file(tmp_path / "old", tensors, KIND, header)
    again = TabularClustering.from_file(old)
    assert np.array_equal(again.labels_, model.labels_)
    assert again.successor_ is None
