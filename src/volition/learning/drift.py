"""Has behaviour changed? Compare late answers with earlier ones to questions of the same kind.

Learners ask at other centres and prescribe differently as they learn, so that shares of answers
change although behaviour does not. What does not change is how answers depend on the question. The
monitor describes each question by numbers (how dear the prescribed centre is, how near the others
are, what the entity did before), regresses answers on them, and asks whether the residuals of late
answers go with their being late, after what the questions say of being late has been taken out as
well. If either regression is about right, nothing shows as long as behaviour stays.

What the numbers miss differs from layout to layout. How much that is shows in the residuals of
answers about one layout; it is added to the variance, the more so the less the late layouts are
like the earlier ones. So a move to other centres is not taken for a change, unless answers at all
layouts so far were predicted well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from volition.population import IntArray
from volition.validation import FloatArray, check_integer, check_scalar

#: late answers that are compared with all before them
WINDOWS = (256, 512, 1024, 2048)
#: a look is taken after this many more
LOOK_EVERY = 256
#: answers that are kept
KEPT = 8192
#: earlier answers, without which nothing is compared
FEWEST = 512
#: answers about one layout that are taken together; at least, where layouts change more often
TOGETHER, TOGETHER_LEAST = 64, 32
#: statistic beyond which behaviour has changed
LIMIT = 4.3
#: squared shift of the centres, in squared spreads of a layout, at which layouts are others
REACH = 0.25
#: effect of a layout that is believed in before any two were seen, in deviations of an answer
PRIOR = 0.5
#: standard errors that are added to the effect of layouts
SURE = 1.0
#: how much the covariates of a question may matter: readings of the standard deviation
MATTERS = 10.0 ** np.arange(-3.0, 0.6, 0.5)
#: answers that the mean of all is worth in what an entity did before: two readings
MEMORY = (2.0, 20.0)
N_MEMORY = 7
#: numbers that describe a question, besides the prescribed centre; an alternative; a leaver
N_GEOMETRY, N_ALTERNATIVE, N_LEAVER = 15, 8, 6
#: those who leave, without whom where they go is not compared
FEWEST_LEAVERS = 200
#: the model of where they go is fitted anew after so many answers, by so many steps at most
REFIT_EVERY, STEPS = 1024, 3
#: outcomes seen in costs alone
N_COSTS = 3
TINY = 1e-300
DEBUG = False


@dataclass(frozen=True)
class Answers:
    """Answers in the order in which they were told, and what was asked.

    Parameters
    ----------
    entities, prescribed : arrays of shape (m,)
        Numbers of entities and clusters.
    costs : array of shape (m, K)
        Costs of the entity to the centres that it was shown, in a unit that never changes: that of
        a single centre for all.
    apart : array of shape (m, K)
        Costs between the prescribed centre and all, in the same unit.
    centers : array of shape (K, d) or (m, K, d)
        Centres that were shown.
    realized : array of shape (m,), optional
        Clusters that were realised; None where answers do not tell.
    cost : array of shape (m,), optional
        What was paid, in the same unit. It is looked at where ``realized`` is None.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.learning import Answers
    >>> Y = np.array([[0.0], [2.0]])
    >>> len(Answers([4], [0], [[1.0, 1.0]], [[0.0, 4.0]], Y, realized=[1]))
    1
    """

    entities: IntArray
    prescribed: IntArray
    costs: FloatArray
    apart: FloatArray
    centers: FloatArray
    realized: IntArray | None = None
    cost: FloatArray | None = None

    def __post_init__(self) -> None:
        for name in ("entities", "prescribed", "realized"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.int64))
        for name in ("costs", "apart", "centers", "cost"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        if self.realized is None and self.cost is None:
            raise ValueError("Answers need realized or cost.")
        m, shape = len(self.prescribed), self.costs.shape
        sizes = [len(v) for v in (self.entities, self.realized, self.cost) if v is not None]
        if self.costs.ndim != 2 or {m, *sizes} != {shape[0]} or self.apart.shape != shape:
            raise ValueError(f"Answers differ in length: costs have shape {shape}, {m} prescribed.")
        if self.centers.ndim not in (2, 3) or self.centers.shape[-2] != shape[1]:
            raise ValueError(f"centers have shape {self.centers.shape}, costs {shape}.")

    def __len__(self) -> int:
        return len(self.prescribed)

    def take(self, rows: slice) -> Answers:
        """Return some of them."""
        return Answers(
            self.entities[rows],
            self.prescribed[rows],
            self.costs[rows],
            self.apart[rows],
            self.centers if self.centers.ndim == 2 else self.centers[rows],
            None if self.realized is None else self.realized[rows],
            None if self.cost is None else self.cost[rows],
        )


class Change(NamedTuple):
    """A change of behaviour that was noticed.

    ``what`` says where it shows. ``before`` is what earlier answers let one expect of the latest
    ``n_after``, ``after`` what was seen in them. ``statistic`` is about how many standard
    deviations that is.
    """

    n_interactions: int
    n_answers: int
    n_after: int
    what: str
    before: float
    after: float
    statistic: float


# -- what is looked at ----------------------------------------------------------------------------


def _bent(x: FloatArray, scale: float) -> FloatArray:
    return x / (np.abs(x) + scale)


def _geometry(j: IntArray, D: FloatArray, apart: FloatArray) -> FloatArray:
    """Return what questions look like, (m, K + N_GEOMETRY); the first K say which centre it is."""
    m, K = D.shape
    rows = np.arange(m)
    u, away = K * D, K * apart
    own = u[rows, j]
    others = u.copy()
    others[rows, j] = away[rows, j] = np.inf
    nearest, near = others.min(1), away.min(1)
    rank = (others < own[:, None]).sum(1)
    soft = np.exp(-others).sum(1)
    gap = own - nearest
    columns = [
        rank == 0, rank == 1, rank / (K - 1),
        _bent(own, 0.2), _bent(own, 1.0), _bent(own, 5.0),
        _bent(nearest, 0.2), _bent(nearest, 1.0), _bent(nearest, 5.0),
        _bent(gap, 0.3), _bent(gap, 1.5), _bent(near, 0.3), _bent(near, 2.0),
        soft / (1 + soft), _bent(u.mean(1), 3.0),
    ]  # fmt: skip
    return np.concatenate([np.eye(K)[j], np.stack(columns, 1).astype(np.float64)], axis=1)


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
    return np.concatenate([_bent(X[..., [0, 2]], 1.0), X[..., 4:], each], 2)


def _paid(answers: Answers) -> FloatArray:
    """Return what costs alone show: obeying, paying more than for that, and rank."""
    assert answers.cost is not None
    D, cost, K = answers.costs, answers.cost, answers.costs.shape[1]
    own = D[np.arange(len(D)), answers.prescribed]
    same = np.abs(cost - own) <= 1e-9 + 1e-6 * np.abs(own)
    more = 0.5 * _bent(K * (cost - own), 1.0)
    return np.stack([same, more, (D < (cost * (1 - 1e-9))[:, None]).mean(1)], 1)


# -- where those go who leave ---------------------------------------------------------------------


def _softmax(X: FloatArray, j: IntArray, beta: FloatArray) -> FloatArray:
    v = X @ beta
    v[np.arange(len(j)), j] = -np.inf
    q = np.exp(v - v.max(1, keepdims=True))
    return q / q.sum(1, keepdims=True)


def _fit_leavers(X: FloatArray, j: IntArray, k: IntArray, beta: FloatArray) -> FloatArray:
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


# -- comparing ------------------------------------------------------------------------------------


class _Sums:
    """Sums over answers about one layout: of covariates b, outcomes y and residuals r."""

    def __init__(self, n_covariates: int, n_outcomes: int) -> None:
        p, q = n_covariates, n_outcomes
        self.p, self.q = p, q
        self.b = np.zeros((0, p))
        self.bb = np.zeros((0, p, p))
        self.by = np.zeros((0, q, p))
        self.rrbb = np.zeros((0, q, p, p))
        self.seen = np.zeros((0, q, p))  # as `by`, of what is shown to people

    def names(self) -> tuple[str, ...]:
        return "b", "bb", "by", "rrbb", "seen"

    def add(
        self, at: IntArray, B: FloatArray, y: FloatArray, r: FloatArray, seen: FloatArray
    ) -> None:
        """Add answers; ``at`` says to which layout each belongs, in order."""
        if len(at) == 0:
            return
        self.reserve(int(at[-1]) + 1)
        begins = [*np.flatnonzero(np.diff(at, prepend=-1)), len(at)]
        square, p = r**2, self.p
        for lo, hi in zip(begins[:-1], begins[1:], strict=True):
            c, some = at[lo], B[lo:hi]
            pairs = (some[:, :, None] * some[:, None]).reshape(hi - lo, p * p)
            self.b[c] += some.sum(0)
            self.bb[c] += pairs.sum(0).reshape(p, p)
            self.by[c] += y[lo:hi].T @ some
            self.seen[c] += seen[lo:hi].T @ some
            self.rrbb[c] += (square[lo:hi].T @ pairs).reshape(-1, p, p)

    def reserve(self, n: int) -> None:
        """Have room for n layouts."""
        have = len(self.b)
        if n > have:
            for name in self.names():
                old = getattr(self, name)
                new = np.zeros((max(n, 2 * have, 64), *old.shape[1:]))
                new[:have] = old
                setattr(self, name, new)

    def drop(self, first: int) -> None:
        """Forget the first layouts."""
        for name in self.names():
            setattr(self, name, getattr(self, name)[first:].copy())

    def coefficients(self, penalty: FloatArray) -> FloatArray:
        """Return the regression of outcomes on covariates, (p, q)."""
        return np.linalg.solve(self.bb.sum(0) + penalty, self.by.sum(0).T)


class _Found(NamedTuple):
    statistic: FloatArray  # (windows, outcomes, strata)
    shift: FloatArray
    seen: FloatArray


def _compare(
    sums: _Sums, E: FloatArray, kernel: FloatArray, splits: list[int], penalty: FloatArray
) -> _Found:
    """Compare the layouts from each split on with those before, within strata.

    ``E`` (p, s) says of which covariates a stratum is the sum, the first one being everything;
    ``penalty`` (p, p) how little each is believed to matter, in numbers of answers.
    """
    n, one = len(kernel), E[:, 0]
    b, bb, by, rrbb, seen = (getattr(sums, name)[:n] for name in sums.names())
    size, total, every = b @ one, bb.sum(0), rrbb.sum(0)
    theta = np.linalg.solve(total + penalty, by.sum(0).T)
    r = by - np.matmul(bb, theta).transpose(0, 2, 1)  # (C, q, p): residuals times covariates
    rE, bE = r @ E, b @ E
    rr = np.einsum("ps,cqpr,rs->cqs", E, rrbb, E, optimize=True)
    hh = np.einsum("ps,cpr,rs->cs", E, bb, E, optimize=True)
    noise = np.maximum(np.trace(every, axis1=1, axis2=2) / max(float(np.trace(total)), TINY), 1e-9)
    rb, rone = np.matmul(rrbb, one), rrbb @ one @ one  # (C, q, p), (C, q)
    # Layouts have effects of their own: those that have no like are no good for comparing.
    effects = []
    for split in splits:
        before = np.linalg.solve(bb[:split].sum(0) + penalty, by[:split].sum(0).T)
        old = by[:split] @ E - (np.matmul(bb[:split], before).transpose(0, 2, 1)) @ E
        effects.append(_layout_effects(old, rr[:split], bE[:split], hh[:split], kernel))
    effect = effects[-1][1][:, 0]
    ratio = float(np.median(effect / noise))
    if DEBUG: print(ratio, (effect/noise).round(3))
    mixed = ratio * np.linalg.solve(np.eye(n) + ratio * kernel * size, kernel)
    mixed = 0.5 * (mixed + mixed.T)
    inverse = np.linalg.inv(total - b.T @ mixed @ b + penalty)
    r = r - np.matmul(bb, inverse @ (r.sum(0) - (r @ one).T @ mixed @ b - theta.T @ penalty).T).transpose(0, 2, 1)
    rE = r @ E
    shape = (len(splits), sums.q, E.shape[1])
    found = _Found(np.zeros(shape), np.zeros(shape), np.zeros(shape))
    for number, split in enumerate(splits):
        late, own = bb[split:].sum(0), rrbb[split:].sum(0)
        bl = bE.copy()
        bl[:split] = 0.0
        out = inverse @ (late @ E - b.T @ (mixed @ bl))  # what covariates say of being late
        rest = E - out
        load = bl - b @ out
        level = mixed @ load  # what layouts say of it, (C, s)
        variance = _quadratic(every - own, out) + _quadratic(own, rest)
        cross = np.concatenate([-(rb[:split] @ out), rb[split:] @ rest])  # (C, q, s)
        variance = variance - 2 * (level[:, None] * cross).sum(0)
        variance = variance + (level[:, None] ** 2 * rone[..., None]).sum(0)
        plain = _quadratic((total - late)[None], out) + _quadratic(late[None], rest)
        plain = plain - 2 * (level * load).sum(0) + (level**2 * size[:, None]).sum(0)
        variance = np.maximum(variance, noise[:, None] * plain)
        variance = variance + noise[:, None] * _quadratic(penalty[None], out)
        load = load - size[:, None] * level
        alone = (load**2).sum(0)
        shared = np.maximum((load * (kernel @ load)).sum(0) - alone, 0.0)
        alike, unlike = effects[number]
        off = rE[split:].sum(0) - r.sum(0) @ out - np.einsum("cs,cq->qs", level, r @ one)
        variance = variance + alike * alone + unlike * shared + np.abs(off) / 3
        found.statistic[number] = off / np.sqrt(np.maximum(variance, 1e-9))
        info = (E * (late @ rest)).sum(0) - (level * bl).sum(0)
        found.shift[number] = off / np.maximum(info, 1.0)
        inside = np.where(np.abs(bl.sum(0)) < 1.0, 1.0, bl.sum(0))
        found.seen[number] = (seen[split:].sum(0) @ E) / inside
    return found


def _penalty(sums: _Sums, noise: float, K: int) -> FloatArray:
    """Return how little covariates matter, judged by how likely the outcomes then are."""
    scale = np.ones(sums.p)
    scale[-N_MEMORY:] = 5.0  # these are small
    n = sums.b[:, :K].sum()
    mean, y = sums.b.sum(0) / n, sums.by[:, 0, :K].sum() / n
    G = (sums.bb.sum(0) - n * np.outer(mean, mean)) * scale[:, None] * scale
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
    return noise / tau2 * found + 1e-6 * n / K * np.eye(sums.p)


def _quadratic(M: FloatArray, v: FloatArray) -> FloatArray:
    """Return v' M v for each matrix and each column, (q, s)."""
    return (v * np.matmul(M, v)).sum(1)


def _layout_effects(
    r: FloatArray, rr: FloatArray, b: FloatArray, hh: FloatArray, kernel: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return how much residuals vary between layouts: between like ones, and at most, (q, s).

    Answers about one layout have residuals that go together if the covariates miss something.
    """
    n = len(r)
    alike = kernel[:n, :n]
    weight = (1 / alike.sum(1))[:, None]  # layouts that are alike count as one
    pairs = np.maximum((weight * (b**2 - hh)).sum(0), 1e-3)
    found = np.maximum((weight[:, None] * (r**2 - rr)).sum(0) / pairs, 0.0)
    error = np.sqrt(2 * ((weight[:, None] * rr) ** 2).sum(0)) / pairs
    every = np.maximum((b**2 - hh).sum(0), 1.0)
    plain = np.maximum((r**2 - rr).sum(0) / every, 0.0)
    prior = (rr.sum(0) / np.maximum(hh.sum(0), 1.0)) * (PRIOR / float(weight.sum())) ** 2
    return plain, found + SURE * error + prior


# -- the monitor ----------------------------------------------------------------------------------


class DriftMonitor:
    def __init__(self, n_clusters: int, *, limit: float = LIMIT) -> None:
        check_integer(n_clusters, "n_clusters", 2)
        self.n_clusters = int(n_clusters)
        self.limit = check_scalar(limit, "limit", 0, open_low=True)
        self.best = 0.0
        self.trace: list[Any] = []
        self.forget()

    def forget(self) -> None:
        """Compare with nothing that came before."""
        K = self.n_clusters
        self._n, self._since, self._fitted = 0, 0, 0
        self._stay: list[_Sums] = []
        self._away = _Sums(N_LEAVER, N_LEAVER + K)
        self._theta: list[FloatArray] = []
        self._beta = np.zeros(N_ALTERNATIVE)
        self._size = np.zeros(0, dtype=np.int64)  # answers of each layout
        self._centers: list[FloatArray] = []
        self._past = np.zeros((0, 3))  # sum of residuals and number of answers of each entity
        self._kernel = np.zeros((0, 0))
        # of those who left: alternatives, prescribed, realised, layout, covariates
        self._X = np.zeros((0, K, N_ALTERNATIVE))
        self._jkc = np.zeros((0, 3), dtype=np.int64)
        self._B = np.zeros((0, N_LEAVER))

    def add(self, answers: Answers, when: tuple[int, int] = (0, 0)) -> Change | None:
        for lo in range(0, len(answers), LOOK_EVERY):
            some = answers.take(slice(lo, lo + LOOK_EVERY))
            self._append(some)
            self._since += len(some)
            if self._since >= LOOK_EVERY:
                self._since = 0
                change = self._look(when)
                if change is not None:
                    self.forget()
                    return change
        return None

    # -- taking in ----------------------------------------------------------------------------

    def _append(self, answers: Answers) -> None:
        i, j, k, K = answers.entities, answers.prescribed, answers.realized, self.n_clusters
        B = _geometry(j, answers.costs, answers.apart)
        past = self._remembered(i)
        by = B[:, [K, K + 4]]
        B = np.concatenate([B, past, past[:, :1] * by, past[:, 2:] * by], axis=1)
        y = _paid(answers) if k is None else (k == j)[:, None].astype(np.float64)
        if not self._stay:
            self._stay = [_Sums(B.shape[1], 1) for _ in y.T]
        at = self._layouts_of(answers)
        plain = B.copy()
        plain[:, -N_MEMORY:] = 0.0
        for number, sums in enumerate(self._stay):
            one = y[:, number, None]
            known = self._theta[number] if self._theta else None
            r = one - (one.mean(0) if known is None else B @ known)
            sums.add(at, B, one, r, one)
            if number == 0:
                mean = one.mean(0) if known is None else plain @ known
        np.add.at(self._past, (i, 0), (y[:, :1] - mean)[:, 0])
        np.add.at(self._past, (i, 1), 1.0)
        np.add.at(self._past, (i, 2), y[:, 0])
        self._n += len(j)
        if k is not None and K > 2:
            left = np.flatnonzero(k != j)
            X = _alternatives(j[left], answers.costs[left], answers.apart[left])
            b = B[left][:, [K, K + 2, K + 4, K + 7, K + 12]]
            b = np.concatenate([np.ones((len(left), 1)), b], axis=1)
            jkc = np.stack([j[left], k[left], at[left]], 1)
            self._X = np.concatenate([self._X, X])
            self._B = np.concatenate([self._B, b])
            self._jkc = np.concatenate([self._jkc, jkc])
            self._add_leavers(X, b, jkc)

    def _remembered(self, i: IntArray) -> FloatArray:
        """Return what each entity did before, more than others at such questions."""
        need = int(i.max(initial=-1)) + 1
        if need > len(self._past):
            more = np.zeros((max(need, 2 * len(self._past)) - len(self._past), 3))
            self._past = np.concatenate([self._past, more])
        total, count, raw = self._past[i].T
        mean = self._past[:, 2].sum() / max(self._past[:, 1].sum(), 1.0)
        shares = [total / (count + worth) for worth in MEMORY]
        return np.stack([*shares, (raw - count * mean) / (count + MEMORY[0])], 1)

    def _layouts_of(self, answers: Answers) -> IntArray:
        """Return to which layout each answer belongs, counted from the first that is kept."""
        m, Y = len(answers), answers.centers
        if Y.ndim == 2:
            begins, sets = [0, m], [Y]
        else:
            new = np.flatnonzero((Y[1:] != Y[:-1]).any((1, 2))) + 1
            begins = [0, *new.tolist(), m]
            sets = [Y[lo] for lo in begins[:-1]]
        at, size = np.empty(m, dtype=np.int64), self._size.tolist()
        for lo, hi, one in zip(begins[:-1], begins[1:], sets, strict=True):
            done = lo
            while done < hi:
                full = not size or size[-1] >= TOGETHER
                if full or (
                    size[-1] >= TOGETHER_LEAST and not np.array_equal(one, self._centers[-1])
                ):
                    size.append(0)
                    self._centers.append(one.copy())
                now = min(hi - done, TOGETHER - size[-1])
                at[done : done + now] = len(size) - 1
                size[-1] += now
                done += now
        self._size = np.array(size, dtype=np.int64)
        return at

    def _add_leavers(self, X: FloatArray, b: FloatArray, jkc: IntArray) -> None:
        j, k, at = jkc.T
        F, rows = _directions(X), np.arange(len(j))
        used = F[rows, k]
        y = used - np.matmul(_softmax(X, j, self._beta)[:, None], F)[:, 0]
        self._away.add(at, b, y, y, used)

    # -- looking ------------------------------------------------------------------------------

    def _drop(self) -> None:
        """Forget layouts that are too old."""
        behind = np.cumsum(self._size[::-1])[::-1]
        first = int((behind > KEPT + TOGETHER).sum())
        if first < len(self._size) // 4:
            return
        for sums in self._stay:
            sums.drop(first)
        self._away.drop(first)
        self._size, self._centers = self._size[first:], self._centers[first:]
        kept = self._jkc[:, 2] >= first
        self._X, self._B, self._jkc = self._X[kept], self._B[kept], self._jkc[kept]
        self._jkc[:, 2] -= first

    def _alike(self) -> FloatArray:
        """Return how alike layouts are, from 0 to 1."""
        Y = np.array(self._centers)
        spread = max(float(Y.var(axis=1).sum(1).mean()), TINY)
        F = (Y - Y.mean((0, 1))).reshape(len(Y), -1)
        square = (F**2).sum(1)
        gaps = np.maximum(square[:, None] + square[None] - 2 * F @ F.T, 0.0) / self.n_clusters
        return np.exp(-gaps / (2 * REACH * spread))

    def _splits(self) -> list[int]:
        """Return the layouts with which windows begin."""
        behind = np.cumsum(self._size[::-1])[::-1]
        found = []
        for window in WINDOWS:
            split = int((behind > window).sum())
            if split and behind[0] - behind[split] >= max(FEWEST, window // 2):
                found.append(split)
        return found

    def _refit(self) -> None:
        """Fit anew where leavers go."""
        j, k, _ = self._jkc.T
        self._beta = _fit_leavers(self._X, j, k, self._beta)
        self._away = _Sums(N_LEAVER, N_LEAVER + self.n_clusters)
        self._add_leavers(self._X, self._B, self._jkc)
        self._fitted = self._n

    def _look(self, when: tuple[int, int]) -> Change | None:
        self._drop()
        K, n, splits = self.n_clusters, len(self._size), self._splits()
        penalties = []
        for sums in self._stay:
            total = sums.bb.sum(0)
            noise = np.trace(sums.rrbb.sum(0)[0]) / np.trace(total)
            penalties.append(_penalty(sums, max(noise, 1e-6), K))
        self._theta = [s.coefficients(x) for s, x in zip(self._stay, penalties, strict=True)]
        if not splits:
            return None
        kernel = self._alike()
        found = [
            _compare(sums, _strata(K), kernel, splits, penalty)
            for sums, penalty in zip(self._stay, penalties, strict=True)
        ]
        if len(self._X) >= FEWEST_LEAVERS:
            if self._fitted == 0 or self._n - self._fitted >= REFIT_EVERY:
                self._refit()
            self._away.reserve(n)
            one = np.eye(N_LEAVER)[:, :1]
            small = 1e-6 * len(self._X) * np.eye(N_LEAVER)
            found.append(_compare(self._away, one, kernel, splits, small))
        worst = max(np.abs(f.statistic).max() for f in found)
        self.best = max(self.best, worst)
        self.trace.append((self._n, [np.abs(f.statistic).max(0).round(1) for f in found]))
        if worst > self.limit:
            return Change(*when, 0, "", 0.0, 0.0, float(worst))
        return None


def _strata(K: int) -> FloatArray:
    """Return of which covariates each stratum is the sum."""
    E = np.zeros((K + N_GEOMETRY + N_MEMORY, K + 4))
    E[:K, 0] = 1
    E[K, 1] = 1
    E[:K, 2], E[K, 2] = 1, -1
    E[-N_MEMORY, 3] = 1
    E[np.arange(K), 4 + np.arange(K)] = 1
    return E


_ = (math, Self)
