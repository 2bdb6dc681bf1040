"""Gymnasium environments over any population: one entity, one prescription, one answer.

Needs the extra ``rl`` (``pip install 'volition[rl]'``). An episode is a single step: the
observation is an entity's features, the action the cluster that it is prescribed, the reward minus
the cost that came of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volition.core.validation import FloatArray, check_centers, check_entities
from volition.populations.answers import IntArray, Population

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError:  # pragma: no cover
    raise ImportError(
        "volition.populations.environment needs Gymnasium: pip install 'volition[rl]'."
    ) from None


class _Asking:
    """What both environments share."""

    def _set_up(self, population: Population, X: Any, centers: Any) -> tuple[Any, Any]:
        self.population = population
        self.X = check_entities(X).astype(np.float64)
        self.centers = check_centers(centers, self.X.shape[1])
        low, high = self.X.min(0), self.X.max(0)
        # A feature that is the same for all still needs a box with an inside.
        high = np.where(high > low, high, low + 1.0)
        return spaces.Box(low, high, dtype=np.float64), spaces.Discrete(len(self.centers))

    def _seed_population(self, seed: int | None) -> None:
        """Make answers repeatable too, where the population can."""
        if seed is not None and hasattr(self.population, "reseed"):
            self.population.reseed(seed)

    def _answers(
        self, entities: IntArray, actions: IntArray
    ) -> tuple[FloatArray, np.ndarray, dict[str, Any]]:
        response = self.population.respond(entities, actions, self.centers)
        answered = response.answered
        info: dict[str, Any] = {"answered": answered}
        if response.realized is not None:
            info["realized"] = response.realized
        return np.where(answered, -np.nan_to_num(response.cost), 0.0), answered, info


class PopulationEnv(_Asking, gymnasium.Env):
    """One question per episode.

    An answer that never came ends the episode as truncated, with reward 0: leave such steps out,
    for 0 is also the best reward there is.

    Parameters
    ----------
    population : Population
        Whoever answers.
    X : array of shape (n, d)
        Entities, numbered as the population numbers them.
    centers : array of shape (K, d)
        Centres, which stay where they are.

    Examples
    --------
    >>> from volition import SimulatedPopulation
    >>> from volition.populations.environment import PopulationEnv
    >>> X = [[0.0], [1.0], [9.0]]
    >>> env = PopulationEnv(SimulatedPopulation(X), X, centers=[[0.0], [9.0]])
    >>> entity, info = env.reset(seed=0)
    >>> entity, reward, terminated, truncated, info = env.step(0)
    >>> terminated, info["realized"]
    (True, 0)
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, population: Population, X: Any, centers: Any) -> None:
        self.observation_space, self.action_space = self._set_up(population, X, centers)
        self._entity = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Draw an entity."""
        super().reset(seed=seed)
        self._seed_population(seed)
        self._entity = int(self.np_random.integers(len(self.X)))
        return self.X[self._entity].copy(), {"entity": self._entity}

    def step(self, action: Any) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        """Prescribe, and see what comes of it."""
        if self._entity < 0:
            raise ValueError("Call reset before the first step.")
        if not self.action_space.contains(int(action)):
            raise ValueError(f"action must be 0 to {len(self.centers) - 1}, got {action!r}.")
        reward, answered, info = self._answers(np.array([self._entity]), np.array([int(action)]))
        told = bool(answered[0])
        single = {name: value[0].item() for name, value in info.items()}
        single["entity"] = self._entity
        return self.X[self._entity].copy(), float(reward[0]), told, not told, single


class PopulationVectorEnv(_Asking, VectorEnv):
    """Many questions at once, each an episode of its own that restarts in the same step.

    Parameters
    ----------
    population : Population
        Whoever answers.
    X : array of shape (n, d)
        Entities.
    centers : array of shape (K, d)
        Centres.
    num_envs : int, default=1024
        Questions at a time.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import SimulatedPopulation
    >>> from volition.populations.environment import PopulationVectorEnv
    >>> X = np.array([[0.0], [1.0], [9.0]])
    >>> env = PopulationVectorEnv(SimulatedPopulation(X), X, X[[0, 2]], num_envs=100)
    >>> entities, info = env.reset(seed=0)
    >>> entities, reward, terminated, truncated, info = env.step((entities[:, 0] > 5).astype(int))
    >>> float(reward.min()), bool(terminated.all())
    (-1.0, True)
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "render_modes": [],
    }

    def __init__(self, population: Population, X: Any, centers: Any, num_envs: int = 1024) -> None:
        self.single_observation_space, self.single_action_space = self._set_up(
            population, X, centers
        )
        self.num_envs = num_envs
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._entities = np.zeros(num_envs, dtype=np.int64)

    def _draw(self) -> FloatArray:
        self._entities = self.np_random.integers(len(self.X), size=self.num_envs)
        return self.X[self._entities]

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Draw entities."""
        super().reset(seed=seed)
        self._seed_population(seed)
        return self._draw(), {"entity": self._entities}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Prescribe to all, and see what comes of it."""
        asked, actions = self._entities, np.asarray(actions)
        if actions.shape != (self.num_envs,):
            raise ValueError(f"actions must have shape ({self.num_envs},), got {actions.shape}.")
        reward, answered, info = self._answers(asked, actions)
        info |= {"entity": asked, "final_obs": self.X[asked]}
        return self._draw(), reward, answered, ~answered, info
