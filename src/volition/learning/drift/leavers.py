"""Where those go who leave the prescribed cluster: a small model, and sums of its residuals."""

from __future__ import annotations

import numpy as np

from volition.core.validation import FloatArray
from volition.learning.drift.comparison import TINY, Found, Sums, compare
from volition.learning.drift.questions import WatchedAnswers, bent
from volition.populations.answers import IntArray

#: in which ways where they go is compared, besides which centre it is
INSTEAD = (
    "how dear the centres are that are used instead of the prescribed",
    "how far from the prescribed the centres are that are used instead",
    "how often the nearest is used instead of the prescribed",
    "how near the centres are that are used instead of the prescribed",
    "how often the centre nearest to the prescribed is used instead",
    "how near to the prescribed the centres are that are used instead",
)
#: numbers that describe a question and an alternative
N_QUESTION, N_ALTERNATIVE = 6, 8
#: those who leave, without whom where they go is not compared
FEWEST = 200
#: the model is fitted again after so many more, by so many steps at most
REFIT_EVERY, STEPS = 256, 3


class Leavers:
    """Those who left of late, block by block.

    Parameters
    ----------
    n_clusters : int
    """

    def __init__(self, n_clusters: int) -> None:
        K = n_clusters
        self.beta: FloatArray = np.zeros(N_ALTERNATIVE)
        self.sums = Sums(N_QUESTION, len(INSTEAD) + K)
        self.since = 0  # how many came since the model was fitted
        self.fitted = False
        # Of each: prescribed, realised and block; what it saw; what the question was like.
        self.who = np.zeros((0, 3), dtype=np.int64)
        self.X = np.zeros((0, K, N_ALTERNATIVE))
        self.B = np.zeros((0, N_QUESTION))

    def add(self, answers: WatchedAnswers, G: FloatArray, at: IntArray) -> None:
        """Take in those who left; ``G`` says what questions were like, ``at`` names blocks."""
        K, j, k = answers.costs.shape[1], answers.prescribed, answers.realized
        assert k is not None
        left = np.flatnonzero(k != j)
        X = _alternatives(j[left], answers.costs[left], answers.apart[left])
        B = np.concatenate([np.ones((len(left), 1)), G[left][:, K + np.array([0, 2, 4, 7, 12])]], 1)
        who = np.stack([j[left], k[left], at[left]], 1)
        self.X, self.B = np.concatenate([self.X, X]), np.concatenate([self.B, B])
        self.who, self.since = np.concatenate([self.who, who]), self.since + len(left)
        self._sum(X, B, who)

    def _sum(self, X: FloatArray, B: FloatArray, who: IntArray) -> None:
        j, k, at = who.T
        F, q = _directions(X), _softmax(X, j, self.beta)[:, None]
        mean = np.matmul(q, F)[:, 0]
        y = F[np.arange(len(j)), k] - mean
        self.sums.add(at, B, y, np.maximum(np.matmul(q, F**2)[:, 0] - mean**2, y**2 / 4))

    def drop(self, first: int, n_blocks: int) -> None:
        """Forget the first blocks, of so many."""
        self.sums.reserve(n_blocks)
        self.sums.drop(first)
        kept = self.who[:, 2] >= first
        self.X, self.B, self.who = self.X[kept], self.B[kept], self.who[kept]
        self.who[:, 2] -= first

    def compare(self, kernel: FloatArray, splits: list[int]) -> Found | None:
        """Compare where they go from each split on with where they went before."""
        if len(self.X) < FEWEST:
            return None
        if not self.fitted or self.since >= REFIT_EVERY:
            self.beta = _fitted(self.X, self.who[:, 0], self.who[:, 1], self.beta)
            self.sums = Sums(*self.sums.by.shape[:0:-1])
            self._sum(self.X, self.B, self.who)
            self.sums.reserve(len(kernel))
            self.since, self.fitted = 0, True
        few = 1e-6 * len(self.X) * np.eye(N_QUESTION)
        return compare(self.sums, np.eye(N_QUESTION)[:, :1], kernel, splits, few)

    def seen(self, outcome: int, split: int) -> float:
        """Return the mean of an outcome from a split on."""
        late = self.who[:, 2] >= split
        F = _directions(self.X[late])[np.arange(late.sum()), self.who[late, 1]]
        return float(F[:, outcome].mean())


def _alternatives(j: IntArray, D: FloatArray, apart: FloatArray) -> FloatArray:
    """Return what each centre looks like to those who leave the prescribed one, (m, K, f)."""
    K = D.shape[1]
    mine = np.arange(K)[None] == j[:, None]
    u, a = K * D, K * apart
    ranks = []
    for values in (u, a):
        others = np.where(mine, np.inf, values)
        rank = (others[:, None, :] < others[:, :, None]).sum(2)
        ranks += [rank == 0, rank / (K - 1)]
    return np.stack([u, np.sqrt(np.abs(u)), a, np.sqrt(np.abs(a)), *ranks], 2)


def _directions(X: FloatArray) -> FloatArray:
    """Return the features in which where leavers go is compared, from 0 to 1; (m, K, f + K)."""
    m, K, _ = X.shape
    each = np.broadcast_to(np.eye(K), (m, K, K))
    return np.concatenate([bent(X[..., [0, 2]], 1.0), X[..., 4:], each], 2)


def _softmax(X: FloatArray, j: IntArray, beta: FloatArray) -> FloatArray:
    v = X @ beta
    v[np.arange(len(j)), j] = -np.inf
    q = np.exp(v - v.max(1, keepdims=True))
    return q / q.sum(1, keepdims=True)


def _fitted(X: FloatArray, j: IntArray, k: IntArray, beta: FloatArray) -> FloatArray:
    """Return the weights of a softmax over the alternatives, by a few of Newton's steps."""
    f, rows = X.shape[2], np.arange(len(X))
    used = X[rows, k].sum(0)

    def value(b: FloatArray, q: FloatArray) -> float:
        return float(np.log(np.maximum(q[rows, k], TINY)).sum() - 0.5 * b @ b)

    q = _softmax(X, j, beta)
    best = value(beta, q)
    for _ in range(STEPS):
        mean = np.matmul(q[:, None], X)[:, 0]
        flat = (X * np.sqrt(q)[..., None]).reshape(-1, f)
        hessian = flat.T @ flat - mean.T @ mean + np.eye(f)
        step = np.linalg.solve(hessian, used - mean.sum(0) - beta)
        for _ in range(6):
            q = _softmax(X, j, beta + step)
            found = value(beta + step, q)
            if found >= best:
                break
            step = step / 2
        else:
            break
        beta, gain, best = beta + step, found - best, found
        if gain < 0.1:
            break
    return beta
