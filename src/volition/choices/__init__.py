"""Choice models: p(k | j, i) learned from clusters that were realised."""

from volition.choices.data import Choices
from volition.choices.fit import (
    FAMILIES,
    ChoiceFit,
    Trial,
    check_covariates,
    check_family,
    distance_autonomy,
    fit_choices,
)
from volition.choices.model import AWAY, STAY, Basis, ChoiceAutonomy

__all__ = [
    "AWAY",
    "FAMILIES",
    "STAY",
    "Basis",
    "ChoiceAutonomy",
    "ChoiceFit",
    "Choices",
    "Trial",
    "check_covariates",
    "check_family",
    "distance_autonomy",
    "fit_choices",
]
