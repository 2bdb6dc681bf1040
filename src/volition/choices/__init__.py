"""Choice models: p(k | j, i) learned from clusters that were realised."""

from volition.choices.checks import Check, check_costs, check_model, cross_costs
from volition.choices.comparison import Comparison
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
from volition.choices.model import ChoiceAutonomy
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
from volition.choices.terms import AWAY, STAY, Basis
from volition.choices.worth import Interval, Log, Reach, Worth, compare, direct, seen_cost

__all__ = [
    "AWAY", "FAMILIES", "STAY", "Basis", "CalibrationBin", "Check", "ChoiceAutonomy", "ChoiceFit",
    "Choices", "Comparison", "Diagnostics", "Estimate", "Interval", "Log", "OffPolicyEstimate",
    "OverrideRates", "Parameter", "Rate", "Reach", "Trial", "Worth", "calibration", "cautions",
    "check_costs", "check_covariates", "check_family", "check_model", "coefficients", "compare",
    "cross_costs", "direct", "distance_autonomy", "estimate_off_policy", "fit_choices",
    "override_rates", "parameters", "seen_cost",
]  # fmt: skip
