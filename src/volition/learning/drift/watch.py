"""Whether behaviour has changed, by all that answers tell: choices where they do, else costs."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from volition.core.validation import FloatArray
from volition.learning.drift.detector import Change, DriftMonitor
from volition.learning.drift.questions import WatchedAnswers
from volition.learning.entities import Entities
from volition.learning.ledger import Asked
from volition.populations.answers import IntArray

#: by how much a cost may differ from a distance and still be it, as a share
EXACT = 1e-6


class Watch:
    """Hands answers to the monitor that can read them.

    An answer that tells which cluster was used, or whose cost is that of one centre alone, goes to
    the monitor of choices. A cost that is not that of any centre goes to the monitor of costs. If
    the choice is known as well, the cost is judged as that of the cluster that was used.

    Parameters
    ----------
    n_clusters : int
    unit : float
        Cost of a single centre for all.
    """

    def __init__(self, n_clusters: int, unit: float) -> None:
        self.unit = unit if unit > 0 else 1.0
        # With one cluster there is nothing to choose.
        kinds = (False, True) if n_clusters > 1 else ()
        self.monitors = [DriftMonitor(n_clusters, costs=costs) for costs in kinds]

    def forget(self) -> None:
        """Compare with nothing that came before."""
        for monitor in self.monitors:
            monitor.forget()

    def add(
        self, asked: Asked, realized: IntArray, cost: FloatArray, sets: FloatArray,
        entities: Entities, when: tuple[int, int],
    ) -> Change | None:  # fmt: skip
        """Take in answers; return whether they show that behaviour has changed."""
        if not self.monitors:
            return None
        i, j, rows = asked.entities, asked.prescribed, np.arange(len(cost))
        x, y = torch.from_numpy(entities.X[i]), torch.from_numpy(np.array(sets))
        with torch.no_grad():
            D = entities.cost.each(x, y).numpy()
        matches = np.abs(cost[:, None] - D) <= EXACT * (self.unit + np.abs(cost[:, None]))
        only = matches.sum(1) == 1
        used = np.where(realized >= 0, realized, np.where(only, matches.argmax(1), -1))
        odd = np.isfinite(cost) & ~np.where(realized >= 0, matches[rows, realized], matches.any(1))
        found = None
        for monitor, mine in zip(self.monitors, (used >= 0, odd), strict=True):
            if not mine.any():
                continue
            # What is paid depends on where one goes, if that is known.
            told = np.where(used >= 0, used, j) if monitor.costs else j
            with torch.no_grad():
                apart = entities.cost.each(y[rows, told], y).numpy()
            watched = WatchedAnswers(
                i[mine], told[mine], D[mine] / self.unit, apart[mine] / self.unit, sets[mine],
                *((None, cost[mine]) if monitor.costs else (used[mine], None)),
            )  # fmt: skip
            found = monitor.add(watched, when) or found
        if found is not None:
            self.forget()
        return found

    def copied(self) -> Watch:
        """Return a copy that shares nothing with this one."""
        return copy.deepcopy(self)

    def state(self) -> dict[str, Any]:
        """Return what is to be saved."""
        return {"monitors": [monitor.state() for monitor in self.monitors]}

    def restore(self, state: dict[str, Any]) -> None:
        """Return to a saved `state`."""
        self.monitors = [DriftMonitor.from_state(each) for each in state["monitors"]]
