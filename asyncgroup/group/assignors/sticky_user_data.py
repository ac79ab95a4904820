"""The user data of the sticky assignor: owned partitions and their generation (`StickyAssignorUserData`)."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from asyncgroup.model import TopicPartition, by_topic

__all__ = ["MemberData", "decode_member_data", "encode_member_data"]

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
NO_GENERATION: Final = -1


class MemberData(NamedTuple):
    """The partitions that a member owned, and in which generation; -1 is older than any."""

    partitions: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION


def encode_member_data(member_data: MemberData) -> bytes:
    """Encode version 1 of the user data: topics with their partitions, then the generation."""
    topics = by_topic(sorted(member_data.partitions))
    parts = [_INT32.pack(len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts += [_INT16.pack(len(name)), name, struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join([*parts, _INT32.pack(member_data.generation)])


def decode_member_data(data: bytes | None) -> MemberData:
    """Decode the user data of any client; version 0 has no generation. Invalid data means no partitions, as in Java.

    Java, sarama and aiokafka send the same format; kafka-python 3 prepends two bytes with the version. Without skipping
    them the topic count would be 65,536, so the formats cannot be confused.
    """
    for body in (data, data[_INT16.size :]) if data else ():
        try:
            return _decode(body)
        except ValueError:
            continue
    return MemberData()


def _decode(data: bytes) -> MemberData:
    """Decode the data. Raises ValueError if it is invalid."""
    try:
        return _unpack(data)
    except struct.error as error:
        raise ValueError(str(error)) from error


def _unpack(data: bytes) -> MemberData:
    (topics,), offset = _INT32.unpack_from(data), _INT32.size
    partitions: list[TopicPartition] = []
    for _ in range(topics):
        (length,) = _INT16.unpack_from(data, offset)
        offset += _INT16.size
        name = data[offset : offset + length].decode()
        offset += length
        (count,) = _INT32.unpack_from(data, offset)
        offset += _INT32.size
        if length < 0 or count < 0 or count * _INT32.size > len(data) - offset:
            raise ValueError("a length exceeds the data")
        numbers = struct.unpack_from(f">{count}i", data, offset)
        offset += count * _INT32.size
        partitions += [TopicPartition(name, number) for number in numbers]
    if len(data) - offset < _INT32.size:
        return MemberData(tuple(partitions))
    return MemberData(tuple(partitions), _INT32.unpack_from(data, offset)[0])
