"""Metadata of an entry, of one message of a batch, and what the broker adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire.fields import (
    BOOL,
    BYTES,
    INT32,
    INT64,
    MESSAGE,
    PROPERTIES,
    STRING,
    UINT32,
    UINT64,
    Field,
)
from asyncgroup.pulsar.wire.message import ProtoMessage
from asyncgroup.pulsar.wire.varint import read_more, skip_field

__all__ = [
    "BrokerEntryMetadata",
    "EncryptionKeys",
    "MessageMetadata",
    "SingleMessageMetadata",
    "payload_size_in",
]

_PAYLOAD_SIZE_TAG = 0x18


@dataclass(slots=True, kw_only=True)
class EncryptionKeys(ProtoMessage):
    """A data key, encrypted with a public key."""

    key: Annotated[str, Field(1, STRING)]
    value: Annotated[bytes, Field(2, BYTES)]
    metadata: Annotated[Mapping[str, str], Field(3, PROPERTIES)] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class MessageMetadata(ProtoMessage):
    """The metadata of an entry: a message, a batch (`num_messages_in_batch` is not None) or a chunk. Times are in ms."""

    producer_name: Annotated[str, Field(1, STRING)]
    sequence_id: Annotated[int, Field(2, UINT64)]
    publish_time: Annotated[int, Field(3, UINT64)]
    properties: Annotated[Mapping[str, str], Field(4, PROPERTIES)] = field(default_factory=dict)
    replicated_from: Annotated[str | None, Field(5, STRING)] = None
    partition_key: Annotated[str | None, Field(6, STRING)] = None
    replicate_to: Annotated[Sequence[str], Field(7, STRING, repeated=True)] = ()
    compression: Annotated[int, Field(8, INT32)] = 0
    uncompressed_size: Annotated[int, Field(9, UINT32)] = 0
    num_messages_in_batch: Annotated[int | None, Field(11, INT32)] = None
    event_time: Annotated[int, Field(12, UINT64)] = 0
    encryption_keys: Annotated[Sequence[EncryptionKeys], Field(13, MESSAGE, repeated=True)] = ()
    schema_version: Annotated[bytes | None, Field(16, BYTES)] = None
    partition_key_b64_encoded: Annotated[bool, Field(17, BOOL)] = False
    ordering_key: Annotated[bytes | None, Field(18, BYTES)] = None
    deliver_at_time: Annotated[int | None, Field(19, INT64)] = None
    marker_type: Annotated[int | None, Field(20, INT32)] = None
    txnid_least_bits: Annotated[int | None, Field(22, UINT64)] = None
    txnid_most_bits: Annotated[int | None, Field(23, UINT64)] = None
    highest_sequence_id: Annotated[int, Field(24, UINT64)] = 0
    null_value: Annotated[bool, Field(25, BOOL)] = False
    uuid: Annotated[str | None, Field(26, STRING)] = None
    num_chunks_from_msg: Annotated[int | None, Field(27, INT32)] = None
    total_chunk_msg_size: Annotated[int | None, Field(28, INT32)] = None
    chunk_id: Annotated[int | None, Field(29, INT32)] = None
    null_partition_key: Annotated[bool, Field(30, BOOL)] = False
    compacted_batch_indexes: Annotated[Sequence[int], Field(31, INT32, repeated=True)] = ()


@dataclass(slots=True, kw_only=True)
class SingleMessageMetadata(ProtoMessage):
    """The metadata of one message of a batch."""

    properties: Annotated[Mapping[str, str], Field(1, PROPERTIES)] = field(default_factory=dict)
    partition_key: Annotated[str | None, Field(2, STRING)] = None
    payload_size: Annotated[int, Field(3, INT32)]
    compacted_out: Annotated[bool, Field(4, BOOL)] = False
    event_time: Annotated[int, Field(5, UINT64)] = 0
    partition_key_b64_encoded: Annotated[bool, Field(6, BOOL)] = False
    ordering_key: Annotated[bytes | None, Field(7, BYTES)] = None
    sequence_id: Annotated[int | None, Field(8, UINT64)] = None
    null_value: Annotated[bool, Field(9, BOOL)] = False
    null_partition_key: Annotated[bool, Field(10, BOOL)] = False


@dataclass(slots=True, kw_only=True)
class BrokerEntryMetadata(ProtoMessage):
    """What the broker adds to an entry: its time in ms, and the index of the entry's **last** message in the topic."""

    broker_timestamp: Annotated[int | None, Field(1, UINT64)] = None
    index: Annotated[int | None, Field(2, UINT64)] = None


def payload_size_in(data: bytes | bytearray, at: int, end: int) -> int:
    """Return the payload size in an encoded SingleMessageMetadata, without decoding the rest.

    Raises DecodeError, and IndexError if the data ends within a field.
    """
    while at < end:
        tag = data[at]
        size = data[at + 1]
        if tag == _PAYLOAD_SIZE_TAG:
            at += 2
            if size > 0x7F:
                size, at = read_more(data, at, size)
            if at > end or size > 0x7FFFFFFF:
                raise DecodeError(
                    "SingleMessageMetadata: payload_size is negative, or ends after its message"
                )
            return size
        if tag & 0x87 == 2 and size < 0x80 and tag > 7:
            at += 2 + size  # a short text, or bytes
        else:
            at += 1
            if tag > 0x7F:
                tag, at = read_more(data, at, tag)
            at = skip_field(data, at, end, tag)
    raise DecodeError("SingleMessageMetadata: required field payload_size is missing")
