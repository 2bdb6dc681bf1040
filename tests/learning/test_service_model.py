@pytest.fixture(scope="module")
def street_gap(X):
    """Return a function that says by how many % centres and labels are off there."""
    known = AutonomyAwareClustering(K, autonomy=DRIVERS, metric=streets, random_state=0)
    best = known.fit(X).distortion_
    truth = Problem(X, autonomy=DRIVERS, cost=resolve_cost(streets))
    return lambda model: 100 * (truth.distortion(model.cluster_centers_, model.labels_) / best - 1)


@pytest.fixture
def people_on_streets(X):
    return SimulatedPopulation(X, DRIVERS, metric=streets, reveal="cost", random_state=1)


@pytest.fixture(scope="module")
def fitted_on_streets(X):
    people = SimulatedPopulation(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(K, preset=QUICK, head="served", n_interactions=600, random_state=0)
    with pytest.MonkeyPatch.context() as quickly:
        fewer_steps(quickly)
        return model.fit(X, population=people)


@pytest.fixture
def model(fitted_on_streets):
    """A fit that each test may change."""
    return copy.deepcopy(fitted_on_streets)


class Watching(SimulatedPopulation):
    """Remembers which centres it was shown."""

    def respond(self, entities, prescribed, centers):
        shown = np.unique(centers.reshape(-1, centers.shape[-1]), axis=0)
        self.shown = [*getattr(self, "shown", []), shown]
        return super().respond(entities, prescribed, centers)


def test_costs_that_only_the_population_knows(X, tmp_path, street_gap):
    """It believes in squared distances; what it learned starts another problem there."""
    people = Watching(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(K, preset=QUICK, n_interactions=4000, random_state=0)
    model.fit(X, population=people)
    assert model.head_ == "served"
    assert street_gap(model) < 2
    path = model.save_network(tmp_path / "n.safetensors")
    # It remembers places of centres that it was asked about, and no others.
    shown = model._units.points(torch.from_numpy(np.concatenate(people.shown))).float()
    assert torch.cdist(load_network(path).asked.double(), shown.double()).amin(1).max() < 1e-6
    near = ADENClustering(3, network=path, random_state=0).start(X[::2] + 0.05)
    np.testing.assert_array_equal(near._units.origin, model._units.origin)
    far = ADENClustering(3, network=path, random_state=0).start(100 * X)
    np.testing.assert_allclose(far._units.origin, 100 * X.mean(0))


def test_a_network_that_does_not_hold_here_is_given_up(X, street_gap):
    wrong = shaken("served").float()
    wrong.units = Units(X.mean(0), 0.3, 0.1)
    wrong.reach(wrong.units.points(torch.from_numpy(X)))
    with torch.no_grad():
        wrong.service.last.weight.mul_(30.0)
    people = SimulatedPopulation(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(K, preset=QUICK, network=wrong, n_interactions=1000, random_state=0)
    model.fit(X, population=people)
    assert not model.transferred_
    assert street_gap(model) < 10


@pytest.mark.parametrize(
    ("value", "n", "ends"), [(1.0, 50, True), (0.5, 50, True), (3.0, 50, False), (1.0, 0, False)]
)
def test_a_fit_does_not_end_at_centres_that_cost_something_else(model, monkeypatch, value, n, ends):
    """Belief alone is not enough: a search goes where the network is wrong."""
    believed = model._problem(model.model_).distortion(model.cluster_centers_)
    low, high = (0.9 * value * believed, 1.1 * value * believed) if n else (np.nan, np.nan)
    seen = Estimate(value * believed, low, high, n)
    monkeypatch.setattr(model, "distortion_estimate", lambda: seen)
    model._stage = 1
    model._move_to(model.cluster_centers_)  # no better ones were found
    assert (model._finished is not None) == ends


@pytest.mark.parametrize(
    "change",
    [
        lambda model, X: model.add_entities(X[:5] + 3),
        lambda model, X: model.remove_entities([0, 1]),
    ],
)
def test_what_centres_have_cost_others_is_forgotten(model, X, change):
    assert model.distortion_estimate().n_answers >= 20
    assert model._cheapest.seen is not None
    change(model, X)
    assert model._cheapest.seen is None
    assert model.distortion_estimate().n_answers == 0


def test_late_answers_about_other_centres_say_nothing_of_these(model, people_on_streets):
    model._forget_trial()  # which would stand as long as the plan does
    for moved in (0.0, 0.5):
        model._unseen, model._left = True, 0
        asked = model.ask(20)
        np.testing.assert_array_equal(asked.centers[0], model.cluster_centers_)
        model._place(model.cluster_centers_ + moved * model._scale)
        before = model.distortion_estimate().n_answers
        model.tell(
            asked, people_on_streets.respond(asked.entities, asked.prescribed, asked.centers)
        )
        assert (model.distortion_estimate().n_answers > before) == (moved == 0.0)


@pytest.mark.parametrize("loss", [0.0, 0.4])
def test_a_budget_is_spent_on_the_same_stages_whatever_is_lost(X, loss):
    """Neither lost answers nor late ones make the last part of a budget a row of short stages."""
    people = SimulatedPopulation(
        X, DRIVERS, metric=streets, reveal="cost", loss=loss, random_state=1
    )
    model = ADENClustering(
        K, preset=QUICK, head="served", n_interactions=900, tol=0.0, random_state=0
    )
    model.start(X)
    open_questions, ends = [], []
    while open_questions or model.enough() is None:
        if model.enough() is None:
            open_questions.append(model.ask())
        if len(open_questions) > (2 if model.enough() is None else 0):
            asked, stage = open_questions.pop(0), model._stage
            model.tell(asked, people.respond(asked.entities, asked.prescribed, asked.centers))
            ends += [model.n_answers_] * (model._stage - stage)
    assert model.n_interactions_ == 900
    assert len(ends) <= 3
    before = model.n_answers_
    model.conclude()
    assert model.history_[-1]["answers"] == before
    assert model.labels_.min() >= 0


def test_the_last_answers_of_a_budget_say_what_the_centres_cost(X):
    asked = []

    class Recorded(SimulatedPopulation):
        def respond(self, entities, prescribed, centers):
            asked.append(np.broadcast_to(centers, (len(entities), K, 2)))
            return super().respond(entities, prescribed, centers)

    people = Recorded(X, DRIVERS, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(
        K, preset=QUICK, head="served", n_interactions=600, tol=0.0, random_state=0
    )
    model.fit(X, population=people)
    assert model.n_interactions_ == 600
    # The last of all are about plain k-means centres.
    last = np.concatenate(asked)[-60:-20]
    np.testing.assert_array_equal(last, np.broadcast_to(model.cluster_centers_, last.shape))
    seen = model.distortion_estimate()
    assert seen.n_answers >= 40
    true = distortion(X, model.cluster_centers_, DRIVERS, model.labels_, metric=streets)
    assert abs(seen.value - true) < 2 * (seen.high - seen.low)
    # Later answers are learned from again.
    stage = model._stage
    model.partial_fit(population=people, n_interactions=1000)
    assert model._stage > stage


def test_how_others_choose_is_not_taken_over(X, truth):
    """A given network attends to centres as it was taught elsewhere; here that explains nothing."""
    taught = shaken("served", QUICK.size()).float()
    with torch.no_grad():
        taught.service.last.weight.mul_(0.01)
    assert taught.attentive
    people = Noisy(X, truth, random_state=1)
    model = ADENClustering(K, preset=QUICK, network=taught, n_interactions=200, random_state=0)
    model.fit(X, population=people)
    assert model.transferred_
    assert not model.network_.attentive


def test_the_unit_of_unknown_costs_does_not_matter(X, street_gap):
    factor = 1e-6

    def scaled(A, B):
        return factor * streets(A, B)

    truth = DistanceAutonomy(0.3, temperature=0.05 * factor)
    people = SimulatedPopulation(X, truth, metric=scaled, reveal="cost", random_state=1)
    model = ADENClustering(K, preset=QUICK, n_interactions=1500, random_state=0)
    model.fit(X, population=people)
    assert street_gap(model) < 5


def test_a_single_centre_with_unknown_costs(X, monkeypatch):
    monkeypatch.setattr("volition.learning.networks.training.SERVICE_STEPS", 1000)
    people = SimulatedPopulation(X, metric=streets, reveal="cost", random_state=1)
    model = ADENClustering(1, preset=QUICK, n_interactions=1500, random_state=0)
    model.fit(X, population=people)
    assert model.head_ == "served"
    best = AutonomyAwareClustering(1, metric=streets).fit(X).distortion_
    reached = Problem(X, cost=resolve_cost(streets)).distortion(model.cluster_centers_)
    assert reached < 1.03 * best


def test_a_few_negative_costs_are_noise(X, truth):
    people = Noisy(X, truth, random_state=1)
    people.spoilt = 1000
    model = ADENClustering(K, preset=QUICK, n_interactions=1300, random_state=0)
    model.fit(X, population=people)
    assert model.head_ == "served"
    assert gap(model, X, truth) < 3


def test_running_means_are_for_expected_costs_only(X, truth):
    people = Noisy(X, truth, random_state=1)
    recipe = Recipe(**{**vars(QUICK), "ema": 0.95, "head": "served"})
    model = ADENClustering(K, preset=recipe, n_interactions=1500, random_state=0)
    model.fit(X, population=people)
    assert gap(model, X, truth) < 5


def test_costs_that_match_no_centre_are_learned_as_such(X, truth):
    people = Noisy(X, truth, random_state=1)
    model = ADENClustering(K, preset=QUICK, n_interactions=6000, random_state=0)
    model.fit(X, population=people)
    assert model.head_ == "served"
    assert gap(model, X, truth) < 1
    with pytest.raises(ValueError, match="Of the costs told so far"):
        ADENClustering(K, head="choices", random_state=0).fit(X, population=people)


def test_costs_that_cease_to_match_are_learned_as_such(X, truth):
    class Rounding(SimulatedPopulation):
        def respond(self, entities, prescribed, centers):
            cost = super().respond(entities, prescribed, centers).cost
            return Response(None, cost if self.n_interactions < 500 else np.round(cost, 2))

    model = ADENClustering(K, preset=QUICK, n_interactions=6000, random_state=0)
    model.fit(X, population=Rounding(X, truth, random_state=0))
    assert model.head_ == "served"
    assert np.isfinite(model.cluster_centers_).all()


def test_few_answers_are_about_many_places(X, truth):
    """Before it is decided what is learned, too."""
    model = ADENClustering(K, n_interactions=1000, random_state=0).start(X)
    asked = model.ask(256)
    assert len(np.unique(asked.centers.reshape(256, -1), axis=0)) == 16
