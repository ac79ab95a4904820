"""Messages that producers send to a real Pulsar, for other clients to read."""

from __future__ import annotations

import uuid
from typing import Any, Final

from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from tests.apache_pulsar import RunningPulsar

__all__ = ["CONTENTS", "key_of", "new_topic", "producer"]

CONTENTS: Final[list[dict[str, Any]]] = [
    {"value": b"plain"},
    {"value": b""},
    {"value": None, "key": "deleted"},
    {"value": b"text key", "key": "eggs"},
    {"value": b"bytes that are text", "key": b"eggs"},
    {"value": b"not ASCII", "key": "Spiegelei-ä-😀"},
    {"value": b"binary key", "key": b"\xff\x00\xfe"},
    {"value": b"ordering", "key": "a", "ordering_key": "order-1"},
    {"value": b"properties", "properties": {"one": "1", "ä": "ö", "empty": ""}},
    {"value": b"time", "event_time": 1_700_000_000_123},
    {"value": b"long " * 4000, "key": "eggs", "properties": {"a": "b" * 300}},
    {"value": bytes(range(256)) * 20},
    {"value": b"last"},
]
"""The arguments of `send`."""


def new_topic() -> str:
    return f"producer-{uuid.uuid4().hex[:12]}"


def producer(pulsar: RunningPulsar, topic: str, **options: Any) -> PulsarProducer:
    return PulsarProducer(pulsar.service_url, topic, PulsarProducerConfig(**options))


def key_of(contents: dict[str, Any]) -> bytes | None:
    """Return the bytes of a message's key."""
    key = contents.get("key")
    return key.encode() if isinstance(key, str) else key
