"""Data that says itself how to read it: two bytes in front of the message.

They are the version for a member's subscription and assignment (`ConsumerProtocol.java`) and for the values of the
coordinator's log. For the keys of that log, which have only version 0, they are the type of the record, Kafka's
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
    """The two bytes and the message in `version` (0 for a key of the coordinator's log).

    Raises UnsupportedVersionError as `codec.encode` does.
    """
    is_key = message_spec(message.NAME).kind == "coordinator-key"
    return _PREFIX.pack(message.API_KEY if is_key else version) + encode(message, version)


def read_prefix(data: Buffer) -> int:
    """The two bytes in front: the version, or the type of a key of the coordinator's log. May raise DecodeError."""
    if len(data) < _PREFIX.size:
        raise DecodeError(f"{len(data)} bytes are too few for a version")
    prefix: int = _PREFIX.unpack_from(data, 0)[0]
    return prefix


def decode_versioned(cls: type[M], data: Buffer) -> M:
    """Read a message behind its two bytes.

    A version newer than the known ones is read as the newest known one and what follows is left alone: newer
    versions of these formats only add fields at the end. Raises DecodeError for malformed bytes, and for the key of
    another type.
    """
    prefix, spec = read_prefix(data), message_spec(cls.NAME)
    if spec.kind == "coordinator-key":
        if prefix != spec.api_key:
            raise DecodeError(f"{cls.NAME}: the key's type is {prefix}, not {spec.api_key}")
        return decode_from(cls, 0, data, _PREFIX.size)[0]
    if prefix < spec.versions.low:
        raise DecodeError(f"{cls.NAME}: version {prefix} is not in {spec.versions}")
    return decode_from(cls, min(prefix, spec.versions.high), data, _PREFIX.size)[0]
