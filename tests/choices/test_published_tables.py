"""The conditional-logit kernel against tables that others published.

Swissmetro: Biogeme's first example (coefficients, standard errors, robust ones). ModeCanada: the
vignette of the R package mlogit. Travel mode: Greene's "Econometric Analysis". See the README of
the shared data for what they are.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable

import numpy as np
import pytest

from volition.choices.logit import (
    Decisions,
    LogitFit,
    fit_logit,
    log_likelihoods,
    robust_covariance,
    scores,
)


def columns_of(path, delimiter):
    """Return columns by name, as text."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as lines:
        rows = list(csv.reader(lines, delimiter=delimiter))
    return dict(zip(rows[0], np.array(rows[1:]).T, strict=True))


def decisions_of(features, chosen, open_=None):
    """Return decisions with all P features of all alternatives, (m, A, P)."""
    m, A, P = features.shape
    open_ = np.ones((m, A), bool) if open_ is None else open_
    index = np.broadcast_to(np.arange(P), features.shape)
    return Decisions(index, features, open_, chosen, np.ones(m), P)


def fitted(decisions) -> tuple[LogitFit, float]:
    """Return the estimate without a penalty, and its log-likelihood."""
    estimate = fit_logit(decisions, np.zeros(decisions.n_coefficients))
    assert estimate.converged
    # What is published is the maximum: all scores sum to zero there.
    total = scores(decisions, estimate.coefficients).sum(0)
    assert np.abs(total @ estimate.bread @ total) < 1e-9
    return estimate, float(log_likelihoods(decisions, estimate.coefficients).sum())


def agrees(value: float, published: str) -> bool:
    """Whether a number is the published one, to the digits that were published."""
    digits = len(published.split(".")[1])
    return abs(value - float(published)) <= 0.5 * 10.0**-digits * (1 + 1e-9)


@pytest.fixture(scope="module")
def swissmetro(shared):
    data = columns_of(shared / "data" / "choice" / "swissmetro.dat", "\t")
    data = {name: column.astype(float) for name, column in data.items()}
    kept = np.isin(data["PURPOSE"], [1, 3]) & (data["CHOICE"] != 0)
    d = {name: column[kept] for name, column in data.items()}
    pays, m = d["GA"] == 0, int(kept.sum())
    assert m == 6768
    # Alternatives: train, Swissmetro, car. Coefficients: car, train, cost, time.
    cost = np.stack([d["TRAIN_CO"] * pays, d["SM_CO"] * pays, d["CAR_CO"]], 1) / 100
    time = np.stack([d["TRAIN_TT"], d["SM_TT"], d["CAR_TT"]], 1) / 100
    car, train = np.eye(3)[2] + np.zeros((m, 1)), np.eye(3)[0] + np.zeros((m, 1))
    asked = d["SP"] != 0
    open_ = np.stack([(d["TRAIN_AV"] * asked) > 0, d["SM_AV"] > 0, (d["CAR_AV"] * asked) > 0], 1)
    chosen = d["CHOICE"].astype(int) - 1
    return decisions_of(np.stack([car, train, cost, time], 2), chosen, open_), d["ID"]


PUBLISHED_SWISSMETRO = {
    "ASC_CAR": ("-0.155", "0.0432", "0.0582"),
    "ASC_TRAIN": ("-0.701", "0.0549", "0.0826"),
    "B_COST": ("-1.08", "0.0518", "0.0682"),
    "B_TIME": ("-1.28", "0.0569", "0.104"),
}


def test_swissmetro_is_biogemes_table(swissmetro):
    decisions, _ = swissmetro
    estimate, likelihood = fitted(decisions)
    assert agrees(likelihood, "-5331.252")
    plain = np.sqrt(np.diag(estimate.bread))
    robust = np.sqrt(np.diag(robust_covariance(decisions, estimate)))
    for p, (name, figures) in enumerate(PUBLISHED_SWISSMETRO.items()):
        ours = (estimate.coefficients[p], plain[p], robust[p])
        for value, published in zip(ours, figures, strict=True):
            assert agrees(value, published), (name, value, published)


def test_nine_answers_of_each_traveller_are_not_nine_travellers(swissmetro):
    """No table has these: leaving out one traveller after the other is the oracle."""
    decisions, traveller = swissmetro
    some = traveller % 3 == 0  # so many that one Newton step is close to fitting again
    decisions, who = decisions.take(some), traveller[some]
    estimate, _ = fitted(decisions)
    moved = np.array(
        [
            fit_logit(decisions.take(who != one), np.zeros(4), estimate.coefficients).coefficients
            for one in np.unique(who)
        ]
    )
    moved -= estimate.coefficients
    jackknife = np.sqrt((moved**2).sum(0) * (len(moved) - 1) / len(moved))
    by_traveller = robust_covariance(decisions, estimate, who, leverage=True)
    np.testing.assert_allclose(np.sqrt(np.diag(by_traveller)), jackknife, rtol=0.05)
    by_answer = robust_covariance(decisions, estimate)
    assert (np.diag(by_traveller) > 1.5 * np.diag(by_answer)).all()


def by_case(case, alternative, names) -> Callable[[np.ndarray], np.ndarray]:
    """Return how a column of a long table becomes one row per case, (m, A)."""
    _, row = np.unique(case.astype(int), return_inverse=True)
    column = np.array([list(names).index(one) for one in alternative])

    def widen(values: np.ndarray) -> np.ndarray:
        wide = np.full((row.max() + 1, len(names)), np.nan)
        wide[row, column] = values.astype(float)
        assert np.isfinite(wide).all()
        return wide

    return widen


def test_travel_between_canadian_cities_is_the_table_of_mlogit(shared):
    data = columns_of(shared / "data" / "choice" / "ModeCanada.csv.gz", ",")
    four = data["noalt"] == "4"
    d = {name: column[four] for name, column in data.items()}
    wide = by_case(d["case"], d["alt"], ("train", "air", "bus", "car"))
    cost, freq, ovt, ivt, income = (
        wide(d[name]) for name in ("cost", "freq", "ovt", "ivt", "income")
    )
    m = len(cost)
    assert m == 2779
    only = np.eye(4)[:, None] + np.zeros((4, m, 1))
    features = [cost, freq, ovt, *only[1:], *(income * one for one in only[1:])]
    features += [ivt * one for one in only]
    decisions = decisions_of(np.stack(features, 2), wide(d["choice"]).argmax(1))
    estimate, likelihood = fitted(decisions)
    assert agrees(likelihood, "-1874.3")
    assert agrees(estimate.coefficients[0], "-0.0333389")
    assert agrees(np.sqrt(estimate.bread[0, 0]), "0.0070955")
    assert agrees(estimate.coefficients[1], "0.0925297")
    assert agrees(estimate.coefficients[2], "-0.0430036")


def test_travel_mode_is_greenes_table(shared):
    d = columns_of(shared / "data" / "choice" / "travelmode.csv", ";")
    wide = by_case(d["individual"], d["mode"], ("1", "2", "3", "4"))
    gc, ttme, income = (wide(d[name]) for name in ("gc", "ttme", "hinc"))
    m = len(gc)
    assert m == 210
    air, train, bus, _ = np.eye(4)[:, None] + np.zeros((4, m, 1))
    features = np.stack([gc, ttme, income * air, air, train, bus], 2)
    decisions = decisions_of(features, wide(d["choice"]).argmax(1))
    assert agrees(fitted(decisions)[1], "-199.128369")
