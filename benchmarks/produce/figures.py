"""Measurements of `benchmarks.produce`, their summaries, and the tables."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.common import show_footer, show_table, wrap
from benchmarks.figures import Spread
from benchmarks.machine import Conditions
from benchmarks.produce.cases import BASELINE, CLIENTS, DEFAULT_PARTITIONS, MODES, WAITING_MODES, Workload
from benchmarks.produce.load import KEYS

__all__ = ["Measurement", "StoppedMeasurement", "Summary", "show", "summarize"]

COLUMNS: Final = (
    *("client", "records/s", "range", "ratio", "range", "CPU µs", "ratio", "p50 ms", "p99 ms", "a batch"),
)
MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One client with one workload in one round: `records` in the log, written in `seconds` after the first one.

    `p50` and `p99` are seconds from sending to the acknowledgement, None in the modes that do not wait for it. `batches`: record
    batches, where the client says so.
    """

    client: str
    workload: Workload
    round: int
    records: int
    seconds: float
    cpu_seconds: float
    p50: float | None = None
    p99: float | None = None
    batches: int | None = None

    @property
    def measured(self) -> int:
        """Records without the first one to each topic."""
        return self.records - self.workload.topics

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.measured / self.seconds

    @property
    def per_batch(self) -> float | None:
        """Records in a batch on average; None if the batches were not counted."""
        return self.measured / self.batches if self.batches else None

    @property
    def cpu(self) -> float:
        """CPU time per record in µs, user and system, all threads of the client's process."""
        return self.cpu_seconds / max(self.measured, 1) * 1e6


@dataclass(frozen=True, kw_only=True)
class StoppedMeasurement:
    """A client that writes to a stopped broker: peak resident memory in bytes before and after, records accepted."""

    client: str
    before: int
    peak: int
    records: int


class Summary(NamedTuple):
    """A client with a workload over all rounds; a ratio is None if its baseline was not measured in the same rounds."""

    client: str
    workload: Workload
    rate: Spread
    ratio: Spread | None
    cpu: Spread
    cpu_ratio: Spread | None
    p50: float | None
    p99: float | None
    """The medians of the rounds' percentiles."""
    per_batch: float | None
    """Records in a batch, the median of the rounds."""


def summarize(measurements: Sequence[Measurement]) -> list[Summary]:
    """Return one summary for each client and workload, in the order of the tables."""
    found: dict[tuple[Workload, str], dict[int, Measurement]] = {}
    for each in measurements:
        found.setdefault((each.workload, each.client), {})[each.round] = each
    names = list(CLIENTS)
    by_workload = list(dict.fromkeys(each.workload for each in measurements))
    keys = sorted(found, key=lambda key: (by_workload.index(key[0]), names.index(key[1])))
    return [_summary(found[key], found.get((key[0], BASELINE), {})) for key in keys]


def _summary(own: Mapping[int, Measurement], base: Mapping[int, Measurement]) -> Summary:
    first = next(iter(own.values()))
    # ratios are taken within a round: on a busy machine rounds differ more than clients
    pairs = [(own[index], base[index]) for index in own if index in base]

    def spread(value: Callable[[Measurement], float]) -> Spread:
        return Spread.of([value(each) for each in own.values()])

    def ratio(value: Callable[[Measurement], float]) -> Spread | None:
        return Spread.of([value(one) / value(other) for one, other in pairs]) if pairs else None

    def median(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    return Summary(
        first.client,
        first.workload,
        spread(lambda each: each.rate),
        ratio(lambda each: each.rate),
        spread(lambda each: each.cpu),
        ratio(lambda each: each.cpu),
        median([each.p50 for each in own.values()]),
        median([each.p99 for each in own.values()]),
        median([each.per_batch for each in own.values()]),
    )


def show(
    options: argparse.Namespace,
    measurements: Sequence[Measurement],
    stopped: Sequence[StoppedMeasurement],
    conditions: Conditions,
) -> None:
    """Print a table for each mode, and one for the stopped broker."""
    summaries = summarize(measurements)
    for mode, what in MODES.items():
        rows: dict[Workload, list[list[str]]] = {}
        for each in summaries:
            if each.workload.mode == mode:
                if each.workload not in rows:
                    rows[each.workload] = [[each.workload.title, *[""] * (len(COLUMNS) - 1)]]
                rows[each.workload].append([each.client, *_cells(each)])
        if rows:
            show_table(f"{mode}: {what}", COLUMNS, list(rows.values()))
    if stopped:
        rows_stopped = [
            [
                each.client,
                f"{each.before / MIB:,.0f}",
                f"{each.peak / MIB:,.0f}",
                f"{(each.peak - each.before) / MIB:,.0f}",
                f"{each.records:,}",
                f"{each.records * options.stopped_size / MIB:,.0f}",
            ]
            for each in stopped
        ]
        columns = ("client", "before MiB", "peak MiB", "more", "records", "their MiB")
        show_table("The broker is stopped (SIGSTOP)", columns, [rows_stopped])
    show_footer(conditions, wrap(_caption(options)))


def _caption(options: argparse.Namespace) -> str:
    waiting = "asyncgroup's default (others: 0)"
    if options.waiting_linger is not None:
        waiting = f"{options.waiting_linger * 1000:g} ms"
    return (
        f"{options.rounds} rounds of {options.seconds:g} s for each client; {DEFAULT_PARTITIONS} partitions on one broker unless a row has others. All "
        f"clients: acks=all, idempotent (not the bare connection), batches of {options.batch_bytes >> 10} KiB, linger {options.linger * 1000:g} ms, "
        f"in the modes {' and '.join(WAITING_MODES)} {waiting}; "
        f"records have no key except in the mode keyed, {KEYS:,} keys; {options.callers:,} callers in the mode concurrent. Medians and ranges; ratios are to {BASELINE} "
        "within a round. CPU: user and system time of the client's process per record. p50 and p99: from sending to the "
        f"acknowledgement. Stopped broker: peak resident memory after {options.stopped_seconds:g} s of writing values of "
        f"{options.stopped_size} bytes, with {options.buffer_bytes // MIB} MiB of buffer memory where a client has such a limit "
        "(asyncgroup, confluent, franz-go)."
    )


def _cells(summary: Summary) -> list[str]:
    return [
        f"{summary.rate.median:,.0f}",
        f"{summary.rate.low / 1000:,.1f}–{summary.rate.high / 1000:,.1f} k",
        f"{summary.ratio.median:.2f}" if summary.ratio else "-",
        f"{summary.ratio.low:.2f}–{summary.ratio.high:.2f}" if summary.ratio else "-",
        f"{summary.cpu.median:.2f}",
        f"{summary.cpu_ratio.median:.2f}" if summary.cpu_ratio else "-",
        f"{summary.p50 * 1000:.2f}" if summary.p50 is not None else "",
        f"{summary.p99 * 1000:.2f}" if summary.p99 is not None else "",
        f"{summary.per_batch:,.1f}" if summary.per_batch is not None else "",
    ]
