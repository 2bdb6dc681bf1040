"""The appendix's 4 x 4 figure: what kappa, gamma, zeta and T do to centres, learned from costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from volition.core.autonomy import DistanceAutonomy
from volition.datasets import load_four_groups
from volition.paper.methods import draw, gap, place_four
from volition.paper.page import Page
from volition.paper.published import GRID as SCENARIOS
from volition.paper.study import Case, Row, Settings, Study

SECONDS = {"exact": 3.0, "aden": 9.0}


def cases(settings: Settings) -> list[Case]:
    """Each scenario with known p and learned from costs; three seeds in a full run."""
    return [
        Case(f"{method}, {_name(number)}, seed {settings.seed + seed}",
             {"method": method, "scenario": number, "seed": settings.seed + seed}, seconds)
        for number in range(len(SCENARIOS))
        for method, seconds in SECONDS.items()
        for seed in range(1 if settings.quick else 3)
    ]  # fmt: skip


def _name(number: int) -> str:
    return f"{'abcd'[number // 4]}{number % 4 + 1}"


def solve(params: dict[str, Any], settings: Settings) -> Row:
    """Place four centres."""
    return place_four(params, SCENARIOS[params["scenario"]])


def present(rows: list[Row], page: Page) -> None:
    """Sixteen pictures as learned from costs, and how far each is from the best."""
    from matplotlib import pyplot as plt

    X, table = load_four_groups().data, []
    figure, axes = plt.subplots(4, 4, figsize=(14, 14), layout="constrained")
    for number, (ax, scenario) in enumerate(zip(axes.flat, SCENARIOS, strict=True)):
        mine = [row for row in rows if row["scenario"] == number]
        best = min(row["distortion"] for row in mine if row["method"] == "exact")
        learned = [row for row in mine if row["method"] == "aden"]
        gaps = [gap(row, best) for row in learned]
        kappa, gamma, zeta, T = scenario[:4]
        label = f"{{{kappa:g}, {gamma:g}, {zeta:g}, {T:g}}}"
        draw(
            ax,
            X,
            learned[0]["centers"],
            DistanceAutonomy(*scenario[:4]),
            f"({_name(number)}) {label}",
        )
        ax.get_legend().remove()
        table.append(
            {
                "panel": _name(number), "kappa": kappa, "gamma": gamma, "zeta": zeta, "T": T,
                "D, known p": best,
                "D, learned from costs": float(np.mean([row["distortion"] for row in learned])),
                "gap, %": float(np.mean(gaps)),
                "worst gap, %": max(gaps),
                "answers": max(row["answers"] for row in learned),
                "s": max(row["seconds"] for row in learned),
            }
        )  # fmt: skip
    page.text(
        "The paper's appendix shows what its network finds on the four groups for sixteen settings "
        "{kappa, gamma, zeta, T}; it gives no figures. These are ADEN's centres, learned from "
        "costs alone, and their true distortion beside the best for known p."
    )
    page.picture(
        "grid", figure,
        "Four groups, K = 4; {kappa, gamma, zeta, T} above each panel. Entities take the mixture "
        "of the colours of the centres prescribed to them. Where kappa is high, entities may be "
        "sent to one centre so that they use another: a star then differs in colour from the "
        "group below it.",
    )  # fmt: skip
    page.table("grid", table)
    page.fact("mean gap, %", float(np.mean([line["gap, %"] for line in table])))
    page.fact("worst gap, %", max(line["worst gap, %"] for line in table))
    page.fact("most answers", max(line["answers"] for line in table))


GRID = Study("grid", "The appendix's 4 x 4 grid, learned from costs", cases, solve, present)
