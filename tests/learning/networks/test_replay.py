import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from volition.learning.networks.replay import Replay


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(3, 30))
def test_every_answer_is_kept_once_with_its_centres(seed, width, n_parts):
    rng = np.random.default_rng(seed)
    layouts = rng.random((4, 2, 1))
    replay, told = Replay(2, 1, width, capacity=1000), []
    for number in range(n_parts):
        m = int(rng.integers(1, 9))
        which = rng.integers(0, 4, m)
        i, j, c = rng.integers(0, 50, m), rng.integers(0, 2, m), rng.random(m)
        candidates = rng.random((m, 2)) < 0.5
        touched = replay.add(layouts[which], i, j, c, candidates)
        assert set(c) <= set(replay.take(touched).target[replay.take(touched).valid])
        told += [(*layouts[w].ravel(), a, b, t, *f) for w, a, b, t, f in zip(
            which, i, j, c, candidates.tolist(), strict=True)]  # fmt: skip
        if number == n_parts // 2:
            fresh = Replay(2, 1, width, capacity=1000)
            fresh.restore({name: value.copy() for name, value in replay.state().items()})
            replay = fresh
    everything = replay.take(np.arange(replay.n_groups))
    kept = []
    for g, s in zip(*np.nonzero(everything.valid), strict=True):
        row = (*everything.centers[g].ravel(), everything.entities[g, s],
               everything.prescribed[g, s], everything.target[g, s],
               *everything.candidates[g, s].tolist())  # fmt: skip
        kept.append(tuple(float(value) for value in row))
    assert sorted(kept) == sorted(tuple(float(value) for value in row) for row in told)
    # Nothing is wasted: at most one group of each layout has room.
    assert replay.n_groups <= len(told) // width + 4
    assert len(replay) == len(told)


def test_old_answers_are_forgotten(rng):
    replay = Replay(2, 1, 4, capacity=10)
    for number in range(100):
        Y = np.full((4, 2, 1), float(number))
        replay.add(Y, np.arange(4), np.zeros(4, int), np.full(4, number), np.ones((4, 2), bool))
    assert 10 <= replay.n_groups <= 15
    assert replay.take(np.arange(replay.n_groups)).target[-1, 0] == 99


def test_answers_about_many_centres_are_all_kept(rng):
    replay = Replay(2, 1, 64, capacity=100)
    for _ in range(5):
        Y = rng.random((100, 2, 1))
        replay.add(Y, np.arange(100), np.zeros(100, int), rng.random(100), np.ones((100, 2), bool))
    assert len(replay) == 500
