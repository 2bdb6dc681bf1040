"""``volition estimate``: from a log of choices to a model of them, new centres, and their worth."""

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
from volition.choices import AWAY, STAY, calibration, check_family, coefficients, parameters
from volition.cli_output import Out, Overwrite
from volition.costs import resolve_cost
from volition.learners import ChoiceClustering
from volition.outputs import check_writable, output_folder, write_csv
from volition.persistence import save_autonomy
from volition.plotting.text import PLAIN, label, save_figure
from volition.problem import Problem
from volition.tables import Table, read_entities, read_log, read_table, write_placement

MODEL = "autonomy.safetensors"
#: what the command writes
FILES = (
    MODEL, "estimates.csv", "parameters.csv", "models.csv", "centers.csv", "moves.csv",
    "assignments.csv", "summary.json", "calibration.png", "worth.png", "map.png",
)  # fmt: skip


def estimate(
    log: Annotated[
        Path,
        typer.Option(
            help="Recorded choices: CSV or Parquet with columns entity, prescribed, realized "
            "[, cost, timestamp, propensity, layout]."
        ),
    ],
    entities: Annotated[Path, typer.Option(help="Table of entities, CSV or Parquet.")],
    centers: Annotated[
        Path,
        typer.Option(
            help="Table of the centres while the log was recorded, in order; with a column layout "
            "if there were several sets of them."
        ),
    ],
    columns: Annotated[
        str | None,
        typer.Option(help="Coordinates, as a,b,c. Default: the columns of --centers."),
    ] = None,
    covariates: Annotated[
        str | None,
        typer.Option(help="Further columns of --entities that may matter for choices, as a,b,c."),
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
    out: Out = Path("volition-estimate"),
    overwrite: Overwrite = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Bring a log, get the placement that you should have had, and what it will save.

    Fits how entities choose, places the centres anew, and says what that is worth against today's
    centres and against ignoring autonomy, with 95 % intervals. Writes autonomy.safetensors (for
    volition fit --autonomy), estimates.csv, parameters.csv, models.csv, centers.csv, moves.csv
    (today's centres beside the new ones, and the share that uses each), assignments.csv,
    summary.json, calibration.png, worth.png and map.png.
    """
    check_writable(out, FILES, overwrite)
    check_family(family)
    names = covariates.split(",") if covariates else []
    names = [name.strip() for name in names]
    layouts, columns = _centers(centers, columns)
    table = read_entities(entities, columns, weight, id_column, metric)
    Z = read_table(entities, names).values if names else None
    records, lines, unanswered = read_log(log)
    ids = [str(i) for i in range(len(table.values))] if table.ids is None else table.ids
    began = perf_counter()
    model = ChoiceClustering(layouts.shape[1], metric=metric, family=family, random_state=seed)
    Y = layouts[0] if len(layouts) == 1 else layouts
    with _working(quiet), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit_log(
                table.values, records, Y, sample_weight=table.weight, covariates=Z,
                entity_ids=ids, lines=lines,
            )  # fmt: skip
            worth = model.worth(propensity=records.get("propensity"))
        except ValueError as error:
            raise ValueError(f"{log}: {error}") from None
    summary = _summary(model, table, names, log.name, worth, perf_counter() - began, seed)
    options = {"--columns": columns, "--metric": metric, "--id": id_column, "--weight": weight}
    told = "".join(f" {name} {value}" for name, value in options.items() if value is not None)
    summary["next"] = (
        f"volition fit {entities} --clusters {model.n_clusters} --autonomy {out / MODEL}{told}"
    )
    summary["unanswered"] = unanswered
    with output_folder(out, FILES, overwrite) as folder:
        _write(model, table, names, worth, summary, folder)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.width = max(console.width, 112)  # the table is of no use cut off
    _print(console, model, worth, summary, out)
    for sentence in dict.fromkeys(str(w.message) for w in caught):
        console.print(f"Note: {sentence}")


def _centers(path: Path, columns: str | None) -> tuple[np.ndarray, str]:
    """Return sets of centres (L, K, d), and the columns that they are in."""
    header = read_table(path)
    shares = ("cluster", "layout", "share_prescribed", "share_realized")
    named = [name.strip() for name in columns.split(",")] if columns else None
    names = named or [name for name in header.columns if name not in shares]
    for name in names:
        if name not in header.columns:
            raise ValueError(f"{path} has no column '{name}'; it has {', '.join(header.columns)}.")
    Y = read_table(path, names).values
    if "layout" not in header.columns:
        return Y[None], ",".join(names)
    numbers = read_table(path, ["layout"]).values[:, 0]
    sets = [Y[numbers == number] for number in range(int(numbers.max()) + 1)]
    if len({len(one) for one in sets}) > 1 or 0 in {len(one) for one in sets}:
        raise ValueError(
            f"{path}: the column layout must number sets of equally many centres, 0, 1, ..."
        )
    return np.array(sets), ",".join(names)


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
    worth: list[Any],
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
        "metric": model.metric,
        "n_choices": fit.n_choices,
        "stay": list(fit.stay.terms),
        "away": list(fit.away.terms),
        "parameters": {p.name: list(p[1:]) for p in parameters(fit)},
        "worth": {row.name: dict(zip(row._fields[1:], row[1:], strict=True)) for row in worth},
        "reach": model.reach()._asdict(),
        "seconds": round(seconds, 3),
        "seed": seed,
    }


def _write(
    model: ChoiceClustering,
    table: Table,
    covariates: list[str],
    worth: list[Any],
    summary: dict[str, Any],
    folder: Path,
) -> None:
    fit = model.fit_
    assert fit is not None
    used = covariates if fit.model.covariates is not None else []
    metric = str(model.metric)
    save_autonomy(fit.model, folder / MODEL, covariates=used, columns=table.columns, metric=metric)
    flat = [row.as_dict() for row in worth]
    write_csv(
        folder / "estimates.csv",
        list(flat[0]),
        ([v if name == "option" else _cell(v) for name, v in row.items()] for row in flat),
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
    write_placement(folder, table, model.cluster_centers_, model.labels_, model.expected_costs())
    _write_moves(model, table, folder)
    text = json.dumps(_json(summary), indent=2, allow_nan=False)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
    import matplotlib

    matplotlib.use("Agg")
    from volition.plotting import plot_calibration, plot_relocation, plot_worth

    bins = calibration(fit, model._X, model.choices_, model._cost)
    axes = plot_calibration(bins)
    title = f"{label(summary['source'])}: {summary['n_choices']} choices"
    axes[0].figure.suptitle(title, **PLAIN)
    save_figure(axes[0].figure, folder / "calibration.png")
    unit = {"haversine": "km", "sqhaversine": "km²"}.get(str(model.metric), "")
    ax = plot_worth(worth, unit=unit)
    save_figure(ax.figure, folder / "worth.png")
    ax = plot_relocation(
        table.values, model.choices_.layouts[-1], model.cluster_centers_, model.labels_,
        names=table.columns, geographic="haversine" in metric,
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
    then = weight @ problem.conditional(Y, model.labels_) / weight.sum()
    write_csv(
        folder / "moves.csv",
        ["cluster", *(f"{name}_today" for name in table.columns), *table.columns,
         "share_realized_today", "share_prescribed", "share_realized"],
        ([k, *map(float, (*today[k], *Y[k])), *map(_cell, (used[k], prescribed[k], then[k]))]
         for k in range(K)),
    )  # fmt: skip


def _json(value: Any) -> Any:
    """Return what JSON can hold: null for what is not a number, or is without end."""
    if isinstance(value, dict):
        return {name: _json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value


def _cell(value: float) -> float:
    return float(f"{float(value):.6g}")


def _print(
    console: Console,
    model: ChoiceClustering,
    worth: list[Any],
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
        console.print(f"{summary['unanswered']} rows without a realised cluster were left out.")
    stay = [STAY[term] for term in fit.stay.terms if term != "constant"]
    console.print(f"Whether they obey depends on: {'; '.join(stay) or 'nothing that was offered'}.")
    away = [AWAY[term] for term in fit.away.terms]
    console.print(f"Where they go if not depends on: {'; '.join(away) or 'nothing, any will do'}.")
    for p in parameters(fit):
        console.print(f"  {p.name} = {p.value:.4g}, between {p.low:.4g} and {p.high:.4g} (95 %)")
    table = RichTable(box=None, pad_edge=False)
    heads = ("option", "cost per entity", "doubly robust", "rows that count", "saves against today")
    for name in heads:
        table.add_column(name, justify="left" if name == "option" else "right", no_wrap=True)
    today = worth[0].direct.value
    for row in worth:
        saved = "" if row is worth[0] else _saved(row.saving, today)
        rows = f"{row.effective_rows:.0f}"
        table.add_row(row.name, _interval(row.direct), _interval(row.robust), rows, saved)
    console.print(table)
    last = worth[-1]
    ignored = next(row for row in worth if row.name == "autonomy ignored")
    console.print(
        f"Against ignoring autonomy: {_saved(last.saving_if_ignored, ignored.direct.value)}."
    )
    nearest = next(row for row in worth if row.name.endswith("nearest prescribed"))
    if today > 0 and nearest.direct.value > 0:
        console.print(
            f"Of this, always prescribing the nearest of today's centres would save "
            f"{100 * (1 - nearest.direct.value / today):.1f} % already; the rest is "
            f"{100 * (1 - last.direct.value / nearest.direct.value):.1f} % less than that."
        )
    console.print(str(model.reach()))
    console.print(f"Results in {out}/: {', '.join(FILES)}")
    console.print(f"Go on with: {summary['next']}")


def _interval(estimate: Any) -> str:
    half = estimate.high - estimate.value
    return "-" if np.isnan(half) else f"{estimate.value:.4g} ± {half:.2g}"


def _saved(saving: Any, of: float) -> str:
    if not of > 0 or np.isnan(saving.value):
        return "-"
    value, low, high = (100 * v / of for v in saving)
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"
