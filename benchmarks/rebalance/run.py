"""The command: the same scenario for every client in each round, with a new topic for each run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from rich.progress import Progress

from asyncgroup import Cluster
from asyncgroup.testing.apache_kafka.properties import consumer_heartbeats
from benchmarks.common import (
    ClientFailed,
    add_number,
    choose,
    measure_cases,
    options_parser,
    print_report,
    show_footer,
    show_table,
)
from benchmarks.go_program import GoProgram, GoProgramUnavailable
from benchmarks.member import Settings
from benchmarks.rebalance.figures import CASES, GO_MODULES, MODES, Measurement, caption, rows, summarize
from benchmarks.rebalance.scenario import Scenario, ScenarioPlan
from benchmarks.topic import Topic

__all__ = ["GO_CLIENTS", "main", "parse", "run"]

GO_CLIENTS: Final = {client: GoProgram("group", module) for client, module in GO_MODULES.items()}
"""One program for both."""

SETTLE: Final = 2.5
SHORTEST: Final = 1.0
"""The shortest heartbeat interval of the consumer protocol for which clients are made."""
PHASE_OFFSET: Final = 0.4
"""The phases of the changes are 0.6 in one round, 0.2, 0.53 and 0.87 in three.

Never 0, when members of the classic protocol send heartbeats, nor 0.5, when those of the consumer protocol do after a join at
that phase: chance would decide whether the change comes just before or just after them.
"""
COLUMNS: Final = (
    "client",
    "quiet",
    "join: kept",
    "moved",
    "leave: others'",
    "its own",
    "twice",
    "lost",
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("rebalance", __doc__, rounds=3)
    add_number(parser, "--rate", 800, "records a second")
    add_number(parser, "--partitions", 16, "partitions of the topic")
    add_number(parser, "--heartbeat", 1.0, "seconds between two")
    parser.add_argument(
        "--default-heartbeats",
        action="store_true",
        help="Kafka's intervals: every 3 s, by the consumer protocol every 5 s",
    )
    parser.add_argument("--modes", default="", help=f"comma-separated: {', '.join(MODES)}")
    options = parser.parse_args(arguments)
    options.settle = SETTLE
    if options.quick:
        options.settle, options.rounds, options.heartbeat = 0.3, 1, 0.2
    options.consumer_heartbeat = max(options.heartbeat, SHORTEST)
    if options.default_heartbeats:
        options.heartbeat, options.consumer_heartbeat = 3.0, 5.0
    else:
        options.kafka_properties = consumer_heartbeats(options.consumer_heartbeat)
    options.modes = choose(parser, "--modes", options.modes, list(MODES))
    options.cases = choose(parser, "--only", options.only, list(CASES))
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    clients = {name: CASES[name].client for name in CASES}
    in_go = {client: program.version() for client, program in GO_CLIENTS.items()}
    conditions, (measurements, missing) = measure_cases(run, options, clients, in_go)
    conditions = replace(conditions, missing=missing)
    summaries = summarize(measurements)
    settings = {
        key: getattr(options, key)
        for key in ("rate", "partitions", "heartbeat", "consumer_heartbeat", "rounds")
    }
    if options.json:
        print_report(
            "rebalance",
            settings,
            conditions,
            missing=conditions.missing,
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


async def run(
    servers: str, options: argparse.Namespace, progress: Progress
) -> tuple[list[Measurement], dict[str, str]]:
    """Run every case in every mode `rounds` times, each with a new topic and a new group.

    Also returns what was not measured and why: the clients in Go without their program, and runs in which a member failed.
    """
    found: list[Measurement] = []
    program, missing = await _go_program(options, progress)
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
            is_consumer = case.strategy == "consumer"
            heartbeat = options.consumer_heartbeat if is_consumer else options.heartbeat
            settings = Settings(
                bootstrap_servers=servers,
                group_id=topic.name,
                topic=topic.name,
                heartbeat=heartbeat,
                strategy=case.strategy,
                at_heartbeat=case.at_heartbeat,
            )
            plan = ScenarioPlan(
                partitions=options.partitions,
                rate=options.rate,
                settle=options.settle,
                spread=mode == "spread",
                phase=(index - PHASE_OFFSET) / options.rounds,
            )

            def say(what: str, name: str = name, mode: str = mode, index: int = index) -> None:
                progress.update(task, description=f"{index}: {name} {mode}, {what}")

            say("creating the topic")
            await topic.create()
            try:
                await topic.find_coordinator(topic.name)
                in_go = program if case.client in GO_CLIENTS else None
                outcome = await Scenario(case.client, settings, plan, in_go).run(say)
            except ClientFailed as error:
                missing[f"{case.title} {mode}, round {index}"] = _last_line(error)
            else:
                found.append(Measurement.of(name, mode, index, outcome))
            finally:
                await topic.remove([])
            progress.advance(task)
    return found, missing


def _last_line(error: ClientFailed) -> str:
    """Return the last line of an error, which says most if it is the output of a process."""
    return str(error).strip().splitlines()[-1]


async def _go_program(options: argparse.Namespace, progress: Progress) -> tuple[Path | None, dict[str, str]]:
    """Return the program for the clients in Go; without it, leave out their cases and say why."""
    wanted = {CASES[name].client for name in options.cases} & GO_CLIENTS.keys()
    if not wanted:
        return None, {}
    task = progress.add_task("building the program in Go", total=None)
    try:
        return await GO_CLIENTS["sarama"].build(), {}
    except GoProgramUnavailable as error:
        options.cases = [name for name in options.cases if CASES[name].client not in wanted]
        return None, dict.fromkeys(sorted(wanted), str(error))
    finally:
        progress.remove_task(task)
