"""Learning from answers: tabular learners against known p, drift, faults, rates, speed.

Parts: tabular, rate, online, alarms, robust, speed, trust, trial. Without a name all are run.
"""

import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter
from typing import Any

import numpy as np
import torch
from behaviours import Town, draw, make_town, squared
from common import THREADS, report
from rich.progress import track
from sklearn.cluster import KMeans

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    Response,
    SimulatedPopulation,
    TabularClustering,
)
from volition.core.autonomy import RowAutonomy
from volition.core.costs import resolve_cost
from volition.core.problem import Problem
from volition.datasets import load_four_groups
from volition.learning.entities import Entities
from volition.learning.trial import drawn_twice, mean_cost

X = load_four_groups().data
N, K = len(X), 4


def uniform(kappa: float) -> np.ndarray:
    """Return p(k | j) that overrides with probability kappa, to anywhere else."""
    return (1 - kappa) * np.eye(K) + kappa / (K - 1) * (1 - np.eye(K))


def behaviour(name: str | float, seed: int) -> np.ndarray:
    """Return p, (n, K, K)."""
    if name == "random per entity":
        return np.random.default_rng(1000 + seed).dirichlet(np.ones(K), size=(N, K))
    return np.broadcast_to(uniform(float(name)), (N, K, K)).copy()


class Yardstick:
    """What is known about the truth, and only here: the gap to the best for known p."""

    def __init__(self, p: np.ndarray) -> None:
        self.problem = Problem(X, autonomy=RowAutonomy(p))
        self.best = AutonomyAwareClustering(K, random_state=0).fit(X, autonomy_proba=p).distortion_

    def gap(self, model: TabularClustering) -> float:
        found = self.problem.distortion(model.cluster_centers_, model.labels_)
        return 100 * (found / self.best - 1)


CASES = (0.1, 0.25, 0.5, "random per entity")


def tabular() -> None:
    """Gap to the optimum for known p, seeds 0-4, for both tables."""
    rows = []
    for name in track(CASES, "tabular"):
        for seed in range(5):
            p = behaviour(name, seed)
            truth = Yardstick(p)
            for estimate in ("choices", "costs"):
                people = SimulatedPopulation(X, autonomy_proba=p, random_state=seed)
                began = perf_counter()
                model = TabularClustering(K, estimate=estimate, random_state=seed)
                model.fit(X, population=people)
                rows.append(
                    {
                        "behaviour": name,
                        "table": estimate,
                        "seed": seed,
                        "gap, %": truth.gap(model),
                        "interactions": people.n_interactions,
                        "s": perf_counter() - began,
                    }
                )
    facts = {}
    for estimate in ("choices", "costs"):
        mine = [row for row in rows if row["table"] == estimate]
        gaps = [row["gap, %"] for row in mine]
        facts |= {
            f"{estimate}: mean gap, %": float(np.mean(gaps)),
            f"{estimate}: worst gap, %": max(gaps),
            f"{estimate}: slowest, s": max(row["s"] for row in mine),
        }
        for name in CASES:
            asked = [row["interactions"] for row in mine if row["behaviour"] == name]
            facts[f"{estimate}: interactions, {name}"] = float(np.mean(asked))
    report("learn_tabular", rows, facts)


def rate() -> None:
    """Error of q against answers at fixed centres: Robbins-Monro theory says n^-1/2."""
    rng = np.random.default_rng(0)
    p = behaviour("random per entity", 0)
    Y = X[rng.choice(N, K, replace=False)]
    true = Problem(X, autonomy=RowAutonomy(p)).expected_costs(Y)
    rows = []
    for power in (1.0, 0.7):
        from volition import RobbinsMonro

        model = TabularClustering(
            K, estimate="costs", q_step=RobbinsMonro(power), exploration=1.0, random_state=0,
            beta_min=1.0, beta_max=1.0, n_interactions=10**9,
        ).start(X, centers=Y)  # fmt: skip
        people = SimulatedPopulation(X, autonomy_proba=p, random_state=0)
        goals = [2**e * N * K for e in range(1, 9)]
        for goal in goals:
            while people.n_interactions < goal:
                asked = model.ask(N)
                answer = people.respond(asked.entities, asked.prescribed, asked.centers)
                model.tell(asked, answer).learn()
            q = model.expected_costs()
            rows.append(
                {
                    "power": power,
                    "answers per pair": goal / (N * K),
                    "rms error": float(np.sqrt(np.mean((q - true) ** 2))),
                }
            )
    facts = {}
    for power in (1.0, 0.7):
        mine = [row for row in rows if row["power"] == power][2:]
        slope = np.polyfit(
            np.log([row["answers per pair"] for row in mine]),
            np.log([row["rms error"] for row in mine]),
            1,
        )[0]
        facts[f"slope, power {power}"] = float(slope)
        facts[f"theory's slope, power {power}"] = -power / 2
    report("learn_rate", rows, facts)


def online() -> None:
    """Kappa jumps from 0.1 to 0.4 in mid-run: when is it noticed, when is the gap below 3 %?"""
    rows = []
    truths = {kappa: Yardstick(behaviour(kappa, 0)) for kappa in (0.1, 0.4)}
    at, step = 50_000, 250
    for seed in track(range(10), "online"):
        people = SimulatedPopulation(
            X, FixedAutonomy(uniform(0.1)), changes={at: FixedAutonomy(uniform(0.4))},
            random_state=seed,
        )  # fmt: skip
        model = TabularClustering(K, forgetting=1e-5, batch_size=step, random_state=seed)
        before, worst, back = 0.0, 0.0, 0
        while people.n_interactions < 2 * at:
            model.partial_fit(X, population=people, n_interactions=step)
            changed = people.n_interactions > at
            gap = truths[0.4 if changed else 0.1].gap(model)
            if not changed:
                before = gap
            elif gap >= 3:
                worst, back = max(worst, gap), people.n_interactions - at
        noticed = [change.n_answers - at for change in model.changes_]
        rows.append(
            {
                "seed": seed,
                "gap before, %": before,
                "worst after, %": worst,
                "noticed after": noticed[0] if noticed else None,
                "gap below 3 % for good after": back + step,
                "alarms": len(noticed),
                "gap at the end, %": gap,
            }
        )
    facts = {
        "noticed after at most": max(row["noticed after"] or 10**9 for row in rows),
        "below 3 % after at most": max(row["gap below 3 % for good after"] for row in rows),
        "alarms, all runs": sum(row["alarms"] for row in rows),
        "worst gap at the end, %": max(row["gap at the end, %"] for row in rows),
    }
    report("learn_online", rows, facts)


def alarms() -> None:
    """False alarms in 100 runs of 100,000 interactions without drift."""
    rows = []
    for seed in track(range(100), "alarms"):
        name = CASES[seed % len(CASES)]
        people = SimulatedPopulation(X, autonomy_proba=behaviour(name, seed), random_state=seed)
        model = TabularClustering(K, forgetting=1e-5, random_state=seed)
        model.partial_fit(X, population=people, n_interactions=100_000)
        rows.append({"behaviour": name, "seed": seed, "alarms": len(model.changes_)})
    report("learn_alarms", rows[:4], {"runs": len(rows), "alarms": sum(r["alarms"] for r in rows)})


def robust() -> None:
    """30 % of answers lost, 10 % twice, any order, late, about centres that have since moved."""
    rows = []
    for name in track(CASES, "robust"):
        for seed in range(3):
            p = behaviour(name, seed)
            truth = Yardstick(p)
            gaps, asked = {}, {}
            for faulty in (False, True):
                rng = np.random.default_rng(seed)
                people = SimulatedPopulation(
                    X, autonomy_proba=p, random_state=seed, missing=0.3 if faulty else 0.0
                )
                model = TabularClustering(K, random_state=seed).start(X)
                late = []
                while not model.reason_to_stop():
                    q = model.ask()
                    r = people.respond(q.entities, q.prescribed, q.centers)
                    if not faulty:
                        model.tell(q, r).learn()
                        continue
                    order = rng.permutation(len(q))
                    order = np.concatenate([order, order[: len(order) // 10]])
                    late.append((q.take(order), r.take(order)))
                    if len(late) > 3:  # told three batches later, and not in turn
                        model.tell(*late.pop(int(rng.integers(len(late))))).learn()
                model.finalize()
                gaps[faulty], asked[faulty] = truth.gap(model), model.n_interactions_
            rows.append(
                {
                    "behaviour": name,
                    "seed": seed,
                    "gap, %": gaps[False],
                    "gap with faults, %": gaps[True],
                    "interactions": asked[False],
                    "with faults": asked[True],
                }
            )
    worse = max(row["gap with faults, %"] - row["gap, %"] for row in rows)
    report("learn_robust", rows, {"worse by at most, points": worse})


def speed() -> None:
    """A million simulated answers at K = 25."""
    rng = np.random.default_rng(0)
    n, k, m = 5719, 25, 1_000_000
    data = rng.random((n, 2))
    i, j = rng.integers(0, n, m), rng.integers(0, k, m)
    models = {
        "fixed": FixedAutonomy(rng.dirichlet(np.ones(k), k)),
        "distance": DistanceAutonomy(0.3, temperature=0.1),
        "distance, gamma=0.5": DistanceAutonomy(0.3, gamma=0.5, temperature=0.1),
        "a table per entity": RowAutonomy(rng.dirichlet(np.ones(k), (n, k))),
    }
    rows = []
    for name, autonomy in models.items():
        people = SimulatedPopulation(data, autonomy, random_state=0)
        people.respond(i[:1000], j[:1000], data[:k])
        began = perf_counter()
        people.respond(i, j, data[:k])
        rows.append({"behaviour": name, "s per million answers": perf_counter() - began})
    report("learn_speed", rows, {"slowest": max(row["s per million answers"] for row in rows)})


#: the trial of live fits: behaviours that no learner's model describes, seeds, answers, centres
LIVE = (
    "river, hidden loyalty",
    "liked places",
    "hidden loyalty",
    "from work",
    "by minutes",
    "two hidden kinds",
    "own radius",
    "nearest of three random",
)
SEEDS, ANSWERS, CENTRES, PLACEMENTS = 5, 10_000, 5, 30
LEARNERS = {
    "choice": ChoiceClustering,
    "aden": ADENClustering,
    "tabular": TabularClustering,
}


class CostsOnly:
    """A town that tells what an answer costs, and not which centre was used."""

    def __init__(self, town: Town) -> None:
        self.town = town

    def respond(self, entities: np.ndarray, prescribed: np.ndarray, centers: np.ndarray) -> Any:
        return Response(None, self.town.respond(entities, prescribed, centers).cost)


def one_fit(job: tuple[str, int, str]) -> dict[str, Any]:
    """Fit once; return what was reached beside the best of many k-means placements."""
    kind, seed, name = job
    torch.set_num_threads(1)
    town = make_town(kind, seed, K=CENTRES)
    plain = []
    for start in range(PLACEMENTS):
        centers = KMeans(CENTRES, n_init=1, random_state=start).fit(town.X).cluster_centers_
        plain.append(town.true_cost(centers, squared(town.X, centers).argmin(1)))
    town.rng = np.random.default_rng([seed, 7])
    people = CostsOnly(town) if name == "aden" else town
    began = perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = LEARNERS[name](CENTRES, n_interactions=ANSWERS, random_state=seed)
        model.fit(town.X, population=people)
    true, seen = town.true_cost(model.cluster_centers_, model.labels_), model.distortion_estimate()
    return {
        "behaviour": kind,
        "seed": seed,
        "learner": name,
        "against the best of 30 k-means, %": 100 * (true / min(plain) - 1),
        "believed": model.distortion_,
        "seen": seen.value,
        "low": seen.low,
        "high": seen.high,
        "true": true,
        "covered": bool(seen.low <= true <= seen.high),
        "nan": bool(np.isnan(seen.value)),
        "warned": bool(caught),
        "kept": model.kept_,
        "answers": model.n_interactions_,
        "s": perf_counter() - began,
    }


def trust() -> None:
    """Fits off every model: are they worse than plain k-means, and do they know what they cost?"""
    jobs = [(kind, 100 + s, name) for s in range(SEEDS) for name in LEARNERS for kind in LIVE]
    found = []
    with ProcessPoolExecutor(THREADS, mp_context=get_context("spawn")) as pool:
        for row in pool.map(one_fit, jobs):
            print(row, flush=True)
            found.append(row)
    rows, facts = [], {}
    for name in LEARNERS:
        for kind in LIVE:
            mine = [one for one in found if (one["learner"], one["behaviour"]) == (name, kind)]
            gaps = [one["against the best of 30 k-means, %"] for one in mine]
            rows.append(
                {
                    "learner": name,
                    "behaviour": kind,
                    "mean against the best of 30, %": float(np.mean(gaps)),
                    "worst, %": max(gaps),
                    "covered": sum(one["covered"] for one in mine),
                    "of": len(mine),
                    "warned": sum(one["warned"] for one in mine),
                    "k-means kept": sum(one["kept"] == "k-means" for one in mine),
                    "slowest, s": max(one["s"] for one in mine),
                }
            )
        mine = [one for one in found if one["learner"] == name]
        gaps = [one["against the best of 30 k-means, %"] for one in mine]
        silent = [gap for gap, one in zip(gaps, mine, strict=True) if not one["warned"]]
        facts |= {
            f"{name}: fits": len(mine),
            f"{name}: worst against the best of 30 k-means, %": max(gaps),
            f"{name}: more than 1 % worse": sum(gap > 1 for gap in gaps),
            f"{name}: of these without a warning": sum(gap > 1 for gap in silent),
            f"{name}: covered, %": 100 * float(np.mean([one["covered"] for one in mine])),
            f"{name}: NaN": sum(one["nan"] for one in mine),
        }
    report("learn_trust", rows, facts)


def trial() -> None:
    """How often the interval of the trial at the end of a fit holds the true cost of a plan.

    k-means centres with the nearest prescribed, 667 questions as in a fit of 10,000; towns of 300,
    600 and 1,200 entities, weights alike and uneven, 60 trials each.
    """
    rows = []
    for kind in LIVE:
        for uneven in (False, True):
            towns = [(n, seed) for n in (300, 600, 1200) for seed in range(4)]
            hits = [hit for town in towns for hit in trials(kind, *town, uneven)]
            weights = "uneven" if uneven else "alike"
            share = 100 * float(np.mean(hits))
            rows.append(
                {"behaviour": kind, "weights": weights, "covered, %": share, "of": len(hits)}
            )
    shares = [row["covered, %"] for row in rows]
    report("learn_trial", rows, {"least, %": min(shares), "mean, %": float(np.mean(shares))})


def trials(kind: str, n: int, seed: int, uneven: bool) -> list[bool]:
    """Return whether intervals held the truth, in 60 trials of one plan."""
    town, rng = make_town(kind, seed, n=n, K=CENTRES), np.random.default_rng(seed)
    everyone = np.arange(n)
    weight = rng.lognormal(0, 1, n) if uneven else np.ones(n)
    shares = weight / weight.sum()
    Y = KMeans(CENTRES, n_init=3, random_state=seed).fit(town.X).cluster_centers_
    D = squared(town.X, Y)
    labels = D.argmin(1)
    p, obeying = town.p(Y)[everyone, labels], D.min(1)
    true = float(shares @ (p * D).sum(1))
    entities = Entities.of(town.X, weight, resolve_cost("sqeuclidean"))
    hits = []
    for _ in range(60):
        who, again = drawn_twice(entities.draw(667, rng), shares)
        paid = D[who, draw(p[who], rng)]
        seen, _ = mean_cost(paid, obeying[who], float(shares @ obeying), who, shares, again)
        hits.append(bool(seen.low <= true <= seen.high))
    return hits


PARTS = {
    part.__name__: part for part in (tabular, rate, online, alarms, robust, speed, trust, trial)
}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
