"""`asyncgroup consume`: print a topic's records, with or without a consumer group; on Pulsar see `pulsar_reading`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asyncgroup.checks import check_topic
from asyncgroup.cli.common import (
    add_missing_topics,
    add_topic,
    group_id,
    positive,
    seconds,
    separator,
    stop_signals,
)
from asyncgroup.cli.connection_options import ConnectionOptions, add_connection_options, connection_options
from asyncgroup.cli.printing import RECORD_FORMATS, Printer, is_terminal, record_format
from asyncgroup.cli.pulsar_reading import PulsarReading
from asyncgroup.cli.start_positions import (
    StartPosition,
    parse_offset,
    parse_partitions,
    parse_start,
    start_offsets,
)
from asyncgroup.cli.telemetry_options import CommandMetrics, add_telemetry_options
from asyncgroup.config import ConsumerConfig
from asyncgroup.counting import counted
from asyncgroup.errors import AsyncGroupError
from asyncgroup.group import Claim, ConsumerGroup, Handler, Session
from asyncgroup.lifecycle import cancel_and_wait, run_until, wait_within
from asyncgroup.model import TopicPartition

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands
    from asyncgroup.consumer import PartitionConsumer

__all__ = ["add_parser"]

_DESCRIPTION: Final = (
    "Prints records, one per line, until Ctrl-C. With --group it joins that group and commits the records "
    "that it has printed; without, it reads all partitions, or those of --partition, and commits nothing. On a terminal "
    "control characters are escaped; to a pipe the bytes are written unchanged. A null value is printed as null, and so is "
    "a null key. On Pulsar the group is a subscription, in which messages that were printed are acknowledged."
)

BATCH_RECORDS = 500
"""The maximum of records that are printed and marked together."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `consume`."""
    parser = commands.add_parser(
        "consume", parents=[common], help="print a topic's records", description=_DESCRIPTION
    )
    add_connection_options(parser, reads_pulsar=True)
    add_topic(parser)
    parser.add_argument(
        "--group",
        type=group_id,
        help="the consumer group to join, or the subscription of Pulsar (default: group.id, if it is set)",
    )
    parser.add_argument(
        "-p",
        "--partition",
        dest="partitions",
        metavar="N,N",
        type=parse_partitions,
        action="extend",
        default=[],
        help="read only this partition, or these; not with --group. A partition of Pulsar is a topic: -t TOPIC-partition-N",
    )
    _add_start(parser)
    _add_output(parser)
    parser.add_argument("--max-messages", type=positive, metavar="N", help="stop after N records")
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="stop when no record has been printed for S seconds"
    )
    add_missing_topics(parser, "with --group: ")
    add_telemetry_options(parser)
    parser.set_defaults(run=run)


def _add_start(parser: argparse.ArgumentParser) -> None:
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "-o",
        "--offset",
        metavar="OFFSET",
        type=parse_offset,
        help="where to start in each partition: an offset, -N for N offsets before the end, +N for N after the beginning, "
        "earliest or latest; not with --from or --group",
    )
    start.add_argument(
        "--from",
        dest="start",
        metavar="TIME",
        type=parse_start,
        help="where to start: earliest, latest, or with the first record of a time: 2026-11-27T10:00Z, "
        "2026-11-27T10:00+01:00, a timestamp in ms (13 digits) or seconds (10), or a duration before now such as 90s, 30m, "
        "24h or 7d. In a group only for partitions without a committed offset, in a subscription of Pulsar only if it is new "
        "(default: auto.offset.reset, on Pulsar subscriptionInitialPosition, or latest)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--format",
        choices=sorted(RECORD_FORMATS),
        default="value",
        help="the value, or the whole record as a JSON object (default: %(default)s)",
    )
    shown.add_argument(
        "--json", dest="format", action="store_const", const="json", help="the same as --format json"
    )
    parser.add_argument(
        "--key", action="store_true", help="print the key, a tab, and the value; JSON always has the key"
    )
    parser.add_argument(
        "-K",
        "--key-separator",
        metavar="TEXT",
        type=separator,
        help="print the key, this text, and the value; `\\t` is a tab; not with JSON",
    )


class ConsumeOptions(NamedTuple):
    """The topic to read, with or without a group, and the configuration."""

    servers: str
    topic: str
    partitions: Sequence[int]
    """Without a group: the partitions to read, or none for all."""
    group_id: str | None
    start: StartPosition
    config: ConsumerConfig
    metrics: CommandMetrics


def _consume_options(options: argparse.Namespace) -> ConsumeOptions:
    given = connection_options(options, client_id="asyncgroup-consume", allow_auto_create_topics="false")
    servers = given.require_servers(options.usage)
    check_topic(options.topic)
    group = _group_id(options, given)
    keys: dict[str, Any] = {}
    if group is None:
        keys["allow_auto_topic_creation"] = False  # to look a topic up must not create it
    elif options.missing_topics is not None:
        keys["missing_topics"] = options.missing_topics
    if isinstance(options.start, datetime):
        # the configuration has no times, so claims seek, and marks go only forwards from where a claim began
        keys["auto_offset_reset"] = "earliest"
    elif options.start is not None:
        keys["auto_offset_reset"] = options.start
    if options.offset is not None:
        # retention may be faster than the reader: nothing more than what it deleted is skipped
        keys["out_of_range_reset"] = "earliest"
    config = given.config(ConsumerConfig, **keys)
    # without a group there are no committed offsets, so the reset policy must be a position
    default: StartPosition = "latest" if config.auto_offset_reset == "error" else config.auto_offset_reset
    start = next((each for each in (options.offset, options.start) if each is not None), default)
    metrics = CommandMetrics(options)
    return ConsumeOptions(servers, options.topic, options.partitions, group, start, config, metrics)


def _group_id(options: argparse.Namespace, given: ConnectionOptions) -> str | None:
    """Return the group to join, if any; exit with a usage error for options that exclude each other."""
    alone = [
        flag for flag, value in (("--partition", options.partitions), ("--offset", options.offset)) if value
    ]
    group: str | None = options.group or given.group_id
    if alone and options.group is None and given.has_shared_group:
        group = None  # a flag overrides the file and the environment
    usage: argparse.ArgumentParser = options.usage
    if group is not None and alone:
        usage.error(
            f"{' and '.join(alone)} cannot be combined with a group (--group, group.id): a group assigns the partitions, "
            "and continues at its committed offsets"
        )
    if group is None and options.missing_topics is not None:
        usage.error("--missing-topics is for --group: without a group the topic must exist")
    if options.format == "json" and options.key_separator is not None:
        usage.error("--key-separator cannot be combined with JSON, which has the key as a field")
    return group


async def run(options: argparse.Namespace) -> int:
    """Print records until Ctrl-C, SIGTERM, --max-messages or --timeout. Raises CommitFailedError of the last commit."""
    read = _reader(options)
    key_separator = options.key_separator or (b"\t" if options.key else None)
    signaled = asyncio.Event()
    with stop_signals(signaled.set) as stop:
        to_line = record_format(options.format, for_terminal=is_terminal(), key_separator=key_separator)
        printer = Printer(to_line, options.max_messages)
        reading = asyncio.create_task(read(printer, stop, signaled), name="consume")
        watching = asyncio.create_task(_watch(printer, stop, options.timeout), name="watch")
        try:
            await reading
        finally:
            await cancel_and_wait(watching)
    return stop.exit_code


def _reader(
    options: argparse.Namespace,
) -> Callable[[Printer, asyncio.Event, asyncio.Event], Coroutine[Any, Any, None]]:
    """Return what reads until its first event is set; the second one is set by a signal."""
    given = connection_options(options)
    if (service_url := given.service_url) is not None:
        return PulsarReading.of(options, given, service_url, _group_id(options, given)).read
    consume_options = _consume_options(options)
    return partial(_read_group if consume_options.group_id else _read_alone, consume_options)


async def _watch(printer: Printer, stop: asyncio.Event, timeout: float | None) -> None:
    """Set `stop` when the printer has reached its limit, or has printed nothing for `timeout` seconds."""
    while not printer.finished.is_set():
        count = printer.count
        if not await wait_within(printer.finished, timeout) and printer.count == count:
            break
    stop.set()


async def _read_group(
    options: ConsumeOptions, printer: Printer, stop: asyncio.Event, signaled: asyncio.Event
) -> None:
    """Read as a member of a group; at the end commit everything that was printed, and leave the group.

    A signal also ends the attempt to connect; --timeout does not, so that its failure is an error.
    """
    assert options.group_id is not None
    metrics = options.metrics
    group = ConsumerGroup(options.servers, options.group_id, options.config, hooks=metrics.hooks)
    opening = await run_until(signaled.wait(), group.__aenter__(), "open")
    if opening.cancelled():
        return
    opening.result()
    async with aclosing(group), metrics.serving(group):
        handler = PrintingHandler(printer, _seek_at_start(group, options.start))
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
            if handler.output_error is not None:
                raise handler.output_error
        finally:
            await cancel_and_wait(running, stopped)


def _seek_at_start(group: ConsumerGroup, start: StartPosition) -> Callable[[Claim], Awaitable[None]] | None:
    """Return a coroutine function that seeks a claim to a time if the group has no commit for it; else None.

    Until the claim has marks no other member commits for its partition, so the lookup is still right at the seek.
    """
    if not isinstance(start, datetime):
        return None

    async def seek(claim: Claim) -> None:
        from asyncgroup.offsets import OffsetManager

        tp = TopicPartition(claim.topic, claim.partition)
        if tp not in await OffsetManager(group.cluster, group.group_id, group.config).fetch([tp]):
            claim.seek(start)

    return seek


class PrintingHandler(Handler):
    """Prints records and marks those that were printed. `begin` is called with each claim before it is read."""

    def __init__(self, printer: Printer, begin: Callable[[Claim], Awaitable[None]] | None = None) -> None:
        self._printer = printer
        self._begin = begin
        self.is_stopping = False
        """Set when the command stops: records that the last session does not commit stay uncommitted."""
        self.commit_error: AsyncGroupError | None = None
        """Why the last session could not commit."""
        self.output_error: OSError | None = None
        """The error of a standard output that cannot be written, such as a closed pipe or a full disk."""

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
        if self._begin is not None:
            await self._begin(claim)
        async for batch in claim.batches(max_records=BATCH_RECORDS):
            try:
                printed = await self._printer.print(batch)
            except OSError as error:
                # It stops the command. If the error were raised here, it would be logged as a failure of the handler.
                self.output_error, printed = error, 0
                self._printer.finished.set()
            if printed:
                claim.mark(batch[printed - 1])
            if self._printer.finished.is_set():
                # `_read_group` closes the group; returning now would end the session with a warning
                await claim.wait_ended()
                return


async def _read_alone(
    options: ConsumeOptions, printer: Printer, stop: asyncio.Event, signaled: asyncio.Event
) -> None:
    """Read without a group. Nothing is committed, so a signal cancels this, also before the client is connected."""
    reading = await run_until(signaled.wait(), _read_partitions(options, printer, stop), "read")
    if not reading.cancelled():
        reading.result()


async def _read_partitions(options: ConsumeOptions, printer: Printer, stop: asyncio.Event) -> None:
    """Read the given partitions, or all that the topic has now."""
    from asyncgroup.consumer import Consumer

    consumer = Consumer(options.servers, options.config, hooks=options.metrics.hooks)
    async with consumer, options.metrics.serving():
        starts = await start_offsets(consumer, options.topic, options.partitions, options.start)
        partitions = [
            await consumer.partition(options.topic, number, start) for number, start in starts.items()
        ]
        readers = [asyncio.create_task(_read(each, printer), name=f"read {each.tp}") for each in partitions]
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            _print_status(f"{options.topic}: {counted(len(readers), 'partition')}, press Ctrl-C to stop")
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
