"""The size of parallel-consumer's offset map, computed: for machines on which its encoder cannot run.

All of its forms are built and the smallest is taken: bitsets and run lengths, each with numbers of two bytes (if they fit)
or four, and these compressed with zstd unless one is smaller than 200 bytes. The text is base64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import cramjam

__all__ = ["offset_map_size"]

_SMALL: Final = 200
"""Bytes of the smallest form from which on the compressed forms are tried."""
_SHORT: Final = (1 << 15) - 1


def offset_map_size(span: int, incomplete: Sequence[int]) -> int:
    """Return the characters of the map of the offsets from 0 to `span`, of which `incomplete` are not acknowledged."""
    bodies = [*_bitsets(span, incomplete), *_run_lengths(span, incomplete)]
    sizes = [len(body) for body in bodies]
    if min(sizes) >= _SMALL:
        sizes += map(_compressed, bodies)
    return -(-(1 + min(sizes)) // 3) * 4  # with the byte that tells the form


def _bitsets(span: int, incomplete: Sequence[int]) -> Iterator[bytes]:
    bits = bytearray(b"\xff" * (span // 8) + bytes([(1 << span % 8) - 1]))
    for offset in incomplete:
        bits[offset // 8] &= ~(1 << offset % 8)
    body = bytes(bits).rstrip(b"\0")
    body += bytes(span // 8 + 1 - len(body))
    if span <= _SHORT:
        yield struct.pack(">h", span) + body
    yield struct.pack(">i", span) + body


def _run_lengths(span: int, incomplete: Sequence[int]) -> Iterator[bytes]:
    """Yield the lengths of alternating runs, the first one of offsets that are not acknowledged."""
    runs: list[int] = [0]
    at = 0
    for offset in incomplete:
        if offset > at:
            runs += [offset - at, 0]
        runs[-1] += 1
        at = offset + 1
    if span > at:
        runs.append(span - at)
    if max(runs) <= _SHORT:
        yield b"".join(struct.pack(">h", run) for run in runs)
    yield b"".join(struct.pack(">i", run) for run in runs)


def _compressed(body: bytes) -> int:
    """Return the bytes of a zstd stream."""
    stream = cramjam.zstd.Compressor()
    stream.compress(body)
    return len(bytes(stream.finish()))
