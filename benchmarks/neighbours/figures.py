"""Summaries and table of the `neighbours` benchmark: rates, gaps, and ratios within a round."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from benchmarks.common import show_footer, show_table, wrap
from benchmarks.machine import Conditions
from benchmarks.neighbours.cases import CASES, CLIENTS

__all__ = ["Measurement", "Summary", "show", "summarize"]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One client in one case in one round.

    `rate` (records per second) and `gap` (the longest time without a record, in seconds) are of the measured partition,
    `slow_rate` is of the slow one.
    """

    client: str
    case: str
    round: int
    rate: float
    gap: float
    slow_rate: float

    @classmethod
    def of(cls, client: str, case: str, index: int, figures: Mapping[str, Mapping[str, float]]) -> Self:
        """Create a measurement from the output of a measured process."""
        fast, slow = figures["fast"], figures["slow"]
        rate = fast["records"] / fast["seconds"] if fast["seconds"] > 0 else 0.0
        if CASES[case].is_batch:
            # only a few dozen batches: measured from the first to the last, as the window's edges would distort the rate
            rate = fast["spanned"] / fast["span"] if fast["span"] > 0 else 0.0
        slow_rate = slow["records"] / slow["seconds"] if slow["seconds"] > 0 else 0.0
        return cls(client=client, case=case, round=index, rate=rate, gap=fast["gap"], slow_rate=slow_rate)


class Summary(NamedTuple):
    """Medians over all rounds; `ratio` is to the client's own baseline within a round, None for a baseline."""

    client: str
    case: str
    rate: float
    ratio: float | None
    worst_ratio: float | None
    gap: float
    worst_gap: float
    slow_rate: float


def summarize(measurements: Sequence[Measurement]) -> list[Summary]:
    """Return one summary per case and client, in the order of the table."""
    found = {(each.client, each.case, each.round): each for each in measurements}
    return [
        _summary(own, found)
        for case in CASES
        for client in CLIENTS
        if (own := [each for each in measurements if (each.client, each.case) == (client, case)])
    ]


def _summary(own: Sequence[Measurement], found: Mapping[tuple[str, str, int], Measurement]) -> Summary:
    first = own[0]
    baseline = CASES[first.case].baseline or ""
    ratios = [
        each.rate / base.rate
        for each in own
        if (base := found.get((each.client, baseline, each.round))) is not None and base.rate
    ]
    return Summary(
        first.client,
        first.case,
        statistics.median(each.rate for each in own),
        statistics.median(ratios) if ratios else None,
        min(ratios) if ratios else None,
        statistics.median(each.gap for each in own),
        max(each.gap for each in own),
        statistics.median(each.slow_rate for each in own),
    )


def show(options: argparse.Namespace, measurements: Sequence[Measurement], conditions: Conditions) -> None:
    """Print the table with its caption, and the versions and the machine."""
    summaries = summarize(measurements)
    groups = []
    for case in CASES.values():
        rows = [_row(summary) for summary in summaries if summary.case == case.name]
        if rows:
            groups.append([[f"{case.title}", "", "", "", "", "", ""], *rows])
    columns = ("client", "records/s", "ratio", "lowest", "longest gap", "worst", "slow one/s")
    show_table("Two partitions on one broker", columns, groups)
    show_footer(conditions, _caption(options))


def _row(summary: Summary) -> list[str]:
    case = CASES[summary.case]
    slow = "" if case.is_batch or not case.baseline else f"{summary.slow_rate:,.1f} of {case.nominal:,.1f}"
    ratio = ["", ""]
    if summary.ratio is not None and summary.worst_ratio is not None:
        ratio = [f"{summary.ratio:.4f}", f"{summary.worst_ratio:.4f}"]
    gaps = [f"{summary.gap:.3f} s", f"{summary.worst_gap:.3f} s"]
    return [f"{summary.client}", f"{summary.rate:,.0f}", *ratio, *gaps, slow]


def _caption(options: argparse.Namespace) -> str:
    return wrap(
        f"{options.records:,} records of {options.size} bytes in each partition, in record batches of {options.batch}; "
        f"every client fetches at most {options.fetch_bytes:,} bytes per partition, which is one batch (1 MiB for the last "
        f"two cases); other settings are its defaults. {options.seconds:g} s each, from 1 s after the first record. "
        "Ratio: to the same client reading one partition alone, in the same round; lowest and worst of the rounds. aiokafka "
        "has a task for each partition; confluent-kafka a thread and a queue for the slow one, paused while that is full."
    )
