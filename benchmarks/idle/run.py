"""The command: an empty topic; in each round every client waits for its records, with each number of members."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from rich.progress import Progress

from asyncgroup import Cluster
from benchmarks.common import (
    add_number,
    choose,
    measure_cases,
    options_parser,
    positive_ints,
    print_report,
    run_worker,
    show_footer,
    show_table,
    wrap,
)
from benchmarks.figures import Spread
from benchmarks.idle.usage import Settings
from benchmarks.machine import Conditions
from benchmarks.topic import Topic

__all__ = ["CASES", "Measurement", "Summary", "main", "parse", "run", "summarize"]

HOUR: Final = 3600.0
START_LIMIT: Final = 60.0
"""Seconds for a process in addition to settling and measuring: imports, joining, closing."""


class Case(NamedTuple):
    """A client, the function of `benchmarks.idle.clients`, and the name in the table."""

    client: str
    function: str
    title: str


CASES: Final = {
    "asyncgroup": Case("asyncgroup", "asyncgroup", "asyncgroup"),
    "asyncgroup.without-thread": Case(
        "asyncgroup", "asyncgroup_without_thread", "asyncgroup, heartbeat_thread=False"
    ),
    "aiokafka": Case("aiokafka", "aiokafka", "aiokafka"),
    "confluent": Case("confluent-kafka", "confluent", "confluent-kafka Consumer"),
    "confluent.aio": Case("confluent-kafka", "confluent_aio", "confluent-kafka AIOConsumer"),
}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One case with `members` members in one round: what its process used in `seconds`, and its threads at the end."""

    case: str
    members: int
    round: int
    seconds: float
    cpu_seconds: float
    wake_ups: int
    threads: int

    @property
    def cpu_per_hour(self) -> float:
        """CPU seconds per hour."""
        return self.cpu_seconds / self.seconds * HOUR

    @property
    def wake_up_rate(self) -> float:
        """Wake-ups per second."""
        return self.wake_ups / self.seconds


class Summary(NamedTuple):
    """The figures of one case with one number of members over all rounds."""

    case: str
    members: int
    cpu_per_hour: Spread
    wake_up_rate: Spread
    threads: Spread


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("idle", __doc__, rounds=3)
    parser.add_argument(
        "--members",
        type=positive_ints,
        default=[1, 20],
        help="members in one process, comma-separated, each of a different group (1,20)",
    )
    add_number(parser, "--partitions", 8, "partitions of the topic, all of them assigned to each member")
    add_number(parser, "--settle", 5.0, "seconds between the assignment and the measurement")
    add_number(parser, "--seconds", 30.0, "seconds of each measurement")
    options = parser.parse_args(arguments)
    if options.quick:
        options.members, options.settle, options.seconds, options.rounds = [1, 2], 0.2, 0.5, 1
    options.cases = choose(parser, "--only", options.only, list(CASES))
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    conditions, found = measure_cases(run, options, {name: case.client for name, case in CASES.items()})
    if options.json:
        keys = ("members", "partitions", "settle", "seconds", "rounds")
        print_report(
            "idle",
            {key: getattr(options, key) for key in keys},
            conditions,
            measurements=[asdict(each) for each in found],
            summaries=[_as_dict(each) for each in summarize(found)],
        )
    else:
        _show(options, summarize(found), conditions)
    return 0 if found else 1


async def run(servers: str, options: argparse.Namespace, progress: Progress) -> list[Measurement]:
    """Create the topic, measure every case with every number of members `rounds` times, then remove topic and groups."""
    found: list[Measurement] = []
    groups: list[str] = []
    async with Cluster(servers) as cluster:
        topic = Topic(cluster, options.partitions, 0, 1)
        try:
            await topic.create()
            await topic.find_coordinator(topic.name)
            steps = [
                (index, members, name)
                for index in range(1, options.rounds + 1)
                for members in options.members
                for name in options.cases
            ]
            task = progress.add_task("", total=len(steps))
            for index, members, name in steps:
                progress.update(task, description=f"round {index}: {name}, {members}")
                settings = Settings(
                    bootstrap_servers=servers,
                    topic=topic.name,
                    group_ids=[f"{topic.name}-{name}-{members}-{index}-{each}" for each in range(members)],
                    settle=options.settle,
                    seconds=options.seconds,
                )
                groups += settings.group_ids
                function = f"benchmarks.idle.clients:{CASES[name].function}"
                limit = settings.settle + settings.seconds + START_LIMIT
                figures = await run_worker(function, asdict(settings), limit)
                found.append(Measurement(case=name, members=members, round=index, **figures))
                progress.advance(task)
        finally:
            await topic.remove(groups)
    return found


def summarize(measurements: Sequence[Measurement]) -> list[Summary]:
    """Return one summary for each number of members and case, in the order in which they were measured."""
    found: dict[tuple[str, int], list[Measurement]] = {}
    for each in measurements:
        found.setdefault((each.case, each.members), []).append(each)

    def summary(case: str, members: int, own: Sequence[Measurement]) -> Summary:
        def spread(value: Callable[[Measurement], float]) -> Spread:
            return Spread.of([value(each) for each in own])

        return Summary(
            case,
            members,
            spread(lambda each: each.cpu_per_hour),
            spread(lambda each: each.wake_up_rate),
            spread(lambda each: each.threads),
        )

    return [summary(case, members, own) for (case, members), own in found.items()]


def _as_dict(summary: Summary) -> dict[str, object]:
    return {
        key: value._asdict() if isinstance(value, Spread) else value
        for key, value in summary._asdict().items()
    }


def _show(options: argparse.Namespace, summaries: Sequence[Summary], conditions: Conditions) -> None:
    groups: dict[int, list[list[str]]] = {}
    for each in summaries:
        groups.setdefault(each.members, []).append(_cells(each))
    columns = ("client", "members", "CPU s per hour", "range", "wake-ups/s", "range", "threads")
    show_table(f"Idle members, {options.rounds} rounds", columns, list(groups.values()))
    text = wrap(
        f"Members of one process, each of a different group with {options.partitions} partitions of an empty topic, default "
        f"settings of each client, {options.seconds:g} s each, {options.settle:g} s after the last assignment; medians and ranges of "
        "the rounds. CPU: user and system, of all threads. Wake-ups: voluntary context switches of all threads. Threads: at the end of the "
        "measurement. confluent-kafka polls with a timeout of 1 s, Consumer on a thread for each member."
    )
    show_footer(conditions, text)


def _cells(summary: Summary) -> list[str]:
    cpu, wake_ups = summary.cpu_per_hour, summary.wake_up_rate
    return [
        CASES[summary.case].title,
        str(summary.members),
        f"{cpu.median:,.1f}",
        f"{cpu.low:,.1f}–{cpu.high:,.1f}",
        f"{wake_ups.median:,.1f}",
        f"{wake_ups.low:,.1f}–{wake_ups.high:,.1f}",
        f"{summary.threads.median:.0f}",
    ]
