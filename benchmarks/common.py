"""What the benchmarks share: threads, published figures, a table and a JSON file."""

from __future__ import annotations

import csv
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import volition

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
RESULTS = ROOT / "benchmarks" / "results"
THREADS = int(os.environ.get("BENCH_THREADS", "2"))

torch.set_num_threads(THREADS)


def published(name: str) -> list[dict[str, float]]:
    """Read a table of published figures."""
    with open(ROOT / "benchmarks" / "published" / name) as stream:
        rows = list(csv.DictReader(stream))
    return [{k: float(v) for k, v in row.items() if k != "in_paper"} for row in rows]


def report(
    name: str, rows: list[dict[str, Any]], facts: dict[str, Any], folder: Path = RESULTS
) -> None:
    """Print a table and what it comes to; write both as JSON."""
    table = Table(title=name)
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(_show(value) for value in row.values()))
    console = Console(width=150)
    console.print(table)
    for key, value in facts.items():
        console.print(f"{key}: {_show(value)}")
    folder.mkdir(exist_ok=True)
    machine = {
        "volition": volition.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": THREADS,
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, "facts": facts, "rows": rows}, indent=1) + "\n")
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    console.print(f"Written to {shown}")


def _show(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
