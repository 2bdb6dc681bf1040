"""Who answers questions: simulated, logged, or behind a gymnasium environment."""

from volition.populations.answers import Population, Prescriptions, Response
from volition.populations.logged import LoggedPopulation
from volition.populations.simulated import SimulatedPopulation

__all__ = [
    "LoggedPopulation",
    "Population",
    "Prescriptions",
    "Response",
    "SimulatedPopulation",
]
