"""Pictures of annealing: moves and predicted critical betas, the tree of centres, persistence."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from volition.annealing.anneal import AnnealingResult
from volition.annealing.n_clusters import persistence_ranking
from volition.annealing.stability import coincident
from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.plotting.clustering import clustering_info, label_axes
from volition.plotting.text import LONGEST, PLAIN, drawing, label

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#7F7F7F"


def moves(result: AnnealingResult) -> tuple[FloatArray, FloatArray]:
    """Return betas and how fast the centres move there: norm of the change of Y per unit log beta.

    Where the number of centres changes, each is compared with the nearest one before.

    Examples
    --------
    >>> from volition import anneal
    >>> from volition.plotting.phase import moves
    >>> from volition.core.problem import Problem
    >>> betas, speed = moves(anneal(Problem([[0.0], [1.0]]), 2, random_state=0))
    >>> betas.shape == speed.shape, bool(speed.max() > 0.1)
    (True, True)
    """
    # Of several states at one beta, the last counts.
    last = {record.beta: Y for record, Y in zip(result.history, result.path, strict=True)}
    betas, path = np.array(list(last)), list(last.values())
    size = []
    for a, b in itertools.pairwise(path):
        before = a if len(a) == len(b) else a[_nearest(b, a)]
        size.append(np.linalg.norm(b - before))
    return betas[1:], np.array(size) / np.diff(np.log(betas))


def _nearest(points: FloatArray, among: FloatArray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - among[None], axis=2).argmin(axis=1)


def _problem(data: Any) -> Problem:
    """Return the problem; an array is one of entities that obey."""
    return data if isinstance(data, Problem) else Problem(data)


def _axes(ax: Any) -> Any:
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(6.4, 4.2), layout="constrained")[1] if ax is None else ax


def plot_moves(result: AnnealingResult, ax: Any = None) -> Any:
    """Draw how fast centres move against beta, with the predicted critical betas.

    The paper's appendix figure: centres rest between critical betas and leap at them.

    Examples
    --------
    >>> from volition import anneal
    >>> from volition.datasets import load_four_groups
    >>> from volition.plotting import plot_moves
    >>> from volition.core.problem import Problem
    >>> ax = plot_moves(anneal(Problem(load_four_groups().data), 4, random_state=0))
    >>> ax.get_xscale()
    'log'
    """
    ax = _axes(ax)
    betas, speed = moves(result)
    floor = 1e-4 * speed.max(initial=0.0)
    ax.plot(betas, np.maximum(speed, floor), color=BLUE, lw=1.2, label="seen")
    predicted = [t.predicted for t in result.transitions if t.predicted is not None]
    for i, beta in enumerate(predicted):
        label = "predicted critical beta" if i == 0 else None
        ax.axvline(beta, color=ORANGE, lw=1, ls="--", alpha=0.7, label=label, zorder=0)
    ax.set(xscale="log", xlabel="beta", ylabel="‖ΔY‖ per unit of log beta")
    if floor > 0:  # rest is drawn at the bottom, or its last digits would fill the picture
        ax.set(yscale="log", ylim=(floor, 2e4 * floor))
    ax.legend(framealpha=0.9)
    return ax


def plot_tree(problem: Any, result: AnnealingResult, ax: Any = None) -> Any:
    """Draw the tree of centres: each place of a centre, against beta, joined to where it came from.

    Centres with more than one coordinate are shown along the entities' main axis.

    Examples
    --------
    >>> from volition import anneal
    >>> from volition.datasets import load_four_groups
    >>> from volition.plotting import plot_tree
    >>> from volition.core.problem import Problem
    >>> problem = Problem(load_four_groups().data)
    >>> plot_tree(problem, anneal(problem, 4, random_state=0)).get_xlabel()
    'beta'
    """
    from matplotlib.collections import LineCollection

    ax = _axes(ax)
    problem = _problem(problem)
    X = problem.X.astype(np.float64)
    main = PCA(1).fit(X) if problem.d > 1 and np.ptp(X) > 0 else None

    def along(Y: FloatArray) -> FloatArray:
        return Y[:, 0] if main is None else main.transform(Y)[:, 0]

    lines, widths = [], []
    before: tuple[float, FloatArray] | None = None
    for record, Y in zip(result.history, result.path, strict=True):
        number = coincident(problem, Y, record.beta)
        places = np.stack([Y[number == i].mean(axis=0) for i in range(number.max() + 1)])
        if before is not None:
            from_beta, old = before
            for i, parent in enumerate(_nearest(places, old)):
                lines.append([(from_beta, along(old)[parent]), (record.beta, along(places)[i])])
                widths.append(0.8 + 3 * np.mean(number == i))
        before = record.beta, places
    ax.add_collection(LineCollection(lines, colors=BLUE, linewidths=widths))
    ax.set(xscale="log", xlabel="beta")
    ax.set_ylabel("centre" if main is None else "centre, along the main axis")
    ax.autoscale()
    return ax


def plot_persistence(result: AnnealingResult, ax: Any = None, n_bars: int = 8) -> Any:
    """Draw the most persistent numbers of distinct centres, and how long each lasts.

    Examples
    --------
    >>> from volition import suggest_n_clusters
    >>> from volition.datasets import load_four_groups
    >>> from volition.plotting import plot_persistence
    >>> ax = plot_persistence(suggest_n_clusters(load_four_groups().data).path)
    >>> ax.get_yticklabels()[0].get_text()
    '4'
    """
    ax = _axes(ax)
    # More centres than were looked at have no persistence to speak of.
    found = persistence_ranking(result)
    ranking = ([p for p in found if not p.open_ended or len(result.path[0]) > 1] or found)[:n_bars]
    place = np.arange(len(ranking))
    colors = [ORANGE if i == 0 else BLUE for i in place]
    ax.barh(place, [p.persistence for p in ranking], color=colors, height=0.7)
    for i, p in enumerate(ranking):
        note = f" {p.persistence:.2f}" + (" and more" if p.open_ended else "")
        ax.text(p.persistence, i, note, va="center", fontsize=8)
    ax.set_yticks(place, [str(p.n_clusters) for p in ranking])
    ax.invert_yaxis()
    ax.margins(x=0.3)
    ax.set(xlabel="persistence (length in log beta)", ylabel="distinct centres")
    return ax


def plot_numbers(result: AnnealingResult, ax: Any = None) -> Any:
    """Draw the number of distinct centres against beta.

    Examples
    --------
    >>> from volition import suggest_n_clusters
    >>> from volition.datasets import load_four_groups
    >>> from volition.plotting import plot_numbers
    >>> plot_numbers(suggest_n_clusters(load_four_groups().data).path).get_ylabel()
    'distinct centres'
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax = _axes(ax)
    betas = [record.beta for record in result.history]
    numbers = [record.n_distinct for record in result.history]
    ax.step(betas, numbers, where="post", color=BLUE)
    for p in persistence_ranking(result)[:3]:
        middle = np.sqrt(p.beta_from * p.beta_to)
        ax.annotate(str(p.n_clusters), (middle, p.n_clusters), (0, 4), textcoords="offset points")
    if max(numbers) > 8:
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    else:
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.margins(y=0.12)
    ax.set(xscale="log", xlabel="beta", ylabel="distinct centres")
    return ax


def plot_phase(problem: Any, result: AnnealingResult, title: str = "") -> Any:
    """Draw numbers, persistence, tree and moves in one figure; return the figure.

    Examples
    --------
    >>> from volition import anneal
    >>> from volition.datasets import load_four_groups
    >>> from volition.plotting import plot_phase
    >>> from volition.core.problem import Problem
    >>> problem = Problem(load_four_groups().data)
    >>> len(plot_phase(problem, anneal(problem, 4, random_state=0)).axes)
    4
    """
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 7.4), layout="constrained")
    plot_numbers(result, axes[0, 0]).set_title("how many distinct centres")
    plot_persistence(result, axes[0, 1]).set_title("how long each number lasts")
    plot_tree(problem, result, axes[1, 0]).set_title("where they come from")
    plot_moves(result, axes[1, 1]).set_title("when they move")
    if title:
        figure.suptitle(label(title, 2 * LONGEST), **PLAIN)
    return figure


def animate(
    problem: Any,
    result: AnnealingResult,
    path: Any,
    *,
    fps: int = 10,
    names: Any = None,
    max_frames: int = 150,
    on_frame: Callable[[int, int], Any] | None = None,
) -> Path:
    """Write the annealing as an animation, beta in the title: .gif, or .mp4 where ffmpeg exists.

    Parameters
    ----------
    problem : Problem or array of shape (n, d)
        What was annealed; an array stands for entities that obey.
    result : AnnealingResult
        The annealing.
    path : path
        File to write; its ending chooses the format.
    fps : int, default=10
        Frames per second.
    names : list of str, optional
        Names of the coordinates.
    max_frames : int, default=150
        Longer paths are thinned evenly.
    on_frame : callable, optional
        Called with the number of each frame and of all frames.

    Returns
    -------
    Path

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from volition import anneal
    >>> from volition.plotting import animate
    >>> from volition.core.problem import Problem
    >>> problem = Problem([[0.0], [1.0], [5.0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = animate(problem, anneal(problem, 2), pathlib.Path(folder, "a.gif"), max_frames=3)
    ...     file.stat().st_size > 1000
    True
    """
    from matplotlib import pyplot as plt
    from matplotlib.animation import FuncAnimation

    path, problem = Path(path), _problem(problem)
    writer = _movie_writer(path, fps)
    keep = np.linspace(0, len(result.path) - 1, min(max_frames, len(result.path))).astype(int)
    X = problem.X.astype(np.float64)
    figure, ax = plt.subplots(figsize=(5.6, 5), layout="constrained")
    info = clustering_info(
        X, result.path[-1], np.zeros((len(X), len(result.path[-1]))), names=names
    )
    dots = ax.scatter(*info.points.T, s=6, lw=0)
    stars = ax.scatter([], [], marker="*", s=180, c="black", ec="white", lw=0.8, zorder=3)
    label_axes(ax, info.axis_names)
    if info.aspect is not None:
        ax.set_aspect(info.aspect)
    title = ax.set_title(" ")

    def draw(i: int) -> tuple[Any, ...]:
        record, Y = result.history[i], result.path[i]
        shown = clustering_info(X, Y, problem.policy(Y, record.beta))
        dots.set_facecolors(shown.colors)
        stars.set_offsets(shown.centers)
        title.set_text(f"beta = {record.beta:.4g}, {record.n_distinct} distinct centres")
        return dots, stars, title

    movie = FuncAnimation(figure, draw, frames=keep.tolist(), blit=False)
    with drawing():
        movie.save(path, writer=writer, dpi=90, progress_callback=on_frame)
    plt.close(figure)
    return path


def _movie_writer(path: Path, fps: int) -> Any:
    """Return what writes movies of the kind that the file's ending names."""
    from matplotlib.animation import FFMpegWriter, PillowWriter

    suffix = path.suffix.lower()
    if suffix not in (".gif", ".mp4"):
        raise ValueError(f"An animation is written as .gif or .mp4, got {path.name!r}.")
    if suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise ValueError(f"Writing {path.name} needs the program ffmpeg; use .gif instead.")
    return PillowWriter(fps=fps) if suffix == ".gif" else FFMpegWriter(fps=fps)
