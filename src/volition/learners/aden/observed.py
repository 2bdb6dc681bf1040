"""What centres have cost, by answers alone: a search believes in a network where it is wrong."""

from __future__ import annotations

import numpy as np

from volition.io.serialization import registered
from volition.learners.monitor import Estimate
from volition.validation import FloatArray

#: answers below which a mean cost says nothing
FEWEST_SEEN = 20


@registered
class Cheapest:
    """The centres that surely cost least so far.

    Parameters
    ----------
    centers : array of shape (K, d), optional
    seen : Estimate, optional
        What they have cost.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.learners.aden.observed import Cheapest
    >>> from volition.learners.monitor import Estimate
    >>> here, there, cheapest = np.zeros((2, 1)), np.ones((2, 1)), Cheapest()
    >>> bool((cheapest.compared(here, Estimate(1.0, 0.9, 1.1, 50)) == here).all())
    True
    >>> bool((cheapest.compared(there, Estimate(2.0, 1.5, 2.5, 20)) == here).all())
    True
    """

    def __init__(self, centers: FloatArray | None = None, seen: Estimate | None = None) -> None:
        self.centers, self.seen = centers, seen

    def compared(self, centers: FloatArray, seen: Estimate, near: float = 0.0) -> FloatArray:
        """Return the centres, or those that cost least if these are clearly dearer.

        Centres that are as ``near`` as this to each other are the same.
        """
        if seen.n_answers < FEWEST_SEEN:
            return centers
        if self.seen is None or self.centers is None:
            better = True
        else:
            # More answers about the same centres correct what was seen of them.
            same = bool(np.abs(centers - self.centers).max() <= near)
            better = same or seen.high < self.seen.high
            if not better and seen.low > self.seen.high:
                return self.centers.copy()
        if better:
            self.centers, self.seen = centers.copy(), seen
        return centers
