"""The files that each command writes."""

from __future__ import annotations

FIT_FILES = ("centers.csv", "assignments.csv", "summary.json", "clusters.png", "model.safetensors")

PREDICT_FILES = ("assignments.csv",)
EVALUATE_FILES = ("loads.csv", "summary.json")
COMPARE_FILES = ("moves.csv", "summary.json")

#: only if asked for
PHASE_MOVIE = "annealing.gif"
PHASE_FILES = ("persistence.csv", "path.csv", "summary.json", "phase.png", PHASE_MOVIE)

#: from which ``--resume`` goes on; written while learning, the others at the end
LEARN_STATE = "state.safetensors"
LEARN_FILES = (
    "centers.csv", "assignments.csv", "history.csv", "summary.json", "learning.png",
    "network.safetensors", "change-*.png",
)  # fmt: skip

#: for ``volition fit --autonomy``
ESTIMATE_AUTONOMY = "autonomy.safetensors"
ESTIMATE_FILES = (
    ESTIMATE_AUTONOMY, "estimates.csv", "parameters.csv", "models.csv", "centers.csv", "moves.csv",
    "assignments.csv", "summary.json", "calibration.png", "plan-costs.png", "map.png",
)  # fmt: skip
