"""Warnings of a computation, collected so that a command can print each once, at the end."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from volition.core.outliers import OutlierWarning, warn_of_outliers
from volition.io.tables import Table


@contextmanager
def collected_warnings(table: Table) -> Iterator[list[warnings.WarningMessage]]:
    """Collect what is warned of, outliers in a table first, by the names of its columns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_outliers(table.values, table.weight, table.columns)
        # A fit would say it once more, without the names of the columns.
        warnings.simplefilter("ignore", OutlierWarning)
        yield caught


def sentences(caught: list[warnings.WarningMessage]) -> list[str]:
    """Return what was warned of, each sentence once."""
    return list(dict.fromkeys(str(warning.message) for warning in caught))
