"""Autonomy-aware clustering: centres and prescriptions for entities with a will of their own.

Names are loaded when they are first used, because PyTorch and scikit-learn take seconds to load.
"""

import logging
from typing import TYPE_CHECKING

from volition.core.lazy import lazy_names

if TYPE_CHECKING:
    from volition import datasets, metrics, plotting, testing
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
    from volition.estimators.how_many import choose_n_centers
    from volition.estimators.sensitivity import sensitivity
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

# To read what learners do: logging.basicConfig(level="INFO").
logging.getLogger("volition").addHandler(logging.NullHandler())

# The same names as above, for Python; those are for type checkers and editors.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "volition.annealing.anneal": ["AnnealingResult", "anneal"],
        "volition.annealing.n_clusters": ["suggest_n_clusters"],
        "volition.annealing.stability": ["CriticalPoint", "critical_beta"],
        "volition.choices": ["ChoiceAutonomy"],
        "volition.core.autonomy": [
            "CallableAutonomy", "DistanceAutonomy", "FixedAutonomy", "LogitAutonomy",
            "LoyalAutonomy", "Passive",
        ],
        "volition.core.messages": ["DataWarning"],
        "volition.core.outliers": ["OutlierWarning"],
        "volition.estimators": [
            "ADENClustering", "AutonomyAwareClustering", "ChoiceClustering", "RobbinsMonro",
            "TabularClustering", "UnreliableWarning",
        ],
        "volition.estimators.how_many": ["choose_n_centers"],
        "volition.estimators.sensitivity": ["sensitivity"],
        "volition.io.models": ["load_autonomy", "load_model", "save_autonomy", "save_model"],
        "volition.learning.networks": ["Recipe"],
        "volition.populations": [
            "LoggedPopulation", "Population", "Prescriptions", "Response", "SimulatedPopulation",
        ],
    },
    modules=["datasets", "metrics", "plotting", "testing"],
)  # fmt: skip

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
    "choose_n_centers",
    "critical_beta",
    "datasets",
    "load_autonomy",
    "load_model",
    "metrics",
    "plotting",
    "save_autonomy",
    "save_model",
    "sensitivity",
    "suggest_n_clusters",
    "testing",
]
