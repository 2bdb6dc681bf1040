"""From the options on autonomy, or a file of it, to a model."""

from __future__ import annotations

from pathlib import Path

from volition.choices import ChoiceAutonomy
from volition.choices.coding import Coding
from volition.cli.options import AutonomyOptions
from volition.core.autonomy import Autonomy, DistanceAutonomy, FixedAutonomy, Passive
from volition.io.models import read_autonomy
from volition.io.tables import read_covariates, read_matrix


def autonomy_from_options(
    options: AutonomyOptions, entities: Path, columns: str | None, metric: str
) -> tuple[Autonomy, str | None]:
    """Return the model of autonomy, and the columns of the entities that it was learned with."""
    distances = {"gamma": options.gamma, "zeta": options.zeta, "temperature": options.temperature}
    given = {name: value for name, value in distances.items() if value is not None}
    if options.file is not None:
        if options.kappa is not None or given:
            raise ValueError("Give --autonomy or --kappa (with --gamma, --zeta, ...), not both.")
        if options.file.suffix == ".safetensors":
            return _learned(options.file, entities, columns, metric)
        return FixedAutonomy(read_matrix(options.file)), columns
    if options.kappa is not None:
        return DistanceAutonomy(options.kappa, **given), columns
    if given:
        raise ValueError(f"--{next(iter(given))} needs --kappa, the probability to override.")
    return Passive(), columns


def _learned(
    file: Path, entities: Path, columns: str | None, metric: str
) -> tuple[Autonomy, str | None]:
    """Read what ``volition estimate`` has learned, and the entities' covariates that it needs."""
    model, facts = read_autonomy(file)
    if facts.get("metric", metric) != metric:
        raise ValueError(
            f"{file} was learned with metric '{facts['metric']}'; say --metric "
            f"{facts['metric']}, not '{metric}'."
        )
    learned = ",".join(facts.get("columns") or [])
    if columns is not None and learned and columns.replace(" ", "") != learned:
        raise ValueError(f"{file} was learned with columns {learned}, not {columns}.")
    if facts.get("covariates") and isinstance(model, ChoiceAutonomy):
        known = read_covariates(entities, facts["covariates"])
        coding = Coding(tuple(facts["covariates"]), facts.get("levels") or {})
        model = model.for_entities(coding.apply(known, len(next(iter(known.values())))))
    return model, columns or learned or None
