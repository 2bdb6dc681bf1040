"""One iteration of Algorithm 1 against one of Lloyd; collapsed against dense contraction."""

import warnings
from time import perf_counter

import numpy as np
import torch
from common import SHARED, THREADS, report
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from volition import AutonomyAwareClustering, DistanceAutonomy
from volition.core.problem import Problem
from volition.datasets import load_utd19_london, make_city

N, D, K, ITERATIONS, ROUNDS = 1_000_000, 16, 64, 20, 5


def seconds(fn) -> float:
    began = perf_counter()
    fn()
    return perf_counter() - began


def against_lloyd() -> tuple[list[dict], dict]:
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(K, D)) * 2
    X = (groups[rng.integers(0, K, N)] + rng.normal(size=(N, D))).astype(np.float32)
    init = X[:K].copy()
    autonomy = DistanceAutonomy(0.2, temperature=10.0)

    def ours(n_iter: int) -> float:
        model = AutonomyAwareClustering(
            K,
            autonomy=autonomy,
            init=init,
            solver="fixed_point",
            schedule=[0.5],
            max_iter=n_iter,
            tol=0,
        )
        return seconds(lambda: model.fit(X))

    def lloyd(n_iter: int) -> float:
        model = KMeans(K, init=init, n_init=1, max_iter=n_iter, tol=0, algorithm="lloyd")
        return seconds(lambda: model.fit(X))

    rows = []
    with warnings.catch_warnings(), threadpool_limits(THREADS):
        warnings.simplefilter("ignore")
        ours(1), lloyd(1)
        for number in range(ROUNDS):
            # Competitors take turns, so that a busy machine slows both.
            a1, b1 = ours(1), lloyd(1)
            a, b = ours(1 + ITERATIONS), lloyd(1 + ITERATIONS)
            rows.append(
                {
                    "round": number,
                    "ours, s per iteration": (a - a1) / ITERATIONS,
                    "Lloyd, s per iteration": (b - b1) / ITERATIONS,
                    "ratio": (a - a1) / (b - b1),
                    "whole fit, ratio": a / b,
                }
            )
    ratios = [row["ratio"] for row in rows]
    whole = [row["whole fit, ratio"] for row in rows]
    return rows, {
        "iteration, ours over Lloyd: median": float(np.median(ratios)),
        "iteration, ours over Lloyd: best": min(ratios),
        f"whole fit of {1 + ITERATIONS} iterations, ours over KMeans: median": float(
            np.median(whole)
        ),
    }


def dense_moments(X, Y, autonomy, beta):
    """Algorithm 1's sums from the (n, K, K) tensor, as the equations are printed."""
    D = ((X[:, None] - Y[None]) ** 2).sum(-1)
    between = ((Y[:, None] - Y[None]) ** 2).sum(-1)
    cost = autonomy.zeta * between[None] + autonomy.gamma * D[:, None]
    eye = torch.eye(len(Y), dtype=Y.dtype)
    logits = (-cost / autonomy.temperature).masked_fill(eye.bool(), -torch.inf)
    p = (1 - autonomy.kappa) * eye + autonomy.kappa * torch.softmax(logits, dim=2)
    pi = torch.softmax(-beta * torch.einsum("ijk,ik->ij", p, D), dim=1) / len(X)
    R = torch.einsum("ij,ijk->ik", pi, p)
    return R.sum(0), R.T @ X


def against_dense() -> dict:
    path = SHARED / "data" / "utd19_london.mat"
    X = load_utd19_london(path) if path.is_file() else make_city(5719) / 12
    autonomy, beta = DistanceAutonomy(0.5, temperature=0.01), 1e3
    Y = X[np.random.default_rng(0).choice(len(X), 25, replace=False)]
    problem = Problem(X, autonomy=autonomy)
    torch.set_num_threads(1)
    tX, tY = torch.tensor(X), torch.tensor(Y)
    mass, moment = dense_moments(tX, tY, autonomy, beta)
    sums = problem.moments(Y, beta)
    error = max(float((sums.mass - mass).abs().max()), float((sums.moment - moment).abs().max()))
    ratios = []
    for _ in range(15):
        fast = min(seconds(lambda: problem.moments(Y, beta)) for _ in range(20))
        slow = min(seconds(lambda: dense_moments(tX, tY, autonomy, beta)) for _ in range(2))
        ratios.append(slow / fast)
    torch.set_num_threads(THREADS)
    return {
        "collapsed contraction, times faster than dense (n=5719, K=25): median": float(
            np.median(ratios)
        ),
        "collapsed contraction, times faster than dense: all": [round(r) for r in sorted(ratios)],
        "collapsed contraction, largest difference to dense": error,
    }


def main() -> None:
    rows, facts = against_lloyd()
    report("speed", rows, {**facts, **against_dense()})


if __name__ == "__main__":
    main()
