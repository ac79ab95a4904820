"""`asyncgroup consume`: print a topic's records, with or without a consumer group."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from asyncgroup.cli.common import add_topic, group_id, positive, seconds, stop_signals
from asyncgroup.cli.connection_options import add_connection_options, connection_options
from asyncgroup.cli.printing import RECORD_FORMATS, Printer, is_terminal, record_format
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import AsyncGroupError
from asyncgroup.group import Claim, ConsumerGroup, Handler, Session
from asyncgroup.lifecycle import cancel_and_wait, wait_within
from asyncgroup.model import TopicPartition

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands
    from asyncgroup.consumer import PartitionConsumer

__all__ = ["add_parser"]

_DESCRIPTION: Final = (
    "Prints records, one per line, until Ctrl-C. With --group it joins that group and commits the records "
    "that it has printed; without, it reads all partitions and commits nothing. On a terminal control characters are "
    "escaped; to a pipe the bytes are written unchanged. A null value is printed as null."
)

BATCH_RECORDS = 500
"""The maximum of records that are printed and marked together."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `consume`."""
    parser = commands.add_parser(
        "consume", parents=[common], help="print a topic's records", description=_DESCRIPTION
    )
    add_connection_options(parser)
    add_topic(parser)
    parser.add_argument(
        "--group", type=group_id, help="the consumer group to join (default: group.id, if it is set)"
    )
    parser.add_argument(
        "--format",
        choices=sorted(RECORD_FORMATS),
        default="value",
        help="the value, or the whole record as a JSON object (default: %(default)s)",
    )
    parser.add_argument(
        "--from",
        dest="start",
        choices=("earliest", "latest"),
        help="where to start reading; in a group only for partitions without a committed offset (default: "
        "auto.offset.reset, or latest)",
    )
    parser.add_argument("--max-messages", type=positive, metavar="N", help="stop after N records")
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="stop when no record has been printed for S seconds"
    )
    parser.set_defaults(run=run)


class ConsumeOptions(NamedTuple):
    """The topic to read, with or without a group, and the configuration."""

    servers: str
    topic: str
    group_id: str | None
    start: Literal["earliest", "latest"] | timedelta
    config: ConsumerConfig


def _consume_options(options: argparse.Namespace) -> ConsumeOptions:
    given = connection_options(options, client_id="asyncgroup-consume", allow_auto_create_topics="false")
    servers = given.require_servers(options.usage)
    config = given.config(ConsumerConfig, **({"auto_offset_reset": options.start} if options.start else {}))
    # without a group there are no committed offsets, so the reset policy must be a position
    start = "latest" if config.auto_offset_reset == "error" else config.auto_offset_reset
    return ConsumeOptions(servers, options.topic, options.group or given.group_id, start, config)


async def run(options: argparse.Namespace) -> int:
    """Print records until Ctrl-C, SIGTERM, --max-messages or --timeout. Raises CommitFailedError of the last commit."""
    consume_options = _consume_options(options)
    with stop_signals() as stop:
        printer = Printer(record_format(options.format, for_terminal=is_terminal()), options.max_messages)
        read = _read_group if consume_options.group_id else _read_all
        reading = asyncio.create_task(read(consume_options, printer, stop), name="consume")
        watching = asyncio.create_task(_watch(printer, stop, options.timeout), name="watch")
        try:
            await reading
        finally:
            await cancel_and_wait(watching)
    return stop.exit_code


async def _watch(printer: Printer, stop: asyncio.Event, timeout: float | None) -> None:
    """Set `stop` when the printer has reached its limit, or has printed nothing for `timeout` seconds."""
    while not printer.finished.is_set():
        count = printer.count
        if not await wait_within(printer.finished, timeout) and printer.count == count:
            break
    stop.set()


async def _read_group(options: ConsumeOptions, printer: Printer, stop: asyncio.Event) -> None:
    """Read as a member of a group; at the end commit everything that was printed, and leave the group."""
    assert options.group_id is not None
    async with ConsumerGroup(options.servers, options.group_id, options.config) as group:
        handler = PrintingHandler(printer)
        running = asyncio.create_task(group.run(options.topic, handler), name="run")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            _print_status(f"{options.topic}: member of group {options.group_id!r}, press Ctrl-C to stop")
            first: list[asyncio.Future[object]] = [running, stopped]  # type: ignore[list-item]  # of different results
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            handler.is_stopping = True
            await group.aclose()
            await running
            if handler.commit_error is not None:
                raise handler.commit_error
            if handler.broken_pipe is not None:
                raise handler.broken_pipe
        finally:
            await cancel_and_wait(running, stopped)


class PrintingHandler(Handler):
    """Prints records and marks those that were printed."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self.is_stopping = False
        """Set when the command stops: records that the last session does not commit stay uncommitted."""
        self.commit_error: AsyncGroupError | None = None
        """Why the last session could not commit."""
        self.broken_pipe: BrokenPipeError | None = None
        """Set when the reader of standard output has closed the pipe."""

    async def setup(self, session: Session) -> None:  # noqa: ARG002
        """Clear the error of the previous session: this session gets its uncommitted records again."""
        self.commit_error = None

    async def cleanup(self, session: Session) -> None:
        """Commit explicitly when stopping: errors of the session's automatic commit are not raised."""
        if self.is_stopping and not session.is_lost:
            try:
                await session.commit()
            except AsyncGroupError as error:
                self.commit_error = error

    async def on_lost(self, session: Session, partitions: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        """Keep the cause: the session can no longer commit."""
        self.commit_error = session.cause

    async def consume_claim(self, session: Session, claim: Claim) -> None:  # noqa: ARG002
        async for batch in claim.batches(max_records=BATCH_RECORDS):
            try:
                printed = await self._printer.print(batch)
            except BrokenPipeError as error:
                # The reader of standard output has closed the pipe, which stops the command. If the error were raised
                # here, it would be logged as a failure of the handler.
                self.broken_pipe, printed = error, 0
                self._printer.finished.set()
            if printed:
                claim.mark(batch[printed - 1])
            if self._printer.finished.is_set():
                # `_read_group` closes the group; returning now would end the session with a warning
                await claim.wait_ended()
                return


async def _read_all(options: ConsumeOptions, printer: Printer, stop: asyncio.Event) -> None:
    """Read without a group: all partitions that the topic has now."""
    from asyncgroup.consumer import Consumer

    async with Consumer(options.servers, options.config) as consumer:
        partitions = [
            await consumer.partition(options.topic, number, options.start)
            for number in await consumer.partitions(options.topic)
        ]
        readers = [asyncio.create_task(_read(each, printer), name=f"read {each.tp}") for each in partitions]
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            _print_status(f"{options.topic}: {len(readers)} partitions, press Ctrl-C to stop")
            done, _ = await asyncio.wait([*readers, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_and_wait(*readers, stopped)


async def _read(partition: PartitionConsumer, printer: Printer) -> None:
    async for batch in partition.batches(max_records=BATCH_RECORDS):
        await printer.print(batch)
        await printer.block_if_finished()


def _print_status(text: str) -> None:
    """Print a status line if standard error is a terminal; scripts get only records and errors."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(text, file=sys.stderr)
