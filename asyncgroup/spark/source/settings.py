"""What a query has asked for: the values that its options become, once checked. See `options` for their names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from asyncgroup.config import ConsumerConfig
from asyncgroup.model import TopicPartition
from asyncgroup.secret import reduce_with_secrets

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
"""Partitions with the ids of their topics (KIP-516); nil where brokers are older than the ids."""

LATEST_OFFSET: Final = -1
"""Stands for the log's end in Spark's JSON of offsets."""

EARLIEST_OFFSET: Final = -2
"""Stands for the log's start in Spark's JSON of offsets."""


@dataclass(frozen=True)
class Assign:
    """`assign`: these partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class Subscribe:
    """`subscribe`: all partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True)
class SubscribePattern:
    """`subscribePattern`: all partitions of the topics that `patterns.java_pattern` finds; not Kafka's internal ones."""

    pattern: str


Strategy: TypeAlias = Assign | Subscribe | SubscribePattern


@dataclass(frozen=True)
class Earliest:
    """Every partition's first offset."""


@dataclass(frozen=True)
class Latest:
    """Every partition's end."""


@dataclass(frozen=True)
class Specific:
    """An offset for each partition, or for a topic; `LATEST_OFFSET` and `EARLIEST_OFFSET` stand for the log's ends."""

    offsets: Mapping[TopicPartition, int]
    topics: Mapping[str, int] = field(default_factory=dict)
    """Topics whose partitions all have the same, one of the two ends (SPARK-58774)."""

    def resolve(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """An offset for each of these partitions that is named, by itself or by its topic, and for all other named ones."""
        by_topic = {tp: self.topics[tp.topic] for tp in partitions if tp.topic in self.topics}
        return {**by_topic, **self.offsets}


@dataclass(frozen=True)
class ByTimestamp:
    """The first record not older than a timestamp (ms) of each partition."""

    timestamps: Mapping[TopicPartition, int]
    on_no_match: Literal["error", "latest"] = "error"


@dataclass(frozen=True)
class AtTimestamp:
    """The first record not older than a timestamp (ms), in all partitions."""

    timestamp: int
    on_no_match: Literal["error", "latest"] = "error"


@dataclass(frozen=True)
class FromGroup:
    """What the group has committed; `fallback` for partitions without a commit."""

    fallback: Literal["earliest", "latest", "error"]


OffsetLimit: TypeAlias = Earliest | Latest | Specific | ByTimestamp | AtTimestamp | FromGroup


@dataclass(frozen=True)
class ReadSettings:
    """Everything a reader needs to know; can be pickled, since executors get it too. Durations are seconds."""

    bootstrap_servers: str
    config: ConsumerConfig
    """From `kafka.*`; its isolation level also says where a log ends."""
    strategy: Strategy
    starting: OffsetLimit
    ending: OffsetLimit = field(default_factory=Latest)
    """Of batch queries only."""
    fail_on_data_loss: bool = True
    include_headers: bool = False
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    tasks: int | Literal["auto"] | None = None
    """Spark tasks a batch is packed into at most; None: one for each range; auto: small ranges are packed."""
    group_id: str | None = None
    """The group whose offsets are read and committed; None: nothing is committed."""
    commit_offsets: bool = True
    commit_failure: Literal["warn", "fail"] = "warn"
    trusts_checkpoint: bool = False
    """Whether a checkpoint's offsets are believed that the group lacks; otherwise their topics count as recreated."""
    commit_interval: float = 60.0
    """How often offsets are committed again while nothing comes, so that the group lives on."""
    poll_timeout: float = 120.0
    """How long an executor waits for records of a range before its task fails."""
    offset_retries: int = 3
    offset_retry_interval: float = 1.0
    fetch_bytes: int = 4 * 1024 * 1024
    """Bytes of one partition that a task asks for at a time."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """What is logged when the query starts: options without effect."""

    def warn(self) -> None:
        """Log the warnings. Called once per query, where it is driven: options are read several times before."""
        for warning in self.warnings:
            _log.warning("%s", warning)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles for executors hold the passwords and keys that they connect with."""
        return reduce_with_secrets(self)
