"""What it costs to serve an entity from a centre.

A cost knows its pairwise matrix and, where one exists, its closed-form centre update. Everything is
written in torch, so that any cost can be differentiated.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from volition.core.validation import FloatArray
from volition.io.serialization import registered, user_code

EARTH_RADIUS_KM = 6371.0088
#: values beyond which squares, and the betas that go with them, cannot be held; the inverse is the
#: least spread
LARGEST_COORDINATE = {np.float32: 1e10, np.float64: 1e140}


def runs(Y: Tensor) -> list[tuple[int, int]]:
    """Return where runs of equal centres begin and end in Y (n, K, d): neighbours often share them.

    Examples
    --------
    >>> import torch
    >>> from volition.core.costs import runs
    >>> runs(torch.tensor([1.0, 1.0, 2.0])[:, None, None])
    [(0, 2), (2, 3)]
    """
    if len(Y) == 0:
        return []
    new = (Y[1:] != Y[:-1]).any(2).any(1)
    if Y.requires_grad:
        new = torch.ones_like(new)  # equal centres may be different variables
    ends = [*(torch.nonzero(new)[:, 0] + 1).tolist(), len(Y)]
    return list(itertools.pairwise([0, *ends]))


@user_code
class Cost(ABC):
    """Base class: ``pairwise`` and a few facts that let solvers choose the right method."""

    #: name used for ``metric=`` and in saved models
    name: str = ""
    #: moving entities and centres together changes nothing (data may then be centred)
    translation_invariant: bool = False
    #: the weighted mean is the best centre, so that Algorithm 1's update exists
    mean_is_optimal: bool = False
    #: costs are squares of lengths
    squares_lengths: bool = False

    @abstractmethod
    def pairwise(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return the (n, K) matrix of costs d(x_i, y_k), differentiable in both."""

    def each(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return the (n, K) costs where every entity has its own centres, Y (n, K, d)."""
        if len(X) == 0:
            return X.new_zeros(0, Y.shape[1])
        return torch.cat([self.pairwise(X[lo:hi], Y[lo]) for lo, hi in runs(Y)])

    def check(self, X: FloatArray, name: str = "X") -> None:
        """Raise ValueError if X is outside the cost's domain."""

    def embed(self, X: FloatArray) -> FloatArray:
        """Map entities to a Euclidean space in which means and k-means make sense."""
        return X

    def unembed(self, Z: FloatArray) -> FloatArray:
        """Inverse of :meth:`embed` for centres."""
        return Z

    def canonical(self, Y: FloatArray) -> FloatArray:
        """Return equivalent centres in the usual range of coordinates."""
        return Y

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


@registered
class SquaredEuclidean(Cost):
    """Squared Euclidean distance; the best centre is the weighted mean.

    Parameters
    ----------
    by_differences : bool, default=False
        Square differences instead of expanding the square: slower, and exact where distances are
        tiny against the coordinates. The :class:`~volition.core.problem.Problem` asks for it.

    Examples
    --------
    >>> import torch
    >>> from volition.core.costs import SquaredEuclidean
    >>> X = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> SquaredEuclidean().pairwise(X, X[:1]).tolist()
    [[0.0], [25.0]]
    """

    name = "sqeuclidean"
    translation_invariant = True
    mean_is_optimal = True
    squares_lengths = True

    def __init__(self, by_differences: bool = False) -> None:
        self.by_differences = by_differences

    def pairwise(self, X: Tensor, Y: Tensor) -> Tensor:
        if self.by_differences:
            out = X.new_zeros(len(X), len(Y))
            for x, y in zip(X.T, Y.T, strict=True):
                out = out + (x[:, None] - y) ** 2
            return out
        squares = (X * X).sum(1, keepdim=True) + (Y * Y).sum(1)
        # Rounding may leave a tiny negative number between equal points.
        return torch.addmm(squares, X, Y.T, alpha=-2).clamp_min(0)

    def check(self, X: FloatArray, name: str = "X") -> None:
        largest = LARGEST_COORDINATE[X.dtype.type]
        if max(float(X.max()), -float(X.min())) > largest:
            row, column = (int(v) for v in np.argwhere(np.abs(X) > largest)[0])
            raise ValueError(
                f"{name} has {X[row, column]:g} at row {row}, column {column}; squared distances "
                f"need values up to {largest:g} in {X.dtype}: use larger units"
                f"{', or float64' if X.dtype == np.float32 else ''}."
            )

    def each(self, X: Tensor, Y: Tensor) -> Tensor:
        squares = (X[:, None] - Y) ** 2
        # Sums of two numbers each take torch five times as long as adding columns.
        return squares[..., 0] + squares[..., 1] if squares.shape[2] == 2 else squares.sum(2)


@registered
class Haversine(Cost):
    """Great-circle distance between (latitude, longitude) pairs in degrees.

    Parameters
    ----------
    squared : bool, default=False
        False gives kilometres (``metric="haversine"``), True gives kilometres squared
        (``metric="sqhaversine"``).

    Examples
    --------
    >>> import torch
    >>> from volition.core.costs import Haversine
    >>> london, paris = torch.tensor([[51.5074, -0.1278]]), torch.tensor([[48.8566, 2.3522]])
    >>> round(Haversine().pairwise(london, paris).item())
    344
    """

    def __init__(self, squared: bool = False) -> None:
        self.squared = self.squares_lengths = squared
        self.name = "sqhaversine" if squared else "haversine"

    def pairwise(self, X: Tensor, Y: Tensor) -> Tensor:
        x, y = torch.deg2rad(X), torch.deg2rad(Y)
        half = (x[:, None, :] - y[None, :, :]) / 2
        chord = (
            torch.sin(half[..., 0]) ** 2
            + torch.cos(x[:, None, 0]) * torch.cos(y[None, :, 0]) * torch.sin(half[..., 1]) ** 2
        )
        # asin(sqrt(h)) has an infinite slope at h = 0 and h = 1: stay one rounding error inside.
        tiny = torch.finfo(X.dtype).tiny
        eps = torch.finfo(X.dtype).eps
        angle = 2 * torch.asin(torch.sqrt(chord.clamp(tiny, 1 - eps)))
        distance = EARTH_RADIUS_KM * angle
        return distance * distance if self.squared else distance

    def check(self, X: FloatArray, name: str = "X") -> None:
        if X.shape[1] != 2:
            raise ValueError(
                f"{name} must have two columns (latitude, longitude) in degrees for "
                f"metric='{self.name}', got {X.shape[1]}."
            )
        for column, (what, limit) in enumerate((("latitude", 90), ("longitude", 180))):
            bad = np.flatnonzero(np.abs(X[:, column]) > limit)
            if len(bad):
                raise ValueError(
                    f"{name} has {what} {X[bad[0], column]:g} at row {bad[0]}; "
                    f"metric='{self.name}' takes degrees, {what} within [-{limit}, {limit}]."
                )

    def embed(self, X: FloatArray) -> FloatArray:
        lat, lon = np.deg2rad(X.T)
        return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=1)

    def unembed(self, Z: FloatArray) -> FloatArray:
        lat = np.arctan2(Z[:, 2], np.hypot(Z[:, 0], Z[:, 1]))
        return np.rad2deg(np.stack([lat, np.arctan2(Z[:, 1], Z[:, 0])], axis=1))

    def canonical(self, Y: FloatArray) -> FloatArray:
        inside = (np.abs(Y[:, 0]) <= 90) & (np.abs(Y[:, 1]) <= 180)
        return np.where(inside[:, None], Y, self.unembed(self.embed(Y)))

    def __repr__(self) -> str:
        return f"Haversine(squared={self.squared})"


class CallableCost(Cost):
    """A user's own torch function ``fn(X, Y) -> (n, K)`` of nonnegative costs.

    Examples
    --------
    >>> import torch
    >>> from volition.core.costs import CallableCost
    >>> manhattan = CallableCost(lambda X, Y: (X[:, None] - Y[None]).abs().sum(-1))
    >>> manhattan.pairwise(torch.zeros(1, 2), torch.ones(3, 2)).tolist()
    [[2.0, 2.0, 2.0]]
    """

    name = "callable"

    def __init__(self, fn: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.fn = fn

    def pairwise(self, X: Tensor, Y: Tensor) -> Tensor:
        try:
            out = self.fn(X, Y)
        except RuntimeError as error:
            raise ValueError(
                f"The cost function given as metric failed on torch tensors ({error}); it must use "
                "torch operations only."
            ) from error
        if not isinstance(out, Tensor) or out.shape != (len(X), len(Y)):
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                "The cost function given as metric must return a torch tensor of shape "
                f"(n, K) = ({len(X)}, {len(Y)}), got {got}."
            )
        return out.to(dtype=X.dtype, device=X.device)

    def __repr__(self) -> str:
        return f"CallableCost({getattr(self.fn, '__name__', self.fn)!s})"


_NAMED: dict[str, Callable[[], Cost]] = {
    "sqeuclidean": SquaredEuclidean,
    "haversine": Haversine,
    "sqhaversine": lambda: Haversine(squared=True),
}

#: the names that ``metric=`` takes
METRICS = tuple(_NAMED)

#: words of which names of columns with degrees are made
_LATITUDE = {"lat", "latitude", "lats"}
_LONGITUDE = {"lon", "lng", "long", "longitude", "lons"}


def resolve_cost(metric: Any) -> Cost:
    """Turn what a user gives as ``metric`` into a :class:`Cost`.

    Examples
    --------
    >>> from volition.core.costs import resolve_cost
    >>> resolve_cost("sqhaversine")
    Haversine(squared=True)
    """
    if isinstance(metric, Cost):
        return metric
    if isinstance(metric, str) and metric in _NAMED:
        return _NAMED[metric]()
    if callable(metric) and not isinstance(metric, type):
        return CallableCost(metric)
    raise ValueError(
        f"metric must be one of {list(METRICS)}, a Cost or a torch function "
        f"fn(X, Y) -> (n, K), got {metric!r}."
    )


def cost_unit_name(metric: Any, columns: Sequence[str] = ()) -> str:
    """Return the unit of a cost as a table's head or a picture's axis shows it, "" if unknown.

    Parameters
    ----------
    metric : str, Cost or callable
        As elsewhere.
    columns : list of str
        Names of the entities' columns.

    Returns
    -------
    str

    Examples
    --------
    >>> from volition.core.costs import cost_unit_name
    >>> cost_unit_name("haversine"), cost_unit_name("sqhaversine")
    ('km', 'km²')
    >>> cost_unit_name("sqeuclidean", ["x", "y"])
    'squared units of x, y'
    """
    cost = resolve_cost(metric)
    if isinstance(cost, Haversine):
        return "km²" if cost.squared else "km"
    if not isinstance(cost, SquaredEuclidean):
        return ""
    short = 0 < len(columns) <= 3 and sum(map(len, columns)) <= 30
    return f"squared units of {', '.join(columns)}" if short else "squared units of the columns"


def geographic_hint(metric: Any, columns: Sequence[str], X: FloatArray) -> str | None:
    """Return a hint where columns look like degrees but costs are squared differences of them.

    Parameters
    ----------
    metric : str, Cost or callable
        As elsewhere.
    columns : list of str
        Names of the columns of X.
    X : array of shape (n, d)
        Entities.

    Returns
    -------
    str or None

    Examples
    --------
    >>> import numpy as np
    >>> from volition.core.costs import geographic_hint
    >>> "--metric haversine" in geographic_hint("sqeuclidean", ["lat", "lon"], np.ones((1, 2)))
    True
    """
    if not isinstance(resolve_cost(metric), SquaredEuclidean):
        return None
    found = []
    for words, limit in ((_LATITUDE, 90), (_LONGITUDE, 180)):
        found += [
            name
            for name, column in zip(columns, X.T, strict=True)
            if words & set(re.split(r"[^a-z]+", name.lower()))
            and np.abs(column).max(initial=0) <= limit
        ][:1]
    if len(found) < 2:
        return None
    return (
        f"columns {found[0]} and {found[1]} look like degrees, of which the default metric takes "
        f"squared differences; for kilometres say --metric haversine --columns {','.join(found)}."
    )
