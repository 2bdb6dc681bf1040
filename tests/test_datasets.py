import itertools

import numpy as np
import pytest
from scipy.io import savemat

from volition.datasets import (
    load_four_groups,
    load_utd19_london,
    make_city,
    make_nested_groups,
)


def test_four_groups_are_the_published_ones():
    """Drawn once more from the description: legacy generator, group by group, scaled by axis."""
    rng = np.random.RandomState(0)
    parts = []
    for center, size, deviation in (
        ((-4, -3), 400, 0.4),
        ((4, -3), 500, 0.7),
        ((4, 3), 300, 0.5),
        ((-4, 3), 600, 0.85),
    ):
        parts.append(np.array(center) + deviation * rng.standard_normal((size, 2)))
    X = np.vstack(parts)
    X = (X - X.min(0)) / (X.max(0) - X.min(0))
    np.testing.assert_allclose(load_four_groups().data, X, rtol=1e-14)


def test_nested_groups_are_nested():
    bunch = make_nested_groups()
    X, target = bunch.data, bunch.target
    assert np.bincount(target).tolist() == [200] * 16

    def spread(labels):
        return np.mean([X[labels == k].var(0).sum() for k in np.unique(labels)])

    stages = [spread(target // 16), spread(target // 4), spread(target // 2), spread(target)]
    assert all(a > 2.5 * b for a, b in itertools.pairwise(stages))
    values = np.linalg.eigvalsh(np.cov(X.T))
    assert values[1] / values[0] < 1.01
    assert not np.array_equal(X, make_nested_groups(random_state=1).data)


def test_city_is_dense_in_the_centre_and_reproducible():
    X = make_city(20000, random_state=3)
    radius = np.linalg.norm(X, axis=1)
    assert (radius < 3).mean() > 4 * ((radius > 9) & (radius < 12)).mean()
    np.testing.assert_array_equal(X, make_city(20000, random_state=3))
    with pytest.raises(ValueError, match="at least 1"):
        make_city(0)


def test_london_from_both_kinds_of_file(tmp_path):
    X = np.array([[-0.1, 51.5], [0.1, 51.4], [0.0, 51.6]])
    savemat(tmp_path / "a.mat", {"Xz": X})
    np.testing.assert_array_equal(load_utd19_london(tmp_path / "a.mat", scale=False), X)
    lines = ["detid,length,pos,fclass,road,limit,citycode,lanes,linkid,long,lat"]
    lines += [f"d,1,1,x,y,30,london,1,1,{lon},{lat}" for lon, lat in X]
    lines += ["d,1,1,x,y,30,paris,1,1,2.3,48.8"]
    (tmp_path / "detectors_public.csv").write_text("\n".join(lines))
    found = load_utd19_london(tmp_path / "detectors_public.csv", scale=False)
    np.testing.assert_array_equal(found, X)
    scaled = load_utd19_london(tmp_path / "detectors_public.csv")
    np.testing.assert_allclose([scaled.min(0), scaled.max(0)], [[0, 0], [1, 1]])


def test_bad_london_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No such file: .*none.csv"):
        load_utd19_london(tmp_path / "none.csv")
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match="lacks the columns"):
        load_utd19_london(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("citycode,long,lat\nparis,1,2\n")
    with pytest.raises(ValueError, match="no row with citycode 'london'"):
        load_utd19_london(tmp_path / "b.csv")
    savemat(tmp_path / "c.mat", {"Y": 1})
    with pytest.raises(ValueError, match="no variable Xz"):
        load_utd19_london(tmp_path / "c.mat")
