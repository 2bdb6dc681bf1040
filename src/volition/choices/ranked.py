"""Overrides that go by rank: "one of the two nearest others", whatever the distances."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from volition.core.autonomy import SoftmaxTransition, Transition, exclude_prescribed, stay_or_leave

#: classes of ranks: nearest, second, third, and all that are farther
RANK_CLASSES = 4


def ranks(D: Tensor) -> Tensor:
    """Return how many centres are nearer, (n, K); of equal ones the first is nearer."""
    order = D.detach().argsort(dim=1, stable=True)
    places = torch.arange(D.shape[1], device=D.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def ranks_of_others(rank: Any, mine: Any) -> Any:
    """Return classes of ranks among all centres but the prescribed one, of rank ``mine``."""
    return (rank - 1 * (rank > mine)).clip(max=RANK_CLASSES - 1)


class RankedTransition(Transition):
    """Stay with probability 1 - kappa, else k != j with weight exp(b_ik + t[rank of j, rank of k]).

    The rank of k counts others than j only. The first ranks have weights of their own, so that all
    j of a higher rank share their weights and averages over k need O(nK) memory.
    ``kappa``, ``b`` and ``rank`` are (n, K), ``table`` is t, (RANK_CLASSES, RANK_CLASSES).
    """

    def __init__(self, kappa: Tensor, b: Tensor, rank: Tensor, table: Tensor) -> None:
        self.kappa, self.b, self.rank, self.table = kappa, b, rank, table
        self.n_near = min(RANK_CLASSES - 1, b.shape[1])

    @cached_property
    def _nears(self) -> list[Tensor]:
        """Where to, (n, K), from the centre of each of the first ranks."""
        near = []
        for r in range(self.n_near):
            logits = self.b + self.table[r][ranks_of_others(self.rank, r)]
            near.append(logits.masked_fill(self.rank == r, -torch.inf).softmax(1))
        return near

    @cached_property
    def _far(self) -> SoftmaxTransition:
        logits = self.b + self.table[-1][self.rank.clamp(max=RANK_CLASSES - 1)]
        away = exclude_prescribed(logits.shape[1], logits.dtype, logits.device)
        return SoftmaxTransition(1.0, away, logits)

    def expected(self, D: Tensor) -> Tensor:
        away = self._far.expected(D)
        for r, p in enumerate(self._nears):
            away = torch.where(self.rank == r, (p * D).sum(1, keepdim=True), away)
        return (1 - self.kappa) * D + self.kappa * away

    def realized(self, W: Tensor) -> Tensor:
        moved = self.kappa * W
        out = W - moved + self._far.realized(moved * (self.rank >= self.n_near))
        for r, p in enumerate(self._nears):
            out = out + (moved * (self.rank == r)).sum(1, keepdim=True) * p
        return out

    def conditional(self, prescribed: Tensor) -> Tensor:
        j = prescribed[:, None]
        away = self._far.conditional(prescribed)
        mine = self.rank.gather(1, j)
        for r, p in enumerate(self._nears):
            away = torch.where(mine == r, p, away)
        return stay_or_leave(self.kappa.gather(1, j), away, prescribed)
