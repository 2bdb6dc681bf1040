"""Is a change of behaviour noticed, and nothing else taken for one?

``python benchmarks/drift.py null`` plays streams of entities that do not change, ``changes``
streams in which they do at a random moment, ``learners`` lets real learners ask. ``--costs`` hides
what was chosen. Streams have the stages of a learner: 2,000 answers at random layouts, 4,000 and
8,000 around good centres with 30 % random ones, then the same centres for ever.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np
from common import report
from drift_streams import (
    Place,
    difference,
    distance,
    half,
    make_place,
    obeying_by_cost,
    shunned,
    stream,
    town,
    uniform,
)

from volition import ADENClustering, ChoiceClustering, DistanceAutonomy, SimulatedPopulation
from volition import TabularClustering as Tabular
from volition.learning.drift import DriftMonitor, WatchedAnswers
from volition.populations.answers import Prescriptions, Response

#: kinds of behaviour that stay as they are
KINDS = {
    "uniform, 0.3": uniform(0.3),
    "pair, 0.3, T 1": distance(0.3, 1.0),
    "pair, 0.3, T 0.1": distance(0.3, 0.1),
    "pair, 0.3, T 5": distance(0.3, 5.0),
    "pair and entity, 0.3, T 1": distance(0.3, 1.0, 1.0, 1.0),
    "entity, 0.3, T 0.3": distance(0.3, 0.3, 0.0, 1.0),
    "obeying by cost": obeying_by_cost(1.0),
    **{
        kind: town(kind)
        for kind in (
            "river", "liked places", "two hidden kinds", "own radius", "hidden loyalty",
            "nearest of three random", "from work", "liked sites",
        )
    },
}  # fmt: skip
#: what changes to what
CHANGES = {
    "uniform 0.1 to 0.4": (uniform(0.1), uniform(0.4)),
    "uniform 0.3 to 0.1": (uniform(0.3), uniform(0.1)),
    "uniform 0.3 to 0.4": (uniform(0.3), uniform(0.4)),
    "uniform 0.1 to 0.2": (uniform(0.1), uniform(0.2)),
    "pair 0.1 to 0.4": (distance(0.1, 1.0), distance(0.4, 1.0)),
    "pair 0.3 to 0.1": (distance(0.3, 0.1), distance(0.1, 0.1)),
    "pair to entity, 0.3": (distance(0.3, 1.0), distance(0.3, 1.0, 0.0, 1.0)),
    "pair to entity, 0.5": (distance(0.5, 1.0), distance(0.5, 1.0, 0.0, 1.0)),
    "T 0.3 to 3, 0.4": (distance(0.4, 0.3), distance(0.4, 3.0)),
    "a centre is shunned": (distance(0.3, 1.0), shunned(distance(0.3, 1.0), 1, 0.8)),
    "half, 0.1 to 0.4": (distance(0.1, 1.0), half(distance(0.1, 1.0), distance(0.4, 1.0))),
    "half, 0.1 to 0.7": (distance(0.1, 1.0), half(distance(0.1, 1.0), distance(0.7, 1.0))),
    "halves swap 0.1, 0.6": (
        half(distance(0.1, 1.0), distance(0.6, 1.0)),
        half(distance(0.6, 1.0), distance(0.1, 1.0)),
    ),
    "pair to own radius": (distance(0.3, 1.0), town("own radius")),
    "river to entity": (town("river"), town("near the entity")),
    "two kinds to one": (town("two hidden kinds"), distance(0.36, 0.5, 0.0, 1.0)),
}
N_NULL = 20_000
WITHIN = 2000


def shown(answers: WatchedAnswers, costs: bool) -> WatchedAnswers:
    """Return answers with or without what was chosen."""
    return replace(answers, realized=None) if costs else answers


def play_null(kinds: list[str], runs: int, costs: bool, first: int) -> list[dict[str, Any]]:
    rows = []
    for name in kinds:
        largest, alarms, spent = [], 0, 0.0
        for seed in range(first, first + runs):
            K = (4, 5, 8)[seed % 3]
            place = make_place(seed, K)
            watch, top = DriftMonitor(K, limit=1e9), 0.0
            for answers in stream(place, [(0, KINDS[name](place))], N_NULL, seed):
                began = process_time()
                watch.add(shown(answers, costs))
                spent += process_time() - began
                top = max(top, watch.statistic)
            largest.append(top)
            alarms += top > DriftMonitor(K).limit
        ordered = np.sort(largest)[::-1]
        rows.append(
            {
                "behaviour": name, "runs": runs, "false alarms": alarms,
                "mean of largest": float(ordered.mean()), "deviation": float(ordered.std()),
                "largest": float(ordered[0]), "second": float(ordered[min(1, runs - 1)]),
                "ms for 500": 1000 * spent / runs / (N_NULL / 500),
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def play_changes(kinds: list[str], runs: int, costs: bool, first: int) -> list[dict[str, Any]]:
    rows = []
    for name in kinds:
        delays, early, tv = [], 0, []
        for seed in range(first, first + runs):
            K = (4, 5, 8)[seed % 3]
            place = make_place(1000 + seed, K)
            before, after = (make(place) for make in CHANGES[name])
            t = int(np.random.default_rng([seed, 5]).integers(1000, 12_000))
            if len(tv) < 6:
                tv.append(difference(place, before, after, seed))
            watch, n, delay = DriftMonitor(K), 0, np.inf
            for answers in stream(place, [(0, before), (t, after)], t + WITHIN, seed):
                n += len(answers)
                change = watch.add(shown(answers, costs))
                if change is not None and n <= t:
                    early += 1
                elif change is not None:
                    delay = n - t
                    break
            delays.append(delay if delay <= WITHIN else np.inf)
        found = np.array(delays)
        rows.append(
            {
                "change": name, "total variation": float(np.mean(tv)), "runs": runs,
                "noticed": float(np.isfinite(found).mean()), "median": float(np.median(found)),
                "95 of 100": float(np.quantile(found, 0.95, method="higher")), "early": early,
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


# -- real learners --------------------------------------------------------------------------------


def facts(place: Place, asked: Prescriptions, response: Response) -> WatchedAnswers:
    """Return what a learner would hand to the monitor."""
    i, j, Y = asked.entities, asked.prescribed, asked.centers
    each = np.broadcast_to(Y, (len(i), *Y.shape[-2:]))
    D = ((place.X[i][:, None] - each) ** 2).sum(2) / place.unit
    apart = ((each[np.arange(len(i)), j][:, None] - each) ** 2).sum(2) / place.unit
    cost = response.cost / place.unit
    return WatchedAnswers(i, j, D, apart, Y, response.realized, cost)


LEARNERS = {
    "choice": lambda K, seed: ChoiceClustering(K, random_state=seed),
    "tabular": lambda K, seed: Tabular(K, random_state=seed),
    "aden, choices": lambda K, seed: ADENClustering(K, random_state=seed),
}


def play_learners(runs: int, costs: bool, first: int) -> list[dict[str, Any]]:
    """Let learners ask; the monitor sees what they are told."""
    rows = []
    for name, make in LEARNERS.items():
        for kind in ("stays", "0.1 to 0.4", "0.3 to 0.1"):
            n = 8000 if kind == "stays" else None
            alarms, delays, top = 0, [], 0.0
            for seed in range(first, first + runs):
                K = (4, 5, 8)[seed % 3]
                place = make_place(2000 + seed, K, 300)
                a, b = (0.1, 0.4) if kind == "0.1 to 0.4" else (0.3, 0.1)
                one, two = (DistanceAutonomy(z, temperature=place.each) for z in (a, b))
                t = int(np.random.default_rng([seed, 6]).integers(1000, 6000))
                people = SimulatedPopulation(
                    place.X, one, changes={} if n else {t: two}, random_state=seed,
                    reveal="cost" if costs else "realized",
                )  # fmt: skip
                learner = make(K, seed).start(place.X)
                watch, asked_so_far, delay = DriftMonitor(K), 0, np.inf
                while asked_so_far < (n or t + WITHIN):
                    asked = learner.ask(256)
                    response = people.respond(asked.entities, asked.prescribed, asked.centers)
                    asked_so_far += 256
                    change = watch.add(facts(place, asked, response))
                    top = max(top, watch.statistic)
                    if change is not None and (n or asked_so_far <= t):
                        alarms += 1
                    elif change is not None:
                        delay = asked_so_far - t
                        break
                    learner.tell(asked, response)
                delays.append(delay if delay <= WITHIN else np.inf)
            row = {"learner": name, "behaviour": kind, "runs": runs, "false alarms": alarms}
            row["largest"] = top if n else np.nan
            row["noticed"] = np.nan if n else float(np.isfinite(delays).mean())
            row["median"] = np.nan if n else float(np.median(delays))
            rows.append(row)
            print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["null", "changes", "learners"])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--costs", action="store_true", help="answers tell costs only")
    parser.add_argument("--only", nargs="*", help="names of behaviours or changes")
    options = parser.parse_args()
    rest = (options.runs, options.costs, options.first)
    if options.part == "null":
        rows = play_null(options.only or list(KINDS), *rest)
    elif options.part == "changes":
        rows = play_changes(options.only or list(CHANGES), *rest)
    else:
        rows = play_learners(*rest)
    seen = "-costs" if options.costs else ""
    report(f"drift-{options.part}{seen}", rows, {"runs": options.runs})


if __name__ == "__main__":
    main()
