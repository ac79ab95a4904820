"""Messages that a test gives an embedded Pulsar directly, without a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final

from asyncgroup.broker.arguments import SeedRecord, key_and_value
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.hashing.java_string import java_string_hash
from asyncgroup.pulsar.wire.frames import encode_entry
from asyncgroup.pulsar.wire.keys import encode_key
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.metadata import MessageMetadata
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic

__all__ = ["MessageSeeder"]

PRODUCER_NAME: Final = "embedded"
"""The producer that seeded messages have."""


class MessageSeeder:
    """Appends messages. `now` is the publish time in ms."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._sequence_ids = count()

    def __repr__(self) -> str:
        return f"<MessageSeeder {self._sequence_ids}>"

    def append(
        self,
        parts: Sequence[BrokerTopic],
        messages: Sequence[SeedRecord],
        *,
        partition: int | None,
        properties: Mapping[str, str] | None,
        event_time: int | None,
    ) -> list[MessageId]:
        """Append messages to a topic with these partitions, see `EmbeddedPulsar.produce`."""
        if partition is not None and not 0 <= partition < len(parts):
            last = len(parts) - 1
            raise UsageError(f"{parts[0].name.whole} has partitions 0 to {last}, not {partition}")
        if properties is not None and not all(
            isinstance(each, str) for pair in properties.items() for each in pair
        ):
            raise ConfigError("properties", properties, "text by text")
        pairs = [key_and_value(message) for message in messages]  # all are checked before the first is stored
        ids = []
        for number, (key, value) in enumerate(pairs):
            metadata = self._metadata(key, value, properties or {}, event_time or 0)
            if partition is not None:
                place = partition
            elif metadata.partition_key is not None:
                place = java_string_hash(metadata.partition_key) % len(parts)
            else:
                place = number % len(parts)
            topic = parts[place]
            entry = topic.append(metadata, encode_entry(metadata.encode(), value or b""))
            ids.append(MessageId(*entry.position, topic.name.partition))
        return ids

    def _metadata(
        self, key: bytes | None, value: bytes | None, properties: Mapping[str, str], event_time: int
    ) -> MessageMetadata:
        text, is_base64 = (None, False) if key is None else encode_key(key)
        return MessageMetadata(
            producer_name=PRODUCER_NAME,
            sequence_id=next(self._sequence_ids),
            publish_time=self._now(),
            properties=properties,
            partition_key=text,
            partition_key_b64_encoded=is_base64,
            uncompressed_size=len(value or b""),
            event_time=event_time,
            null_value=value is None,
        )
