"""ADEN: a network that learns choices, costs of being served, or expected costs, from costs."""

from volition.learners.aden.learner import ADENClustering
from volition.learners.aden.models import NetworkAutonomy
from volition.learners.aden.network import ADENetwork, NetworkSize, load_network, save_network
from volition.learners.aden.recipe import PRESETS, Recipe
from volition.learners.aden.units import Units

__all__ = [
    "PRESETS",
    "ADENClustering",
    "ADENetwork",
    "NetworkAutonomy",
    "NetworkSize",
    "Recipe",
    "Units",
    "load_network",
    "save_network",
]
