"""Save and load fitted models: JSON and tensors in one safetensors file, nothing executable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from volition.annealing import PhaseTransition, Record
from volition.autonomy import (
    Autonomy,
    CallableAutonomy,
    DistanceAutonomy,
    FixedAutonomy,
    LogitAutonomy,
    LoyalAutonomy,
    Passive,
)
from volition.choices import ChoiceAutonomy
from volition.costs import METRICS, Cost, resolve_cost
from volition.estimators import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    Learner,
    TabularClustering,
)
from volition.portfolio import Candidate
from volition.schedules import Critical, Explicit, Geometric
from volition.solvers import Armijo, FixedPoint, Gradient
from volition.storage import expect, read_file, reading, shown, write_file

FORMAT, LEARNER, AUTONOMY = "volition-model", "volition-learner", "volition-autonomy"
_LEARNERS: dict[str, type[Learner]] = {
    cls.__name__: cls for cls in (ADENClustering, ChoiceClustering, TabularClustering)
}

_ARRAYS = ("cluster_centers_", "labels_", "policy_", "betas_")
_SCALARS = (
    "distortion_",
    "free_energy_",
    "beta_",
    "winner_",
    "n_iter_",
    "converged_",
    "status_",
    "n_features_in_",
    "uses_autonomy_proba_",
)
_RECORDS: dict[str, Any] = {
    "history_": Record,
    "transitions_": PhaseTransition,
    "candidates_": Candidate,
}
#: parameter objects that are saved by name and fields
_OBJECTS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        DistanceAutonomy,
        LogitAutonomy,
        Geometric,
        Critical,
        Explicit,
        Armijo,
        FixedPoint,
        Gradient,
    )
}


def save_model(model: AutonomyAwareClustering | Learner, path: Any) -> Path:
    """Write a fitted model to one file.

    The file appears complete or not at all. A model whose metric or autonomy is a Python function
    can be saved; the function itself is not, and must be given to :func:`load_model` again.

    Parameters
    ----------
    model : AutonomyAwareClustering, TabularClustering or ADENClustering
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
    tensors: dict[str, np.ndarray] = {}
    params = {
        name: _encode(value, f"param.{name}", tensors)
        for name, value in model.get_params(deep=False).items()
    }
    fitted: dict[str, Any] = {name: getattr(model, name) for name in _SCALARS}
    for name in _RECORDS:
        fitted[name] = [list(record) for record in getattr(model, name)]
    if hasattr(model, "feature_names_in_"):
        fitted["feature_names_in_"] = list(model.feature_names_in_)
    for name in _ARRAYS:
        tensors[name] = np.ascontiguousarray(getattr(model, name))
    header = {
        "class": type(model).__name__,
        "params": params,
        "fitted": fitted,
    }
    return write_file(Path(path), tensors, FORMAT, header)


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
    path = Path(path)
    tensors, header = read_file(path, FORMAT, LEARNER)
    with reading(path):
        if header["format"] == LEARNER:
            if autonomy is not None:
                raise ValueError(f"{path} holds a learner, which knows no autonomy= to be given.")
            return _LEARNERS[header["class"]].from_file(path, metric=metric)
        model = AutonomyAwareClustering(**_params(path, header, tensors, autonomy, metric))
        model._check_params()
        model._cost()
        if model.autonomy is not None:
            model.autonomy.check(model.n_clusters)
        _restore(model, header["fitted"], tensors)
    return model


def _params(
    path: Path, header: dict[str, Any], tensors: dict[str, np.ndarray], autonomy: Any, metric: Any
) -> dict[str, Any]:
    """Return the constructor's parameters, the user's functions where the file has none."""
    given = {"autonomy": autonomy, "metric": metric}
    for name, value in given.items():
        saved = header["params"][name]
        function = isinstance(saved, dict) and saved["kind"] == "function"
        if value is not None and not function:
            raise ValueError(f"{path} holds its own {name}; {name}= is only for Python functions.")
        if value is None and function:
            raise ValueError(
                f"{path} was fitted with a Python function as {name}, which is not stored in the "
                f"file; give it as load_model(path, {name}=...)."
            )
    return {
        name: _decode(value, name, tensors, given.get(name))
        for name, value in header["params"].items()
    }


def _restore(
    model: AutonomyAwareClustering, fitted: dict[str, Any], tensors: dict[str, np.ndarray]
) -> None:
    """Set what a fit sets, and check that it fits together."""
    K, d = model.n_clusters, fitted["n_features_in_"]
    expect(tensors, "cluster_centers_", (K, d))
    labels = expect(tensors, "labels_", (None,), "i")
    expect(tensors, "policy_", (len(labels), K))
    expect(tensors, "betas_", (None,))
    if len(labels) == 0 or labels.min() < 0 or labels.max() >= K:
        raise ValueError("'labels_' holds a cluster that does not exist")
    for name in ("distortion_", "free_energy_", "beta_"):
        number = fitted[name]
        if isinstance(number, bool) or not isinstance(number, int | float) or number != number:
            raise ValueError(f"'{name}' is {shown(repr(number))}, not a number")
    for name in _SCALARS:
        setattr(model, name, fitted[name])
    for name, cls in _RECORDS.items():
        setattr(model, name, [cls(*values) for values in fitted[name]])
    if "feature_names_in_" in fitted:
        names = fitted["feature_names_in_"]
        if len(names) != d or not all(isinstance(name, str) for name in names):
            raise ValueError(f"'feature_names_in_' must name {d} columns")
        model.feature_names_in_ = np.array(names, dtype=object)
    for name in _ARRAYS:
        setattr(model, name, tensors[name])
    model._n_features_out = K


def save_autonomy(model: Autonomy, path: Any, **facts: Any) -> Path:
    """Write an autonomy model to one file, to be used with other entities or solvers.

    Parameters
    ----------
    model : Autonomy
        Any but those that hold a Python function or a network. Covariates belong to the entities
        and are not written; loyalties are, and then serve these entities only.
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
    tensors: dict[str, np.ndarray] = {"none": np.zeros(1)}
    encoded = _encode(model, "autonomy", tensors)
    if encoded == {"kind": "function"}:
        raise ValueError(f"{model!r} is a Python function, which cannot be saved.")
    return write_file(Path(path), tensors, AUTONOMY, {"autonomy": encoded, "facts": facts})


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
    path = Path(path)
    tensors, header = read_file(path, AUTONOMY)
    with reading(path):
        model = _decode(header["autonomy"], "autonomy", tensors)
        facts = header["facts"]
        if not isinstance(model, Autonomy) or not isinstance(facts, dict):
            raise ValueError("it holds no autonomy model")
    return model, facts


def _encode(value: Any, key: str, tensors: dict[str, np.ndarray]) -> Any:
    """Turn a constructor parameter into JSON, putting arrays aside."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None  # a generator's state belongs to the run, not to the model
    if isinstance(value, FixedAutonomy):
        tensors[key] = value.matrix
        if value.labels is not None and not all(isinstance(v, str | int) for v in value.labels):
            raise ValueError(
                "Group labels of FixedAutonomy must be strings or integers to be saved, got "
                f"{value.labels}."
            )
        return {"kind": "FixedAutonomy", "tensor": key, "labels": value.labels}
    if isinstance(value, Passive):
        return {"kind": "Passive"}
    if isinstance(value, LoyalAutonomy):
        others = _encode(value.others, f"{key}.others", tensors)
        if others == {"kind": "function"}:
            return others
        tensors[key] = value.loyalty
        return {"kind": "LoyalAutonomy", "others": others, "tensor": key, "share": value.share}
    if isinstance(value, ChoiceAutonomy):
        numbers, arrays = value.state()
        if value.covariates is not None:
            arrays["covariates"] = value.covariates
        tensors |= {f"{key}.{name}": array for name, array in arrays.items()}
        return {"kind": "ChoiceAutonomy", "numbers": numbers, "tensors": list(arrays), "at": key}
    name = type(value).__name__
    if name in _OBJECTS and type(value) is _OBJECTS[name]:
        fields = {f: _encode(v, f"{key}.{f}", tensors) for f, v in vars(value).items()}
        return {"kind": name, "fields": fields}
    named = isinstance(value, Cost) and value.name in METRICS
    if named and type(value) is type(resolve_cost(value.name)):
        return value.name
    if isinstance(value, Autonomy | Cost) or callable(value):
        return {"kind": "function"}
    if isinstance(value, torch.device):
        return str(value)
    try:
        array = np.ascontiguousarray(value)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.dtype.kind in "fiu":
        tensors[key] = array
        return {"kind": "array", "tensor": key}
    raise ValueError(f"The parameter {key.removeprefix('param.')}={value!r} cannot be saved.")


def _decode(value: Any, name: str, tensors: dict[str, np.ndarray], given: Any = None) -> Any:
    if not isinstance(value, dict):
        return value
    kind = value["kind"]
    if kind == "function" and given is not None:
        return resolve_cost(given) if name == "metric" else _autonomy(given)
    if kind == "FixedAutonomy":
        matrix, labels = tensors[value["tensor"]], value["labels"]
        if matrix.dtype.kind != "f":
            raise ValueError(f"the autonomy matrix holds {matrix.dtype}, which it cannot")
        return FixedAutonomy(matrix if labels is None else dict(zip(labels, matrix, strict=True)))
    if kind == "Passive":
        return Passive()
    if kind == "LoyalAutonomy":
        others = _decode(value["others"], name, tensors)
        loyalty = expect(tensors, value["tensor"], (None, None))
        return LoyalAutonomy(others, loyalty, share=value["share"])
    if kind == "ChoiceAutonomy":
        arrays = {name: tensors[f"{value['at']}.{name}"] for name in value["tensors"]}
        for part in arrays:
            expect(arrays, part, (None,) * arrays[part].ndim)
        return ChoiceAutonomy.from_state(value["numbers"], arrays, arrays.get("covariates"))
    if kind == "array":
        return tensors[value["tensor"]]
    if kind in _OBJECTS:
        fields = {f: _decode(v, f, tensors) for f, v in value["fields"].items()}
        return _OBJECTS[kind](**fields)
    raise ValueError(f"its {name} is a {shown(repr(kind))}, which this release does not know")


def _autonomy(given: Any) -> Autonomy:
    return given if isinstance(given, Autonomy) else CallableAutonomy(given)
