"""What ``volition learn`` writes."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import volition
from volition.cli.learn.learners import AnyLearner
from volition.cli.learn.source import Source
from volition.cli.pictures import plotting_to_files
from volition.core.autonomy import Autonomy
from volition.core.costs import cost_unit_name
from volition.core.messages import printable
from volition.core.outliers import OutlierWarning
from volition.estimators import ADENClustering, AutonomyAwareClustering, TabularClustering
from volition.io.results import plain_json, write_csv
from volition.io.tables import write_placement
from volition.metrics import distortion
from volition.plotting.text import PLAIN, label, save_figure

#: seconds for the search for the best centres if behaviour were known
OPTIMUM_SECONDS = 30


def summarize(model: AnyLearner, source: Source, seconds: float, seed: int) -> dict[str, Any]:
    """Return what summary.json holds."""
    estimate = model.distortion_estimate()
    return {
        "volition": volition.__version__,
        "source": source.name,
        "n_entities": len(source.table.values),
        "n_clusters": model.n_clusters,
        "columns": source.table.columns,
        "metric": source.metric,
        "cost_unit": cost_unit_name(source.metric, source.table.columns),
        "center_names": source.center_names,
        "learner": type(model).__name__,
        "estimate": _learned_from(model),
        "n_interactions": model.n_interactions_,
        "n_answers": model.n_answers_,
        "distortion_learned": model.distortion_,
        "tried": {one.name: one.estimate._asdict() for one in model.tried_},
        "kept": model.kept_,
        "distortion_by_answers": None if np.isnan(estimate.value) else estimate._asdict(),
        "expected_regret": _regret(model),
        "changes": [change._asdict() for change in model.changes_],
        "stop_reason": model.stop_reason_,
        "seconds": round(seconds, 3),
        "seed": seed,
        **_truth(model, source),
    }


def _truth(model: AnyLearner, source: Source) -> dict[str, Any]:
    """Return how good the result is in truth, which only a simulated population can tell."""
    now = max(1, model.n_interactions_)
    past = [at for at in sorted(source.models) if at < now]
    found: dict[str, Any] = {"changes_not_reached": sorted(set(source.models) - set(past))}
    if not source.models:
        return found
    found["true_distortion"] = distortion(
        source.table.values,
        model.cluster_centers_,
        source.models[past[-1]],
        model.labels_,
        metric=source.metric,
        sample_weight=source.table.weight,
    )
    found["optimum_for_known_p"] = [
        [at, _optimum(source.models[at], source, model.n_clusters)] for at in past
    ]
    best = found["optimum_for_known_p"][-1][1]
    found["gap_percent"] = 100 * (found["true_distortion"] / best - 1) if best else None
    return found


def _learned_from(model: AnyLearner) -> str:
    """Return what the learner keeps: choices, or costs."""
    if isinstance(model, TabularClustering):
        return str(model.estimate)
    return str(model.head_) if isinstance(model, ADENClustering) else "choices"


def _regret(model: AnyLearner) -> float | None:
    regret = model.regret() if isinstance(model, TabularClustering) else np.nan
    return None if np.isnan(regret) else regret


def _optimum(autonomy: Autonomy, source: Source, K: int) -> float:
    best = AutonomyAwareClustering(
        K, autonomy=autonomy, metric=source.metric, random_state=0, time_budget=OPTIMUM_SECONDS
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutlierWarning)  # said before
        best.fit(source.table.values, sample_weight=source.table.weight)
    return float(best.distortion_)


def write_results(model: AnyLearner, source: Source, summary: dict[str, Any], folder: Path) -> None:
    """Write all files but the state, which the fit has written."""
    write_placement(
        folder, source.table, model.cluster_centers_, model.labels_, model.expected_costs(),
        source.center_names,
    )  # fmt: skip
    history = model.history_
    write_csv(folder / "history.csv", list(history[0]._fields), (list(line) for line in history))
    if isinstance(model, ADENClustering) and model.network_ is not None:
        model.save_network(folder / "network.safetensors")
    text = json.dumps(plain_json(summary), indent=2, allow_nan=False)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
    _write_pictures(model, source, summary, folder)


def _write_pictures(
    model: AnyLearner, source: Source, summary: dict[str, Any], folder: Path
) -> None:
    plotting = plotting_to_files()
    ax = plotting.plot_learning(model, optimum=summary.get("optimum_for_known_p"))
    unit = printable(summary["cost_unit"])
    ax.set_ylabel(f"cost per entity ({unit})", **PLAIN)
    title = f"{label(source.name)}: {model.n_clusters} centres, {summary['n_answers']} answers"
    ax.set_title(title, **PLAIN)
    save_figure(ax.figure, folder / "learning.png")
    for number, change in enumerate(model.changes_, start=1):
        figure = plotting.plot_change(change, center_names=source.center_names)
        save_figure(figure, folder / f"change-{number}.png")
