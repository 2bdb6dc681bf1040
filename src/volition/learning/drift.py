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

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from volition.core.validation import FloatArray, check_integer, check_scalar
from volition.populations.answers import IntArray

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
LIMIT = 4.5
#: squared shift of the centres, in squared spreads of a layout, at which layouts are others
REACH = 0.25
#: effect of a layout that is believed in before any two were seen, in deviations of an answer
PRIOR = 0.5
#: how much the covariates of a question may matter: readings of the standard deviation
MATTERS = 10.0 ** np.arange(-3.0, 0.6, 0.5)
#: answers that the mean of all is worth in what an entity did before: two readings
MEMORY = (2.0, 20.0)
#: numbers that say what an entity did before
N_MEMORY = 7
#: numbers that describe a question, besides the prescribed centre; an alternative; a leaver
N_GEOMETRY, N_ALTERNATIVE, N_LEAVER = 15, 8, 6
#: ways in which where leavers go is compared, besides which centre it is
N_DIRECTIONS = 6
#: those who leave, without whom where they go is not compared
FEWEST_LEAVERS = 200
#: the model of where they go is fitted anew after so many answers, by so many steps at most
REFIT_EVERY, STEPS = 1024, 3
TINY = 1e-300


@dataclass(frozen=True)
class WatchedAnswers:
    """WatchedAnswers in the order in which they were told, and what was asked.

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
    >>> from volition.learning.drift import WatchedAnswers
    >>> Y = np.array([[0.0], [2.0]])
    >>> len(WatchedAnswers([4], [0], [[1.0, 1.0]], [[0.0, 4.0]], Y, realized=[1]))
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

    def take(self, rows: slice) -> WatchedAnswers:
        """Return some of them."""
        return WatchedAnswers(
            self.entities[rows],
            self.prescribed[rows],
            self.costs[rows],
            self.apart[rows],
            self.centers if self.centers.ndim == 2 else self.centers[rows],
            None if self.realized is None else self.realized[rows],
            None if self.cost is None else self.cost[rows],
        )


class Shift(NamedTuple):
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


def _paid(answers: WatchedAnswers) -> FloatArray:
    """Return what costs alone show: obeying, paying more than for that, and rank."""
    assert answers.cost is not None
    D, cost, K = answers.costs, answers.cost, answers.costs.shape[1]
    own = D[np.arange(len(D)), answers.prescribed]
    same = np.abs(cost - own) <= 1e-9 + 1e-6 * np.abs(own)
    more = 0.5 * _bent(K * (cost - own), 1.0)
    return np.stack([same, more, ((cost * (1 - 1e-9))[:, None] > D).mean(1)], 1)


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

    names = ("b", "bb", "by", "rrbb", "seen")

    def __init__(self, n_covariates: int, n_outcomes: int) -> None:
        p, q = n_covariates, n_outcomes
        self.p, self.q = p, q
        self.b = np.zeros((0, p))
        self.bb = np.zeros((0, p, p))
        self.by = np.zeros((0, q, p))
        self.rrbb = np.zeros((0, q, p, p))
        self.seen = np.zeros((0, q, p))  # as `by`, of what is shown to people

    def add(
        self, at: IntArray, B: FloatArray, y: FloatArray, r: FloatArray, seen: FloatArray
    ) -> None:
        """Add answers; ``at`` says to which layout each belongs, in order."""
        if len(at) == 0:
            return
        self.reserve(int(at[-1]) + 1)
        begins = [*np.flatnonzero(np.diff(at, prepend=-1)), len(at)]
        square, p = r**2, self.p
        for lo, hi in pairwise(begins):
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
            for name in self.names:
                old = getattr(self, name)
                new = np.zeros((max(n, 2 * have, 64), *old.shape[1:]))
                new[:have] = old
                setattr(self, name, new)

    def drop(self, first: int) -> None:
        """Forget the first layouts."""
        for name in self.names:
            setattr(self, name, getattr(self, name)[first:].copy())

    def coefficients(self, penalty: FloatArray) -> FloatArray:
        """Return the regression of outcomes on covariates, (p, q)."""
        return np.linalg.solve(self.bb.sum(0) + penalty, self.by.sum(0).T)


class _Found(NamedTuple):
    statistic: FloatArray  # (windows, outcomes, strata)
    shift: FloatArray  # by how much late outcomes are off
    seen: FloatArray  # their mean


def _compare(
    sums: _Sums, E: FloatArray, kernel: FloatArray, splits: list[int], penalty: FloatArray
) -> _Found:
    """Compare the layouts from each split on with those before, within strata.

    ``E`` (p, s) says of which covariates a stratum is the sum, the first one being everything;
    ``penalty`` (p, p) how little each is believed to matter, in numbers of answers.
    """
    n, one = len(kernel), E[:, 0]
    b, bb, by, rrbb, seen = (getattr(sums, name)[:n] for name in sums.names)
    size, bE, bbE, total, every = b @ one, b @ E, bb @ E, bb.sum(0), rrbb.sum(0)
    noise = np.trace(every, axis1=1, axis2=2) / max(float(np.trace(total)), TINY)
    noise = np.maximum(noise, 1e-9)[:, None]
    effects = _layout_effects(sums, E, kernel, splits, penalty)
    # Layouts have effects of their own: those that have no like are no good for comparing.
    ratio = float(np.quantile(effects[-1][1][:, 0] / noise[:, 0], 0.75))
    mixed = ratio * np.linalg.solve(np.eye(n) + ratio * kernel * size, kernel)
    inverse = np.linalg.inv(total - b.T @ mixed @ b + penalty)
    theta = inverse @ (by.sum(0) - (by @ one).T @ mixed @ b).T
    r = by - np.matmul(bb, theta).transpose(0, 2, 1)  # (C, q, p): residuals times covariates
    rE, rone = r @ E, r @ one
    ss, s1 = np.matmul(rrbb, one), rrbb @ one @ one  # squares times covariates, and alone
    shape = (len(splits), sums.q, E.shape[1])
    found = _Found(np.zeros(shape), np.zeros(shape), np.zeros(shape))
    for number, (split, (alike, unlike)) in enumerate(zip(splits, effects, strict=True)):
        late, own, bl = bb[split:].sum(0), rrbb[split:].sum(0), bE.copy()
        bl[:split] = 0.0
        out = inverse @ (late @ E - b.T @ (mixed @ bl))  # what covariates say of being late
        rest, load = E - out, bl - b @ out
        level = mixed @ load  # what layouts say of it, (C, s)
        off = rE[split:].sum(0) - r.sum(0) @ out - rone.T @ level
        cross = np.concatenate([-(ss[:split] @ out), ss[split:] @ rest])  # (C, q, s)
        variance = _quadratic(every - own, out) + _quadratic(own, rest)
        variance += (level[:, None] * (level[:, None] * s1[..., None] - 2 * cross)).sum(0)
        plain = _quadratic((total - late)[None], out) + _quadratic(late[None], rest)
        plain += (level * (level * size[:, None] - 2 * load)).sum(0)
        variance = np.maximum(variance, noise * plain) + noise * _quadratic(penalty[None], out)
        load = load - size[:, None] * level
        inner = np.concatenate([-(bbE[:split] * out).sum(1), (bbE[split:] * rest).sum(1)])
        inner = inner - level * bE  # of the stratum alone, which layouts may have effects on
        for part, which in ((inner, slice(None)), (load - inner, slice(1))):
            alone = (part**2).sum(0)
            shared = np.maximum((part * (kernel @ part)).sum(0) - alone, 0.0)
            variance += alike[:, which] * alone + unlike[:, which] * shared
        # The last part is Bernstein's: few rare answers are no reason for an alarm.
        variance += np.abs(off) / 3
        found.statistic[number] = off / np.sqrt(np.maximum(variance, 1e-9))
        info = (E * (late @ rest)).sum(0) - (level * bl).sum(0)
        found.shift[number] = off / np.maximum(info, 1.0)
        inside = bl.sum(0)
        found.seen[number] = (seen[split:].sum(0) @ E) / np.where(np.abs(inside) < 1, 1.0, inside)
    return found


def _penalty(sums: _Sums, K: int) -> FloatArray:
    """Return how little covariates matter, judged by how likely the outcomes then are."""
    noise = float(np.trace(sums.rrbb.sum(0)[0]) / max(float(np.trace(sums.bb.sum(0))), TINY))
    noise = max(noise, 1e-6)
    scale = np.ones(sums.p)
    scale[K + N_GEOMETRY :] = 5.0  # these are small
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
    sums: _Sums, E: FloatArray, kernel: FloatArray, splits: list[int], penalty: FloatArray
) -> list[tuple[FloatArray, FloatArray]]:
    """Return how much residuals vary between layouts before each split: seen, and at most, (q, s).

    Answers about one layout have residuals that go together if the covariates miss something.
    """
    n, effects = len(kernel), []
    b, bb, by, rrbb = sums.b[:n] @ E, sums.bb[:n], sums.by[:n], sums.rrbb[:n]
    rr = (E * np.matmul(rrbb, E)).sum(2)  # (C, q, s)
    hh = (E * np.matmul(bb, E)).sum(1)  # (C, s)
    pairs = b**2 - hh
    for split in splits:
        theta = np.linalg.solve(bb[:split].sum(0) + penalty, by[:split].sum(0).T)
        r = (by[:split] - np.matmul(bb[:split], theta).transpose(0, 2, 1)) @ E
        more, noise = r**2 - rr[:split], rr[:split]
        plain = more.sum(0) / np.maximum(pairs[:split].sum(0), 1.0)
        # Layouts that are alike count as one.
        weight = (1 / kernel[:split, :split].sum(1))[:, None]
        total = np.maximum((weight * pairs[:split]).sum(0), 1e-3)
        found = (weight[:, None] * more).sum(0) / total
        error = np.sqrt(2 * ((weight[:, None] * noise) ** 2).sum(0)) / total
        each = noise.sum(0) / np.maximum(hh[:split].sum(0), 1.0)
        prior = each * (PRIOR / float(weight.sum())) ** 2
        most = np.maximum(found, 0.0) + error + prior
        effects.append((np.maximum(plain, 0.0), most))
    return effects


# -- the monitor ----------------------------------------------------------------------------------


class DriftMonitor:
    """Says when entities no longer answer as they did, whatever they are asked.

    It needs no model of the learner's, and is not misled by one: it has small ones of its own, of
    who obeys and of where the others go, which are fitted to the latest 8,192 answers. Nothing is
    compared before 768 answers. Late answers are the latest 256, 512, 1,024 and 2,048.

    Parameters
    ----------
    n_clusters : int
        Number of centres.
    limit : float, default=4.5
        Statistic beyond which behaviour has changed. In 20,000 answers of entities that did not
        change, the largest was 3 on average and 4.3 in the worst of 96 simulated runs; see
        ``benchmarks/drift.py null``.

    Attributes
    ----------
    n_answers : int
        Answers that were taken in since it has last forgotten.
    statistic : float
        The largest at the latest look.

    Examples
    --------
    Entities that obey in nine of ten cases, and from answer 3,000 on in six of ten:

    >>> import numpy as np
    >>> from volition.learning.drift import DriftMonitor, WatchedAnswers
    >>> rng = np.random.default_rng(0)
    >>> X, watch = rng.random((50, 2)), DriftMonitor(3)
    >>> for t in range(0, 5000, 50):
    ...     Y = rng.random((3, 2))
    ...     D, apart = (((Z[:, None] - Y) ** 2).sum(2) for Z in (X, Y))
    ...     j = rng.integers(0, 3, 50)
    ...     obeys = rng.random(50) < (0.9 if t < 3000 else 0.6)
    ...     k = np.where(obeys, j, (j + rng.integers(1, 3, 50)) % 3)
    ...     change = watch.add(WatchedAnswers(np.arange(50), j, D, apart[j], Y, k), (t, t))
    ...     if change is not None:
    ...         print(change.n_answers, change.what)
    3250 how often entities obey
    """

    def __init__(self, n_clusters: int, *, limit: float = LIMIT) -> None:
        check_integer(n_clusters, "n_clusters", 1)
        self.n_clusters = int(n_clusters)
        self.limit = check_scalar(limit, "limit", 0, open_low=True)
        self.forget()

    def forget(self) -> None:
        """Compare with nothing that came before: it was another behaviour."""
        K = self.n_clusters
        self.n_answers, self.statistic = 0, 0.0
        self._since, self._fitted = 0, 0
        self._stay: list[_Sums] = []  # one for each outcome
        self._away = _Sums(N_LEAVER, N_DIRECTIONS + K)
        self._theta: FloatArray = np.zeros((0, 0))  # (outcomes, covariates)
        self._beta: FloatArray = np.zeros(N_ALTERNATIVE)
        self._size = np.zeros(0, dtype=np.int64)  # answers of each layout
        self._centers: list[FloatArray] = []
        self._past: FloatArray = np.zeros(
            (0, 0)
        )  # of each entity: answers, sums of residuals, of outcomes
        # Of those who left: what they saw, prescribed, realised and layout, covariates.
        self._X = np.zeros((0, K, N_ALTERNATIVE))
        self._jkc = np.zeros((0, 3), dtype=np.int64)
        self._B = np.zeros((0, N_LEAVER))

    def add(self, answers: WatchedAnswers, when: tuple[int, int] = (0, 0)) -> Shift | None:
        """Take in answers; say if behaviour has changed, and forget all if so.

        Parameters
        ----------
        answers : WatchedAnswers
            In the order in which they were told. Those that never came must not be among them.
        when : tuple of int
            Numbers of interactions and of answers so far, for the `Shift`.

        Returns
        -------
        Shift or None
        """
        if answers.costs.shape[1] != self.n_clusters:
            raise ValueError(
                f"The answers are about {answers.costs.shape[1]} clusters, not {self.n_clusters}."
            )
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

    # -- taking in --------------------------------------------------------------------------------

    def _append(self, answers: WatchedAnswers) -> None:
        i, j, k = answers.entities, answers.prescribed, answers.realized
        y = _paid(answers) if k is None else (k == j)[:, None].astype(np.float64)
        if len(self._stay) not in (0, y.shape[1]):
            self.forget()  # answers tell more, or less, than they did
        G, at = _geometry(j, answers.costs, answers.apart), self._layouts_of(answers)
        if not self._stay:
            columns = [N_MEMORY, *(2 * N_MEMORY for _ in y.T[1:])]
            self._stay = [_Sums(G.shape[1] + more, 1) for more in columns]
            self._past = np.zeros((0, 1 + 2 * y.shape[1]))
        self._make_room(int(i.max(initial=-1)) + 1)
        off = np.empty_like(y)
        for number, sums in enumerate(self._stay):
            one = y[:, number, None]
            # Whatever is paid, learners prescribe by who has obeyed.
            past = [self._remembered(i, outcome, G) for outcome in sorted({number, 0})[::-1]]
            B = np.concatenate([G, *past], axis=1)
            known = self._theta[number, : B.shape[1]] if len(self._theta) else None
            r = one[:, 0] - (one.mean() if known is None else B @ known)
            sums.add(at, B, one, r[:, None], one)
            # What is remembered must not depend on what was remembered before.
            plain = one.mean() if known is None else G @ known[: G.shape[1]]
            off[:, number] = one[:, 0] - plain
        np.add.at(self._past, i, np.concatenate([np.ones((len(i), 1)), off, y], axis=1))
        self.n_answers += len(j)
        if k is not None and self.n_clusters > 2:
            self._append_leavers(answers, G, at)

    def _append_leavers(self, answers: WatchedAnswers, G: FloatArray, at: IntArray) -> None:
        K, j, k = self.n_clusters, answers.prescribed, answers.realized
        assert k is not None
        left = np.flatnonzero(k != j)
        X = _alternatives(j[left], answers.costs[left], answers.apart[left])
        b = G[left][:, [K, K + 2, K + 4, K + 7, K + 12]]
        b = np.concatenate([np.ones((len(left), 1)), b], axis=1)
        jkc = np.stack([j[left], k[left], at[left]], 1)
        self._X = np.concatenate([self._X, X])
        self._B = np.concatenate([self._B, b])
        self._jkc = np.concatenate([self._jkc, jkc])
        self._sum_leavers(X, b, jkc)

    def _sum_leavers(self, X: FloatArray, b: FloatArray, jkc: IntArray) -> None:
        j, k, at = jkc.T
        F = _directions(X)
        used = F[np.arange(len(j)), k]
        y = used - np.matmul(_softmax(X, j, self._beta)[:, None], F)[:, 0]
        self._away.add(at, b, y, y, used)

    def _make_room(self, n_entities: int) -> None:
        have, columns = self._past.shape
        if n_entities > have:
            more = np.zeros((max(n_entities, 2 * have) - have, columns))
            self._past = np.concatenate([self._past, more])

    def _remembered(self, i: IntArray, outcome: int, G: FloatArray) -> FloatArray:
        """Return what each entity did before: more than others did at such questions, and at all.

        Learners prescribe by it, and so it tells late answers from earlier ones.
        """
        q, K = len(self._stay), self.n_clusters
        count, residual, raw = self._past[i][:, [0, 1 + outcome, 1 + q + outcome]].T
        answers, _, every = self._past[:, [0, 1 + outcome, 1 + q + outcome]].sum(0)
        shares = [residual / (count + worth) for worth in MEMORY]
        plain = (raw - count * every / max(answers, 1.0)) / (count + MEMORY[0])
        past = np.stack([*shares, plain], 1)
        by = G[:, [K, K + 4]]  # whether the nearest is prescribed, and its cost
        return np.concatenate([past, past[:, :1] * by, past[:, 2:] * by], axis=1)

    def _layouts_of(self, answers: WatchedAnswers) -> IntArray:
        """Return to which layout each answer belongs, counted from the first that is kept."""
        m, Y = len(answers), answers.centers
        begins, sets = [0, m], [Y]
        if Y.ndim == 3:
            new = np.flatnonzero((Y[1:] != Y[:-1]).any((1, 2))) + 1
            begins = [0, *new.tolist(), m]
            sets = [Y[lo] for lo in begins[:-1]]
        at, size = np.empty(m, dtype=np.int64), self._size.tolist()
        for lo, hi, one in zip(begins[:-1], begins[1:], sets, strict=True):
            done = lo
            while done < hi:
                full = not size or size[-1] >= TOGETHER
                enough = not full and size[-1] >= TOGETHER_LEAST
                if full or (enough and not np.array_equal(one, self._centers[-1])):
                    size.append(0)
                    self._centers.append(one.copy())
                now = min(hi - done, TOGETHER - size[-1])
                at[done : done + now] = len(size) - 1
                size[-1] += now
                done += now
        self._size = np.array(size, dtype=np.int64)
        return at

    # -- looking ----------------------------------------------------------------------------------

    def _drop(self) -> None:
        """Forget layouts that are too old, now and then."""
        behind = np.cumsum(self._size[::-1])[::-1]
        first = int((behind > KEPT + TOGETHER).sum())
        if first < len(self._size) // 4:
            return
        for sums in (*self._stay, self._away):
            sums.drop(first)
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

    def _windows(self) -> tuple[list[int], list[int]]:
        """Return the layouts with which late answers begin, and how many late answers there are."""
        behind = np.cumsum(self._size[::-1])[::-1]
        splits, lengths = [], []
        for window in WINDOWS:
            split = int((behind > window).sum())
            if split and behind[0] - behind[split] >= max(FEWEST, window // 2):
                splits.append(split)
                lengths.append(int(behind[split]))
        return splits, lengths

    def _look(self, when: tuple[int, int]) -> Shift | None:
        self._drop()
        K, n = self.n_clusters, len(self._size)
        penalties = [_penalty(sums, K) for sums in self._stay]
        both = list(zip(self._stay, penalties, strict=True))
        self._theta = np.zeros((len(both), max(sums.p for sums in self._stay)))
        for theta, (sums, penalty) in zip(self._theta, both, strict=True):
            theta[: sums.p] = sums.coefficients(penalty)[:, 0]
        splits, lengths = self._windows()
        if not splits:
            return None
        kernel = self._alike()
        found = [_compare(one, _strata(K, one.p), kernel, splits, penalty) for one, penalty in both]
        if len(self._X) >= FEWEST_LEAVERS:
            if self._fitted == 0 or self.n_answers - self._fitted >= REFIT_EVERY:
                self._refit()
            self._away.reserve(n)
            few = 1e-6 * len(self._X) * np.eye(N_LEAVER)
            found.append(_compare(self._away, np.eye(N_LEAVER)[:, :1], kernel, splits, few))
        worst = max(range(len(found)), key=lambda number: np.abs(found[number].statistic).max())
        most = found[worst]
        at = np.unravel_index(np.abs(most.statistic).argmax(), most.statistic.shape)
        self.statistic = float(abs(most.statistic[at]))
        if self.statistic <= self.limit:
            return None
        window, outcome, stratum = (int(number) for number in at)
        what = self._name(worst, outcome, stratum)
        after = float(most.seen[at])
        before = after - float(most.shift[at])
        return Shift(*when, lengths[window], what, before, after, self.statistic)

    def _refit(self) -> None:
        """Fit anew where leavers go, and judge all of them by it."""
        self._beta = _fit_leavers(self._X, self._jkc[:, 0], self._jkc[:, 1], self._beta)
        self._away = _Sums(N_LEAVER, N_DIRECTIONS + self.n_clusters)
        self._sum_leavers(self._X, self._B, self._jkc)
        self._fitted = self.n_answers

    def _name(self, part: int, outcome: int, stratum: int) -> str:
        """Return in words what was compared."""
        if part == len(self._stay):
            if outcome < N_DIRECTIONS:
                return INSTEAD[outcome]
            return f"how often cluster {outcome - N_DIRECTIONS} is used instead of the prescribed"
        what = "how often entities obey" if len(self._stay) == 1 else PAID[part]
        if stratum < len(STRATA):
            return what + STRATA[stratum]
        return f"{what}, where cluster {stratum - len(STRATA)} is prescribed"

    # -- saving -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return numbers and arrays to be saved; `from_state` takes them.

        Returns
        -------
        dict of str to number or array
        """
        found: dict[str, Any] = {name: getattr(self, name) for name in NUMBERS}
        found |= {name.removeprefix("_"): getattr(self, name).copy() for name in ARRAYS}
        shape = (0, self.n_clusters, 0)
        found["centers"] = np.array(self._centers) if self._centers else np.zeros(shape)
        found |= {"since": self._since, "fitted": self._fitted, "n_outcomes": len(self._stay)}
        for number, sums in enumerate((self._away, *self._stay)):
            found |= {f"sums.{number}.{name}": getattr(sums, name).copy() for name in sums.names}
        return found

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Return the monitor that had this `state`.

        Parameters
        ----------
        state : dict of str to number or array

        Returns
        -------
        DriftMonitor

        Examples
        --------
        >>> from volition.learning.drift import DriftMonitor
        >>> DriftMonitor.from_state(DriftMonitor(4).state()).n_clusters
        4
        """
        monitor = cls(int(state["n_clusters"]), limit=float(state["limit"]))
        monitor.n_answers, monitor.statistic = int(state["n_answers"]), float(state["statistic"])
        monitor._since, monitor._fitted = int(state["since"]), int(state["fitted"])
        for name in ARRAYS:
            setattr(monitor, name, np.array(state[name.removeprefix("_")]))
        monitor._centers = list(np.array(state["centers"]))
        widths = [state[f"sums.{n + 1}.b"].shape[1] for n in range(int(state["n_outcomes"]))]
        monitor._stay = [_Sums(p, 1) for p in widths]
        for number, sums in enumerate((monitor._away, *monitor._stay)):
            for name in sums.names:
                setattr(sums, name, np.array(state[f"sums.{number}.{name}"]))
        return monitor


#: what is saved
NUMBERS = ("n_clusters", "limit", "n_answers", "statistic")
ARRAYS = ("_theta", "_beta", "_size", "_past", "_X", "_jkc", "_B")
#: strata within which answers are compared, besides each prescribed cluster
STRATA = (
    "",
    ", where the nearest is prescribed",
    ", where another than the nearest is prescribed",
    ", compared with what the same entities did before",
)
#: what costs alone show
PAID = (
    "how often the cost is that of obeying",
    "what is paid beyond the cost of obeying",
    "how many centres would have cost less",
)
#: how those choose who leave
INSTEAD = (
    "how dear the centres are that are used instead of the prescribed",
    "how far from the prescribed the centres are that are used instead",
    "how often the nearest is used instead of the prescribed",
    "how near the centres are that are used instead of the prescribed",
    "how often the centre nearest to the prescribed is used instead",
    "how near to the prescribed the centres are that are used instead",
)


def _strata(K: int, n_covariates: int) -> FloatArray:
    """Return of which covariates each stratum is the sum."""
    n = len(STRATA)
    E = np.zeros((n_covariates, n + K))
    E[:K, 0] = E[:K, 2] = 1.0
    E[K, 1], E[K, 2] = 1.0, -1.0
    E[K + N_GEOMETRY, 3] = 1.0
    E[np.arange(K), n + np.arange(K)] = 1.0
    return E
