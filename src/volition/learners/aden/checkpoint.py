"""What a checkpoint of ADEN holds besides that of every learner."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from volition.learners.aden.models import NetworkAutonomy
from volition.learners.aden.network import ADENetwork, NetworkSize
from volition.learners.aden.observed import Cheapest
from volition.learners.aden.training import LogitFit
from volition.learners.aden.units import Units
from volition.learners.monitor import Estimate

if TYPE_CHECKING:
    from volition.learners.aden.learner import ADENClustering

#: what is saved as it is
SAVED = (
    "stage", "told", "debt", "left", "turn", "exact", "finished", "phase", "scale", "began_trained",
    "transferred", "unseen", "watched_from",
)  # fmt: skip


def state_of(learner: ADENClustering) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return numbers and arrays from which a fit goes on exactly as if never interrupted."""
    numbers: dict[str, Any] = {name: getattr(learner, f"_{name}") for name in SAVED}
    numbers |= {
        "loss": None if math.isnan(learner._loss) else learner._loss,
        "head": learner.head_,
        "beta": learner.beta_,
        "betas": learner._betas,
        "range": learner._range,
        "cost_unit": learner._cost_unit,
        "units": [learner._units.length, learner._units.cost],
        "logits": None if learner._logits is None else learner._logits.loss,
        "cheapest": learner._cheapest.seen,
        "recipe": vars(learner._recipe),
    }
    arrays = {
        "origin": learner._units.origin,
        "replicas": learner._replicas,
        "shown": learner._shown,
        "verdict": learner._verdict,
        "given_places": learner._given_places.numpy(),
    }
    if learner._cheapest.centers is not None:
        arrays["cheapest"] = learner._cheapest.centers
    if learner._loyalty is not None:
        arrays["loyalty"] = learner._loyalty
    if learner._logits is not None:
        arrays["linear"] = learner._logits.linear
    if learner._recipe.ema > 0:
        arrays["means"] = learner._means
    if learner._trainer is not None:
        numbers |= {"steps": learner._trainer.n_steps, "trained": learner._trained}
        numbers["size"] = vars(learner._trainer.network.size)
        numbers["networked"] = isinstance(learner._unattached, NetworkAutonomy)
        arrays |= {f"trainer.{k}": v for k, v in learner._trainer.state().items()}
        if numbers["networked"]:
            frozen = learner._unattached.network.state_dict()  # type: ignore[union-attr]
            arrays |= {f"model.{k}": v.cpu().numpy() for k, v in frozen.items()}
    arrays |= {f"replay.{k}": v for k, v in learner._replay.state().items()}
    return numbers, arrays


def restore(
    learner: ADENClustering, numbers: dict[str, Any], arrays: dict[str, np.ndarray]
) -> None:
    """Put a learner that has begun into such a state."""
    for name in (*SAVED, "range", "cost_unit", "betas"):
        setattr(learner, f"_{name}", numbers.get(name))
    learner._loss = math.nan if numbers["loss"] is None else numbers["loss"]
    learner.head_, learner.beta_ = numbers["head"], numbers["beta"]
    learner._units = Units(arrays["origin"], *numbers["units"])
    for name in ("replicas", "shown", "verdict"):
        setattr(learner, f"_{name}", arrays[name])
    learner._given_places = torch.from_numpy(arrays["given_places"])
    if "cheapest" in arrays:
        learner._cheapest = Cheapest(arrays["cheapest"], Estimate(*numbers["cheapest"]))
    if "means" in arrays:
        learner._means = arrays["means"]
    groups: dict[str, dict[str, np.ndarray]] = {"trainer": {}, "replay": {}, "model": {}}
    for name, value in arrays.items():
        kind, _, rest = name.partition(".")
        if rest:
            groups[kind][rest] = value
    learner._replay.restore(groups["replay"])
    if numbers["logits"] is not None:
        learner._logits = LogitFit(arrays["linear"], numbers["logits"])
        learner.model_ = learner._logits.autonomy(learner._units)
    if groups["trainer"]:
        size = NetworkSize(**numbers["size"])
        network = ADENetwork(learner._X.shape[1], size, learner.head_)
        network.units = learner._units
        learner._trainer, learner._trained = learner._new_trainer(network), numbers["trained"]
        learner._trainer.restore(groups["trainer"])
        learner._trainer.n_steps = numbers["steps"]
        if numbers["networked"]:
            frozen = ADENetwork(learner._X.shape[1], size, learner.head_).double()
            frozen.load_state_dict(
                {name: torch.from_numpy(value) for name, value in groups["model"].items()}
            )
            learner.model_ = NetworkAutonomy(frozen, learner._units)
    learner._loyalty = arrays.get("loyalty")
    if learner.model_ is not None:
        learner.model_ = learner._with_loyalty(learner.model_)
