"""Put one or two centres anywhere, polish, keep what is better; again and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from volition.core.problem import Problem
from volition.core.validation import FloatArray
from volition.solvers.base import Status
from volition.solvers.candidates import Found, Reporter
from volition.solvers.descent import POLISH_BETAS, Descent
from volition.solvers.sampling import canonical_order


@dataclass
class Shaking:
    """Random moves of few centres, for minima that no single move of a centre leaves.

    Parameters
    ----------
    problem, screen : Problem
        The entities of the search, and a smaller sample on which moves are tried first.
    descent : Descent
        Solves at each beta.
    reporter : Reporter
        Is told once, at the end.
    n_shakes : int
        Random moves to try.
    """

    problem: Problem
    screen: Problem
    descent: Descent
    reporter: Reporter
    n_shakes: int

    def improve(
        self, base: Found, random_state: np.random.RandomState
    ) -> tuple[Found, Status | None]:
        """Return the best found from ``base``, and what stopped it before its end, if anything."""
        name = f"{base.name}, shaken"
        with self.reporter.task(name) as task:
            best = task.found = self._best(base, name, random_state)
        if task.stopped:
            return best, Status.STOPPED
        return best, Status.OUT_OF_TIME if self.descent.deadline.passed else None

    def _best(self, base: Found, name: str, random_state: np.random.RandomState) -> Found:
        problem, screen, descent, best = self.problem, self.screen, self.descent, base
        order = canonical_order(screen)
        share = np.cumsum(screen.weight[order]) / screen.weight[order].sum()
        least = descent.value(screen, descent.polish(screen, best.centers, POLISH_BETAS[-1:]))

        def shaken(Y: FloatArray) -> FloatArray:
            Y, size = Y.copy(), random_state.randint(1, 3)
            where = np.searchsorted(share[:-1], random_state.random_sample(size))
            Y[random_state.permutation(len(Y))[:size]] = screen.X[order[where]]
            return Y

        for _ in range(self.n_shakes):
            if descent.deadline.passed:
                break
            Y = descent.polish(screen, shaken(best.centers), POLISH_BETAS[2:])
            value = descent.value(screen, Y)
            if value > least - 1e-6 * screen.cost_scale:
                continue
            Y = descent.polish(problem, Y, POLISH_BETAS[-1:])
            found = Found(descent.value(problem, Y), Y, name)
            if found.value < best.value:
                best, least = found, value
        return best
