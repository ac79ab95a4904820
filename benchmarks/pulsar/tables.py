"""The tables of `benchmarks.pulsar`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.common import show_footer, show_table, wrap
from benchmarks.figures import Spread
from benchmarks.machine import Conditions
from benchmarks.pulsar.cases import CASES, RATES, Goal
from benchmarks.pulsar.figures import PulsarSummary, goals_of

__all__ = ["show"]

_RATE_COLUMNS: Final = (
    "client", "messages/s", "range", "to asyncio", "range", "CPU µs", "to asyncio", "to sync", "range",
)  # fmt: skip
_LATENCY_COLUMNS: Final = (
    "client",
    "p50 ms",
    "range",
    "to asyncio",
    "p99 ms",
    "range",
    "to asyncio",
    "CPU µs",
)
_MEMORY_COLUMNS: Final = ("client", "MiB", "range", "of the limit")
_MIB: Final = 1 << 20

_LEGEND: Final = (
    "Medians over the rounds. CPU: microseconds of the client's process, all threads, per message. Ratios are to "
    "pulsar.asyncio and to the synchronous client, within each round; those of the work queue in the first columns are to "
    "asyncgroup's consumer with `receive` and `ack`. pulsar.asyncio sends as many messages at a time as its queue has "
    "room for. Memory: growth of the process from before it subscribes until its queue is full, and its share of the limit in bytes of asyncgroup's queue."
)


def show(title: str, summaries: Sequence[PulsarSummary], conditions: Conditions, limit: int) -> None:
    """Print a table for each case; `limit` is that of the memory, in bytes."""
    for case in CASES:
        own = [each for each in summaries if each.case == case]
        if not own:
            continue
        name = f"{title}: {case}, {CASES[case]}"
        if case in RATES:
            show_table(name, _RATE_COLUMNS, [[_rate_cells(each) for each in own]])
        elif case == "latency":
            show_table(name, _LATENCY_COLUMNS, [[_latency_cells(each) for each in own]])
        else:
            show_table(name, _MEMORY_COLUMNS, [[_memory_cells(each, limit) for each in own]])
    if goals := goals_of(summaries):
        show_table("Goals of asyncgroup", ("case", "goal", "ratio", "range", "met"), [[*map(_goal, goals)]])
    left = [f"{each.client}, {each.case}" for each in summaries if each.backlog]
    lost = f"Not all messages were acknowledged: {'; '.join(left)}. " if left else ""
    show_footer(conditions, wrap(lost + _LEGEND))


def _rate_cells(each: PulsarSummary) -> list[str]:
    figures = each.figures
    return [
        each.client,
        _median(figures.get("rate"), ",.0f"),
        _range(figures.get("rate"), ",.0f"),
        *_ratio(each.to_asyncio.get("rate")),
        _median(figures.get("cpu"), ".2f"),
        _median(each.to_asyncio.get("cpu"), ".2f"),
        *_ratio(each.to_sync.get("cpu")),
    ]


def _latency_cells(each: PulsarSummary) -> list[str]:
    cells = [each.client]
    for name in ("p50", "p99"):
        spread = each.figures.get(name)
        shown = Spread(*(value * 1000 for value in spread)) if spread else None
        cells += [
            _median(shown, ".2f"),
            _range(shown, ".2f"),
            _median(each.to_asyncio.get(name), ".2f"),
        ]
    return [*cells, _median(each.figures.get("cpu"), ".0f")]


def _memory_cells(each: PulsarSummary, limit: int) -> list[str]:
    spread = each.figures.get("memory")
    shown = Spread(*(value / _MIB for value in spread)) if spread else None
    share = f"{spread.median / limit:.2f}" if spread else "-"
    return [each.client, _median(shown, ".0f"), _range(shown, ".0f"), share]


def _goal(found: tuple[Goal, Spread]) -> list[str]:
    goal, ratio = found
    bound = f">= {goal.at_least:g}" if goal.at_least is not None else f"<= {goal.at_most:g}"
    met = "yes" if goal.is_met(ratio.median) else "no"
    words = {"per_core": "messages per CPU second", "rate": "messages/s"}
    what = f"{words.get(goal.figure, goal.figure)} {bound} of {goal.other}"
    return [goal.case, what, *_ratio(ratio), met]


def _ratio(spread: Spread | None) -> list[str]:
    return [_median(spread, ".2f"), _range(spread, ".2f")]


def _median(spread: Spread | None, form: str) -> str:
    return f"{spread.median:{form}}" if spread else "-"


def _range(spread: Spread | None, form: str) -> str:
    return f"{spread.low:{form}}–{spread.high:{form}}" if spread else "-"
