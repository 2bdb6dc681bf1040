"""Autonomy-aware clustering: centres and prescriptions for entities with a will of their own."""

from volition.annealing import AnnealingResult, anneal
from volition.autonomy import (
    CallableAutonomy,
    DistanceAutonomy,
    FixedAutonomy,
    LogitAutonomy,
    LoyalAutonomy,
    Passive,
)
from volition.choices import ChoiceAutonomy
from volition.estimators import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    RobbinsMonro,
    TabularClustering,
    UnreliableWarning,
)
from volition.io.models import load_autonomy, load_model, save_autonomy, save_model
from volition.learning.networks import Recipe
from volition.phase import CriticalPoint, critical_beta
from volition.population import (
    LoggedPopulation,
    Population,
    Prescriptions,
    Response,
    SimulatedPopulation,
)
from volition.suggestion import suggest_n_clusters

__version__ = "0.1.0"

__all__ = [
    "ADENClustering",
    "AnnealingResult",
    "AutonomyAwareClustering",
    "CallableAutonomy",
    "ChoiceAutonomy",
    "ChoiceClustering",
    "CriticalPoint",
    "DistanceAutonomy",
    "FixedAutonomy",
    "LoggedPopulation",
    "LogitAutonomy",
    "LoyalAutonomy",
    "Passive",
    "Population",
    "Prescriptions",
    "Recipe",
    "Response",
    "RobbinsMonro",
    "SimulatedPopulation",
    "TabularClustering",
    "UnreliableWarning",
    "anneal",
    "critical_beta",
    "load_autonomy",
    "load_model",
    "save_autonomy",
    "save_model",
    "suggest_n_clusters",
]
