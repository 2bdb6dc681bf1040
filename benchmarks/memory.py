"""Peak memory of a whole fit at n = 1,000,000, K = 50, gamma > 0, where p differs by entity."""

import resource
from time import perf_counter

import common
import numpy as np

from volition import AutonomyAwareClustering, DistanceAutonomy
from volition.datasets import make_city

N, K = 1_000_000, 50


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    before = peak()
    X = make_city(N, random_state=0)
    autonomy = DistanceAutonomy(0.3, gamma=0.5, temperature=1.0)
    rows = []
    for solver, schedule in (("fixed_point", [0.1, 1.0]), ("auto", "auto")):
        model = AutonomyAwareClustering(
            K,
            autonomy=autonomy,
            solver=solver,
            schedule=schedule,
            max_iter=10 if solver == "fixed_point" else 300,
            tol=1e-3 if solver == "fixed_point" else 1e-6,
            n_init=1,
            random_state=0,
        )
        began = perf_counter()
        model.fit(X)
        rows.append(
            {
                "solver": solver,
                "seconds": perf_counter() - began,
                "distortion": float(model.distortion_),
                "peak resident GB so far": peak(),
            }
        )
        print(rows[-1], flush=True)
    facts = {
        "peak resident, GB": peak(),
        "before any work (interpreter, torch), GB": before,
        "the (n, K, K) tensor would be, GB": N * K * K * np.dtype(float).itemsize / 1e9,
    }
    common.report("memory", rows, facts)


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main()
