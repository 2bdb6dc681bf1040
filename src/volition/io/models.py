"""Save and load fitted models: JSON and tensors in one safetensors file, nothing executable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from volition.annealing.anneal import PhaseTransition, Record
from volition.choices import ChoiceAutonomy
from volition.core.autonomy import Autonomy, CallableAutonomy
from volition.core.costs import resolve_cost
from volition.estimators import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    Learner,
    TabularClustering,
)
from volition.estimators.files import load_learner
from volition.io import serialization as codec
from volition.io.checked_files import expect, reading, shown
from volition.solvers.candidates import Candidate

FORMAT, LEARNER, AUTONOMY = "volition-model", "volition-learner", "volition-autonomy"
_LEARNERS: dict[str, type[Learner]] = {
    cls.__name__: cls for cls in (ADENClustering, ChoiceClustering, TabularClustering)
}
#: what a fit sets, and what it is; arrays are looked at one by one
_FITTED: dict[str, Any] = {
    **dict.fromkeys(("cluster_centers_", "labels_", "policy_", "betas_"), np.ndarray),
    **dict.fromkeys(("distortion_", "free_energy_", "beta_"), float),
    **dict.fromkeys(("n_iter_", "n_features_in_"), int),
    **dict.fromkeys(("converged_", "uses_autonomy_proba_"), bool),
    **dict.fromkeys(("winner_", "status_"), str),
    "history_": [Record],
    "transitions_": [PhaseTransition],
    "candidates_": [Candidate],
}


def save_model(model: AutonomyAwareClustering | Learner, path: Any) -> Path:
    """Write a fitted model to one file.

    The file appears complete or not at all. A model whose metric or autonomy is a Python function
    can be saved; the function itself is not, and must be given to :func:`load_model` again.

    Parameters
    ----------
    model : AutonomyAwareClustering, TabularClustering, ChoiceClustering or ADENClustering
        A fitted model. Learners are saved with all that they need to go on.
    path : path
        Where to write; by custom ending in ``.safetensors``.

    Returns
    -------
    Path

    Examples
    --------
    >>> import os, tempfile
    >>> from volition import AutonomyAwareClustering, load_model, save_model
    >>> model = AutonomyAwareClustering(2, random_state=0).fit([[0.0], [1.0], [10.0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = save_model(model, os.path.join(folder, "model.safetensors"))
    ...     load_model(file).predict([[9.0]]).tolist()
    [1]
    """
    if not hasattr(model, "cluster_centers_"):
        raise ValueError("Only a fitted model can be saved; call fit first.")
    if isinstance(model, Learner):
        return model.save(path)
    fitted = {name: getattr(model, name) for name in _FITTED}
    if hasattr(model, "feature_names_in_"):
        fitted["feature_names_in_"] = list(model.feature_names_in_)
    params = codec.encode_params(model.get_params(deep=False))
    return codec.write(path, FORMAT, {"params": params, "fitted": codec.encode(fitted)})


def load_model(
    path: Any, *, autonomy: Any = None, metric: Any = None
) -> AutonomyAwareClustering | Learner:
    """Read a model that :func:`save_model` wrote. Nothing in the file is executed.

    Parameters
    ----------
    path : path
        The file.
    autonomy : CallableAutonomy, optional
        Needed if the saved model's autonomy is a Python function.
    metric : callable or Cost, optional
        Needed if the saved model's metric is a Python function.

    Returns
    -------
    AutonomyAwareClustering, TabularClustering or ADENClustering

    Examples
    --------
    See :func:`save_model`.
    """
    path, tree = Path(path), codec.read(path, FORMAT, LEARNER)
    with reading(path):
        if "class" in tree:
            if autonomy is not None:
                raise ValueError(f"{path} holds a learner, which knows no autonomy= to be given.")
            return load_learner(_LEARNERS[tree["class"]], path, tree, metric)
        if autonomy is not None and not isinstance(autonomy, Autonomy):
            autonomy = CallableAutonomy(autonomy)
        metric = None if metric is None else resolve_cost(metric)
        given = {"autonomy": autonomy, "metric": metric}
        model = AutonomyAwareClustering(**codec.decode_params(path, tree["params"], given))
        model._check_params()
        model._cost()
        if model.autonomy is not None:
            model.autonomy.check(model.n_clusters)
        _restore(model, codec.decode(tree["fitted"]))
    return model


def _restore(model: AutonomyAwareClustering, fitted: dict[str, Any]) -> None:
    """Set what a fit sets, and check that it fits together."""
    for name, kind in _FITTED.items():
        value = fitted[name]
        items = isinstance(kind, list) and isinstance(value, list)
        if not all(isinstance(one, *kind) for one in value) if items else type(value) is not kind:
            raise ValueError(f"'{name}' is {shown(repr(value))}, which it cannot be")
        setattr(model, name, value)
    K, d = model.n_clusters, model.n_features_in_
    expect(fitted, "cluster_centers_", (K, d))
    labels = expect(fitted, "labels_", (None,), "i")
    expect(fitted, "policy_", (len(labels), K))
    expect(fitted, "betas_", (None,))
    if len(labels) == 0 or labels.min() < 0 or labels.max() >= K:
        raise ValueError("'labels_' holds a cluster that does not exist")
    for name in ("distortion_", "free_energy_", "beta_"):
        if fitted[name] != fitted[name]:
            raise ValueError(f"'{name}' is not a number")
    names = fitted.get("feature_names_in_")
    if names is not None:
        if len(names) != d or not all(isinstance(name, str) for name in names):
            raise ValueError(f"'feature_names_in_' must name {d} columns")
        model.feature_names_in_ = np.array(names, dtype=object)
    model._n_features_out = K


def save_autonomy(model: Autonomy, path: Any, **facts: Any) -> Path:
    """Write an autonomy model to one file, to be used with other entities or solvers.

    Parameters
    ----------
    model : Autonomy
        Any but those that hold a Python function: also what a learner has learned (``model_``).
        Covariates belong to the entities and are not written; loyalties and matrices of single
        entities are, and then serve these entities only.
    path : path
        Where to write; by custom ending in ``.safetensors``.
    **facts
        What else is to be remembered, as JSON can hold it.

    Returns
    -------
    Path

    Examples
    --------
    >>> import os, tempfile
    >>> from volition import DistanceAutonomy, load_autonomy, save_autonomy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = save_autonomy(DistanceAutonomy(0.2), os.path.join(folder, "a.safetensors"))
    ...     load_autonomy(file)
    DistanceAutonomy(kappa=0.2, gamma=0.0, zeta=1.0, temperature=1.0)
    """
    if isinstance(model, ChoiceAutonomy) and model.covariates is not None:
        model = model.for_entities(model.covariates[:0])
    encoded = codec.encode(model)
    if encoded is codec.FUNCTION:
        raise ValueError(f"{model!r} is a Python function, which cannot be saved.")
    return codec.write(path, AUTONOMY, {"autonomy": encoded, "facts": codec.encode(facts)})


def load_autonomy(path: Any) -> Autonomy:
    """Read an autonomy model that :func:`save_autonomy` wrote. Nothing in the file is executed.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    Autonomy
    """
    return read_autonomy(path)[0]


def read_autonomy(path: Any) -> tuple[Autonomy, dict[str, Any]]:
    """Return the model, and the facts that were written with it."""
    tree = codec.read(path, AUTONOMY)
    with reading(Path(path)):
        model, facts = codec.decode(tree["autonomy"]), codec.decode(tree["facts"])
        if not isinstance(model, Autonomy) or not isinstance(facts, dict):
            raise ValueError("it holds no autonomy model")
    return model, facts
