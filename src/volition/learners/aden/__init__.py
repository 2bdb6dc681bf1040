"""ADEN: a network that learns expected costs, or choices, from costs alone."""

from volition.learners.aden.learner import ADENClustering
from volition.learners.aden.models import NetworkAutonomy, Units
from volition.learners.aden.network import ADENetwork, NetworkSize, load_network, save_network
from volition.learners.aden.recipe import PRESETS, Recipe

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
