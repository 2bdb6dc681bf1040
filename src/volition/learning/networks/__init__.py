"""Networks that learn choices, costs of being served, or expected costs."""

from volition.learning.networks.autonomy import NetworkAutonomy
from volition.learning.networks.network import ADENetwork, NetworkSize, load_network, save_network
from volition.learning.networks.recipe import PRESETS, Recipe
from volition.learning.networks.units import Units

__all__ = [
    "PRESETS",
    "ADENetwork",
    "NetworkAutonomy",
    "NetworkSize",
    "Recipe",
    "Units",
    "load_network",
    "save_network",
]
