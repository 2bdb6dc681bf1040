"""A study's page: text, tables (also as CSV), pictures (PNG and SVG), and all of it as JSON."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch

import volition
from volition.reproduce.study import Row, Settings, Study
from volition.tables import write_csv


class Page:
    """Collects what a study has to show, and writes it."""

    def __init__(self, folder: Path, study: Study, settings: Settings, rows: list[Row]) -> None:
        self.folder, self.study, self.settings, self.rows = folder, study, settings, rows
        self.parts: list[str] = []
        self.facts: dict[str, Any] = {}

    def text(self, paragraph: str) -> None:
        """Add a paragraph."""
        self.parts.append(" ".join(paragraph.split()))

    def fact(self, name: str, value: Any) -> None:
        """Keep a figure for the JSON file, from which headlines are made."""
        self.facts[name] = value

    def table(self, name: str, rows: Sequence[Row], digits: int = 4) -> None:
        """Add a table, and write it as CSV."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        for row in rows:
            cells = (_shown(row.get(key), digits) for key in columns)
            lines.append(f"| {' | '.join(cells)} |")
        self.parts.append("\n".join(lines))
        write_csv(
            self.folder / f"{name}.csv",
            columns,
            (["" if row.get(key) is None else row[key] for key in columns] for row in rows),
        )

    def picture(self, name: str, figure: Any, caption: str) -> None:
        """Add a picture, as PNG and SVG."""
        from matplotlib import pyplot as plt

        figure.savefig(self.folder / f"{name}.png", dpi=130)
        figure.savefig(self.folder / f"{name}.svg", dpi=130)
        plt.close(figure)
        self.embed(f"{name}.png", caption)

    def embed(self, file: str, caption: str) -> None:
        """Show a file of the folder."""
        caption = " ".join(caption.split())
        self.parts.append(f"![{caption}]({file})\n\n*{caption}*")

    @property
    def command(self) -> str:
        """The command that makes this page."""
        settings = self.settings
        words = ["volition", "reproduce", self.study.name]
        words += ["--quick"] if settings.quick else []
        words += ["--seed", str(settings.seed)] if settings.seed else []
        words += ["--data", "FILE"] if self.study.needs_data else []
        words += ["--published", "FOLDER"] if settings.published is not None else []
        return " ".join(words)

    def markdown(self, prefix: str = "", level: int = 1) -> str:
        """Return the page; ``prefix`` is put before the names of files."""
        parts = [part.replace("](", f"]({prefix}") if "](" in part else part for part in self.parts]
        minutes = sum(row["took_s"] for row in self.rows) / 60
        made = (
            f"Made by `{self.command}` ({minutes:.1f} minutes; volition {volition.__version__}, "
            f"torch {torch.__version__.split('+')[0]}, Python {platform.python_version()})."
        )
        if self.settings.quick:
            made += " A quick run: fewer seeds and cases than a full one."
        head = f"{'#' * level} {self.study.title}"
        return "\n\n".join([head, *parts, made]) + "\n"

    def write(self) -> None:
        """Write page.md and the JSON file."""
        (self.folder / "page.md").write_text(self.markdown(), encoding="utf-8")
        content = {
            "study": self.study.name,
            "command": self.command,
            "versions": {
                "volition": volition.__version__,
                "python": platform.python_version(),
                "numpy": np.__version__,
                "torch": torch.__version__,
                "scikit-learn": sklearn.__version__,
            },
            "seed": self.settings.seed,
            "quick": self.settings.quick,
            "facts": self.facts,
            "rows": self.rows,
        }
        path = self.folder / f"{self.study.name}.json"
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _shown(value: Any, digits: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, float | int):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return "none" if math.isinf(value) else f"{value:.{digits}g}"
