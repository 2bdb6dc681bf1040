"""What ``volition estimate`` does: fit how entities choose, search for a plan, judge all plans."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from volition.choices import PlanName, check_family, override_rates
from volition.choices.decision import instead_of_moving
from volition.cli.estimate.files import Estimated, summarize, write_results
from volition.cli.estimate.options import EstimateOptions
from volition.cli.estimate.printing import print_summary
from volition.cli.options import seconds_of
from volition.cli.outputs import ESTIMATE_AUTONOMY, ESTIMATE_FILES
from volition.cli.terminal import make_console
from volition.cli.warned import collected_warnings
from volition.core.costs import resolve_cost
from volition.core.messages import shortened
from volition.core.validation import FloatArray
from volition.estimators import ChoiceClustering
from volition.io.logs import LoggedFiles, read_logged
from volition.io.results import output_folder
from volition.io.tables import read_covariates

#: of the time that is left: what the search for centres may take, counted from the fit of the
#: model, and what the search for those that ignore autonomy may take after it
SEARCH_SHARE, IGNORING_SHARE = 0.6, 0.6
#: the table of plans is of no use cut off
NARROWEST = 130


def run_estimate(options: EstimateOptions, out: Path, overwrite: bool, quiet: bool) -> None:
    """Estimate from a log, write the results and print what came out."""
    check_family(options.family)
    files = read_logged(
        options.log, options.entities, options.centers, options.columns, options.weight,
        options.id_column, options.metric,
    )  # fmt: skip
    known = read_covariates(options.entities, options.covariates) if options.covariates else None
    began = perf_counter()
    with _working(quiet), collected_warnings(files.table) as caught:
        estimated = _estimate(options, files, known)
    summary = summarize(estimated, options.log.name, perf_counter() - began, options.seed)
    summary["next"] = _next_command(options, estimated, files, out)
    summary["unanswered"] = files.log.unanswered
    summary["overrides"] = _overrides(options, estimated, known)
    with output_folder(out, ESTIMATE_FILES, overwrite) as folder:
        write_results(estimated, summary, folder)
    console = make_console()
    console.width = max(console.width, NARROWEST)
    print_summary(console, estimated, summary, out)
    decided = summary["recommended"]
    said = {*decided["doubts"], *decided["notes"], instead_of_moving(decided["name"])}
    # What libraries say of their own arithmetic is no news to users.
    ours = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    for sentence in dict.fromkeys([*files.table.notes, *ours]):
        if sentence not in said:
            console.print(f"Note: {sentence}")


def _estimate(options: EstimateOptions, files: LoggedFiles, known: Any) -> Estimated:
    table, layouts = files.table, files.centers.layouts
    K, d = layouts.shape[1:]
    model = ChoiceClustering(
        K, metric=options.metric, family=options.family, random_state=options.seed
    )
    try:
        model.fit_log(
            table.values, files.log.columns, layouts[0] if len(layouts) == 1 else layouts,
            sample_weight=table.weight, covariates=known, entity_ids=files.ids,
            lines=files.log.lines, center_names=files.centers.names,
            numbered_from=options.numbered_from, skip_unknown=options.skip_unknown,
            tolerance=options.tolerance, region=_region(options.region, d),
            unanswered=files.log.unanswered,
            time_budget=seconds_of(options.deadline, SEARCH_SHARE),
        )  # fmt: skip
        seconds = seconds_of(options.deadline, IGNORING_SHARE)
        plans = model.compare_plans(time_budget=seconds)
    except ValueError as error:
        raise ValueError(f"{options.log}: {error}") from None
    return Estimated(model, table, model.covariate_names_ or options.covariates, plans)


def _region(text: str | None, d: int) -> FloatArray | None:
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


def _next_command(
    options: EstimateOptions, estimated: Estimated, files: LoggedFiles, out: Path
) -> str | None:
    """Return the command that goes on from here; None where centres should not move.

    There a fit would move them by a model that is not to be trusted.
    """
    model = estimated.model
    if model.decision_ is None or model.decision_.name != PlanName.MOVED:
        return None
    told = {
        "--columns": ",".join(files.centers.columns),
        "--metric": options.metric,
        "--id": options.id_column,
        "--weight": options.weight,
    }
    given = "".join(f" {name} {value}" for name, value in told.items() if value is not None)
    command = f"volition fit {options.entities} --clusters {model.n_clusters}"
    return f"{command} --autonomy {out / ESTIMATE_AUTONOMY}{given}"


def _overrides(options: EstimateOptions, estimated: Estimated, known: Any) -> str:
    """Return how often entities override, and where they go, in sentences."""
    model = estimated.model
    rates = override_rates(
        estimated.table.values, model.choices_, resolve_cost(options.metric), known,
        options.covariates, model.center_names_ or (),
    )  # fmt: skip
    return str(rates)


def _working(quiet: bool) -> Progress:
    progress = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
        console=Console(stderr=True), disable=quiet or not sys.stderr.isatty(), transient=True,
    )  # fmt: skip
    progress.add_task("fitting choices, then searching for centres", total=None)
    return progress
