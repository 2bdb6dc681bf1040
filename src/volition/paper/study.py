"""What a study is: cases to be solved one by one, and a page that presents what came out."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from volition.core.validation import FloatArray
from volition.datasets import load_utd19_london

if TYPE_CHECKING:
    from volition.paper.page import Page

Row = dict[str, Any]
#: published figures by the parameters of their scenario
Figures = dict[tuple[float, ...], dict[str, float]]


@dataclass(frozen=True)
class Settings:
    """What a user may choose."""

    quick: bool = False
    seed: int = 0
    data: Path | None = None  # London's sensors
    published: Path | None = None  # figures that are not printed in the paper

    def london(self) -> FloatArray:
        """Return the sensors of London."""
        if self.data is None:
            raise ValueError(
                "london needs the positions of London's traffic sensors: --data PATH with the "
                "paper's MATLAB file (variable Xz, n x 2) or with detectors_public.csv of UTD19 "
                "(columns citycode, long, lat), which ETH Zürich gives out on request "
                "(utd19.ethz.ch)."
            )
        return load_utd19_london(self.data)

    def figures(self, name: str, keys: Sequence[str], columns: Sequence[str]) -> Figures:
        """Return published figures by their parameters, none where no folder is given."""
        if self.published is None:
            return {}
        path = self.published / name
        if not path.is_file():
            raise ValueError(f"--published {self.published} has no file {name}.")
        with open(path, encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            missing = {*keys, *columns} - set(reader.fieldnames or [])
            if missing:
                raise ValueError(f"{path} has no column '{min(missing)}'.")
            rows = list(reader)
        try:
            return {
                tuple(float(row[key]) for key in keys): {c: float(row[c]) for c in columns}
                for row in rows
            }
        except ValueError as error:
            raise ValueError(f"{path}: {error}.") from None


class Case(NamedTuple):
    """One piece of work, after which a run can be broken off and resumed."""

    name: str
    params: dict[str, Any]  # what JSON can hold
    seconds: float  # that it takes, about, on two cores


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper.

    ``cases`` says what there is to do, ``solve`` does one of them and returns what JSON can hold,
    ``present`` writes tables, pictures and text from all of it.
    """

    name: str
    title: str
    cases: Callable[[Settings], list[Case]]
    solve: Callable[[dict[str, Any], Settings], Row]
    present: Callable[[list[Row], Page], None]
    needs_data: bool = False
    uses_published: bool = False
    #: raises ValueError where what ``--data`` and ``--published`` name is of no use to this study
    check: Callable[[Settings], Any] = lambda settings: None

    def expected(self, settings: Settings) -> float:
        """Return how many seconds the study takes, about, on two cores."""
        return sum(case.seconds for case in self.cases(settings))
