"""A correction of a network's expected costs near the final centres, by regression on answers.

A network of expected costs is smooth and slow to train: at the centres where its free energy is
least, its slope in the centres is still a little wrong, and the centres are a little off. A line
through its errors repairs the slope. It has one number for each coordinate of the centres, so that
few answers fit it, and it assumes nothing of costs or choices.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor, as_tensor

from volition.core.validation import FloatArray, check_scalar
from volition.io.checked_files import expect
from volition.io.serialization import registered

#: standard deviations by which slopes must differ from none, all together
CLEARLY = 3.0


@registered
class Tilt(NamedTuple):
    """A linear function of the centres that is added to all expected costs.

    Beyond ``reach`` from its anchor, in any coordinate, it no longer changes.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from volition.learning.networks.tilt import Tilt
    >>> tilt = Tilt(np.zeros((2, 1)), np.array([[1.0], [2.0]]), 0.5, 1.0)
    >>> float(tilt(torch.tensor([[0.5], [3.0]])))
    3.0
    """

    anchor: FloatArray
    slope: FloatArray
    offset: float
    reach: float

    def check(self, n_features: int) -> None:
        """Raise ValueError unless this is a tilt of centres with so many features."""
        expect(self._asdict(), "anchor", (None, n_features))
        expect(self._asdict(), "slope", self.anchor.shape)
        if not np.isfinite(self.offset):
            raise ValueError(f"'offset' is {self.offset!r}")
        check_scalar(self.reach, "reach", 0)

    def __call__(self, Y: Tensor) -> Tensor:
        """Return what is added to costs at centres (..., K, d)."""
        move = (Y - as_tensor(self.anchor).to(Y)).clamp(-self.reach, self.reach)
        return (move * as_tensor(self.slope).to(Y)).sum((-2, -1)) + self.offset

    def plus(self, centers: FloatArray, slope: FloatArray, offset: float) -> Tilt:
        """Return the sum with another line, given by its slope and its value at some centres."""
        shift = float((slope * (centers - self.anchor)).sum())
        return self._replace(slope=self.slope + slope, offset=self.offset + offset - shift)


class ErrorSums:
    """Sums over answers from which a line through a network's errors can be fitted.

    Parameters
    ----------
    sums : array of shape (K d + 2, K d + 2)
        Products of 1, the moves of the centres, and the error, summed over answers.
    """

    def __init__(self, sums: FloatArray) -> None:
        self.sums = sums

    @classmethod
    def none(cls, n_numbers: int) -> ErrorSums:
        """Return the sums over no answers."""
        return cls(np.zeros((n_numbers + 2, n_numbers + 2)))

    def plus(self, moves: FloatArray, errors: FloatArray) -> ErrorSums:
        """Return the sums with more answers: moves of the centres (m, K, d), errors (m,)."""
        m, n_slopes = len(errors), len(self.sums) - 2
        rows = np.column_stack([np.ones(m), moves.reshape(m, n_slopes), errors])
        return ErrorSums(self.sums + rows.T @ rows)

    def line(self) -> tuple[float, FloatArray]:
        """Return the error without a move, and the slope if there clearly is one.

        Where slopes are not clearly different from zero they are zero, so that noise moves no
        centres; clear ones are shrunk a little, as James and Stein do.

        Examples
        --------
        >>> import numpy as np
        >>> from volition.learning.networks.tilt import ErrorSums
        >>> rng = np.random.default_rng(0)
        >>> moves = rng.standard_normal((1000, 3, 1))
        >>> errors = 1 + moves[:, 0, 0] + 0.1 * rng.standard_normal(1000)
        >>> offset, slope = ErrorSums.none(3).plus(moves, errors).line()
        >>> round(offset, 1), np.abs(slope.round(1)).tolist()
        (1.0, [1.0, 0.0, 0.0])
        """
        n, gram, target = self.sums[0, 0], self.sums[:-1, :-1], self.sums[:-1, -1]
        size = len(gram)
        if n <= 2 * size or np.linalg.matrix_rank(gram) < size:
            return 0.0, np.zeros(size - 1)
        fitted = np.linalg.solve(gram, target)
        noise = max(self.sums[-1, -1] - float(fitted @ target), 0.0) / (n - size)
        slope = fitted[1:]
        # What is left of the slopes' own sums when the mean is taken out.
        own = gram[1:, 1:] - np.outer(gram[0, 1:], gram[0, 1:]) / n
        strength = float(slope @ own @ slope) / max(noise, 1e-300)
        # Of slopes that are not there this is the sum of as many squares of standard normals.
        n_slopes = size - 1
        if strength <= n_slopes + CLEARLY * math.sqrt(2 * n_slopes):
            return float(fitted[0]), np.zeros(n_slopes)
        return float(fitted[0]), slope * max(0.0, 1 - max(0, n_slopes - 2) / strength)
