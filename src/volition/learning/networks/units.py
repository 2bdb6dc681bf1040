"""The units in which a network sees a problem."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, as_tensor

from volition.validation import FloatArray


class Units(NamedTuple):
    """Where a network's coordinates begin, and its units of length and cost."""

    origin: FloatArray
    length: float
    cost: float

    def points(self, X: Tensor) -> Tensor:
        """Return points or centres as the network sees them."""
        return (X - self._origin(X)) / self.length

    def back(self, Z: Tensor) -> Tensor:
        """Return the points or centres that the network sees so."""
        return self._origin(Z) + self.length * Z

    def _origin(self, like: Tensor) -> Tensor:
        return as_tensor(self.origin, dtype=like.dtype, device=like.device)
