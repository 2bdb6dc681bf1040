"""What ``volition estimate`` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import volition
from volition.choices import Comparison, calibration, coefficients, parameters
from volition.cli.outputs import ESTIMATE_AUTONOMY
from volition.cli.pictures import plotting_to_files
from volition.core.costs import cost_unit_name, resolve_cost
from volition.core.problem import Problem
from volition.estimators import ChoiceClustering
from volition.io.models import save_autonomy
from volition.io.results import plain_json, write_csv
from volition.io.tables import Table, write_placement
from volition.plotting.text import PLAIN, label, save_figure


class Estimated(NamedTuple):
    """What was learned from a log, and what each plan costs."""

    model: ChoiceClustering
    table: Table
    #: names of the covariates, one for each column that was made of them
    covariates: list[str]
    plans: Comparison

    @property
    def fit(self) -> Any:
        """The fitted terms."""
        assert self.model.fit_ is not None
        return self.model.fit_

    @property
    def contradicted(self) -> bool:
        """Whether the log contradicts the model, so that single numbers of it mean nothing."""
        return any(check.failed for check in self.model.checks_)


def summarize(estimated: Estimated, source: str, seconds: float, seed: int) -> dict[str, Any]:
    """Return what summary.json holds."""
    model, table, fit = estimated.model, estimated.table, estimated.fit
    return {
        "volition": volition.__version__,
        "source": source,
        "n_entities": len(table.values),
        "columns": table.columns,
        "covariates": estimated.covariates,
        "n_clusters": model.n_clusters,
        "center_names": model.center_names_,
        "metric": model.metric,
        "cost_unit": cost_unit_name(model.metric, table.columns),
        "n_choices": fit.n_choices,
        "stay": list(fit.stay.terms),
        "away": list(fit.away.terms),
        "parameters": {p.name: list(p[1:]) for p in parameters(fit)},
        "plans": {str(row.name): row.as_dict() for row in estimated.plans},
        "recommended": model.decision_ and model.decision_._asdict(),
        "checks": [check._asdict() | {"failed": check.failed} for check in model.checks_],
        "extrapolation": model.extrapolation()._asdict(),
        "stop_reason": model.stop_reason_,
        "seconds": round(seconds, 3),
        "seed": seed,
    }


def write_results(estimated: Estimated, summary: dict[str, Any], folder: Path) -> None:
    """Write all files of an estimate."""
    model = estimated.model
    _write_model(estimated, folder)
    # What a model expects that the log contradicts would be taken for knowledge, row by row.
    costs = None if estimated.contradicted else model.expected_costs()
    write_placement(
        folder, estimated.table, model.cluster_centers_, model.labels_, costs, model.center_names_
    )
    _write_moves(estimated, folder)
    text = json.dumps(plain_json(summary), indent=2, allow_nan=False)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
    _write_pictures(estimated, summary, folder)


def _write_model(estimated: Estimated, folder: Path) -> None:
    """Write what was learned of choices, what plans cost, and what else was tried."""
    model, fit = estimated.model, estimated.fit
    used = estimated.covariates if fit.model.covariates is not None else []
    facts: dict[str, Any] = {
        "covariates": used, "columns": estimated.table.columns, "metric": str(model.metric),
    }  # fmt: skip
    if used and model.entities_.coding is not None:
        facts["covariates"] = list(model.entities_.coding.columns)
        facts["levels"] = model.entities_.coding.levels
    save_autonomy(fit.model, folder / ESTIMATE_AUTONOMY, **facts)
    flat = [row.as_dict() for row in estimated.plans]
    write_csv(
        folder / "estimates.csv",
        list(flat[0]),
        ([v if isinstance(v, str) else _cell(v) for v in row.values()] for row in flat),
    )
    rows = (*parameters(fit), *coefficients(fit, covariates=estimated.covariates))
    write_csv(
        folder / "parameters.csv",
        ["parameter", "value", "low", "high"],
        ([p.name, *map(_cell, p[1:])] for p in rows),
    )
    write_csv(
        folder / "models.csv",
        ["part", "terms", "held_out_log_likelihood", "error", "chosen"],
        ([t.part, " + ".join(t.terms), _cell(t.held_out), _cell(t.error), t.chosen]
         for t in fit.trials),
    )  # fmt: skip


def _write_moves(estimated: Estimated, folder: Path) -> None:
    """Write moves.csv: each centre today and as recommended, and what share uses it."""
    model, table = estimated.model, estimated.table
    choices, K = model.choices_, model.n_clusters
    today, Y = choices.layouts[-1], model.cluster_centers_
    weight = np.ones(len(table.values)) if table.weight is None else table.weight
    now = choices.layout == len(choices.layouts) - 1
    i, k = choices.entities[now], choices.realized[now]
    # Entities count by their weight, however often they are in the log.
    each = weight[i] / np.bincount(i, minlength=len(weight))[i]
    used = np.bincount(k, each, K) / max(each.sum(), 1e-300)
    prescribed = np.bincount(model.labels_, weight, K) / weight.sum()
    problem = Problem(table.values, cost=resolve_cost(model.metric), autonomy=model.model_)
    expected = weight @ problem.conditional(Y, model.labels_) / weight.sum()
    then = [None] * K if estimated.contradicted else list(map(_cell, expected))
    write_csv(
        folder / "moves.csv",
        ["cluster", *(f"{name}_today" for name in table.columns), *table.columns,
         "share_realized_today", "share_prescribed", "share_realized"],
        ([name, *map(float, (*today[k], *Y[k])), *map(_cell, (used[k], prescribed[k])), then[k]]
         for k, name in enumerate(model.center_names_ or range(K))),
    )  # fmt: skip


def _write_pictures(estimated: Estimated, summary: dict[str, Any], folder: Path) -> None:
    model, table, plotting = estimated.model, estimated.table, plotting_to_files()
    entities = model.entities_
    bins = calibration(estimated.fit, entities.X, model.choices_, entities.cost)
    axes = plotting.plot_calibration(bins)
    title = f"{label(summary['source'])}: {summary['n_choices']} choices"
    axes[0].figure.suptitle(title, **PLAIN)
    save_figure(axes[0].figure, folder / "calibration.png")
    ax = plotting.plot_plan_costs(estimated.plans, unit=summary["cost_unit"])
    save_figure(ax.figure, folder / "plan-costs.png")
    ax = plotting.plot_relocation(
        table.values, model.choices_.layouts[-1], model.cluster_centers_, model.labels_,
        names=table.columns, geographic="haversine" in str(model.metric),
        center_names=model.center_names_,
    )  # fmt: skip
    save_figure(ax.figure, folder / "map.png")


def _cell(value: float) -> float:
    return float(f"{float(value):.6g}")
