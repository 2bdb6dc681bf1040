"""Figures printed in the paper, and its scenarios."""

from __future__ import annotations

import math
from typing import NamedTuple


class Scenario(NamedTuple):
    """Parameters of the paper's autonomy model, and what the paper reports for them."""

    kappa: float
    gamma: float
    zeta: float
    temperature: float
    aden: float | None = None  # gap of the published network, %
    ignored: float | None = None  # gap if autonomy is ignored, %


#: table 1, and in their places the two of the 20 combinations that it leaves out
TABLE1 = [
    Scenario(0.1, 0.0, 1.0, 0.01, 2.11, 10.73),
    Scenario(0.1, 0.0, 1.0, 100.0, 2.08, 6.67),
    Scenario(0.1, 0.5, 1.0, 0.01, 1.87, 10.01),
    Scenario(0.1, 0.5, 1.0, 100.0),
    Scenario(0.2, 0.0, 1.0, 0.01, 3.01, 25.80),
    Scenario(0.2, 0.0, 1.0, 100.0, 1.79, 15.08),
    Scenario(0.2, 0.5, 1.0, 0.01, 1.50, 24.90),
    Scenario(0.2, 0.5, 1.0, 100.0, 1.40, 15.06),
    Scenario(0.3, 0.0, 1.0, 0.01, 4.80, 44.62),
    Scenario(0.3, 0.0, 1.0, 100.0, 3.25, 24.71),
    Scenario(0.3, 0.5, 1.0, 0.01, 7.02, 43.56),
    Scenario(0.3, 0.5, 1.0, 100.0, 3.24, 24.69),
    Scenario(0.4, 0.0, 1.0, 0.01, 8.03, 68.89),
    Scenario(0.4, 0.0, 1.0, 100.0, 3.36, 35.92),
    Scenario(0.4, 0.5, 1.0, 0.01, 3.47, 67.63),
    Scenario(0.4, 0.5, 1.0, 100.0, 2.68, 35.89),
    Scenario(0.5, 0.0, 1.0, 0.01),
    Scenario(0.5, 0.0, 1.0, 100.0, 5.66, 49.21),
    Scenario(0.5, 0.5, 1.0, 0.01, 1.72, 100.20),
    Scenario(0.5, 0.5, 1.0, 100.0, 4.66, 49.17),
]

#: median and mean of table 1, as the text gives them, %
SUMMARY = {"aden": (3.12, 3.42), "ignored": (30.84, 36.26)}

#: the appendix's 4 x 4 figure, row by row
GRID = [
    Scenario(0.1, 0.0, 1.0, 0.001), Scenario(0.1, 0.5, 1.0, 1.0),
    Scenario(0.3, 0.0, 0.5, 0.001), Scenario(0.3, 0.0, 0.5, 100.0),
    Scenario(0.3, 0.0, 1.0, 0.001), Scenario(0.3, 0.0, 1.0, 1.0),
    Scenario(0.3, 0.5, 0.5, 1.0), Scenario(0.5, 0.0, 0.5, 0.001),
    Scenario(0.5, 0.0, 1.0, 100.0), Scenario(0.7, 0.0, 0.5, 100.0),
    Scenario(0.7, 0.0, 1.0, 0.001), Scenario(0.7, 0.0, 1.0, 0.01),
    Scenario(0.9, 0.0, 0.5, 0.01), Scenario(0.9, 0.0, 0.5, 1.0),
    Scenario(0.9, 0.0, 1.0, 0.01), Scenario(0.9, 0.5, 1.0, 0.01),
]  # fmt: skip

#: London, in the order of the paper's panels: (kappa, T) and its network against Algorithm 1
LONDON = {(0.1, 0.1): "equal", (0.5, 0.1): "about -10 %", (0.1, 0.01): "+18.37 %",
          (0.5, 0.01): "+24.82 %"}  # fmt: skip

#: published schedules: least and greatest beta, factor
SCHEDULE, LONDON_SCHEDULE = (10.0, 50_000.0, 1.1), (10.0, 10_000.0, 1.1)


def _answers(schedule: tuple[float, float, float], epochs: int) -> int:
    """Batches x samples x draws x epochs x betas, from the table of hyperparameters."""
    least, greatest, factor = schedule
    betas = math.floor(math.log(greatest / least) / math.log(factor)) + 1
    return 32 * 128 * 16 * epochs * betas


#: answers that the published network is asked for, four groups and London
ANSWERS, LONDON_ANSWERS = _answers(SCHEDULE, 1000), _answers(LONDON_SCHEDULE, 2000)
