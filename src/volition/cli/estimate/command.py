"""``volition estimate``."""

from __future__ import annotations

from pathlib import Path

from volition.cli.estimate.options import (
    Centers,
    Columns,
    Covariates,
    Entities,
    EstimateOptions,
    Family,
    IdColumn,
    LogFile,
    Metric,
    Region,
    TimeBudget,
    Tolerance,
)
from volition.cli.options import (
    NumberedFrom,
    Out,
    Overwrite,
    Quiet,
    Seed,
    SkipUnknown,
    Weight,
    deadline_of,
)
from volition.cli.outputs import ESTIMATE_FILES
from volition.io.results import check_writable


def estimate(
    log: LogFile,
    entities: Entities,
    centers: Centers,
    columns: Columns = None,
    covariates: Covariates = None,
    weight: Weight = None,
    id_column: IdColumn = None,
    metric: Metric = "sqeuclidean",
    family: Family = "auto",
    tolerance: Tolerance = 1e-4,
    numbered_from: NumberedFrom = None,
    skip_unknown: SkipUnknown = False,
    region: Region = None,
    time_budget: TimeBudget = None,
    out: Out = Path("volition-estimate"),
    overwrite: Overwrite = False,
    seed: Seed = 0,
    quiet: Quiet = False,
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
    deadline = deadline_of(time_budget)
    check_writable(out, ESTIMATE_FILES, overwrite)
    names = [name.strip() for name in covariates.split(",")] if covariates else []
    options = EstimateOptions(
        log, entities, centers, columns, names, weight, id_column, metric, family, tolerance,
        numbered_from, skip_unknown, region, deadline, seed,
    )  # fmt: skip

    from volition.cli.estimate.run import run_estimate

    run_estimate(options, out, overwrite, quiet)
