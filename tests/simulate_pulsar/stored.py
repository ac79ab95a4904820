"""What is in the logs of topics: complete messages, values in chunks put together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from asyncgroup.pulsar.wire.commands import CommandMessage, MessageIdData
from asyncgroup.pulsar.wire.entry import Entry, decode_entry
from asyncgroup.pulsar_broker.log.topic_log import StoredEntry
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from tests.simulate_pulsar.oracle import MessagePlace

__all__ = ["LoggedMessage", "messages_in"]

LARGEST = 1 << 24


class LoggedMessage(NamedTuple):
    """A message of a log."""

    place: MessagePlace
    value: bytes
    key: bytes | None
    producer: str


def messages_in(topic: BrokerTopic) -> Iterator[LoggedMessage]:
    """Yield the messages of a topic or partition, in their order."""
    chunks: dict[str, list[bytes]] = {}
    for stored in topic.log:
        if stored.index in topic.log.hidden:
            continue  # of an aborted transaction, or a marker
        entry = _decode(stored)
        if entry.metadata.marker_type is not None:
            continue
        uuid, number = entry.metadata.uuid, entry.metadata.chunk_id
        if uuid is None or number is None:
            for message in entry.messages():
                place = MessagePlace(*stored.position, message.index)
                yield LoggedMessage(place, message.value or b"", message.key, stored.metadata.producer_name)
            continue
        found = chunks.setdefault(uuid, [])
        if number == 0:
            found.clear()
        if number == len(found):
            found.append(entry.body)
            if len(found) == entry.metadata.num_chunks_from_msg:
                place = MessagePlace(*stored.position, 0)
                key = entry.metadata.partition_key
                producer = stored.metadata.producer_name
                yield LoggedMessage(
                    place, b"".join(found), key.encode() if key is not None else None, producer
                )


def _decode(stored: StoredEntry) -> Entry:
    ledger, number = stored.position
    command = CommandMessage(consumer_id=0, message_id=MessageIdData(ledger_id=ledger, entry_id=number))
    return decode_entry(command, stored.payload, 0, -1, LARGEST)
