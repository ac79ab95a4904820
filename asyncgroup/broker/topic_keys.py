"""The names of topic settings with Kafka 4.3's types, defaults and bounds (`LogConfig`, `ServerTopicConfigSynonyms`)."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "BOOLEAN",
    "DEFAULT_CONFIG",
    "DOUBLE",
    "DYNAMIC_BROKER_CONFIG",
    "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "GROUP_CONFIG",
    "HIDDEN_KEYS",
    "INT",
    "INTERNAL_SEGMENT_BYTES",
    "LIST",
    "LONG",
    "STATIC_BROKER_CONFIG",
    "STRING",
    "TOPIC_CONFIG",
    "TOPIC_DOCUMENTATION",
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
DYNAMIC_BROKER_CONFIG: Final = 2
DYNAMIC_DEFAULT_BROKER_CONFIG: Final = 3
STATIC_BROKER_CONFIG: Final = 4
DEFAULT_CONFIG: Final = 5
GROUP_CONFIG: Final = 8
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

TOPIC_DOCUMENTATION: Final[dict[str, str]] = {
    "cleanup.policy": "What happens to old segments: delete, compact, or both.",
    "compression.gzip.level": "Level of gzip where the broker compresses.",
    "compression.lz4.level": "Level of lz4 where the broker compresses.",
    "compression.type": "Codec in which batches are kept; producer keeps what came.",
    "compression.zstd.level": "Level of zstd where the broker compresses.",
    "delete.retention.ms": "How long (ms) tombstones stay in a compacted log.",
    "file.delete.delay.ms": "How long (ms) deleted segments stay on disk.",
    "flush.messages": "Records after which a log is flushed to disk.",
    "flush.ms": "Time (ms) after which a log is flushed to disk.",
    "follower.replication.throttled.replicas": "Replicas whose followers copy at the throttled rate.",
    "index.interval.bytes": "Bytes of a log between two entries of its offset index.",
    "leader.replication.throttled.replicas": "Replicas whose leaders send at the throttled rate.",
    "local.retention.bytes": "Bytes kept on local disk with tiered storage.",
    "local.retention.ms": "Time (ms) kept on local disk with tiered storage.",
    "max.compaction.lag.ms": "Longest time (ms) that a record stays uncompacted.",
    "max.message.bytes": "Largest record batch (bytes) that is taken.",
    "message.timestamp.after.max.ms": "How far (ms) a timestamp may be ahead of the broker's clock.",
    "message.timestamp.before.max.ms": "How far (ms) a timestamp may be before the broker's clock.",
    "message.timestamp.type": "Whether a record's timestamp is the producer's or the time of the append.",
    "min.cleanable.dirty.ratio": "Share of a log that is not compacted yet from which on it is compacted.",
    "min.compaction.lag.ms": "Shortest time (ms) that a record stays uncompacted.",
    "min.insync.replicas": "In-sync replicas that a produce request with acks=all needs.",
    "preallocate": "Whether segment files get their full size at once.",
    "remote.log.copy.disable": "Whether nothing more is copied to tiered storage.",
    "remote.log.delete.on.disable": "Whether switching tiered storage off deletes what is there.",
    "remote.storage.enable": "Whether old segments go to tiered storage.",
    "retention.bytes": "Bytes of a partition beyond which old segments are deleted; -1: no limit.",
    "retention.ms": "Time (ms) after which segments are deleted; -1: never.",
    "segment.bytes": "Size (bytes) at which a new segment begins.",
    "segment.index.bytes": "Largest size (bytes) of an offset index.",
    "segment.jitter.ms": "Largest time (ms) by which a new segment may begin earlier.",
    "segment.ms": "Age (ms) at which a new segment begins.",
    "unclean.leader.election.enable": "Whether a replica that is not in sync may become leader.",
}
"""What they mean, as DescribeConfigs says it."""

INTERNAL_SEGMENT_BYTES: Final = "internal.segment.bytes"
"""Takes the place of `segment.bytes`, may be as small as a test likes, and is not shown, as in Kafka."""

HIDDEN_KEYS: Final[dict[str, TopicKey]] = {INTERNAL_SEGMENT_BYTES: TopicKey("", INT)}
"""Those that are accepted and not shown."""
