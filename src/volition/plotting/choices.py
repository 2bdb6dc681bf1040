"""Pictures of choice models: do predictions come true, and what is a decision worth."""

from __future__ import annotations

from typing import Any

import numpy as np

from volition.choices import CalibrationBin, Worth
from volition.plotting.learning import _axes
from volition.plotting.phase import BLUE, GREY, ORANGE


def plot_calibration(bins: list[CalibrationBin], *, axes: Any = None) -> Any:
    """Draw how often predicted choices came true.

    Parameters
    ----------
    bins : list of CalibrationBin
        From `volition.choices.calibration`.
    axes : pair of matplotlib axes, optional
        Where to draw: obeying, and where to if not.

    Returns
    -------
    pair of matplotlib axes

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from volition.choices import CalibrationBin
    >>> from volition.plotting import plot_calibration
    >>> left, right = plot_calibration([CalibrationBin("stay", 0.7, 0.71, 0.68, 0.74, 900)])
    >>> left.get_xlabel()
    'predicted probability'
    """
    if axes is None:
        from matplotlib import pyplot as plt

        axes = plt.subplots(1, 2, figsize=(8.4, 4.2), layout="constrained")[1]
    titles = {"stay": "obeys", "away": "if not, where to"}
    for ax, (part, title), colour in zip(axes, titles.items(), (BLUE, ORANGE), strict=True):
        ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="as predicted")
        mine = [one for one in bins if one.part == part]
        if mine:
            x, y = np.array([(one.predicted, one.observed) for one in mine]).T
            ends = np.array([(one.low, one.high) for one in mine]).T
            error = np.maximum(np.abs(ends - y), 0)
            ax.errorbar(
                x, y, yerr=error, fmt="o", color=colour, markersize=5, capsize=2,
                label="held-out choices, 95 %",
            )  # fmt: skip
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), title=title, aspect="equal")
        ax.set(xlabel="predicted probability", ylabel="observed share")
        ax.legend(frameon=False, loc="upper left")
    return axes


def plot_worth(rows: list[Worth], *, unit: str = "", ax: Any = None) -> Any:
    """Draw what centres and prescriptions cost, by all three estimates.

    Parameters
    ----------
    rows : list of Worth
        From `ChoiceClustering.worth` or `volition.choices.compare`.
    unit : str
        Of the cost.
    ax : matplotlib axes, optional
        Where to draw.

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from volition.choices import Interval, Worth
    >>> from volition.plotting import plot_worth
    >>> known = Interval(1.0, 0.9, 1.1)
    >>> plot_worth([Worth("today", known, known, known, 100.0, known, known)]).get_xlabel()
    'cost per entity'
    """
    ax = _axes(ax)
    kinds = (("direct", BLUE, "o"), ("weighted", GREY, "s"), ("robust", ORANGE, "D"))
    names = {"direct": "direct (model)", "weighted": "weighted (log)", "robust": "doubly robust"}
    for shift, (kind, colour, marker) in zip((-0.18, 0.0, 0.18), kinds, strict=True):
        values = np.array([getattr(row, kind) for row in rows])
        height = np.arange(len(rows)) + shift
        ax.errorbar(
            values[:, 0], height, xerr=np.abs(values[:, 1:] - values[:, :1]).T, fmt=marker,
            color=colour, markersize=5, capsize=2, label=names[kind],
        )  # fmt: skip
    ax.set_yticks(range(len(rows)), [row.name for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlabel(f"cost per entity{f' ({unit})' if unit else ''}")
    ax.set_xlim(left=0)
    ax.legend(frameon=False, loc="best")
    return ax
