"""Answers as a network sees them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from volition.core.costs import Cost
from volition.core.validation import FloatArray
from volition.learning.networks.replay import AnswerGroups, Replay
from volition.learning.networks.units import Units
from volition.populations.answers import IntArray


class TrainingBatch(NamedTuple):
    """A answers of answers as a network sees it."""

    X: Tensor  # (G, S, d)
    Y: Tensor  # (G, K, d)
    D: Tensor  # (G, S, K) costs of being served
    apart: Tensor  # (G, K, K) costs between centres
    prescribed: Tensor  # (G, S)
    target: Tensor  # (G, S)
    candidates: Tensor  # (G, S, K) which clusters may have served
    valid: Tensor  # (G, S)


def training_batch(
    answers: AnswerGroups, X: FloatArray, cost: Cost, units: Units, dtype: torch.dtype, device: Any
) -> TrainingBatch:
    """Return answers in the network's units."""
    G, S = answers.entities.shape
    K, d = answers.centers.shape[1:]
    x, y = torch.from_numpy(X[answers.entities]), torch.from_numpy(answers.centers)
    with torch.no_grad():
        D = cost.each(x.reshape(G * S, d), y.repeat_interleave(S, 0)).reshape(G, S, K)
        apart = cost.each(y.reshape(G * K, d), y.repeat_interleave(K, 0)).reshape(G, K, K)
        numbers = (units.points(x), units.points(y), D / units.cost, apart / units.cost)
    target = torch.from_numpy(answers.target) / units.cost
    points, centers, D, apart = (z.to(device, dtype) for z in numbers)
    prescribed, candidates, valid = (
        torch.from_numpy(z).to(device)
        for z in (answers.prescribed, answers.candidates, answers.valid)
    )
    target = target.to(device, dtype)
    return TrainingBatch(points, centers, D, apart, prescribed, target, candidates, valid)


class TrainingData(NamedTuple):
    """All answers that are remembered, and what it takes to learn from them."""

    replay: Replay
    X: FloatArray
    cost: Cost
    units: Units
    device: Any

    def __call__(self, groups: IntArray, dtype: torch.dtype = torch.float32) -> TrainingBatch:
        """Return some groups of answers."""
        answers = self.replay.take(groups)
        return training_batch(answers, self.X, self.cost, self.units, dtype, self.device)
