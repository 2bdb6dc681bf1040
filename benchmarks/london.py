"""London's 5719 traffic sensors, K = 25: default settings, Algorithm 1, and k-means."""

from time import perf_counter

from common import SHARED, published, report
from sklearn.cluster import KMeans

from volition import AutonomyAwareClustering, DistanceAutonomy
from volition.annealing.schedules import Geometric
from volition.datasets import load_utd19_london
from volition.metrics import distortion

SEEDS = range(3)


def timed(model: AutonomyAwareClustering, X) -> tuple[float, float]:
    began = perf_counter()
    return model.fit(X).distortion_, perf_counter() - began


def main() -> None:
    cases = published("london.csv")
    X = load_utd19_london(SHARED / "data" / "utd19_london.mat")
    runs = [KMeans(25, n_init=1, random_state=seed).fit(X) for seed in range(50)]
    k_means = min(runs, key=lambda run: run.inertia_)
    rows = []
    for case in cases:
        autonomy = DistanceAutonomy(case["kappa"], temperature=case["temperature"])
        ours = [
            timed(AutonomyAwareClustering(25, autonomy=autonomy, random_state=seed), X)
            for seed in SEEDS
        ]
        single = AutonomyAwareClustering(
            25,
            autonomy=autonomy,
            solver="fixed_point",
            schedule=Geometric(10, 1e4, 1.1),
            random_state=0,
            tol=1e-5,
        )
        first, first_seconds = timed(single, X)
        ignored = distortion(X, k_means.cluster_centers_, autonomy, k_means.labels_)
        best = case["best_known"]
        rows.append(
            {
                "kappa": case["kappa"],
                "T": case["temperature"],
                "best known": best,
                "ours": [round(d, 6) for d, _ in ours],
                "worst gap %": 100 * (max(d for d, _ in ours) / best - 1),
                "best gap %": 100 * (min(d for d, _ in ours) / best - 1),
                "slowest s": max(s for _, s in ours),
                "Alg. 1": first,
                "vs published Alg. 1 %": 100 * (first / case["algorithm1"] - 1),
                "Alg. 1 s": first_seconds,
                "k-means %": 100 * (ignored / best - 1),
            }
        )
        print(f"kappa={case['kappa']} T={case['temperature']}: {rows[-1]['ours']}", flush=True)
    reference = k_means.inertia_ / len(X)
    plain = [timed(AutonomyAwareClustering(25, random_state=seed), X) for seed in SEEDS]
    facts = {
        "worst gap to best known, %": max(row["worst gap %"] for row in rows),
        "slowest fit, s": max(row["slowest s"] for row in rows),
        "no autonomy, best of 50 k-means": reference,
        "no autonomy, ours": [round(d, 6) for d, _ in plain],
        "no autonomy, worst gap to best of 50 k-means, %": 100
        * (max(d for d, _ in plain) / reference - 1),
    }
    report("london", rows, facts)


if __name__ == "__main__":
    main()
