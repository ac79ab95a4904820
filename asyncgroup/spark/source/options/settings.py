"""The settings of a query, made from its options; see `options` for their meaning."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from asyncgroup.config import ConsumerConfig
from asyncgroup.model import TopicPartition
from asyncgroup.secret import reduce_with_secrets
from asyncgroup.spark.api_timeout import API_TIMEOUT

__all__ = [
    "EARLIEST_OFFSET",
    "LATEST_OFFSET",
    "Assign",
    "AtTimestamp",
    "ByTimestamp",
    "Earliest",
    "FromGroup",
    "Latest",
    "OffsetLimit",
    "ReadSettings",
    "Specific",
    "Strategy",
    "Subscribe",
    "SubscribePattern",
    "TopicIds",
]

_log = logging.getLogger("asyncgroup.spark")

TopicIds: TypeAlias = Mapping[TopicPartition, UUID]
"""Partitions with their topic ids (KIP-516); nil with brokers that have no topic ids."""

LATEST_OFFSET: Final = -1
"""The end of the log, in Spark's JSON of offsets."""

EARLIEST_OFFSET: Final = -2
"""The start of the log, in Spark's JSON of offsets."""


@dataclass(frozen=True)
class Assign:
    """`assign`: the listed partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class Subscribe:
    """`subscribe`: all partitions of the listed topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True)
class SubscribePattern:
    """`subscribePattern`: all partitions of topics that match (see `patterns.java_pattern`), without internal topics."""

    pattern: str


Strategy: TypeAlias = Assign | Subscribe | SubscribePattern


@dataclass(frozen=True)
class Earliest:
    """The first offset of each partition."""


@dataclass(frozen=True)
class Latest:
    """The end of each partition."""


@dataclass(frozen=True)
class Specific:
    """Offsets by partition or topic; may be `LATEST_OFFSET` and `EARLIEST_OFFSET`."""

    offsets: Mapping[TopicPartition, int]
    topics: Mapping[str, int] = field(default_factory=dict)
    """`LATEST_OFFSET` or `EARLIEST_OFFSET` for all partitions of a topic (SPARK-58774)."""

    def resolve(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets by partition, including those of `partitions` that are named by their topic."""
        by_topic = {tp: self.topics[tp.topic] for tp in partitions if tp.topic in self.topics}
        return {**by_topic, **self.offsets}


@dataclass(frozen=True)
class ByTimestamp:
    """The first record with a timestamp (ms) equal or greater; a timestamp for each partition."""

    timestamps: Mapping[TopicPartition, int]
    on_no_match: Literal["error", "latest"] = "error"


@dataclass(frozen=True)
class AtTimestamp:
    """The first record with a timestamp (ms) equal or greater; the same timestamp for all partitions."""

    timestamp: int
    on_no_match: Literal["error", "latest"] = "error"


@dataclass(frozen=True)
class FromGroup:
    """The group's committed offsets; `fallback` is for partitions without one."""

    fallback: Literal["earliest", "latest", "error"]


OffsetLimit: TypeAlias = Earliest | Latest | Specific | ByTimestamp | AtTimestamp | FromGroup


@dataclass(frozen=True)
class ReadSettings:
    """All settings of a reader; picklable, as it is sent to executors. Durations are seconds."""

    bootstrap_servers: str
    config: ConsumerConfig
    """From `kafka.*`; its isolation level also determines the latest offsets."""
    strategy: Strategy
    starting: OffsetLimit
    ending: OffsetLimit = field(default_factory=Latest)
    """For batch queries only."""
    fail_on_data_loss: bool = True
    include_headers: bool = False
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    tasks: int | Literal["auto"] | None = None
    """Maximum number of Spark tasks per batch; None: one for each range; auto: small ranges are combined."""
    group_id: str | None = None
    """The group whose offsets are read and committed; None: no offsets are committed."""
    commit_offsets: bool = True
    commit_failure: Literal["warn", "fail"] = "warn"
    trusts_checkpoint: bool = False
    """Whether to use offsets of a checkpoint for which the group has none; otherwise the topics count as recreated."""
    commit_interval: float = 60.0
    """How often commits are repeated while the query is idle, so that the group's offsets do not expire."""
    poll_timeout: float = 120.0
    """How long a task waits for records of a range before it fails."""
    api_timeout: float = API_TIMEOUT
    """How long the driver repeats a request while no broker answers, in one of its `offset_retries` attempts."""
    offset_retries: int = 3
    offset_retry_interval: float = 1.0
    fetch_bytes: int = 4 * 1024 * 1024
    """Bytes of one partition that a task requests at a time."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Warnings about options without effect."""

    def warn(self) -> None:
        """Log the warnings. Called once per query, by its driver: options are parsed several times before."""
        for warning in self.warnings:
            _log.warning("%s", warning)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with passwords and keys, which executors need for connecting."""
        return reduce_with_secrets(self)
