"""Entries as a broker pushes them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

from asyncgroup.pulsar.wire.ack_set import words_of
from asyncgroup.pulsar.wire.commands import CommandMessage, MessageIdData, encode_command
from asyncgroup.pulsar.wire.entry import Entry, decode_entry
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.metadata import MessageMetadata, SingleMessageMetadata
from asyncgroup.wire.compiled import crc32c

LIMIT = 5 << 20


def metadata(sequence_id: int = 0, **fields: object) -> MessageMetadata:
    """The metadata of an entry."""
    return replace(
        MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1000),
        **fields,  # type: ignore[arg-type]
    )


def batch_body(values: Sequence[bytes | None], **fields: Sequence[object]) -> bytes:
    """The body of a batch; `fields` has a value for each message."""
    body = bytearray()
    for index, value in enumerate(values):
        single = SingleMessageMetadata(payload_size=len(value or b""), null_value=value is None)
        single = replace(single, **{name: each[index] for name, each in fields.items()})  # type: ignore[arg-type]
        head = single.encode()
        body += struct.pack(">I", len(head)) + head + (value or b"")
    return bytes(body)


def message_frame(command: CommandMessage, meta: MessageMetadata, body: bytes) -> tuple[bytes, int]:
    """A MESSAGE frame without its `total`, and where its command ends."""
    base = encode_command(command)
    head = meta.encode()
    rest = struct.pack(">I", len(head)) + head + body
    frame = struct.pack(">I", len(base)) + base + b"\x0e\x01" + struct.pack(">I", crc32c(rest)) + rest
    return frame, 4 + len(base)


def pushed(
    entry_id: int,
    *,
    ledger_id: int = 1,
    unacked: int | None = None,
    redelivery_count: int = 0,
    epoch: int | None = None,
    consumer_id: int = 7,
) -> CommandMessage:
    """The command that pushes an entry."""
    return CommandMessage(
        consumer_id=consumer_id,
        message_id=MessageIdData(ledger_id=ledger_id, entry_id=entry_id),
        redelivery_count=redelivery_count,
        ack_set=() if unacked is None else words_of(unacked),
        consumer_epoch=epoch,
    )


def entry_of(command: CommandMessage, meta: MessageMetadata, body: bytes, partition: int = 3) -> Entry:
    """The entry in a frame."""
    frame, at = message_frame(command, meta, body)
    return decode_entry(command, frame, at, partition, LIMIT)


def single(entry_id: int, value: bytes = b"v", **options: object) -> Entry:
    """An entry with one message that is no batch."""
    return entry_of(pushed(entry_id, **options), metadata(), value)  # type: ignore[arg-type]


def batch(entry_id: int, count: int, **options: object) -> Entry:
    """An entry with a batch."""
    values = [b"%d" % index for index in range(count)]
    meta = metadata(num_messages_in_batch=count)
    return entry_of(pushed(entry_id, **options), meta, batch_body(values))  # type: ignore[arg-type]


def id_of(entry_id: int, index: int = -1, *, ledger_id: int = 1, partition: int = 3) -> MessageId:
    """The id of a message."""
    return MessageId(ledger_id, entry_id, partition, index)
