"""Ours: how many answers each learner needs, beside the published 5.9 billion."""

from __future__ import annotations

from typing import Any

import numpy as np

from volition.core.autonomy import DistanceAutonomy
from volition.datasets import load_four_groups
from volition.paper.methods import gap, place
from volition.paper.page import Page
from volition.paper.published import ANSWERS, SCHEDULE, TABLE1
from volition.paper.study import Case, Row, Settings, Study

#: name, method, its parameters, answers a second, about, and seconds besides
LEARNERS: dict[str, tuple[str, dict[str, Any], float, float]] = {
    "choices, automatic": ("choice", {"tol": 0}, 6_000.0, 3.0),
    "choices, family told": ("choice", {"family": "distance", "tol": 0}, 25_000.0, 2.0),
    "ADEN, costs that tell choices": ("aden", {"tol": 0}, 10_000.0, 2.0),
    "ADEN, published head": ("aden", {"head": "costs"}, 20_000.0, 70.0),
    "tabular": ("tabular", {"tol": 0}, 100_000.0, 2.0),
}
BUDGETS = (500, 2_000, 8_000, 32_000, 128_000, 500_000)
QUICK = (500, 2_000, 8_000)
#: the slowest of them, in the first setting only, and with these budgets
SLOW, SLOW_BUDGETS = "ADEN, published head", (8_000, 32_000, 128_000, 500_000)
#: the two settings: p depends on the centres, and hardly does
SETTINGS = ((0.3, 0.0, 1.0, 0.01), (0.3, 0.0, 1.0, 100.0))


def cases(settings: Settings) -> list[Case]:
    """Each learner with each budget; in a full run both settings, the first mostly twice."""
    found = []
    budgets = QUICK if settings.quick else BUDGETS
    for number in range(1 if settings.quick else 2):
        found.append(Case(f"known p, setting {number}", {"setting": number, "learner": None}, 3.0))
        for learner, (_, _, rate, besides) in LEARNERS.items():
            if learner == SLOW and number > 0:
                continue
            for budget in budgets[: -1 if number > 0 else None]:
                if learner == SLOW and budget not in SLOW_BUDGETS:
                    continue
                one = settings.quick or number > 0 or learner == SLOW or budget == BUDGETS[-1]
                for seed in range(1 if one else 2):
                    params = {
                        "setting": number,
                        "learner": learner,
                        "budget": budget,
                        "seed": settings.seed + seed,
                    }
                    name = f"{learner}, {budget:,} answers, setting {number}, seed {seed}"
                    found.append(Case(name, params, besides + budget / rate))
    return found


def solve(params: dict[str, Any], settings: Settings) -> Row:
    """Learn with a given number of answers."""
    X = load_four_groups().data
    autonomy = DistanceAutonomy(*SETTINGS[params["setting"]])
    if params["learner"] is None:
        return place("exact", X, 4, autonomy, settings.seed, SCHEDULE)
    method, given, _, _ = LEARNERS[params["learner"]]
    given = given | {"n_interactions": params["budget"]}
    return place(method, X, 4, autonomy, params["seed"], SCHEDULE, **given)


def present(rows: list[Row], page: Page) -> None:
    """Gap against answers, one panel for each setting."""
    from matplotlib import pyplot as plt

    from volition.plotting.clustering import OKABE_ITO

    numbers = sorted({row["setting"] for row in rows})
    figure, axes = plt.subplots(
        1, len(numbers), figsize=(1 + 6.4 * len(numbers), 4.8), layout="constrained", squeeze=False
    )
    table = []
    for ax, number in zip(axes[0], numbers, strict=True):
        kappa, gamma, zeta, T = SETTINGS[number]
        mine = [row for row in rows if row["setting"] == number]
        best = next(row["distortion"] for row in mine if row["learner"] is None)
        for learner, color, marker in zip(LEARNERS, OKABE_ITO, "osD^v", strict=False):
            budgets: list[float] = []
            means: list[float] = []
            for budget in sorted({row["budget"] for row in mine if row["learner"] == learner}):
                some = [
                    row for row in mine if row["learner"] == learner and row["budget"] == budget
                ]
                gaps = [gap(row, best) for row in some]
                budgets.append(float(np.mean([row["answers"] for row in some])))
                means.append(float(np.mean(gaps)))
                table.append(
                    {
                        "kappa": kappa, "T": T, "learner": learner, "answers": round(budgets[-1]),
                        "seeds": len(some), "mean gap, %": means[-1], "worst gap, %": max(gaps),
                        "s": float(np.mean([row["seconds"] for row in some])),
                    }
                )  # fmt: skip
            if budgets:
                ax.plot(budgets, np.maximum(means, 1e-3), marker=marker, color=color, label=learner)
        said = next(s.aden for s in TABLE1 if s[:4] == (kappa, gamma, zeta, T))
        if said is not None:
            ax.plot(ANSWERS, said, "*", ms=14, color="black", label="published ADEN")
        ax.set(
            xscale="log", yscale="log", xlabel="answers", ylabel="gap to the best for known p, %"
        )
        ax.set_title(f"kappa = {kappa}, T = {T:g}", fontsize=10)
        ax.grid(lw=0.3)
    # The first panel has them all.
    named = axes[0, 0].get_legend_handles_labels()
    figure.legend(*named, fontsize=8, loc="outside right center", frameon=False)
    page.text(
        "Four groups, K = 4: cost above the best for known p against the number of answers. The "
        "choice models see the realised cluster, ADEN sees costs; with the default head it learns "
        "which centre has served from the cost, with the published head it learns expected costs. "
        "The tabular learner assumes that p does not depend on the centres, which is not so at "
        f"T = 0.01. The published network is asked for {ANSWERS / 1e9:.1f} billion answers (from "
        "the paper's hyperparameters: batches x samples x draws x epochs x betas)."
    )
    page.picture(
        "efficiency", figure,
        "Four groups, N = 1800, K = 4, gamma = 0, zeta = 1. Gaps below 0.001 % are drawn there.",
    )  # fmt: skip
    page.table("efficiency", table)
    page.fact("answers of the published network", ANSWERS)


EFFICIENCY = Study("efficiency", "How many answers it takes", cases, solve, present)
