import math
import warnings

import numpy as np
import pytest
import torch

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    Recipe,
    SimulatedPopulation,
    TabularClustering,
    anneal,
)
from volition.annealing.schedules import Geometric
from volition.core.costs import SquaredEuclidean
from volition.core.problem import Problem
from volition.metrics import distortion
from volition.plotting import (
    ClusteringDisplay,
    animate,
    plot_attention,
    plot_change,
    plot_comparison,
    plot_costs,
    plot_learning,
    plot_moves,
    plot_numbers,
    plot_persistence,
    plot_phase,
    plot_training,
    plot_tree,
)
from volition.plotting.clustering import cluster_colors, clustering_info
from volition.plotting.phase import moves


@pytest.mark.parametrize("n_clusters", [1, 4, 8, 25, 60])
def test_colours_are_distinct(n_clusters):
    colors = cluster_colors(n_clusters)
    assert colors.shape == (n_clusters, 3)
    assert ((colors >= 0) & (colors <= 1)).all()
    assert len(np.unique(colors.round(3), axis=0)) == n_clusters


def test_entities_are_mixtures_of_centre_colours(rng):
    policy = rng.dirichlet(np.ones(3), size=10)
    info = clustering_info(rng.random((10, 2)), rng.random((3, 2)), policy)
    np.testing.assert_allclose(info.colors, policy @ cluster_colors(3))


def test_other_dimensions_are_projected(rng):
    policy = np.full((20, 2), 0.5)
    X = rng.normal(size=(20, 5)) * [10, 1, 0.1, 0.1, 0.1]
    info = clustering_info(X, X[:2], policy)
    assert info.points.shape == (20, 2)
    assert info.axis_names[0].startswith("principal component 1 (9")
    line = clustering_info(X[:, :1], X[:2, :1], policy, names=["speed"])
    assert line.axis_names == ("speed", "(spread for visibility)")
    np.testing.assert_array_equal(line.points[:, 0], X[:, 0])
    north_up = clustering_info(X[:, :2], X[:2, :2], policy, names=["lat", "lon"], geographic=True)
    assert north_up.axis_names == ("lon", "lat")


def test_display_draws_on_given_axes(four_groups):
    import matplotlib.pyplot as plt

    model = AutonomyAwareClustering(4, n_init=1, random_state=0).fit(four_groups)
    _, ax = plt.subplots()
    display = ClusteringDisplay.from_estimator(model, four_groups, ax=ax)
    assert display.ax_ is ax
    assert f"distortion {model.distortion_:.4g}" in ax.get_title()
    stars = ax.collections[1].get_offsets()
    np.testing.assert_allclose(stars, model.cluster_centers_)


def test_comparison_judges_both_with_autonomy(four_groups):
    autonomy = DistanceAutonomy(0.4, temperature=100)
    aware = AutonomyAwareClustering(4, autonomy=autonomy, n_init=1, random_state=0)
    plain = AutonomyAwareClustering(4, n_init=1, random_state=0)
    figure = plot_comparison(
        aware.fit(four_groups), plain.fit(four_groups), four_groups, caption="kappa = 0.4"
    )
    cost = distortion(four_groups, plain.cluster_centers_, autonomy, plain.labels_)
    titles = [ax.get_title() for ax in figure.axes]
    assert f"{aware.distortion_:.4g}" in titles[0]
    assert f"{cost:.4g} (+35.9 %)" in titles[1]


def test_comparison_passes_metadata_on(four_groups, rng):
    X = four_groups[::20]
    p = rng.dirichlet(np.ones(2), size=(len(X), 2))
    aware = AutonomyAwareClustering(2, n_init=1, random_state=0).fit(X, autonomy_proba=p)
    plain = AutonomyAwareClustering(2, n_init=1, random_state=0).fit(X)
    figure = plot_comparison(aware, plain, X, autonomy_proba=p)
    assert f"{aware.distortion_:.4g}" in figure.axes[0].get_title()
    assert "(+" in figure.axes[1].get_title()


@pytest.fixture
def annealed(four_groups):
    problem = Problem(four_groups[::10])
    return problem, anneal(problem, 4, schedule=Geometric(tau=1.1), random_state=0)


def test_moves_peak_at_the_first_split(annealed):
    _, result = annealed
    betas, speed = moves(result)
    first = result.transitions[0]
    assert len(betas) == len(result.history) - 1
    before = speed[betas < first.beta].max()
    assert speed.max() > 20 * before
    np.testing.assert_allclose(
        speed[3] * np.log(1.1), np.linalg.norm(result.path[4] - result.path[3]), rtol=1e-9
    )


def test_phase_pictures_show_what_they_say(annealed):
    problem, result = annealed
    ax = plot_moves(result)
    marked = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "--"]
    predicted = [t.predicted for t in result.transitions if t.predicted is not None]
    np.testing.assert_allclose(marked, predicted)
    tree = plot_tree(problem, result)
    ends = np.array([segment[-1] for segment in tree.collections[0].get_segments()])
    assert (ends[:, 0] == result.beta).sum() == 4
    assert plot_numbers(result).lines[0].get_ydata()[-1] == 4
    bars = plot_persistence(result).patches
    assert bars[0].get_width() == max(bar.get_width() for bar in bars)
    assert len(plot_phase(problem, result, "title").axes) == 4


def test_animation(annealed, tmp_path, monkeypatch):
    from PIL import Image

    problem, result = annealed
    seen = []
    path = animate(
        problem, result, tmp_path / "a.gif", max_frames=4, on_frame=lambda i, n: seen.append((i, n))
    )
    with Image.open(path) as image:
        assert image.n_frames == 4
    assert seen[-1] == (3, 4)
    with pytest.raises(ValueError, match=r"\.gif or \.mp4"):
        animate(problem, result, tmp_path / "a.avi")
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ValueError, match="needs the program ffmpeg"):
        animate(problem, result, tmp_path / "a.mp4")


@pytest.fixture
def learner(four_groups):
    X = four_groups[::6]
    P = np.full((4, 4), 0.1) + 0.6 * np.eye(4)
    changed = FixedAutonomy(np.full((4, 4), 0.25))
    people = SimulatedPopulation(X, FixedAutonomy(P), changes={3000: changed}, random_state=0)
    model = TabularClustering(4, batch_size=500, random_state=0)
    return model.partial_fit(X, population=people, n_interactions=6000)


def test_learning_is_drawn_against_interactions(learner):
    ax = plot_learning(learner, optimum=[(0, 0.1), (3000, 0.2)])
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"according to what was learned", "optimum for known p", "change noticed"} <= set(labels)
    line = ax.get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), np.arange(500, 6001, 500))
    np.testing.assert_allclose(line.get_ydata()[-1], learner.history_[-1].distortion)
    with pytest.raises(ValueError, match="has learned nothing yet"):
        plot_learning(TabularClustering(2).start([[0.0], [1.0]]))


def test_costs_are_drawn_against_the_truth():
    ax = plot_costs([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 2.0]])
    (dots,) = ax.collections
    np.testing.assert_array_equal(dots.get_offsets()[3], [2.0, 4.0])
    assert ax.get_title().startswith("root mean square error 1, 50.0 %")
    with pytest.raises(ValueError, match="must have one shape"):
        plot_costs([1.0], [1.0, 2.0])


def test_costs_below_nothing_are_seen(learner):
    ax = plot_costs([-3.0, -1.0, 1.5], [-3.0, -1.0, 1.0])
    for low, high in (ax.get_xlim(), ax.get_ylim()):
        assert low < -3
        assert high > 1.5
    assert ax.get_title().endswith("% of the standard deviation")
    names = ("distortion", "observed", "low", "high")
    learner.history_[:] = [
        line._replace(**{name: getattr(line, name) - 100 for name in names})
        for line in learner.history_
    ]
    ax = plot_learning(learner)
    low, high = ax.get_ylim()
    last = learner.history_[-1]
    assert low < min(last.distortion, last.observed)
    assert max(last.distortion, last.observed) < high < 0


def test_a_change_is_drawn(learner):
    (change,) = learner.changes_
    figure = plot_change(change)
    bars = [bar.get_height() for bar in figure.axes[2].patches]
    before = np.array(change.table_before)
    np.testing.assert_allclose(bars[:4], np.diag(before) / before.sum(1))
    assert "how often" in figure.get_suptitle()


def test_a_change_of_costs_alone_is_drawn(learner):
    none = np.zeros((4, 4), dtype=int).tolist()
    change = learner.changes_[0]._replace(
        what="what entities pay", before=3.0, after=5.0, table_before=none, table_after=none
    )
    figure = plot_change(change)
    assert [bar.get_height() for bar in figure.axes[0].patches] == [3.0, 5.0]
    assert "what entities pay, 3.00 to 5.00" in figure.get_suptitle()


def learned(X, **params):
    truth = DistanceAutonomy(0.3, temperature=0.01)
    people = SimulatedPopulation(X, truth, reveal="cost", random_state=0)
    recipe = Recipe(hidden_dim=8, ff_dim=8, n_heads=2, n_layouts=8, n_samples=16, epochs=1, tau=20)
    model = ADENClustering(4, preset=recipe, n_interactions=800, random_state=0, **params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # 800 answers teach little; fits may say so
        return model.fit(X, population=people)


def test_training_shows_loss_beta_and_gap(four_groups):
    model = learned(four_groups[::10], head="costs")
    left, right, beta = plot_training(model, optimum=0.05).axes[:3]
    line = left.lines[0].get_xydata()
    np.testing.assert_allclose(line[:, 1], [row.loss for row in model.history_])
    assert left.get_yscale() == beta.get_yscale() == "log"
    (gap,) = right.child_axes
    gap.figure.canvas.draw()
    low, high = right.get_ylim()
    np.testing.assert_allclose(gap.get_ylim(), [100 * (low / 0.05 - 1), 100 * (high / 0.05 - 1)])
    assert not plot_training(model, optimum=-0.05).axes[1].child_axes  # nothing has a share of it
    with pytest.raises(ValueError, match="no history"):
        plot_training(ADENClustering(4).start(four_groups))


def test_training_of_few_fits_is_seen(four_groups):
    X = four_groups[::10]
    people = SimulatedPopulation(X, metric=lambda A, B: torch.cdist(A, B, p=1), reveal="cost")
    model = ADENClustering(3, n_interactions=200, random_state=0)
    model.start(X)
    asked = model.ask(50)
    answer = people.respond(asked.entities, asked.prescribed, asked.centers)
    model.tell(asked, answer).learn()
    assert math.isnan(model.history_[-1].distortion)  # nothing has been learned
    plot_training(model)
    model.fit(X, population=people)
    assert model.head_ == "service"
    left, right = plot_training(model).axes[:2]
    (line,) = left.lines
    assert len(line.get_xdata())
    assert line.get_marker() == "o"
    assert line.get_ydata()[-1] == model.history_[-1].loss
    learned = right.lines[0]
    assert learned.get_ydata()[-1] == model.distortion_


def test_the_loss_of_choices_is_their_mean_surprise(four_groups):
    """By definition: minus the mean logarithm of the chance of what was chosen."""
    X = four_groups[::10]
    people = SimulatedPopulation(X, DistanceAutonomy(0.3, temperature=0.01), random_state=0)
    model = ChoiceClustering(4, random_state=0)
    model.partial_fit(X, population=people, n_interactions=2000)
    asked = model.choices_
    p = model.model_.conditional_each(
        torch.from_numpy(X[asked.entities]), torch.from_numpy(asked.prescribed),
        torch.from_numpy(asked.layouts[asked.layout]), SquaredEuclidean(),
    ).numpy()  # fmt: skip
    surprise = -np.log(p[np.arange(len(p)), asked.realized]).mean()
    assert model.history_[-1].loss == pytest.approx(surprise, rel=1e-6)


def test_attention_has_a_map_per_centre(four_groups):
    X = four_groups[::10]
    model = learned(X, head="costs")
    figure = plot_attention(model, block=0)
    titles = [ax.get_title() for ax in figure.axes[:4]]
    assert titles == [f"to centre {k}" for k in range(4)]
    shown = figure.axes[2].collections[0].get_array()
    np.testing.assert_allclose(shown, model.attention()[0][:, 2])
    with pytest.raises(ValueError, match="block must lie in 0 to 1"):
        plot_attention(model, block=2)
