"""Is anything lost, learned twice or numbered twice when a learner is killed with kill -9?

``live``: a process asks, writes questions and answers to SQLite, tells, learns and saves, until it
is killed at a random moment, mostly in `tell`, `learn` or `save`. The next one goes on from the
last checkpoint, or from the one before, and is told all answers of the database. In the end the
learner must have learned from each answer once, and no two questions may have the same number.

``fit``: a fit with a checkpoint after every batch is killed and resumed until it is done. It must
end as a fit that was left alone does, to the last bit.

    python benchmarks/kills.py [live|fit] [--kills 50] [--learners counts ...]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, report

from volition import (
    ADENClustering,
    ChoiceClustering,
    FixedAutonomy,
    Prescriptions,
    Recipe,
    Response,
    SimulatedPopulation,
    TabularClustering,
    load_model,
)
from volition.estimators import Learner

K, N, BATCH = 3, 60, 40
X = np.random.default_rng(0).normal(size=(N, 2))
HABITS = FixedAutonomy(0.7 * np.eye(K) + 0.1)
TINY = Recipe(
    hidden_dim=4, ff_dim=4, n_blocks=1, n_heads=1, n_layouts=2, n_samples=40, replicas=2, epochs=2,
    updates=1, center_epochs=1, beta_min=1.0, beta_max=4.0, tau=2.0,
)  # fmt: skip
#: what a process is doing
PHASES = ("begin", "load", "ask", "answer", "tell", "learn", "save")
#: where the next kill is aimed at; "" for anywhere
AIMS = ("tell", "learn", "save", "learn", "tell", "")
#: seconds after which a process that does not get where it should counts as hung
PATIENCE = 120.0
#: kills that one fit has to stand
KILLS_PER_FIT = 10
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Case:
    """A learner, what its population reveals, and how many questions a fit asks."""

    learner: Learner
    reveal: str = "realized"
    own_costs: bool = False
    questions: int = 1500

    def people(self, seed: int) -> Any:
        crowd = SimulatedPopulation(
            X, HABITS, reveal="realized" if self.own_costs else self.reveal, random_state=seed
        )
        return OwnCosts(crowd) if self.own_costs else crowd


class OwnCosts:
    """Entities that tell what they have paid, which is not what the metric says."""

    def __init__(self, crowd: SimulatedPopulation) -> None:
        self.crowd = crowd

    def respond(self, entities: Any, prescribed: Any, centers: Any) -> Response:
        answer = self.crowd.respond(entities, prescribed, centers)
        return Response(None, 1 + np.sqrt(answer.cost) + 0.3 * answer.realized)

    def state_dict(self) -> dict[str, Any]:
        return self.crowd.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.crowd.load_state_dict(state)


CASES = {
    "counts": Case(TabularClustering(K, random_state=0)),
    "table of costs": Case(TabularClustering(K, estimate="costs", random_state=0)),
    "choices": Case(ChoiceClustering(K, random_state=0)),
    "ADEN, choices": Case(ADENClustering(K, preset=TINY, random_state=0), "cost"),
    "ADEN, served": Case(
        ADENClustering(K, preset=TINY, head="service", random_state=0), own_costs=True
    ),
    "ADEN, costs": Case(ADENClustering(K, preset=TINY, head="costs", random_state=0), "cost"),
}


class Watch:
    """Memory that a process shares with whoever kills it: what it is doing, and for how long."""

    def __init__(self) -> None:
        self.now = FORK.RawValue("i", 0)
        self.seconds = FORK.RawArray("d", len(PHASES))

    @contextmanager
    def doing(self, phase: str) -> Iterator[None]:
        number, began = PHASES.index(phase), time.monotonic()
        self.now.value = number
        yield
        self.now.value = 0
        self.seconds[number] = time.monotonic() - began

    @property
    def phase(self) -> str:
        return PHASES[self.now.value]


# -- a live system --------------------------------------------------------------------------------


class Store:
    """Questions and answers in SQLite; what is committed survives."""

    def __init__(self, folder: Path) -> None:
        self.base = sqlite3.connect(folder / "live.sqlite")
        self.base.execute("CREATE TABLE IF NOT EXISTS questions (id INTEGER, row TEXT)")
        self.base.execute(
            "CREATE TABLE IF NOT EXISTS answers (id INTEGER PRIMARY KEY, used INTEGER, cost REAL)"
        )

    def ask(self, asked: Prescriptions) -> None:
        rows = [(row["id"], json.dumps(row)) for row in asked.to_records()]
        with self.base:
            self.base.executemany("INSERT INTO questions VALUES (?, ?)", rows)

    def answer(self, asked: Prescriptions, answers: Response) -> None:
        used = answers.realized
        used = np.full(len(asked), -1) if used is None else used
        rows = zip(asked.ids.tolist(), used.tolist(), answers.cost.tolist(), strict=True)
        with self.base:
            self.base.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", rows)

    def open_questions(self) -> Prescriptions | None:
        query = "SELECT row FROM questions WHERE id NOT IN (SELECT id FROM answers)"
        rows = [json.loads(row) for (row,) in self.base.execute(query)]
        return Prescriptions.from_records(rows) if rows else None

    def answers(self, chosen: bool) -> tuple[Prescriptions, Response] | None:
        query = "SELECT row, used, cost FROM questions JOIN answers USING (id) ORDER BY id"
        found = self.base.execute(query).fetchall()
        if not found:
            return None
        rows, used, cost = zip(*found, strict=True)
        realized = list(used) if chosen else None
        return Prescriptions.from_records(map(json.loads, rows)), Response(realized, list(cost))

    def count(self, what: str) -> int:
        return int(self.base.execute(f"SELECT {what}").fetchone()[0])


def live(name: str, folder: Path, seed: int, watch: Watch, rounds: int | None) -> None:
    """Go on from the last checkpoint; for so many rounds, or until killed."""
    case, state, older = CASES[name], folder / "state.safetensors", folder / "older.safetensors"
    rng, people, store = np.random.default_rng(seed), CASES[name].people(seed), Store(folder)
    chosen = case.reveal == "realized" and not case.own_costs
    with watch.doing("load"):
        learner = load_model(state) if state.is_file() else case.learner.start(X)
    while rounds is None or rounds > 0:
        late = store.open_questions()
        if late is not None:  # a third of them never answer
            late = late.take(np.flatnonzero(rng.random(len(late)) < 2 / 3))
            store.answer(late, people.respond(late.entities, late.prescribed, late.centers))
        told = store.answers(chosen)
        if told is not None:
            with watch.doing("tell"):
                learner.tell(*told)
            with watch.doing("learn"):
                learner.learn()
        with watch.doing("save"):
            if rng.random() < 0.5:
                if state.is_file():
                    (folder / "link").unlink(missing_ok=True)
                    os.link(state, folder / "link")
                    os.replace(folder / "link", older)
                learner.save(state)
        with watch.doing("ask"):
            asked = learner.ask(BATCH)
        with watch.doing("answer"):
            store.ask(asked)
            here = np.flatnonzero(rng.random(BATCH) < 0.8)
            some = asked.take(here)
            store.answer(some, people.respond(some.entities, some.prescribed, some.centers))
        if rounds is not None:
            rounds -= 1
    if rounds == 0:
        told = store.answers(chosen)
        assert told is not None
        learner.tell(*told).learn()
        (folder / "end.json").write_text(json.dumps(_found(learner, store)))


def _found(learner: Learner, store: Store) -> dict[str, Any]:
    """Return what is wrong in the end, by the database, and how much there was of it."""
    asked, answers = store.count("count(*) FROM questions"), store.count("count(*) FROM answers")
    wrong = learner.n_answers_ != answers
    if isinstance(learner, ChoiceClustering):
        mine = learner.choices_
        known = Counter(zip(mine.entities, mine.prescribed, mine.realized, strict=True))
        rows = store.answers(True)
        assert rows is not None
        there = zip(rows[0].entities, rows[0].prescribed, rows[1].realized, strict=True)
        wrong |= known != Counter(there)
    return {
        "questions": asked,
        "answers": answers,
        "lost": max(0, answers - learner.n_answers_),
        "twice": max(0, learner.n_answers_ - answers),
        "numbers reused": asked - store.count("count(DISTINCT id) FROM questions"),
        "other answers": int(wrong),
    }


# -- killing --------------------------------------------------------------------------------------


def started(work: Any, *words: Any) -> Any:
    """Begin a process that writes down what it fails with."""

    def run(folder: Path, *rest: Any) -> None:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        try:
            work(*rest)
        except BaseException:
            (folder / "error.txt").write_text(traceback.format_exc())
            os._exit(1)
        os._exit(0)

    process = FORK.Process(target=run, args=words)
    process.start()
    return process


def kill(process: Any, watch: Watch, aim: str, rng: np.random.Generator) -> str | None:
    """Kill a process where it is aimed at; return what it was doing, None if it had ended."""
    until = time.monotonic() + PATIENCE
    while aim and watch.phase != aim and process.is_alive():
        if time.monotonic() > until:
            raise RuntimeError(f"no {aim} in {PATIENCE} s")
        time.sleep(1e-4)
    longest = watch.seconds[PHASES.index(aim)] if aim else sum(watch.seconds)
    time.sleep(rng.random() * max(1e-4, longest))
    if not process.is_alive():
        return None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return watch.phase if process.exitcode == -signal.SIGKILL else None


def kill_live(name: str, kills: int, random_state: int) -> dict[str, Any]:
    """Kill a live system again and again; return what is left of it."""
    rng, where = np.random.default_rng(random_state), Counter()
    with tempfile.TemporaryDirectory() as place:
        folder, went_back, watch = Path(place), 0, Watch()
        for number in range(kills):
            older, state = folder / "older.safetensors", folder / "state.safetensors"
            if older.is_file() and rng.random() < 0.3:
                shutil.copy(older, folder / "copy")
                os.replace(folder / "copy", state)
                went_back += 1
            seed = int(rng.integers(2**31))
            watch.now.value = 0
            process = started(live, folder, name, folder, seed, watch, None)
            hit = kill(process, watch, AIMS[number % len(AIMS)], rng)
            if hit is None:
                process.join()
                raise RuntimeError(_error(folder))
            where[hit] += 1
        process = started(live, folder, name, folder, 0, watch, 2)
        process.join()
        if process.exitcode != 0:
            raise RuntimeError(_error(folder))
        end = json.loads((folder / "end.json").read_text())
    return {
        "learner": name, "kills": kills,
        **{f"in {phase}": where[phase] for phase in ("load", "tell", "learn", "save")},
        "elsewhere": sum(where[one] for one in ("begin", "ask", "answer")),
        "older checkpoint": went_back, **end,
    }  # fmt: skip


def _error(folder: Path) -> str:
    path = folder / "error.txt"
    return path.read_text() if path.is_file() else "the process ended without a word"


# -- fits -----------------------------------------------------------------------------------------


def fit(name: str, folder: Path) -> None:
    """Fit with a checkpoint after every batch, going on from it if it is there."""
    case = CASES[name]
    learner = case.learner.set_params(n_interactions=case.questions)
    learner.fit(
        X, population=case.people(1), checkpoint=folder / "fit.safetensors", checkpoint_every=0,
        resume=True,
    )  # fmt: skip
    figures = [learner.cluster_centers_.tolist(), learner.labels_.tolist(), learner.distortion_]
    counts = [learner.n_interactions_, learner.n_answers_, list(learner.distortion_estimate())]
    (folder / "end.json").write_text(json.dumps([*figures, *counts, learner.stop_reason_]))


def kill_fits(name: str, kills: int, random_state: int) -> dict[str, Any]:
    """Kill fits again and again; return whether they end as one that is left alone."""
    rng = np.random.default_rng(random_state)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        began = time.monotonic()
        whole = _fitted(name, folder)
        seconds = time.monotonic() - began
    fits = differ = killed = 0
    while killed < kills:
        with tempfile.TemporaryDirectory() as place:
            folder, mine = Path(place), 0
            while mine < min(KILLS_PER_FIT, kills - killed):
                process = started(fit, folder, name, folder)
                time.sleep(rng.random() * 0.4 * seconds)
                if not process.is_alive():
                    break
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                mine += 1
            fits, killed = fits + 1, killed + mine
            differ += _fitted(name, folder) != whole
    return {"learner": name, "kills": killed, "fits": fits, "that end otherwise": differ}


def _fitted(name: str, folder: Path) -> Any:
    process = started(fit, folder, name, folder)
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(_error(folder))
    return json.loads((folder / "end.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", nargs="?", choices=["live", "fit"], help="default: both")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--learners", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    parser.add_argument("--random-state", type=int, default=0)
    words = parser.parse_args()
    for what, run in (("live", kill_live), ("fit", kill_fits)):
        if words.what not in (None, what):
            continue
        rows = []
        for name in words.learners:
            rows.append(run(name, words.kills, words.random_state))
            print(what, rows[-1], file=sys.stderr, flush=True)  # all of them take minutes
        keys = ("lost", "twice", "numbers reused", "other answers", "that end otherwise")
        facts = {key: sum(row[key] for row in rows) for key in keys if key in rows[0]}
        facts = {"kills": sum(row["kills"] for row in rows), **facts}
        report(f"kills_{what}", rows, facts, words.results)


if __name__ == "__main__":
    main()
