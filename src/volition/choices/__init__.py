"""Choice models: p(k | j, i) learned from clusters that were realised."""

from volition.choices.checks import Check
from volition.choices.coding import check_covariates
from volition.choices.comparison import Comparison
from volition.choices.data import Choices
from volition.choices.extrapolation import Extrapolation
from volition.choices.fit import (
    FAMILIES,
    ChoiceFit,
    check_family,
    distance_autonomy,
    fit_choices,
)
from volition.choices.model import ChoiceAutonomy
from volition.choices.off_policy import Diagnostics, OffPolicyEstimate, estimate_off_policy
from volition.choices.overrides import OverrideRates, Rate, override_rates
from volition.choices.plan_costs import Evidence, PlanCost, PlanName, compare_plans
from volition.choices.report import CalibrationBin, Parameter, calibration, coefficients, parameters
from volition.choices.seen_costs import Log
from volition.choices.selection import Trial
from volition.choices.statistics import Interval
from volition.choices.terms import AWAY, STAY, Basis

__all__ = [
    "AWAY", "FAMILIES", "STAY", "Basis", "CalibrationBin", "Check", "ChoiceAutonomy", "ChoiceFit",
    "Choices", "Comparison", "Diagnostics", "Evidence", "Extrapolation", "Interval", "Log",
    "OffPolicyEstimate", "OverrideRates", "Parameter", "PlanCost", "PlanName", "Rate", "Trial",
    "calibration", "check_covariates", "check_family", "coefficients", "compare_plans",
    "distance_autonomy", "estimate_off_policy", "fit_choices", "override_rates", "parameters",
]  # fmt: skip
