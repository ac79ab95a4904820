"""StoredMessage: a message of a topic as a test reads it from the broker, decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.pulsar.wire.commands import CommandMessage, MessageIdData
from asyncgroup.pulsar.wire.compression import decompress_body
from asyncgroup.pulsar.wire.entry import Entry, EntryError, EntryMessage, decode_entry
from asyncgroup.pulsar.wire.frames import payload_bounds
from asyncgroup.pulsar.wire.keys import decode_key
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.metadata import MessageMetadata
from asyncgroup.pulsar_broker.log.topic_log import StoredEntry
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic

__all__ = ["StoredMessage", "stored_messages"]

_LARGEST: Final = 1 << 31
"""Bytes of a value: in memory there is no other limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message. Times are in ms since 1970, None without one; `partition` is -1 in a topic without partitions.

    A value in chunks is one message, with the id of its last chunk. The value of an encrypted message is as it is stored.
    `transaction` is the text of its transaction's id, such as `(0,3)`, and `committed` False while that is open, and after it
    was aborted.
    """

    topic: str
    partition: int
    message_id: MessageId
    key: bytes | None
    value: bytes | None
    properties: Mapping[str, str]
    ordering_key: bytes | None
    publish_time: int
    event_time: int | None
    deliver_at: int | None
    producer_name: str
    sequence_id: int
    transaction: str | None = None
    committed: bool = True


def stored_messages(topic: BrokerTopic) -> Iterator[StoredMessage]:
    """Yield the messages of a topic or partition in order, without markers and values in chunks that are incomplete."""
    name, partition = str(topic.name.whole), topic.name.partition
    chunks: dict[str, list[Entry]] = {}
    for stored in topic.log:
        if stored.metadata.marker_type is not None:
            continue
        transaction, committed = _transaction(topic, stored)
        try:
            entry = _decode(stored, partition)
        except EntryError:
            yield replace(_encrypted(stored, name, partition), transaction=transaction, committed=committed)
            continue
        if stored.metadata.num_chunks_from_msg is not None and stored.metadata.num_chunks_from_msg > 1:
            parts = chunks.setdefault(stored.metadata.uuid or "", [])
            parts.append(entry)
            if len(parts) < stored.metadata.num_chunks_from_msg:
                continue
            del chunks[stored.metadata.uuid or ""]
            entry.body = _joined(parts)
        for message in entry.messages():
            view = _view(message, name, partition)
            yield view if transaction is None else replace(view, transaction=transaction, committed=committed)


def _transaction(topic: BrokerTopic, stored: StoredEntry) -> tuple[str | None, bool]:
    """Return the text of a message's transaction, and whether consumers may get the message."""
    most, least = stored.metadata.txnid_most_bits, stored.metadata.txnid_least_bits
    if least is None:
        return None, True
    number = (most or 0, least)
    is_open = topic.transactions is not None and topic.transactions.is_open(number)
    return f"({number[0]},{number[1]})", not (is_open or stored.index in topic.log.hidden)


def _decode(stored: StoredEntry, partition: int) -> Entry:
    ledger, number = stored.position
    pushed = CommandMessage(consumer_id=0, message_id=MessageIdData(ledger_id=ledger, entry_id=number))
    return decode_entry(pushed, stored.payload, 0, partition, _LARGEST)


def _joined(parts: list[Entry]) -> bytes:
    metadata = parts[-1].metadata
    body = b"".join(part.body for part in parts)
    try:
        return decompress_body(metadata.compression, body, metadata.uncompressed_size, _LARGEST)
    except AsyncGroupError:
        return body


def _view(message: EntryMessage, topic: str, partition: int) -> StoredMessage:
    metadata, own = message.entry.metadata, message.own
    return StoredMessage(
        topic=topic,
        partition=partition,
        message_id=message.id,
        key=message.key,
        value=message.value,
        properties=dict(message.properties),
        ordering_key=own.ordering_key,
        publish_time=metadata.publish_time,
        event_time=own.event_time or None,
        deliver_at=metadata.deliver_at_time,
        producer_name=metadata.producer_name,
        sequence_id=message.sequence_id,
    )


def _encrypted(stored: StoredEntry, topic: str, partition: int) -> StoredMessage:
    metadata: MessageMetadata = stored.metadata
    text = metadata.partition_key
    return StoredMessage(
        topic=topic,
        partition=partition,
        message_id=MessageId(*stored.position, partition),
        key=None if text is None else decode_key(text, is_base64=metadata.partition_key_b64_encoded),
        value=stored.payload[payload_bounds(stored.payload, 0, check=False).payload :],
        properties=dict(metadata.properties),
        ordering_key=metadata.ordering_key,
        publish_time=metadata.publish_time,
        event_time=metadata.event_time or None,
        deliver_at=metadata.deliver_at_time,
        producer_name=metadata.producer_name,
        sequence_id=metadata.sequence_id,
    )
