"""Pictures of learning: distortion against answers, costs learned and true, what changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from volition.core.messages import cut
from volition.core.validation import FloatArray
from volition.estimators import Learner
from volition.learning.drift.detector import Change
from volition.plotting.phase import BLUE, GREY, ORANGE

#: points of a line below which each is marked
FEW = 5


def _axes(ax: Any) -> Any:
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(6.4, 4.2), layout="constrained")[1] if ax is None else ax


def _limits(values: FloatArray, margin: float) -> tuple[float, float]:
    """Return limits of an axis: from zero, unless costs are negative."""
    low, high = float(values.min()), float(values.max())
    if low >= 0:
        return 0.0, (1 + margin) * high
    room = margin * max(high - low, 1e-3 * abs(low))
    return low - room, high + room


def count_interactions(ax: Any) -> None:
    """Label the horizontal axis with few numbers that can be read."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    ax.set_xlabel("interactions")
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def plot_learning(learner: Learner, *, optimum: Any = None, ax: Any = None) -> Any:
    """Draw the distortion against the number of interactions.

    Parameters
    ----------
    learner : Learner
        One that has learned something.
    optimum : float or list of (interaction, float), optional
        Least distortion if p were known, where it is; a list says from which interaction on.
    ax : matplotlib axes, optional
        Where to draw.

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from volition import SimulatedPopulation, TabularClustering
    >>> from volition.plotting import plot_learning
    >>> X = [[0.0], [1.0], [9.0], [10.0]]
    >>> model = TabularClustering(2, random_state=0).fit(X, population=SimulatedPopulation(X))
    >>> plot_learning(model, optimum=0.25).get_xlabel()
    'interactions'
    """
    if not learner.history_:
        raise ValueError("The learner has no history to draw: it has learned nothing yet.")
    ax = _axes(ax)
    names = ("interactions", "distortion", "observed", "low", "high")
    when, table, observed, low, high = (
        np.array([getattr(line, name) for line in learner.history_]) for name in names
    )
    known = np.isfinite(table)  # nothing may have been learned at first, or to the end
    few = "o" if known.sum() < FEW else None
    ax.plot(when, table, color=BLUE, lw=1.5, marker=few, label="according to what was learned")
    seen, name = np.isfinite(observed), "mean cost of recent answers, 95 %"
    if seen.sum() >= FEW:
        ax.fill_between(when, low, high, color=ORANGE, alpha=0.25, lw=0)
        ax.plot(when, observed, color=ORANGE, lw=1, label=name)
    elif seen.any():
        middle, error = observed[seen], np.abs(np.stack([low, high])[:, seen] - observed[seen])
        ax.errorbar(when[seen], middle, error, color=ORANGE, fmt="o-", ms=4, lw=1, label=name)
    if optimum is not None:
        steps = [(0, optimum)] if np.isscalar(optimum) else list(optimum)
        starts = [at for at, _ in steps] + [max(float(when[-1]), steps[-1][0])]
        ax.stairs([value for _, value in steps], starts, baseline=None, color="k", ls="--", lw=1,
                  label="optimum for known p")  # fmt: skip
    for number, change in enumerate(learner.changes_):
        ax.axvline(
            change.n_interactions, color=GREY, ls=":", lw=1.2,
            label="change noticed" if number == 0 else None,
        )  # fmt: skip
    count_interactions(ax)
    ax.set_ylabel("distortion")
    values = np.concatenate([table[known][known.sum() // 20 :], observed[seen]])
    if len(values):
        ax.set_ylim(*_limits(values, 0.15))
    ax.legend(frameon=False)
    return ax


def plot_costs(estimated: Any, true: Any, *, ax: Any = None) -> Any:
    """Draw expected costs as learned against the true ones, one dot per entity and prescription.

    Parameters
    ----------
    estimated, true : arrays of the same shape
        Expected costs.
    ax : matplotlib axes, optional
        Where to draw.

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from volition.plotting import plot_costs
    >>> plot_costs([[1.0, 2.0]], [[1.1, 2.0]]).get_title()
    'root mean square error 0.0707, 4.6 % of the mean'
    """
    a: FloatArray = np.asarray(estimated, dtype=float).ravel()
    b: FloatArray = np.asarray(true, dtype=float).ravel()
    if a.shape != b.shape or len(a) == 0:
        raise ValueError(
            f"estimated and true must have one shape, got {np.shape(estimated)} and "
            f"{np.shape(true)}."
        )
    ax = _axes(ax)
    ends = _limits(np.concatenate([a, b]), 0.03)
    ax.plot(ends, ends, color=GREY, lw=1, zorder=0)
    dot = float(np.clip(2000 / len(a), 1, 20))
    ax.scatter(b, a, s=dot, color=BLUE, alpha=0.3, lw=0, rasterized=True)
    error = float(np.sqrt(np.mean((a - b) ** 2)))
    # A mean of costs of both signs is no yardstick.
    size, name = (b.mean(), "mean") if b.min() >= 0 else (b.std(), "standard deviation")
    share = f", {100 * error / size:.1f} % of the {name}" if size > 0 else ""
    ax.set(
        xlabel="true expected cost", ylabel="learned expected cost", xlim=ends, ylim=ends,
        title=f"root mean square error {error:.3g}{share}",
    )  # fmt: skip
    ax.set_aspect("equal")
    return ax


def plot_change(change: Change, *, center_names: Any = None) -> Any:
    """Draw what shows that behaviour changed: where entities went before, and where they go now.

    Where only costs were told, it is what was expected and what was paid.

    Parameters
    ----------
    change : Change
        From a learner's ``changes_``.
    center_names : list of str, optional
        Of the centres; by default their numbers.

    Returns
    -------
    matplotlib figure

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from volition.learning.drift.detector import Change
    >>> from volition.plotting import plot_change
    >>> tables = [[90, 10], [10, 90]], [[30, 20], [20, 30]]
    >>> change = Change(5500, 5000, "how often entities obey", 0.9, 0.6, 1e-9, *tables, 100)
    >>> figure = plot_change(change)
    >>> len(figure.axes)
    4
    """
    from matplotlib import pyplot as plt

    title = (
        f"Noticed at interaction {change.n_interactions}: {change.what}, {change.before:.2f} to "
        f"{change.after:.2f} (p = {change.p_value:.1g})"
    )
    if not np.any(change.table_after):  # only costs were told
        figure, ax = plt.subplots(figsize=(5.5, 3.9), layout="constrained")
        both = ("expected", f"the last {change.n_after} answers")
        ax.bar(both, (change.before, change.after), color=(BLUE, ORANGE))
        ax.set_ylabel("cost")
        figure.suptitle(title, wrap=True)
        return figure
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.9), layout="constrained")
    tables = [np.array(t, dtype=float) for t in (change.table_before, change.table_after)]
    K = len(tables[0])
    for ax, table, name in zip(axes, tables, ("before", "after"), strict=False):
        share = table / np.maximum(table.sum(1, keepdims=True), 1)
        image = ax.imshow(share, cmap="Blues", vmin=0, vmax=1)
        if K <= 8:
            for j, k in np.ndindex(K, K):
                ax.text(k, j, f"{share[j, k]:.2f}", ha="center", va="center", fontsize=8,
                        color="white" if share[j, k] > 0.6 else "black")  # fmt: skip
        ax.set(xlabel="realised cluster", title=f"{name}: {int(table.sum())} answers")
        ax.set(xticks=range(K), yticks=range(K))
    axes[0].set_ylabel("prescribed cluster")
    figure.colorbar(image, ax=axes[:2], label="share of answers", shrink=0.8)
    place, width = np.arange(K), 0.38
    for side, table, color, name in zip(
        (-1, 1), tables, (BLUE, ORANGE), ("before", "after"), strict=True
    ):
        trials = np.maximum(table.sum(1), 1)
        obey = np.diag(table) / trials
        error = 1.96 * np.sqrt(obey * (1 - obey) / trials)
        axes[2].bar(place + side * width / 2, obey, width, yerr=error, color=color, label=name)
    axes[2].set(
        xlabel="prescribed cluster", ylabel="share that obeys", xticks=place, ylim=(0, 1.18)
    )
    if center_names is not None:
        names = [cut(name, 24) for name in center_names]
        for ax in axes:
            ax.set_xticks(place, names, rotation=90, parse_math=False)
        for ax in axes[:2]:
            ax.set_yticks(place, names, parse_math=False)
    axes[2].legend(frameon=False, ncols=2, loc="upper center")
    figure.suptitle(title)
    return figure
