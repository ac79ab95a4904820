"""Summaries and tables of the broker benchmark: rates with ratios within a round, and costs."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.broker.clients import CLIENTS
from benchmarks.broker.servers import SERVERS
from benchmarks.common import console_for_tables, show_footer, show_table, wrap
from benchmarks.machine import Conditions

__all__ = [
    "COSTS",
    "Cost",
    "CostSummary",
    "Rate",
    "RateSummary",
    "show",
    "summarize_costs",
    "summarize_rates",
]

KINDS: Final = {"read": "reads", "write": "writes"}


@dataclass(frozen=True, kw_only=True)
class Rate:
    """One client reading or writing (`kind`) at one broker in one round.

    `rate` is in records per second. `client_cpu` and `server_cpu` are CPU seconds per million records, including
    connecting.
    """

    kind: str
    client: str
    server: str
    round: int
    rate: float
    client_cpu: float
    server_cpu: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The value of the cost `what` (see `COSTS`) of one broker in one round."""

    what: str
    server: str
    round: int
    value: float


class Kind(NamedTuple):
    """How a cost is shown: title, unit, factor from a value to that unit, decimal places.

    `goal` is the limit that the embedded broker shall stay below, in that unit.
    """

    title: str
    unit: str
    factor: float
    digits: int
    goal: float | None = None


COSTS: Final = {
    "large": Kind("large group: connected, then stable after", "s", 1, 2, 2),
    "large-total": Kind("large group: stable, with connecting", "s", 1, 2),
    "large-inside": Kind("large group, members in the broker's loop", "s", 1, 2),
    "beat": Kind("CPU of a heartbeat, network included", "µs", 1e6, 1),
    "handling": Kind("handling of a heartbeat", "µs", 1e6, 1, 20),
    "idle": Kind("idle groups, share of a core", "%", 100, 2, 2),
    "start": Kind("start of one node", "ms", 1000, 1, 50),
    "start-first": Kind("start of one node, first in a process", "ms", 1000, 1, 50),
    "start-three": Kind("start of three nodes", "ms", 1000, 1),
}
"""Costs by name, in the order of the table; values are seconds, or CPU seconds per second."""


class RateSummary(NamedTuple):
    """Medians over all rounds. `ratio` is to the baseline within a round, with minimum and maximum (None: no baseline)."""

    kind: str
    client: str
    server: str
    rate: float
    ratio: float | None
    lowest: float | None
    highest: float | None
    client_cpu: float
    server_cpu: float


class CostSummary(NamedTuple):
    """Median, minimum and maximum of a cost over all rounds."""

    what: str
    server: str
    value: float
    lowest: float
    highest: float


def baseline(servers: Sequence[str]) -> str:
    """Return the broker that ratios refer to: the last measured one, unless that is the embedded broker."""
    return servers[-1] if servers and servers[-1] != "asyncgroup" else ""


def summarize_rates(rates: Sequence[Rate]) -> list[RateSummary]:
    """Return one summary per kind, client and broker, in the order of the table."""
    measured = [name for name in SERVERS if any(each.server == name for each in rates)]
    base = {
        (each.kind, each.client, each.round): each.rate for each in rates if each.server == baseline(measured)
    }
    return [
        _summary(own, base)
        for kind in KINDS
        for client in CLIENTS
        for server in measured
        if (
            own := [each for each in rates if (each.kind, each.client, each.server) == (kind, client, server)]
        )
    ]


def _summary(own: Sequence[Rate], base: Mapping[tuple[str, str, int], float]) -> RateSummary:
    first = own[0]
    ratios = [
        each.rate / found for each in own if (found := base.get((each.kind, each.client, each.round), 0.0))
    ]
    return RateSummary(
        first.kind,
        first.client,
        first.server,
        statistics.median(each.rate for each in own),
        statistics.median(ratios) if ratios else None,
        min(ratios, default=None),
        max(ratios, default=None),
        statistics.median(each.client_cpu for each in own),
        statistics.median(each.server_cpu for each in own),
    )


def summarize_costs(costs: Sequence[Cost]) -> list[CostSummary]:
    """Return one summary per cost and broker, in the order of the table."""
    return [
        CostSummary(what, server, statistics.median(own), min(own), max(own))
        for what in COSTS
        for server in SERVERS
        if (own := [each.value for each in costs if (each.what, each.server) == (what, server)])
    ]


def show(
    options: argparse.Namespace, rates: Sequence[Rate], costs: Sequence[Cost], conditions: Conditions
) -> None:
    """Print the tables with captions, and the versions and the machine."""
    _show_rates(options, summarize_rates(rates))
    _show_costs(options, summarize_costs(costs))
    show_footer(conditions)


def _show_rates(options: argparse.Namespace, summaries: Sequence[RateSummary]) -> None:
    groups: dict[tuple[str, str], list[list[str]]] = {}
    for each in summaries:
        heading = [f"{each.client} {KINDS[each.kind]}", "", "", "", "", ""]
        groups.setdefault((each.kind, each.client), [heading]).append(_rate_row(each))
    if not groups:
        return
    columns = ("broker", "records/s", "ratio", "range", "broker's CPU", "client's CPU")
    show_table("Rates that clients see", columns, list(groups.values()))
    text = (
        f"{options.records:,} records of {options.size} bytes in {options.partitions} partitions, {options.rounds} "
        f"rounds, medians. Ratio: to {baseline(options.servers) or 'no other broker'}, within a round. CPU: seconds of "
        "the whole process per million records; the broker's include connecting and joining. Goal: aiokafka reads from "
        "the embedded broker at 0.8 of kfake's rate or more."
    )
    console_for_tables().print(wrap(text), highlight=False)


def _rate_row(each: RateSummary) -> list[str]:
    ratio = ["-", "-"]
    if each.ratio is not None:
        ratio = [f"{each.ratio:.2f}", f"{each.lowest:.2f}–{each.highest:.2f}"]
    return [each.server, f"{each.rate:,.0f}", *ratio, f"{each.server_cpu:.2f}", f"{each.client_cpu:.2f}"]


def _show_costs(options: argparse.Namespace, summaries: Sequence[CostSummary]) -> None:
    groups: dict[str, list[list[str]]] = {}
    for each in summaries:
        kind = COSTS[each.what]
        goal = f"< {kind.goal:g} {kind.unit}" if kind.goal is not None and each.server == "asyncgroup" else ""
        texts = [
            f"{value * kind.factor:,.{kind.digits}f}" for value in (each.value, each.lowest, each.highest)
        ]
        row = [each.server, f"{texts[0]} {kind.unit}", f"{texts[1]}–{texts[2]}", goal]
        groups.setdefault(each.what, [[kind.title, "", "", ""]]).append(row)
    if not groups:
        return
    show_table("Groups and start", ("broker", "median", "range", "goal"), list(groups.values()))
    text = (
        f"Large: one group of {options.members:,} members, a connection each, with as many partitions. Members send raw "
        f"protocol requests, from a separate process except in the case in one loop; stable: each has its assignment. Idle: "
        f"{options.groups} groups of {options.group_members}, one heartbeat per member every {options.interval:g} s. "
        "Handling: CPU time from the request's frame to the response's, without the network. On a busy machine an idle "
        "broker handles every heartbeat with cold caches."
    )
    console_for_tables().print(wrap(text), highlight=False)
