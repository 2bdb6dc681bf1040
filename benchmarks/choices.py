"""Choice models: gap after so many answers, off the family too; error bars; from a log alone.

Parts: four, london, off, cover, log, trust (the curve of gap against answers: `volition reproduce
efficiency`). Without a name all are run.
"""

import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter
from typing import Any

import numpy as np
import torch
from behaviours import INSIDE, OUTSIDE, make_log, make_town, today_of
from common import SHARED, THREADS, published, report
from rich.progress import track
from sklearn.cluster import KMeans

from volition import (
    AutonomyAwareClustering,
    CallableAutonomy,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    SimulatedPopulation,
)
from volition.choices import ChoiceAutonomy, Choices, PlanName, fit_choices, parameters
from volition.core.autonomy import Autonomy
from volition.core.problem import Problem
from volition.datasets import load_four_groups, load_utd19_london
from volition.io.records import read_records
from volition.solvers.descent import Descent

X = load_four_groups().data


def learn(
    data: np.ndarray, K: int, autonomy: Autonomy, seed: int, covariates: Any = None, **params: Any
) -> tuple[ChoiceClustering, float, float]:
    """Fit from choices; return the learner, its true distortion, and the seconds it took."""
    people = SimulatedPopulation(data, autonomy, random_state=1000 + seed)
    began = perf_counter()
    model = ChoiceClustering(K, random_state=seed, **params)
    model.fit(data, population=people, covariates=covariates)
    seconds = perf_counter() - began
    truth = Problem(data, autonomy=autonomy)
    return model, truth.distortion(model.cluster_centers_, model.labels_), seconds


def over_seeds(
    name: dict, data: np.ndarray, K: int, autonomy: Autonomy, best: float, **params: Any
) -> dict:
    """Fit for three seeds; return a row of the table."""
    gaps, answers, seconds, models = [], [], [], []
    for seed in range(3):
        model, reached, took = learn(data, K, autonomy, seed, **params)
        gaps.append(100 * (reached / best - 1))
        answers.append(model.n_interactions_)
        seconds.append(took)
        models.append(f"{'+'.join(model.model_.stay)} | {'+'.join(model.model_.away)}")
    row = {
        **name,
        "gap %": float(np.mean(gaps)),
        "worst %": max(gaps),
        "answers": max(answers),
        "s": max(seconds),
        "model": max(set(models), key=models.count),
    }
    print(row, flush=True)
    return row


def facts(rows: list[dict]) -> dict:
    return {
        "mean gap, %": float(np.mean([row["gap %"] for row in rows])),
        "worst gap, %": max(row["worst %"] for row in rows),
        "most answers": max(row["answers"] for row in rows),
        "slowest, s": max(row["s"] for row in rows),
    }


def four() -> None:
    """Four groups, all 20 scenarios: family not told, and told with 2,000 answers."""
    for name, params in (
        ("auto", {}),
        ("distance", {"family": "distance", "n_interactions": 2000}),
    ):
        rows = []
        for case in track(published("table1.csv"), name):
            kappa, gamma, T = case["kappa"], case["gamma"], case["temperature"]
            autonomy = DistanceAutonomy(kappa, gamma, temperature=T)
            label = {"kappa": kappa, "gamma": gamma, "T": T}
            rows.append(
                over_seeds(label, X, 4, autonomy, case["distortion_ground_truth"], **params)
            )
        report(f"choices_four_{name}", rows, facts(rows))


def london() -> None:
    """London, K = 25, 20,000 answers; also with gamma = 0.5."""
    data = load_utd19_london(SHARED / "data" / "utd19_london.mat")
    rows = []
    cases = [(case, 0.0) for case in published("london.csv")]
    cases += [(case, 0.5) for case in published("london.csv")]
    for case, gamma in track(cases, "London"):
        kappa, T = case["kappa"], case["temperature"]
        autonomy = DistanceAutonomy(kappa, gamma, temperature=T)
        best = case["best_known"]
        if gamma:
            known = AutonomyAwareClustering(25, autonomy=autonomy, random_state=0).fit(data)
            best = known.distortion_
        label = {"kappa": kappa, "gamma": gamma, "T": T}
        row = over_seeds(label, data, 25, autonomy, best, n_interactions=20_000)
        if not gamma:
            worst = best * (1 + row["worst %"] / 100)
            row["worst against Algorithm 1, %"] = 100 * (worst / case["algorithm1"] - 1)
        rows.append(row)
    report("choices_london", rows, facts(rows))


def halves(X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    """(i) kappa is 0.05 in one half of the map, 0.5 in the other."""
    K = len(Y)
    kappa = torch.where(X[:, 0] < MIDDLE, 0.05, 0.5).to(Y.dtype)[:, None, None]
    logits = -torch.cdist(Y, Y).square() / 0.01
    away = logits.fill_diagonal_(-torch.inf).softmax(1)
    return (1 - kappa) * torch.eye(K, dtype=Y.dtype) + kappa * away


def two_nearest(X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    """(ii) who overrides goes to one of the two nearest other centres, whichever."""
    K = len(Y)
    D = torch.cdist(X, Y).square()[:, None].expand(-1, K, -1).clone()
    D = D + torch.diag(torch.full((K,), torch.inf, dtype=Y.dtype))
    nearest = D.argsort(2)[:, :, :2]
    away = torch.zeros_like(D).scatter_(2, nearest, 0.5)
    return 0.7 * torch.eye(K, dtype=Y.dtype) + 0.3 * away


MIDDLE = float(np.median(X[:, 0]))


def best_known(data: np.ndarray, K: int, autonomy: Autonomy, covariates: Any) -> float:
    """Return the least distortion that is known: by a search with p, or from learned centres."""
    known = AutonomyAwareClustering(K, autonomy=autonomy, random_state=0).fit(data)
    problem, found = Problem(data, autonomy=autonomy), [known.distortion_]
    descent = Descent()
    for seed in range(3):
        start = learn(data, K, autonomy, seed, covariates)[0].cluster_centers_
        found.append(problem.distortion(descent.polish(problem, start)))
    return min(found)


def off() -> None:
    """Off the family on purpose: at most 50,000 answers, automatic choice of the model."""
    K = 6
    rng = np.random.default_rng(0)
    z = rng.standard_normal((len(X), 1))
    covariate = ChoiceAutonomy(
        {"constant": [1.0], "covariates": [1.5]}, {"pair": [-100.0]}, covariates=z
    )
    cyclic = FixedAutonomy(0.7 * np.eye(K) + 0.3 * np.roll(np.eye(K), 1, axis=1))
    cases: list[tuple[str, Autonomy, Any]] = [
        ("(i) kappa by half of the map", CallableAutonomy(halves), None),
        ("(ii) one of the two nearest", CallableAutonomy(two_nearest), None),
        ("(iii) k = j + 1 mod K", cyclic, None),
        ("(iv) logit with a covariate", covariate, z),
    ]
    rows = []
    for name, autonomy, covariates in track(cases, "off the family"):
        best = best_known(X, K, autonomy, covariates)
        row = over_seeds({"override": name}, X, K, autonomy, best, covariates=covariates)
        linear = learn(X, K, autonomy, 0, family="distance")[1]
        row["distance family %"] = 100 * (linear / best - 1)
        rows.append(row)
    report("choices_off", rows, facts(rows))


def log_of(
    data: np.ndarray, autonomy: Autonomy, today: np.ndarray, m: int, seed: int
) -> tuple[dict, np.ndarray, np.ndarray]:
    """Return a log (nearest prescribed, one in ten anything), its policy, and its propensities."""
    rng, K = np.random.default_rng(seed), len(today)
    near = Problem(data).labels(today)
    entity = rng.integers(0, len(data), m)
    prescribed = np.where(rng.random(m) < 0.9, near[entity], rng.integers(0, K, m))
    people = SimulatedPopulation(data, autonomy, random_state=seed)
    realized = people.respond(entity, prescribed, today).realized
    policy = 0.9 * np.eye(K)[near] + 0.1 / K
    log = {"entity": entity, "prescribed": prescribed, "realized": realized}
    return log, policy, policy[entity, prescribed]


#: behaviours of the logs by which intervals are judged: kappa, gamma, temperature
COVERED = ((0.3, 0.5, 0.05), (0.2, 0.0, 0.1))
#: logs of each, and those of them in which centres are searched for
COVER_LOGS, COVER_SEARCHED = 1000, 400


def one_cover(job: tuple[int, int]) -> dict[str, bool]:
    """Return which intervals from one log cover the truth."""
    (kappa, gamma, T), seed = COVERED[job[0]], job[1]
    torch.set_num_threads(1)
    today = AutonomyAwareClustering(4, random_state=0).fit(X).cluster_centers_
    autonomy = DistanceAutonomy(kappa, gamma, temperature=T)
    problem = Problem(X, autonomy=autonomy)
    true = {"kappa": kappa, "zeta / T": 1 / T, "gamma / T": gamma / T, "T": T, "gamma": gamma}
    log, policy, chance = log_of(X, autonomy, today, 3000, seed)
    records = read_records(log, X, today[None], problem.cost)
    choices = Choices(*records[:4], layouts=today[None])
    fit = fit_choices(X, choices, problem.cost, problem.cost_scale, family="distance")
    hits = {p.name: bool(p.low <= true[p.name] <= p.high) for p in parameters(fit)}
    if seed >= COVER_SEARCHED:
        return hits
    model = ChoiceClustering(4, family="distance", random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit_log(X, log, today)
    centers, labels = model._plans.moved
    logged, moved = model.compare_plans({PlanName.MOVED: (centers, labels)}, propensity=chance)
    now = float((policy * problem.expected_costs(today)).sum(1).mean())
    then = problem.distortion(centers, labels)
    for name, estimate, truth in (
        ("saving", moved.saving, now - then),
        ("today, weighted", logged.weighted, now),
        ("today, doubly robust", logged.robust, now),
        ("recommended, direct", moved.direct, then),
    ):
        if np.isfinite(estimate.low):
            hits[name] = bool(estimate.low <= truth <= estimate.high)
    hits["no interval"] = not np.isfinite(moved.direct.low)
    return hits


def cover() -> None:
    """How often 95 % intervals cover the truth: logs of 3,000 rows, four groups.

    Parameters in 1,000 logs (in 200 the share is off by 1.5 points by chance alone), costs and
    savings, for which centres have to be found, in the first 400 of them. A log whose checks raise
    a false alarm gets no interval for moved centres: such logs are counted on their own.
    """
    rows = []
    with ProcessPoolExecutor(THREADS, mp_context=get_context("spawn")) as pool:
        for case, (kappa, gamma, T) in enumerate(COVERED):
            jobs = [(case, seed) for seed in range(COVER_LOGS)]
            counts: dict[str, list[bool]] = {}
            for hits in track(pool.map(one_cover, jobs), f"case {case}", total=len(jobs)):
                for name, hit in hits.items():
                    counts.setdefault(name, []).append(hit)
            label = {"kappa": kappa, "gamma": gamma, "T": T}
            rows.append(label | {f"{name} %": 100 * np.mean(hits) for name, hits in counts.items()})
    shares = [
        value
        for row in rows
        for name, value in row.items()
        if name.endswith("%") and name != "no interval %"
    ]
    report("choices_cover", rows, {"least, %": min(shares), "most, %": max(shares)})


def from_log() -> None:
    """London from a log alone: 20,000 rows, today's centres by k-means."""
    data = load_utd19_london(SHARED / "data" / "utd19_london.mat")
    today = KMeans(25, n_init=10, random_state=0).fit(data).cluster_centers_
    rows = []
    for case in track(published("london.csv"), "from a log"):
        kappa, T = case["kappa"], case["temperature"]
        autonomy = DistanceAutonomy(kappa, temperature=T)
        problem = Problem(data, autonomy=autonomy)
        log, _, chance = log_of(data, autonomy, today, 20_000, seed=0)
        began = perf_counter()
        model = ChoiceClustering(25, random_state=0).fit_log(data, log, today)
        took = perf_counter() - began
        plans = {row.name: row for row in model.compare_plans(propensity=chance)}
        known = AutonomyAwareClustering(25, autonomy=autonomy, random_state=0).fit(data)
        found = plans[PlanName.MOVED].direct
        rows.append(
            {
                "kappa": kappa,
                "T": T,
                "today, nearest": problem.distortion(today, Problem(data).labels(today)),
                "ignored, expected": plans[PlanName.IGNORED].direct.value,
                "recommended, expected": found.value,
                "low": found.low,
                "high": found.high,
                "in truth": problem.distortion(model.cluster_centers_, model.labels_),
                "known p": known.distortion_,
                "best known": case["best_known"],
                "algorithm 1": case["algorithm1"],
                "s": took,
            }
        )
        print(rows[-1], flush=True)
    worst = max(100 * (row["in truth"] / row["best known"] - 1) for row in rows)
    report("choices_log", rows, {"worst gap to best known, %": worst})


#: logs of each behaviour in the trial of recommendations
LOGS = 30


def one_log(job: tuple[str, int]) -> dict[str, Any]:
    """Follow the recommendation from one log; return what was said and what came of it."""
    kind, seed = job
    torch.set_num_threads(1)
    town = make_town(kind, seed)
    today = today_of(town, seed)
    log, policy = make_log(town, today, 2000 if seed % 2 else 4000, seed)
    if seed % 3 == 0:
        del log["propensity"]  # many logs do not have it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ChoiceClustering(town.n_clusters, random_state=seed)
        model.fit_log(town.X, log, today, covariates=town.covariates)
        decision = model.decision_
        plan = (model.cluster_centers_, None if decision.name == PlanName.TODAY else model.labels_)
        options = {} if plan[1] is None else {decision.name: plan}
        rows = model.compare_plans(options)
        first, row = rows[0], rows[-1]
    now = town.true_cost(today, policy)
    then = now if plan[1] is None else town.true_cost(*plan)
    best = min(now, town.true_cost(*model._plans.moved))
    return {
        "kind": kind,
        "seed": seed,
        "plan": decision.name,
        "warned": bool(decision.doubts),
        "worse": then > now * (1 + 1e-9),
        "cost covered": row.expected.low <= then <= row.expected.high,
        "saving covered": row.saving.low <= now - then <= row.saving.high,
        "saved": 100 * (1 - then / now),
        "said": 100 * row.saving.value / first.expected.value,
        "model's plan saves": 100 * (1 - best / now),
    }


def trust() -> None:
    """Follow recommendations from logs of behaviour outside and inside the terms."""
    kinds = [*INSIDE, *OUTSIDE]
    jobs = [(kind, 1000 + seed) for kind in kinds for seed in range(LOGS)]
    with ProcessPoolExecutor(THREADS, mp_context=get_context("spawn")) as pool:
        found = list(track(pool.map(one_log, jobs), "trust", total=len(jobs)))
    rows = []
    for kind in kinds:
        mine = [one for one in found if one["kind"] == kind]
        calm = [one for one in mine if not one["warned"]]

        def share(name: str, rows: list[dict]) -> float:
            return 100 * float(np.mean([one[name] for one in rows])) if rows else float("nan")

        rows.append(
            {
                "behaviour": kind,
                "terms": "inside" if kind in INSIDE else "outside",
                "logs": len(mine),
                "warned %": share("warned", mine),
                "moved %": 100 * float(np.mean([one["plan"] == PlanName.MOVED for one in mine])),
                "worse than today": sum(one["worse"] for one in mine),
                "of these without a warning": sum(one["worse"] for one in calm),
                "cost covered, no warning %": share("cost covered", calm),
                "saving covered, no warning %": share("saving covered", calm),
                "saved %": float(np.mean([one["saved"] for one in mine])),
                "said %": float(np.mean([one["said"] for one in mine])),
            }
        )
    calm = [one for one in found if not one["warned"]]
    facts = {
        "logs": len(found),
        "worse than today, %": 100 * float(np.mean([one["worse"] for one in found])),
        "worse than today without a warning": sum(one["worse"] for one in calm),
        "largest loss, % of today": max(0.0, *(-one["saved"] for one in found)),
        "cost covered, no warning, %": 100 * float(np.mean([o["cost covered"] for o in calm])),
        "saving covered, no warning, %": 100 * float(np.mean([o["saving covered"] for o in calm])),
        "warned inside the terms, %": 100
        * float(np.mean([one["warned"] for one in found if one["kind"] in INSIDE])),
        "warned outside, %": 100
        * float(np.mean([one["warned"] for one in found if one["kind"] in OUTSIDE])),
    }
    report("choices_trust", rows, facts)


PARTS = {
    "four": four,
    "london": london,
    "off": off,
    "cover": cover,
    "log": from_log,
    "trust": trust,
}

if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    for name in sys.argv[1:] or PARTS:
        if name not in PARTS:
            sys.exit(f"There is no part {name!r}; parts are {', '.join(PARTS)}.")
        PARTS[name]()
