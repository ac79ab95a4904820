"""From single measurements to the tables: rates with ratios within a round, and what groups cost."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.broker.clients import CLIENTS
from benchmarks.broker.servers import SERVERS
from benchmarks.running import console_for_tables, foot, paragraph, show_table

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
    """One client that reads or writes (`kind`) at one broker in one round: records a second; seconds of CPU for a million
    records of the client's process and of the broker's, that of connecting included.
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
    """What a broker took for `what` (see `COSTS`) in one round."""

    what: str
    server: str
    round: int
    value: float


class Kind(NamedTuple):
    """A cost: how it is called, its unit, what a value is multiplied with to be in it, digits behind the point, and
    what ours should stay below (in that unit).
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
"""Costs by name, in the order of the table; values are seconds, or seconds of CPU a second."""


class RateSummary(NamedTuple):
    """Medians over the rounds; `ratio` to the baseline within a round, with its lowest and highest (None: no baseline)."""

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
    """The median of a cost over the rounds, with the lowest and the highest."""

    what: str
    server: str
    value: float
    lowest: float
    highest: float


def baseline(servers: Sequence[str]) -> str:
    """The broker that ratios are taken to: the last that is measured and isn't ours."""
    return servers[-1] if servers and servers[-1] != "asyncgroup" else ""


def summarize_rates(rates: Sequence[Rate]) -> list[RateSummary]:
    """One summary for each kind, client and broker, in the order of the table."""
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
    """One summary for each cost and broker, in the order of the table."""
    return [
        CostSummary(what, server, statistics.median(own), min(own), max(own))
        for what in COSTS
        for server in SERVERS
        if (own := [each.value for each in costs if (each.what, each.server) == (what, server)])
    ]


def show(
    options: argparse.Namespace,
    rates: Sequence[Rate],
    costs: Sequence[Cost],
    missing: Mapping[str, str],
    used: Mapping[str, str],
    started: Mapping[str, str],
) -> None:
    """Print the tables, their captions and what was used."""
    _show_rates(options, summarize_rates(rates))
    _show_costs(options, summarize_costs(costs))
    print_line = console_for_tables().print
    for name, reason in missing.items():
        print_line(f"{name}: not measured, {reason}", highlight=False)
    print_line(foot(used, started), highlight=False)


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
        "the whole process for a million records; the broker's includes what connecting and joining cost. Goal: aiokafka "
        "reads ours at 0.8 of kfake's rate or more."
    )
    console_for_tables().print(paragraph(text), highlight=False)


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
        f"Large: one group of {options.members:,} members, a connection each, with as many partitions; members are the "
        f"bare protocol, in a process of their own but for the case in one loop; stable: each has its assignment. Idle: "
        f"{options.groups} groups of {options.group_members}, a heartbeat of each member every {options.interval:g} s. "
        "Handling: frame in, answer out, CPU time without the network. A broker that idles on a busy machine finds the "
        "caches cold at every heartbeat."
    )
    console_for_tables().print(paragraph(text), highlight=False)
