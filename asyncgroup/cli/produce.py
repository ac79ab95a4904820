"""`asyncgroup produce`: write the lines of a file or of standard input to a topic."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.checks import check_topic
from asyncgroup.cli.common import add_topic, partition, separator, stop_signals
from asyncgroup.cli.connection_options import ConnectionOptions, add_connection_options, connection_options
from asyncgroup.cli.lines import LineReader
from asyncgroup.cli.pulsar_options import pulsar_producer_config
from asyncgroup.config import ProducerConfig
from asyncgroup.counting import counted, rate, size
from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.model import Header

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands
    from asyncgroup.producer import Producer
    from asyncgroup.pulsar import MessageId, PulsarProducer, PulsarProducerRecord

__all__ = ["add_parser"]

_DESCRIPTION: Final = (
    "Writes each line of a file, or of standard input, to a topic as a record's value. "
    "At the end, also after an error, prints the number of acknowledged records to standard error, once it is "
    "connected."
)


class BadLine(AsyncGroupError):
    """A line that cannot be split into key and value; the message has its number."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `produce`."""
    parser = commands.add_parser(
        "produce", parents=[common], help="write lines to a topic", description=_DESCRIPTION
    )
    add_connection_options(parser, reads_pulsar=True)
    add_topic(parser)
    parser.add_argument("file", nargs="?", type=Path, help="the file to read (default: standard input)")
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument(
        "-K",
        "--key-separator",
        metavar="TEXT",
        type=separator,
        help="each line is a key, this text, and a value; `\\t` is a tab; not with --key",
    )
    keys.add_argument(
        "-k",
        "--key",
        metavar="TEXT",
        type=os.fsencode,
        help="the key of all records; not with --key-separator",
    )
    parser.add_argument(
        "-H",
        "--header",
        dest="headers",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_header,
        help="a header of all records; can be repeated, also with the same name. On Pulsar a property, each name once",
    )
    parser.add_argument(
        "-p",
        "--partition",
        metavar="N",
        type=partition,
        help="write all records to this partition (default: the key determines it; without a key, one partition for each "
        "batch). A partition of Pulsar is a topic: -t TOPIC-partition-N",
    )
    parser.set_defaults(run=run)


def _header(text: str) -> Header:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as trace=4711")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} has a name that is not UTF-8") from None
    return name, os.fsencode(value)


def _open(file: Path | None) -> LineReader:
    try:
        return LineReader(file)
    except OSError as error:
        if file is None:
            raise
        raise ConfigError("file", str(file), f"a file that can be read: {error.strerror}") from None


async def run(options: argparse.Namespace) -> int:
    """Write all lines. Ctrl-C and SIGTERM stop reading; lines that were read before are still written."""
    open_producer, line_producer = _producer(options)
    source = _open(options.file)
    with stop_signals(source.stop) as stop:
        try:
            async with open_producer() as producer:
                line_producer.start()
                try:
                    async for block in source:
                        await line_producer.write(producer, options.topic, block)
                except Exception:
                    await _flush_quietly(producer)
                    raise
                await producer.flush()
        finally:
            source.stop()
            line_producer.report()
    return stop.exit_code


def _producer(
    options: argparse.Namespace,
) -> tuple[Callable[[], AbstractAsyncContextManager[Any]], LineProducer]:
    """Return what opens the producer, and what writes lines to it. Raises ConfigError."""
    given = connection_options(options, client_id="asyncgroup-produce")
    service_url = given.service_url
    if service_url is not None:
        return _pulsar_producer(options, given, service_url)
    from asyncgroup.producer import Producer

    servers = given.require_servers(options.usage)
    check_topic(options.topic)
    config = given.config(ProducerConfig)
    lines = LineProducer(
        options.key_separator, key=options.key, headers=options.headers, partition=options.partition
    )
    return partial(Producer, servers, config, hooks=[lines]), lines


def _pulsar_producer(
    options: argparse.Namespace, given: ConnectionOptions, service_url: str
) -> tuple[Callable[[], AbstractAsyncContextManager[Any]], LineProducer]:
    from asyncgroup.pulsar import PulsarClient, PulsarProducer

    usage: argparse.ArgumentParser = options.usage
    if options.partition is not None:
        topic = f"{options.topic}-partition-{options.partition}"
        usage.error(f"--partition is for Kafka: a partition of Pulsar is a topic, -t {topic}")
    names = [name for name, _ in options.headers]
    if len(set(names)) < len(names):
        usage.error("--header: a message of Pulsar has each property once")
    try:
        properties = {name: (value or b"").decode() for name, value in options.headers}
    except UnicodeDecodeError:
        usage.error("--header: a property of Pulsar is UTF-8 text")
    lines = PulsarLineProducer(options.key_separator, key=options.key, properties=properties)
    config, producer_config = pulsar_producer_config(given)

    @asynccontextmanager
    async def open_producer() -> AsyncIterator[PulsarProducer]:
        async with (
            PulsarClient(service_url, config) as client,
            PulsarProducer(client, options.topic, producer_config, interceptors=[lines]) as producer,
        ):
            yield producer

    return open_producer, lines


async def _flush_quietly(producer: Producer) -> None:
    """Flush after an error, and ignore errors of the flush, which would replace the first one."""
    with contextlib.suppress(AsyncGroupError):
        await producer.flush()


class LineProducer:
    """Produces lines as records and counts them; as a hook of the producer it counts the acknowledged ones.

    Lines are split at `key_separator`, if there is one; otherwise all records have the same `key`. All of them have the same
    `headers`, and are written to `partition` if it is not None.
    """

    def __init__(
        self,
        key_separator: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
    ) -> None:
        self.records = 0  # enqueued
        self.bytes = 0  # of the enqueued lines
        self.acknowledged = 0  # records
        self._separator = key_separator
        self._key = key
        self._headers = headers
        self._partition = partition
        self._started_at: float | None = None  # the event loop's time, in seconds

    def start(self) -> None:
        """Start the clock for the report, when the producer is connected."""
        self._started_at = asyncio.get_running_loop().time()

    def on_produce(self, topic: str, partition: int, records: int, error: Exception | None) -> None:  # noqa: ARG002
        """Count the records of an acknowledged batch; with `error` the batch has failed."""
        if error is None:
            self.acknowledged += records

    def report(self) -> None:
        """Print the number of acknowledged records, if the producer was connected; ignore a closed standard error."""
        if self._started_at is None:
            return
        duration = asyncio.get_running_loop().time() - self._started_at
        if self.acknowledged == self.records:
            count, volume = counted(self.records, "record"), f"({size(self.bytes)}) "
        else:
            count, volume = f"{self.acknowledged:,} of {counted(self.records, 'record')} acknowledged", ""
        with contextlib.suppress(OSError):
            speed = rate(self.acknowledged, duration)
            print(f"{count} {volume}in {duration:.1f} s: {speed}", file=sys.stderr, flush=True)

    async def write(self, producer: Producer, topic: str, block: list[bytes]) -> None:
        """Produce lines. Raises BadLine, and what `Producer.enqueue` raises."""
        for line in block:
            key, value = self._split(line)
            await producer.enqueue(topic, value, key=key, headers=self._headers, partition=self._partition)
            self._count(line)

    def _split(self, line: bytes) -> tuple[bytes | None, bytes]:
        """Return the key and the value of a line. Raises BadLine."""
        between = self._separator
        if between is None:
            return self._key, line
        key, found, value = line.partition(between)
        if not found:
            text, missing = line[:60].decode(errors="replace"), between.decode(errors="replace")
            raise BadLine(f"line {self.records + 1} has no separator {missing!r}: {text!r}")
        return key, value

    def _count(self, line: bytes) -> None:
        self.records += 1
        self.bytes += len(line)


class PulsarLineProducer(LineProducer):
    """The same for a topic of Pulsar; as an interceptor of the producer it counts the messages that are stored."""

    def __init__(
        self, key_separator: bytes | None, *, key: bytes | None = None, properties: Mapping[str, str]
    ) -> None:
        super().__init__(key_separator, key=key)
        self._properties = properties

    def on_acknowledgement(
        self,
        record: PulsarProducerRecord,  # noqa: ARG002
        message_id: MessageId | None,  # noqa: ARG002
        error: Exception | None,
    ) -> None:
        """Count a message that is stored; with `error` it has failed."""
        if error is None:
            self.acknowledged += 1

    async def write(self, producer: Any, topic: str, block: list[bytes]) -> None:  # noqa: ARG002
        """Produce lines. Raises BadLine, and what `PulsarProducer.enqueue` raises."""
        for line in block:
            key, value = self._split(line)
            await producer.enqueue(value, key=key, properties=self._properties)
            self._count(line)
