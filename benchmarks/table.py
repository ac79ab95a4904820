"""The table of `benchmarks.consume`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.clients import CASES
from benchmarks.figures import Spread, Summary

__all__ = ["show"]

WIDTH = 132
"""Columns of the table if standard output is not a terminal."""

COLUMNS = ("records/s", "range", "MB/s", "ratio", "range", "CPU", "CPU ratio", "start")


def show(
    title: str, summaries: Sequence[Summary], versions: Mapping[str, str], machine: Mapping[str, str]
) -> None:
    """Print the batch cases, the record cases, and the machine."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    table = Table(title=title, title_justify="left")
    table.add_column("client", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    kind = None
    for summary in summaries:
        case = CASES[summary.case]
        if kind is not None and case.kind != kind:
            table.add_section()
        kind = case.kind
        style = "bold" if case.distribution == "asyncgroup" else None
        table.add_row(f"{case.distribution} {case.call}", *_cells(summary), style=style)
    console.print(table)
    console.print(_legend(versions, machine), highlight=False)


def _cells(summary: Summary) -> list[str]:
    return [
        f"{summary.rate.median:,.0f}",
        _range(Spread(*(value / 1000 for value in summary.rate)), ",.0f", " k"),
        f"{summary.megabytes.median:,.0f}",
        _median(summary.ratio),
        _range(summary.ratio, ".2f"),
        f"{summary.cpu_per_million.median:.2f}",
        _median(summary.cpu_ratio),
        f"{summary.start_seconds.median:.2f}",
    ]


def _median(spread: Spread | None) -> str:
    return f"{spread.median:.2f}" if spread else "-"


def _range(spread: Spread | None, form: str, unit: str = "") -> str:
    return f"{spread.low:{form}}–{spread.high:{form}}{unit}" if spread else "-"


def _legend(versions: Mapping[str, str], machine: Mapping[str, str]) -> str:
    return (
        "Medians over the rounds. Ratios are to aiokafka's getmany() in the upper part and to its async for in the lower,\n"
        "within each round. The clock starts at the first delivery; start: seconds from creating the client to that. CPU:\n"
        "seconds of the client's process, all threads, per million records.\n"
        + ", ".join(f"{name} {number}" for name, number in versions.items())
        + f"\n{machine['python']}, {machine['system']}, {machine['processor']}, {machine['cores']} cores, "
        f"load at the start {machine['load']}"
    )
