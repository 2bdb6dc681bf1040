"""Choice models: gap after so many answers, off the family too; error bars; from a log alone.

Parts: four, london, off, curve, cover, log. Without a name all are run.
"""

import sys
from time import perf_counter
from typing import Any

import numpy as np
import torch
from common import SHARED, THREADS, published, report
from rich.progress import track

from volition import (
    AutonomyAwareClustering,
    CallableAutonomy,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    SimulatedPopulation,
)
from volition.autonomy import Autonomy
from volition.choices import ChoiceAutonomy
from volition.datasets import load_four_groups, load_utd19_london
from volition.portfolio import Search
from volition.problem import Problem

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
    search = Search(problem, K, np.random.RandomState(0))
    for seed in range(3):
        start = learn(data, K, autonomy, seed, covariates)[0].cluster_centers_
        found.append(problem.distortion(search.polish(problem, start)))
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


PARTS = {"four": four, "london": london, "off": off}

if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    for name in sys.argv[1:] or PARTS:
        if name not in PARTS:
            sys.exit(f"There is no part {name!r}; parts are {', '.join(PARTS)}.")
        PARTS[name]()
