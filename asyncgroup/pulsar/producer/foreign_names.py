"""Methods of the producers of pulsar-client and of Java's client, each with what it is here: hints of errors only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["PULSAR_PRODUCER"]

_CLOSE: Final = "await producer.aclose(), or the end of `async with`"

PULSAR_PRODUCER: Final[Mapping[str, str]] = {
    "send_async": "producer.send_nowait(value), which returns a future of the message's id",
    "new_message": "await producer.send(value, key=…, properties=…, sequence_id=…)",
    "flush_async": "await producer.flush()",
    "close": _CLOSE,
    "close_async": _CLOSE,
    "producer_name": "producer.name",
    "get_producer_name": "producer.name",
    "get_topic": "producer.topic",
    "get_last_sequence_id": "producer.last_sequence_id",
    "get_num_of_partitions": "producer.partitions",
    "get_last_disconnected_timestamp": "producer.errors()",
    "get_stats": "producer.pending_messages, producer.errors()",
}
"""As Python spells them."""
