"""The table of `benchmarks.consume`."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.clients import CASES
from benchmarks.common import show_footer, show_table
from benchmarks.figures import Spread, Summary
from benchmarks.machine import Conditions

__all__ = ["show"]

COLUMNS = ("partitions", "records/s", "range", "MB/s", "ratio", "range", "CPU", "CPU ratio", "start")

LEGEND = """\
Medians over the rounds. Ratios are to aiokafka's getmany() for batches and to its async for for single records, with
as many partitions, within each round; those of asyncgroup without its heartbeat thread are to the same case with it. The clock starts at
the first delivery; start: seconds from creating the client to that. CPU: seconds of the client's process, all
threads, per million records."""


def show(title: str, summaries: Sequence[Summary], conditions: Conditions) -> None:
    """Print the batch cases, the record cases, and the machine."""
    groups: dict[tuple[int, str], list[list[str]]] = {}
    for summary in summaries:
        case = CASES[summary.case]
        groups.setdefault((summary.partitions, case.kind), []).append(
            [f"{case.distribution} {case.call}", *_cells(summary)]
        )
    show_table(title, ("client", *COLUMNS), list(groups.values()))
    show_footer(conditions, LEGEND)


def _cells(summary: Summary) -> list[str]:
    return [
        f"{summary.partitions:,}",
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
