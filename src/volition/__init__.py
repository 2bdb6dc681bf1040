"""Autonomy-aware clustering: centres and prescriptions for entities with a will of their own."""

import logging

from volition.annealing.anneal import AnnealingResult, anneal
from volition.annealing.n_clusters import suggest_n_clusters
from volition.annealing.stability import CriticalPoint, critical_beta
from volition.choices import ChoiceAutonomy
from volition.core.autonomy import (
    CallableAutonomy,
    DistanceAutonomy,
    FixedAutonomy,
    LogitAutonomy,
    LoyalAutonomy,
    Passive,
)
from volition.core.messages import DataWarning
from volition.core.outliers import OutlierWarning
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
from volition.populations import (
    LoggedPopulation,
    Population,
    Prescriptions,
    Response,
    SimulatedPopulation,
)

__version__ = "0.1.0"

# Who wants to read what learners do says so: logging.basicConfig(level="INFO").
logging.getLogger("volition").addHandler(logging.NullHandler())

__all__ = [
    "ADENClustering",
    "AnnealingResult",
    "AutonomyAwareClustering",
    "CallableAutonomy",
    "ChoiceAutonomy",
    "ChoiceClustering",
    "CriticalPoint",
    "DataWarning",
    "DistanceAutonomy",
    "FixedAutonomy",
    "LoggedPopulation",
    "LogitAutonomy",
    "LoyalAutonomy",
    "OutlierWarning",
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
