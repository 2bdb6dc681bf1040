"""Questions that were asked: late answers, repeated ones, and numbers that never come again."""

import time

import numpy as np
import pytest

from volition.learning.ledger import Ledger


def issue(ledger, m):
    """Ask m questions, about entities 0 to m - 1."""
    one = np.ones(m)
    return ledger.issue(np.arange(m), one, one / 4, one, one, one)


def tick(ledger, ids):
    """Note that questions were answered; return how many had not been."""
    slots, answered = ledger.slots(ids), ledger.answered.copy()
    new = ~answered[slots]
    answered[slots] = True
    return ledger.with_answered(answered), int(new.sum())


def test_the_ledger_grows_and_forgets():
    ledger = Ledger(patience=4096)
    ids = [issue(ledger, 1500) for _ in range(5)]
    assert (ledger.slots(ids[0]) == -1).all()
    ledger, new = tick(ledger, ids[4])
    assert new == 1500
    assert len(ledger.outstanding().ids) == 4096 - 1500
    again = Ledger.from_state(ledger.state())
    again, new = tick(again, ids[4])
    assert new == 0
    again, new = tick(again, ids[3])
    assert new == 1500
    with pytest.raises(ValueError, match="At most 4096"):
        issue(ledger, 5000)


def test_what_was_asked_is_found_by_its_number():
    ledger = Ledger()
    ids = np.concatenate([issue(ledger, m) for m in (3, 2000, 7)])
    order = np.random.default_rng(0).permutation(len(ids))
    asked = ledger.asked(ledger.slots(ids[order]))
    np.testing.assert_array_equal(asked.ids, ids[order])
    who = np.concatenate([np.arange(m) for m in (3, 2000, 7)])
    np.testing.assert_array_equal(asked.entities, who[order])
    assert set(asked.propensity) == {0.25}
    assert ledger.slots([ids[0] - 1, ids[-1] + 1, 0, -5]).tolist() == [-1] * 4


def test_numbers_lie_in_the_past_and_are_not_given_out_again():
    """Whoever goes on from an older state counts from the present moment on."""
    ledger, seen = Ledger(), []
    for _ in range(5):
        state = ledger.state()
        lost = issue(ledger, 5000)  # after the state was written: nobody will know of these
        assert lost.max() < time.time_ns() // 1000
        ledger = Ledger.from_state(state)
        assert (ledger.slots(lost) == -1).all()
        seen += [lost, issue(ledger, 100)]
        assert (ledger.slots(seen[-1]) >= 0).all()
    ids = np.concatenate(seen)
    assert len(np.unique(ids)) == len(ids)
    # What earlier runs have asked and saved is still known.
    assert (ledger.slots(seen[1]) >= 0).all()


def test_a_clock_that_is_set_back_repeats_no_number(monkeypatch):
    ledger = Ledger()
    before = issue(ledger, 10)
    monkeypatch.setattr("volition.learning.ledger._now", lambda: 5)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    again = Ledger.from_state(ledger.state())
    assert issue(again, 10).min() > before.max()
    assert (again.slots(before) >= 0).all()
