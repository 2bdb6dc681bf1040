"""A network of choices that is fitted to the same rows as choice models, and judged beside them."""

from __future__ import annotations

import numpy as np
import torch

from volition.choices import ChoiceFit, Choices
from volition.choices.fit import clearly_better, refit
from volition.costs import Cost
from volition.learners.aden.lessons import Lessons
from volition.learners.aden.models import NetworkAutonomy
from volition.learners.aden.network import ADENetwork
from volition.learners.aden.recipe import PRESETS
from volition.learners.aden.replay import Replay
from volition.learners.aden.training import Trainer, fit_logits, judged, train_while_better
from volition.learners.aden.units import Units
from volition.validation import FloatArray

#: answers in a group of one set of centres, and one group in so many that is held out
WIDTH, HELD_OUT = 64, 6
#: answers below which a network is not worth trying
FEWEST = 4000


def fit_network(
    X: FloatArray,
    choices: Choices,
    cost: Cost,
    units: Units,
    fit: ChoiceFit,
    rng: np.random.Generator,
) -> NetworkAutonomy | None:
    """Return a network if it makes held-out choices clearly likelier than the fitted terms do.

    It has logits for staying by entity and prescribed centre, for leaving one centre for another,
    and for entity and alternative, and starts from linear ones.
    """
    m, K, d = len(choices.entities), *choices.layouts.shape[1:]
    if m < FEWEST or K < 2:
        return None
    recipe = PRESETS["cpu"]
    replay = Replay(K, d, WIDTH, capacity=m)
    matches = np.zeros((m, K), dtype=bool)
    matches[np.arange(m), choices.realized] = True
    centers = choices.layouts[choices.layout]
    replay.add(centers, choices.entities, choices.prescribed, np.zeros(m), matches)
    groups = np.arange(replay.n_groups)
    held = groups % HELD_OUT == HELD_OUT - 1
    # Those that say when to stop are not those that compare.
    stopping = groups % HELD_OUT == HELD_OUT - 2
    training = ~held & ~stopping

    lessons = Lessons(replay, X, cost, units, torch.device("cpu"))
    network = ADENetwork(d, recipe.size(), "choices", int(rng.integers(2**31))).eval()
    linear = fit_logits(lessons(groups[training], torch.float64)).linear
    with torch.no_grad():
        network.linear.copy_(torch.from_numpy(linear))
    trainer = Trainer(network, recipe.learning_rate, recipe.weight_decay, recipe.clip)
    watched = lessons(groups[stopping])
    train_while_better(trainer, lessons, groups[training], watched, recipe.n_layouts, rng)
    judges = lessons(groups[held])
    losses = judged(network, judges)[judges.valid]
    # The same rows, as the terms see them when they have not been fitted to them.
    batch = replay.take(groups[held])
    rows = np.nonzero(batch.valid)
    asked = (batch.entities[rows], batch.prescribed[rows])
    theirs = replay.take(groups[~held])
    others = np.nonzero(theirs.valid)
    known = Choices(
        theirs.entities[others],
        theirs.prescribed[others],
        theirs.matches[others].argmax(1),
        others[0],
        theirs.centers,
    )
    terms = refit(fit, X, known, cost, fit.model.covariates).model
    with torch.no_grad():
        p = terms.conditional_each(
            torch.from_numpy(X[asked[0]]),
            torch.from_numpy(asked[1]),
            torch.from_numpy(batch.centers[rows[0]]),
            cost,
            asked[0],
        ).numpy()
    chosen = batch.matches[rows].argmax(1)
    likelihood = np.log(np.maximum(p[np.arange(len(p)), chosen], 1e-300))
    if not clearly_better(-losses.double().numpy(), likelihood, asked[0]):
        return None
    return NetworkAutonomy(network, units)
