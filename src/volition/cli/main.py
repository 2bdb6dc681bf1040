"""The command line: ``volition demo``, ``fit``, ``phase``, ``learn``, ``estimate``, and more."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table as RichTable
from sklearn.base import clone

import volition
from volition.annealing.anneal import Record
from volition.annealing.n_clusters import Persistence, Suggestion, suggest_n_clusters
from volition.choices import ChoiceAutonomy
from volition.choices.coding import Coding
from volition.cli.estimate import estimate
from volition.cli.learn import learn
from volition.cli.output import STOPPED, Out, Overwrite, StopCallback, stoppable
from volition.cli.reproduce import reproduce
from volition.cli.terminal import make_console
from volition.core.autonomy import Autonomy, DistanceAutonomy, FixedAutonomy, Passive
from volition.core.costs import METRICS, cost_unit_name, resolve_cost
from volition.core.deadline import NEVER, Deadline
from volition.core.messages import printable
from volition.core.outliers import OutlierWarning, warn_of_outliers
from volition.core.problem import Problem
from volition.datasets import load_four_groups
from volition.estimators import AutonomyAwareClustering
from volition.io.models import read_autonomy, save_model
from volition.io.results import check_writable, finished, output_folder, write_csv
from volition.io.tables import Table, read_covariates, read_entities, read_matrix
from volition.metrics import distortion
from volition.plotting.text import PLAIN, label, save_figure
from volition.solvers import Status

#: what commands write
FIT_FILES = ("centers.csv", "assignments.csv", "summary.json", "clusters.png", "model.safetensors")
PHASE_FILES = ("persistence.csv", "path.csv", "summary.json", "phase.png", "annealing.gif")
#: exit code after Ctrl-C
INTERRUPTED = 130
DEMO = "the four groups of the paper's figure 1"

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Autonomy-aware clustering: place centres, and tell entities that may override you which "
    "one to use.",
)


def _version(value: bool) -> None:
    if value:
        print(f"volition {volition.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


@app.command()
def demo(
    out: Out = Path("volition-demo"),
    kappa: Annotated[float, typer.Option(help="How often entities override, 0 to 1.")] = 0.3,
    temperature: Annotated[
        float, typer.Option(help="How freely they choose: small = the nearest, large = any.")
    ] = 0.01,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Solve the paper's small data set: 1800 entities, 4 centres, 30 % of prescriptions ignored."""
    autonomy = DistanceAutonomy(kappa, temperature=temperature)
    check_writable(out, FIT_FILES, overwrite=_source_of(out) == DEMO)
    bunch = load_four_groups()
    table = Table(["x", "y"], bunch.data, None, None)
    model = AutonomyAwareClustering(4, autonomy=autonomy, random_state=seed)
    _run(model, table, out, quiet, source=DEMO)


def _source_of(folder: Path) -> Any:
    """Return what the results in a folder were made from; None if there are none."""
    try:
        return json.loads((folder / "summary.json").read_text(encoding="utf-8"))["source"]
    except (OSError, ValueError, LookupError, TypeError):
        return None


File = Annotated[
    Path,
    typer.Argument(help="Table of entities: CSV with a header, Parquet, or points in GeoJSON."),
]
Columns = Annotated[
    str | None,
    typer.Option(help="Columns with the entities' coordinates, as a,b,c. Default: all."),
]
Weight = Annotated[str | None, typer.Option(help="Column with the entities' weights.")]
Kappa = Annotated[
    float | None,
    typer.Option(help="Probability that an entity overrides its prescription, 0 to 1."),
]
Gamma = Annotated[
    float | None,
    typer.Option(help="When overriding: weight of the distance entity to alternative [0]."),
]
Zeta = Annotated[
    float | None,
    typer.Option(help="When overriding: weight of the distance prescribed to alternative [1]."),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        help="When overriding: small = the nearest alternative, large = any. In units of the "
        "cost (squared units of the columns, for the default metric) [1]."
    ),
]
Matrix = Annotated[
    Path | None,
    typer.Option(
        help="Instead of kappa etc.: what volition estimate has learned (.safetensors), or a CSV "
        "without header, K rows of K probabilities; row j says where entities go that are "
        "prescribed j."
    ),
]
Metric = Annotated[
    str,
    typer.Option(
        help=f"Cost: {', '.join(METRICS)}. The last two take columns latitude,longitude in "
        "degrees and give kilometres, or kilometres squared."
    ),
]


@app.command()
def fit(
    file: File,
    clusters: Annotated[int, typer.Option("--clusters", "-k", help="Number of centres K.")],
    columns: Columns = None,
    weight: Weight = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="Column that names the entities in the results.")
    ] = None,
    kappa: Kappa = None,
    gamma: Gamma = None,
    zeta: Zeta = None,
    temperature: Temperature = None,
    autonomy: Matrix = None,
    metric: Metric = "sqeuclidean",
    solver: Annotated[str, typer.Option(help="auto, fixed_point, armijo or gradient.")] = "auto",
    time_budget: Annotated[
        float | None,
        typer.Option(
            help="Seconds for everything but writing the results; then the best so far is kept. "
            "Of what reading leaves, 60 % are for the fit, the rest for the same fit as if all "
            "entities obeyed."
        ),
    ] = None,
    out: Out = Path("volition-results"),
    overwrite: Overwrite = False,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Place K centres and prescribe one to every entity of a table.

    Writes centers.csv, assignments.csv, summary.json, clusters.png and model.safetensors, and says
    what ignoring autonomy would have cost: centres found by the same solver as if all entities
    obeyed, numbered by position, each entity prescribed its nearest, judged with autonomy.
    Ctrl-C ends it early and writes the best so far; a second Ctrl-C ends it at once.
    """
    if time_budget is not None and not time_budget > 0:
        raise ValueError(f"--time-budget must be a positive number of seconds, got {time_budget}.")
    deadline = Deadline.after(time_budget)
    check_writable(out, FIT_FILES, overwrite)
    chosen, columns = _autonomy(kappa, gamma, zeta, temperature, autonomy, file, columns, metric)
    table = read_entities(file, columns, weight, id_column, metric)
    model = AutonomyAwareClustering(
        clusters,
        autonomy=chosen,
        metric=metric,
        solver=solver,
        random_state=seed,
    )
    _run(model, table, out, quiet, source=str(file), deadline=deadline)


@app.command()
def phase(
    file: File,
    columns: Columns = None,
    weight: Weight = None,
    kappa: Kappa = None,
    gamma: Gamma = None,
    zeta: Zeta = None,
    temperature: Temperature = None,
    autonomy: Matrix = None,
    metric: Metric = "sqeuclidean",
    most: Annotated[
        int, typer.Option("--max-clusters", help="Largest number of clusters to look at.")
    ] = 32,
    movie: Annotated[
        bool, typer.Option("--animate", help="Also write the annealing as annealing.gif.")
    ] = False,
    out: Out = Path("volition-phase"),
    overwrite: Overwrite = False,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Show at which scales the entities split, and how many clusters there are.

    Prints how long, in log beta, each number of distinct centres persists, the longest first.
    Writes persistence.csv, path.csv (every beta), summary.json and phase.png. Ctrl-C ends it early
    and writes the path so far; a second Ctrl-C ends it at once.
    """
    if most < 1:
        raise ValueError(f"--max-clusters must be an integer >= 1, got {most}.")
    check_writable(out, PHASE_FILES, overwrite)
    chosen, columns = _autonomy(kappa, gamma, zeta, temperature, autonomy, file, columns, metric)
    table = read_entities(file, columns, weight, None, metric)
    console = make_console()
    shown = Console(stderr=True) if not quiet and sys.stderr.isatty() else Console(quiet=True)
    began = perf_counter()
    with shown.status("annealing") as status, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_outliers(table.values, table.weight, table.columns)
        warnings.simplefilter("ignore", OutlierWarning)  # said, with the names of the columns
        with stoppable() as stopped:

            def on_beta(record: Record, _: Any) -> bool:
                status.update(f"beta = {record.beta:.4g}, {record.n_distinct} distinct centres")
                return stopped()

            suggestion = suggest_n_clusters(
                table.values,
                autonomy=chosen,
                metric=metric,
                sample_weight=table.weight,
                n_max=most,
                random_state=seed,
                on_beta=on_beta,
            )
        summary = {
            "volition": volition.__version__,
            "source": str(file),
            "n_entities": len(table.values),
            "columns": table.columns,
            "metric": metric,
            "autonomy": repr(chosen),
            "status": _status(suggestion.path.status.value),
            "suggested": suggestion.n_clusters,
            "ranking": [p._asdict() for p in suggestion.ranking],
            "seconds": round(perf_counter() - began, 3),
            "seed": seed,
        }
        files = PHASE_FILES if movie else PHASE_FILES[:-1]
        with output_folder(out, PHASE_FILES, overwrite) as folder:
            _write_phase(suggestion, table, summary, folder)
            if movie:
                problem = _problem(suggestion, table, summary)
                animate = _plotting().animate
                animate(
                    problem,
                    suggestion.path,
                    folder / "annealing.gif",
                    names=table.columns,
                    on_frame=lambda i, n: status.update(f"frame {i + 1} of {n}"),
                )
    console.print(
        f"{summary['n_entities']} entities ({', '.join(table.columns)}), {summary['autonomy']}; "
        f"{summary['seconds']:.1f} s. The most persistent numbers of clusters (beta is one over a "
        f"cost, in {cost_unit_name(metric, table.columns)}):"
    )
    console.print(str(suggestion))
    for note in table.notes:
        console.print(f"Note: {note}")
    if summary["status"] == STOPPED:
        console.print(
            f"The annealing was {STOPPED}, up to beta = {suggestion.path.beta:.4g}; what splits "
            "later was not looked at."
        )
    console.print(f"Results in {out}/: {', '.join(files)}")
    for message in dict.fromkeys(str(w.message) for w in caught):
        console.print(f"Warning: {message}")


def _status(status: str) -> str:
    """Return how a fit ended; the only callback that can stop one here is Ctrl-C's."""
    return STOPPED if status == Status.STOPPED.value else status


def _plotting() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from volition import plotting

    return plotting


def _problem(suggestion: Suggestion, table: Table, summary: dict[str, Any]) -> Problem:
    return Problem(
        table.values, sample_weight=table.weight, cost=resolve_cost(summary["metric"])
    ).with_autonomy(suggestion.autonomy)


def _write_phase(
    suggestion: Suggestion, table: Table, summary: dict[str, Any], folder: Path
) -> None:
    write_csv(folder / "persistence.csv", list(Persistence._fields), map(list, suggestion.ranking))
    history = suggestion.path.history
    write_csv(folder / "path.csv", list(history[0]._fields), map(list, history))
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    problem = _problem(suggestion, table, summary)
    title = f"{Path(summary['source']).name}, {summary['autonomy']}"
    figure = _plotting().plot_phase(problem, suggestion.path, title)
    save_figure(figure, folder / "phase.png")


def _autonomy(
    kappa: float | None,
    gamma: float | None,
    zeta: float | None,
    temperature: float | None,
    file: Path | None,
    entities: Path,
    columns: str | None,
    metric: str,
) -> tuple[Autonomy, str | None]:
    """Return the model of autonomy, and the columns of the entities that it was learned with."""
    shape = {"gamma": gamma, "zeta": zeta, "temperature": temperature}
    given = {name: value for name, value in shape.items() if value is not None}
    if file is not None:
        if kappa is not None or given:
            raise ValueError("Give --autonomy or --kappa (with --gamma, --zeta, ...), not both.")
        if file.suffix != ".safetensors":
            return FixedAutonomy(read_matrix(file)), columns
        model, facts = read_autonomy(file)
        if facts.get("metric", metric) != metric:
            raise ValueError(
                f"{file} was learned with metric '{facts['metric']}'; say --metric "
                f"{facts['metric']}, not '{metric}'."
            )
        learned = ",".join(facts.get("columns") or [])
        if columns is not None and learned and columns.replace(" ", "") != learned:
            raise ValueError(f"{file} was learned with columns {learned}, not {columns}.")
        columns = columns or learned or None
        if facts.get("covariates") and isinstance(model, ChoiceAutonomy):
            known = read_covariates(entities, facts["covariates"])
            coding = Coding(tuple(facts["covariates"]), facts.get("levels") or {})
            model = model.for_entities(coding.apply(known, len(next(iter(known.values())))))
        return model, columns
    if kappa is None:
        if given:
            raise ValueError(f"--{next(iter(given))} needs --kappa, the probability to override.")
        return Passive(), columns
    return DistanceAutonomy(kappa, **given), columns


#: of the time that is left: what the fit may take, and what the fit that ignores autonomy may take
#: after it, before it is judged
FIT_SHARE, IGNORING_SHARE = 0.6, 0.85


def _seconds(deadline: Deadline, share: float) -> float | None:
    """Return a share of the time that is left as a fit's budget, which must be positive."""
    return max(share * deadline.left, 1e-3) if deadline.finite else None


def _callbacks(shown: str | None, console: Console, stopped: Callable[[], bool]) -> list[Any]:
    """Return what watches a fit: Ctrl-C, and a progress bar under a heading."""
    if shown is None:
        return [StopCallback(stopped)]
    from sklearn.callback import ProgressBar

    console.print(shown)
    return [ProgressBar(), StopCallback(stopped)]


def _from_better(
    model: AutonomyAwareClustering, centers: Any, X: Any, weight: Any, deadline: Deadline
) -> AutonomyAwareClustering:
    """Return the model that begins at other centres, if it ends better."""
    other = clone(model).set_params(init=centers, time_budget=_seconds(deadline, 1.0))
    other.fit(X, sample_weight=weight)
    return other if other.distortion_ < model.distortion_ else model


def _run(
    model: AutonomyAwareClustering,
    table: Table,
    out: Path,
    quiet: bool,
    source: str,
    deadline: Deadline = NEVER,
) -> None:
    X, weight = table.values, table.weight
    console = make_console()
    shows = not quiet and sys.stdout.isatty()
    began = perf_counter()
    model.time_budget = _seconds(deadline, FIT_SHARE)
    with warnings.catch_warnings(record=True) as caught, stoppable() as stopped:
        warnings.simplefilter("always")
        warn_of_outliers(X, weight, table.columns)
        warnings.simplefilter("ignore", OutlierWarning)  # said, with the names of the columns
        heading = "Placing the centres" if shows else None
        model.set_callbacks(*_callbacks(heading, console, stopped)).fit(X, sample_weight=weight)
        seconds = perf_counter() - began
        model.set_callbacks()
        ignoring = None
        if not stopped():
            ignoring = AutonomyAwareClustering(
                model.n_clusters,
                metric=model.metric,
                solver=model.solver,
                time_budget=_seconds(deadline, IGNORING_SHARE),
                random_state=model.random_state,
            )
            heading = "Placing them as if all entities obeyed, to compare" if shows else None
            ignoring.set_callbacks(*_callbacks(heading, console, stopped))
            ignoring.fit(X, sample_weight=weight).set_callbacks()
        if stopped():
            ignoring = None  # a search that was cut short would make autonomy look too good
    ignored = None
    if ignoring is not None:
        ignored = distortion(
            X,
            ignoring.cluster_centers_,
            model.autonomy,
            ignoring.labels_,
            metric=model.metric,
            sample_weight=weight,
        )
        if ignored < model.distortion_:
            # The search had too little time: go on from what is known to be better.
            model = _from_better(model, ignoring.cluster_centers_, X, weight, deadline)
    summary = _summary(model, table, source, seconds, ignored)
    if shows:
        console.print(f"Writing {len(X)} prescriptions to {out}/")
    with output_folder(out, FIT_FILES) as folder:
        _write_results(model, ignoring, table, summary, folder)
    _print(console, summary, out)
    for note in table.notes:
        console.print(f"Note: {note}")
    for message in dict.fromkeys(str(w.message) for w in caught):
        console.print(f"Warning: {message}")


def _summary(
    model: AutonomyAwareClustering, table: Table, source: str, seconds: float, ignored: float | None
) -> dict[str, Any]:
    comparable = ignored is not None and model.distortion_ > 0
    excess = 100 * (ignored / model.distortion_ - 1) if comparable else None  # type: ignore[operator]
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
        "status": _status(model.status_),
        "beta": model.beta_,
        "seconds": round(seconds, 3),
        "seed": model.random_state,
        "nearly_uniform_override": _nearly_uniform(model),
        "tried": [candidate._asdict() for candidate in model.candidates_],
    }


def _nearly_uniform(model: AutonomyAwareClustering) -> bool:
    """Whether the temperature drowns all differences between alternatives."""
    autonomy = model.autonomy
    if not isinstance(autonomy, DistanceAutonomy) or not autonomy.depends_on_centers:
        return False
    Y = torch.as_tensor(model.cluster_centers_)
    between = float(resolve_cost(model.metric).pairwise(Y, Y).max())
    return len(Y) > 2 and autonomy.temperature > 10 * between * max(autonomy.zeta, autonomy.gamma)


def _write_results(
    model: AutonomyAwareClustering,
    ignoring: AutonomyAwareClustering | None,
    table: Table,
    summary: dict[str, Any],
    folder: Path,
) -> None:
    X, K = table.values, model.n_clusters
    realized = model.predict_realized(X)
    weight = np.ones(len(X)) if table.weight is None else table.weight / table.weight.max()
    prescribed = np.bincount(model.labels_, weights=weight, minlength=K) / weight.sum()
    used = weight @ realized / weight.sum()
    write_csv(
        folder / "centers.csv",
        ["cluster", *table.columns, "share_prescribed", "share_realized"],
        (
            [k, *map(float, model.cluster_centers_[k]), float(prescribed[k]), float(used[k])]
            for k in range(K)
        ),
    )
    ids = range(len(X)) if table.ids is None else table.ids
    write_csv(
        folder / "assignments.csv",
        ["entity", "prescribed", "probability", *(f"realized_{k}" for k in range(K))],
        (
            [name, int(label), float(f"{policy[label]:.6g}"), *(float(f"{p:.6g}") for p in row)]
            for name, label, policy, row in zip(
                ids, model.labels_, model.policy_, realized, strict=True
            )
        ),
    )
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    model.feature_names_in_ = np.array(table.columns, dtype=object)
    save_model(model, folder / "model.safetensors")
    del model.feature_names_in_  # the arrays plotted below have no names
    if ignoring is None:
        display = _plotting().ClusteringDisplay
        figure = display.from_estimator(model, X, sample_weight=table.weight).figure_
    else:
        unit = cost_unit_name(model.metric, table.columns)
        caption = f"{summary['autonomy']}, K = {K}; distortion in {unit}"
        figure = _plotting().plot_comparison(
            model, ignoring, X, sample_weight=table.weight, caption=caption
        )
    for ax in figure.axes:
        names = table.columns if "haversine" not in model.metric else table.columns[::-1]
        if len(names) <= 2:
            ax.set_xlabel(label(names[0]), **PLAIN)
        if len(names) == 2:
            ax.set_ylabel(label(names[1]), **PLAIN)
    save_figure(figure, folder / "clusters.png", bbox_inches="tight")


def _print(console: Console, summary: dict[str, Any], out: Path) -> None:
    unit = cost_unit_name(summary["metric"], summary["columns"])
    unit = f" ({unit})" if unit else ""
    console.print(
        f"{summary['n_entities']} entities ({', '.join(summary['columns'])}), "
        f"{summary['n_clusters']} centres, {summary['autonomy']}; "
        f"{summary['seconds']:.1f} s, {summary['status']}."
    )
    if summary["nearly_uniform_override"]:
        console.print(
            "Note: the temperature is far above the costs between centres, so that overrides are "
            "nearly uniform, not to near centres."
        )
    table = RichTable(box=None, pad_edge=False)
    table.add_column("placement")
    table.add_column(f"cost per entity{unit}", justify="right")
    table.add_column("more than ours", justify="right")
    table.add_row("autonomy known", f"{summary['distortion']:.6g}", "")
    excess, ignored = (
        summary[name]
        for name in ("excess_cost_percent_if_ignored", "distortion_if_autonomy_is_ignored")
    )
    table.add_row(
        "autonomy ignored",
        "not known (Ctrl-C)" if ignored is None else f"{ignored:.6g}",
        "" if excess is None else f"{excess:+.2f} %",
    )
    console.print(table)
    console.print(f"Results in {out}/: {', '.join(FIT_FILES)}")


app.command()(learn)
app.command()(estimate)
app.command()(reproduce)


def main() -> None:
    """Run the command line; a bad input is one sentence and exit code 2."""
    finished.clear()
    try:
        app()
    except (ValueError, OSError) as error:
        message = " ".join(str(error).split())
        print(f"volition: {printable(message)}", file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # Others keep a state or a journal as they go, and a folder that is there may be theirs.
            whole = sys.argv[1:2] in (["demo"], ["fit"], ["phase"], ["estimate"])
            nothing = "; nothing was written" if whole and not finished else ""
            print(f"Stopped{nothing}.", file=sys.stderr)
        raise
