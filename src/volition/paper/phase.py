"""The appendix's 16 clusters: centres rest between critical betas and leap at them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from volition.annealing.anneal import AnnealingResult, anneal
from volition.annealing.n_clusters import persistence_ranking
from volition.annealing.schedules import Critical, Geometric, Schedule
from volition.annealing.stability import coincident
from volition.core.problem import Problem
from volition.datasets import make_nested_groups
from volition.paper.methods import uniform
from volition.paper.page import Page
from volition.paper.study import Case, Row, Settings, Study
from volition.plotting import animate, plot_moves, plot_numbers
from volition.solvers import FixedPoint, Gradient, Solver

K = 16
#: the paper's inputs: betas, and the factor between them
BETAS, FACTOR = (1e-3, 1e3), 1 / 0.99
#: what schedules are called
LABELS = {"critical": "critical", "published": "as in the paper"}
#: length in log beta beyond which a number of distinct centres counts as lasting
LASTS = 0.1


def schedule(name: str) -> Schedule:
    """Return the schedule of that name."""
    return Critical(*BETAS) if name == "critical" else Geometric(*BETAS, FACTOR)


@functools.cache
def annealed(name: str, seed: int) -> tuple[Problem, AnnealingResult]:
    """Anneal the 16 groups of which each entity obeys 15 times of 16."""
    problem = Problem(make_nested_groups(seed).data, autonomy=uniform(1 / 16, K))
    solver: Solver = Gradient() if name == "critical" else FixedPoint()
    return problem, anneal(problem, K, solver=solver, schedule=schedule(name), random_state=seed)


def cases(settings: Settings) -> list[Case]:
    """Two schedules: as published (Algorithm 1), and from one critical beta to the next."""
    return [
        Case(name, {"schedule": name}, seconds)
        for name, seconds in (("critical", 4.0), ("published", 15.0))
    ]


def solve(params: dict[str, Any], settings: Settings) -> Row:
    """Anneal, and note each change in the number of distinct centres."""
    problem, result = annealed(params["schedule"], settings.seed)
    return {
        "lasting": sorted(
            p.n_clusters for p in persistence_ranking(result) if p.persistence > LASTS
        ),
        "transitions": [list(one) for one in result.transitions],
        "sharing": sharing(problem, result),
        "iterations": result.n_iter,
        "betas": len(result.history),
        "distortion": problem.distortion(result.centers),
    }


def sharing(problem: Problem, result: AnnealingResult) -> list[list[Any]]:
    """Return each beta at which it changes how many centres share a place, and how many do."""
    found: list[list[Any]] = []
    for record, Y in zip(result.history, result.path, strict=True):
        sizes = sorted(np.bincount(coincident(problem, Y, record.beta)).tolist())
        if not found or sizes != found[-1][1]:
            found.append([float(record.beta), sizes])
    return found


def present(rows: list[Row], page: Page) -> None:
    """The data set, the moves, the numbers; the animation."""
    from matplotlib import pyplot as plt

    problem, small_steps = annealed("published", page.settings.seed)
    _, critical = annealed("critical", page.settings.seed)
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
    axes[0].scatter(*problem.X.T, s=3, color="#7F7F7F", lw=0, label="3200 entities")
    axes[0].scatter(
        *critical.centers.T, marker="*", s=150, c="#D55E00", ec="black", label="16 centres"
    )
    axes[0].set(xlabel="x", ylabel="y", aspect="equal", title="data set and centres")
    axes[0].legend(loc="center", fontsize=8)
    plot_moves(small_steps, axes[1]).set_title("change of Y, the paper's schedule")
    plot_numbers(critical, axes[2]).set_title("distinct centres, critical schedule")
    page.text(
        "3200 entities in 16 nested groups, K = 16; each obeys 15 times of 16, else takes any "
        'other centre. Schedule "as in the paper": Algorithm 1 with beta from 0.001 to 1000 in '
        'factors of 1 / 0.99; "critical": exact gradient, from one critical beta to the next (it '
        "steps to 0.8 % beyond each prediction, so that its own rows are no test of Theorem 2). "
        "The paper reports three critical betas: 1 to 4, 4 to 8, 8 to 16 distinct centres."
    )
    page.picture(
        "phase", figure,
        "Nested groups, K = 16, kappa = 1/16. Left: data and centres at the last beta. Middle, "
        "along the paper's schedule: norm of the change of Y per unit of log beta, and the "
        "critical betas that Theorem 2 predicts (dashed). Right, along the critical schedule: "
        "number of distinct centres.",
    )  # fmt: skip
    table = [
        {
            "schedule": LABELS[row["schedule"]],
            "from": before,
            "to": after,
            "seen at beta": beta,
            "predicted (Theorem 2)": predicted,
            "difference, %": None if predicted is None else 100 * (beta / predicted - 1),
        }
        for row in rows
        for beta, before, after, predicted in row["transitions"]
    ]
    page.table("phase", table)
    page.text(
        "How many centres share each place along the paper's schedule. Where centres split at "
        "once, chance decides how many go where; places that have too many hand them over at a "
        "later critical beta, which is why Y also leaps between the three that the paper reports."
    )
    page.table(
        "phase_sharing",
        [
            {"from beta": beta, "places": len(sizes), "centres at each": ", ".join(map(str, sizes))}
            for beta, sizes in next(row for row in rows if row["schedule"] == "published")[
                "sharing"
            ]
        ],
    )
    page.table(
        "phase_effort",
        [
            {
                "schedule": LABELS[row["schedule"]],
                "numbers that last": ", ".join(map(str, row["lasting"])),
                "betas": row["betas"],
                "iterations": row["iterations"],
                "distortion D": row["distortion"],
            }
            for row in rows
        ],
        digits=6,
    )
    animate(problem, critical, page.folder / "phase.gif", max_frames=60)
    page.embed("phase.gif", "The annealing from one critical beta to the next.")
    page.fact("numbers of centres that last, critical schedule", rows[0]["lasting"])
    # The other schedule steps to just beyond its prediction: that would prove little.
    seen = [line["difference, %"] for line in table if line["schedule"] == LABELS["published"]]
    page.fact(
        "largest difference of seen to predicted, %",
        max((abs(one) for one in seen if one is not None), default=None),
    )
    page.fact("transitions without a prediction", sum(one is None for one in seen))


PHASE = Study("phase", "Phase transitions: 16 nested groups (appendix)", cases, solve, present)
