"""The command: in each round every client runs every case in a separate process, all on one Apache Pulsar."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from asyncgroup.pulsar import PulsarConsumerConfig
from asyncgroup.testing.apache_pulsar import PULSAR_VERSION, ApachePulsar, PulsarAdmin
from benchmarks.common import (
    add_number,
    choose,
    installed,
    options_parser,
    positive_int,
    print_report,
    progress_on,
    run_process,
    run_to_end,
    run_worker,
)
from benchmarks.machine import Conditions, machine
from benchmarks.pulsar import go_client, java_client
from benchmarks.pulsar.cases import CASES, CLIENTS, QUEUES
from benchmarks.pulsar.figures import Measurement, goals_of, summarize
from benchmarks.pulsar.tables import show
from benchmarks.pulsar.topics import backlog_of, loaded_topic, new_topic
from benchmarks.queue.installation import PeerUnavailable

__all__ = ["BUDGET", "main", "parse", "run"]

LIMIT: Final = 600.0
"""Seconds for a measured process."""
BUDGET: Final = PulsarConsumerConfig().receiver_queue_bytes or 0
"""Bytes of asyncgroup's receiver queue, by default."""
_READ: Final = ("receive", *QUEUES)
_PROGRAMS: Final = {"java": java_client.command, "go": go_client.command}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = options_parser("pulsar", __doc__, rounds=5, external=False)
    parser.add_argument("--service-url", help="use a running Pulsar instead of starting one")
    parser.add_argument("--admin-url", help="the admin API of that Pulsar: http://host:port")
    parser.add_argument("--cases", default="", help=f"comma-separated: {', '.join(CASES)}")
    add_number(parser, "--messages", 200_000, "messages that are sent or received")
    parser.add_argument(
        "--partitions", type=positive_int, help="partitions of each topic (a topic without any)"
    )
    add_number(parser, "--size", 100, "bytes of each value")
    add_number(parser, "--calls", 2_000, "messages of the one caller")
    add_number(parser, "--large-messages", 1_500, "messages of the case memory")
    add_number(parser, "--large-size", 100_000, "bytes of each of their values")
    options = parser.parse_args(arguments)
    options.partitions = options.partitions or 0
    if (options.service_url is None) != (options.admin_url is None):
        parser.error("--service-url and --admin-url: give both or none")
    if options.quick:
        options.messages, options.calls, options.large_messages, options.rounds = 1_000, 10, 50, 1
    options.clients = choose(parser, "--only", options.only, list(CLIENTS))
    options.cases = choose(parser, "--cases", options.cases, list(CASES))
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    options = parse(arguments)
    conditions, found = _measure_all(options)
    summaries = summarize(found)
    if options.json:
        keys = ("messages", "partitions", "size", "calls", "large_messages", "large_size", "rounds")
        print_report(
            "pulsar",
            {key: getattr(options, key) for key in keys},
            conditions,
            missing=dict(conditions.missing),
            measurements=[asdict(each) for each in found],
            summaries=[each.as_dict() for each in summaries],
            goals=[
                goal._asdict() | {"ratio": ratio._asdict(), "met": goal.is_met(ratio.median)}
                for goal, ratio in goals_of(summaries)
            ],
            memory_limit=BUDGET,
        )
    else:
        partitions = f"{options.partitions or 'no'} partitions"
        show(f"Pulsar, {options.rounds} rounds, {partitions}", summaries, conditions, BUDGET)
    return 0 if found else 1


def _measure_all(options: argparse.Namespace) -> tuple[Conditions, list[Measurement]]:
    console = Console(stderr=True)
    started = machine()
    packages = {name: CLIENTS[name].distribution for name in options.clients if name not in _PROGRAMS}
    used, found = installed(packages, console)
    options.clients = [name for name in options.clients if name in found or name in _PROGRAMS]
    if "go" in options.clients:
        used["pulsar-client-go"] = go_client.version()
    used["Apache Pulsar"] = "of --service-url" if options.service_url else PULSAR_VERSION
    missing: dict[str, str] = {}

    async def work() -> list[Measurement]:
        with progress_on(console) as progress:
            async with _pulsar(options, progress) as (url, admin):
                return await run(url, admin, options, progress, missing)

    return Conditions(started, used, missing), run_to_end(work(), console)


@asynccontextmanager
async def _pulsar(options: argparse.Namespace, progress: Progress) -> AsyncIterator[tuple[str, PulsarAdmin]]:
    if options.service_url:
        yield options.service_url, PulsarAdmin(options.admin_url)
        return
    task = progress.add_task("starting Apache Pulsar", total=None)
    # the broker must not be the bottleneck: Java's default garbage collector and compiler
    async with ApachePulsar(heap="1g", direct_memory="1g", java_options=()) as pulsar:
        progress.remove_task(task)
        yield pulsar.service_url, pulsar.admin


async def run(
    url: str,
    admin: PulsarAdmin,
    options: argparse.Namespace,
    progress: Progress,
    missing: dict[str, str],
) -> list[Measurement]:
    """Load the topics, measure every client in every case `rounds` times, then delete the topics."""
    programs: dict[str, list[str]] = {}
    for name in [name for name in options.clients if name in _PROGRAMS]:
        try:
            programs[name] = await _PROGRAMS[name]()
        except PeerUnavailable as error:
            missing[name] = str(error)
            options.clients.remove(name)
    async with AsyncExitStack() as stack:
        topics = await _topics(stack, url, admin, options, progress)
        steps = [
            (index, case, client)
            for index in range(1, options.rounds + 1)
            for case in options.cases
            # one after the other in turns, so that no client always follows the same one
            for client in (options.clients if index % 2 else options.clients[::-1])
            if case in CLIENTS[client].cases
        ]
        task = progress.add_task("measuring", total=len(steps))
        found = []
        for index, case, client in steps:
            progress.update(task, description=f"round {index}: {case}, {client}")
            settings = {
                "service_url": url,
                "topic": topics[case],
                "subscription": f"{client}-{index}-{case}",
                "case": case,
                "messages": options.large_messages if case == "memory" else options.messages,
                "size": options.size,
                "calls": options.calls,
                "partitions": options.partitions,
            }
            figures = await _measure(programs.get(client), settings, client)
            backlog = await _end(admin, settings, options.partitions)
            found.append(Measurement(client=client, case=case, round=index, backlog=backlog, **figures))
            progress.advance(task)
    return found


async def _topics(
    stack: AsyncExitStack, url: str, admin: PulsarAdmin, options: argparse.Namespace, progress: Progress
) -> dict[str, str]:
    """Return the topic of each case."""
    topics: dict[str, str] = {}

    async def loaded(messages: int, size: int) -> str:
        task = progress.add_task("loading", total=messages)
        topic = loaded_topic(
            url, admin, messages, size, lambda count: progress.advance(task, count), options.partitions
        )
        name = await stack.enter_async_context(topic)
        progress.remove_task(task)
        return name

    read = ""
    for case in options.cases:
        if case in _READ:
            read = read or await loaded(options.messages, options.size)
            topics[case] = read
        elif case == "memory":
            topics[case] = await loaded(options.large_messages, options.large_size)
        else:
            topics[case] = await stack.enter_async_context(new_topic(admin, options.partitions))
    return topics


async def _measure(program: list[str] | None, settings: dict[str, Any], client: str) -> dict[str, Any]:
    if program is None:
        return await run_worker(f"benchmarks.pulsar.{CLIENTS[client].function}", settings, LIMIT)
    return await run_process(
        client, [*program, *(f"{name}={value}" for name, value in settings.items())], LIMIT
    )


async def _end(admin: PulsarAdmin, settings: dict[str, Any], partitions: int) -> int | None:
    """Delete the subscription of the case, if it has one; return what it has not acknowledged."""
    case, topic, subscription = settings["case"], settings["topic"], settings["subscription"]
    if case in _READ:
        return await backlog_of(admin, topic, subscription, partitions)
    if case == "memory":
        await admin.delete_subscription(topic, subscription)
    return None
