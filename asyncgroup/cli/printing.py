"""Format records as lines of text, and print them without blocking the event loop."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from asyncgroup.escaping import printable
from asyncgroup.model import Record

__all__ = [
    "RECORD_FORMATS",
    "Printer",
    "as_json",
    "escaped_json",
    "is_terminal",
    "json_object",
    "json_text",
    "record_format",
]

Format = Callable[[Record], bytes]
"""Returns the line for a record, without its line end."""

NULL: Final = b"null"
"""Printed for a null key or value, as by Kafka's console consumer; an empty value is an empty line."""


def as_value(record: Record) -> bytes:
    """Return the value unchanged."""
    return _or_null(record.value)


def _or_null(data: bytes | None) -> bytes:
    return NULL if data is None else data


def as_json(record: Record) -> bytes:
    """Return the record as a JSON object; key and value are strings, or {"base64": …} if they are not UTF-8.

    A message of Pulsar has an id in place of an offset.
    """
    message_id = getattr(record, "message_id", None)
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        **({"offset": record.offset} if message_id is None else {"message_id": str(message_id)}),
        "timestamp": record.timestamp,
        "key": json_text(record.key),
        "value": json_text(record.value),
    }
    if record.headers:
        fields["headers"] = [[key, json_text(value)] for key, value in record.headers]
    return json.dumps(fields, ensure_ascii=False).encode()


def json_text(data: bytes | None) -> Any:
    """Return bytes as a string for JSON, or {"base64": …} if they are not UTF-8; None stays None."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


RECORD_FORMATS: Final[Mapping[str, Format]] = {"value": as_value, "json": as_json}


def record_format(name: str, *, for_terminal: bool, key_separator: bytes | None = None) -> Format:
    """Return the format with this name; for a terminal it escapes control characters in records.

    With `key_separator` the key and this text precede the value; JSON has the key in any case.
    """
    if name == "json":
        return (lambda record: escaped_json(as_json(record).decode()).encode()) if for_terminal else as_json
    if key_separator is None:
        return (lambda record: _escaped(as_value(record))) if for_terminal else as_value
    shown = _escaped if for_terminal else bytes
    return lambda record: shown(_or_null(record.key)) + key_separator + shown(as_value(record))


def _escaped(data: bytes) -> bytes:
    return printable(data.decode(errors="backslashreplace")).encode()


def escaped_json(text: str) -> str:
    r"""Return JSON text for the same object, with escapes such as `\u001b` for unprintable characters."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def json_object(fields: Mapping[str, Any]) -> str:
    """Return a JSON object on one line, without unprintable characters: a pipe may end at a terminal, or be split at U+2028."""
    return escaped_json(json.dumps(fields, ensure_ascii=False))


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


class Printer:
    """Writes records to standard output, at most `limit` of them, and counts them.

    It writes in a thread, so that a reader that does not read (`| less`) does not block the heartbeats.
    """

    def __init__(self, to_line: Format, limit: int | None = None) -> None:
        self.count = 0
        self.finished = asyncio.Event()
        """Set when `limit` records have been printed."""
        self._to_line = to_line
        self._limit = limit
        self._write_lock = asyncio.Lock()

    async def print(self, records: Sequence[Record]) -> int:
        """Print records, and return how many of them were within the limit. Raises BrokenPipeError, OSError."""
        async with self._write_lock:
            left = len(records) if self._limit is None else min(len(records), self._limit - self.count)
            if left > 0:
                text = b"".join(self._to_line(record) + b"\n" for record in records[:left])
                await asyncio.to_thread(_write, text)
                self.count += left
            if self.count == self._limit:
                self.finished.set()
            return left

    async def block_if_finished(self) -> None:
        """Block forever once the limit is reached, so that the caller reads no further records until it is cancelled."""
        if self.finished.is_set():
            await asyncio.Event().wait()


def _write(text: bytes) -> None:
    if sys.stdout is None:  # the program was started without one (`>&-`)
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")
    try:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
    except OSError as error:
        # Windows reports EINVAL if the reader has closed the pipe
        if os.name == "nt" and error.errno == errno.EINVAL:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from error
        raise
