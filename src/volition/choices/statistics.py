"""Numbers with 95 % intervals, shares in per cent, and one statistic that several tests share."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from volition.core.validation import FloatArray
from volition.populations.answers import IntArray

#: standard errors to either side of a 95 % interval
Z95 = float(norm.ppf(0.975))


class Interval(NamedTuple):
    """A value and its 95 % interval; the ends are NaN where nothing is known of them."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, half: float) -> Interval:
        """Return the interval that is as wide on both sides."""
        return cls(value, value - half, value + half)

    @property
    def half(self) -> float:
        """Half of the width."""
        return (self.high - self.low) / 2

    def without_ends(self) -> Interval:
        """Return the value alone."""
        return Interval(self.value, math.nan, math.nan)

    def not_negative(self) -> Interval:
        """Return the interval of a number that cannot be negative."""
        return self._replace(low=max(self.low, min(0.0, self.value)))


UNKNOWN = Interval(math.nan, math.nan, math.nan)
NO_CHANGE = Interval(0.0, 0.0, 0.0)


def wilson(share: float, n: float) -> tuple[float, float]:
    """Return the ends of Wilson's 95 % interval of a share of n rows."""
    spread = Z95 * Z95 / n
    middle = (share + spread / 2) / (1 + spread)
    half = Z95 * math.sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def group_sums(which: IntArray, rows: FloatArray, n: int = 0) -> FloatArray:
    """Return the sums of the rows of each group, at least ``n`` groups."""
    return np.stack([np.bincount(which, column, minlength=n) for column in rows.T], axis=1)


def squared_length(off: FloatArray, covariance: FloatArray) -> tuple[float, int]:
    """Return off' C^-1 off in the directions in which C is not singular, and how many these are."""
    values, vectors = np.linalg.eigh(covariance)
    usable = values > 1e-6 * max(float(values.max()), 1e-300)
    statistic = float(((vectors[:, usable].T @ off) ** 2 / values[usable]).sum())
    return statistic, int(usable.sum())


def percent(share: float) -> str:
    """Return a share in per cent, with a digit more near 0 and 1; only all is "100 %".

    Examples
    --------
    >>> from volition.choices.statistics import percent
    >>> percent(0.5), percent(0.042), percent(0.9999), percent(1.0)
    ('50 %', '4.2 %', '99.9 %', '100 %')
    """
    if share in {0, 1} or 0.1 <= share <= 0.995:
        return f"{100 * share:.0f} %"
    return f"{min(100 * share, 99.9):.1f} %"
