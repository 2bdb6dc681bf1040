"""A study's page: text, tables (also as CSV), pictures (PNG and SVG), and all of it as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from volition.io.checked_files import replace_file
from volition.io.results import write_csv
from volition.paper.study import Row, Settings, Study

#: how the page that joins all others begins
HEAD = (
    "# Results\n\nThe paper's tables and figures, and one of ours. Each section ends with the "
    "command that makes it."
)


class Page:
    """Collects what a study has to show, and writes it."""

    def __init__(
        self, folder: Path, study: Study, settings: Settings, rows: list[Row], made: dict[str, Any]
    ) -> None:
        self.folder, self.study, self.settings, self.rows = folder, study, settings, rows
        self.made = made  # versions, seed, data
        self.parts: list[str] = []
        self.facts: dict[str, Any] = {}

    def text(self, paragraph: str) -> None:
        """Add a paragraph."""
        self.parts.append(" ".join(paragraph.split()))

    def fact(self, name: str, value: Any) -> None:
        """Keep a figure for the JSON file, from which headlines are made."""
        self.facts[name] = value

    def table(
        self, name: str, rows: Sequence[Row], digits: int = 4, columns: Sequence[str] = ()
    ) -> None:
        """Add a table, and write it as CSV; columns that no row has are left out."""
        there = dict.fromkeys(key for row in rows for key in row)
        columns = [*(name for name in columns if name in there)] or list(there)
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
        published = settings.published is not None and self.study.uses_published
        words += ["--published", "FOLDER"] if published else []
        return " ".join(words)

    def markdown(self) -> str:
        """Return the page."""
        minutes = sum(row["took_s"] for row in self.rows) / 60
        made = (
            f"Made by `{self.command}` with seed {self.made['seed']}, volition "
            f"{self.made['volition']}, torch {self.made['torch'].split('+')[0]} and Python "
            f"{self.made['python']} in {minutes:.2g} minutes. Seconds are those of the machine "
            "that it ran on, and of whatever else ran there."
        )
        fewer = len(self.study.cases(replace(self.settings, quick=False))) > len(self.rows)
        if self.settings.quick and fewer:
            made += " A quick run: fewer seeds and cases than a full one."
        return "\n\n".join([f"# {self.study.title}", *self.parts, made]) + "\n"

    def write(self) -> None:
        """Write page.md and the JSON file."""
        (self.folder / "page.md").write_text(self.markdown(), encoding="utf-8")
        content = {"command": self.command, **self.made, "facts": self.facts, "rows": self.rows}
        path = self.folder / f"{self.study.name}.json"
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def together(folder: Path, studies: Sequence[Study]) -> Path:
    """Join the pages that are in a folder to one, README.md, with a table of contents."""
    contents, parts = [], []
    for study in studies:
        page = folder / study.name / "page.md"
        if not page.is_file():
            contents.append(f"- {study.title}: not run (`volition reproduce {study.name}`)")
            continue
        text = page.read_text(encoding="utf-8").replace("](", f"]({study.name}/")
        parts.append(f"#{text}")
        anchor = "".join(c for c in study.title.lower() if c.isalnum() or c in " -")
        contents.append(f"- [{study.title}](#{anchor.replace(' ', '-')})")
    head = f"{HEAD}\n\n" + "\n".join(contents) + "\n"
    path = folder / "README.md"
    joined = "\n".join([head, *parts])
    replace_file(path, lambda name: Path(name).write_text(joined, encoding="utf-8"))
    return path


def _shown(value: Any, digits: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, float | int):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return "none" if math.isinf(value) else f"{value + 0.0:.{digits}g}"
