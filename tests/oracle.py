"""The mathematics written down once more, densely and slowly, to compare with."""

import numpy as np
import torch
from mpmath import mp, mpf

from volition import CallableAutonomy, DistanceAutonomy, FixedAutonomy, Passive
from volition.core.autonomy import RowAutonomy


def dense_distance(X, Y, a):
    """p[i, j, k] of DistanceAutonomy by its definition."""
    d_ik = ((X[:, None] - Y[None]) ** 2).sum(-1)
    d_jk = ((Y[:, None] - Y[None]) ** 2).sum(-1)
    logits = -(a.zeta * d_jk[None] + a.gamma * d_ik[:, None]) / a.temperature
    K = len(Y)
    logits = logits.masked_fill(torch.eye(K, dtype=torch.bool), -torch.inf)
    return (1 - a.kappa) * torch.eye(K, dtype=Y.dtype) + a.kappa * torch.softmax(logits, dim=2)


def dense_p(X, Y, autonomy, groups=None):
    """p[i, j, k] of any model."""
    n, K = len(X), len(Y)
    if isinstance(autonomy, Passive):
        return torch.eye(K, dtype=Y.dtype).expand(n, K, K)
    if isinstance(autonomy, FixedAutonomy):
        codes = np.zeros(n, dtype=int) if groups is None else np.asarray(groups)
        return torch.tensor(autonomy.matrix)[codes]
    if isinstance(autonomy, RowAutonomy):
        return torch.tensor(autonomy.p)
    if isinstance(autonomy, CallableAutonomy):
        return autonomy.fn(X, Y)
    return dense_distance(X, Y, autonomy)


def dense(X, Y, autonomy, beta, weight=None, groups=None):
    """Return F, its autograd gradient, D̄ and pi, from the dense tensor."""
    X = torch.tensor(X, dtype=torch.float64)
    Y = torch.tensor(Y, dtype=torch.float64, requires_grad=True)
    rho = np.full(len(X), 1 / len(X)) if weight is None else weight / np.sum(weight)
    rho = torch.tensor(rho)
    D = ((X[:, None] - Y[None]) ** 2).sum(-1)
    expected = torch.einsum("ijk,ik->ij", dense_p(X, Y, autonomy, groups), D)
    F = -(rho * torch.logsumexp(-beta * expected, dim=1)).sum() / beta
    (gradient,) = torch.autograd.grad(F, Y)
    pi = torch.softmax(-beta * expected, dim=1)
    return F.item(), gradient.numpy(), expected.detach().numpy(), pi.detach().numpy()


def precise_expected(X, Y, a, digits=60):
    """D̄ of DistanceAutonomy in arithmetic of many digits."""
    with mp.workdps(digits):
        X = [[mpf(float(v)) for v in x] for x in X]
        Y = [[mpf(float(v)) for v in y] for y in Y]
        kappa, gamma, zeta, T = (mpf(v) for v in (a.kappa, a.gamma, a.zeta, a.temperature))

        def d(u, v):
            return sum(((p - q) ** 2 for p, q in zip(u, v, strict=True)), mpf(0))

        out = np.zeros((len(X), len(Y)))
        for i, x in enumerate(X):
            for j, yj in enumerate(Y):
                others = [k for k in range(len(Y)) if k != j]
                cost = {k: zeta * d(yj, Y[k]) + gamma * d(x, Y[k]) for k in others}
                least = min(cost.values())
                w = {k: mp.exp(-(cost[k] - least) / T) for k in others}
                away = sum(w[k] * d(x, Y[k]) for k in others) / sum(w.values())
                out[i, j] = float((1 - kappa) * d(x, yj) + kappa * away)
        return out


def half_nearest(X, Y):
    """A user's model: half obey, half go where they like."""
    away = torch.softmax(-torch.cdist(X, Y), dim=1)
    return 0.5 * torch.eye(len(Y), dtype=Y.dtype) + 0.5 * away[:, None, :]


def all_models(n, K, seed=0):
    """One of each autonomy model, with the groups it needs."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 3, n)
    groups[:3] = [0, 1, 2]
    return {
        "passive": (Passive(), None),
        "fixed": (FixedAutonomy(rng.dirichlet(np.ones(K), size=K)), None),
        "groups": (FixedAutonomy(rng.dirichlet(np.ones(K), size=(3, K))), groups),
        "rows": (RowAutonomy(rng.dirichlet(np.ones(K), size=(n, K))), None),
        "distance": (DistanceAutonomy(0.3, temperature=0.7), None),
        "distance with gamma": (DistanceAutonomy(0.4, gamma=0.5, zeta=0.8, temperature=0.6), None),
        "full override": (DistanceAutonomy(1.0, gamma=0.2, temperature=0.5), None),
        "callable": (CallableAutonomy(half_nearest), None),
    }


MODELS = tuple(all_models(4, 2))
