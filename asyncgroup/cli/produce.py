"""`asyncgroup produce`: lines into a topic."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from asyncgroup.cli.common import INTERRUPTED, add_servers, add_topic, rate, size, stop_signals
from asyncgroup.cli.lines import LineReader
from asyncgroup.errors import AsyncGroupError

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands
    from asyncgroup.producer import Producer

__all__ = ["add_parser"]


class BadLine(AsyncGroupError):
    """A line that cannot be made a record; names its number."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `produce`."""
    parser = commands.add_parser(
        "produce",
        parents=[common],
        help="write lines to a topic",
        description="Writes each line of a file, or of standard input, to a topic as a record's value. "
        "Says at the end, on standard error, how many were acknowledged.",
    )
    add_servers(parser, required=True)
    add_topic(parser)
    parser.add_argument("file", nargs="?", type=Path, help="the file to read (default: standard input)")
    parser.add_argument(
        "--key-separator",
        metavar="TEXT",
        type=_separator,
        help="each line is a key, this text, and a value; `\\t` is a tab",
    )
    parser.set_defaults(run=run)


def _separator(text: str) -> bytes:
    if not text:
        raise argparse.ArgumentTypeError("the separator is empty")
    return text.replace("\\t", "\t").encode()


async def run(options: argparse.Namespace) -> int:
    """Write all lines; Ctrl-C ends the reading, what was read before is still written."""
    from asyncgroup.producer import Producer

    loop = asyncio.get_running_loop()
    source = LineReader(options.file)
    with stop_signals(source.end) as stop:
        async with Producer(options.bootstrap_servers) as producer:
            begun = loop.time()
            written = Written(options.key_separator)
            try:
                async for block in source:
                    await written.write(producer, options.topic, block)
            finally:
                source.end()
                await producer.flush()
            duration = loop.time() - begun
    print(
        f"{written.records:,} records ({size(written.bytes)}) in {duration:.1f} s: {rate(written.records, duration)}",
        file=sys.stderr,
    )
    return INTERRUPTED if stop.is_set() else 0


class Written:
    """Turns lines into records and counts them."""

    def __init__(self, separator: bytes | None) -> None:
        self.records = self.bytes = 0
        self._separator = separator

    async def write(self, producer: Producer, topic: str, block: list[bytes]) -> None:
        """Hand lines over. Raises BadLine, and what `Producer.enqueue` raises."""
        separator = self._separator
        for line in block:
            key: bytes | None = None
            value = line
            if separator is not None:
                key, found, value = line.partition(separator)
                if not found:
                    text = line[:60].decode(errors="replace")
                    raise BadLine(
                        f"line {self.records + 1} has no separator {separator.decode()!r}: {text!r}"
                    )
            await producer.enqueue(topic, value, key=key)
            self.records += 1
            self.bytes += len(line)
