"""What models and comparisons look like, in a terminal and on a page."""

import math
import re
import warnings
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator, clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_html_repr

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    DistanceAutonomy,
    SimulatedPopulation,
    TabularClustering,
    load_model,
    save_model,
)
from volition.choices import Interval, PlanCost
from volition.choices.comparison import Comparison
from volition.core.display import places

HOSTILE = ["<script>alert('x')</script>", "a\x1b[31m&\u202eb\x07"]
CENTERS = ["<b>mall</b>", "port\x1b]0;owned\x07", "\u6e2f\u53e3 \"'"]
rng = np.random.default_rng(0)
X = rng.random((90, 2))
FRAME = pd.DataFrame(X, columns=HOSTILE)
VOID = {"input", "br", "img", "hr", "meta", "link"}
MODELS = {
    "known": AutonomyAwareClustering(3, autonomy=DistanceAutonomy(0.3), random_state=0),
    "counts": TabularClustering(3, n_interactions=400, random_state=0),
    "table of costs": TabularClustering(3, estimate="costs", n_interactions=400, random_state=0),
    "choices": ChoiceClustering(3, family="distance", n_interactions=400, random_state=0),
    "costs alone": ADENClustering(3, n_interactions=400, random_state=0),
}


class Page(HTMLParser):
    """Whatever is in a page; raises if tags do not close in the order in which they opened."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.cells, self.words = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not any(name.startswith("on") and name != "onclick" for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


def people():
    return SimulatedPopulation(X, DistanceAutonomy(0.3), random_state=0)


def fit(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few answers
        if isinstance(model, AutonomyAwareClustering):
            return model.fit(FRAME)
        return model.fit(FRAME, population=people())


@pytest.fixture(scope="module")
def fitted():
    """Return each model, fitted to a frame with hostile names, once."""
    known = {}

    def get(name):
        if name not in known:
            known[name] = fit(clone(MODELS[name]))
        return known[name]

    return get


@pytest.fixture(scope="module")
def from_log():
    m, Y = 1500, X[:3]
    i, j = rng.integers(0, 90, m), rng.integers(0, 3, m)
    used = people().respond(i, j, Y).realized
    log = {
        "entity": i,
        "prescribed": [CENTERS[k] for k in j],
        "realized": [CENTERS[k] for k in used],
    }
    model = ChoiceClustering(3, family="distance", random_state=0)
    return model.fit_log(FRAME, log, Y, center_names=CENTERS)


def check_harmless(text):
    """No control character gets through, and none that turns the direction of writing."""
    assert all(c.isprintable() or c == "\n" for c in text)


def check_page(html):
    page = Page(html)
    assert all(c.isprintable() or c in "\n\t" for c in html)
    assert "b" not in page.tags[page.tags.index("table") :]
    assert html.count("<script") == html.count("<body>")  # scikit-learn's own
    return page


@pytest.mark.parametrize("name", MODELS)
def test_before_a_fit_it_is_what_scikit_learn_shows(name):
    model = clone(MODELS[name])
    assert repr(model) == str(model) == BaseEstimator.__repr__(model)
    mine, theirs = model._repr_html_(), estimator_html_repr(model)
    assert re.sub(r"id-\d+", "", mine) == re.sub(r"id-\d+", "", theirs)
    assert {"n_clusters", "random_state"} <= {cell.strip() for cell in Page(mine).cells}


@pytest.mark.parametrize("name", MODELS)
def test_a_fitted_model_shows_what_was_found(name, fitted, tmp_path):
    model = fitted(name)
    loaded = load_model(save_model(model, tmp_path / "m.safetensors"))
    assert repr(loaded) == repr(model)
    text, html = repr(model), model._repr_html_()
    assert str(model) == text
    assert text.startswith(BaseEstimator.__repr__(model))
    check_harmless(text)
    page = check_page(html)
    cells = [cell.strip() for cell in page.cells]
    assert {"n_clusters", "centres", "entities", "90"} <= set(cells)
    figures = [f"{value:.4g}" for value in model.cluster_centers_.ravel()]
    counts = [str(n) for n in np.bincount(model.labels_, minlength=3)]
    cost = model.distortion_
    if name != "known":
        cost = model.distortion_estimate().value
        low, high = model.distortion_estimate()[1:3]
        answers = f"{model.n_answers_} answers to {model.n_interactions_} questions"
        for shown in (text, " ".join(cells)):
            assert answers in shown
            assert f"{low:.4g} to {high:.4g}" in shown
    for figure in (*figures, *counts, f"{cost:.4g} squared units"):
        assert figure in text
        assert any(cell.startswith(figure) for cell in cells)
    for shown in (text, " ".join(cells)):
        assert HOSTILE[0] in shown  # as words, not as markup
        assert r"a\x1b[31m&\u202eb\x07" in shown


def test_copies_and_parameters_know_nothing_of_it(fitted):
    model = fitted("choices")
    assert repr(clone(model)) == BaseEstimator.__repr__(model)
    assert clone(model).get_params() == model.get_params()
    pipe = make_pipeline(StandardScaler(), AutonomyAwareClustering(2, random_state=0)).fit(X)
    assert "AutonomyAwareClustering(n_clusters=2, random_state=0)" in repr(pipe)
    Page(pipe._repr_html_())
    bundle = model._repr_mimebundle_()
    assert bundle["text/plain"] == repr(model)
    with config_context(display="text"):
        assert not hasattr(model, "_repr_html_")


def test_a_learner_shows_where_it_stands():
    model = ChoiceClustering(3, random_state=0).start(X, centers=X[:3])
    assert "0 answers to 0 questions" in repr(model)
    assert "cost" not in repr(model).partition("\n")[2]  # nothing is known of it
    asked = model.ask(40)
    answer = people().respond(asked.entities, asked.prescribed, asked.centers)
    model.tell(asked, answer).learn()
    model.remove_entities([3, 4])
    assert "40 answers to 40 questions" in repr(model)
    assert "88, 2 have left" in repr(model)
    check_page(model._repr_html_())


def test_doubts_are_shown(fitted):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Y = X[:3]
        log = {"entity": np.arange(60), "prescribed": np.zeros(60, int), "realized": [0, 1] * 30}
        model = ChoiceClustering(3, family="distance", random_state=0).fit_log(X, log, Y)
    assert caught
    text = " ".join(repr(model).split())
    page = " ".join(check_page(model._repr_html_()).words)
    doubts = [str(w.message) for w in caught if type(w.message).__name__ == "UnreliableWarning"]
    assert doubts
    for doubt in doubts:
        assert " ".join(doubt.split()) in text
        assert doubt in page


def test_many_centres_and_coordinates_are_cut():
    wide = np.random.default_rng(1).random((40, 12))
    model = AutonomyAwareClustering(13, n_init=1, random_state=0).fit(wide)
    assert "First 10 of 13 centres and 8 of 12 coordinates." in repr(model)
    check_page(model._repr_html_())
    grid, left_out = places(np.eye(3).tolist())
    assert left_out == ""
    assert grid.heads == ("centre", "x0", "x1", "x2")


def test_a_log_shows_names_and_the_plan(from_log):
    text = repr(from_log)
    check_harmless(text)
    page = check_page(from_log._repr_html_())
    for shown in (text, " ".join(page.cells)):
        assert from_log.decision_.name in shown
        assert "<b>mall</b>" in shown
        assert r"port\x1b]0;owned\x07" in shown
        assert "1500 answers" in shown
    low, high = from_log.compare_plans()[-1].expected[1:]
    assert from_log.decision_.name == "moved centres"
    assert f"{low:.4g} to {high:.4g}" in text


def test_options_are_an_aligned_table(from_log):
    plans = from_log.compare_plans({"<i>mine\x1b[2J": (X[3:6], np.zeros(90, dtype=int))})
    assert len(plans) == 2
    assert [row.name for row in plans] == ["today", "<i>mine\x1b[2J"]
    assert plans[1] is plans[-1]
    assert isinstance(plans[0], PlanCost)
    text = repr(plans)
    check_harmless(text)
    lines = text.splitlines()
    assert len(lines) == 4
    assert r"<i>mine\x1b[2J" in text
    page = check_page(plans._repr_html_())
    assert "i" not in page.tags
    for row in plans:
        for value in (row.expected.value, row.expected.low):
            assert f"{value:.4g}" in text
            assert f"{value:.4g}" in " ".join(page.cells)
    saving = plans[1].saving
    assert f"{saving.low:.4g} to {saving.high:.4g}" in " ".join(page.cells)
    share = 100 * saving.value / plans[0].direct.value
    assert f"{share:.3g}" in text
    assert "squared units" in text


def test_columns_of_a_table_stand_below_each_other():
    none = Interval(math.nan, math.nan, math.nan)
    rows = [
        PlanCost(name, Interval.around(cost, 1.0), none, none, saving, none)
        for name, cost, saving in (
            ("today", 1000.0, Interval(0.0, 0.0, 0.0)),
            ("\u6e2f\u53e3", 7.0, Interval.around(993.0, 2.0)),
            ("unknown", 5.0, none),
        )
    ]
    lines = repr(Comparison(rows, "unknown")).splitlines()
    assert lines[-1] == "Costs per entity. * Recommended."
    at = lines[0].index("cost") + len("cost")
    assert lines[1][:at].endswith("1000")
    assert lines[2][: at - 2].endswith(" 7")  # its two characters are as wide as four
    assert lines[3][:at].endswith("5")
    assert lines[3].startswith("unknown *")


def test_a_decision_and_a_proposal_read_well(from_log):
    decision = from_log.decision_
    assert repr(decision).startswith(f"Recommended: {decision.name}\n- Why: {decision.reason}.")
    check_page(decision._repr_html_())
    model = ChoiceClustering(3, family="distance", random_state=0).start(X, centers=X[:3])
    asked = model.ask(400)
    model.tell(asked, people().respond(asked.entities, asked.prescribed, asked.centers))
    proposal = model.propose()
    page = check_page(proposal._repr_html_())
    for shown in (repr(proposal), " ".join(page.cells)):
        for value in (proposal.cost_now, proposal.cost_then, proposal.saving):
            assert f"{value:.4g}" in shown
        assert f"{proposal.low:.4g} to {proposal.high:.4g}" in shown
    assert str(proposal).startswith("Moving saves")
