"""PulsarProducerConfig from the names of Java's client (`ProducerConfigurationData`)."""

from __future__ import annotations

from typing import Final

from asyncgroup.properties.names import Property
from asyncgroup.pulsar.java_properties import (
    JavaNames,
    Off,
    in_seconds,
    number_or_none,
    one_of_names,
    read_flag,
    read_mapping,
    read_text,
    read_whole,
)

__all__ = ["PRODUCER_NAMES"]

_NO_ENCRYPTION: Final = (
    "left out: this client does not encrypt messages; encrypt the values before you send them"
)
_UPDATES: Final = "partitions_update_interval of PulsarConfig is for all topics of a client"

PRODUCER_NAMES: Final = JavaNames(
    keys={
        "producerName": Property("producer_name", read_text),
        "accessMode": Property(
            "access_mode",
            one_of_names(
                {
                    "Shared": "shared",
                    "Exclusive": "exclusive",
                    "WaitForExclusive": "wait_for_exclusive",
                    "ExclusiveWithFencing": "exclusive_with_fencing",
                }
            ),
        ),
        "sendTimeoutMs": Property("send_timeout", in_seconds(1000)),
        "batchingEnabled": Property("batching", read_flag),
        "batchingMaxMessages": Property("batching_max_messages", read_whole),
        "batchingMaxBytes": Property("batching_max_bytes", read_whole),
        "batchingMaxPublishDelayMicros": Property("batching_max_delay", in_seconds(10**6)),
        "compressionType": Property(
            "compression",
            one_of_names({name: name.lower() for name in ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")}),
        ),
        "compressMinMsgBodySize": Property("compression_min_size", read_whole),
        "messageRoutingMode": Property(
            "routing",
            one_of_names({"RoundRobinPartition": "round_robin", "SinglePartition": "single_partition"}),
        ),
        "batchingPartitionSwitchFrequencyByPublishDelay": Property("routing_switch_frequency", read_whole),
        "hashingScheme": Property(
            "hashing", one_of_names({"JavaStringHash": "java_string_hash", "Murmur3_32Hash": "murmur3_32"})
        ),
        "maxPendingMessages": Property("max_pending_messages", number_or_none(0)),
        "maxPendingMessagesAcrossPartitions": Property(
            "max_pending_messages_across_partitions", number_or_none(0)
        ),
        "chunkingEnabled": Property("chunking", read_flag),
        "chunkMaxMessageSize": Property("chunk_max_size", number_or_none(-1)),
        "initialSequenceId": Property("initial_sequence_id", read_whole),
        "properties": Property("properties", read_mapping),
        "initialSubscriptionName": Property("initial_subscription", read_text),
    },
    arguments={"topicName": Property("topic", read_text)},
    off={
        "customMessageRouter": Off(("",), "left out: pass routing, a function, beside the properties"),
        "batcherBuilder": Off(("",), "left out: pass key_based_batching=True beside the properties"),
        "cryptoKeyReader": Off(("",), _NO_ENCRYPTION),
        "messageCrypto": Off(("",), _NO_ENCRYPTION),
        "encryptionKeys": Off(("", "[]", "set()"), _NO_ENCRYPTION),
        "replProducer": Off(("false",), "false: it is for brokers that copy to other clusters"),
        "nonPartitionedTopicExpected": Off(
            ("false",), "false: it is for brokers that copy to other clusters"
        ),
    },
    ignored={
        "blockIfQueueFull": "`send` and `enqueue` wait for room, `send_nowait` raises QueueFull",
        "cryptoFailureAction": "this client does not encrypt messages",
        "lazyStartPartitionedProducers": "all partitions are opened at once",
        "autoUpdatePartitions": _UPDATES,
        "autoUpdatePartitionsIntervalSeconds": _UPDATES,
        "multiSchema": "values are bytes",
    },
)
"""What each name stands for."""
