"""The paper's picture: entities coloured by the mixture of prescriptions, stars for centres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from volition.core.validation import FloatArray
from volition.estimators import AutonomyAwareClustering
from volition.metrics import distortion
from volition.plotting.text import LONGEST, PLAIN, label

#: Okabe and Ito's colours, told apart by almost everyone
OKABE_ITO = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#7F7F7F",
)  # fmt: skip


def cluster_colors(n_clusters: int) -> FloatArray:
    """Return one RGB colour per cluster; beyond eight, neighbours in number differ in lightness.

    Examples
    --------
    >>> from volition.plotting.clustering import cluster_colors
    >>> cluster_colors(25).shape
    (25, 3)
    """
    from matplotlib.colors import hsv_to_rgb, to_rgb

    if n_clusters <= len(OKABE_ITO):
        return np.array([to_rgb(color) for color in OKABE_ITO[:n_clusters]])
    number = np.arange(n_clusters)
    hue = (number * 0.61803398875) % 1  # golden ratio: any run of numbers is spread evenly
    value = np.array([0.95, 0.7, 0.5])[number % 3]
    return np.asarray(hsv_to_rgb(np.stack([hue, np.full(n_clusters, 0.75), value], axis=1)))


@dataclass
class ClusteringInfo:
    """What the picture shows, before anything is drawn."""

    points: FloatArray  # (n, 2)
    colors: FloatArray  # (n, 3)
    centers: FloatArray  # (K, 2)
    center_colors: FloatArray  # (K, 3)
    axis_names: tuple[str, str]
    title: str
    aspect: float | None  # height of one unit of y over width of one of x; None: fill the box


def clustering_info(
    X: Any,
    centers: Any,
    policy: FloatArray,
    *,
    names: Any = None,
    title: str = "",
    geographic: bool = False,
) -> ClusteringInfo:
    """Project to two dimensions where needed and mix the colours.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.plotting.clustering import clustering_info
    >>> X = np.array([[0.0, 0.0], [1.0, 1.0]])
    >>> clustering_info(X, X, np.eye(2)).axis_names
    ('feature 0', 'feature 1')
    """
    X, centers = np.asarray(X, dtype=float), np.asarray(centers, dtype=float)
    d = X.shape[1]
    names = [f"feature {i}" for i in range(d)] if names is None else [str(n) for n in names]
    if d == 1:
        # A vertical spread of no meaning lets dense data be seen.
        height = np.random.RandomState(0).uniform(-1, 1, len(X))
        points = np.column_stack([X[:, 0], height])
        shown = np.column_stack([centers[:, 0], np.zeros(len(centers))])
        axes = (names[0], "(spread for visibility)")
    elif d == 2:
        points, shown = X, centers
        axes = (names[0], names[1])
        if geographic:  # latitude, longitude: north is up
            points, shown, axes = points[:, ::-1], shown[:, ::-1], (names[1], names[0])
    else:
        # Equal entities have no principal components: noise, in units of rounding, gives them some.
        noise = np.random.RandomState(0).standard_normal((3, d)) * (1e-9 * np.abs(X).max() + 1e-9)
        pca = PCA(2).fit(np.vstack([X, X[:1] + noise]))
        points, shown = pca.transform(X), pca.transform(centers)
        share = 100 * pca.explained_variance_ratio_
        first, second = (f"principal component {i + 1} ({share[i]:.0f} %)" for i in range(2))
        axes = (first, second)
    palette = cluster_colors(len(centers))
    colors = np.clip(policy @ palette, 0, 1)
    aspect = _aspect(points, geographic) if d == 2 else None
    return ClusteringInfo(points, colors, shown, palette, (axes[0], axes[1]), title, aspect)


def _aspect(points: FloatArray, geographic: bool) -> float | None:
    """Return the aspect at which distances look as they are, unless the box would be a strip."""
    aspect = 1 / np.cos(np.deg2rad(points[:, 1].mean())) if geographic else 1.0
    width, height = np.ptp(points, axis=0)
    return float(aspect) if 0.25 < (height * aspect + 1e-300) / (width + 1e-300) < 4 else None


def label_axes(ax: Any, names: Any) -> None:
    """Name the axes as the columns are named, whatever that is."""
    ax.set_xlabel(label(names[0]), **PLAIN)
    ax.set_ylabel(label(names[1]), **PLAIN)


class ClusteringDisplay:
    """A clustering as a picture.

    Build it with :meth:`from_estimator`.

    Parameters
    ----------
    info : ClusteringInfo
        What to show.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    Examples
    --------
    >>> from volition import AutonomyAwareClustering
    >>> from volition.datasets import load_four_groups
    >>> from volition.plotting import ClusteringDisplay
    >>> X = load_four_groups().data
    >>> model = AutonomyAwareClustering(4, random_state=0).fit(X)
    >>> display = ClusteringDisplay.from_estimator(model, X)
    >>> display.ax_.get_xlabel()
    'feature 0'
    """

    def __init__(self, info: ClusteringInfo) -> None:
        self.info = info

    @classmethod
    def from_estimator(
        cls,
        estimator: AutonomyAwareClustering,
        X: Any,
        *,
        sample_weight: Any = None,
        groups: Any = None,
        autonomy_proba: Any = None,
        title: str | None = None,
        ax: Any = None,
    ) -> ClusteringDisplay:
        """Draw a fitted model.

        Parameters
        ----------
        estimator : AutonomyAwareClustering
            A fitted model.
        X : array or frame of shape (n, d)
            The entities to show. With more than two columns they are projected on their two
            principal components.
        sample_weight, groups, autonomy_proba : optional
            As in ``fit``.
        title : str, optional
            By default the distortion of these entities.
        ax : matplotlib Axes, optional
            Where to draw.

        Returns
        -------
        ClusteringDisplay
        """
        policy = estimator.predict_proba(X, groups=groups, autonomy_proba=autonomy_proba)
        if title is None:
            score = estimator.score(
                X, sample_weight=sample_weight, groups=groups, autonomy_proba=autonomy_proba
            )
            title = f"K = {len(estimator.cluster_centers_)}, distortion {-score:.4g}"
        info = clustering_info(
            np.asarray(X),
            estimator.cluster_centers_,
            policy,
            names=getattr(estimator, "feature_names_in_", None),
            title=title,
            geographic="haversine" in str(estimator.metric).lower(),
        )
        return cls(info).plot(ax=ax)

    def plot(self, ax: Any = None, *, numbers: bool = True) -> ClusteringDisplay:
        """Draw on ``ax``, or on a new figure; with the centres' numbers or without."""
        import matplotlib.pyplot as plt

        if ax is None:
            _, ax = plt.subplots(figsize=(5, 4.6), layout="constrained")
        info = self.info
        size = float(np.clip(20000 / len(info.points), 1, 16))
        ax.scatter(*info.points.T, s=size, c=info.colors, alpha=0.55, linewidths=0, rasterized=True)
        ax.scatter(
            *info.centers.T,
            s=230 if len(info.centers) <= 12 else 130,
            marker="*",
            c=info.center_colors,
            edgecolors="black",
            linewidths=0.9,
            zorder=3,
        )
        ax.scatter([], [], s=90, marker="*", c="white", edgecolors="black", label="centres")
        for number, place in enumerate(info.centers if numbers else []):
            ax.annotate(
                str(number), place, xytext=(5, 5), textcoords="offset points", fontsize=7, zorder=4
            )
        label_axes(ax, info.axis_names)
        if info.aspect is not None:
            ax.set_aspect(info.aspect)
        ax.set_title(label(info.title, 2 * LONGEST), fontsize=10, **PLAIN)
        ax.legend(loc="best", fontsize=8, framealpha=0.8)
        self.ax_, self.figure_ = ax, ax.figure
        return self


def plot_comparison(
    estimator: AutonomyAwareClustering,
    ignoring: AutonomyAwareClustering,
    X: Any,
    *,
    sample_weight: Any = None,
    groups: Any = None,
    autonomy_proba: Any = None,
    caption: str = "",
) -> Any:
    """Draw the model beside one that ignores autonomy; both are judged with autonomy.

    Parameters
    ----------
    estimator : AutonomyAwareClustering
        A model fitted with autonomy.
    ignoring : AutonomyAwareClustering
        A model fitted to the same entities as if they obeyed.
    X : array or frame of shape (n, d)
        The entities.
    sample_weight, groups, autonomy_proba : optional
        As in ``fit``.
    caption : str, optional
        Parameters, written below.

    Returns
    -------
    matplotlib Figure

    Examples
    --------
    >>> from volition import AutonomyAwareClustering, DistanceAutonomy
    >>> from volition.datasets import load_four_groups
    >>> from volition.plotting import plot_comparison
    >>> X = load_four_groups().data
    >>> aware = AutonomyAwareClustering(4, autonomy=DistanceAutonomy(0.3), random_state=0).fit(X)
    >>> plain = AutonomyAwareClustering(4, random_state=0).fit(X)
    >>> len(plot_comparison(aware, plain, X).axes)
    2
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, 2, figsize=(10, 4.8), layout="compressed", sharex=True, sharey=True
    )
    given = {"groups": groups, "autonomy_proba": autonomy_proba}
    good = -estimator.score(X, sample_weight=sample_weight, **given)
    bad = distortion(
        np.asarray(X),
        ignoring.cluster_centers_,
        estimator.autonomy,
        ignoring.predict(X),
        metric=estimator.metric,
        sample_weight=sample_weight,
        **given,
    )
    ClusteringDisplay.from_estimator(
        estimator, X, ax=axes[0], title=f"autonomy known: distortion {good:.4g}", **given
    )
    percent = f" ({100 * (bad / good - 1):+.1f} %)" if good > 0 else ""
    ClusteringDisplay.from_estimator(
        ignoring, X, ax=axes[1], title=f"autonomy ignored: distortion {bad:.4g}{percent}"
    )
    if caption:
        figure.supxlabel(label(caption, 3 * LONGEST), fontsize=9, **PLAIN)
    return figure
