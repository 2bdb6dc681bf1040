"""Case (C1): behaviour does not depend on the centres, and a table per entity is affordable.

Two tables can be kept. ``estimate="costs"`` is the paper's: asynchronous Q-learning of the expected
cost q(i, j), a Gibbs policy, stochastic gradient steps of the centres, annealed over the answers.
``estimate="choices"`` counts the realised clusters instead. A count stays true when the centres
move, a cost does not; so the centres can be annealed on what the counts say, at no cost in answers.
Counts of one entity are blended with everybody's, by as much as entities turn out to be alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from volition.annealing import anneal
from volition.autonomy import RowAutonomy
from volition.learners.base import EARLY, Learner
from volition.learners.choice import ChoiceClustering
from volition.learners.ledger import Asked
from volition.learners.monitor import Change
from volition.learners.policy import draw
from volition.learners.probe import EACH, Assumption, Probe
from volition.learners.trial import PLAIN
from volition.phase import first_beta
from volition.population import IntArray, Population
from volition.problem import Problem
from volition.schedules import Geometric
from volition.solvers import Gradient
from volition.validation import FloatArray, check_integer, check_scalar

#: how many answers of an entity everybody's answers are worth: the candidates
LIKENESS = np.array([0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0, 10000.0])
#: answers per cluster before a fit may end: doubt about everybody's choices is not in the regret
FEWEST = 500
#: the centres are annealed anew when answers have grown by this factor; between, only improved
GROWTH = 1.5
#: share of the data's spread by which a centre jumps to become another one, with no past
MOVED = 0.2
#: largest table of counts, in numbers
MOST_NUMBERS = 200_000_000
#: what arrays of a successor are called in a file
HEIR = "successor/"


@dataclass(frozen=True)
class RobbinsMonro:
    """Step size ``scale / (offset + n)^power`` of the n-th step, n from 1, at most 1.

    The sum of the steps diverges and that of their squares converges for power in (0.5, 1].

    Examples
    --------
    >>> from volition import RobbinsMonro
    >>> [round(float(RobbinsMonro(power=1.0)(n)), 3) for n in (1, 2, 4)]
    [1.0, 0.5, 0.25]
    """

    power: float = 0.7
    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if check_scalar(self.power, "power", 0, 1) <= 0.5:
            raise ValueError(f"power must lie in (0.5, 1], got {self.power!r}.")
        check_scalar(self.scale, "scale", 0, open_low=True)
        check_scalar(self.offset, "offset", 0)

    def __call__(self, n: Any) -> Any:
        """Return the size of the n-th step."""
        return np.minimum(1.0, self.scale / (self.offset + n) ** self.power)


class TabularClustering(Learner):
    """Learn centres and prescriptions from answers, with a table per entity.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of centres.
    metric : str, Cost or callable, default="sqeuclidean"
        Cost of being served.
    estimate : {"choices", "costs"}, default="choices"
        What is kept per entity and prescription: how often each cluster was realised, or the
        expected cost (the paper's Q-learning). Choices need far fewer answers.
    n_interactions : int or "auto", default="auto"
        Questions that a fit may ask. Default: 100 per entity and cluster.
    tol : float, default=0.003
        With ``estimate="choices"`` a fit ends early once prescribing by what is known is believed
        to cost less than this share more than knowing all.
    exploration : float, default=0.1
        Share of prescriptions that are drawn blindly. Changes of behaviour are noticed in these.
    forgetting : float, default=0.0
        Rate at which answers lose weight: after ``1 / forgetting`` further answers a weight has
        fallen to 1/e.
    on_change : {"forget", "report"}, default="forget"
        What to do when behaviour seems to have changed: begin the tables anew, or only say so.
    batch_size : int or "auto", default="auto"
        Questions asked at a time by `fit`.
    beta_min, beta_max : float, optional
        Ends of the annealing for ``estimate="costs"``; chosen from the data by default.
    q_step : RobbinsMonro, optional
        Step size of q(i, j) at its n-th visit, for ``estimate="costs"``. Default: power 0.7.
    center_step : RobbinsMonro, optional
        Step size of the centres at the n-th batch at one beta, for ``estimate="costs"``. Default:
        power 0.6.
    random_state : int, Generator or None
        Seed.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (K, d)
    labels_ : ndarray of shape (n,)
        Best prescription for each entity, -1 for those that left.
    distortion_ : float
        Distortion according to the table. See `distortion_estimate` for one from answers alone.
    beta_ : float
    n_interactions_, n_answers_, n_repeated_ : int
        Questions asked, answers learned from, and answers that came twice.
    history_ : list of dict
        Per batch: interactions, answers, beta, distortion by table and by answers. Of a very long
        run, every other line is dropped now and then.
    changes_ : list of Change
        When behaviour is believed to have changed, and what shows it.
    assumption_ : Assumption or None
        Whether behaviour depends on where the centres stand, by answers at random placements, which
        a fit with 4,000 questions or more asks for first.
    successor_ : ChoiceClustering or None
        The learner that took over where that is so: a table would be wrong. A warning says it.
    tried_, kept_ : list of Tried, str
        What the learned plan and the plain one have cost at the end of a fit, and which is kept.
    stop_reason_ : str or None
        Why the last fit ended; None as long as there was none, only `ask` and `tell`.
    interrupted_ : bool
        Whether Ctrl-C ended the fit early.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import FixedAutonomy, SimulatedPopulation, TabularClustering
    >>> from volition.datasets import load_four_groups
    >>> X = load_four_groups().data
    >>> P = np.full((4, 4), 0.1) + 0.6 * np.eye(4)
    >>> people = SimulatedPopulation(X, FixedAutonomy(P), random_state=0)
    >>> model = TabularClustering(4, random_state=0).fit(X, population=people)
    >>> model.cluster_centers_.shape, model.n_interactions_ < 20_000
    ((4, 2), True)
    """

    needs_realized = True  # each centre moves towards those that realise it

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        metric: Any = "sqeuclidean",
        estimate: str = "choices",
        n_interactions: int | str = "auto",
        tol: float = 0.003,
        exploration: float = 0.1,
        forgetting: float = 0.0,
        on_change: str = "forget",
        batch_size: int | str = "auto",
        beta_min: float | None = None,
        beta_max: float | None = None,
        q_step: RobbinsMonro | None = None,
        center_step: RobbinsMonro | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.metric = metric
        self.estimate = estimate
        self.n_interactions = n_interactions
        self.tol = tol
        self.exploration = exploration
        self.forgetting = forgetting
        self.on_change = on_change
        self.batch_size = batch_size
        self.beta_min = beta_min
        self.beta_max = beta_max
        self.q_step = q_step
        self.center_step = center_step
        self.random_state = random_state

    @classmethod
    def _params_from(cls, params: dict[str, Any]) -> dict[str, Any]:
        steps = {name: params[name] for name in ("q_step", "center_step")}
        return params | {name: law and RobbinsMonro(**law) for name, law in steps.items()}

    # -- beginning --------------------------------------------------------------------------------

    def _begin(self) -> None:
        n, K = len(self._X), self.n_clusters
        check_scalar(self.forgetting, "forgetting", 0, 1)
        check_scalar(self.tol, "tol", 0)
        if self.batch_size != "auto":
            check_integer(self.batch_size, "batch_size", 1, " or 'auto'")
        for name, allowed in (
            ("estimate", ("choices", "costs")),
            ("on_change", ("forget", "report")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}.")
        if self.n_interactions != "auto":
            check_integer(self.n_interactions, "n_interactions", 1, " or 'auto'")
        base = Problem(self._X, cost=self._cost, sample_weight=self._weight)
        first = first_beta(base)
        low = first if self.beta_min is None else self.beta_min
        high = 4000 * low * K ** (2 / self._X.shape[1]) if self.beta_max is None else self.beta_max
        if not 0 < low <= high < math.inf:
            raise ValueError(f"beta_min={low!r} and beta_max={high!r} must be positive, in order.")
        self._betas = (float(low), float(high))
        self.beta_ = float(low)
        self._scale = base.scale
        self.cluster_centers_ = np.repeat(base.mean_center().astype(np.float64), K, axis=0)
        if self._by_choices:
            if n * K * K > MOST_NUMBERS:
                raise ValueError(
                    f"A table of choices for {n} entities and {K} clusters needs {n * K * K} "
                    f"numbers, more than {MOST_NUMBERS}; use estimate='costs'."
                )
            self._table = np.zeros((n, K, K))
            self._evidence = np.zeros(len(LIKENESS))
            self._solved = 0.0
            self._next_check = FEWEST * K
        else:
            self._table = np.zeros((n, K))
            self._visits = np.zeros((n, K))
            self._share = np.full(K, 1 / K)
            self._batches_at_beta = 0
        self._unit = 1.0
        self._since_step = 0
        self._probe: Probe | None = None
        self.assumption_: Assumption | None = None
        self.successor_: ChoiceClustering | None = None
        self._relabel()

    def _begin_fit(self) -> None:
        budget = self._budget + self._reserved
        n, here = Probe.size(budget), np.flatnonzero(self._weight > 0)
        distinct = np.unique(self._X[here], axis=0)
        if n == 0 or self.n_clusters < 2 or len(distinct) < 2 * self.n_clusters:
            return
        placements = np.stack(
            [
                distinct[self._rng.permutation(len(distinct))[: self.n_clusters]]
                for _ in range(n // EACH)
            ]
        )
        self._probe = Probe(placements, n, self._X, self._cost)

    @property
    def _by_choices(self) -> bool:
        return self.estimate == "choices"

    @property
    def _budget(self) -> int:
        if self.n_interactions == "auto":
            return 100 * len(self._X) * self.n_clusters
        return int(self._allowed)

    def _batch(self) -> int:
        auto = self.batch_size == "auto"
        size = max(64, min(4096, len(self._X))) if auto else int(self.batch_size)
        if self._probe is not None and self._probe.left > 0:
            size = min(size, self._probe.room())
        return size

    def _distances(self, rows: Any = slice(None)) -> FloatArray:
        x = torch.from_numpy(np.ascontiguousarray(self._X[rows]))
        with torch.no_grad():
            D: FloatArray = self._cost.pairwise(x, torch.from_numpy(self.cluster_centers_)).numpy()
        return D

    def _admit(self, first: int) -> None:
        new = len(self._X) - first
        self._table = np.concatenate([self._table, np.zeros((new, *self._table.shape[1:]))])
        if not self._by_choices:
            self._visits = np.concatenate([self._visits, np.zeros((new, self.n_clusters))])
        if self._probe is not None:
            self._probe.X = self._X
        if self.successor_ is None:
            self._relabel()

    # -- what is known ----------------------------------------------------------------------------

    def _pooled(self) -> FloatArray:
        """Return everybody's choices, (K, K), a little short of certain."""
        counts = self._table.sum(0) / self._unit + 1 / self.n_clusters
        return counts / counts.sum(1, keepdims=True)

    def _choices(self, rows: Any, pooled: FloatArray, likeness: float) -> FloatArray:
        """Return p(k | j, i) as estimated for some entities."""
        counts = self._table[rows] / self._unit
        return (counts + likeness * pooled) / (counts.sum(2, keepdims=True) + likeness)

    @property
    def likeness_(self) -> float:
        """How many answers of its own everybody's answers are worth to an entity."""
        # Without evidence everybody counts as like everybody else.
        return float(LIKENESS[::-1][int(self._evidence[::-1].argmax())])

    def _expected(self, rows: Any, D: FloatArray, likeness: float | None = None) -> FloatArray:
        """Return the expected costs q(i, j) of some entities, (m, K)."""
        if not self._by_choices:
            return D + self._table[rows]
        p = self._choices(rows, self._pooled(), likeness or self.likeness_)
        return np.einsum("ijk,ik->ij", p, D)

    def _doubt(self, rows: Any, D: FloatArray, likeness: float) -> FloatArray:
        """Return the standard error of the expected costs, (m, K)."""
        # A few equal answers must not pass for certainty: the spread is partly everybody's.
        p = self._choices(rows, self._pooled(), likeness + 5)
        mean = np.einsum("ijk,ik->ij", p, D)
        spread = np.einsum("ijk,ik->ij", p, D**2) - mean**2
        answers = self._table[rows].sum(2) / self._unit + likeness + 1
        return np.sqrt(np.maximum(spread, 0) / answers)

    def regret(self) -> float:
        """Return by what share prescribing by what is known may cost more than knowing all.

        It is an expectation over what the truth may be, given the answers so far. NaN with
        ``estimate="costs"``, and where a successor has taken over.
        """
        self._check_started()
        if not self._by_choices or self.successor_ is not None:
            return math.nan
        D = self._distances()
        weight = np.exp(self._evidence - self._evidence.max())
        weight /= weight.sum()
        best = self._expected(slice(None), D).argmin(1)
        rows, total, cost = np.arange(len(D)), 0.0, 0.0
        rng = np.random.default_rng(0)  # the same draws every time: a smooth function of the state
        for likeness, share in zip(LIKENESS, weight, strict=True):
            if share < 1e-3:
                continue
            q, doubt = (
                self._expected(slice(None), D, likeness),
                self._doubt(slice(None), D, likeness),
            )
            loss = np.zeros(len(D))
            for _ in range(8):
                truth = q + doubt * rng.standard_normal(q.shape)
                loss += (truth[rows, best] - truth.min(1)) / 8
            total += share * float(self._weight @ loss)
            cost += share * float(self._weight @ q[rows, best])
        return total / max(cost, 1e-300)

    # -- asking -----------------------------------------------------------------------------------

    def _choose(
        self, entities: IntArray, blind: np.ndarray
    ) -> tuple[IntArray, Any, Any, FloatArray]:
        K, rows = self.n_clusters, np.arange(len(entities))
        if self._probe is not None and self._probe.left > 0:
            prescribed = self._rng.integers(0, K, len(entities))
            nothing = np.zeros(len(entities), dtype=bool)
            return prescribed, 1 / K, nothing, self._probe.next(len(entities))
        D = self._distances(entities)
        q = self._expected(entities, D)
        best = q.argmin(1)
        excess = q - q[rows, best][:, None]
        if self._by_choices:
            # About the chance that j is best after all, flattened: a Gibbs policy in the square of
            # the excess, as sharp as the knowledge of each entity.
            doubt = self._doubt(entities, D, self.likeness_) ** 2
            doubt += doubt[rows, best][:, None]
            logits = -0.25 * excess**2 / np.maximum(doubt, 1e-300)
        else:
            logits = -self.beta_ * excess
        pi = np.exp(logits)
        pi /= pi.sum(1, keepdims=True)
        drawn = draw(pi, self._rng)
        prescribed = np.where(blind, self._rng.integers(0, K, len(entities)), drawn)
        chance = (1 - self.exploration) * pi[rows, prescribed] + self.exploration / K
        centers = self.cluster_centers_.copy()
        return prescribed, np.maximum(chance, 1e-12), prescribed == best, centers

    # -- learning ---------------------------------------------------------------------------------

    def _learn(
        self, asked: Asked, realized: IntArray | None, cost: FloatArray, centers: FloatArray
    ) -> None:
        assert realized is not None
        if self._probe is not None and self.assumption_ is None:
            self._probe.add(asked.entities, asked.prescribed, realized, centers)
            if self._probe.left <= 0 and self.assumption_ is None:
                self.assumption_ = self._probe.result()
        if self._by_choices:
            self._count(asked, realized)
        else:
            self._average(asked, realized)

    def _count(self, asked: Asked, realized: IntArray) -> None:
        # Answers of one pair within a slice do not foretell each other: slices are kept short.
        slice_of = max(64, len(self._X) * self.n_clusters // 4)
        for lo in range(0, len(realized), slice_of):
            part = slice(lo, lo + slice_of)
            self._count_few(asked.entities[part], asked.prescribed[part], realized[part])
        known = float(self._table.sum()) / self._unit
        # Steps that more answers would hardly change are not worth their time.
        due = self._since_step >= max(50, len(self._X) // 10, 0.02 * known)
        if due and known >= GROWTH * self._solved:
            self._anneal(known)
        elif due:
            self._improve(5)

    def _count_few(self, i: IntArray, j: IntArray, realized: IntArray) -> None:
        pooled, rows = self._pooled(), np.arange(len(i))
        # How well would each likeness have foretold these answers?
        counts = self._table[i, j] / self._unit
        mine, seen = counts[rows, realized], counts.sum(1)
        of_all = pooled[j, realized]
        foretold = (mine[:, None] + LIKENESS * of_all[:, None]) / (seen[:, None] + LIKENESS)
        fading = self.forgetting * len(i)
        self._evidence *= math.exp(-fading)
        self._evidence += np.log(foretold).sum(0)
        self._evidence -= self._evidence.max()
        # Instead of all old answers losing weight, new ones get more; now and then all is rescaled.
        if math.log(self._unit) + fading > 200:
            self._table *= math.exp(-fading) / self._unit
            self._unit = 1.0
        else:
            self._unit *= math.exp(fading)
        np.add.at(self._table, (i, j, realized), self._unit)
        self._since_step += len(i)

    def _model(self) -> Problem:
        here = np.flatnonzero(self._weight > 0)
        p = self._choices(here, self._pooled(), self.likeness_)
        return Problem(
            self._X[here],
            sample_weight=self._weight[here],
            cost=self._cost,
            autonomy=RowAutonomy(p),
        )

    def _anneal(self, known: float) -> None:
        """Find centres for what is known now, from a single place on."""
        self._solved, self._since_step = known, 0
        model = self._model()
        result = anneal(
            model, self.n_clusters, solver=Gradient(), schedule=Geometric(tau=1.3), tol=1e-5,
            random_state=0, predict=False,
        )  # fmt: skip
        # Another placement, as good or hardly better, is not worth moving everything.
        self._move_to(model, result.centers, gain=1e-3)
        self.beta_ = float(result.beta)
        self._improve(20)

    def _improve(self, n_iter: int) -> None:
        self._since_step = 0
        model = self._model()
        beta = max(self.beta_, self._betas[0])
        start = model.centers(self.cluster_centers_)
        solution = Gradient().solve(model, start, beta, max_iter=n_iter, tol=1e-6)
        self._move_to(model, solution.centers.cpu().numpy())
        self._relabel()

    def _move_to(self, model: Problem, centers: FloatArray, gain: float = 0.0) -> None:
        """Take new centres if they are better for what is known, by more than a share."""
        if model.distortion(centers) >= (1 - gain) * model.distortion(self.cluster_centers_):
            return
        if np.abs(centers - self.cluster_centers_).max() > MOVED * self._scale:
            self._monitor.forget_costs()  # of another placement
        self.cluster_centers_ = np.array(centers, dtype=np.float64)

    def _average(self, asked: Asked, realized: IntArray) -> None:
        """Q-learning and a stochastic gradient step, as published, a batch at a time."""
        i, j = asked.entities, asked.prescribed
        D = self._distances(i)
        # Of q(i, j) the cost of obeying is known: only what autonomy adds to it is learned, which
        # changes less when the centres move. Costs are those of the centres as they stand now.
        rows = np.arange(len(i))
        extra = D[rows, realized] - D[rows, j]
        step = self.q_step or RobbinsMonro()
        # Pairs that occur several times in the batch are updated one after the other.
        pair = i * self.n_clusters + j
        order = np.argsort(pair, kind="stable")
        rank = np.empty(len(pair), dtype=np.int64)
        rank[order] = np.arange(len(pair)) - np.searchsorted(pair[order], pair[order])
        floor = 1 - math.exp(-self.forgetting * self._table.size)
        for r in range(int(rank.max()) + 1):
            now = rank == r
            a, b = i[now], j[now]
            self._visits[a, b] += 1
            epsilon = np.maximum(step(self._visits[a, b]), floor)
            self._table[a, b] += epsilon * (extra[now] - self._table[a, b])
        self._move_centers(i, realized, asked.explored == 0)
        progress = min(1.0, self.n_interactions_ / self._budget)
        low, high = self._betas
        beta = low * (high / low) ** min(1.0, progress / 0.9)
        if beta > 1.02 * self.beta_:
            self.beta_, self._batches_at_beta = beta, 0
            self._monitor.stale = True  # costs so far are of prescriptions made more blindly
        self._relabel()

    def _move_centers(self, i: IntArray, realized: IntArray, on_policy: np.ndarray) -> None:
        """Step towards those who realised each centre, by its running share of them."""
        i, k = i[on_policy], realized[on_policy]
        if len(i) == 0:
            return
        self._batches_at_beta += 1
        alpha = (self.center_step or RobbinsMonro(power=0.6))(self._batches_at_beta)
        counts = np.bincount(k, minlength=self.n_clusters) / len(i)
        self._share += 0.1 * (counts - self._share)
        x, y = torch.from_numpy(self._X[i]), torch.from_numpy(self.cluster_centers_.copy())
        y.requires_grad_()
        total = self._cost.each(x, y[torch.from_numpy(k)][:, None]).sum() / len(i)
        (gradient,) = torch.autograd.grad(total, y)
        pull = gradient.numpy() / (2 * np.maximum(self._share, 1e-3)[:, None])
        if not self._cost.mean_is_optimal:
            # Costs that are not squared: a step as long as the pull would be for squared ones.
            pull *= self._scale / max(float(np.abs(pull).max()), 1e-300) * 0.1
        self.cluster_centers_ = self.cluster_centers_ - alpha * pull
        shake = 1e-3 * self._scale * math.sqrt(self._betas[0] / self.beta_)
        self.cluster_centers_ += shake * self._rng.standard_normal(self.cluster_centers_.shape)

    def _behaviour_changed(self, change: Change) -> None:
        if self.on_change == "report":
            return
        if self._by_choices:
            # Not quite nothing: until answers come, the old behaviour is the best guess.
            self._table *= 0.01 / max(1.0, float(self._table.sum(2).max()) / self._unit)
            self._evidence[:] = 0
            self._solved = 0.0
            self._next_check = self.n_answers_ + FEWEST * self.n_clusters
        else:
            self._visits[:] = np.minimum(self._visits, 1)

    # -- results ----------------------------------------------------------------------------------

    @property
    def _watches_choices(self) -> bool:  # type: ignore[override]
        # At two placements in turn, shares say nothing of changes in time.
        return self._probe is None or self.assumption_ is not None

    @property
    def _assumes_wrongly(self) -> bool:
        return self.assumption_ is not None and self.assumption_.failed

    def _doubts(self) -> list[str]:
        if self.successor_ is None or self.assumption_ is None:
            return super()._doubts()
        return [
            "Behaviour depends on where the centres stand: at random placements it went with how "
            f"near the centres were (chance {self.assumption_.p_value:.1g}, "
            f"{self.assumption_.n_answers} answers). A table per entity cannot learn that, so "
            "ChoiceClustering has learned instead: see successor_."
        ]  # what else is to be doubted, the successor has said

    def _try_plans(
        self,
        population: Population,
        interrupted: list[bool],
        on_batch: Callable[[Learner], Any] | None,
        save: Callable[[], Any] | None,
        every: float,
    ) -> str | None:
        if not self._assumes_wrongly:
            return super()._try_plans(population, interrupted, on_batch, save, every)
        return self._hand_over(population, on_batch, save, every)

    def _hand_over(
        self,
        population: Population,
        on_batch: Callable[[Learner], Any] | None,
        save: Callable[[], Any] | None,
        every: float,
    ) -> str | None:
        """Let a learner whose model has the centres in it use what is left of the budget."""
        if self.successor_ is None:
            self._handed_at = self.n_interactions_, self.n_answers_
            seed = int(self._rng.integers(2**31))
            heir = ChoiceClustering(
                self.n_clusters, metric=self._cost, n_interactions=self._left, random_state=seed
            )
            heir.start(self._X, self._weight)
            self.successor_ = heir

        def follow(heir: Learner) -> Any:
            self._follow()
            return on_batch is not None and on_batch(self)

        def save_both() -> None:
            self._follow()
            if save is not None:
                save()

        self._concluded = False
        self.successor_.n_interactions = self._left
        kept = None if save is None else save_both
        reason = self.successor_._run_fit(population, kept, every, follow)
        self._concluded = reason not in EARLY
        self._follow()
        spent = self.n_interactions != "auto" and self.n_interactions_ >= int(self.n_interactions)
        return self._spent(int(self._allowed)) if spent and self._concluded else reason

    @property
    def _left(self) -> int | str:
        """Questions that were left for the successor when it took over."""
        if self.n_interactions == "auto":
            return "auto"
        return int(self.n_interactions) - self._handed_at[0]

    def _run_fit(self, *args: Any, **kwargs: Any) -> str | None:
        if self.successor_ is not None and self.successor_.n_interactions != self._left:
            self._concluded = False  # it may ask more than before
        return super()._run_fit(*args, **kwargs)

    def add_entities(self, X: Any, sample_weight: Any = None) -> IntArray:
        if self.successor_ is None:
            return super().add_entities(X, sample_weight)
        new = self.successor_.add_entities(X, sample_weight)
        self._X = np.concatenate([self._X, self.successor_._X[new]])
        self._weight = np.concatenate([self._weight, self.successor_._weight[new]])
        self._admit(int(new[0]))
        self._follow()
        return new

    def remove_entities(self, entities: Any) -> TabularClustering:
        if self.successor_ is None:
            super().remove_entities(entities)
            return self
        self.successor_.remove_entities(entities)
        self._weight[np.asarray(entities)] = 0
        self._follow()
        return self

    def _follow(self) -> None:
        """Take over how far the successor is."""
        heir, (asked, answered) = self.successor_, self._handed_at
        assert heir is not None
        self.n_interactions_ = asked + heir.n_interactions_
        self.n_answers_ = answered + heir.n_answers_
        self.cluster_centers_, self.labels_ = heir.cluster_centers_, heir.labels_
        self.distortion_, self.beta_ = heir.distortion_, heir.beta_
        self.tried_, self.kept_, self.believed_ = heir.tried_, heir.kept_, heir.believed_
        mine = [line for line in self.history_ if line["interactions"] <= asked]
        self.history_ = mine + [
            line
            | {"interactions": line["interactions"] + asked, "answers": line["answers"] + answered}
            for line in heir.history_
        ]

    def _check_asks(self) -> None:
        super()._check_asks()
        if self.successor_ is not None:
            raise ValueError(
                "Behaviour depends on where the centres stand, and ChoiceClustering has taken "
                "over: go on with the learner in successor_."
            )

    def _recost(self, entities: IntArray, realized: IntArray) -> FloatArray:
        """Return the costs of past answers at the centres as they stand."""
        return self._distances(entities)[np.arange(len(entities)), realized]

    def _relabel(self) -> None:
        D = self._distances()
        q = self._expected(slice(None), D)
        self.labels_ = np.where(self._weight > 0, q.argmin(1), -1)
        self.distortion_ = float(self._weight @ q.min(1) / max(self._weight.sum(), 1e-300))

    def _enough(self) -> str | None:
        if self._assumes_wrongly:
            return "behaviour depends on where the centres stand"
        if self.n_interactions_ >= self._budget:
            return self._spent(self._budget)
        if not self._by_choices or self.n_answers_ < self._next_check:
            return None
        if self.regret() < self.tol:
            return f"expected regret below tol={self.tol:g}"
        self._next_check = math.ceil(1.05 * self.n_answers_)
        return None

    def _limit_is_default(self) -> bool:
        return self.n_interactions == "auto"

    def _limit(self) -> int:
        return self._budget

    def _conclude(self, thoroughly: bool) -> None:
        if self.successor_ is not None:
            self._follow()
            return
        if self._by_choices and self.n_answers_ and thoroughly:
            self._anneal(float(self._table.sum()) / self._unit)
        self._relabel()

    def expected_costs(self) -> FloatArray:
        """Return what is known about the expected cost of prescribing j to i, shape (n, K)."""
        self._check_started()
        if self.successor_ is not None:
            return self.successor_.expected_costs()
        return self._expected(slice(None), self._distances())

    def predict(self, X: Any) -> IntArray:
        """Return the best prescription for entities of which only the features are known.

        Entities that have answered are prescribed by their own table: see ``labels_``.

        Parameters
        ----------
        X : array of shape (m, d)

        Returns
        -------
        ndarray of shape (m,)
        """
        self._check_started()
        if self.successor_ is not None:
            return self.successor_.predict(X)
        x, y = torch.from_numpy(self._features(X)), torch.from_numpy(self.cluster_centers_)
        with torch.no_grad():
            D = self._cost.pairwise(x, y).numpy()
        by_others = self._by_choices and self.kept_ != PLAIN
        return (D @ self._pooled().T if by_others else D).argmin(1)

    # -- interruption -----------------------------------------------------------------------------

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        numbers, arrays = self._own_state()
        numbers["successor"] = None
        if self.successor_ is not None:
            numbers["handed_at"] = list(self._handed_at)
            numbers["successor"], theirs = self.successor_._document()
            arrays |= {f"{HEIR}{name}": value for name, value in theirs.items()}
        return numbers, arrays

    def _own_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        numbers: dict[str, Any] = {
            "estimate": self.estimate,
            "unit": self._unit,
            "since_step": self._since_step,
            "beta": self.beta_,
            "betas": list(self._betas),
            "scale": self._scale,
            "probe_left": self._probe and [self._probe.left, self._probe.n_questions],
            "assumption": self.assumption_ and list(self.assumption_),
        }
        probed = {}
        if self._probe is not None:
            probed = {
                "placements": self._probe.placements,
                "probe_sums": self._probe.sums,
                "probe_counts": self._probe.counts,
            }
        if self._by_choices:
            numbers |= {"solved": self._solved, "next_check": self._next_check}
            return numbers, {"table": self._table, "evidence": self._evidence, **probed}
        numbers["batches_at_beta"] = self._batches_at_beta
        arrays = {"table": self._table, "visits": self._visits, "share": self._share}
        return numbers, arrays | probed

    def _accept(self, numbers: dict[str, Any]) -> None:
        if numbers["estimate"] != self.estimate:
            raise ValueError(
                f"The file holds estimate={numbers['estimate']!r}, not {self.estimate!r}."
            )

    def _restore(self, numbers: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        theirs = {k: arrays.pop(k) for k in list(arrays) if k.startswith(HEIR)}
        if numbers.get("successor") is not None:  # files of older versions have none
            header, self._handed_at = numbers["successor"], tuple(numbers["handed_at"])
            params = ChoiceClustering._params_from(header["params"]) | {"metric": self._cost}
            self.successor_ = ChoiceClustering(**params)
            tensors = {k.removeprefix(HEIR): v for k, v in theirs.items()}
            self.successor_._take(tensors, header, Path("the file"))
        self._scale = numbers["scale"]
        self._unit, self._since_step = numbers["unit"], numbers["since_step"]
        self.beta_, self._betas = numbers["beta"], tuple(numbers["betas"])
        if self._by_choices:
            self._solved, self._next_check = numbers["solved"], numbers["next_check"]
        else:
            self._batches_at_beta = numbers["batches_at_beta"]
        if numbers.get("assumption") is not None:
            self.assumption_ = Assumption(*numbers["assumption"])
        if numbers.get("probe_left") is not None:
            left, n_questions = numbers["probe_left"]
            self._probe = Probe(arrays.pop("placements"), n_questions, self._X, self._cost)
            self._probe.left = left
            self._probe.sums, self._probe.counts = (
                arrays.pop(name) for name in ("probe_sums", "probe_counts")
            )
        for name, value in arrays.items():
            setattr(self, f"_{name}", value)
