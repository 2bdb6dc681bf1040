"""Who answers prescriptions: a simulator, a log, or anything else that has ``respond``.

A learner sees nothing of a population but its answers. Entities are numbered; a number stays an
entity's own when others come and go. An answer that never came has the realised cluster -1 and the
cost NaN.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from volition.autonomy import Autonomy, Chunk, Passive, RowAutonomy
from volition.costs import SquaredEuclidean, resolve_cost
from volition.records import LogOptions, read_records
from volition.validation import (
    FloatArray,
    check_centers,
    check_entities,
    check_finite,
    check_integer,
    check_scalar,
)

IntArray = NDArray[np.int64]

#: answers worked out at a time
CHUNK = 8192
#: costs beyond this are mistakes: their squares would not be numbers
LARGEST = 1e100


@dataclass(frozen=True)
class Prescriptions:
    """Questions: which entity was told to use which cluster, and where the centres stood.

    Parameters
    ----------
    entities, prescribed : arrays of shape (m,)
        Numbers of entities and clusters.
    centers : array of shape (K, d), or (m, K, d) where every question has its own
        Centres that the entities are shown.
    ids : array of shape (m,), optional
        A learner's numbers for its questions, by which it knows a late or repeated answer. None
        for prescriptions that someone else made, as in a log.
    propensity : array of shape (m,), optional
        How likely each prescription was when it was chosen.
    version : array of shape (m,), optional
        Number of the centres that were shown: equal numbers, equal centres.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import Prescriptions
    >>> asked = Prescriptions(np.array([4, 7]), np.array([0, 1]), np.zeros((2, 1)))
    >>> len(asked), asked.take([1]).entities.tolist()
    (2, [7])
    """

    entities: IntArray
    prescribed: IntArray
    centers: FloatArray
    ids: IntArray | None = None
    propensity: FloatArray | None = None
    version: IntArray | None = None

    def __post_init__(self) -> None:
        for name in ("entities", "prescribed", "ids", "version"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _whole(getattr(self, name), name))
        object.__setattr__(self, "centers", np.asarray(self.centers, dtype=np.float64))
        if self.propensity is not None:
            object.__setattr__(self, "propensity", np.asarray(self.propensity, dtype=np.float64))
        sizes = {len(getattr(self, n)) for n in COLUMNS if getattr(self, n) is not None}
        if len(sizes) > 1:
            raise ValueError(f"entities, prescribed and ids differ in length: {sorted(sizes)}.")

    def __len__(self) -> int:
        return len(self.entities)

    def take(self, index: Any) -> Prescriptions:
        """Return some of the questions, in the order of ``index`` (numbers or a mask)."""
        index = _index(index)
        some: dict[str, Any] = {n: getattr(self, n) for n in COLUMNS}
        some = {name: None if value is None else value[index] for name, value in some.items()}
        centers = self.centers[index] if self.centers.ndim == 3 else self.centers
        return Prescriptions(centers=centers, **some)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prescriptions):
            return NotImplemented
        mine, theirs = (
            np.broadcast_to(one.centers, (len(one), *one.centers.shape[-2:]))
            for one in (self, other)
        )
        columns = ((getattr(self, name), getattr(other, name)) for name in COLUMNS)
        return np.array_equal(mine, theirs) and all(
            np.array_equal(a, b) if a is not None and b is not None else a is b for a, b in columns
        )

    __hash__ = None  # type: ignore[assignment]

    def to_records(self) -> list[dict[str, Any]]:
        """Return plain rows for a database, one for each question, as JSON can hold them.

        Examples
        --------
        >>> from volition import Prescriptions
        >>> asked = Prescriptions([4], [1], [[0.0], [9.0]], [17], [0.5], [3])
        >>> asked.to_records()
        [{'id': 17, 'entity': 4, 'prescribed': 1, 'propensity': 0.5, 'version': 3,
          'centers': [[0.0], [9.0]]}]
        >>> Prescriptions.from_records(asked.to_records()) == asked
        True
        """
        columns = {name: getattr(self, field) for field, name in COLUMNS.items()}
        known = {name: values.tolist() for name, values in columns.items() if values is not None}
        sets = self.centers.tolist()
        each = sets if self.centers.ndim == 3 else [sets] * len(self)
        order = [name for name in ("id", *COLUMNS.values()) if name in known]
        rows = [
            {name: known[name][row] for name in dict.fromkeys(order)} for row in range(len(self))
        ]
        return [row | {"centers": Y} for row, Y in zip(rows, each, strict=True)]

    @classmethod
    def from_records(cls, records: Any) -> Prescriptions:
        """Return the questions that `to_records` wrote, all or some of them, in any order.

        Parameters
        ----------
        records : sequence of mappings
            Each with ``entity``, ``prescribed`` and ``centers``, and ``id``, ``propensity`` and
            ``version`` in all rows or in none.
        """
        rows = list(records)
        if not rows:
            raise ValueError("There are no records to make questions of.")
        given: dict[str, Any] = {}
        for field_name, name in COLUMNS.items():
            found = [row[name] for row in rows if row.get(name) is not None]
            needed = field_name in ("entities", "prescribed")
            if len(found) not in ((len(rows),) if needed else (0, len(rows))):
                raise ValueError(f"Some records have no '{name}'.")
            given[field_name] = np.array(found) if found else None
        try:
            centers = np.array([row["centers"] for row in rows], dtype=np.float64)
        except (KeyError, ValueError, TypeError):
            raise ValueError("Each record must have 'centers', K rows of numbers.") from None
        same = centers.ndim == 3 and (centers == centers[0]).all()
        return cls(centers=centers[0] if same else centers, **given)


#: columns of questions, and what they are called in records
COLUMNS = {
    "entities": "entity",
    "prescribed": "prescribed",
    "ids": "id",
    "propensity": "propensity",
    "version": "version",
}


@dataclass(frozen=True)
class Response:
    """Answers, row by row: the cluster that was realised (None: not revealed) and its cost.

    No answer came where the cluster is -1 or not revealed, and the cost NaN. Where only one of the
    two is known, the other one is -1 or NaN; a cost of None means that none is known.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import Response
    >>> Response(np.array([2, -1]), np.array([0.5, np.nan])).answered.tolist()
    [True, False]
    """

    realized: IntArray | None
    cost: FloatArray

    def __post_init__(self) -> None:
        if self.cost is None:
            if self.realized is None:
                raise ValueError("cost must be one number for each answer, got None.")
            object.__setattr__(self, "cost", np.full(len(self.realized), np.nan))
        try:
            object.__setattr__(self, "cost", np.array(self.cost, dtype=np.float64))
        except (TypeError, ValueError):
            got = " ".join(repr(self.cost).split())
            got = got if len(got) <= 80 else got[:77] + "..."
            raise ValueError(
                f"cost must be numbers, or NaN where no answer came; got {got}."
            ) from None
        if self.cost.ndim != 1:
            got = f"an array of shape {self.cost.shape}" if self.cost.ndim else "a single one"
            raise ValueError(f"cost must be one number for each answer, got {got}.")
        endless = np.flatnonzero(np.abs(self.cost) > LARGEST)
        if len(endless):
            raise ValueError(
                f"cost must be a number within {LARGEST:g}, or NaN where no answer came; row "
                f"{endless[0]} is {self.cost[endless[0]]}."
            )
        if self.realized is not None:
            realized = np.asarray(self.realized)
            if realized.dtype.kind == "f" and realized.shape == self.cost.shape:
                realized = np.where(np.isnan(realized), -1, realized)
            object.__setattr__(self, "realized", _whole(realized, "realized"))

    def __len__(self) -> int:
        return len(self.cost)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which rows hold an answer."""
        told = np.isfinite(self.cost)
        return told if self.realized is None else told | (self.realized >= 0)

    def take(self, index: Any) -> Response:
        """Return some of the answers."""
        index = _index(index)
        return Response(None if self.realized is None else self.realized[index], self.cost[index])


def _whole(values: Any, name: str) -> IntArray:
    """Return whole numbers as such, by position, whatever holds them."""
    numbers = np.asarray(values)
    if numbers.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {numbers.shape}.")
    if numbers.dtype.kind not in "iu":
        try:
            bad = np.flatnonzero(numbers.astype(np.float64) != np.round(numbers.astype(np.float64)))
        except (TypeError, ValueError):
            bad = np.arange(1)
        if len(bad) and len(numbers):
            raise ValueError(
                f"{name} must hold whole numbers, got {numbers[bad[0]]!r} at row {bad[0]}."
            )
    return numbers.astype(np.int64)


def _index(index: Any) -> Any:
    index = np.asarray(index)
    return index.astype(np.int64) if index.size == 0 else index


class Population(Protocol):
    """Whoever answers: the only thing that a learner asks for."""

    def respond(self, entities: IntArray, prescribed: IntArray, centers: FloatArray) -> Response:
        """Return what each entity did when told to use the prescribed centre."""


class SimulatedPopulation:
    """Entities that follow an autonomy model, which they keep to themselves.

    Parameters
    ----------
    X : array of shape (n, d)
        Entities.
    autonomy : Autonomy, default=Passive()
        How they override.
    metric : str, Cost or callable, default="sqeuclidean"
        Cost of being served.
    reveal : {"realized", "cost"}, default="realized"
        Whether answers tell the realised cluster and its cost, or the cost only.
    loss : float, default=0.0
        Share of answers that never arrive.
    changes : dict of int to Autonomy, optional
        Models that replace the first one from the given interaction on.
    groups, autonomy_proba : array, optional
        As in `AutonomyAwareClustering.fit`.
    random_state : int, Generator or None
        Seed.

    Attributes
    ----------
    n_interactions : int
        Prescriptions received so far, lost answers included.

    Examples
    --------
    >>> import numpy as np
    >>> from volition import DistanceAutonomy, SimulatedPopulation
    >>> X = np.array([[0.0], [1.0], [9.0]])
    >>> people = SimulatedPopulation(X, DistanceAutonomy(0.5), random_state=0)
    >>> answer = people.respond([0, 0, 2], [0, 0, 1], [[0.0], [9.0]])
    >>> answer.realized.tolist(), answer.cost.tolist()
    ([1, 0, 0], [81.0, 0.0, 81.0])
    >>> people.n_interactions
    3
    """

    def __init__(
        self,
        X: Any,
        autonomy: Autonomy | None = None,
        *,
        metric: Any = "sqeuclidean",
        reveal: str = "realized",
        loss: float = 0.0,
        changes: Mapping[int, Autonomy] | None = None,
        groups: Any = None,
        autonomy_proba: Any = None,
        random_state: Any = None,
    ) -> None:
        self._X = check_entities(X).astype(np.float64)
        self._cost = resolve_cost(metric)
        self._cost.check(self._X)
        if reveal not in ("realized", "cost"):
            raise ValueError(f"reveal must be 'realized' or 'cost', got {reveal!r}.")
        if autonomy_proba is not None:
            if autonomy is not None:
                raise ValueError("Give autonomy or autonomy_proba, not both.")
            autonomy = RowAutonomy(autonomy_proba)
        self.reveal = reveal
        self.loss = check_scalar(loss, "loss", 0, 1)
        self._models = {0: Passive() if autonomy is None else autonomy}
        for at, model in (changes or {}).items():
            check_integer(at, "the interaction at which the model changes", 1)
            self._models[int(at)] = model
        self._codes = {
            at: model.group_codes(groups, len(self._X)) for at, model in self._models.items()
        }
        self._rng = np.random.default_rng(random_state)
        self.n_interactions = 0

    @property
    def n_entities(self) -> int:
        """Number of entities."""
        return len(self._X)

    def add_entities(self, X: Any) -> IntArray:
        """Let more entities in; return their numbers."""
        X = check_centers(X, self._X.shape[1], "X")
        for model, codes in zip(self._models.values(), self._codes.values(), strict=True):
            if codes is not None or isinstance(model, RowAutonomy):
                raise ValueError(f"{model!r} says nothing about how new entities behave.")
        self._cost.check(X)
        before = len(self._X)
        self._X = np.concatenate([self._X, X])
        return np.arange(before, len(self._X))

    def respond(self, entities: Any, prescribed: Any, centers: Any) -> Response:
        """Return what each entity does; a million answers take about a second."""
        entities, prescribed, Y = check_questions(
            entities, prescribed, centers, len(self._X), self._X.shape[1]
        )
        K, m = Y.shape[-2], len(entities)
        realized, cost = np.full(m, -1, dtype=np.int64), np.full(m, np.nan)
        starts = np.array(sorted(self._models))
        for lo, hi in self._spans(starts, m):
            at = int(starts[np.searchsorted(starts, self.n_interactions + lo, "right") - 1])
            model, codes = self._models[at], self._codes[at]
            model.check(K, len(self._X))
            rows = slice(lo, hi)
            y = torch.from_numpy(Y if Y.ndim == 2 else Y[rows])
            realized[rows], cost[rows] = self._answers(
                model, codes, entities[rows], prescribed[rows], y
            )
        self.n_interactions += m
        if self.loss > 0:
            lost = self._rng.random(m) < self.loss
            realized[lost], cost[lost] = -1, np.nan
        return Response(realized if self.reveal == "realized" else None, cost)

    def _spans(self, starts: IntArray, m: int) -> list[tuple[int, int]]:
        """Cut a batch where the model changes, and into chunks."""
        inside = starts - self.n_interactions
        cuts = [0, *inside[(inside > 0) & (inside < m)].tolist(), m]
        return [
            (lo, min(lo + CHUNK, hi))
            for first, hi in itertools.pairwise(cuts)
            for lo in range(first, hi, CHUNK)
        ]

    def _answers(
        self,
        model: Autonomy,
        codes: IntArray | None,
        entities: IntArray,
        prescribed: IntArray,
        Y: Tensor,
    ) -> tuple[IntArray, FloatArray]:
        X, u = torch.from_numpy(self._X[entities]), self._rng.random(len(entities))
        with torch.no_grad():
            if Y.ndim == 2 and codes is None and not model.by_entity:
                realized = _draw_shared(model.shared(Y, self._cost)[0].numpy(), prescribed, u)
                # A named function's cost to all centres is one call; else only what is needed.
                if isinstance(self._cost, SquaredEuclidean):
                    return realized, self._cost.each(X, Y[realized][:, None])[:, 0].numpy()
                D = self._cost.pairwise(X, Y)
            else:
                D = self._cost.pairwise(X, Y) if Y.ndim == 2 else self._cost.each(X, Y)
                p = self._probabilities(model, codes, entities, prescribed, X, Y, D)
                cumulative = np.cumsum(p, axis=1)
                below = cumulative <= u[:, None] * cumulative[:, -1:]
                realized = below.sum(1).clip(max=p.shape[1] - 1)
        return realized, D.numpy()[np.arange(len(u)), realized]

    def _probabilities(
        self,
        model: Autonomy,
        codes: IntArray | None,
        entities: IntArray,
        prescribed: IntArray,
        X: Tensor,
        Y: Tensor,
        D: Tensor,
    ) -> FloatArray:
        """Return p(. | j_i, i), shape (m, K)."""
        if isinstance(model, RowAutonomy):
            return model.p[entities, prescribed]
        j = torch.from_numpy(prescribed)
        if Y.ndim == 3 and model.depends_on_centers:
            return model.conditional_each(X, j, Y, self._cost, entities).numpy()
        y, none = Y if Y.ndim == 2 else Y[0], torch.zeros(X.shape[1], dtype=X.dtype)
        group = np.zeros(len(X), dtype=np.int64) if codes is None else codes[entities]
        p = np.empty(D.shape)
        for g in np.unique(group):
            mine = np.flatnonzero(group == g)
            chunk = Chunk(X[mine], none, D[mine], entities[mine], int(g))
            p[mine] = model.transition(chunk, y, self._cost).conditional(j[mine]).numpy()
        return p

    def reseed(self, seed: int) -> None:
        """Draw as if made anew with this ``random_state``; the count of interactions goes on."""
        self._rng = np.random.default_rng(seed)

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on from here, as JSON can hold it."""
        return {"n_interactions": self.n_interactions, "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where :meth:`state_dict` was taken."""
        self.n_interactions = int(state["n_interactions"])
        self._rng.bit_generator.state = state["rng"]

    def __repr__(self) -> str:
        return (
            f"SimulatedPopulation(n_entities={len(self._X)}, reveal={self.reveal!r}, "
            f"n_interactions={self.n_interactions})"
        )


@dataclass(repr=False)
class LoggedPopulation:
    """Answers that were recorded: each is given once, to whoever asks for that very pair.

    Parameters
    ----------
    log : DataFrame or mapping of column name to values
        ``entity``, ``prescribed``, ``realized`` (empty, NaN or -1 where no answer came: such rows
        are left out); optionally ``cost`` and ``timestamp``, which must not decrease.
    X : array of shape (n, d)
        Entities.
    centers : array of shape (K, d)
        Centres while the log was recorded.
    entity_ids : sequence, optional
        How the log names the rows of X. Default: their numbers.
    metric : str, Cost or callable, default="sqeuclidean"
        Cost of being served; logged costs must agree with it.
    tolerance : float, default=1e-4
        By how much a logged cost may differ from the geometry's, as a share of itself or of the
        mean, whichever is larger.
    lines : sequence of int, optional
        Line of the file that each record comes from, for error messages.
    center_names : sequence of str, optional
        Names of the centres; the log may then have names in place of numbers.
    numbered_from : {0, 1}, optional
        First number of the log's clusters. Default: 0; a log that looks as if it were numbered
        from 1 is refused until this is given.
    skip_unknown : bool, default=False
        Whether rows of entities that are not in X are left out (and counted) rather than refused.

    Warns
    -----
    UserWarning
        Where rows are left out, where rows repeat earlier ones, and where nothing shows whether
        clusters are numbered from 0 or from 1.

    Examples
    --------
    >>> from volition import LoggedPopulation
    >>> log = {"entity": [0, 1, 0], "prescribed": [0, 1, 0], "realized": [0, 0, 1]}
    >>> people = LoggedPopulation(log, X=[[0.0], [9.0]], centers=[[0.0], [8.0]])
    >>> people.respond([0, 0, 0], [0, 0, 0], [[0.0], [8.0]]).realized.tolist()
    [0, 1, -1]
    """

    log: Any
    X: Any
    centers: Any
    entity_ids: Any = None
    metric: Any = "sqeuclidean"
    tolerance: float = 1e-4
    lines: Any = None
    center_names: Any = None
    numbered_from: int | None = None
    skip_unknown: bool = False
    n_interactions: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.X = check_entities(self.X)
        self._cost = resolve_cost(self.metric)
        self._cost.check(self.X)
        self.centers = check_centers(self.centers, self.X.shape[1])
        options = LogOptions(
            self.entity_ids,
            self.center_names,
            self.numbered_from,
            self.skip_unknown,
            check_scalar(self.tolerance, "tolerance", 0),
            self.lines,
        )
        records = read_records(self.log, self.X, self.centers[None], self._cost, options)
        self.entities, self.prescribed = records.entities, records.prescribed
        self.realized, self.center_names = records.realized, records.center_names
        for note in records.notes:
            warnings.warn(note, UserWarning, stacklevel=3)
        self._next = 0
        # Per pair, its records in the order in which they were made.
        pair = self.entities * len(self.centers) + self.prescribed
        self._order = np.argsort(pair, kind="stable")
        self._pairs = pair[self._order]
        self._used = np.zeros(len(self.X) * len(self.centers), dtype=np.int64)

    def __repr__(self) -> str:
        return (
            f"LoggedPopulation(n_records={len(self.entities)}, n_entities={self.n_entities}, "
            f"n_clusters={len(self.centers)})"
        )

    @property
    def n_entities(self) -> int:
        """Number of entities."""
        return len(self.X)

    def _costs(self, entities: IntArray, realized: IntArray, centers: FloatArray) -> FloatArray:
        x = torch.from_numpy(np.ascontiguousarray(self.X[entities], dtype=np.float64))
        y = torch.from_numpy(np.asarray(centers, dtype=np.float64))
        y = y[torch.from_numpy(realized)] if y.ndim == 2 else y[torch.arange(len(x)), realized]
        return self._cost.each(x, y[:, None])[:, 0].numpy()

    def respond(self, entities: Any, prescribed: Any, centers: Any) -> Response:
        """Return the next recorded answer of each pair, at the cost of these centres."""
        entities, prescribed, Y = check_questions(
            entities, prescribed, centers, len(self.X), self.X.shape[1]
        )
        if Y.shape[-2] != len(self.centers):
            raise ValueError(
                f"{Y.shape[-2]} centres, but the log was recorded with {len(self.centers)}."
            )
        pair = entities * len(self.centers) + prescribed
        record = np.searchsorted(self._pairs, pair) + self._used[pair] + _repeats(pair)
        last = np.searchsorted(self._pairs, pair, "right")
        known = record < last
        np.add.at(self._used, pair[known], 1)
        realized, cost = np.full(len(pair), -1, dtype=np.int64), np.full(len(pair), np.nan)
        realized[known] = self.realized[self._order[record[known]]]
        where = Y if Y.ndim == 2 else Y[known]
        cost[known] = self._costs(entities[known], realized[known], where)
        self.n_interactions += len(pair)
        return Response(realized, cost)

    def replay(self, n: int) -> tuple[Prescriptions, Response]:
        """Return the next n records as questions and answers, fewer at the end, each once."""
        index = np.arange(self._next, min(self._next + n, len(self.entities)))
        self._next += len(index)
        self.n_interactions += len(index)
        asked = Prescriptions(self.entities[index], self.prescribed[index], self.centers)
        realized = self.realized[index]
        return asked, Response(realized, self._costs(asked.entities, realized, self.centers))

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on from here, as JSON can hold it."""
        used = np.flatnonzero(self._used)
        return {
            "n_interactions": self.n_interactions,
            "next": self._next,
            "used": [used.tolist(), self._used[used].tolist()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where :meth:`state_dict` was taken."""
        self.n_interactions, self._next = int(state["n_interactions"]), int(state["next"])
        self._used[:] = 0
        self._used[state["used"][0]] = state["used"][1]


def _draw_shared(P: FloatArray, prescribed: IntArray, u: FloatArray) -> IntArray:
    """Draw from row j of P by one search in all rows laid end to end."""
    K = len(P)
    cumulative = np.cumsum(P, axis=1)
    cumulative /= cumulative[:, -1:]
    ends = (cumulative + np.arange(K)[:, None]).ravel()
    found = np.searchsorted(ends, prescribed + u, "right") - prescribed * K
    # What no probability reaches is not drawn, whatever the rounding.
    return np.minimum(found, K - 1 - (P[:, ::-1] > 0).argmax(1)[prescribed])


def _repeats(values: IntArray) -> IntArray:
    """Return how often each value occurred before in the array."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.searchsorted(ordered, ordered)
    out = np.empty(len(values), dtype=np.int64)
    out[order] = np.arange(len(values)) - first
    return out


def check_questions(
    entities: Any, prescribed: Any, centers: Any, n_entities: int, n_features: int
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return entities, prescribed clusters and centres as arrays that fit each other."""
    numbers = [np.atleast_1d(np.asarray(values)) for values in (entities, prescribed)]
    Y = np.array(centers, dtype=np.float64)
    shape = numbers[0].shape
    if any(v.dtype.kind not in "iu" or v.shape != shape or v.ndim != 1 for v in numbers):
        raise ValueError(
            "entities and prescribed must be two arrays of whole numbers of one length, got "
            f"shapes {numbers[0].shape} and {numbers[1].shape}."
        )
    if (
        Y.ndim not in (2, 3)
        or Y.shape[-1] != n_features
        or 0 in Y.shape[-2:]
        or (Y.ndim == 3 and len(Y) != len(numbers[0]))
    ):
        raise ValueError(
            f"centers must have shape (K, {n_features}), or ({len(numbers[0])}, K, {n_features}) "
            f"with one set per question, got {Y.shape}."
        )
    check_finite(Y.reshape(-1, n_features), "centers")
    for values, name, limit in zip(
        numbers, ("entity", "cluster"), (n_entities, Y.shape[-2]), strict=True
    ):
        bad = np.flatnonzero((values < 0) | (values >= limit))
        if len(bad):
            raise ValueError(
                f"There is no {name} {values[bad[0]]} (question {bad[0]}); {name} numbers go from "
                f"0 to {limit - 1}."
            )
    return numbers[0].astype(np.int64), numbers[1].astype(np.int64), Y
