"""Methods and settings of producers of pulsar-client and of Java's client, each with what it is here: hints of errors only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from asyncgroup.properties.suggestions import close_matches

__all__ = ["PULSAR_PRODUCER", "suggest_producer_key"]

_CLOSE: Final = "await producer.aclose(), or the end of `async with`"

_NO_SUCH_KEY: Final = "there is no such key"

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

_SETTINGS: Final[Mapping[str, str]] = {
    "topic": "it is the second argument of PulsarProducer",
    "schema": "leave it out: values are bytes, encode them before",
    "send_timeout_millis": "did you mean send_timeout, in seconds?",
    "send_timeout_ms": "did you mean send_timeout, in seconds?",
    "compression_type": "did you mean compression?",
    "compress_min_msg_body_size": "did you mean compression_min_size?",
    "block_if_queue_full": "leave it out: `send` and `enqueue` wait for room, `send_nowait` raises QueueFull",
    "batching_enabled": "did you mean batching?",
    "batching_max_allowed_size_in_bytes": "did you mean batching_max_bytes?",
    "batching_max_publish_delay_ms": "did you mean batching_max_delay, in seconds?",
    "batching_max_publish_delay_micros": "did you mean batching_max_delay, in seconds?",
    "batching_partition_switch_frequency_by_publish_delay": "did you mean routing_switch_frequency?",
    "batching_type": "did you mean key_based_batching?",
    "batcher_builder": "did you mean key_based_batching?",
    "chunking_enabled": "did you mean chunking?",
    "chunk_max_message_size": "did you mean chunk_max_size?",
    "message_routing_mode": "did you mean routing?",
    "message_router": "did you mean routing, a function (message, number of partitions)?",
    "custom_message_router": "did you mean routing, a function (message, number of partitions)?",
    "hashing_scheme": "did you mean hashing?",
    "initial_subscription_name": "did you mean initial_subscription?",
    "lazy_start_partitioned_producers": "leave it out: all partitions are opened at once",
    "auto_update_partitions": "it is partitions_update_interval of PulsarConfig, 0 for never",
    "auto_update_partitions_interval_seconds": "it is partitions_update_interval of PulsarConfig",
    "encryption_key": "leave it out: this client does not encrypt messages, encrypt the values before",
    "crypto_key_reader": "leave it out: this client does not encrypt messages, encrypt the values before",
    "crypto_failure_action": "leave it out: this client does not encrypt messages",
    "multi_schema": "leave it out: values are bytes, encode them before",
    "memory_limit": "it is memory_limit of PulsarConfig, for all producers of a client",
    "linger": "did you mean batching_max_delay?",
    "batch_size": "did you mean batching_max_bytes?",
    "delivery_timeout": "did you mean send_timeout?",
    "partitioner": "did you mean routing?",
}
"""Settings of pulsar-client, of Java's client as Python spells them, and of this package's producers of Kafka."""


def suggest_producer_key(key: str, known: tuple[str, ...]) -> str:
    """Return the text that suggests a replacement for `key`, which PulsarProducerConfig does not have."""
    spelled = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
    if (found := _SETTINGS.get(spelled)) is not None:
        return f"{_NO_SUCH_KEY}; {found}"
    near = [spelled] if spelled in known else close_matches(spelled, known)
    return f"{_NO_SUCH_KEY}; did you mean {' or '.join(near)}?" if near else _NO_SUCH_KEY
