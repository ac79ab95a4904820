"""Frames: a command, and for messages their metadata and payload with a checksum.

    simple:  total | size | BaseCommand
    payload: total | size | BaseCommand | [0e02 size BrokerEntryMetadata] | [0e01 crc] | size | MessageMetadata | payload

Sizes are big-endian and have four bytes; `total` counts everything after itself. The CRC32C covers all that follows it
(Pulsar's `Commands`).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire.checksum import crc32c
from asyncgroup.pulsar.wire.commands import Command, CommandSend, decode_command, encode_command

__all__ = [
    "FRAME_HEADROOM",
    "ChecksumError",
    "PayloadBounds",
    "decode_frame",
    "encode_entry",
    "encode_frame",
    "encode_message",
    "encode_send",
    "is_intact",
    "payload_bounds",
]

FRAME_HEADROOM: Final = 10 * 1024
"""Bytes that a frame may have beyond the broker's `maxMessageSize`, for its headers."""

_CRC_MAGIC: Final = b"\x0e\x01"
_BROKER_MAGIC: Final = b"\x0e\x02"
_U32: Final = struct.Struct(">I")
_TWO: Final = struct.Struct(">II")


class ChecksumError(DecodeError):
    """The bytes of a message do not match their checksum."""


class PayloadBounds(NamedTuple):
    """Where the parts of a payload frame are: [start, end) each; the payload goes to the end of the frame."""

    broker_metadata: tuple[int, int] | None
    metadata: tuple[int, int]
    payload: int


def encode_frame(command: Command) -> bytes:
    """Return a frame without payload."""
    base = encode_command(command)
    return _TWO.pack(len(base) + 4, len(base)) + base


def encode_message(command: Command, payload: bytes) -> bytes:
    """Return a frame of a broker with what a producer has sent: `payload` is all that follows the command."""
    base = encode_command(command)
    return b"".join((_TWO.pack(4 + len(base) + len(payload), len(base)), base, payload))


def encode_send(command: CommandSend, metadata: bytes, payload: bytes | bytearray) -> tuple[bytes, bytes]:
    """Return a frame with payload, in two pieces: everything before the metadata's size, and the rest."""
    base = encode_command(command)
    rest = b"".join((_U32.pack(len(metadata)), metadata, payload))
    checksum = _U32.pack(crc32c(rest))
    total = 4 + len(base) + len(_CRC_MAGIC) + 4 + len(rest)
    return b"".join((_TWO.pack(total, len(base)), base, _CRC_MAGIC, checksum)), rest


def encode_entry(metadata: bytes, payload: bytes) -> bytes:
    """Return what follows the command in a frame with payload, as brokers store it: checksum, metadata and payload."""
    rest = b"".join((_U32.pack(len(metadata)), metadata, payload))
    return b"".join((_CRC_MAGIC, _U32.pack(crc32c(rest)), rest))


def is_intact(pieces: tuple[bytes, bytes]) -> bool:
    """Return whether the pieces of `encode_send` still match their checksum."""
    head, rest = pieces
    expected: int
    (expected,) = _U32.unpack_from(head, len(head) - _U32.size)
    return crc32c(rest) == expected


def decode_frame(frame: bytes | bytearray) -> tuple[Command | None, int]:
    """Return the command in a frame without its `total`, None if its type is not known, and where the rest begins."""
    if len(frame) < 4:
        raise DecodeError(f"a frame of {len(frame)} bytes has no command")
    (size,) = _U32.unpack_from(frame)
    end = 4 + size
    if end > len(frame):
        raise DecodeError(f"the command of {size} bytes does not fit its frame of {len(frame)}")
    return decode_command(frame, 4, end), end


def payload_bounds(frame: bytes | bytearray, at: int, *, check: bool = True) -> PayloadBounds:
    """Return where the metadata and the payload are, after `check` of the CRC.

    Raises ChecksumError, and DecodeError if a size does not fit the frame.
    """
    broker = None
    magic = frame[at : at + 2]
    if magic == _BROKER_MAGIC:
        broker = _sized(frame, at + 2)
        at = broker[1]
        magic = frame[at : at + 2]
    if magic == _CRC_MAGIC:
        if at + 6 > len(frame):
            raise DecodeError("a message ends within its checksum")
        (expected,) = _U32.unpack_from(frame, at + 2)
        at += 6
        if check and crc32c(memoryview(frame)[at:]) != expected:
            raise ChecksumError("the checksum of a message is wrong")
    metadata = _sized(frame, at)
    return PayloadBounds(broker, metadata, metadata[1])


def _sized(frame: bytes | bytearray, at: int) -> tuple[int, int]:
    if at + 4 > len(frame):
        raise DecodeError("a message ends before the size of its metadata")
    (size,) = _U32.unpack_from(frame, at)
    start = at + 4
    if start + size > len(frame):
        raise DecodeError(
            f"metadata of {size} bytes does not fit the rest of its frame: {len(frame) - start} bytes"
        )
    return start, start + size
