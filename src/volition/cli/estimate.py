"""``volition estimate``: from a log of choices to a model of them, new centres, and costs."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

import volition
from volition.choices import (
    Evidence,
    PlanName,
    calibration,
    check_family,
    coefficients,
    override_rates,
    parameters,
)
from volition.choices.decision import instead_of_moving
from volition.choices.off_policy import weight_cautions
from volition.cli.options import NumberedFrom, SkipUnknown
from volition.cli.output import Out, Overwrite
from volition.cli.terminal import make_console
from volition.core.costs import cost_unit_name, resolve_cost
from volition.core.messages import shortened
from volition.core.outliers import OutlierWarning, warn_of_outliers
from volition.core.problem import Problem
from volition.estimators import ChoiceClustering
from volition.io.logs import read_logged
from volition.io.models import save_autonomy
from volition.io.records import unanswered_note
from volition.io.results import check_writable, output_folder, plain_json, write_csv
from volition.io.tables import Table, read_covariates, write_placement
from volition.plotting.text import PLAIN, label, save_figure

AUTONOMY = "autonomy.safetensors"
#: what the command writes
FILES = (
    AUTONOMY, "estimates.csv", "parameters.csv", "models.csv", "centers.csv", "moves.csv",
    "assignments.csv", "summary.json", "calibration.png", "plan-costs.png", "map.png",
)  # fmt: skip
#: what an estimate rests on, for people
RESTS_ON = {Evidence.SEEN: "what was seen", Evidence.MODEL: "the model", Evidence.GUESS: "a guess"}


def estimate(
    log: Annotated[
        Path,
        typer.Option(
            help="Recorded choices: CSV or Parquet with columns entity, prescribed, realized "
            "[, cost, timestamp, propensity, layout]. Clusters are numbers, or names of the "
            "centres; realized is empty or -1 where no answer came."
        ),
    ],
    entities: Annotated[Path, typer.Option(help="Table of entities: CSV, Parquet or GeoJSON.")],
    centers: Annotated[
        Path,
        typer.Option(
            help="Table of the centres while the log was recorded. A column cluster says which is "
            "which (0 to K-1, 1 to K, or names), else rows count in their order; a column name or "
            "site names them; a column layout (0, 1, ..., the last today's) numbers sets of them."
        ),
    ],
    columns: Annotated[
        str | None,
        typer.Option(help="Coordinates, as a,b,c. Default: the columns of --centers."),
    ] = None,
    covariates: Annotated[
        str | None,
        typer.Option(
            help="Further columns of --entities that may matter for choices, as a,b,c: numbers, or "
            "text of at most 20 kinds."
        ),
    ] = None,
    weight: Annotated[str | None, typer.Option(help="Column with the entities' weights.")] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="Column that names the entities. Default: 0, 1, ...")
    ] = None,
    metric: Annotated[str, typer.Option(help="Cost; see volition fit.")] = "sqeuclidean",
    family: Annotated[
        str,
        typer.Option(
            help="auto: what choices depend on is found out by choices held out. distance: the "
            "family of kappa, gamma, zeta and temperature."
        ),
    ] = "auto",
    tolerance: Annotated[
        float, typer.Option(help="Share by which the log's costs may be off the geometry's.")
    ] = 1e-4,
    numbered_from: NumberedFrom = None,
    skip_unknown: SkipUnknown = False,
    region: Annotated[
        str | None,
        typer.Option(
            help="Where centres may stand: lowest then highest coordinates, as x1,y1,x2,y2. "
            "Default: the box of the entities and of the centres in the log."
        ),
    ] = None,
    out: Out = Path("volition-estimate"),
    overwrite: Overwrite = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Bring a log, get the placement that you should have had, and what it will save.

    Fits how entities choose, looks for better prescriptions and better centres, and says what each
    plan costs against today's, with 95 % intervals. Plans at today's centres are judged by what the
    log shows; moved centres by the fitted model, and only if the log does not contradict it. The
    recommended plan is marked. Writes autonomy.safetensors (for
    volition fit --autonomy), estimates.csv, parameters.csv, models.csv, centers.csv, moves.csv
    (today's centres beside the new ones, and the share that uses each), assignments.csv,
    summary.json, calibration.png, plan-costs.png and map.png.
    """
    check_writable(out, FILES, overwrite)
    check_family(family)
    names = covariates.split(",") if covariates else []
    names = [name.strip() for name in names]
    files = read_logged(log, entities, centers, columns, weight, id_column, metric)
    table, layouts, columns = files.table, files.centers.layouts, ",".join(files.centers.columns)
    Z = read_covariates(entities, names) if names else None
    began = perf_counter()
    model = ChoiceClustering(layouts.shape[1], metric=metric, family=family, random_state=seed)
    Y = layouts[0] if len(layouts) == 1 else layouts
    with _working(quiet), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_outliers(table.values, table.weight, table.columns)
        warnings.simplefilter("ignore", OutlierWarning)  # said, with the names of the columns
        try:
            model.fit_log(
                table.values, files.log.columns, Y, sample_weight=table.weight, covariates=Z,
                entity_ids=files.ids, lines=files.log.lines, center_names=files.centers.names,
                numbered_from=numbered_from, skip_unknown=skip_unknown, tolerance=tolerance,
                region=_region(region, layouts.shape[2]), unanswered=files.log.unanswered,
            )  # fmt: skip
            plans = list(model.compare_plans())
        except ValueError as error:
            raise ValueError(f"{log}: {error}") from None
    asked, names = names, model.covariate_names_ or names
    summary = _summary(model, table, names, log.name, plans, perf_counter() - began, seed)
    options = {"--columns": columns, "--metric": metric, "--id": id_column, "--weight": weight}
    told = "".join(f" {name} {value}" for name, value in options.items() if value is not None)
    # Where centres should not move, a fit would move them by a model that is not to be trusted.
    moves = model.decision_ is not None and model.decision_.name == PlanName.MOVED
    going_on = f"volition fit {entities} --clusters {model.n_clusters} --autonomy {out / AUTONOMY}"
    summary["next"] = going_on + told if moves else None
    summary["unanswered"] = files.log.unanswered
    centers_named = () if model.center_names_ is None else model.center_names_
    cost = resolve_cost(metric)
    rates = override_rates(table.values, model.choices_, cost, Z, asked, centers_named)
    summary["overrides"] = str(rates)
    with output_folder(out, FILES, overwrite) as folder:
        _write(model, table, names, plans, summary, folder)
    console = make_console()
    console.width = max(console.width, 130)  # the table is of no use cut off
    _print(console, model, plans, summary, out)
    decided = summary["recommended"]
    said = {*decided["doubts"], *decided["notes"], instead_of_moving(decided["name"])}
    # What libraries say of their own arithmetic is no news to users.
    ours = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    for sentence in dict.fromkeys([*table.notes, *ours]):
        if sentence not in said:
            console.print(f"Note: {sentence}")


def _region(text: str | None, d: int) -> Any:
    """Return the lowest and the highest coordinates, (2, d)."""
    if text is None:
        return None
    try:
        numbers = np.array([float(cell) for cell in text.split(",")])
    except ValueError:
        numbers = np.empty(0)
    if len(numbers) != 2 * d:
        raise ValueError(
            f"--region must be {2 * d} numbers, the lowest coordinates and then the highest, as "
            f"a,b,...; got {shortened(text)}."
        )
    return numbers.reshape(2, d)


def _working(quiet: bool) -> Any:
    shown = Console(stderr=True)
    hidden = quiet or not sys.stderr.isatty()
    progress = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=shown,
        disable=hidden, transient=True,
    )  # fmt: skip
    progress.add_task("fitting choices, then searching for centres", total=None)
    return progress


def _summary(
    model: ChoiceClustering,
    table: Table,
    covariates: list[str],
    source: str,
    plans: list[Any],
    seconds: float,
    seed: int,
) -> dict[str, Any]:
    fit = model.fit_
    assert fit is not None
    return {
        "volition": volition.__version__,
        "source": source,
        "n_entities": len(table.values),
        "columns": table.columns,
        "covariates": covariates,
        "n_clusters": model.n_clusters,
        "center_names": model.center_names_,
        "metric": model.metric,
        "cost_unit": cost_unit_name(model.metric, table.columns),
        "n_choices": fit.n_choices,
        "stay": list(fit.stay.terms),
        "away": list(fit.away.terms),
        "parameters": {p.name: list(p[1:]) for p in parameters(fit)},
        "plans": {str(row.name): row.as_dict() for row in plans},
        "recommended": model.decision_ and model.decision_._asdict(),
        "checks": [check._asdict() | {"failed": check.failed} for check in model.checks_],
        "extrapolation": model.extrapolation()._asdict(),
        "seconds": round(seconds, 3),
        "seed": seed,
    }


def _write(
    model: ChoiceClustering,
    table: Table,
    covariates: list[str],
    plans: list[Any],
    summary: dict[str, Any],
    folder: Path,
) -> None:
    fit = model.fit_
    assert fit is not None
    used = covariates if fit.model.covariates is not None else []
    metric = str(model.metric)
    facts: dict[str, Any] = {"covariates": used, "columns": table.columns, "metric": metric}
    if used and model.entities_.coding is not None:
        facts["covariates"] = list(model.entities_.coding.columns)
        facts["levels"] = model.entities_.coding.levels
    save_autonomy(fit.model, folder / AUTONOMY, **facts)
    flat = [row.as_dict() for row in plans]
    write_csv(
        folder / "estimates.csv",
        list(flat[0]),
        ([v if isinstance(v, str) else _cell(v) for v in row.values()] for row in flat),
    )
    rows = (*parameters(fit), *coefficients(fit, covariates=covariates))
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
    # What a model expects that the log contradicts would be taken for knowledge, row by row.
    costs = None if _contradicted(model) else model.expected_costs()
    write_placement(
        folder, table, model.cluster_centers_, model.labels_, costs, model.center_names_
    )
    _write_moves(model, table, folder)
    text = json.dumps(plain_json(summary), indent=2, allow_nan=False)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
    import matplotlib

    matplotlib.use("Agg")
    from volition.plotting import plot_calibration, plot_plan_costs, plot_relocation

    bins = calibration(fit, model.entities_.X, model.choices_, model.entities_.cost)
    axes = plot_calibration(bins)
    title = f"{label(summary['source'])}: {summary['n_choices']} choices"
    axes[0].figure.suptitle(title, **PLAIN)
    save_figure(axes[0].figure, folder / "calibration.png")
    ax = plot_plan_costs(plans, unit=summary["cost_unit"])
    save_figure(ax.figure, folder / "plan-costs.png")
    ax = plot_relocation(
        table.values, model.choices_.layouts[-1], model.cluster_centers_, model.labels_,
        names=table.columns, geographic="haversine" in metric, center_names=model.center_names_,
    )  # fmt: skip
    save_figure(ax.figure, folder / "map.png")


def _write_moves(model: ChoiceClustering, table: Table, folder: Path) -> None:
    """Write moves.csv: each centre today and as recommended, and what share uses it."""
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
    then = [None] * K if _contradicted(model) else list(map(_cell, expected))
    write_csv(
        folder / "moves.csv",
        ["cluster", *(f"{name}_today" for name in table.columns), *table.columns,
         "share_realized_today", "share_prescribed", "share_realized"],
        ([name, *map(float, (*today[k], *Y[k])), *map(_cell, (used[k], prescribed[k])), then[k]]
         for k, name in enumerate(model.center_names_ or range(K))),
    )  # fmt: skip


def _contradicted(model: ChoiceClustering) -> bool:
    """Return whether the log contradicts the model, so that single numbers of it mean nothing."""
    return any(check.failed for check in model.checks_)


def _cell(value: float) -> float:
    return float(f"{float(value):.6g}")


def _print(
    console: Console,
    model: ChoiceClustering,
    plans: list[Any],
    summary: dict[str, Any],
    out: Path,
) -> None:
    fit = model.fit_
    assert fit is not None
    console.print(
        f"{summary['n_choices']} choices of {summary['n_entities']} entities between "
        f"{summary['n_clusters']} centres; {summary['seconds']:.1f} s."
    )
    if summary["unanswered"]:
        console.print(unanswered_note(summary["unanswered"]))
    stay = [term.words for term in fit.kinds if term.part == "stay" and not term.always]
    console.print(f"Whether they obey depends on: {'; '.join(stay) or 'nothing that was offered'}.")
    away = [term.words for term in fit.kinds if term.part == "away"]
    console.print(f"Where they go if not depends on: {'; '.join(away) or 'nothing, any will do'}.")
    console.print(summary["overrides"])
    for p in parameters(fit):
        console.print(f"  {p.name} = {p.value:.4g}, between {p.low:.4g} and {p.high:.4g} (95 %)")
    console.print(f"Costs are in {summary['cost_unit']}.")
    _print_plans(console, model, plans)
    console.print(str(model.extrapolation()))
    console.print(f"Results in {out}/: {', '.join(FILES)}")
    if _contradicted(model):
        console.print(
            "The log contradicts the model, so expected_cost in assignments.csv and share_realized "
            "in moves.csv are empty."
        )
    if summary["next"] is not None:
        console.print(f"Go on with: {summary['next']}")


def _print_plans(console: Console, model: ChoiceClustering, plans: list[Any]) -> None:
    """Print what each plan costs and saves, what that rests on, and which one is recommended."""
    decision = model.decision_
    assert decision is not None
    table = RichTable(box=None, pad_edge=False)
    heads = ("plan", "cost per entity", "rests on", "rows that count", "saves against today")
    for name in heads:
        table.add_column(name, justify="left" if name == "plan" else "right", no_wrap=True)
    today = plans[0].expected.value
    for row in plans:
        saved = "" if row is plans[0] else _saved(row.saving, today)
        rows = f"{row.effective_rows:.0f}" if row.basis == Evidence.SEEN else "-"
        mark = " *" if row.name == decision.name else ""
        table.add_row(row.name + mark, _interval(row.expected), RESTS_ON[row.basis], rows, saved)
    console.print(table)
    console.print(f"* Recommended: {decision.name}. Why: {decision.reason}.")
    for doubt in decision.doubts:
        console.print(f"Caution: {doubt}")
    for note in decision.notes:
        console.print(f"Note: {note}")
    chosen = next(row for row in plans if row.name == decision.name)
    ignored = next(row for row in plans if row.name == PlanName.IGNORED)
    if chosen.basis == ignored.basis == Evidence.MODEL:
        against = _saved(chosen.saving_if_ignored, ignored.direct.value)
        console.print(f"Against ignoring autonomy it saves {against}.")
    nearest = next(row for row in plans if row.name == PlanName.NEAREST)
    good = nearest.basis == Evidence.SEEN and nearest.saving.value > 0
    if chosen is not nearest and chosen is not plans[0] and good:
        console.print(
            "Always prescribing the nearest of today's centres would save "
            f"{_saved(nearest.saving, today)} already."
        )
    for row in plans:
        found = row.diagnostics
        if found is not None and row is not plans[0] and row.name == decision.name:
            console.print(f"Weights: {str(found).splitlines()[0]}")
            for sentence in weight_cautions(found):
                console.print(f"Caution: {sentence}")


def _interval(estimate: Any) -> str:
    if np.isnan(estimate.value):
        return "-"
    if np.isnan(estimate.low):
        return f"{estimate.value:.3g}, no interval"
    return f"{estimate.value:.4g} ({estimate.low:.4g} to {estimate.high:.4g})"


def _saved(saving: Any, of: float) -> str:
    if not of > 0 or np.isnan(saving.value):
        return "-"
    value, low, high = (100 * v / of for v in saving)
    if np.isnan(low):
        return "not known"
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"
