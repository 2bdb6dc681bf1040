"""A live system: drivers come one by one, chargers stand, answers arrive late, the process dies.

    python examples/live.py [folder]

Eight chargers stand where k-means has put them. Whoever opens the app is told which one to use;
some use another. Questions and answers are kept in SQLite. Halfway the process is killed and goes
on from its last checkpoint. In the end the learner proposes where the chargers should move.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans

from volition import (
    ChoiceClustering,
    DistanceAutonomy,
    Prescriptions,
    Response,
    SimulatedPopulation,
    load_model,
)
from volition.datasets import make_city
from volition.metrics import distortion

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "live-results")
folder.mkdir(parents=True, exist_ok=True)
state = folder / "learner.safetensors"
(folder / "live.sqlite").unlink(missing_ok=True)

drivers = make_city(1000, random_state=0)
chargers = KMeans(8, n_init=5, random_state=0).fit(drivers).cluster_centers_
habits = DistanceAutonomy(0.35, gamma=0.5, temperature=0.02)  # only the drivers know this
people = SimulatedPopulation(drivers, habits, random_state=1)
rng = np.random.default_rng(2)

store = sqlite3.connect(folder / "live.sqlite")
store.execute("CREATE TABLE questions (id INTEGER PRIMARY KEY, row TEXT)")
store.execute("CREATE TABLE answers (id INTEGER PRIMARY KEY, used INTEGER)")


def someone_opens_the_app(learner: ChoiceClustering, who: np.ndarray) -> list[dict]:
    """Tell drivers which charger to use, and write it down before they see it."""
    rows = learner.ask(entities=who).to_records()
    store.executemany(
        "INSERT INTO questions VALUES (?, ?)", [(row["id"], json.dumps(row)) for row in rows]
    )
    store.commit()
    return rows


def they_charge(rows: list[dict]) -> None:
    """Write down which charger each has used; nine in ten ever report it."""
    asked = Prescriptions.from_records(rows)
    used = people.respond(asked.entities, asked.prescribed, asked.centers).realized
    told = [(row["id"], int(k)) for row, k in zip(rows, used, strict=True) if rng.random() < 0.9]
    store.executemany("INSERT INTO answers VALUES (?, ?)", told)
    store.commit()


def all_answers() -> tuple[Prescriptions, Response]:
    """Read everything back. Answers that were learned from before are passed over."""
    query = "SELECT row, used FROM questions JOIN answers USING (id) ORDER BY id"
    rows, used = zip(*store.execute(query).fetchall(), strict=True)
    return Prescriptions.from_records(map(json.loads, rows)), Response(list(used), None)


learner = ChoiceClustering(8, random_state=0).start(drivers, centers=chargers)
for day in range(8):
    for _ in range(10):
        they_charge(someone_opens_the_app(learner, rng.integers(0, 1000, 50)))
    learner.tell(*all_answers())  # milliseconds
    learner.learn()  # at night
    if day == 3:
        learner.save(state)
    if day == 5:
        print(f"day {day}: the process dies; it goes on from the checkpoint of day 3")
        learner = load_model(state)
        learner.tell(*all_answers()).learn()  # what was told since then is in the database

asked = store.execute("SELECT count(*), count(DISTINCT id) FROM questions").fetchone()
answered = store.execute("SELECT count(*) FROM answers").fetchone()[0]
print(f"{asked[0]} questions with {asked[1]} different numbers; {answered} answers")
print(f"learned from {learner.n_answers_}, each once; {learner.n_repeated_} came again")
proposal = learner.propose()
print(proposal)
now = distortion(drivers, chargers, habits, learner.labels_)
then = distortion(drivers, proposal.centers, habits, proposal.labels)
print(f"in truth (simulated) the cost is {now:.4g} now and {then:.4g} after the move")
if proposal.sure:
    learner.move(proposal)
    print("moved; the next questions are about the new places")
