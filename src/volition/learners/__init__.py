"""Learners: centres and prescriptions from answers, when p is not known."""

from volition.learners.aden import ADENClustering, Recipe, load_network, save_network
from volition.learners.base import Learner
from volition.learners.choice import ChoiceClustering
from volition.learners.monitor import Change, Estimate
from volition.learners.tabular import RobbinsMonro, TabularClustering

__all__ = [
    "ADENClustering",
    "Change",
    "ChoiceClustering",
    "Estimate",
    "Learner",
    "Recipe",
    "RobbinsMonro",
    "TabularClustering",
    "load_network",
    "save_network",
]
