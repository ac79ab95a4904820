"""The command: topics with each number of partitions; in each round every client reads from each at each rate."""

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
from benchmarks.latency.load import HEAD, LATE, Settings
from benchmarks.machine import Conditions
from benchmarks.topic import Topic

__all__ = ["CASES", "Measurement", "Summary", "main", "parse", "run", "summarize"]

START_LIMIT: Final = 60.0
"""Seconds for a process in addition to reading: imports, joining, closing."""


class Case(NamedTuple):
    """A client, the function of `benchmarks.latency.clients`, the name in the table, and the case that ratios refer to."""

    client: str
    function: str
    title: str
    baseline: str


CASES: Final = {
    "asyncgroup": Case("asyncgroup", "asyncgroup", "asyncgroup", "aiokafka"),
    "aiokafka": Case("aiokafka", "aiokafka", "aiokafka", "aiokafka"),
    "asyncgroup.uvloop": Case("asyncgroup", "asyncgroup_uvloop", "asyncgroup, uvloop", "aiokafka.uvloop"),
    "aiokafka.uvloop": Case("aiokafka", "aiokafka_uvloop", "aiokafka, uvloop", "aiokafka.uvloop"),
    "confluent": Case("confluent-kafka", "confluent", "confluent-kafka Consumer", "aiokafka"),
}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One case in one round: latencies in milliseconds, and the CPU time of the consumer's process."""

    case: str
    partitions: int
    rate: int
    round: int
    records: int
    p50: float
    p99: float
    cpu_seconds: float

    @property
    def cpu_per_record(self) -> float:
        """Microseconds of CPU time for each record, all threads."""
        return self.cpu_seconds / self.records * 1e6 if self.records else 0.0


class Summary(NamedTuple):
    """The figures of one case at one rate over all rounds; ratios are taken within a round, None without a baseline."""

    case: str
    partitions: int
    rate: int
    p50: Spread
    p99: Spread
    cpu_per_record: Spread
    p50_ratio: Spread | None
    p99_ratio: Spread | None
    cpu_ratio: Spread | None


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("latency", __doc__, rounds=7)
    parser.add_argument(
        "--rates",
        type=positive_ints,
        default=[100, 1000, 2000, 10_000],
        help="records a second (100,1000,2000,10000)",
    )
    parser.add_argument(
        "--partitions",
        type=positive_ints,
        default=[1, 100, 1000],
        help="partitions of the topics (1,100,1000)",
    )
    add_number(parser, "--size", 200, "bytes of each value")
    add_number(parser, "--warm-up", 1.0, "seconds of records that are not measured")
    add_number(parser, "--seconds", 5.0, "seconds of records that are measured")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rates, options.partitions, options.rounds = [200], [1, 3], 1
        options.warm_up, options.seconds = 0.2, 0.5
    if options.size < HEAD.size:
        parser.error(f"--size {options.size}: at least {HEAD.size}")
    options.cases = choose(parser, "--only", options.only, list(CASES))
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    conditions, found = measure_cases(run, options, {name: case.client for name, case in CASES.items()})
    if options.json:
        keys = ("rates", "partitions", "size", "warm_up", "seconds", "rounds")
        print_report(
            "latency",
            {key: getattr(options, key) for key in keys},
            conditions,
            measurements=[asdict(each) for each in found],
            summaries=[_as_dict(each) for each in summarize(found)],
        )
    else:
        _show(options, summarize(found), conditions)
    return 0 if found else 1


async def run(servers: str, options: argparse.Namespace, progress: Progress) -> list[Measurement]:
    """Measure every case at every rate `rounds` times, with each number of partitions; then remove topic and groups.

    Every second round has the cases in the reverse order.
    """
    found: list[Measurement] = []
    steps = options.rounds * len(options.rates) * len(options.cases)
    task = progress.add_task("", total=steps * len(options.partitions))
    async with Cluster(servers) as cluster:
        for partitions in options.partitions:
            topic = Topic(cluster, partitions, 0, options.size)
            groups: list[str] = []
            try:
                await topic.create()
                await topic.find_coordinator(topic.name)
                for index in range(1, options.rounds + 1):
                    for rate in options.rates:
                        for name in options.cases[:: 1 if index % 2 else -1]:
                            text = f"round {index}: {name}, {rate}/s, {partitions}"
                            progress.update(task, description=text)
                            groups.append(f"{topic.name}-{name}-{rate}-{index}")
                            found.append(
                                await _measure(servers, options, topic, groups[-1], name, rate, index)
                            )
                            progress.advance(task)
            finally:
                await topic.remove(groups)
    return found


async def _measure(
    servers: str, options: argparse.Namespace, topic: Topic, group_id: str, name: str, rate: int, index: int
) -> Measurement:
    settings = Settings(
        bootstrap_servers=servers,
        topic=topic.name,
        group_id=group_id,
        partitions=topic.partitions,
        rate=rate,
        size=options.size,
        warm_up=options.warm_up,
        seconds=options.seconds,
    )
    function = f"benchmarks.latency.clients:{CASES[name].function}"
    limit = settings.warm_up + settings.seconds + LATE + START_LIMIT
    figures = await run_worker(function, asdict(settings), limit)
    return Measurement(case=name, partitions=topic.partitions, rate=rate, round=index, **figures)


def summarize(measurements: Sequence[Measurement]) -> list[Summary]:
    """Return one summary for each number of partitions, rate and case."""
    found: dict[tuple[int, int, str], dict[int, Measurement]] = {}
    for each in measurements:
        found.setdefault((each.partitions, each.rate, each.case), {})[each.round] = each
    order = list(CASES)
    return [
        _summary(own, found.get((partitions, rate, CASES[case].baseline), {}))
        for (partitions, rate, case), own in sorted(
            found.items(), key=lambda item: (*item[0][:2], order.index(item[0][2]))
        )
    ]


def _summary(own: dict[int, Measurement], base: dict[int, Measurement]) -> Summary:
    some = next(iter(own.values()))

    def spread(value: Callable[[Measurement], float]) -> Spread:
        return Spread.of([value(each) for each in own.values()])

    def ratio(value: Callable[[Measurement], float]) -> Spread | None:
        pairs = [(value(own[index]), value(base[index])) for index in own if index in base]
        values = [one / other for one, other in pairs if other]
        return Spread.of(values) if values else None

    return Summary(
        some.case,
        some.partitions,
        some.rate,
        spread(lambda each: each.p50),
        spread(lambda each: each.p99),
        spread(lambda each: each.cpu_per_record),
        ratio(lambda each: each.p50),
        ratio(lambda each: each.p99),
        ratio(lambda each: each.cpu_per_record),
    )


def _as_dict(summary: Summary) -> dict[str, object]:
    return {
        key: value._asdict() if isinstance(value, Spread) else value
        for key, value in summary._asdict().items()
    }


def _show(options: argparse.Namespace, summaries: Sequence[Summary], conditions: Conditions) -> None:
    groups: dict[tuple[int, int], list[list[str]]] = {}
    for each in summaries:
        groups.setdefault((each.partitions, each.rate), []).append(_cells(each))
    columns = ("client", "partitions", "records/s", "p50", "ratio", "p99", "ratio", "CPU", "ratio")
    show_table(f"Latency of a record, {options.rounds} rounds", columns, list(groups.values()))
    text = wrap(
        "Milliseconds from sending a record to handling it, in one process for each; the producer has no linger. CPU: "
        "microseconds of the consumer's process for each record, all threads. Medians of the rounds; ratios are to aiokafka on "
        f"the same loop, within a round. {options.size} bytes a record, default settings of each client, {options.seconds:g} s "
        f"each after {options.warm_up:g} s that are left out; every second round has the clients in the reverse order."
    )
    show_footer(conditions, text)


def _cells(summary: Summary) -> list[str]:
    def median(spread: Spread | None, form: str = ".2f") -> str:
        return f"{spread.median:{form}}" if spread else "-"

    return [
        CASES[summary.case].title,
        f"{summary.partitions:,}",
        f"{summary.rate:,}",
        median(summary.p50),
        median(summary.p50_ratio),
        median(summary.p99),
        median(summary.p99_ratio),
        median(summary.cpu_per_record, ",.0f"),
        median(summary.cpu_ratio),
    ]
