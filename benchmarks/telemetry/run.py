"""The command: one topic; in each round every case reads it right before or after a run without hooks, in a separate process."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from rich.progress import Progress

from asyncgroup import Cluster
from benchmarks.common import (
    add_number,
    choose,
    measure_cases,
    options_parser,
    print_report,
    run_worker,
    show_footer,
    show_table,
    wrap,
)
from benchmarks.figures import MILLION, Spread
from benchmarks.machine import Conditions
from benchmarks.topic import Topic

__all__ = ["CASES", "GOAL", "MODES", "Pair", "Summary", "main", "parse", "run", "summarize"]

MODES: Final = ("batches", "records")
START_LIMIT: Final = 60.0
"""Seconds for a process in addition to reading: imports, joining, closing."""

GOAL: Final = 1.03
"""The goal for metrics: CPU per record, the median of the pairs."""


class Case(NamedTuple):
    """The distribution that it needs, its name in the table, and whether there is a goal."""

    client: str
    title: str
    has_goal: bool = False


CASES: Final = {
    "prometheus": Case("prometheus_client", "Prometheus", has_goal=True),
    "otel.metrics": Case("opentelemetry-sdk", "OpenTelemetry metrics", has_goal=True),
    "otel.traces": Case("opentelemetry-sdk", "OpenTelemetry traces"),
    "otel.api": Case("opentelemetry-api", "OpenTelemetry traces without an SDK"),
}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """CPU seconds per million records with the hooks of a case, and without hooks right before or after that."""

    case: str
    mode: str
    round: int
    cpu_per_million: float
    without: float

    @property
    def ratio(self) -> float:
        """CPU per record, compared with a client without hooks."""
        return self.cpu_per_million / self.without if self.without else 0.0


class Summary(NamedTuple):
    """The figures of one case in one mode over all pairs."""

    case: str
    mode: str
    cpu_per_million: Spread
    without: Spread
    ratio: Spread


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("telemetry", __doc__, rounds=10)
    add_number(parser, "--records", 500_000, "records in the topic")
    add_number(parser, "--size", 200, "bytes of each value")
    add_number(parser, "--partitions", 4, "partitions of the topic")
    add_number(parser, "--limit", 30.0, "seconds after which a run is stopped")
    parser.add_argument("--modes", default="", help=f"comma-separated: {', '.join(MODES)}")
    options = parser.parse_args(arguments)
    if options.quick:
        options.records, options.rounds = 2_000, 1
    options.cases = choose(parser, "--only", options.only, list(CASES))
    options.modes = choose(parser, "--modes", options.modes, list(MODES))
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    conditions, found = measure_cases(run, options, {name: case.client for name, case in CASES.items()})
    if options.json:
        keys = ("records", "size", "partitions", "rounds")
        print_report(
            "telemetry",
            {key: getattr(options, key) for key in keys},
            conditions,
            pairs=[asdict(each) | {"ratio": each.ratio} for each in found],
            summaries=[_as_dict(each) for each in summarize(found)],
        )
    else:
        _show(options, summarize(found), conditions)
    return 0 if found else 1


async def run(servers: str, options: argparse.Namespace, progress: Progress) -> list[Pair]:
    """Load the topic, measure every case in every mode `rounds` times, then remove topic and groups."""
    found: list[Pair] = []
    groups: list[str] = []
    async with Cluster(servers) as cluster:
        topic = Topic(cluster, options.partitions, options.records, options.size)
        try:
            task = progress.add_task("loading", total=topic.records)
            await topic.load(lambda records: progress.advance(task, records))
            await topic.find_coordinator(topic.name)
            steps = list(_steps(options))
            progress.update(task, total=len(steps), completed=0)
            for index, mode, name in steps:
                progress.update(task, description=f"round {index}: {mode}, {name}")
                figures = {}
                for case in ("nothing", name) if index % 2 else (name, "nothing"):
                    groups.append(f"{topic.name}-{len(groups)}")
                    figures[case] = await _measure(servers, topic, options, groups[-1], mode, case)
                found.append(
                    Pair(
                        case=name,
                        mode=mode,
                        round=index,
                        cpu_per_million=figures[name],
                        without=figures["nothing"],
                    )
                )
                progress.advance(task)
        finally:
            await topic.remove(groups)
    return found


def _steps(options: argparse.Namespace) -> Iterator[tuple[int, str, str]]:
    for index in range(1, options.rounds + 1):
        for mode in options.modes:
            for name in options.cases:
                yield index, mode, name


async def _measure(
    servers: str, topic: Topic, options: argparse.Namespace, group_id: str, mode: str, case: str
) -> float:
    """Return CPU seconds per million records of one run, without those of its start."""
    settings = {
        "bootstrap_servers": servers,
        "topic": topic.name,
        "group_id": group_id,
        "partitions": topic.partitions,
        "records": topic.records,
        "limit": options.limit,
        "mode": mode,
        "case": case,
    }
    figures = await run_worker("benchmarks.telemetry.clients:measure", settings, options.limit + START_LIMIT)
    return float(figures["cpu_seconds"] / figures["counted"] * MILLION) if figures["counted"] else 0.0


def summarize(pairs: Sequence[Pair]) -> list[Summary]:
    """Return one summary for each mode and case, in the order of `MODES` and `CASES`."""
    found = []
    for mode in MODES:
        for case in CASES:
            if own := [each for each in pairs if (each.mode, each.case) == (mode, case)]:
                spreads = (
                    Spread.of([each.cpu_per_million for each in own]),
                    Spread.of([each.without for each in own]),
                    Spread.of([each.ratio for each in own]),
                )
                found.append(Summary(case, mode, *spreads))
    return found


def _as_dict(summary: Summary) -> dict[str, object]:
    return {
        key: value._asdict() if isinstance(value, Spread) else value
        for key, value in summary._asdict().items()
    }


def _show(options: argparse.Namespace, summaries: Sequence[Summary], conditions: Conditions) -> None:
    groups: dict[str, list[list[str]]] = {}
    for each in summaries:
        groups.setdefault(each.mode, []).append(_cells(each))
    columns = ("hooks", "read in", "CPU", "without", "ratio", "range", "goal")
    show_table(f"Telemetry, {options.rounds} pairs", columns, list(groups.values()))
    text = wrap(
        f"CPU seconds of the process, all threads, per million records of {options.size} B in {options.partitions} partitions, without "
        "the start; medians of the pairs. Each pair is a run with the hooks and one without, in turns the first; the ratio is "
        "that within a pair. Metrics are read each second in another thread. Traces have a span for each batch or each record; the exporters drop "
        "everything."
    )
    show_footer(conditions, text)


def _cells(summary: Summary) -> list[str]:
    case, ratio = CASES[summary.case], summary.ratio
    return [
        case.title,
        summary.mode,
        f"{summary.cpu_per_million.median:.2f}",
        f"{summary.without.median:.2f}",
        f"{ratio.median:.3f}",
        f"{ratio.low:.2f}–{ratio.high:.2f}",
        f"{GOAL:g}" if case.has_goal else "-",
    ]
