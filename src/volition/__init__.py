"""Autonomy-aware clustering: centres and prescriptions for entities with a will of their own."""

from volition.annealing import AnnealingResult, anneal
from volition.autonomy import (
    CallableAutonomy,
    DistanceAutonomy,
    FixedAutonomy,
    Passive,
)
from volition.estimators import AutonomyAwareClustering
from volition.persistence import load_model, save_model

__version__ = "0.1.0"

__all__ = [
    "AnnealingResult",
    "AutonomyAwareClustering",
    "CallableAutonomy",
    "DistanceAutonomy",
    "FixedAutonomy",
    "Passive",
    "anneal",
    "load_model",
    "save_model",
]
