"""Table 1: all 20 scenarios on the four groups, by every method, beside the published figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from volition.autonomy import DistanceAutonomy
from volition.datasets import load_four_groups
from volition.reproduce.methods import LEARNERS, NAMES, gap, place
from volition.reproduce.page import Page
from volition.reproduce.published import ANSWERS, SCHEDULE, SUMMARY
from volition.reproduce.published import TABLE1 as SCENARIOS
from volition.reproduce.study import Case, Row, Settings, Study

#: seconds that a method takes, about
SECONDS = {
    "algorithm1": 0.5, "exact": 3.0, "ignored": 0.3, "tabular": 3.0, "aden": 8.0, "choice": 6.0,
}  # fmt: skip
#: scenarios on which learners are tried in a quick run
QUICK = (3, 8, 16, 18)


def applies(method: str, number: int) -> bool:
    """Whether a method is meant for a scenario: tables assume that p is the same everywhere."""
    return method != "tabular" or SCENARIOS[number].temperature >= 100


def cases(settings: Settings) -> list[Case]:
    """Return each scenario by each method; learners with three seeds."""
    found = []
    for number in range(len(SCENARIOS)):
        for method, seconds in SECONDS.items():
            learns = method in LEARNERS
            if not applies(method, number) or (learns and settings.quick and number not in QUICK):
                continue
            seeds = range(1 if settings.quick or not learns else 3)
            for seed in seeds:
                name = f"{method}, scenario {number + 1}, seed {settings.seed + seed}"
                params = {"method": method, "scenario": number, "seed": settings.seed + seed}
                found.append(Case(name, params, seconds))
    return found


def autonomy(number: int) -> DistanceAutonomy:
    """Return the model of a scenario."""
    return DistanceAutonomy(*SCENARIOS[number][:4])


def solve(params: dict[str, Any], settings: Settings) -> Row:
    """Place four centres by one method."""
    X = load_four_groups().data
    number = params["scenario"]
    return place(params["method"], X, 4, autonomy(number), params["seed"], SCHEDULE)


def present(rows: list[Row], page: Page) -> None:
    """Gaps of all methods, beside the published ones; means and medians."""
    beyond = page.settings.figures("table1.csv")
    table, gaps = [], dict[str, dict[int, float]]()
    for number, scenario in enumerate(SCENARIOS):
        mine = [row for row in rows if row["scenario"] == number]
        best = next(row["distortion"] for row in mine if row["method"] == "exact")
        line: Row = {
            "kappa": scenario.kappa, "gamma": scenario.gamma, "T": scenario.temperature,
            "ground truth D": best,
        }  # fmt: skip
        aden, ignored = scenario.aden, scenario.ignored
        if beyond:
            truth = beyond[number]["distortion_ground_truth"]
            line["from published D, %"] = 100 * (best / truth - 1)
            aden, ignored = (
                beyond[number]["aden_gap_percent"],
                beyond[number]["ignored_gap_percent"],
            )
        for method in SECONDS:
            some = [gap(row, best) for row in mine if row["method"] == method]
            if method == "exact" or not some:
                continue
            gaps.setdefault(method, {})[number] = float(np.mean(some))
            line[f"{NAMES[method]}, %"] = round(float(np.mean(some)), 4)
            if method == "ignored":
                line["published: ignored, %"] = ignored
            if method == "aden":
                line["published: ADEN, %"] = aden
        # Columns in one order, also where a learner was not tried.
        line.setdefault("published: ADEN, %", aden)
        line["in the paper"] = "yes" if scenario.aden is not None else "left out"
        table.append(line)
    page.text(
        "Cost per entity above the best for known p, in per cent; 20 scenarios of the paper's "
        "autonomy model on the four groups (N = 1800, K = 4, zeta = 1). Ground truth: our best for "
        "known p (`AutonomyAwareClustering`, default settings). Algorithm 1 and the centres that "
        "ignore autonomy use the published schedule (beta from 10 to 50,000, factor 1.1). "
        "Learners know nothing of p: the tabular one (meant for p that does not depend on the "
        "centres: T = 100) and the choice model see which cluster was realised, ADEN sees costs. "
        f"Means over {1 if page.settings.quick else 3} seed(s)."
    )
    page.table("table1", table)
    effort = [
        {
            "method": NAMES[method],
            "mean gap, %": float(np.mean(list(gaps[method].values()))),
            "median gap, %": float(np.median(list(gaps[method].values()))),
            "worst run, %": max(
                gap(row, table[row["scenario"]]["ground truth D"])
                for row in rows
                if row["method"] == method
            ),
            "scenarios": len(gaps[method]),
            "most answers": max(row["answers"] or 0 for row in rows if row["method"] == method),
            "slowest, s": max(row["seconds"] for row in rows if row["method"] == method),
        }
        for method in gaps
    ]
    for name, key in (("published: ADEN", "aden"), ("published: autonomy ignored", "ignored")):
        printed = [getattr(s, key) for s in SCENARIOS if getattr(s, key) is not None]
        effort.append(
            {
                "method": f"{name} (18 rows of the paper)",
                "mean gap, %": float(np.mean(printed)),
                "median gap, %": float(np.median(printed)),
                "worst run, %": max(printed),
                "scenarios": len(printed),
                "most answers": ANSWERS if key == "aden" else 0,
            }
        )
    page.text(
        "All scenarios together. The paper's text gives medians and means of "
        f"{SUMMARY['aden'][0]} and {SUMMARY['aden'][1]} % for its network and of "
        f"{SUMMARY['ignored'][0]} and {SUMMARY['ignored'][1]} % for ignoring autonomy."
    )
    page.table("table1_summary", effort)
    known = [s for s in range(len(SCENARIOS)) if SCENARIOS[s].ignored is not None]
    off = max(abs(gaps["ignored"][s] - float(SCENARIOS[s].ignored or 0)) for s in known)
    page.text(
        f'The column "ignored" differs from the published one by at most {off:.3f} points in the '
        "paper's 18 rows."
    )
    page.fact("ignored, largest difference to the published column, points", off)
    if beyond:
        worst = max(abs(line["from published D, %"]) for line in table)
        page.text(f"The ground truth differs from the published one by at most {worst:.4f} %.")
        page.fact("ground truth, largest difference to the published one, %", worst)
    for line in effort:
        page.fact(line["method"], line)
    page.picture("table1", _picture(gaps), "Gap of each scenario: nought is the best for known p.")


def _picture(gaps: dict[str, dict[int, float]]) -> Any:
    from matplotlib import pyplot as plt

    from volition.plotting.clustering import OKABE_ITO

    figure, ax = plt.subplots(figsize=(10, 4.8), layout="constrained")
    place = np.arange(len(SCENARIOS))
    shown = [(key, NAMES[key], values) for key, values in gaps.items() if key != "algorithm1"]
    series = [(name, list(values), list(values.values())) for _, name, values in shown]
    printed = [n for n in range(len(SCENARIOS)) if SCENARIOS[n].aden is not None]
    series.append(("published ADEN", printed, [float(SCENARIOS[n].aden or 0) for n in printed]))
    for (name, at, values), color, marker in zip(series, OKABE_ITO, "osD^vP", strict=False):
        ax.plot(at, np.maximum(values, 1e-3), marker, color=color, label=name, ms=6)
    labels = [f"{s.kappa:g}, {s.gamma:g}, {s.temperature:g}" for s in SCENARIOS]
    ax.set_xticks(place, labels, rotation=60, ha="right", fontsize=8)
    ax.set(yscale="log", xlabel="kappa, gamma, T", ylabel="gap to the best for known p, %")
    ax.set_title("Four groups, K = 4; gaps below 0.001 % are drawn at 0.001 %", fontsize=10)
    ax.legend(frameon=False, ncols=3, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.32))
    ax.grid(axis="y", lw=0.3)
    return figure


TABLE1 = Study("table1", "Table 1: what ignoring autonomy costs, and what learning saves",
               cases, solve, present)  # fmt: skip
