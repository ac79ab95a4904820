"""Topic configs of Kafka 4.3: types, defaults, bounds and synonyms (`LogConfig`, `ServerTopicConfigSynonyms`)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

__all__ = [
    "HIDDEN_CONFIG_KEYS",
    "INTERNAL_SEGMENT_BYTES",
    "TOPIC_CONFIG_KEYS",
    "TOPIC_DOCUMENTATION",
    "ConfigKey",
    "ConfigSource",
    "ConfigType",
]


class ConfigType(IntEnum):
    """Config types (`DescribeConfigsResponse.ConfigType`)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a config's value comes from (`DescribeConfigsResponse.ConfigSource`)."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    GROUP_CONFIG = 8


_LONG_MAX: Final = 2**63 - 1


class ConfigKey(NamedTuple):
    """The definition of one config (Kafka's `ConfigDef.ConfigKey`)."""

    default: str
    type: ConfigType
    lowest: float | None = None
    """The smallest number allowed (`Range.atLeast`)."""
    words: tuple[str, ...] | None = None
    """The values allowed, of a list its elements, in Kafka's order (`ValidString`, `ValidList`)."""
    synonym: str | None = None
    """The broker config whose value is the default of this topic config."""
    highest: float | None = None
    """The largest number allowed (`Range.between`)."""


TOPIC_CONFIG_KEYS: Final[dict[str, ConfigKey]] = {
    "cleanup.policy": ConfigKey("delete", ConfigType.LIST, None, ("compact", "delete"), "log.cleanup.policy"),
    "compression.gzip.level": ConfigKey("-1", ConfigType.INT, None, None, "compression.gzip.level"),
    "compression.lz4.level": ConfigKey("9", ConfigType.INT, 1, None, "compression.lz4.level", 17),
    "compression.type": ConfigKey(
        "producer",
        ConfigType.STRING,
        None,
        ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "compression.type",
    ),
    "compression.zstd.level": ConfigKey("3", ConfigType.INT, -131072, None, "compression.zstd.level", 22),
    "delete.retention.ms": ConfigKey("86400000", ConfigType.LONG, 0, None, "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": ConfigKey("60000", ConfigType.LONG, 0, None, "log.segment.delete.delay.ms"),
    "flush.messages": ConfigKey(str(_LONG_MAX), ConfigType.LONG, 1, None, "log.flush.interval.messages"),
    "flush.ms": ConfigKey(str(_LONG_MAX), ConfigType.LONG, 0),
    "follower.replication.throttled.replicas": ConfigKey("", ConfigType.LIST),
    "index.interval.bytes": ConfigKey("4096", ConfigType.INT, 0, None, "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": ConfigKey("", ConfigType.LIST),
    "local.retention.bytes": ConfigKey("-2", ConfigType.LONG, -2, None, "log.local.retention.bytes"),
    "local.retention.ms": ConfigKey("-2", ConfigType.LONG, -2, None, "log.local.retention.ms"),
    "max.compaction.lag.ms": ConfigKey(
        str(_LONG_MAX), ConfigType.LONG, 1, None, "log.cleaner.max.compaction.lag.ms"
    ),
    "max.message.bytes": ConfigKey("1048588", ConfigType.INT, 0, None, "message.max.bytes"),
    "message.timestamp.after.max.ms": ConfigKey(
        "3600000", ConfigType.LONG, 0, None, "log.message.timestamp.after.max.ms"
    ),
    "message.timestamp.before.max.ms": ConfigKey(
        str(_LONG_MAX), ConfigType.LONG, 0, None, "log.message.timestamp.before.max.ms"
    ),
    "message.timestamp.type": ConfigKey(
        "CreateTime",
        ConfigType.STRING,
        None,
        ("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
    ),
    "min.cleanable.dirty.ratio": ConfigKey(
        "0.5", ConfigType.DOUBLE, 0, None, "log.cleaner.min.cleanable.ratio", 1
    ),
    "min.compaction.lag.ms": ConfigKey("0", ConfigType.LONG, 0, None, "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": ConfigKey("1", ConfigType.INT, 1, None, "min.insync.replicas"),
    "preallocate": ConfigKey("false", ConfigType.BOOLEAN, None, None, "log.preallocate"),
    "remote.log.copy.disable": ConfigKey("false", ConfigType.BOOLEAN),
    "remote.log.delete.on.disable": ConfigKey("false", ConfigType.BOOLEAN),
    "remote.storage.enable": ConfigKey("false", ConfigType.BOOLEAN),
    "retention.bytes": ConfigKey("-1", ConfigType.LONG, None, None, "log.retention.bytes"),
    "retention.ms": ConfigKey("604800000", ConfigType.LONG, -1),
    "segment.bytes": ConfigKey("1073741824", ConfigType.INT, 1 << 20, None, "log.segment.bytes"),
    "segment.index.bytes": ConfigKey("10485760", ConfigType.INT, 4, None, "log.index.size.max.bytes"),
    "segment.jitter.ms": ConfigKey("0", ConfigType.LONG, 0),
    "segment.ms": ConfigKey("604800000", ConfigType.LONG, 1),
    "unclean.leader.election.enable": ConfigKey(
        "false", ConfigType.BOOLEAN, None, None, "unclean.leader.election.enable"
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

HIDDEN_CONFIG_KEYS: Final[dict[str, ConfigKey]] = {INTERNAL_SEGMENT_BYTES: ConfigKey("", ConfigType.INT)}
"""Configs that are accepted but not described."""
