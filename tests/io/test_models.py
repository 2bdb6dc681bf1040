"""What learners have learned is saved and used again; parameters of every estimator come back."""

import threading

import numpy as np
import pytest
import torch

from volition import (
    ADENClustering,
    AutonomyAwareClustering,
    ChoiceClustering,
    DistanceAutonomy,
    LoyalAutonomy,
    Recipe,
    RobbinsMonro,
    SimulatedPopulation,
    TabularClustering,
    load_autonomy,
    load_model,
    save_autonomy,
    save_model,
)
from volition.choices import ChoiceAutonomy
from volition.core.autonomy import RowAutonomy
from volition.core.costs import Haversine, SquaredEuclidean
from volition.core.problem import Problem
from volition.learning.networks import ADENetwork, NetworkAutonomy, NetworkSize, Units
from volition.learning.networks.autonomy import CautiousAutonomy
from volition.learning.networks.network import HEADS

X = np.random.default_rng(0).random((60, 2))
Y = np.array([[0.2, 0.3], [0.7, 0.4], [0.5, 0.9]])
TRUTH = DistanceAutonomy(0.3, temperature=0.05)


def learned(head):
    """Return a network that says something, as an autonomy model."""
    network = ADENetwork(2, NetworkSize(8, 8, 1, 2), head, seed=3).double()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.1 * noise
    if head == "service":
        network.attentive.fill_(True)
        network.include_places(torch.tensor([[-2.0, -2.0], [2.0, 2.0]]))
    if head == "costs":
        network.allow_negative()
    return NetworkAutonomy(network, Units(X.mean(0), 0.4, 0.1))


def costs(model, dtype=np.float64):
    return Problem(X.astype(dtype), autonomy=model).expected_costs(Y.astype(dtype))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_network_is_saved_as_an_autonomy(tmp_path, head, share):
    model = learned(head).with_overrides_scaled(share)
    again = load_autonomy(save_autonomy(model, tmp_path / "a.safetensors"))
    assert repr(again) == repr(model)
    np.testing.assert_array_equal(costs(again), costs(model))
    np.testing.assert_array_equal(costs(again, np.float32), costs(model, np.float32))


@pytest.mark.parametrize("head", ["choices", "service"])
def test_loyalty_over_a_network_is_saved(tmp_path, head):
    loyalty = np.where(np.arange(60)[:, None] < 20, [[0.5, 0.1, 0.2]], 0.0)
    model = LoyalAutonomy(learned(head), loyalty, share=0.75)
    again = load_autonomy(save_autonomy(model, tmp_path / "a.safetensors"))
    np.testing.assert_array_equal(costs(again), costs(model))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matrices_of_single_entities_are_saved(tmp_path, dtype):
    p = np.random.default_rng(1).dirichlet(np.ones(3), (60, 3)).astype(dtype)
    model = RowAutonomy(p)
    again = load_autonomy(save_autonomy(model, tmp_path / "a.safetensors"))
    assert again.p.dtype == dtype
    np.testing.assert_array_equal(costs(again), costs(model))


@pytest.mark.parametrize("head", HEADS)
def test_what_aden_has_learned_is_used_elsewhere(tmp_path, head):
    people = SimulatedPopulation(X, TRUTH, reveal="cost", random_state=0)
    recipe = Recipe(hidden_dim=8, ff_dim=8, n_heads=2, service_steps=50)
    learner = ADENClustering(3, preset=recipe, head=head, random_state=0).start(X)
    while learner.model_ is None or learner.n_answers_ < 500:
        told(learner, people, 500)
    model = learner.model_
    assert type(model) is (ChoiceAutonomy if head == "choices" else NetworkAutonomy)
    np.testing.assert_array_equal(
        Problem(X, autonomy=model).expected_costs(learner.cluster_centers_), learner.transform(X)
    )
    again = load_autonomy(save_autonomy(model, tmp_path / "a.safetensors"))
    np.testing.assert_array_equal(costs(again), costs(model))
    fits = [
        AutonomyAwareClustering(3, autonomy=a, n_init=1, random_state=0) for a in (model, again)
    ]
    a, b = (fit.fit(X).cluster_centers_ for fit in fits)
    np.testing.assert_array_equal(a, b)
    path = save_model(fits[0], tmp_path / "m.safetensors")
    np.testing.assert_array_equal(load_model(path).transform(X), fits[0].transform(X))


def test_a_network_of_other_features_is_one_sentence(tmp_path):
    model = load_autonomy(save_autonomy(learned("choices"), tmp_path / "a.safetensors"))
    wide = np.concatenate([X, X], axis=1)
    with pytest.raises(ValueError, match="The network knows 2 features, but there are 4"):
        AutonomyAwareClustering(3, autonomy=model, n_init=1, random_state=0).fit(wide)


# -- precision ------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", HEADS)
def test_use_in_single_precision_changes_nothing(head):
    model = learned(head)
    before = costs(model)
    single = costs(model, np.float32)
    assert single.dtype == np.float32
    np.testing.assert_array_equal(costs(model), before)
    np.testing.assert_allclose(single, before, rtol=1e-4, atol=1e-6)
    kept = {value.dtype for value in model.network.state_dict().values()}
    assert torch.float32 not in kept


def test_a_wary_model_keeps_its_network_as_well():
    plain = learned("service")
    model = CautiousAutonomy(plain.network, plain.units, torch.rand(10, 2))
    before = costs(model)
    costs(model, np.float32)
    np.testing.assert_array_equal(costs(model), before)
    assert model.network.service.last.weight.dtype == torch.float64


def test_threads_of_both_precisions_do_not_disturb_each_other():
    model, found = learned("choices"), []
    wanted = {dtype: costs(learned("choices"), dtype) for dtype in (np.float32, np.float64)}

    def use(dtype):
        for _ in range(20):
            found.append(np.array_equal(costs(model, dtype), wanted[dtype]))

    threads = [threading.Thread(target=use, args=(d,)) for d in (np.float32, np.float64) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert all(found)


# -- parameters -----------------------------------------------------------------------------------


def doubled(X, Y):
    return 2 * ((X[:, None] - Y[None]) ** 2).sum(-1)


LEARNERS = (ADENClustering, ChoiceClustering, TabularClustering)
MODELS = (AutonomyAwareClustering, *LEARNERS)


def fitted(cls, **params):
    model = cls(2, **({"random_state": 0} | params))
    if cls is AutonomyAwareClustering:
        return model.fit(X)
    people = SimulatedPopulation(X, TRUTH, metric=params.get("metric", "sqeuclidean"))
    return told(model.start(X), people, 50)


def told(learner, people, n):
    asked = learner.ask(n)
    answer = people.respond(asked.entities, asked.prescribed, asked.centers)
    return learner.tell(asked, answer).learn()


@pytest.mark.parametrize("cls", MODELS)
@pytest.mark.parametrize(
    "metric", [SquaredEuclidean(), Haversine(squared=True), "haversine", SquaredEuclidean(True)]
)
def test_metrics_that_are_objects_come_back(tmp_path, cls, metric):
    model = fitted(cls, metric=metric)
    again = load_model(save_model(model, tmp_path / "m.safetensors"))
    assert type(again.metric) is type(metric)
    if not isinstance(metric, str):
        assert vars(again.metric) == vars(metric)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.parametrize("cls", [AutonomyAwareClustering, ADENClustering])
def test_devices_come_back(tmp_path, cls):
    model = fitted(cls, device=torch.device("cpu"))
    again = load_model(save_model(model, tmp_path / "m.safetensors"))
    assert again.device == torch.device("cpu")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.parametrize("cls", MODELS)
def test_metrics_that_are_functions_must_be_given(tmp_path, cls):
    model = fitted(cls, metric=doubled)
    path = save_model(model, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=r"Python function as metric, .* give it as metric=\."):
        load_model(path)
    again = load_model(path, metric=doubled)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    plain = save_model(fitted(cls), tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match="holds its own metric"):
        load_model(plain, metric=doubled)


def test_laws_of_steps_come_back_or_are_asked_for(tmp_path):
    law = RobbinsMonro(0.8)
    path = save_model(fitted(TabularClustering, q_step=law), tmp_path / "m.safetensors")
    assert load_model(path).q_step == law
    model = fitted(TabularClustering, estimate="costs", q_step=lambda n: 1 / n)
    model.save(path)
    with pytest.raises(ValueError, match=r"function as q_step, .* make the model with it"):
        load_model(path)
    same = TabularClustering(2, estimate="costs", q_step=model.q_step).resume(path)
    np.testing.assert_array_equal(same.labels_, model.labels_)


def test_a_family_of_terms_comes_back(tmp_path):
    family = (("constant",), ("pair",))
    model = fitted(ChoiceClustering, family=family)
    assert load_model(save_model(model, tmp_path / "m.safetensors")).family == family


def test_generators_belong_to_the_run(tmp_path):
    seeds = (np.random.RandomState(0), np.random.default_rng(0))
    for cls, seed in zip((AutonomyAwareClustering, TabularClustering), seeds, strict=True):
        model = fitted(cls, random_state=seed)
        assert load_model(save_model(model, tmp_path / "m.safetensors")).random_state is None
