"""``volition learn``: learn from a simulated population or a log, and keep what was learned."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

import volition
from volition.cli.options import NumberedFrom, SkipUnknown
from volition.cli.output import Out, Overwrite
from volition.cli.terminal import make_console
from volition.core.autonomy import Autonomy, DistanceAutonomy, FixedAutonomy, Passive
from volition.core.costs import cost_unit_name
from volition.core.messages import printable
from volition.core.outliers import OutlierWarning, warn_of_outliers
from volition.datasets import load_four_groups, make_city
from volition.estimators import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    Learner,
    TabularClustering,
)
from volition.io.files import reason_of, sweep
from volition.io.logs import read_logged
from volition.io.records import unanswered_note
from volition.io.results import check_writable, output_folder, plain_json, write_csv
from volition.io.tables import (
    Table,
    read_entities,
    read_matrix,
    write_placement,
)
from volition.learning.trial import PLAIN as PLAIN_PLAN
from volition.metrics import distortion
from volition.plotting.text import PLAIN, label, save_figure
from volition.populations import LoggedPopulation, SimulatedPopulation

STATE = "state.safetensors"
#: what the command writes, besides
FILES = (
    "centers.csv", "assignments.csv", "history.csv", "summary.json", "learning.png",
    "network.safetensors", "change-*.png",
)  # fmt: skip
SHAPE = ("kappa", "gamma", "zeta", "temperature")
#: why a fit ended, if Ctrl-C has ended it
CTRL_C = "ended by Ctrl-C"
AnyLearner = TabularClustering | ADENClustering | ChoiceClustering


@dataclass
class Source:
    """Who answers, and what is known about them."""

    population: Any
    table: Table
    metric: str
    name: str
    n_clusters: int | None = None
    #: known models by the interaction from which on they hold; empty for a log
    models: dict[int, Autonomy] = field(default_factory=dict)
    #: what the user should know about the files
    notes: list[str] = field(default_factory=list)
    center_names: list[str] | None = None


def learn(
    population: Annotated[
        Path | None,
        typer.Option(help="Simulated population: a TOML file, see the README. Or --log."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            help="Recorded answers: CSV or Parquet with columns entity, prescribed, realized "
            "[, cost, timestamp]. Clusters are numbers, or names of the centres; realized is empty "
            "or -1 where no answer came. Needs --entities and --centers."
        ),
    ] = None,
    clusters: Annotated[
        int | None, typer.Option("--clusters", "-k", help="Number of centres K.")
    ] = None,
    entities: Annotated[
        Path | None, typer.Option(help="With --log: table of entities: CSV, Parquet or GeoJSON.")
    ] = None,
    centers: Annotated[
        Path | None,
        typer.Option(
            help="With --log: table of the centres while it was recorded. A column cluster says "
            "which is which (0 to K-1, 1 to K, or names), else rows count in their order; a column "
            "name or site names them."
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="With --log: coordinates, as a,b,c. Default: the columns of --centers."),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option("--id", help="With --log: column that names the entities. Default: 0, 1, ..."),
    ] = None,
    metric: Annotated[str, typer.Option(help="With --log: cost.")] = "sqeuclidean",
    tolerance: Annotated[
        float, typer.Option(help="With --log: share by which its costs may be off the geometry's.")
    ] = 1e-4,
    numbered_from: NumberedFrom = None,
    skip_unknown: SkipUnknown = False,
    learner: Annotated[
        str | None,
        typer.Option(
            help="choice (default): a model of choices, which may depend on where the centres "
            "stand. tabular (default with --log, --forgetting or --estimate costs): a table per "
            "entity, for behaviour that does not depend on the centres. aden: a network that "
            "learns from costs alone."
        ),
    ] = None,
    interactions: Annotated[
        int | None,
        typer.Option(
            help="Questions to ask at most. Default: as many as it takes, up to 50,000; tabular: "
            "100 per entity and centre; aden: up to 100,000 (a million where costs are negative)."
        ),
    ] = None,
    estimate: Annotated[
        str, typer.Option(help="Table kept per entity: choices, or costs as in the paper.")
    ] = "choices",
    tol: Annotated[
        float | None,
        typer.Option(
            help="Stop once centres improve by less than this share (default 0.001); tabular: once "
            "not knowing more is believed to cost less (default 0.003)."
        ),
    ] = None,
    exploration: Annotated[
        float | None,
        typer.Option(
            help="Share of blind prescriptions. Default: 0.3; tabular: 0.1; aden has its own, 0.3."
        ),
    ] = None,
    network: Annotated[
        Path | None,
        typer.Option(help="aden: network.safetensors of another run, to start from."),
    ] = None,
    forgetting: Annotated[
        float, typer.Option(help="One over the answers after which an answer's weight is 1/e.")
    ] = 0.0,
    resume: Annotated[
        bool, typer.Option("--resume", help=f"Go on from {STATE} in the output folder.")
    ] = False,
    out: Out = Path("volition-learned"),
    overwrite: Overwrite = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No live display.")] = False,
) -> None:
    """Learn centres and prescriptions from answers, when nobody knows how entities override.

    Ctrl-C ends it early and keeps what was learned. Writes centers.csv, assignments.csv,
    history.csv, summary.json, learning.png, one change-N.png per change of behaviour,
    state.safetensors, from which --resume goes on, and with --learner aden network.safetensors.
    """
    if (population is None) == (log is None):
        raise ValueError("Give --population FILE.toml or --log FILE.csv, one of the two.")
    if resume and overwrite:
        raise ValueError("--resume keeps an earlier run and --overwrite does not: say one of them.")
    if learner is None:
        for_tables = log is not None or estimate != "choices" or forgetting > 0
        learner = "tabular" if for_tables else "choice"
    instead = f"--resume goes on from {STATE}, " if os.path.isfile(out / STATE) else ""
    check_writable(out, (STATE, *FILES), overwrite or resume, instead)
    if log is not None and learner in ("choice", "aden"):
        raise ValueError(
            f"--learner {learner} asks how entities respond when centres move, which a log does "
            "not tell; use --learner tabular with --log, or volition estimate."
        )
    if network is not None and learner != "aden":
        raise ValueError("--network belongs to --learner aden.")
    if log is not None:
        source = _logged(
            log, entities, centers, columns, id_column, metric,
            tolerance=tolerance, numbered_from=numbered_from, skip_unknown=skip_unknown,
        )  # fmt: skip
    else:
        given = {
            "--entities": entities,
            "--centers": centers,
            "--columns": columns,
            "--id": id_column,
            "--metric": None if metric == "sqeuclidean" else metric,
            "--tolerance": None if tolerance == 1e-4 else tolerance,
            "--numbered-from": numbered_from,
            "--skip-unknown": skip_unknown or None,
        }
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} belongs to --log; a population's file says it itself.")
        source = read_population(population, seed)  # type: ignore[arg-type]
    K = source.n_clusters if clusters is None else clusters
    if K is None:
        raise ValueError("--clusters is needed: the number of centres.")
    if source.n_clusters not in (None, K):
        raise ValueError(f"--clusters {K}, but there are {source.n_clusters} centres in the files.")
    options = {"estimate": estimate, "exploration": exploration, "forgetting": forgetting}
    model = _learner(learner, K, source, interactions, tol, seed, network, options)
    if resume and not (out / STATE).is_file():
        raise ValueError(f"There is no {out / STATE} to resume from.")
    console = make_console()
    if learner == "tabular":
        _note_assumption(console, source)
    began = perf_counter()
    failure: Exception | None = None
    with (
        _folder_for_state(out),
        _display(quiet, model) as update,
        stopped_by_ctrl_c() as stopped,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        warn_of_outliers(source.table.values, source.table.weight, source.table.columns)
        warnings.simplefilter("ignore", OutlierWarning)  # said, with the names of the columns
        try:
            model.fit(
                source.table.values,
                population=source.population,
                sample_weight=source.table.weight,
                checkpoint=out / STATE,
                resume=resume,
                on_batch=lambda learner: update(learner) or (CTRL_C if stopped else None),
            )
        except RuntimeError as error:
            failure = error
            model.stop_reason_ = "failed"
        if not getattr(model, "n_answers_", 0):
            raise ValueError(failure or "Stopped before the first answer; nothing was learned.")
    summary = _summary(model, source, perf_counter() - began, seed)
    with output_folder(out, FILES) as folder:
        _write(model, source, summary, folder)
    _print(console, model, summary, out)
    for note in dict.fromkeys([*source.notes, *(str(warning.message) for warning in caught)]):
        console.print(f"Note: {note}")
    if failure is not None:
        raise ValueError(f"{failure} Results so far are in {out}/.")


def _learner(
    name: str,
    K: int,
    source: Source,
    interactions: int | None,
    tol: float | None,
    seed: int,
    network: Path | None,
    options: dict[str, Any],
) -> AnyLearner:
    common: dict[str, Any] = {
        "metric": source.metric,
        "n_interactions": "auto" if interactions is None else interactions,
        "random_state": seed,
    }
    if tol is not None:
        common["tol"] = tol
    if name == "tabular":
        given = {key: value for key, value in options.items() if value is not None}
        return TabularClustering(K, **common, **given)
    if name not in ("choice", "aden"):
        raise ValueError(f"--learner must be tabular, choice or aden, got {name!r}.")
    defaults = {"estimate": "choices", "exploration": None, "forgetting": 0.0}
    exploration = options["exploration"]
    for option, value in options.items():
        if value != defaults[option] and (option, name) != ("exploration", "choice"):
            others = " or choice" if option == "exploration" else ""
            raise ValueError(f"--{option} belongs to --learner tabular{others}.")
    if name == "choice":
        given = {} if exploration is None else {"exploration": exploration}
        return ChoiceClustering(K, **common, **given)
    return ADENClustering(K, network=network, **common)


def _note_assumption(console: Console, source: Source) -> None:
    moving = [m for m in source.models.values() if m.depends_on_centers]
    if moving:
        console.print(
            f"Note: {moving[0]!r} depends on where the centres stand, and a table per entity "
            "assumes that it does not. If the first answers show it, --learner choice takes over."
        )


# -- who answers ----------------------------------------------------------------------------------


def read_population(path: Path, seed: int) -> Source:
    """Read a simulated population from a TOML file."""
    if not path.is_file():
        raise ValueError(f"No such file: {path}.")
    try:
        spec = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}.") from None
    _known(spec, {"entities", "autonomy", "answers", "changes"}, path, "top level")
    people = spec.get("entities", {})
    _known(
        people, {"file", "dataset", "n", "columns", "weight", "id", "metric"}, path, "[entities]"
    )
    metric = people.get("metric", "sqeuclidean")
    table = _people(people, metric, path)
    answers = spec.get("answers", {})
    _known(answers, {"missing"}, path, "[answers]")
    models = {0: _model(spec.get("autonomy", {}), path, "[autonomy]")}
    changes = spec.get("changes", [])
    if not isinstance(changes, list) or not all(isinstance(change, dict) for change in changes):
        raise ValueError(f"{path}: changes must be tables, each under a line [[changes]].")
    for number, change in enumerate(changes):
        where = f"[[changes]] number {number + 1}"
        if not isinstance(change.get("at"), int):
            raise ValueError(f"{path}, {where}: 'at' must be the interaction, a whole number.")
        model = {name: value for name, value in change.items() if name != "at"}
        models[change["at"]] = _model(model, path, where)
    try:
        population = SimulatedPopulation(
            table.values,
            models[0],
            metric=metric,
            missing=answers.get("missing", 0.0),
            changes={at: model for at, model in models.items() if at},
            random_state=seed + 1,
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    sizes = {m.n_clusters for m in models.values() if isinstance(m, FixedAutonomy)}
    if len(sizes) > 1:
        raise ValueError(f"{path}: the autonomy matrices differ in size: {sorted(sizes)}.")
    K = sizes.pop() if sizes else None
    return Source(population, table, metric, path.name, K, models, notes=table.notes)


def _known(table: Any, allowed: set[str], path: Path, where: str) -> None:
    if not isinstance(table, dict):
        raise ValueError(f"{path}, {where} must be a table.")
    for name in table:
        if name not in allowed:
            raise ValueError(
                f"{path}, {where}: unknown key '{name}'; allowed: {', '.join(sorted(allowed))}."
            )


def _people(spec: dict[str, Any], metric: str, path: Path) -> Table:
    if ("file" in spec) == ("dataset" in spec):
        raise ValueError(f"{path}, [entities]: give 'file' or 'dataset', one of the two.")
    for name in ("file", "dataset", "weight", "id", "metric"):
        if not isinstance(spec.get(name, ""), str):
            raise ValueError(f"{path}, [entities]: {name} must be a text, got {spec[name]!r}.")
    if not isinstance(spec.get("n", 1), int) or spec.get("n", 1) < 1:
        raise ValueError(f"{path}, [entities]: n must be a whole number >= 1, got {spec['n']!r}.")
    if "file" in spec:
        columns = spec.get("columns")
        names = ",".join(columns) if isinstance(columns, list) else columns
        file = path.parent / spec["file"]
        return read_entities(file, names, spec.get("weight"), spec.get("id"), metric)
    name = spec["dataset"]
    if name == "four_groups":
        return Table(["x", "y"], load_four_groups().data, None, None)
    if name == "city":
        return Table(["x", "y"], make_city(int(spec.get("n", 2000)), random_state=0), None, None)
    raise ValueError(f"{path}, [entities]: dataset must be 'four_groups' or 'city', got {name!r}.")


def _model(spec: dict[str, Any], path: Path, where: str) -> Autonomy:
    _known(spec, {*SHAPE, "matrix"}, path, where)
    try:
        if "matrix" in spec:
            if len(spec) > 1:
                raise ValueError("give 'matrix' or 'kappa', not both.")
            matrix = spec["matrix"]
            file = isinstance(matrix, str)
            return FixedAutonomy(read_matrix(path.parent / matrix) if file else matrix)
        if not spec:
            return Passive()
        if "kappa" not in spec:
            raise ValueError(f"'{next(iter(spec))}' needs 'kappa', the probability to override.")
        return DistanceAutonomy(**spec)
    except ValueError as error:
        raise ValueError(f"{path}, {where}: {error}") from None


def _logged(
    log: Path,
    entities: Path | None,
    centers: Path | None,
    columns: str | None,
    id_column: str | None,
    metric: str,
    **options: Any,
) -> Source:
    """Read a log and its files; ``options`` as in `LoggedPopulation`."""
    if entities is None or centers is None:
        raise ValueError("--log needs --entities FILE and --centers FILE.")
    files = read_logged(log, entities, centers, columns, None, id_column, metric)
    if len(files.centers.layouts) > 1:
        raise ValueError(
            f"{centers} has {len(files.centers.layouts)} sets of centres; learning from a log "
            "takes one, volition estimate takes several."
        )
    notes = list(files.table.notes)
    if files.log.unanswered:
        notes.append(unanswered_note(files.log.unanswered))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            people = LoggedPopulation(
                files.log.columns, files.table.values, files.centers.layouts[0],
                entity_ids=files.ids, metric=metric, lines=files.log.lines,
                center_names=files.centers.names, **options,
            )  # fmt: skip
        except ValueError as error:
            raise ValueError(f"{log}: {error}") from None
    notes += [str(warning.message) for warning in caught]
    return Source(
        people, files.table, metric, log.name, len(people.centers), {}, notes, people.center_names
    )


@contextmanager
def _folder_for_state(folder: Path) -> Iterator[None]:
    """Make the folder that checkpoints go to; take it away again if nothing came of it."""
    made = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"The output folder {folder} cannot be written: {reason_of(error)}."
        ) from None
    sweep(folder)
    try:
        yield
    except BaseException:
        for empty in made:
            if not any(empty.iterdir()):
                empty.rmdir()
        raise


# -- while it runs --------------------------------------------------------------------------------


@contextmanager
def _display(quiet: bool, model: AnyLearner) -> Iterator[Any]:
    """Give a function that shows where a learner has got to."""
    shown = Console(stderr=True)
    if quiet or not sys.stderr.isatty():
        yield lambda learner: None
        return
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=shown
    )
    with progress:
        task = progress.add_task("asking", total=None)

        def update(learner: Learner) -> None:
            estimate = learner.distortion_estimate()
            seen = "" if np.isnan(estimate.value) else f", distortion {_interval(estimate)}"
            changes = f", {len(learner.changes_)} changes" if learner.changes_ else ""
            progress.update(
                task,
                description=f"beta {model.beta_:.3g}, {learner.n_interactions_} interactions"
                f"{seen}{changes}",
                completed=learner.n_interactions_,
                total=learner.most_interactions_,
            )

        yield update


@contextmanager
def stopped_by_ctrl_c() -> Iterator[list[bool]]:
    """Let Ctrl-C end a fit after the batch in hand; a second one ends it at once."""
    stopped: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(number: int, frame: Any) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(True)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def _interval(estimate: Any) -> str:
    return f"{estimate.value:.4g} ± {estimate.high - estimate.value:.2g}"


# -- results --------------------------------------------------------------------------------------


def _summary(model: AnyLearner, source: Source, seconds: float, seed: int) -> dict[str, Any]:
    estimate = model.distortion_estimate()
    summary: dict[str, Any] = {
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
    }
    late = [at for at in sorted(source.models) if at >= max(1, model.n_interactions_)]
    summary["changes_not_reached"] = late
    if source.models:
        past = [at for at in sorted(source.models) if at < max(1, model.n_interactions_)]
        truth = source.models[past[-1]]
        X, weight = source.table.values, source.table.weight
        known = {"metric": source.metric, "sample_weight": weight}
        summary["true_distortion"] = distortion(
            X, model.cluster_centers_, truth, model.labels_, **known
        )
        summary["optimum_for_known_p"] = [
            [at, _optimum(source.models[at], source, model.n_clusters)] for at in past
        ]
        best = summary["optimum_for_known_p"][-1][1]
        summary["gap_percent"] = 100 * (summary["true_distortion"] / best - 1) if best else None
    return summary


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
        K, autonomy=autonomy, metric=source.metric, random_state=0, time_budget=30
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutlierWarning)  # said before
        best.fit(source.table.values, sample_weight=source.table.weight)
    return float(best.distortion_)


def _write(model: AnyLearner, source: Source, summary: dict[str, Any], folder: Path) -> None:
    table = source.table
    write_placement(
        folder, table, model.cluster_centers_, model.labels_, model.expected_costs(),
        source.center_names,
    )  # fmt: skip
    write_csv(
        folder / "history.csv",
        list(model.history_[0]._fields),
        (list(line) for line in model.history_),
    )
    if isinstance(model, ADENClustering) and model.network_ is not None:
        model.save_network(folder / "network.safetensors")
    text = json.dumps(plain_json(summary), indent=2, allow_nan=False)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
    import matplotlib

    matplotlib.use("Agg")
    from volition.plotting import plot_change, plot_learning

    ax = plot_learning(model, optimum=summary.get("optimum_for_known_p"))
    unit = printable(summary["cost_unit"])
    ax.set_ylabel(f"cost per entity ({unit})", **PLAIN)
    title = f"{label(source.name)}: {model.n_clusters} centres, {summary['n_answers']} answers"
    ax.set_title(title, **PLAIN)
    save_figure(ax.figure, folder / "learning.png")
    for number, change in enumerate(model.changes_, start=1):
        figure = plot_change(change, center_names=source.center_names)
        save_figure(figure, folder / f"change-{number}.png")


def _print(console: Console, model: AnyLearner, summary: dict[str, Any], out: Path) -> None:
    early = (
        " Ended early by Ctrl-C; what was learned is kept."
        if model.stop_reason_ == CTRL_C
        else f" Ended: {model.stop_reason_}."
    )
    console.print(
        f"{summary['n_entities']} entities ({', '.join(summary['columns'])}), "
        f"{summary['n_clusters']} centres: {summary['n_interactions']} prescriptions, "
        f"{summary['n_answers']} answers; {summary['seconds']:.1f} s.{early}"
    )
    table = RichTable(box=None, pad_edge=False)
    unit = f" ({summary['cost_unit']})" if summary["cost_unit"] else ""
    table.add_column(f"cost per entity{unit}")
    table.add_column("", justify="right")
    if model.kept_ != PLAIN_PLAN:
        table.add_row("by what was learned", f"{summary['distortion_learned']:.6g}")
    estimate = model.distortion_estimate()
    if estimate.n_answers > 1 and not np.isnan(estimate.value):
        what = "k-means, nearest prescribed, by" if model.kept_ == PLAIN_PLAN else "by"
        table.add_row(f"{what} {estimate.n_answers} answers", _interval(estimate))
    for one in model.tried_:
        if one.name != model.kept_ and not np.isnan(one.estimate.value):
            shown = "k-means, nearest prescribed" if one.name == PLAIN_PLAN else "learned plan"
            name = f"not kept: {shown}, {one.estimate.n_answers} answers"
            table.add_row(name, _interval(one.estimate))
    if "true_distortion" in summary:
        table.add_row("in truth (simulated)", f"{summary['true_distortion']:.6g}")
        best = summary["optimum_for_known_p"][-1][1]
        gap = summary["gap_percent"]
        shown = "" if gap is None else f" (gap {gap:.2f} %)"
        table.add_row("optimum for known p", f"{best:.6g}{shown}")
    console.print(table)
    if summary["expected_regret"] is not None:
        most = max(100 * summary["expected_regret"], 0.01)
        console.print(
            "If behaviour does not depend on where the centres stand, not knowing each entity "
            f"better is believed to cost {most:.2g} % at most."
        )
    for change in model.changes_:
        console.print(
            f"At interaction {change.n_interactions} a change was noticed: {change.what}, "
            f"{change.before:.2f} to {change.after:.2f}."
        )
    for at in summary["changes_not_reached"]:
        console.print(
            f"The simulated change at interaction {at} was not reached: try --tol 0 and more "
            "--interactions."
        )
    files = "centers.csv, assignments.csv, history.csv, summary.json, learning.png"
    pictures = "".join(f", change-{n + 1}.png" for n in range(len(model.changes_)))
    network = ", network.safetensors" if (out / "network.safetensors").exists() else ""
    console.print(f"Results in {out}/: {files}{pictures}{network}, {STATE}")
