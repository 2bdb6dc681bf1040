"""How well a time budget is kept: three fits, and the command on a million rows."""

import csv
import sys
import tempfile
import warnings
from pathlib import Path
from time import perf_counter
from typing import Any

import common
import numpy as np

from volition import AutonomyAwareClustering, DistanceAutonomy, Passive
from volition.cli.fit import run as fit_run
from volition.cli.main import main as run_command
from volition.datasets import make_city
from volition.metrics import distortion

#: entities, columns, centres, seconds; the last one is the whole command, less writing
FITS = ((20_000, 2, 300, 10.0), (200_000, 100, 50, 15.0), (20_000, 2, 2_000, 20.0))
COMMAND = (1_000_000, 2, 10, 10.0)


def entities(n: int, d: int) -> np.ndarray:
    if d == 2:
        return make_city(n, random_state=0)
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, d)) + 3 * rng.standard_normal((40, d))[rng.integers(0, 40, n)]


def row(what: str, size: tuple[int, int, int, float], seconds: float, **more: Any) -> dict:
    n, d, K, budget = size
    shown = {"n": n, "d": d, "K": K, "budget": budget, "seconds": seconds}
    return {"what": what, **shown, "over the budget, %": 100 * (seconds / budget - 1), **more}


def fit(size: tuple[int, int, int, float]) -> dict:
    n, d, K, budget = size
    X, autonomy = entities(n, d), DistanceAutonomy(0.2, temperature=1.0)
    model = AutonomyAwareClustering(K, autonomy=autonomy, time_budget=budget, random_state=0)
    began = perf_counter()
    model.fit(X)
    seconds = perf_counter() - began
    # Entities as centres are what needs no time at all.
    drawn = X[np.random.default_rng(0).choice(n, K, replace=False)]
    ratio = model.distortion_ / distortion(X, drawn, autonomy)
    again = distortion(X, model.cluster_centers_, autonomy, model.labels_)
    facts = {"cost / that of drawn entities": ratio, "cost / cost again": model.distortion_ / again}
    return row("fit", size, seconds, status=model.status_, **facts)


def command(size: tuple[int, int, int, float]) -> dict:
    """Run the command here, and stop the clock where it begins to write."""
    n, d, K, budget = size
    spent: list[float] = []
    write = fit_run.write_results

    def watched(*args: Any, **kwargs: Any) -> None:
        spent.append(perf_counter() - began)
        write(*args, **kwargs)
        spent.append(perf_counter() - began - spent[0])

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "city.csv")
        with open(source, "w", newline="") as stream:
            csv.writer(stream).writerows([["x", "y"], *entities(n, d).round(6).tolist()])
        words = ["volition", "fit", source, "-k", K, "--kappa", 0.2, "--time-budget", budget]
        sys.argv = [*map(str, words), "--out", str(Path(folder, "results"))]
        fit_run.write_results = watched
        began = perf_counter()
        try:
            run_command()
        except SystemExit as stop:
            if stop.code:
                raise
        finally:
            fit_run.write_results = write
    return row("command, less writing", size, spent[0], writing=spent[1])


def main() -> None:
    for autonomy in (Passive(), DistanceAutonomy(0.2)):  # compiling takes seconds, once
        AutonomyAwareClustering(3, autonomy=autonomy).fit(make_city(500, random_state=0))
    rows = []
    for size in FITS:
        rows.append(fit(size))
        print(rows[-1], flush=True)
    rows.append(command(COMMAND))
    names = list(dict.fromkeys(name for one in rows for name in one))
    rows = [{name: one.get(name, "") for name in names} for one in rows]
    worst = max(one["over the budget, %"] for one in rows)
    common.report("budget", rows, {"most over the budget, %": worst, "allowed, %": 10.0})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
