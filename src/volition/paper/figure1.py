"""Figure 1: the data set; all obey; all choose at random; 75 % obey."""

from __future__ import annotations

from typing import Any

import numpy as np

from volition.datasets import load_four_groups
from volition.estimators import AutonomyAwareClustering
from volition.paper.methods import draw, uniform
from volition.paper.page import Page
from volition.paper.study import Case, Row, Settings, Study

K = 4
#: panel, its title, how many obey, and what the paper's caption says
PANELS = [
    ("b", "no autonomy", 1.0, "at the centroids of the groups"),
    ("c", "p = 1/4 for all", 0.25, "all at the centroid of the data"),
    ("d", "75 % obey", 0.75, "shifted towards the centroid of the data"),
]


def cases(settings: Settings) -> list[Case]:
    """One for each panel with centres."""
    return [Case(panel, {"obey": obey}, 2.0) for panel, _, obey, _ in PANELS]


def solve(params: dict[str, Any], settings: Settings) -> Row:
    """Place four centres."""
    X = load_four_groups().data
    model = AutonomyAwareClustering(
        K, autonomy=uniform(1 - params["obey"], K), random_state=settings.seed
    ).fit(X)
    return {"distortion": model.distortion_, "centers": model.cluster_centers_.tolist()}


def present(rows: list[Row], page: Page) -> None:
    """Four panels, and how far centres are from the centroids."""
    from matplotlib import pyplot as plt

    bunch = load_four_groups()
    X, middle = bunch.data, bunch.data.mean(0)
    groups = np.array([X[bunch.target == g].mean(0) for g in range(K)])
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 8.6), layout="constrained")
    axes[0, 0].scatter(*X.T, s=5, color="#7F7F7F", lw=0)
    axes[0, 0].set(title="(a) data set, N = 1800", xlabel="x", ylabel="y", aspect="equal")
    table = []
    for ax, row, (panel, title, obey, said) in zip(axes.flat[1:], rows, PANELS, strict=True):
        Y = np.array(row["centers"])
        draw(ax, X, Y, uniform(1 - obey, K), f"({panel}) {title}: D = {row['distortion']:.4f}")
        to_group = np.linalg.norm(Y[:, None] - groups, axis=2).min(1)
        to_middle = np.linalg.norm(Y - middle, axis=1)
        table.append(
            {
                "panel": f"({panel}) {title}",
                "the paper says: centres are": said,
                "farthest from the centroid of a group": float(to_group.max()),
                "farthest from the centroid of the data": float(to_middle.max()),
                "distortion D": row["distortion"],
            }
        )
    page.text(
        "The four groups of the paper's figure 1, K = 4, axes scaled to [0, 1]. Entities that "
        "override take any other centre: p(k|j,i) = 0, 0.25 and 0.083 for k other than j."
    )
    page.picture(
        "figure1",
        figure,
        "Four groups, N = 1800, K = 4, axes scaled to [0, 1]. (a) The data set; (b) all "
        "obey; (c) prescriptions have no effect, p = 1/4 for all, and the stars lie on top of each "
        "other; (d) three in four obey. The colour of an entity is the mixture of the colours of "
        "the centres that are prescribed to it: in (c) of all four.",
    )
    page.table("figure1", table)
    page.fact(
        "farthest from the centroid with p = 1/4",
        table[1]["farthest from the centroid of the data"],
    )


FIGURE1 = Study("figure1", "Figure 1: what autonomy does to centres", cases, solve, present)
