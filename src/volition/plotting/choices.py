"""Pictures of choice models: do predictions come true, and what plans cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volition.choices import CalibrationBin, Evidence, PlanCost
from volition.core.messages import cut
from volition.plotting.clustering import cluster_colors, clustering_info, label_axes
from volition.plotting.learning import _axes
from volition.plotting.phase import BLUE, GREY, ORANGE
from volition.plotting.text import PLAIN, label


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
            x, y = np.array([(one.predicted, one.came_true) for one in mine]).T
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


def plot_plan_costs(rows: Sequence[PlanCost], *, unit: str = "", ax: Any = None) -> Any:
    """Draw what plans cost, each by the cost to go by.

    Parameters
    ----------
    rows : list of PlanCost
        From `ChoiceClustering.compare_plans` or `volition.choices.compare_plans`.
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
    >>> from volition.choices import Interval, PlanCost
    >>> from volition.plotting import plot_plan_costs
    >>> known = Interval(1.0, 0.9, 1.1)
    >>> row = PlanCost("today", known, known, known, known, known)
    >>> plot_plan_costs([row]).get_xlabel()
    'cost per entity'
    """
    ax = _axes(ax)
    kinds = {
        Evidence.SEEN: (ORANGE, "D", "from what was seen, 95 %"),
        Evidence.MODEL: (BLUE, "o", "from the model, 95 %"),
        Evidence.GUESS: (GREY, "o", "a guess: the log does not support the model"),
    }
    for basis, (colour, marker, meaning) in kinds.items():
        mine = [number for number, row in enumerate(rows) if row.basis == basis]
        if not mine:
            continue
        values = np.array([rows[number].expected for number in mine])
        error = None if basis == Evidence.GUESS else np.abs(values[:, 1:] - values[:, :1]).T
        ax.errorbar(
            values[:, 0], mine, xerr=error, fmt=marker, color=colour, markersize=6, capsize=2,
            label=meaning, markerfacecolor="none" if basis == Evidence.GUESS else colour,
        )  # fmt: skip
    ax.set_yticks(range(len(rows)), [label(row.name) for row in rows], **PLAIN)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlabel(label(f"cost per entity{f' ({unit})' if unit else ''}"), **PLAIN)
    ax.set_xlim(left=0)
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.4, -0.14))
    return ax


def plot_relocation(
    X: Any,
    before: Any,
    after: Any,
    labels: Any,
    *,
    names: Any = None,
    geographic: bool = False,
    center_names: Any = None,
    ax: Any = None,
) -> Any:
    """Draw where centres are today and where they should be, over the entities.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities; with more than two columns, projected on their two principal components.
    before, after : array of shape (K, d)
        Centres, numbered alike.
    labels : array of shape (n,)
        New prescriptions, which colour the entities.
    names : list of str, optional
        Of the columns.
    geographic : bool
        Whether columns are latitude and longitude.
    center_names : list of str, optional
        Of the centres; by default their numbers.
    ax : matplotlib axes, optional
        Where to draw.

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import numpy as np
    >>> from volition.plotting import plot_relocation
    >>> X = np.random.default_rng(0).random((50, 2))
    >>> plot_relocation(X, X[:2], X[2:4], np.arange(50) % 2).get_ylabel()
    'feature 1'
    """
    if ax is None:
        from matplotlib import pyplot as plt

        ax = plt.subplots(figsize=(6.4, 6), layout="constrained")[1]
    K = len(after)
    both = np.concatenate([after, before])
    blank = np.zeros((len(X), 2 * K))
    info = clustering_info(X, both, blank, names=names, geographic=geographic)
    palette = cluster_colors(K)
    mine = palette[np.maximum(labels, 0)]
    new, old = info.centers[:K], info.centers[K:]
    size = float(np.clip(20000 / len(info.points), 1, 16))
    ax.scatter(*info.points.T, s=size, c=mine, alpha=0.3, linewidths=0, rasterized=True)
    for number, (start, end) in enumerate(zip(old, new, strict=True)):
        way = {"arrowstyle": "-", "color": GREY, "linewidth": 1.2}
        ax.annotate("", end, start, arrowprops=way)
        name = str(number) if center_names is None else cut(center_names[number], 24)
        ax.annotate(
            name, end, xytext=(5, 5), textcoords="offset points", fontsize=7,
            parse_math=False,
        )  # fmt: skip
    ax.scatter(*old.T, s=45, marker="o", c="white", edgecolors="black", zorder=3, label="today")
    ax.scatter(
        *new.T, s=160, marker="*", c=palette, edgecolors="black", linewidths=0.9,
        zorder=4,
    )  # fmt: skip
    ax.scatter([], [], s=90, marker="*", c="white", edgecolors="black", label="recommended")
    label_axes(ax, info.axis_names)
    if info.aspect is not None:
        ax.set_aspect(info.aspect)
    ax.legend(loc="best", fontsize=8, framealpha=0.8)
    return ax
