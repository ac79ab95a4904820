"""Decode the commit metadata of Confluent's parallel-consumer 0.5, for groups that move from it to a work queue.

The string is base64 of a magic byte and a body, the smallest of several (`OffsetEncoding` and the encoders beside it):

- `l`, `o`: a bitset (`BitSetEncoder`). Its length in bits, as int16 or int32, big-endian like all numbers, then the bits, the
  lowest of each byte first, then a zero byte. A set bit is a completed record.
- `n`, `e`: run lengths (`RunLengthEncoder`), as int16 or int32: of incomplete records, of completed ones, and so on. The
  first may be 0.
- `a`, `s`, `J`, `p`: `l`, `o`, `n` and `e`, compressed with zstd.

Bit 0, and the first record of the first run, is the record at the committed offset. It is incomplete by definition, so a body
that says otherwise is wrong about it: it is delivered. The format has no checksum.
"""

from __future__ import annotations

import binascii
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Final

from asyncgroup.ack_window import AckWindow
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.wire.decompression import CODECS, decompress

__all__ = ["decode_parallel_consumer"]

_MAX_BODY: Final = 1 << 16
"""Bytes of a decompressed body: a bitset of half a million offsets. One that is not compressed has at most 3 KiB by default."""

_MAX_SPAN: Final = 1 << 31
"""Offsets that the decoded window may span."""

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def decode_parallel_consumer(text: str, base: int) -> AckWindow:
    """Return the completed offsets above the committed one, `base`. Raises ValueError for any other text."""
    if not text:
        return AckWindow(base)
    try:
        raw = b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise ValueError("not base64") from error
    magic, body = raw[:1], raw[1:]
    if magic in _COMPRESSED:
        magic = _COMPRESSED[magic]
        try:
            body = bytes(decompress(CODECS["zstd"], body, _MAX_BODY))
        except CorruptRecordsError as error:
            raise ValueError(str(error)) from error
    if magic not in _FORMS:
        raise ValueError(f"unknown magic byte {magic!r}")
    parse, number = _FORMS[magic]
    return AckWindow(base, ((base + max(start, 1), base + end) for start, end in parse(body, number)))


def _parse_bits(body: bytes, number: struct.Struct) -> Iterator[tuple[int, int]]:
    """Yield the runs of set bits: the first, and the one after the last."""
    if len(body) < number.size:
        raise ValueError("a bitset without a length")
    (length,) = number.unpack_from(body)
    content = body[number.size :]
    if not 0 <= length <= 8 * len(content):
        raise ValueError(f"a bitset of {length} bits in {len(content)} bytes")
    bits = bin(int.from_bytes(content, "little"))[:1:-1][:length]
    end = 0
    while (start := bits.find("1", end)) >= 0:
        end = bits.find("0", start)
        end = len(bits) if end < 0 else end
        yield start, end


def _parse_lengths(body: bytes, number: struct.Struct) -> Iterator[tuple[int, int]]:
    """Yield every second run: the first, and the one after the last."""
    if len(body) % number.size:
        raise ValueError(f"run lengths of {number.size} bytes in {len(body)} bytes")
    at, is_complete = 0, False
    for (length,) in number.iter_unpack(body):
        if length < 0 or at + length > _MAX_SPAN:
            raise ValueError(f"a run of {length} records, after {at}")
        if is_complete and length:
            yield at, at + length
        at += length
        is_complete = not is_complete


_Parser = Callable[[bytes, struct.Struct], Iterator[tuple[int, int]]]

_FORMS: Final[dict[bytes, tuple[_Parser, struct.Struct]]] = {
    b"l": (_parse_bits, _INT16),
    b"o": (_parse_bits, _INT32),
    b"n": (_parse_lengths, _INT16),
    b"e": (_parse_lengths, _INT32),
}
_COMPRESSED: Final = {b"a": b"l", b"s": b"o", b"J": b"n", b"p": b"e"}
