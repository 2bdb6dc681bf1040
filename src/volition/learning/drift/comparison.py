"""Do late outcomes differ from earlier ones, after what is known of both has been taken out?"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from volition.core.validation import FloatArray
from volition.populations.answers import IntArray

#: effect of a layout that is believed in before any two were seen, in deviations of an answer
PRIOR = 0.5
#: layouts beside those that were seen, that may differ more, in the variance between them
DOUBT = 4.0
#: how much covariates may matter: readings of the standard deviation
MATTERS = 10.0 ** np.arange(-3.0, 0.6, 0.5)
TINY = 1e-300


class Sums:
    """Weighted sums over each block of answers: of covariates b, outcomes y and their variance."""

    def __init__(self, n_covariates: int, n_outcomes: int) -> None:
        p, q = n_covariates, n_outcomes
        self.b, self.bb = np.zeros((0, p)), np.zeros((0, p, p))
        self.by, self.vv = np.zeros((0, q, p)), np.zeros((0, q))

    def reserve(self, n: int) -> None:
        """Have n blocks."""
        for name, old in vars(self).items():
            if n > len(old):
                setattr(self, name, np.concatenate([old, np.zeros((n - len(old), *old.shape[1:]))]))

    def add(
        self, at: IntArray, B: FloatArray, y: FloatArray, v: FloatArray, w: FloatArray | None = None
    ) -> None:
        """Add answers; ``at`` says to which block each belongs, in order, ``w`` what it weighs."""
        if len(at) == 0:
            return
        self.reserve(int(at[-1]) + 1)
        w = np.ones(len(at)) if w is None else w
        wB = w[:, None] * B
        for lo, hi in pairwise([*np.flatnonzero(np.diff(at, prepend=-1)), len(at)]):
            c, some = at[lo], wB[lo:hi]
            self.b[c] += some.sum(0)
            self.bb[c] += some.T @ B[lo:hi]
            self.by[c] += y[lo:hi].T @ some
            self.vv[c] += w[lo:hi] ** 2 @ v[lo:hi]

    def drop(self, first: int) -> None:
        """Forget the first blocks."""
        for name, old in vars(self).items():
            setattr(self, name, old[first:])

    def coefficients(self, penalty: FloatArray) -> FloatArray:
        """Return the regression of outcomes on covariates, (p, q)."""
        return np.linalg.solve(self.bb.sum(0) + penalty, self.by.sum(0).T)


class Found(NamedTuple):
    """Late outcomes, compared; (windows, outcomes, strata)."""

    #: about how many standard deviations they are off
    statistic: FloatArray
    #: by how much they are off
    shift: FloatArray
    #: their mean
    seen: FloatArray


def compare(
    sums: Sums, E: FloatArray, kernel: FloatArray, splits: list[int], penalty: FloatArray
) -> Found:
    """Compare the blocks from each split on with those before, within strata.

    Residuals of the regression on covariates are multiplied with what is left of being late when
    covariates and layouts have said what they can of it.

    Parameters
    ----------
    sums : Sums
    E : array of shape (p, s)
        Of which covariates each stratum is the sum; the first stratum is everything.
    kernel : array of shape (C, C)
        How alike the layouts of blocks are, from 0 to 1.
    splits : list of int
        Blocks with which late answers begin.
    penalty : array of shape (p, p)
        How little each covariate is believed to matter, in numbers of answers.

    Returns
    -------
    Found
    """
    b, bb, by, vv = sums.b, sums.bb, sums.by, sums.vv
    size, bE, bbE, total = b @ E[:, 0], b @ E, bb @ E, bb.sum(0)
    noise = np.maximum(vv.sum(0) / max(float(size.sum()), TINY), 1e-9)[:, None]
    plain, alike = _layout_effects(sums, E, kernel, splits[-1], penalty)
    # Layouts have effects of their own: those that have no like are no good for comparing.
    ratio = float(np.quantile(alike[:, 0] / noise[:, 0], 0.75))
    mixed = ratio * np.linalg.solve(np.eye(len(size)) + ratio * kernel * size, kernel)
    inverse = np.linalg.inv(total - b.T @ mixed @ b + penalty)
    theta = inverse @ (by.sum(0) - (by @ E[:, 0]).T @ mixed @ b).T
    r = by - np.matmul(bb, theta).transpose(0, 2, 1)  # (C, q, p): residuals times covariates
    shape = (len(splits), by.shape[1], E.shape[1])
    found = Found(np.zeros(shape), np.zeros(shape), np.zeros(shape))
    for number, split in enumerate(splits):
        late, bl = bb[split:].sum(0), bE.copy()
        bl[:split] = 0.0
        out = inverse @ (late @ E - b.T @ (mixed @ bl))  # what covariates say of being late
        rest, load = E - out, bl - b @ out
        level = mixed @ load  # what layouts say of it, (C, s)
        off = r[split:].sum(0) @ E - r.sum(0) @ out - (r @ E[:, 0]).T @ level
        more = level * (level * size[:, None] - 2 * load)
        variance = noise * (out * (penalty @ out)).sum(0)
        sides = (slice(split), out, total - late), (slice(split, None), rest, late)
        for part, weight, M in sides:
            own = vv[part].sum(0) / max(float(size[part].sum()), TINY)
            pure = (weight * (M @ weight)).sum(0) + more[part].sum(0)
            variance += np.maximum(own[:, None], noise) * np.maximum(pure, 0.0)
        # What layouts do to each stratum: each block its own way, and like ones alike.
        inner = np.concatenate([-(bbE[:split] * out).sum(1), (bbE[split:] * rest).sum(1)])
        inner = inner - level * bE
        alone = (inner**2).sum(0)
        shared = np.maximum((inner * (kernel @ inner)).sum(0) - alone, 0.0)
        variance += plain * alone + alike * shared
        # The last part is Bernstein's: few rare answers are no reason for an alarm.
        variance += np.abs(off) / 3
        found.statistic[number] = off / np.sqrt(np.maximum(variance, 1e-9))
        info = (E * (late @ rest)).sum(0) - (level * bl).sum(0)
        found.shift[number] = off / np.maximum(info, 1.0)
        inside = bl.sum(0)
        found.seen[number] = (by[split:].sum(0) @ E) / np.where(np.abs(inside) < 1, 1.0, inside)
    return found


def _layout_effects(
    sums: Sums, E: FloatArray, kernel: FloatArray, split: int, penalty: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return how much residuals vary between blocks before a split, and between layouts.

    Both are (q, s). Answers about one layout have residuals that go together if the covariates miss
    something.
    """
    b, bb, by = sums.b[:split] @ E, sums.bb[:split], sums.by[:split]
    theta = np.linalg.solve(bb.sum(0) + penalty, by.sum(0).T)
    r = (by - np.matmul(bb, theta).transpose(0, 2, 1)) @ E
    hh = (E * np.matmul(bb, E)).sum(1)  # (C, s)
    noise = (sums.vv[:split] / np.maximum(b[:, :1], TINY))[:, :, None] * hh[:, None]
    more, pairs = r**2 - noise, np.maximum(b**2 - hh, 0.0)
    plain = more.sum(0) / np.maximum(pairs.sum(0), 1.0)
    # Layouts that are alike count as one.
    weight = 1 / kernel[:split, :split].sum(1)
    found = np.tensordot(weight, more, 1) / np.maximum(weight @ pairs, 1e-3)
    each = noise.sum(0) / np.maximum(hh.sum(0), 1.0)
    # Few layouts say little of how much others may differ.
    few = 1 / float(weight.sum())
    between = np.maximum(found, 0.0) * (1 + DOUBT * few) + each * (PRIOR * few) ** 2
    return np.maximum(plain, 0.0), between


def penalty_of(sums: Sums, K: int, small: int) -> FloatArray:
    """Return how little covariates matter, judged by how likely the outcomes then are.

    The first K say which cluster is prescribed; from number ``small`` on they are small numbers.
    """
    total = sums.bb.sum(0)
    n = float(np.trace(total[:K, :K]))
    noise = max(float(sums.vv.sum()) / max(n, TINY), 1e-6)
    scale = np.ones(len(total))
    scale[small:] = 5.0
    mean, y = sums.b.sum(0) / n, sums.by[:, 0, :K].sum() / n
    G = (total - n * np.outer(mean, mean)) * scale[:, None] * scale
    c = (sums.by.sum(0)[0] - n * mean * y) * scale
    values, vectors = np.linalg.eigh(G)
    values, c = np.maximum(values, 0.0), (vectors.T @ c) ** 2
    tau = MATTERS[:, None] ** 2
    log = np.log1p(tau * values / noise) - tau * c / (noise * (noise + tau * values))
    log = -0.5 * log.sum(1)
    weight = np.exp(log - log.max())
    tau2 = float(weight @ MATTERS**2 / weight.sum())
    found = np.diag(1 / scale**2)
    found[:K, :K] -= 1 / K
    return noise / tau2 * found + 1e-6 * n / K * np.eye(len(total))
