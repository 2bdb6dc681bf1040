"""Simulated populations described by a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from volition.cli.learn.source import Source
from volition.core.autonomy import Autonomy, DistanceAutonomy, FixedAutonomy, Passive
from volition.datasets import load_four_groups, make_city
from volition.io.tables import Table, read_entities, read_matrix
from volition.populations import SimulatedPopulation

#: the parameters of a model of distances
DISTANCE_KEYS = ("kappa", "gamma", "zeta", "temperature")
ENTITY_KEYS = ("file", "dataset", "n", "columns", "weight", "id", "metric")


def read_population(path: Path, seed: int) -> Source:
    """Read a simulated population from a TOML file."""
    spec = _read_toml(path)
    _check_keys(spec, {"entities", "autonomy", "answers", "changes"}, path, "top level")
    people = spec.get("entities", {})
    _check_keys(people, set(ENTITY_KEYS), path, "[entities]")
    metric = people.get("metric", "sqeuclidean")
    table = _read_people(people, metric, path)
    answers = spec.get("answers", {})
    _check_keys(answers, {"missing"}, path, "[answers]")
    models = {0: _read_model(spec.get("autonomy", {}), path, "[autonomy]")}
    models |= _read_changes(spec.get("changes", []), path)
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


def _read_toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"No such file: {path}.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}.") from None


def _check_keys(table: Any, allowed: set[str], path: Path, where: str) -> None:
    if not isinstance(table, dict):
        raise ValueError(f"{path}, {where} must be a table.")
    for name in table:
        if name not in allowed:
            raise ValueError(
                f"{path}, {where}: unknown key '{name}'; allowed: {', '.join(sorted(allowed))}."
            )


def _read_people(spec: dict[str, Any], metric: str, path: Path) -> Table:
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


def _read_model(spec: dict[str, Any], path: Path, where: str) -> Autonomy:
    _check_keys(spec, {*DISTANCE_KEYS, "matrix"}, path, where)
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


def _read_changes(changes: Any, path: Path) -> dict[int, Autonomy]:
    """Return the later models by the interaction from which on they hold."""
    if not isinstance(changes, list) or not all(isinstance(change, dict) for change in changes):
        raise ValueError(f"{path}: changes must be tables, each under a line [[changes]].")
    models = {}
    for number, change in enumerate(changes):
        where = f"[[changes]] number {number + 1}"
        if not isinstance(change.get("at"), int):
            raise ValueError(f"{path}, {where}: 'at' must be the interaction, a whole number.")
        model = {name: value for name, value in change.items() if name != "at"}
        models[change["at"]] = _read_model(model, path, where)
    return models
