"""The command: the same scenario for every client in each round, with a new topic for each run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from rich.progress import Progress

from asyncgroup import Cluster
from benchmarks.common import (
    add_number,
    measure_cases,
    options_parser,
    print_report,
    show_footer,
    show_table,
)
from benchmarks.member import Settings
from benchmarks.rebalance.figures import CASES, MODES, Measurement, caption, rows, summarize
from benchmarks.rebalance.scenario import Scenario, ScenarioPlan
from benchmarks.topic import Topic

__all__ = ["main", "parse", "run"]

SETTLE: Final = 2.5
COLUMNS: Final = (
    "client",
    "quiet",
    "one joins",
    "one leaves: others'",
    "its own",
    "twice",
    "lost",
    "records",
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("rebalance", __doc__, rounds=3)
    add_number(parser, "--rate", 800, "records a second")
    add_number(parser, "--partitions", 16, "partitions of the topic")
    add_number(parser, "--heartbeat", 1.0, "seconds between two")
    parser.add_argument("--modes", default="", help=f"comma-separated: {', '.join(MODES)}")
    options = parser.parse_args(arguments)
    options.settle = SETTLE
    if options.quick:
        options.settle, options.rounds, options.heartbeat = 0.3, 1, 0.2
    options.modes = _chosen(options.modes, MODES)
    options.cases = _chosen(options.only, CASES)
    if not options.cases:
        parser.error(f"--only {options.only}: none of {', '.join(CASES)}")
    return options


def _chosen(text: str, names: Sequence[str] | Mapping[str, object]) -> list[str]:
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    return [name for name in names if not wanted or name in wanted]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    conditions, measurements = measure_cases(run, options, {name: CASES[name].client for name in CASES})
    summaries = summarize(measurements)
    settings = {key: getattr(options, key) for key in ("rate", "partitions", "heartbeat", "rounds")}
    if options.json:
        print_report(
            "rebalance",
            settings,
            conditions,
            measurements=[asdict(each) for each in measurements],
            summaries=[summary._asdict() for summary in summaries],
        )
    else:
        groups = [
            [[f"heartbeats {mode}", *[""] * (len(COLUMNS) - 1)], *rows(summaries, mode)]
            for mode in options.modes
        ]
        show_table("One member joins, one leaves", COLUMNS, groups)
        show_footer(conditions, caption(settings))
    return 0 if measurements else 1


async def run(servers: str, options: argparse.Namespace, progress: Progress) -> list[Measurement]:
    """Run every case in every mode `rounds` times, each with a new topic and a new group."""
    found: list[Measurement] = []
    steps = [
        (index, mode, case)
        for index in range(1, options.rounds + 1)
        for mode in options.modes
        for case in options.cases
    ]
    task = progress.add_task("", total=len(steps))
    async with Cluster(servers) as cluster:
        for index, mode, name in steps:
            case = CASES[name]
            topic = Topic(cluster, options.partitions, 0, 1)
            settings = Settings(
                bootstrap_servers=servers,
                group_id=topic.name,
                topic=topic.name,
                heartbeat=options.heartbeat,
                strategy=case.strategy,
                at_heartbeat=case.at_heartbeat,
            )
            plan = ScenarioPlan(
                partitions=options.partitions,
                rate=options.rate,
                settle=options.settle,
                spread=mode == "spread",
                delay=options.heartbeat * (index - 1) / options.rounds,
            )

            def say(what: str, name: str = name, mode: str = mode, index: int = index) -> None:
                progress.update(task, description=f"{index}: {name} {mode}, {what}")

            say("creating the topic")
            await topic.create()
            try:
                await topic.find_coordinator(topic.name)
                outcome = await Scenario(case.client, settings, plan).run(say)
            finally:
                await topic.remove([])
            found.append(Measurement.of(name, mode, index, outcome))
            progress.advance(task)
    return found
