import numpy as np
import pytest

from volition import DistanceAutonomy, FixedAutonomy, SimulatedPopulation

gymnasium = pytest.importorskip("gymnasium", reason="the extra 'rl' is not installed")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from volition.populations.environment import PopulationEnv, PopulationVectorEnv  # noqa: E402


@pytest.fixture
def X(rng):
    return rng.normal(size=(50, 2))


def test_gymnasium_is_content(X):
    people = SimulatedPopulation(X, DistanceAutonomy(0.3), random_state=0)
    check_env(PopulationEnv(people, X, X[:4]), skip_render_check=True)


def test_a_constant_feature_is_no_obstacle(X):
    X[:, 1] = 3.0
    people = SimulatedPopulation(X, random_state=0)
    check_env(PopulationEnv(people, X, X[:4]), skip_render_check=True)


def test_rewards_are_minus_costs(X):
    env = PopulationEnv(SimulatedPopulation(X, random_state=0), X, X[:4])
    features, info = env.reset(seed=3)
    np.testing.assert_array_equal(features, X[info["entity"]])
    _, reward, terminated, truncated, told = env.step(2)
    assert reward == pytest.approx(-((features - X[2]) ** 2).sum())
    assert (terminated, truncated, told["realized"]) == (True, False, 2)
    with pytest.raises(ValueError, match="action must be 0 to 3"):
        env.step(4)


def test_a_lost_answer_truncates(X):
    env = PopulationEnv(SimulatedPopulation(X, missing=1.0, random_state=0), X, X[:4])
    env.reset(seed=0)
    _, reward, terminated, truncated, told = env.step(0)
    assert (reward, terminated, truncated, told["answered"]) == (0.0, False, True, False)


def test_many_at_once(X):
    """The mean reward against p: where everyone goes is known."""
    P = np.array([[0.5, 0.5], [0.0, 1.0]])
    people = SimulatedPopulation(X, FixedAutonomy(P), random_state=0)
    env = PopulationVectorEnv(people, X, X[:2], num_envs=20_000)
    entities, info = env.reset(seed=1)
    assert env.observation_space.contains(entities)
    asked = info["entity"]
    entities, reward, terminated, truncated, told = env.step(np.zeros(20_000, dtype=int))
    assert terminated.all()
    assert not truncated.any()
    D = ((X[:, None] - X[None, :2]) ** 2).sum(2)
    expected = -(D @ P[0])[asked]
    error = (reward - expected).std() / np.sqrt(20_000)
    assert abs((reward - expected).mean()) < 5 * error
    np.testing.assert_array_equal(told["final_obs"], X[asked])
    assert env.observation_space.contains(entities)
    assert people.n_interactions == 20_000


def test_the_same_seed_gives_the_same_answers(X):
    def episode():
        people = SimulatedPopulation(X, DistanceAutonomy(0.5))
        env = PopulationVectorEnv(people, X, X[:4], num_envs=64)
        env.reset(seed=5)
        return env.step(np.arange(64) % 4)[1]

    np.testing.assert_array_equal(episode(), episode())
