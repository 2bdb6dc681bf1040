"""Phase transitions: nested groups, schedules, and the number of clusters.

The theorems against experiments: `volition reproduce theory`.
"""

import math
import sys
from time import perf_counter

import numpy as np
import torch
from common import SHARED, THREADS, report
from rich.progress import track
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.metrics import silhouette_score
from sklearn.mixture import GaussianMixture

from volition import DistanceAutonomy, FixedAutonomy, Passive, anneal, suggest_n_clusters
from volition.annealing.n_clusters import persistence_ranking
from volition.annealing.schedules import Critical, Geometric
from volition.core.problem import Problem
from volition.datasets import load_four_groups, load_utd19_london, make_nested_groups
from volition.solvers import Gradient

PERSISTS = 0.1  # in log beta


def uniform(kappa: float, K: int) -> FixedAutonomy:
    away = kappa / (K - 1)
    return FixedAutonomy((1 - kappa - away) * np.eye(K) + away)


def best_of_k_means(problem: Problem, K: int, beta: float, starts: int = 50) -> float:
    """The best of k-means starts, each polished with the exact gradient."""
    best = math.inf
    for seed in range(starts):
        Y = KMeans(K, n_init=1, random_state=seed).fit(problem.X).cluster_centers_
        found = Gradient().solve(problem, problem.centers(Y), beta, max_iter=300, tol=1e-7)
        best = min(best, problem.distortion(found.centers))
    return best


def nested() -> dict:
    """1, 4, 8, 16 and nothing else that persists; predicted against seen."""
    rows = []
    for seed in track(range(10), "nested groups"):
        problem = Problem(make_nested_groups(seed).data, autonomy=uniform(1 / 16, 16))
        result = anneal(problem, 16, schedule=Critical(1e-3, 1e3), random_state=seed)
        splits = [t for t in result.transitions if t.n_after > t.n_before]
        lasting = sorted(
            p.n_clusters for p in persistence_ranking(result) if p.persistence > PERSISTS
        )
        others = [
            p.persistence for p in persistence_ranking(result) if p.n_clusters not in (1, 4, 8, 16)
        ]
        reached = problem.distortion(result.centers)
        rows.append(
            {
                "random_state": seed,
                "numbers that persist": lasting,
                "longest other": max(others, default=0.0),
                "splits": len(splits),
                "worst seen/predicted - 1, %": 100
                * max(abs(t.beta / t.predicted - 1) for t in splits),
                "distortion": reached,
                "gap to best of 50 k-means, %": 100
                * (reached / best_of_k_means(problem, 16, 1e3) - 1),
                "iterations": result.n_iter,
            }
        )
    right = all(row["numbers that persist"] == [1, 4, 8, 16] for row in rows)
    facts = {
        "1, 4, 8, 16 and nothing else, all seeds": right,
        "worst seen against predicted, %": max(r["worst seen/predicted - 1, %"] for r in rows),
        "worst gap, %": max(r["gap to best of 50 k-means, %"] for r in rows),
    }
    report("phase_nested", rows, facts)
    return facts


def schedules() -> dict:
    """`Critical` against a slow geometric anneal, both by the exact gradient."""
    X = load_four_groups().data
    cases = [
        ("four groups, obeying", X, 4, Passive()),
        ("four groups, kappa=0.3, T=0.01", X, 4, DistanceAutonomy(0.3, temperature=0.01)),
        ("nested groups, 15/16", make_nested_groups().data, 16, uniform(1 / 16, 16)),
    ]
    path = SHARED / "data" / "utd19_london.mat"
    if path.is_file():
        L = load_utd19_london(path)
        cases.append(("London, obeying", L, 25, Passive()))
        cases += [
            (f"London, kappa={kappa}, T={T}", L, 25, DistanceAutonomy(kappa, temperature=T))
            for kappa in (0.1, 0.5)
            for T in (0.1, 0.01)
        ]
    rows = []
    for name, data, K, autonomy in track(cases, "schedules"):
        problem = Problem(data, autonomy=autonomy)
        # Where p moves with the centres, both schedules end elsewhere for every seed, in turn above
        # and below each other: means are compared.
        seeds = range(6 if name.startswith("London, kappa") else 1)
        row = {"case": name, "seeds": len(seeds)}
        for label, schedule in (("slow", Geometric(tau=1 / 0.99)), ("critical", Critical())):
            began = perf_counter()
            results = [
                anneal(
                    problem, K, solver=Gradient(), schedule=schedule, random_state=s, predict=False
                )
                for s in seeds
            ]
            reached = [problem.distortion(result.centers) for result in results]
            row[f"{label} D"] = float(np.mean(reached))
            row[f"{label} spread, %"] = 100 * float(np.std(reached) / np.mean(reached))
            row[f"{label} iterations"] = int(np.mean([result.n_iter for result in results]))
            row[f"{label} s"] = (perf_counter() - began) / len(seeds)
        row["gap, %"] = 100 * (row["critical D"] / row["slow D"] - 1)
        row["times fewer"] = row["slow iterations"] / row["critical iterations"]
        rows.append(row)
    facts = {
        "fewest times fewer iterations": min(row["times fewer"] for row in rows),
        "worst gap to the slow anneal, %": max(row["gap, %"] for row in rows),
    }
    report("phase_schedules", rows, facts)
    return facts


def rings(seed: int) -> np.ndarray:
    """15 groups in the manner of R15: one in the middle, seven around it, seven far out."""
    rng = np.random.RandomState(seed)
    angle = 2 * np.pi * np.arange(7) / 7
    ring = np.column_stack([np.cos(angle), np.sin(angle)])
    centers = np.vstack([np.zeros((1, 2)), 2.2 * ring, 6 * ring])
    return np.repeat(centers, 40, axis=0) + rng.normal(scale=0.3, size=(600, 2))


def uneven_grid(seed: int) -> np.ndarray:
    """30 groups of 30 to 120 entities on a shaken grid."""
    rng = np.random.RandomState(seed)
    places = np.stack(np.meshgrid(range(6), range(5)), -1).reshape(-1, 2)
    places = places + rng.uniform(-0.2, 0.2, (30, 2))
    return np.concatenate(
        [c + rng.normal(scale=0.12, size=(rng.randint(30, 120), 2)) for c in places]
    )


def stretched(seed: int) -> np.ndarray:
    X, _ = make_blobs(900, centers=3, random_state=170 + seed)
    return X @ np.array([[0.6, -0.6], [-0.4, 0.8]])


def generators() -> dict:
    """What is to be told apart: name -> (K, seed -> X)."""
    return {
        "one Gaussian": (1, lambda s: np.random.RandomState(s).normal(size=(1000, 2))),
        "four groups": (4, lambda s: load_four_groups().data),
        "nested groups": (16, lambda s: make_nested_groups(s).data),
        "blobs, K=5": (
            5, lambda s: make_blobs(1000, centers=5, cluster_std=0.6, random_state=s)[0]
        ),
        "blobs in 10 dimensions, K=8": (
            8, lambda s: make_blobs(800, n_features=10, centers=8, random_state=s)[0]
        ),
        "stretched blobs, K=3": (3, stretched),
        "rings of groups, K=15": (15, rings),
        "uneven grid, K=30": (30, uneven_grid),
    }  # fmt: skip


def by_silhouette(X: np.ndarray, most: int) -> int:
    score = {
        K: silhouette_score(
            X,
            KMeans(K, n_init=3, random_state=0).fit_predict(X),
            sample_size=min(1000, len(X)),
            random_state=0,
        )
        for K in range(2, most + 1)
    }
    return max(score, key=score.get)


def by_bic(X: np.ndarray, most: int) -> int:
    score = {K: GaussianMixture(K, random_state=0).fit(X).bic(X) for K in range(1, most + 1)}
    return min(score, key=score.get)


def number(seeds: int = 3) -> dict:
    """How often each rule finds the number of clusters."""
    rows = []
    for name, (K, make) in track(generators().items(), "numbers"):
        found = {"ours": [], "silhouette": [], "BIC": []}
        seconds = dict.fromkeys(found, 0.0)
        most = max(12, K + 8)  # the same for all rules
        for seed in range(seeds):
            X = make(seed)
            rules = {
                "ours": lambda X, most: suggest_n_clusters(X, n_max=most).n_clusters,
                "silhouette": by_silhouette,
                "BIC": by_bic,
            }
            for rule, fn in rules.items():
                began = perf_counter()
                found[rule].append(fn(X, most))
                seconds[rule] += perf_counter() - began
        row = {"data": name, "K": K, "up to": most}
        for rule, values in found.items():
            row[f"{rule}: right"] = f"{values.count(K)}/{seeds}"
            row[f"{rule}: said"] = values
            row[f"{rule}: s"] = seconds[rule] / seeds
        rows.append(row)
        print(name, K, found, flush=True)
    facts = {
        f"{rule}: right in all": sum(row[f"{rule}: said"].count(row["K"]) for row in rows)
        / (seeds * len(rows))
        for rule in ("ours", "silhouette", "BIC")
    }
    ranked = suggest_n_clusters(make_nested_groups().data).ranking
    facts["nested groups: ranking"] = [p.n_clusters for p in ranked[:4]]
    report("phase_number", rows, facts)
    return facts


PARTS = {
    "nested": nested,
    "schedules": schedules,
    "number": number,
}


def main() -> None:
    torch.set_num_threads(THREADS)
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main()
