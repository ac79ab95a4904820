"""Print the tables of the Spark benchmark, with their captions and goals."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.common import console_for_tables, show_footer, show_table, wrap
from benchmarks.machine import Conditions
from benchmarks.spark.cases import BRIDGES, IDLE, LATENCY, SINKS, STREAMS
from benchmarks.spark.figures import BASELINES, Measurement, Spread, Summary, summarize

__all__ = ["show"]

GOALS: Final[Mapping[str, tuple[str, str]]] = {
    "1k-large": ("asyncgroup", "ratio ≥ 1"),
    "1k-small": ("asyncgroup", "ratio ≥ 0.8"),
    "200-large": ("asyncgroup", "ratio ≥ 1"),
    "200-small": ("asyncgroup", "ratio ≥ 0.8"),
    "bridge-1k": ("asyncgroup", "≥ 150,000"),
    "bridge-200": ("asyncgroup", "≥ 400,000"),
    LATENCY: ("asyncgroup", "≤ 50 ms"),
}
"""For each case with a goal the client that has it, and the goal."""
NO_VALUE: Final = "-"


def show(options: argparse.Namespace, measurements: Sequence[Measurement], conditions: Conditions) -> None:
    """Print the tables, the reasons for missing clients, and the versions and machine."""
    summaries = summarize(measurements)
    _show_streams(options, [each for each in summaries if each.case in STREAMS])
    _show_bridges(options, [each for each in summaries if each.case in BRIDGES])
    _show_sinks(options, [each for each in summaries if each.case in SINKS])
    _show_latency(options, [each for each in summaries if each.case == LATENCY])
    _show_idle(options, [each for each in summaries if each.case == IDLE])
    show_footer(conditions)


def _caption(text: str) -> None:
    console_for_tables().print(wrap(text), highlight=False)


def _groups(rows: Sequence[tuple[str, str, list[str]]], columns: int) -> list[list[list[str]]]:
    """Group rows (case, title of the case, cells) by case, with the title as first row."""
    groups: dict[str, list[list[str]]] = {}
    for case, title, cells in rows:
        groups.setdefault(case, [[title, *[""] * (columns - 1)]]).append(cells)
    return list(groups.values())


def _goal(each: Summary) -> str:
    client, text = GOALS.get(each.case, ("", ""))
    return text if each.client == client else ""


# -- sources and bridges -------------------------------------------------------------------------------------


def _show_streams(options: argparse.Namespace, summaries: Sequence[Summary]) -> None:
    columns = ("source", "rows/s", "range", "ratio", "range", "addBatch", "ratio", "CPU", "ratio", "goal")
    rows = []
    for each in summaries:
        workload = STREAMS[each.case].limited(options.rows)
        cells = [each.client, *_rates(each), *_pair(each, "add_rate", ",.0f"), *_pair(each, "cpu", ".2f")]
        rows.append((each.case, workload.text, [*cells, _goal(each)]))
    if rows:
        show_table("Sources of a streaming query", columns, _groups(rows, len(columns)))
        _caption(
            f"4 partitions unless it says otherwise, sink noop, {options.rounds} rounds, medians; rows/s by triggerExecution and by addBatch of "
            f"the query's progress, without the first batch. Ratios: to {BASELINES['1k-large']}, within a round. CPU: "
            "seconds of all Spark processes per million rows. kafka-tuned: max.partition.fetch.bytes 4 MiB and "
            "max.poll.records 5,000; kafka-buffers: also receive.buffer.bytes -1, which is asyncgroup's default. "
            "asyncgroup-packed: tasks=2, one for each core; the others have one task per partition. All check CRCs and "
            "write checkpoints in the same way."
        )


def _show_bridges(options: argparse.Namespace, summaries: Sequence[Summary]) -> None:
    columns = ("consumer", "rows/s", "range", "ratio", "range", "CPU", "ratio", "goal")
    rows = []
    for each in summaries:
        workload = BRIDGES[each.case].limited(options.rows)
        cells = [each.client, *_rates(each), *_pair(each, "cpu", ".2f"), _goal(each)]
        rows.append((each.case, workload.text, cells))
    if rows:
        show_table("A consumer group in front of Spark", columns, _groups(rows, len(columns)))
        _caption(
            "A group with one member; each batch becomes a DataFrame, is written to the sink noop and committed, while "
            "the next one is collected. CPU: seconds of the consumer and all Spark processes per million rows."
        )


def _show_sinks(options: argparse.Namespace, summaries: Sequence[Summary]) -> None:
    columns = ("sink", "rows/s", "range", "ratio", "range", "CPU", "ratio")
    rows = []
    for each in summaries:
        workload = SINKS[each.case].limited(options.rows)
        cells = [each.client, *_rates(each), *_pair(each, "cpu", ".2f")]
        rows.append((each.case, workload.text, cells))
    if rows:
        show_table("Sinks of a batch query", columns, _groups(rows, len(columns)))
        _caption(
            "Two tasks write to an empty topic, of 4 partitions unless it says otherwise, keys of 8 bytes; the whole query "
            "is timed. Both producers have the same settings: acks=all, idempotent, linger 5 ms, batches of 128 KiB, no compression. "
            "asyncgroup-transactions: with the option transactional.id.prefix. python-drops: a sink in Python that "
            "receives the rows and drops them. CPU: seconds of all Spark "
            "processes per million rows."
        )


def _rates(each: Summary) -> list[str]:
    rate, ratio = each.figures.get("rate"), each.ratios.get("rate")
    return [_median(rate, ",.0f"), _thousands(rate), _median(ratio, ".2f"), _range(ratio, ".2f")]


def _pair(each: Summary, name: str, form: str) -> list[str]:
    return [_median(each.figures.get(name), form), _median(each.ratios.get(name), ".2f")]


# -- latency and idling --------------------------------------------------------------------------------------


def _show_latency(options: argparse.Namespace, summaries: Sequence[Summary]) -> None:
    columns = ("consumer", "median", "range", "worst", "before", "inside", "after", "ratio", "goal")
    rows = [
        [
            each.client,
            *(_milliseconds(each.figures, "total"), _range(_scaled(each.figures["total"], 1000), ".1f")),
            *(_milliseconds(each.figures, name) for name in ("worst", "before", "inside", "after")),
            _median(each.ratios.get("total"), ".2f"),
            _goal(each),
        ]
        for each in summaries
    ]
    if rows:
        show_table("A small batch, end to end, in ms", columns, [rows])
        _caption(
            f"{options.latency_rows} rows of 200 B, produced as one record batch: from sending it until its offsets are "
            "committed, without waiting for further rows; before, inside and after the function that writes to the sink "
            "noop. Medians of batches, then of rounds."
        )


def _show_idle(options: argparse.Namespace, summaries: Sequence[Summary]) -> None:
    columns = ("source", "Spark", "range", "broker", "range")
    rows = []
    for each in summaries:
        cells = [each.client]
        for name in ("share", "broker"):
            spread = each.figures.get(name)
            percents = None if spread is None else _scaled(spread, 100)
            cells += [_median(percents, ".1f"), _range(percents, ".1f")]
        rows.append(cells)
    if rows:
        show_table("An idle query: CPU usage in % of a core", columns, [rows])
        _caption(
            f"Over {options.seconds:g} s, sum of all Spark processes; the query has the default trigger."
        )


def _milliseconds(figures: Mapping[str, Spread], name: str) -> str:
    return _median(_scaled(figures[name], 1000), ".1f")


def _scaled(spread: Spread, factor: float) -> Spread:
    return Spread(*(value * factor for value in spread))


def _median(spread: Spread | None, form: str) -> str:
    return f"{spread.median:{form}}" if spread else NO_VALUE


def _range(spread: Spread | None, form: str) -> str:
    return f"{spread.low:{form}}–{spread.high:{form}}" if spread else NO_VALUE


def _thousands(spread: Spread | None) -> str:
    return f"{_range(_scaled(spread, 1 / 1000), ',.0f')} k" if spread else NO_VALUE
