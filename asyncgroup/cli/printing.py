"""Records as lines of text."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from asyncgroup.model import Record

__all__ = ["FORMATS", "Printer"]

Format = Callable[[Record], bytes]


def as_value(record: Record) -> bytes:
    """The value as it is; nothing for null."""
    return record.value or b""


def as_json(record: Record) -> bytes:
    """The record as a JSON object; key and value are strings, or {"base64": …} where they are not UTF-8."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
    }
    if record.headers:
        fields["headers"] = [[key, _text(value)] for key, value in record.headers]
    return json.dumps(fields, ensure_ascii=False).encode()


def _text(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


FORMATS: Final[Mapping[str, Format]] = {"value": as_value, "json": as_json}


class Printer:
    """Writes records to standard output, at most `limit` of them, and counts them.

    The writing is done in a thread: a reader that stands still (`| less`) must not stop the heartbeats.
    """

    def __init__(self, form: Format, limit: int | None = None) -> None:
        self.count = 0
        self.finished = asyncio.Event()
        """Set when `limit` records are printed."""
        self._form, self._limit = form, limit
        self._turn = asyncio.Lock()

    async def print(self, records: Sequence[Record]) -> int:
        """Print records; returns how many of them were within the limit. Raises BrokenPipeError, OSError."""
        async with self._turn:
            left = len(records) if self._limit is None else min(len(records), self._limit - self.count)
            if left > 0:
                text = b"".join(self._form(record) + b"\n" for record in records[:left])
                await asyncio.to_thread(_write, text)
                self.count += left
            if self.count == self._limit:
                self.finished.set()
            return left

    async def wait_if_finished(self) -> None:
        """Read no further once everything wanted is printed; whoever waits here is to be cancelled."""
        if self.finished.is_set():
            await asyncio.Event().wait()


def _write(text: bytes) -> None:
    if sys.stdout is None:  # the program was started without one (`>&-`)
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
