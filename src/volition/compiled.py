"""The collapsed kernel's inner loop as one compiled pass; imported only where numba is installed.

PyTorch needs six passes over an (n, K) matrix of exponents; here a tile of it is made, turned into
a policy and summed up while it is in cache. Tiles are laid out (K, rows): every loop runs along the
rows, so that it vectorises whatever K and d are.
"""

from __future__ import annotations

import numba
import numpy as np
from numba.extending import overload

Array = np.ndarray

if numba.config.DISABLE_JIT:
    raise ImportError("numba is told not to compile, and uncompiled loops would take hours")

#: rows in a tile: long enough for the loops' overhead, short enough for the cache
TILE = 512
# 2^f for |f| <= 1/2 to the precision of each type: mpmath.chebyfit(lambda f: 2**f, [-.5, .5], n).
S0, S1, S2 = map(np.float32, (1.0, 0.6931472067028326, 0.24022650922288757))
S3, S4, S5 = map(np.float32, (0.05550327226670302, 0.009618056678524637, 0.0013400428177615838))
S6 = np.float32(0.0001546144469856913)
C0, C1, C2, C3 = 1.0, 0.6931471805599453, 0.24022650695910158, 0.055504108664821625
C4, C5, C6 = 0.009618129107587256, 0.001333355814640647, 0.00015403530463724353
C7, C8, C9 = 1.5252733841556773e-05, 1.3215432535912375e-06, 1.0178057087733941e-07
C10, C11 = 7.074194297288521e-09, 4.4558179083360645e-10
#: an exponent that no entity's best one comes near
NOBODY = np.float32(-1e30)
LOWEST32, HIGHEST32, ROUND32 = np.float32(-125), np.float32(100), np.float32(1.5 * 2**23)
LOWEST64, HIGHEST64, ROUND64 = -1021.0, 900.0, 1.5 * 2**52


def compiled(fn):  # type: ignore[no-untyped-def]
    """Compile at the first call, and keep the result on disk where that is possible."""
    # Sums may be reordered; overflow may happen and is dealt with by the caller.
    freedom = {"reassoc", "contract", "nsz", "arcp"}
    options = {"nopython": True, "nogil": True, "fastmath": freedom, "error_model": "numpy"}
    try:
        return numba.jit(cache=True, **options)(fn)
    except RuntimeError:  # nowhere to keep it
        return numba.jit(**options)(fn)


def exp2(x):  # type: ignore[no-untyped-def]
    """Return 2^x, x kept in the range of normal numbers."""
    raise NotImplementedError("for compiled code only")


# Without the freedom to reorder: it would undo the rounding.
@overload(exp2, jit_options={"fastmath": {"contract", "nsz"}})
def _exp2(x):  # type: ignore[no-untyped-def]
    # Adding ROUND leaves the nearest integer in the lowest bits, ready to be added to an exponent.
    def single(x):  # type: ignore[no-untyped-def]
        x = min(max(x, LOWEST32), HIGHEST32)
        n = x + ROUND32
        f = x - (n - ROUND32)
        y = S0 + f * (S1 + f * (S2 + f * (S3 + f * (S4 + f * (S5 + f * S6)))))
        bits = np.float32(n).view(np.int32) << np.int32(23)
        return np.int32(np.float32(y).view(np.int32) + bits).view(np.float32)

    def double(x):  # type: ignore[no-untyped-def]
        x = min(max(x, LOWEST64), HIGHEST64)
        n = x + ROUND64
        f = x - (n - ROUND64)
        y = C8 + f * (C9 + f * (C10 + f * C11))
        y = C4 + f * (C5 + f * (C6 + f * (C7 + f * y)))
        y = C0 + f * (C1 + f * (C2 + f * (C3 + f * y)))
        bits = np.float64(n).view(np.int64) << np.int64(52)
        return np.int64(np.float64(y).view(np.int64) + bits).view(np.float64)

    return single if x == numba.float32 else double


@compiled
def exponents(data, T, k, start, end, with_shift, a, b):  # type: ignore[no-untyped-def]
    """Write columns k and k+1 of data' T into a and b; four terms a pass stay in registers."""
    d = len(data) - 2
    shift, t, u = data[d + 1, start:end], T[0, k], T[0, k + 1]
    for j in range(1, len(T), 4):
        x0, x1 = data[j, start:end], data[min(j + 1, d), start:end]
        x2, x3 = data[min(j + 2, d), start:end], data[min(j + 3, d), start:end]
        t0, t1, t2, t3 = T[j, k], T[j + 1, k], T[j + 2, k], T[j + 3, k]
        u0, u1, u2, u3 = T[j, k + 1], T[j + 1, k + 1], T[j + 2, k + 1], T[j + 3, k + 1]
        if j > 1:
            for r in range(end - start):
                a[r] += t0 * x0[r] + t1 * x1[r] + t2 * x2[r] + t3 * x3[r]
                b[r] += u0 * x0[r] + u1 * x1[r] + u2 * x2[r] + u3 * x3[r]
        elif with_shift:
            for r in range(end - start):
                a[r] = (shift[r] + t) + t0 * x0[r] + t1 * x1[r] + t2 * x2[r] + t3 * x3[r]
                b[r] = (shift[r] + u) + u0 * x0[r] + u1 * x1[r] + u2 * x2[r] + u3 * x3[r]
        else:
            for r in range(end - start):
                a[r] = t + t0 * x0[r] + t1 * x1[r] + t2 * x2[r] + t3 * x3[r]
                b[r] = u + u0 * x0[r] + u1 * x1[r] + u2 * x2[r] + u3 * x3[r]


@compiled
def products(W, E, rows, sums):  # type: ignore[no-untyped-def]
    """Add W E' to the sums; eight running sums keep the processor's adders busy."""
    zero = W.dtype.type(0)
    for k in range(0, len(E), 4):
        e0, e1, e2, e3 = E[k], E[k + 1], E[k + 2], E[k + 3]
        for j in range(0, len(W), 2):
            v, w = W[j], W[j + 1]
            v0 = v1 = v2 = v3 = w0 = w1 = w2 = w3 = zero
            for r in range(rows):
                v0 += v[r] * e0[r]
                v1 += v[r] * e1[r]
                v2 += v[r] * e2[r]
                v3 += v[r] * e3[r]
                w0 += w[r] * e0[r]
                w1 += w[r] * e1[r]
                w2 += w[r] * e2[r]
                w3 += w[r] * e3[r]
            sums[j, k] += v0
            sums[j, k + 1] += v1
            sums[j, k + 2] += v2
            sums[j, k + 3] += v3
            sums[j + 1, k] += w0
            sums[j + 1, k + 1] += w1
            sums[j + 1, k + 2] += w2
            sums[j + 1, k + 3] += w3


@compiled
def tiles(data, rho, T, K, lo, hi, shifted, E, W, sums, Z):  # type: ignore[no-untyped-def]
    """Work through the rows tile by tile; E and W are work space."""
    d = data.shape[0] - 2
    for start in range(lo, hi, TILE):
        rows = min(TILE, hi - start)
        end = start + rows
        for k in range(0, len(E), 2):
            exponents(data, T, k, start, end, shifted, E[k], E[k + 1])
        shift, z = data[d + 1, start:end], Z[start - lo : end - lo]
        if not shifted:
            for r in range(rows):
                shift[r] = -E[0, r]
            for k in range(1, K):
                e = E[k]
                for r in range(rows):
                    shift[r] = min(shift[r], -e[r])
            for k in range(K):
                e = E[k]
                for r in range(rows):
                    e[r] += shift[r]
        for r in range(rows):
            z[r] = 0
        for k in range(0, K, 2):
            a, b = E[k], E[k + 1]
            for r in range(rows):
                p, q = exp2(a[r]), exp2(b[r])  # type: ignore[no-untyped-call]
                a[r] = p
                b[r] = q
                z[r] += p + q
        first, weight = W[0], rho[start:end]
        for r in range(rows):
            first[r] = weight[r] / z[r]
        for j in range(1, d + 1):
            w, x = W[j], data[j, start:end]
            for r in range(rows):
                w[r] = x[r] * first[r]
        products(W, E, rows, sums)


def soft_sums(
    data: Array, rho: Array, table: Array, rows: slice, shifted: bool, sums: Array, Z: Array
) -> None:
    """Do what `Problem._soft_sums` says; ``data`` is (d+2, n) here."""
    d, K = data.shape[0] - 2, table.shape[1]
    # Padded to whole groups of four clusters, which nobody chooses, and of coordinates.
    T = np.zeros((1 + d + -d % 4, K + -K % 4), data.dtype)
    T[0, K:] = NOBODY
    T[: d + 1, :K] = table[:-1]
    E = np.empty((T.shape[1], TILE), data.dtype)
    W = np.zeros((d + 1 + (d + 1) % 2, TILE), data.dtype)
    padded = np.zeros((len(W), len(E)))
    tiles(data, rho, T, K, rows.start, rows.stop, shifted, E, W, padded, Z)
    sums += padded[: d + 1, :K]
