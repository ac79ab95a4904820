"""BaseCommand: holds a command in the field whose number is the command's type; encoded and decoded here."""

from __future__ import annotations

from typing import Final

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire.commands import (
    acknowledgements,
    connections,
    consumers,
    producers,
    schemas,
    topics,
    transactions,
)
from asyncgroup.pulsar.wire.commands.command import Command
from asyncgroup.pulsar.wire.varint import put_varint, read_more, skip_field

__all__ = ["COMMANDS", "decode_command", "encode_command"]

_KINDS: Final = (connections, topics, schemas, producers, consumers, acknowledgements, transactions)

COMMANDS: Final[dict[int, type[Command]]] = {
    cls.TYPE: cls
    for kind in _KINDS
    for cls in (getattr(kind, name) for name in kind.__all__)
    if isinstance(cls, type) and issubclass(cls, Command)
}
"""The commands by type."""


def encode_command(command: Command) -> bytes:
    """Return a BaseCommand."""
    body = command.encode()
    size = len(body)
    out = bytearray(_PREFIXES[command.TYPE])
    if size < 0x80:
        out.append(size)
    else:
        put_varint(out, size)
    out += body
    return bytes(out)


def decode_command(data: bytes | bytearray, start: int, end: int) -> Command | None:
    """Return the command in a BaseCommand, None if its type is not known. Raises DecodeError."""
    try:
        kind, bounds = _find(data, start, end)
    except IndexError:
        raise DecodeError("BaseCommand: the data ends within a field") from None
    cls = COMMANDS.get(kind)
    if cls is None:
        return None
    if bounds is None:
        raise DecodeError(f"BaseCommand: it has type {kind}, but no {cls.__name__}")
    return cls.decode(data, *bounds)


def _prefix(kind: int) -> bytes:
    out = bytearray(b"\x08")
    put_varint(out, kind)
    put_varint(out, kind << 3 | 2)
    return bytes(out)


_PREFIXES: Final = {kind: _prefix(kind) for kind in COMMANDS}
"""By type, what precedes the size of the command: the type, and the tag of its field."""


def _find(data: bytes | bytearray, start: int, end: int) -> tuple[int, tuple[int, int] | None]:
    """Return the type, and where the command begins and ends."""
    if end - start > 3 and data[start] == 8:
        # the type and then the command, with a size of one byte: most frames
        kind = data[start + 1]
        prefix = _PREFIXES.get(kind)
        if prefix is not None:
            at = start + len(prefix)
            if data[start:at] == prefix and data[at] < 0x80 and at + 1 + data[at] == end:
                return kind, (at + 1, end)
    return _scan(data, start, end)


def _scan(data: bytes | bytearray, at: int, end: int) -> tuple[int, tuple[int, int] | None]:
    kind = None
    bounds: dict[int, tuple[int, int]] = {}
    while at < end:
        tag, at = _varint(data, at)
        if tag == 8:
            kind, at = _varint(data, at)
        else:
            begin = at
            at = skip_field(data, at, end, tag)
            if tag & 7 == 2:
                size, begin = _varint(data, begin)
                bounds[tag >> 3] = (begin, begin + size)
    if at != end:
        raise DecodeError("BaseCommand: a field ends after it")
    if kind is None:
        raise DecodeError("BaseCommand: required field type is missing")
    return kind, bounds.get(kind)


def _varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    first = data[at]
    return (first, at + 1) if first < 0x80 else read_more(data, at + 1, first)
