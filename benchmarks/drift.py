"""Is a change of behaviour noticed, and nothing else taken for one?

``null`` plays entities that do not change, ``changes`` entities that do at a random moment while
centres move, ``limit`` says how soon the latter could be noticed at all, ``learners`` lets the slow
learners ask. ``--way`` says who asks and what is told:

- ``staged``: as `ChoiceClustering` and `ADENClustering` ask, choices told: 2,000 answers at random
  layouts, 4,000 and 8,000 around good centres with 30 % random ones, then the same for ever;
- ``minutes``: the same, but only measured travel minutes are told, not those of the metric;
- ``tabular``, ``costs``: `TabularClustering` itself, with its table of choices, or of costs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from behaviours import squared
from common import report
from drift_streams import (
    Law,
    People,
    Place,
    difference,
    distance,
    half,
    make_place,
    minutes,
    obeying_by_cost,
    own_table,
    shunned,
    stream,
    town,
    uniform,
)

from volition import ADENClustering, ChoiceClustering, TabularClustering
from volition.core.costs import resolve_cost
from volition.learning.drift.detector import LIMIT, Change
from volition.learning.drift.watch import Watch
from volition.learning.entities import Entities
from volition.learning.ledger import Asked

#: kinds of behaviour that stay as they are
KINDS = {
    "uniform, 0.3": uniform(0.3),
    "pair, 0.3, T 1": distance(0.3, 1.0),
    "pair, 0.3, T 0.1": distance(0.3, 0.1),
    "pair, 0.3, T 5": distance(0.3, 5.0),
    "pair and entity, 0.3, T 1": distance(0.3, 1.0, 1.0, 1.0),
    "entity, 0.3, T 0.3": distance(0.3, 0.3, 0.0, 1.0),
    "obeying by cost": obeying_by_cost(1.0),
    "own tables": own_table,
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
#: who asks and what is told, and how many entities there are
N_ENTITIES = {"staged": 400, "minutes": 400, "tabular": 200, "costs": 200}
SLOW = {
    "choice": (lambda K, seed: ChoiceClustering(K, random_state=seed), "choices"),
    "aden, costs that tell": (lambda K, seed: ADENClustering(K, random_state=seed), "costs"),
    "aden, minutes": (lambda K, seed: ADENClustering(K, random_state=seed), "minutes"),
    "published head": (
        lambda K, seed: ADENClustering(K, head="costs", random_state=seed),
        "costs",
    ),
}
N_NULL = 20_000
WITHIN = 2000
#: questions of a learner at a time
AT_ONCE = 256
#: answers from one false alarm to the next, of the test that knows the change
ARL = 2_000_000


class Look(NamedTuple):
    """How far a run is."""

    n: int
    statistic: float
    change: Change | None
    spent: float


def watched(
    way: str, place: Place, laws: list[tuple[int, Law]], n: int, seed: int, limit: float = LIMIT
) -> Iterator[Look]:
    """Yield what the shipped detector says, batch by batch."""
    if way in ("staged", "minutes"):
        yield from _streamed(way, place, laws, n, seed, limit)
        return
    table = "choices" if way == "tabular" else "costs"
    learner = TabularClustering(place.K, estimate=table, n_interactions=2 * n, random_state=seed)
    people = People(place, laws, seed)
    yield from _asked(learner, people, n, limit)


def _streamed(
    way: str, place: Place, laws: list[tuple[int, Law]], n: int, seed: int, limit: float
) -> Iterator[Look]:
    entities = Entities.of(place.X, None, resolve_cost("sqeuclidean"))
    watch, rng, done = Watch(place.K, place.unit), np.random.default_rng([seed, 79]), 0
    for monitor in watch.monitors:
        monitor.limit = limit
    for told in stream(place, laws, n, seed):
        i, j, k = told.entities, told.prescribed, told.realized
        cost = squared(place.X[i], told.centers)[np.arange(len(i)), k]
        if way == "minutes":
            k, cost = np.full(len(k), -1), minutes(cost, rng)
        asked = Asked(*(np.zeros(len(i)),) * 7)._replace(entities=i, prescribed=j)
        sets = np.broadcast_to(told.centers, (len(i), *told.centers.shape))
        done, began = done + len(i), process_time()
        change = watch.add(asked, k, cost, sets, entities, (done, done))
        spent = process_time() - began
        yield Look(done, max(m.statistic for m in watch.monitors), change, spent)


def _asked(learner: Any, people: People, n: int, limit: float = LIMIT) -> Iterator[Look]:
    learner.start(people.place.X)
    learner._study.strategy.begin_fit(2 * n)  # as `fit` does
    for monitor in learner._study.strategy.watch.monitors:
        monitor.limit = limit
    while people.n < n:
        asked, known, began = learner.ask(AT_ONCE), len(learner.changes_), process_time()
        learner.tell(asked, people.respond(asked.entities, asked.prescribed, asked.centers)).learn()
        new = learner.changes_[known:]
        statistic = max(m.statistic for m in learner._study.strategy.watch.monitors)
        yield Look(people.n, statistic, new[0] if new else None, process_time() - began)


def play_null(kinds: list[str], runs: int, way: str, first: int) -> list[dict[str, Any]]:
    rows = []
    for name in kinds:
        largest, spent = [], 0.0
        for seed in range(first, first + runs):
            place = make_place(seed, (4, 5, 8)[seed % 3], N_ENTITIES[way])
            top = 0.0
            for look in watched(way, place, [(0, KINDS[name](place))], N_NULL, seed, 1e9):
                top, spent = max(top, look.statistic), spent + look.spent
            largest.append(top)
        ordered = np.sort(largest)[::-1]
        rows.append(
            {
                "behaviour": name, "runs": runs, "false alarms": int((ordered > LIMIT).sum()),
                "mean of largest": float(ordered.mean()), "deviation": float(ordered.std()),
                "largest": float(ordered[0]), "second": float(ordered[min(1, runs - 1)]),
                "ms for 500": 1000 * spent / runs / (N_NULL / 500),
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def _drawn_change(name: str, seed: int, way: str) -> tuple[Place, Law, Law, int]:
    place = make_place(1000 + seed, (4, 5, 8)[seed % 3], N_ENTITIES[way])
    before, after = (make(place) for make in CHANGES[name])
    return place, before, after, int(np.random.default_rng([seed, 5]).integers(1000, 12_000))


def _row(name: str, delays: list[float], tv: list[float], early: int) -> dict[str, Any]:
    found = np.array(delays)
    row = {
        "change": name, "total variation": float(np.mean(tv)), "runs": len(found),
        "noticed": float(np.isfinite(found).mean()), "median": float(np.median(found)),
        "95 of 100": float(np.quantile(found, 0.95, method="higher")), "early": early,
    }  # fmt: skip
    print(row, flush=True)
    return row


def play_changes(kinds: list[str], runs: int, way: str, first: int) -> list[dict[str, Any]]:
    rows = []
    for name in kinds:
        delays, early, tv = [], 0, []
        for seed in range(first, first + runs):
            place, before, after, t = _drawn_change(name, seed, way)
            if len(tv) < 6:
                tv.append(difference(place, before, after, seed))
            delay = np.inf
            for look in watched(way, place, [(0, before), (t, after)], t + WITHIN, seed):
                if look.change is not None and look.n <= t:
                    early += 1
                elif look.change is not None:
                    delay = look.n - t
                    break
            delays.append(delay if delay <= WITHIN else np.inf)
        rows.append(_row(name, delays, tv, early))
    return rows


def play_limit(kinds: list[str], runs: int, first: int) -> list[dict[str, Any]]:
    """Notice by Page's test, which knows both behaviours and waits only for the moment.

    No test with as few false alarms is faster in the worst case.
    """
    rows = []
    for name in kinds:
        delays, early, tv = [], 0, []
        for seed in range(first, first + runs):
            place, before, after, t = _drawn_change(name, seed, "staged")
            tv.append(difference(place, before, after, seed))
            total, n, delay = 0.0, 0, np.inf
            for told in stream(place, [(0, before), (t, after)], t + WITHIN, seed):
                a, b = (p[np.arange(len(p)), told.realized] for p in told.p)
                for ratio in np.log(np.maximum(b, 1e-300) / np.maximum(a, 1e-300)):
                    total, n = max(0.0, total + ratio), n + 1
                    if total > np.log(ARL) and n <= t:
                        early, total = early + 1, 0.0
                    elif total > np.log(ARL):
                        delay = n - t
                        break
                if np.isfinite(delay):
                    break
            delays.append(delay if delay <= WITHIN else np.inf)
        rows.append(_row(name, delays, tv, early))
    return rows


def play_learners(only: list[str], runs: int, first: int) -> list[dict[str, Any]]:
    """Let slow learners ask, be told and learn."""
    rows = []
    for name in only:
        make, tells = SLOW[name]
        for kind, kappas in {"stays": (0.3, 0.3), "0.1 to 0.4": (0.1, 0.4)}.items():
            alarms, delays, top = 0, [], 0.0
            for seed in range(first, first + runs):
                place = make_place(2000 + seed, (4, 5, 8)[seed % 3], 300)
                one, two = (distance(kappa, 1.0)(place) for kappa in kappas)
                stays = kappas[0] == kappas[1]
                t = 6000 if stays else int(np.random.default_rng([seed, 6]).integers(1000, 5000))
                people = People(place, [(0, one), (t, two)], seed, tells)
                delay = np.inf
                for look in _asked(make(place.K, seed), people, t + WITHIN):
                    top = max(top, look.statistic)
                    if look.change is not None and (stays or look.n <= t):
                        alarms += 1
                    elif look.change is not None:
                        delay = look.n - t
                        break
                delays.append(delay if delay <= WITHIN else np.inf)
            row = {"learner": name, "behaviour": kind, "runs": runs, "false alarms": alarms}
            row["largest"] = top if stays else np.nan
            row["noticed"] = np.nan if stays else float(np.isfinite(delays).mean())
            row["median"] = np.nan if stays else float(np.median(delays))
            rows.append(row)
            print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["null", "changes", "limit", "learners"])
    parser.add_argument("--runs", type=int, default=100, help="runs of each row")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument(
        "--way", choices=list(N_ENTITIES), default="staged", help="who asks, what is told"
    )
    parser.add_argument("--only", nargs="*", help="names of behaviours, changes or learners")
    options = parser.parse_args()
    rest = (options.runs, options.first)
    name = f"drift-{options.part}"
    if options.part == "null":
        rows = play_null(options.only or list(KINDS), options.runs, options.way, options.first)
        name += f"-{options.way}"
    elif options.part == "changes":
        rows = play_changes(options.only or list(CHANGES), options.runs, options.way, options.first)
        name += f"-{options.way}"
    elif options.part == "limit":
        rows = play_limit(options.only or list(CHANGES), *rest)
    else:
        rows = play_learners(options.only or list(SLOW), *rest)
    report(name, rows, {"runs of each": options.runs, "first seed": options.first})


if __name__ == "__main__":
    main()
