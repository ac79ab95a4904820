"""`asyncgroup produce`: write the lines of a file or of standard input to a topic."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.common import add_topic, partition, separator, stop_signals
from asyncgroup.cli.connection_options import add_connection_options, connection_options
from asyncgroup.cli.lines import LineReader
from asyncgroup.config import ProducerConfig
from asyncgroup.counting import counted, rate, size
from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.model import Header

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands
    from asyncgroup.producer import Producer

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
    add_connection_options(parser)
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
        help="a header of all records; can be repeated, also with the same name",
    )
    parser.add_argument(
        "-p",
        "--partition",
        metavar="N",
        type=partition,
        help="write all records to this partition (default: the key determines it; without a key, one partition for each "
        "batch)",
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
    from asyncgroup.producer import Producer

    given = connection_options(options, client_id="asyncgroup-produce")
    servers = given.require_servers(options.usage)
    config = given.config(ProducerConfig)
    source = _open(options.file)
    line_producer = LineProducer(
        options.key_separator, key=options.key, headers=options.headers, partition=options.partition
    )
    with stop_signals(source.stop) as stop:
        try:
            async with Producer(servers, config, hooks=[line_producer]) as producer:
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
        between = self._separator
        for line in block:
            key, value = self._key, line
            if between is not None:
                key, found, value = line.partition(between)
                if not found:
                    text, missing = line[:60].decode(errors="replace"), between.decode(errors="replace")
                    raise BadLine(f"line {self.records + 1} has no separator {missing!r}: {text!r}")
            await producer.enqueue(topic, value, key=key, headers=self._headers, partition=self._partition)
            self.records += 1
            self.bytes += len(line)
