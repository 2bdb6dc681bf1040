"""ADEN: costs only, beside the published figures; transfer, large data, ablation, speed.

Parts: four, costs, grid, london, unknown, together, negative, ablation, transfer, river, large,
paper, compiled. Without a name all are run.

In `four`, `grid` and `london` the published head (expected costs by squared errors) has rows of its
own below those of the default, which decodes choices from costs. It asks some 800,000 questions and
takes a minute or more a run, so that it runs with one seed, on the first scenarios only: all 20 in
`four`, 4 in `grid`, 1 in `london`; `--published N` sets another number, 0 for none.
"""

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from common import RESULTS, SHARED, THREADS, published, report
from rich.progress import Progress, track
from sklearn.datasets import make_blobs
from torch import nn

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    CallableAutonomy,
    ChoiceClustering,
    DistanceAutonomy,
    Recipe,
    Response,
    SimulatedPopulation,
)
from volition.core.autonomy import Autonomy
from volition.core.costs import resolve_cost
from volition.core.problem import Problem
from volition.datasets import load_four_groups, load_utd19_london, make_city
from volition.learning.networks import PRESETS, ADENetwork, Units
from volition.learning.networks.algorithm2 import beta_ladder
from volition.learning.networks.replay import AnswerGroups
from volition.learning.networks.training import Trainer
from volition.learning.networks.training_data import training_batch
from volition.paper.published import GRID

X = load_four_groups().data
COSTS = Recipe(head="costs")


class Altered:
    """Answers whose costs are told otherwise than they are."""

    def __init__(self, people: SimulatedPopulation, told: Callable) -> None:
        self.people, self.told, self.rng = people, told, np.random.default_rng(0)

    def respond(self, entities: Any, prescribed: Any, centers: Any) -> Response:
        cost = self.people.respond(entities, prescribed, centers).cost
        return Response(None, self.told(cost, self.rng))


def learn(
    data: np.ndarray, K: int, autonomy: Autonomy, seed: int, metric: Any = "sqeuclidean",
    told: Callable | None = None, **params: Any,
) -> tuple[ADENClustering, float, float]:  # fmt: skip
    """Fit from costs alone; return the learner, its true distortion, and the seconds it took."""
    people: Any = SimulatedPopulation(
        data, autonomy, metric=metric, reveal="cost", random_state=1000 + seed
    )
    people = people if told is None else Altered(people, told)
    began = perf_counter()
    model = ADENClustering(K, random_state=seed, **params).fit(data, population=people)
    seconds = perf_counter() - began
    truth = Problem(data, autonomy=autonomy, cost=resolve_cost(metric))
    return model, truth.distortion(model.cluster_centers_, model.labels_), seconds


def over_seeds(
    name: dict,
    data: np.ndarray,
    K: int,
    autonomy: Autonomy,
    best: float,
    seeds: range,
    **params: Any,
) -> dict:
    gaps, answers, seconds = [], [], []
    for seed in seeds:
        model, reached, took = learn(data, K, autonomy, seed, **params)
        gaps.append(100 * (reached / best - 1))
        answers.append(model.n_interactions_)
        seconds.append(took)
    row = name | {
        "head": model.head_,
        "gaps %": [round(gap, 3) for gap in gaps],
        "mean %": float(np.mean(gaps)),
        "worst %": max(gaps),
        "most answers": max(answers),
        "slowest s": max(seconds),
    }
    print(row, flush=True)
    return row


class Scenario(NamedTuple):
    """One line of a table: what is known of it, and figures to stand beside ours."""

    label: dict
    data: np.ndarray
    K: int
    autonomy: Autonomy
    best: float
    beside: dict


def both_heads(name: str, scenarios: list[Scenario], n_published: int) -> tuple[list, dict]:
    """Return rows and totals: the default, three seeds; below it the published head, one seed."""
    rows, facts = [], {}
    for title, some, seeds, params in (
        ("default", scenarios, range(3), {}),
        ("published head", scenarios[:n_published], range(1), {"preset": COSTS}),
    ):
        mine = [
            over_seeds({"learner": title} | one.label, *one[1:5], seeds, **params) | one.beside
            for one in track(some, f"{name}, {title}")
        ]
        rows += mine
        if mine:
            facts |= {f"{title}: {key}": value for key, value in totals(mine).items()}
    return rows, facts


def totals(rows: list[dict]) -> dict:
    gaps = [gap for row in rows for gap in row["gaps %"]]
    return {
        "runs": len(gaps),
        "mean gap, %": float(np.mean(gaps)),
        "median gap, %": float(np.median(gaps)),
        "worst gap, %": max(gaps),
        "most answers": max(row["most answers"] for row in rows),
        "slowest run, s": max(row["slowest s"] for row in rows),
    }


def four_groups() -> list[Scenario]:
    """The paper's 20 scenarios, with its figures."""
    scenarios = []
    for case in published("table1.csv"):
        autonomy = DistanceAutonomy(case["kappa"], case["gamma"], case["zeta"], case["temperature"])
        label = {key: case[key] for key in ("kappa", "gamma", "temperature")}
        beside = {
            "published ADEN %": case["aden_gap_percent"],
            "ignored %": case["ignored_gap_percent"],
        }
        best = case["distortion_ground_truth"]
        scenarios.append(Scenario(label, X, 4, autonomy, best, beside))
    return scenarios


def four(n_published: int = 20) -> None:
    """All 20 scenarios on the four groups."""
    scenarios = four_groups()
    rows, facts = both_heads("four groups", scenarios, n_published)
    published_gaps = [one.beside["published ADEN %"] for one in scenarios]
    facts["published ADEN, mean of 20, %"] = float(np.mean(published_gaps))
    report("aden_four", rows, facts)


def costs() -> None:
    """The published head alone: expected costs by squared errors."""
    rows = [
        over_seeds(one.label, *one[1:5], range(1), preset=COSTS) | one.beside
        for one in track(four_groups(), "costs")
    ]
    report("aden_costs", rows, totals(rows))


def grid(n_published: int = 4) -> None:
    """The appendix's 4 x 4 grid; the best for known p is ours, as none is published."""
    scenarios = []
    for kappa, gamma, zeta, T, *_ in GRID:
        autonomy = DistanceAutonomy(kappa, gamma, zeta, T)
        best = min(
            AutonomyAwareClustering(4, autonomy=autonomy, random_state=s).fit(X).distortion_
            for s in range(3)
        )
        label = {"kappa": kappa, "gamma": gamma, "zeta": zeta, "temperature": T, "best": best}
        scenarios.append(Scenario(label, X, 4, autonomy, best, {}))
    report("aden_grid", *both_heads("grid", scenarios, n_published))


def london(n_published: int = 1) -> None:
    """London, K = 25, against Algorithm 1 and the best known."""
    path = SHARED / "data" / "utd19_london.mat"
    if not path.is_file():
        sys.exit(f"This benchmark needs {path}, which is not there.")
    data, cases = load_utd19_london(path), published("london.csv")
    scenarios = [
        Scenario(
            {"kappa": case["kappa"], "temperature": case["temperature"]},
            data,
            25,
            DistanceAutonomy(case["kappa"], temperature=case["temperature"]),
            case["best_known"],
            {
                "published ADEN against Alg. 1 %": case["published_aden_percent_vs_algorithm1"],
                "Alg. 1 against best known %": 100 * (case["algorithm1"] / case["best_known"] - 1),
            },
        )
        for case in cases
    ]
    rows, facts = both_heads("London", scenarios, n_published)
    for row in rows:
        ahead = (1 + row["worst %"] / 100) / (1 + row["Alg. 1 against best known %"] / 100)
        row["worst against Alg. 1 %"] = 100 * (ahead - 1)
    facts["default: worst against Algorithm 1, %"] = max(
        row["worst against Alg. 1 %"] for row in rows if row["learner"] == "default"
    )
    report("aden_london", rows, facts)


def travel_time(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Street blocks, and a slow bridge in the middle of the map."""
    side = torch.sigmoid(40 * (A[:, None, 0] - 0.5)) - torch.sigmoid(40 * (B[None, :, 0] - 0.5))
    return (A[:, None] - B[None]).abs().sum(-1) + 0.5 * side.abs()


def over_a_river(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A river in the middle of the map with one bridge: costs jump from one bank to the other."""
    bridge = torch.tensor([[0.5, 0.3]], dtype=B.dtype)
    over = torch.cdist(A, bridge) + torch.cdist(B, bridge).T + 0.1
    return torch.where((A[:, None, 0] < 0.5) != (B[None, :, 0] < 0.5), over, torch.cdist(A, B))


def by_place(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Override with probability 0.05 in the west, 0.5 in the east."""
    eye = torch.eye(len(B), dtype=B.dtype)
    away = torch.softmax(-(torch.cdist(B, B) ** 2) / 0.05 - 1e9 * eye, dim=1)
    kappa = torch.where(A[:, 0] < 0.5, 0.05, 0.5)[:, None, None]
    return (1 - kappa) * eye + kappa * away


def noisy(cost: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Costs that are off by a fifth, up or down."""
    return cost * np.exp(0.2 * rng.standard_normal(len(cost)))


def unknown() -> None:
    """What linear logits or known distances cannot express."""
    near = DistanceAutonomy(0.3, temperature=0.01)
    slow = DistanceAutonomy(0.3, temperature=0.05)
    rows = []
    for name, K, autonomy, metric, told in (
        ("override by place", 4, CallableAutonomy(by_place), "sqeuclidean", None),
        ("noisy costs", 4, near, "sqeuclidean", noisy),
        ("travel time that only the population knows", 4, slow, travel_time, None),
        # With a centre less than there are groups one on the bank seems near to two of them.
        ("the same over a river, three centres", 3, slow, over_a_river, None),
    ):
        known = AutonomyAwareClustering(K, autonomy=autonomy, metric=metric, random_state=0)
        best, case = known.fit(X).distortion_, {"case": name}
        rows.append(over_seeds(case, X, K, autonomy, best, range(3), metric=metric, told=told))
    report("aden_unknown", rows, totals(rows))


def minutes(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Twice the way."""
    return 2 * torch.cdist(A, B)


def together() -> None:
    """Travel minutes that only the population knows, while it is seen which centre was used."""
    slow, rows = DistanceAutonomy(0.3, temperature=0.05), []
    for name, K, metric in (
        ("twice the way", 4, minutes),
        ("street blocks and a slow bridge", 4, travel_time),
        ("a river with one bridge, three centres", 3, over_a_river),
    ):
        known = AutonomyAwareClustering(K, autonomy=slow, metric=metric, random_state=0)
        best, truth = known.fit(X).distortion_, Problem(X, autonomy=slow, cost=resolve_cost(metric))
        gaps, answers, off, seconds = [], [], [], []
        for seed in range(3):
            people = SimulatedPopulation(X, slow, metric=metric, random_state=1000 + seed)
            began = perf_counter()
            model = ChoiceClustering(K, n_interactions=4000, random_state=seed)
            model.fit(X, population=people)
            seconds.append(perf_counter() - began)
            reached = truth.distortion(model.cluster_centers_, model.labels_)
            gaps.append(100 * (reached / best - 1))
            off.append(100 * (model.distortion_ / reached - 1))
            answers.append(model.n_interactions_)
        rows.append(
            {
                "case": name,
                "gaps %": [round(gap, 3) for gap in gaps],
                "worst %": max(gaps),
                "distortion_ off by %": [round(error, 2) for error in off],
                "most answers": max(answers),
                "slowest s": max(seconds),
            }
        )
        print(rows[-1], flush=True)
    report("aden_together", rows, totals(rows))


def negative() -> None:
    """Costs less a gain, up to all of them below nothing: the best centres stay the same."""
    near = DistanceAutonomy(0.3, temperature=0.01)
    best = AutonomyAwareClustering(4, autonomy=near, random_state=0).fit(X).distortion_
    rows = []
    for gain in (0.0, 0.1, 1.0, 100.0):

        def told(cost: np.ndarray, _: Any, gain: float = gain) -> np.ndarray:
            return cost - gain

        rows.append(over_seeds({"gain": gain}, X, 4, near, best, range(2), told=told, head="costs"))
    report("aden_negative", rows, totals(rows))


def ablation() -> None:
    """Leave one thing out at a time, on two scenarios that differ much."""
    scenarios = [(0.4, 0, 0.01), (0.5, 0.5, 100)]
    cases = {(c["kappa"], c["gamma"], c["temperature"]): c for c in published("table1.csv")}
    changes: list[tuple[str, Recipe]] = [
        ("default: choices", PRESETS["cpu"]),
        ("costs by squared errors", COSTS),
        ("... perturbation 0.01, as published", replace(COSTS, spread=0.01)),
        ("... without replay", replace(COSTS, replay=1)),
        ("... 16 draws of each pair", replace(COSTS, n_draws=16, n_layouts=4)),
        ("... learning rate 1e-4, constant", replace(COSTS, learning_rate=1e-4, warm_up=False)),
        ("... exploration 0.05", replace(COSTS, exploration=0.05)),
        ("... one replica", replace(COSTS, replicas=1)),
        ("... a quarter of the answers", replace(COSTS, epochs=4, updates=38)),
    ]
    rows = []
    for name, recipe in track(changes, "ablation"):
        gaps, answers, seconds = [], 0, 0.0
        for kappa, gamma, T in scenarios:
            autonomy = DistanceAutonomy(kappa, gamma, temperature=T)
            model, reached, took = learn(X, 4, autonomy, 0, preset=recipe)
            best = cases[kappa, gamma, T]["distortion_ground_truth"]
            gaps.append(100 * (reached / best - 1))
            answers, seconds = max(answers, model.n_interactions_), max(seconds, took)
        rows.append(
            {
                "recipe": name,
                "gaps %": [round(gap, 2) for gap in gaps],
                "mean %": float(np.mean(gaps)),
                "worst %": max(gaps),
                "answers": answers,
                "s": seconds,
            }
        )
        print(rows[-1], flush=True)
    report("aden_ablation", rows, {"scenarios (kappa, gamma, T)": scenarios})


def town(seed: int, n_jams: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return travel times on the unit square, drawn at random.

    Street blocks; two winding rivers and two ring roads that take time to cross; jams that slow
    down whoever sets out from there or gets there.
    """
    rng = np.random.default_rng(seed)
    angle, bend, phase = rng.uniform([[0.0], [0.05], [0.0]], [[np.pi], [0.15], [6.0]], (3, 2))
    middle, ring = rng.uniform(0.3, 0.7, (2, 2)), rng.uniform(0.2, 0.8, (2, 2))
    radius, height = rng.uniform(0.12, 0.25, 2), rng.uniform(0.4, 0.6, 4)
    spots = rng.uniform(0.1, 0.9, (n_jams, 2))
    width, slow = rng.uniform(0.08, 0.12, n_jams), rng.uniform(0.6, 0.9, n_jams)
    across = np.stack([np.cos(angle), np.sin(angle)])
    along = np.stack([-np.sin(angle), np.cos(angle)])

    def crossed(Z: torch.Tensor, as_: Callable[[np.ndarray], torch.Tensor]) -> torch.Tensor:
        rivers = Z @ as_(across) - as_((middle.T * across).sum(0))
        rivers = rivers + as_(bend) * torch.sin(6 * (Z @ as_(along)) + as_(phase))
        rings = torch.cdist(Z, as_(ring)) - as_(radius)
        return as_(height) * torch.sigmoid(30 * torch.cat([rivers, rings], 1))

    def travel(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        def as_(numbers: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(numbers).to(A)

        def slowness(Z: torch.Tensor) -> torch.Tensor:
            near = torch.exp(-((torch.cdist(Z, as_(spots)) / as_(width)) ** 2) / 2)
            return torch.exp(0.5 * (near @ as_(slow)))

        way = torch.cat([A, crossed(A, as_)], 1)[:, None] - torch.cat([B, crossed(B, as_)], 1)[None]
        time = way.abs().sum(-1)
        return time * slowness(A)[:, None] * slowness(B)[None] if n_jams else time

    return travel


def scaled(data: np.ndarray) -> np.ndarray:
    return (data - data.min(0)) / np.ptp(data, axis=0)


def blobs(K: int, seed: int) -> np.ndarray:
    return scaled(make_blobs(1000, centers=K, cluster_std=0.7, random_state=seed)[0])


def everywhere(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((1500, 2))


TOWNS = {"plain": town(1, 0), "jammed": town(2, 5)}
#: town, entities, K, kappa, gamma, T. Sources are all over the town, as they are to be of use
#: wherever entities of the targets may be
SOURCES = {
    "plain-7": ("plain", lambda: everywhere(1), 7, 0.3, 0.0, 0.2),
    "plain-9": ("plain", lambda: everywhere(2), 9, 0.15, 0.5, 1.0),
    "jammed-7": ("jammed", lambda: everywhere(3), 7, 0.3, 0.0, 0.2),
    "jammed-9": ("jammed", lambda: everywhere(4), 9, 0.15, 0.5, 1.0),
}
#: answers that a source is trained with
SOURCE_ANSWERS = 60_000
#: source, entities, K, kappa, gamma, T
TARGETS = {
    "four groups": ("plain-7", lambda: X, 4, 0.2, 0.0, 1.0),
    "eight blobs": ("plain-7", lambda: blobs(8, 2), 8, 0.1, 0.5, 0.3),
    "city": ("plain-9", lambda: scaled(make_city(1000)), 5, 0.4, 0.0, 0.5),
    "four groups, three centres": ("jammed-9", lambda: X, 3, 0.4, 0.0, 0.2),
    "five blobs": ("jammed-7", lambda: blobs(5, 7), 5, 0.25, 0.5, 0.5),
    "city, six centres": ("jammed-9", lambda: scaled(make_city(1000)), 6, 0.2, 0.0, 0.1),
}
#: answers that are tried, one after the other, until the gaps are reached, in %
BUDGETS = tuple(62 * 2**k for k in range(7))
GOALS = (1.0, 2.0)


def network_file(source: str) -> Path:
    return RESULTS / f"aden_source_{source}.safetensors"


def transfer() -> None:
    """Answers until a mean gap over three seeds, from scratch and from a network trained elsewhere.

    Source and target lie in one town, whose travel times only the population knows; entities, K
    and autonomy differ. Where the last budget does not suffice from scratch it is taken all the
    same, so that the ratio is a lower bound. A process with one thread for each pair.
    """

    def alone(job: str) -> dict:
        done = subprocess.run(
            [sys.executable, __file__, job],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"BENCH_THREADS": "1"},
        )
        row: dict = json.loads(done.stdout.splitlines()[-1])
        print(row, flush=True)
        return row

    RESULTS.mkdir(exist_ok=True)
    with ThreadPoolExecutor(THREADS) as pool:
        sources = list(track(pool.map(alone, [f"source:{name}" for name in SOURCES]), "sources"))
        rows = list(track(pool.map(alone, [f"transfer:{name}" for name in TARGETS]), "transfer"))
    facts: dict[str, Any] = {"sources": sources}
    for goal in GOALS:
        ratios = [row[f"{goal:g} %: times fewer"] for row in rows]
        facts[f"{goal:g} %: median times fewer"] = float(np.median(ratios))
    report("aden_transfer", rows, facts)


def source_one(name: str) -> None:
    """Train a network that others start from."""
    where, entities, K, kappa, gamma, T = SOURCES[name]
    autonomy = DistanceAutonomy(kappa, gamma, temperature=T)
    params = {"head": "service", "n_interactions": SOURCE_ANSWERS, "tol": 0.0}
    model, _, took = learn(entities(), K, autonomy, 0, TOWNS[where], **params)
    model.save_network(network_file(name))
    print(json.dumps({"source": name, "answers": model.n_interactions_, "s": round(took)}))


def transfer_one(name: str) -> None:
    """Print one row of the table of transfer."""
    source, entities, K, kappa, gamma, T = TARGETS[name]
    where, _, *others = SOURCES[source]
    assert others[0] != K, "the source has another number of centres"
    assert others[1:] != [kappa, gamma, T], "the source has other behaviour"
    data, autonomy = entities(), DistanceAutonomy(kappa, gamma, temperature=T)
    known = [
        AutonomyAwareClustering(K, autonomy=autonomy, metric=TOWNS[where], random_state=s).fit(data)
        for s in range(2)
    ]
    best = min(model.distortion_ for model in known)
    curves: dict[str, dict[int, list[float]]] = {"transferred": {}, "scratch": {}}
    for label, network in (("transferred", network_file(source)), ("scratch", None)):
        for budget in BUDGETS:
            params = {"head": "service", "network": network, "n_interactions": budget, "tol": 0.0}
            reached = [learn(data, K, autonomy, s, TOWNS[where], **params)[1] for s in (11, 12, 13)]
            curves[label][budget] = reached
            best = min(best, *reached)
            shown = [round(100 * (value / best - 1), 2) for value in reached]
            print(name, label, budget, shown, file=sys.stderr, flush=True)
            if np.mean(reached) <= (1 + min(GOALS) / 100) * best:
                break
    row: dict[str, Any] = {
        "target": f"{name}: K={K}, kappa={kappa:g}, gamma={gamma:g}, T={T:g}",
        "source": source,
        "best": best,
    }
    for goal in GOALS:
        given, scratch = (
            next((n for n, v in curve.items() if np.mean(v) <= (1 + goal / 100) * best), None)
            for curve in curves.values()
        )
        row[f"{goal:g} %: given, scratch"] = [given, scratch]
        row[f"{goal:g} %: times fewer"] = (scratch or BUDGETS[-1]) / given if given else 0.0
    for label, curve in curves.items():
        row[f"{label}: gaps %"] = {
            n: [round(100 * (value / best - 1), 2) for value in values]
            for n, values in curve.items()
        }
    print(json.dumps(row))


def river() -> None:
    """What keeps a search from the banks of a river, where a network is wrong.

    Three centres for four groups, two of which are near to each other across the river and far from
    its bridge. From scratch, and from a network that 6,000 answers of entities all over the map
    have taught.
    """
    groups, rng = ((0.4, 0.7), (0.65, 0.75), (0.3, 0.2), (0.8, 0.2)), np.random.default_rng(5)
    data = np.concatenate([rng.normal(place, 0.08, (60, 2)) for place in groups]).clip(0, 1)
    source = DistanceAutonomy(0.3, temperature=0.1)
    taught, _, _ = learn(everywhere(1), 5, source, 0, over_a_river, n_interactions=6000, tol=0.0)
    K, autonomy = 3, DistanceAutonomy(0.2, temperature=0.05)
    known = AutonomyAwareClustering(K, autonomy=autonomy, metric=over_a_river, random_state=0)
    best = known.fit(data).distortion_
    around = "volition.learning.networks.autonomy._around"
    fine = patch(around, lambda d: torch.zeros(4, d, dtype=torch.float64))
    rows = []
    for name, change in (
        ("default", nullcontext()),
        ("a search that trusts the network everywhere", fine),
    ):
        with change:
            row: dict[str, Any] = {"recipe": name}
            for label, network, budget in (
                ("given, 1,000", taught.network_, 1000),
                ("scratch, 2,000", None, 2000),
            ):
                params = {"network": network, "n_interactions": budget, "tol": 0.0}
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # they say that a run has ended badly
                    reached = [
                        learn(data, K, autonomy, seed, over_a_river, **params)[1]
                        for seed in range(3)
                    ]
                best = min(best, *reached)
                row[label] = [round(100 * (value / best - 1), 2) for value in reached]
            rows.append(row)
            print(row, flush=True)
    report("aden_river", rows, {"best": best})


def large() -> None:
    """A million entities, K = 25; memory of a step against the number of entities."""
    rows = []
    for n in (10_000, 100_000, 1_000_000):
        # A process for each: memory that one has freed is not the next one's.
        done = subprocess.run(
            [sys.executable, __file__, f"large:{n}"], check=True, capture_output=True, text=True
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    report("aden_large", rows, {})


def memory(which: str) -> float:
    """Return what the kernel says of this process (Linux), in MB: VmRSS, now; VmHWM, at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(which)).split()[1]) / 1e3


def large_one(name: str) -> None:
    """Print one row of that table."""
    n = int(name)
    data = make_city(n)
    variance = float(((data - data.mean(0)) ** 2).sum(1).mean())
    autonomy = DistanceAutonomy(0.3, temperature=0.1 * variance)
    people = SimulatedPopulation(data, autonomy, reveal="cost", random_state=0)
    model = ADENClustering(25, preset=COSTS, random_state=0).start(data)
    model.partial_fit(population=people, n_interactions=2 * 4096)
    Path("/proc/self/clear_refs").write_text("5")  # what was needed at most begins anew
    before = memory("VmRSS")
    began = perf_counter()
    model.partial_fit(population=people, n_interactions=8 * 4096)
    per_step = (perf_counter() - began) / (8 * COSTS.updates)
    most = memory("VmHWM")
    fitted, reached, took = learn(data, 25, autonomy, 0)
    known = Problem(data, autonomy=autonomy)
    obeying = AutonomyAwareClustering(25, random_state=0).fit(data[:20_000])
    row = {
        "entities": n,
        "ms per step": 1000 * per_step,
        "MB while stepping": most - before,
        "fit s": took,
        "answers": fitted.n_interactions_,
        "distortion / ignored": reached / known.distortion(obeying.cluster_centers_),
        "peak MB": memory("VmHWM"),
    }
    print(json.dumps(row))


class Plain(nn.Module):
    """The published network written down line by line: stacked pairs, stock attention."""

    def __init__(self, h: int = 64, ff: int = 128, blocks: int = 4, heads: int = 8) -> None:
        super().__init__()
        self.fx, self.fy = nn.Linear(2, h), nn.Linear(2, h)
        self.attention = nn.ModuleList(
            nn.MultiheadAttention(h, heads, dropout=0.1, batch_first=True) for _ in range(blocks)
        )
        self.ff = nn.ModuleList(
            nn.Sequential(nn.Linear(h, ff), nn.GELU(), nn.Dropout(0.1), nn.Linear(ff, h))
            for _ in range(blocks)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(h) for _ in range(2 * blocks))
        self.head = nn.Sequential(
            nn.Linear(2 * h, ff), nn.GELU(), nn.Dropout(0.1), nn.Linear(ff, 1)
        )
        self.scale, self.dropout = nn.Parameter(torch.tensor(0.1)), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        e, yh = self.fx(x), self.fy(y)
        for n, (attention, ff) in enumerate(zip(self.attention, self.ff, strict=True)):
            e = self.norms[2 * n](self.dropout(attention(e, yh, yh)[0]) + e)
            e = self.norms[2 * n + 1](self.dropout(ff(e)) + e)
        B, S, K = len(x), x.shape[1], y.shape[1]
        pairs = torch.cat(
            [e[:, :, None].expand(B, S, K, -1), yh[:, None].expand(B, S, K, -1)], dim=-1
        )
        D0 = ((x[:, :, None] - y[:, None]) ** 2).sum(-1)
        return torch.relu(self.scale * self.head(pairs)[..., 0] + D0)


def plain_step(network: Plain, optimizer: Any, Y: torch.Tensor, means: torch.Tensor) -> None:
    """One epoch of Algorithm 2 without any thought of speed: p in full, draws one by one."""
    B, S, L, K, beta, kappa, T = 32, 128, 16, 4, 10.0, 0.3, 0.01
    data = torch.from_numpy(X).float()
    rows = torch.randint(len(data), (B, S))
    y = Y + 0.01 * torch.randn(B, K, 2)
    x = data[rows]
    E = network(x, y)
    pi = torch.softmax(-beta * E.detach(), dim=2)
    j = torch.multinomial(pi.reshape(-1, K), 1).reshape(B, S)
    j = torch.where(torch.rand(B, S) < 0.1, torch.randint(K, (B, S)), j)
    apart = ((y[:, :, None] - y[:, None]) ** 2).sum(-1) + 1e9 * torch.eye(K)
    p = (1 - kappa) * torch.eye(K) + kappa * torch.softmax(-apart / T, dim=2)
    p = p[:, None].expand(B, S, K, K)
    chosen = p.gather(2, j[..., None, None].expand(B, S, 1, K))[:, :, 0]
    D = ((x[:, :, None] - y[:, None]) ** 2).sum(-1)
    total = torch.zeros(B, S)
    for _ in range(L):
        k = torch.multinomial(chosen.reshape(-1, K), 1).reshape(B, S, 1)
        total += D.gather(2, k)[..., 0]
    means[rows, j] = 0.95 * means[rows, j] + 0.05 * total / L
    loss = ((E.gather(2, j[..., None])[..., 0] - means[rows, j]) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def paper() -> None:
    """The published recipe for its first beta, and the time of a step against a plain version."""
    autonomy = DistanceAutonomy(0.3, temperature=0.01)
    people = SimulatedPopulation(X, autonomy, reveal="cost", random_state=0)
    model = ADENClustering(4, preset="paper", random_state=0)
    network, Y = Plain(), torch.full((4, 2), 0.5)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=1e-5)
    means = torch.zeros(len(X), 4)
    ours, plain, losses = [], [], []
    epochs = PRESETS["paper"].epochs
    with Progress() as progress:
        task, began = progress.add_task("first beta", total=epochs), [perf_counter()]

        def step_done(learner: ADENClustering) -> bool:
            ours.append(perf_counter() - began[0])
            losses.append(learner.history_[-1].loss)
            progress.advance(task)
            if len(plain) < 50:
                start = perf_counter()
                plain_step(network, optimizer, Y, means)
                plain.append(perf_counter() - start)
            began[0] = perf_counter()
            return len(ours) == epochs

        model.fit(X, population=people, on_batch=step_done)
    ratio = float(np.median(ours[:50]) / np.median(plain))
    rows = [
        {"": "ours", "ms per step": 1000 * float(np.median(ours))},
        {"": "plain", "ms per step": 1000 * float(np.median(plain))},
    ]
    facts = {
        "answers": model.n_interactions_,
        "betas done": model.history_[-1].stage,
        "loss at first, at last": [losses[0], losses[-1]],
        "ours / plain": ratio,
        "whole published run at this speed, h": len(beta_ladder(PRESETS["paper"], 10.0, 4, 2))
        * sum(ours)
        / 3600,
    }
    report("aden_paper", rows, facts)


def compiled() -> None:
    """Steps of the published head with and without torch.compile."""
    rows = []
    for name, recipe, K in (
        ("preset paper", PRESETS["paper"], 4),
        ("preset cpu", COSTS, 4),
        ("preset cpu", COSTS, 25),
    ):
        rng, shape = np.random.default_rng(0), (recipe.n_layouts, recipe.n_samples)
        groups = AnswerGroups(
            rng.random((recipe.n_layouts, K, 2)),
            rng.integers(0, len(X), shape),
            rng.integers(0, K, shape),
            rng.random(shape),
            np.zeros((*shape, K), dtype=bool),
            np.ones(shape, dtype=bool),
        )
        units = Units(np.zeros(2), 1.0, 1.0)
        batch = training_batch(groups, X, resolve_cost("sqeuclidean"), units, torch.float32, "cpu")
        trainers = [
            Trainer(ADENetwork(2, recipe.size(), "costs"), 1e-4, 0.0, compiled=c)
            for c in (False, True)
        ]
        torch.compiler.reset()  # or sizes of other rows would count as ones that vary
        began = perf_counter()
        trainers[1].step(batch)
        first = perf_counter() - began
        seconds: list[list[float]] = [[], []]
        for number in range(30):
            for trainer, times in zip(trainers, seconds, strict=True):
                began = perf_counter()
                trainer.step(batch, seed=number)
                times.append(perf_counter() - began)
        plain, fast = (1000 * float(np.median(times[5:])) for times in seconds)
        rows.append(
            {
                "network": name,
                "K": K,
                "ms per step": plain,
                "compiled, ms": fast,
                "times faster": plain / fast,
                "compiling, s": first,
            }
        )
        print(rows[-1], flush=True)
    report("aden_compiled", rows, {})


PARTS: dict[str, Callable] = {
    part.__name__: part
    for part in (
        four, costs, grid, london, unknown, together, negative, ablation, transfer, river, large,
        paper, compiled,
    )
}  # fmt: skip

#: parts in which the published head stands beside the default
WITH_PUBLISHED = ("four", "grid", "london")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"which ones, of {', '.join(PARTS)}; else all")
    parser.add_argument(
        "--published", type=int, metavar="N", help="scenarios of the published head in each part"
    )
    options = parser.parse_args()
    kind, _, one = options.parts[0].partition(":") if options.parts else ("", "", "")
    if one:
        {"large": large_one, "source": source_one, "transfer": transfer_one}[kind](one)
        return
    for name in options.parts:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; parts are {', '.join(PARTS)}")
    for name in options.parts or PARTS:
        if name in WITH_PUBLISHED and options.published is not None:
            PARTS[name](options.published)
        else:
            PARTS[name]()


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    main()
