"""What a checkpoint of ADEN holds besides that of every learner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from volition.io.files import expect
from volition.learners.aden.models import NetworkAutonomy

if TYPE_CHECKING:
    from volition.learners.aden.learner import ADENClustering

#: what is saved as it is
SAVED = (
    "stage", "told", "debt", "left", "turn", "exact", "finished", "phase", "scale", "began_trained",
    "transferred", "unseen", "watched_from", "range", "cost_unit", "betas", "loss", "units",
    "replicas", "shown", "verdict", "cheapest", "logits", "loyalty",
)  # fmt: skip


def state_of(learner: ADENClustering) -> dict[str, Any]:
    """Return all from which a fit goes on exactly as if never interrupted."""
    model, trainer = learner._unattached, learner._trainer
    return {name: getattr(learner, f"_{name}") for name in SAVED} | {
        "head": learner.head_,
        "beta": learner.beta_,
        "recipe": learner._recipe,
        "given_places": learner._given_places,
        "means": learner._means if learner._recipe.ema > 0 else None,
        "replay": learner._replay.state(),
        "trainer": trainer and trainer.state(),
        "trained": trainer and learner._trained,
        "model": model if isinstance(model, NetworkAutonomy) else None,
    }


def restore(learner: ADENClustering, state: dict[str, Any]) -> None:
    """Put a learner that has begun into such a state."""
    shape = learner.cluster_centers_.shape
    expect(state, "shown", shape)
    expect(state, "replicas", (None, *shape))
    for name in SAVED:
        setattr(learner, f"_{name}", state[name])
    learner.head_, learner.beta_ = state["head"], state["beta"]
    learner._units.check(learner._X.shape[1])
    learner._given_places = torch.from_numpy(state["given_places"])
    if state["means"] is not None:
        learner._means = state["means"]
    learner._replay.restore(state["replay"])
    if state["trainer"] is not None:
        network, learner._trained = state["trainer"]["network"], state["trained"]
        network.units = learner._units
        learner._trainer = learner._new_trainer(network)
        learner._trainer.restore(state["trainer"])
    model = state["model"]
    if model is None and learner._logits is not None:
        model = learner._logits.autonomy(learner._units)
    learner.model_ = None if model is None else learner._with_loyalty(model)
