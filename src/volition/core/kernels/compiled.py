"""The collapsed kernel's inner loop as one compiled pass; imported only where numba is installed.

Why by hand: plain numba loops with the same tiles and the same polynomials take 1.2 to 1.5 times as
long (1.38 for d=2 K=4, 1.19 for d=2 K=25, 1.48 for d=2 K=8, 1.28 for d=16 K=64; best of 15 in one
run), because LLVM does not keep a block of both products in registers by itself.

PyTorch needs six passes over an (n, K) matrix of exponents. Here a tile of it is made, turned into
a policy and summed up while it is in cache. Tiles are laid out (K, rows): vectors run along the
rows, whatever K and d are. Vectors are a type of their own: three of them by four clusters are
twelve running sums, which with their operands fill the sixteen registers of AVX2.
`tests/core/test_problem.py` compares every pass with PyTorch.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, models, register_model

Array = np.ndarray

if numba.config.DISABLE_JIT:
    raise ImportError("numba is told not to compile, and uncompiled loops would take hours")

VECTOR_BYTES = 32
#: rows in a tile, three vectors at a time: a tile and its clusters' exponents stay in cache
TILE = 240
#: tiles summed in the data's own precision before the sums are added up in double
TILES_PER_SUM = 8
#: sums of powers outside 1 / SAFE_SUM .. SAFE_SUM may have lost digits: they are done again
SAFE_SUM = 2.0**60
#: an exponent that no entity's best one comes near
NOBODY = np.float32(-1e30)
#: per type: bits of the significand, and exponents allowed
EXPONENTS = {32: (23, -125.0, 100.0), 64: (52, -1021.0, 900.0)}
# 2^f for |f| <= 1/2 to the precision of each type: mpmath.chebyfit(lambda f: 2**f, [-.5, .5], n)
POWERS = {
    32: (
        *(1.0, 0.6931472067028326, 0.24022650922288757, 0.05550327226670302),
        *(0.009618056678524637, 0.0013400428177615838, 0.0001546144469856913),
    ),
    64: (
        *(1.0, 0.6931471805599453, 0.24022650695910158, 0.055504108664821625),
        *(0.009618129107587256, 0.001333355814640647, 0.00015403530463724353),
        *(1.5252733841556773e-05, 1.3215432535912375e-06, 1.0178057087733941e-07),
        *(7.074194297288521e-09, 4.4558179083360645e-10),
    ),
}
FUSED = ("contract",)
LOG2E2 = 2 / np.log(2)


class Vector(types.Type):
    """As many numbers as a register holds."""

    def __init__(self, number: types.Float) -> None:
        self.number = number
        self.lanes = 8 * VECTOR_BYTES // number.bitwidth
        super().__init__(name=f"Vector({number})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        number = manager.lookup(vector.number).get_value_type()
        super().__init__(manager, vector, ir.VectorType(number, vector.lanes))


def _place(context: Any, builder: Any, row: Any, array: Any, index: Any, vector: Vector) -> Any:
    """Return the address of row[index] as that of a vector."""
    data = context.make_array(row)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), context.get_value_type(vector).as_pointer())


@intrinsic
def load(_, row, index):  # type: ignore[no-untyped-def]
    """Return row[index : index + lanes]."""
    vector = Vector(row.dtype)

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        place = _place(context, builder, row, args[0], args[1], vector)
        return builder.load(place, align=row.dtype.bitwidth // 8)

    return vector(row, types.intp), generate


@intrinsic
def store(_, row, index, value):  # type: ignore[no-untyped-def]
    """Set row[index : index + lanes]."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        place = _place(context, builder, row, args[0], args[1], value)
        builder.store(args[2], place, align=row.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(row, types.intp, value), generate


@intrinsic
def spread(_, row, index):  # type: ignore[no-untyped-def]
    """Return a vector filled with row[index]."""
    vector = Vector(row.dtype)

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        whole = ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        number = builder.load(builder.gep(data, [args[1]]))
        nothing = ir.Constant(context.get_value_type(vector), ir.Undefined)
        first = builder.insert_element(nothing, number, ir.Constant(whole, 0))
        lanes = ir.Constant(ir.VectorType(whole, vector.lanes), [0] * vector.lanes)
        return builder.shuffle_vector(first, nothing, lanes)

    return vector(row, types.intp), generate


@intrinsic
def plus(_, a, b):  # type: ignore[no-untyped-def]
    """Return a + b."""
    return a(a, a), lambda context, builder, signature, args: builder.fadd(*args)


@intrinsic
def fma(_, a, b, c):  # type: ignore[no-untyped-def]
    """Return a b + c."""
    return a(a, a, a), lambda context, builder, signature, args: _fma(builder, *args)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=FUSED), c, flags=FUSED)


def _all(kind: ir.VectorType, value: float) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count)


@intrinsic
def exp2(_, x):  # type: ignore[no-untyped-def]
    """Return 2^x, x kept in the range of normal numbers."""
    (bits, lowest, highest), coefficients = EXPONENTS[x.number.bitwidth], POWERS[x.number.bitwidth]

    def generate(context, builder, _, args):  # type: ignore[no-untyped-def]
        kind = args[0].type
        whole = ir.VectorType(ir.IntType(x.number.bitwidth), x.lanes)
        low, high = _all(kind, lowest), _all(kind, highest)
        value = builder.select(builder.fcmp_ordered(">", args[0], low), args[0], low)
        value = builder.select(builder.fcmp_ordered("<", value, high), value, high)
        # Adding this leaves the nearest integer in the lowest bits, ready to become an exponent.
        rounder = _all(kind, 1.5 * 2.0**bits)
        rounded = builder.fadd(value, rounder)
        f = builder.fsub(value, builder.fsub(rounded, rounder))
        power = _all(kind, coefficients[-1])
        for c in reversed(coefficients[:-1]):
            power = _fma(builder, f, power, _all(kind, c))
        exponent = builder.shl(builder.bitcast(rounded, whole), _all(whole, bits))
        return builder.bitcast(builder.add(builder.bitcast(power, whole), exponent), kind)

    return x(x), generate


@intrinsic
def log2(_, x):  # type: ignore[no-untyped-def]
    """Return the logarithm of positive normal numbers."""
    width = x.number.bitwidth
    bits, terms = EXPONENTS[width][0], {32: 5, 64: 11}[width]

    def pattern(value: float) -> int:
        return int(np.array(value, f"f{width // 8}").view(f"i{width // 8}"))

    def generate(context, builder, _, args):  # type: ignore[no-untyped-def]
        kind = args[0].type
        whole = ir.VectorType(ir.IntType(width), x.lanes)
        # x = 2^e m with m between sqrt(1/2) and sqrt(2); e becomes a number as the last bits of one
        given, shift = builder.bitcast(args[0], whole), _all(whole, bits)
        e = builder.ashr(builder.sub(given, _all(whole, pattern(0.5**0.5))), shift)
        m = builder.bitcast(builder.sub(given, builder.shl(e, shift)), kind)
        large = builder.add(e, _all(whole, pattern(1.5 * 2.0**bits)))
        exponent = builder.fsub(builder.bitcast(large, kind), _all(kind, 1.5 * 2.0**bits))
        # log m = 2 artanh s = 2 (s + s³/3 + ...), |s| < 0.172
        s = builder.fdiv(builder.fsub(m, _all(kind, 1.0)), builder.fadd(m, _all(kind, 1.0)))
        square = builder.fmul(s, s)
        series = _all(kind, LOG2E2 / (2 * terms - 1))
        for k in reversed(range(terms - 1)):
            series = _fma(builder, square, series, _all(kind, LOG2E2 / (2 * k + 1)))
        return _fma(builder, s, series, exponent)

    return x(x), generate


def compiled(fn: Any, fastmath: Any = False) -> Any:
    """Compile at the first call, and keep the result on disk where that is possible."""
    options = {"nopython": True, "nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return numba.jit(cache=True, **options)(fn)
    except RuntimeError:  # nowhere to keep it
        return numba.jit(**options)(fn)


def reordered(fn: Any) -> Any:
    """Compile a function whose sums may be added in any order."""
    return compiled(fn, {"reassoc", "contract", "nsz", "arcp"})


# Arrays are flat below: a row taken from a matrix would be counted and checked by numba each time.


@compiled
def policies(data, width, start, shift, first, T, E, Z):  # type: ignore[no-untyped-def]
    """Write 2^(data' T + shift) of a tile into E and its sums over clusters into Z.

    Rows of ``data`` are ``width`` apart; ``T`` holds four clusters at a time. The tile begins at
    ``start`` in the data, and at ``first`` in the shifts.
    """
    lanes = VECTOR_BYTES // data.itemsize
    at = 0
    Z[:] = 0
    for k in range(0, len(E), 4 * TILE):
        for r in range(0, TILE, 3 * lanes):
            i, t = first + r, at
            x, y, z = load(shift, i), load(shift, i + lanes), load(shift, i + 2 * lanes)
            c = spread(T, t)
            x0, y0, z0 = plus(x, c), plus(y, c), plus(z, c)
            c = spread(T, t + 1)
            x1, y1, z1 = plus(x, c), plus(y, c), plus(z, c)
            c = spread(T, t + 2)
            x2, y2, z2 = plus(x, c), plus(y, c), plus(z, c)
            c = spread(T, t + 3)
            x3, y3, z3 = plus(x, c), plus(y, c), plus(z, c)
            for i in range(width + start + r, len(data), width):
                t += 4
                x, y, z = load(data, i), load(data, i + lanes), load(data, i + 2 * lanes)
                c = spread(T, t)
                x0, y0, z0 = fma(x, c, x0), fma(y, c, y0), fma(z, c, z0)
                c = spread(T, t + 1)
                x1, y1, z1 = fma(x, c, x1), fma(y, c, y1), fma(z, c, z1)
                c = spread(T, t + 2)
                x2, y2, z2 = fma(x, c, x2), fma(y, c, y2), fma(z, c, z2)
                c = spread(T, t + 3)
                x3, y3, z3 = fma(x, c, x3), fma(y, c, y3), fma(z, c, z3)
            finish(x0, x1, x2, x3, E, k + r, Z, r)
            finish(y0, y1, y2, y3, E, k + r + lanes, Z, r + lanes)
            finish(z0, z1, z2, z3, E, k + r + 2 * lanes, Z, r + 2 * lanes)
        at += 4 * (len(data) // width)


@compiled
def finish(a, b, c, d, E, at, Z, r):  # type: ignore[no-untyped-def]
    """Turn the exponents of four clusters into powers; add them to the rows' sums."""
    a, b, c, d = exp2(a), exp2(b), exp2(c), exp2(d)
    store(E, at, a)
    store(E, at + TILE, b)
    store(E, at + 2 * TILE, c)
    store(E, at + 3 * TILE, d)
    store(Z, r, plus(plus(plus(a, b), plus(c, d)), load(Z, r)))


@compiled
def products(W, E, S):  # type: ignore[no-untyped-def]
    """Add W E' of a tile to S: for every cluster and row of W, sums over every lanes-th entity."""
    lanes = VECTOR_BYTES // W.itemsize
    n = lanes * (len(W) // TILE)
    at = 0
    for k in range(0, len(E), 4 * TILE):
        for j in range(0, len(W), 3 * TILE):
            s1, s2, s3 = at + n, at + 2 * n, at + 3 * n
            x0, y0, z0 = load(S, at), load(S, at + lanes), load(S, at + 2 * lanes)
            x1, y1, z1 = load(S, s1), load(S, s1 + lanes), load(S, s1 + 2 * lanes)
            x2, y2, z2 = load(S, s2), load(S, s2 + lanes), load(S, s2 + 2 * lanes)
            x3, y3, z3 = load(S, s3), load(S, s3 + lanes), load(S, s3 + 2 * lanes)
            for r in range(0, TILE, lanes):
                x, y, z = load(W, j + r), load(W, j + TILE + r), load(W, j + 2 * TILE + r)
                e = load(E, k + r)
                x0, y0, z0 = fma(x, e, x0), fma(y, e, y0), fma(z, e, z0)
                e = load(E, k + TILE + r)
                x1, y1, z1 = fma(x, e, x1), fma(y, e, y1), fma(z, e, z1)
                e = load(E, k + 2 * TILE + r)
                x2, y2, z2 = fma(x, e, x2), fma(y, e, y2), fma(z, e, z2)
                e = load(E, k + 3 * TILE + r)
                x3, y3, z3 = fma(x, e, x3), fma(y, e, y3), fma(z, e, z3)
            keep(S, at, lanes, x0, y0, z0)
            keep(S, s1, lanes, x1, y1, z1)
            keep(S, s2, lanes, x2, y2, z2)
            keep(S, s3, lanes, x3, y3, z3)
            at += 3 * lanes
        at += 3 * n


@compiled
def keep(S, at, lanes, x, y, z):  # type: ignore[no-untyped-def]
    """Store three running sums."""
    store(S, at, x)
    store(S, at + lanes, y)
    store(S, at + 2 * lanes, z)


@compiled
def logarithms(Z, L):  # type: ignore[no-untyped-def]
    """Write log2 Z into L."""
    for r in range(0, TILE, VECTOR_BYTES // Z.itemsize):
        store(L, r, log2(load(Z, r)))


@compiled
def powers(P):  # type: ignore[no-untyped-def]
    """Replace P by 2^P."""
    for r in range(0, TILE, VECTOR_BYTES // P.itemsize):
        store(P, r, exp2(load(P, r)))


@reordered
def linear(data, T, k, start, rows, out):  # type: ignore[no-untyped-def]
    """Write column k of data' T into out; four terms a pass stay in registers."""
    d = len(data) - 1
    out[:rows] = T[0, k]
    for j in range(1, d + 1, 4):
        # Beyond the last coordinate its column is taken again, times nothing.
        j1, j2, j3 = min(j + 1, d), min(j + 2, d), min(j + 3, d)
        x0, x1, x2, x3 = data[j, start:], data[j1, start:], data[j2, start:], data[j3, start:]
        t0, t1, t2, t3 = T[j, k], T[j1, k], T[j2, k], T[j3, k]
        t1, t2, t3 = t1 * (j1 > j), t2 * (j2 > j1), t3 * (j3 > j2)
        for r in range(rows):
            out[r] += t0 * x0[r] + t1 * x1[r] + t2 * x2[r] + t3 * x3[r]


@reordered
def best_shift(data, T, K, start, end, shifts):  # type: ignore[no-untyped-def]
    """Set each row's shift to minus its largest exponent."""
    e = np.empty(TILE, data.dtype)
    for at in range(start, end, TILE):
        rows = min(TILE, end - at)
        shift = shifts[at : at + rows]
        shift[:] = np.inf
        for k in range(K):
            linear(data, T, k, at, rows, e)
            for r in range(rows):
                shift[r] = min(shift[r], -e[r])


@reordered
def tiles(data, rho, shifts, T4, K, lo, hi, safe, spare, E, W, S, sums):  # type: ignore[no-untyped-def]
    """Work through the rows tile by tile; spare, E, W and S are work space."""
    d = data.shape[0] - 1
    Z, L = np.empty(TILE, data.dtype), np.empty(TILE, data.dtype)
    spare_shift = np.zeros(TILE, data.dtype)
    whole, flat_W, flat_S = data.ravel(), W.ravel(), S.ravel()
    energy, unsafe, n_tiles = 0.0, 0, 0
    for start in range(lo, hi, TILE):
        rows = min(TILE, hi - start)
        end = start + rows
        tile, flat, width, at, tile_shift = data, whole, data.shape[1], start, shifts
        if rows < TILE:
            spare[:, :rows] = data[:, start:end]
            spare_shift[:rows] = shifts[start:end]
            W[:] = 0
            tile, flat, width, at, tile_shift = spare, spare.ravel(), TILE, 0, spare_shift
        policies(flat, width, at, tile_shift, at, T4, E, Z)
        logarithms(Z, L)
        first, weight, shift = W[0], rho[start:end], shifts[start:end]
        for r in range(rows):
            first[r] = weight[r] / Z[r]
        for r in range(rows):
            shift[r] -= L[r]
        for r in range(rows):
            energy += np.float64(weight[r]) * np.float64(shift[r])
        for r in range(rows):
            unsafe += not (1 / safe < Z[r] < safe)
        for j in range(1, d + 1):
            w, x = W[j], tile[j, at : at + rows]
            for r in range(rows):
                w[r] = x[r] * first[r]
        products(flat_W, E, flat_S)
        n_tiles += 1
        if n_tiles == TILES_PER_SUM or end == hi:
            for k in range(K):
                for j in range(d + 1):
                    total = 0.0
                    for s in S[k, j]:
                        total += s
                    sums[j, k] += total
            S[:] = 0
            n_tiles = 0
    return energy, unsafe


def soft_sums(
    data: Array, rho: Array, shifts: Array, table: Array, rows: slice, sums: Array
) -> float:
    """Add the sums of [1, x] weighted by pi; return minus the sum of the log-partitions.

    ``data`` is (d+1, n). ``shifts`` (n,) holds minus the log-partitions of the pass before, which
    spares finding each row's largest exponent; they are replaced by those of this pass. Any shifts
    give the same result as long as nothing over- or underflows. Otherwise the pass is done again
    with each row's largest exponent.
    """
    d, K = data.shape[0] - 1, table.shape[1]
    # Padded to whole groups of four clusters, which nobody chooses.
    T = np.zeros((d + 1, K + -K % 4), data.dtype)
    T[0, K:] = NOBODY
    T[:, :K] = table
    spare = np.zeros((d + 1, TILE), data.dtype)
    E = np.empty(T.shape[1] * TILE, data.dtype)
    W = np.zeros((d + 1 + -(d + 1) % 3, TILE), data.dtype)
    S = np.zeros((T.shape[1], len(W), VECTOR_BYTES // data.itemsize), data.dtype)
    T4 = T.reshape(d + 1, -1, 4).transpose(1, 0, 2).ravel()
    where, work = (data, rho, shifts, T4, K, rows.start, rows.stop), (spare, E, W, S, sums)
    energy, unsafe = tiles(*where, data.dtype.type(SAFE_SUM), *work)
    if unsafe:
        sums[:] = 0
        best_shift(data, T, K, rows.start, rows.stop, shifts)
        energy, _ = tiles(*where, data.dtype.type(np.inf), *work)
    return float(energy)


@reordered
def state_tiles(data, rho, T, bits, lo, hi, labels, policy, mass):  # type: ignore[no-untyped-def]
    """Do what `states` says, tile by tile."""
    d, K = data.shape[0] - 1, T.shape[1]
    E, P = np.zeros((K, TILE)), np.zeros((K, TILE), data.dtype)
    square, best, excess = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    label, z, share = np.empty(TILE, np.int64), np.empty(TILE), np.empty(TILE, data.dtype)
    least, soft, entropy = 0.0, 0.0, 0.0
    for start in range(lo, hi, TILE):
        rows = min(TILE, hi - start)
        square[:], z[:], excess[:] = 0, 0, 0
        for j in range(1, d + 1):
            x = data[j, start : start + rows]
            for r in range(rows):
                square[r] += np.float64(x[r]) * np.float64(x[r])
        for k in range(K):
            e = E[k]
            linear(data, T, k, start, rows, e)
            for r in range(rows):
                e[r] = max(e[r] + square[r], 0.0)
            if k == 0:
                best[:], label[:] = e, 0
                continue
            for r in range(rows):
                label[r] = k if e[r] < best[r] else label[r]
                best[r] = min(e[r], best[r])
        for k in range(K):
            e, p = E[k], P[k]
            if np.isinf(bits):
                for r in range(rows):
                    p[r] = label[r] == k
            else:
                for r in range(rows):
                    p[r] = bits * (best[r] - e[r])
                powers(p)
            for r in range(rows):
                z[r] += p[r]
                excess[r] += p[r] * (e[r] - best[r])
        weight = rho[start : start + rows]
        for r in range(rows):
            share[r] = 1 / z[r]
            least += np.float64(weight[r]) * best[r]
            soft += np.float64(weight[r]) * excess[r] / z[r]
        for r in range(rows):
            entropy += np.float64(weight[r]) * np.log2(z[r])
        for k in range(K):
            p, total = P[k], 0.0
            for r in range(rows):
                p[r] *= share[r]
                total += p[r] * weight[r]
            mass[k] += total
        if len(policy):
            for r in range(rows):
                labels[start + r] = label[r]
                for k in range(K):
                    policy[start + r, k] = P[k, r]
    return least - entropy / bits, least + soft, least


def states(
    data: Array,
    rho: Array,
    table: Array,
    rows: slice,
    beta: float,
    out: tuple[Array, Array] | None,
    mass: Array,
) -> tuple[float, float, float]:
    """Return free energy, soft and hard distortion; add to the mass; fill labels and policy.

    ``table`` is that of the expected costs, in double precision: near a centre its terms cancel.
    """
    nothing = np.empty(0, np.int64), np.empty((0, table.shape[1]), data.dtype)
    bits = float(beta / np.log(2))
    return state_tiles(data, rho, table, bits, rows.start, rows.stop, *(out or nothing), mass)
