"""Configurations of producers and consumers from the names of Java's client."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.client_properties import CLIENT_NAMES
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.consumer_properties import CONSUMER_NAMES
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer_properties import PRODUCER_NAMES

CONFIGS: list[type[Any]] = [PulsarProducerConfig, PulsarConsumerConfig]
JAVAS_PRODUCER = {
    "topicName": None,
    "producerName": None,
    "sendTimeoutMs": 30_000,
    "blockIfQueueFull": False,
    "maxPendingMessages": 0,
    "maxPendingMessagesAcrossPartitions": 0,
    "messageRoutingMode": None,
    "hashingScheme": "JavaStringHash",
    "cryptoFailureAction": "FAIL",
    "batchingMaxPublishDelayMicros": 1000,
    "batchingPartitionSwitchFrequencyByPublishDelay": 10,
    "batchingMaxMessages": 1000,
    "batchingMaxBytes": 131072,
    "batchingEnabled": True,
    "chunkingEnabled": False,
    "chunkMaxMessageSize": -1,
    "encryptionKeys": "[]",
    "compressionType": "NONE",
    "compressMinMsgBodySize": 4096,
    "initialSequenceId": None,
    "autoUpdatePartitions": True,
    "autoUpdatePartitionsIntervalSeconds": 60,
    "multiSchema": True,
    "accessMode": "Shared",
    "lazyStartPartitionedProducers": False,
    "properties": "{}",
    "initialSubscriptionName": None,
    "replProducer": False,
    "nonPartitionedTopicExpected": False,
}
"""The defaults of `ProducerConfigurationData`."""
JAVAS_CONSUMER = {
    "topicNames": None,
    "subscriptionName": None,
    "subscriptionType": "Exclusive",
    "subscriptionProperties": None,
    "subscriptionMode": "Durable",
    "receiverQueueSize": 1000,
    "acknowledgementsGroupTimeMicros": 100_000,
    "maxAcknowledgmentGroupSize": 1000,
    "negativeAckRedeliveryDelayMicros": 60_000_000,
    "negativeAckPrecisionBitCnt": 8,
    "maxTotalReceiverQueueSizeAcrossPartitions": 50_000,
    "consumerName": None,
    "ackTimeoutMillis": 0,
    "tickDurationMillis": 1000,
    "priorityLevel": 0,
    "maxPendingChunkedMessage": 10,
    "autoAckOldestChunkedMessageOnQueueFull": False,
    "expireTimeOfIncompleteChunkedMessageMillis": 60_000,
    "properties": {},
    "readCompacted": False,
    "subscriptionInitialPosition": "Latest",
    "patternAutoDiscoveryPeriod": 60,
    "retryEnable": False,
    "autoUpdatePartitions": True,
    "replicateSubscriptionState": None,
    "resetIncludeHead": False,
    "poolMessages": False,
    "startPaused": False,
    "autoScaledReceiverQueueSizeEnabled": False,
    "topicConfigurations": "[]",
}
"""The defaults of `ConsumerConfigurationData`, but for `batchIndexAckEnabled`."""


def test_the_defaults_of_java_are_ours() -> None:
    assert PulsarProducerConfig.from_properties(JAVAS_PRODUCER) == (PulsarProducerConfig(), {})
    found = PulsarConsumerConfig.from_properties(JAVAS_CONSUMER)
    assert found == (PulsarConsumerConfig(), {"type": "exclusive"})


PRODUCER = {
    "producerName": ("billing-1", "producer_name", "billing-1"),
    "accessMode": ("ExclusiveWithFencing", "access_mode", "exclusive_with_fencing"),
    "sendTimeoutMs": ("0", "send_timeout", 0.0),
    "batchingEnabled": ("false", "batching", False),
    "batchingMaxMessages": (10, "batching_max_messages", 10),
    "batchingMaxBytes": ("1000", "batching_max_bytes", 1000),
    "batchingMaxPublishDelayMicros": ("1500", "batching_max_delay", 0.0015),
    "compressionType": ("zstd", "compression", "zstd"),
    "compressMinMsgBodySize": (0, "compression_min_size", 0),
    "messageRoutingMode": ("SinglePartition", "routing", "single_partition"),
    "batchingPartitionSwitchFrequencyByPublishDelay": (3, "routing_switch_frequency", 3),
    "hashingScheme": ("Murmur3_32Hash", "hashing", "murmur3_32"),
    "maxPendingMessages": ("5", "max_pending_messages", 5),
    "maxPendingMessagesAcrossPartitions": (50, "max_pending_messages_across_partitions", 50),
    "chunkingEnabled": (True, "chunking", True),
    "chunkMaxMessageSize": ("-1", "chunk_max_size", None),
    "initialSequenceId": (-1, "initial_sequence_id", -1),
    "properties": ('{"team": "billing"}', "properties", {"team": "billing"}),
    "initialSubscriptionName": ("audit", "initial_subscription", "audit"),
}
"""Of each name of a key a value, the key, and its value."""
CONSUMER = {
    "consumerName": ("c-1", "consumer_name", "c-1"),
    "subscriptionInitialPosition": ("Earliest", "initial_position", "earliest"),
    "resetIncludeHead": ("true", "start_inclusive", True),
    "priorityLevel": ("2", "priority_level", 2),
    "subscriptionMode": ("NonDurable", "durable", False),
    "readCompacted": (True, "read_compacted", True),
    "receiverQueueSize": ("0", "receiver_queue_size", 0),
    "maxTotalReceiverQueueSizeAcrossPartitions": (7, "max_total_receiver_queue_size", 7),
    "acknowledgementsGroupTimeMicros": ("250000", "ack_group_time", 0.25),
    "maxAcknowledgmentGroupSize": (10, "ack_group_size", 10),
    "batchIndexAckEnabled": ("false", "index_acks", False),
    "negativeAckRedeliveryDelayMicros": (500_000, "nack_delay", 0.5),
    "maxPendingChunkedMessage": (3, "max_pending_chunked", 3),
    "maxPendingChuckedMessage": (4, "max_pending_chunked", 4),
    "expireTimeOfIncompleteChunkedMessageMillis": (1500, "chunk_expiry", 1.5),
    "autoAckOldestChunkedMessageOnQueueFull": (True, "ack_oldest_chunked", True),
    "properties": ({"team": "billing"}, "properties", {"team": "billing"}),
    "subscriptionProperties": ('{"a": "b"}', "subscription_properties", {"a": "b"}),
    "replicateSubscriptionState": ("true", "replicate_subscription_state", True),
    "patternAutoDiscoveryPeriod": (5, "pattern_auto_discovery_period", 5),
    "regexSubscriptionMode": ("NonPersistentOnly", "regex_subscription_mode", "non-persistent"),
    "startPaused": ("true", "start_paused", True),
}


def test_every_key_has_a_value_here() -> None:
    assert list(PRODUCER) == list(PRODUCER_NAMES.keys)
    assert list(CONSUMER) == list(CONSUMER_NAMES.keys)


@pytest.mark.parametrize(
    ("cls", "table"), [(PulsarProducerConfig, PRODUCER), (PulsarConsumerConfig, CONSUMER)]
)
def test_each_key(cls: Any, table: dict[str, tuple[Any, str, Any]]) -> None:
    for name, (value, key, ours) in table.items():
        keys = {"chunking": True} if key == "chunk_max_size" else {}
        assert getattr(cls.from_properties({name: value}, **keys).config, key) == ours, name


def test_keywords_replace_properties_and_arguments_are_returned() -> None:
    config, rest = PulsarConsumerConfig.from_properties(
        {
            "topicNames": '["orders"]',
            "subscriptionName": "billing",
            "subscriptionType": "Key_Shared",
            "receiverQueueSize": "5",
            "consumerName": None,
        },
        receiver_queue_size=7,
    )
    assert (config, dict(rest)) == (
        PulsarConsumerConfig(receiver_queue_size=7),
        {"topic": "orders", "subscription": "billing", "type": "key_shared"},
    )
    produced = PulsarProducerConfig.from_properties({"topicName": "orders"}, producer_name="p")
    assert produced == (PulsarProducerConfig(producer_name="p"), {"topic": "orders"})


@pytest.mark.parametrize(
    ("cls", "properties", "text"),
    [
        (0, {"sendTimeoutMs": "soon"}, "sendTimeoutMs='soon' is not allowed: a whole number"),
        (0, {"sendTimeoutMs": "-1"}, "sendTimeoutMs='-1' is not allowed: send_timeout=-0.001; "),
        (0, {"compressionType": "GZIP"}, "compressionType='GZIP' is not allowed: NONE, LZ4, ZLIB, ZSTD, SNAPPY"),
        (0, {"messageRoutingMode": "CustomPartition"}, "RoundRobinPartition, SinglePartition"),
        (0, {"customMessageRouter": "a.B"}, "pass routing, a function, beside the properties"),
        (0, {"encryptionKeys": ["k"]}, "this client does not encrypt messages"),
        (0, {"batchingEnable": "true"}, "there is no such key; did you mean batchingEnabled?"),
        (0, {"send_timeout": 5}, "send_timeout is a keyword argument"),
        (0, {"xyzzy": 5}, "xyzzy=5 is not allowed: there is no such key"),
        (0, {"properties": "[1]"}, 'a mapping, or JSON as {"name": "text"}'),
        (0, {"properties": "{"}, "a mapping, or JSON"),
        (0, {"batchingEnabled": 1}, "true or false"),
        (0, {7: 1}, "names that are strings"),
        (1, {"ackTimeoutMillis": 1000}, "0: a work queue has ack_timeout"),
        (1, {"deadLetterPolicy": "x"}, "a work queue has dead_letter and retry"),
        (1, {"subscriptionType": "Sharing"}, "Exclusive, Shared, Failover, Key_Shared"),
        (1, {"topicNames": []}, "names of topics"),
        (1, {"topicNames": {"a": "b"}}, "names of topics"),
        (1, {"topicsPattern": "a(*"}, "a regular expression"),
        (1, {"regexSubscriptionMode": "Some"}, "PersistentOnly, NonPersistentOnly, AllTopics"),
        (1, {"priorityLevel": "-1"}, "priorityLevel='-1' is not allowed: priority_level=-1; "),
    ],
)  # fmt: skip
def test_wrong_properties(cls: int, properties: Any, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        CONFIGS[cls].from_properties(properties)
    assert text in str(error.value)


def test_not_a_mapping() -> None:
    for cls in CONFIGS:
        with pytest.raises(ConfigError, match="a mapping of Pulsar's names to values"):
            cls.from_properties(7)


def test_names_without_effect_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    for cls, names in zip(CONFIGS, (PRODUCER_NAMES, CONSUMER_NAMES), strict=True):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "asyncgroup.config"):
            cls.from_properties(dict.fromkeys(names.ignored, "x"))
        assert [text.split()[1] for text in caplog.messages] == list(names.ignored)


def test_no_name_is_of_a_client_and_of_its_producers_or_consumers() -> None:
    """A command tells them apart by their names."""
    assert not {*PRODUCER_NAMES.all_names, *CONSUMER_NAMES.all_names} & set(CLIENT_NAMES)


def test_topics_and_patterns_are_arguments() -> None:
    read = PulsarConsumerConfig.from_properties
    for several in ("a,b", '["a", "b"]', ["a", "b"]):
        assert read({"topicNames": several}).rest == {"topic": ["a", "b"]}
    found = read(
        {"topicsPattern": "a.*", "patternAutoDiscoveryPeriod": 5, "regexSubscriptionMode": "AllTopics"}
    )
    assert found.rest == {"topic": re.compile("a.*")}
    assert found.config.pattern_auto_discovery_period == 5
    assert found.config.regex_subscription_mode == "all"
