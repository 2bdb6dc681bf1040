"""Does each part of the search earn its lines? One part off at a time, on what it was made for.

    python benchmarks/ablation.py            # all parts, some minutes on one core
    python benchmarks/ablation.py shaking    # one part

Every row compares the same runs with and without one part: mean and worst distortion above the best
that either found, in percent, iterations and seconds. Where a row is the same with and without a
part, the part has no effect there. A part that changes no row is to be deleted: the critical
schedule once took back steps in which several places split, which cost iterations and gained
nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from common import SHARED, published, report

from volition import DistanceAutonomy, FixedAutonomy, Passive, anneal
from volition.annealing.n_clusters import persistence_ranking
from volition.annealing.schedules import Critical
from volition.core.problem import Problem
from volition.datasets import load_four_groups, load_utd19_london, make_city, make_nested_groups
from volition.solvers.search import Search


class Run(NamedTuple):
    """What one run reached."""

    distortion: float
    n_iter: int
    seconds: float
    right: bool = True


class Case(NamedTuple):
    """Runs that share a data set: ``run(variant, seed)`` for each seed."""

    name: str
    run: Callable[[Any, int], Run]
    n_seeds: int


def four_groups() -> Iterator[tuple[str, Problem]]:
    """The 20 scenarios of the paper's table 1."""
    X = load_four_groups().data
    for row in published("table1.csv"):
        law = [row[name] for name in ("kappa", "gamma", "zeta", "temperature")]
        name = "four groups, kappa={:g} gamma={:g} zeta={:g} T={:g}".format(*law)
        yield name, Problem(X, autonomy=DistanceAutonomy(*law))


def london() -> Iterator[tuple[str, Problem]]:
    """The four published cases, and entities that obey."""
    path = SHARED / "data" / "utd19_london.mat"
    if not path.is_file():
        print(f"Without London: {path} is not there.")
        return
    X = load_utd19_london(path)
    yield "London, obeying", Problem(X, autonomy=Passive())
    for row in published("london.csv"):
        kappa, T = row["kappa"], row["temperature"]
        autonomy = DistanceAutonomy(kappa, temperature=T)
        yield f"London, kappa={kappa:g} T={T:g}", Problem(X, autonomy=autonomy)


def cities() -> Iterator[tuple[str, Problem, int]]:
    """Few centres, where entities override to near ones: poor minima are many."""
    X = make_city(2000, 1)
    for K in (5, 8, 12):
        for kappa, T in ((0.3, 0.1), (0.5, 0.5), (0.5, 5.0)):
            autonomy = DistanceAutonomy(kappa, temperature=T)
            yield f"city, K={K} kappa={kappa:g} T={T:g}", Problem(X, autonomy=autonomy), K


def by_annealing(problem: Problem, K: int, numbers: tuple[int, ...] = ()) -> Callable[..., Run]:
    """Anneal by a `Critical` schedule; ``numbers`` are those of distinct centres that must last."""

    def run(variant: dict[str, Any], seed: int) -> Run:
        began = perf_counter()
        result = anneal(problem, K, schedule=Critical(**variant), random_state=seed, predict=False)
        seconds = perf_counter() - began
        lasting = sorted(p.n_clusters for p in persistence_ranking(result) if p.persistence > 0.1)
        right = not numbers or lasting == list(numbers)
        return Run(problem.distortion(result.centers), result.n_iter, seconds, right)

    return run


def by_search(problem: Problem, K: int) -> Callable[..., Run]:
    """Run the search of ``solver="auto"``."""

    def run(variant: dict[str, Any], seed: int) -> Run:
        began = perf_counter()
        search = Search(problem, K, np.random.RandomState(seed), **variant)
        found = search.run()
        seconds = perf_counter() - began
        return Run(problem.distortion(found.centers), found.n_iter, seconds)

    return run


def schedule_cases() -> Iterator[Case]:
    """What the critical schedule is measured on elsewhere: `benchmarks/phase.py`."""
    for name, problem in four_groups():
        if not problem.autonomy.by_entity:
            yield Case(name, by_annealing(problem, 4), 3)
    stays = 1 - 1 / 16 - 1 / 240
    for seed in range(4):
        autonomy = FixedAutonomy(stays * np.eye(16) + 1 / 240)
        problem = Problem(make_nested_groups(seed).data, autonomy=autonomy)
        ends = by_annealing(problem, 16, (1, 4, 8, 16))
        yield Case(f"nested groups #{seed}", ends, 1)
    for name, problem in london():
        yield Case(name, by_annealing(problem, 25), 3 if "kappa" in name else 1)


def search_cases() -> Iterator[Case]:
    """Fits with few centres."""
    for name, problem in four_groups():
        yield Case(name, by_search(problem, 4), 3)
    for name, problem, K in cities():
        yield Case(name, by_search(problem, K), 3)


#: part -> (its cases, parameters with it, parameters without it)
PARTS: dict[str, tuple[Callable[[], Iterator[Case]], dict[str, Any], dict[str, Any]]] = {
    "leap": (schedule_cases, {}, {"leap": 0.0}),
    "passes": (schedule_cases, {}, {"passes": 1}),
    "shaking": (search_cases, {}, {"n_shakes": 0}),
}


def compare(part: str, case: Case, variants: dict[str, dict[str, Any]], done: dict) -> dict:
    """Return one row: the same seeds with and without the part."""
    runs: dict[str, list[Run]] = {}
    for label, variant in variants.items():
        key = case.name, str(variant), part == "shaking"
        if key not in done:
            done[key] = [case.run(variant, seed) for seed in range(case.n_seeds)]
        runs[label] = done[key]
    best = min(run.distortion for some in runs.values() for run in some)
    row: dict[str, Any] = {"part": part, "case": case.name, "seeds": case.n_seeds}
    for label, some in runs.items():
        gaps = [100 * (run.distortion / best - 1) for run in some]
        row[f"{label}: mean %"], row[f"{label}: worst %"] = float(np.mean(gaps)), max(gaps)
        row[f"{label}: iterations"] = round(float(np.mean([run.n_iter for run in some])))
        row[f"{label}: s"] = float(np.mean([run.seconds for run in some]))
        row[f"{label}: right"] = all(run.right for run in some)
    both = zip(runs["with"], runs["without"], strict=True)
    row["same"] = all(np.isclose(a.distortion, b.distortion, rtol=1e-9) for a, b in both)
    return row


def main() -> None:
    rows, facts, done = [], {}, {}
    for part in sys.argv[1:] or PARTS:
        cases, with_it, without = PARTS[part]
        mine = []
        for case in cases():
            mine.append(compare(part, case, {"with": with_it, "without": without}, done))
            print({k: round(v, 4) if isinstance(v, float) else v for k, v in mine[-1].items()})
        for label in ("with", "without"):
            means = [row[f"{label}: mean %"] for row in mine]
            facts[f"{part}, {label}: mean above the best of both, %"] = float(np.mean(means))
            worst = max(row[f"{label}: worst %"] for row in mine)
            facts[f"{part}, {label}: worst, %"] = worst
            seconds = sum(row[f"{label}: s"] * row["seeds"] for row in mine)
            facts[f"{part}, {label}: seconds"] = seconds
        facts[f"{part}: rows that differ"] = sum(not row["same"] for row in mine)
        rows += mine
    report("ablation", rows, facts)


if __name__ == "__main__":
    main()
