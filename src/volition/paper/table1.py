"""Table 1: all 20 scenarios on the four groups, by every method, beside the published figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from volition.paper.methods import LEARNERS, NAMES, gap, place_four
from volition.paper.page import Page
from volition.paper.published import ANSWERS, SUMMARY, Scenario
from volition.paper.published import TABLE1 as SCENARIOS
from volition.paper.study import Case, Figures, Row, Settings, Study

#: seconds that a method takes, about
SECONDS = {
    "algorithm1": 0.5, "exact": 3.0, "ignored": 0.3, "tabular": 3.0, "aden": 8.0, "choice": 6.0,
}  # fmt: skip
#: methods that are compared with the best, and what the published columns are called
GAPS = ("algorithm1", "ignored", "tabular", "aden", "choice")
PUBLISHED = {"aden": "published: ADEN, %", "ignored": "published: ignored, %"}
COLUMNS = (
    "kappa", "gamma", "T", "ground truth D", "from published D, %", "Algorithm 1, %",
    "autonomy ignored, %", "published: ignored, %", "tabular, %", "ADEN, %", "published: ADEN, %",
    "choice model, %", "in the paper",
)  # fmt: skip
#: scenarios on which learners are tried in a quick run
QUICK = (1, 8, 16, 18)


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


def solve(params: dict[str, Any], settings: Settings) -> Row:
    """Place four centres by one method."""
    return place_four(params, SCENARIOS[params["scenario"]])


def figures(settings: Settings) -> Figures:
    """Return published figures that are not printed in the paper."""
    keys = ("kappa", "gamma", "zeta", "temperature")
    names = ("distortion_ground_truth", "aden_gap_percent", "ignored_gap_percent")
    found = settings.figures("table1.csv", keys, names)
    for scenario in SCENARIOS if found else ():
        if scenario[:4] not in found:
            raise ValueError(
                f"table1.csv has no row for {dict(zip(keys, scenario, strict=False))}."
            )
    return found


def present(rows: list[Row], page: Page) -> None:
    """Gaps of all methods, beside the published ones; means and medians; effort."""
    beyond = figures(page.settings)
    known = {
        key: [_published(scenario, key, beyond) for scenario in SCENARIOS]
        for key in ("aden", "ignored")
    }
    best = {row["scenario"]: row["distortion"] for row in rows if row["method"] == "exact"}
    gaps: dict[str, dict[int, float]] = {}
    table, effort = [], []
    for number, scenario in enumerate(SCENARIOS):
        mine = [row for row in rows if row["scenario"] == number]
        label: Row = {"kappa": scenario.kappa, "gamma": scenario.gamma, "T": scenario.temperature}
        line = {**label, "ground truth D": best[number]}
        spent = dict(label)
        if beyond:
            truth = beyond[scenario[:4]]["distortion_ground_truth"]
            line["from published D, %"] = 100 * (best[number] / truth - 1)
        for method in GAPS:
            some = [row for row in mine if row["method"] == method]
            if not some:
                continue
            mean = float(np.mean([gap(row, best[number]) for row in some]))
            gaps.setdefault(method, {})[number] = mean
            line[f"{NAMES[method]}, %"] = round(mean, 4) + 0.0
            if method in LEARNERS:
                spent[f"{NAMES[method]}: answers"] = max(row["answers"] for row in some)
                spent[f"{NAMES[method]}: s"] = max(row["seconds"] for row in some)
        line |= {PUBLISHED[key]: values[number] for key, values in known.items()}
        line["in the paper"] = "yes" if scenario.aden is not None else "left out"
        table.append(line)
        effort.append(spent)
    page.text(
        "Cost per entity above the best for known p, in per cent; 20 scenarios of the paper's "
        "autonomy model on the four groups (N = 1800, K = 4, zeta = 1). Ground truth: our best for "
        "known p (`AutonomyAwareClustering`, default settings). Algorithm 1 and the centres that "
        "ignore autonomy use the published schedule (beta from 10 to 50,000, factor 1.1). "
        "Learners know nothing of p: the tabular one (meant for p that does not depend on the "
        "centres: T = 100) and the choice model see which cluster was realised, ADEN sees costs. "
        f"Means over {1 if page.settings.quick else 3} seed(s) of each learner."
    )
    page.table("table1", table, columns=COLUMNS)
    summary = _summary(gaps, known)
    page.text(
        "Means and medians over the 18 scenarios in the paper, and over all 20. The paper's text "
        f"gives medians and means of {SUMMARY['aden'][0]} and {SUMMARY['aden'][1]} % for its "
        f"network and of {SUMMARY['ignored'][0]} and {SUMMARY['ignored'][1]} % for ignoring "
        f"autonomy; its network is asked for {ANSWERS / 1e9:.1f} billion answers in each scenario."
    )
    page.table("table1_summary", summary)
    page.text("Answers and seconds of each learner, the most of all seeds:")
    page.table("table1_effort", effort)
    off = max(
        abs(gaps["ignored"][number] - said)
        for number, said in enumerate(known["ignored"])
        if said is not None
    )
    page.text(
        f'The column "{NAMES["ignored"]}" differs from the published one by at most {off:.3f} '
        "points."
    )
    page.fact("ignored, largest difference to the published column, points", off)
    if beyond:
        worst = max(abs(line["from published D, %"]) for line in table)
        page.text(f"The ground truth differs from the published one by at most {worst:.4f} %.")
        page.fact("ground truth, largest difference to the published one, %", worst)
    for one in summary:
        page.fact(one["method"], one)
    for method in LEARNERS:
        some = [row for row in rows if row["method"] == method]
        page.fact(f"most answers, {NAMES[method]}", max(row["answers"] for row in some))
        worst = max(gap(row, best[row["scenario"]]) for row in some)
        page.fact(f"worst run, {NAMES[method]}, %", worst)
    page.picture(
        "table1", _picture(gaps, known["aden"]),
        "Four groups, N = 1800, K = 4: cost above the best for known p in each scenario. Gaps "
        "below 0.001 % are drawn there.",
    )  # fmt: skip


def _published(scenario: Scenario, key: str, beyond: Figures) -> float | None:
    printed: float | None = getattr(scenario, key)
    if printed is None and beyond:
        return beyond[scenario[:4]][f"{key}_gap_percent"]
    return printed


def _summary(gaps: dict[str, dict[int, float]], known: dict[str, list[float | None]]) -> list[Row]:
    """Return mean, median and worst, over the paper's 18 scenarios and over all."""
    printed = [n for n, scenario in enumerate(SCENARIOS) if scenario.aden is not None]
    series: dict[str, dict[int, float]] = {NAMES[method]: gaps[method] for method in gaps}
    for key, said in known.items():
        series[PUBLISHED[key]] = {n: v for n, v in enumerate(said) if v is not None}
    found = []
    for name, values in series.items():
        line: Row = {"method": name}
        for label, numbers in (("the paper's", printed), ("all", range(len(SCENARIOS)))):
            some = [values[n] for n in numbers if n in values]
            if not some or (label == "all" and len(some) < len(SCENARIOS)):
                continue
            line |= {
                f"{label} {len(numbers)}: mean, %": float(np.mean(some)),
                f"{label} {len(numbers)}: median, %": float(np.median(some)),
                f"{label} {len(numbers)}: worst, %": max(some),
            }
            if len(some) < len(numbers):
                line["scenarios"] = f"{len(some)} of {len(numbers)}"
        found.append(line)
    return found


def _picture(gaps: dict[str, dict[int, float]], published: list[float | None]) -> Any:
    from matplotlib import pyplot as plt

    from volition.plotting.clustering import OKABE_ITO

    figure, ax = plt.subplots(figsize=(10, 4.8), layout="constrained")
    place = np.arange(len(SCENARIOS))
    shown = [(key, NAMES[key], values) for key, values in gaps.items() if key != "algorithm1"]
    series = [(name, list(values), list(values.values())) for _, name, values in shown]
    said = {n: value for n, value in enumerate(published) if value is not None}
    series.append(("published ADEN", list(said), list(said.values())))
    for (name, at, values), color, marker in zip(series, OKABE_ITO, "osD^vP", strict=False):
        ax.plot(at, np.maximum(values, 1e-3), marker, color=color, label=name, ms=6)
    labels = [f"{s.kappa:g}, {s.gamma:g}, {s.temperature:g}" for s in SCENARIOS]
    ax.set_xticks(place, labels, rotation=60, ha="right", fontsize=8)
    ax.set(yscale="log", xlabel="kappa, gamma, T", ylabel="gap to the best for known p, %")
    ax.legend(frameon=False, ncols=3, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.32))
    ax.grid(axis="y", lw=0.3)
    return figure


TABLE1 = Study(
    "table1", "Table 1: what ignoring autonomy costs, and what learning saves", cases, solve,
    present, uses_published=True, check=figures,
)  # fmt: skip
