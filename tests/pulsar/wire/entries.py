"""Entries for tests: the frames of MESSAGE commands with a batch, a single message or anything else."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from asyncgroup.pulsar.wire.batch import append_message
from asyncgroup.pulsar.wire.commands import CommandMessage, MessageIdData, encode_command
from asyncgroup.pulsar.wire.compression import compress_body
from asyncgroup.pulsar.wire.entry import Entry, decode_entry
from asyncgroup.pulsar.wire.frames import decode_frame
from asyncgroup.pulsar.wire.metadata import BrokerEntryMetadata, MessageMetadata
from asyncgroup.wire.compiled import crc32c

__all__ = ["LIMIT", "batch_body", "batch_frame", "message_frame", "metadata_of", "opened"]

LIMIT = 1 << 20
"""Bytes of a body, uncompressed."""


def metadata_of(**fields: Any) -> MessageMetadata:
    """Return metadata with the required fields."""
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 10, "publish_time": 1, **fields})


def message_frame(
    metadata: MessageMetadata | bytes,
    payload: bytes | bytearray,
    *,
    broker: BrokerEntryMetadata | None = None,
    checksum: int | bool = True,
    ack_set: Sequence[int] = (),
) -> bytes:
    """Return a MESSAGE frame without its total size; `checksum` may be another one, or False for none."""
    data = metadata if isinstance(metadata, bytes) else metadata.encode()
    command = encode_command(
        CommandMessage(
            consumer_id=1,
            message_id=MessageIdData(ledger_id=3, entry_id=4),
            ack_set=ack_set,
            redelivery_count=5,
        )
    )
    rest = struct.pack(">I", len(data)) + data + payload
    if checksum is not False:
        rest = b"\x0e\x01" + struct.pack(">I", crc32c(rest) if checksum is True else checksum) + rest
    if broker is not None:
        rest = b"\x0e\x02" + struct.pack(">I", len(broker.encode())) + broker.encode() + rest
    return struct.pack(">I", len(command)) + command + rest


def batch_body(*payloads: bytes | None, **fields: Any) -> bytearray:
    """Return the body of a batch: its messages are numbered from 10."""
    body = bytearray()
    for number, payload in enumerate(payloads):
        append_message(body, payload, sequence_id=10 + number, **fields)
    return body


def batch_frame(body: bytes | bytearray, count: int, *, kind: int = 0, **fields: Any) -> bytes:
    """Return the frame of a batch."""
    ack_set = fields.pop("ack_set", ())
    given = {"uncompressed_size": len(body), "num_messages_in_batch": count, "compression": kind, **fields}
    return message_frame(metadata_of(**given), compress_body(kind, body), ack_set=ack_set)


def opened(frame: bytes | bytearray, *, partition: int = -1, limit: int = LIMIT, check: bool = True) -> Entry:
    """Return the entry in a frame."""
    command, end = decode_frame(frame)
    assert isinstance(command, CommandMessage)
    return decode_entry(command, frame, end, partition, limit, check=check)
