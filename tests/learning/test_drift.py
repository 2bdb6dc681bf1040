"""Changes of behaviour are noticed, changes of questions are not."""

from __future__ import annotations

import numpy as np
import pytest

from volition.learning.drift import DriftMonitor, Shift, WatchedAnswers

K = 4
N = 150


def squared(A, B):
    return ((A[:, None] - B[None]) ** 2).sum(2)


class People:
    """Entities that are asked at random layouts first, and around good centres then."""

    def __init__(self, seed, costs_matter=False):
        self.rng = np.random.default_rng(seed)
        self.X = self.rng.uniform(0, 1, (N, 2))
        self.best = np.array([[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]])
        self.costs_matter = costs_matter

    def answers(self, t, kappa=0.2, near=False, shunned=None, reveal=True, m=64):
        rng = self.rng
        roams = t < 2000 or rng.random() < 0.3
        Y = rng.uniform(0, 1, (K, 2)) if roams else self.best + 0.05 * rng.standard_normal((K, 2))
        i = rng.integers(0, N, m)
        D, apart = squared(self.X[i], Y) / 0.16, squared(Y, Y) / 0.16
        j = np.where(rng.random(m) < (1.0 if t < 2000 else 0.1), rng.integers(0, K, m), D.argmin(1))
        own = D[np.arange(m), j]
        leaves = rng.random(m) < (own / (own + 1.0) if self.costs_matter else kappa)
        pull = -8.0 * (D if near else apart[j])
        if shunned is not None:
            pull[:, shunned] -= 4.0
        pull[np.arange(m), j] = -np.inf
        k = np.where(leaves, (pull + rng.gumbel(size=pull.shape)).argmax(1), j)
        cost = D[np.arange(m), k]
        return WatchedAnswers(i, j, D, apart[j], Y, k if reveal else None, cost)


def watched(people, n, watch=None, start=0, **how):
    """Return the first change that is noticed, and after how many answers."""
    watch = watch or DriftMonitor(K)
    for t in range(start, start + n, 64):
        change = watch.add(people.answers(t, **how), (t + 64, t + 64))
        if change is not None:
            return change, t + 64 - start
    return None, n


@pytest.mark.parametrize("costs_matter", [False, True])
@pytest.mark.parametrize("reveal", [False, True])
def test_other_layouts_and_prescriptions_are_no_change(costs_matter, reveal):
    # Shares of those who obey change a lot after answer 2000.
    change, _ = watched(People(1, costs_matter), 8000, reveal=reveal)
    assert change is None


def test_shares_do_change_where_behaviour_does_not():
    people = People(1, costs_matter=True)
    obeyed = [
        np.mean([(a.realized == a.prescribed).mean() for a in map(people.answers, range(*ts, 64))])
        for ts in ((0, 2000), (2000, 4000))
    ]
    assert obeyed[1] - obeyed[0] > 0.2


@pytest.mark.parametrize("moment", [1500, 2100, 5000])
@pytest.mark.parametrize("reveal", [False, True])
def test_more_overrides_are_noticed(moment, reveal):
    people, watch = People(2), DriftMonitor(K)
    assert watched(people, moment, watch, reveal=reveal)[0] is None
    change, after = watched(people, 2000, watch, moment, kappa=0.45, reveal=reveal)
    assert isinstance(change, Shift)
    assert after <= 1000
    if reveal:
        assert "obey" in change.what
        assert change.after - change.before < -0.1
    assert change.statistic > watch.limit


@pytest.mark.parametrize("how", [{"near": True}, {"shunned": 2}])
def test_going_elsewhere_is_noticed_though_as_many_obey(how):
    people, watch = People(3), DriftMonitor(K)
    assert watched(people, 4000, watch, kappa=0.4)[0] is None
    change, _ = watched(people, 2000, watch, 4000, kappa=0.4, **how)
    assert change is not None
    assert "instead" in change.what


def test_nothing_is_compared_after_a_change_until_there_is_enough():
    people, watch = People(4), DriftMonitor(K)
    watched(people, 3000, watch)
    change, _ = watched(people, 2000, watch, 3000, kappa=0.6)
    assert change is not None
    assert watch.n_answers == 0
    # What came after is now what is known.
    assert watched(people, 4000, watch, 5000, kappa=0.6)[0] is None


def test_few_rare_answers_are_no_change():
    people, watch = People(5), DriftMonitor(K)
    assert watched(people, 3000, watch, kappa=0.0)[0] is None
    assert watched(people, 256, watch, 3000, kappa=0.02)[0] is None


@pytest.mark.parametrize("reveal", [False, True])
def test_a_saved_monitor_goes_on_as_if_nothing_had_happened(reveal):
    people, watch = People(6), DriftMonitor(K)
    watched(people, 3000, watch, reveal=reveal)
    other = DriftMonitor.from_state(watch.state())
    for t in range(3000, 6000, 64):
        answers = people.answers(t, kappa=0.25, reveal=reveal)
        watch.add(answers)
        other.add(answers)
        assert watch.statistic == other.statistic
    assert all(isinstance(v, int | float | np.ndarray) for v in watch.state().values())


def test_how_answers_are_cut_into_batches_does_not_matter():
    people = People(7)
    parts = [people.answers(t) for t in range(0, 2560, 64)]
    names = ("entities", "prescribed", "costs", "apart", "realized", "cost")
    whole = WatchedAnswers(
        **{name: np.concatenate([getattr(a, name) for a in parts]) for name in names},
        centers=np.repeat([a.centers for a in parts], 64, axis=0),
    )
    # Entities' pasts are read batch by batch: batches must be as long as looks are apart.
    one, two = DriftMonitor(K), DriftMonitor(K)
    one.add(whole)
    for lo in range(0, 2560, 256):
        two.add(whole.take(slice(lo, lo + 256)))
    assert one.statistic == two.statistic > 0


def test_centres_that_stand_and_then_move_are_no_change():
    rng, watch = np.random.default_rng(8), DriftMonitor(K)
    people = People(8, costs_matter=True)
    for where in (people.best, people.best[::-1] * 0.8, people.best + 0.1):
        for _ in range(0, 2000, 100):
            i, j = rng.integers(0, N, (2, 100))
            j = j % K
            D, apart = squared(people.X[i], where) / 0.16, squared(where, where) / 0.16
            # They mind one corner, which the monitor does not know of.
            corner = (where[j] < 0.3).all(1)
            k = np.where(rng.random(100) < np.where(corner, 0.6, 0.3), D.argmin(1), j)
            assert watch.add(WatchedAnswers(i, j, D, apart[j], where, k)) is None


def test_two_clusters_and_answers_that_say_more_later():
    rng, watch = np.random.default_rng(9), DriftMonitor(2)
    for t in range(3000):
        Y = rng.random((2, 1))
        j = rng.integers(0, 2, 5)
        D, k = rng.random((5, 2)), np.where(rng.random(5) < 0.8, j, 1 - j)
        seen = k if t > 200 else None
        assert watch.add(WatchedAnswers(np.arange(5), j, D, D, Y, seen, D[np.arange(5), k])) is None
    assert watch.n_answers == 5 * 2799


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"realized": None, "cost": None}, "realized or cost"),
        ({"prescribed": [0, 1]}, "differ in length"),
        ({"centers": np.zeros((3, 1))}, "centers have shape"),
    ],
)
def test_answers_that_do_not_fit_together_are_refused(wrong, message):
    right = {"entities": [0], "prescribed": [0], "costs": [[0.0, 1.0]], "apart": [[0.0, 1.0]]}
    right |= {"centers": np.zeros((2, 1)), "realized": [0]}
    with pytest.raises(ValueError, match=message):
        WatchedAnswers(**(right | wrong))


def test_another_number_of_clusters_is_refused():
    with pytest.raises(ValueError, match="4 clusters, not 3"):
        DriftMonitor(3).add(People(0).answers(0))
