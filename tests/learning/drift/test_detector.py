"""Changes of behaviour are noticed, changes of questions are not."""

from __future__ import annotations

import numpy as np
import pytest

from volition.core.costs import resolve_cost
from volition.learning.drift.detector import Change, DriftMonitor
from volition.learning.drift.questions import WatchedAnswers
from volition.learning.drift.watch import Watch
from volition.learning.entities import Entities
from volition.learning.ledger import Asked

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
        # Minutes that the metric does not know of.
        cost = 7 * np.sqrt(D[np.arange(m), k]) * np.exp(0.1 * rng.standard_normal(m))
        return WatchedAnswers(i, j, D, apart[j], Y, k if reveal else None, cost)


def watched(people, n, watch=None, start=0, **how):
    """Return the first change that is noticed, and after how many answers."""
    watch = watch or DriftMonitor(K, costs=not how.get("reveal", True))
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
    people, watch = People(2), DriftMonitor(K, costs=not reveal)
    assert watched(people, moment, watch, reveal=reveal)[0] is None
    change, after = watched(people, 2000, watch, moment, kappa=0.45, reveal=reveal)
    assert isinstance(change, Change)
    assert after <= (1000 if reveal else 2000)
    assert 256 <= change.n_after + 64 <= 2048 + 64
    assert change.p_value < 1e-5
    if reveal:
        assert "obey" in change.what
        assert change.after - change.before < -0.1
        assert np.sum(change.table_after) == change.n_after
    else:
        assert "pay" in change.what
        assert change.after > change.before > 0


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
    people, watch = People(6), DriftMonitor(K, costs=not reveal)
    watched(people, 3000, watch, reveal=reveal)
    other = DriftMonitor.from_state(watch.state())
    for t in range(3000, 6000, 64):
        answers = people.answers(t, kappa=0.25, reveal=reveal)
        watch.add(answers)
        other.add(answers)
        assert watch.statistic == other.statistic


def test_a_change_within_a_large_batch_is_noticed_at_its_end():
    people, watch = People(7), DriftMonitor(K)
    parts = [people.answers(t, kappa=0.1 if t < 5000 else 0.4) for t in range(0, 8192, 64)]
    names = ("entities", "prescribed", "costs", "apart", "realized", "cost")
    whole = WatchedAnswers(
        **{name: np.concatenate([getattr(a, name) for a in parts]) for name in names},
        centers=np.repeat([a.centers for a in parts], 64, axis=0),
    )
    assert watch.add(whole.take(slice(0, 4096))) is None
    assert watch.add(whole.take(slice(4096, 8192))) is not None


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


class Told:
    """Entities on a line who tell a watch choices, costs of the metric, or minutes."""

    def __init__(self, seed, n_clusters=3):
        self.rng, self.K = np.random.default_rng(seed), n_clusters
        self.entities = Entities.of(self.rng.random((60, 1)), None, resolve_cost("sqeuclidean"))
        self.watch = Watch(n_clusters, self.entities.problem().cost_scale)

    def tell(self, n, kappa, tells):
        """Return the change that is noticed within n answers."""
        rng, K = self.rng, self.K
        for t in range(0, n, 64):
            Y, i, j = rng.random((K, 1)), rng.integers(0, 60, 64), rng.integers(0, K, 64)
            k = np.where(rng.random(64) < kappa, (j + rng.integers(1, K, 64)) % K, j)
            D = squared(self.entities.X[i], Y)[np.arange(64), k]
            none = np.full(64, -1)
            asked = Asked(none, i, j, np.ones(64), none, none, none)
            sets = np.broadcast_to(Y, (64, K, 1))
            told = {
                "choices": (k, np.full(64, np.nan)),
                "costs": (none, D),
                "minutes": (none, 5 + np.sqrt(D)),
                "both": (k, (2 if kappa < 0 else 1) * np.sqrt(D)),
            }[tells]
            change = self.watch.add(asked, *told, sets, self.entities, (t, t))
            if change is not None:
                return change
        return None


@pytest.mark.parametrize("n_clusters", [2, 3])
@pytest.mark.parametrize(("tells", "what"), [("choices", "obey"), ("costs", "obey")])
def test_costs_of_the_metric_are_read_as_choices(tells, what, n_clusters):
    told = Told(9, n_clusters)
    assert told.tell(2500, 0.1, tells) is None
    assert told.watch.monitors[1].n_answers == 0
    change = told.tell(2000, 0.5, tells)
    assert what in change.what
    assert change.after < change.before
    # Nothing is compared with what came before it.
    assert all(monitor.n_answers == 0 for monitor in told.watch.monitors)


def test_costs_of_no_centre_are_compared_with_costs():
    told = Told(10)
    assert told.tell(2500, 0.1, "minutes") is None
    assert told.watch.monitors[0].n_answers == 0
    change = told.tell(2000, 0.6, "minutes")
    assert "pay" in change.what
    assert np.sum(change.table_after) == 0


def test_ways_that_take_longer_are_noticed_though_choices_stay():
    told = Told(11)
    assert told.tell(2500, 0.0, "both") is None
    change = told.tell(2000, -1.0, "both")  # all obey as before, and pay twice as much
    assert "pay" in change.what
    assert change.after > 1.3 * change.before


def test_one_cluster_leaves_nothing_to_watch():
    told = Told(12, 1)
    assert told.watch.monitors == []
    asked = Asked(*(np.zeros(1, dtype=np.int64),) * 7)
    Y = np.zeros((1, 1, 1))
    assert told.watch.add(asked, np.zeros(1), np.ones(1), Y, told.entities, (1, 1)) is None


def test_a_saved_watch_goes_on():
    told = Told(13)
    told.tell(1500, 0.2, "choices")
    other = Told(13)
    other.watch.restore(told.watch.state())
    for one in (told, other):
        one.rng = np.random.default_rng(0)
        one.tell(1500, 0.25, "choices")
    assert told.watch.monitors[0].statistic == other.watch.monitors[0].statistic > 0


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
