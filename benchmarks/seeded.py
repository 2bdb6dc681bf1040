"""Seeded fits of every estimator, small and fast: are results the same as before, to the last bit?

    python benchmarks/seeded.py --write before.json    # on the old code
    python benchmarks/seeded.py --against before.json  # on the new code: a table, old beside new

Each row has a digest of centres and labels, the true distortion, and the number of answers. Where a
digest differs, the distortion says whether it matters. The exit code is 1 if any row differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from behaviours import make_log, make_town, today_of
from common import report

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    SimulatedPopulation,
    TabularClustering,
)
from volition.core import problem
from volition.datasets import load_four_groups
from volition.metrics import distortion

X = load_four_groups().data[::6]
NEAR = DistanceAutonomy(0.3, temperature=0.01)
DRAWN = DistanceAutonomy(0.4, gamma=0.5, temperature=0.05)
FIXED = FixedAutonomy(np.full((4, 4), 0.1) + 0.6 * np.eye(4))


class Travel:
    """Travel minutes that only the population knows: twice the square root of the distance."""

    def __init__(self, seed: int, reveal: str = "cost") -> None:
        self.people = SimulatedPopulation(X, NEAR, reveal=reveal, random_state=seed)

    def respond(self, *question: Any) -> Any:
        answer = self.people.respond(*question)
        return type(answer)(answer.realized, 2 * np.sqrt(answer.cost))


def asked(learner: Any, autonomy: Any, reveal: str = "realized", people: Any = None) -> Any:
    people = people or SimulatedPopulation(X, autonomy, reveal=reveal, random_state=1)
    learner.fit(X, population=people)
    true = distortion(X, learner.cluster_centers_, autonomy, labels=learner.labels_)
    return learner, true


def logged(kind: str) -> Any:
    town = make_town(kind, 7, n=300, K=5)
    today = today_of(town, 7)
    log, _ = make_log(town, today, 2000, 7)
    learner = ChoiceClustering(5, random_state=0)
    learner.fit_log(town.X, log, today, covariates=town.covariates)
    return learner, town.true_cost(learner.cluster_centers_, learner.labels_)


def town_fit(learner: Any, kind: str) -> Any:
    town = make_town(kind, 3, n=300, K=5)
    town.rng = np.random.default_rng(5)
    learner.fit(town.X, population=town)
    return learner, town.true_cost(learner.cluster_centers_, learner.labels_)


def known(autonomy: Any, **more: Any) -> Any:
    model = AutonomyAwareClustering(4, autonomy=autonomy, random_state=0, **more).fit(X)
    return model, model.distortion_


CASES: dict[str, Callable[[], Any]] = {
    "known p, gamma = 0": lambda: known(NEAR),
    "known p, gamma > 0": lambda: known(DRAWN),
    "known p, Algorithm 1": lambda: known(NEAR, solver="fixed_point"),
    "known p, critical betas": lambda: known(NEAR, solver="gradient", schedule="critical"),
    "tabular, choices": lambda: asked(
        TabularClustering(4, n_interactions=4000, random_state=0), FIXED
    ),
    "tabular, costs": lambda: asked(
        TabularClustering(4, estimate="costs", n_interactions=4000, random_state=0), FIXED
    ),
    "tabular, hands over": lambda: asked(
        TabularClustering(4, n_interactions=6000, random_state=0), NEAR
    ),
    "choice": lambda: asked(ChoiceClustering(4, n_interactions=4000, random_state=0), NEAR),
    "choice, family told": lambda: asked(
        ChoiceClustering(4, family="distance", n_interactions=2000, random_state=0), DRAWN
    ),
    "choice, hidden loyalty": lambda: town_fit(
        ChoiceClustering(5, n_interactions=4000, random_state=0), "hidden loyalty"
    ),
    "choice, log, inside": lambda: logged("near the entity"),
    "choice, log, covariate": lambda: logged("covariate"),
    "choice, log, outside": lambda: logged("river, hidden loyalty"),
    "ADEN, costs that tell": lambda: asked(
        ADENClustering(4, n_interactions=4000, random_state=0), NEAR, "cost"
    ),
    "ADEN, unknown costs": lambda: asked(
        ADENClustering(4, n_interactions=1500, random_state=0), NEAR, people=Travel(1)
    ),
    "ADEN, published head": lambda: asked(
        ADENClustering(4, head="costs", n_interactions=60_000, random_state=0), NEAR, "cost"
    ),
}


def digest(model: Any) -> str:
    """Return a digest of centres and labels."""
    seen = hashlib.sha256(np.ascontiguousarray(model.cluster_centers_, dtype=np.float64).tobytes())
    seen.update(np.asarray(model.labels_, dtype=np.int64).tobytes())
    return seen.hexdigest()[:16]


def run(name: str) -> dict[str, Any]:
    began = perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, true = CASES[name]()
    return {
        "digest": digest(model),
        "true distortion": float(true),
        "answers": int(getattr(model, "n_answers_", 0)),
        "s": perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="write the results here")
    parser.add_argument("--against", type=Path, help="compare with results written before")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument(
        "--compiled", action="store_true", help="compile sums whatever the size of the problem"
    )
    options = parser.parse_args()
    if options.compiled:
        problem.COMPILED_PAIRS = 0
    before = json.loads(options.against.read_text()) if options.against else {}
    found, rows = {}, []
    for name in CASES:
        if options.only not in name:
            continue
        found[name] = now = run(name)
        old = before.get(name)
        rows.append(
            {
                "fit": name,
                "before": old["digest"] if old else "",
                "now": now["digest"],
                "same": "" if old is None else "yes" if old["digest"] == now["digest"] else "NO",
                "distortion before": old["true distortion"] if old else float("nan"),
                "distortion now": now["true distortion"],
                "answers before": old["answers"] if old else 0,
                "answers": now["answers"],
                "s": now["s"],
            }
        )
        print(name, now, flush=True)
    if options.write:
        options.write.write_text(json.dumps(found, indent=1) + "\n")
    others = [row["fit"] for row in rows if row["same"] == "NO"]
    report("seeded", rows, {"fits": len(rows), "that differ": ", ".join(others) or "none"})
    sys.exit(1 if others else 0)


if __name__ == "__main__":
    main()
