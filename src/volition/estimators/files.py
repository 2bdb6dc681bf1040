"""Files of learners: everything that is needed to go on, and nothing that is executed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from volition.io.checked_files import expect, reading
from volition.io.serialization import (
    decode,
    decode_params,
    encode,
    encode_params,
    read,
    write,
)
from volition.learning.entities import Entities
from volition.learning.study import Study

if TYPE_CHECKING:
    from volition.estimators.learner import Learner

log = logging.getLogger("volition")
#: kind of file
KIND = "volition-learner"
L = TypeVar("L", bound="Learner")


def save_learner(learner: Learner, path: Path, population: Any = None) -> Path:
    """Write a learner, and the state of a population that has one."""
    theirs = population.state_dict() if hasattr(population, "state_dict") else None
    names = getattr(learner, "feature_names_in_", None)
    params = learner.get_params(deep=False)
    if "network" in params and not isinstance(params["network"], bool):
        params["network"] = type(learner)().network  # the default: the state has its own network
    document = {
        "class": type(learner).__name__,
        "n_clusters": int(learner.n_clusters),
        "identity": learner._identity(),
        "strategy": type(learner._study.strategy).__name__,
        "study": learner._study.state(),
        "stop_reason": learner.stop_reason_,
        "feature_names": None if names is None else list(names),
        "extra": learner._extra_state(),
        "population": theirs,
    }
    return write(path, KIND, encode(document) | {"params": encode_params(params)})


def load_learner(cls: type[L], path: Path, tree: dict[str, Any], metric: Any) -> L:
    """Return the learner in a file, ready to go on."""
    learner = cls(**decode_params(path, tree["params"], {"metric": metric}))
    _take(learner, tree, path)
    return learner


def resume_learner(learner: Learner, path: Path, population: Any = None) -> None:
    """Put a learner where a file left it; where that fails, everything is as before."""
    tree = read(path, KIND)
    before = learner.__dict__.copy()
    try:
        with reading(path):
            theirs = tree["population"]
            _take(learner, tree, path)
    except BaseException:
        learner.__dict__.clear()
        learner.__dict__.update(before)
        raise
    log.info("%s goes on from %s", type(learner).__name__, path)
    if theirs is not None and hasattr(population, "load_state_dict"):
        try:
            population.load_state_dict(decode(theirs))
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f"{path} was made with another kind of population than {population!r}."
            ) from None


def _take(learner: Learner, tree: dict[str, Any], path: Path) -> None:
    if tree["class"] != type(learner).__name__ or tree["n_clusters"] != learner.n_clusters:
        raise ValueError(
            f"{path} is of {tree['class']} with n_clusters={tree['n_clusters']}, not of "
            f"{type(learner).__name__} with n_clusters={learner.n_clusters}."
        )
    learner._check_params()
    mine, theirs = encode(learner._identity()), tree["identity"]
    for name, value in mine.items():
        if value != theirs[name]:
            raise ValueError(f"The file was made with {name}={theirs[name]!r}, not {value!r}.")
    document = decode(tree, learner._cost())
    state = document["study"]
    entities = Entities.from_state(state["entities"], learner._cost())
    rng = np.random.default_rng(0)
    strategy = learner._strategy_named(document["strategy"], entities, rng)
    study = Study(strategy, type(learner).__name__)
    study.restore(state)
    _check(study, learner.n_clusters)
    learner._begin(study, document["stop_reason"])
    if document["feature_names"] is not None:
        learner.feature_names_in_ = np.array(document["feature_names"], dtype=object)
    learner._restore_extra(document["extra"])


def _check(study: Study, K: int) -> None:
    """Raise unless the parts of a state fit together."""
    strategy, n = study.strategy, len(study.entities)
    plan = {"centers": strategy.centers, "labels": strategy.labels}
    expect(plan, "centers", (K, study.entities.n_features))
    labels = expect(plan, "labels", (n,), "i")
    if labels.min() < -1 or labels.max() >= K:
        raise ValueError("'labels' holds a cluster that does not exist")
