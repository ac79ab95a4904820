"""Varints and unknown fields: what the compiled functions call for anything but the shortest values."""

from __future__ import annotations

from typing import Final

from asyncgroup.errors import DecodeError

__all__ = [
    "decode_pair",
    "decode_text",
    "encode_text",
    "is_encodable",
    "put_int32",
    "put_int64",
    "put_uint32",
    "put_varint",
    "read_more",
    "skip_field",
]

_MASK: Final = (1 << 64) - 1
_SMALLEST: Final = -(1 << 63)
_LONGEST_SHIFT: Final = 63
_LARGEST_TAG: Final = (1 << 32) - 1


def put_varint(out: bytearray, value: int) -> None:
    """Append a varint; a negative number takes ten bytes. Raises ValueError if it does not fit 64 bits."""
    if not _SMALLEST <= value <= _MASK:
        raise ValueError(f"{value} does not fit 64 bits")
    value &= _MASK
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_int32(out: bytearray, value: int) -> None:
    """Append an int32. Raises ValueError if it is none."""
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        raise ValueError(f"{value} is no int32")
    put_varint(out, value)


def put_uint32(out: bytearray, value: int) -> None:
    """Append a uint32. Raises ValueError if it is none."""
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError(f"{value} is no uint32")
    put_varint(out, value)


def put_int64(out: bytearray, value: int) -> None:
    """Append an int64. Raises ValueError if it is none."""
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} is no int64")
    put_varint(out, value)


def read_more(data: bytes | bytearray, at: int, first: int) -> tuple[int, int]:
    """Return a varint that begins with the byte `first` and goes on at `at`, and the position after it."""
    # the loop, written out: times in ms have six bytes, and the first four of them fit one digit of an int
    low = first & 0x7F
    byte = data[at]
    low |= (byte & 0x7F) << 7
    if byte < 0x80:
        return low, at + 1
    byte = data[at + 1]
    low |= (byte & 0x7F) << 14
    if byte < 0x80:
        return low, at + 2
    byte = data[at + 2]
    low |= (byte & 0x7F) << 21
    if byte < 0x80:
        return low, at + 3
    byte = data[at + 3]
    if byte < 0x80:
        return low | byte << 28, at + 4
    high = byte & 0x7F
    byte = data[at + 4]
    high |= (byte & 0x7F) << 7
    if byte < 0x80:
        return low | high << 28, at + 5
    return _read_long(data, at + 5, low | high << 28)


def _read_long(data: bytes | bytearray, at: int, value: int) -> tuple[int, int]:
    """Return a varint of more than six bytes."""
    for shift in range(42, _LONGEST_SHIFT + 1, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
    raise DecodeError("a varint is longer than ten bytes")


def skip_field(data: bytes | bytearray, at: int, end: int, tag: int) -> int:
    """Return the position after the value of an unknown field."""
    kind = tag & 7
    if not 8 <= tag <= _LARGEST_TAG or kind not in {0, 1, 2, 5}:
        raise DecodeError(f"{tag} is not the tag of a field: number {tag >> 3}, wire type {kind}")
    if kind == 0:
        if data[at] > 0x7F:
            return read_more(data, at + 1, data[at])[1]
        return at + 1
    if kind == 1:
        return at + 8
    if kind == 5:
        return at + 4
    size = data[at]
    at += 1
    if size > 0x7F:
        size, at = read_more(data, at, size)
    if at + size > end:
        raise DecodeError(f"field {tag >> 3} ends {at + size - end} bytes after its message")
    return at + size


def encode_text(text: str) -> bytes:
    """Return the bytes of a string; lone surrogates become the bytes that they were made of."""
    return text.encode("utf-8", "surrogateescape")


def is_encodable(text: str) -> bool:
    """Whether a string can be sent: it has no lone surrogates but those of `decode_text`."""
    try:
        encode_text(text)
    except UnicodeEncodeError:
        return False
    return True


def decode_text(data: bytes | bytearray) -> str:
    """Return a string; bytes that are not UTF-8 become lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def decode_pair(data: bytes | bytearray, at: int, end: int) -> tuple[str, str]:
    """Return key and value of a KeyValue message."""
    if at + 4 <= end and data[at] == 0x0A:
        # key and value once each, in this order, and short: what all clients write
        size = data[at + 1]
        stop = at + 2 + size
        if size < 0x80 and stop + 2 <= end and data[stop] == 0x12:
            size = data[stop + 1]
            if size < 0x80 and stop + 2 + size == end:
                try:
                    return data[at + 2 : stop].decode(), data[
                        stop + 2 : end
                    ].decode()  # half the time of decode_text
                except UnicodeDecodeError:
                    return decode_text(data[at + 2 : stop]), decode_text(data[stop + 2 : end])
    return _decode_any_pair(data, at, end)


def _decode_any_pair(data: bytes | bytearray, at: int, end: int) -> tuple[str, str]:
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
            text = decode_text(data[at:stop])
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
