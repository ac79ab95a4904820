"""The command: a backlog is loaded once, then every case runs in a separate process in each round."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from rich.progress import Progress

from asyncgroup import Cluster, ConsumerConfig
from benchmarks.common import (
    add_number,
    measure_cases,
    options_parser,
    print_report,
    run_worker,
    show_footer,
    show_table,
    wrap,
)
from benchmarks.machine import Conditions
from benchmarks.memory.peak import Settings
from benchmarks.topic import Topic

__all__ = ["CASES", "Measurement", "main", "parse", "run"]

MIB: Final = 1 << 20
SMALLEST, LARGEST = 1 << 10, 10 << 10
"""Bytes of a value."""
ALLOWED_OVERHEAD: Final = 30 * MIB
"""Bytes that asyncgroup may use in addition to an idle member and `buffer_bytes`."""
START_LIMIT: Final = 30.0
"""Seconds for a process in addition to its measurement."""


class Case(NamedTuple):
    """A client and the state of its handlers; the fraction `alive` of the partitions is read. Idle: an empty topic."""

    client: str
    function: str
    state: str
    is_idle: bool = False
    alive: float = 0.0

    @property
    def name(self) -> str:
        """The name on the command line."""
        return f"{self.client}.{self.state.replace(' ', '-')}"


def _cases(client: str, function: str, *, half: bool) -> list[Case]:
    cases = [Case(client, function, "idle", is_idle=True), Case(client, function, "all stuck")]
    return [*cases, Case(client, function, "half stuck", alive=0.5)] if half else cases


CASES: Final = {
    case.name: case
    for case in (
        *_cases("asyncgroup", "benchmarks.memory.clients:asyncgroup", half=True),
        *_cases("aiokafka", "benchmarks.memory.clients:aiokafka", half=True),
        *_cases("confluent-kafka", "benchmarks.memory.clients:confluent", half=False),
    )
}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One case in one round: peak memory and buffered memory (`held`, asyncgroup only) in bytes, records read."""

    case: str
    round: int
    peak: int
    read: int
    held: int | None = None


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("memory", __doc__, rounds=2)
    add_number(parser, "--backlog", 2000, "megabytes in the topic")
    add_number(parser, "--partitions", 8, "partitions of the topic")
    add_number(parser, "--batch-kib", 64, "KiB of a record batch")
    add_number(parser, "--seconds", 10.0, "seconds of each measurement")
    options = parser.parse_args(arguments)
    if options.quick:
        options.backlog, options.seconds, options.rounds = 8, 0.5, 1
    wanted = [name.strip() for name in options.only.split(",") if name.strip()]
    options.cases = [name for name in CASES if not wanted or name in wanted or CASES[name].client in wanted]
    if not options.cases:
        parser.error(f"--only {options.only}: none of {', '.join(CASES)}")
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    conditions, measurements = measure_cases(run, options, {name: CASES[name].client for name in CASES})
    if options.json:
        keys = ("backlog", "partitions", "batch_kib", "seconds", "rounds")
        settings = {key: getattr(options, key) for key in keys}
        print_report(
            "memory",
            settings,
            conditions,
            measurements=[asdict(each) for each in measurements],
        )
    else:
        _show(options, measurements, conditions)
    return 0 if measurements else 1


async def run(servers: str, options: argparse.Namespace, progress: Progress) -> list[Measurement]:
    """Load the backlog, measure every case `rounds` times, then remove the topics and the groups."""
    found: list[Measurement] = []
    groups: list[str] = []
    records = options.backlog * 1_000_000 // ((SMALLEST + LARGEST) // 2)
    async with Cluster(servers) as cluster:
        backlog = Topic(
            cluster,
            options.partitions,
            records,
            SMALLEST,
            largest=LARGEST,
            batch_bytes=options.batch_kib << 10,
        )
        idle = Topic(cluster, options.partitions, 0, SMALLEST)
        try:
            task = progress.add_task("loading the backlog", total=backlog.records)
            await idle.create()
            await backlog.load(lambda number: progress.advance(task, number))
            await backlog.find_coordinator(backlog.name)
            progress.remove_task(task)
            steps = [(index, name) for index in range(1, options.rounds + 1) for name in options.cases]
            task = progress.add_task("", total=len(steps))
            for index, name in steps:
                progress.update(task, description=f"round {index}: {name}")
                case = CASES[name]
                settings = Settings(
                    bootstrap_servers=servers,
                    group_id=f"{backlog.name}-{name}-{index}",
                    topic=(idle if case.is_idle else backlog).name,
                    alive=int(case.alive * options.partitions),
                    seconds=options.seconds,
                )
                groups.append(settings.group_id)
                figures = await run_worker(case.function, asdict(settings), settings.seconds + START_LIMIT)
                found.append(Measurement(case=name, round=index, **figures))
                progress.advance(task)
        finally:
            await backlog.remove(groups)
            await idle.remove([])
    return found


def _show(options: argparse.Namespace, measurements: Sequence[Measurement], conditions: Conditions) -> None:
    medians = {
        name: statistics.median(each.peak for each in measurements if each.case == name)
        for name in options.cases
    }
    groups: dict[str, list[list[str]]] = {}
    for name in options.cases:
        case = CASES[name]
        own = [each for each in measurements if each.case == name]
        groups.setdefault(case.client, []).append(
            [f"{case.client}, {case.state}", *_cells(own, medians, case)]
        )
    columns = ("client", "peak MiB", "worst", "over idle", "allowed", "holds MiB", "read MB")
    show_table(f"A handler stuck under {options.backlog:,} MB", columns, list(groups.values()))
    budget = ConsumerConfig().buffer_bytes // MIB
    text = wrap(
        f"{options.partitions} partitions, values of {SMALLEST:,} to {LARGEST:,} bytes in batches of {options.batch_kib} KiB, "
        f"default settings of each client, {options.seconds:g} s each. Peak: peak resident memory of the client's process "
        "(VmHWM), median and worst of the rounds. Idle: a group member on an empty topic. Half stuck: the other half of "
        f"the partitions is read at full speed. Allowed: asyncgroup's buffer_bytes ({budget} MiB) and "
        f"{ALLOWED_OVERHEAD // MIB} MiB over the idle member. Holds: bytes in asyncgroup's buffers at the end."
    )
    show_footer(conditions, text)


def _cells(own: Sequence[Measurement], medians: Mapping[str, Any], case: Case) -> list[str]:
    peak = statistics.median(each.peak for each in own)
    idle = medians.get(f"{case.client}.idle")
    over = f"{(peak - idle) / MIB:,.0f}" if idle and not case.is_idle else ""
    is_ours = case.client == "asyncgroup" and not case.is_idle
    allowed = f"{(ConsumerConfig().buffer_bytes + ALLOWED_OVERHEAD) / MIB:,.0f}" if is_ours else ""
    held = own[-1].held
    holds = f"{held / MIB:,.1f}" if held is not None and not case.is_idle else ""
    read = statistics.median(each.read for each in own) * (SMALLEST + LARGEST) / 2 / 1e6
    return [
        f"{peak / MIB:,.0f}",
        f"{max(each.peak for each in own) / MIB:,.0f}",
        over,
        allowed,
        holds,
        f"{read:,.0f}" if not case.is_idle else "",
    ]
