"""Pictures of a network that learns: loss and gap along the annealing, and its attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volition.estimators import ADENClustering
from volition.plotting.learning import count_interactions, plot_learning
from volition.plotting.phase import BLUE, GREY

#: centres that get a map of their own, at most
MOST_MAPS = 12


def plot_training(learner: ADENClustering, *, optimum: float | None = None) -> Any:
    """Draw the loss, and the distortion or the gap to the optimum, against interactions.

    Parameters
    ----------
    learner : ADENClustering
        One that has learned something.
    optimum : float, optional
        Least distortion if p were known; with it the second panel shows gaps in %.

    Returns
    -------
    matplotlib figure

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from volition import ADENClustering, SimulatedPopulation
    >>> from volition.plotting import plot_training
    >>> X = [[0.0], [1.0], [9.0], [10.0]]
    >>> people = SimulatedPopulation(X, reveal="cost", random_state=0)
    >>> model = ADENClustering(2, n_interactions=400, random_state=0).fit(X, population=people)
    >>> [ax.get_xlabel() for ax in plot_training(model).axes][:2]
    ['interactions', 'interactions']
    """
    from matplotlib import pyplot as plt

    if not learner.history_:
        raise ValueError("The learner has no history to draw: it has learned nothing yet.")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    when, loss, beta = (
        np.array([getattr(line, name) for line in learner.history_])
        for name in ("interactions", "loss", "beta")
    )
    known = np.isfinite(loss)
    annealed = learner.head_ == "costs"
    # A network of choices is fitted a few times only: there may be a single point to see.
    left.plot(when[known], loss[known], color=BLUE, lw=1.2, marker=None if annealed else "o")
    count_interactions(left)
    left.set_ylabel(
        "squared error of a batch" if annealed else "surprise at an answer (-log likelihood)"
    )
    left.yaxis.label.set_color(BLUE)
    if annealed:
        left.set_yscale("log")
        scale = left.twinx()
        scale.step(when, beta, where="post", color=GREY, lw=1)
        scale.set(ylabel="beta", yscale="log")
        scale.yaxis.label.set_color(GREY)
    plot_learning(learner, optimum=optimum, ax=right)
    if optimum is not None and optimum > 0:  # a gap is a share of it
        low, high = right.get_ylim()
        gap = right.secondary_yaxis(
            "right",
            functions=(lambda D: 100 * (D / optimum - 1), lambda g: optimum * (1 + g / 100)),
        )
        gap.set_ylabel("gap to the optimum, %")
        right.set_ylim(low, high)
    return figure


def plot_attention(learner: ADENClustering, X: Any = None, *, block: int = -1) -> Any:
    """Draw how much entities attend to each centre, averaged over heads.

    Parameters
    ----------
    learner : ADENClustering
        One that has a network.
    X : array of shape (m, d), optional
        Entities; those of the fit by default.
    block : int, default=-1
        Which block of the network; the last by default.

    Returns
    -------
    matplotlib figure
        With two features and at most 12 centres a map per centre, else a table by prescription.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from volition import ADENClustering, Recipe, SimulatedPopulation
    >>> from volition.plotting import plot_attention
    >>> X = [[0.0], [1.0], [9.0], [10.0]]
    >>> people = SimulatedPopulation(X, reveal="cost", random_state=0)
    >>> quick = Recipe(head="costs", updates=1, epochs=1)
    >>> model = ADENClustering(2, preset=quick, n_interactions=400, random_state=0)
    >>> model = model.fit(X, population=people)
    >>> plot_attention(model).axes[0].get_xlabel()
    'centre'
    """
    from matplotlib import pyplot as plt

    layers = learner.attention(X)
    if not -len(layers) <= block < len(layers):
        raise ValueError(f"block must lie in 0 to {len(layers) - 1} (or be negative), got {block}.")
    weight = layers[block]
    points = np.asarray(learner.entities_.X if X is None else X, dtype=float)
    Y = learner.cluster_centers_
    K, title = len(Y), f"attention of entities to centres, block {block % len(layers) + 1}"
    if points.shape[1] != 2 or K > MOST_MAPS:
        labels = learner.predict(points)
        table = np.array(
            [weight[labels == j].mean(0) if (labels == j).any() else np.zeros(K) for j in range(K)]
        )
        figure, ax = plt.subplots(figsize=(5.6, 4.6), layout="constrained")
        image = ax.imshow(table, cmap="viridis", vmin=0)
        ax.set(xlabel="centre", ylabel="entities prescribed", title=title)
        figure.colorbar(image, ax=ax, label="mean attention")
        return figure
    columns = min(4, K)
    rows = math.ceil(K / columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(3.1 * columns + 0.8, 3.0 * rows + 0.4), squeeze=False,
        sharex=True, sharey=True, layout="constrained",
    )  # fmt: skip
    for ax in grid.flat[K:]:
        ax.set_visible(False)
    size = float(np.clip(4000 / len(points), 1, 20))
    for k, ax in enumerate(grid.flat[:K]):
        dots = ax.scatter(
            *points.T, c=weight[:, k], s=size, cmap="viridis", vmin=0,
            vmax=float(weight.max()), lw=0, rasterized=True,
        )  # fmt: skip
        ax.scatter(*Y.T, marker="*", s=60, color="white", edgecolor="k", lw=0.6)
        ax.scatter(*Y[k], marker="*", s=160, color="#d55e00", edgecolor="k", lw=0.8)
        ax.set(title=f"to centre {k}", aspect="equal")
    figure.colorbar(dots, ax=grid, label="attention", shrink=0.85)
    figure.suptitle(title)
    return figure
