"""The names of topic settings with Kafka 4.3's types, defaults and bounds (`LogConfig`, `ServerTopicConfigSynonyms`)."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "BOOLEAN",
    "DEFAULT_CONFIG",
    "DOUBLE",
    "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "HIDDEN_KEYS",
    "INT",
    "INTERNAL_SEGMENT_BYTES",
    "LIST",
    "LONG",
    "STATIC_BROKER_CONFIG",
    "STRING",
    "TOPIC_CONFIG",
    "TOPIC_KEYS",
    "TopicKey",
]

BOOLEAN: Final = 1
STRING: Final = 2
INT: Final = 3
LONG: Final = 5
DOUBLE: Final = 6
LIST: Final = 7
"""Types of values (`DescribeConfigsResponse.ConfigType`)."""

TOPIC_CONFIG: Final = 1
DYNAMIC_DEFAULT_BROKER_CONFIG: Final = 3
STATIC_BROKER_CONFIG: Final = 4
DEFAULT_CONFIG: Final = 5
"""Where a value comes from (`DescribeConfigsResponse.ConfigSource`)."""

_LONG_MAX: Final = 2**63 - 1


class TopicKey(NamedTuple):
    """What is known of one setting: its default, its type, the lowest number or the words that are allowed, and what
    the brokers' setting of the same meaning is called.
    """

    default: str
    type: int
    lowest: float | None = None
    words: frozenset[str] | None = None
    synonym: str | None = None


def _words(*words: str) -> frozenset[str]:
    return frozenset(words)


TOPIC_KEYS: Final[dict[str, TopicKey]] = {
    "cleanup.policy": TopicKey("delete", LIST, None, _words("compact", "delete"), "log.cleanup.policy"),
    "compression.gzip.level": TopicKey("-1", INT, -1, None, "compression.gzip.level"),
    "compression.lz4.level": TopicKey("9", INT, 1, None, "compression.lz4.level"),
    "compression.type": TopicKey(
        "producer",
        STRING,
        None,
        _words("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "compression.type",
    ),
    "compression.zstd.level": TopicKey("3", INT, None, None, "compression.zstd.level"),
    "delete.retention.ms": TopicKey("86400000", LONG, 0, None, "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": TopicKey("60000", LONG, 0, None, "log.segment.delete.delay.ms"),
    "flush.messages": TopicKey(str(_LONG_MAX), LONG, 1, None, "log.flush.interval.messages"),
    "flush.ms": TopicKey(str(_LONG_MAX), LONG, 0),
    "follower.replication.throttled.replicas": TopicKey("", LIST),
    "index.interval.bytes": TopicKey("4096", INT, 0, None, "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": TopicKey("", LIST),
    "local.retention.bytes": TopicKey("-2", LONG, -2, None, "log.local.retention.bytes"),
    "local.retention.ms": TopicKey("-2", LONG, -2, None, "log.local.retention.ms"),
    "max.compaction.lag.ms": TopicKey(str(_LONG_MAX), LONG, 1, None, "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": TopicKey("1048588", INT, 0, None, "message.max.bytes"),
    "message.timestamp.after.max.ms": TopicKey(
        "3600000", LONG, 0, None, "log.message.timestamp.after.max.ms"
    ),
    "message.timestamp.before.max.ms": TopicKey(
        str(_LONG_MAX), LONG, 0, None, "log.message.timestamp.before.max.ms"
    ),
    "message.timestamp.type": TopicKey(
        "CreateTime", STRING, None, _words("CreateTime", "LogAppendTime"), "log.message.timestamp.type"
    ),
    "min.cleanable.dirty.ratio": TopicKey("0.5", DOUBLE, 0, None, "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": TopicKey("0", LONG, 0, None, "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": TopicKey("1", INT, 1, None, "min.insync.replicas"),
    "preallocate": TopicKey("false", BOOLEAN, None, None, "log.preallocate"),
    "remote.log.copy.disable": TopicKey("false", BOOLEAN),
    "remote.log.delete.on.disable": TopicKey("false", BOOLEAN),
    "remote.storage.enable": TopicKey("false", BOOLEAN),
    "retention.bytes": TopicKey("-1", LONG, None, None, "log.retention.bytes"),
    "retention.ms": TopicKey("604800000", LONG, -1),
    "segment.bytes": TopicKey("1073741824", INT, 1 << 20, None, "log.segment.bytes"),
    "segment.index.bytes": TopicKey("10485760", INT, 4, None, "log.index.size.max.bytes"),
    "segment.jitter.ms": TopicKey("0", LONG, 0),
    "segment.ms": TopicKey("604800000", LONG, 1),
    "unclean.leader.election.enable": TopicKey(
        "false", BOOLEAN, None, None, "unclean.leader.election.enable"
    ),
}
"""The settings that clients see, by name."""

INTERNAL_SEGMENT_BYTES: Final = "internal.segment.bytes"
"""Takes the place of `segment.bytes`, may be as small as a test likes, and is not shown, as in Kafka."""

HIDDEN_KEYS: Final[dict[str, TopicKey]] = {INTERNAL_SEGMENT_BYTES: TopicKey("", INT)}
"""Those that are accepted and not shown."""
