"""Overrides that go by rank: "one of the two nearest others", whatever the distances."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from volition.core.autonomy import SoftmaxTransition, Transition, barred, stay_or_leave

#: ranks told apart: nearest, second, third, and all that are farther
CLASSES = 4


def ranks(D: Tensor) -> Tensor:
    """Return how many centres are nearer, (n, K); of equal ones the first is nearer."""
    order = D.detach().argsort(dim=1, stable=True)
    places = torch.arange(D.shape[1], device=D.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def ranks_of_others(rank: Any, mine: Any) -> Any:
    """Return classes of ranks among all centres but the prescribed one, of rank ``mine``."""
    return (rank - 1 * (rank > mine)).clip(max=CLASSES - 1)


class RankedTransition(Transition):
    """Stay with probability 1 - kappa, else k != j with weight exp(b_ik + t[rank of j, rank of k]).

    The rank of k is that among the others than j. Only the first ranks are told apart, so that all
    j of a higher rank share their weights and averages over k need O(nK) memory.

    Parameters
    ----------
    kappa : Tensor of shape (n, K)
    b : Tensor of shape (n, K)
    rank : Tensor of shape (n, K)
    table : Tensor of shape (CLASSES, CLASSES)
    """

    def __init__(self, kappa: Tensor, b: Tensor, rank: Tensor, table: Tensor) -> None:
        self.kappa, self.b, self.rank, self.table = kappa, b, rank, table
        self.n_near = min(CLASSES - 1, b.shape[1])

    def _near(self, r: int) -> Tensor:
        """Return where to, (n, K), from the centre of rank r."""
        logits = self.b + self.table[r][ranks_of_others(self.rank, r)]
        return logits.masked_fill(self.rank == r, -torch.inf).softmax(1)

    @cached_property
    def _nears(self) -> list[Tensor]:
        return [self._near(r) for r in range(self.n_near)]

    @cached_property
    def _far(self) -> SoftmaxTransition:
        logits = self.b + self.table[-1][self.rank.clamp(max=CLASSES - 1)]
        away = barred(logits.shape[1], logits.dtype, logits.device)
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
