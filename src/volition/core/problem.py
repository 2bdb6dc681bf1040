"""The problem: entities, weights, cost and autonomy, and every sum over entities that is needed.

All sums run through one additive kernel, block by block and chunk by chunk, so that memory is
bounded and the same few (K, d) numbers can come from a batch, a file or another machine. Two forms
of the kernel exist. When the cost is squared Euclidean and p(k | j) does not depend on the entity,
autonomy is folded into the centres (`_collapsed_block`): D̄ = |x|² - 2 x·(PY)ᵀ + P|y|². Otherwise
costs are averaged chunk by chunk (`_general_chunk`).

``beta = inf`` is allowed everywhere: the policy is then hard, the free energy is the distortion.
"""

from __future__ import annotations

import copy
import itertools
import math
import threading
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from volition.core.autonomy import Autonomy, Chunk, Passive, RowAutonomy, Transition
from volition.core.costs import LARGEST_COORDINATE, Cost, SquaredEuclidean, resolve_cost
from volition.core.deadline import NEVER, Deadline
from volition.core.kernels.blocks import Sums, add_over_blocks, add_up
from volition.core.outliers import bulk_of
from volition.core.validation import FloatArray, check_centers, check_entities, check_weights

LOG2E = math.log2(math.e)
BLOCK_ROWS = 65536
#: numbers in a chunk's largest matrix; about what stays in cache
CHUNK_NUMBERS = 2**20
#: entities times clusters from which sums are compiled: below, PyTorch takes at most a fifth longer
#: for a gradient (`benchmarks/first_fit.py`), and compiling takes longer than a whole fit
COMPILED_PAIRS = 2**15
#: up to this many columns, a (columns, columns) matrix is cheap even for few rows
FEW_COLUMNS = 64
#: error of a squared distance, as a share of those that most entities have, above which squares are
#: not expanded; in single precision rounding of the data themselves is no less
SQUARE_ERROR = {np.float32: 1e-3, np.float64: 1e-6}
#: variance over the typical squared distance, above which the latter is the scale of everything
TAIL_RATIO = 1e4
LOWEST_EXPONENT = {torch.float32: 80.0, torch.float64: 690.0}


class Block(NamedTuple):
    """Rows lo..hi-1 (in the problem's own order), all of one group."""

    lo: int
    hi: int
    group: int


class Moments(NamedTuple):
    """What Algorithm 1 needs: free energy, realised mass (K,) and moment (K, d) per centre.

    ``prescribed`` holds, where autonomy is folded into the centres, the sums of [1, x] over
    prescriptions, (groups, d+1, K), from which the exact gradient follows without another pass.
    """

    free_energy: float
    mass: Tensor
    moment: Tensor
    prescribed: Tensor | None = None


class Summary(NamedTuple):
    """Figures of a state: soft and hard distortion, entropy, prescribed mass per cluster."""

    free_energy: float
    distortion: float
    hard_distortion: float
    entropy: float
    mass: FloatArray


def check_spread(X: FloatArray, cost: Cost) -> None:
    """Raise ValueError if entities differ, but by less than can be squared."""
    spread = float(np.ptp(X, axis=0).max())
    least = 1 / LARGEST_COORDINATE[X.dtype.type]
    if isinstance(cost, SquaredEuclidean) and 0 < spread < least:
        raise ValueError(
            f"X spreads over {spread:g} only; squared distances need a spread of at least "
            f"{least:g} in {X.dtype}: use smaller units."
        )


class Problem:
    """Entities with weights, a cost and an autonomy model.

    Large problems keep the log-partitions of the last pass, from which the next one starts; results
    depend on them by rounding only. Use one problem in one thread at a time (it uses several cores
    by itself). Copies (`with_autonomy`, `with_deadline`) share the data and nothing else.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities; float32 is computed in float32, all else in float64.
    sample_weight : array of shape (n,), optional
        Relative weights.
    cost : Cost, default=SquaredEuclidean()
        See :mod:`volition.core.costs`.
    autonomy : Autonomy, default=Passive()
        See :mod:`volition.core.autonomy`.
    groups : array of shape (n,), optional
        Group of each entity, for a `FixedAutonomy` with several matrices.
    chunk_size : int, optional
        Rows handled at a time; chosen from K by default. Changes memory, not results.
    device : str, default="cpu"
        Where torch computes.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import DistanceAutonomy
    >>> from volition.core.problem import Problem
    >>> problem = Problem(np.array([[0.0], [1.0], [4.0]]), autonomy=DistanceAutonomy(0.5))
    >>> problem.expected_costs(np.array([[0.0], [4.0]])).round(6).tolist()
    [[8.0, 8.0], [5.0, 5.0], [8.0, 8.0]]
    """

    #: when sums over entities raise `OutOfTime`
    deadline: Deadline = NEVER

    def __init__(
        self,
        X: Any,
        *,
        sample_weight: Any = None,
        cost: Cost | None = None,
        autonomy: Autonomy | None = None,
        groups: Any = None,
        chunk_size: int | None = None,
        device: str = "cpu",
    ) -> None:
        X = check_entities(X)
        self.cost = SquaredEuclidean() if cost is None else cost
        self.autonomy = Passive() if autonomy is None else autonomy
        self.cost.check(X)
        self.chunk_size = chunk_size
        self.device = torch.device(device)
        self.n, self.d = X.shape
        weight = check_weights(sample_weight, self.n)
        codes = self.autonomy.group_codes(groups, self.n)
        if codes is None:
            self._order = None
            self.blocks = _cut(0, self.n, 0)
        else:
            # Entities of one group stand together, so that a block has a single matrix.
            self._order = np.argsort(codes, kind="stable")
            edges = np.searchsorted(codes[self._order], np.arange(codes.max() + 2))
            self.blocks = [
                block
                for g, (lo, hi) in enumerate(itertools.pairwise(edges))
                for block in _cut(int(lo), int(hi), g)
            ]
        self._fill(X, weight)

    def _fill(self, X: FloatArray, weight: FloatArray | None) -> None:
        """Lay out [1, x - origin] per entity: both matrix products read it once."""
        order = slice(None) if self._order is None else self._order
        mean = np.average(X, axis=0, weights=weight)
        # Rounded like the data, so that entities and centres are moved by exactly the same.
        origin = mean.astype(X.dtype) if self.cost.translation_invariant else np.zeros_like(X[0])
        bulk = 0.0
        if isinstance(self.cost, SquaredEuclidean):
            center, bulk = bulk_of(X, weight)
            farthest = np.maximum(X.max(0) - center, center - X.min(0))
            self._largest_square = float(farthest @ farthest)
            eps = float(np.finfo(X.dtype).eps)
            if bulk > 0 and eps * self._largest_square > SQUARE_ERROR[X.dtype.type] * bulk:
                # A few far values: keep the digits of most entities by centring on them.
                self.cost, origin = SquaredEuclidean(by_differences=True), center.astype(X.dtype)
        self.origin = torch.from_numpy(origin.astype(np.float64)).to(self.device)
        # By columns: the compiled pass runs along entities.
        data = np.empty((self.d + 1, self.n), dtype=X.dtype).T
        data[:, 0] = 1
        np.subtract(X[order], origin, out=data[:, 1:])
        rho = np.full(self.n, 1 / self.n) if weight is None else weight[order]
        self._data = torch.from_numpy(data).to(self.device)
        self._rho = torch.from_numpy(rho.astype(X.dtype, copy=False)).to(self.device)[:, None]
        self.dtype = self._data.dtype
        #: log-partitions of the last compiled pass, the shifts that the next one starts from
        self._shifts: Tensor | None = None
        offset = self.origin - torch.from_numpy(mean.astype(np.float64)).to(self.device)
        self._square, spread = self._over_rows(
            lambda x, w: ((w.T @ (x * x)).sum(), (w.T @ (x + offset) ** 2).sum())
        )
        variance = float(spread)
        #: whether a few far entities hold nearly all variance, which is then no scale to judge by
        self.dominated_by_few = bulk > 0 and variance > TAIL_RATIO * bulk
        if self.dominated_by_few:
            variance = bulk
        #: length by which moves of centres are judged
        self.scale = math.sqrt(variance) or 1.0
        #: cost by which changes of free energy are judged: that of a single centre
        self.cost_scale = variance or 1.0
        if not isinstance(self.cost, SquaredEuclidean):
            self.cost_scale = self.single_center_cost() or 1.0

    def _over_rows(self, fn: Callable[[Tensor, Tensor], Sums]) -> Sums:
        """Return the sums of ``fn(x, weight)`` over blocks of centred entities, in float64."""

        def run(block: Block) -> Sums:
            rows = slice(block.lo, block.hi)
            return fn(self._data[rows, 1:].double(), self._rho[rows].double())

        return self.add_over_blocks(run)

    def add_over_blocks(self, run: Callable[[Block], Sums]) -> Sums:
        """Return the sums of ``run(block)`` over all blocks; raise `OutOfTime` if it is late."""

        def timely(block: Block) -> Sums:
            self.deadline.check()
            return run(block)

        return add_over_blocks(timely, self.blocks, self.device.type == "cpu")

    @cached_property
    def largest_variance(self) -> float:
        """Variance along the entities' main axis, or of most of them where `dominated_by_few`."""
        if self.dominated_by_few:
            return self.cost_scale
        if self.n < self.d and self.d > FEW_COLUMNS:
            x, w = self._data[:, 1:].double(), self._rho.double()
            x = (x - w.T @ x) * w.sqrt()
            return float(torch.linalg.eigvalsh(x @ x.T)[-1])
        (mean,) = self._over_rows(lambda x, w: (w.T @ x,))
        (covariance,) = self._over_rows(lambda x, w: ((w * (x - mean)).T @ (x - mean),))
        return float(torch.linalg.eigvalsh(covariance)[-1])

    # -- views on the data ------------------------------------------------------------------------

    @property
    def X(self) -> FloatArray:
        """The entities, in the order in which they were given."""
        points = self._data[:, 1:].cpu().numpy()
        return self._unorder(points + self.origin.cpu().numpy().astype(points.dtype))

    @property
    def weight(self) -> FloatArray:
        """Weights that sum to one, in the order in which entities were given."""
        return self._unorder(self._rho[:, 0].cpu().numpy())

    def _unorder(self, rows: FloatArray) -> FloatArray:
        if self._order is None:
            return rows
        out = np.empty_like(rows)
        out[self._order] = rows
        return out

    @property
    def n_blocks(self) -> int:
        """Number of blocks that can be worked on at the same time."""
        return len(self.blocks)

    def with_autonomy(self, autonomy: Autonomy) -> Problem:
        """Return the same problem under another autonomy model, sharing the data."""
        other = self._copy()
        other.autonomy = autonomy
        return other

    def with_deadline(self, deadline: Deadline) -> Problem:
        """Return the same problem, sharing the data, whose sums raise `OutOfTime` when late."""
        other = self._copy()
        other.deadline = deadline
        return other

    def check_spread(self) -> None:
        """Raise ValueError if entities differ, but by less than can be squared."""
        check_spread(self._data[:, 1:].cpu().numpy(), self.cost)

    def by_differences(self) -> Problem:
        """Return the same problem, sharing the data, in which squares are not expanded."""
        other = self._copy()
        other.cost = SquaredEuclidean(by_differences=True)
        return other

    def _copy(self) -> Problem:
        """Return a copy that shares the data, with shifts of its own."""
        other = copy.copy(self)
        other._shifts = None if self._shifts is None else self._shifts.clone()
        return other

    def loses_digits(self, cost: float) -> bool:
        """Whether rounding, where squares are expanded, shows in a cost of this size."""
        if not isinstance(self.cost, SquaredEuclidean) or self.cost.by_differences:
            return False
        # Folded into the centres, costs are judged in double precision.
        eps = torch.finfo(torch.float64 if self.collapses else self.dtype).eps
        return eps * self._largest_square > SQUARE_ERROR[np.float64] * cost

    def subset(self, index: np.ndarray, sample_weight: FloatArray) -> Problem:
        """Return the problem of some of the entities."""
        autonomy, groups = self.autonomy.subset(index), None
        if self._order is not None:
            codes = np.empty(self.n, dtype=np.int64)
            for block in self.blocks:
                codes[self._order[block.lo : block.hi]] = block.group
            labels = getattr(autonomy, "labels", None)
            picked = codes[index]
            groups = picked if labels is None else np.array(labels, dtype=object)[picked]
        return Problem(
            self.X[index],
            sample_weight=sample_weight,
            cost=self.cost,
            autonomy=autonomy,
            groups=groups,
            chunk_size=self.chunk_size,
            device=str(self.device),
        )

    def mean_center(self) -> FloatArray:
        """Return the weighted mean of the entities (on the globe: of their directions), (1, d)."""
        Z = self.cost.embed(self.X)
        return self.cost.unembed(np.average(Z, axis=0, weights=self.weight)[None])

    def single_center_cost(self) -> float:
        """Return the mean cost of serving everyone from the mean."""
        return self.with_autonomy(Passive()).distortion(self.mean_center())

    def centers(self, Y: Any) -> Tensor:
        """Return centres as the float64 tensor that solvers work with."""
        return torch.as_tensor(Y, dtype=torch.float64, device=self.device)

    def _local(self, Y: Tensor) -> Tensor:
        """Centres in the coordinates and precision of the stored data."""
        return (Y - self.origin).to(self.dtype)

    # -- what solvers ask for ---------------------------------------------------------------------

    @property
    def collapses(self) -> bool:
        """Whether autonomy can be folded into the centres."""
        if not isinstance(self.cost, SquaredEuclidean) or self.cost.by_differences:
            return False
        return not self.autonomy.by_entity

    def moments(self, Y: Any, beta: float) -> Moments:
        """Return free energy, mass and moment of realised clusters at the Gibbs policy."""
        with torch.no_grad():
            y = self._local(self.centers(Y))
            prescribed = None
            if self.collapses:
                P = self.autonomy.shared(y, self.cost)
                energy, prescribed = self._sum_collapsed(y, P, beta)
                realized = (prescribed @ P.double()).sum(0)
                mass, moment = realized[0], realized[1:].T
            else:
                energy, mass, moment = self._sum_general(y, beta, "moments")
            moment = moment + mass[:, None] * self.origin
            return Moments(float(energy), mass, moment, prescribed)

    def free_energy(self, Y: Any, beta: float) -> float:
        """Return the free energy; at infinite beta, the distortion."""
        if self.collapses:
            return self.moments(Y, beta).free_energy
        (energy,) = self._sum_general(self._local(self.centers(Y)), beta, "energy")
        return float(energy)

    def value_and_gradient(self, Y: Any, beta: float) -> tuple[float, Tensor]:
        """Return the free energy and its exact gradient, p(Y) included."""
        if self.collapses:
            sums = self.moments(Y, beta)
            return sums.free_energy, self.gradient(Y, beta, sums)
        if isinstance(self.cost, SquaredEuclidean) and not self.autonomy.depends_on_centers:
            # Theorem 1: nothing flows through p, so Algorithm 1's step is the gradient.
            sums = self.moments(Y, beta)
            return sums.free_energy, 2 * (sums.mass[:, None] * self.centers(Y) - sums.moment)
        energy, gradient = self._sum_general(self._local(self.centers(Y)), beta, "gradient")
        return float(energy), gradient

    def gradient(self, Y: Any, beta: float, sums: Moments) -> Tensor:
        """Return the exact gradient, given the moments at the same state.

        By the envelope theorem the gradient of F is that of the expected cost at a fixed policy. In
        the collapsed form it is 2 (mass y - moment), the step of Algorithm 1 (Theorem 1), plus what
        flows through p(Y): a derivative of (K, K) numbers, whatever the number of entities.
        """
        if sums.prescribed is None:
            return self.value_and_gradient(Y, beta)[1]
        y = (self.centers(Y) - self.origin).detach()
        y.requires_grad_(self.autonomy.depends_on_centers)
        P = self.autonomy.shared(y, self.cost)
        mass, moment = sums.prescribed[:, :1].transpose(1, 2), sums.prescribed[:, 1:]
        with torch.no_grad():
            realized = (sums.prescribed @ P).sum(0)
            gradient = 2 * (realized[0, :, None] * y - realized[1:].T)
            by_p = mass * (y * y).sum(1) - 2 * (moment.transpose(1, 2) @ y.T)
        if P.requires_grad:
            gradient += torch.autograd.grad(P, y, by_p)[0]
        return gradient

    def summary(self, Y: Any, beta: float) -> Summary:
        """Return the figures of the state (Y, Gibbs policy at beta)."""
        return self._state(Y, beta, None)

    def prescribe(self, Y: Any, beta: float) -> tuple[np.ndarray, FloatArray, Summary]:
        """Return labels (n,), the Gibbs policy (n, K) and the summary, in one pass."""
        K = len(Y)
        labels = torch.empty(self.n, dtype=torch.int64, device=self.device)
        policy = torch.empty(self.n, K, dtype=self.dtype, device=self.device)
        summary = self._state(Y, beta, (labels, policy))
        return self._unorder(labels.cpu().numpy()), self._unorder(policy.cpu().numpy()), summary

    def _state(self, Y: Any, beta: float, out: tuple[Tensor, Tensor] | None) -> Summary:
        with torch.no_grad():
            y = self._local(self.centers(Y))
            tables = self._exact_tables(Y) if self.collapses else None
            step = self._chunk_rows(len(y)) // (1 if self.chunk_size else 2) or 1

            def run(block: Block) -> Sums:
                if tables is not None and (compiled := self._compiled(len(y))) is not None:
                    mass = torch.zeros(len(y), dtype=torch.float64)
                    arrays = out and (out[0].numpy(), out[1].numpy())
                    where, table = slice(block.lo, block.hi), tables[block.group].numpy()
                    sums = compiled.states(*self._arrays, table, where, beta, arrays, mass.numpy())
                    return *torch.tensor(sums, dtype=torch.float64), mass
                parts = (
                    self._state_of_chunk(
                        slice(lo, min(lo + step, block.hi)), block, y, tables, beta, out
                    )
                    for lo in range(block.lo, block.hi, step)
                )
                return add_up(parts)

            energy, soft, hard, mass = self.add_over_blocks(run)
        entropy = 0.0 if math.isinf(beta) else max(0.0, beta * float(soft - energy))
        return Summary(float(energy), float(soft), float(hard), entropy, mass.cpu().numpy())

    def _state_of_chunk(
        self,
        rows: slice,
        block: Block,
        y: Tensor,
        tables: Tensor | None,
        beta: float,
        out: tuple[Tensor, Tensor] | None,
    ) -> Sums:
        self.deadline.check()
        rho = self._rho[rows]
        E = self._expected(rows, block.group, y, tables)
        best, label = E.min(1, keepdim=True)
        hard = (best * rho).sum(dtype=torch.float64)
        if math.isinf(beta):
            pi, energy, soft = torch.zeros_like(E).scatter_(1, label, 1.0), hard, hard
        else:
            excess = best - E
            pi = excess.mul(beta).clamp_(min=-self._lowest).exp_()
            z = pi.sum(1, keepdim=True)
            pi /= z
            energy = hard - (z.log_() * rho).sum(dtype=torch.float64) / beta
            soft = hard - ((excess * pi).sum(1, keepdim=True) * rho).sum(dtype=torch.float64)
        if out is not None:
            out[0][rows], out[1][rows] = label[:, 0], pi
        return energy, soft, hard, (pi.T @ rho)[:, 0].double()

    def distortion(self, Y: Any, labels: Any = None) -> float:
        """Return the distortion of the hard policy, or of the prescriptions ``labels``."""
        if labels is None:
            return self.summary(Y, math.inf).hard_distortion
        expected = self.expected_costs(Y)
        chosen = np.take_along_axis(expected, np.asarray(labels)[:, None], axis=1)[:, 0]
        return float(chosen.astype(np.float64) @ self.weight.astype(np.float64))

    def expected_costs(self, Y: Any) -> FloatArray:
        """Return D̄, shape (n, K): expected cost of prescribing j to i."""
        return self._rows(Y, self._expected)

    def policy(self, Y: Any, beta: float) -> FloatArray:
        """Return the Gibbs policy pi(j | i), shape (n, K)."""
        return self.prescribe(Y, beta)[1]

    def labels(self, Y: Any) -> np.ndarray:
        """Return the best prescription for each entity."""
        return self._rows(Y, lambda *where: self._expected(*where).argmin(1))

    def realized(self, Y: Any, policy: FloatArray) -> FloatArray:
        """Return the distribution of realised clusters, (n, K), under a policy (n, K)."""
        order = slice(None) if self._order is None else self._order
        W = torch.as_tensor(policy[order], dtype=self.dtype, device=self.device)
        return self._rows(Y, lambda *where: self.chunk(*where)[1].realized(W[where[0]]))

    def conditional(self, Y: Any, prescribed: np.ndarray) -> FloatArray:
        """Return p(. | prescribed_i, i), shape (n, K)."""
        order = slice(None) if self._order is None else self._order
        j = torch.as_tensor(np.asarray(prescribed)[order], device=self.device)
        return self._rows(Y, lambda *where: self.chunk(*where)[1].conditional(j[where[0]]))

    # -- the kernel -------------------------------------------------------------------------------

    def _sum_collapsed(self, y: Tensor, P: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """Return F, and per group the (d+1, K) sums of [1, x] weighted by pi."""
        hard = math.isinf(beta)
        bits = LOG2E * (1.0 if hard else beta)
        tables = self.tables(y, P, -bits)
        chunk = self._chunk_rows(len(y))
        if self._shifts is None and self._compiled(len(y)) is not None:
            self._shifts = torch.zeros(self.n, dtype=self.dtype)

        def run(block: Block) -> Sums:
            return self._collapsed_block(block, tables, chunk, hard)

        log_partition, sums = self.add_over_blocks(run)
        return self._square - log_partition / bits, sums

    def tables(self, y: Tensor, P: Tensor, factor: float = 1.0) -> Tensor:
        """Return per group a (d+1, K) table: [1, x] @ table = factor (D̄ - |x|²)."""
        square = (y * y).sum(1, keepdim=True)
        row = torch.cat([square * factor, y * (-2 * factor)], dim=1)
        return (P @ row).transpose(1, 2).contiguous()

    def _exact_tables(self, Y: Any) -> Tensor:
        y = self.centers(Y) - self.origin
        return self.tables(y, self.autonomy.shared(y, self.cost))

    def _collapsed_block(self, block: Block, tables: Tensor, chunk: int, hard: bool) -> Sums:
        sums = torch.zeros(len(tables), *tables[0].shape, dtype=torch.float64, device=self.device)
        rows = slice(block.lo, block.hi)
        table, mine = tables[block.group], sums[block.group]
        if hard:
            best = self._hard_sums(rows, table, chunk, mine)
            return (best * self._rho[rows]).sum(dtype=torch.float64), sums
        return self._soft_sums(rows, table, chunk, mine), sums

    def _compiled(self, K: int) -> Any:
        """Return the module of compiled passes where these pay."""
        if self.device.type != "cpu" or self.n * K < COMPILED_PAIRS:
            return None
        if self.n < FEW_COLUMNS < self.d:  # its tiles would be nearly empty
            return None
        return _compiled_passes()

    @property
    def _arrays(self) -> tuple[FloatArray, FloatArray]:
        """Data by columns and weights, as compiled passes take them."""
        return self._data.numpy().T, self._rho.numpy()[:, 0]

    def _soft_sums(self, rows: slice, table: Tensor, chunk: int, sums: Tensor) -> Tensor:
        """Add the sums of [1, x] weighted by pi; return the sum of the log-partitions."""
        if (compiled := self._compiled(table.shape[1])) is not None:
            assert self._shifts is not None
            arrays = (*self._arrays, self._shifts.numpy(), table.numpy())
            return torch.tensor(
                -compiled.soft_sums(*arrays, rows, sums.numpy()), dtype=torch.float64
            )
        n, K = rows.stop - rows.start, table.shape[1]
        E, W, L, ratio, part = _buffers(min(chunk, n), n, K, self.d, self.dtype, self.device)
        for lo in range(rows.start, rows.stop, chunk):
            hi = min(lo + chunk, rows.stop)
            data, e, w, r = self._data[lo:hi], E[: hi - lo], W[: hi - lo], ratio[: hi - lo]
            top = torch.mm(data, table, out=e).amax(1, keepdim=True)
            e.sub_(top).clamp_(min=-self._lowest * LOG2E).exp2_()
            z = e.sum(1, keepdim=True)
            torch.div(self._rho[lo:hi], z, out=r)
            torch.mul(data, r, out=w)
            sums += torch.mm(w.T, e, out=part)
            torch.add(top, z.log2_(), out=L[lo - rows.start : hi - rows.start])
        return (L * self._rho[rows]).sum(dtype=torch.float64)

    def _hard_sums(self, rows: slice, table: Tensor, chunk: int, sums: Tensor) -> Tensor:
        """Add the sums of [1, x] over the best prescriptions; return each row's best exponent."""
        best = torch.empty(rows.stop - rows.start, 1, dtype=self.dtype, device=self.device)
        for lo in range(rows.start, rows.stop, chunk):
            hi = min(lo + chunk, rows.stop)
            points = self._data[lo:hi]
            e = points @ table
            top, label = e.max(1, keepdim=True)
            best[lo - rows.start : hi - rows.start] = top
            sums += (points * self._rho[lo:hi]).T @ e.zero_().scatter_(1, label, 1.0)
        return best

    @property
    def _lowest(self) -> float:
        """Exponents are kept above minus this: denormals make later products much slower."""
        return LOWEST_EXPONENT[self.dtype]

    def _sum_general(self, y: Tensor, beta: float, want: str) -> Sums:
        chunk = self._chunk_rows(len(y))

        def run(block: Block) -> Sums:
            return add_up(
                self._general_chunk(
                    slice(lo, min(lo + chunk, block.hi)), block.group, y, beta, want
                )
                for lo in range(block.lo, block.hi, chunk)
            )

        return self.add_over_blocks(run)

    def _general_chunk(self, rows: slice, group: int, y: Tensor, beta: float, want: str) -> Sums:
        self.deadline.check()
        rho = self._rho[rows]
        with torch.set_grad_enabled(want == "gradient"):
            y = y.detach().requires_grad_(want == "gradient")
            chunk, transition = self.chunk(rows, group, y)
            expected = transition.expected(chunk.D)
        with torch.no_grad():
            pi, energy = _gibbs(expected.detach(), beta)
            W = pi * rho
            F = (energy * rho).sum(dtype=torch.float64)
            if want == "energy":
                return (F,)
            if want == "moments":
                R = transition.realized(W)
                return F, R.sum(0, dtype=torch.float64), (R.T @ chunk.X).double()
        (gradient,) = torch.autograd.grad(expected, y, W)
        return F, gradient.double()

    def _expected(self, rows: slice, group: int, y: Tensor, tables: Tensor | None = None) -> Tensor:
        """Return D̄ of a chunk, (n, K)."""
        if not self.collapses:
            chunk, transition = self.chunk(rows, group, y)
            return transition.expected(chunk.D)
        tables = self._exact_tables(y + self.origin) if tables is None else tables
        # In double precision: near a centre the three terms cancel almost completely.
        points = self._data[rows].double()
        square = (points[:, 1:] * points[:, 1:]).sum(1, keepdim=True)
        return (points @ tables[group]).add_(square).clamp_(min=0).to(self.dtype)

    def chunk(self, rows: slice, group: int, y: Tensor) -> tuple[Chunk, Transition]:
        """Return some entities as the models see them, and how they override; y is centred."""
        x = self._data[rows, 1:].to(y.dtype)
        # Models go by the numbers that entities were given with, not by where they stand here.
        who = rows if self._order is None else self._order[rows]
        chunk = Chunk(x, self.origin.to(y.dtype), self.cost.pairwise(x, y), who, group)
        return chunk, self.autonomy.transition(chunk, y, self.cost)

    def features(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return [1, x] of some entities, centred, and their weights (n, 1), in float64."""
        return self._data[rows].double(), self._rho[rows].double()

    def _rows(self, Y: Any, fn: Callable[[slice, int, Tensor], Tensor]) -> np.ndarray:
        """Return one row per entity of what ``fn(rows, group, y)`` gives for chunks."""
        y = self._local(self.centers(Y))
        step = self._chunk_rows(len(y))
        parts = []
        with torch.no_grad():
            for block in self.blocks:
                for lo in range(block.lo, block.hi, step):
                    self.deadline.check()
                    rows = slice(lo, min(lo + step, block.hi))
                    parts.append(fn(rows, block.group, y).cpu())
        return self._unorder(torch.cat(parts).numpy())

    def _chunk_rows(self, K: int) -> int:
        if self.chunk_size is not None:
            return self.chunk_size
        # Models by entity may need (rows, K, K) numbers at a time.
        numbers = 16 * CHUNK_NUMBERS // K if self.autonomy.by_entity else CHUNK_NUMBERS
        numbers = min(numbers, 4 * CHUNK_NUMBERS // self.autonomy.numbers_per_pair)
        return max(256, min(BLOCK_ROWS, numbers // K))


def build_problem(
    X: Any,
    centers: Any,
    *,
    autonomy: Autonomy | None = None,
    metric: Any = "sqeuclidean",
    sample_weight: Any = None,
    groups: Any = None,
    autonomy_proba: Any = None,
) -> tuple[Problem, FloatArray]:
    """Return the problem and the centres that a user describes by arrays, both checked.

    Examples
    --------
    >>> from volition.core.problem import build_problem
    >>> problem, Y = build_problem([[0.0], [4.0]], [[1.0]])
    >>> problem.distortion(Y)
    5.0
    """
    X = check_entities(X)
    Y = check_centers(centers, X.shape[1])
    if autonomy_proba is not None:
        if autonomy is not None:
            raise ValueError("Give autonomy or autonomy_proba, not both.")
        autonomy = RowAutonomy(autonomy_proba)
    problem = Problem(
        X,
        sample_weight=sample_weight,
        cost=resolve_cost(metric),
        autonomy=autonomy,
        groups=groups,
    )
    problem.autonomy.check(len(Y), len(X))
    return problem, Y


@cache
def _compiled_passes() -> Any:
    """Return :mod:`volition.core.kernels.compiled` where numba is installed."""
    try:
        from volition.core.kernels import compiled
    except ImportError:
        return None
    return compiled


_scratch = threading.local()


def _buffers(
    chunk: int, rows: int, K: int, d: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Return this thread's work space; fresh large allocations cost more than the arithmetic."""
    key = (chunk, rows, K, d, dtype, device)
    if getattr(_scratch, "key", None) != key:
        shapes = (chunk, K), (chunk, d + 1), (rows, 1), (chunk, 1), (d + 1, K)
        _scratch.buffers = tuple(torch.empty(s, dtype=dtype, device=device) for s in shapes)
        _scratch.key = key
    buffers: tuple[Tensor, ...] = _scratch.buffers
    return buffers


def _gibbs(expected: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return the policy and each entity's free energy (n, 1)."""
    least, label = expected.min(1, keepdim=True)
    if math.isinf(beta):
        return torch.zeros_like(expected).scatter_(1, label, 1.0), least
    e = torch.exp(((least - expected) * beta).clamp_min(-LOWEST_EXPONENT[expected.dtype]))
    z = e.sum(1, keepdim=True)
    return e / z, least - torch.log(z) / beta


def _cut(lo: int, hi: int, group: int) -> list[Block]:
    """Cut rows into equal blocks of at most BLOCK_ROWS."""
    if hi == lo:
        return []
    n_blocks = -(-(hi - lo) // BLOCK_ROWS)
    edges = np.linspace(lo, hi, n_blocks + 1).astype(int).tolist()
    return [Block(a, b, group) for a, b in itertools.pairwise(edges)]
