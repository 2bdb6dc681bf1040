def off_by(model, X, truth, gain):
    """Return by how much learned costs are off, in standard deviations of the true ones."""
    true = Problem(X, autonomy=truth).expected_costs(model.cluster_centers_) - gain
    return np.abs(model.expected_costs() - true).mean() / true.std()


@pytest.mark.parametrize(
    ("gain", "head"), [(0.0, "costs"), (0.2, "auto"), (100.0, "costs"), (-100.0, "costs")]
)
def test_expected_costs_may_be_any_numbers(X, truth, tmp_path, gain, head):
    people = Noisy(X, truth, random_state=1)
    people.gain = gain
    recipe = Recipe(**{**vars(QUICK), "epochs": 5, "updates": 15})
    model = ADENClustering(K, preset=recipe, head=head, n_interactions=16_000, random_state=0)
    few = pytest.warns(UserWarning, match="Costs are negative.* answers are few")
    with few if head == "auto" else nullcontext():
        model.fit(X, population=people)
    assert model.head_ == "costs"
    assert off_by(model, X, truth, gain) < 0.3  # at first 0.44
    # Started from a network of other costs it does not have to learn what they have in common.
    path = model.save_network(tmp_path / "network.safetensors")
    people.gain = 50.0 if gain < 50 else 0.0
    other = ADENClustering(K, preset=QUICK, network=path, n_interactions=1000, random_state=0)
    other.fit(X, population=people)
    assert off_by(other, X, truth, people.gain) < 0.3


def test_centres_that_are_led_astray_stay_in_the_box(X):
    Y = np.tile(X.mean(0), (K, 1)) - 0.5
    box = Y[0] - 1e-3, Y[0] + 1e-3
    for recipe, inside in ((Recipe(), True), (PRESETS["paper"], False)):
        moved = descended(recipe, Problem(X), Y, 1.0, 10.0, 0 * Y, box)
        assert (moved > Y).all()
        assert (moved <= box[1]).all() == inside


def test_one_negative_cost_lifts_the_floor_and_nothing_else(X, truth):
    people = Noisy(X, truth, random_state=1)
    recipe = Recipe(**{**vars(QUICK), "head": "costs"})
    model = ADENClustering(K, preset=recipe, n_interactions=9000, random_state=0).start(X)
    while model._trainer.n_steps < 20:
        model.partial_fit(population=people)
    assert (model.network_.floor, model.network_.shift) == (0, 0)
    people.spoilt = 0
    model.partial_fit(population=people)
    assert (model.network_.floor, model.network_.shift) == (-math.inf, 0)


@pytest.mark.parametrize("common", [0.0, -100.0, 100.0])
def test_replicas_differ_whatever_costs_have_in_common(X, common):
    class Offset(Problem):
        def distortion(self, *args):
            return super().distortion(*args) + common

    best = AutonomyAwareClustering(K, random_state=0).fit(X).cluster_centers_
    replicas = np.stack([best + 0.1, best, best + 1e-9])
    found = distinct(Offset(X), replicas, common)
    assert len(found) == 2
    np.testing.assert_allclose(found[0], best, atol=1e-8)
    np.testing.assert_array_equal(found[1], best + 0.1)


def test_algorithm_2_as_published(X):
    """The questions, the running means and the one step of AdamW of the published recipe."""
    asked_of = []

    class Spy(SimulatedPopulation):
        def respond(self, entities, prescribed, centers):
            asked_of.append((entities, prescribed, centers))
            self.last = super().respond(entities, prescribed, centers)
            return self.last

    recipe = Recipe(**{**vars(PRESETS["paper"]), "n_layouts": 4, "n_samples": 8, "epochs": 3})
    people = Spy(X, DistanceAutonomy(0.3, temperature=0.01), reveal="cost", random_state=0)
    model = ADENClustering(K, preset=recipe, random_state=0)
    means = np.zeros((len(X), K))
    for epoch in range(3):
        model.partial_fit(X, population=people)
        entities, prescribed, centers = asked_of[-1]
        assert len(entities) == 4 * 8 * 16
        pairs = np.column_stack([entities, prescribed]).reshape(32, 16, 2)
        assert (pairs == pairs[:, :1]).all()  # sixteen draws of each
        sets = centers.reshape(4, 128, K, 2)
        assert (sets == sets[:, :1]).all()  # of one perturbed set of centres per mini-batch
        around = sets[:, 0] - (model.cluster_centers_ if epoch else sets[:, 0].mean((0, 1)))
        assert 0.004 < around.std() < 0.05
        cost = people.last.cost.reshape(32, 16).mean(1)
        for pair in np.unique(pairs[:, 0], axis=0):
            mine = (pairs[:, 0] == pair).all(1)
            means[tuple(pair)] = 0.95 * means[tuple(pair)] + 0.05 * cost[mine].mean()
        np.testing.assert_allclose(model._means, means, rtol=1e-12)
        assert model._trainer.n_steps == epoch + 1
    assert model._stage == 1
    assert model.beta_ == pytest.approx(11.0)


def test_plain_descent_of_the_centres(X):
    recipe = Recipe(
        hidden_dim=16, ff_dim=32, head="costs", epochs=1, center_epochs=3, center_rate=0.05,
        replicas=1, spread=0.05, n_layouts=4, n_samples=16,
    )  # fmt: skip
    people = SimulatedPopulation(X, DistanceAutonomy(0.3), reveal="cost", random_state=0)
    model = ADENClustering(K, preset=recipe, random_state=0).start(X)
    beta, Y = model.beta_, model._replicas[0].copy()
    model.partial_fit(population=people, n_interactions=64)
    problem = Problem(X, autonomy=model.model_)
    for _ in range(3):
        Y = Y - 0.05 * problem.value_and_gradient(Y, beta)[1].numpy()
    np.testing.assert_allclose(model.cluster_centers_, Y, rtol=1e-9)


def test_lost_answers_do_not_cut_the_annealing_short(X, truth):
    people = SimulatedPopulation(X, truth, reveal="cost", loss=0.5, random_state=0)
    recipe = Recipe(**{**vars(QUICK), "head": "costs", "replicas": 1})
    model = ADENClustering(K, preset=recipe, n_interactions=8000, random_state=0)
    model.fit(X, population=people)
    assert model.beta_ == model._betas[-1]


def test_replicas_are_compared_by_enough_answers(X, truth):
    recipe = Recipe(**{**vars(QUICK), "head": "costs"})
    model = ADENClustering(K, preset=recipe, random_state=0).start(X)
    model._replicas = np.stack([X[:K], X[K : 2 * K]])
    for verdict, best in (
        ([[5, 0.5, 0.1], [5, 0.1, 0.1]], 0),  # too few to say anything
        ([[1000, 100, 20], [1000, 99, 20]], 0),  # no difference
        ([[1000, 100, 20], [1000, 50, 10]], 1),
    ):
        other = copy.deepcopy(model)
        other._verdict = np.array(verdict, dtype=float)
        other._choose_replica()
        np.testing.assert_array_equal(other.cluster_centers_, model._replicas[best])


@pytest.mark.parametrize(("preset", "several"), [("paper", True), (Recipe(head="costs"), False)])
def test_large_steps_take_several_threads(X, preset, several):
    model = ADENClustering(K, preset=preset).start(X)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with model._few_threads():
            assert (torch.get_num_threads() == 2) == several
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_betas_of_the_published_schedule(X):
    betas = ADENClustering(K, preset="paper").start(X)._betas
    assert len(betas) == 90
    assert betas[0] == 10
    assert 50_000 / 1.1 < betas[-1] <= 50_000


def test_costs_that_become_negative_are_learned_from_the_beginning(X, truth):
    people = Noisy(X, truth, random_state=1)
    model = ADENClustering(K, preset=QUICK, n_interactions=9000, random_state=0).start(X)
    while model.n_interactions_ < 2500:
        model.partial_fit(population=people)
    assert (model.head_, model._stage) == ("served", 1)
    people.gain = 0.2
    while model.head_ == "served":
        model.partial_fit(population=people)
    assert (model._stage, model.beta_) == (0, model._betas[0])
    assert len(model._replicas) == QUICK.replicas


def test_negative_costs_are_none_of_being_served(X, truth):
    people = Noisy(X, truth, random_state=1)
    people.gain = 0.2
    with pytest.raises(ValueError, match="are negative; head='costs' learns such costs"):
        ADENClustering(K, head="served", n_interactions=500).fit(X, population=people)
