"""PulsarConsumerConfig from the names of Java's client (`ConsumerConfigurationData`)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Final

from asyncgroup.properties.names import Property
from asyncgroup.pulsar.java_properties import (
    JavaNames,
    Off,
    in_seconds,
    one_of_names,
    read_flag,
    read_mapping,
    read_text,
    read_whole,
)

__all__ = ["CONSUMER_NAMES"]

_NO_ENCRYPTION: Final = "left out: this client does not decrypt messages; decrypt the values after"
_NO_LISTENER: Final = "left out: `async for message in consumer`, or a work queue"
_SAME_FOR_ALL: Final = "left out: the configuration is the same for all topics of a consumer"
_UPDATES: Final = "partitions_update_interval of PulsarConfig is for all topics of a client"


def _subscription_is_durable(value: object) -> bool:
    return one_of_names({"Durable": "yes", "NonDurable": ""})(value) == "yes"


def _topics(value: object) -> str | list[str]:
    """Return the names in a list, also as JSON; of a list of one the name. Raises ValueError."""
    names: object = value
    if isinstance(value, str):
        names = json.loads(value) if value.strip().startswith("[") else value.split(",")
    if not isinstance(names, Collection) or isinstance(names, Mapping) or not names:
        raise ValueError("names of topics")
    found = [read_text(name).strip() for name in names]
    return found[0] if len(found) == 1 else found


def _pattern(value: object) -> re.Pattern[str]:
    text = read_text(value)
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"a regular expression: {error}") from None


CONSUMER_NAMES: Final = JavaNames(
    keys={
        "consumerName": Property("consumer_name", read_text),
        "subscriptionInitialPosition": Property(
            "initial_position", one_of_names({"Latest": "latest", "Earliest": "earliest"})
        ),
        "resetIncludeHead": Property("start_inclusive", read_flag),
        "priorityLevel": Property("priority_level", read_whole),
        "subscriptionMode": Property("durable", _subscription_is_durable),
        "readCompacted": Property("read_compacted", read_flag),
        "receiverQueueSize": Property("receiver_queue_size", read_whole),
        "maxTotalReceiverQueueSizeAcrossPartitions": Property("max_total_receiver_queue_size", read_whole),
        "acknowledgementsGroupTimeMicros": Property("ack_group_time", in_seconds(10**6)),
        "maxAcknowledgmentGroupSize": Property("ack_group_size", read_whole),
        "batchIndexAckEnabled": Property("index_acks", read_flag),
        "negativeAckRedeliveryDelayMicros": Property("nack_delay", in_seconds(10**6)),
        "maxPendingChunkedMessage": Property("max_pending_chunked", read_whole),
        "maxPendingChuckedMessage": Property("max_pending_chunked", read_whole),
        "expireTimeOfIncompleteChunkedMessageMillis": Property("chunk_expiry", in_seconds(1000)),
        "autoAckOldestChunkedMessageOnQueueFull": Property("ack_oldest_chunked", read_flag),
        "properties": Property("properties", read_mapping),
        "subscriptionProperties": Property("subscription_properties", read_mapping),
        "replicateSubscriptionState": Property("replicate_subscription_state", read_flag),
        "patternAutoDiscoveryPeriod": Property("pattern_auto_discovery_period", read_whole),
        "regexSubscriptionMode": Property(
            "regex_subscription_mode",
            one_of_names(
                {"PersistentOnly": "persistent", "NonPersistentOnly": "non-persistent", "AllTopics": "all"}
            ),
        ),
        "startPaused": Property("start_paused", read_flag),
    },
    arguments={
        "topicNames": Property("topic", _topics),
        "topicsPattern": Property("topic", _pattern),
        "subscriptionName": Property("subscription", read_text),
        "subscriptionType": Property(
            "type",
            one_of_names({name: name.lower() for name in ("Exclusive", "Shared", "Failover", "Key_Shared")}),
        ),
    },
    off={
        "topicConfigurations": Off(("", "[]"), _SAME_FOR_ALL),
        "messageListener": Off(("",), _NO_LISTENER),
        "messageListenerExecutor": Off(("",), _NO_LISTENER),
        "consumerEventListener": Off(("",), "left out: health() of a work queue shows the active consumer"),
        "payloadProcessor": Off(("",), "left out: process the values after"),
        "ackTimeoutMillis": Off(("0",), "0: a work queue has ack_timeout"),
        "ackTimeoutRedeliveryBackoff": Off(("",), "left out: a work queue has ack_timeout"),
        "negativeAckRedeliveryBackoff": Off(
            ("",), "left out: nack(message, delay); a work queue has nack_backoff"
        ),
        "deadLetterPolicy": Off(("",), "left out: a work queue has dead_letter and retry"),
        "retryEnable": Off(("false",), "false: a work queue has retry"),
        "batchReceivePolicy": Off(("",), "left out: they are arguments of receive_batch"),
        "keySharedPolicy": Off(
            ("",), "left out: pass key_ranges and allow_out_of_order beside the properties"
        ),
        "cryptoKeyReader": Off(("",), _NO_ENCRYPTION),
        "messageCrypto": Off(("",), _NO_ENCRYPTION),
        "decryptFailListener": Off(("",), _NO_ENCRYPTION),
    },
    ignored={
        "ackReceiptEnabled": "acknowledgements have receipts: `flush` waits for them",
        "tickDurationMillis": "it is for ack timeouts",
        "negativeAckPrecisionBitCnt": "delays are exact",
        "autoScaledReceiverQueueSizeEnabled": "the queue is limited by receiver_queue_bytes",
        "cryptoFailureAction": "this client does not decrypt messages",
        "autoUpdatePartitions": _UPDATES,
        "autoUpdatePartitionsIntervalSeconds": _UPDATES,
        "poolMessages": "it is for the memory of Java",
    },
)
"""What each name stands for."""
