"""What ``volition evaluate`` does: the cost of given centres for given entities."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table as RichTable

import volition
from volition.cli.outputs import EVALUATE_FILES
from volition.cli.placements import behaviour_of, read_entities_for, read_placement, unnamed
from volition.cli.terminal import make_console
from volition.cli.warned import collected_warnings, sentences
from volition.core.costs import cost_unit_name, resolve_cost
from volition.core.problem import Problem, build_problem
from volition.core.validation import FloatArray, check_weights
from volition.estimators import AutonomyAwareClustering
from volition.io.cells import as_numbers, read_cells, require_columns
from volition.io.results import output_folder, write_csv
from volition.io.tables import Table


def run_evaluate(
    path: Path,
    file: Path,
    columns: str | None,
    weight: str | None,
    prescribed: str | None,
    within: float | None,
    out: Path | None,
) -> None:
    """Read a placement and entities, and say what the centres cost for them."""
    if within is not None and not 0 <= within < math.inf:
        raise ValueError(f"--within must be a cost, 0 or more, got {within}.")
    model = read_placement(path)
    table = read_entities_for(model, file, columns, weight, None)
    labels = None if prescribed is None else _labels(file, prescribed, model.n_clusters)
    with collected_warnings(table) as caught:
        found = evaluation(unnamed(model), table, labels, within)
    found = {"volition": volition.__version__, "model": str(path), "source": str(file), **found}
    if out is not None:
        with output_folder(out, EVALUATE_FILES) as folder:
            _write(found, folder)
    _print(found, out)
    for note in (*table.notes, *sentences(caught)):
        make_console().print(f"Note: {note}")


def _labels(file: Path, column: str, K: int) -> Any:
    cells = read_cells(file)
    require_columns(cells, [column], file)
    labels = as_numbers(cells, column, file)
    wrong = np.flatnonzero((labels != np.round(labels)) | (labels < 0) | (labels >= K))
    if len(wrong):
        raise ValueError(
            f"{file}, line {cells.lines[wrong[0]]}, column '{column}': {labels[wrong[0]]:g} is no "
            f"centre; they have the numbers 0 to {K - 1}."
        )
    return labels.astype(np.int64)


def evaluation(
    model: AutonomyAwareClustering, table: Table, labels: Any = None, within: float | None = None
) -> dict[str, Any]:
    """Return what centres cost for entities, as summary.json holds it."""
    X = table.values
    best = labels is None
    labels = model.predict(X) if best else labels
    weight = check_weights(table.weight, len(X))
    weight = np.ones(len(X)) if weight is None else weight
    share = weight / weight.sum()
    rows = np.arange(len(X))
    problem, Y = build_problem(
        X, model.cluster_centers_, autonomy=behaviour_of(model), metric=model.metric
    )
    expected = model.transform(X)[rows, labels]
    direct = Problem(X, cost=resolve_cost(model.metric)).expected_costs(Y)
    near = direct <= (math.inf if within is None else within)
    used = problem.conditional(Y, labels)
    found: dict[str, Any] = {
        "n_entities": len(X),
        "unit": cost_unit_name(model.metric, table.columns),
        "recommended": "the best centre for each entity" if best else "as today",
        "autonomy": repr(model.autonomy),
        "expected_cost": float(share @ expected),
        "expected_cost_if_best_is_recommended": float(share @ model.transform(X).min(axis=1)),
        "half_of_entities_at_most": _quantile(expected, share, 0.5),
        "95_percent_of_entities_at_most": _quantile(expected, share, 0.95),
        "most_expensive_entity": float(expected[share > 0].max()),
        "share_that_follows": float(share @ used[rows, labels]),
        "share_within": None if within is None else float(share @ (used * near).sum(axis=1)),
        "within": within,
        "share_recommended": np.bincount(labels, share, len(Y)).tolist(),
        "share_used": (share @ used).tolist(),
    }
    return found


def _quantile(values: FloatArray, share: FloatArray, level: float) -> float:
    order = np.argsort(values)
    reached = np.searchsorted(np.cumsum(share[order]), level - 1e-12)
    return float(values[order[min(int(reached), len(order) - 1)]])


def _write(found: dict[str, Any], folder: Path) -> None:
    loads, summary = EVALUATE_FILES
    pairs = zip(found["share_recommended"], found["share_used"], strict=True)
    write_csv(
        folder / loads,
        ["cluster", "share_recommended", "share_used"],
        ([k, *both] for k, both in enumerate(pairs)),
    )
    (folder / summary).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _print(found: dict[str, Any], out: Path | None) -> None:
    console, unit = make_console(), f" ({found['unit']})" if found["unit"] else ""
    console.print(
        f"{found['n_entities']} entities, {len(found['share_used'])} centres, "
        f"{found['autonomy']}; recommended: {found['recommended']}."
    )
    console.print(f"Expected cost per entity: {found['expected_cost']:.6g}{unit}")
    if found["recommended"] == "as today":
        best = found["expected_cost_if_best_is_recommended"]
        console.print(f"With the best recommendation for each: {best:.6g}{unit}")
    console.print(
        f"Half of the entities cost at most {found['half_of_entities_at_most']:.6g}, 95 % at most "
        f"{found['95_percent_of_entities_at_most']:.6g}, the most expensive one "
        f"{found['most_expensive_entity']:.6g}{unit}."
    )
    console.print(f"{100 * found['share_that_follows']:.1f} % are expected to follow.")
    if found["within"] is not None:
        console.print(
            f"{100 * found['share_within']:.1f} % are expected to use a centre that costs at most "
            f"{found['within']:g}{unit}."
        )
    loads = RichTable(box=None, pad_edge=False)
    for head in ("centre", "recommended to", "used by"):
        loads.add_column(head, justify="right")
    for k, both in enumerate(zip(found["share_recommended"], found["share_used"], strict=True)):
        loads.add_row(str(k), *(f"{100 * share:.2f} %" for share in both))
    console.print(loads)
    if out is not None:
        console.print(f"Results in {out}/: {', '.join(EVALUATE_FILES)}")
