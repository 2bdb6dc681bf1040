"""The problem: entities, weights, cost and autonomy, and every sum over entities that is needed.

All sums run through one additive kernel, block by block and chunk by chunk, so that memory is
bounded and the same few (K, d) numbers can come from a batch, a file or another machine. Two forms
of the kernel exist. When the cost is squared Euclidean and p(k | j) does not depend on the entity,
autonomy is folded into the centres (`_collapsed_block`): D̄ = |x|² - 2 x·(PY)ᵀ + P|y|². Otherwise
costs are averaged chunk by chunk (`_general_block`).

``beta = inf`` is allowed everywhere: the policy is then hard, and the free energy is the distortion.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from volition.autonomy import Autonomy, Chunk, Passive, RowAutonomy, Transition
from volition.blocks import Sums, add_over_blocks
from volition.costs import Cost, SquaredEuclidean
from volition.validation import FloatArray, check_entities, check_weights

LOG2E = math.log2(math.e)
BLOCK_ROWS = 65536
#: numbers in a chunk's largest matrix; about what stays in cache
CHUNK_NUMBERS = 2**20
#: with exponents shifted by the last log-partition, sums outside this range are done again
SAFE_BITS = 60


class Block(NamedTuple):
    """Rows lo..hi-1 (in the problem's own order), all of one group."""

    lo: int
    hi: int
    group: int


class Moments(NamedTuple):
    """What Algorithm 1 needs: free energy, realised mass (K,) and moment (K, d) per centre."""

    free_energy: float
    mass: Tensor
    moment: Tensor


class Summary(NamedTuple):
    """What a state is worth: soft and hard distortion, entropy, prescribed mass per cluster."""

    free_energy: float
    distortion: float
    hard_distortion: float
    entropy: float
    mass: FloatArray


class Problem:
    """Entities with weights, a cost and an autonomy model.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities; float32 is computed in float32, all else in float64.
    sample_weight : array of shape (n,), optional
        Relative weights.
    cost : Cost, default=SquaredEuclidean()
        See :mod:`volition.costs`.
    autonomy : Autonomy, default=Passive()
        See :mod:`volition.autonomy`.
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
    >>> from volition.problem import Problem
    >>> problem = Problem(np.array([[0.0], [1.0], [4.0]]), autonomy=DistanceAutonomy(0.5))
    >>> problem.expected_costs(np.array([[0.0], [4.0]])).tolist()
    [[8.0, 8.0], [5.0, 5.0], [8.0, 8.0]]
    """

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
            self._blocks = _cut(0, self.n, 0)
        else:
            # Entities of one group stand together, so that a block has a single matrix.
            self._order = np.argsort(codes, kind="stable")
            edges = np.searchsorted(codes[self._order], np.arange(codes.max() + 2))
            self._blocks = [
                block
                for g, (lo, hi) in enumerate(zip(edges, edges[1:], strict=False))
                for block in _cut(int(lo), int(hi), g)
            ]
        self._fill(X, weight)

    def _fill(self, X: FloatArray, weight: FloatArray | None) -> None:
        """Lay out [1, x - origin, shift] per entity: both matrix products read it once."""
        order = slice(None) if self._order is None else self._order
        dtype = torch.float32 if X.dtype == np.float32 else torch.float64
        mean = np.average(X, axis=0, weights=weight).astype(np.float64)
        self.origin = mean if self.cost.translation_invariant else np.zeros(self.d)
        data = np.zeros((self.n, self.d + 2), dtype=X.dtype)
        data[:, 0] = 1
        np.subtract(X[order], self.origin, out=data[:, 1:-1], casting="same_kind")
        self._data = torch.from_numpy(data).to(self.device)
        rho = np.full(self.n, 1 / self.n) if weight is None else weight[order]
        self._rho = torch.from_numpy(rho.astype(X.dtype, copy=False)).to(self.device)[:, None]
        self.dtype = dtype
        centered = X - mean
        weighted = centered / self.n if weight is None else centered * weight[:, None]
        #: weighted covariance of the entities
        self.covariance = (weighted.T @ centered).astype(np.float64)
        self._square = float(np.trace(self.covariance))
        #: length by which moves of centres are judged
        self.scale = math.sqrt(self._square) or 1.0
        #: cost by which changes of free energy are judged: that of a single centre
        self.cost_scale = self._square or 1.0
        if not isinstance(self.cost, SquaredEuclidean):
            self.cost_scale = self.single_center_cost() or 1.0

    # -- views on the data ------------------------------------------------------------------------

    @property
    def X(self) -> FloatArray:
        """The entities, in the order in which they were given."""
        out: FloatArray = self._data[:, 1:-1].cpu().numpy() + self.origin
        return self._unorder(out).astype(self._data.cpu().numpy().dtype, copy=False)

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

    def with_autonomy(self, autonomy: Autonomy) -> Problem:
        """Return the same problem under another autonomy model, sharing the data."""
        other = copy.copy(self)
        other.autonomy = autonomy
        return other

    def subset(self, index: np.ndarray, sample_weight: FloatArray) -> Problem:
        """Return the problem of some of the entities."""
        autonomy, groups = self.autonomy, None
        if isinstance(autonomy, RowAutonomy):
            autonomy = autonomy.subset(index)
        if self._order is not None:
            codes = np.empty(self.n, dtype=np.int64)
            for block in self._blocks:
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
        origin = torch.as_tensor(self.origin, device=self.device)
        return (Y - origin).to(self.dtype)

    # -- what solvers ask for ---------------------------------------------------------------------

    @property
    def _collapses(self) -> bool:
        return isinstance(self.cost, SquaredEuclidean) and not self.autonomy.by_entity

    def moments(self, Y: Any, beta: float) -> Moments:
        """Return free energy, mass and moment of realised clusters at the Gibbs policy."""
        Y = self.centers(Y)
        with torch.no_grad():
            y = self._local(Y)
            if not self._collapses:
                energy, mass, moment = self._sum_general(y, beta, "moments")
            else:
                P = self.autonomy.shared(y, self.cost)
                energy, sums = self._sum_collapsed(y, P, beta)
                energy = energy + self._square
                P = P.double()
                mass = torch.einsum("gjk,gj->k", P, sums[:, 0])
                moment = torch.einsum("gjk,gdj->kd", P, sums[:, 1:])
            origin = torch.as_tensor(self.origin, device=self.device)
            return Moments(float(energy), mass, moment + mass[:, None] * origin)

    def value_and_gradient(self, Y: Any, beta: float) -> tuple[float, Tensor]:
        """Return the free energy and its exact gradient, p(Y) included.

        By the envelope theorem the gradient of F is that of the expected cost at a fixed policy; in
        the collapsed form only (K, d) numbers are differentiated.
        """
        Y = self.centers(Y).detach().requires_grad_()
        y = self._local(Y)
        if not self._collapses:
            energy, gradient = self._sum_general(y.detach(), beta, "gradient")
            return float(energy), gradient
        P = self.autonomy.shared(y, self.cost)
        with torch.no_grad():
            energy, sums = self._sum_collapsed(y, P, beta)
        P, y = P.double(), y.double()
        cost = (sums[:, 0] * (P @ (y * y).sum(1))).sum()
        cost = cost - 2 * (sums[:, 1:].transpose(1, 2) * (P @ y)).sum()
        (gradient,) = torch.autograd.grad(cost, Y)
        return float(energy) + self._square, gradient

    def summary(self, Y: Any, beta: float) -> Summary:
        """Return what the state (Y, Gibbs policy at beta) is worth."""
        y = self._local(self.centers(Y))
        with torch.no_grad():
            energy, soft, hard, entropy, mass = self._sum_general(y, beta, "summary")
        return Summary(
            float(energy), float(soft), float(hard), float(entropy), mass.cpu().numpy()
        )

    def distortion(self, Y: Any, labels: Any = None) -> float:
        """Return the distortion of the hard policy, or of the prescriptions ``labels``."""
        if labels is None:
            return self.moments(Y, math.inf).free_energy
        expected = self.expected_costs(Y)
        chosen = np.take_along_axis(expected, np.asarray(labels)[:, None], axis=1)[:, 0]
        return float(chosen.astype(np.float64) @ self.weight.astype(np.float64))

    def expected_costs(self, Y: Any) -> FloatArray:
        """Return D̄, shape (n, K): expected cost of prescribing j to i."""
        return self._rows(Y, lambda chunk, transition: transition.expected(chunk.D))

    def policy(self, Y: Any, beta: float) -> FloatArray:
        """Return the Gibbs policy pi(j | i), shape (n, K)."""
        return self._rows(Y, lambda chunk, t: _gibbs(t.expected(chunk.D), beta)[0])

    def labels(self, Y: Any) -> np.ndarray:
        """Return the best prescription for each entity."""
        best = self._rows(Y, lambda chunk, t: t.expected(chunk.D).argmin(1, keepdim=True))
        return best[:, 0].astype(np.int64)

    def realized(self, Y: Any, policy: FloatArray) -> FloatArray:
        """Return the distribution of realised clusters, (n, K), under a policy (n, K)."""
        order = slice(None) if self._order is None else self._order
        W = torch.as_tensor(policy[order], dtype=self.dtype, device=self.device)
        return self._rows(Y, lambda chunk, t: t.realized(W[chunk.rows]))

    def conditional(self, Y: Any, prescribed: np.ndarray) -> FloatArray:
        """Return p(. | prescribed_i, i), shape (n, K)."""
        order = slice(None) if self._order is None else self._order
        j = torch.as_tensor(np.asarray(prescribed)[order], device=self.device)
        return self._rows(Y, lambda chunk, t: t.conditional(j[chunk.rows]))

    # -- the kernel -------------------------------------------------------------------------------

    def _sum_collapsed(self, y: Tensor, P: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """Return F - sum(rho |x|²), and per group the (d+1, K) sums of [1, x] weighted by pi."""
        hard = math.isinf(beta)
        bits = LOG2E * (1.0 if hard else beta)
        tables = []
        for p in P:
            table = torch.empty(self.d + 2, len(y), dtype=self.dtype, device=self.device)
            table[0] = -bits * (p @ (y * y).sum(1))
            table[1:-1] = (2 * bits) * (p @ y).T
            table[-1] = 1
            tables.append(table)
        chunk = self._chunk_rows(len(y))

        def run(block: Block) -> Sums:
            return self._collapsed_block(block, tables[block.group], chunk, hard, len(P))

        log_partition, sums = add_over_blocks(run, self._blocks, self.device.type == "cpu")
        return -log_partition / bits, sums

    def _collapsed_block(
        self, block: Block, table: Tensor, chunk: int, hard: bool, n_groups: int
    ) -> Sums:
        K = table.shape[1]
        rows = min(chunk, block.hi - block.lo)
        new = {"dtype": self.dtype, "device": self.device}
        # Buffers are made once: fresh large allocations cost more than the arithmetic.
        E = torch.empty(rows, K, **new)
        weighted = torch.empty(rows, self.d + 1, **new)
        z = torch.empty(rows, 1, **new)
        part = torch.empty(self.d + 1, K, **new)
        log_partition = torch.zeros((), dtype=torch.float64, device=self.device)
        sums = torch.zeros(n_groups, self.d + 1, K, dtype=torch.float64, device=self.device)
        for lo in range(block.lo, block.hi, chunk):
            hi = min(lo + chunk, block.hi)
            n = hi - lo
            data, rho, e, zn = self._data[lo:hi], self._rho[lo:hi], E[:n], z[:n]
            if hard:
                torch.mm(data[:, :-1], table[:-1], out=e)
                best, label = e.max(1, keepdim=True)
                e.zero_().scatter_(1, label, 1.0)
                torch.mul(data[:, :-1], rho, out=weighted[:n])
                log_partition += (best * rho).sum(dtype=torch.float64)
            else:
                self._exponentials(data, table, e, zn)
                torch.mul(data[:, :-1], rho / zn, out=weighted[:n])
                # The log-partition, kept as the next pass's shift, is F's summand.
                shift = data[:, -1:]
                shift -= zn.log2_()
                log_partition -= (shift * rho).sum(dtype=torch.float64)
            torch.mm(weighted[:n].T, e, out=part)
            sums[block.group] += part
        return log_partition, sums

    def _exponentials(self, data: Tensor, table: Tensor, e: Tensor, z: Tensor) -> None:
        """Fill e with 2^(exponent + shift) and z with its row sums.

        The shift in the last column of the data is the log-partition of the pass before, which
        spares finding each row's maximum. Any shift gives the same result as long as nothing over-
        or underflows; where it does, the maximum is used after all.
        """
        torch.mm(data, table, out=e)
        e.clamp_(min=-self._lowest_bits).exp2_()
        torch.sum(e, 1, keepdim=True, out=z)
        low, high = torch.aminmax(z)
        if 2.0**-SAFE_BITS < float(low) and float(high) < 2.0**SAFE_BITS:
            return
        torch.mm(data[:, :-1], table[:-1], out=e)
        shift = data[:, -1:]
        torch.neg(e.amax(1, keepdim=True), out=shift)
        # Denormal numbers make every later product several times slower.
        e.add_(shift).clamp_(min=-self._lowest_bits).exp2_()
        torch.sum(e, 1, keepdim=True, out=z)

    @property
    def _lowest_bits(self) -> float:
        return 115.0 if self.dtype == torch.float32 else 1000.0

    def _sum_general(self, y: Tensor, beta: float, want: str) -> Sums:
        chunk = self._chunk_rows(len(y))

        def run(block: Block) -> Sums:
            total: Sums | None = None
            for lo in range(block.lo, block.hi, chunk):
                hi = min(lo + chunk, block.hi)
                part = self._general_chunk(slice(lo, hi), block.group, y, beta, want)
                total = part if total is None else tuple(map(torch.add, total, part))
            assert total is not None
            return total

        return add_over_blocks(run, self._blocks, self.device.type == "cpu")

    def _general_chunk(
        self, rows: slice, group: int, y: Tensor, beta: float, want: str
    ) -> Sums:
        rho = self._rho[rows]
        with torch.set_grad_enabled(want == "gradient"):
            y = y.detach().requires_grad_(want == "gradient")
            chunk, transition = self._chunk(rows, group, y)
            expected = transition.expected(chunk.D)
        with torch.no_grad():
            pi, energy = _gibbs(expected.detach(), beta)
            W = pi * rho
            F = (energy * rho).sum(dtype=torch.float64)
            if want == "summary":
                E = expected.detach()
                soft = (W * E).sum(dtype=torch.float64)
                hard = (E.amin(1, keepdim=True) * rho).sum(dtype=torch.float64)
                entropy = -(torch.xlogy(pi, pi) * rho).sum(dtype=torch.float64)
                return F, soft, hard, entropy, W.sum(0, dtype=torch.float64)
            if want == "moments":
                R = transition.realized(W)
                x = self._data[rows, 1:-1]
                return F, R.sum(0, dtype=torch.float64), (R.T @ x).double()
        (gradient,) = torch.autograd.grad(expected, y, W)
        return F, gradient.double()

    def _chunk(self, rows: slice, group: int, y: Tensor) -> tuple[Chunk, Transition]:
        x = self._data[rows, 1:-1]
        origin = torch.as_tensor(self.origin, dtype=self.dtype, device=self.device)
        # Only FixedAutonomy reorders entities, and it does not ask for row numbers.
        chunk = Chunk(x, origin, self.cost.pairwise(x, y), rows, group)
        return chunk, self.autonomy.transition(chunk, y, self.cost)

    def _rows(self, Y: Any, fn: Any) -> FloatArray:
        """Fill an array with one row of ``fn(chunk, transition)`` per entity."""
        y = self._local(self.centers(Y))
        rows = self._chunk_rows(len(y))
        out: FloatArray | None = None
        with torch.no_grad():
            for block in self._blocks:
                for lo in range(block.lo, block.hi, rows):
                    piece = slice(lo, min(lo + rows, block.hi))
                    values = fn(*self._chunk(piece, block.group, y)).cpu().numpy()
                    if out is None:
                        out = np.empty((self.n, values.shape[1]), dtype=values.dtype)
                    out[piece if self._order is None else self._order[piece]] = values
        assert out is not None
        return out

    def _chunk_rows(self, K: int) -> int:
        if self.chunk_size is not None:
            return self.chunk_size
        # Models by entity may need (rows, K, K) numbers at a time.
        numbers = 16 * CHUNK_NUMBERS // K if self.autonomy.by_entity else CHUNK_NUMBERS
        return max(256, min(BLOCK_ROWS, numbers // K))


def _gibbs(expected: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return the policy and each entity's free energy (n, 1)."""
    least, label = expected.min(1, keepdim=True)
    if math.isinf(beta):
        return torch.zeros_like(expected).scatter_(1, label, 1.0), least
    lowest = -80.0 if expected.dtype == torch.float32 else -690.0
    e = torch.exp(((least - expected) * beta).clamp_min(lowest))
    z = e.sum(1, keepdim=True)
    return e / z, least - torch.log(z) / beta


def _cut(lo: int, hi: int, group: int) -> list[Block]:
    """Cut rows into equal blocks of at most BLOCK_ROWS."""
    if hi == lo:
        return []
    n_blocks = -(-(hi - lo) // BLOCK_ROWS)
    edges = np.linspace(lo, hi, n_blocks + 1).astype(int).tolist()
    return [Block(a, b, group) for a, b in zip(edges, edges[1:], strict=False)]
