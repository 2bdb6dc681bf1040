"""A network of choices that is fitted to the same rows as choice models, and judged beside them."""

from __future__ import annotations

import numpy as np
import torch

from volition.choices import ChoiceFit, Choices
from volition.choices.fit import fit_choices, refit
from volition.choices.selection import clearly_better
from volition.core.costs import Cost
from volition.core.validation import FloatArray
from volition.learning.networks.autonomy import NetworkAutonomy
from volition.learning.networks.network import ADENetwork
from volition.learning.networks.recipe import Recipe
from volition.learning.networks.replay import Replay
from volition.learning.networks.training import Trainer, evaluate, train_while_better
from volition.learning.networks.training_data import TrainingData
from volition.learning.networks.units import Units
from volition.populations.answers import IntArray

#: answers in a group of one set of centres, and one group in so many that is held out
WIDTH, HELD_OUT = 64, 6
#: answers below which a network is not worth trying
FEWEST = 4000
#: terms of the linear logits from which a network starts
FOUR = (("constant", "cost"), ("pair", "entity"))


def fit_choice_network(
    X: FloatArray,
    choices: Choices,
    cost: Cost,
    units: Units,
    fit: ChoiceFit,
    rng: np.random.Generator,
    recipe: Recipe,
    given: ADENetwork | None = None,
) -> NetworkAutonomy | None:
    """Return a network if it makes held-out choices clearly likelier than the fitted terms do.

    It has logits for staying by entity and prescribed centre, for leaving one centre for another,
    and for entity and alternative, and starts from linear ones, or from a network that is given.
    """
    m, K, d = len(choices.entities), *choices.layouts.shape[1:]
    if m < FEWEST or K < 2:
        return None
    replay = Replay(K, d, WIDTH, capacity=m)
    candidates = np.zeros((m, K), dtype=bool)
    candidates[np.arange(m), choices.realized] = True
    centers = choices.layouts[choices.layout]
    replay.add(centers, choices.entities, choices.prescribed, np.zeros(m), candidates)
    groups = np.arange(replay.n_groups)
    held = groups % HELD_OUT == HELD_OUT - 1
    # Those that say when to stop are not those that compare.
    stopping = groups % HELD_OUT == HELD_OUT - 2
    training = ~held & ~stopping

    data = TrainingData(replay, X, cost, units, torch.device("cpu"))
    seed = int(rng.integers(2**31))
    network = ADENetwork(d, recipe.size() if given is None else given.size, "choices", seed).eval()
    if given is not None:
        network.load_state_dict(given.state_dict())
    with torch.no_grad():
        network.linear.copy_(_four_numbers(X, replay, groups[training], cost, units))
    trainer = Trainer(network, recipe.learning_rate, recipe.weight_decay, recipe.clip)
    watched = data(groups[stopping])
    train_while_better(trainer, data, groups[training], watched, recipe, rng)
    judges = data(groups[held])
    losses = evaluate(network, judges)[judges.valid]
    # The same rows, as the terms see them when they have not been fitted to them.
    answers = replay.take(groups[held])
    rows = np.nonzero(answers.valid)
    asked = (answers.entities[rows], answers.prescribed[rows])
    known = _choices_of(replay, groups[~held])
    terms = refit(fit, X, known, cost, fit.model.covariates).model
    with torch.no_grad():
        p = terms.conditional_each(
            torch.from_numpy(X[asked[0]]),
            torch.from_numpy(asked[1]),
            torch.from_numpy(answers.centers[rows[0]]),
            cost,
            asked[0],
        ).numpy()
    chosen = answers.candidates[rows].argmax(1)
    likelihood = np.log(np.maximum(p[np.arange(len(p)), chosen], 1e-300))
    if not clearly_better(-losses.double().numpy(), likelihood, asked[0]):
        return None
    return NetworkAutonomy(network, units)


def _choices_of(replay: Replay, groups: IntArray) -> Choices:
    """Return the choices in some groups of answers."""
    answers = replay.take(groups)
    rows = np.nonzero(answers.valid)
    used = answers.candidates[rows].argmax(1)
    return Choices(answers.entities[rows], answers.prescribed[rows], used, rows[0], answers.centers)


def _four_numbers(
    X: FloatArray, replay: Replay, groups: IntArray, cost: Cost, units: Units
) -> torch.Tensor:
    """Return logits linear in costs: of staying and its slope, slopes of pair and of entity."""
    choices = _choices_of(replay, groups)
    model = fit_choices(X, choices, cost, units.cost, family=FOUR).model
    named = {**model.away, **model.stay}
    numbers = [named[name][0] if name in named else 0.0 for part in FOUR for name in part]
    return torch.tensor(numbers, dtype=torch.float32)
