"""Entities that use a centre of their own, whatever is prescribed: who they are, and how often.

A model of choices sees an entity by its features. What single entities are loyal to is not in
them; it shows only where the same entity chooses several times. Each entity is taken to be loyal
to one centre, with a probability of its own, possibly zero. How many entities have which
probability is estimated from all of them; what one of them is loyal to follows by Bayes' rule.
"""

from __future__ import annotations

import numpy as np

from volition.choices.data import Choices
from volition.choices.selection import clearly_better
from volition.choices.statistics import group_sums
from volition.core.validation import FloatArray

#: probabilities of loyalty
LEVELS = np.array([0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97])
#: steps by which the shares of entities at each level are estimated
EM_STEPS = 200
#: one choice in so many is held out when loyalty is judged
HELD_OUT = 5
#: choices of one entity, on average, below which loyalty looks like chance
FEWEST_PER_ENTITY = 2.0
#: numbers in a table, at most
MOST_NUMBERS = 60_000_000


def fit_loyalty(choices: Choices, p: FloatArray, n: int) -> FloatArray:
    """Return the probability that entity i uses centre k whatever it is told, (n, K).

    ``p`` (m,) is how likely each choice is to those who are not loyal to anything, ``n`` the number
    of entities. Those without any choices have the mean of all.

    Examples
    --------
    Half of the entities always come to centre 1, the others choose by lot:

    >>> import numpy as np
    >>> from volition.choices import Choices
    >>> from volition.choices.loyalty import fit_loyalty
    >>> rng = np.random.default_rng(0)
    >>> who = np.repeat(np.arange(40), 25)
    >>> used = np.where(who < 20, 1, rng.integers(0, 3, 1000))
    >>> layouts, none = np.zeros((1, 3, 1)), np.zeros(1000, dtype=int)
    >>> found = fit_loyalty(Choices(who, none, used, none, layouts), np.full(1000, 1 / 3), 40)
    >>> bool(found[:20, 1].min() > 0.8), bool(found[20:].sum(1).max() < 0.4)
    (True, True)
    """
    K = choices.n_clusters
    seen, who = np.unique(choices.entities, return_inverse=True)
    # A row for each centre that an entity has used; all that it has not are alike.
    pairs, pair = np.unique(who * K + choices.realized, return_inverse=True)
    owner, times = pairs // K, np.bincount(pairs // K, minlength=len(seen))
    p = np.maximum(p, 1e-300)[:, None]
    # Log-likelihood of (level, favourite), from what it would be without loyalty to this centre.
    free = np.log((1 - LEVELS) * p)
    other = group_sums(who, free, len(seen))
    used = other[owner] + group_sums(pair, np.log((1 - LEVELS) * p + LEVELS) - free, len(pairs))
    most = np.full(len(seen), -np.inf)
    np.maximum.at(most, owner, used.max(1))
    used, other = np.exp(used - most[owner, None]), np.exp(other - most[:, None])
    both = group_sums(owner, used, len(seen)) + (K - times)[:, None] * other
    shares = np.full(len(LEVELS), 1 / len(LEVELS))
    for _ in range(EM_STEPS):
        prior = np.maximum(shares, 1e-300)
        whole = both @ prior
        shares = prior * (both / whole[:, None]).sum(0) / len(seen)
    loyalty = np.full((n, K), float(shares @ LEVELS) / K)
    loyalty[seen] = (other @ (prior * LEVELS) / whole)[:, None]
    loyalty[seen[owner], pairs % K] = used @ (prior * LEVELS) / whole[owner]
    return loyalty


def shares_of_others(choices: Choices, p: FloatArray, loyalty: FloatArray) -> FloatArray:
    """Return the probability of each choice, (m,), that it had nothing to do with loyalty."""
    free, both = _mixed(choices, p, loyalty)
    return free / np.maximum(both, 1e-300)


def _mixed(choices: Choices, p: FloatArray, loyalty: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return how likely choices are without loyalty, and with it."""
    mine = loyalty[choices.entities]
    free = (1 - mine.sum(1)) * p
    return free, free + mine[np.arange(len(p)), choices.realized]


def loyalty_if_clear(choices: Choices, p: FloatArray, n: int) -> FloatArray | None:
    """Return loyalty as `fit_loyalty` does, or None unless it makes other choices clearly likelier.

    It is judged by choices of the same entities that were held out.
    """
    numbers = n * choices.n_clusters * len(LEVELS)
    few = len(p) < max(HELD_OUT, FEWEST_PER_ENTITY * len(np.unique(choices.entities)))
    if choices.n_clusters == 1 or few or numbers > MOST_NUMBERS:
        return None
    held = np.random.default_rng(0).permutation(np.arange(len(p)) % HELD_OUT) == 0
    found = fit_loyalty(choices.take(~held), p[~held], n)
    judges = choices.take(held)
    _, new = _mixed(judges, p[held], found)
    new, old = (np.log(np.maximum(values, 1e-300)) for values in (new, p[held]))
    if not clearly_better(new, old, judges.entities):
        return None
    return fit_loyalty(choices, p, n)
