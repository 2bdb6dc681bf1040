"""The scikit-learn classes: parameters, documentation, one call."""

from volition.estimators.aden import ADENClustering
from volition.estimators.choice import ChoiceClustering
from volition.estimators.known import AutonomyAwareClustering
from volition.estimators.learner import Learner, UnreliableWarning
from volition.estimators.tabular import TabularClustering
from volition.learning.models.cost_table import RobbinsMonro

__all__ = [
    "ADENClustering",
    "AutonomyAwareClustering",
    "ChoiceClustering",
    "Learner",
    "RobbinsMonro",
    "TabularClustering",
    "UnreliableWarning",
]
