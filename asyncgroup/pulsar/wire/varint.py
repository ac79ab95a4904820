"""Varints and unknown fields: what the compiled functions call for anything but the shortest values."""

from __future__ import annotations

from typing import Final

from asyncgroup.errors import DecodeError

__all__ = ["decode_pair", "put_varint", "read_more", "skip_field"]

_MASK: Final = (1 << 64) - 1
_LONGEST_SHIFT: Final = 63


def put_varint(out: bytearray, value: int) -> None:
    """Append a varint; a negative number takes ten bytes. Raises ValueError if it does not fit 64 bits."""
    if value < 0:
        value += 1 << 64
    if not 0 <= value <= _MASK:
        raise ValueError(f"{value} does not fit 64 bits")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_more(data: bytes | bytearray, at: int, first: int) -> tuple[int, int]:
    """Return a varint that begins with the byte `first` and goes on at `at`, and the position after it."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
        shift += 7
        if shift > _LONGEST_SHIFT:
            raise DecodeError("a varint is longer than ten bytes")


def skip_field(data: bytes | bytearray, at: int, end: int, tag: int) -> int:
    """Return the position after the value of an unknown field."""
    kind = tag & 7
    if kind == 0:
        while data[at] > 0x7F:
            at += 1
        return at + 1
    if kind == 1:
        return at + 8
    if kind == 5:
        return at + 4
    if kind != 2 or tag < 8:
        raise DecodeError(f"{tag} is not the tag of a field: number {tag >> 3}, wire type {kind}")
    size = data[at]
    at += 1
    if size > 0x7F:
        size, at = read_more(data, at, size)
    if at + size > end:
        raise DecodeError(f"field {tag >> 3} ends {at + size - end} bytes after its message")
    return at + size


def decode_pair(data: bytes | bytearray, at: int, end: int) -> tuple[str, str]:
    """Return key and value of a KeyValue message."""
    key: str | None = None
    value: str | None = None
    while at < end:
        tag = data[at]
        at += 1
        if tag in (0x0A, 0x12):
            size = data[at]
            at += 1
            if size > 0x7F:
                size, at = read_more(data, at, size)
            stop = at + size
            if stop > end:
                raise DecodeError(f"KeyValue: a text ends {stop - end} bytes after its message")
            text = str(data[at:stop], "utf-8", "surrogateescape")
            at = stop
            if tag == 0x0A:
                key = text
            else:
                value = text
        else:
            if tag > 0x7F:
                tag, at = read_more(data, at, tag)
            at = skip_field(data, at, end, tag)
    if at != end or key is None or value is None:
        raise DecodeError("KeyValue: key or value is missing, or a field ends after its message")
    return key, value
