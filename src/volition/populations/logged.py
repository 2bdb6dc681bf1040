"""Answers that were recorded."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from volition.core.costs import resolve_cost
from volition.core.messages import DataWarning
from volition.core.validation import FloatArray, check_centers, check_entities, check_scalar
from volition.io.records import LogOptions, read_records
from volition.populations.answers import IntArray, Prescriptions, Response, check_questions


@dataclass(repr=False)
class LoggedPopulation:
    """Answers that were recorded: each is given once, to a question about that very pair.

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
            self.entity_ids, self.center_names, self.numbered_from, self.skip_unknown,
            check_scalar(self.tolerance, "tolerance", 0), self.lines,
        )  # fmt: skip
        records = read_records(self.log, self.X, self.centers[None], self._cost, options)
        self.entities, self.prescribed = records.entities, records.prescribed
        self.realized, self.center_names = records.realized, records.center_names
        for note in records.notes:
            warnings.warn(note, DataWarning, stacklevel=3)
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


def _repeats(values: IntArray) -> IntArray:
    """Return how often each value occurred before in the array."""
    order = np.argsort(values, kind="stable")
    out = np.empty_like(values)
    out[order] = np.arange(len(values)) - np.searchsorted(values[order], values[order])
    return out
