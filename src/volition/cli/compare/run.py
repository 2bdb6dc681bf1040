"""What ``volition compare`` does: two placements side by side, on the same entities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table as RichTable
from scipy.optimize import linear_sum_assignment

import volition
from volition.cli.outputs import COMPARE_FILES
from volition.cli.placements import behaviour_of, columns_of, read_entities_for, read_placement
from volition.cli.terminal import make_console
from volition.core.autonomy import Autonomy, FixedAutonomy
from volition.core.costs import Haversine, cost_unit_name
from volition.estimators import AutonomyAwareClustering
from volition.io.results import output_folder, write_csv
from volition.io.tables import Table
from volition.metrics import distortion


def run_compare(
    first: Path,
    second: Path,
    data: Path | None,
    columns: str | None,
    weight: str | None,
    out: Path | None,
) -> None:
    """Compare two placements, print and write what differs."""
    if data is None and (columns or weight):
        raise ValueError("--columns and --weight belong to --data, which is missing.")
    a, b = read_placement(first), read_placement(second)
    if (
        a.metric != b.metric
        or columns_of(a) != columns_of(b)
        or a.n_features_in_ != b.n_features_in_
    ):
        raise ValueError(
            f"{first} and {second} cannot be compared: they were made with metric '{a.metric}' and "
            f"columns {_said(columns_of(a))}, metric '{b.metric}' and columns "
            f"{_said(columns_of(b))}."
        )
    found: dict[str, Any] = {
        "volition": volition.__version__,
        "first": str(first),
        "second": str(second),
        "moves": matched_moves(a.cluster_centers_, b.cluster_centers_, str(a.metric)),
        "distance_unit": "km" if "haversine" in str(a.metric) else "units of the columns",
        "costs": [],
    }
    if data is not None:
        table = read_entities_for(b, data, columns, weight, None)
        found["source"], found["unit"] = str(data), cost_unit_name(b.metric, table.columns)
        found["costs"] = judged(a, b, table, found["moves"])
    if out is not None:
        with output_folder(out, COMPARE_FILES) as folder:
            _write(found, folder)
    _print(found, out)


def _said(names: list[str] | None) -> str:
    return "without names" if names is None else ",".join(names)


def matched_moves(A: Any, B: Any, metric: str) -> list[dict[str, Any]]:
    """Return pairs of centres, matched so that the moves together are shortest, and their lengths.

    Centres that find no partner, as there are more on one side, have None instead of one.
    """
    if "haversine" in metric:
        apart = Haversine().pairwise(torch.as_tensor(A), torch.as_tensor(B)).numpy()
        # The cost keeps away from zero distances for its slope; places that are the same are.
        apart = np.where((A[:, None] == B[None]).all(axis=2), 0.0, apart)
    else:
        apart = np.linalg.norm(A[:, None] - B[None], axis=2)
    rows, columns = linear_sum_assignment(apart)
    pairs: list[dict[str, Any]] = [
        {"first": int(i), "second": int(j), "distance": float(apart[i, j])}
        for i, j in zip(rows, columns, strict=True)
    ]
    pairs += [{"first": i, "second": None, "distance": None} for i in set(range(len(A))) - {*rows}]
    pairs += [
        {"first": None, "second": j, "distance": None} for j in set(range(len(B))) - {*columns}
    ]
    return pairs


def judged(
    a: AutonomyAwareClustering,
    b: AutonomyAwareClustering,
    table: Table,
    moves: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return what both placements cost for the same entities, by each behaviour that they assume.

    A matrix of probabilities goes by the numbers of centres: the other placement's centres then
    get the numbers of those that they are matched with.
    """
    behaviours = [("second", behaviour_of(b))]
    if repr(behaviour_of(a)) != repr(behaviour_of(b)) or behaviour_of(a) != behaviour_of(b):
        behaviours.append(("first", behaviour_of(a)))
    partner = {pair["first"]: pair["second"] for pair in moves}
    found = []
    for whose, behaviour in behaviours:
        costs: dict[str, Any] = {"behaviour_of": whose, "behaviour": repr(behaviour)}
        numbered = isinstance(behaviour, FixedAutonomy)
        for name, model in (("first", a), ("second", b)):
            Y = model.cluster_centers_
            if numbered and name != whose:
                if a.n_clusters != b.n_clusters:
                    costs[name] = None  # the matrix does not know that many centres
                    continue
                order = [partner[i] for i in range(len(Y))]
                Y = Y[np.argsort(order)] if name == "first" else Y[order]
            costs[name] = _cost(table, Y, behaviour, b.metric)
        if costs["first"] is not None and costs["second"]:
            costs["first_costs_more_percent"] = 100 * (costs["first"] / costs["second"] - 1)
        found.append(costs)
    return found


def _cost(table: Table, Y: Any, behaviour: Autonomy, metric: Any) -> float:
    return distortion(table.values, Y, behaviour, metric=metric, sample_weight=table.weight)


def _write(found: dict[str, Any], folder: Path) -> None:
    moves, summary = COMPARE_FILES
    write_csv(
        folder / moves,
        ["first", "second", "distance"],
        ([pair["first"], pair["second"], pair["distance"]] for pair in found["moves"]),
    )
    (folder / summary).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _print(found: dict[str, Any], out: Path | None) -> None:
    console = make_console()
    moves = RichTable(box=None, pad_edge=False)
    for head in ("first", "second", f"distance ({found['distance_unit']})"):
        moves.add_column(head, justify="right")
    for pair in found["moves"]:
        cells = ("-" if pair[side] is None else str(pair[side]) for side in ("first", "second"))
        length = "no partner" if pair["distance"] is None else f"{pair['distance']:.6g}"
        moves.add_row(*cells, length)
    console.print(moves)
    for costs in found["costs"]:
        console.print(_sentence(costs, found))
    if out is not None:
        console.print(f"Results in {out}/: {', '.join(COMPARE_FILES)}")


def _sentence(costs: dict[str, Any], found: dict[str, Any]) -> str:
    whose = f"the {costs['behaviour_of']} placement"
    head = f"If entities behave as {whose} assumes ({costs['behaviour']})"
    if costs["first"] is None or costs["second"] is None:
        return f"{head}: not known, as probabilities are given for another number of centres."
    unit = f" ({found['unit']})" if found["unit"] else ""
    text = f"{head}: {found['first']} costs {costs['first']:.6g}, {found['second']} "
    text += f"{costs['second']:.6g}{unit}."
    more = costs.get("first_costs_more_percent")
    if more is None:
        return text
    word = "worse" if more >= 0 else "better"
    return f"{text} Keeping {found['first']} is {abs(more):.2g} % {word}."
