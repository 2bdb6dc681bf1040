"""Take a centre from where it is missed least, and put it where it helps most."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from volition.core.deadline import OutOfTime
from volition.core.problem import FEW_COLUMNS, Problem
from volition.core.validation import FloatArray
from volition.solvers.base import Status
from volition.solvers.candidates import SAME_VALUE, Found, Reporter, ranked
from volition.solvers.descent import POLISH_BETAS, Descent, floored_distortion

#: rounds for each solution
MAX_ROUNDS = 6
#: per round: pairs (from, to) that are screened at most, promising moves that get a short descent,
#: and the best of these that are polished
SCREENED_PAIRS, SPRINTS, FINISHES = 784, 12, 4
#: iterations of a sprint
SPRINT_ITER = 15


@dataclass
class Reallocation:
    """Moves one centre at a time as long as that helps.

    Parameters
    ----------
    problem, screen : Problem
        The entities of the search, and a smaller sample on which moves are screened.
    descent : Descent
        Solves at each beta.
    reporter : Reporter
        Is told about every round.
    """

    problem: Problem
    screen: Problem
    descent: Descent
    reporter: Reporter

    def improve(self, base: Found) -> tuple[Found, Status | None]:
        """Return the best found from ``base``, and what stopped it before its end, if anything."""
        best = base
        for number in range(MAX_ROUNDS):
            with self.reporter.task(f"{base.name}, reallocation #{number}") as task:
                after = task.found = self._round(best, base.name)
            if task.stopped:
                return after, Status.STOPPED
            if self.descent.deadline.passed:
                return after, Status.OUT_OF_TIME
            if after is best or after.value > best.value - 1e-6 * self.problem.cost_scale:
                return after, None
            best = after
        return best, None

    def _round(self, best: Found, name: str) -> Found:
        """Return the best of all moves of one centre, or what was there before."""
        problem, descent = self.problem, self.descent
        # A short descent shows which moves are promising; only these are polished.
        sprints: list[Found] = []
        try:
            moves = self._promising(best.centers)
        except OutOfTime:
            moves = []
        for move in moves:
            if descent.deadline.passed:
                break
            beta = min(POLISH_BETAS[-2] / floored_distortion(problem, move), descent.beta)
            Y = descent.descend(problem, move, beta, SPRINT_ITER, 1e-4).centers.cpu().numpy()
            sprints.append(Found(descent.value(problem, Y), Y, name))
        trials = [best]
        for sprint in ranked(sprints, problem)[:FINISHES]:
            if descent.deadline.passed:
                break
            Y = descent.polish(problem, sprint.centers, POLISH_BETAS[1:])
            value = descent.value(problem, Y)
            trials.append(Found(value, Y, f"{name}, reallocated", reallocated=True))
        return ranked(trials, problem)[0]

    def _promising(self, Y: FloatArray) -> list[FloatArray]:
        """Return the most promising layouts with one centre moved, judged before optimising."""
        screen = self.screen.with_deadline(self.descent.deadline)
        moves = _Moves(Y, spread_of_clusters(screen, Y))
        kinds = [moves.join, moves.split]
        if not screen.autonomy.interchangeable:
            kinds.append(moves.swap)

        def value(Z: FloatArray) -> float:
            return self.descent.value(screen, Z)

        givers, takers = moves.pairs(value)
        scored = [
            (value(Z), Z)
            for k in givers.tolist()
            for j in takers.tolist()
            if j != k
            for Z in (kind(k, j) for kind in kinds)
        ]
        scored.sort(key=lambda pair: pair[0])
        distinct: list[FloatArray] = []
        last = -math.inf
        for score, Z in scored:
            if score > last + SAME_VALUE * screen.cost_scale:
                distinct.append(Z)
                last = score
            if len(distinct) == SPRINTS:
                break
        return distinct


@dataclass(frozen=True)
class _Moves:
    """Layouts in which centre k has left its place and gone to where centre j is."""

    Y: FloatArray
    spread: FloatArray

    def join(self, k: int, j: int) -> FloatArray:
        """Put k next to j."""
        Z = self.Y.copy()
        Z[k] = self.Y[j] + 0.01 * self.spread[j]
        return Z

    def split(self, k: int, j: int) -> FloatArray:
        """Put k and j on two sides of j's entities."""
        Z = self.Y.copy()
        Z[k], Z[j] = self.Y[j] + 0.8 * self.spread[j], self.Y[j] - 0.8 * self.spread[j]
        return Z

    def swap(self, k: int, j: int) -> FloatArray:
        """Exchange k and j."""
        Z = self.Y.copy()
        Z[[k, j]] = self.Y[[j, k]]
        return Z

    def pairs(self, value: Callable[[FloatArray], float]) -> tuple[np.ndarray, np.ndarray]:
        """Return which centres may leave and to which: all, or where there are many the best."""
        K = len(self.Y)
        if K * K <= SCREENED_PAIRS:
            return np.arange(K), np.arange(K)
        side = math.isqrt(SCREENED_PAIRS)
        distance = np.stack([np.linalg.norm(y - self.Y, axis=1) for y in self.Y])
        np.fill_diagonal(distance, np.inf)
        nearest = distance.argmin(1)
        loss = [value(self.join(k, int(nearest[k]))) for k in range(K)]
        givers = np.argsort(loss, kind="stable")[:side]
        giver = int(givers[0])
        gain = [value(self.split(giver, j)) if j != giver else np.inf for j in range(K)]
        return givers, np.argsort(gain, kind="stable")[:side]


def spread_of_clusters(problem: Problem, Y: FloatArray) -> FloatArray:
    """Return, per cluster, the main axis of its entities times their deviation along it."""
    X, weight, labels = problem.X.astype(np.float64), problem.weight, problem.labels(Y)
    spread = np.zeros_like(Y)
    for j in range(len(Y)):
        inside = labels == j
        total = weight[inside].sum()
        if total <= 0:
            continue
        x = X[inside] - np.average(X[inside], axis=0, weights=weight[inside])
        if len(x) < problem.d and problem.d > FEW_COLUMNS:
            _, lengths, lines = np.linalg.svd(
                x * np.sqrt(weight[inside, None] / total), full_matrices=False
            )
            axis, value = lines[0], float(lengths[0]) ** 2
        else:
            values, axes = np.linalg.eigh((x * weight[inside, None]).T @ x / total)
            axis, value = axes[:, -1], float(values[-1])
        axis = axis * np.sign(axis[np.abs(axis).argmax()])
        spread[j] = axis * math.sqrt(max(value, 0.0))
    return spread
