"""Placements that were saved, and the entities that they are used for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from volition.core.autonomy import Autonomy, Passive
from volition.estimators import AutonomyAwareClustering
from volition.io.models import load_model
from volition.io.tables import Table, read_entities

#: what `volition fit` calls the model in its folder
MODEL_FILE = "model.safetensors"


def read_placement(path: Path) -> AutonomyAwareClustering:
    """Read a model file, or the one in a folder of results, whose entities may be exchanged."""
    file = path / MODEL_FILE if path.is_dir() else path
    if not file.is_file():
        raise ValueError(
            f"{path} is not a model; name a file {MODEL_FILE} that volition fit wrote, or its "
            "folder."
        )
    model = load_model(file)
    if not isinstance(model, AutonomyAwareClustering):
        raise ValueError(
            f"{file} holds what a learner knows, not a placement; volition fit makes one."
        )
    behaviour = behaviour_of(model)
    one = np.array([0])
    if model.uses_autonomy_proba_ or behaviour.subset(one) is not behaviour:
        raise ValueError(
            f"{file} knows how each single entity behaves (covariates, loyalty or its own "
            "probabilities) and cannot be used for other entities; run volition fit on them."
        )
    return model


def behaviour_of(model: AutonomyAwareClustering) -> Autonomy:
    """Return how entities override, by what a placement was made for."""
    return Passive() if model.autonomy is None else model.autonomy


def columns_of(model: AutonomyAwareClustering) -> list[str] | None:
    """Return the columns that a placement was made with, None if it does not know."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def read_entities_for(
    model: AutonomyAwareClustering,
    file: Path,
    columns: str | None,
    weight: str | None,
    id_column: str | None,
) -> Table:
    """Read the entities of a file by the columns that a placement was made with.

    Other columns can be named where they are called otherwise in this file.
    """
    chosen: Any = columns or columns_of(model)
    table = read_entities(file, chosen, weight, id_column, str(model.metric))
    if table.values.shape[1] != model.n_features_in_:
        raise ValueError(
            f"The placement needs {model.n_features_in_} columns, but {file} gives "
            f"{len(table.columns)} ({', '.join(table.columns)}); say which with --columns."
        )
    return table


def unnamed(model: AutonomyAwareClustering) -> AutonomyAwareClustering:
    """Return the placement for arrays: names of columns have been checked by now."""
    if hasattr(model, "feature_names_in_"):
        del model.feature_names_in_
    return model
