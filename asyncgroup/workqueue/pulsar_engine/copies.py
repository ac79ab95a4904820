"""Copies of messages for retry and dead letter topics, with the names of Java's client, and the producers that write them.

Properties of a retry copy are those of `ConsumerImpl.getPropertiesMap` and `RetryMessageUtil`: REAL_TOPIC, ORIGIN_MESSAGE_ID and
its older name, REAL_SUBSCRIPTION, RECONSUMETIMES and DELAY_TIME; a dead letter has the first four, and as on Kafka the reason and
the number of deliveries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, cast

from asyncgroup.model import Header, Record
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.workqueue.copies import (
    DELAY_TIME,
    DLQ_DELIVERY_COUNT,
    DLQ_GROUP,
    DLQ_MESSAGE,
    DLQ_TOPIC,
    ORIGIN_MESSAGE_ID,
    ORIGIN_MESSAGE_ID_LEGACY,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    RECONSUMETIMES,
    shortened,
)
from asyncgroup.workqueue.engine import OutgoingCopy

__all__ = ["PulsarCopy", "PulsarCopyFormat", "due_at", "earlier_attempts", "is_of_other_subscription"]

_INT32_MAX: Final = 0x7FFFFFFF
_LONGEST_DELAY: Final = 1 << 53


class PulsarCopy(OutgoingCopy):
    """A copy with what only a message of Pulsar has."""

    original: PulsarMessage
    properties: Mapping[str, str]
    deliver_after_ms: int | None
    """The delay of the copy; None for none."""

    @classmethod
    def of(
        cls, message: PulsarMessage, topic: str, properties: dict[str, str], delay_ms: int | None = None
    ) -> PulsarCopy:
        """Return the copy of a message with these properties."""
        headers: list[Header] = [
            (name, text.encode("utf-8", "surrogateescape")) for name, text in properties.items()
        ]
        copy = cls(topic, message.value, message.key, headers, message.timestamp)
        copy.original = message
        copy.properties = properties
        copy.deliver_after_ms = delay_ms
        return copy


class PulsarCopyFormat:
    """The CopyFormat of a subscription."""

    def __init__(self, subscription: str) -> None:
        self._subscription = subscription

    def __repr__(self) -> str:
        return f"<PulsarCopyFormat of {self._subscription!r}>"

    def retry_copy(
        self, record: Record, topic: str, attempt: int, delay: float, headers: Sequence[Header]
    ) -> PulsarCopy:
        """See `CopyFormat.retry_copy`; the values of `headers` are UTF-8 text."""
        message = cast("PulsarMessage", record)
        added = {name: _text(value) for name, value in headers}
        properties = {**message.properties, **added}
        delay_ms = min(math.ceil(round(max(0.0, delay) * 1000, 6)), _LONGEST_DELAY)
        times = attempt
        if RECONSUMETIMES in added:  # a user's count replaces ours, as in Pulsar, and this delivery is added
            given = _number(added[RECONSUMETIMES])
            times = attempt if given is None else given + 1
        # the copy is for this subscription, also if it comes of a dead letter of another one
        properties.pop(REAL_SUBSCRIPTION, None)
        self._add_origin(properties, message)
        properties |= {RECONSUMETIMES: str(min(times, _INT32_MAX)), DELAY_TIME: str(delay_ms)}
        return PulsarCopy.of(message, topic, properties, delay_ms)

    def dead_letter_copy(self, record: Record, topic: str, attempt: int, reason: str) -> PulsarCopy:
        """See `CopyFormat.dead_letter_copy`."""
        message = cast("PulsarMessage", record)
        properties = dict(message.properties)
        for name in (RECONSUMETIMES, DELAY_TIME):
            properties.pop(name, None)
        self._add_origin(properties, message)
        # as on Kafka (KIP-1191); a dead letter that was sent back and has failed again has those of this failure
        properties |= {
            DLQ_TOPIC: message.topic,
            DLQ_GROUP: self._subscription,
            DLQ_DELIVERY_COUNT: str(attempt),
            DLQ_MESSAGE: shortened(reason),
        }
        return PulsarCopy.of(message, topic, properties)

    def _add_origin(self, properties: dict[str, str], message: PulsarMessage) -> None:
        """Add the properties that are missing; those that exist are of the first delivery."""
        where = str(message.message_id)
        properties.setdefault(REAL_TOPIC, str(TopicName.parse(message.topic).whole))
        properties.setdefault(ORIGIN_MESSAGE_ID, where)
        properties.setdefault(ORIGIN_MESSAGE_ID_LEGACY, where)
        properties.setdefault(REAL_SUBSCRIPTION, self._subscription)


def earlier_attempts(message: PulsarMessage) -> int:
    """Return the number of deliveries before this copy was written; 0 if the message has no valid RECONSUMETIMES."""
    text = message.properties.get(RECONSUMETIMES)
    return (None if text is None else _number(text)) or 0


def is_of_other_subscription(subscription: str, message: PulsarMessage) -> bool:
    """Whether another subscription has written this message of a retry topic, for itself."""
    named = message.properties.get(REAL_SUBSCRIPTION)
    return named is not None and named != subscription


def due_at(retry_topic: str | None, message: PulsarMessage) -> int | None:
    """Return the time in ms before which a copy in the retry topic is not delivered; the broker may push it a second early."""
    if retry_topic is None or message.topic != retry_topic:
        return None
    text = message.properties.get(DELAY_TIME)
    delay = None if text is None else _number(text, _LONGEST_DELAY)
    return None if delay is None else message.timestamp + delay


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "surrogateescape")


def _number(text: str, highest: int = _INT32_MAX) -> int | None:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        return None
    number = int(text)
    return number if number <= highest else None
