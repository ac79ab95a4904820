"""`asyncgroup consume`: a topic's records on standard output."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from asyncgroup.cli.common import add_servers, add_topic, group_id, positive, seconds, stop_signals
from asyncgroup.cli.printing import FORMATS, Printer
from asyncgroup.config import ConsumerConfig
from asyncgroup.group import Claim, ConsumerGroup, Handler, Session
from asyncgroup.lifecycle import cancel_and_wait, wait_within

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands
    from asyncgroup.consumer import PartitionConsumer

__all__ = ["add_parser"]

BATCH = 500
"""Records printed, and marked, at once."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `consume`."""
    parser = commands.add_parser(
        "consume",
        parents=[common],
        help="print a topic's records",
        description="Prints records, one per line, until Ctrl-C. With --group it is a member of that group and "
        "commits what it has printed; without, it reads all partitions and commits nothing.",
    )
    add_servers(parser, required=True)
    add_topic(parser)
    parser.add_argument("--group", type=group_id, help="the consumer group to join")
    parser.add_argument(
        "--format",
        choices=sorted(FORMATS),
        default="value",
        help="the value as it is, or the whole record as a JSON object (default: %(default)s)",
    )
    parser.add_argument(
        "--from",
        dest="start",
        choices=("earliest", "latest"),
        default="latest",
        help="where to begin; in a group, where nothing is committed yet (default: %(default)s)",
    )
    parser.add_argument("--max-messages", type=positive, metavar="N", help="end after N records")
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="end when no record has come for S seconds"
    )
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> int:
    """Print until Ctrl-C, SIGTERM, --max-messages or --timeout."""
    config = ConsumerConfig(
        client_id="asyncgroup-consume", auto_offset_reset=options.start, allow_auto_topic_creation=False
    )
    with stop_signals() as stop:
        printer = Printer(FORMATS[options.format], options.max_messages)
        read = _read_group if options.group else _read_all
        reading = asyncio.create_task(read(options, config, printer, stop), name="consume")
        watching = asyncio.create_task(_watch(printer, stop, options.timeout), name="watch")
        try:
            await reading
        finally:
            await cancel_and_wait(watching)
    return 0


async def _watch(printer: Printer, stop: asyncio.Event, timeout: float | None) -> None:
    """Set `stop` when the printer has printed enough, or nothing for `timeout` seconds."""
    while not printer.finished.is_set():
        count = printer.count
        if not await wait_within(printer.finished, timeout) and printer.count == count:
            break
    stop.set()


async def _read_group(
    options: argparse.Namespace, config: ConsumerConfig, printer: Printer, stop: asyncio.Event
) -> None:
    """As a member of a group; the end is a leave in good order, with everything printed committed."""
    async with ConsumerGroup(options.bootstrap_servers, options.group, config) as group:
        printing = Printing(printer)
        running = asyncio.create_task(group.run(options.topic, printing), name="run")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            _say(f"{options.topic}: member of group {options.group!r}, Ctrl-C ends")
            first: list[asyncio.Future[object]] = [running, stopped]  # type: ignore[list-item]  # of different results
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            await group.aclose()
            await running
            if printing.broken_pipe is not None:
                raise printing.broken_pipe
        finally:
            await cancel_and_wait(running, stopped)


class Printing(Handler):
    """Prints what comes and marks what was printed."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self.broken_pipe: BrokenPipeError | None = None

    async def consume_claim(self, session: Session, claim: Claim) -> None:  # noqa: ARG002
        async for batch in claim.batches(max_records=BATCH):
            try:
                printed = await self._printer.print(batch)
            except BrokenPipeError as error:
                # The reader of our output has gone, which is an end. Raised here it would be a handler's failure, and logged.
                self.broken_pipe, printed = error, 0
                self._printer.finished.set()
            if printed:
                claim.mark(batch[printed - 1])
            if self._printer.finished.is_set():
                # `run` closes the group; returning now would end the session with a warning
                await claim.wait_ended()
                return


async def _read_all(
    options: argparse.Namespace, config: ConsumerConfig, printer: Printer, stop: asyncio.Event
) -> None:
    """Without a group: all partitions that the topic has now."""
    from asyncgroup.consumer import Consumer

    async with Consumer(options.bootstrap_servers, config) as consumer:
        partitions = [
            await consumer.partition(options.topic, number, options.start)
            for number in await consumer.partitions(options.topic)
        ]
        readers = [asyncio.create_task(_read(each, printer), name=f"read {each.tp}") for each in partitions]
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            _say(f"{options.topic}: {len(readers)} partitions, Ctrl-C ends")
            done, _ = await asyncio.wait([*readers, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_and_wait(*readers, stopped)


async def _read(partition: PartitionConsumer, printer: Printer) -> None:
    async for batch in partition.batches(max_records=BATCH):
        await printer.print(batch)
        await printer.wait_if_finished()


def _say(text: str) -> None:
    """A word for a person at a terminal; scripts get records and errors only."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)
