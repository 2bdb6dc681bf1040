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
from volition.choices.off_policy import (
    Diagnostics,
    Estimate,
    OffPolicyEstimate,
    estimate_off_policy,
)
from volition.choices.overrides import OverrideRates, Rate, override_rates
from volition.choices.report import (
    CalibrationBin,
    Parameter,
    calibration,
    cautions,
    coefficients,
    parameters,
)
from volition.choices.worth import Interval, Reach, Worth, compare, direct, off_policy

__all__ = [
    "AWAY",
    "FAMILIES",
    "STAY",
    "Basis",
    "CalibrationBin",
    "ChoiceAutonomy",
    "ChoiceFit",
    "Choices",
    "Diagnostics",
    "Estimate",
    "Interval",
    "OffPolicyEstimate",
    "OverrideRates",
    "Parameter",
    "Rate",
    "Reach",
    "Trial",
    "Worth",
    "calibration",
    "cautions",
    "check_covariates",
    "check_family",
    "coefficients",
    "compare",
    "direct",
    "distance_autonomy",
    "estimate_off_policy",
    "fit_choices",
    "off_policy",
    "override_rates",
    "parameters",
]
