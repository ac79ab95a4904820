"""Methods and settings of consumers of pulsar-client and of Java's client, each with what it is here: hints of errors only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from asyncgroup.properties.suggestions import close_matches

__all__ = ["PULSAR_CONSUMER", "message_hint", "suggest_consumer_key"]

_CLOSE: Final = "await consumer.aclose(), or the end of `async with`"
_ACK: Final = "consumer.ack(message); `await consumer.flush()` waits for the broker"
_CUMULATIVE: Final = "consumer.ack_cumulative(message)"
_BATCH: Final = "await consumer.receive_batch()"
_LAST_ID: Final = "await consumer.last_message_ids()"
_RETRY: Final = "delivery.reconsume_later(delay) of a work queue with retry=True"

PULSAR_CONSUMER: Final[Mapping[str, str]] = {
    "acknowledge": _ACK,
    "acknowledge_async": _ACK,
    "acknowledge_cumulative": _CUMULATIVE,
    "acknowledge_cumulative_async": _CUMULATIVE,
    "negative_acknowledge": "consumer.nack(message), also with a delay",
    "batch_receive": _BATCH,
    "batch_receive_async": _BATCH,
    "receive_async": "await consumer.receive()",
    "reconsume_later": _RETRY,
    "reconsume_later_async": _RETRY,
    "redeliver_unacknowledged_messages": "consumer.redeliver_all()",
    "seek_async": "await consumer.seek(target)",
    "unsubscribe_async": "await consumer.unsubscribe()",
    "get_last_message_id": _LAST_ID,
    "get_last_message_ids": _LAST_ID,
    "pause_message_listener": "consumer.pause()",
    "resume_message_listener": "consumer.resume()",
    "has_reached_end_of_topic": "consumer.is_at_end",
    "is_connected": "all(each.is_attached for each in consumer.partitions)",
    "get_topic": "consumer.topic",
    "get_subscription": "consumer.subscription",
    "subscription_name": "consumer.subscription",
    "get_consumer_name": "consumer.config.consumer_name",
    "consumer_name": "consumer.config.consumer_name",
    "get_stats": "consumer.queued, consumer.errors()",
    "get_last_disconnected_timestamp": "consumer.errors()",
    "close": _CLOSE,
    "close_async": _CLOSE,
}
"""As Python spells them."""

_MESSAGE: Final[Mapping[str, str]] = {
    "data": "message.value",
    "get_data": "message.value",
    "get_value": "message.value",
    "has_null_value": "message.value, None for a null value",
    "partition_key": "message.key",
    "get_key": "message.key",
    "get_key_bytes": "message.key",
    "has_key": "message.key, None without one",
    "get_properties": "message.properties",
    "get_property": "message.properties.get(name)",
    "has_property": "name in message.properties",
    "get_message_id": "message.message_id",
    "topic_name": "message.topic",
    "get_topic_name": "message.topic",
    "publish_timestamp": "message.timestamp, in ms",
    "get_publish_time": "message.timestamp, in ms",
    "event_timestamp": "message.event_time, in ms",
    "get_event_time": "message.event_time, in ms",
    "get_sequence_id": "message.sequence_id",
    "get_producer_name": "message.producer_name",
    "get_ordering_key": "message.ordering_key",
    "has_ordering_key": "message.ordering_key, None without one",
    "get_redelivery_count": "message.redelivery_count",
    "get_index": "message.index_in_topic",
    "schema_version": "nothing: values are bytes",
    "get_schema_version": "nothing: values are bytes",
    "encryption_context": "nothing: values are not decrypted",
    "get_encryption_ctx": "nothing: values are not decrypted",
}

_NO_SUCH_KEY: Final = "there is no such key"
_SUBSCRIBE: Final = "it is an argument of PulsarClient.subscribe"
_QUEUE: Final = "a work queue has it:"
_ENCRYPTION: Final = "leave it out: this client does not decrypt messages, decrypt the values after"
_TOPICS: Final = "the topic of subscribe may be a compiled pattern"
_UPDATES: Final = "it is partitions_update_interval of PulsarConfig"

_SETTINGS: Final[Mapping[str, str]] = {
    "topic": _SUBSCRIBE,
    "topic_names": _SUBSCRIBE,
    "subscription_name": _SUBSCRIBE,
    "consumer_type": f"{_SUBSCRIBE}: type",
    "subscription_type": f"{_SUBSCRIBE}: type",
    "schema": "leave it out: values are bytes, decode them after",
    "message_listener": "leave it out: `async for message in consumer`, or a work queue",
    "max_total_receiver_queue_size_across_partitions": "did you mean max_total_receiver_queue_size?",
    "unacked_messages_timeout_ms": f"{_QUEUE} ack_timeout, in seconds",
    "ack_timeout_millis": f"{_QUEUE} ack_timeout, in seconds",
    "ack_timeout_redelivery_backoff": f"{_QUEUE} ack_timeout",
    "broker_consumer_stats_cache_time_ms": "leave it out: the consumer asks for no statistics",
    "negative_ack_redelivery_delay_ms": "did you mean nack_delay, in seconds?",
    "negative_ack_redelivery_delay_micros": "did you mean nack_delay, in seconds?",
    "negative_ack_redelivery_backoff": f"{_QUEUE} nack_backoff",
    "acknowledgements_group_time_micros": "did you mean ack_group_time, in seconds?",
    "acknowledgment_group_time": "did you mean ack_group_time?",
    "max_acknowledgment_group_size": "did you mean ack_group_size?",
    "is_read_compacted": "did you mean read_compacted?",
    "subscription_initial_position": "did you mean initial_position?",
    "subscription_mode": "did you mean durable?",
    "is_pattern_topic": _TOPICS,
    "topics_pattern": _TOPICS,
    "crypto_key_reader": _ENCRYPTION,
    "crypto_failure_action": _ENCRYPTION,
    "replicate_subscription_state_enabled": "did you mean replicate_subscription_state?",
    "max_pending_chunked_message": "did you mean max_pending_chunked?",
    "max_pending_chucked_message": "did you mean max_pending_chunked?",
    "expire_time_of_incomplete_chunked_message_millis": "did you mean chunk_expiry, in seconds?",
    "auto_ack_oldest_chunked_message_on_queue_full": "did you mean ack_oldest_chunked?",
    "start_message_id_inclusive": "did you mean start_inclusive?",
    "reset_include_head": "did you mean start_inclusive?",
    "batch_receive_policy": "leave it out: they are arguments of receive_batch",
    "key_shared_policy": "did you mean key_ranges or allow_out_of_order?",
    "batch_index_ack_enabled": "did you mean index_acks?",
    "dead_letter_policy": f"{_QUEUE} dead_letter and retry",
    "retry_enable": f"{_QUEUE} retry",
    "auto_update_partitions": f"{_UPDATES}, 0 for never",
    "auto_update_partitions_interval_seconds": _UPDATES,
}
"""Settings of pulsar-client, and of Java's client as Python spells them."""


def _spelled(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def suggest_consumer_key(key: str, known: tuple[str, ...]) -> str:
    """Return the text that suggests a replacement for `key`, which PulsarConsumerConfig does not have."""
    spelled = _spelled(key)
    if (found := _SETTINGS.get(spelled)) is not None:
        return f"{_NO_SUCH_KEY}; {found}"
    near = [spelled] if spelled in known else close_matches(spelled, known)
    return f"{_NO_SUCH_KEY}; did you mean {' or '.join(near)}?" if near else _NO_SUCH_KEY


def message_hint(name: str) -> str:
    """Return the end of the error for an attribute that a message does not have; empty without a hint."""
    found = _MESSAGE.get(_spelled(name))
    return "" if found is None else f"; here it is: {found}"
