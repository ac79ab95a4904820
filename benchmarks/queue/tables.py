"""The tables of the benchmark: one for each kind of case, as the figures differ."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.common import show_footer, show_table, wrap
from benchmarks.machine import Conditions
from benchmarks.queue.cases import CASES, CLIENTS
from benchmarks.queue.figures import Summary
from benchmarks.queue.measure import FRESH_RATE
from benchmarks.queue.metadata import LIMIT, Sizes

__all__ = ["show"]

MIB: Final = 1 << 20
ALLOWED_OVERHEAD: Final = 30 * MIB
"""Bytes beside the records that asyncgroup may use for them, as in the benchmark `memory`."""
GOALS: Final = {
    "keys": "goal of asyncgroup: 0.9 of the bound",
    "idle": "goal of asyncgroup.iterate: 0.25 of asyncgroup.claim",
    "poison": "goal of asyncgroup: a cost of at most 10 %",
}
"""What asyncgroup shall reach, by case."""

Columns = Mapping[str, Callable[[Summary], str]]

_SPEED: Final[Columns] = {
    "records/s": lambda each: f"{each.rate:,.0f}",
    "range": lambda each: f"{each.lowest:,.0f}–{each.highest:,.0f}",
}
_SHARES: Final[Columns] = {
    "of the bound": lambda each: _number(each.share, ".3f"),
    "of tasks alone": lambda each: _number(each.ratio, ".3f"),
}
_END: Final[Columns] = {
    "CPU µs/record": lambda each: _number(each.cpu, ",.0f"),
    "handled": lambda each: f"{each.handled:,.0f} of {each.records:,}",
}
_COLUMNS: Final[Mapping[str, Columns]] = {
    "keys": {**_SPEED, **_SHARES, **_END},
    "many-keys": {**_SPEED, **_SHARES, **_END},
    "idle": {**_SPEED, "of the claim": lambda each: _number(each.ratio, ".3f"), **_END},
    "wide": {**_SPEED, "of the claim": lambda each: _number(each.ratio, ".3f"), **_END},
    "poison": {
        **_SPEED,
        "cost": lambda each: _number(each.cost, ".1%"),
        "failed deliveries": lambda each: f"{each.failed:,.0f}",
        **_END,
    },
    "fresh-alone": {},
    "fresh": {},
    "blocked-idle": {"peak MiB": lambda each: f"{each.peak / MIB:,.0f}"},
    "blocked": {
        "peak MiB": lambda each: f"{each.peak / MIB:,.0f}",
        "over idle": lambda each: _number(each.over and each.over / MIB, ",.0f"),
        "handlers": lambda each: f"{each.handled:,.0f}",
    },
}
_DELAYS: Final[Columns] = {
    "p50 ms": lambda each: _milliseconds(each.p50),
    "p99 ms": lambda each: _milliseconds(each.p99),
    "started": lambda each: f"{each.handled:,.0f} of {each.records:,}",
    "failed deliveries": lambda each: f"{each.failed:,.0f}",
}


def _number(value: float | None, form: str) -> str:
    return f"{value:{form}}" if value is not None else "-"


def _milliseconds(value: float | None) -> str:
    return f"{value * 1000:,.1f}" if value is not None else "-"


def show(
    options: argparse.Namespace,
    summaries: Sequence[Summary],
    sizes: Sequence[Sizes],
    computed: bool,
    conditions: Conditions,
) -> None:
    """Print a table for each case, what was not measured and why, and the caption."""
    for name in options.cases:
        own = [each for each in summaries if each.case == name]
        if own:
            columns = _COLUMNS[name] or _DELAYS
            rows = [[each.client, *(cell(each) for cell in columns.values())] for each in own]
            show_table(_title(options, name), ("client", *columns), [rows])
    if sizes:
        _show_sizes(sizes, computed)
    show_footer(conditions, _caption(options, {each.client for each in summaries}))


def _title(options: argparse.Namespace, name: str) -> str:
    case = CASES[name]
    parts = [f"{name}: {case.title}"]
    if case.kind == "work" and (bound := case.bound(options.concurrency)):
        parts.append(f"bound {bound:,.0f}/s")
    if case.kind == "block" and case.records:
        allowed = (options.budget + ALLOWED_OVERHEAD) / MIB
        parts.append(
            f"budget {options.budget / MIB:,.0f} MiB, allowed for asyncgroup over idle {allowed:,.0f}"
        )
    if name in GOALS:
        parts.append(GOALS[name])
    return ", ".join(parts)


def _show_sizes(sizes: Sequence[Sizes], computed: bool) -> None:
    rows = []
    for each in sizes:
        java = each.others["parallel-consumer"]
        rows.append(
            [
                f"{each.span:,} offsets, {each.share:.1%} unacknowledged",
                f"{each.incomplete:,}",
                _size(each.own),
                _size(each.window),
                *(_size(size) for size in each.others.values()),
                f"{1 - each.own / java:.0%}" if java else "-",
            ]
        )
    title = f"metadata: bytes of a commit's metadata, * = above the limit of {LIMIT:,}"
    if computed:
        title += ", parallel-consumer's computed from its format"
    columns = ("pattern", "records", "asyncgroup", "window alone", *sizes[0].others, "saved")
    show_table(title, columns, [rows])


def _size(size: int | None) -> str:
    return "-" if size is None else f"{size:,}{'*' if size > LIMIT else ' '}"


def _caption(options: argparse.Namespace, clients: set[str]) -> str:
    ways = [f"{name}: {client.how}." for name, client in CLIENTS.items() if name in clients]
    text = wrap(
        f"{options.partitions} partitions (wide: 1,000), {options.concurrency} handlers at a time, medians of {options.rounds} rounds, "
        f"each client in a separate process. Clocks start after a tenth of the records or 1 s and stop after the last one or "
        f"{options.seconds:g} s; CPU time is that of the client's process. Logging is off. The bound is min(keys, handlers) / mean sleep, for all "
        "clients. Poison records have separate keys and fail each time; they are delivered again after 1 s, 2 s, 4 s, … "
        "(poison) or each second (fresh), by clients that can delay them. Cost: loss of healthy records per second compared to "
        f"the case keys. Fresh: {FRESH_RATE:g} records/s, from before their production to the start of their handler. Blocked: "
        f"peak resident memory, {options.seconds:g} s after the first handler was called; idle: on an empty topic."
    )
    return "\n".join([text, *ways])
