"""What ``volition fit`` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import volition
from volition.cli.interrupts import shown_status
from volition.cli.pictures import plotting_to_files
from volition.core.autonomy import DistanceAutonomy
from volition.core.costs import cost_unit_name, resolve_cost
from volition.core.validation import FloatArray
from volition.estimators import AutonomyAwareClustering
from volition.io.models import save_model
from volition.io.results import write_csv
from volition.io.tables import Table
from volition.plotting.text import PLAIN, label, save_figure


def summarize(
    model: AutonomyAwareClustering, table: Table, source: str, seconds: float, ignored: float | None
) -> dict[str, Any]:
    """Return what summary.json holds; ``ignored`` is the cost where autonomy is ignored."""
    excess = None
    if ignored is not None and model.distortion_ > 0:
        excess = 100 * (ignored / model.distortion_ - 1)
    return {
        "volition": volition.__version__,
        "source": source,
        "n_entities": len(table.values),
        "columns": table.columns,
        "n_clusters": model.n_clusters,
        "metric": model.metric,
        "autonomy": repr(model.autonomy),
        "distortion": model.distortion_,
        "distortion_if_autonomy_is_ignored": ignored,
        "excess_cost_percent_if_ignored": excess,
        "solver": model.solver,
        "kept": model.winner_,
        "status": shown_status(model.status_),
        "beta": model.beta_,
        "seconds": round(seconds, 3),
        "seed": model.random_state,
        "nearly_uniform_override": _nearly_uniform(model),
        "tried": [candidate._asdict() for candidate in model.candidates_],
    }


def _nearly_uniform(model: AutonomyAwareClustering) -> bool:
    """Return whether the temperature drowns all differences between alternatives."""
    autonomy = model.autonomy
    if not isinstance(autonomy, DistanceAutonomy) or not autonomy.depends_on_centers:
        return False
    Y = torch.as_tensor(model.cluster_centers_)
    between = float(resolve_cost(model.metric).pairwise(Y, Y).max())
    return len(Y) > 2 and autonomy.temperature > 10 * between * max(autonomy.zeta, autonomy.gamma)


def write_results(
    model: AutonomyAwareClustering,
    ignoring: AutonomyAwareClustering | None,
    table: Table,
    summary: dict[str, Any],
    folder: Path,
) -> None:
    """Write all files of a fit; ``ignoring`` is the fit as if all entities obeyed, if there."""
    realized = model.predict_realized(table.values)
    _write_centers(model, table, realized, folder / "centers.csv")
    _write_assignments(model, table, realized, folder / "assignments.csv")
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    model.feature_names_in_ = np.array(table.columns, dtype=object)
    save_model(model, folder / "model.safetensors")
    del model.feature_names_in_  # the arrays that are plotted have no names
    figure = _picture(model, ignoring, table, summary["autonomy"])
    save_figure(figure, folder / "clusters.png", bbox_inches="tight")


def _write_centers(
    model: AutonomyAwareClustering, table: Table, realized: FloatArray, path: Path
) -> None:
    X, K = table.values, model.n_clusters
    weight = np.ones(len(X)) if table.weight is None else table.weight / table.weight.max()
    prescribed = np.bincount(model.labels_, weights=weight, minlength=K) / weight.sum()
    used = weight @ realized / weight.sum()
    write_csv(
        path,
        ["cluster", *table.columns, "share_prescribed", "share_realized"],
        (
            [k, *map(float, model.cluster_centers_[k]), float(prescribed[k]), float(used[k])]
            for k in range(K)
        ),
    )


def _write_assignments(
    model: AutonomyAwareClustering, table: Table, realized: FloatArray, path: Path
) -> None:
    ids = range(len(table.values)) if table.ids is None else table.ids
    shares = [f"realized_{k}" for k in range(model.n_clusters)]
    write_csv(
        path,
        ["entity", "prescribed", "probability", *shares],
        (
            [name, int(j), float(f"{policy[j]:.6g}"), *(float(f"{p:.6g}") for p in row)]
            for name, j, policy, row in zip(
                ids, model.labels_, model.policy_, realized, strict=True
            )
        ),
    )


def _picture(
    model: AutonomyAwareClustering,
    ignoring: AutonomyAwareClustering | None,
    table: Table,
    autonomy: str,
) -> Any:
    plotting, X = plotting_to_files(), table.values
    if ignoring is None:
        display = plotting.ClusteringDisplay
        figure = display.from_estimator(model, X, sample_weight=table.weight).figure_
    else:
        unit = cost_unit_name(model.metric, table.columns)
        caption = f"{autonomy}, K = {model.n_clusters}; distortion in {unit}"
        figure = plotting.plot_comparison(
            model, ignoring, X, sample_weight=table.weight, caption=caption
        )
    names = table.columns if "haversine" not in model.metric else table.columns[::-1]
    for ax in figure.axes:
        if len(names) <= 2:
            ax.set_xlabel(label(names[0]), **PLAIN)
        if len(names) == 2:
            ax.set_ylabel(label(names[1]), **PLAIN)
    return figure
