"""Topic configs of Kafka 4.3: types, defaults, bounds and synonyms (`LogConfig`, `ServerTopicConfigSynonyms`)."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "BOOLEAN",
    "DEFAULT_CONFIG",
    "DOUBLE",
    "DYNAMIC_BROKER_CONFIG",
    "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "GROUP_CONFIG",
    "HIDDEN_CONFIG_KEYS",
    "INT",
    "INTERNAL_SEGMENT_BYTES",
    "LIST",
    "LONG",
    "STATIC_BROKER_CONFIG",
    "STRING",
    "TOPIC_CONFIG",
    "TOPIC_CONFIG_KEYS",
    "TOPIC_DOCUMENTATION",
    "ConfigKey",
]

BOOLEAN: Final = 1
STRING: Final = 2
INT: Final = 3
LONG: Final = 5
DOUBLE: Final = 6
LIST: Final = 7
"""Config types (`DescribeConfigsResponse.ConfigType`)."""

TOPIC_CONFIG: Final = 1
DYNAMIC_BROKER_CONFIG: Final = 2
DYNAMIC_DEFAULT_BROKER_CONFIG: Final = 3
STATIC_BROKER_CONFIG: Final = 4
DEFAULT_CONFIG: Final = 5
GROUP_CONFIG: Final = 8
"""Config sources (`DescribeConfigsResponse.ConfigSource`)."""

_LONG_MAX: Final = 2**63 - 1


class ConfigKey(NamedTuple):
    """The definition of one config (Kafka's `ConfigDef.ConfigKey`)."""

    default: str
    type: int
    lowest: float | None = None
    """The smallest number allowed (`Range.atLeast`)."""
    words: frozenset[str] | None = None
    """The values allowed, of a list its elements (`ValidString`, `ValidList`)."""
    synonym: str | None = None
    """The broker config whose value is the default of this topic config."""


def _words(*words: str) -> frozenset[str]:
    return frozenset(words)


TOPIC_CONFIG_KEYS: Final[dict[str, ConfigKey]] = {
    "cleanup.policy": ConfigKey("delete", LIST, None, _words("compact", "delete"), "log.cleanup.policy"),
    "compression.gzip.level": ConfigKey("-1", INT, -1, None, "compression.gzip.level"),
    "compression.lz4.level": ConfigKey("9", INT, 1, None, "compression.lz4.level"),
    "compression.type": ConfigKey(
        "producer",
        STRING,
        None,
        _words("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "compression.type",
    ),
    "compression.zstd.level": ConfigKey("3", INT, None, None, "compression.zstd.level"),
    "delete.retention.ms": ConfigKey("86400000", LONG, 0, None, "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": ConfigKey("60000", LONG, 0, None, "log.segment.delete.delay.ms"),
    "flush.messages": ConfigKey(str(_LONG_MAX), LONG, 1, None, "log.flush.interval.messages"),
    "flush.ms": ConfigKey(str(_LONG_MAX), LONG, 0),
    "follower.replication.throttled.replicas": ConfigKey("", LIST),
    "index.interval.bytes": ConfigKey("4096", INT, 0, None, "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": ConfigKey("", LIST),
    "local.retention.bytes": ConfigKey("-2", LONG, -2, None, "log.local.retention.bytes"),
    "local.retention.ms": ConfigKey("-2", LONG, -2, None, "log.local.retention.ms"),
    "max.compaction.lag.ms": ConfigKey(str(_LONG_MAX), LONG, 1, None, "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": ConfigKey("1048588", INT, 0, None, "message.max.bytes"),
    "message.timestamp.after.max.ms": ConfigKey(
        "3600000", LONG, 0, None, "log.message.timestamp.after.max.ms"
    ),
    "message.timestamp.before.max.ms": ConfigKey(
        str(_LONG_MAX), LONG, 0, None, "log.message.timestamp.before.max.ms"
    ),
    "message.timestamp.type": ConfigKey(
        "CreateTime", STRING, None, _words("CreateTime", "LogAppendTime"), "log.message.timestamp.type"
    ),
    "min.cleanable.dirty.ratio": ConfigKey("0.5", DOUBLE, 0, None, "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": ConfigKey("0", LONG, 0, None, "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": ConfigKey("1", INT, 1, None, "min.insync.replicas"),
    "preallocate": ConfigKey("false", BOOLEAN, None, None, "log.preallocate"),
    "remote.log.copy.disable": ConfigKey("false", BOOLEAN),
    "remote.log.delete.on.disable": ConfigKey("false", BOOLEAN),
    "remote.storage.enable": ConfigKey("false", BOOLEAN),
    "retention.bytes": ConfigKey("-1", LONG, None, None, "log.retention.bytes"),
    "retention.ms": ConfigKey("604800000", LONG, -1),
    "segment.bytes": ConfigKey("1073741824", INT, 1 << 20, None, "log.segment.bytes"),
    "segment.index.bytes": ConfigKey("10485760", INT, 4, None, "log.index.size.max.bytes"),
    "segment.jitter.ms": ConfigKey("0", LONG, 0),
    "segment.ms": ConfigKey("604800000", LONG, 1),
    "unclean.leader.election.enable": ConfigKey(
        "false", BOOLEAN, None, None, "unclean.leader.election.enable"
    ),
}
"""The topic configs that clients see, by name."""

TOPIC_DOCUMENTATION: Final[dict[str, str]] = {
    "cleanup.policy": "Treatment of old segments: delete, compact, or both.",
    "compression.gzip.level": "Compression level of gzip if the broker compresses.",
    "compression.lz4.level": "Compression level of lz4 if the broker compresses.",
    "compression.type": "Codec in which batches are stored; producer keeps the producer's codec.",
    "compression.zstd.level": "Compression level of zstd if the broker compresses.",
    "delete.retention.ms": "Time (ms) that tombstones are kept in a compacted log.",
    "file.delete.delay.ms": "Time (ms) that deleted segments stay on disk.",
    "flush.messages": "Records after which a log is flushed to disk.",
    "flush.ms": "Time (ms) after which a log is flushed to disk.",
    "follower.replication.throttled.replicas": "Replicas whose followers copy at the throttled rate.",
    "index.interval.bytes": "Bytes of a log between two entries of its offset index.",
    "leader.replication.throttled.replicas": "Replicas whose leaders send at the throttled rate.",
    "local.retention.bytes": "Bytes kept on local disk with tiered storage.",
    "local.retention.ms": "Time (ms) kept on local disk with tiered storage.",
    "max.compaction.lag.ms": "Longest time (ms) that a record stays uncompacted.",
    "max.message.bytes": "Largest record batch (bytes) that is accepted.",
    "message.timestamp.after.max.ms": "Maximum time (ms) that a timestamp may be ahead of the broker's clock.",
    "message.timestamp.before.max.ms": "Maximum time (ms) that a timestamp may be behind the broker's clock.",
    "message.timestamp.type": "Whether a record's timestamp is the producer's or the time of the append.",
    "min.cleanable.dirty.ratio": "Share of uncompacted bytes above which a log is compacted.",
    "min.compaction.lag.ms": "Shortest time (ms) that a record stays uncompacted.",
    "min.insync.replicas": "In-sync replicas that a produce request with acks=all needs.",
    "preallocate": "Whether segment files are allocated at full size.",
    "remote.log.copy.disable": "Whether copying to tiered storage is stopped.",
    "remote.log.delete.on.disable": "Whether disabling tiered storage deletes its data.",
    "remote.storage.enable": "Whether old segments are moved to tiered storage.",
    "retention.bytes": "Bytes of a partition beyond which old segments are deleted; -1: no limit.",
    "retention.ms": "Time (ms) after which segments are deleted; -1: never.",
    "segment.bytes": "Size (bytes) at which a new segment begins.",
    "segment.index.bytes": "Largest size (bytes) of an offset index.",
    "segment.jitter.ms": "Largest time (ms) by which a new segment may begin earlier.",
    "segment.ms": "Age (ms) at which a new segment begins.",
    "unclean.leader.election.enable": "Whether a replica that is not in sync may become leader.",
}
"""Documentation of the topic configs, as DescribeConfigs returns it."""

INTERNAL_SEGMENT_BYTES: Final = "internal.segment.bytes"
"""Overrides `segment.bytes` without its lower bound, for tests; not described, as in Kafka."""

HIDDEN_CONFIG_KEYS: Final[dict[str, ConfigKey]] = {INTERNAL_SEGMENT_BYTES: ConfigKey("", INT)}
"""Configs that are accepted but not described."""
