"""``volition learn``."""

from __future__ import annotations

import os
from pathlib import Path

from volition.cli.learn.options import (
    METRIC,
    TOLERANCE,
    Centers,
    Clusters,
    Columns,
    Entities,
    Exploration,
    Forgetting,
    IdColumn,
    Interactions,
    LearnerName,
    LearnerOptions,
    LogFile,
    LogOptions,
    Metric,
    Network,
    PopulationFile,
    Resume,
    TableOf,
    Tol,
    Tolerance,
)
from volition.cli.options import NumberedFrom, Out, Overwrite, Quiet, Seed, SkipUnknown
from volition.cli.outputs import LEARN_FILES, LEARN_STATE
from volition.io.results import check_writable


def learn(
    population: PopulationFile = None,
    log: LogFile = None,
    clusters: Clusters = None,
    entities: Entities = None,
    centers: Centers = None,
    columns: Columns = None,
    id_column: IdColumn = None,
    metric: Metric = METRIC,
    tolerance: Tolerance = TOLERANCE,
    numbered_from: NumberedFrom = None,
    skip_unknown: SkipUnknown = False,
    learner: LearnerName = None,
    interactions: Interactions = None,
    estimate: TableOf = "choices",
    tol: Tol = None,
    exploration: Exploration = None,
    network: Network = None,
    forgetting: Forgetting = 0.0,
    resume: Resume = False,
    out: Out = Path("volition-learned"),
    overwrite: Overwrite = False,
    seed: Seed = 0,
    quiet: Quiet = False,
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
    instead = f"--resume goes on from {LEARN_STATE}, " if os.path.isfile(out / LEARN_STATE) else ""
    check_writable(out, (LEARN_STATE, *LEARN_FILES), overwrite or resume, instead)
    if learner is None:
        for_tables = log is not None or estimate != "choices" or forgetting > 0
        learner = "tabular" if for_tables else "choice"
    options = LearnerOptions(
        learner, clusters, interactions, estimate, tol, exploration, network, forgetting, seed
    )
    options.check(with_log=log is not None)
    logged = LogOptions(
        log, entities, centers, columns, id_column, metric, tolerance, numbered_from, skip_unknown
    )

    from volition.cli.learn.population_file import read_population
    from volition.cli.learn.run import run_learn
    from volition.cli.learn.source import read_log_source

    if population is None:
        source = read_log_source(logged)
    else:
        logged.refuse_without_log()
        source = read_population(population, seed)
    run_learn(source, options, out, resume, quiet)
