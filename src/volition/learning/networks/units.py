"""The units in which a network sees a problem."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, as_tensor

from volition.core.validation import FloatArray, check_scalar
from volition.io.checked_files import expect
from volition.io.serialization import registered


@registered
class Units(NamedTuple):
    """Where a network's coordinates begin, and its units of length and cost."""

    origin: FloatArray
    length: float
    cost: float

    def check(self, n_features: int) -> None:
        """Raise ValueError unless these are units of points with so many features."""
        expect(self._asdict(), "origin", (n_features,))
        for name in ("length", "cost"):
            check_scalar(getattr(self, name), f"unit of {name}", 0, open_low=True)

    def points(self, X: Tensor) -> Tensor:
        """Return points or centres as the network sees them."""
        return (X - self._origin(X)) / self.length

    def back(self, Z: Tensor) -> Tensor:
        """Return the points or centres that the network sees so."""
        return self._origin(Z) + self.length * Z

    def _origin(self, like: Tensor) -> Tensor:
        return as_tensor(self.origin, dtype=like.dtype, device=like.device)
