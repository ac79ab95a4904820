"""Partitioners: choose the partition of a record whose caller does not name one.

A key always goes to the same partition of a topic, as in the client whose hash is used; only the choice for records without
a key differs from client to client, and no two clients need the same one. The names of `ProducerConfig.partitioner`:

| name | with a key | without a key |
|---|---|---|
| `default` | Java's murmur2 (`BuiltInPartitioner.partitionForKey`) | sticky: one partition for `batch_size` bytes (KIP-794) |
| `murmur2_random` | as `default`; librdkafka's name | sticky |
| `murmur2` | as `default` | the partition of an empty key |
| `fnv1a_random` | FNV-1a, as sarama's `NewHashPartitioner` and librdkafka | sticky |
| `fnv1a` | as `fnv1a_random` | the partition of an empty key |
| `consistent_random` | CRC-32, as librdkafka; an empty key counts as none | sticky |
| `consistent` | CRC-32 | partition 0 |
| `sticky` | as without a key (Java's `partitioner.ignore.keys`) | sticky |
| `random` | as without a key | a random partition for each record |
| `round_robin` | as without a key (Java's `RoundRobinPartitioner`) | the next partition for each record |
| `timed_round_robin` | as `default` | the next partition every 10 `linger` (Pulsar) |
| `single_partition` | as `default` | one random partition for each topic (Pulsar) |
| `manual` | an error: the caller has to name the partition | an error |

All but the hashes choose among partitions with a leader, as long as there are any.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias, cast

from asyncgroup.config import ProducerConfig
from asyncgroup.config.producer import DEFAULT_LINGER
from asyncgroup.errors import InvalidRecordError
from asyncgroup.hashing.murmur2 import partition_for_key

__all__ = [
    "KeyPartitioner",
    "Partitioner",
    "StickyPartition",
    "TimedRoundRobin",
    "TopicPartitioner",
    "TopicRule",
    "crc32_partition",
    "fnv1a_partition",
    "topic_rule",
]

KeyPartitioner: TypeAlias = Callable[[bytes, int], int]
"""Return the partition of a key among a number of partitions."""

AS_WITHOUT_KEY: Final = -1
"""Result of a KeyPartitioner for a key that counts as none."""

SWITCHES_EACH: Final = 10
"""Number of `linger` durations after which `timed_round_robin` switches.

Pulsar's `roundRobinRouterBatchingPartitionSwitchFrequency`.
"""


class TopicPartitioner(Protocol):
    """Chooses the partition of each record of one topic."""

    def __call__(self, key: bytes | None, partitions: int, available: Sequence[int], /) -> int:
        """Return a partition from 0 to `partitions - 1`; `available` are those with a leader, or all if there are none."""
        ...


class Partitioner(Protocol):
    """An own partitioner with state for each topic, as `ProducerConfig(partitioner=…)`; without state a function will do."""

    def for_topic(self, topic: str, /) -> TopicPartitioner:
        """Return the partitioner of a topic; called when the first record for it is written, and again after a long pause."""
        ...


class TopicRule(NamedTuple):
    """How the partitions of a topic's records are chosen."""

    key_partition: KeyPartitioner | None
    """Of records with a key; None treats them as if they had none."""
    choose: TopicPartitioner | None
    """Of all other records; None means sticky."""


# --- with a key -----------------------------------------------------------------------------------------------------


def fnv1a_partition(key: bytes, partitions: int) -> int:
    """Return the partition by FNV-1a (32 bits), as sarama's `NewHashPartitioner` (`partitioner.go`).

    sarama takes the hash as signed, and the absolute value of the remainder, which in Go has the sign of the dividend.
    """
    number = 0x811C9DC5
    for byte in key:
        number = ((number ^ byte) * 0x01000193) & 0xFFFFFFFF
    return (number if number < 1 << 31 else (1 << 32) - number) % partitions


def crc32_partition(key: bytes, partitions: int) -> int:
    """Return the partition by CRC-32, as librdkafka's `consistent` and sarama's `NewConsistentCRCHashPartitioner`."""
    return zlib.crc32(key) % partitions


def _crc32_unless_empty(key: bytes, partitions: int) -> int:
    return zlib.crc32(key) % partitions if key else AS_WITHOUT_KEY


# --- without a key --------------------------------------------------------------------------------------------------


class StickyPartition:
    """The partition that records without a key currently go to; `next_partition` chooses another one."""

    __slots__ = ("_random", "current", "produced")

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self.current = -1
        """-1 before the first choice."""
        self.produced = 0
        """Bytes of records without a key since the last choice."""

    def __repr__(self) -> str:
        return f"<StickyPartition {self.current}, {self.produced} bytes>"

    def next_partition(self, available: Sequence[int], queued: Sequence[int] = ()) -> int:
        """Choose one of `available` (not empty) at random; not the current one unless it is the only one.

        `queued` is the number of batches that wait in each of them. If it is not the same for all, a partition is the more
        likely the fewer wait, and the current one is also a candidate (`BuiltInPartitioner.updatePartitionLoadStats`).
        """
        self.produced = 0
        if len(set(queued)) > 1:
            most = max(queued)
            self.current = self._random.choices(available, [most + 1 - size for size in queued])[0]
        elif self.current not in available:
            self.current = self._random.choice(available)
        elif len(available) > 1:
            # uniform over all but the current one, without building a list of them
            place = self._random.randrange(len(available) - 1)
            self.current = available[place] if available[place] != self.current else available[-1]
        return self.current


def _random_partition(rng: random.Random) -> TopicPartitioner:
    return lambda _key, _partitions, available: rng.choice(available)


class _RoundRobin:
    """Each record goes to the next available partition."""

    def __init__(self) -> None:
        self._count = -1

    def __call__(self, _key: bytes | None, _partitions: int, available: Sequence[int], /) -> int:
        self._count += 1
        return available[self._count % len(available)]


class TimedRoundRobin:
    """Partitioner that moves to the next partition at every multiple of `interval` seconds; a key decides before that.

    As Pulsar's `RoundRobinPartitionMessageRouterImpl` with batching: all records of an interval go to one partition, so that
    they share a batch, and no partition is used for longer, however few records there are. With an interval of 0 each
    record goes to the next partition. `rng` chooses the first partition of each topic.
    """

    def __init__(
        self,
        interval: float,
        *,
        key_partition: KeyPartitioner | None = partition_for_key,
        rng: random.Random | None = None,
    ) -> None:
        self.interval = interval
        self._key_partition = key_partition
        self._random = rng or random.Random()

    def __repr__(self) -> str:
        return f"TimedRoundRobin({self.interval!r})"

    def for_topic(self, topic: str) -> TopicPartitioner:  # noqa: ARG002  the same for every topic
        """Return the partitioner of a topic."""
        start, each = self._random.randrange(1 << 16), _RoundRobin()

        def choose(key: bytes | None, partitions: int, available: Sequence[int]) -> int:
            if key is not None and self._key_partition is not None:
                return self._key_partition(key, partitions)
            if not self.interval:
                return each(key, partitions, available)
            passed = int(asyncio.get_running_loop().time() / self.interval)
            return available[(start + passed) % len(available)]

        return choose


def _single_partition(rng: random.Random) -> TopicPartitioner:
    number = rng.random()
    return lambda _key, partitions, _available: int(number * partitions)


def _empty_key(key_partition: KeyPartitioner) -> TopicPartitioner:
    return lambda _key, partitions, _available: key_partition(b"", partitions)


def _refuse(_key: bytes | None, _partitions: int, _available: Sequence[int]) -> int:
    raise InvalidRecordError("partition", None, "a partition's number, as partitioner='manual'")


# --- the table ------------------------------------------------------------------------------------------------------

_Chooser: TypeAlias = Callable[[ProducerConfig, random.Random], TopicPartitioner | None]


def _linger(config: ProducerConfig) -> float:
    return DEFAULT_LINGER if config.linger is None else config.linger


def _sticky(_config: ProducerConfig, _rng: random.Random) -> None:
    return None


_RULES: Final[dict[str, tuple[KeyPartitioner | None, _Chooser]]] = {
    "default": (partition_for_key, _sticky),
    "murmur2_random": (partition_for_key, _sticky),
    "murmur2": (partition_for_key, lambda _config, _rng: _empty_key(partition_for_key)),
    "fnv1a_random": (fnv1a_partition, _sticky),
    "fnv1a": (fnv1a_partition, lambda _config, _rng: _empty_key(fnv1a_partition)),
    "consistent_random": (_crc32_unless_empty, _sticky),
    "consistent": (crc32_partition, lambda _config, _rng: _empty_key(crc32_partition)),
    "sticky": (None, _sticky),
    "random": (None, lambda _config, rng: _random_partition(rng)),
    "round_robin": (None, lambda _config, _rng: _RoundRobin()),
    "timed_round_robin": (
        partition_for_key,
        lambda config, rng: TimedRoundRobin(SWITCHES_EACH * _linger(config), rng=rng).for_topic(""),
    ),
    "single_partition": (partition_for_key, lambda _config, rng: _single_partition(rng)),
    "manual": (None, lambda _config, _rng: _refuse),
}
"""Of each name: the partitioner of keys, and that of records without one."""


def topic_rule(topic: str, config: ProducerConfig, rng: random.Random) -> TopicRule:
    """Return how the partitions of a topic's records are chosen with this configuration."""
    given = config.partitioner
    if isinstance(given, str):
        key_partition, choose = _RULES[given]
        return TopicRule(key_partition, choose(config, rng))
    if hasattr(given, "for_topic"):
        return TopicRule(None, cast("Partitioner", given).for_topic(topic))
    function = given
    return TopicRule(None, lambda key, partitions, _available: function(key, partitions))
