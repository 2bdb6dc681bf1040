"""From a log to a decision: chargers that drivers do not always use as told.

Run: python examples/from_a_log.py [FOLDER]. Writes drivers.csv, today.csv and answers.csv (what an
operator has), then calibration.png and plan-costs.png (default: here). Takes about half a minute.
"""

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np

from volition import (
    AutonomyAwareClustering,
    ChoiceAutonomy,
    ChoiceClustering,
    SimulatedPopulation,
)
from volition.choices import calibration, parameters
from volition.core.costs import resolve_cost
from volition.core.problem import Problem
from volition.datasets import make_city
from volition.plotting import plot_calibration, plot_plan_costs

K, ROWS = 8, 12_000


def operate(folder: Path) -> tuple[dict, np.ndarray, np.ndarray, np.ndarray, ChoiceAutonomy]:
    """Play the operator's past year: chargers where drivers live, the nearest one recommended.

    One recommendation in ten was random. Vans follow less often than cars: only the drivers know.
    """
    rng = np.random.default_rng(0)
    X = make_city(2000)
    van = (rng.random((len(X), 1)) < 0.3).astype(float)
    unit = float(((X - X.mean(0)) ** 2).sum(1).mean())
    drivers = ChoiceAutonomy(
        {"constant": [1.8], "covariates": [-1.5]},
        {"pair": [-20.0], "entity": [-10.0]},
        cost_unit=unit,
        covariates=van,
    )
    today = AutonomyAwareClustering(K, random_state=0).fit(X)
    entity = rng.integers(0, len(X), ROWS)
    anything = rng.random(ROWS) < 0.1
    prescribed = np.where(anything, rng.integers(0, K, ROWS), today.labels_[entity])
    people = SimulatedPopulation(X, drivers, random_state=1)
    realized = people.respond(entity, prescribed, today.cluster_centers_).realized
    log = {"entity": entity, "prescribed": prescribed, "realized": realized}
    for name, header, rows in (
        ("drivers.csv", ["id", "x", "y", "van"], zip(range(len(X)), *X.T, van[:, 0], strict=True)),
        ("today.csv", ["x", "y"], today.cluster_centers_.tolist()),
        ("answers.csv", list(log), zip(*log.values(), strict=True)),
    ):
        with open(folder / name, "w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([header, *rows])
    return log, X, van, today.cluster_centers_, drivers


def main() -> None:
    """Read the log, decide, and compare with the truth that only a simulation has."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    folder.mkdir(parents=True, exist_ok=True)
    log, X, van, today, drivers = operate(folder)

    model = ChoiceClustering(K, random_state=0).fit_log(X, log, today, covariates=van)

    print("Whether drivers follow depends on:", ", ".join(model.fit_.stay.terms))
    print("Where they go if not depends on:", ", ".join(model.fit_.away.terms))
    for p in parameters(model.fit_):
        print(f"  {p.name} = {p.value:.3f} ({p.low:.3f} to {p.high:.3f})")
    plans = model.compare_plans()
    truth = Problem(X, autonomy=drivers)
    for row in plans:
        cost, saving = row.expected, row.saving
        print(f"{row.name:36s} {cost.value:6.3f} ({cost.low:.3f} to {cost.high:.3f})", end="")
        print(f"  {row.basis:5s}", end="")
        print(f"  saves {saving.value:6.3f} ({saving.low:.3f} to {saving.high:.3f})")
    print(f"Recommended: {model.decision_.name}; {model.decision_.reason}.")
    reached = truth.distortion(model.cluster_centers_, model.labels_)
    best = AutonomyAwareClustering(K, autonomy=drivers, random_state=0).fit(X).distortion_
    print(f"In truth the recommended chargers cost {reached:.3f}; with known p {best:.3f}.")
    print(model.extrapolation())

    bins = calibration(model.fit_, X, model.choices_, resolve_cost("sqeuclidean"))
    plot_calibration(bins)[0].figure.savefig(folder / "calibration.png", dpi=140)
    plot_plan_costs(plans).figure.savefig(folder / "plan-costs.png", dpi=140)


if __name__ == "__main__":
    main()
