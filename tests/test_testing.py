"""The checks that we ship, run over all that we ship and over what the docs tell users to write."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from volition import (
    ADENClustering,
    CallableAutonomy,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    LoggedPopulation,
    LogitAutonomy,
    LoyalAutonomy,
    Passive,
    Recipe,
    Response,
    SimulatedPopulation,
    TabularClustering,
)
from volition.choices import Choices, fit_choices
from volition.core.autonomy import Autonomy, RowAutonomy
from volition.core.costs import SquaredEuclidean
from volition.estimators import Learner
from volition.learning.networks import ADENetwork, NetworkAutonomy, NetworkSize, Units
from volition.testing import check_autonomy, check_learner, check_population

DOCS = Path(__file__).resolve().parents[1] / "docs"
K = 3
rng = np.random.default_rng(0)
X = np.concatenate([rng.normal(0.0, 0.3, (30, 2)), rng.normal(2.0, 0.3, (30, 2))])
P = 0.7 * np.eye(K) + 0.1
TINY = Recipe(
    hidden_dim=4, ff_dim=4, n_blocks=1, n_heads=1, n_layouts=2, n_samples=16, replicas=1, epochs=1,
    updates=1, center_epochs=1, beta_min=1.0, beta_max=4.0, tau=2.0, head="costs",
)  # fmt: skip


def any_centre(X, Y):
    return torch.full((len(X), len(Y), len(Y)), 1 / len(Y), dtype=X.dtype)


def learned():
    """Return what a log of choices teaches."""
    people = SimulatedPopulation(X, DistanceAutonomy(0.4), random_state=0)
    i, j = rng.integers(0, 60, 800), rng.integers(0, K, 800)
    used = people.respond(i, j, X[:K]).realized
    choices = Choices(i, j, used, 0 * i, X[None, :K])
    return fit_choices(X, choices, SquaredEuclidean(), 1.0).model


MODELS = {
    "passive": Passive,
    "fixed": lambda: FixedAutonomy(P),
    "distance, pair": lambda: DistanceAutonomy(0.3),
    "distance, entity": lambda: DistanceAutonomy(0.3, gamma=0.5, zeta=0.2, temperature=0.01),
    "logit": lambda: LogitAutonomy(1.0, pair=-2.0),
    "callable": lambda: CallableAutonomy(any_centre),
    "rows": lambda: RowAutonomy(rng.dirichlet(np.ones(K), (60, K))),
    "loyal": lambda: LoyalAutonomy(DistanceAutonomy(0.2), rng.random((60, K)) / (2 * K)),
    "choices": learned,
    "network": lambda: NetworkAutonomy(
        ADENetwork(2, NetworkSize(8, 8, 1, 2), head="choices", seed=0), Units(np.zeros(2), 1.0, 1.0)
    ),
}
#: kinds that are parts of others, or of a search
NOT_ALONE = {"StayOrLeave", "CostLogits", "CautiousAutonomy", "PlannedAutonomy"}
LEARNERS = {
    "counts": TabularClustering(K),
    "table of costs": TabularClustering(K, estimate="costs"),
    "choices": ChoiceClustering(K, family="distance"),
    "choices, terms alone": ChoiceClustering(K, network=False),
    "costs decoded": ADENClustering(K, exploration=0.4, device="auto"),
    "expected costs": ADENClustering(K, preset=TINY),
}


def subclasses(kind):
    found = set()
    for one in kind.__subclasses__():
        if one.__module__.startswith("volition."):
            found |= {one.__name__, *subclasses(one)}
    return found


@pytest.mark.parametrize("name", MODELS)
def test_every_autonomy_is_a_law(name):
    check_autonomy(MODELS[name](), X, X[[0, 20, 40]])


def test_no_autonomy_is_left_out():
    checked = {type(make()).__name__ for make in MODELS.values()}
    assert subclasses(Autonomy) - NOT_ALONE == checked


@pytest.mark.parametrize(
    "options",
    [{}, {"reveal": "cost"}, {"missing": 0.5}, {"changes": {30: Passive()}}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_every_population_answers_well(options):
    check_population(SimulatedPopulation(X, FixedAutonomy(P), random_state=0, **options), X, K)


def test_a_log_answers_well():
    i, j = (one.ravel() for one in np.meshgrid(np.arange(60), np.arange(K)))
    log = {"entity": np.tile(i, 9), "prescribed": np.tile(j, 9), "realized": np.tile(j, 9)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows repeat earlier ones
        people = LoggedPopulation(log, X, X[:K])
    check_population(people, X, K)


def population_of_the_docs():
    """Return the class that docs/live.md tells people to write."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "live.md").read_text(), re.S)
    (block,) = [one for one in blocks if "class Panel" in one]
    names = {"np": np, "Response": Response, "drivers": X}
    exec(block, names)
    return names["Panel"]


def test_a_population_from_the_docs_answers_well():
    check_population(population_of_the_docs()(X), X, K)


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_keeps_the_contract(name):
    def people():
        return SimulatedPopulation(X, FixedAutonomy(P), random_state=0)

    check_learner(LEARNERS[name], X, people, n_interactions=200)


@pytest.mark.parametrize("name", ["counts", "choices", "costs decoded"])
def test_learners_learn_from_the_population_of_the_docs(name):
    panel = population_of_the_docs()
    check_learner(LEARNERS[name], X, lambda: panel(X), n_interactions=200)


def test_no_learner_is_left_out():
    assert subclasses(Learner) == {type(one).__name__ for one in LEARNERS.values()}


# -- what the checks find -------------------------------------------------------------------------


class Deaf:
    """Answers one question too few."""

    def respond(self, entities, prescribed, centers):
        return Response(prescribed[1:], np.ones(max(0, len(entities) - 1)))


class Meddling:
    """Changes what it is given."""

    def respond(self, entities, prescribed, centers):
        prescribed[:] = 0
        return Response(prescribed, np.ones(len(entities)))


@pytest.mark.parametrize(
    ("people", "says"),
    [(Deaf(), "59 answers to 60 questions"), (Meddling(), "must not change what it is given")],
)
def test_a_bad_population_is_found(people, says):
    with pytest.raises(AssertionError, match=says):
        check_population(people, X, K)


def test_a_bad_autonomy_is_found():
    def half(X, Y):
        return any_centre(X, Y) / 2

    with pytest.raises((AssertionError, ValueError), match="sum to"):
        check_autonomy(CallableAutonomy(half), X, X[:K])


class Shortsighted(ChoiceClustering):
    """Prescribes what it has not been asked for."""

    def predict_proba(self, X, covariates=None):
        return 0.5 * super().predict_proba(X, covariates)


def test_a_bad_learner_is_found():
    def people():
        return SimulatedPopulation(X, FixedAutonomy(P), random_state=0)

    with pytest.raises(AssertionError, match="predict_proba must sum to 1"):
        check_learner(Shortsighted(K, family="distance"), X, people, n_interactions=200)
