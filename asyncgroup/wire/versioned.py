"""Encode and decode messages with a two-byte prefix that tells the version, or the type of the record.

The prefix is the version for a member's subscription and assignment (`ConsumerProtocol.java`), and for the values of
__consumer_offsets records. For the keys of those records, which have only version 0, it is the record type, Kafka's
`apiKey` of the message (`MessageUtil.toCoordinatorTypePrefixedBytes`).
"""

from __future__ import annotations

import struct
from typing import TypeVar

from asyncgroup.errors import DecodeError
from asyncgroup.wire.codec import decode_from, encode
from asyncgroup.wire.message import Message
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.schema import message_spec

__all__ = ["decode_versioned", "encode_versioned", "read_prefix"]

M = TypeVar("M", bound=Message)
_PREFIX = struct.Struct(">h")


def encode_versioned(message: Message, version: int) -> bytes:
    """Return the prefix and the message in `version` (0 for the key of a __consumer_offsets record).

    Raises UnsupportedVersionError as `codec.encode` does.
    """
    is_key = message_spec(message.NAME).kind == "coordinator-key"
    return _PREFIX.pack(message.API_KEY if is_key else version) + encode(message, version)


def read_prefix(data: Buffer) -> int:
    """Return the prefix: the version, or a key's record type. Raises DecodeError for less than two bytes."""
    if len(data) < _PREFIX.size:
        raise DecodeError(f"{len(data)} bytes are too few for a version of {_PREFIX.size} bytes")
    prefix: int = _PREFIX.unpack_from(data, 0)[0]
    return prefix


def decode_versioned(cls: type[M], data: Buffer) -> M:
    """Decode a message with its prefix.

    A version newer than the known ones is decoded as the newest known one, and the rest of the bytes is ignored: newer
    versions of these formats only add fields at the end. Raises DecodeError for malformed bytes, and for a key of another
    record type.
    """
    prefix, spec = read_prefix(data), message_spec(cls.NAME)
    if spec.kind == "coordinator-key":
        if prefix != spec.api_key:
            raise DecodeError(f"{cls.NAME}: the key's type is {prefix}, not {spec.api_key}")
        return decode_from(cls, 0, data, _PREFIX.size)[0]
    if prefix < spec.versions.low:
        raise DecodeError(f"{cls.NAME}: version {prefix} is not in {spec.versions}")
    return decode_from(cls, min(prefix, spec.versions.high), data, _PREFIX.size)[0]
