"""From expected costs to prescriptions."""

from __future__ import annotations

import math

import numpy as np

from volition.core.validation import FloatArray
from volition.populations.answers import IntArray


def gibbs(q: FloatArray, beta: float) -> FloatArray:
    """Return the policy at costs q (n, K): the best prescription where beta is infinite."""
    if math.isinf(beta):
        hard: FloatArray = np.eye(q.shape[1])[q.argmin(1)]
        return hard
    pi = np.exp(-beta * (q - q.min(1, keepdims=True)))
    return pi / pi.sum(1, keepdims=True)


def draw(pi: FloatArray, rng: np.random.Generator) -> IntArray:
    """Draw one column for each row of probabilities."""
    u = rng.random(len(pi))[:, None]
    return (np.cumsum(pi, axis=1) < u).sum(1).clip(max=pi.shape[1] - 1)


def prescribe(
    pi: FloatArray, blind: np.ndarray, exploration: float, rng: np.random.Generator
) -> tuple[IntArray, FloatArray]:
    """Draw prescriptions by a policy, uniformly where ``blind``; return how likely each was."""
    n, K = pi.shape
    drawn = draw(pi, rng)
    drawn = np.where(blind, rng.integers(0, K, n), drawn)
    chance = (1 - exploration) * pi[np.arange(n), drawn] + exploration / K
    return drawn, np.maximum(chance, 1e-12)
