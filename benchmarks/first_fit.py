"""How long a newcomer waits: the first fit in a fresh process, and what compiling would save.

    python benchmarks/first_fit.py

Each fit runs in a process of its own: with an empty cache of compiled code, and with a filled one.
The second table has the seconds of one gradient, by PyTorch and compiled, for growing problems.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from time import perf_counter

import numpy as np
from common import report

from volition import DistanceAutonomy
from volition.core import problem as kernel
from volition.core.kernels.blocks import threads_for
from volition.core.problem import Problem

FIT = """
from time import perf_counter
began = perf_counter()
from volition import AutonomyAwareClustering, DistanceAutonomy
from volition.core import problem
from volition.datasets import load_four_groups
imported = perf_counter()
if {always}:
    problem.COMPILED_PAIRS = 0
autonomy = DistanceAutonomy(kappa=0.3, temperature=0.01)
AutonomyAwareClustering(4, autonomy=autonomy, random_state=0).fit(load_four_groups().data)
print(imported - began, perf_counter() - imported)
"""
SIZES = [(300, 4, 2), (1800, 4, 2), (3000, 8, 2), (3000, 16, 2), (8192, 8, 2), (5719, 25, 2)]


def first_fits() -> list[dict]:
    """Return the seconds of a first fit of the four groups, with and without compiling."""
    rows = []
    for always in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            for cache in ("empty", "filled"):
                command = [sys.executable, "-c", FIT.format(always=always)]
                environment = os.environ | {"NUMBA_CACHE_DIR": folder}
                out = subprocess.run(
                    command, capture_output=True, text=True, check=True, env=environment
                )
                imported, fitted = map(float, out.stdout.split())
                rows.append(
                    {
                        "compiled": "always" if always else "large problems",
                        "cache": cache,
                        "import, s": imported,
                        "fit, s": fitted,
                    }
                )
                print(rows[-1], flush=True)
    return rows


def best_of(fn, times: int = 50) -> float:
    seconds = []
    for _ in range(times):
        began = perf_counter()
        fn()
        seconds.append(perf_counter() - began)
    return min(seconds)


def gradients() -> list[dict]:
    """Return the time of one gradient by PyTorch and compiled."""
    rows, default = [], kernel.COMPILED_PAIRS
    for n, K, d in SIZES:
        rng = np.random.default_rng(0)
        X, Y = rng.random((n, d)), rng.random((K, d))
        row: dict = {"n": n, "K": K, "d": d, "pairs": n * K}
        for label, pairs in (("torch, µs", n * K + 1), ("compiled, µs", 0)):
            kernel.COMPILED_PAIRS = pairs
            problem = Problem(X, autonomy=DistanceAutonomy(0.3, temperature=0.1))
            with threads_for(1):
                problem.value_and_gradient(Y, 200.0)
                row[label] = 1e6 * best_of(lambda: problem.value_and_gradient(Y, 200.0))  # noqa: B023
        row["torch over compiled"] = row["torch, µs"] / row["compiled, µs"]
        rows.append(row)
    kernel.COMPILED_PAIRS = default
    return rows


def main() -> None:
    report("first_fit", first_fits(), {})
    report("first_fit_gradient", gradients(), {"compiled from, pairs": kernel.COMPILED_PAIRS})


if __name__ == "__main__":
    main()
