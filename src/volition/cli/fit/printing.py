"""What ``volition fit`` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from volition.cli.outputs import FIT_FILES
from volition.core.costs import cost_unit_name


def print_summary(console: Console, summary: dict[str, Any], out: Path) -> None:
    """Print what the fit costs, what ignoring autonomy would have cost, and where results are."""
    console.print(
        f"{summary['n_entities']} entities ({', '.join(summary['columns'])}), "
        f"{summary['n_clusters']} centres, {summary['autonomy']}; "
        f"{summary['seconds']:.1f} s, {summary['status']}."
    )
    if summary["nearly_uniform_override"]:
        console.print(
            "Note: the temperature is far above the costs between centres, so that overrides are "
            "nearly uniform, not to near centres."
        )
    console.print(_costs(summary))
    console.print(f"Results in {out}/: {', '.join(FIT_FILES)}")


def _costs(summary: dict[str, Any]) -> RichTable:
    unit = cost_unit_name(summary["metric"], summary["columns"])
    table = RichTable(box=None, pad_edge=False)
    table.add_column("placement")
    table.add_column(f"cost per entity ({unit})" if unit else "cost per entity", justify="right")
    table.add_column("more than ours", justify="right")
    table.add_row("autonomy known", f"{summary['distortion']:.6g}", "")
    excess = summary["excess_cost_percent_if_ignored"]
    ignored = summary["distortion_if_autonomy_is_ignored"]
    table.add_row(
        "autonomy ignored",
        "not known (Ctrl-C)" if ignored is None else f"{ignored:.6g}",
        "" if excess is None else f"{excess:+.2f} %",
    )
    return table
